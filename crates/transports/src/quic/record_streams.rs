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

/// Shortest time until a record is late, unless the option `late` names it.
const PATIENCE_MIN: Duration = Duration::from_millis(500);
/// This time in round trips: a loss shows after 1.25, its repetition arrives after 1.75, and this host knows after 2.25.
const PATIENCE_ROUND_TRIPS: u32 = 3;

/// Returns the time until a record is late on a path with this round trip.
pub(super) fn patience(round_trip: Duration) -> Duration {
    round_trip.saturating_mul(PATIENCE_ROUND_TRIPS).max(PATIENCE_MIN)
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::receiver::Receiver;
    use crate::quic::tests::both_ends;
    use crate::quic::{Congestion, Tuning};
    use crate::test_records::{pattern, record, udp_pair};
    use std::net::UdpSocket;
    use std::time::Instant;

    const STEP: Duration = Duration::from_millis(5);
    /// Steps that a datagram takes: 300 ms.
    const STEPS_ON_PATH: usize = 60;
    /// The first record's step; the connection is established by then.
    const FIRST: u32 = 1600;
    const STEPS_BETWEEN: u32 = 40;
    const RECORDS: u32 = 100;

    /// Sends records over a path with a round trip of 600 ms that loses each `lost_each`th full datagram. Returns the
    /// numbers of records that arrived, and that counted as late.
    fn carry(lost_each: u64) -> (u32, u64) {
        let ([near, at_near], [far, at_far]) = (udp_pair(), udp_pair());
        let relays = [at_near, at_far].map(UdpSocket::from);
        let congestion = Congestion::Rate;
        let tuning =
            Tuning { window: 1 << 20, streams: 129, datagram: 1200, is_size_known: true, congestion };
        let mut ends = both_ends([near, far], &tuning);
        let (mut streams, mut queue) = (RecordStreams::default(), SendQueue::new(1024));
        let mut receiver = Receiver::default();
        receiver.is_timely = true;
        // By direction, the datagrams of the next steps.
        let mut on_path: [VecDeque<Vec<Vec<u8>>>; 2] =
            [(); 2].map(|()| vec![Vec::new(); STEPS_ON_PATH - 1].into());
        let (begun, mut bytes, mut full) = (Instant::now(), [0; 2048], 0_u64);
        let (mut arrived, mut late) = (0, 0);
        for step in 0..FIRST + (RECORDS + 20) * STEPS_BETWEEN {
            let passed = STEP * step;
            ends.iter_mut().for_each(|end| end.drive_at(begun + passed));
            if step >= FIRST {
                let connection = ends[0].state().expect("a connection");
                let (number, rest) = ((step - FIRST) / STEPS_BETWEEN, (step - FIRST) % STEPS_BETWEEN);
                if step == FIRST {
                    // Its end would be that of the flow.
                    connection.streams().open(Dir::Uni).expect("a stream");
                }
                let now = Time::ZERO.after(passed);
                if rest == 0 && number < RECORDS {
                    queue.push(now, record(1, number.into(), &pattern(4000, number.into())));
                }
                let patience = patience(connection.rtt());
                late += streams.abandon_late(connection, &mut queue, (now, patience));
                streams.write(connection, &mut queue);
                ends[0].drive_output_at(begun + passed);
            }
            if let Some(connection) = ends[1].state() {
                while receiver.next(connection).expect("records").is_some() {
                    arrived += 1;
                }
            }
            for (from, path) in on_path.iter_mut().enumerate() {
                let mut sent = Vec::new();
                while let Ok(count) = relays[from].recv(&mut bytes) {
                    let is_full = step >= FIRST && from == 0 && count > 1100;
                    full += u64::from(is_full);
                    if !(is_full && full.is_multiple_of(lost_each)) {
                        sent.push(bytes[..count].to_vec());
                    }
                }
                path.push_back(sent);
                for datagram in path.pop_front().into_iter().flatten() {
                    relays[1 - from].send(&datagram).expect("room");
                }
            }
        }
        assert!(full > u64::from(RECORDS), "{full} full datagrams");
        (arrived, late)
    }

    #[test]
    fn no_record_is_late_on_a_long_path_without_loss() {
        assert_eq!(carry(u64::MAX), (RECORDS, 0));
    }

    #[test]
    fn lost_parts_are_sent_again_on_a_long_path() {
        let (arrived, late) = carry(30);
        assert!(arrived >= RECORDS - 3 && late <= 3, "{arrived} arrived, {late} late");
    }

    #[test]
    fn the_patience_on_a_short_path_does_not_shrink() {
        let of = |ms| patience(Duration::from_millis(ms)).as_millis();
        assert_eq!([0, 20, 160, 200, 600].map(of), [500, 500, 500, 600, 1800]);
    }
}
