//! Reads the records of a QUIC connection: from datagrams, and from streams.
//!
//! | flow | streams |
//! |---|---|
//! | reliable, state | one sequence of bytes, in order of their numbers: one of [`SEGMENT_BYTES`] continues in the next, a shorter one ends it |
//! | timely | stream 0 has no bytes, and its end is that of the flow; each other one is a record |

use super::ordered_stream::SEGMENT_BYTES;
use crate::deframer::Deframer;
use contract::Body;
use quinn_proto::{Connection, Dir, ReadError, StreamId};
use std::collections::VecDeque;
use std::io;
use wire::{BODY_BYTES_MAX, RecordHeader};

/// Unused buffers for large records that are kept for reuse, bytes.
const KEPT_BYTES_MAX: usize = 16 << 20;
/// Memory for incomplete records, bytes: beyond it only the oldest makes progress.
const PARTIAL_BYTES_MAX: usize = 96 << 20;
/// Deframers of ended streams that are kept for reuse.
const SPARE_MAX: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    /// Records that the peer abandoned.
    pub(super) lost_partial: u64,
    /// Datagrams that hold no record.
    pub(super) malformed: u64,
}

/// An incoming stream of one record.
#[derive(Debug)]
struct IncomingStream {
    id: StreamId,
    deframer: Deframer,
    /// The peer has ended it; the deframer may still hold records.
    has_ended: bool,
}

/// The streams of a sequence of records.
#[derive(Debug)]
struct Sequence {
    /// Streams that have not been read to their end, in order.
    streams: VecDeque<StreamId>,
    /// Bytes read of the first of them.
    bytes: usize,
    deframer: Deframer,
}

/// The receiving side of a connection.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    /// The flow is timely.
    pub(super) is_timely: bool,
    /// Of a timely flow, oldest first.
    streams: Vec<IncomingStream>,
    spare: Vec<Deframer>,
    /// Of another flow, once the peer has opened a stream.
    sequence: Option<Box<Sequence>>,
    /// The peer sends no more.
    has_ended: bool,
    pub(super) counts: Counts,
}

fn fresh_deframer() -> Deframer {
    Deframer::new(BODY_BYTES_MAX, 0, KEPT_BYTES_MAX)
}

