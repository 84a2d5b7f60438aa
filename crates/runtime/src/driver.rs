//! One driver on one host: its partner, its transport, and a path each way between them.
//!
//! A driver is a state machine over non-blocking partners: [`Driver::run`] moves what can be moved, and
//! [`Driver::want`] says what to wait for. It has no thread of its own; a worker runs many.

use crate::incoming::Incoming;
use crate::kept::Kept;
use crate::outgoing::Outgoing;
use crate::stats::DriverStats;
use crate::trace::{FlowTrace, LEASE};
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowClass, FlowDirection, FlowKey, FlowTemplate, Format, Interest,
    Offset, Partner, PartnerError, Pull, Pulled, Readiness, Role, Site, Time, Watch,
};
use pipeline::Pipeline;
use session::{Limits, StoreFull};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::time::Duration;
use sys::poller::Poller;
use thiserror::Error;
use wire::Control;
use wire::control::FLOWS_MAX;

/// Records of no flow that are passed over in one run.
const STRAY_RECORDS_MAX: usize = 64;

/// How long a replaced connection stays open: longer than word of the other one takes.
const ASIDE: Duration = Duration::from_secs(1);

/// One flow as this host builds it.
#[derive(Debug, Clone)]
pub struct FlowPlan {
    /// Number of the flow in its session.
    pub flow: u32,
    /// Which way it goes.
    pub direction: FlowDirection,
    /// What it promises.
    pub class: FlowClass,
    /// What its messages mean at its source.
    pub format: Format,
    /// What happens to them on the way.
    pub pipeline: Pipeline,
    /// What this host gives the halves.
    pub site: Site,
}

/// What a driver tells its broker.
#[derive(Debug)]
pub enum Notice {
    /// Send this to the other host.
    Control(Control),
    /// The device, or the application's node, went away.
    PartnerGone(String),
    /// The data connection is of no more use.
    LinkFailed(String),
    /// The data connection still carries, and another in its place would carry more.
    LinkHeldBack,
    /// A flow's pipeline has changed here, or will not.
    Changed {
        /// Which flow.
        direction: FlowDirection,
        /// The new pipeline, or why not.
        result: Result<Pipeline, String>,
    },
    /// A flow has ended and its sink has everything.
    FlowEnded(FlowDirection),
    /// The process of a module failed; what was done about it.
    Incident(String),
    /// The worker was killed, and another goes on, without its data connection.
    Restarted {
        /// How it ended.
        end: String,
        /// The other host finds out by itself that the connection is gone.
        is_seen: bool,
    },
    /// A replay store is full, for the first time since everything was acknowledged.
    StoreFull(StoreFull),
    /// The driver cannot go on.
    Failed(String),
}

/// Why a driver could not be built.
#[derive(Debug, Error)]
pub enum DriverError {
    /// The partner does not open such a flow.
    #[error("{0}")]
    Partner(#[from] PartnerError),
    /// A pair could not be made.
    #[error("{0}")]
    Pipeline(String),
}

/// What a driver knows of the link between the hosts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LinkFacts {
    /// What to add to the peer's times.
    pub offset: Offset,
    /// Shortest round trip seen lately.
    pub round_trip: Duration,
}

/// What a path may touch while it runs.
pub(crate) struct Surroundings<'a> {
    pub(crate) partner: Option<&'a mut Box<dyn Partner>>,
    pub(crate) transport: Option<&'a mut Box<dyn Partner>>,
    /// `None` until the clocks were compared.
    pub(crate) facts: Option<LinkFacts>,
    pub(crate) now: Time,
    pub(crate) notices: &'a mut Vec<Notice>,
}

