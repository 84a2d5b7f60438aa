//! Active partners: partners that call their partner from their own thread ("The Partner architecture
//! (2002)", section 3.3).
//!
//! [`Endpoint::pair`] initialises two partners mutually: each side gets an endpoint that is its partner.
//! Messages pushed on one side are pulled on the other, through a bounded ring in each direction; an
//! [`EndpointWakeup`] wakes a side that waits. A path's loop holds one endpoint as a passive partner; a
//! thread holds the other and is active. With a thread on both sides, both are active.
//!
//! The two sides may be in different processes: the paths of a junction run in sandboxed workers, the
//! junction in the broker. They share only the memory of their two rings, and neither trusts the other's
//! content.

mod ring;
#[cfg(test)]
mod tests;

use contract::{
    Attributes, Ctl, CtlReply, Direction, Fill, FlowClass, FlowKey, FlowTemplate, Interest, Message, Next,
    Partner, PartnerError, PartnerResult, Presence, Pull, PullSlot, Pulled, Pushed, Readiness,
};
pub use ring::Failure;
use ring::{CAPACITY_MAX, Consumer, EndpointRing, Item, Producer};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use sys::memory::{Access, Shared};
use wire::BODY_BYTES_MAX;

/// Limit of wakeups that are cleared at once; more of them cause one extra wakeup.
const SIGNALS_MAX: usize = 64;
/// Error text for a message above the size limit.
const TOO_LONG: &str = "it is larger than a record";
/// The flow of an endpoint, one in each direction.
const FLOW: FlowKey = FlowKey(1);

/// The next item from the other side.
#[derive(Debug)]
pub enum Incoming {
    /// It pushed a message.
    Message(Message),
    /// A request for the neutral state. It voids the earlier messages of an unreliable flow.
    Neutral,
    /// Nothing is available now.
    Nothing,
    /// The flow has ended, or the partner behind it failed.
    End,
}

/// Wakes the other end: one of two connected sockets. The ends share no state, unlike those of an
/// eventfd, so the other process cannot block a call here.
#[derive(Debug)]
struct EndpointWakeup(OwnedFd);

impl EndpointWakeup {
    fn pair() -> io::Result<[EndpointWakeup; 2]> {
        // Datagram sockets: unlike a stream socket, one without a peer reports no events.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        Ok([EndpointWakeup(a), EndpointWakeup(b)])
    }

