//! One driver on one host: its partner, its transport, and one path in each direction.
//!
//! A driver is a state machine over non-blocking partners. [`Driver::run`] moves all messages that can move now;
//! [`Driver::register`] registers the descriptors and timers of the next run. A driver has no thread: a worker runs
//! many drivers.

use crate::recovery::RecoveryLog;
use crate::sink_path::SinkPath;
use crate::source_path::SourcePath;
use crate::stats::DriverStats;
use crate::trace::{FlowTrace, LEASE};
use crate::types::{
    DriverError, FlowPlan, LinkFacts, Notice, PathContext, PathError, RunOutcome, Wake, flush, forget,
};
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowDirection, FlowKey, FlowTemplate, Partner, PartnerError,
    PartnerResult, Presence, Pull, Pulled, Readiness, Role, SealKeys, Time, TraceCtl, TransportCtl,
};
use pipeline::Pipeline;
use session::Limits;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::time::Duration;
use sys::poller::Poller;
use wire::FlowControl;
use wire::control::FLOWS_MAX;

/// Most records without a flow that one run discards.
const STRAY_RECORDS_MAX: usize = 64;

/// How long a replaced connection stays open. It must outlast the time until the peer knows the new one.
const REPLACED_OPEN: Duration = Duration::from_secs(1);

/// One host's half of a driver.
pub struct Driver {
    device: Side,
    network: Side,
    link: LinkState,
    source: Option<SourcePath>,
    sink: Option<SinkPath>,
    /// While the flows are traced: expiry of the trace, unless it is requested again.
    traced_until: Option<Time>,
    /// Messages and bytes that the paths pulled in the last run.
    last_run: RunOutcome,
}

/// A partner at one end of the paths: the device or node, or the data connection.
#[derive(Default)]
struct Side {
    /// `None` while the device is gone, or while there is no data connection.
    partner: Option<Box<dyn Partner>>,
    /// It accepted data that it has not written yet.
    is_unflushed: bool,
}

impl Side {
    /// Writes what the partner accepted.
    fn flush(&mut self) -> PartnerResult {
        self.is_unflushed = flush(self.partner.as_mut())?;
        Ok(())
    }

    /// Returns whether the transport reports that a new connection would do better. It is asked after each flush, and when
    /// its timer has expired.
    fn is_held_back(&mut self, is_flushed: bool, now: Time) -> bool {
        let Some(transport) = self.partner.as_mut() else { return false };
        if !is_flushed && transport.upkeep().at.is_none_or(|at| now < at) {
            return false;
        }
        let answer = transport.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::HeldBack));
        matches!(answer, Ok(CtlReply::Count(1)))
    }

    /// Removes the partner.
    fn forget(&mut self, poller: &mut Poller) -> Option<Box<dyn Partner>> {
        let partner = self.partner.take()?;
        forget(poller, partner.as_ref());
        Some(partner)
    }
}

/// State of the link to the other host.
#[derive(Default)]
struct LinkState {
    /// The transport may lose records.
    lossy: bool,
    /// The data connection is of a transport with several connections.
    has_ways: bool,
    facts: Option<LinkFacts>,
    /// A replaced connection, and its closing time. A peer that sees the close before it sees the new connection would
    /// report the link as lost.
    replaced: Option<(Box<dyn Partner>, Time)>,
    /// The transport's receive counter at the last call of [`Driver::has_received`].
    received_count: u64,
    reconnects: Reconnects,
}

/// Limits the rate at which new data connections of a lossy transport are requested. A peer whose device accepts nothing for
/// long acknowledges nothing, and looks like a peer that nothing reaches; new connections do not help it.
#[derive(Default)]
struct Reconnects {
    /// Earliest next one, and the delay of the one behind it.
    next_at: Time,
    delay: Duration,
}

impl Reconnects {
    const DELAY_MIN: Duration = Duration::from_secs(1);
    const DELAY_MAX: Duration = Duration::from_secs(64);

    /// Returns whether a new connection may be requested now. The caller requests it.
    fn permit(&mut self, now: Time) -> bool {
        let Some(waited) = now.0.checked_sub(self.next_at.0).map(Duration::from_nanos) else { return false };
        self.delay = match waited < Self::DELAY_MAX {
            true => (self.delay * 2).clamp(Self::DELAY_MIN, Self::DELAY_MAX),
            false => Self::DELAY_MIN,
        };
        self.next_at = now.after(self.delay);
        true
    }
}