/// One driver on one host.
pub struct Driver {
    partner: Option<Box<dyn Partner>>,
    transport: Option<Box<dyn Partner>>,
    /// A connection that another replaced, and until when it stays open: the other host would take its end for the end of
    /// the link, if it hears of it before it hears of the other one.
    aside: Option<(Box<dyn Partner>, Time)>,
    outgoing: Option<Outgoing>,
    incoming: Option<Incoming>,
    /// The transport may lose records.
    lossy: bool,
    facts: Option<LinkFacts>,
    partner_unflushed: bool,
    transport_unflushed: bool,
    /// What the transport last said it has heard.
    heard: u64,
    /// While its flows are traced: until then, if nobody asks again.
    traced_until: Option<Time>,
    /// What its paths took in their last turn.
    taken: Moved,
}

/// When to run a driver again.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wake {
    /// At once.
    pub now: bool,
    /// At this time.
    pub at: Option<Time>,
}

impl Wake {
    fn at(&mut self, time: Option<Time>) {
        self.at = match (self.at, time) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    /// How long that is from now on; `None`: until something comes.
    pub(crate) fn wait(&self, now: Time) -> Option<Duration> {
        if self.now { Some(Duration::ZERO) } else { self.at.map(|at| at.since(now)) }
    }

    pub(crate) fn add(&mut self, poller: &mut Poller, readiness: Readiness<'_>) {
        self.now |= readiness.now;
        self.at(readiness.at);
        for (descriptor, interest) in readiness.descriptors.into_iter().flatten() {
            poller.want(descriptor, interest == Interest::Read, interest == Interest::Write);
        }
    }
}

impl Driver {
    /// Builds the paths of `flows` on this side's partner. `lossy`: the transport may lose records.
    pub fn new(
        partner: Box<dyn Partner>,
        role: Role,
        flows: &[FlowPlan],
        lossy: bool,
        limits: &Limits,
    ) -> Result<Driver, DriverError> {
        Driver::going_on(partner, role, flows, lossy, limits, Default::default())
    }

    /// The same, where another worker stood whose flows are `kept`, if one did.
    pub(crate) fn going_on(
        partner: Box<dyn Partner>,
        role: Role,
        flows: &[FlowPlan],
        lossy: bool,
        limits: &Limits,
        kept: [Option<Kept>; FLOWS_MAX],
    ) -> Result<Driver, DriverError> {
        let mut driver = Driver {
            partner: Some(partner),
            transport: None,
            aside: None,
            outgoing: None,
            incoming: None,
            lossy,
            facts: None,
            partner_unflushed: false,
            transport_unflushed: false,
            heard: 0,
            traced_until: None,
            taken: Moved::default(),
        };
        driver.build(role, flows, lossy, limits, kept)?;
        if let (Some(partner), Some(outgoing)) = (driver.partner.as_mut(), driver.outgoing.as_mut()) {
            outgoing.hand_legacy(partner.as_mut());
        }
        if let (Some(partner), Some(incoming)) = (driver.partner.as_mut(), driver.incoming.as_mut()) {
            incoming.hand_legacy(partner.as_mut());
        }
        Ok(driver)
    }

    /// Builds the paths anew on the same partner, for a peer that knows nothing of the old ones.
    pub fn rebuild(
        &mut self,
        role: Role,
        flows: &[FlowPlan],
        lossy: bool,
        limits: &Limits,
    ) -> Result<(), DriverError> {
        let mut kept: [Option<Kept>; FLOWS_MAX] = Default::default();
        let outgoing = self.outgoing.take().map(|outgoing| {
            let (flow, of_flow, legacy) = outgoing.into_kept();
            kept[flow as usize % FLOWS_MAX] = of_flow.map(Kept::cleared);
            legacy
        });
        let incoming = self.incoming.take().map(|incoming| {
            let (flow, of_flow, drops) = incoming.into_kept();
            kept[flow as usize % FLOWS_MAX] = of_flow.map(Kept::cleared);
            drops
        });
        self.build(role, flows, lossy, limits, kept)?;
        if let (Some(flow), Some(legacy)) = (self.outgoing.as_mut(), outgoing) {
            flow.inherit(legacy);
        }
        if let (Some(flow), Some(drops)) = (self.incoming.as_mut(), incoming) {
            flow.inherit(drops);
        }
        Ok(())
    }