    fn signal(&self) {
        // A full queue already wakes the other end.
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

/// The far end before it is opened, or after its process was killed. It can be passed to another
/// process, which continues from the state in memory.
#[derive(Debug)]
pub struct FarEnd {
    /// The memory of both rings.
    pub memory: OwnedFd,
    /// Its socket of the wakeup.
    pub wakeup: OwnedFd,
    /// Limit of messages that wait in each direction.
    pub capacity: u32,
}

impl FarEnd {
    /// Duplicates the descriptors. Only one copy may be open at a time.
    pub fn try_clone(&self) -> io::Result<FarEnd> {
        let FarEnd { memory, wakeup, capacity } = self;
        Ok(FarEnd { memory: memory.try_clone()?, wakeup: wakeup.try_clone()?, capacity: *capacity })
    }

    /// Opens the far end.
    pub fn open(self) -> io::Result<Endpoint> {
        Endpoint::new(self.memory, EndpointWakeup(self.wakeup), self.capacity as usize, [1, 0])
    }
}

/// One end of a connection between two partners, at least one of which is active.
pub struct Endpoint {
    inbound: Consumer,
    outbound: Producer,
    wakeup: EndpointWakeup,
    slot: PullSlot,
    /// The class of the flow that is pushed.
    class: FlowClass,
    is_open: bool,
    /// The end or the failure of the other side's flow was reported.
    end_reported: bool,
    /// The other side's device was last returned as absent.
    is_absent: bool,
}

impl Endpoint {
    /// Creates two connected ends; `capacity` messages wait in each direction.
    pub fn pair(capacity: usize) -> io::Result<(Endpoint, FarEnd)> {
        let capacity = capacity.clamp(1, CAPACITY_MAX);
        let memory = sys::memory::create("outboard-endpoint", 2 * EndpointRing::bytes(capacity))?;
        let [ours, theirs] = EndpointWakeup::pair()?;
        let far = FarEnd { memory: memory.try_clone()?, wakeup: theirs.0, capacity: capacity as u32 };
        Ok((Endpoint::new(memory, ours, capacity, [0, 1])?, far))
    }

    fn new(
        memory: OwnedFd,
        wakeup: EndpointWakeup,
        capacity: usize,
        rings: [usize; 2],
    ) -> io::Result<Endpoint> {
        let shared = Arc::new(Shared::map(&memory, Access::Write)?);
        let [outbound, inbound] = rings.map(|index| EndpointRing::new(&shared, index, capacity));
        Ok(Endpoint {
            inbound: Consumer::new(inbound?),
            outbound: Producer::new(outbound?, memory),
            wakeup,
            slot: PullSlot::default(),
            class: FlowClass::Reliable,
            is_open: false,
            end_reported: false,
            is_absent: false,
        })
    }

    /// Returns true if the other side requested a snapshot since the last call.
    pub fn take_snapshot_request(&self) -> bool {
        self.outbound.ring.take_snapshot_request()
    }

    /// Reports how much of the sound from the other side the partner here holds. The other side returns it once for [`Ctl::Fill`].
    pub fn report_fill(&self, fill: Fill) {
        self.inbound.ring.report_fill(fill);
    }

    /// Returns true if the other side closed its end, failed or corrupted the memory.
    pub fn is_other_closed(&self) -> bool {
        let ring = &self.inbound.ring;
        ring.is_closed() || ring.has_failed() || self.inbound.is_broken() || self.outbound.is_broken()
    }

    /// Returns true if there is no room for a message.
    pub fn is_full(&self) -> bool {
        self.outbound.is_full()
    }

    /// Returns true if the other side has taken every item. If not, it wakes this side when it takes the next one.
    pub fn is_drained(&self) -> bool {
        self.outbound.ring.request_room();
        self.outbound.ring.len() == 0
    }

    /// Returns the next item from the other side, in order.
    pub fn receive(&mut self) -> Incoming {
        match self.inbound.pop() {
            Some(popped) => self.incoming(popped),
            None => {
                // Clear before the check, so that an item that arrives after it wakes again.
                self.wakeup.clear();
                let ended = self.has_other_ended();
                match self.inbound.pop() {
                    Some(popped) => self.incoming(popped),
                    None if ended => {
                        self.end_reported = true;
                        Incoming::End
                    }
                    None => Incoming::Nothing,
                }
            }
        }
    }

    fn has_other_ended(&self) -> bool {
        self.inbound.ring.has_ended() || self.inbound.ring.has_failed()
    }

    fn incoming(&self, (item, waits_for_room): (Item, bool)) -> Incoming {
        if waits_for_room {
            self.wakeup.signal();
        }
        match item {
            Item::Message(message) => Incoming::Message(message),
            Item::Neutral => Incoming::Neutral,
        }
    }

    /// Pushes a message. If there is no room, drops the oldest waiting ones; returns the number of
    /// drops.
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
                        self.wakeup.signal();
                    }
                    return dropped;
                }
                Err(back) => {
                    item = back;
                    match self.outbound.discard_oldest() {
                        Some(was_message) => dropped += u64::from(was_message),
                        // Nothing waits to be dropped, or the reader corrupted the memory: this message
                        // has no room.
                        None => return dropped + 1,
                    }
                }
            }
        }
    }

    /// Reports a failure behind this end. The other side sees it after all earlier messages.
    pub fn fail(&mut self, failure: Failure, reason: &str) {
        self.outbound.ring.fail(failure, reason);
        self.wakeup.signal();
    }

    /// Reports that the device behind this end is absent for this reason, or present. The other side learns the newest report.
    pub fn report_absence(&mut self, reason: Option<&str>) {
        self.outbound.ring.report_absence(reason);
        self.wakeup.signal();
    }

    fn go_neutral(&mut self) {
        // After the end of the flow, earlier messages must stay.
        if self.outbound.ring.has_ended() {
            return;
        }
        if self.class != FlowClass::Reliable {
            while self.outbound.discard_oldest().is_some() {}
        }
        // If a reliable flow has no room here, it goes neutral when its end closes.
        if self.outbound.push(Item::Neutral).is_ok() {
            self.wakeup.signal();
        }
    }

    fn check(&self, flow: FlowKey) -> PartnerResult {
        match self.is_open && (flow == FLOW || flow == FlowKey::DEFAULT) {
            true => Ok(()),
            false => Err(PartnerError::NoFlow(flow)),
        }
    }
}

