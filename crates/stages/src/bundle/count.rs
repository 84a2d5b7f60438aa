//! The number of messages per bundle: fixed, or `auto`.
//!
//! The cost that `auto` minimises is the 99th percentile of the time from creation to release, plus
//! ten message periods for each share that is late or lost. One more message per bundle makes the
//! first wait one period longer. But each bundle is a packet with headers, and if bodies and
//! headers are more than the network carries, a queue grows without end.
//!
//! So `auto` takes the larger of two counts:
//!
//! - *minimum*: the fewest messages for which the network has capacity. The capacity follows from
//!   the growth of the queue, which the sink half reports (`growth`), or from loss. While a queue
//!   may still exist, the count is [`DRAIN`] times the minimum.
//! - *costless*: the most messages whose wait is small, one part in [`COSTLESS_SHARE`], against the
//!   delay of the flow without that wait. The delay is the longest of the last minute and a half,
//!   because the 99th percentile counts.
//!
//! After a time without growth, fewer messages are tried. If the queue grows again, the next try
//! waits [`RETRY_FACTOR`] times as long.
//!
//! Silence: when bundles stop arriving although the device sends, the count rises at once, because
//! the effect on the network shows only after a round trip. The sink reports silence; and if its
//! [`ALIVE_INTERVAL`] reports stop, the source assumes it.

use super::growth::Growth;
use contract::{Choice, Feedback, Options, StageError, StageResult, Time, Value};
use std::time::Duration;

/// Largest count of `auto`.
pub(super) const AUTO_MAX: usize = 64;
/// Share of the capacity that is used, so that a queue empties again.
const UTILISATION: f64 = 0.9;
/// The costless wait is one part in this many of the delay.
const COSTLESS_SHARE: u32 = 20;
/// The costless count rises only until headers are this share of the rest: beyond that, a longer
/// wait saves little.
const COSTLESS_HEADER_SHARE: f64 = 0.2;
/// The delay is measured as the shortest in each block of time; the second longest of the last
/// blocks counts.
const BLOCK: Duration = Duration::from_secs(3);
const BLOCKS: usize = 32;
/// While a queue may still exist, the count is this many times the minimum.
const DRAIN: usize = 2;
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// Larger growth is treated as this.
const GROWTH_MAX: f64 = 4.0;
/// A loss of at least this share, of this many records, means that the network is full.
const LOSS_MIN: f64 = 0.15;
const LOSS_RECORDS: u64 = 400;
/// Time without growth before fewer messages are tried: initially, after a success, and at most.
const RETRY: Duration = Duration::from_secs(10);
const RETRY_MIN: Duration = Duration::from_secs(3);
const RETRY_MAX: Duration = Duration::from_secs(320);
/// Factor of that time after each failed try.
const RETRY_FACTOR: u32 = 4;
/// A device without a message for this long pauses.
const DEVICE_PAUSE: Duration = Duration::from_millis(50);
/// A device must have been busy for this long before silence is blamed on the network.
const BUSY_MIN: Duration = Duration::from_secs(2);
/// Interval at which the sink half reports that bundles arrive, and the time without such a report
/// after which the source assumes silence.
pub(super) const ALIVE_INTERVAL: Duration = Duration::from_millis(50);
const ALIVE_TIMEOUT: Duration = Duration::from_millis(125);
/// During silence, the count rises until headers are at most this share of the rest.
const SILENT_HEADER_SHARE: f64 = 0.1;
/// Bytes of headers around a bundle: record, UDP, IP.
const PACKET_BYTES: f64 = 28.0 + 8.0 + 20.0;

/// A control message of the sink half.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum SinkReport {
    QueueGrew(Growth),
    /// Bundles arrive.
    Alive,
    /// No bundle arrives any more.
    Silence,
}

impl SinkReport {
    /// Messages per bundle, and growth in millionths; or 0 and the kind of report.
    pub(super) fn to_bytes(self) -> [u8; 6] {
        let (count, growth) = match self {
            // A float becomes the nearest that fits.
            SinkReport::QueueGrew(Growth { count, growth }) => (count, (growth * 1e6) as u32),
            SinkReport::Silence => (0, 0),
            SinkReport::Alive => (0, 1),
        };
        let ([a, b], [c, d, e, f]) = (count.to_le_bytes(), growth.to_le_bytes());
        [a, b, c, d, e, f]
    }

