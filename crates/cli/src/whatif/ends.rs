//! The device and the application of `outboard whatif`: the same message as often as the path takes it, and a count.

use contract::{
    Attributes, Body, Ctl, CtlReply, Description, Direction, FlowClass, FlowDirection, FlowKey, FlowOffer,
    FlowTemplate, Format, Message, Next, Partner, PartnerError, PartnerResult, Pull, PullSlot, Pulled,
    Pushed, Readiness, Time,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const FLOW: FlowKey = FlowKey(1);

/// The description of the device for other hosts.
pub(super) fn description() -> Description {
    Description {
        class: "whatif".into(),
        summary: "the same message again and again, to measure".into(),
        flows: vec![FlowOffer {
            direction: FlowDirection::DeviceToApplication,
            format: Format::Bytes,
            class: FlowClass::Reliable,
        }],
        application: "null",
        properties: Vec::new(),
    }
}

/// The device.
pub(super) struct Repeater {
    slot: PullSlot,
    message: Body,
}

impl Repeater {
    pub(super) fn new(message: Body) -> Repeater {
        Repeater { slot: PullSlot::default(), message }
    }
}

impl Partner for Repeater {
    fn open(&mut self, template: &FlowTemplate, _attributes: &Attributes) -> PartnerResult<FlowKey> {
        match template.direction {
            Direction::Out => Ok(FLOW),
            Direction::In => Err(PartnerError::Unsupported("a flow into the device")),
        }
    }

    fn close(&mut self, _flow: FlowKey) -> PartnerResult {
        Ok(())
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        Err((PartnerError::NoFlow(flow), message))
    }

    fn pull(&mut self, _flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
        let message = Message::new(Time(sys::clock::boot_ns()), self.message.clone());
        self.slot.answer(FLOW, request, || Ok(Next::Message(message)))
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        done(operation)
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::Out => Readiness::now(),
            Direction::In => Readiness::never(),
        }
    }
}

/// The bytes and messages that an application has received so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Count(Arc<[AtomicU64; 2]>);

impl Count {
    /// Returns the number of messages and of their bytes.
    pub(super) fn get(&self) -> [u64; 2] {
        [0, 1].map(|at| self.0[at].load(Ordering::Relaxed))
    }
}

/// The application.
pub(super) struct Counter(pub(super) Count);

impl Partner for Counter {
    fn open(&mut self, template: &FlowTemplate, _attributes: &Attributes) -> PartnerResult<FlowKey> {
        match template.direction {
            Direction::In => Ok(FLOW),
            Direction::Out => Err(PartnerError::Unsupported("a flow out of the application")),
        }
    }

    fn close(&mut self, _flow: FlowKey) -> PartnerResult {
        Ok(())
    }

    fn push(&mut self, _flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        let Counter(Count(counts)) = self;
        counts[0].fetch_add(1, Ordering::Relaxed);
        counts[1].fetch_add(message.body.len() as u64, Ordering::Relaxed);
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, flow: FlowKey, _request: Pull<'_>) -> PartnerResult<Pulled> {
        Err(PartnerError::NoFlow(flow))
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        done(operation)
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::In => Readiness::now(),
            Direction::Out => Readiness::never(),
        }
    }
}

fn done(operation: Ctl<'_>) -> PartnerResult<CtlReply> {
    match operation {
        Ctl::Flush | Ctl::Finish | Ctl::Neutral => Ok(CtlReply::Done),
        _ => Err(PartnerError::Unsupported("this operation")),
    }
}