    fn build(
        &mut self,
        role: Role,
        flows: &[FlowPlan],
        lossy: bool,
        limits: &Limits,
        mut kept: [Option<Kept>; FLOWS_MAX],
    ) -> Result<(), DriverError> {
        self.lossy = lossy;
        for plan in flows {
            let kept = kept[plan.flow as usize % FLOWS_MAX].take();
            let outward = match plan.direction {
                FlowDirection::DeviceToApplication => role == Role::Device,
                FlowDirection::ApplicationToDevice => role == Role::Application,
            };
            let direction = if outward { Direction::Out } else { Direction::In };
            let template = FlowTemplate { direction, format: plan.format.clone(), class: plan.class };
            let Some(partner) = self.partner.as_mut() else { continue };
            let key = match partner.open(&template, &Attributes::default()) {
                Ok(key) => key,
                // A node that never answers back has no flow back: the other side's waits for nothing.
                Err(PartnerError::Unsupported(_)) if role == Role::Application && outward => continue,
                Err(error) => return Err(error.into()),
            };
            match outward {
                true => self.outgoing = Some(Outgoing::new(plan.clone(), key, lossy, limits, kept)?),
                false => self.incoming = Some(Incoming::new(plan.clone(), key, lossy, limits, kept)?),
            }
        }
        Ok(())
    }

    /// What is known of the link changed.
    pub fn handle_facts(&mut self, facts: LinkFacts) {
        self.facts = Some(facts);
    }

    /// A data connection is there.
    pub fn handle_link(&mut self, mut transport: Box<dyn Partner>, now: Time, notices: &mut Vec<Notice>) {
        if let Some(outgoing) = &self.outgoing {
            // It may carry flows of each class otherwise; what it cannot tell apart it carries alike.
            let _ = transport.open(&outgoing.template(Direction::In), &Attributes::default());
        }
        self.transport = Some(transport);
        (self.transport_unflushed, self.heard) = (false, 0);
        if self.traced_until.is_some() {
            self.watch(Watch::Begin);
        }
        if let Some(incoming) = self.incoming.as_mut() {
            incoming.handle_link();
        }
        if let Some(outgoing) = self.outgoing.as_mut() {
            outgoing.handle_link(around(&mut self.partner, &mut self.transport, self.facts, now, notices));
        }
    }

    /// Another data connection is about to replace this one, of which nothing more is wanted.
    pub(crate) fn set_aside(&mut self, poller: &mut Poller, now: Time) {
        if let Some(transport) = self.transport.take() {
            forget(poller, transport.as_ref());
            self.aside = Some((transport, now.after(ASIDE)));
        }
    }

    /// The data connection goes on over another socket, as a host has another address.
    pub fn handle_move(&mut self, socket: OwnedFd) -> Result<(), PartnerError> {
        match self.transport.as_mut() {
            Some(transport) => transport.ctl(FlowKey::DEFAULT, Ctl::Move(socket)).map(drop),
            None => Ok(()),
        }
    }

    /// The data connection is gone.
    pub fn handle_link_lost(&mut self, poller: &mut Poller) {
        self.aside = None;
        if let Some(transport) = self.transport.take() {
            forget(poller, transport.as_ref());
        }
    }

    /// The other host fell silent: what depends on it goes neutral.
    pub fn handle_silence(&mut self, now: Time, notices: &mut Vec<Notice>) {
        if let Some(outgoing) = self.outgoing.as_mut() {
            outgoing.handle_silence();
        }
        if let Some(incoming) = self.incoming.as_mut() {
            incoming.handle_silence(around(&mut self.partner, &mut self.transport, self.facts, now, notices));
        }
    }

