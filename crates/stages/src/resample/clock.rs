//! The controller of the resampler: a loop of second order, as in "Controlling adaptive resampling" (2012), 3, by Adriaensen.
//!
//! The device holds `e` seconds more than it is to hold. Per second, `e` grows by the difference of the clocks and falls by the
//! correction `c`:
//!
//! ```text
//! e, smoothed over 1 / (SMOOTHING w)
//! drift += w² e dt                      the difference of the clocks, as far as it is known
//! c = drift + 2 w e                     critically damped: no overshoot of e
//! ```
//!
//! The bandwidth `w` is high at first, to find the drift within seconds, and then low, so that the noise in `e` does not reach the
//! pitch. A large error widens it again. After a pause, as the device ran dry meanwhile, the loop keeps the drift.

use crate::sound::STEER_MAX;
use contract::{Fill, Time};
use std::time::Duration;

/// The bandwidth at the start and in the long run, in radians a second.
const BANDWIDTHS: [f64; 2] = [0.5, 0.1];
/// The bandwidth falls from the first to the second over this time.
const SETTLES: Duration = Duration::from_secs(60);
/// An error above this many seconds means that the loop is not settled.
const UNSETTLED: f64 = 0.003;
/// The smoothing of the error is this much faster than the loop.
const SMOOTHING: f64 = 8.0;
/// Updates further apart than this are those before and after a pause.
const PAUSE: Duration = Duration::from_millis(200);
/// The part of the correction that is not drift is at most this: a tenth of a semitone is 5,800 ppm.
const TRIM_MAX: f64 = 0.001;

/// Steers a resampler. See the module comment.
#[derive(Debug, Default)]
pub(super) struct ClockControl {
    updated: Option<Time>,
    /// Seconds since the start, or since the last large error.
    settled: f64,
    /// The smoothed error, in seconds.
    error: f64,
    drift: f64,
    trim: f64,
}

impl ClockControl {
    /// A controller that knows the difference of the clocks.
    pub(super) fn with_drift(drift: f64) -> ClockControl {
        ClockControl { drift, ..ClockControl::default() }
    }

    /// The share by which the source's clock is faster than the device's, as far as it is known.
    pub(super) fn drift(&self) -> f64 {
        self.drift
    }

    /// The share by which sound is to be shorter.
    pub(super) fn correction(&self) -> f64 {
        (self.drift + self.trim).clamp(-STEER_MAX, STEER_MAX)
    }

    /// Handles a measurement of the fill.
    pub(super) fn update(&mut self, fill: &Fill, now: Time) {
        let error = fill.held.as_secs_f64() - fill.target.as_secs_f64();
        let elapsed = self.updated.replace(now).map(|before| now.since(before));
        let Some(elapsed) = elapsed.filter(|elapsed| *elapsed < PAUSE) else {
            (self.error, self.settled) = (error, 0.0);
            return;
        };
        let seconds = elapsed.as_secs_f64();
        self.settled += seconds;
        let age = (self.settled / SETTLES.as_secs_f64()).min(1.0);
        let bandwidth = BANDWIDTHS[0] * (BANDWIDTHS[1] / BANDWIDTHS[0]).powf(age);
        self.error += (error - self.error) * (1.0 - (-seconds * SMOOTHING * bandwidth).exp());
        if self.error.abs() > UNSETTLED {
            self.settled = 0.0;
        }
        let trim = 2.0 * bandwidth * self.error;
        self.trim = trim.clamp(-TRIM_MAX, TRIM_MAX);
        // At its limit, the loop has no use for a larger drift, and would have to unlearn it.
        if trim == self.trim {
            let drift = self.drift + bandwidth * bandwidth * self.error * seconds;
            self.drift = drift.clamp(-STEER_MAX / 2.0, STEER_MAX / 2.0);
        }
    }
}