    fn from_bytes(bytes: &[u8]) -> Option<SinkReport> {
        let &[a, b, c, d, e, f] = bytes else { return None };
        let (count, growth) = (u16::from_le_bytes([a, b]), u32::from_le_bytes([c, d, e, f]));
        match (usize::from(count), growth) {
            (0, 0) => Some(SinkReport::Silence),
            (0, 1) => Some(SinkReport::Alive),
            (1..=AUTO_MAX, _) => {
                let growth = (f64::from(growth) / 1e6).min(GROWTH_MAX);
                Some(SinkReport::QueueGrew(Growth { count, growth }))
            }
            _ => None,
        }
    }
}

/// The count. See the module comment.
pub(super) struct Count {
    count: usize,
    auto: Option<Auto>,
}

struct Auto {
    /// Mean bytes of a message with its entry; mean nanoseconds between two messages.
    message_bytes: f64,
    period: f64,
    created: Option<Time>,
    /// Time of the last message, and start of the current activity without a pause.
    last: Time,
    busy_since: Time,
    /// Time of the last report that bundles arrive, and the time until which silence is assumed.
    alive_at: Option<Time>,
    silent_until: Time,
    /// Capacity in bytes per nanosecond; `None` if it was never exceeded.
    capacity: Option<f64>,
    delay: Delay,
    /// Records since the last evaluation of loss, and those of them that were lost.
    records: (u64, u64),
    /// Loss at the last time it raised the count.
    loss: f64,
    drain_until: Time,
    quiet_since: Time,
    tried_at: Option<Time>,
    retry_after: Duration,
}

/// The delay over the last minute and a half.
#[derive(Default)]
struct Delay {
    began: Time,
    shortest: Option<Duration>,
    blocks: [Duration; BLOCKS],
    next: usize,
}

impl Count {
    pub(super) fn new(options: &Options) -> Self {
        let auto = Auto {
            message_bytes: 0.0,
            period: 0.0,
            created: None,
            last: Time::ZERO,
            busy_since: Time::ZERO,
            alive_at: None,
            silent_until: Time::ZERO,
            capacity: None,
            delay: Delay::default(),
            records: (0, 0),
            loss: 0.0,
            drain_until: Time::ZERO,
            quiet_since: Time::ZERO,
            tried_at: None,
            retry_after: RETRY,
        };
        match options.is_auto("count") {
            true => Count { count: 1, auto: Some(auto) },
            false => Count { count: options.count("count"), auto: None },
        }
    }

    /// Messages per bundle.
    pub(super) fn get(&self) -> usize {
        self.count
    }

    /// A message of `bytes` bytes goes into a bundle.
    pub(super) fn add_message(&mut self, bytes: usize, created: Time, now: Time) {
        let Some(auto) = &mut self.auto else { return };
        if now.since(auto.last) > DEVICE_PAUSE {
            auto.busy_since = now;
        }
        auto.last = now;
        let with_entry = (bytes + super::ENTRY_BYTES) as f64;
        let gap = auto.created.replace(created).map(|before| created.signed_since(before).max(0) as f64);
        let average = |mean: &mut f64, value: f64| {
            *mean += (value - *mean) * if *mean == 0.0 { 1.0 } else { 1.0 / 64.0 };
        };
        average(&mut auto.message_bytes, with_entry);
        gap.into_iter().for_each(|gap| average(&mut auto.period, gap));
        if auto.is_busy(now)
            && auto.alive_at.take_if(|alive_at| now.since(*alive_at) > ALIVE_TIMEOUT).is_some()
        {
            auto.silent_until = now.after(DRAIN_TIME);
            self.update(now);
        }
    }

    /// Handles a control message of the sink half.
    pub(super) fn handle_report(&mut self, report: &[u8], now: Time) -> StageResult {
        let malformed = || StageError::Control("it is not a report of a bundle sink".into());
        let auto = self.auto.as_mut().ok_or_else(malformed)?;
        match SinkReport::from_bytes(report).ok_or_else(malformed)? {
            SinkReport::QueueGrew(Growth { count, growth }) => {
                auto.on_overload(count.into(), 1.0 / (1.0 + growth), self.count, now);
            }
            SinkReport::Alive => (auto.alive_at, auto.silent_until) = (Some(now), now),
            SinkReport::Silence => auto.on_silence(now),
        }
        self.update(now);
        Ok(())
    }