/// Borrows the partner and the transport separately from the paths.
fn context<'a>(
    device: &'a mut Side,
    network: &'a mut Side,
    link: &LinkState,
    now: Time,
    notices: &'a mut Vec<Notice>,
) -> PathContext<'a> {
    let (partner, transport) = (device.partner.as_mut(), network.partner.as_mut());
    PathContext { partner, transport, facts: link.facts, now, notices }
}

impl Driver {
    /// Builds the paths of `flows` on this side's partner, and resumes each flow whose recovery log holds a worker's
    /// saved state. `lossy`: the transport may lose records.
    pub fn resume(
        partner: Box<dyn Partner>,
        role: Role,
        flows: &[FlowPlan],
        lossy: bool,
        limits: &Limits,
        logs: [Option<RecoveryLog>; FLOWS_MAX],
    ) -> Result<Driver, DriverError> {
        let mut driver = Driver {
            device: Side { partner: Some(partner), is_unflushed: false },
            network: Side::default(),
            link: LinkState::default(),
            source: None,
            sink: None,
            traced_until: None,
            last_run: RunOutcome::default(),
        };
        driver.build(role, flows, lossy, limits, logs)?;
        if let Some(partner) = driver.device.partner.as_mut() {
            if let Some(source) = driver.source.as_mut() {
                source.restore_device_state(partner.as_mut());
            }
            if let Some(sink) = driver.sink.as_mut() {
                sink.restore_device_state(partner.as_mut());
            }
        }
        Ok(driver)
    }

    /// Rebuilds the paths on the same partner, for a peer without state of the old paths.
    pub fn rebuild(
        &mut self,
        role: Role,
        flows: &[FlowPlan],
        lossy: bool,
        limits: &Limits,
    ) -> Result<(), DriverError> {
        let mut logs: [Option<RecoveryLog>; FLOWS_MAX] = Default::default();
        let handover = self.source.take().map(|source| {
            let (flow, log, handover) = source.into_handover();
            logs[flow as usize % FLOWS_MAX] = log.map(RecoveryLog::cleared);
            handover
        });
        let drops = self.sink.take().map(|sink| {
            let (flow, log, drops) = sink.into_handover();
            logs[flow as usize % FLOWS_MAX] = log.map(RecoveryLog::cleared);
            drops
        });
        self.build(role, flows, lossy, limits, logs)?;
        if let (Some(source), Some(handover)) = (self.source.as_mut(), handover) {
            source.inherit(handover);
        }
        if let (Some(sink), Some(drops)) = (self.sink.as_mut(), drops) {
            sink.inherit(drops);
        }
        Ok(())
    }

    fn build(
        &mut self,
        role: Role,
        flows: &[FlowPlan],
        lossy: bool,
        limits: &Limits,
        mut logs: [Option<RecoveryLog>; FLOWS_MAX],
    ) -> Result<(), DriverError> {
        self.link.lossy = lossy;
        for plan in flows {
            let log = logs[plan.flow as usize % FLOWS_MAX].take();
            let is_source = match plan.direction {
                FlowDirection::DeviceToApplication => role == Role::Device,
                FlowDirection::ApplicationToDevice => role == Role::Application,
            };
            let direction = if is_source { Direction::Out } else { Direction::In };
            let template = FlowTemplate { direction, format: plan.format.clone(), class: plan.class };
            let Some(partner) = self.device.partner.as_mut() else { continue };
            let key = match partner.open(&template, &Attributes::default()) {
                Ok(key) => key,
                // An application node without a reverse flow leaves the peer's reverse sink idle.
                Err(PartnerError::Unsupported(_)) if role == Role::Application && is_source => continue,
                Err(error) => return Err(error.into()),
            };
            match is_source {
                true => self.source = Some(SourcePath::new(plan.clone(), key, lossy, limits, log)?),
                false => self.sink = Some(SinkPath::new(plan.clone(), key, lossy, limits, log)?),
            }
        }
        Ok(())
    }

    /// Updates the measurements of the link.
    pub fn handle_facts(&mut self, facts: LinkFacts) {
        self.link.facts = Some(facts);
    }

