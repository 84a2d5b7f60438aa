//! Containers from a descriptor: bytes in pooled memory, cut into messages without a copy.

use buffers::{Lease, Pool};
use bytes::Bytes;
use contract::{Body, Message, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::poller::Poller;
use wire::{BODY_BYTES_MAX, Container, Word};

/// Bytes of a read buffer.
const BUFFER_BYTES: usize = 128 << 10;
/// Read buffers kept for use again.
const BUFFERS_KEPT: usize = 16;
/// What is at most this long is copied out, so that it does not keep a whole read buffer.
const SMALL_BYTES: usize = 2048;

/// Why no more containers come.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The system refused.
    Os(io::Error),
    /// What came is no container.
    Bytes(String),
}

/// What stands in a chain's pipe.
pub(super) enum Part {
    Message(Message),
    Word(Word),
}

/// Reads containers; never blocks.
#[derive(Debug)]
pub(super) struct Reader {
    name: String,
    descriptor: OwnedFd,
    can_wait: bool,
    is_pipe: bool,
    pool: Pool,
    /// Read and not cut yet: the buffer and how much of it.
    gathering: Option<Lease>,
    filled: usize,
    /// Shared out of full buffers, from the beginning of a container on.
    held: Body,
    at_end: bool,
}

impl Reader {
    /// Reads from a descriptor that does not block; errors call it `name`.
    pub(super) fn new(name: impl Into<String>, descriptor: OwnedFd) -> io::Result<Reader> {
        let can_wait = sys::poller::can_wait(descriptor.as_fd())?;
        let mode = rustix::fs::fstat(&descriptor)?.st_mode;
        Ok(Reader {
            name: name.into(),
            descriptor,
            can_wait,
            is_pipe: FileType::from_raw_mode(mode) == FileType::Fifo,
            pool: Pool::new(BUFFER_BYTES, BUFFERS_KEPT),
            gathering: None,
            filled: 0,
            held: Body::new(),
            at_end: false,
        })
    }

    /// What it reads from.
    pub(super) fn into_descriptor(self) -> OwnedFd {
        self.descriptor
    }

    /// Reads once what there is. Whether it is worth to look for a message, or for the end.
    pub(super) fn receive(&mut self) -> Result<bool, ReadError> {
        if self.at_end {
            return Ok(false);
        }
        let buffer = self.gathering.get_or_insert_with(|| self.pool.take());
        let fresh = match rustix::io::read(&self.descriptor, &mut buffer[self.filled..]) {
            // A FIFO reads like one at its end until its first writer comes; only then it can be hung up.
            Ok(0) if self.is_pipe && !self.is_hung_up()? => return Ok(false),
            Ok(fresh) => fresh,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(error) => return Err(ReadError::Os(error.into())),
        };
        self.filled += fresh;
        self.at_end = fresh == 0;
        if self.at_end || self.filled == BUFFER_BYTES || self.is_whole_with_gathered() {
            self.share_gathered();
        }
        Ok(true)
    }

    /// In a chain: the next word, or message that is whole.
    pub(super) fn next_part(&mut self) -> Result<Option<Part>, ReadError> {
        if let Some(word) = self.held.peek_front().and_then(|header| Word::parse(&header)) {
            self.held.skip_front(Word::BYTES);
            return Ok(Some(Part::Word(word)));
        }
        Ok(self.next()?.map(Part::Message))
    }

    /// The next message that is whole.
    pub(super) fn next(&mut self) -> Result<Option<Message>, ReadError> {
        let Some(container) = self.header()? else {
            return match self.at_end && !self.held.is_empty() {
                true => Err(self.cut_short()),
                false => Ok(None),
            };
        };
        let length = container.length as usize;
        if self.held.len() - Container::BYTES < length {
            return if self.at_end { Err(self.cut_short()) } else { Ok(None) };
        }
        self.held.skip_front(Container::BYTES);
        let body = self.held.split_off_front(length).unwrap_or_default();
        Ok(Some(Message::new(Time(container.created), body)))
    }

    /// Whether everything came and was given out.
    pub(super) fn has_ended(&self) -> bool {
        self.at_end && self.held.is_empty()
    }

    /// Whether [`Reader::next`] would find a message, or something that is none.
    pub(super) fn has_next(&self) -> bool {
        match self.header() {
            Ok(None) => self.at_end && !self.held.is_empty(),
            Ok(Some(container)) => {
                self.at_end || self.held.len() - Container::BYTES >= container.length as usize
            }
            Err(_) => true,
        }
    }

    /// What to wait for before [`Reader::receive`] finds something; `None` if that is not to be waited for.
    pub(super) fn waits_for(&self) -> Option<BorrowedFd<'_>> {
        self.can_wait.then(|| self.descriptor.as_fd())
    }

    /// Waits in `poller`; whether it is ready already.
    pub(super) fn want(&self, poller: &mut Poller) -> bool {
        match self.waits_for() {
            Some(descriptor) if !self.at_end => poller.want(descriptor, true, false),
            _ => {}
        }
        self.at_end || !self.can_wait
    }

    fn header(&self) -> Result<Option<Container>, ReadError> {
        let Some(header) = self.held.peek_front::<{ Container::BYTES }>() else { return Ok(None) };
        Container::parse(&header, BODY_BYTES_MAX).map(Some).map_err(|error| {
            ReadError::Bytes(format!("what comes from {} is no container: {error}", self.name))
        })
    }

    fn cut_short(&self) -> ReadError {
        ReadError::Bytes(format!("{} ended {} bytes into a container", self.name, self.held.len()))
    }

    fn is_hung_up(&self) -> Result<bool, ReadError> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut asked = [PollFd::new(&self.descriptor, PollFlags::IN)];
        poll(&mut asked, Some(&now)).map_err(|error| ReadError::Os(error.into()))?;
        Ok(asked[0].revents().contains(PollFlags::HUP))
    }

    fn gathered(&self) -> &[u8] {
        self.gathering.as_ref().map_or(&[], |buffer| &buffer[..self.filled])
    }

    /// Whether a container becomes whole, or turns out to be none, with what is gathered.
    fn is_whole_with_gathered(&self) -> bool {
        let mut header = [0; Container::BYTES];
        let bytes = self.held.chunks().chain([self.gathered()]).flatten();
        let filled = header.iter_mut().zip(bytes).map(|(slot, byte)| *slot = *byte).count();
        filled == header.len()
            && Container::parse(&header, BODY_BYTES_MAX).map_or(true, |container| {
                self.held.len() + self.filled >= Container::BYTES + container.length as usize
            })
    }

    fn share_gathered(&mut self) {
        let filled = std::mem::take(&mut self.filled);
        match self.gathering.take() {
            Some(buffer) if filled > SMALL_BYTES => self.held.push(buffer.freeze().slice(..filled)),
            Some(buffer) => {
                self.held.push(Bytes::copy_from_slice(&buffer[..filled]));
                self.gathering = Some(buffer);
            }
            None => {}
        }
    }
}