impl Drop for Endpoint {
    /// A panicking worker leaves its end open: the next worker opens it again.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.outbound.ring.end();
            self.outbound.ring.close();
            self.wakeup.signal();
        }
    }
}

impl Partner for Endpoint {
    fn open(&mut self, template: &FlowTemplate, _attributes: &Attributes) -> PartnerResult<FlowKey> {
        self.is_open = true;
        if template.direction == Direction::In {
            self.class = template.class;
        }
        Ok(FLOW)
    }

    fn close(&mut self, flow: FlowKey) -> PartnerResult {
        self.check(flow)?;
        self.is_open = false;
        Ok(())
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if let Some(error) = self.check(flow).err().or_else(|| self.inbound.ring.failure()) {
            return Err((error, message));
        }
        if self.is_other_closed() {
            return Err((PartnerError::Gone("the other end".into()), message));
        }
        if message.body.len() > BODY_BYTES_MAX {
            return Err((PartnerError::Message(TOO_LONG.into()), message));
        }
        let pushed = self.outbound.push(Item::Message(message)).or_else(|item| {
            // Clear before the second try, so that room made after it wakes again.
            self.wakeup.clear();
            self.outbound.push(item)
        });
        match pushed {
            Ok(may_sleep) => {
                if may_sleep {
                    self.wakeup.signal();
                }
                Ok(Pushed::Taken)
            }
            Err(Item::Message(message)) => Ok(Pushed::Full(message)),
            Err(Item::Neutral) => unreachable!("a message was pushed"),
        }
    }

    fn pull(&mut self, flow: FlowKey, pull: Pull<'_>) -> PartnerResult<Pulled> {
        self.check(flow)?;
        let mut slot = std::mem::take(&mut self.slot);
        let answer = slot.answer(FLOW, pull, || {
            loop {
                match self.receive() {
                    Incoming::Message(message) => break Ok(Next::Message(message)),
                    Incoming::Neutral => {}
                    Incoming::Nothing => break Ok(Next::Nothing),
                    Incoming::End => break self.inbound.ring.failure().map_or(Ok(Next::End), Err),
                }
            }
        });
        self.slot = slot;
        answer
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        self.check(flow)?;
        match operation {
            Ctl::Flush => Ok(CtlReply::Done),
            Ctl::Neutral => {
                self.go_neutral();
                Ok(CtlReply::Done)
            }
            Ctl::Finish => {
                self.outbound.ring.end();
                self.wakeup.signal();
                Ok(CtlReply::Done)
            }
            Ctl::Snapshot => {
                self.inbound.ring.request_snapshot();
                self.wakeup.signal();
                Ok(CtlReply::Done)
            }
            Ctl::Fill => match self.outbound.ring.take_fill() {
                Some(fill) => Ok(CtlReply::Fill(fill)),
                None => Err(PartnerError::Unsupported("a fill before the other side has reported one")),
            },
            Ctl::Report => Ok(CtlReply::Report(vec![
                ("waiting_in", self.inbound.ring.len() as f64),
                ("waiting_out", self.outbound.ring.len() as f64),
            ])),
            // The application's node is behind the joint, whose thread takes messages alone.
            Ctl::Command(_) => Err(PartnerError::Message(
                "it is joined with other devices, and its settings cannot change while they are attached: give them to \
                 its application, such as --as pipewire:NAME,set=brightness=128"
                    .into(),
            )),
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        let is_ready = match direction {
            Direction::Out => {
                self.slot.is_held()
                    || !self.inbound.is_empty()
                    || self.outbound.ring.is_snapshot_requested()
                    || !self.end_reported && self.has_other_ended()
            }
            Direction::In => !self.outbound.is_full() || self.inbound.ring.has_failed(),
        };
        // Name the descriptor in any case, so that the poller can forget it when this end closes.
        Readiness { now: is_ready, ..Readiness::descriptor(self.wakeup.0.as_fd(), Interest::Read) }
    }

    fn presence(&mut self) -> Option<Presence> {
        let absence = self.inbound.ring.absence();
        if absence.is_some() == self.is_absent {
            return None;
        }
        self.is_absent = absence.is_some();
        Some(absence.map_or(Presence::Present, Presence::Absent))
    }
}
