//! The link as the source half sees it: its rate, its distance, and the messages on their way.
//!
//! The sink half reports each arrival with the time since the arrival before it. If a message left before the one before it
//! had arrived, the slowest part of the path carried both without a pause, so that time is the time it takes for the message
//! (Jain and Dovrolis, Pathload, 2002, 2.2). The sums over the last messages give the rate. Beside it, the bytes that arrived
//! within a time are a rate that the link surely has, so the estimate also grows when no messages queue.

use crate::round_trip::ShortestRoundTrip;
use contract::{Message, Time};
use std::collections::VecDeque;
use std::time::Duration;

/// Time for which messages may queue in the link: it is never idle, and a letter that is typed next waits no longer.
const QUEUE: Duration = Duration::from_millis(8);
/// Messages follow when the queue is as short as this, and leave together until it is full: such pairs measure the link.
const QUEUE_LOW: Duration = Duration::from_millis(2);
/// Factor by which messages leave faster than the rate, so that a faster link is noticed.
const PACE: f64 = 1.1;
/// Bytes of a message: as many as the link takes in this time, within these bounds.
const PIECE: Duration = Duration::from_millis(4);
const PIECE_BYTES: [f64; 2] = [1200.0, 262_144.0];
/// The same, and bytes on their way, while the rate is unknown. The latter grow by the bytes that arrive.
const PIECE_BYTES_FIRST: usize = 4096;
const WINDOW_FIRST: usize = 16_384;
const WINDOW_FIRST_MAX: usize = 4 << 20;
/// Most bytes on their way.
const WINDOW_MAX: f64 = (64 << 20) as f64;
/// Samples whose sums are the rate, and bytes from which on they are.
const SAMPLES: usize = 16;
const MEASURED_BYTES: f64 = 8192.0;
/// Period of the rate of arrived bytes.
const DELIVERED_FOR: Duration = Duration::from_millis(100);
/// A link that takes a whole screen in less time than its compression, bytes a second.
const FAST: f64 = 150e6;
/// Messages on their way that are remembered, and at which there is no room.
const IN_FLIGHT_MAX: usize = 8192;
const IN_FLIGHT_ROOM: usize = 2048;
/// Length of the periods whose shortest round trip counts, in seconds.
const PERIOD_S: u64 = 10;
/// A message that did not arrive for this time leaves its room to others.
const LOST_AFTER: Duration = Duration::from_secs(4);

/// The content of a message on its way, to send it again.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// The pixels of these tiles.
    Tiles(Vec<usize>),
    /// A message that is no picture.
    Message(Message),
    /// A part of the film.
    Film,
    /// The size of the screen, or the whole of it.
    Begin,
}

#[derive(Debug)]
struct Sent {
    sequence: u64,
    at: Time,
    bytes: usize,
    content: Content,
}

/// The last arrived message.
#[derive(Debug, Clone, Copy)]
struct Last {
    sequence: u64,
    sent_at: Time,
    acked_at: Time,
}

/// Measures the link.
#[derive(Debug, Default)]
pub(super) struct Link {
    in_flight: VecDeque<Sent>,
    in_flight_bytes: usize,
    /// The time at which the link has taken all messages, by its rate.
    free_at: Time,
    last: Option<Last>,
    /// The queue is being filled.
    is_filling: bool,
    /// Bytes of messages that followed another one without a pause, and the seconds that each took.
    samples: [(f64, f64); SAMPLES],
    count: usize,
    /// Bytes that arrived since this time, and their rate in the period before.
    delivered: (f64, Option<Time>),
    delivered_rate: f64,
    /// Bytes that arrived before the rate was known.
    first_bytes: usize,
    round_trips: ShortestRoundTrip<PERIOD_S>,
}