    /// The other host is heard again.
    pub fn handle_heard(&mut self, now: Time, notices: &mut Vec<Notice>) {
        if let Some(transport) = self.transport.as_mut() {
            // Not every transport waits.
            let _ = transport.ctl(FlowKey::DEFAULT, Ctl::Probe);
        }
        if let Some(outgoing) = self.outgoing.as_mut() {
            outgoing.handle_heard(around(&mut self.partner, &mut self.transport, self.facts, now, notices));
        }
        if let Some(incoming) = &self.incoming {
            incoming.handle_heard(notices);
        }
    }

    /// The device at the other side went away: what depends on it goes neutral, and stays.
    pub fn handle_absence(&mut self, now: Time, notices: &mut Vec<Notice>) {
        if let Some(incoming) = self.incoming.as_mut() {
            incoming.handle_absence(around(&mut self.partner, &mut self.transport, self.facts, now, notices));
        }
    }

    /// What was said to the partner until now did not reach it: where things stand is asked anew.
    pub fn handle_resync(&mut self, notices: &mut Vec<Notice>) {
        if let Some(incoming) = self.incoming.as_mut() {
            incoming.handle_resync(notices);
        }
    }

    /// This side's device is back.
    pub fn handle_partner(
        &mut self,
        mut partner: Box<dyn Partner>,
        now: Time,
        notices: &mut Vec<Notice>,
    ) -> Result<(), DriverError> {
        if let Some(outgoing) = self.outgoing.as_mut() {
            outgoing.reopen(partner.as_mut())?;
        }
        if let Some(incoming) = self.incoming.as_mut() {
            incoming.reopen(partner.as_mut(), notices)?;
        }
        self.partner = Some(partner);
        if let Some(outgoing) = self.outgoing.as_mut() {
            outgoing.handle_partner(around(&mut self.partner, &mut self.transport, self.facts, now, notices));
        }
        Ok(())
    }

    /// A control message for one of this driver's flows.
    pub fn handle_control(&mut self, message: Control, now: Time, notices: &mut Vec<Notice>) {
        if let Some(outgoing) = self.outgoing.as_mut() {
            let around = around(&mut self.partner, &mut self.transport, self.facts, now, notices);
            outgoing.handle_control(&message, around);
        }
        if let Some(incoming) = self.incoming.as_mut() {
            incoming.handle_control(&message, now, notices);
        }
    }

    /// Gives a flow another pipeline, if it starts here.
    pub fn change(&mut self, direction: FlowDirection, pipeline: Pipeline, notices: &mut Vec<Notice>) {
        match self.outgoing.as_mut().filter(|outgoing| outgoing.direction() == direction) {
            Some(outgoing) => outgoing.change(pipeline, notices),
            None => {
                let result = Err("this flow does not start here".into());
                notices.push(Notice::Changed { direction, result });
            }
        }
    }

    /// Builds the stages of a flow that ends here for an epoch to come.
    pub fn prepare(
        &mut self,
        (flow, epoch): (u32, u32),
        pipeline: Pipeline,
        now: Time,
        notices: &mut Vec<Notice>,
    ) {
        match self.incoming.as_mut().filter(|incoming| incoming.flow() == flow) {
            Some(incoming) => incoming.prepare(epoch, pipeline, now, notices),
            None => {
                let refusal = Some("this flow does not end here".into());
                notices.push(Notice::Control(Control::Changed { flow, epoch, refusal }));
            }
        }
    }

