//! Records of a timely flow on their way: each by itself, in a datagram or in a stream of its own, so that none waits
//! for another.

use super::ordered::{Left, write};
use crate::outgoing::Outgoing;
use contract::{Body, Time};
use quinn_proto::{Connection, Dir, SendDatagramError, StreamId, VarInt};
use std::collections::VecDeque;
use std::time::Duration;

/// Largest record that goes in a datagram, bytes: whatever the network takes, one that crosses this machine alone is no
/// more likely lost than on any other way.
const DATAGRAM_RECORD_BYTES_MAX: usize = 1452;

/// The streams of one record each.
#[derive(Debug, Default)]
pub(super) struct Alone {
    /// In which the record at the front goes.
    stream: Option<StreamId>,
    /// Of records that are written, and when they were pushed.
    written: VecDeque<(Time, StreamId)>,
    /// Records that got a stream.
    pub(super) streams: u64,
}

impl Alone {
    /// Writes what waits, as far as the connection takes it.
    pub(super) fn write(&mut self, connection: &mut Connection, outgoing: &mut Outgoing<Time>) -> Left {
        let mut left = Left::default();
        while let Some((pushed, record)) = outgoing.records.front() {
            let pushed = *pushed;
            let bytes = match self.stream {
                None => match datagram(connection, record) {
                    Datagram::Sent => record.len(),
                    Datagram::Blocked => 0,
                    Datagram::TooLarge => {
                        self.stream = connection.streams().open(Dir::Uni);
                        self.stream.map_or(0, |stream| write(connection, stream, record))
                    }
                },
                Some(stream) => write(connection, stream, record),
            };
            if bytes == 0 {
                break;
            }
            let records = outgoing.sent(bytes);
            left.bytes += bytes;
            left.records += records;
            if let Some(stream) = self.stream.take_if(|_| records > 0) {
                let _ = connection.send_stream(stream).finish();
                self.written.push_back((pushed, stream));
                self.streams += 1;
            }
        }
        left
    }

    /// Gives up what is older than `late`; how many records.
    pub(super) fn give_up(
        &mut self,
        connection: &mut Connection,
        outgoing: &mut Outgoing<Time>,
        (now, late): (Time, Duration),
    ) -> u64 {
        let mut given_up = 0;
        while let Some((_, stream)) = self.written.pop_front_if(|(at, _)| now.since(*at) > late) {
            // One that came whole is not known any more.
            given_up += u64::from(connection.send_stream(stream).reset(VarInt::from_u32(0)).is_ok());
        }
        while let Some((at, record)) = outgoing.records.front()
            && now.since(*at) > late
        {
            if let Some(stream) = self.stream.take() {
                let _ = connection.send_stream(stream).reset(VarInt::from_u32(0));
            }
            let left = record.len();
            outgoing.sent(left);
            given_up += 1;
        }
        given_up
    }
}

/// What became of a record in a datagram.
enum Datagram {
    Sent,
    Blocked,
    TooLarge,
}

fn datagram(connection: &mut Connection, record: &Body) -> Datagram {
    let mut datagrams = connection.datagrams();
    if datagrams.max_size().is_none_or(|max| record.len() > max.min(DATAGRAM_RECORD_BYTES_MAX)) {
        return Datagram::TooLarge;
    }
    match datagrams.send(record.clone().into_bytes(), false) {
        Ok(()) => Datagram::Sent,
        Err(SendDatagramError::Blocked(_)) => Datagram::Blocked,
        Err(_) => Datagram::TooLarge,
    }
}
