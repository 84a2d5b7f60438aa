//! Active partners: those that call their partner from a thread of their own (paper P, section 3.3).
//!
//! [`Endpoint::pair`] initialises two partners mutually: each side gets an endpoint that is its partner. What
//! one side pushes the other pulls, through a bounded ring each way and an eventfd that wakes who waits. A
//! path's loop holds one endpoint as an ordinary passive partner; a thread holds the other and is active. With
//! a thread on both sides, both are active.

use buffers::{Ring, RingFull};
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Interest, Message, Next, Partner,
    PartnerError, Pull, PullSlot, Pulled, Pushed, Readiness,
};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use sys::event::Event;

/// The flow of an endpoint: it has one each way.
const FLOW: FlowKey = FlowKey(1);

/// One end of a joint between two partners, at least one of them active.
pub struct Endpoint {
    inbound: Ring<Message>,
    outbound: Ring<Message>,
    wake: Event,
    wake_other: Event,
    /// The other side will push nothing more.
    other_ended: Arc<AtomicBool>,
    /// This side will push nothing more.
    ended: Arc<AtomicBool>,
    /// The other side asked for where things stand.
    snapshot_asked: Arc<AtomicBool>,
    ask_snapshot: Arc<AtomicBool>,
    slot: PullSlot,
    open: bool,
}

impl Endpoint {
    /// Two endpoints, each the partner of who holds the other; `capacity` messages wait each way.
    pub fn pair(capacity: usize) -> io::Result<(Endpoint, Endpoint)> {
        let (there, back) = (Ring::new(capacity), Ring::new(capacity));
        let (wake_a, wake_b) = (Event::new()?, Event::new()?);
        let (ended_a, ended_b) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (asks_a, asks_b) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let a = Endpoint {
            inbound: back.clone(),
            outbound: there.clone(),
            wake: wake_a.clone(),
            wake_other: wake_b.clone(),
            other_ended: ended_b.clone(),
            ended: ended_a.clone(),
            snapshot_asked: asks_b.clone(),
            ask_snapshot: asks_a.clone(),
            slot: PullSlot::default(),
            open: false,
        };
        let b = Endpoint {
            inbound: there,
            outbound: back,
            wake: wake_b,
            wake_other: wake_a,
            other_ended: ended_a,
            ended: ended_b,
            snapshot_asked: asks_a,
            ask_snapshot: asks_b,
            slot: PullSlot::default(),
            open: false,
        };
        Ok((a, b))
    }

    /// Whether the other side asked for where things stand since this was last called.
    pub fn take_snapshot_asked(&self) -> bool {
        self.snapshot_asked.swap(false, Ordering::AcqRel)
    }

    fn check(&self, flow: FlowKey) -> Result<(), PartnerError> {
        match self.open && (flow == FLOW || flow == FlowKey::DEFAULT) {
            true => Ok(()),
            false => Err(PartnerError::NoFlow(flow)),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        self.wake_other.signal();
    }
}

impl Partner for Endpoint {
    fn open(&mut self, _template: &FlowTemplate, _attributes: &Attributes) -> Result<FlowKey, PartnerError> {
        self.open = true;
        Ok(FLOW)
    }

    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError> {
        self.check(flow)?;
        self.open = false;
        Ok(())
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if let Err(error) = self.check(flow) {
            return Err((error, message));
        }
        match self.outbound.push(message) {
            Ok(was_empty) => {
                if was_empty {
                    self.wake_other.signal();
                }
                Ok(Pushed::Taken)
            }
            Err(RingFull(message)) => Ok(Pushed::Full(message)),
        }
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        self.check(flow)?;
        let Endpoint { slot, inbound, wake, wake_other, other_ended, .. } = self;
        slot.answer(FLOW, want, || {
            // Taken back before the look, so that what comes after the look wakes again.
            wake.clear();
            let ended = other_ended.load(Ordering::Acquire);
            match inbound.pop() {
                Some((message, was_full)) => {
                    if was_full {
                        wake_other.signal();
                    }
                    if !inbound.is_empty() {
                        wake.signal();
                    }
                    Ok(Next::Message(message))
                }
                None if ended => Ok(Next::End),
                None => Ok(Next::Nothing),
            }
        })
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        self.check(flow)?;
        match operation {
            Ctl::Flush | Ctl::Neutral => Ok(CtlReply::Done),
            Ctl::Finish => {
                self.ended.store(true, Ordering::Release);
                self.wake_other.signal();
                Ok(CtlReply::Done)
            }
            Ctl::Snapshot => {
                self.ask_snapshot.store(true, Ordering::Release);
                self.wake_other.signal();
                Ok(CtlReply::Done)
            }
            Ctl::Report => Ok(CtlReply::Report(vec![
                ("waiting_in", self.inbound.len() as f64),
                ("waiting_out", self.outbound.len() as f64),
            ])),
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        let now = match direction {
            Direction::Out => self.slot.is_held() || !self.inbound.is_empty(),
            Direction::In => !self.outbound.is_full(),
        };
        match now {
            true => Readiness::now(),
            false => Readiness::descriptor(self.wake.as_fd(), Interest::Read),
        }
    }
}
