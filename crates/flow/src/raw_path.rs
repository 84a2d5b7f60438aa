//! `outboard connect`: a raw path between two partners on one host, without a network (The Partner architecture
//! (2002), figure 3).
//!
//! | phase | event | next phase |
//! |---|---|---|
//! | `Reading` | the source has no further message | `DrainingSource` |
//! | `DrainingSource` | the source stages are empty | `DrainingSink` |
//! | `DrainingSink` | the sink stages have processed everything and are empty | `Drained` |
//! | `Drained` | the sink has accepted all output and finished it | `Finished` |

use crate::chain_runner::{ChainRunner, build_chain};
use crate::nodes::{self, Claim, Claimant, Conflict, Misfit};
use crate::types::Wake;
use contract::ServiceError;
use contract::{
    Attributes, Ctl, CtlReply, Description, DeviceSpec, Direction, FlowClass, FlowDirection, FlowKey,
    FlowOffer, FlowTemplate, Half, Incident, Opened, Partner, PartnerError, Pull, Pulled, Pushed, Readiness,
    Role, Secret, Shared, Time,
};
use modules::Pipelines;
use modules::connector::Connector;
use modules::now;
use modules::registry;
use pipeline::DropCounts;
use pipeline::Pipeline;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::Duration;
use sys::poller::Poller;
use sys::stop::Stop;
use trust::keys::FlowKeys;

/// Most messages that one run of a path moves.
const BURST: usize = 64;

/// Most incidents that a run reports, beside those that name lost messages.
const INCIDENTS_MAX: usize = 100;
/// Most lost messages that a run names.
const LOSSES_MAX: usize = 1000;
/// Drop reason of a message that the sink refused.
const REFUSED: &str = "refused by the sink";

/// Result of a raw connection.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Connected {
    /// Messages delivered to the sink.
    pub messages: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Dropped messages, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Those among the dropped messages that a failure lost in a reliable flow.
    pub losses: BTreeMap<String, u64>,
    /// Failures of module processes, the first [`INCIDENTS_MAX`], and lost messages, the first [`LOSSES_MAX`].
    pub incidents: Vec<String>,
}

impl Connected {
    /// Ends the side ports, and adds their problems.
    pub fn with_ports(mut self, pipelines: &Pipelines) -> Connected {
        self.incidents.extend(pipelines.outlets.iter().filter_map(|port| port.finish()));
        self
    }

    /// Returns an error if a reliable flow lost messages.
    pub fn check(&self) -> Result<(), ServiceError> {
        ServiceError::check_losses(&self.losses)
    }
}

/// Moves messages from `source` to `sink` and back through `pipelines`, until the source ends or `stop` is set.
pub fn connect(
    source: &str,
    sink: &str,
    pipelines: &Pipelines,
    stop: &Stop,
) -> Result<Connected, ServiceError> {
    Ok(open(source, sink, pipelines)?.run(stop)?.with_ports(pipelines))
}

/// Opens `source` and `sink` for a run.
pub fn open(source: &str, sink: &str, pipelines: &Pipelines) -> Result<Connection, ServiceError> {
    let source_spec = registry::device_spec(source, Role::Device)?;
    let sink_spec = registry::device_spec(sink, Role::Application)?;
    let opened = registry::open(&source_spec, Role::Device, None)?;
    let description = opened.description.clone();
    pipelines.check(&description.flows).map_err(ServiceError::Usage)?;
    let claimant =
        Claimant { service: format!("connect {source} {sink}"), conflict: Conflict::Refuse, yields: true };
    let (node_spec, claim) = nodes::claim_node(&sink_spec, &claimant)?;
    check_sink(&sink_spec.class, &description)?;
    let node = registry::open(&node_spec, Role::Application, Some(&description))?;
    let held = vec![Held::of(&opened)?, Held::of(&node)?];
    let device = registry::partner(opened).map_err(|error| failed(source, error))?;
    let application = registry::partner(node).map_err(|error| failed(sink, error))?;
    let connector = Connector::new().map_err(|error| ServiceError::os("eventfd", error))?;
    Ok(Connection::new(device, application, &description.flows, pipelines)?
        .with_held(held)
        .with_claim(claim)
        .with_connector(connector, source_spec, description.clone()))
}

