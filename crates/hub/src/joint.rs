//! A joint: flows of several devices that are merged, or stay separate but synchronised ("Networked
//! Device Driver Architecture (2012)", figure 4.5).
//!
//! Each device has its own session, whose driver has an endpoint of the joint as its partner. The
//! joint's thread runs the sink half of the joining pair, with an input port for each device, then both
//! halves of the pairs behind it, and then the application's node, or one node for each device.

use super::client::{Client, Pressure};
use super::spread::{Clients, Spread};
use crate::application::{ApplicationChoice, ApplicationNode, make_node};
use crate::endpoint::{Endpoint, Incoming};
use crate::origin::{PartnerOrigin, make_partner};
use buffers::Ring;
use contract::ServiceError;
use contract::{
    Attributes, Ctl, CtlReply, Description, Direction, Fill, FlowClass, FlowDirection, FlowKey, FlowTemplate,
    Format, Half, Input, Link, Message, Next, Outbox, Partner, PartnerError, PartnerResult, Port, Pull,
    PullSlot, Pulled, Pushed, Readiness, Report, Shape, Shared, Site, Time,
};
use flow::chain_runner::make_link;
use flow::nodes::Claim;
use flow::raw_path::{RawPath, failed};
use flow::types::Wake;
use modules::now;
use pipeline::DropCounts;
use pipeline::{PairUse, Pipeline};
use sandbox::is_sandbox_required;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::time::Duration;
use sys::event::Event as WakeUp;
use sys::poller::Poller;
use sys::stop::Stop;

/// Limit of messages that wait between a session and the joint, and behind the joint.
const QUEUE: usize = 64;
/// Limit of messages taken from one device in one run.
const BURST: usize = 64;
/// Limit of the wait for messages that the joint still holds after its flows have ended.
const LINGER: Duration = Duration::from_secs(10);
/// Time between two `Joint` events.
const STATS_INTERVAL: Duration = Duration::from_secs(1);

/// Counters of a joint.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct JointStats {
    /// Messages received from each device.
    pub inputs: Vec<u64>,
    /// Messages delivered to each node.
    pub outputs: Vec<u64>,
    /// Messages dropped by the joint, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Counters of the joining pair.
    pub figures: Vec<Report>,
}

/// An available device.
struct Arrival {
    number: u16,
    description: Description,
    endpoint: Endpoint,
}

/// An event of a running joint.
#[derive(Debug)]
pub enum JointEvent {
    /// An application uses the devices.
    Attached {
        /// The devices.
        name: String,
        /// The application's node.
        node: String,
        /// The joint's pipeline, canonical.
        pipelines: Vec<String>,
    },
    /// Figures, at intervals.
    Stats {
        /// The devices.
        name: String,
        /// The figures.
        stats: Box<JointStats>,
    },
}

/// The port of one device at a joint: the application's node of its [`crate::AttachTarget`].
pub struct JointPort {
    number: u16,
    arrivals: Ring<Box<Arrival>>,
    wake: WakeUp,
}

impl JointPort {
    /// The device is open there: its driver's partner here.
    pub fn join(self, description: &Description) -> Result<ApplicationNode, ServiceError> {
        let (endpoint, theirs) =
            Endpoint::pair(QUEUE).map_err(|error| ServiceError::os("an endpoint of a joint", error))?;
        let description = description.clone();
        // Each port has room for one arrival.
        let _ = self.arrivals.push(Box::new(Arrival { number: self.number, description, endpoint }));
        self.wake.signal();
        let (origin, summary) = (PartnerOrigin::Hub(theirs), "part of a joint".into());
        Ok(ApplicationNode { origin, summary, claim: None })
    }
}

/// A joint before its devices are available.
pub struct Joint {
    name: String,
    joint: PairUse,
    after: Pipeline,
    applications: Vec<ApplicationChoice>,
    inputs: usize,
    arrivals: Ring<Box<Arrival>>,
    wake: WakeUp,
}

