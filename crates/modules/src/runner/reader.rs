//! Reads containers from a descriptor into pooled memory, and cuts messages from it without a copy.

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

/// Size of a read buffer.
const BUFFER_BYTES: usize = 128 << 10;
/// Read buffers kept for reuse.
const BUFFERS_KEPT: usize = 16;
/// Data of at most this size is copied, so that it does not hold a read buffer.
const SMALL_BYTES: usize = 2048;

/// An error that ends the stream of containers.
#[derive(Debug)]
pub enum ReadError {
    /// A system call failed.
    Os(io::Error),
    /// The bytes are not a container.
    Bytes(String),
}

/// An item in the pipe of a chain.
pub enum Part {
    /// A message.
    Message(Message),
    /// A word between messages.
    Word(Word),
}

/// Reads containers. It never blocks.
#[derive(Debug)]
pub struct Reader {
    name: String,
    descriptor: OwnedFd,
    can_wait: bool,
    is_pipe: bool,
    pool: Pool,
    /// The buffer that is being filled, and its bytes so far.
    gathering: Option<Lease>,
    filled: usize,
    /// Slices of full buffers; begins with a container header.
    held: Body,
    at_end: bool,
}

impl Reader {
    /// Reads from a non-blocking descriptor. Errors call it `name`.
    pub fn new(name: impl Into<String>, descriptor: OwnedFd) -> io::Result<Reader> {
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

    /// Returns the descriptor.
    pub fn into_descriptor(self) -> OwnedFd {
        self.descriptor
    }

    /// Reads once. Returns true if there may be a new message, or the end.
    pub fn receive(&mut self) -> Result<bool, ReadError> {
        if self.at_end {
            return Ok(false);
        }
        let buffer = self.gathering.get_or_insert_with(|| self.pool.take());
        let fresh = match rustix::io::read(&self.descriptor, &mut buffer[self.filled..]) {
            // A FIFO without a writer also reads 0 bytes. It is hung up only after a writer has closed it.
            Ok(0) if self.is_pipe && !self.is_hung_up()? => return Ok(false),
            Ok(fresh) => fresh,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(error) => return Err(ReadError::Os(error.into())),
        };
        self.filled += fresh;
        self.at_end = fresh == 0;
        if self.at_end || self.filled == BUFFER_BYTES || self.gathered_completes_container() {
            self.share_gathered();
        }
        Ok(true)
    }

    /// Returns the next complete message or word of a chain.
    pub fn next_part(&mut self) -> Result<Option<Part>, ReadError> {
        if let Some(word) = self.held.peek_front().and_then(|header| Word::parse(&header)) {
            self.held.skip_front(Word::BYTES);
            return Ok(Some(Part::Word(word)));
        }
        Ok(self.next_message()?.map(Part::Message))
    }

    /// Returns the next complete message.
    pub fn next_message(&mut self) -> Result<Option<Message>, ReadError> {
        let Some(container) = self.header()? else {
            return if self.at_end && !self.held.is_empty() { Err(self.truncated()) } else { Ok(None) };
        };
        let length = container.length as usize;
        if self.held.len() - Container::BYTES < length {
            return if self.at_end { Err(self.truncated()) } else { Ok(None) };
        }
        self.held.skip_front(Container::BYTES);
        let body = self.held.split_off_front(length).unwrap_or_default();
        Ok(Some(Message::new(Time(container.created), body)))
    }

    /// Returns true if all data was read and taken.
    pub fn has_ended(&self) -> bool {
        self.at_end && self.held.is_empty()
    }

    /// Returns true if [`Reader::next`] would return a message or an error.
    pub fn has_next(&self) -> bool {
        match self.header() {
            Ok(None) => self.at_end && !self.held.is_empty(),
            Ok(Some(container)) => {
                self.at_end || self.held.len() - Container::BYTES >= container.length as usize
            }
            Err(_) => true,
        }
    }

    /// The descriptor to wait for before [`Reader::receive`]; `None` if it is always ready (a file).
    pub fn waits_for(&self) -> Option<BorrowedFd<'_>> {
        self.can_wait.then(|| self.descriptor.as_fd())
    }

    /// Registers with `poller`. Returns true if there is no need to wait.
    pub fn register(&self, poller: &mut Poller) -> bool {
        match self.waits_for() {
            Some(descriptor) if !self.at_end => poller.register(descriptor, true, false),
            _ => {}
        }
        self.at_end || !self.can_wait
    }

    fn header(&self) -> Result<Option<Container>, ReadError> {
        let Some(header) = self.held.peek_front::<{ Container::BYTES }>() else { return Ok(None) };
        Container::parse(&header, BODY_BYTES_MAX).map(Some).map_err(|error| {
            ReadError::Bytes(format!("the data from {} is not a container: {error}", self.name))
        })
    }

    fn truncated(&self) -> ReadError {
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

    /// Returns true if the gathered bytes complete a container or reveal an error.
    fn gathered_completes_container(&self) -> bool {
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
