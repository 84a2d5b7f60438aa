//! Detects, at the sink, that a queue grows in the network.
//!
//! The last message of a bundle waited for no other, so its transit is that of the network alone;
//! the fastest transit of a span of time is free of jitter. If the fastest transit rises from span
//! to span, more is sent than the network carries. If every second of sending adds `g` seconds to
//! the queue, the network carries `1 / (1 + g)` of the traffic. A route that becomes longer makes
//! one step only, so several spans in a row must rise, and the smallest rise counts.

use contract::Time;
use std::time::Duration;

/// Short spans detect fast growth soon, long spans detect slow growth: length of a span, spans that
/// must rise in a row, and smallest growth that is not jitter.
const SPANS: [(Duration, usize, f64); 3] = [
    (Duration::from_millis(50), 4, 0.3),
    (Duration::from_millis(150), 3, 0.08),
    (Duration::from_millis(500), 2, 0.03),
];
/// Fewest bundles in a span.
const BUNDLES_MIN: u32 = 8;
/// A queue counts as empty when the transit is this close to that before the growth.
const SLACK_NS: i64 = 3_000_000;
/// Time after its last growth or fall for which a queue is assumed to exist.
const QUEUE_AGE_MAX: Duration = Duration::from_secs(3);

/// A measured growth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Growth {
    /// Messages per bundle during the growth.
    pub(super) count: u16,
    /// Seconds added to the queue per second of sending.
    pub(super) growth: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Span {
    began: Option<Time>,
    bundles: u32,
    /// Creation time and transit of the fastest bundle.
    fastest: Option<(Time, i64)>,
    previous: Option<(Time, i64)>,
    /// Growth of the last spans and their start, the latest first.
    growths: [(f64, Time); 4],
}

/// A queue that may still exist.
#[derive(Debug, Clone, Copy)]
struct Queue {
    /// Transit before the growth.
    empty: i64,
    /// Start of the growth; time of its last growth or fall.
    since: Time,
    last_change: Time,
}

/// Detects growth from the transits of bundles.
#[derive(Debug, Default)]
pub(super) struct QueueDetector {
    count: u16,
    spans: [Span; SPANS.len()],
    queue: Option<Queue>,
}

impl QueueDetector {
    /// Adds a bundle of `count` messages; `created` and `transit` are those of its last message.
    /// Returns growth if there is a new measurement of it.
    pub(super) fn add(&mut self, count: u16, created: Time, transit: i64, now: Time) -> Option<Growth> {
        if count != self.count {
            (self.count, self.spans) = (count, Default::default());
        }
        if self.queue.is_some_and(|queue| {
            transit <= queue.empty.saturating_add(SLACK_NS) || now.since(queue.last_change) > QUEUE_AGE_MAX
        }) {
            self.queue = None;
        }
        let mut growth_found: Option<Growth> = None;
        for (span, (length, in_a_row, threshold)) in self.spans.iter_mut().zip(SPANS) {
            let Some((growth, queue)) = span.add(created, transit, now, length, in_a_row) else { continue };
            if growth > threshold {
                self.queue = Some(Queue { last_change: now, ..self.queue.unwrap_or(queue) });
                growth_found = growth_found.or(Some(Growth { count, growth }));
            } else if growth < -threshold
                && let Some(queue) = &mut self.queue
            {
                queue.last_change = now;
            }
        }
        growth_found
    }

    /// Bundles stopped arriving: when they arrive again, there will be a queue.
    pub(super) fn expect_queue(&mut self, now: Time) {
        self.queue = Some(Queue { empty: i64::MIN, since: now, last_change: now });
    }

    /// Start of the growth, if messages now wait in a queue.
    pub(super) fn queued_since(&self) -> Option<Time> {
        self.queue.map(|queue| queue.since)
    }
}