    /// Handles feedback of the session. A full queue does not grow any more: it shows as loss.
    pub(super) fn handle_feedback(&mut self, feedback: &Feedback, now: Time) {
        let count = self.count;
        let Some(auto) = &mut self.auto else { return };
        let waits = Duration::from_nanos((count.saturating_sub(1) as f64 * auto.period) as u64);
        auto.delay.add(feedback.delay.saturating_sub(waits), now);
        if auto.is_overloaded(feedback) {
            auto.on_overload(count, 1.0 - auto.loss, count, now);
            // Loss may have other causes: it at most doubles the count.
            auto.capacity = auto.capacity.map(|capacity| capacity.max(auto.rate(2 * count) / UTILISATION));
        } else if count > auto.costless_count() && now.since(auto.quiet_since) >= auto.retry_after() {
            auto.try_fewer(count, now);
        }
        self.update(now);
    }

    fn update(&mut self, now: Time) {
        let Some(auto) = &self.auto else { return };
        let min_count = auto.min_count();
        let draining = if now < auto.drain_until { min_count * DRAIN } else { min_count };
        let silent =
            if now < auto.silent_until { auto.count_for_header_share(SILENT_HEADER_SHARE) } else { 1 };
        self.count = auto.costless_count().max(draining).max(silent).min(AUTO_MAX);
    }

    /// The current count and its reason.
    pub(super) fn choice(&self) -> Option<Choice> {
        let auto = self.auto.as_ref()?;
        let waits = self.count.saturating_sub(1) as f64 * auto.period / 1e6;
        let delay = auto.delay.longest().as_secs_f64() * 1e3;
        let why = match auto.capacity {
            None => format!(
                "no queue has grown; the first message waits {waits:.3} ms, the delay is {delay:.3} ms"
            ),
            Some(capacity) => format!(
                "the network carries {:.0} bytes per ms, {:.0} are sent, and {} per bundle would be {:.0}; the first \
                 message waits {waits:.3} ms, the delay is {delay:.3} ms; fewer are tried after {} s without growth",
                capacity * 1e6,
                auto.rate(self.count) * 1e6,
                self.count.saturating_sub(1).max(1),
                auto.rate(self.count.saturating_sub(1).max(1)) * 1e6,
                auto.retry_after().as_secs()
            ),
        };
        // A count is at most AUTO_MAX here.
        Some(Choice { option: "count", value: Value::Integer(self.count as i64), why })
    }
}

impl Auto {
    /// Bytes per nanosecond sent with this count.
    fn rate(&self, count: usize) -> f64 {
        (self.message_bytes + PACKET_BYTES / count as f64) / self.period.max(1.0)
    }

    /// True if loss shows that the network is full. If more messages per bundle did not reduce the
    /// loss, it is not.
    fn is_overloaded(&mut self, feedback: &Feedback) -> bool {
        let (all, lost) = &mut self.records;
        *all = all.saturating_add(feedback.received).saturating_add(feedback.lost);
        *lost = lost.saturating_add(feedback.lost);
        if *all < LOSS_RECORDS {
            return false;
        }
        let loss = *lost as f64 / *all as f64;
        self.records = (0, 0);
        let is_overloaded = loss > LOSS_MIN && (self.loss == 0.0 || loss < 0.8 * self.loss);
        if is_overloaded {
            self.loss = loss;
        }
        is_overloaded
    }

    /// With `count` messages per bundle, the network carried `share` of the traffic. The count may
    /// have changed to `now_at` since.
    fn on_overload(&mut self, count: usize, share: f64, now_at: usize, now: Time) {
        let seen = self.rate(count) * share;
        // Traffic sent meanwhile with a higher count is not judged by this.
        self.capacity =
            Some(self.capacity.filter(|_| count < now_at).map_or(seen, |capacity| capacity.min(seen)));
        if self.tried_at.take().is_some_and(|at| now.since(at) < RETRY) {
            self.retry_after = (self.retry_after * RETRY_FACTOR).clamp(RETRY, RETRY_MAX);
        }
        self.quiet_since = now;
        self.drain_until = now.after(DRAIN_TIME);
    }

    /// Bundles stopped arriving although the device sends. Raises the count before the effect is
    /// measured.
    fn on_silence(&mut self, now: Time) {
        if self.is_busy(now) {
            let capacity = self.rate(self.count_for_header_share(SILENT_HEADER_SHARE)) / UTILISATION;
            self.capacity = Some(self.capacity.map_or(capacity, |known| known.min(capacity)));
            self.quiet_since = now;
            // An earlier try of fewer messages says nothing about the new network.
            self.tried_at = None;
        }
    }

    /// True if the device has been sending for a while.
    fn is_busy(&self, now: Time) -> bool {
        now.since(self.last) <= DEVICE_PAUSE && now.since(self.busy_since) >= BUSY_MIN
    }