    /// Moves what can be moved; says whether anything did, so that it is worth running again.
    pub fn run(&mut self, now: Time, poller: &mut Poller, notices: &mut Vec<Notice>) -> bool {
        if self.traced_until.is_some_and(|until| now >= until) {
            self.end_trace();
        }
        self.aside.take_if(|(_, until)| now >= *until);
        let mut progress = false;
        self.taken = Moved::default();
        let (mut pushed, mut sent) = (false, false);
        let mut failure = None;
        if self.incoming.is_none() && self.lossy {
            failure = self.hear_receiver(now, poller).err().map(PathError::Transport);
        }
        if let Some(incoming) = self.incoming.as_mut() {
            match incoming.run(around(&mut self.partner, &mut self.transport, self.facts, now, notices)) {
                Ok(moved) => {
                    (progress, pushed) = (moved.progress, moved.pushed);
                    self.taken = moved;
                }
                // Before it failed it may have handed something on.
                Err(error) => (pushed, failure) = (true, Some(error)),
            }
        }
        if let Some(outgoing) = self.outgoing.as_mut() {
            match outgoing.run(around(&mut self.partner, &mut self.transport, self.facts, now, notices)) {
                Ok(moved) => {
                    progress |= moved.progress;
                    sent = moved.pushed;
                    self.taken.messages += moved.messages;
                    self.taken.bytes += moved.bytes;
                }
                Err(error) => failure = Some(error),
            }
        }
        if pushed || self.partner_unflushed {
            if let Some(incoming) = self.incoming.as_mut() {
                incoming.handle_flush();
            }
            match flush(self.partner.as_mut()) {
                Ok(unflushed) => self.partner_unflushed = unflushed,
                Err(error) => failure = Some(PathError::Partner(error)),
            }
            if let Some(incoming) = self.incoming.as_mut().filter(|_| !self.partner_unflushed) {
                incoming.trace_delivered();
            }
        }
        if let Some(incoming) = self.incoming.as_mut() {
            incoming.handle_done(self.partner.as_mut(), self.partner_unflushed, now, notices);
        }
        let writes = sent || self.transport_unflushed;
        if writes {
            if let Some(outgoing) = self.outgoing.as_mut() {
                outgoing.trace_writing();
            }
            match flush(self.transport.as_mut()) {
                Ok(unflushed) => self.transport_unflushed = unflushed,
                Err(error) => failure = Some(PathError::Transport(error)),
            }
            if self.transport_unflushed && is_held_back(self.transport.as_mut()) {
                notices.push(Notice::LinkHeldBack);
            }
        }
        if let Some(outgoing) = self.outgoing.as_mut() {
            outgoing.trace_written(self.transport.as_mut(), writes && !self.transport_unflushed);
        }
        if let Some(failure) = failure {
            progress |= self.handle_failure(failure, now, poller, notices);
        }
        progress
    }

    /// A transport that may lose has its other side tell what came, which it takes where records are pulled. No
    /// flow ends here: what else comes is nobody's.
    fn hear_receiver(&mut self, now: Time, poller: &Poller) -> Result<(), PartnerError> {
        let Some(transport) = self.transport.as_mut() else { return Ok(()) };
        let readiness = transport.readiness(FlowKey::DEFAULT, Direction::Out);
        let mut descriptors = readiness.descriptors.iter().flatten();
        let is_ready = descriptors.any(|(descriptor, _)| poller.is_ready(*descriptor));
        if !is_ready && !readiness.now && readiness.at.is_none_or(|at| now < at) {
            return Ok(());
        }
        for _ in 0..STRAY_RECORDS_MAX {
            if !matches!(transport.pull(FlowKey::DEFAULT, Pull::Yours)?, Pulled::Message(..)) {
                break;
            }
        }
        Ok(())
    }

    /// What its paths took in their last turn.
    pub(crate) fn taken(&self) -> &Moved {
        &self.taken
    }

    fn handle_failure(
        &mut self,
        failure: PathError,
        now: Time,
        poller: &mut Poller,
        notices: &mut Vec<Notice>,
    ) -> bool {
        match failure {
            PathError::Transport(error) => {
                self.handle_link_lost(poller);
                notices.push(Notice::LinkFailed(error.to_string()));
            }
            PathError::Closed => {
                self.handle_link_lost(poller);
                notices.push(Notice::LinkFailed("the other host closed the data connection".into()));
            }
            PathError::Partner(error) => {
                if let Some(partner) = self.partner.take() {
                    forget(poller, partner.as_ref());
                }
                self.partner_unflushed = false;
                if let Some(outgoing) = self.outgoing.as_mut() {
                    outgoing.handle_partner_gone(now);
                }
                match error {
                    PartnerError::Gone(what) => notices.push(Notice::PartnerGone(what)),
                    other => notices.push(Notice::Failed(other.to_string())),
                }
            }
        }
        true
    }