impl Receiver {
    /// Returns true if the peer sends no more and `next` has returned all records.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended && self.streams.is_empty()
    }

    /// Returns the next complete record and its flow. After an error, caused by the peer, the connection is unusable.
    pub(super) fn next(&mut self, connection: &mut Connection) -> Result<Option<(u32, Body)>, String> {
        let next = match self.next_datagram(connection) {
            Some(next) => Some(next),
            None => self.next_from_streams(connection)?,
        };
        if let Some((_, record)) = &next {
            self.counts.received += 1;
            self.counts.received_bytes += record.len() as u64;
        }
        Ok(next)
    }

    fn next_datagram(&mut self, connection: &mut Connection) -> Option<(u32, Body)> {
        while let Some(datagram) = connection.datagrams().recv() {
            match RecordHeader::parse(&datagram, BODY_BYTES_MAX) {
                Ok(header) if header.container.length as usize == datagram.len() - RecordHeader::BYTES => {
                    return Some((header.flow, Body::from(datagram)));
                }
                _ => self.counts.malformed += 1,
            }
        }
        None
    }

    fn next_from_streams(&mut self, connection: &mut Connection) -> Result<Option<(u32, Body)>, String> {
        if self.is_timely { self.next_single(connection) } else { self.next_in_order(connection) }
    }

    /// Reads the first stream alone: the others continue it.
    fn next_in_order(&mut self, connection: &mut Connection) -> Result<Option<(u32, Body)>, String> {
        while let Some(id) = connection.streams().accept(Dir::Uni) {
            let fresh =
                || Box::new(Sequence { streams: VecDeque::new(), bytes: 0, deframer: fresh_deframer() });
            self.sequence.get_or_insert_with(fresh).streams.push_back(id);
        }
        let Some(sequence) = &mut self.sequence else { return Ok(None) };
        loop {
            if let Some((flow, record)) = sequence.deframer.next().map_err(|error| error.to_string())? {
                return Ok(Some((flow, Body::from(record.freeze()))));
            }
            if self.has_ended {
                let is_whole = sequence.deframer.is_at_record_boundary() && sequence.streams.is_empty();
                let wrong = || "a sequence ended within a record, or before its last stream".to_string();
                return is_whole.then_some(None).ok_or_else(wrong);
            }
            let Some(id) = sequence.streams.front() else { return Ok(None) };
            let (result, bytes) = read(connection, *id, &mut sequence.deframer);
            sequence.bytes += bytes;
            match result {
                _ if sequence.bytes > SEGMENT_BYTES => return Err("a stream is too long".into()),
                Read::Data => {}
                Read::Blocked => return Ok(None),
                Read::Abandoned => return Err("a part of a sequence was abandoned".into()),
                Read::End => {
                    self.has_ended = sequence.bytes < SEGMENT_BYTES;
                    sequence.streams.pop_front();
                    sequence.bytes = 0;
                }
            }
        }
    }

    /// Reads all streams at once: each is a record.
    fn next_single(&mut self, connection: &mut Connection) -> Result<Option<(u32, Body)>, String> {
        while let Some(id) = connection.streams().accept(Dir::Uni) {
            let deframer = self.spare.pop().unwrap_or_else(fresh_deframer);
            self.streams.push(IncomingStream { id, deframer, has_ended: false });
        }
        let mut index = 0;
        'streams: while index < self.streams.len() {
            // The memory limit never stops the oldest stream, so one record always makes progress.
            let held: usize = self.streams.iter().map(|stream| stream.deframer.held_bytes()).sum();
            let may_read = index == 0 || held < PARTIAL_BYTES_MAX;
            let stream = &mut self.streams[index];
            loop {
                if let Some((flow, record)) = stream.deframer.next().map_err(|error| error.to_string())? {
                    return Ok(Some((flow, Body::from(record.freeze()))));
                }
                if stream.has_ended {
                    self.end(index)?;
                    continue 'streams;
                }
                match may_read.then(|| read(connection, stream.id, &mut stream.deframer).0) {
                    Some(Read::Data) => {}
                    None | Some(Read::Blocked) => break,
                    Some(Read::End) => stream.has_ended = true,
                    Some(Read::Abandoned) => {
                        self.counts.lost_partial += 1;
                        self.streams.remove(index);
                        continue 'streams;
                    }
                }
            }
            index += 1;
        }
        Ok(None)
    }

    /// Removes an ended stream.
    fn end(&mut self, index: usize) -> Result<(), String> {
        let IncomingStream { id, deframer, .. } = self.streams.remove(index);
        if !deframer.is_at_record_boundary() {
            return Err("a stream ended in the middle of a record".into());
        }
        // Stream 0 has no record.
        self.has_ended |= id.index() == 0;
        if self.spare.len() < SPARE_MAX {
            self.spare.push(deframer);
        }
        Ok(())
    }
}

/// Result of reading a stream.
enum Read {
    /// The deframer has more data.
    Data,
    /// The stream has no data now.
    Blocked,
    End,
    /// The peer has reset the stream.
    Abandoned,
}

/// Reads a stream into a deframer. Returns the number of bytes, too.
fn read(connection: &mut Connection, id: StreamId, deframer: &mut Deframer) -> (Read, usize) {
    let mut stream = connection.recv_stream(id);
    let Ok(mut chunks) = stream.read(true) else { return (Read::End, 0) };
    let mut result = Read::Data;
    let received = deframer.receive(|rooms| {
        let mut received = 0;
        for mut room in rooms {
            while room.bytes() > 0 {
                match chunks.next(room.bytes()) {
                    Ok(Some(chunk)) => {
                        let bytes = chunk.bytes.len();
                        room.buffer.extend_from_slice(&chunk.bytes);
                        room.limit -= bytes;
                        received += bytes;
                    }
                    Ok(None) => {
                        result = Read::End;
                        return Ok(received);
                    }
                    Err(ReadError::Blocked) => {
                        result = Read::Blocked;
                        return Ok(received);
                    }
                    Err(ReadError::Reset(_)) => {
                        result = Read::Abandoned;
                        return Ok(received);
                    }
                }
            }
        }
        io::Result::Ok(received)
    });
    // The next transmission returns the flow-control window to the peer.
    let _ = chunks.finalize();
    let bytes = received.map_or(0, |(bytes, _)| bytes);
    // The data before it was blocked may complete a record.
    let is_data = matches!(result, Read::Blocked) && bytes > 0;
    (if is_data { Read::Data } else { result }, bytes)
}