    /// Installs a new data connection; `has_ways`: more connections may join it.
    pub fn handle_link(
        &mut self,
        mut transport: Box<dyn Partner>,
        has_ways: bool,
        now: Time,
        notices: &mut Vec<Notice>,
    ) {
        self.link.has_ways = has_ways;
        if let Some(source) = &self.source {
            // Lets the transport treat flow classes differently. A transport without such a choice returns an error,
            // which is harmless.
            let _ = transport.open(&source.template(Direction::In), &Attributes::default());
        }
        if let Some(sink) = &self.sink {
            let _ = transport.open(&sink.template(Direction::Out), &Attributes::default());
        }
        self.network = Side { partner: Some(transport), is_unflushed: false };
        self.link.received_count = 0;
        if self.traced_until.is_some() {
            self.watch(TraceCtl::Begin);
        }
        if let Some(sink) = self.sink.as_mut() {
            sink.handle_link();
        }
        if let Some(source) = self.source.as_mut() {
            source.handle_link(context(&mut self.device, &mut self.network, &self.link, now, notices));
        }
    }

    /// Sets the current data connection aside, before a new one replaces it. Nothing more is read from it.
    pub fn set_aside(&mut self, poller: &mut Poller, now: Time) {
        if let Some(transport) = self.network.forget(poller) {
            self.link.replaced = Some((transport, now.after(REPLACED_OPEN)));
        }
    }