impl Span {
    /// At the end of a span: the smallest growth (or fall) of the last `in_a_row` spans, and the
    /// queue.
    fn add(
        &mut self,
        created: Time,
        transit: i64,
        now: Time,
        length: Duration,
        in_a_row: usize,
    ) -> Option<(f64, Queue)> {
        let began = *self.began.get_or_insert(now);
        self.bundles += 1;
        if self.fastest.is_none_or(|(_, fastest)| transit < fastest) {
            self.fastest = Some((created, transit));
        }
        if now.since(began) < length || self.bundles < BUNDLES_MIN {
            return None;
        }
        let (at, fastest) = self.fastest.take()?;
        (self.began, self.bundles) = (Some(now), 0);
        let (previous_at, previous) = self.previous.replace((at, fastest))?;
        // The two fastest bundles may be close together.
        let sent = (at.signed_since(previous_at) as f64).max(length.as_nanos() as f64 / 2.0);
        let growth = fastest.saturating_sub(previous) as f64 / sent;
        self.growths.rotate_right(1);
        self.growths[0] = (growth, began);
        let last = &self.growths[..in_a_row];
        let slowest = last.iter().map(|(growth, _)| *growth).fold(f64::INFINITY, f64::min);
        let quickest = last.iter().map(|(growth, _)| *growth).fold(f64::NEG_INFINITY, f64::max);
        let smallest = if quickest < 0.0 { quickest } else { slowest };
        // One of the rises may be a longer route.
        let grown: f64 = last.iter().map(|(growth, _)| growth.min(2.0 * slowest)).sum();
        let empty = fastest.saturating_sub((grown * sent) as i64);
        Some((smallest, Queue { empty, since: last[in_a_row - 1].1, last_change: now }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The growths found while a bundle comes every 4 ms with these transits.
    fn growths(
        detector: &mut QueueDetector,
        from_ms: u64,
        transits_ms: impl Iterator<Item = f64>,
    ) -> Vec<f64> {
        let one = |(number, transit_ms): (u64, f64)| {
            let created = Time::from_millis(1000 + from_ms + 4 * number);
            let transit = (transit_ms * 1e6) as i64;
            let now = created.after(Duration::from_nanos(transit.unsigned_abs()));
            detector.add(4, created, transit, now).map(|found| found.growth)
        };
        (0..).zip(transits_ms).filter_map(one).collect()
    }

    #[test]
    fn a_queue_is_distinguished_from_jitter_and_a_longer_route() {
        let jitter = |number: u64| (number * 7919 % 13) as f64;
        let mut detector = QueueDetector::default();
        assert_eq!(growths(&mut detector, 0, (0..2000).map(|n| 40.0 + jitter(n))), []);
        assert_eq!(growths(&mut detector, 8000, (0..2000).map(|n| 300.0 + jitter(n))), []);
        assert!(detector.queued_since().is_none());
        let grown = growths(&mut detector, 16000, (0..200).map(|n| 300.0 + jitter(n) + 2.0 * n as f64));
        assert!(grown.len() > 2 && grown.iter().all(|growth| (growth - 0.5).abs() < 0.2), "{grown:?}");
        assert!(detector.queued_since().is_some());
        growths(&mut detector, 16800, (0..240).map(|n| 700.0 - 2.0 * n as f64));
        assert!(detector.queued_since().is_none());
    }

    #[test]
    fn slow_growth_is_detected() {
        let grown = growths(&mut QueueDetector::default(), 0, (0..1000).map(|n| 20.0 + 0.2 * n as f64));
        assert!(!grown.is_empty() && grown.iter().all(|growth| (growth - 0.05).abs() < 0.01), "{grown:?}");
    }

    #[test]
    fn absurd_times_are_survived() {
        let mut detector = QueueDetector::default();
        for (created, transit) in [(0, i64::MIN), (u64::MAX, i64::MAX), (5, 0), (u64::MAX, i64::MIN)] {
            for number in 0..40 {
                detector.add(number % 2, Time(created), transit, Time::from_millis(number.into()));
                detector.add(1, Time(created), transit, Time::from_millis(100 * u64::from(number)));
            }
        }
    }
}
