//! How many messages go into a bundle: as the options say, or as costs least.
//!
//! The cost, declared before anything was measured: the 99th percentile of the time from creation to hand-over, plus
//! ten periods of the device for each share that is late or lost. Each message more to a bundle makes the first wait
//! one period longer. Each bundle is a packet with its headers, and where those are more than the network carries, a
//! queue grows without end.
//!
//! So: as few messages as the network has room for, or as many as cost next to nothing, whichever is more. What it
//! has room for follows from how fast a queue grew at which count (`growth`), as the sink half says. What costs next
//! to nothing is one part in [`RESERVE`] of the delay that the flow has anyhow: what the sink holds, and the way itself.
//! This is without the wait for others, and the longest of the last minute and a half, for it is the 99th percentile that counts.
//!
//! Fewer are tried when nothing grew for a while; if that was a mistake, the next time much later.

use super::growth::Growth;
use contract::{Choice, Feedback, Options, StageError, Time, Value};
use std::time::Duration;

/// Most messages that auto puts into a bundle.
pub(super) const AUTO_MAX: usize = 64;
/// Share of what the network carries that is used, so that a queue empties again.
const USED: f64 = 0.9;
/// Of the delay, the part that a message may wait for others though there is room.
const RESERVE: u32 = 20;
/// No more than make headers this part of the rest: beyond that, a longer wait saves next to nothing.
const RESERVE_HEADERS: f64 = 0.2;
/// The delay is the least of each time this long, and the second longest of so many of them.
const BLOCK: Duration = Duration::from_secs(3);
const BLOCKS: usize = 32;
/// While a queue may still be there, so many times as many go into a bundle as would do.
const DRAIN: usize = 2;
const DRAINED_AFTER: Duration = Duration::from_secs(2);
/// Growth beyond this says no more.
const GROWTH_MAX: f64 = 4.0;
/// Of what a network that is full loses, at least this share, of so many records.
const LOSS_MIN: f64 = 0.15;
const LOSS_RECORDS: u64 = 400;
/// How long nothing may have grown before fewer are tried: at first, while that succeeds, and at most.
const PATIENCE: Duration = Duration::from_secs(10);
const PATIENCE_MIN: Duration = Duration::from_secs(3);
const PATIENCE_MAX: Duration = Duration::from_secs(320);
/// So much longer after each mistake.
const MISTAKE: u32 = 4;
/// Without a message for so long, it is the device that pauses.
const PAUSE: Duration = Duration::from_millis(50);
/// It must have been busy for so long, for silence to be the network's.
const BUSY: Duration = Duration::from_secs(2);
/// How often the sink half says that bundles come, and how long after the last such word it is odd that there is none:
/// a way that became long or is cut shows at the source first.
pub(super) const BEAT: Duration = Duration::from_millis(50);
const OVERDUE: Duration = Duration::from_millis(125);
/// While nothing comes, so many go into a bundle that headers are at most this part of the rest.
const HEADERS: f64 = 0.1;
/// Bytes of headers around a bundle: record, UDP, IP.
const PACKET_BYTES: f64 = 28.0 + 8.0 + 20.0;

/// What the sink half says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Word {
    Grew(Growth),
    /// They come as ever.
    Beat,
    /// Nothing comes any more.
    Silence,
}

impl Word {
    /// Messages of a bundle, and growth in parts of a million; or 0, and which of the others.
    pub(super) fn to_bytes(self) -> [u8; 6] {
        let (count, growth) = match self {
            // A float becomes the nearest that fits.
            Word::Grew(Growth { count, growth }) => (count, (growth * 1e6) as u32),
            Word::Silence => (0, 0),
            Word::Beat => (0, 1),
        };
        let ([a, b], [c, d, e, f]) = (count.to_le_bytes(), growth.to_le_bytes());
        [a, b, c, d, e, f]
    }

