//! What is quicker for a viewer, pixels that are compressed or plain ones: found out by what each took from the moment
//! it was begun until the viewer had done with it. Where the way is wide, plain ones win; where it is thin, they are
//! tried on a small piece, ever more seldom.

use contract::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// Updates of fewer pixels say little and are compressed.
pub(super) const MEASURED_MIN: u64 = 1 << 15;

/// Pixels that the other way is tried with.
pub(super) const TRIAL: u64 = 1 << 15;

/// Updates on their way that were not answered.
const ON_THE_WAY_MAX: usize = 16;

/// How long an update may wait on its way, beyond the time that the way takes by itself.
const QUEUE_WAIT: Duration = Duration::from_millis(50);

/// Large updates between two trials: at first, and at most.
const TRIAL_GAPS: [u32; 2] = [8, 1024];

/// How an update is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    Compressed,
    Plain,
}

/// An update that is on its way, and the fence behind it.
#[derive(Debug, Clone, Copy)]
struct Update {
    fence: u8,
    departure: Time,
    /// How many pixels it has, if they are enough to learn from, and how they were sent.
    measured: Option<(u64, Choice)>,
}

/// The way to one viewer.
#[derive(Debug)]
pub(super) struct Way {
    /// Oldest first.
    updates: VecDeque<Update>,
    next_fence: u8,
    last_answer: Time,
    round_trip: Option<Duration>,
    /// Nanoseconds a pixel of what is compressed and of what is plain.
    costs: [Option<f64>; 2],
    /// Large updates until the other choice is tried, and between the trial after that and this.
    trial_in: u32,
    trial_gap: u32,
    may_be_plain: bool,
}

impl Way {
    /// A way of which nothing is known. `may_be_plain`: plain pixels may be tried at all.
    pub(super) fn new(may_be_plain: bool) -> Way {
        Way {
            updates: VecDeque::new(),
            next_fence: 0,
            last_answer: Time::ZERO,
            round_trip: None,
            costs: [None; 2],
            trial_in: TRIAL_GAPS[0],
            trial_gap: TRIAL_GAPS[0],
            may_be_plain,
        }
    }

    /// Whether another update may go: what is on its way does not pile up there.
    pub(super) fn is_free(&self, now: Time) -> bool {
        let Some(oldest) = self.updates.front() else { return true };
        let patience = self.round_trip.map_or(Duration::ZERO, |least| least + QUEUE_WAIT);
        self.updates.len() < ON_THE_WAY_MAX && now.since(oldest.departure) < patience
    }

    /// How to send so many pixels, and whether that is a trial, to be made with [`TRIAL`] of them.
    pub(super) fn choose(&mut self, pixels: u64) -> (Choice, bool) {
        if !self.may_be_plain || pixels < MEASURED_MIN {
            return (Choice::Compressed, false);
        }
        let (best, other) = match self.costs {
            [Some(compressed), Some(plain)] if plain < compressed => (Choice::Plain, Choice::Compressed),
            _ => (Choice::Compressed, Choice::Plain),
        };
        self.trial_in -= 1;
        if self.trial_in > 0 {
            return (best, false);
        }
        self.trial_in = self.trial_gap;
        self.trial_gap = (self.trial_gap * 2).min(TRIAL_GAPS[1]);
        (other, true)
    }

    /// An update was begun at `departure`; the fence to send behind it.
    pub(super) fn depart(&mut self, pixels: u64, choice: Choice, departure: Time) -> u8 {
        self.next_fence = self.next_fence.wrapping_add(1);
        let measured = (pixels >= MEASURED_MIN).then_some((pixels, choice));
        self.updates.push_back(Update { fence: self.next_fence, departure, measured });
        self.next_fence
    }

    /// The viewer has done with all up to this fence.
    pub(super) fn arrive(&mut self, fence: u8, now: Time) {
        let Some(at) = self.updates.iter().position(|update| update.fence == fence) else { return };
        let Update { departure, measured, .. } = self.updates[at];
        self.updates.drain(..=at);
        let took = now.since(departure);
        let least = self.round_trip.map_or(took, |least| least.min(took));
        self.round_trip = Some(least);
        // What went before it held it up; the way alone takes its time whatever goes.
        let own = match self.last_answer > departure {
            true => now.since(self.last_answer),
            false => took.saturating_sub(least),
        };
        self.last_answer = now;
        if let Some((pixels, choice)) = measured {
            let cost = own.as_nanos() as f64 / pixels as f64;
            let known = &mut self.costs[choice as usize];
            *known = Some(known.map_or(cost, |before| before + (cost - before) / 4.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIXELS: u64 = 500_000;

    /// Sends pictures, one after the other, over a way that carries so many bytes a millisecond, to a viewer that takes
    /// so long for what is compressed (to a quarter); how many pixels went plain, of how many.
    fn plain_share(bytes_a_ms: u64, decode_ns: u64, pictures: u64) -> f64 {
        let (mut way, mut now, mut plain) = (Way::new(true), Time::from_millis(1), 0);
        let small = way.depart(1, Choice::Compressed, now);
        way.arrive(small, now.after(Duration::from_micros(100)));
        for _ in 0..pictures {
            let (choice, is_trial) = way.choose(PIXELS);
            let pixels = if is_trial { TRIAL } else { PIXELS };
            let (bytes, work_ns) = match choice {
                Choice::Plain => (pixels * 4, pixels),
                Choice::Compressed => (pixels, pixels * decode_ns),
            };
            plain += if choice == Choice::Plain { pixels } else { 0 };
            let fence = way.depart(pixels, choice, now);
            now = now.after(Duration::from_nanos(100_000 + bytes * 1_000_000 / bytes_a_ms + work_ns));
            way.arrive(fence, now);
        }
        plain as f64 / (pictures * PIXELS) as f64
    }

    #[test]
    fn a_wide_way_takes_plain_pixels_and_a_thin_one_does_not() {
        let wide = plain_share(2_000_000, 20, 1000);
        assert!(wide > 0.9, "{wide} of all on a way of 2 GB/s");
        let thin = plain_share(1250, 20, 1000);
        assert!((0.0..0.002).contains(&thin) && thin > 0.0, "{thin} of all on a way of 10 Mbit/s");
        let flat = plain_share(2_000_000, 0, 1000);
        assert!(flat < 0.01, "{flat} of all where compressing costs nothing");
    }

    #[test]
    fn what_is_small_is_compressed_and_so_is_all_if_the_user_says_so() {
        let mut way = Way::new(true);
        assert!((0..100).all(|_| way.choose(MEASURED_MIN - 1) == (Choice::Compressed, false)));
        let mut way = Way::new(false);
        assert!((0..100).all(|_| way.choose(PIXELS) == (Choice::Compressed, false)));
    }
}
