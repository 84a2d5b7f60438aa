//! Memory of a stream between two calls: bytes read that are no message yet, and a message that is not written yet.

use super::{Channel, UNSUPPORTED};
use buffers::{Lease, Pool};
use contract::{Body, Bytes, Ctl, CtlReply, PartnerResult, RecoveryCtl};
use rustix::io::Errno;

/// Read buffers kept for reuse.
const BUFFERS_KEPT: usize = 32;

/// Smaller pieces are copied, so that they do not keep a whole read buffer in memory.
const SMALL_BYTES: usize = 2048;

/// Pooled memory to read into.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    pool: Pool,
    current: Option<Lease>,
    filled_bytes: usize,
}

impl ReadBuffer {
    /// Creates a pool of buffers of this size.
    pub(crate) fn new(bytes: usize) -> Self {
        ReadBuffer { pool: Pool::new(bytes, BUFFERS_KEPT), current: None, filled_bytes: 0 }
    }

    /// Reads into the rest of the buffer. Returns the number of bytes; 0 at the end, `AGAIN` if there are none.
    pub(crate) fn read(&mut self, channel: &Channel) -> rustix::io::Result<usize> {
        let lease = self.current.get_or_insert_with(|| self.pool.take());
        let fresh = channel.read(&mut lease[self.filled_bytes..])?;
        self.filled_bytes += fresh;
        Ok(fresh)
    }

    /// Returns the bytes in the buffer.
    pub(crate) fn filled(&self) -> &[u8] {
        self.current.as_ref().map_or(&[], |lease| &lease[..self.filled_bytes])
    }

    /// Returns true if the buffer is full.
    pub(crate) fn is_full(&self) -> bool {
        self.filled_bytes == self.pool.capacity()
    }

    /// Removes and returns the bytes in the buffer.
    pub(crate) fn take(&mut self) -> Bytes {
        let filled = std::mem::take(&mut self.filled_bytes);
        match self.current.take() {
            Some(lease) if filled > SMALL_BYTES => lease.freeze().slice(..filled),
            Some(lease) => {
                let piece = Bytes::copy_from_slice(&lease[..filled]);
                self.current = Some(lease);
                piece
            }
            None => Bytes::new(),
        }
    }
}

/// A message that is being written.
#[derive(Debug, Default)]
pub(crate) struct PendingWrite {
    body: Body,
    written: usize,
    /// Bytes of the next message that a previous process has written.
    skip: usize,
}

impl PendingWrite {
    /// Returns the number of unwritten bytes.
    pub(crate) fn left(&self) -> usize {
        self.body.len() - self.written
    }

    /// Sets the next message. The previous one must be written completely.
    pub(crate) fn replace(&mut self, body: Body) {
        self.written = std::mem::take(&mut self.skip).min(body.len());
        self.body = body;
    }

    /// Performs [`RecoveryCtl::PartialWrite`] and [`RecoveryCtl::Skip`].
    pub(crate) fn resume(&mut self, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        match (operation, self.left()) {
            (Ctl::Recovery(RecoveryCtl::PartialWrite), 0) => Ok(CtlReply::Done),
            (Ctl::Recovery(RecoveryCtl::PartialWrite), _) => Ok(CtlReply::Count(self.written as u64)),
            (Ctl::Recovery(RecoveryCtl::Skip(bytes)), _) => {
                self.skip = usize::try_from(bytes).unwrap_or(0);
                Ok(CtlReply::Done)
            }
            _ => Err(UNSUPPORTED),
        }
    }

    /// Writes as many bytes as there is room for. Returns their number.
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