impl Joint {
    /// Creates a joint of the named devices, with a port for each. `applications` has one entry, or one
    /// for each device if the joint keeps their flows separate.
    pub fn new(
        names: &[String],
        joint: PairUse,
        after: Pipeline,
        applications: Vec<ApplicationChoice>,
    ) -> Result<(Joint, Vec<JointPort>), ServiceError> {
        let (inputs, pair) = (names.len(), joint.pair.name());
        let usage = |problem| Err(ServiceError::Usage(problem));
        let required = if keeps_apart(&joint) { inputs } else { 1 };
        if applications.len() != required {
            return usage(format!(
                "`{pair}` gives {required} of these flows to applications, and {} applications are given: one for \
                 each, or none for what suits them",
                applications.len()
            ));
        }
        let max = match joint.pair.shape(&joint.options) {
            Shape::Fan(ways) => usize::from(ways),
            _ if joint.options.value("flows").is_some() => joint.options.count("flows"),
            _ => usize::from(u16::MAX),
        };
        if inputs > max {
            return usage(format!(
                "`{pair}` as it stands joins {max} flows, and {inputs} are given: say more"
            ));
        }
        if joint.pair.promises(&joint.options).needs_control {
            return usage(format!(
                "the halves of `{pair}` exchange control messages, which a joint cannot carry"
            ));
        }
        if is_sandbox_required() {
            return usage(format!(
                "`{pair}` joins what other hosts say in this process, and a sandbox is required (--require-sandbox): \
                 attach the devices one by one"
            ));
        }
        let wake = WakeUp::new().map_err(|error| ServiceError::os("an eventfd", error))?;
        let arrivals = Ring::new(inputs.max(1));
        let port = |number| JointPort { number, arrivals: arrivals.clone(), wake: wake.clone() };
        let ports = (0..inputs as u16).map(port).collect();
        let name = names.join(" + ");
        Ok((Joint { name, joint, after, applications, inputs, arrivals, wake }, ports))
    }

    /// Returns true if this pair keeps the devices' flows separate, with a node for each.
    pub fn keeps_apart(joint: &PairUse) -> bool {
        keeps_apart(joint)
    }

    /// Waits for the devices, then joins them until all have ended or `stop` is set.
    pub fn run(self, stop: &Stop, emit: &mut dyn FnMut(JointEvent)) -> Result<(), ServiceError> {
        sys::thread::be_punctual();
        let mut poller = Poller::new().map_err(|error| ServiceError::os("epoll", error))?;
        let mut arrived = BTreeMap::new();
        while arrived.len() < self.inputs {
            while let Some((arrival, _)) = self.arrivals.pop() {
                arrived.insert(arrival.number, *arrival);
            }
            if stop.is_requested() {
                return Ok(());
            }
            if arrived.len() < self.inputs {
                poller.register(stop.wakes(), true, false);
                poller.register(self.wake.as_fd(), true, false);
                poller.wait(None).map_err(|error| ServiceError::os("waiting", error))?;
                self.wake.clear();
            }
        }
        let name = self.name.clone();
        let mut running = Running::build(self, arrived, emit)?;
        let result = running.run(stop, &mut poller, &name, emit);
        running.stop();
        result
    }
}

fn keeps_apart(joint: &PairUse) -> bool {
    joint.pair.shape(&joint.options) == Shape::Joint && joint.options.flag("apart")
}

/// The output of the joining stage, as the partner at which a path starts.
#[derive(Default)]
struct Feed {
    queue: VecDeque<Message>,
    ended: bool,
    slot: PullSlot,
}

impl Partner for Feed {
    fn open(&mut self, _: &FlowTemplate, _: &Attributes) -> PartnerResult<FlowKey> {
        Ok(FlowKey(1))
    }

    fn close(&mut self, _: FlowKey) -> PartnerResult {
        Ok(())
    }

    fn push(&mut self, _: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        Err((PartnerError::Unsupported("a flow in"), message))
    }

