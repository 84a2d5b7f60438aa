//! `outboard connect`: a raw path between two partners of one host, no network (paper P, figure 3).

use crate::agree::Pipelines;
use crate::driver::Wake;
use crate::error::RuntimeError;
use crate::events::Stop;
use crate::keys::FlowKeys;
use crate::registry;
use crate::segment::{DropCounts, Segment, build_chain};
use crate::share::now;
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowDirection, FlowKey, FlowOffer, FlowTemplate, Half, Partner,
    PartnerError, Pull, Pulled, Pushed, Readiness, Role, Secret, Shared, Time,
};
use pipeline::Pipeline;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::Duration;
use sys::poller::Poller;

/// Messages moved in one run of a path.
const BURST: usize = 64;

/// Incidents that are kept to be told.
const INCIDENTS_MAX: usize = 100;

/// What a raw path moved.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Connected {
    /// Messages that reached the sink.
    pub messages: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Messages that ended on the way, by reason.
    pub drops: BTreeMap<String, u64>,
    /// What went wrong with modules' processes, the first [`INCIDENTS_MAX`].
    pub incidents: Vec<String>,
}

/// Moves messages from `source` to `sink` and back, through `pipelines`, until the source has ended or `stop`
/// is said.
pub fn connect(
    source: &str,
    sink: &str,
    pipelines: &Pipelines,
    stop: &Stop,
) -> Result<Connected, RuntimeError> {
    let source_spec = registry::device_spec(source, Role::Device)?;
    let sink_spec = registry::device_spec(sink, Role::Application)?;
    let opened = registry::open(&source_spec, Role::Device, None)?;
    let description = opened.description.clone();
    pipelines.check(&description.flows).map_err(RuntimeError::Usage)?;
    let node = registry::open(&sink_spec, Role::Application, Some(&description))?;
    let device = registry::partner(opened).map_err(|error| failed(source, error))?;
    let application = registry::partner(node).map_err(|error| failed(sink, error))?;
    Connection::new(device, application, &description.flows, pipelines)?.run(stop)
}

/// Two partners of one host and the paths between them.
pub struct Connection {
    device: Box<dyn Partner>,
    application: Box<dyn Partner>,
    forward: Option<RawPath>,
    back: Option<RawPath>,
}

impl Connection {
    /// Builds a path for each of `flows` that both partners open.
    pub fn new(
        mut device: Box<dyn Partner>,
        mut application: Box<dyn Partner>,
        flows: &[FlowOffer],
        pipelines: &Pipelines,
    ) -> Result<Connection, RuntimeError> {
        pipelines.check(flows).map_err(RuntimeError::Usage)?;
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
            return Err(RuntimeError::Usage(
                "these two have no flow in common: one takes what the other gives?".into(),
            ));
        }
        Ok(Connection { device, application, forward, back })
    }

    /// Moves messages until the source has ended, or `stop` is said.
    pub fn run(mut self, stop: &Stop) -> Result<Connected, RuntimeError> {
        sys::thread::be_punctual();
        let mut poller = Poller::new().map_err(|error| RuntimeError::os("epoll", error))?;
        while !stop.is_said() {
            let mut again = false;
            if let Some(path) = self.forward.as_mut() {
                again |= path.run(self.device.as_mut(), self.application.as_mut(), now())?;
            }
            if let Some(path) = self.back.as_mut() {
                again |= path.run(self.application.as_mut(), self.device.as_mut(), now())?;
            }
            // A source that only takes is done when what it takes has ended.
            if self.forward.as_ref().or(self.back.as_ref()).is_none_or(|path| path.finished) {
                break;
            }
            if again {
                continue;
            }
            let mut wake = Wake::default();
            poller.want(stop.wakes().as_fd(), true, false);
            if let Some(path) = &self.forward {
                path.want(self.device.as_ref(), self.application.as_ref(), &mut poller, &mut wake);
            }
            if let Some(path) = &self.back {
                path.want(self.application.as_ref(), self.device.as_ref(), &mut poller, &mut wake);
            }
            let timeout = if wake.now { Some(Duration::ZERO) } else { wake.at.map(|at| at.since(now())) };
            poller.wait(timeout).map_err(|error| RuntimeError::os("waiting", error))?;
        }
        let moved = self.forward.or(self.back).map(|path| path.moved).unwrap_or_default();
        let _ = self.device.ctl(FlowKey::DEFAULT, Ctl::Neutral);
        let _ = self.application.ctl(FlowKey::DEFAULT, Ctl::Neutral);
        Ok(moved)
    }
}

/// One direction of a connection: partner, source halves, sink halves, partner.
pub(crate) struct RawPath {
    from: FlowKey,
    pub(crate) to: FlowKey,
    source: Segment,
    sink: Segment,
    drops: DropCounts,
    unflushed: bool,
    ended: bool,
    /// How many of the two halves have given out everything.
    drained: u8,
    pub(crate) finished: bool,
    pub(crate) moved: Connected,
}