    fn from_bytes(bytes: &[u8]) -> Option<Word> {
        let &[a, b, c, d, e, f] = bytes else { return None };
        let (count, growth) = (u16::from_le_bytes([a, b]), u32::from_le_bytes([c, d, e, f]));
        match (usize::from(count), growth) {
            (0, 0) => Some(Word::Silence),
            (0, 1) => Some(Word::Beat),
            (1..=AUTO_MAX, _) => {
                let growth = (f64::from(growth) / 1e6).min(GROWTH_MAX);
                Some(Word::Grew(Growth { count, growth }))
            }
            _ => None,
        }
    }
}

/// How many, and why.
pub(super) struct Count {
    count: usize,
    auto: Option<Auto>,
}

struct Auto {
    /// Mean bytes of a message with its entry, and mean time between two, nanoseconds.
    message_bytes: f64,
    period: f64,
    created: Option<Time>,
    /// When the last came, and since when they come without a pause.
    last: Time,
    busy_since: Time,
    /// When the sink half said last that bundles come, and until when so many are taken as if they did not.
    beat: Option<Time>,
    overdue_until: Time,
    /// Bytes a nanosecond that the network carries, if it was ever too much.
    room: Option<f64>,
    delay: Delay,
    /// Records since loss was last looked at, and how many of them were lost.
    records: (u64, u64),
    /// Loss when it last led to more messages in a bundle.
    loss: f64,
    drained_at: Time,
    calm_since: Time,
    tried_at: Option<Time>,
    patience: Duration,
}

/// The delay of the last minute and a half.
#[derive(Default)]
struct Delay {
    began: Time,
    least: Option<Duration>,
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
            beat: None,
            overdue_until: Time::ZERO,
            room: None,
            delay: Delay::default(),
            records: (0, 0),
            loss: 0.0,
            drained_at: Time::ZERO,
            calm_since: Time::ZERO,
            tried_at: None,
            patience: PATIENCE,
        };
        match options.is_auto("count") {
            true => Count { count: 1, auto: Some(auto) },
            false => Count { count: options.count("count"), auto: None },
        }
    }

    /// Messages of a bundle.
    pub(super) fn get(&self) -> usize {
        self.count
    }

    /// A message of so many bytes goes into a bundle.
    pub(super) fn see(&mut self, bytes: usize, created: Time, now: Time) {
        let Some(auto) = &mut self.auto else { return };
        if now.since(auto.last) > PAUSE {
            auto.busy_since = now;
        }
        auto.last = now;
        let with_entry = (bytes + super::ENTRY_BYTES) as f64;
        let gap = auto.created.replace(created).map(|before| created.signed_since(before).max(0) as f64);
        let follow = |mean: &mut f64, value: f64| {
            *mean += (value - *mean) * if *mean == 0.0 { 1.0 } else { 1.0 / 64.0 };
        };
        follow(&mut auto.message_bytes, with_entry);
        gap.into_iter().for_each(|gap| follow(&mut auto.period, gap));
        if auto.is_busy(now) && auto.beat.take_if(|beat| now.since(*beat) > OVERDUE).is_some() {
            auto.overdue_until = now.after(DRAINED_AFTER);
            self.choose(now);
        }
    }

    /// The sink half says that a queue grew, or that nothing comes.
    pub(super) fn handle_word(&mut self, word: &[u8], now: Time) -> Result<(), StageError> {
        let wrong = || StageError::Control("this is no word on how bundles come".into());
        let auto = self.auto.as_mut().ok_or_else(wrong)?;
        match Word::from_bytes(word).ok_or_else(wrong)? {
            Word::Grew(Growth { count, growth }) => {
                auto.carried(count.into(), 1.0 / (1.0 + growth), self.count, now);
            }
            Word::Beat => (auto.beat, auto.overdue_until) = (Some(now), now),
            Word::Silence => auto.brace(now),
        }
        self.choose(now);
        Ok(())
    }

    /// What the session knows. A queue that is full grows no more, and loses.
    pub(super) fn handle_feedback(&mut self, feedback: &Feedback, now: Time) {
        let count = self.count;
        let Some(auto) = &mut self.auto else { return };
        let waits = Duration::from_nanos((count.saturating_sub(1) as f64 * auto.period) as u64);
        auto.delay.see(feedback.delay.saturating_sub(waits), now);
        if auto.is_overloaded(feedback) {
            auto.carried(count, 1.0 - auto.loss, count, now);
            // Loss may have other reasons: no more than twice as many for it.
            auto.room = auto.room.map(|room| room.max(auto.rate(2 * count) / USED));
        } else if count > auto.reserve() && now.since(auto.calm_since) >= auto.patience() {
            auto.try_fewer(count, now);
        }
        self.choose(now);
    }

    fn choose(&mut self, now: Time) {
        let Some(auto) = &self.auto else { return };
        let least = auto.least();
        let drains = if now < auto.drained_at { least * DRAIN } else { least };
        let braced = if now < auto.overdue_until { auto.with_headers(HEADERS) } else { 1 };
        self.count = auto.reserve().max(drains).max(braced).min(AUTO_MAX);
    }

    /// What it stands at, and why.
    pub(super) fn choice(&self) -> Option<Choice> {
        let auto = self.auto.as_ref()?;
        let waits = self.count.saturating_sub(1) as f64 * auto.period / 1e6;
        let delay = auto.delay.longest().as_secs_f64() * 1e3;
        let why = match auto.room {
            None => format!(
                "no queue grew yet; its first message waits {waits:.3} ms, the delay is {delay:.3} ms"
            ),
            Some(room) => format!(
                "the network carries {:.0} bytes a ms, {:.0} are sent, and {} to a bundle would be {:.0}; its first \
                 message waits {waits:.3} ms, the delay is {delay:.3} ms; fewer are tried after {} s without a queue",
                room * 1e6,
                auto.rate(self.count) * 1e6,
                self.count.saturating_sub(1).max(1),
                auto.rate(self.count.saturating_sub(1).max(1)) * 1e6,
                auto.patience().as_secs()
            ),
        };
        // A count is at most AUTO_MAX here.
        Some(Choice { option: "count", value: Value::Integer(self.count as i64), why })
    }
}