    fn pull(&mut self, flow: FlowKey, pull: Pull<'_>) -> PartnerResult<Pulled> {
        let Feed { queue, ended, slot } = self;
        slot.answer(flow, pull, || {
            Ok(match queue.pop_front() {
                Some(message) => Next::Message(message),
                None if *ended => Next::End,
                None => Next::Nothing,
            })
        })
    }

    fn ctl(&mut self, _: FlowKey, _: Ctl<'_>) -> PartnerResult<CtlReply> {
        Err(PartnerError::Unsupported("this operation"))
    }

    fn readiness(&self, _: FlowKey, direction: Direction) -> Readiness<'_> {
        let is_ready = direction == Direction::Out && (!self.queue.is_empty() || self.ended);
        Readiness { now: is_ready, ..Readiness::never() }
    }
}

/// One node and the path to it, from all devices or from its own.
struct Output {
    node: Box<dyn Partner>,
    feed: Feed,
    path: RawPath,
    back: Option<Spread>,
    clients: Clients,
    /// The node returns to neutral after all older messages have left the joint.
    is_neutral_due: bool,
}

struct Running {
    pair: &'static str,
    link: Box<dyn Link>,
    outbox: Outbox,
    outputs: Vec<Output>,
    inputs: Vec<u64>,
    drops: DropCounts,
    /// Set when all devices have ended: the deadline for messages that the joint holds.
    ended: Option<(Port, Time)>,
    /// The claims to the nodes, dropped after them.
    claims: Vec<Claim>,
}

impl Running {
    fn build(
        joint: Joint,
        arrived: BTreeMap<u16, Arrival>,
        emit: &mut dyn FnMut(JointEvent),
    ) -> Result<Running, ServiceError> {
        let Joint { name, joint, after, applications, inputs, .. } = joint;
        let mut arrivals: Vec<Arrival> = arrived.into_values().collect();
        let forward = |arrival: &Arrival| {
            let offer = arrival.description.flows.iter();
            offer.clone().find(|offer| offer.direction == FlowDirection::DeviceToApplication).cloned()
        };
        let format = match forward(&arrivals[0]) {
            Some(offer) => offer.format,
            None => return Err(ServiceError::Usage(format!("{name}: the first has no flow to join"))),
        };
        let pair = joint.pair.name();
        // Flows with nodes of their own may have formats of their own, such as sound and pictures.
        let fits = |arrival: &&Arrival| {
            forward(arrival).is_some_and(|offer| match keeps_apart(&joint) {
                true => joint.pair.accept(&offer.format, &joint.options).is_ok(),
                false => offer.format == format,
            })
        };
        if let Some(other) = arrivals.iter().find(|arrival| !fits(arrival)) {
            return Err(ServiceError::Usage(format!(
                "{name}: the first device speaks `{format}` and `{}` does not: flows that become one must have one format; \
                 with `apart=true`, `synchronize` keeps flows of several formats in step",
                other.description.summary
            )));
        }
        let formats =
            arrivals.iter().map(|arrival| forward(arrival).map_or(Format::Bytes, |offer| offer.format));
        let site = Site { inputs: formats.collect(), ..Site::default() };
        let link = make_link(&joint, Half::Sink, &format, &site)
            .map_err(|error| ServiceError::Usage(format!("`{pair}` does not start: {error}")))?;
        let (mut outputs, mut claims) = (Vec::new(), Vec::new());
        let is_one = applications.len() == 1;
        for (index, application) in applications.into_iter().enumerate() {
            let mut description = arrivals[index].description.clone();
            if is_one {
                description.summary = name.clone();
            }
            let ApplicationNode { origin, summary: node, claim } =
                make_node(application, description.application, &description, format!("attach {name}"))?;
            claims.extend(claim);
            let pipelines = vec![after.canonical().to_string()];
            emit(JointEvent::Attached { name: description.summary.clone(), node, pipelines });
            let node = make_partner(origin).map_err(|error| failed("the application", error))?;
            outputs.push(Output::open(node, &description, &after)?);
        }
        for arrival in arrivals.drain(..) {
            let output = &mut outputs[if is_one { 0 } else { usize::from(arrival.number) }];
            let outward = output.back.as_ref().map_or(FlowClass::Reliable, Spread::class);
            output.clients.insert(arrival.number, Client::new(arrival.endpoint, outward));
        }
        let (outbox, drops) = (Outbox::default(), DropCounts::default());
        Ok(Running { pair, link, outbox, outputs, inputs: vec![0; inputs], drops, ended: None, claims })
    }

