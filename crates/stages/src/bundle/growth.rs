//! Whether a queue grows in the network, as the sink half sees it.
//!
//! A bundle's last message waited for no other, so its transit is the network's alone. The fastest of a span tells of
//! no jitter. Where it is slower from span to span, more is sent than the network carries: of each second sent, `g`
//! are added to the queue, so the network carries `1 / (1 + g)` of it. A route that becomes longer makes one step only,
//! so several in a row count, by the least.

use contract::Time;
use std::time::Duration;

/// Short spans show soon what grows fast; long ones, what grows slowly: span, how many in a row, and growth that is
/// no jitter.
const SPANS: [(Duration, usize, f64); 3] = [
    (Duration::from_millis(50), 4, 0.3),
    (Duration::from_millis(150), 3, 0.08),
    (Duration::from_millis(500), 2, 0.03),
];
/// Bundles of a span, at least.
const BUNDLES_MIN: u32 = 8;
/// So close to what transits were before it grew, a queue counts as empty.
const SLACK_NS: i64 = 3_000_000;
/// A queue is believed to be there for so long after it was last seen to grow or to fall.
const BELIEVED: Duration = Duration::from_secs(3);

/// A queue that grew.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Growth {
    /// Messages of each bundle meanwhile.
    pub(super) count: u16,
    /// Seconds that were added to the queue for each second sent.
    pub(super) growth: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Span {
    began: Option<Time>,
    bundles: u32,
    /// Creation and transit of the fastest.
    fastest: Option<(Time, i64)>,
    before: Option<(Time, i64)>,
    /// Growth to the last spans, and when each began; the latest first.
    growths: [(f64, Time); 4],
}

/// A queue that may still be there.
#[derive(Debug, Clone, Copy)]
struct Queue {
    /// What transits were before.
    empty: i64,
    /// Since when it grows, and when it was last seen to grow or to fall.
    since: Time,
    seen: Time,
}

/// Watches the transits of bundles.
#[derive(Debug, Default)]
pub(super) struct Watch {
    count: u16,
    spans: [Span; SPANS.len()],
    queue: Option<Queue>,
}

impl Watch {
    /// A bundle of `count` messages came, whose last was created then and took this long.
    pub(super) fn see(&mut self, count: u16, created: Time, transit: i64, now: Time) -> Option<Growth> {
        if count != self.count {
            (self.count, self.spans) = (count, Default::default());
        }
        if self.queue.is_some_and(|queue| {
            transit <= queue.empty.saturating_add(SLACK_NS) || now.since(queue.seen) > BELIEVED
        }) {
            self.queue = None;
        }
        let mut grew: Option<Growth> = None;
        for (span, (length, turns, least)) in self.spans.iter_mut().zip(SPANS) {
            let Some((growth, queue)) = span.see(created, transit, now, length, turns) else { continue };
            if growth > least {
                self.queue = Some(Queue { seen: now, ..self.queue.unwrap_or(queue) });
                grew = grew.or(Some(Growth { count, growth }));
            } else if growth < -least
                && let Some(queue) = &mut self.queue
            {
                queue.seen = now;
            }
        }
        grew
    }

    /// Nothing comes any more: when something does, there will be a queue.
    pub(super) fn expect(&mut self, now: Time) {
        self.queue = Some(Queue { empty: i64::MIN, since: now, seen: now });
    }

    /// If what comes now waited in a queue that grew: since when it grew.
    pub(super) fn queued_since(&self) -> Option<Time> {
        self.queue.map(|queue| queue.since)
    }
}

impl Span {
    /// If a span ends: how much a queue grew, or fell, to each of the last so many at least.
    fn see(
        &mut self,
        created: Time,
        transit: i64,
        now: Time,
        length: Duration,
        turns: usize,
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
        let (before_at, before) = self.before.replace((at, fastest))?;
        // The fastest may be near to each other.
        let sent = (at.signed_since(before_at) as f64).max(length.as_nanos() as f64 / 2.0);
        let growth = fastest.saturating_sub(before) as f64 / sent;
        self.growths.rotate_right(1);
        self.growths[0] = (growth, began);
        let last = &self.growths[..turns];
        let slowest = last.iter().map(|(growth, _)| *growth).fold(f64::INFINITY, f64::min);
        let quickest = last.iter().map(|(growth, _)| *growth).fold(f64::NEG_INFINITY, f64::max);
        let least = if quickest < 0.0 { quickest } else { slowest };
        // One of them may be a longer way.
        let grown: f64 = last.iter().map(|(growth, _)| growth.min(2.0 * slowest)).sum();
        let empty = fastest.saturating_sub((grown * sent) as i64);
        Some((least, Queue { empty, since: last[turns - 1].1, seen: now }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Growths seen while a bundle comes every 4 ms, each of this transit.
    fn growths(watch: &mut Watch, from_ms: u64, transits_ms: impl Iterator<Item = f64>) -> Vec<f64> {
        let one = |(number, transit_ms): (u64, f64)| {
            let created = Time::from_millis(1000 + from_ms + 4 * number);
            let transit = (transit_ms * 1e6) as i64;
            let now = created.after(Duration::from_nanos(transit.unsigned_abs()));
            watch.see(4, created, transit, now).map(|seen| seen.growth)
        };
        (0..).zip(transits_ms).filter_map(one).collect()
    }

    #[test]
    fn a_queue_is_told_from_jitter_and_from_a_longer_way() {
        let jitter = |number: u64| (number * 7919 % 13) as f64;
        let mut watch = Watch::default();
        assert_eq!(growths(&mut watch, 0, (0..2000).map(|n| 40.0 + jitter(n))), []);
        assert_eq!(growths(&mut watch, 8000, (0..2000).map(|n| 300.0 + jitter(n))), []);
        assert!(watch.queued_since().is_none());
        let grown = growths(&mut watch, 16000, (0..200).map(|n| 300.0 + jitter(n) + 2.0 * n as f64));
        assert!(grown.len() > 2 && grown.iter().all(|growth| (growth - 0.5).abs() < 0.2), "{grown:?}");
        assert!(watch.queued_since().is_some());
        growths(&mut watch, 16800, (0..240).map(|n| 700.0 - 2.0 * n as f64));
        assert!(watch.queued_since().is_none());
    }

    #[test]
    fn what_grows_slowly_is_seen_too() {
        let grown = growths(&mut Watch::default(), 0, (0..1000).map(|n| 20.0 + 0.2 * n as f64));
        assert!(!grown.is_empty() && grown.iter().all(|growth| (growth - 0.05).abs() < 0.01), "{grown:?}");
    }

    #[test]
    fn no_times_are_too_odd() {
        let mut watch = Watch::default();
        for (created, transit) in [(0, i64::MIN), (u64::MAX, i64::MAX), (5, 0), (u64::MAX, i64::MIN)] {
            for number in 0..40 {
                watch.see(number % 2, Time(created), transit, Time::from_millis(number.into()));
                watch.see(1, Time(created), transit, Time::from_millis(100 * u64::from(number)));
            }
        }
    }
}