    /// Puts what to wait for into the poller; says when else to run.
    pub fn want(&self, poller: &mut Poller) -> Wake {
        let mut wake = Wake::default();
        let (partner, transport) = (self.partner.as_deref(), self.transport.as_deref());
        if let Some(outgoing) = &self.outgoing {
            outgoing.want(partner, transport, self.facts.unwrap_or_default().round_trip, poller, &mut wake);
        }
        if let Some(incoming) = &self.incoming {
            incoming.want(partner, transport.filter(|_| self.facts.is_some()), poller, &mut wake);
        }
        for (unflushed, side) in [(self.partner_unflushed, partner), (self.transport_unflushed, transport)] {
            if let Some(side) = side.filter(|_| unflushed) {
                let readiness = side.readiness(FlowKey::DEFAULT, Direction::In);
                // Room for more is not what a flush waits for, only the descriptor is.
                wake.add(poller, Readiness { now: false, ..readiness });
            }
        }
        if let Some(transport) = transport {
            wake.add(poller, transport.upkeep());
        }
        wake.at(self.aside.as_ref().map(|(_, until)| *until));
        // A transport with nothing to receive into must still notice that the connection ended.
        if self.incoming.is_none()
            && let Some(transport) = transport
        {
            wake.add(
                poller,
                Readiness { now: false, ..transport.readiness(FlowKey::DEFAULT, Direction::Out) },
            );
        }
        wake
    }

    /// Lets go of everything; the poller must not hold its descriptors on.
    pub fn close(mut self, poller: &mut Poller) {
        self.handle_link_lost(poller);
        if let Some(mut partner) = self.partner.take() {
            let _ = partner.ctl(FlowKey::DEFAULT, Ctl::Neutral);
            forget(poller, partner.as_ref());
        }
    }

    /// What would be acknowledged soon is acknowledged in the next turn; whether there is anything.
    pub(crate) fn hurry(&mut self, now: Time) -> bool {
        self.incoming.as_mut().is_some_and(|incoming| incoming.hurry(now))
    }

    /// Whether anything has come of the other host over the data connection since the last call.
    pub fn has_heard(&mut self) -> bool {
        match self.transport.as_mut().map(|transport| transport.ctl(FlowKey::DEFAULT, Ctl::Heard)) {
            Some(Ok(CtlReply::Count(count))) => std::mem::replace(&mut self.heard, count) != count,
            _ => false,
        }
    }

