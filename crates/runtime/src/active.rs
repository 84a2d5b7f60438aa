//! Active partners: those that call their partner from a thread of their own (paper P, section 3.3).
//!
//! [`Endpoint::pair`] initialises two partners mutually: each side gets an endpoint that is its partner. What
//! one side pushes the other pulls, through a bounded [`lane`] each way and a [`Bell`] that wakes who waits. A
//! path's loop holds one endpoint as an ordinary passive partner; a thread holds the other and is active. With
//! a thread on both sides, both are active.
//!
//! The two may be in different processes: a path of a junction runs in a locked worker, the junction in the broker. They
//! share the memory of their own two lanes and nothing else, and neither relies on what the other writes there.

mod lane;
#[cfg(test)]
mod tests;

use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowClass, FlowKey, FlowTemplate, Interest, Message, Next, Partner,
    PartnerError, Pull, PullSlot, Pulled, Pushed, Readiness,
};
use lane::{CAPACITY_MAX, Consumer, Item, Lane, Producer};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use sys::memory::{Access, Shared};
use wire::BODY_BYTES_MAX;

/// Signals that are taken back at once; should there be more, they wake once more.
const SIGNALS_MAX: usize = 64;
/// Why a message is refused.
const TOO_LONG: &str = "it is longer than any may be";
/// The flow of an endpoint: it has one each way.
const FLOW: FlowKey = FlowKey(1);

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

/// How one end wakes the other: a pair of sockets, of which each end has one. Unlike an eventfd, nobody shares its state: who
/// has the other cannot have a call here wait.
#[derive(Debug)]
struct Bell(OwnedFd);

impl Bell {
    fn pair() -> io::Result<[Bell; 2]> {
        // Datagrams: a socket whose other is gone is as quiet as one of which nothing is wanted.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        Ok([Bell(a), Bell(b)])
    }

    fn signal(&self) {
        // One whose queue is full was signalled enough.
        let _ = send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    fn clear(&self) {
        for _ in 0..SIGNALS_MAX {
            if recv(&self.0, &mut [0; 1], RecvFlags::DONTWAIT).is_err() {
                break;
            }
        }
    }
}

/// The other end before anybody holds it, or after its process was killed: what may be handed to another process, which
/// goes on where the end before it stood.
#[derive(Debug)]
pub struct FarEnd {
    /// The memory of both lanes.
    pub(crate) memory: OwnedFd,
    /// Its half of the bell.
    pub(crate) bell: OwnedFd,
    /// Messages that wait each way.
    pub(crate) capacity: u32,
}

impl FarEnd {
    /// The same end: only one may be taken up at a time.
    pub fn try_clone(&self) -> io::Result<FarEnd> {
        let FarEnd { memory, bell, capacity } = self;
        Ok(FarEnd { memory: memory.try_clone()?, bell: bell.try_clone()?, capacity: *capacity })
    }

    /// Begins to be that end.
    pub fn take_up(self) -> io::Result<Endpoint> {
        Endpoint::new(self.memory, Bell(self.bell), self.capacity as usize, [1, 0])
    }
}

/// One end of a joint between two partners, at least one of them active.
pub struct Endpoint {
    inbound: Consumer,
    outbound: Producer,
    bell: Bell,
    slot: PullSlot,
    /// What the flow that is pushed promises.
    class: FlowClass,
    open: bool,
    /// It was told that the other side pushes nothing more.
    end_told: bool,
}

impl Endpoint {
    /// Two ends, each the partner of who holds the other; `capacity` messages wait each way.
    pub fn pair(capacity: usize) -> io::Result<(Endpoint, FarEnd)> {
        let capacity = capacity.clamp(1, CAPACITY_MAX);
        let memory = sys::memory::create("way", 2 * Lane::bytes(capacity))?;
        let [ours, theirs] = Bell::pair()?;
        let far = FarEnd { memory: memory.try_clone()?, bell: theirs.0, capacity: capacity as u32 };
        Ok((Endpoint::new(memory, ours, capacity, [0, 1])?, far))
    }

    fn new(memory: OwnedFd, bell: Bell, capacity: usize, lanes: [usize; 2]) -> io::Result<Endpoint> {
        let shared = Arc::new(Shared::map(&memory, Access::Write)?);
        let [there, back] = lanes.map(|index| Lane::new(&shared, index, capacity));
        Ok(Endpoint {
            inbound: Consumer::new(back?),
            outbound: Producer::new(there?, memory),
            bell,
            slot: PullSlot::default(),
            class: FlowClass::Reliable,
            open: false,
            end_told: false,
        })
    }

    /// Whether the other side asked for where things stand since this was last called.
    pub fn take_snapshot_asked(&self) -> bool {
        self.outbound.lane.take_snapshot_asked()
    }