impl Auto {
    /// Bytes a nanosecond with so many messages in a bundle.
    fn rate(&self, count: usize) -> f64 {
        (self.message_bytes + PACKET_BYTES / count as f64) / self.period.max(1.0)
    }

    /// Whether so much is lost that the network must be full. Where more in a bundle did not help, it is not.
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

    /// With so many in a bundle, the network carried this share of what was sent; meanwhile it may have become `now_at`.
    fn carried(&mut self, count: usize, share: f64, now_at: usize, now: Time) {
        let seen = self.rate(count) * share;
        // What was sent in the meantime with more in a bundle is not judged by this.
        self.room = Some(self.room.filter(|_| count < now_at).map_or(seen, |room| room.min(seen)));
        if self.tried_at.take().is_some_and(|at| now.since(at) < PATIENCE) {
            self.patience = (self.patience * MISTAKE).clamp(PATIENCE, PATIENCE_MAX);
        }
        self.calm_since = now;
        self.drained_at = now.after(DRAINED_AFTER);
    }

    /// Nothing comes, though it was sent: what that does to the network shows only a round trip after it is over, so
    /// that little is sent meanwhile.
    fn brace(&mut self, now: Time) {
        if self.is_busy(now) {
            let room = self.rate(self.with_headers(HEADERS)) / USED;
            self.room = Some(self.room.map_or(room, |known| known.min(room)));
            self.calm_since = now;
            // That fewer were enough before says nothing of the way there is now.
            self.tried_at = None;
        }
    }

    /// Whether the device makes messages, and has for a while.
    fn is_busy(&self, now: Time) -> bool {
        now.since(self.last) <= PAUSE && now.since(self.busy_since) >= BUSY
    }

    /// So many that headers are at most such a part of the rest.
    fn with_headers(&self, part: f64) -> usize {
        ((PACKET_BYTES / part / self.message_bytes.max(1.0)) as usize).clamp(1, AUTO_MAX)
    }

