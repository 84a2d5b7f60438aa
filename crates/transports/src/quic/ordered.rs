//! Records on their way into the stream that keeps order.

use crate::outgoing::Outgoing;
use bytes::{Bytes, BytesMut};
use contract::Body;
use quinn_proto::{Connection, Dir, StreamId, WriteError};
use smallvec::SmallVec;

/// Pieces of a record that are handed over at once.
const PIECES_AT_ONCE: usize = 64;
/// Records of at most so many bytes are copied together first: whoever looks for a byte in what a stream holds passes
/// every piece before it.
const SMALL_BYTES_MAX: usize = 8 << 10;
/// Bytes that are copied together at once.
const GATHERED_BYTES_MAX: usize = 64 << 10;

/// The stream, and what is about to enter it.
#[derive(Debug, Default)]
pub(super) struct Ordered {
    stream: Option<StreamId>,
    /// Small records one behind the other, as far as the stream has not taken them.
    gathered: Bytes,
}

/// What left a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) records: u64,
    pub(super) bytes: usize,
}

impl Ordered {
    /// Opens the stream, so that it is the first and the peer knows it by its number.
    pub(super) fn open(&mut self, connection: &mut Connection) {
        self.stream = self.stream.or_else(|| connection.streams().open(Dir::Uni));
    }

    /// Whether the stream has all that left the queue.
    pub(super) fn is_empty(&self) -> bool {
        self.gathered.is_empty()
    }

    /// Says that nothing comes any more; whether there is a stream to say it in.
    pub(super) fn finish(&mut self, connection: &mut Connection) -> bool {
        let Some(stream) = self.stream else { return false };
        let _ = connection.send_stream(stream).finish();
        true
    }

    /// Writes what waits, as far as the stream takes it.
    pub(super) fn write<Note>(&mut self, connection: &mut Connection, outgoing: &mut Outgoing<Note>) -> Left {
        let mut left = Left::default();
        let Some(stream) = self.stream else { return left };
        loop {
            if !self.gathered.is_empty() {
                let pieces = std::slice::from_mut(&mut self.gathered);
                if write_pieces(connection, stream, pieces) == 0 {
                    return left;
                }
                continue;
            }
            let Some((_, record)) = outgoing.records.front() else { return left };
            let bytes = if record.len() <= SMALL_BYTES_MAX {
                self.gathered = gather(outgoing);
                self.gathered.len()
            } else {
                write(connection, stream, record)
            };
            if bytes == 0 {
                return left;
            }
            left.bytes += bytes;
            left.records += outgoing.sent(bytes);
        }
    }
}

/// The small records at the front, one behind the other.
fn gather<Note>(outgoing: &Outgoing<Note>) -> Bytes {
    let small =
        || outgoing.records.iter().map(|(_, record)| record).take_while(|r| r.len() <= SMALL_BYTES_MAX);
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

/// Writes of a record what a stream takes now; how many bytes.
pub(super) fn write(connection: &mut Connection, stream: StreamId, record: &Body) -> usize {
    let mut pieces: SmallVec<[Bytes; PIECES_AT_ONCE]> = record.shares().take(PIECES_AT_ONCE).collect();
    write_pieces(connection, stream, &mut pieces)
}

/// Writes what a stream takes now, and takes it off the pieces; how many bytes.
fn write_pieces(connection: &mut Connection, stream: StreamId, pieces: &mut [Bytes]) -> usize {
    match connection.send_stream(stream).write_chunks(pieces) {
        Ok(written) => written.bytes,
        // What else there is ends the connection, and is told of there.
        Err(WriteError::Blocked | WriteError::Stopped(_) | WriteError::ClosedStream) => 0,
    }
}
