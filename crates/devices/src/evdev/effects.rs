//! Force-feedback effects that applications have uploaded to a node, and the play commands for them.
//!
//! | event | effect |
//! |---|---|
//! | upload of a new ID | the effect does not play |
//! | upload of an existing ID | the effect keeps playing, and starts again with its new times, as in the kernel (`ff-memless.c`) |
//! | play command | the effect plays, or stops |
//! | erase | the effect is gone |

use contract::Time;
use std::collections::BTreeMap;
use std::time::Duration;
use sys::input::Event;
use sys::input::code::EV_FF;
use wire::formats::evdev::Effect;

/// An effect, and its last play command.
struct UploadedEffect {
    effect: Effect,
    /// Repetitions of the last play command; 0 after a stop.
    plays: i32,
    /// The end of the last play command, unless it was a stop.
    plays_until: Option<Time>,
}

impl UploadedEffect {
    fn play(&mut self, plays: i32, now: Time) {
        let each = u64::from(self.effect.delay_ms) + u64::from(self.effect.length_ms);
        self.plays = plays;
        self.plays_until = match (plays > 0, self.effect.length_ms) {
            (false, _) => None,
            (true, 0) => Some(Time(u64::MAX)),
            (true, _) => {
                let lasts_ms = each.saturating_mul(plays.unsigned_abs().into());
                Some(now.after(Duration::from_millis(lasts_ms)))
            }
        };
    }

    /// Replaces the effect. It keeps playing if it plays.
    fn update(&mut self, effect: Effect, now: Time) {
        let plays = if self.is_playing(now) { self.plays } else { 0 };
        self.effect = effect;
        self.play(plays, now);
    }

    fn is_playing(&self, now: Time) -> bool {
        self.plays_until.is_some_and(|until| until > now)
    }
}

/// The effects of a node by ID.
#[derive(Default)]
pub(super) struct Effects(BTreeMap<u16, UploadedEffect>);

impl Effects {
    pub(super) fn upload(&mut self, effect: Effect, now: Time) {
        self.0
            .entry(effect.id)
            .and_modify(|uploaded| uploaded.update(effect, now))
            .or_insert(UploadedEffect { effect, plays: 0, plays_until: None });
    }

    /// Returns true if the effect existed.
    pub(super) fn erase(&mut self, id: u16) -> bool {
        self.0.remove(&id).is_some()
    }

    /// Handles a play command; 0 plays is a stop.
    pub(super) fn play(&mut self, id: u16, plays: i32, now: Time) {
        if let Some(uploaded) = self.0.get_mut(&id) {
            uploaded.play(plays, now);
        }
    }

    pub(super) fn is_any_playing(&self, now: Time) -> bool {
        self.0.values().any(|uploaded| uploaded.is_playing(now))
    }

    /// Returns all effects.
    pub(super) fn uploaded(&self) -> impl Iterator<Item = Effect> {
        self.0.values().map(|uploaded| uploaded.effect)
    }

    /// Returns the play commands for the effects that play without end.
    pub(super) fn endless_plays(&self) -> Vec<Event> {
        let playing = |uploaded: &UploadedEffect| uploaded.plays > 0 && uploaded.effect.length_ms == 0;
        let endless = self.0.iter().filter(|(_, uploaded)| playing(uploaded));
        endless.map(|(id, uploaded)| Event::new(EV_FF, *id, uploaded.plays)).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