/// Checks that a node of the class `sink` suits the source, which is open; the node is not.
fn check_sink(sink: &str, source: &Description) -> Result<(), ServiceError> {
    let Some(misfit) = nodes::misfit(sink, source) else { return Ok(()) };
    let (class, suitable) = (&source.class, nodes::suitable(source));
    let problem = match misfit {
        Misfit::Class(copied) => format!("copies a device of class `{copied}`, and the source is `{class}`"),
        Misfit::Format(taken, sent) => {
            format!("takes the format `{taken}`, and the source `{class}` sends `{sent}`")
        }
    };
    Err(ServiceError::Usage(format!("the sink: `{sink}` {problem}: write `{suitable}` in its place")))
}

/// Two partners on one host and the paths between them.
pub struct Connection {
    device: Box<dyn Partner>,
    application: Box<dyn Partner>,
    forward: Option<RawPath>,
    back: Option<RawPath>,
    /// Dropped after the partners.
    held: Vec<Held>,
    /// The claim to the node of one partner, dropped after it.
    claim: Option<Claim>,
    /// Makes further connections to the device.
    connector: Option<(Connector, DeviceSpec, Description)>,
}

/// A copy of an opened device. When it is dropped, the device's class removes leftovers, such as a name in the file system.
pub struct Held(Opened);

impl Held {
    /// Copies the descriptors of `opened`, before its partner takes them.
    pub fn of(opened: &Opened) -> Result<Held, ServiceError> {
        opened.try_clone().map(Held).map_err(|error| ServiceError::os("duplicating descriptors", error))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        registry::release(&self.0);
    }
}

/// The number of the device for its connector.
const DEVICE: u32 = 0;

impl Connection {
    /// Builds a path for each of `flows` that both partners open.
    pub fn new(
        mut device: Box<dyn Partner>,
        mut application: Box<dyn Partner>,
        flows: &[FlowOffer],
        pipelines: &Pipelines,
    ) -> Result<Connection, ServiceError> {
        pipelines.check(flows).map_err(ServiceError::Usage)?;
        let (mut forward, mut back) = (None, None);
        let shared = Shared::default();
        let site = (pipelines.key.as_ref(), &shared);
        for offer in flows {
            match offer.direction {
                FlowDirection::DeviceToApplication => {
                    let pipeline = pipelines.via.clone().unwrap_or_default().with_outlets(&pipelines.outlets);
                    forward = RawPath::open(device.as_mut(), application.as_mut(), offer, &pipeline, site)?;
                }
                FlowDirection::ApplicationToDevice => {
                    let pipeline =
                        pipelines.via_back.clone().unwrap_or_default().with_outlets(&pipelines.outlets);
                    back = RawPath::open(application.as_mut(), device.as_mut(), offer, &pipeline, site)?;
                }
            }
        }
        if forward.is_none() && back.is_none() {
            return Err(ServiceError::Usage("the source and the sink have no flow in common".into()));
        }
        Ok(Connection { device, application, forward, back, held: Vec::new(), claim: None, connector: None })
    }

    /// Cleans up after these devices when the connection ends.
    pub fn with_held(self, held: Vec<Held>) -> Connection {
        Connection { held, ..self }
    }

    /// Ends if another process takes over the node of one partner.
    pub fn with_claim(self, claim: Option<Claim>) -> Connection {
        Connection { claim, ..self }
    }

    /// Makes the further connections that the device wants.
    pub fn with_connector(
        self,
        connector: Connector,
        spec: DeviceSpec,
        description: Description,
    ) -> Connection {
        Connection { connector: Some((connector, spec, description)), ..self }
    }