    fn run(
        &mut self,
        stop: &Stop,
        poller: &mut Poller,
        name: &str,
        emit: &mut dyn FnMut(JointEvent),
    ) -> Result<(), ServiceError> {
        // At rest the statistics do not change: the next wake-up schedules them again.
        let (mut stats_at, mut emitted) = (None, None);
        while !stop.is_requested() {
            self.claims.iter().try_for_each(Claim::check)?;
            let again = self.turn(now())?;
            let finished = self.outputs.iter().all(|output| output.path.is_finished());
            let due_at = *stats_at.get_or_insert_with(|| now().after(STATS_INTERVAL));
            if now() >= due_at || finished {
                let stats = self.stats();
                let has_changed = emitted.as_ref() != Some(&stats);
                stats_at = has_changed.then(|| now().after(STATS_INTERVAL));
                emitted = Some(stats.clone());
                emit(JointEvent::Stats { name: name.into(), stats: Box::new(stats) });
            }
            if finished {
                break;
            }
            if again {
                continue;
            }
            let mut wake = Wake::default();
            poller.register(stop.wakes(), true, false);
            for claim in &self.claims {
                poller.register(claim.wakes(), true, false);
            }
            self.register(poller, &mut wake);
            wake.add(poller, Readiness::never().or_at(stats_at));
            let timeout = if wake.now { Some(Duration::ZERO) } else { wake.at.map(|at| at.since(now())) };
            poller.wait(timeout).map_err(|error| ServiceError::os("waiting", error))?;
        }
        Ok(())
    }

    fn stop(&mut self) {
        for output in &mut self.outputs {
            // A node without a neutral state has nothing to release.
            let _ = output.node.ctl(FlowKey::DEFAULT, Ctl::Neutral);
        }
    }

    fn turn(&mut self, now: Time) -> Result<bool, ServiceError> {
        let mut again = false;
        if self.link.poll_timeout().is_some_and(|at| at <= now) {
            self.process(Input::Timeout, now);
        }
        for group in 0..self.outputs.len() {
            let numbers: Vec<u16> = self.outputs[group].clients.keys().copied().collect();
            for number in numbers {
                again |= self.receive(group, number, now);
            }
        }
        self.end(now);
        let is_empty = self.link.held() == 0;
        for port in 0..self.outputs.len() {
            let (more, fill) = self.outputs[port].run(is_empty, now)?;
            again |= more;
            if let Some(fill) = fill {
                self.process(Input::Fill(Port(port as u16), fill), now);
            }
        }
        Ok(again)
    }

    fn has_room(&self) -> bool {
        self.link.has_room() && self.outputs.iter().all(|output| output.feed.queue.len() < QUEUE)
    }

    /// Receives the messages of one device; returns true if there may be more.
    fn receive(&mut self, group: usize, number: u16, now: Time) -> bool {
        for _ in 0..BURST {
            let output = &mut self.outputs[group];
            let Some(client) = output.clients.get_mut(&number) else { return false };
            client.poll();
            if !self.has_room() {
                return false;
            }
            let output = &mut self.outputs[group];
            let Some(client) = output.clients.get_mut(&number) else { return false };
            match client.receive() {
                Incoming::Message(message) => {
                    self.inputs[usize::from(number)] += 1;
                    self.process(Input::Message(Port(number), message), now);
                }
                Incoming::Neutral => {
                    output.go_neutral();
                    output.is_neutral_due = true;
                    self.process(Input::Gap(Port(number)), now);
                }
                Incoming::End => {
                    let more = self
                        .outputs
                        .iter()
                        .flat_map(|output| output.clients.values())
                        .any(|client| !client.has_ended());
                    match more {
                        true => self.process(Input::End(Port(number)), now),
                        // Held messages leave when their time comes.
                        false => self.ended = Some((Port(number), now.after(LINGER))),
                    }
                    return false;
                }
                Incoming::Nothing => return false,
            }
        }
        true
    }

