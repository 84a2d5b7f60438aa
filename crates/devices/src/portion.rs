//! Limits the pixels of one message to the amount that the path takes in a given time.
//!
//! On a slow network a large message delays the letter that is typed after it. The limit is the option's time
//! multiplied by the throughput, in pixels per second. The throughput is measured at the device: the path is busy with
//! a message from the time it takes the message until it pulls the next one. Both sums of the measurement decay
//! exponentially.
//!
//! A pipeline that merges changes into its own state of the screen gets all damage at once. It is busy for a time of its own,
//! whatever the size of a message: a limit by that time would shrink until each message has [`PIXELS_MIN`] pixels, and a film
//! would arrive in so many parts that each place of it changes a few times a second.

use contract::Time;
use std::time::Duration;

/// The lowest limit, in pixels.
const PIXELS_MIN: u64 = 4096;
/// The time after which a measurement has half its weight.
const HALF_LIFE: Duration = Duration::from_millis(250);

/// The limit of the next message.
#[derive(Debug)]
pub(crate) struct Portion {
    /// The time that the path may be busy with one message; zero: no limit.
    time: Duration,
    /// The pipeline merges changes: no limit.
    is_merging: bool,
    /// The decaying sum of the pixels that the path took.
    pixels: f64,
    /// The decaying sum of the seconds that the path was busy with them.
    busy_s: f64,
    /// The message that the path is busy with: the time when it was taken, and its pixels.
    in_progress: Option<(Time, u64)>,
    last_pull: Time,
}

impl Portion {
    pub(crate) fn new(time: Duration) -> Portion {
        Portion {
            time,
            is_merging: false,
            pixels: 0.0,
            busy_s: 0.0,
            in_progress: None,
            last_pull: Time::ZERO,
        }
    }

    /// The pipeline merges changes, or does not.
    pub(crate) fn set_merging(&mut self, merges: bool) {
        self.is_merging = merges;
    }

    /// Returns the most pixels that the next message may have.
    pub(crate) fn pixels_max(&self) -> u64 {
        let share = self.time.as_secs_f64() / self.busy_s;
        match self.time.is_zero() || self.is_merging || !share.is_finite() {
            true => u64::MAX,
            false => ((self.pixels * share) as u64).max(PIXELS_MIN),
        }
    }

    /// The path has taken a message with this many pixels.
    pub(crate) fn handle_taken(&mut self, pixels: u64, now: Time) {
        self.in_progress = Some((now, pixels));
    }

    /// The path pulls a message, so it has finished the one before.
    pub(crate) fn handle_pull(&mut self, now: Time) {
        let Some((at, pixels)) = self.in_progress.take() else { return };
        let weight = 0.5_f64.powf(now.since(self.last_pull).as_secs_f64() / HALF_LIFE.as_secs_f64());
        self.last_pull = now;
        self.pixels = self.pixels * weight + pixels as f64;
        self.busy_s = self.busy_s * weight + now.since(at).as_secs_f64();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sends messages of up to `whole` pixels for five seconds to a path that takes `pixel` for each pixel. Returns the
    /// resulting limit.
    fn settled(portion: &mut Portion, pixel: Duration, now: &mut Time, whole: u64) -> u64 {
        let until = now.after(Duration::from_secs(5));
        while *now < until {
            portion.handle_pull(*now);
            let pixels = portion.pixels_max().min(whole);
            portion.handle_taken(pixels, *now);
            *now = now.after(pixel * pixels as u32);
        }
        portion.pixels_max().min(whole)
    }

    #[test]
    fn the_limit_follows_the_throughput() {
        let (mut portion, mut now) = (Portion::new(Duration::from_millis(10)), Time::from_millis(5));
        assert_eq!(portion.pixels_max(), u64::MAX, "before the first measurement");
        let slow = settled(&mut portion, Duration::from_micros(1), &mut now, 1_000_000);
        assert!((9_900..10_100).contains(&slow), "{slow} pixels");
        let slowest = settled(&mut portion, Duration::from_micros(100), &mut now, 1_000_000);
        assert_eq!(slowest, PIXELS_MIN);
        let fast = settled(&mut portion, Duration::from_nanos(1), &mut now, 1_000_000);
        assert_eq!(fast, 1_000_000, "the path takes a whole picture in the time");
        let mut all = Portion::new(Duration::ZERO);
        assert_eq!(settled(&mut all, Duration::from_micros(1), &mut now, 1_000_000), 1_000_000);
    }

    #[test]
    fn small_messages_hardly_change_the_measurement() {
        let (mut portion, mut now) = (Portion::new(Duration::from_millis(10)), Time::from_millis(5));
        settled(&mut portion, Duration::from_micros(1), &mut now, 1_000_000);
        for busy in [Duration::ZERO, Duration::from_millis(5)] {
            portion.handle_pull(now);
            portion.handle_taken(80, now);
            now = now.after(busy);
        }
        portion.handle_pull(now);
        assert!((8_000..12_000).contains(&portion.pixels_max()), "{} pixels", portion.pixels_max());
    }

    /// A pipeline that takes damage at fixed times takes the same time for any size: the limit by its time would shrink to the
    /// lowest.
    #[test]
    fn a_pipeline_that_merges_gets_all_damage_at_once() {
        proptest!(|(pause_ms in 5u64..40, whole in 10_000u64..4_000_000)| {
            let (mut portion, mut now) = (Portion::new(Duration::from_millis(4)), Time::from_millis(5));
            for merges in [false, true] {
                portion.set_merging(merges);
                for _ in 0..5000 {
                    portion.handle_pull(now);
                    portion.handle_taken(portion.pixels_max().min(whole), now);
                    now = now.after(Duration::from_millis(pause_ms));
                }
                portion.handle_pull(now);
                prop_assert_eq!(portion.pixels_max(), if merges { u64::MAX } else { PIXELS_MIN });
            }
        });
    }
}