    /// Exchanges connections with the device, and adds its notes. Returns whether it has got one.
    fn serve_device(&mut self, notes: &mut Vec<String>) -> Result<bool, ServiceError> {
        let mut has_got = false;
        if let Some((connector, spec, description)) = self.connector.as_mut() {
            while let Some((_, result)) = connector.take() {
                self.device.connected(result).map_err(|error| failed("the source", error))?;
                has_got = true;
            }
            let wanted = self.device.connections_wanted();
            if wanted > 0 {
                connector.request(DEVICE, wanted, (spec, description));
            }
        }
        let more = INCIDENTS_MAX.saturating_sub(notes.len());
        notes.extend(std::iter::from_fn(|| self.device.note()).take(more));
        Ok(has_got)
    }

    /// Moves messages until the source ends or `stop` is set.
    pub fn run(mut self, stop: &Stop) -> Result<Connected, ServiceError> {
        sys::thread::be_punctual();
        let mut poller = Poller::new().map_err(|error| ServiceError::os("epoll", error))?;
        let mut notes = Vec::new();
        while !stop.is_requested() {
            self.claim.iter().try_for_each(Claim::check)?;
            let mut again = false;
            if let Some(path) = self.forward.as_mut() {
                again |= path.run(self.device.as_mut(), self.application.as_mut(), now())?;
            }
            if let Some(path) = self.back.as_mut() {
                again |= path.run(self.application.as_mut(), self.device.as_mut(), now())?;
            }
            again |= self.serve_device(&mut notes)?;
            // A source without a forward flow is done when its input ends.
            if self.forward.as_ref().or(self.back.as_ref()).is_none_or(RawPath::is_finished) {
                break;
            }
            if again {
                continue;
            }
            let mut wake = Wake::default();
            poller.register(stop.wakes().as_fd(), true, false);
            if let Some((connector, ..)) = &self.connector {
                poller.register(connector.wakes(), true, false);
            }
            if let Some(claim) = &self.claim {
                poller.register(claim.wakes(), true, false);
            }
            if let Some(path) = &self.forward {
                path.register(self.device.as_ref(), self.application.as_ref(), &mut poller, &mut wake);
            }
            if let Some(path) = &self.back {
                path.register(self.application.as_ref(), self.device.as_ref(), &mut poller, &mut wake);
            }
            let timeout = if wake.now { Some(Duration::ZERO) } else { wake.at.map(|at| at.since(now())) };
            poller.wait(timeout).map_err(|error| ServiceError::os("waiting", error))?;
        }
        let mut results = [self.forward, self.back].into_iter().flatten().map(|path| path.result);
        let mut result = results.next().unwrap_or_default();
        result.incidents.extend(notes);
        // The figures are those of the main flow, but a loss in the other one must not be silent.
        if let Some(back) = results.next().filter(|back| !back.losses.is_empty()) {
            for (reason, count) in back.losses {
                *result.losses.entry(reason).or_default() += count;
            }
            result.incidents.extend(back.incidents);
        }
        let _ = self.device.ctl(FlowKey::DEFAULT, Ctl::Neutral);
        let _ = self.application.ctl(FlowKey::DEFAULT, Ctl::Neutral);
        // First the partners, whose descriptors the classes then clean up.
        drop((self.device, self.application));
        drop(self.held);
        Ok(result)
    }
}

/// Progress of a path towards its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// The source may have further messages.
    Reading,
    /// The source stages may hold messages.
    DrainingSource,
    /// The sink stages may hold messages.
    DrainingSink,
    /// The sink may have output to accept.
    Drained,
    /// The sink has everything.
    Finished,
}

/// One direction of a connection: partner, source stages, sink stages, partner.
pub struct RawPath {
    from: FlowKey,
    /// Key of the flow at the sink.
    pub to: FlowKey,
    source: ChainRunner,
    sink: ChainRunner,
    drops: DropCounts,
    phase: Phase,
    /// The sink accepted data that it has not written yet.
    is_unflushed: bool,
    is_reliable: bool,
    /// The fault in the source's data that ended a reliable flow.
    fault: Option<String>,
    /// Incidents in the result that name no lost message, and those that do.
    incidents: [usize; 2],
    /// Messages moved so far.
    pub result: Connected,
}

