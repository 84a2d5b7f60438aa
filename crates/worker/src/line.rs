//! A Unix socket that carries whole frames with open descriptors (`unix(7)`, SCM_RIGHTS).
//!
//! A frame is `length: u32`, `descriptors: u16`, then `length` bytes. Its descriptors arrive with its first byte or
//! earlier.

use bytes::{Buf, BytesMut};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use sys::descriptor::{receive_with, send_with};
use sys::poller::Poller;
use thiserror::Error;

/// Bytes of the longest frame.
const FRAME_BYTES_MAX: usize = 16 << 20;
/// Bytes of a frame's length and its number of descriptors.
const HEADER_BYTES: usize = 6;
/// Bytes requested from the kernel in one read.
const READ_BYTES: usize = 64 << 10;
/// The line is full while more bytes than this wait to be sent.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// Most descriptors that may arrive before their frames.
const DESCRIPTORS_MAX: usize = 256;

/// Errors of received frames.
#[derive(Debug, Error)]
pub(super) enum LineError {
    #[error("a frame of {0} bytes")]
    TooLong(usize),
    #[error("descriptors that belong to no frame, or a frame without its descriptors")]
    Descriptors,
    #[error("{0}")]
    Os(#[from] io::Error),
}

/// A received frame: its bytes and descriptors.
pub(super) type Frame = (BytesMut, Vec<OwnedFd>);

/// One end of the line.
pub(super) struct Line {
    socket: OwnedFd,
    /// Accept descriptors; otherwise the kernel closes them.
    takes_descriptors: bool,
    input: BytesMut,
    descriptors: VecDeque<OwnedFd>,
    /// Runs of bytes with descriptors, which are sent with the first byte of the run.
    output: VecDeque<(BytesMut, Vec<OwnedFd>)>,
    waiting_bytes: usize,
    has_ended: bool,
}

impl Line {
    pub(super) fn new(socket: OwnedFd, takes_descriptors: bool) -> io::Result<Line> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Line {
            socket,
            takes_descriptors,
            input: BytesMut::new(),
            descriptors: VecDeque::new(),
            output: VecDeque::new(),
            waiting_bytes: 0,
            has_ended: false,
        })
    }

    /// Returns whether the send queue is full.
    pub(super) fn is_full(&self) -> bool {
        self.waiting_bytes >= WAITING_BYTES_MAX
    }

    /// Queues a frame. Returns `false` if it is too long.
    #[must_use]
    pub(super) fn put(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) -> bool {
        if bytes.len() > FRAME_BYTES_MAX {
            return false;
        }
        let count = descriptors.len() as u16;
        if self.output.is_empty() || count > 0 {
            self.output.push_back((BytesMut::new(), descriptors));
        }
        if let Some((run, _)) = self.output.back_mut() {
            run.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            run.extend_from_slice(&count.to_le_bytes());
            run.extend_from_slice(bytes);
            self.waiting_bytes += HEADER_BYTES + bytes.len();
        }
        true
    }

    /// Sends as much as the socket accepts.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while let Some((run, descriptors)) = self.output.front_mut() {
            match send_with(&self.socket, run, descriptors) {
                Ok(sent) => {
                    descriptors.clear();
                    run.advance(sent);
                    self.waiting_bytes -= sent;
                    if run.is_empty() {
                        self.output.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads once from the socket. An error ends the line.
    pub(super) fn receive(&mut self) {
        let descriptors = self.takes_descriptors.then_some(&mut self.descriptors);
        match receive_with(&self.socket, &mut self.input, READ_BYTES, descriptors) {
            Ok(count) => self.has_ended |= count == 0,
            Err(error) => self.has_ended |= error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Returns the next complete frame.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, LineError> {
        if self.descriptors.len() > DESCRIPTORS_MAX {
            return Err(LineError::Descriptors);
        }
        let frame = next_frame(&mut self.input, self.descriptors.len(), FRAME_BYTES_MAX)?;
        Ok(frame.map(|(bytes, count)| (bytes, self.descriptors.drain(..count).collect())))
    }

    /// Returns the received bytes that are not taken yet.
    pub(super) fn received(&mut self) -> &mut BytesMut {
        &mut self.input
    }

    /// Returns whether the other end is closed and everything from it was received.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Registers the socket for input, and for output if something waits to be sent.
    pub(super) fn register(&self, poller: &mut Poller) {
        poller.register(self.socket.as_fd(), !self.has_ended, !self.output.is_empty());
    }

    /// Returns whether the last wait found the socket ready.
    pub(super) fn is_ready(&self, poller: &Poller) -> bool {
        poller.is_ready(self.socket.as_fd())
    }

    pub(super) fn forget(&self, poller: &mut Poller) {
        poller.forget(self.socket.as_fd());
    }
}

/// Takes the next complete frame from received bytes. Returns it with its number of descriptors, of which `descriptors` have
/// arrived. A frame of more than `bytes_max` bytes is an error as soon as its length is known.
pub(super) fn next_frame(
    input: &mut BytesMut,
    descriptors: usize,
    bytes_max: usize,
) -> Result<Option<(BytesMut, usize)>, LineError> {
    let Some(([a, b, c, d, e, f], _)) = input.split_first_chunk() else { return Ok(None) };
    let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
    let count = usize::from(u16::from_le_bytes([*e, *f]));
    if length > bytes_max {
        return Err(LineError::TooLong(length));
    }
    if input.len() < HEADER_BYTES + length {
        return Ok(None);
    }
    if count > descriptors {
        return Err(LineError::Descriptors);
    }
    input.advance(HEADER_BYTES);
    Ok(Some((input.split_to(length), count)))
}
