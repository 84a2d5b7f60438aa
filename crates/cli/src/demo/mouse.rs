//! The device of the demo: a simulated 3D mouse with 62.5 messages a second.

use crate::partners::{FLOW, finished};
use contract::{
    Attributes, Ctl, CtlReply, Description, Direction, FlowClass, FlowDirection, FlowKey, FlowOffer,
    FlowTemplate, Format, Message, Next, Partner, PartnerError, PartnerResult, Pull, PullSlot, Pulled,
    Pushed, Readiness, Time,
};
use std::time::Duration;

/// Time between two messages, as of a real USB device.
pub(super) const PERIOD: Duration = Duration::from_millis(16);
/// Largest value of an axis, in both directions.
pub(super) const AXIS_MAX: f64 = 350.0;
/// Three translations and three rotations.
pub(super) const AXES: [&str; 6] = ["x", "y", "z", "rx", "ry", "rz"];

/// The only kind of message: the positions of the six axes.
const KIND_AXES: u8 = 1;

/// One message: `kind: u8`, `made: u64`, six axes of `i16`; little-endian. Both hosts of the demo have the same clock,
/// so the application can compare `made` with its own time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Motion {
    pub(super) made: Time,
    pub(super) axes: [i16; 6],
}

impl Motion {
    const BYTES: usize = 1 + 8 + 2 * 6;

    /// Returns the simulated hand movement at a time.
    fn at(made: Time) -> Motion {
        let seconds = made.0 as f64 / 1e9;
        let axis = |index: usize| {
            let pace = 0.31 + 0.13 * index as f64;
            let sway = (seconds * pace * std::f64::consts::TAU).sin();
            let tremble = (seconds * (pace * 3.7 + 0.2) * std::f64::consts::TAU).sin();
            (AXIS_MAX * (0.8 * sway + 0.2 * tremble)) as i16
        };
        Motion { made, axes: std::array::from_fn(axis) }
    }

    fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![KIND_AXES];
        bytes.extend(self.made.0.to_le_bytes());
        self.axes.iter().for_each(|axis| bytes.extend(axis.to_le_bytes()));
        bytes
    }

    /// Parses the output of [`Motion::emit`]; `None` if malformed.
    pub(super) fn parse(bytes: &[u8]) -> Option<Motion> {
        let (&kind, rest) = bytes.split_first()?;
        let (made, axes) = rest.split_first_chunk::<8>()?;
        if kind != KIND_AXES || bytes.len() != Motion::BYTES {
            return None;
        }
        let axis = |index: usize| i16::from_le_bytes([axes[2 * index], axes[2 * index + 1]]);
        Some(Motion { made: Time(u64::from_le_bytes(*made)), axes: std::array::from_fn(axis) })
    }
}

/// The description for other hosts.
pub(super) fn description() -> Description {
    Description {
        class: "demo".into(),
        summary: "a simulated 3D mouse".into(),
        flows: vec![FlowOffer {
            direction: FlowDirection::DeviceToApplication,
            format: Format::Motion,
            class: FlowClass::Timely,
        }],
        application: "null",
        properties: Vec::new(),
    }
}

/// The device: one message every [`PERIOD`] after its flow is opened.
#[derive(Debug, Default)]
pub(super) struct Mouse {
    slot: PullSlot,
    /// Time of the next message; `None` while the flow is closed.
    due: Option<Time>,
}

impl Mouse {
    fn next(due: &mut Option<Time>) -> PartnerResult<Next> {
        let at = due.ok_or(PartnerError::NoFlow(FLOW))?;
        if now() < at {
            return Ok(Next::Nothing);
        }
        *due = Some(at.after(PERIOD));
        Ok(Next::Message(Message::new(at, Motion::at(at).emit())))
    }
}

impl Partner for Mouse {
    fn open(&mut self, template: &FlowTemplate, _attributes: &Attributes) -> PartnerResult<FlowKey> {
        if template.direction != Direction::Out {
            return Err(PartnerError::Unsupported("a flow into the mouse"));
        }
        self.due = Some(now());
        Ok(FLOW)
    }

    fn close(&mut self, _flow: FlowKey) -> PartnerResult {
        self.due = None;
        Ok(())
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        Err((PartnerError::NoFlow(flow), message))
    }

    fn pull(&mut self, _flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
        self.slot.answer(FLOW, request, || Mouse::next(&mut self.due))
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        finished(operation)
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match (direction, self.due) {
            (Direction::Out, Some(_)) if self.slot.is_held() => Readiness::now(),
            (Direction::Out, Some(due)) => Readiness::at(due),
            _ => Readiness::never(),
        }
    }
}

pub(super) fn now() -> Time {
    Time(sys::clock::boot_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_motions_parse() {
        let motion = Motion::at(Time(123_456_789));
        assert_eq!(Motion::parse(&motion.emit()), Some(motion));
        for length in 0..Motion::BYTES {
            assert_eq!(Motion::parse(&motion.emit()[..length]), None);
        }
        assert_eq!(Motion::parse(&[9; Motion::BYTES]), None);
    }
}