    /// After the last device has ended: ends the flows to the nodes once the joint is empty.
    fn end(&mut self, now: Time) {
        let Some((port, until)) = self.ended else { return };
        if self.outputs.iter().any(|output| output.feed.ended) || self.link.held() > 0 && now < until {
            return;
        }
        self.process(Input::End(port), now);
        self.outputs.iter_mut().for_each(|output| output.feed.ended = true);
    }

    /// Passes an input to the joining stage, and the stage's output to the paths of the nodes.
    fn process(&mut self, input: Input<'_>, now: Time) {
        let is_message = matches!(input, Input::Message(..));
        if self.link.hand(input, now, &mut self.outbox).is_err() && is_message {
            self.drops.add(&format!("{}: {}", self.pair, pipeline::REFUSED), 1);
        }
        for drop in self.outbox.drops.drain(..) {
            self.drops.add(&format!("{}: {}", self.pair, drop.reason), drop.count);
        }
        for (Port(port), message) in self.outbox.messages.drain(..) {
            match self.outputs.get_mut(usize::from(port)) {
                Some(output) => output.feed.queue.push_back(message),
                None => self.drops.add("no application at this port", 1),
            }
        }
        self.outbox.controls.clear();
    }

    fn register(&self, poller: &mut Poller, wake: &mut Wake) {
        let receives = self.has_room();
        for output in &self.outputs {
            output.clients.values().for_each(|client| client.register(receives, poller, wake));
            output.path.register(&output.feed, output.node.as_ref(), poller, wake);
            if let Some(back) = &output.back {
                back.register(output.node.as_ref(), &output.clients, poller, wake);
            }
        }
        let end_at = self.ended.map(|(_, until)| until).filter(|_| self.link.held() > 0);
        wake.add(poller, Readiness::never().or_at(self.link.poll_timeout()).or_at(end_at));
    }

    fn stats(&self) -> JointStats {
        let mut drops = self.drops.clone();
        for output in &self.outputs {
            let back = output.back.iter().map(|back| &back.drops.counts);
            let clients = output.clients.values().map(|client| &client.drops.counts);
            for counts in back.chain(clients).chain([&output.path.result.drops]) {
                counts.iter().for_each(|(reason, count)| drops.add(reason, *count));
            }
        }
        JointStats {
            inputs: self.inputs.clone(),
            outputs: self.outputs.iter().map(|output| output.path.result.messages).collect(),
            drops: drops.counts,
            figures: self.link.report(),
        }
    }
}

impl Output {
    fn open(
        mut node: Box<dyn Partner>,
        description: &Description,
        after: &Pipeline,
    ) -> Result<Output, ServiceError> {
        let (mut path, mut back) = (None, None);
        let mut feed = Feed::default();
        for offer in &description.flows {
            match offer.direction {
                FlowDirection::DeviceToApplication => {
                    let site = (None, &Shared::default());
                    path = RawPath::open(&mut feed, node.as_mut(), offer, after, site)?;
                }
                FlowDirection::ApplicationToDevice => {
                    let (format, class) = (offer.format.clone(), offer.class);
                    let template = FlowTemplate { direction: Direction::Out, format, class };
                    back = match node.open(&template, &Attributes::default()) {
                        Ok(key) => Some(Spread::new(key, class, Pressure::of(class, false), None)),
                        Err(PartnerError::Unsupported(_)) => None,
                        Err(error) => return Err(failed("the application", error)),
                    };
                }
            }
        }
        let path = path.ok_or_else(|| {
            ServiceError::Usage(format!("{}: the application takes no such flow", description.summary))
        })?;
        Ok(Output { node, feed, path, back, clients: Clients::new(), is_neutral_due: false })
    }

