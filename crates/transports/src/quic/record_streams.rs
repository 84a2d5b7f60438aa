//! Sends the records of a timely flow independently of each other: each in a datagram, or in its own stream if it is
//! too large for one. Streams of late records are reset.
//!
//! quinn-proto sends whatever it has accepted, however late. Therefore it gets no more datagrams than the connection sends
//! soon ([`paced_queue_bytes`]); the others wait in the queue, where a late record is abandoned, and behind it at the source.

use super::ack_bypass;
use super::config::DATAGRAM_BUFFER_BYTES;
use super::ordered_stream::{Written, write};
use crate::send_queue::{SendQueue, paced_queue_bytes};
use contract::{Body, Time};
use quinn_proto::{Connection, Dir, SendDatagramError, StreamId, VarInt};
use std::collections::VecDeque;
use std::time::Duration;

/// Largest record in a datagram, bytes: one Ethernet frame. A larger record is retransmitted when it is lost, also on
/// paths with larger datagrams, so that a record's fate does not depend on the path.
const DATAGRAM_RECORD_BYTES_MAX: usize = 1452;

/// Streams with one record each.
#[derive(Debug, Default)]
pub(super) struct RecordStreams {
    /// Stream of the record at the front of the queue, once a part of it is written.
    current: Option<StreamId>,
    /// Streams of completely written records, and when the records were pushed.
    written: VecDeque<(Time, StreamId)>,
    /// Records sent in streams.
    pub(super) count: u64,
}

impl RecordStreams {
    /// Writes records from the queue until the connection is blocked.
    pub(super) fn write(&mut self, connection: &mut Connection, queue: &mut SendQueue<Time>) -> Written {
        let mut written = Written::default();
        while let Some((pushed, record)) = queue.records.front() {
            let pushed = *pushed;
            let bytes = match self.current {
                None => match datagram(connection, record) {
                    Datagram::Sent => record.len(),
                    Datagram::Blocked => 0,
                    Datagram::TooLarge => {
                        self.current = connection.streams().open(Dir::Uni);
                        self.current.map_or(0, |stream| write(connection, stream, record))
                    }
                },
                Some(stream) => write(connection, stream, record),
            };
            if bytes == 0 {
                break;
            }
            let records = queue.sent(bytes);
            written.bytes += bytes;
            written.records += records;
            if let Some(stream) = self.current.take_if(|_| records > 0) {
                let _ = connection.send_stream(stream).finish();
                self.written.push_back((pushed, stream));
                self.count += 1;
            }
        }
        written
    }

    /// Abandons records older than `late`. Returns their number.
    pub(super) fn abandon_late(
        &mut self,
        connection: &mut Connection,
        queue: &mut SendQueue<Time>,
        (now, late): (Time, Duration),
    ) -> u64 {
        let mut abandoned = 0;
        while let Some((_, stream)) = self.written.pop_front_if(|(at, _)| now.since(*at) > late) {
            // The reset fails for a stream that was acknowledged completely: its record is not late.
            abandoned += u64::from(connection.send_stream(stream).reset(VarInt::from_u32(0)).is_ok());
        }
        while let Some((at, record)) = queue.records.front()
            && now.since(*at) > late
        {
            if let Some(stream) = self.current.take() {
                let _ = connection.send_stream(stream).reset(VarInt::from_u32(0));
            }
            let unwritten = record.len();
            queue.sent(unwritten);
            abandoned += 1;
        }
        abandoned
    }
}

/// Result of sending a record in a datagram.
enum Datagram {
    Sent,
    /// As many datagrams wait in the connection as may.
    Blocked,
    TooLarge,
}

fn datagram(connection: &mut Connection, record: &Body) -> Datagram {
    let datagrams = connection.datagrams();
    if datagrams.max_size().is_none_or(|max| record.len() > max.min(DATAGRAM_RECORD_BYTES_MAX)) {
        return Datagram::TooLarge;
    }
    let waiting_bytes = DATAGRAM_BUFFER_BYTES - datagrams.send_buffer_space();
    // Less than one record never blocks, so the pace is not needed for it.
    if waiting_bytes >= DATAGRAM_RECORD_BYTES_MAX
        && waiting_bytes >= paced_queue_bytes(ack_bypass::pace(connection))
    {
        return Datagram::Blocked;
    }
    match connection.datagrams().send(record.clone().into_bytes(), false) {
        Ok(()) => Datagram::Sent,
        Err(SendDatagramError::Blocked(_)) => Datagram::Blocked,
        Err(_) => Datagram::TooLarge,
    }
}
