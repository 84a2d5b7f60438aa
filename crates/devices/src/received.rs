//! Packets from the socket of a display server, without blocking.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// The most bytes received at a time, unless one packet is longer.
const BUFFER_BYTES: usize = 1 << 16;

/// Received bytes that no packet has consumed yet: `buffer[consumed..filled]`.
#[derive(Debug, Default)]
pub(crate) struct ReceiveBuffer {
    buffer: Vec<u8>,
    consumed: usize,
    filled: usize,
    /// The length of the incomplete packet at `consumed`, once known.
    needed: usize,
}

impl ReceiveBuffer {
    /// Receives bytes until the needed packet is whole, the buffer is full or the socket is empty.
    pub(crate) fn fill(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        if self.consumed > 0 {
            self.buffer.copy_within(self.consumed..self.filled, 0);
            (self.filled, self.consumed) = (self.filled - self.consumed, 0);
        }
        self.buffer.resize(self.needed.max(BUFFER_BYTES), 0);
        while self.filled < self.buffer.len() {
            match recv(socket, &mut self.buffer[self.filled..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((_, received)) => {
                    self.filled += received;
                    if self.filled >= self.needed {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns the next packet, if it is whole. `length` computes the length of a packet from its first bytes.
    pub(crate) fn take(
        &mut self,
        length: impl Fn(&[u8]) -> io::Result<Option<usize>>,
    ) -> io::Result<Option<Vec<u8>>> {
        let pending = &self.buffer[self.consumed..self.filled];
        let Some(length) = length(pending)? else { return Ok(None) };
        if pending.len() < length {
            self.needed = length;
            return Ok(None);
        }
        let packet = pending[..length].to_vec();
        self.consumed += length;
        self.needed = 0;
        Ok(Some(packet))
    }
}

/// Polls a descriptor until `deadline`.
pub(crate) fn wait(descriptor: BorrowedFd<'_>, flags: PollFlags, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left == Duration::ZERO {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match poll(&mut [PollFd::from_borrowed_fd(descriptor, flags)], Some(&timeout)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
