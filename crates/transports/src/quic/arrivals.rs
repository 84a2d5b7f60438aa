//! What comes over a QUIC connection, as whole records: in datagrams, in the stream that keeps order, and in streams
//! of one record each.

use crate::inbox::Inbox;
use contract::Body;
use quinn_proto::{Connection, Dir, ReadError, StreamId};
use std::io;
use wire::RecordHeader;

/// Memory for large records that is kept for the next ones, bytes.
const KEPT_BYTES_MAX: usize = 16 << 20;
/// Inboxes of streams that ended, for those to come.
const SPARE_MAX: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    /// Records that the peer gave up.
    pub(super) lost_partial: u64,
    /// Datagrams that are no record.
    pub(super) malformed: u64,
}

/// A stream that is being read.
#[derive(Debug)]
struct Arriving {
    stream: StreamId,
    inbox: Inbox,
    ended: bool,
}

/// Takes what comes apart into records.
#[derive(Debug)]
pub(super) struct Arrivals {
    body_bytes_max: usize,
    partial_bytes_max: usize,
    /// Oldest first.
    streams: Vec<Arriving>,
    spare: Vec<Inbox>,
    /// The peer says no more.
    ended: bool,
    pub(super) counts: Counts,
}

impl Arrivals {
    pub(super) fn new(body_bytes_max: usize, partial_bytes_max: usize) -> Arrivals {
        Arrivals {
            body_bytes_max,
            partial_bytes_max,
            streams: Vec::new(),
            spare: Vec::new(),
            ended: false,
            counts: Counts::default(),
        }
    }

    /// Whether all that the peer had to say has been given out.
    pub(super) fn has_ended(&self) -> bool {
        self.ended && self.streams.is_empty()
    }

    /// The next whole record and its flow. An error is the peer's: the connection cannot go on.
    pub(super) fn next(&mut self, connection: &mut Connection) -> Result<Option<(u32, Body)>, String> {
        let found = match self.next_datagram(connection) {
            Some(found) => Some(found),
            None => self.next_of_streams(connection)?,
        };
        if let Some((_, record)) = &found {
            self.counts.received += 1;
            self.counts.received_bytes += record.len() as u64;
        }
        Ok(found)
    }

    fn next_datagram(&mut self, connection: &mut Connection) -> Option<(u32, Body)> {
        while let Some(datagram) = connection.datagrams().recv() {
            match RecordHeader::parse(&datagram, self.body_bytes_max) {
                Ok(header) if header.container.length as usize == datagram.len() - RecordHeader::BYTES => {
                    return Some((header.flow, Body::from(datagram)));
                }
                _ => self.counts.malformed += 1,
            }
        }
        None
    }

    fn next_of_streams(&mut self, connection: &mut Connection) -> Result<Option<(u32, Body)>, String> {
        while let Some(stream) = connection.streams().accept(Dir::Uni) {
            let fresh = || Inbox::new(self.body_bytes_max, 0, KEPT_BYTES_MAX);
            let inbox = self.spare.pop().unwrap_or_else(fresh);
            self.streams.push(Arriving { stream, inbox, ended: false });
        }
        let mut index = 0;
        'streams: while index < self.streams.len() {
            // Whoever is oldest goes on whatever the others hold, so that something always does.
            let held: usize = self.streams.iter().map(|known| known.inbox.held_bytes()).sum();
            let may_read = index == 0 || held < self.partial_bytes_max;
            let arriving = &mut self.streams[index];
            loop {
                if let Some((flow, record)) = arriving.inbox.next().map_err(|error| error.to_string())? {
                    return Ok(Some((flow, Body::from(record.freeze()))));
                }
                if arriving.ended {
                    self.end(index)?;
                    continue 'streams;
                }
                match may_read.then(|| read(connection, arriving)) {
                    Some(Read::Some) => {}
                    None | Some(Read::Nothing) => break,
                    Some(Read::End) => arriving.ended = true,
                    Some(Read::GivenUp) => {
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

    /// A stream has given out all it had.
    fn end(&mut self, index: usize) -> Result<(), String> {
        let Arriving { stream, inbox, .. } = self.streams.remove(index);
        if !inbox.is_at_border() {
            return Err("a stream ended in the middle of a record".into());
        }
        self.ended |= stream.index() == 0;
        if self.spare.len() < SPARE_MAX {
            self.spare.push(inbox);
        }
        Ok(())
    }
}

/// What reading a stream came to.
enum Read {
    Some,
    Nothing,
    End,
    GivenUp,
}

fn read(connection: &mut Connection, arriving: &mut Arriving) -> Read {
    let mut stream = connection.recv_stream(arriving.stream);
    let Ok(mut chunks) = stream.read(true) else { return Read::End };
    let mut result = Read::Some;
    let received = arriving.inbox.receive(|rooms| {
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
                        result = Read::Nothing;
                        return Ok(received);
                    }
                    Err(ReadError::Reset(_)) => {
                        result = Read::GivenUp;
                        return Ok(received);
                    }
                }
            }
        }
        io::Result::Ok(received)
    });
    // The window that was read goes back to the peer with what is sent next.
    let _ = chunks.finalize();
    match (result, received) {
        // What came before it stopped may be a record.
        (Read::Nothing, Ok((bytes, _))) if bytes > 0 => Read::Some,
        (result, _) => result,
    }
}
