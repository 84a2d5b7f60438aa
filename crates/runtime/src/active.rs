//! Active partners: those that call their partner from a thread of their own (paper P, section 3.3).
//!
//! [`Endpoint::pair`] initialises two partners mutually: each side gets an endpoint that is its partner. What
//! one side pushes the other pulls, through a bounded ring each way and an eventfd that wakes who waits. A
//! path's loop holds one endpoint as an ordinary passive partner; a thread holds the other and is active. With
//! a thread on both sides, both are active.

use buffers::{Ring, RingFull};
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowClass, FlowKey, FlowTemplate, Interest, Message, Next, Partner,
    PartnerError, Pull, PullSlot, Pulled, Pushed, Readiness,
};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use sys::event::Event;

/// The flow of an endpoint: it has one each way.
const FLOW: FlowKey = FlowKey(1);

/// What crosses from one end to the other, in order.
enum Item {
    Message(Message),
    Neutral,
}

/// One way between two ends.
struct Lane {
    ring: Ring<Item>,
    /// Who pushes will push nothing more.
    ended: AtomicBool,
    /// Who pushes is no longer there.
    closed: AtomicBool,
    /// What stands behind who pushes has failed: whether it may come back, and why.
    failed: OnceLock<(bool, String)>,
    /// Who pulls wants to know where things stand.
    snapshot_asked: AtomicBool,
}

impl Lane {
    fn new(capacity: usize) -> Arc<Lane> {
        Arc::new(Lane {
            ring: Ring::new(capacity),
            ended: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            failed: OnceLock::new(),
            snapshot_asked: AtomicBool::new(false),
        })
    }

    /// Why a push the other way is of no use.
    fn failure(&self) -> Option<PartnerError> {
        match self.failed.get() {
            Some((true, what)) => Some(PartnerError::Gone(what.clone())),
            Some((false, what)) => {
                Some(PartnerError::os("what stands behind it", io::Error::other(what.clone())))
            }
            None => None,
        }
    }
}

/// What the other side did next.
#[derive(Debug)]
pub enum Taken {
    /// It pushed a message.
    Message(Message),
    /// It asked for the neutral state; what it pushed before is void, unless the flow is reliable.
    Neutral,
    /// Nothing now.
    Nothing,
    /// It pushes nothing more.
    End,
}

/// One end of a joint between two partners, at least one of them active.
pub struct Endpoint {
    inbound: Arc<Lane>,
    outbound: Arc<Lane>,
    wake: Event,
    wake_other: Event,
    slot: PullSlot,
    /// What the flow that is pushed promises.
    class: FlowClass,
    open: bool,
    /// It was told that the other side pushes nothing more.
    end_told: bool,
}

impl Endpoint {
    /// Two endpoints, each the partner of who holds the other; `capacity` messages wait each way.
    pub fn pair(capacity: usize) -> io::Result<(Endpoint, Endpoint)> {
        let (there, back) = (Lane::new(capacity), Lane::new(capacity));
        let (wake_a, wake_b) = (Event::new()?, Event::new()?);
        let end = |inbound: &Arc<Lane>, outbound: &Arc<Lane>, wake: &Event, wake_other: &Event| Endpoint {
            inbound: inbound.clone(),
            outbound: outbound.clone(),
            wake: wake.clone(),
            wake_other: wake_other.clone(),
            slot: PullSlot::default(),
            class: FlowClass::Reliable,
            open: false,
            end_told: false,
        };
        Ok((end(&back, &there, &wake_a, &wake_b), end(&there, &back, &wake_b, &wake_a)))
    }

    /// Whether the other side asked for where things stand since this was last called.
    pub fn take_snapshot_asked(&self) -> bool {
        self.outbound.snapshot_asked.swap(false, Ordering::AcqRel)
    }

    /// Whether the other side let go of its end.
    pub fn is_other_closed(&self) -> bool {
        self.inbound.closed.load(Ordering::Acquire)
    }

    /// Whether a push would find no room.
    pub fn is_full(&self) -> bool {
        self.outbound.ring.is_full()
    }

    /// What the other side did next, in the order in which it did it.
    pub fn take(&mut self) -> Taken {
        match self.inbound.ring.pop() {
            Some(popped) => self.taken(popped),
            None => {
                // Taken back before the look, so that what comes after the look wakes again.
                self.wake.clear();
                let ended = self.inbound.ended.load(Ordering::Acquire);
                match self.inbound.ring.pop() {
                    Some(popped) => self.taken(popped),
                    None if ended => {
                        self.end_told = true;
                        Taken::End
                    }
                    None => Taken::Nothing,
                }
            }
        }
    }