impl RawPath {
    /// Opens the flow on both partners; `None` if one of them has no such flow.
    pub fn open(
        from: &mut dyn Partner,
        to: &mut dyn Partner,
        offer: &FlowOffer,
        pipeline: &Pipeline,
        (key, shared): (Option<&Secret>, &Shared),
    ) -> Result<Option<RawPath>, ServiceError> {
        let usage = |error: pipeline::PipelineError| ServiceError::Usage(error.to_string());
        let template =
            |direction| FlowTemplate { direction, format: offer.format.clone(), class: offer.class };
        let open = |partner: &mut dyn Partner, direction| match partner
            .open(&template(direction), &Attributes::default())
        {
            Ok(key) => Ok(Some(key)),
            Err(PartnerError::Unsupported(_)) => Ok(None),
            Err(error) => Err(failed("opening a flow", error)),
        };
        let Some(from_key) = open(from, Direction::Out)? else { return Ok(None) };
        let Some(to_key) = open(to, Direction::In)? else {
            let _ = from.close(from_key);
            return Ok(None);
        };
        let keys = FlowKeys::local(key)?;
        let site = keys.site(offer.direction, shared);
        let chain = |half| build_chain(half, pipeline, &offer.format, &site).map_err(usage);
        Ok(Some(RawPath {
            from: from_key,
            to: to_key,
            source: ChainRunner::new(chain(Half::Source)?),
            sink: ChainRunner::new(chain(Half::Sink)?),
            drops: DropCounts::default(),
            phase: Phase::Reading,
            is_unflushed: false,
            is_reliable: offer.class == FlowClass::Reliable,
            fault: None,
            incidents: [0; 2],
            result: Connected::default(),
        }))
    }

    /// Returns whether the sink has everything.
    pub fn is_finished(&self) -> bool {
        self.phase == Phase::Finished
    }

    /// Messages that the sink took or refused.
    pub fn handed(&self) -> u64 {
        self.result.messages + self.result.drops.get(REFUSED).copied().unwrap_or(0)
    }

    /// Moves all messages that can move now. Returns whether another run would make progress.
    pub fn run(
        &mut self,
        from: &mut dyn Partner,
        to: &mut dyn Partner,
        now: Time,
    ) -> Result<bool, ServiceError> {
        if self.is_finished() {
            return Ok(false);
        }
        let mut again = self.source.run_timeouts(now) | self.sink.run_timeouts(now);
        let mut pushed = self.is_unflushed;
        for _ in 0..BURST {
            self.cross(now);
            if !self.push_out(to, &mut pushed)?
                || !self.sink.has_room()
                || !self.source.has_room()
                || self.phase != Phase::Reading
            {
                break;
            }
            let pulled = match from.pull(self.from, Pull::Yours) {
                // The sink gets the messages before the fault.
                Err(PartnerError::Data(problem)) if self.is_reliable => {
                    let fault = self.fault.insert(format!("the source: {problem}"));
                    self.drops.add_loss(fault, 1);
                    Pulled::End
                }
                pulled => pulled.map_err(|error| failed("the source", error))?,
            };
            match pulled {
                Pulled::Message(_, message) => self.source.feed(message, now),
                Pulled::End => {
                    self.phase = Phase::DrainingSource;
                    again = true;
                }
                _ => break,
            }
        }
        if pushed {
            let flushed = CtlReply::is_complete(to.ctl(self.to, Ctl::Flush));
            self.is_unflushed = !flushed.map_err(|error| failed("the sink", error))?;
        }
        again |= self.drain(now);
        if self.phase == Phase::Drained && self.sink.out.messages.is_empty() {
            let finished = CtlReply::is_complete(to.ctl(self.to, Ctl::Finish));
            let is_finished = finished.map_err(|error| failed("the sink", error))?;
            if is_finished { self.phase = Phase::Finished } else { self.is_unflushed = true }
        }
        for Incident { text, is_loss } in self.source.incidents().chain(self.sink.incidents()) {
            let count = &mut self.incidents[usize::from(is_loss)];
            *count += 1;
            if *count <= if is_loss { LOSSES_MAX } else { INCIDENTS_MAX } {
                self.result.incidents.push(text);
            }
        }
        self.source.settle(&mut self.drops);
        self.sink.settle(&mut self.drops);
        self.result.drops = self.drops.counts.clone();
        if self.is_reliable {
            self.result.losses = self.drops.losses.clone();
        }
        if self.is_finished() && self.result.messages == 0 {
            let refused = || [&self.source, &self.sink].iter().find_map(|half| half.failure(&self.drops));
            let failure = self.fault.clone().or_else(refused);
            failure.map_or(Ok(()), |reason| Err(ServiceError::Peer(reason)))?;
        }
        Ok(again)
    }

