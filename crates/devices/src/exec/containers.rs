//! Reads containers from a program's output without losing the place of the next one when the worker is killed.
//!
//! | state | event | next state | action |
//! |---|---|---|---|
//! | `Between` | a whole container has arrived | `Between` | read it, and nothing else |
//! | `Between` | a part of one, or one over [`PEEK_BYTES`] | `Within` | tell the supervisor, read what there is |
//! | `Within` | the rest has arrived | `Between` | tell the supervisor |
//! | `Between` | the end | `Ended` | |
//! | `Within` | the end | `Ended` | error |
//!
//! In `Between`, everything that is not read yet stays in the socket, where the next worker finds it. A worker that is killed in
//! `Within` leaves a stream of which nobody knows the place of the next container; the supervisor knows that.

use super::program::Program;
use contract::{Body, Bytes, Message, Next, PartnerError, PartnerResult, Time};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use wire::{BODY_BYTES_MAX, Container};

/// Largest container that is read with one call.
const PEEK_BYTES: usize = 4096;
/// Bytes read at a time, within a container. Memory grows with what arrives, not with the announced length.
const READ_BYTES: usize = 256 << 10;
/// Reads of one call, at most, so that a long message does not starve the thread's other work.
const READS_MAX: usize = 16;

#[derive(Debug)]
enum State {
    Between,
    /// The bytes of the container so far.
    Within(Vec<u8>),
    Ended,
}

/// Reads a socket that only this process reads.
#[derive(Debug)]
pub(super) struct ContainerReader {
    name: String,
    socket: OwnedFd,
    state: State,
    bytes: u64,
    count: u64,
}

impl ContainerReader {
    pub(super) fn new(name: String, socket: OwnedFd) -> ContainerReader {
        ContainerReader { name, socket, state: State::Between, bytes: 0, count: 0 }
    }

    /// Returns the next message. A creation time of 0 stands for `now`.
    pub(super) fn next(&mut self, now: Time, program: &Program) -> PartnerResult<Next> {
        if let State::Between = self.state {
            let mut peeked = [0; PEEK_BYTES];
            match self.receive(&mut peeked, RecvFlags::PEEK)? {
                None => return Ok(Next::Nothing),
                Some(0) => {
                    self.state = State::Ended;
                    return Ok(Next::End);
                }
                Some(count) => match self.whole_bytes(&peeked[..count])?.filter(|whole| *whole <= count) {
                    Some(whole) => {
                        let mut container = vec![0; whole];
                        // The bytes are there, and nobody else reads them.
                        self.receive(&mut container, RecvFlags::empty())?;
                        return Ok(Next::Message(self.message(container, now)));
                    }
                    None => {
                        program.begin_part();
                        self.state = State::Within(Vec::with_capacity(PEEK_BYTES));
                    }
                },
            }
        }
        self.read_part(now, program)
    }

    /// Reads within a container.
    fn read_part(&mut self, now: Time, program: &Program) -> PartnerResult<Next> {
        let State::Within(mut container) = std::mem::replace(&mut self.state, State::Ended) else {
            return Ok(Next::End);
        };
        for _ in 0..READS_MAX {
            let whole = self.whole_bytes(&container)?;
            let missing = whole.unwrap_or(Container::BYTES) - container.len();
            if missing == 0 && whole.is_some() {
                program.end_part();
                self.state = State::Between;
                return Ok(Next::Message(self.message(container, now)));
            }
            let held = container.len();
            container.resize(held + missing.min(READ_BYTES), 0);
            let received = self.receive(&mut container[held..], RecvFlags::empty())?;
            container.truncate(held + received.unwrap_or(0));
            match received {
                None => break,
                Some(0) => {
                    let problem = format!("{}: its output ends {held} bytes into a container", self.name);
                    return Err(PartnerError::Data(problem));
                }
                Some(_) => {}
            }
        }
        self.state = State::Within(container);
        Ok(Next::Nothing)
    }

    /// Returns the length of the container that begins with these bytes, if they tell it.
    fn whole_bytes(&self, start: &[u8]) -> PartnerResult<Option<usize>> {
        let Some(header) = start.first_chunk::<{ Container::BYTES }>() else { return Ok(None) };
        match Container::parse(header, BODY_BYTES_MAX) {
            Ok(container) => Ok(Some(Container::BYTES + container.length as usize)),
            Err(error) => {
                let problem = format!("{}: not a container: {error}", self.name);
                Err(PartnerError::Data(problem))
            }
        }
    }

    fn message(&mut self, container: Vec<u8>, now: Time) -> Message {
        self.bytes += container.len() as u64;
        self.count += 1;
        let created = Container::parse(&container, BODY_BYTES_MAX).map_or(0, |container| container.created);
        let mut body = Body::new();
        body.push(Bytes::from(container).slice(Container::BYTES..));
        Message::new(if created == 0 { now } else { Time(created) }, body)
    }

    /// Receives the available bytes: `None` if there are none, 0 at the end.
    fn receive(&self, into: &mut [u8], flags: RecvFlags) -> PartnerResult<Option<usize>> {
        match recv(&self.socket, into, flags | RecvFlags::DONTWAIT) {
            Ok((count, _)) => Ok(Some(count)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(Errno::CONNRESET) => Ok(Some(0)),
            Err(error) => Err(PartnerError::os(format!("reading the output of {}", self.name), error)),
        }
    }

    /// Reads and discards the output of a program that has no flow out.
    pub(super) fn discard(&mut self) -> PartnerResult {
        let mut discarded = [0; PEEK_BYTES];
        for _ in 0..READS_MAX {
            match self.receive(&mut discarded, RecvFlags::empty())? {
                None => break,
                Some(0) => {
                    self.state = State::Ended;
                    break;
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// Returns the bytes of returned messages, headers included.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts the containers before a frame at this place, which an earlier worker has read.
    pub(super) fn catch_up(&mut self, at: u64) {
        self.count = self.count.max(at);
    }

    /// Returns the number of containers so far, as far as this worker knows.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the bytes that a killed worker would lose.
    pub(super) fn ahead(&self) -> u64 {
        match &self.state {
            State::Within(container) => container.len() as u64,
            State::Between | State::Ended => 0,
        }
    }
}

/// Readable when there may be a message.
impl AsFd for ContainerReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
