//! Writes the records of a reliable or state flow into one stream.

use crate::send_queue::SendQueue;
use bytes::{Bytes, BytesMut};
use contract::Body;
use quinn_proto::{Connection, Dir, StreamId, WriteError};
use smallvec::SmallVec;

/// Pieces of a record that are written at once.
const PIECES_AT_ONCE: usize = 64;
/// Records up to this size are copied together first: quinn-proto searches a stream's pieces linearly, so many small
/// pieces are slow.
const SMALL_BYTES_MAX: usize = 8 << 10;
/// Bytes that are copied together at once.
const GATHERED_BYTES_MAX: usize = 64 << 10;

/// The stream, and the bytes that enter it next.
#[derive(Debug, Default)]
pub(super) struct OrderedStream {
    stream: Option<StreamId>,
    /// Copies of small records that have left the queue and that the stream has not accepted yet.
    gathered: Bytes,
}

/// Amount that has left the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) records: u64,
    pub(super) bytes: usize,
}

impl OrderedStream {
    /// Opens the stream. It must be the connection's first: the peer identifies it by its number.
    pub(super) fn open(&mut self, connection: &mut Connection) {
        self.stream = self.stream.or_else(|| connection.streams().open(Dir::Uni));
    }

    /// Returns true if the stream has accepted all bytes that left the queue.
    pub(super) fn is_empty(&self) -> bool {
        self.gathered.is_empty()
    }

    /// Ends the stream. Returns false if it is not open yet.
    pub(super) fn finish(&mut self, connection: &mut Connection) -> bool {
        let Some(stream) = self.stream else { return false };
        let _ = connection.send_stream(stream).finish();
        true
    }

    /// Writes records from the queue until the stream is blocked.
    pub(super) fn write<Note>(
        &mut self,
        connection: &mut Connection,
        queue: &mut SendQueue<Note>,
    ) -> Written {
        let mut written = Written::default();
        let Some(stream) = self.stream else { return written };
        loop {
            if !self.gathered.is_empty() {
                let pieces = std::slice::from_mut(&mut self.gathered);
                if write_pieces(connection, stream, pieces) == 0 {
                    return written;
                }
                continue;
            }
            let Some((_, record)) = queue.records.front() else { return written };
            let bytes = if record.len() <= SMALL_BYTES_MAX {
                self.gathered = gather(queue);
                self.gathered.len()
            } else {
                write(connection, stream, record)
            };
            if bytes == 0 {
                return written;
            }
            written.bytes += bytes;
            written.records += queue.sent(bytes);
        }
    }
}

/// Copies the small records at the front of the queue together.
fn gather<Note>(queue: &SendQueue<Note>) -> Bytes {
    let small = || queue.records.iter().map(|(_, record)| record).take_while(|r| r.len() <= SMALL_BYTES_MAX);
    let (mut count, mut bytes) = (0, 0);
    for record in small() {
        if count > 0 && bytes + record.len() > GATHERED_BYTES_MAX {
            break;
        }
        (count, bytes) = (count + 1, bytes + record.len());
    }
    let mut gathered = BytesMut::with_capacity(bytes);
    small().take(count).flat_map(Body::chunks).for_each(|chunk| gathered.extend_from_slice(chunk));
    gathered.freeze()
}

/// Writes as much of a record as the stream accepts. Returns the number of bytes.
pub(super) fn write(connection: &mut Connection, stream: StreamId, record: &Body) -> usize {
    let mut pieces: SmallVec<[Bytes; PIECES_AT_ONCE]> = record.shares().take(PIECES_AT_ONCE).collect();
    write_pieces(connection, stream, &mut pieces)
}

/// Writes as much of the pieces as the stream accepts, and removes it from them. Returns the number of bytes.
fn write_pieces(connection: &mut Connection, stream: StreamId, pieces: &mut [Bytes]) -> usize {
    match connection.send_stream(stream).write_chunks(pieces) {
        Ok(written) => written.bytes,
        // `Stopped` and `ClosedStream` end the connection, which reports the reason.
        Err(WriteError::Blocked | WriteError::Stopped(_) | WriteError::ClosedStream) => 0,
    }
}
