//! The application's side: a node made with `uinput` as a partner. Into it go frames and snapshots; out of
//! it come the lights, sounds and effects that applications ask of it.
//!
//! An application that uploads an effect waits in the kernel for an answer. Where the device has effects, a
//! thread of the partner's own gives it, whatever the path is doing: it never waits for the network.

use super::node::Node;
use super::properties::Properties;
use crate::flows::{Flows, OUT};
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Interest, Message, Next, Partner,
    PartnerError, Pull, PullSlot, Pulled, Pushed, Readiness,
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
    flows: Flows,
    slot: PullSlot,
    answering: Option<Answering>,
}

/// The thread that answers applications.
struct Answering {
    thread: Option<JoinHandle<()>>,
    stop: Event,
    /// Something was queued for the path.
    news: Event,
}

impl NodePartner {
    /// A partner on a node that exists, opened without blocking.
    pub(super) fn new(descriptor: OwnedFd, properties: Properties) -> io::Result<Self> {
        let descriptor = Arc::new(descriptor);
        let flows = Flows::new(properties.has_feedback(), true);
        let has_effects = properties.effects_max > 0;
        let node = Arc::new(Mutex::new(Node::new(descriptor.clone(), properties)?));
        let answering = match has_effects {
            true => Some(Answering::start(descriptor.clone(), node.clone())?),
            false => None,
        };
        Ok(NodePartner { descriptor, node, flows, slot: PullSlot::default(), answering })
    }

    /// Drops what waits to be pulled.
    fn forget(&mut self) {
        lock(&self.node).forget(self.slot.is_held().into());
        self.slot = PullSlot::default();
    }

    fn failed(&self, operation: &str, error: io::Error) -> PartnerError {
        let name = format!("the node of {}", lock(&self.node).name());
        match error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) {
            true => PartnerError::Gone(name),
            false => PartnerError::os(format!("{operation} {name}"), error),
        }
    }
}

/// A thread that panicked left the node as consistent as the kernel has it.
fn lock(node: &Mutex<Node>) -> MutexGuard<'_, Node> {
    node.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Answering {
    fn start(descriptor: Arc<OwnedFd>, node: Arc<Mutex<Node>>) -> io::Result<Answering> {
        let (stop, news, poller) = (Event::new()?, Event::new()?, Poller::new()?);
        let (stopped, queued) = (stop.clone(), news.clone());
        let thread = std::thread::Builder::new()
            .name("uinput".into())
            .spawn(move || answer(poller, &descriptor, &node, &stopped, &queued))?;
        Ok(Answering { thread: Some(thread), stop, news })
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(mut poller: Poller, descriptor: &OwnedFd, node: &Mutex<Node>, stop: &Event, news: &Event) {
    loop {
        poller.want(stop.as_fd(), true, false);
        poller.want(descriptor.as_fd(), true, false);
        if poller.wait(None).is_err() || stop.clear() {
            return;
        }
        let mut node = lock(node);
        // The path finds out for itself that the node is gone.
        if node.listen().is_err() {
            return;
        }
        if node.has_next() {
            news.signal();
        }
    }
}

impl Partner for NodePartner {
    fn open(&mut self, template: &FlowTemplate, _: &Attributes) -> Result<FlowKey, PartnerError> {
        let flow = self.flows.open(template, &Format::Evdev)?;
        if template.direction == Direction::Out {
            let mut node = lock(&self.node);
            node.is_heard = true;
            node.want_snapshot();
        }
        Ok(flow)
    }

    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError> {
        if self.flows.close(flow)? == Direction::Out {
            self.forget();
            lock(&self.node).is_heard = false;
        }
        Ok(())
    }

    fn push(&mut self, flow: FlowKey, mut message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if let Err(error) = self.flows.check(flow, Direction::In) {
            return Err((error, message));
        }
        let update = match Update::parse(message.body.as_slice()) {
            Ok(update) => update,
            Err(error) => return Err((PartnerError::Message(error.to_string()), message)),
        };
        let taken = lock(&self.node).take(update);
        match taken {
            Ok(()) => Ok(Pushed::Taken),
            Err(error) => Err((self.failed("writing to", error), message)),
        }
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        self.flows.check(flow, Direction::Out)?;
        if let Some(answering) = &self.answering {
            // Before looking: what is queued from here on is signalled again.
            answering.news.clear();
        }
        let node = &self.node;
        let answer = self.slot.answer(OUT, want, || {
            Ok(match lock(node).next()? {
                Some(message) => Next::Message(message),
                None => Next::Nothing,
            })
        });
        answer.map_err(|error: io::Error| self.failed("reading", error))
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        self.flows.check_any(flow)?;
        match operation {
            Ctl::Flush | Ctl::Finish => Ok(CtlReply::Done),
            Ctl::Snapshot => {
                self.forget();
                lock(&self.node).want_snapshot();
                Ok(CtlReply::Done)
            }
            Ctl::Neutral if flow == OUT => Ok(CtlReply::Done),
            Ctl::Neutral => {
                let rested = lock(&self.node).rest();
                rested.map(|()| CtlReply::Done).map_err(|error| self.failed("writing to", error))
            }
            Ctl::Report => Ok(CtlReply::Report(lock(&self.node).report())),
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        if !self.flows.names(flow, direction) {
            return Readiness::never();
        }
        match (direction, &self.answering) {
            (Direction::In, _) => Readiness::now(),
            (Direction::Out, _) if self.slot.is_held() || lock(&self.node).has_next() => Readiness::now(),
            (Direction::Out, Some(answering)) => {
                Readiness::descriptor(answering.news.as_fd(), Interest::Read)
            }
            (Direction::Out, None) => Readiness::descriptor(self.descriptor.as_fd(), Interest::Read),
        }
    }
}
