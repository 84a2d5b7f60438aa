//! The shift of `mode=play`: how long after its creation a message is released.

use crate::adaptive::{AdaptiveDelay, LateCost};
use crate::playout::{MinMaxWindow, STEP_NS};
use contract::{Choice, Options, Time};
use std::time::Duration;

/// With a fixed delay, the shift moves by at most one part in this many of the elapsed time.
const SLEW: i64 = 1000;

/// The state of the release that the shift depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Release {
    /// The current shift; `None` before the first message.
    pub(super) shift: Option<i64>,
    /// Creation time of the first message held.
    pub(super) first_created: Option<Time>,
    /// A message was released.
    pub(super) has_begun: bool,
}

/// Chooses the shift from the transits: fixed, or adaptive.
#[derive(Debug)]
pub(super) struct ShiftControl {
    transits: MinMaxWindow,
    delay: Duration,
    /// The controller of `delay=auto`.
    adaptive: Option<AdaptiveDelay>,
    last_slew: Time,
    late: u64,
    steps: u64,
}

impl ShiftControl {
    pub(super) fn new(options: &Options, late_cost: LateCost) -> Self {
        let adaptive = || AdaptiveDelay::new(options.duration("delay_max"), late_cost);
        ShiftControl {
            transits: MinMaxWindow::default(),
            delay: options.duration("delay"),
            adaptive: options.is_auto("delay").then(adaptive),
            last_slew: Time::ZERO,
            late: 0,
            steps: 0,
        }
    }

    /// Returns the shift after a message with this transit.
    pub(super) fn update(&mut self, created: Time, transit: i64, now: Time, release: Release) -> i64 {
        self.transits.add(transit, now);
        let previous = release.shift;
        let shift = match &mut self.adaptive {
            Some(adaptive) => adaptive.update((created, 1), transit, now, previous),
            None => self.fixed_shift(transit, now, release),
        };
        let limit = if self.adaptive.is_some() { previous.unwrap_or(shift) } else { shift };
        self.late += u64::from(transit > limit);
        shift
    }

    /// The shift for a fixed delay:
    ///
    /// ```text
    /// nothing released yet, shift falls   the fastest transit plus the delay, but not into the past
    /// all late, or 500 ms too high        a step to the fastest transit plus the delay
    /// otherwise                           slewed towards it
    /// ```
    fn fixed_shift(&mut self, transit: i64, now: Time, release: Release) -> i64 {
        let fastest = self.transits.low().unwrap_or(transit);
        let target = fastest.saturating_add(nanoseconds(self.delay));
        let step = nanoseconds(now.since(self.last_slew)) / SLEW;
        self.last_slew = now;
        let Some(shift) = release.shift else { return target };
        let is_unsettled = !release.has_begun && target < shift;
        // The first message cannot be released in the past.
        let earliest = release.first_created.map_or(target, |created| now.signed_since(created));
        let all_late = fastest > shift;
        if is_unsettled {
            target.max(earliest)
        } else if all_late || shift.saturating_sub(target) > STEP_NS {
            self.steps += 1;
            target
        } else {
            shift.saturating_add(target.saturating_sub(shift).clamp(-step, step))
        }
    }

    /// The fastest transit of the last seconds.
    pub(super) fn fastest(&self) -> Option<i64> {
        self.transits.low()
    }

    /// Messages that came after their time.
    pub(super) fn late(&self) -> u64 {
        self.late
    }

    /// Steps of the shift.
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// The delay that `auto` chose.
    pub(super) fn choices(&self, shift: Option<i64>) -> Vec<Choice> {
        self.adaptive.iter().map(|adaptive| adaptive.choice("delay", shift)).collect()
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}
