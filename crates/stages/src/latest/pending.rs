//! What waits while the network is busy.

use crate::movement::Movement;
use contract::{Attributes, Message, Time};
use std::collections::VecDeque;

/// What became of a message that was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// It waits.
    Waits,
    /// It took the place of one of its key, which is dropped.
    Replaces,
    /// It became one with the motion before it.
    Joins,
}

/// Messages that wait, oldest first: one for each key; or, of an input device, all that say more than mere
/// motion, and motion joined.
#[derive(Debug)]
pub(super) struct Pending {
    queue: VecDeque<Message>,
    /// Motion behind all that is in the queue, in a format that has such.
    movement: Option<Movement>,
    /// Of the newest in `movement`.
    newest: (Time, Attributes),
}

impl Pending {
    /// With the motion of a format, if it may be joined.
    pub(super) fn new(movement: Option<Movement>) -> Self {
        Pending { queue: VecDeque::new(), movement, newest: (Time::ZERO, Attributes::default()) }
    }

    /// Messages that wait.
    pub(super) fn len(&self) -> usize {
        self.queue.len() + usize::from(self.has_motion())
    }

    fn has_motion(&self) -> bool {
        self.movement.as_ref().is_some_and(|movement| !movement.is_empty())
    }

    /// Notes a message that goes its way at once. Nothing may wait.
    pub(super) fn pass(&mut self, message: &mut Message) {
        if let Some(movement) = &mut self.movement {
            let update = movement.read(message.body.as_slice());
            movement.pass(&update);
        }
    }

    /// Holds a message.
    pub(super) fn hold(&mut self, message: Message) -> Held {
        let Some(mut movement) = self.movement.take() else { return self.replace(message) };
        let held = self.join(&mut movement, message);
        self.movement = Some(movement);
        held
    }

    fn join(&mut self, movement: &mut Movement, mut message: Message) -> Held {
        let update = movement.read(message.body.as_slice());
        let mut held = if movement.is_empty() { Held::Waits } else { Held::Joins };
        if !movement.add(&update) {
            while let Some(motion) = self.take_motion(movement) {
                self.queue.push_back(motion);
            }
            held = Held::Waits;
            if !movement.add(&update) {
                movement.pass(&update);
                self.queue.push_back(message);
                return held;
            }
        }
        self.newest = (message.created, message.attributes);
        held
    }

    /// In place, so that keys have their turns in the order in which they began to wait.
    fn replace(&mut self, message: Message) -> Held {
        match self.queue.iter_mut().find(|waits| waits.attributes.key == message.attributes.key) {
            Some(waits) => {
                *waits = message;
                Held::Replaces
            }
            None => {
                self.queue.push_back(message);
                Held::Waits
            }
        }
    }

    fn take_motion(&self, movement: &mut Movement) -> Option<Message> {
        let (created, attributes) = self.newest;
        Some(Message { created, attributes, body: movement.take_last()?.into() })
    }

    /// The next that may go.
    pub(super) fn take(&mut self) -> Option<Message> {
        if let Some(first) = self.queue.pop_front() {
            return Some(first);
        }
        let mut movement = self.movement.take()?;
        let motion = self.take_motion(&mut movement);
        self.movement = Some(movement);
        motion
    }
}