impl RawPath {
    /// `None` if one of the partners has no such flow.
    pub(crate) fn open(
        from: &mut dyn Partner,
        to: &mut dyn Partner,
        offer: &FlowOffer,
        pipeline: &Pipeline,
        (key, shared): (Option<&Secret>, &Shared),
    ) -> Result<Option<RawPath>, RuntimeError> {
        let usage = |error: pipeline::PipelineError| RuntimeError::Usage(error.to_string());
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
            source: Segment::new(chain(Half::Source)?),
            sink: Segment::new(chain(Half::Sink)?),
            drops: DropCounts::default(),
            unflushed: false,
            ended: false,
            drained: 0,
            finished: false,
            moved: Connected::default(),
        }))
    }

    pub(crate) fn run(
        &mut self,
        from: &mut dyn Partner,
        to: &mut dyn Partner,
        now: Time,
    ) -> Result<bool, RuntimeError> {
        if self.finished {
            return Ok(false);
        }
        let mut again = self.source.run_timeouts(now) | self.sink.run_timeouts(now);
        let mut pushed = self.unflushed;
        for _ in 0..BURST {
            self.cross(now);
            if !self.push_out(to, &mut pushed)?
                || !self.sink.has_room()
                || !self.source.has_room()
                || self.ended
            {
                break;
            }
            match from.pull(self.from, Pull::Yours).map_err(|error| failed("the source", error))? {
                Pulled::Message(_, message) => self.source.feed(message, now),
                Pulled::End => {
                    self.ended = true;
                    again = true;
                }
                _ => break,
            }
        }
        if pushed {
            self.unflushed = match to.ctl(self.to, Ctl::Flush) {
                Ok(reply) => matches!(reply, CtlReply::Pending),
                Err(PartnerError::Unsupported(_)) => false,
                Err(error) => return Err(failed("the sink", error)),
            };
        }
        again |= self.drain(now);
        if self.drained == 2 && self.sink.out.messages.is_empty() {
            self.finished = match to.ctl(self.to, Ctl::Finish) {
                Ok(reply) => !matches!(reply, CtlReply::Pending),
                Err(PartnerError::Unsupported(_)) => true,
                Err(error) => return Err(failed("the sink", error)),
            };
            self.unflushed |= !self.finished;
        }
        for incident in self.source.incidents().chain(self.sink.incidents()) {
            if self.moved.incidents.len() < INCIDENTS_MAX {
                self.moved.incidents.push(incident);
            }
        }
        self.source.settle(&mut self.drops);
        self.sink.settle(&mut self.drops);
        self.moved.drops = self.drops.counts.clone();
        if self.finished && self.moved.messages == 0 {
            let failure = [&self.source, &self.sink].iter().find_map(|half| half.failure(&self.drops));
            failure.map_or(Ok(()), |reason| Err(RuntimeError::Peer(reason)))?;
        }
        Ok(again)
    }

    /// After the end, lets the source halves give out what they hold, then the sink halves.
    fn drain(&mut self, now: Time) -> bool {
        let before = self.drained;
        if self.ended && self.drained == 0 && self.source.drain(now) {
            self.drained = 1;
            self.cross(now);
        }
        if self.drained == 1 && self.source.out.messages.is_empty() && self.sink.drain(now) {
            self.drained = 2;
        }
        self.drained > before
    }

    /// Hands messages and control from the source halves to the sink halves and back.
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

    fn push_out(&mut self, to: &mut dyn Partner, pushed: &mut bool) -> Result<bool, RuntimeError> {
        while let Some(message) = self.sink.out.messages.pop_front() {
            let bytes = message.body.len() as u64;
            match to.push(self.to, message) {
                Ok(Pushed::Taken) => {
                    *pushed = true;
                    self.moved.messages += 1;
                    self.moved.bytes += bytes;
                }
                Ok(Pushed::Full(message)) => {
                    self.sink.out.messages.push_front(message);
                    return Ok(false);
                }
                Err((PartnerError::Message(_), _)) => self.drops.add("refused by the sink", 1),
                Err((error, _)) => return Err(failed("the sink", error)),
            }
        }
        Ok(true)
    }

    pub(crate) fn want(&self, from: &dyn Partner, to: &dyn Partner, poller: &mut Poller, wake: &mut Wake) {
        if self.finished {
            return;
        }
        for segment in [&self.source, &self.sink] {
            let drain_at = segment.drain_timeout().filter(|_| self.drained < 2);
            segment.want(poller, wake);
            wake.add(poller, Readiness::never().or_at(drain_at));
        }
        let blocked = !self.sink.out.messages.is_empty();
        if blocked || self.unflushed {
            let readiness = to.readiness(self.to, Direction::In);
            wake.add(poller, Readiness { now: readiness.now && blocked, ..readiness });
        }
        if !blocked && !self.ended && self.source.has_room() && self.sink.has_room() {
            wake.add(poller, from.readiness(self.from, Direction::Out));
        }
    }
}

pub(crate) fn failed(what: &str, error: impl std::fmt::Display) -> RuntimeError {
    RuntimeError::Peer(format!("{what}: {error}"))
}
