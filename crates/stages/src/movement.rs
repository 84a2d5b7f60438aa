//! Merging of motion messages of input devices (formats `evdev` and `motion`), shared by `average`
//! and `latest`.

use contract::Format;
use wire::formats::{evdev, motion};

/// Accumulates messages that hold only motion, to be sent as one.
#[derive(Debug)]
pub(crate) enum Movement {
    Evdev(evdev::Movement),
    Motion(motion::Movement),
}

/// A parsed message.
#[derive(Debug)]
pub(crate) enum Update {
    Evdev(evdev::Update),
    Motion(motion::Update),
    /// Not of the format. It passes unchanged, because only its device can report the error.
    Unknown,
}

impl Movement {
    /// An empty accumulator, for a format that has motion.
    pub(crate) fn of(format: &Format) -> Option<Movement> {
        match format {
            Format::Evdev => Some(Movement::Evdev(<_>::default())),
            Format::Motion => Some(Movement::Motion(<_>::default())),
            _ => None,
        }
    }

    /// Parses a message.
    pub(crate) fn read(&self, body: &[u8]) -> Update {
        match self {
            Movement::Evdev(_) => evdev::Update::parse(body).map_or(Update::Unknown, Update::Evdev),
            Movement::Motion(_) => motion::Update::parse(body).map_or(Update::Unknown, Update::Motion),
        }
    }

    /// Adds a message. Returns `false` and adds nothing if it holds more than motion, or if the sum
    /// would not fit one message.
    pub(crate) fn add(&mut self, update: &Update) -> bool {
        match (self, update) {
            (Movement::Evdev(movement), Update::Evdev(evdev::Update::Frame(events))) => movement.add(events),
            (Movement::Motion(movement), Update::Motion(motion::Update::Motion(motion))) => {
                movement.add(motion)
            }
            _ => false,
        }
    }

    /// Records the positions in a message that is sent separately. Accumulated motion must have
    /// left before it.
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

    /// True if no motion is accumulated.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Movement::Evdev(movement) => movement.is_empty(),
            Movement::Motion(movement) => movement.is_empty(),
        }
    }

    /// Takes one message with the mean of each axis. If an axis now differs from its mean, another
    /// message follows.
    pub(crate) fn take_mean(&mut self) -> Option<Vec<u8>> {
        match self {
            Movement::Evdev(movement) => encode_frame(movement.take_mean()),
            Movement::Motion(movement) => encode_motion(movement.take()),
        }
    }

    /// Takes one message with the summed distances and the latest positions.
    pub(crate) fn take_last(&mut self) -> Option<Vec<u8>> {
        match self {
            Movement::Evdev(movement) => encode_frame(movement.take_last()),
            Movement::Motion(movement) => encode_motion(movement.take()),
        }
    }
}

fn encode_frame(events: Vec<evdev::Event>) -> Option<Vec<u8>> {
    (!events.is_empty()).then(|| evdev::Update::Frame(events).to_bytes())
}

fn encode_motion(motion: Option<motion::Motion>) -> Option<Vec<u8>> {
    motion.map(|motion| motion.to_array().to_vec())
}
