//! How a flow fares: what its sink says of it, and what its source makes of that for the stages there.

use contract::{FlowClass, Time};
use session::{SinkCounters, SourceCounters};
use std::time::Duration;
use wire::Control;

/// Time between two feedback messages while the flow fares as before, and while that changes.
const INTERVAL: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(250)];
/// A delay has changed if it did by one part in this many.
const CHANGED: u32 = 4;

/// What a sink says of its flow, and when.
#[derive(Debug, Default)]
pub(crate) struct Teller {
    /// When something was said, or might have been for the first time.
    told_at: Option<Time>,
    lost: u64,
    delay_us: u32,
    jitter_us: u32,
}

impl Teller {
    /// What is to be said of `flow` now, if anything. `delays` are percentiles: 1st, 50th, 99th, nanoseconds.
    pub(crate) fn poll(
        &mut self,
        flow: u32,
        counters: SinkCounters,
        delays: impl FnOnce() -> Option<[i64; 3]>,
        now: Time,
    ) -> Option<Control> {
        if counters.received == 0 {
            return None;
        }
        let waited = now.since(*self.told_at.get_or_insert(now));
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
        *self = Teller { told_at: Some(now), lost: counters.lost, delay_us, jitter_us };
        Some(Control::Feedback {
            flow,
            received: counters.received,
            lost: counters.lost,
            delay_us,
            jitter_us,
        })
    }
}

/// What the source knows when its sink's word comes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) class: FlowClass,
    pub(crate) counters: SourceCounters,
    /// Bytes of bodies that are not acknowledged, or not even sent.
    pub(crate) unacknowledged_bytes: u64,
    pub(crate) round_trip: Duration,
}

/// Makes feedback for stages of what the sink says, which counts from the flow's beginning.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    before: Option<Before>,
    /// Mean length of a body, where it was last seen.
    mean_bytes: f64,
}

#[derive(Debug, Clone, Copy)]
struct Before {
    at: Time,
    received: u64,
    lost: u64,
    sent: SourceCounters,
}

impl Reader {
    /// The sink said `message`, a `Feedback`; what that means to stages, from the second time on.
    pub(crate) fn read(&mut self, message: &Control, known: &Known, now: Time) -> Option<contract::Feedback> {
        let &Control::Feedback { received, lost, delay_us, jitter_us, .. } = message else { return None };
        let sent = known.counters;
        let before = self.before.replace(Before { at: now, received, lost, sent })?;
        let messages = sent.sent.saturating_sub(before.sent.sent);
        if messages > 0 {
            let bytes = sent.sent_bytes.saturating_sub(before.sent.sent_bytes);
            self.mean_bytes = bytes as f64 / messages as f64;
        }
        let arrived = received.saturating_sub(before.received);
        let seconds = now.since(before.at).as_secs_f64().max(1e-3);
        let rate = arrived as f64 * self.mean_bytes / seconds;
        // What the network lost of a flow that loses nothing shows in what was sent again.
        let lost = match known.class {
            FlowClass::Timely => lost.saturating_sub(before.lost),
            _ => sent.resent.saturating_sub(before.sent.resent),
        };
        let under_way = rate * known.round_trip.as_secs_f64();
        Some(contract::Feedback {
            received: arrived,
            lost,
            delay: Duration::from_micros(delay_us.into()),
            jitter: Duration::from_micros(jitter_us.into()),
            round_trip: known.round_trip,
            rate_bytes: rate as u64,
            waiting_bytes: known.unacknowledged_bytes.saturating_sub(under_way as u64),
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
    fn a_sink_speaks_more_often_while_things_change() {
        let mut teller = Teller::default();
        let delays = |middle: i64| move || Some([0, middle * 1_000_000, 2_000_000]);
        let mut said = |ms: u64, counters, delay_ms| {
            teller.poll(7, counters, delays(delay_ms), Time::from_millis(ms)).is_some()
        };
        assert!(!said(0, sink(0, 0), 0), "of nothing there is nothing to say");
        assert!(!said(100, sink(1, 0), 10));
        assert!(said(350, sink(2, 0), 10), "the first time is a change");
        assert!(!said(700, sink(3, 0), 11));
        assert!(said(1350, sink(4, 0), 11));
        assert!(said(1600, sink(5, 1), 11), "a loss");
        assert!(!said(1700, sink(5, 2), 50), "not too often");
        assert!(said(1850, sink(6, 2), 50), "a longer delay");
    }

    #[test]
    fn a_source_reads_what_came_since_the_last_word() {
        let mut reader = Reader::default();
        let says = |received, lost| Control::Feedback { flow: 1, received, lost, delay_us: 5, jitter_us: 9 };
        let known = |sent, resent, waiting| Known {
            class: FlowClass::Reliable,
            counters: SourceCounters { sent, resent, sent_bytes: sent * 100, given_up: 0 },
            unacknowledged_bytes: waiting,
            round_trip: Duration::from_millis(100),
        };
        assert_eq!(reader.read(&says(10, 0), &known(20, 1, 0), Time::from_millis(0)), None);
        let read = reader.read(&says(60, 0), &known(120, 4, 5500), Time::from_millis(500)).unwrap();
        assert_eq!((read.received, read.lost, read.rate_bytes), (50, 3, 10_000));
        assert_eq!(read.waiting_bytes, 4500, "1000 are on their way");
        assert_eq!((read.delay, read.jitter), (Duration::from_micros(5), Duration::from_micros(9)));
        let timely = Known { class: FlowClass::Timely, ..known(120, 4, 0) };
        let read = reader.read(&says(60, 8), &timely, Time::from_millis(1000)).unwrap();
        assert_eq!((read.received, read.lost, read.rate_bytes), (0, 8, 0));
    }
}
