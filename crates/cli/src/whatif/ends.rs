//! The device and the application of `outboard whatif`: the same message as often as the path takes it, and a count.

use crate::partners::{FLOW, Receiver, finished};
use contract::{
    Attributes, Body, Ctl, CtlReply, Description, Direction, FlowClass, FlowDirection, FlowKey, FlowOffer,
    FlowTemplate, Format, Message, Next, Partner, PartnerError, PartnerResult, Pull, PullSlot, Pulled,
    Pushed, Readiness, Time,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
    count: Count,
}

impl Repeater {
    pub(super) fn new(message: Body, count: Count) -> Repeater {
        Repeater { slot: PullSlot::default(), message, count }
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
        let Repeater { slot, message, count } = self;
        slot.answer(FLOW, request, || {
            count.add(message.len());
            Ok(Next::Message(Message::new(Time(sys::clock::boot_ns()), message.clone())))
        })
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        finished(operation)
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::Out => Readiness::now(),
            Direction::In => Readiness::never(),
        }
    }
}

/// The messages and bytes at one end so far, and the processor time of its thread.
#[derive(Debug, Clone, Default)]
pub(super) struct Count(Arc<[AtomicU64; 3]>);

impl Count {
    /// Returns messages, bytes and nanoseconds of processor time.
    pub(super) fn get(&self) -> [u64; 3] {
        [0, 1, 2].map(|at| self.0[at].load(Ordering::Relaxed))
    }

    fn add(&self, bytes: usize) {
        let Count(counts) = self;
        counts[0].fetch_add(1, Ordering::Relaxed);
        counts[1].fetch_add(bytes as u64, Ordering::Relaxed);
        // The thread of a new run begins at zero.
        counts[2].store(sys::clock::thread_cpu_ns(), Ordering::Relaxed);
    }
}

/// Returns the application.
pub(super) fn counter(count: Count) -> Box<dyn Partner> {
    Box::new(Receiver(move |message: Message| {
        count.add(message.body.len());
        Ok(())
    }))
}
