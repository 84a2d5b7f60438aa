//! The messages that wait while the network is busy.

use crate::movement::Movement;
use contract::{Attributes, Message, Time};
use std::collections::VecDeque;

/// The result of holding a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HoldOutcome {
    /// Added to the queue.
    Queued,
    /// Replaced the waiting message of its key, which is dropped.
    Replaced,
    /// Merged with the motion before it.
    Merged,
}

/// Waiting messages, oldest first. Without merging, one for each key. With merging, every message
/// that is not pure motion, and the merged motion last.
#[derive(Debug)]
pub(super) struct Pending {
    queue: VecDeque<Message>,
    /// Merged motion, newer than the queue; `None` without merging.
    movement: Option<Movement>,
    /// Creation time and attributes of the newest message in `movement`.
    newest: (Time, Attributes),
}

impl Pending {
    /// Merges motion if `movement` is given.
    pub(super) fn new(movement: Option<Movement>) -> Self {
        Pending { queue: VecDeque::new(), movement, newest: (Time::ZERO, Attributes::default()) }
    }

    /// Number of waiting messages.
    pub(super) fn len(&self) -> usize {
        self.queue.len() + usize::from(self.has_motion())
    }

    fn has_motion(&self) -> bool {
        self.movement.as_ref().is_some_and(|movement| !movement.is_empty())
    }

    /// Records the positions in a message that is sent at once. No message may be waiting.
    pub(super) fn pass(&mut self, message: &mut Message) {
        if let Some(movement) = &mut self.movement {
            let update = movement.read(message.body.as_slice());
            movement.pass(&update);
        }
    }

    /// Holds a message.
    pub(super) fn hold(&mut self, message: Message) -> HoldOutcome {
        let Some(mut movement) = self.movement.take() else { return self.replace(message) };
        let outcome = self.merge(&mut movement, message);
        self.movement = Some(movement);
        outcome
    }

    fn merge(&mut self, movement: &mut Movement, mut message: Message) -> HoldOutcome {
        let update = movement.read(message.body.as_slice());
        let mut outcome = if movement.is_empty() { HoldOutcome::Queued } else { HoldOutcome::Merged };
        if !movement.add(&update) {
            while let Some(motion) = self.take_motion(movement) {
                self.queue.push_back(motion);
            }
            outcome = HoldOutcome::Queued;
            if !movement.add(&update) {
                movement.pass(&update);
                self.queue.push_back(message);
                return outcome;
            }
        }
        self.newest = (message.created, message.attributes);
        outcome
    }

    /// Replaces in place: keys keep the order in which they began to wait.
    fn replace(&mut self, message: Message) -> HoldOutcome {
        match self.queue.iter_mut().find(|waiting| waiting.attributes.key == message.attributes.key) {
            Some(waiting) => {
                *waiting = message;
                HoldOutcome::Replaced
            }
            None => {
                self.queue.push_back(message);
                HoldOutcome::Queued
            }
        }
    }

    fn take_motion(&self, movement: &mut Movement) -> Option<Message> {
        let (created, attributes) = self.newest;
        Some(Message { created, attributes, body: movement.take_last()?.into() })
    }

    /// Takes the next message to send.
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
