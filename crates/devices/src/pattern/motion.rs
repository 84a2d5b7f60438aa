//! `format=motion`: a 3D mouse with a smoothly moving cap and two buttons.

use super::split_mix;
use contract::Report;
use std::collections::BTreeSet;
use std::f64::consts::TAU;
use wire::formats::motion::{AXES, Motion, Update};

/// Amplitude of the cap in its own units: the range of a Space Navigator.
const REACH: f64 = 350.0;
/// Messages from one button event to the next, and from a press to its release.
const BUTTON_EVERY: u64 = 128;
const BUTTON_HELD: u64 = 8;
const BUTTONS: u64 = 2;

/// A cap with axes that oscillate, each with its own frequency.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cap {
    /// Time between two messages.
    tick_us: u32,
    /// Frequency (oscillations per message) and phase of each axis, in turns.
    swings: [(f64, f64); AXES],
}

impl Cap {
    /// Creates a cap that sends `rate_hz` messages a second.
    pub(super) fn new(seed: u64, rate_hz: f64) -> Cap {
        let tick_s = 1.0 / rate_hz;
        let mut state = seed;
        let mut share = || split_mix(&mut state) as f64 / u64::MAX as f64;
        let swings = [(); AXES].map(|()| ((0.2 + 0.6 * share()) * tick_s, share()));
        Cap { tick_us: (tick_s * 1e6) as u32, swings }
    }

    fn axes(&self, number: u64) -> [i32; AXES] {
        self.swings.map(|(pace, start)| (REACH * (TAU * (start + pace * number as f64)).sin()) as i32)
    }

    /// Returns the button of message `number` and true for a press, or `None` if the message is a motion.
    fn button(number: u64) -> Option<(u16, bool)> {
        let button = (number / BUTTON_EVERY % BUTTONS) as u16;
        match number % BUTTON_EVERY {
            BUTTON_HELD => Some((button, true)),
            at if at == 2 * BUTTON_HELD => Some((button, false)),
            _ => None,
        }
    }

    /// Returns message `number`.
    pub(super) fn update(&self, number: u64) -> Update {
        if let Some((number, pressed)) = Cap::button(number) {
            return Update::Button { number, pressed };
        }
        let ticks = match number {
            0 => 0,
            // The previous message was a button, so the last motion is two ticks ago.
            _ if Cap::button(number - 1).is_some() => 2,
            _ => 1,
        };
        Update::Motion(Motion { axes: self.axes(number), period_us: self.tick_us.saturating_mul(ticks) })
    }

    /// Returns a snapshot of the state before message `number`.
    pub(super) fn snapshot(&self, number: u64) -> Update {
        let since = number - number % BUTTON_EVERY;
        let last = (since..number).rev().find_map(Cap::button);
        let pressed = last.filter(|(_, pressed)| *pressed).map(|(number, _)| number);
        Update::Snapshot { axes: self.axes(number.saturating_sub(1)), pressed: pressed.into_iter().collect() }
    }
}

/// The application's state of a cap.
#[derive(Debug, Default)]
pub(super) struct Follower {
    held: BTreeSet<u16>,
    presses: u64,
    /// Integral of the axes over time, units times seconds.
    moved: [f64; AXES],
    /// Malformed messages, presses of pressed buttons and releases of released ones.
    wrong: u64,
}

impl Follower {
    pub(super) fn apply(&mut self, body: &[u8]) {
        match Update::parse(body) {
            Ok(Update::Motion(Motion { axes, period_us })) => {
                let period_s = f64::from(period_us) / 1e6;
                self.moved
                    .iter_mut()
                    .zip(axes)
                    .for_each(|(moved, axis)| *moved += f64::from(axis) * period_s);
            }
            Ok(Update::Button { number, pressed: true }) => {
                self.presses += 1;
                self.wrong += u64::from(!self.held.insert(number));
            }
            Ok(Update::Button { number, pressed: false }) => {
                self.wrong += u64::from(!self.held.remove(&number));
            }
            Ok(Update::Snapshot { pressed, .. }) => self.held = pressed.into_iter().collect(),
            Err(_) => self.wrong += 1,
        }
    }

    pub(super) fn release_all(&mut self) {
        self.held.clear();
    }

    pub(super) fn report(&self) -> Vec<Report> {
        vec![
            ("wrong", self.wrong as f64),
            ("presses", self.presses as f64),
            ("buttons down", self.held.len() as f64),
            ("moved x", self.moved[0]),
            ("moved y", self.moved[1]),
            ("moved z", self.moved[2]),
        ]
    }
}