    /// Moves the data connection to another socket, after a host's address changed.
    pub fn handle_move(&mut self, socket: OwnedFd) -> PartnerResult {
        match self.network.partner.as_mut() {
            Some(transport) => {
                transport.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Move(socket))).map(drop)
            }
            None => Ok(()),
        }
    }

    /// Handles the loss of the data connection.
    pub fn handle_link_lost(&mut self, poller: &mut Poller) {
        self.link.replaced = None;
        self.network.forget(poller);
    }

    /// Handles the peer's silence: the paths reset dependent state to neutral.
    pub fn handle_silence(&mut self, now: Time, notices: &mut Vec<Notice>) {
        if let Some(source) = self.source.as_mut() {
            source.handle_silence();
        }
        if let Some(sink) = self.sink.as_mut() {
            sink.handle_silence(context(&mut self.device, &mut self.network, &self.link, now, notices));
        }
    }

    /// Handles the end of the peer's silence.
    pub fn handle_silence_end(&mut self, now: Time, notices: &mut Vec<Notice>) {
        if let Some(transport) = self.network.partner.as_mut() {
            // A transport that does not back off needs no probe.
            let _ = transport.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Probe));
        }
        if let Some(source) = self.source.as_mut() {
            source.handle_silence_end(context(&mut self.device, &mut self.network, &self.link, now, notices));
        }
        if let Some(sink) = &mut self.sink {
            sink.handle_silence_end(notices);
        }
    }

    /// Handles the loss of the peer's device: dependent state becomes neutral until the device returns.
    pub fn handle_absence(&mut self, now: Time, notices: &mut Vec<Notice>) {
        if let Some(sink) = self.sink.as_mut() {
            sink.handle_absence(context(&mut self.device, &mut self.network, &self.link, now, notices));
        }
    }

    /// Handles the return of the peer's device.
    pub fn handle_absence_end(&mut self, notices: &mut Vec<Notice>) {
        if let Some(sink) = self.sink.as_mut() {
            sink.handle_absence_end(notices);
        }
    }

    /// Discards state that messages to the partner may have missed, and requests a new snapshot from the source.
    pub fn handle_resync(&mut self, notices: &mut Vec<Notice>) {
        if let Some(sink) = self.sink.as_mut() {
            sink.handle_resync(notices);
        }
    }

    /// Releases the partner, and with it the device, before another one takes its place.
    pub fn release_partner(&mut self, poller: &mut Poller) {
        self.device.forget(poller);
        self.device.is_unflushed = false;
    }

    /// Handles the return of this host's device.
    pub fn handle_partner(
        &mut self,
        mut partner: Box<dyn Partner>,
        now: Time,
        notices: &mut Vec<Notice>,
    ) -> Result<(), DriverError> {
        if let Some(source) = self.source.as_mut() {
            source.reopen(partner.as_mut())?;
        }
        if let Some(sink) = self.sink.as_mut() {
            sink.reopen(partner.as_mut(), notices)?;
        }
        self.device.partner = Some(partner);
        if let Some(source) = self.source.as_mut() {
            source.handle_partner(context(&mut self.device, &mut self.network, &self.link, now, notices));
        }
        notices.push(Notice::PartnerReturned);
        Ok(())
    }

    /// Handles a control message for one of this driver's flows.
    pub fn handle_control(&mut self, flow: u32, message: &FlowControl, now: Time, notices: &mut Vec<Notice>) {
        if let Some(source) = self.source.as_mut().filter(|source| source.flow() == flow) {
            let cx = context(&mut self.device, &mut self.network, &self.link, now, notices);
            source.handle_control(message, cx);
        }
        if let Some(sink) = self.sink.as_mut().filter(|sink| sink.flow() == flow) {
            sink.handle_control(message, now, notices);
        }
    }

    /// Starts a pipeline change of a flow whose source is on this host.
    pub fn change(&mut self, direction: FlowDirection, pipeline: Pipeline, notices: &mut Vec<Notice>) {
        match self.source.as_mut().filter(|source| source.direction() == direction) {
            Some(source) => source.change(pipeline, notices),
            None => {
                let result = Err("this flow does not start here".into());
                notices.push(Notice::Changed { direction, result });
            }
        }
    }

    /// Builds the stages for a future epoch of a flow whose sink is on this host.
    pub fn prepare(
        &mut self,
        (flow, epoch): (u32, u32),
        pipeline: Pipeline,
        now: Time,
        notices: &mut Vec<Notice>,
    ) {
        match self.sink.as_mut().filter(|sink| sink.flow() == flow) {
            Some(sink) => sink.prepare(epoch, pipeline, now, notices),
            None => {
                let refusal = Some("this flow does not end here".into());
                notices.push(Notice::Flow { flow, message: FlowControl::Changed { epoch, refusal } });
            }
        }
    }

    /// Moves all messages that can move now. Returns whether another run would make progress.
    pub fn run(&mut self, now: Time, poller: &mut Poller, notices: &mut Vec<Notice>) -> bool {
        if self.traced_until.is_some_and(|until| now >= until) {
            self.end_trace();
        }
        self.link.replaced.take_if(|(_, until)| now >= *until);
        let mut progress = false;
        self.last_run = RunOutcome::default();
        let (mut pushed, mut sent) = (false, false);
        let mut failure = None;
        if self.sink.is_none() && self.link.lossy {
            failure = self.poll_receiver(now, poller).err().map(PathError::Transport);
        }
        if let Some(sink) = self.sink.as_mut() {
            match sink.run(context(&mut self.device, &mut self.network, &self.link, now, notices)) {
                Ok(outcome) => {
                    (progress, pushed) = (outcome.progress, outcome.pushed);
                    self.last_run = outcome;
                }
                // The path may have delivered messages before it failed.
                Err(error) => (pushed, failure) = (true, Some(error)),
            }
        }
        if let Some(source) = self.source.as_mut() {
            match source.run(context(&mut self.device, &mut self.network, &self.link, now, notices)) {
                Ok(outcome) => {
                    progress |= outcome.progress;
                    sent = outcome.pushed;
                    self.last_run.messages += outcome.messages;
                    self.last_run.bytes += outcome.bytes;
                }
                Err(error) => failure = Some(error),
            }
        }
        if pushed || self.device.is_unflushed {
            if let Some(sink) = self.sink.as_mut() {
                sink.handle_flush();
            }
            if let Err(error) = self.device.flush() {
                failure = Some(PathError::Partner(error));
            }
            if let Some(sink) = self.sink.as_mut().filter(|_| !self.device.is_unflushed) {
                sink.trace_delivered();
            }
        }
        if let Some(sink) = self.sink.as_mut() {
            sink.complete_run(self.device.partner.as_mut(), self.device.is_unflushed, now, notices);
        }
        let writes = sent || self.network.is_unflushed;
        if writes {
            if let Some(source) = self.source.as_mut() {
                source.trace_writing();
            }
            if let Err(error) = self.network.flush() {
                failure = Some(PathError::Transport(error));
            }
        }
        let is_held_back = failure.is_none() && self.network.is_held_back(writes, now);
        if is_held_back && (!self.link.lossy || self.link.reconnects.permit(now)) {
            notices.push(Notice::LinkHeldBack);
        }
        if failure.is_none() && self.link.has_ways {
            failure = self.serve_ways(now, poller, notices).err().map(PathError::Transport);
        }
        if let Some(source) = self.source.as_mut() {
            source.trace_written(self.network.partner.as_mut(), writes && !self.network.is_unflushed);
        }
        while let Some(change) = self.device.partner.as_mut().and_then(|partner| partner.presence()) {
            self.handle_presence(change, now, notices);
            progress = true;
        }
        self.take_wishes(notices);
        if let Some(failure) = failure {
            progress |= self.handle_failure(failure, now, poller, notices);
        }
        progress
    }

    /// Reports the connections that the device needs, and its notes.
    fn take_wishes(&mut self, notices: &mut Vec<Notice>) {
        let Some(partner) = self.device.partner.as_mut() else { return };
        let wanted = partner.connections_wanted();
        if wanted > 0 {
            notices.push(Notice::ConnectionsWanted(wanted));
        }
        while let Some(note) = partner.note() {
            notices.push(Notice::Incident(note));
        }
    }

    /// Passes a further connection to the device, or the reason why there is none. Without the device, it is closed.
    pub fn handle_connected(&mut self, result: Result<OwnedFd, String>) -> PartnerResult {
        match self.device.partner.as_mut() {
            Some(partner) => partner.connected(result),
            None => Ok(()),
        }
    }

    /// Handles that a program's device was unplugged or is back. A state flow then continues with a snapshot.
    fn handle_presence(&mut self, change: Presence, now: Time, notices: &mut Vec<Notice>) {
        match change {
            Presence::Absent(reason) => notices.push(Notice::PartnerAbsent(reason)),
            Presence::Present => {
                if let Some(source) = self.source.as_mut() {
                    let cx = context(&mut self.device, &mut self.network, &self.link, now, notices);
                    source.handle_partner(cx);
                }
                notices.push(Notice::PartnerPresent);
            }
        }
    }

    /// Lets a transport with several connections run its protocol, if something has happened on them, and reports the
    /// connections that it needs.
    fn serve_ways(&mut self, now: Time, poller: &Poller, notices: &mut Vec<Notice>) -> PartnerResult {
        let Some(transport) = self.network.partner.as_mut() else { return Ok(()) };
        let waits = [transport.readiness(FlowKey::DEFAULT, Direction::Out), transport.upkeep()];
        let is_due = waits.iter().any(|readiness| {
            let mut descriptors = readiness.descriptors.iter().flatten();
            readiness.now
                || descriptors.any(|(descriptor, _)| poller.is_ready(*descriptor))
                || readiness.at.is_some_and(|at| at <= now)
        });
        if (is_due || self.network.is_unflushed)
            && let CtlReply::Count(ways) =
                transport.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::ServeWays))?
            && let Some(ways) = u32::try_from(ways).ok().filter(|ways| *ways > 0)
        {
            notices.push(Notice::WaysWanted(ways));
        }
        Ok(())
    }

    /// Adds another connection to the link. Without a link that has several, it is closed.
    pub fn add_way(&mut self, socket: OwnedFd, keys: Option<SealKeys>) -> PartnerResult {
        match self.network.partner.as_mut().filter(|_| self.link.has_ways) {
            Some(transport) => {
                let way = TransportCtl::AddWay(socket, keys);
                transport.ctl(FlowKey::DEFAULT, Ctl::Transport(way)).map(drop)
            }
            None => Ok(()),
        }
    }

    /// Lets a lossy transport process acknowledgements from its peer, which arrive with the records. No flow ends on
    /// this host, so other records are discarded.
    fn poll_receiver(&mut self, now: Time, poller: &Poller) -> PartnerResult {
        let Some(transport) = self.network.partner.as_mut() else { return Ok(()) };
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

    /// Returns whether a flow holds something that the loss of the link would harm.
    pub fn is_holding(&mut self) -> bool {
        let (source, sink) = (self.source.as_ref(), self.sink.as_ref());
        source.is_some_and(|source| source.is_holding(self.device.partner.as_mut()))
            || sink.is_some_and(|sink| sink.is_holding(self.device.partner.as_mut()))
    }

    /// Returns the messages and bytes that the paths pulled in the last run.
    pub fn last_run(&self) -> &RunOutcome {
        &self.last_run
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
                self.device.forget(poller);
                self.device.is_unflushed = false;
                if let Some(source) = self.source.as_mut() {
                    source.handle_partner_gone(now);
                }
                match error {
                    PartnerError::Gone(_) => notices.push(Notice::PartnerGone(error.to_string())),
                    other => notices.push(Notice::Failed(other.to_string())),
                }
            }
        }
        true
    }

    /// Registers descriptors with the poller. Returns the time of the next run.
    pub fn register(&self, poller: &mut Poller) -> Wake {
        let mut wake = Wake::default();
        let (partner, transport) = (self.device.partner.as_deref(), self.network.partner.as_deref());
        if let Some(source) = &self.source {
            source.register(
                partner,
                transport,
                self.link.facts.unwrap_or_default().round_trip,
                poller,
                &mut wake,
            );
        }
        if let Some(sink) = &self.sink {
            sink.register(partner, transport.filter(|_| self.link.facts.is_some()), poller, &mut wake);
        }
        for side in [&self.device, &self.network] {
            if let Some(partner) = side.partner.as_deref().filter(|_| side.is_unflushed) {
                let readiness = partner.readiness(FlowKey::DEFAULT, Direction::In);
                // A flush waits for the descriptor only, not for room in the queue.
                wake.add(poller, Readiness { now: false, ..readiness });
            }
        }
        if let Some(transport) = transport {
            wake.add(poller, transport.upkeep());
        }
        wake.at(self.link.replaced.as_ref().map(|(_, until)| *until));
        // Without a sink path, the driver must still detect that the connection ended.
        if self.sink.is_none()
            && let Some(transport) = transport
        {
            wake.add(
                poller,
                Readiness { now: false, ..transport.readiness(FlowKey::DEFAULT, Direction::Out) },
            );
        }
        wake
    }

    /// Closes everything and removes the descriptors from the poller.
    pub fn close(mut self, poller: &mut Poller) {
        self.handle_link_lost(poller);
        if let Some(partner) = self.device.partner.as_mut() {
            let _ = partner.ctl(FlowKey::DEFAULT, Ctl::Neutral);
        }
        self.device.forget(poller);
    }

    /// Advances a pending acknowledgement to the next run. Returns whether one is pending.
    pub fn ack_now(&mut self, now: Time) -> bool {
        self.sink.as_mut().is_some_and(|sink| sink.ack_now(now))
    }

    /// Returns whether the data connection has received anything from the peer since the last call.
    pub fn has_received(&mut self) -> bool {
        match self
            .network
            .partner
            .as_mut()
            .map(|transport| transport.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Received)))
        {
            Some(Ok(CtlReply::Count(count))) => {
                std::mem::replace(&mut self.link.received_count, count) != count
            }
            _ => false,
        }
    }

    /// Sends a command in the language of the partner's class. Returns its answer or an error text.
    pub fn send_command(&mut self, words: &str) -> Result<String, String> {
        let partner = self.device.partner.as_mut().ok_or("the device is gone")?;
        match partner.ctl(FlowKey::DEFAULT, Ctl::Command(words)) {
            Ok(CtlReply::Bytes(answer)) => Ok(String::from_utf8_lossy(&answer).into_owned()),
            Ok(_) => Ok(String::new()),
            Err(PartnerError::Unsupported(_)) => Err("it has no controls".into()),
            Err(PartnerError::Message(problem)) => Err(problem),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Traces one message in `one_in`, or continues an active trace. The trace stops when `one_in` is `None` or when
    /// no call renews it. Returns the stamps since the last call.
    pub fn trace(&mut self, one_in: Option<NonZeroU32>, now: Time) -> Vec<FlowTrace> {
        let Some(one_in) = one_in else {
            self.end_trace();
            return Vec::new();
        };
        if self.traced_until.replace(now.after(LEASE)).is_none() {
            self.watch(TraceCtl::Begin);
        }
        let offset_ns = self.link.facts.map(|facts| facts.offset.0);
        let source = self.source.as_mut().and_then(|source| source.trace(one_in));
        let sink = self.sink.as_mut().and_then(|sink| sink.trace(one_in));
        source.into_iter().chain(sink).map(|flow| FlowTrace { offset_ns, ..flow }).collect()
    }

    fn end_trace(&mut self) {
        self.traced_until = None;
        self.watch(TraceCtl::End);
        if let Some(source) = self.source.as_mut() {
            source.end_trace();
        }
        if let Some(sink) = self.sink.as_mut() {
            sink.end_trace();
        }
    }

    /// A transport without kernel timestamps returns an error; the trace then lacks those points.
    fn watch(&mut self, operation: TraceCtl) {
        if let Some(transport) = self.network.partner.as_mut() {
            let _ = transport.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Trace(operation)));
        }
    }

    /// Returns the driver's statistics.
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
            linked: self.network.partner.is_some(),
            present: self.device.partner.is_some(),
            traced: self.traced_until.is_some(),
            locked: false,
            restarts: 0,
            busy_seconds: 0.0,
            outgoing: self.source.as_ref().map(SourcePath::stats),
            incoming: self.sink.as_ref().map(SinkPath::stats),
            partner: figures(self.device.partner.as_mut()),
            transport: figures(self.network.partner.as_mut()),
        }
    }
}

#[cfg(test)]
mod tests;
