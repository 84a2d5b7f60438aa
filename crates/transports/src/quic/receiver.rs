//! Reads the records of a QUIC connection: from datagrams, from the ordered stream, and from streams of one record
//! each.

use crate::deframer::Deframer;
use contract::Body;
use quinn_proto::{Connection, Dir, ReadError, StreamId};
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

/// An incoming stream.
#[derive(Debug)]
struct IncomingStream {
    id: StreamId,
    deframer: Deframer,
    /// The peer has ended it; the deframer may still hold records.
    has_ended: bool,
}

/// The receiving side of a connection.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    /// Oldest first.
    streams: Vec<IncomingStream>,
    spare: Vec<Deframer>,
    /// The ordered stream has ended, which ends the connection.
    has_ended: bool,
    pub(super) counts: Counts,
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
        while let Some(id) = connection.streams().accept(Dir::Uni) {
            let fresh = || Deframer::new(BODY_BYTES_MAX, 0, KEPT_BYTES_MAX);
            let deframer = self.spare.pop().unwrap_or_else(fresh);
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
                match may_read.then(|| read(connection, stream)) {
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
        // Stream 0 is the ordered stream.
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

fn read(connection: &mut Connection, incoming: &mut IncomingStream) -> Read {
    let mut stream = connection.recv_stream(incoming.id);
    let Ok(mut chunks) = stream.read(true) else { return Read::End };
    let mut result = Read::Data;
    let received = incoming.deframer.receive(|rooms| {
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
    match (result, received) {
        // The data before it was blocked may complete a record.
        (Read::Blocked, Ok((bytes, _))) if bytes > 0 => Read::Data,
        (result, _) => result,
    }
}
