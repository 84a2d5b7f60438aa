//! `when=needed`: the times at which sound is coded, and the sound that a change needs.
//!
//! Sound begins coded: nothing is known about the network yet, and sound as it is would fill a queue that lasts for seconds.
//!
//! | sound is | event | effect |
//! |---|---|---|
//! | as it was | [`LOSSY_MIN`] of the last 8 reports tell of lost records, or two in a row of sound that waits | coded |
//! | coded | no such report for the *wait* | coded; probes measure the rate of the link |
//! | | the median of [`PROBES`] is at least [`SHARE`] times that of the sound | as it was: a trial |
//! | | it is less, or a trial ended within [`STABLE`] | the wait doubles, up to [`WAITS`] |
//!
//! The first packets repeat the last sound before them, so that the codec is in its stride where the sink half changes over. After
//! the last packet, the sound that the codec still held follows as it was. [`History`] has both.

use crate::sound::{Sound, frames_in};
use contract::{Feedback, Time};
use std::time::Duration;
use wire::formats::audio::SampleSpec;

/// The share of lost records from which on a report is one of losses.
const LOSS_MIN: f64 = 0.005;
/// Reports of losses among the last 8 that are more than one interruption.
const LOSSY_MIN: u32 = 3;
/// Sound that waits for the network, from which on the network is too slow.
const WAITING_MAX: Duration = Duration::from_millis(50);
/// A delay this much longer than the shortest one shows a queue in front of a network that is too slow.
const QUEUE_MAX: Duration = Duration::from_millis(150);
/// The shortest delay is forgotten by so much with each report, so that a longer route is no queue for ever.
const ROUTE_SLEW: Duration = Duration::from_millis(1);
/// The wait at the beginning, while no report speaks for coded sound.
const WAIT_FIRST: Duration = Duration::from_secs(10);
/// The first wait after such a report, and the longest.
const WAITS: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(3600)];
/// Sound that crossed the network as it was for this time shows that the network carries it.
const STABLE: Duration = Duration::from_secs(300);
/// The probes whose median counts, and the time from one to the next.
const PROBES: usize = 3;
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Sound as it is takes at most one part in this many of the link: the rest is for pictures and other programs.
const SHARE: f64 = 3.0;
/// The sound that is kept: 20 ms for the codec to find its stride, its own delay, and a packet.
const HISTORY: Duration = Duration::from_millis(40);

/// The last sound.
#[derive(Debug, Default)]
pub(super) struct History {
    spec: Option<SampleSpec>,
    samples: Vec<f32>,
    /// The position behind it.
    end: u64,
}

impl History {
    /// Adds sound; after a gap, everything before is forgotten.
    pub(super) fn add(&mut self, sound: &Sound) {
        if self.spec != Some(sound.spec) || self.end != sound.position {
            self.spec = Some(sound.spec);
            self.samples.clear();
        }
        self.samples.extend_from_slice(&sound.samples);
        self.end = sound.position.wrapping_add(sound.frames() as u64);
        let kept = frames_in(&sound.spec, HISTORY) * usize::from(sound.spec.channels);
        self.samples.drain(..self.samples.len().saturating_sub(kept));
    }

    /// Returns at most the last `frames` frames, if they end where `sound` begins.
    pub(super) fn before(&self, sound: &Sound, frames: usize) -> Option<Sound> {
        let channels = usize::from(sound.spec.channels);
        let known = self.spec == Some(sound.spec) && self.end == sound.position;
        let first = self.samples.len().saturating_sub(frames * channels);
        let samples = self.samples.get(first..).filter(|samples| known && !samples.is_empty())?.to_vec();
        let position = self.end.wrapping_sub((samples.len() / channels) as u64);
        Some(Sound { spec: sound.spec, position, samples })
    }
}

/// Decides. See the module comment.
#[derive(Debug)]
pub(super) struct Need {
    is_coded: bool,
    /// The last change; `None` before the first.
    changed: Option<Time>,
    /// The beginning, or the last report that speaks for coded sound.
    needed: Option<Time>,
    wait: Duration,
    /// A bit for each of the last 8 reports: records were lost.
    lossy: u8,
    was_waiting: bool,
    /// The shortest delay.
    shortest: Option<Duration>,
    /// The sink's host has no decoder.
    is_impossible: bool,
    /// The last probe.
    probed: Option<Time>,
    /// The rates of the link that the last probes found, in bytes a second.
    rates: Vec<f64>,
}