    /// How long nothing may have grown before fewer are tried.
    fn patience(&self) -> Duration {
        if self.tried_at.is_some() { PATIENCE_MIN } else { self.patience }
    }

    /// Nothing grew: half as many, if the network carries that, but never fewer than cost next to nothing.
    fn try_fewer(&mut self, count: usize, now: Time) {
        if self.tried_at.replace(now).is_some() {
            self.patience = PATIENCE;
        }
        let next = (count / 2).max(self.reserve());
        self.room = (next > 1).then(|| self.rate(next) / USED);
        self.calm_since = now;
        self.loss = 0.0;
    }

    /// The fewest that the network has room for.
    fn least(&self) -> usize {
        let Some(room) = self.room else { return 1 };
        (1..AUTO_MAX).find(|count| self.rate(*count) <= room * USED * 1.0001).unwrap_or(AUTO_MAX)
    }

    /// As many as make the first wait so little longer that it is worth what it saves.
    fn reserve(&self) -> usize {
        let wait = (self.delay.longest() / RESERVE).as_nanos() as f64;
        // A float becomes the nearest that fits.
        let costless = if self.period > 0.0 { ((wait / self.period) as usize).saturating_add(1) } else { 1 };
        costless.min(self.with_headers(RESERVE_HEADERS))
    }
}

impl Delay {
    fn see(&mut self, delay: Duration, now: Time) {
        self.least = Some(self.least.map_or(delay, |least| least.min(delay)));
        if now.since(self.began) >= BLOCK {
            self.blocks[self.next] = self.least.take().unwrap_or_default();
            self.next = (self.next + 1) % BLOCKS;
            self.began = now;
        }
    }

    /// The second longest of all: one may be an accident.
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

    /// A count that saw messages of 24 bytes, one each millisecond.
    fn auto() -> Count {
        let mut count =
            Count::new(&Options::check(super::super::Bundle.options(), [("count", "auto")]).unwrap());
        (0..200).for_each(|ms| count.see(24, Time::from_millis(ms), Time::from_millis(ms)));
        count
    }

    fn grew(count: &mut Count, of: u16, growth: f64, second: u64) -> usize {
        count
            .handle_word(
                &Word::Grew(Growth { count: of, growth }).to_bytes(),
                Time::from_millis(1000 * second),
            )
            .unwrap();
        count.get()
    }

    /// What it is after feedback four times a second.
    fn calm(count: &mut Count, seconds: std::ops::Range<u64>, delay_ms: u64) -> usize {
        let feedback =
            Feedback { received: 100, delay: Duration::from_millis(delay_ms), ..Feedback::default() };
        for quarter in seconds.start * 4..seconds.end * 4 {
            count.handle_feedback(&feedback, Time::from_millis(quarter * 250));
        }
        count.get()
    }

    #[test]
    fn it_is_the_least_that_the_network_has_room_for() {
        let mut count = auto();
        // 92 bytes a millisecond are sent, 62.5 carried: 54.7 with three to a bundle.
        assert_eq!(grew(&mut count, 1, 92.0 / 62.5 - 1.0, 1), 6, "twice as many, until the queue is gone");
        assert_eq!(grew(&mut count, 1, 92.0 / 62.5 - 1.0, 1), 6, "of what was sent before");
        assert_eq!(calm(&mut count, 1..5, 1), 3);
        assert_eq!(grew(&mut count, 3, 0.2, 5), 24);
        assert_eq!(calm(&mut count, 6..9, 1), 12);
        assert_eq!(count.choice().unwrap().value, Value::Integer(12));
    }

    #[test]
    fn fewer_are_tried_where_that_gains_something_and_ever_later_after_mistakes() {
        let mut count = auto();
        grew(&mut count, 1, 0.6, 0);
        assert_eq!(calm(&mut count, 1..9, 1), 4);
        let tried = calm(&mut count, 9..11, 1);
        assert_eq!(tried, 2);
        assert!(grew(&mut count, tried as u16, 0.1, 11) > tried);
        assert_eq!(calm(&mut count, 12..48, 1), 4);
        assert_eq!(calm(&mut count, 48..60, 1), 1, "after 40 s, and then sooner");
        assert_eq!(grew(&mut count, 1, 0.6, 70), 8);
        assert_eq!(calm(&mut count, 71..400, 300), 7, "6 ms of 300 are nothing, and more would save nothing");
    }