    fn go_neutral(&mut self) {
        // A node without a neutral state has nothing to release.
        let _ = self.node.ctl(self.path.to, Ctl::Neutral);
    }

    /// Returns how much sound the node holds, and tells it the device's path, so that `resample` follows the clock that plays it.
    fn report_fill(&mut self) -> Option<Fill> {
        let Ok(CtlReply::Fill(fill)) = self.node.ctl(self.path.to, Ctl::Fill) else { return None };
        self.clients.values().for_each(|client| client.report_fill(fill));
        Some(fill)
    }

    /// Passes messages to the node. Returns whether there may be more, and how much sound the node holds now.
    fn run(&mut self, is_joint_empty: bool, now: Time) -> Result<(bool, Option<Fill>), ServiceError> {
        let before = self.path.handed();
        let mut again = self.path.run(&mut self.feed, self.node.as_mut(), now)?;
        // A refused message may have another rate than the node, which the device's path learns by this report only.
        let has_handed = self.path.handed() > before;
        let fill = if has_handed { self.report_fill() } else { None };
        if self.is_neutral_due && is_joint_empty && self.feed.queue.is_empty() {
            self.is_neutral_due = false;
            self.go_neutral();
        }
        if let Some(back) = self.back.as_mut() {
            again |= back
                .run(self.node.as_mut(), &mut self.clients, now)
                .map_err(|error| failed("the application", error))?;
        }
        Ok((again, fill))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::FlowOffer;
    use modules::registry;
    use pipeline::Origin;

    /// Refuses each message: it plays sound of another rate.
    struct Player;

    impl Partner for Player {
        fn open(&mut self, template: &FlowTemplate, _: &Attributes) -> PartnerResult<FlowKey> {
            match template.direction {
                Direction::In => Ok(FlowKey::DEFAULT),
                Direction::Out => Err(PartnerError::Unsupported("a flow out")),
            }
        }

        fn close(&mut self, _: FlowKey) -> PartnerResult {
            Ok(())
        }

        fn push(&mut self, _: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
            Err((PartnerError::Message("another rate".into()), message))
        }

        fn pull(&mut self, _: FlowKey, _: Pull<'_>) -> PartnerResult<Pulled> {
            Ok(Pulled::Nothing)
        }

        fn ctl(&mut self, _: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
            let (held, target, lead) = Default::default();
            match operation {
                Ctl::Fill => Ok(CtlReply::Fill(Fill { held, target, lead, rate_hz: 44_100 })),
                _ => Ok(CtlReply::Done),
            }
        }

        fn readiness(&self, _: FlowKey, _: Direction) -> Readiness<'_> {
            Readiness::never()
        }
    }

    #[test]
    fn a_node_that_refuses_sound_reports_its_rate() {
        let direction = FlowDirection::DeviceToApplication;
        let offer = FlowOffer { direction, format: Format::Audio, class: FlowClass::Timely };
        let description = Description {
            class: "alsa".into(),
            summary: "a microphone".into(),
            flows: vec![offer],
            application: "pipewire",
            properties: Vec::new(),
        };
        let after = Pipeline::parse("", registry::pairs(), Origin::Local).unwrap();
        let mut output = Output::open(Box::new(Player), &description, &after).unwrap();
        let fill = |output: &mut Output| output.run(true, Time::ZERO).unwrap().1.map(|fill| fill.rate_hz);
        assert_eq!(fill(&mut output), None, "nothing was pushed");
        output.feed.queue.push_back(Message::new(Time::ZERO, vec![1]));
        assert_eq!(fill(&mut output), Some(44_100));
        assert_eq!(fill(&mut output), None);
        assert_eq!(output.path.result.messages, 0);
    }
}
