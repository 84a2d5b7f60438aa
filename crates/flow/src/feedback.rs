//! Delivery feedback: reports from a flow's sink, and their translation for the stages at its source.

use contract::{FlowClass, Time};
use session::{SinkCounters, SourceCounters};
use std::time::Duration;
use wire::FlowControl;

/// Time between two reports while delivery is stable, and while it changes.
const INTERVAL: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(250)];
/// A delay counts as changed if it differs by more than one part in this many.
const CHANGED: u32 = 4;

/// Decides when a sink reports on its flow.
#[derive(Debug, Default)]
pub struct FeedbackSender {
    /// Time of the last report, or of the first opportunity to send one.
    sent_at: Option<Time>,
    received: u64,
    lost: u64,
    delay_us: u32,
    jitter_us: u32,
}

impl FeedbackSender {
    /// Returns the report of `flow` that is due now, if any. `delays` are the 1st, 50th and 99th percentile,
    /// nanoseconds.
    pub fn poll(
        &mut self,
        counters: SinkCounters,
        delays: impl FnOnce() -> Option<[i64; 3]>,
        now: Time,
    ) -> Option<FlowControl> {
        // A flow at rest has nothing new to report.
        if counters.received == self.received && counters.lost == self.lost {
            return None;
        }
        let waited = now.since(*self.sent_at.get_or_insert(now));
        if waited < INTERVAL[1] {
            return None;
        }
        let [low, middle, high] = delays()?;
        let micros = |ns: i64| u32::try_from(ns.max(0) / 1000).unwrap_or(u32::MAX);
        let (delay_us, jitter_us) = (micros(middle), micros(high.saturating_sub(low)));
        let changed = |was: u32, is: u32| was.abs_diff(is) > was / CHANGED;
        let changes = counters.lost != self.lost
            || changed(self.delay_us, delay_us)
            || changed(self.jitter_us, jitter_us);
        if waited < INTERVAL[usize::from(changes)] {
            return None;
        }
        let (received, lost) = (counters.received, counters.lost);
        *self = FeedbackSender { sent_at: Some(now), received, lost, delay_us, jitter_us };
        Some(FlowControl::Feedback { received, lost, delay_us, jitter_us })
    }
}

/// Status of the source when a report arrives.
#[derive(Debug, Clone, Copy)]
pub struct SourceStatus {
    /// Delivery class of the flow.
    pub class: FlowClass,
    /// Counters of the source.
    pub counters: SourceCounters,
    /// Bytes of bodies that are unsent or unacknowledged.
    pub unacknowledged_bytes: u64,
    /// Round trip of the link.
    pub round_trip: Duration,
}

/// Converts a sink's reports, which count from the flow's start, to feedback for the stages.
#[derive(Debug, Default)]
pub struct FeedbackReader {
    prev: Option<Previous>,
    /// Mean length of a body in the last interval with messages.
    mean_bytes: f64,
}

#[derive(Debug, Clone, Copy)]
struct Previous {
    at: Time,
    received: u64,
    lost: u64,
    sent: SourceCounters,
}

impl FeedbackReader {
    /// Returns the feedback for a `Feedback` message of the sink; `None` for the first one, which has no predecessor.
    pub fn read(
        &mut self,
        message: &FlowControl,
        status: &SourceStatus,
        now: Time,
    ) -> Option<contract::Feedback> {
        let &FlowControl::Feedback { received, lost, delay_us, jitter_us } = message else { return None };
        let sent = status.counters;
        let prev = self.prev.replace(Previous { at: now, received, lost, sent })?;
        let messages = sent.sent.saturating_sub(prev.sent.sent);
        if messages > 0 {
            let bytes = sent.sent_bytes.saturating_sub(prev.sent.sent_bytes);
            self.mean_bytes = bytes as f64 / messages as f64;
        }
        let arrived = received.saturating_sub(prev.received);
        let seconds = now.since(prev.at).as_secs_f64().max(1e-3);
        let rate = arrived as f64 * self.mean_bytes / seconds;
        // A reliable flow loses no messages: its retransmissions show the losses of the network.
        let lost = match status.class {
            FlowClass::Timely => lost.saturating_sub(prev.lost),
            _ => sent.retransmitted.saturating_sub(prev.sent.retransmitted),
        };
        let in_flight = rate * status.round_trip.as_secs_f64();
        Some(contract::Feedback {
            received: arrived,
            lost,
            delay: Duration::from_micros(delay_us.into()),
            jitter: Duration::from_micros(jitter_us.into()),
            round_trip: status.round_trip,
            rate_bytes: rate as u64,
            waiting_bytes: status.unacknowledged_bytes.saturating_sub(in_flight as u64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sink(received: u64, lost: u64) -> SinkCounters {
        SinkCounters { received, lost, ..SinkCounters::default() }
    }

    #[test]
    fn a_sink_reports_more_often_while_delivery_changes() {
        let mut sender = FeedbackSender::default();
        let delays = |middle: i64| move || Some([0, middle * 1_000_000, 2_000_000]);
        let mut is_sent = |ms: u64, counters, delay_ms| {
            sender.poll(counters, delays(delay_ms), Time::from_millis(ms)).is_some()
        };
        assert!(!is_sent(0, sink(0, 0), 0), "nothing received, nothing to report");
        assert!(!is_sent(100, sink(1, 0), 10));
        assert!(is_sent(350, sink(2, 0), 10), "the first report counts as a change");
        assert!(!is_sent(700, sink(3, 0), 11));
        assert!(is_sent(1350, sink(4, 0), 11));
        assert!(is_sent(1600, sink(5, 1), 11), "a loss");
        assert!(!is_sent(1700, sink(5, 2), 50), "not too often");
        assert!(is_sent(1850, sink(6, 2), 50), "a longer delay");
        assert!(!is_sent(9000, sink(6, 2), 90), "nothing has moved");
    }

    #[test]
    fn feedback_covers_the_time_since_the_last_report() {
        let mut reader = FeedbackReader::default();
        let report = |received, lost| FlowControl::Feedback { received, lost, delay_us: 5, jitter_us: 9 };
        let status = |sent, retransmitted, waiting| SourceStatus {
            class: FlowClass::Reliable,
            counters: SourceCounters { sent, retransmitted, sent_bytes: sent * 100, dropped: 0 },
            unacknowledged_bytes: waiting,
            round_trip: Duration::from_millis(100),
        };
        assert_eq!(reader.read(&report(10, 0), &status(20, 1, 0), Time::from_millis(0)), None);
        let read = reader.read(&report(60, 0), &status(120, 4, 5500), Time::from_millis(500)).unwrap();
        assert_eq!((read.received, read.lost, read.rate_bytes), (50, 3, 10_000));
        assert_eq!(read.waiting_bytes, 4500, "1000 are in flight");
        assert_eq!((read.delay, read.jitter), (Duration::from_micros(5), Duration::from_micros(9)));
        let timely = SourceStatus { class: FlowClass::Timely, ..status(120, 4, 0) };
        let read = reader.read(&report(60, 8), &timely, Time::from_millis(1000)).unwrap();
        assert_eq!((read.received, read.lost, read.rate_bytes), (0, 8, 0));
    }
}