impl Need {
    pub(super) fn new() -> Need {
        Need {
            is_coded: true,
            changed: None,
            needed: None,
            wait: WAIT_FIRST,
            lossy: 0,
            was_waiting: false,
            shortest: None,
            is_impossible: false,
            probed: None,
            rates: Vec::new(),
        }
    }

    /// The sink's host has no decoder.
    pub(super) fn refuse(&mut self) {
        (self.is_impossible, self.is_coded) = (true, false);
    }

    /// Handles a report of the sink's host. `bytes_a_second` is the rate at which sound leaves.
    pub(super) fn update(&mut self, feedback: &Feedback, bytes_a_second: f64, now: Time) {
        let records = (feedback.received + feedback.lost).max(1);
        let is_lossy = feedback.lost as f64 / records as f64 >= LOSS_MIN;
        self.lossy = self.lossy << 1 | u8::from(is_lossy);
        let shortest =
            self.shortest.map_or(feedback.delay, |shortest| feedback.delay.min(shortest + ROUTE_SLEW));
        self.shortest = Some(shortest);
        let waits = feedback.waiting_bytes as f64 > bytes_a_second * WAITING_MAX.as_secs_f64()
            || feedback.delay > shortest + QUEUE_MAX;
        let is_slow = std::mem::replace(&mut self.was_waiting, waits) && waits;
        if !is_slow && self.lossy.count_ones() < LOSSY_MIN {
            return;
        }
        self.needed = Some(now);
        self.rates.clear();
        if self.is_coded {
            self.wait = self.wait.max(WAITS[0]);
        } else if !self.is_impossible {
            let is_trial = self.changed.is_some_and(|changed| now.since(changed) < STABLE);
            self.wait = if is_trial { self.longer_wait() } else { WAITS[0] };
            (self.is_coded, self.changed) = (true, Some(now));
        }
    }

    fn longer_wait(&self) -> Duration {
        (self.wait * 2).clamp(WAITS[0], WAITS[1])
    }

    /// Returns true if sound is to be coded now.
    pub(super) fn is_coded(&self) -> bool {
        self.is_coded
    }

    /// Sound leaves now: returns true if a probe is to follow it.
    pub(super) fn probes(&mut self, now: Time) -> bool {
        let is_due = self.is_coded && now.since(*self.needed.get_or_insert(now)) >= self.wait;
        let is_time = self.probed.is_none_or(|probed| now.since(probed) >= PROBE_EVERY);
        if is_due && is_time {
            self.probed = Some(now);
        }
        is_due && is_time
    }