    /// Says something to the partner in words of its class; its answer, or why it has none.
    pub fn say(&mut self, words: &str) -> Result<String, String> {
        let partner = self.partner.as_mut().ok_or("the device is gone")?;
        match partner.ctl(FlowKey::DEFAULT, Ctl::Say(words)) {
            Ok(CtlReply::Bytes(answer)) => Ok(String::from_utf8_lossy(&answer).into_owned()),
            Ok(_) => Ok(String::new()),
            Err(PartnerError::Unsupported(_)) => Err("it has no controls".into()),
            Err(PartnerError::Message(problem)) => Err(problem),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Traces one message in `one_in`, or goes on with it, until nobody has asked for a while, or none is asked
    /// for; gives what was stamped since the last time.
    pub fn trace(&mut self, one_in: Option<NonZeroU32>, now: Time) -> Vec<FlowTrace> {
        let Some(one_in) = one_in else {
            self.end_trace();
            return Vec::new();
        };
        if self.traced_until.replace(now.after(LEASE)).is_none() {
            self.watch(Watch::Begin);
        }
        let offset_ns = self.facts.map(|facts| facts.offset.0);
        let outgoing = self.outgoing.as_mut().and_then(|outgoing| outgoing.trace(one_in));
        let incoming = self.incoming.as_mut().and_then(|incoming| incoming.trace(one_in));
        outgoing.into_iter().chain(incoming).map(|flow| FlowTrace { offset_ns, ..flow }).collect()
    }

    fn end_trace(&mut self) {
        self.traced_until = None;
        self.watch(Watch::End);
        if let Some(outgoing) = self.outgoing.as_mut() {
            outgoing.end_trace();
        }
        if let Some(incoming) = self.incoming.as_mut() {
            incoming.end_trace();
        }
    }

    /// A transport whose kernel tells nothing is traced without it.
    fn watch(&mut self, what: Watch) {
        if let Some(transport) = self.transport.as_mut() {
            let _ = transport.ctl(FlowKey::DEFAULT, Ctl::Watch(what));
        }
    }

    /// Figures for people and scripts.
    pub fn stats(&mut self) -> DriverStats {
        let figures = |partner: Option<&mut Box<dyn Partner>>| match partner
            .map(|partner| partner.ctl(FlowKey::DEFAULT, Ctl::Report))
        {
            Some(Ok(CtlReply::Report(figures))) => {
                figures.into_iter().map(|(n, v)| (n.to_string(), v)).collect()
            }
            _ => Vec::new(),
        };
        DriverStats {
            linked: self.transport.is_some(),
            present: self.partner.is_some(),
            traced: self.traced_until.is_some(),
            locked: false,
            restarts: 0,
            busy_seconds: 0.0,
            outgoing: self.outgoing.as_ref().map(Outgoing::stats),
            incoming: self.incoming.as_ref().map(Incoming::stats),
            partner: figures(self.partner.as_mut()),
            transport: figures(self.transport.as_mut()),
        }
    }
}

/// Whether a transport says that another connection would do better.
fn is_held_back(transport: Option<&mut Box<dyn Partner>>) -> bool {
    let answer = transport.map(|transport| transport.ctl(FlowKey::DEFAULT, Ctl::HeldBack));
    matches!(answer, Some(Ok(CtlReply::Count(1))))
}

/// What a path may touch, borrowed apart from the paths themselves.
fn around<'a>(
    partner: &'a mut Option<Box<dyn Partner>>,
    transport: &'a mut Option<Box<dyn Partner>>,
    facts: Option<LinkFacts>,
    now: Time,
    notices: &'a mut Vec<Notice>,
) -> Surroundings<'a> {
    Surroundings { partner: partner.as_mut(), transport: transport.as_mut(), facts, now, notices }
}

/// Who failed while a path ran.
#[derive(Debug)]
pub(crate) enum PathError {
    /// The device or the application's node.
    Partner(PartnerError),
    /// The data connection.
    Transport(PartnerError),
    /// The data connection was closed by the other host.
    Closed,
}

/// What a run of a path did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moved {
    /// Worth running again at once.
    pub(crate) progress: bool,
    /// Something was pushed and wants a flush.
    pub(crate) pushed: bool,
    /// Messages that were taken, and their bytes.
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Moved {
    /// Counts what was pulled.
    pub(crate) fn count(&mut self, pulled: &Pulled) {
        if let Pulled::Message(_, message) = pulled {
            self.messages += 1;
            self.bytes += message.body.len() as u64;
        }
    }
}

pub(crate) fn flush(side: Option<&mut Box<dyn Partner>>) -> Result<bool, PartnerError> {
    match side.map(|side| side.ctl(FlowKey::DEFAULT, Ctl::Flush)) {
        None | Some(Err(PartnerError::Unsupported(_))) => Ok(false),
        Some(Ok(reply)) => Ok(matches!(reply, CtlReply::Pending)),
        Some(Err(error)) => Err(error),
    }
}

pub(crate) fn forget(poller: &mut Poller, partner: &dyn Partner) {
    let directions = [Direction::In, Direction::Out].map(|way| partner.readiness(FlowKey::DEFAULT, way));
    for readiness in directions.into_iter().chain([partner.upkeep()]) {
        for (descriptor, _) in readiness.descriptors.into_iter().flatten() {
            poller.forget(descriptor);
        }
    }
}
