//! What a stream holds between two calls: bytes read and not yet a message, a message not yet written.

use super::Channel;
use buffers::{Lease, Pool};
use contract::{Body, Bytes, CtlReply};
use rustix::io::Errno;

/// Read buffers kept for use again.
const BUFFERS_KEPT: usize = 32;

/// What is at most this long is copied out, so that it does not keep a whole read buffer.
const SMALL_BYTES: usize = 2048;

/// Pooled memory to read into.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    pool: Pool,
    gathering: Option<Lease>,
    filled: usize,
}

impl ReadBuffer {
    /// Buffers of `bytes`.
    pub(crate) fn new(bytes: usize) -> Self {
        ReadBuffer { pool: Pool::new(bytes, BUFFERS_KEPT), gathering: None, filled: 0 }
    }

    /// Reads behind what is gathered; says how much. `AGAIN` if there is nothing; 0 at the end.
    pub(crate) fn read(&mut self, channel: &Channel) -> rustix::io::Result<usize> {
        let lease = self.gathering.get_or_insert_with(|| self.pool.take());
        let fresh = channel.read(&mut lease[self.filled..])?;
        self.filled += fresh;
        Ok(fresh)
    }

    /// What was read and not taken.
    pub(crate) fn gathered(&self) -> &[u8] {
        self.gathering.as_ref().map_or(&[], |lease| &lease[..self.filled])
    }

    /// Whether nothing more fits.
    pub(crate) fn is_full(&self) -> bool {
        self.filled == self.pool.capacity()
    }

    /// Takes what is gathered.
    pub(crate) fn take(&mut self) -> Bytes {
        let filled = std::mem::take(&mut self.filled);
        match self.gathering.take() {
            Some(lease) if filled > SMALL_BYTES => lease.freeze().slice(..filled),
            Some(lease) => {
                let piece = Bytes::copy_from_slice(&lease[..filled]);
                self.gathering = Some(lease);
                piece
            }
            None => Bytes::new(),
        }
    }
}

/// A message that is being written.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    body: Body,
    written: usize,
    /// Bytes of the next that were written by somebody before.
    skip: usize,
}

impl Unwritten {
    /// Bytes left.
    pub(crate) fn left(&self) -> usize {
        self.body.len() - self.written
    }

    /// The next to write; nothing may be left of the one before.
    pub(crate) fn replace(&mut self, body: Body) {
        self.written = std::mem::take(&mut self.skip).min(body.len());
        self.body = body;
    }

    /// What of the last is written, if not all.
    pub(crate) fn partway(&self) -> CtlReply {
        match self.left() {
            0 => CtlReply::Done,
            _ => CtlReply::Count(self.written as u64),
        }
    }

    /// So much of the next was written by somebody before.
    pub(crate) fn skip(&mut self, bytes: u64) {
        self.skip = usize::try_from(bytes).unwrap_or(0);
    }

    /// Writes as much as there is room for; says how much that was.
    pub(crate) fn write(&mut self, channel: &Channel) -> rustix::io::Result<usize> {
        let before = self.written;
        while self.left() > 0 {
            match channel.write_from(&self.body, self.written) {
                Ok(count) => self.written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error),
            }
        }
        let count = self.written - before;
        if self.left() == 0 {
            (self.body, self.written) = (Body::new(), 0);
        }
        Ok(count)
    }
}