    /// Whether the other side let go of its end, or of the rules.
    pub fn is_other_closed(&self) -> bool {
        self.inbound.lane.is_closed() || self.inbound.is_broken() || self.outbound.is_broken()
    }

    /// Whether a push would find no room.
    pub fn is_full(&self) -> bool {
        self.outbound.is_full()
    }

    /// What the other side did next, in the order in which it did it.
    pub fn take(&mut self) -> Taken {
        match self.inbound.pop() {
            Some(popped) => self.taken(popped),
            None => {
                // Taken back before the look, so that what comes after the look wakes again.
                self.bell.clear();
                let ended = self.inbound.lane.has_ended();
                match self.inbound.pop() {
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

    fn taken(&self, (item, waits_for_room): (Item, bool)) -> Taken {
        if waits_for_room {
            self.bell.signal();
        }
        match item {
            Item::Message(message) => Taken::Message(message),
            Item::Neutral => Taken::Neutral,
        }
    }

    /// Pushes a message; where there is no room, the oldest that wait make some. How many messages did.
    pub fn push_over_oldest(&mut self, message: Message) -> u64 {
        if message.body.len() > BODY_BYTES_MAX {
            return 1;
        }
        let mut item = Item::Message(message);
        let mut dropped = 0;
        loop {
            match self.outbound.push(item) {
                Ok(may_sleep) => {
                    if may_sleep {
                        self.bell.signal();
                    }
                    return dropped;
                }
                Err(back) => {
                    item = back;
                    match self.outbound.take_back() {
                        Some(was_message) => dropped += u64::from(was_message),
                        // Nothing waits, or whoever reads broke the rules: there is no room for this one.
                        None => return dropped + 1,
                    }
                }
            }
        }
    }

    /// What stands behind this end has failed: the other side finds that out once it has pulled everything.
    pub fn fail(&mut self, is_gone: bool, what: &str) {
        self.outbound.lane.fail(is_gone, what);
        self.bell.signal();
    }

    fn go_neutral(&mut self) {
        // Who has said the end counts on what came before it.
        if self.outbound.lane.has_ended() {
            return;
        }
        if self.class != FlowClass::Reliable {
            while self.outbound.take_back().is_some() {}
        }
        // A reliable flow that finds no room here goes neutral when its end closes.
        if self.outbound.push(Item::Neutral).is_ok() {
            self.bell.signal();
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
    /// The end of a worker that dies of an error of its own is taken up by the next.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.outbound.lane.end();
            self.outbound.lane.close();
            self.bell.signal();
        }
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
        if let Some(error) = self.check(flow).err().or_else(|| self.inbound.lane.failure()) {
            return Err((error, message));
        }
        if self.is_other_closed() {
            return Err((PartnerError::Gone("the other end".into()), message));
        }
        if message.body.len() > BODY_BYTES_MAX {
            return Err((PartnerError::Message(TOO_LONG.into()), message));
        }
        let pushed = self.outbound.push(Item::Message(message)).or_else(|item| {
            // Taken back before the second try, so that room made after it wakes again.
            self.bell.clear();
            self.outbound.push(item)
        });
        match pushed {
            Ok(may_sleep) => {
                if may_sleep {
                    self.bell.signal();
                }
                Ok(Pushed::Taken)
            }
            Err(Item::Message(message)) => Ok(Pushed::Full(message)),
            Err(Item::Neutral) => unreachable!("a message was pushed"),
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
                    Taken::Nothing => break self.inbound.lane.failure().map_or(Ok(Next::Nothing), Err),
                    Taken::End => break self.inbound.lane.failure().map_or(Ok(Next::End), Err),
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
                self.outbound.lane.end();
                self.bell.signal();
                Ok(CtlReply::Done)
            }
            Ctl::Snapshot => {
                self.inbound.lane.ask_snapshot();
                self.bell.signal();
                Ok(CtlReply::Done)
            }
            Ctl::Report => Ok(CtlReply::Report(vec![
                ("waiting_in", self.inbound.lane.len() as f64),
                ("waiting_out", self.outbound.lane.len() as f64),
            ])),
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        let is_ready = match direction {
            Direction::Out => {
                self.slot.is_held()
                    || !self.inbound.is_empty()
                    || self.inbound.lane.has_failed()
                    || self.outbound.lane.is_snapshot_asked()
                    || !self.end_told && self.inbound.lane.has_ended()
            }
            Direction::In => !self.outbound.is_full() || self.inbound.lane.has_failed(),
        };
        // The descriptor is named even so: who lets go of this end must have its poller forget it.
        Readiness { now: is_ready, ..Readiness::descriptor(self.bell.0.as_fd(), Interest::Read) }
    }
}
