//! The application side: a node made with `uinput` as a partner. Frames and snapshots are pushed into it; lights, sounds
//! and effects of applications are pulled out of it.
//!
//! An application that uploads an effect blocks in the kernel until this process replies. For devices with effects the
//! partner therefore has a thread that replies at once, whatever the path is doing.

use super::node::Node;
use super::properties::Properties;
use crate::flows::{Endpoint, FlowPartner, OUT, invalid};
use contract::{
    Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Interest, Message, Next, PartnerError,
    PartnerResult, PullSlot, Readiness, Time,
};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use sys::event::Event;
use sys::poller::Poller;
use wire::formats::evdev::Update;

/// A node as a partner.
pub(super) struct NodePartner {
    descriptor: Arc<OwnedFd>,
    node: Arc<Mutex<Node>>,
    responder: Option<Responder>,
}

/// The thread that replies to applications.
struct Responder {
    thread: Option<JoinHandle<()>>,
    stop: Event,
    /// Signalled when the thread has queued messages for the path.
    queued: Event,
}

impl NodePartner {
    /// Creates a partner on an existing, non-blocking node.
    pub(super) fn new(descriptor: OwnedFd, properties: Properties) -> io::Result<FlowPartner<Self>> {
        let descriptor = Arc::new(descriptor);
        let out = properties.has_feedback().then_some(Format::Evdev);
        let has_effects = properties.effects_max > 0;
        let node = Arc::new(Mutex::new(Node::new(descriptor.clone(), properties)?));
        let responder = match has_effects {
            true => Some(Responder::start(descriptor.clone(), node.clone())?),
            false => None,
        };
        let partner = NodePartner { descriptor, node, responder };
        Ok(FlowPartner::new(partner, out, Some(Format::Evdev)))
    }

    /// Drops all messages that were not pulled.
    fn drop_queue(&self, slot: &mut PullSlot) {
        lock(&self.node).drop_queue(slot.is_held().into());
        *slot = PullSlot::default();
    }

    fn failed(&self, operation: &str, error: io::Error) -> PartnerError {
        let name = format!("the node of {}", lock(&self.node).name());
        match error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) {
            true => PartnerError::Gone(name),
            false => PartnerError::os(format!("{operation} {name}"), error),
        }
    }
}

/// Ignores poisoning: a panic leaves the node usable, because its real state is in the kernel.
fn lock(node: &Mutex<Node>) -> MutexGuard<'_, Node> {
    node.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Responder {
    fn start(descriptor: Arc<OwnedFd>, node: Arc<Mutex<Node>>) -> io::Result<Responder> {
        let (stop, queued, poller) = (Event::new()?, Event::new()?, Poller::new()?);
        let (thread_stop, thread_queued) = (stop.clone(), queued.clone());
        let thread = std::thread::Builder::new()
            .name("uinput".into())
            .spawn(move || respond(poller, &descriptor, &node, &thread_stop, &thread_queued))?;
        Ok(Responder { thread: Some(thread), stop, queued })
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Body of the responder's thread.
fn respond(mut poller: Poller, descriptor: &OwnedFd, node: &Mutex<Node>, stop: &Event, queued: &Event) {
    loop {
        poller.register(stop.as_fd(), true, false);
        poller.register(descriptor.as_fd(), true, false);
        if poller.wait(None).is_err() || stop.clear() {
            return;
        }
        let mut node = lock(node);
        // The next call on the path reports the error.
        if node.read_requests().is_err() {
            return;
        }
        if node.has_next() {
            queued.signal();
        }
    }
}

impl Endpoint for NodePartner {
    fn opened(&mut self, template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        if template.direction == Direction::Out {
            let mut node = lock(&self.node);
            node.is_feedback_open = true;
            node.request_snapshot();
        }
        Ok(())
    }

    fn closed(&mut self, direction: Direction, slot: &mut PullSlot) -> PartnerResult {
        if direction == Direction::Out {
            self.drop_queue(slot);
            lock(&self.node).is_feedback_open = false;
        }
        Ok(())
    }

    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        let update = Update::parse(message.body.as_slice()).map_err(invalid)?;
        let applied = lock(&self.node).apply(update);
        applied.map(|()| true).map_err(|error| self.failed("writing to", error))
    }

    fn next(&mut self, _now: Time) -> PartnerResult<Next> {
        if let Some(responder) = &self.responder {
            // Clearing before the queue is read keeps later signals.
            responder.queued.clear();
        }
        let next = lock(&self.node).next();
        let next = next.map_err(|error| self.failed("reading", error))?;
        Ok(next.map_or(Next::Nothing, Next::Message))
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>, slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish => Ok(CtlReply::Done),
            Ctl::Snapshot => {
                self.drop_queue(slot);
                lock(&self.node).request_snapshot();
                Ok(CtlReply::Done)
            }
            Ctl::Neutral if flow == OUT => Ok(CtlReply::Done),
            Ctl::Neutral => {
                let result = lock(&self.node).go_neutral();
                result.map(|()| CtlReply::Done).map_err(|error| self.failed("writing to", error))
            }
            Ctl::IsNeutral => {
                let node = lock(&self.node);
                let is_neutral = if flow == OUT { node.is_feedback_neutral() } else { node.is_neutral() };
                Ok(CtlReply::Count(is_neutral.into()))
            }
            Ctl::Report => Ok(CtlReply::Report(lock(&self.node).report())),
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        match (direction, &self.responder) {
            (Direction::In, _) => Readiness::now(),
            (Direction::Out, _) if lock(&self.node).has_next() => Readiness::now(),
            (Direction::Out, Some(responder)) => {
                Readiness::descriptor(responder.queued.as_fd(), Interest::Read)
            }
            (Direction::Out, None) => Readiness::descriptor(self.descriptor.as_fd(), Interest::Read),
        }
    }
}
