//! How much of a screen one message tells.
//!
//! A message that a thin network is busy with for long holds up the letter that was typed meanwhile. So a message tells
//! no more than what is taken in a given time, as far as can be seen from here: while the path does not ask for
//! another message, it is busy with the last.

use contract::Time;
use std::time::Duration;

/// The least that a message may tell, pixels.
const PIXELS_MIN: u64 = 4096;
/// What was seen counts for half as much after so long.
const HALF_LIFE: Duration = Duration::from_millis(250);

/// How much the next message may tell.
#[derive(Debug)]
pub(super) struct Portion {
    /// In which it is to be taken; zero: all may be told at once.
    time: Duration,
    /// Pixels that were told lately, and seconds that the path was busy with them.
    pixels: f64,
    busy_s: f64,
    /// When a message was given to the path that is busy with it, and its pixels.
    given: Option<(Time, u64)>,
    last: Time,
}

impl Portion {
    pub(super) fn new(time: Duration) -> Portion {
        Portion { time, pixels: 0.0, busy_s: 0.0, given: None, last: Time::ZERO }
    }

    /// The most pixels that the next message may tell.
    pub(super) fn most(&self) -> u64 {
        let share = self.time.as_secs_f64() / self.busy_s;
        match self.time.is_zero() || !share.is_finite() {
            true => u64::MAX,
            false => ((self.pixels * share) as u64).max(PIXELS_MIN),
        }
    }

    /// The path has taken a message with so many pixels.
    pub(super) fn handle_given(&mut self, pixels: u64, now: Time) {
        self.given = Some((now, pixels));
    }

    /// The path asks for a message.
    pub(super) fn handle_wanted(&mut self, now: Time) {
        let Some((at, pixels)) = self.given.take() else { return };
        let left = 0.5_f64.powf(now.since(self.last).as_secs_f64() / HALF_LIFE.as_secs_f64());
        self.last = now;
        self.pixels = self.pixels * left + pixels as f64;
        self.busy_s = self.busy_s * left + now.since(at).as_secs_f64();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells all that it may, for some seconds, to a path that takes so long for a pixel; the last message's pixels.
    fn settled(portion: &mut Portion, pixel: Duration, now: &mut Time, whole: u64) -> u64 {
        let until = now.after(Duration::from_secs(5));
        while *now < until {
            portion.handle_wanted(*now);
            let pixels = portion.most().min(whole);
            portion.handle_given(pixels, *now);
            *now = now.after(pixel * pixels as u32);
        }
        portion.most().min(whole)
    }

    #[test]
    fn a_message_takes_as_long_as_it_may() {
        let (mut portion, mut now) = (Portion::new(Duration::from_millis(10)), Time::from_millis(5));
        assert_eq!(portion.most(), u64::MAX, "until something is known");
        let thin = settled(&mut portion, Duration::from_micros(1), &mut now, 1_000_000);
        assert!((9_900..10_100).contains(&thin), "{thin} pixels");
        let thinnest = settled(&mut portion, Duration::from_micros(100), &mut now, 1_000_000);
        assert_eq!(thinnest, PIXELS_MIN);
        let wide = settled(&mut portion, Duration::from_nanos(1), &mut now, 1_000_000);
        assert_eq!(wide, 1_000_000, "all of it, where there is room");
        let mut all = Portion::new(Duration::ZERO);
        assert_eq!(settled(&mut all, Duration::from_micros(1), &mut now, 1_000_000), 1_000_000);
    }

    #[test]
    fn small_messages_do_not_make_the_path_look_wide_or_thin() {
        let (mut portion, mut now) = (Portion::new(Duration::from_millis(10)), Time::from_millis(5));
        settled(&mut portion, Duration::from_micros(1), &mut now, 1_000_000);
        for busy in [Duration::ZERO, Duration::from_millis(5)] {
            portion.handle_wanted(now);
            portion.handle_given(80, now);
            now = now.after(busy);
        }
        portion.handle_wanted(now);
        assert!((8_000..12_000).contains(&portion.most()), "{} pixels", portion.most());
    }
}
