//! Writes messages to a line, at a pace that its receiver keeps up with.

use super::event::encode;
use contract::{CtlReply, Interest, Readiness, Time};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use wire::formats::midi::MidiMessage;

/// The receiver of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Receiver {
    /// A raw MIDI device: its driver makes the writer wait.
    Raw,
    /// A driver behind a sequencer, with a buffer of 4 KiB. If that is full, it drops messages.
    Hardware,
    /// Programs, each with a queue of 200 events. If that is full, the kernel empties it.
    Software,
}

/// The speed of a MIDI cable: 10 bits a byte, 31,250 baud.
const BYTE_NS: u64 = 320_000;
/// A part of the driver's buffer.
const BURST_BYTES: u64 = 512;
/// Six times as many messages as a MIDI cable carries.
const CELL_NS: u64 = 156_250;
const BURST_CELLS: u64 = 128;
/// Bytes of a message in one place of a program's queue.
const CELL_BYTES: usize = 28;

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    /// The path pushed it; others restore a state.
    is_pushed: bool,
}

/// Messages on their way to a line.
#[derive(Debug)]
pub(super) struct Output {
    receiver: Receiver,
    queue: VecDeque<Outgoing>,
    /// Written bytes of the first message.
    written: usize,
    /// Bytes of the next pushed message that a killed worker has written.
    skip: usize,
    /// The receiver has taken everything at this time.
    free_at: Time,
    pub(super) messages: u64,
    /// Messages that a receiver did not take.
    pub(super) refused: u64,
}

impl Output {
    pub(super) fn new(receiver: Receiver) -> Output {
        let (queue, free_at) = (VecDeque::new(), Time::default());
        Output { receiver, queue, written: 0, skip: 0, free_at, messages: 0, refused: 0 }
    }

    /// Adds a message of the path. The ones before must be written.
    pub(super) fn push(&mut self, message: MidiMessage) {
        if self.queue.is_empty() {
            self.written = std::mem::take(&mut self.skip).min(message.as_bytes().len());
        }
        self.queue.push_back(Outgoing { bytes: message.into_bytes(), is_pushed: true });
    }

    /// Adds messages that change a state, behind all others.
    pub(super) fn append(&mut self, messages: Vec<MidiMessage>) {
        let outgoing = |message: MidiMessage| Outgoing { bytes: message.into_bytes(), is_pushed: false };
        self.queue.extend(messages.into_iter().map(outgoing));
    }

    /// Writes as much as the line takes now. Returns true if nothing is left.
    pub(super) fn advance(&mut self, line: &OwnedFd, now: Time) -> io::Result<bool> {
        while let Some(first) = self.queue.front() {
            if self.written >= first.bytes.len() {
                self.queue.pop_front();
                (self.written, self.messages) = (0, self.messages + 1);
                continue;
            }
            if self.due_at().is_some_and(|at| at > now) {
                return Ok(false);
            }
            match self.receiver {
                Receiver::Raw => match rustix::io::write(line, &first.bytes[self.written..]) {
                    Ok(count) => self.written += count,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => return Ok(false),
                    // The device has no input.
                    Err(Errno::BADF) => self.refuse(),
                    Err(error) => return Err(error.into()),
                },
                Receiver::Hardware | Receiver::Software => self.write_event(line, now),
            }
        }
        Ok(true)
    }

    /// Gives the first message, or the next piece of it, to all receivers.
    fn write_event(&mut self, line: &OwnedFd, now: Time) {
        let Some(first) = self.queue.front() else { return };
        let (event, taken) = encode(&first.bytes, self.written);
        let cost_ns = match self.receiver {
            Receiver::Hardware => taken as u64 * BYTE_NS,
            _ => event.len().div_ceil(CELL_BYTES) as u64 * CELL_NS,
        };
        self.free_at = Time(self.free_at.max(now).0.saturating_add(cost_ns));
        match rustix::io::write(line, &event) {
            Ok(_) => self.written += taken,
            Err(Errno::INTR) => {}
            // One receiver did not take it, others have. None may stop the others, and none may get it twice.
            Err(_) => {
                self.refused += 1;
                self.written += taken;
            }
        }
    }

    fn refuse(&mut self) {
        self.refused += 1;
        self.written = usize::MAX;
    }

    /// Returns the time before which the receiver takes no more; `None` if that does not depend on time.
    fn due_at(&self) -> Option<Time> {
        let burst_ns = match self.receiver {
            Receiver::Raw => return None,
            Receiver::Hardware => BURST_BYTES * BYTE_NS,
            Receiver::Software => BURST_CELLS * CELL_NS,
        };
        Some(Time(self.free_at.0.saturating_sub(burst_ns)))
    }

    pub(super) fn readiness<'a>(&self, line: &'a OwnedFd) -> Readiness<'a> {
        match self.due_at() {
            _ if self.queue.is_empty() => Readiness::now(),
            Some(at) => Readiness::at(at),
            None => Readiness::descriptor(line.as_fd(), Interest::Write),
        }
    }

    /// Performs [`contract::RecoveryCtl::PartialWrite`].
    pub(super) fn partial_write(&self) -> CtlReply {
        match self.queue.iter().position(|outgoing| outgoing.is_pushed) {
            None => CtlReply::Done,
            Some(0) => CtlReply::Count(self.written as u64),
            Some(_) => CtlReply::Count(0),
        }
    }

    /// Performs [`contract::RecoveryCtl::Skip`].
    pub(super) fn skip(&mut self, bytes: u64) {
        self.skip = usize::try_from(bytes).unwrap_or(0);
    }
}
