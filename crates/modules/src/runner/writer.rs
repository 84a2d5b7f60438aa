//! Writes messages to a descriptor as containers, many per system call.

use super::pipes::{self, Opening};
use contract::{Body, Message, Time};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::poller::Poller;
use wire::{BODY_BYTES_MAX, Container, Word};

/// Bytes that may wait to be written; one container may always wait.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Bytes that are written without waiting for the end of a burst.
const BURST_BYTES: usize = 64 << 10;
/// Most slices in one write: 8 KiB of stack, half of the kernel's limit.
const SLICES_MAX: usize = sys::net::SLICES_MAX / 2;

/// Writes containers. It never blocks.
#[derive(Debug)]
pub struct Writer {
    name: String,
    target: Target,
    waiting: VecDeque<Body>,
    waiting_bytes: usize,
}

/// Destination of the containers.
#[derive(Debug)]
enum Target {
    Open {
        descriptor: OwnedFd,
        can_wait: bool,
    },
    /// A FIFO without a reader.
    Opening(Opening),
    Closed,
}

impl Writer {
    /// Writes to a non-blocking descriptor. Errors call it `name`.
    pub fn new(name: impl Into<String>, descriptor: OwnedFd) -> io::Result<Writer> {
        let can_wait = sys::poller::can_wait(descriptor.as_fd())?;
        Ok(Writer::at(name.into(), Target::Open { descriptor, can_wait }))
    }

    /// Writes to a FIFO as soon as it has a reader.
    pub fn opening(opening: Opening) -> Writer {
        Writer::at(opening.path().display().to_string(), Target::Opening(opening))
    }

    fn at(name: String, target: Target) -> Writer {
        Writer { name, target, waiting: VecDeque::new(), waiting_bytes: 0 }
    }

    /// Returns the descriptor, if it is open.
    pub fn into_descriptor(self) -> Option<OwnedFd> {
        match self.target {
            Target::Open { descriptor, .. } => Some(descriptor),
            Target::Opening(_) | Target::Closed => None,
        }
    }

    /// Name in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of containers and words that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if another message may be pushed.
    pub fn has_room(&self) -> bool {
        self.waiting_bytes < WAITING_BYTES_MAX
    }

    /// Queues a message. Returns it if it is too large for a container. The caller flushes at the end of a burst,
    /// and earlier if [`Writer::has_burst`].
    pub fn push(&mut self, message: Message) -> Result<(), Message> {
        let length = match u32::try_from(message.body.len()) {
            Ok(length) if length as usize <= BODY_BYTES_MAX => length,
            _ => return Err(message),
        };
        let mut body = message.body;
        body.push_front(&Container { length, created: message.created.0 }.emit());
        self.waiting_bytes += body.len();
        self.waiting.push_back(body);
        Ok(())
    }

    /// Queues a word of a chain.
    pub fn push_word(&mut self, word: Word) {
        let mut body = Body::new();
        body.push_front(&word.emit());
        self.waiting_bytes += body.len();
        self.waiting.push_back(body);
    }

    /// Returns true if enough bytes wait for an efficient write.
    pub fn has_burst(&self) -> bool {
        self.waiting_bytes >= BURST_BYTES
    }

    /// Writes as far as there is room. Returns true if everything was written.
    pub fn flush(&mut self, now: Time) -> io::Result<bool> {
        if let Target::Opening(opening) = &mut self.target {
            let Some(descriptor) = opening.try_open(now)? else { return Ok(false) };
            pipes::widen(descriptor.as_fd());
            self.target = Target::Open { descriptor, can_wait: true };
        }
        while !self.waiting.is_empty() {
            let Target::Open { descriptor, .. } = &self.target else { return Ok(false) };
            let mut slices: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
            for body in &self.waiting {
                body.io_slices(0, &mut slices);
                if slices.len() >= SLICES_MAX {
                    break;
                }
            }
            slices.truncate(SLICES_MAX);
            let result = rustix::io::writev(descriptor, &slices);
            drop(slices);
            match result {
                Ok(count) => self.consume(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Closes the descriptor. Everything must be written.
    pub fn close(&mut self) {
        self.target = Target::Closed;
    }

    /// The descriptor to wait for before [`Writer::flush`] can continue, or the time of the next attempt.
    pub fn waits_for(&self) -> (Option<BorrowedFd<'_>>, Option<Time>) {
        match &self.target {
            Target::Open { descriptor, can_wait: true } => (Some(descriptor.as_fd()), None),
            Target::Opening(opening) => (None, Some(opening.at())),
            Target::Open { .. } | Target::Closed => (None, None),
        }
    }

    /// Registers with `poller` if anything waits. Returns when to continue otherwise.
    pub fn register(&self, poller: &mut Poller) -> Option<Time> {
        if self.waiting.is_empty() {
            return None;
        }
        let (descriptor, at) = self.waits_for();
        if let Some(descriptor) = descriptor {
            poller.register(descriptor, false, true);
        }
        at
    }

    /// Removes the first `count` bytes, which were written.
    fn consume(&mut self, mut count: usize) {
        self.waiting_bytes -= count;
        while let Some(front) = self.waiting.front_mut() {
            if front.len() > count {
                front.skip_front(count);
                break;
            }
            count -= front.len();
            self.waiting.pop_front();
        }
    }
}
