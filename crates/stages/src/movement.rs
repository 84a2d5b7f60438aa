//! What the typed formats of input devices say of motion, taken together: the part that `average` and
//! `latest` share.

use contract::Format;
use wire::formats::{evdev, motion};

/// Messages of mere motion that wait to be told as one.
#[derive(Debug)]
pub(crate) enum Movement {
    Evdev(evdev::Movement),
    Motion(motion::Movement),
}

/// A message that was read.
#[derive(Debug)]
pub(crate) enum Update {
    Evdev(evdev::Update),
    Motion(motion::Update),
    /// It is not of the format: only its device can say what is wrong with it.
    Unknown,
}

impl Movement {
    /// For a format of which motion is a part.
    pub(crate) fn of(format: &Format) -> Option<Movement> {
        match format {
            Format::Evdev => Some(Movement::Evdev(<_>::default())),
            Format::Motion => Some(Movement::Motion(<_>::default())),
            _ => None,
        }
    }

    /// Reads a message of its format.
    pub(crate) fn read(&self, body: &[u8]) -> Update {
        match self {
            Movement::Evdev(_) => evdev::Update::parse(body).map_or(Update::Unknown, Update::Evdev),
            Movement::Motion(_) => motion::Update::parse(body).map_or(Update::Unknown, Update::Motion),
        }
    }

    /// Takes a message in; `false`, and nothing taken, if it is not mere motion, or too much for one message.
    pub(crate) fn add(&mut self, update: &Update) -> bool {
        match (self, update) {
            (Movement::Evdev(movement), Update::Evdev(evdev::Update::Frame(events))) => movement.add(events),
            (Movement::Motion(movement), Update::Motion(motion::Update::Motion(motion))) => {
                movement.add(motion)
            }
            _ => false,
        }
    }

    /// Notes a message that goes its own way. What waited must have left before.
    pub(crate) fn pass(&mut self, update: &Update) {
        use evdev::Update::{Frame, Snapshot};
        match (self, update) {
            (Movement::Evdev(movement), Update::Evdev(Frame(events) | Snapshot(events))) => {
                movement.pass(events);
            }
            (Movement::Motion(movement), Update::Motion(motion::Update::Snapshot { .. })) => {
                movement.pass_snapshot();
            }
            _ => {}
        }
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Movement::Evdev(movement) => movement.is_empty(),
            Movement::Motion(movement) => movement.is_empty(),
        }
    }

    /// One message with the mean of each axis. Where an axis stands elsewhere, there is more to take.
    pub(crate) fn take_mean(&mut self) -> Option<Vec<u8>> {
        match self {
            Movement::Evdev(movement) => frame(movement.take_mean()),
            Movement::Motion(movement) => told(movement.take()),
        }
    }

    /// One message that leads as far, to where each position is now.
    pub(crate) fn take_last(&mut self) -> Option<Vec<u8>> {
        match self {
            Movement::Evdev(movement) => frame(movement.take_last()),
            Movement::Motion(movement) => told(movement.take()),
        }
    }
}

fn frame(events: Vec<evdev::Event>) -> Option<Vec<u8>> {
    (!events.is_empty()).then(|| evdev::Update::Frame(events).to_bytes())
}

fn told(motion: Option<motion::Motion>) -> Option<Vec<u8>> {
    motion.map(|motion| motion.to_array().to_vec())
}