    /// Drains the source stages and then the sink stages after the end of the source. Returns whether one of them
    /// finished.
    fn drain(&mut self, now: Time) -> bool {
        let prev = self.phase;
        if self.phase == Phase::DrainingSource && self.source.drain(now) {
            self.phase = Phase::DrainingSink;
            self.cross(now);
        }
        if self.phase == Phase::DrainingSink && self.source.out.messages.is_empty() && self.sink.drain(now) {
            self.phase = Phase::Drained;
        }
        self.phase > prev
    }

    /// Moves messages and control messages between the source stages and the sink stages.
    fn cross(&mut self, now: Time) {
        while self.sink.has_room()
            && let Some(message) = self.source.out.messages.pop_front()
        {
            self.sink.feed(message, now);
        }
        for (pair, body) in std::mem::take(&mut self.source.out.controls) {
            self.sink.handle_control(pair as u16, &body, now);
        }
        for (pair, body) in std::mem::take(&mut self.sink.out.controls) {
            self.source.handle_control(pair as u16, &body, now);
        }
    }

    fn push_out(&mut self, to: &mut dyn Partner, pushed: &mut bool) -> Result<bool, ServiceError> {
        while let Some(message) = self.sink.out.messages.pop_front() {
            let bytes = message.body.len() as u64;
            match to.push(self.to, message) {
                Ok(Pushed::Taken) => {
                    *pushed = true;
                    self.result.messages += 1;
                    self.result.bytes += bytes;
                }
                Ok(Pushed::Full(message)) => {
                    self.sink.out.messages.push_front(message);
                    return Ok(false);
                }
                Err((PartnerError::Message(_), _)) => self.drops.add_loss(REFUSED, 1),
                Err((error, _)) => return Err(failed("the sink", error)),
            }
        }
        Ok(true)
    }

    /// Registers the descriptors and timers of the path.
    pub fn register(&self, from: &dyn Partner, to: &dyn Partner, poller: &mut Poller, wake: &mut Wake) {
        if self.is_finished() {
            return;
        }
        for stages in [&self.source, &self.sink] {
            stages.register(poller, wake);
            wake.at(stages.drain_timeout().filter(|_| self.phase < Phase::Drained));
        }
        let is_blocked = !self.sink.out.messages.is_empty();
        if is_blocked || self.is_unflushed {
            let readiness = to.readiness(self.to, Direction::In);
            wake.add(poller, Readiness { now: readiness.now && is_blocked, ..readiness });
        }
        if !is_blocked && self.phase == Phase::Reading && self.source.has_room() && self.sink.has_room() {
            wake.add(poller, from.readiness(self.from, Direction::Out));
        }
    }
}

/// Returns a peer error that begins with its place.
pub fn failed(place: &str, error: impl std::fmt::Display) -> ServiceError {
    ServiceError::Peer(format!("{place}: {error}"))
}