    /// The count at which headers are at most this share of the rest.
    fn count_for_header_share(&self, part: f64) -> usize {
        ((PACKET_BYTES / part / self.message_bytes.max(1.0)) as usize).clamp(1, AUTO_MAX)
    }

    /// Time without growth before fewer messages are tried.
    fn retry_after(&self) -> Duration {
        if self.tried_at.is_some() { RETRY_MIN } else { self.retry_after }
    }

    /// No growth: tries half the count, but not less than the costless count.
    fn try_fewer(&mut self, count: usize, now: Time) {
        if self.tried_at.replace(now).is_some() {
            self.retry_after = RETRY;
        }
        let next = (count / 2).max(self.costless_count());
        self.capacity = (next > 1).then(|| self.rate(next) / UTILISATION);
        self.quiet_since = now;
        self.loss = 0.0;
    }

    /// The lowest count for which the network has capacity.
    fn min_count(&self) -> usize {
        let Some(capacity) = self.capacity else { return 1 };
        (1..AUTO_MAX).find(|count| self.rate(*count) <= capacity * UTILISATION * 1.0001).unwrap_or(AUTO_MAX)
    }

    /// The highest count at which the wait of the first message costs next to nothing.
    fn costless_count(&self) -> usize {
        let wait = (self.delay.longest() / COSTLESS_SHARE).as_nanos() as f64;
        // A float becomes the nearest that fits.
        let costless = if self.period > 0.0 { ((wait / self.period) as usize).saturating_add(1) } else { 1 };
        costless.min(self.count_for_header_share(COSTLESS_HEADER_SHARE))
    }
}

impl Delay {
    fn add(&mut self, delay: Duration, now: Time) {
        self.shortest = Some(self.shortest.map_or(delay, |shortest| shortest.min(delay)));
        if now.since(self.began) >= BLOCK {
            self.blocks[self.next] = self.shortest.take().unwrap_or_default();
            self.next = (self.next + 1) % BLOCKS;
            self.began = now;
        }
    }