impl Link {
    /// A message leaves.
    pub(super) fn sent(&mut self, sequence: u64, bytes: usize, content: Content, now: Time) {
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            self.in_flight_bytes -= self.in_flight.pop_front().map_or(0, |sent| sent.bytes);
        }
        self.in_flight.push_back(Sent { sequence, at: now, bytes, content });
        self.in_flight_bytes += bytes;
        if let Some(rate) = self.rate() {
            let time = Duration::from_secs_f64(bytes as f64 / (rate * PACE));
            self.free_at = self.free_at.max(now).after(time);
            self.is_filling = self.free_at <= now.after(QUEUE);
        }
    }

    /// Removes a message on its way; returns its content.
    pub(super) fn remove(&mut self, sequence: u64) -> Option<Content> {
        self.take(sequence).map(|sent| sent.content)
    }

    fn take(&mut self, sequence: u64) -> Option<Sent> {
        let at = self.in_flight.binary_search_by_key(&sequence, |sent| sent.sequence).ok()?;
        let sent = self.in_flight.remove(at)?;
        self.in_flight_bytes -= sent.bytes;
        Some(sent)
    }

    /// A message arrived, `gap` after the one before. Messages that are not in flight are ignored.
    pub(super) fn arrived(&mut self, sequence: u64, gap: Duration, now: Time) {
        let Some(sent) = self.take(sequence) else { return };
        let round_trip = now.since(sent.at);
        if let Some(last) = self.last.filter(|last| last.sequence.checked_add(1) == Some(sequence)) {
            let shortest = self.round_trip().unwrap_or(round_trip);
            let slack = (shortest / 8).clamp(Duration::from_micros(100), Duration::from_millis(1));
            let queued = sent.at == last.sent_at || sent.at.after(shortest) <= last.acked_at.after(slack);
            if queued {
                self.samples[self.count % SAMPLES] = (sent.bytes as f64, gap.as_secs_f64());
                self.count += 1;
            }
        }
        self.last = Some(Last { sequence, sent_at: sent.at, acked_at: now });
        self.first_bytes = (self.first_bytes + sent.bytes).min(WINDOW_FIRST_MAX);
        self.count_delivered(sent.bytes, now);
        self.round_trips.add(round_trip, now);
    }

    fn count_delivered(&mut self, bytes: usize, now: Time) {
        let (count, since) = self.delivered;
        let Some(since) = since else {
            self.delivered = (0.0, Some(now));
            return;
        };
        self.delivered.0 = count + bytes as f64;
        let time = now.since(since);
        if time >= DELIVERED_FOR.max(self.round_trip().unwrap_or_default()) {
            self.delivered_rate = self.delivered.0 / time.as_secs_f64();
            self.delivered = (0.0, Some(now));
        }
    }

    /// The shortest time from a message to its acknowledgement; `None` before the first.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.round_trips.get()
    }

    /// Bytes a second that the link carries; `None` before it is measured.
    pub(super) fn rate(&self) -> Option<f64> {
        let sum = |sums: (f64, f64), sample: &(f64, f64)| (sums.0 + sample.0, sums.1 + sample.1);
        let (bytes, seconds) = self.samples.iter().fold((0.0, 0.0), sum);
        (bytes >= MEASURED_BYTES).then(|| (bytes / seconds.max(1e-6)).max(self.delivered_rate))
    }

    /// Bytes that may be on their way.
    fn window(&self) -> usize {
        match self.rate().zip(self.round_trip()) {
            Some((rate, round_trip)) => {
                let window = rate * (round_trip + QUEUE).as_secs_f64();
                window.min(WINDOW_MAX) as usize + self.piece()
            }
            None => WINDOW_FIRST + self.first_bytes,
        }
    }

    /// The time at which a message would not wait behind others for long, if nothing arrives before; `None` if messages have to
    /// arrive first.
    pub(super) fn room_at(&self) -> Option<Time> {
        let may_arrive = self.in_flight_bytes < self.window() && !self.is_full();
        let queue = if self.is_filling { QUEUE } else { QUEUE_LOW };
        may_arrive.then(|| self.free_at.before(queue))
    }

    /// Returns true if a message would not wait behind others for long.
    pub(super) fn has_room(&self, now: Time) -> bool {
        self.room_at().is_some_and(|at| at <= now)
    }

    /// Returns true if so many messages are on their way that no other may follow.
    pub(super) fn is_full(&self) -> bool {
        self.in_flight.len() >= IN_FLIGHT_ROOM
    }

    /// Returns true if the link takes this many bytes at once, sooner than they could be compressed.
    pub(super) fn takes_at_once(&self, bytes: usize) -> bool {
        let is_fast = self.rate().is_some_and(|rate| rate >= FAST);
        let has_room = self.in_flight_bytes == 0 || self.in_flight_bytes + bytes <= self.window();
        is_fast && has_room && !self.is_full()
    }

    /// Bytes of a message.
    pub(super) fn piece(&self) -> usize {
        self.rate().map_or(PIECE_BYTES_FIRST, |rate| {
            (rate * PIECE.as_secs_f64()).clamp(PIECE_BYTES[0], PIECE_BYTES[1]) as usize
        })
    }

    /// The time at which the oldest message on its way leaves its room to others.
    pub(super) fn loss_deadline(&self) -> Option<Time> {
        self.in_flight.front().map(|sent| sent.at.after(LOST_AFTER))
    }

    /// Removes a message that did not arrive for too long; returns its content.
    pub(super) fn take_lost(&mut self, now: Time) -> Option<Content> {
        let sequence = self.in_flight.front().filter(|sent| sent.at.after(LOST_AFTER) <= now)?.sequence;
        self.remove(sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends messages whenever there is room for `time` over a link of this rate and distance; returns the longest queue.
    fn run(link: &mut Link, now: &mut Time, rate: f64, distance: Duration, time: Duration) -> Duration {
        let (mut free_at, mut sequence) = (*now, link.last.map_or(0, |last| last.sequence + 1));
        let mut arrivals: VecDeque<(Time, u64)> = VecDeque::new();
        let (end, mut longest, mut prev) = (now.after(time), Duration::ZERO, *now);
        while *now < end {
            while link.has_room(*now) {
                let bytes = link.piece();
                link.sent(sequence, bytes, Content::Film, *now);
                free_at = free_at.max(*now).after(Duration::from_secs_f64(bytes as f64 / rate));
                longest = longest.max(free_at.since(*now));
                arrivals.push_back((free_at.after(distance), sequence));
                sequence += 1;
            }
            let acked_at = arrivals.front().map(|(at, _)| at.after(distance));
            if let Some(room_at) =
                link.room_at().filter(|room_at| acked_at.is_none_or(|acked_at| *room_at < acked_at))
            {
                *now = room_at.max(*now);
                continue;
            }
            let Some((at, arrived)) = arrivals.pop_front() else { continue };
            *now = at.after(distance).max(*now);
            link.arrived(arrived, at.since(prev), *now);
            prev = at;
        }
        while let Some((at, arrived)) = arrivals.pop_front() {
            link.arrived(arrived, at.since(prev), at.after(distance));
            (prev, *now) = (at, at.after(distance));
        }
        longest
    }

    #[test]
    fn the_rate_is_found_and_nothing_queues_for_long() {
        for distance_ms in [0, 10, 100] {
            let (mut link, mut now) = (Link::default(), Time::from_millis(1000));
            let distance = Duration::from_millis(distance_ms);
            for rate in [250e3, 2.5e6, 250e3] {
                run(&mut link, &mut now, rate, distance, Duration::from_secs(3));
                let found = link.rate().unwrap() / rate;
                assert!((0.8..1.2).contains(&found), "{distance_ms} ms, {rate}: {found} of it");
                let longest = run(&mut link, &mut now, rate, distance, Duration::from_secs(1));
                assert!(longest < QUEUE * 4 + distance / 10, "{distance_ms} ms, {rate}: {longest:?}");
            }
        }
    }

    #[test]
    fn lost_messages_leave_their_room() {
        let mut link = Link::default();
        let now = Time::from_millis(1);
        (0..4).for_each(|sequence| link.sent(sequence, 8192, Content::Film, now));
        assert!(!link.has_room(now));
        assert!(link.take_lost(now).is_none());
        let later = link.loss_deadline().unwrap();
        assert!(link.take_lost(later).is_some());
        assert!(link.remove(2).is_some() && link.remove(2).is_none() && link.remove(3).is_some());
        assert!(link.has_room(later));
    }
}
