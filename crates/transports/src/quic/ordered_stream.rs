//! Writes the records of a reliable or state flow as one sequence of bytes, in streams of [`SEGMENT_BYTES`] each.
//!
//! A single stream would not do: quinn-proto gives up a stream that has more than 1024 gaps, which a fast, long and lossy path
//! easily makes, and it searches the pieces of a stream linearly.

use crate::send_queue::SendQueue;
use bytes::{Buf, Bytes, BytesMut};
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

/// Bytes of each stream but the last. Lost datagrams make at most a gap each, so a stream of so many bytes has fewer gaps than
/// quinn-proto allows.
pub(super) const SEGMENT_BYTES: usize = 1 << 20;

/// quinn-proto's bound for the pieces of a stream that wait, and the fewest bytes of a stream in a full datagram.
const PIECES_MAX: usize = 1024;
const PIECE_BYTES_MIN: usize = 1100;
const _: () = assert!(SEGMENT_BYTES / PIECE_BYTES_MIN < PIECES_MAX);

/// The present stream, and the bytes that enter it next.
#[derive(Debug, Default)]
pub(super) struct OrderedStream {
    stream: Option<StreamId>,
    /// Bytes in the present stream.
    filled_bytes: usize,
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
    /// Opens the next stream if there is none, once the peer allows it. The streams have rising numbers from 0, by which the peer
    /// orders them, and an earlier one goes first: the peer waits for it.
    pub(super) fn open(&mut self, connection: &mut Connection) {
        if self.stream.is_none()
            && let Some(stream) = connection.streams().open(Dir::Uni)
        {
            let priority = i32::try_from(stream.index()).map_or(i32::MIN, |index| -index);
            let _ = connection.send_stream(stream).set_priority(priority);
            self.stream = Some(stream);
        }
    }

    /// Returns true if streams have accepted all bytes that left the queue.
    pub(super) fn is_empty(&self) -> bool {
        self.gathered.is_empty()
    }

    /// Ends the sequence. Returns false if the present stream is not open yet.
    pub(super) fn finish(&mut self, connection: &mut Connection) -> bool {
        self.open(connection);
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
        loop {
            if !self.gathered.is_empty() {
                let mut pieces = [self.gathered.clone()];
                let bytes = self.put(connection, &mut pieces);
                if bytes == 0 {
                    return written;
                }
                self.gathered.advance(bytes);
                continue;
            }
            let Some((_, record)) = queue.records.front() else { return written };
            let bytes = if record.len() <= SMALL_BYTES_MAX {
                self.gathered = gather(queue);
                self.gathered.len()
            } else {
                self.put(connection, &mut pieces_of(record))
            };
            if bytes == 0 {
                return written;
            }
            written.bytes += bytes;
            written.records += queue.sent(bytes);
        }
    }

    /// Writes as much of the pieces as the present stream accepts. Returns the number of bytes.
    fn put(&mut self, connection: &mut Connection, mut pieces: &mut [Bytes]) -> usize {
        self.open(connection);
        let Some(stream) = self.stream else { return 0 };
        let (mut count, mut room) = (0, SEGMENT_BYTES - self.filled_bytes);
        while let Some(piece) = pieces.get_mut(count)
            && room > 0
        {
            piece.truncate(room);
            room -= piece.len();
            count += 1;
        }
        pieces = &mut pieces[..count];
        let bytes = write_pieces(connection, stream, pieces);
        self.filled_bytes += bytes;
        if self.filled_bytes == SEGMENT_BYTES {
            let _ = connection.send_stream(stream).finish();
            (self.stream, self.filled_bytes) = (None, 0);
        }
        bytes
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

/// Writes as much of a record as its own stream accepts. Returns the number of bytes.
pub(super) fn write(connection: &mut Connection, stream: StreamId, record: &Body) -> usize {
    write_pieces(connection, stream, &mut pieces_of(record))
}

fn pieces_of(record: &Body) -> SmallVec<[Bytes; PIECES_AT_ONCE]> {
    record.shares().take(PIECES_AT_ONCE).collect()
}

/// Writes as much of the pieces as the stream accepts. Returns the number of bytes.
fn write_pieces(connection: &mut Connection, stream: StreamId, pieces: &mut [Bytes]) -> usize {
    match connection.send_stream(stream).write_chunks(pieces) {
        Ok(written) => written.bytes,
        // `Stopped` and `ClosedStream` end the connection, which reports the reason.
        Err(WriteError::Blocked | WriteError::Stopped(_) | WriteError::ClosedStream) => 0,
    }
}
