//! Sound that stays whole while the common delay changes: it is made longer by a repetition of its last period, or shorter by a
//! piece that is left out.
//!
//! The rise of a delay is a pause between two quanta, which a listener hears, and its fall is sound that a device has to hold. So
//! it changes in steps ([`STEP`]), with sound between them ([`STEPS_APART`]): sound is slower or faster by a tenth meanwhile, at
//! its own pitch.

use crate::sound::{Concealer, Sound, duration, frames_in};
use contract::{Attributes, Message, Time};
use std::time::Duration;
use wire::formats::audio::SampleSpec;

/// The most by which the delay of sound changes at once. A repetition of this length has its full loudness.
pub(super) const STEP: Duration = Duration::from_millis(10);
/// The shortest time between two steps.
pub(super) const STEPS_APART: Duration = Duration::from_millis(100);
/// Sound that ended this long ago plays no more.
const PLAYS: Duration = Duration::from_millis(50);

/// The last sound that was released.
#[derive(Debug, Clone, Copy)]
struct Last {
    spec: SampleSpec,
    /// When its end was created, and when it was released.
    end: Time,
    released: Time,
}

/// The sound of one flow.
#[derive(Debug, Default)]
pub(super) struct Stretch {
    concealer: Concealer,
    last: Option<Last>,
    /// The position behind the last sound released.
    position: u64,
    /// Frames added so far less those left out; modulo 2^64.
    added: u64,
    /// Frames to leave out.
    excess: usize,
}

impl Stretch {
    /// Returns true if sound plays that a rise would interrupt.
    pub(super) fn plays(&self, now: Time) -> bool {
        !self.concealer.is_silent() && self.last.is_some_and(|last| now < last.released.after(PLAYS))
    }

    /// Returns a message as it is released; `None` if all of its sound is left out.
    pub(super) fn pass(&mut self, message: Message, now: Time) -> Option<Message> {
        let Some(mut sound) = Sound::parse(&message.body) else { return Some(message) };
        let end = message.created.after(duration(&sound.spec, sound.frames()));
        self.last = Some(Last { spec: sound.spec, end, released: now });
        sound.position = sound.position.wrapping_add(self.added);
        let left_out = self.excess.min(sound.frames());
        if left_out > 0 {
            self.excess -= left_out;
            self.added = self.added.wrapping_sub(left_out as u64);
            sound.samples.drain(..left_out * usize::from(sound.spec.channels));
            // The next sound does not continue the last: it is faded in over it.
            self.concealer.conceal(&sound.spec, 0);
            if sound.samples.is_empty() {
                return None;
            }
        }
        self.position = sound.position.wrapping_add(sound.frames() as u64);
        // Unchanged sound keeps its bytes.
        if !self.concealer.hear(&mut sound) && self.added == 0 {
            return Some(message);
        }
        let created = message.created.after(duration(&sound.spec, left_out));
        Some(Message { attributes: message.attributes, ..sound.into_message(created) })
    }

    /// Leaves out sound for a fall of the delay, if any plays.
    pub(super) fn fall(&mut self, fall: Duration, now: Time) {
        if let Some(Last { spec, .. }) = self.last.filter(|_| self.plays(now)) {
            self.excess += frames_in(&spec, fall);
        }
    }

    /// Returns sound for a rise of the delay; `None` if nothing plays.
    pub(super) fn rise(&mut self, rise: Duration, now: Time) -> Option<Message> {
        let Last { spec, end, .. } = self.last.filter(|_| self.plays(now))?;
        let frames = frames_in(&spec, rise);
        let samples = self.concealer.conceal(&spec, frames);
        let sound = Sound { spec, position: self.position, samples };
        self.position = self.position.wrapping_add(frames as u64);
        self.added = self.added.wrapping_add(frames as u64);
        Some(Message {
            attributes: Attributes { stale: true, ..Attributes::default() },
            ..sound.into_message(end)
        })
    }
}