    #[test]
    fn a_full_queue_shows_in_what_is_lost_and_other_loss_does_not_run_away() {
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
    fn while_nothing_comes_little_is_sent_but_a_device_may_pause() {
        let silence = Word::Silence.to_bytes();
        let after = |busy_ms: u64, then_ms: u64| {
            let mut count = auto();
            (1000..1000 + busy_ms).for_each(|ms| count.see(24, Time::from_millis(ms), Time::from_millis(ms)));
            count.handle_word(&silence, Time::from_millis(1000 + busy_ms + then_ms)).unwrap();
            count.get()
        };
        assert_eq!(after(3000, 10), 15);
        assert_eq!(after(3000, 100), 1, "the device pauses");
        assert_eq!(after(500, 10), 1, "the device paused");
    }

    #[test]
    fn a_way_that_fell_silent_is_a_new_one_and_fewer_are_not_tried_soon() {
        let mut count = auto();
        grew(&mut count, 1, 0.6, 0);
        assert_eq!(calm(&mut count, 1..12, 1), 2, "half as many, and soon half of those");
        (12_000..15_000).for_each(|ms| count.see(24, Time::from_millis(ms), Time::from_millis(ms)));
        count.handle_word(&Word::Silence.to_bytes(), Time::from_millis(15_000)).unwrap();
        let braced = count.get();
        assert_eq!(calm(&mut count, 15..24, 1), braced);
        assert!(calm(&mut count, 24..27, 1) < braced);
    }

    #[test]
    fn a_beat_that_is_overdue_has_little_sent_until_one_comes() {
        let mut count = auto();
        let mut run = |ms: std::ops::Range<u64>, beats_ms: u64| {
            for ms in ms {
                let now = Time::from_millis(ms);
                count.see(24, now, now);
                if beats_ms > 0 && ms % beats_ms == 0 {
                    count.handle_word(&Word::Beat.to_bytes(), now).unwrap();
                }
            }
            count.get()
        };
        assert_eq!(run(1000..5000, 50), 1);
        assert_eq!(run(5000..5070, 0), 1, "one may be late");
        assert_eq!(run(5070..5100, 0), 15);
        assert_eq!(run(5100..5101, 50), 1, "it came");
        assert_eq!(run(5101..6000, 0), 15);
        // Nobody speaks any more: that alone does not hold it up for ever.
        count.handle_feedback(&Feedback::default(), Time::from_millis(8000));
        assert_eq!(count.get(), 1);
    }

    #[test]
    fn what_is_no_word_is_refused() {
        for word in [&[][..], &[1; 5], &[1; 7], &[0, 0, 2, 0, 0, 0], &[65, 0, 1, 1, 1, 1]] {
            assert!(auto().handle_word(word, Time::ZERO).is_err(), "{word:?}");
        }
        let mut fixed = Count::new(&Options::defaults(super::super::Bundle.options()).unwrap());
        assert!(fixed.handle_word(&[1, 0, 0, 0, 0, 0], Time::ZERO).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn whatever_is_said_it_stays_within_bounds(
            words in prop::collection::vec((prop::collection::vec(any::<u8>(), 6), any::<[u32; 4]>()), 1..60),
        ) {
            let mut count = auto();
            for (mut word, [at, received, lost, delay]) in words {
                word[1] = 0;
                let now = Time::from_millis(at.into());
                let _ = count.handle_word(&word, now);
                let delay = Duration::from_micros(delay.into());
                let feedback = Feedback { received: received.into(), lost: lost.into(), delay, ..Feedback::default() };
                count.handle_feedback(&feedback, now);
                prop_assert!((1..=AUTO_MAX).contains(&count.get()));
                prop_assert!(count.choice().is_some());
            }
        }
    }
}