    /// The second longest block: one may be an accident.
    fn longest(&self) -> Duration {
        let (mut first, mut second) = (Duration::ZERO, Duration::ZERO);
        for block in self.blocks {
            (first, second) = if block > first { (block, first) } else { (first, second.max(block)) };
        }
        second
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::Pair;
    use proptest::prelude::*;

    /// A count after messages of 24 bytes, one every millisecond.
    fn auto() -> Count {
        let mut count =
            Count::new(&Options::check(super::super::Bundle.options(), [("count", "auto")]).unwrap());
        (0..200).for_each(|ms| count.add_message(24, Time::from_millis(ms), Time::from_millis(ms)));
        count
    }

    fn grew(count: &mut Count, of: u16, growth: f64, second: u64) -> usize {
        count
            .handle_report(
                &SinkReport::QueueGrew(Growth { count: of, growth }).to_bytes(),
                Time::from_millis(1000 * second),
            )
            .unwrap();
        count.get()
    }

    /// The count after feedback four times a second.
    fn calm(count: &mut Count, seconds: std::ops::Range<u64>, delay_ms: u64) -> usize {
        let feedback =
            Feedback { received: 100, delay: Duration::from_millis(delay_ms), ..Feedback::default() };
        for quarter in seconds.start * 4..seconds.end * 4 {
            count.handle_feedback(&feedback, Time::from_millis(quarter * 250));
        }
        count.get()
    }

    #[test]
    fn it_is_the_lowest_count_with_capacity() {
        let mut count = auto();
        // The network carries 62.5 of 92 bytes per ms; a count of three sends 54.7.
        assert_eq!(
            grew(&mut count, 1, 92.0 / 62.5 - 1.0, 1),
            6,
            "twice the minimum, until the queue is gone"
        );
        assert_eq!(grew(&mut count, 1, 92.0 / 62.5 - 1.0, 1), 6, "growth of earlier traffic");
        assert_eq!(calm(&mut count, 1..5, 1), 3);
        assert_eq!(grew(&mut count, 3, 0.2, 5), 24);
        assert_eq!(calm(&mut count, 6..9, 1), 12);
        assert_eq!(count.choice().unwrap().value, Value::Integer(12));
    }

    #[test]
    fn fewer_are_tried_and_later_after_each_failure() {
        let mut count = auto();
        grew(&mut count, 1, 0.6, 0);
        assert_eq!(calm(&mut count, 1..9, 1), 4);
        let tried = calm(&mut count, 9..11, 1);
        assert_eq!(tried, 2);
        assert!(grew(&mut count, tried as u16, 0.1, 11) > tried);
        assert_eq!(calm(&mut count, 12..48, 1), 4);
        assert_eq!(calm(&mut count, 48..60, 1), 1, "after 40 s, then sooner");
        assert_eq!(grew(&mut count, 1, 0.6, 70), 8);
        assert_eq!(
            calm(&mut count, 71..400, 300),
            7,
            "6 of 300 ms are costless; a higher count would save nothing"
        );
    }

    #[test]
    fn loss_raises_the_count_unless_that_does_not_help() {
        let mut count = auto();
        let feedback = Feedback { received: 240, lost: 160, ..Feedback::default() };
        let mut after = |seconds: std::ops::Range<u64>| {
            seconds.for_each(|second| count.handle_feedback(&feedback, Time::from_millis(second * 1000)));
            count.get()
        };
        let once = after(5..6);
        assert!((3..6).contains(&once), "{once}");
        assert_eq!(after(6..14), 2);
    }

    #[test]
    fn silence_raises_the_count_unless_the_device_pauses() {
        let silence = SinkReport::Silence.to_bytes();
        let after = |busy_ms: u64, then_ms: u64| {
            let mut count = auto();
            (1000..1000 + busy_ms)
                .for_each(|ms| count.add_message(24, Time::from_millis(ms), Time::from_millis(ms)));
            count.handle_report(&silence, Time::from_millis(1000 + busy_ms + then_ms)).unwrap();
            count.get()
        };
        assert_eq!(after(3000, 10), 15);
        assert_eq!(after(3000, 100), 1, "the device pauses");
        assert_eq!(after(500, 10), 1, "the device paused before");
    }

    #[test]
    fn after_silence_fewer_are_not_tried_soon() {
        let mut count = auto();
        grew(&mut count, 1, 0.6, 0);
        assert_eq!(calm(&mut count, 1..12, 1), 2, "half as many, and soon half of those");
        (12_000..15_000).for_each(|ms| count.add_message(24, Time::from_millis(ms), Time::from_millis(ms)));
        count.handle_report(&SinkReport::Silence.to_bytes(), Time::from_millis(15_000)).unwrap();
        let silent = count.get();
        assert_eq!(calm(&mut count, 15..24, 1), silent);
        assert!(calm(&mut count, 24..27, 1) < silent);
    }

    #[test]
    fn missing_alive_reports_raise_the_count() {
        let mut count = auto();
        let mut run = |ms: std::ops::Range<u64>, beats_ms: u64| {
            for ms in ms {
                let now = Time::from_millis(ms);
                count.add_message(24, now, now);
                if beats_ms > 0 && ms % beats_ms == 0 {
                    count.handle_report(&SinkReport::Alive.to_bytes(), now).unwrap();
                }
            }
            count.get()
        };
        assert_eq!(run(1000..5000, 50), 1);
        assert_eq!(run(5000..5070, 0), 1, "one report may be late");
        assert_eq!(run(5070..5100, 0), 15);
        assert_eq!(run(5100..5101, 50), 1, "it came");
        assert_eq!(run(5101..6000, 0), 15);
        // Missing reports alone do not keep the count high for ever.
        count.handle_feedback(&Feedback::default(), Time::from_millis(8000));
        assert_eq!(count.get(), 1);
    }

    #[test]
    fn malformed_reports_are_refused() {
        for report in [&[][..], &[1; 5], &[1; 7], &[0, 0, 2, 0, 0, 0], &[65, 0, 1, 1, 1, 1]] {
            assert!(auto().handle_report(report, Time::ZERO).is_err(), "{report:?}");
        }
        let mut fixed = Count::new(&Options::defaults(super::super::Bundle.options()).unwrap());
        assert!(fixed.handle_report(&[1, 0, 0, 0, 0, 0], Time::ZERO).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn the_count_stays_within_its_bounds(
            reports in prop::collection::vec((prop::collection::vec(any::<u8>(), 6), any::<[u32; 4]>()), 1..60),
        ) {
            let mut count = auto();
            for (mut report, [at, received, lost, delay]) in reports {
                report[1] = 0;
                let now = Time::from_millis(at.into());
                let _ = count.handle_report(&report, now);
                let delay = Duration::from_micros(delay.into());
                let feedback = Feedback { received: received.into(), lost: lost.into(), delay, ..Feedback::default() };
                count.handle_feedback(&feedback, now);
                prop_assert!((1..=AUTO_MAX).contains(&count.get()));
                prop_assert!(count.choice().is_some());
            }
        }
    }
}