    /// A probe found that the link carries so many bytes a second; sound as it is needs `plain_rate`.
    pub(super) fn found(&mut self, bytes_a_second: f64, plain_rate: f64, now: Time) {
        // A peer may answer probes that were never sent.
        if !self.is_coded {
            return;
        }
        self.rates.push(bytes_a_second);
        if self.rates.len() < PROBES {
            return;
        }
        self.rates.sort_unstable_by(f64::total_cmp);
        let median = self.rates[PROBES / 2];
        self.rates.clear();
        if median >= SHARE * plain_rate {
            (self.is_coded, self.changed) = (false, Some(now));
            (self.lossy, self.was_waiting) = (0, false);
        } else {
            (self.needed, self.wait) = (Some(now), self.longer_wait());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(lost: u64, waiting_bytes: u64) -> Feedback {
        Feedback { received: 375 - lost, lost, waiting_bytes, ..Feedback::default() }
    }

    const PLAIN_RATE: f64 = 192_000.0;

    /// A second passes on a link that carries so many bytes a second.
    fn pass(need: &mut Need, second: u64, link_rate: f64) -> Time {
        let now = Time::from_millis(second * 1000);
        if need.probes(now) {
            need.found(link_rate, PLAIN_RATE, now);
        }
        now
    }

    /// Gives a report each second, after a quiet beginning; returns the seconds at which sound is coded.
    fn coded(seconds: u64, report: impl Fn(u64, bool) -> Feedback) -> Vec<u64> {
        const BEGINNING: u64 = 1000;
        let mut need = Need::new();
        for second in 1..BEGINNING {
            pass(&mut need, second, 1e9);
        }
        let coded = |second| {
            let now = pass(&mut need, BEGINNING + second, 1e9);
            let before = need.is_coded();
            need.update(&report(second, before), PLAIN_RATE, now);
            need.is_coded().then_some(second)
        };
        (1..seconds).filter_map(coded).collect()
    }

    #[test]
    fn sound_begins_coded_and_passes_as_it_is_once_nothing_speaks_against_it() {
        let coded = |losses: fn(u64) -> u64| {
            let mut need = Need::new();
            let coded = |second| {
                let now = pass(&mut need, second, 1e9);
                let is_coded = need.is_coded();
                need.update(&report(losses(second), 0), PLAIN_RATE, now);
                is_coded.then_some(second)
            };
            (1..100).filter_map(coded).collect::<Vec<u64>>()
        };
        assert_eq!(coded(|_| 0), (1..13).collect::<Vec<u64>>());
        let after_losses = coded(|second| 4 * u64::from(second < 10));
        assert_eq!(after_losses.last(), Some(&45), "the last 8 reports, and the wait");
    }

    #[test]
    fn one_interruption_changes_nothing_and_losses_or_a_slow_network_do() {
        assert_eq!(coded(600, |second, _| report(75 * u64::from(second == 9), 0)), []);
        assert_eq!(coded(600, |second, _| report(0, 100_000 * u64::from(second == 9))), []);
        assert_eq!(coded(60, |second, _| report(4 * u64::from(second < 20), 0))[..2], [3, 4]);
        assert_eq!(coded(60, |_, is_coded| report(0, if is_coded { 0 } else { 20_000 })).first(), Some(&2));
    }

    #[test]
    fn a_queue_in_the_network_is_a_need_and_a_longer_route_is_none_for_ever() {
        let delayed = |ms| Feedback { delay: Duration::from_millis(ms), ..report(0, 0) };
        let queued = coded(60, |second, is_coded| delayed(if second > 9 && !is_coded { 400 } else { 20 }));
        assert_eq!(queued.first(), Some(&11));
        let route = coded(900, |second, _| delayed(if second > 9 { 400 } else { 20 }));
        assert_eq!((route.first(), route.last()), (Some(&11), Some(&269)), "230 reports, and the wait");
    }

    #[test]
    fn trials_become_rare_on_a_slow_network_and_end_with_the_need() {
        let slow = coded(7200, |_, is_coded| report(0, if is_coded { 0 } else { 20_000 }));
        assert!(slow.len() > 7150, "{} s coded", slow.len());
        let lossy = coded(600, |second, _| report(4 * u64::from(second < 100), 0));
        assert_eq!((lossy.first(), lossy.last()), (Some(&3), Some(&135)), "the last 8 reports, and the wait");
    }

    #[test]
    fn a_link_that_sound_would_fill_is_never_tried() {
        let mut need = Need::new();
        let mut probes = 0;
        for second in 1..20_000 {
            let now = Time::from_millis(second * 1000);
            if need.probes(now) {
                probes += 1;
                // One measurement in three is wrong.
                need.found(if probes % 3 == 0 { 1e9 } else { 2.9 * PLAIN_RATE }, PLAIN_RATE, now);
            }
            need.update(&report(0, 0), 12_000.0, now);
            assert!(need.is_coded());
        }
        assert!((15..50).contains(&probes), "{probes} probes");
        for second in 20_000..30_000 {
            pass(&mut need, second, 3.1 * PLAIN_RATE);
        }
        assert!(!need.is_coded());
    }

    #[test]
    fn answers_without_a_probe_are_not_kept() {
        let mut need = Need::new();
        (0..100).for_each(|_| need.found(1e9, PLAIN_RATE, Time::from_millis(1000)));
        assert!(!need.is_coded() && need.rates.is_empty());
    }

    #[test]
    fn without_a_decoder_nothing_is_coded() {
        let mut need = Need::new();
        assert!(need.is_coded());
        need.refuse();
        (1..20).for_each(|second| need.update(&report(100, 0), PLAIN_RATE, Time::from_millis(second * 1000)));
        assert!(!need.is_coded());
    }

    #[test]
    fn history_ends_where_the_next_sound_begins() {
        let spec =
            SampleSpec { format: wire::formats::audio::SampleFormat::S16, channels: 2, rate_hz: 48_000 };
        let sound = |position: u64| Sound { spec, position, samples: vec![position as f32; 256] };
        let mut history = History::default();
        (0..100).for_each(|number| history.add(&sound(number * 128)));
        let before = history.before(&sound(12_800), 300).unwrap();
        assert_eq!((before.position, before.frames(), before.samples[0]), (12_500, 300, 12_416.0));
        assert_eq!(history.before(&sound(12_800), 9000).unwrap().frames(), 1920);
        assert_eq!(history.before(&sound(13_000), 300), None);
        history.add(&sound(13_000));
        assert_eq!(history.before(&sound(13_128), 300).unwrap().frames(), 128);
    }
}