    fn taken(&self, (item, was_full): (Item, bool)) -> Taken {
        if was_full {
            self.wake_other.signal();
        }
        match item {
            Item::Message(message) => Taken::Message(message),
            Item::Neutral => Taken::Neutral,
        }
    }

    /// Pushes a message; where there is no room, the oldest that waits makes some and comes back.
    pub fn push_over_oldest(&mut self, message: Message) -> Option<Message> {
        let mut item = Item::Message(message);
        let mut oldest = None;
        loop {
            match self.outbound.ring.push(item) {
                Ok(was_empty) => {
                    if was_empty {
                        self.wake_other.signal();
                    }
                    return oldest;
                }
                Err(RingFull(back)) => {
                    item = back;
                    if let Some((Item::Message(popped), _)) = self.outbound.ring.pop() {
                        oldest = Some(popped);
                    }
                }
            }
        }
    }

    /// What stands behind this end has failed: the other side finds that out once it has pulled everything.
    pub fn fail(&mut self, is_gone: bool, what: &str) {
        // The first reason is the one that counts.
        let _ = self.outbound.failed.set((is_gone, what.into()));
        self.wake_other.signal();
    }

    fn go_neutral(&mut self) {
        // Who has said the end counts on what came before it.
        if self.outbound.ended.load(Ordering::Acquire) {
            return;
        }
        if self.class != FlowClass::Reliable {
            while self.outbound.ring.pop().is_some() {}
        }
        // A reliable flow that finds no room here goes neutral when its end closes.
        if self.outbound.ring.push(Item::Neutral).is_ok() {
            self.wake_other.signal();
        }
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
        self.outbound.ended.store(true, Ordering::Release);
        self.outbound.closed.store(true, Ordering::Release);
        self.wake_other.signal();
    }
}

impl Partner for Endpoint {
    fn open(&mut self, template: &FlowTemplate, _attributes: &Attributes) -> Result<FlowKey, PartnerError> {
        self.open = true;
        if template.direction == Direction::In {
            self.class = template.class;
        }
        Ok(FLOW)
    }

    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError> {
        self.check(flow)?;
        self.open = false;
        Ok(())
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if let Some(error) = self.check(flow).err().or_else(|| self.inbound.failure()) {
            return Err((error, message));
        }
        if self.is_other_closed() {
            return Err((PartnerError::Gone("the other end".into()), message));
        }
        let pushed = self.outbound.ring.push(Item::Message(message)).or_else(|RingFull(item)| {
            // Taken back before the second try, so that room made after it wakes again.
            self.wake.clear();
            self.outbound.ring.push(item)
        });
        match pushed {
            Ok(was_empty) => {
                if was_empty {
                    self.wake_other.signal();
                }
                Ok(Pushed::Taken)
            }
            Err(RingFull(Item::Message(message))) => Ok(Pushed::Full(message)),
            Err(RingFull(Item::Neutral)) => unreachable!("a message was pushed"),
        }
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        self.check(flow)?;
        let mut slot = std::mem::take(&mut self.slot);
        let answer = slot.answer(FLOW, want, || {
            loop {
                match self.take() {
                    Taken::Message(message) => break Ok(Next::Message(message)),
                    Taken::Neutral => {}
                    Taken::Nothing => break self.inbound.failure().map_or(Ok(Next::Nothing), Err),
                    Taken::End => break self.inbound.failure().map_or(Ok(Next::End), Err),
                }
            }
        });
        self.slot = slot;
        answer
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        self.check(flow)?;
        match operation {
            Ctl::Flush => Ok(CtlReply::Done),
            Ctl::Neutral => {
                self.go_neutral();
                Ok(CtlReply::Done)
            }
            Ctl::Finish => {
                self.outbound.ended.store(true, Ordering::Release);
                self.wake_other.signal();
                Ok(CtlReply::Done)
            }
            Ctl::Snapshot => {
                self.inbound.snapshot_asked.store(true, Ordering::Release);
                self.wake_other.signal();
                Ok(CtlReply::Done)
            }
            Ctl::Report => Ok(CtlReply::Report(vec![
                ("waiting_in", self.inbound.ring.len() as f64),
                ("waiting_out", self.outbound.ring.len() as f64),
            ])),
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        let is_ready = match direction {
            Direction::Out => {
                self.slot.is_held()
                    || !self.inbound.ring.is_empty()
                    || self.inbound.failed.get().is_some()
                    || self.outbound.snapshot_asked.load(Ordering::Acquire)
                    || !self.end_told && self.inbound.ended.load(Ordering::Acquire)
            }
            Direction::In => !self.outbound.ring.is_full() || self.inbound.failed.get().is_some(),
        };
        // The descriptor is named even so: who lets go of this end must have its poller forget it.
        Readiness { now: is_ready, ..Readiness::descriptor(self.wake.as_fd(), Interest::Read) }
    }
}
