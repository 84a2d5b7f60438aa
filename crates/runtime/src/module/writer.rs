//! Messages to a descriptor, as containers, many in one system call.

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
/// Most slices of one gathering write: 8 KiB of stack, and half of what the kernel takes.
const SLICES_MAX: usize = sys::net::SLICES_MAX / 2;

/// Writes containers; never blocks.
#[derive(Debug)]
pub(super) struct Writer {
    name: String,
    place: Place,
    waiting: VecDeque<Body>,
    waiting_bytes: usize,
}

/// Where to write.
#[derive(Debug)]
enum Place {
    Open {
        descriptor: OwnedFd,
        can_wait: bool,
    },
    /// A FIFO that nobody reads yet.
    Opening(Opening),
    Closed,
}

impl Writer {
    /// Writes to a descriptor that does not block; errors call it `name`.
    pub(super) fn new(name: impl Into<String>, descriptor: OwnedFd) -> io::Result<Writer> {
        let can_wait = sys::poller::can_wait(descriptor.as_fd())?;
        Ok(Writer::at(name.into(), Place::Open { descriptor, can_wait }))
    }

    /// Writes to a FIFO as soon as somebody reads it.
    pub(super) fn opening(opening: Opening) -> Writer {
        Writer::at(opening.path().display().to_string(), Place::Opening(opening))
    }

    fn at(name: String, place: Place) -> Writer {
        Writer { name, place, waiting: VecDeque::new(), waiting_bytes: 0 }
    }

    /// What it writes to, if that is open.
    pub(super) fn into_descriptor(self) -> Option<OwnedFd> {
        match self.place {
            Place::Open { descriptor, .. } => Some(descriptor),
            Place::Opening(_) | Place::Closed => None,
        }
    }

    /// What errors call it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Containers, and words, that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether another message may be pushed now.
    pub(super) fn has_room(&self) -> bool {
        self.waiting_bytes < WAITING_BYTES_MAX
    }

    /// Appends a message; one that is too large for a container comes back. The caller flushes at the end of
    /// a burst, and before if [`Writer::has_burst`].
    pub(super) fn push(&mut self, message: Message) -> Result<(), Message> {
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

    /// In a chain: appends a word.
    pub(super) fn push_word(&mut self, word: Word) {
        let mut body = Body::new();
        body.push_front(&word.emit());
        self.waiting_bytes += body.len();
        self.waiting.push_back(body);
    }

    /// Whether so much waits that it pays to write it at once.
    pub(super) fn has_burst(&self) -> bool {
        self.waiting_bytes >= BURST_BYTES
    }

    /// Writes what there is room for; whether that was everything.
    pub(super) fn flush(&mut self, now: Time) -> io::Result<bool> {
        if let Place::Opening(opening) = &mut self.place {
            let Some(descriptor) = opening.try_open(now)? else { return Ok(false) };
            pipes::widen(descriptor.as_fd());
            self.place = Place::Open { descriptor, can_wait: true };
        }
        while !self.waiting.is_empty() {
            let Place::Open { descriptor, .. } = &self.place else { return Ok(false) };
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
                Ok(count) => self.forget(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Lets the reader see the end; everything must be written.
    pub(super) fn close(&mut self) {
        self.place = Place::Closed;
    }

    /// What to wait for before [`Writer::flush`] can go on.
    pub(super) fn waits_for(&self) -> (Option<BorrowedFd<'_>>, Option<Time>) {
        match &self.place {
            Place::Open { descriptor, can_wait: true } => (Some(descriptor.as_fd()), None),
            Place::Opening(opening) => (None, Some(opening.at())),
            Place::Open { .. } | Place::Closed => (None, None),
        }
    }

    /// Waits in `poller` if something waits here; when to look again otherwise.
    pub(super) fn want(&self, poller: &mut Poller) -> Option<Time> {
        if self.waiting.is_empty() {
            return None;
        }
        let (descriptor, at) = self.waits_for();
        if let Some(descriptor) = descriptor {
            poller.want(descriptor, false, true);
        }
        at
    }

    /// The first `count` bytes are written.
    fn forget(&mut self, mut count: usize) {
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
