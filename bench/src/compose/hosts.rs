//! Two hosts in one process with a bad network between them, and a device and an application in memory.

use super::draw::Case;
use broker::{
    ApplicationHost, AttachRequest, AttachTarget, DeviceChoice, DeviceHost, Event, ShareDevice, ShareRequest,
};
use contract::{
    Attributes, Ctl, CtlReply, Description, Direction, FlowClass, FlowDirection, FlowKey, FlowOffer,
    FlowTemplate, Format, Interest, Message, Next, Options, Partner, PartnerError, PartnerResult, Pull,
    PullSlot, Pulled, Pushed, Readiness, Secret, Time,
};
use flow::DriverStats;
use hub::{ApplicationChoice, HubPolicy};
use modules::TransportPlan;
use modules::{Pipelines, registry};
use netsim::relay::Relay;
use pipeline::Pipeline;
use session::Limits;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::event::Event as Wake;
use sys::stop::Stop;

/// A bound on every flow, also on a busy machine.
const WATCHDOG: Duration = Duration::from_secs(60);
/// The interval of checks.
const LOOK: Duration = Duration::from_millis(5);
/// The time from the attachment to the first message. A timely flow drops messages before the data connection exists.
const FIRST: Duration = Duration::from_millis(200);
/// The device's name.
const NAME: &str = "bench";

/// The shared state of both partners of a flow.
#[derive(Default)]
struct State {
    /// Start time of the device.
    begun: Option<Time>,
    /// Messages to send, with their times after the start.
    to_send: VecDeque<(Duration, Vec<u8>)>,
    /// Times of the sent messages.
    sent_at: Vec<Time>,
    received: Vec<Vec<u8>>,
    /// Times of the received messages.
    arrived: Vec<Time>,
    is_attached: bool,
    /// Number of created partners and opened flows.
    opened: usize,
    /// True once the flow has ended at the application.
    is_ending: bool,
    /// True once the application may confirm the end.
    can_end: bool,
    /// Statistics of the device host and of the application host, with the number of reports.
    stats: [(usize, DriverStats); 2],
}

/// A handle on both partners.
#[derive(Clone)]
pub(crate) struct Ends {
    state: Arc<Mutex<State>>,
    device: Wake,
    application: Wake,
}

fn now() -> Time {
    Time(sys::clock::boot_ns())
}

impl Ends {
    pub(crate) fn new(to_send: VecDeque<(Duration, Vec<u8>)>) -> Result<Ends, String> {
        let wake = || Wake::new().map_err(|error| format!("eventfd: {error}"));
        let state = State { to_send, ..State::default() };
        Ok(Ends { state: Arc::new(Mutex::new(state)), device: wake()?, application: wake()? })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.device.signal();
        self.application.signal();
    }

    /// Returns the partner of the device or of the application.
    pub(super) fn partner(&self, role: Direction) -> Box<dyn Partner> {
        self.state().opened += 1;
        Box::new(End { ends: self.clone(), role, slot: PullSlot::default() })
    }

    /// Returns the number of created partners and opened flows.
    pub(super) fn opened(&self) -> usize {
        self.state().opened
    }

    pub(super) fn received(&self) -> Vec<Vec<u8>> {
        self.state().received.clone()
    }

    /// Starts the device a little later.
    pub(crate) fn begin(&self) {
        self.change(|state| {
            state.begun.get_or_insert_with(|| now().after(FIRST));
        });
    }

    /// Lets the application confirm the end of its flow.
    pub(crate) fn allow_end(&self) {
        self.change(|state| state.can_end = true);
    }

    /// Returns true once the application host has its flow.
    pub(crate) fn is_attached(&self) -> bool {
        self.state().is_attached
    }

    /// Returns the times of the sent messages.
    pub(crate) fn sent_at(&self) -> Vec<Time> {
        self.state().sent_at.clone()
    }

    /// Returns the received messages with their times.
    pub(crate) fn arrivals(&self) -> Vec<(Time, Vec<u8>)> {
        let state = self.state();
        state.arrived.iter().copied().zip(state.received.iter().cloned()).collect()
    }

    fn note(&self, host: usize, event: Event) {
        match event {
            Event::Stats { stats, .. } => {
                let known = &mut self.state().stats[host];
                *known = (known.0 + 1, *stats);
            }
            Event::Attached { .. } if host == 1 => {
                self.change(|state| state.is_attached = true);
                self.begin();
            }
            _ => {}
        }
    }
}

/// The device or the application.
struct End {
    ends: Ends,
    role: Direction,
    slot: PullSlot,
}

impl End {
    fn wake(&self) -> &Wake {
        if self.role == Direction::Out { &self.ends.device } else { &self.ends.application }
    }
}

impl Partner for End {
    fn open(&mut self, template: &FlowTemplate, _: &Attributes) -> PartnerResult<FlowKey> {
        if template.direction != self.role {
            return Err(PartnerError::Unsupported("this direction"));
        }
        self.ends.state().opened += 1;
        Ok(FlowKey(1))
    }

    fn close(&mut self, _: FlowKey) -> PartnerResult {
        Ok(())
    }

    fn push(&mut self, _: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        let mut state = self.ends.state();
        state.arrived.push(now());
        state.received.push(message.body.into_bytes().to_vec());
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
        self.wake().clear();
        let mut state = self.ends.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.slot.answer(flow, request, || {
            let Some(begun) = state.begun else { return Ok(Next::Nothing) };
            let now = now();
            Ok(match state.to_send.front() {
                None => Next::End,
                Some((after, _)) if begun.after(*after) > now => Next::Nothing,
                Some(_) => match state.to_send.pop_front() {
                    Some((_, body)) => {
                        state.sent_at.push(now);
                        Next::Message(Message::new(now, body))
                    }
                    None => Next::End,
                },
            })
        })
    }

    fn ctl(&mut self, _: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        if let Ctl::Finish = operation {
            self.wake().clear();
            let mut state = self.ends.state();
            state.is_ending = true;
            return Ok(if state.can_end { CtlReply::Done } else { CtlReply::Pending });
        }
        match operation {
            Ctl::Flush | Ctl::Neutral => Ok(CtlReply::Done),
            _ => Err(PartnerError::Unsupported("this")),
        }
    }

    fn readiness(&self, _: FlowKey, direction: Direction) -> Readiness<'_> {
        let state = self.ends.state();
        let waits = Readiness::descriptor(self.wake().as_fd(), Interest::Read);
        if direction == Direction::In {
            return waits;
        }
        let due =
            state.begun.map(|begun| state.to_send.front().map_or(begun, |(after, _)| begun.after(*after)));
        match due {
            _ if self.slot.is_held() => Readiness::now(),
            Some(due) if due <= now() => Readiness::now(),
            due => waits.or_at(due),
        }
    }
}

/// Returns the device's only flow.
pub(super) fn flows(format: &Format, class: FlowClass) -> Vec<FlowOffer> {
    vec![FlowOffer { direction: FlowDirection::DeviceToApplication, format: format.clone(), class }]
}

/// A host in a thread of its own. Dropping the value stops it.
pub(crate) struct Running {
    stop: Stop,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Running {
    fn start(run: impl FnOnce(&Stop) -> Result<(), String> + Send + 'static) -> Result<Running, String> {
        let stop = Stop::new().map_err(|error| error.to_string())?;
        let stopped = stop.clone();
        Ok(Running { stop, thread: Some(std::thread::spawn(move || run(&stopped))) })
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the host and returns its result.
    pub(crate) fn result(&mut self) -> Result<(), String> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err("the host panicked".into()),
            None => Ok(()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        // The result of a stopped host does not matter.
        let _ = self.result();
    }
}

/// Returns an address with a free port.
pub(crate) fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Shares the device. Returns the host and its address.
pub(crate) fn share(
    ends: &Ends,
    (format, class): (&Format, FlowClass),
    pipelines: Pipelines,
) -> Result<(Running, SocketAddr), String> {
    let description = Description {
        class: NAME.into(),
        summary: "a device in memory".into(),
        flows: flows(format, class),
        application: "stdout",
        properties: Vec::new(),
    };
    let make = ends.clone();
    let device = DeviceChoice::Own(description, Arc::new(move || Ok(make.partner(Direction::Out))));
    let device = ShareDevice {
        device,
        name: Some(NAME.into()),
        pipelines,
        hub: HubPolicy::default(),
        allow: Vec::new(),
        transport: None,
    };
    let request = ShareRequest {
        devices: vec![device],
        listen: any(),
        trust: None,
        limits: Limits::default(),
        host: "a".into(),
        announce: false,
    };
    let device_host = DeviceHost::start(request).map_err(|error| error.to_string())?;
    let address = device_host.address();
    let notes = ends.clone();
    let share = Running::start(move |stop| {
        device_host.run(stop, &mut |event| notes.note(0, event)).map_err(|error| error.to_string())
    })?;
    Ok((share, address))
}

/// Attaches the device at this address to the application.
pub(crate) fn attach(
    ends: &Ends,
    address: SocketAddr,
    transport: &str,
    pipelines: Pipelines,
) -> Result<Running, String> {
    let class = registry::transport(transport).ok_or("there is no such transport")?;
    let options = Options::defaults(class.options()).map_err(|error| error.to_string())?;
    let target = AttachTarget {
        name: NAME.into(),
        application: ApplicationChoice::Partner(ends.partner(Direction::In)),
        pipelines,
        expect: None,
    };
    let request = AttachRequest {
        peer: None,
        address: address.to_string(),
        transport: TransportPlan { class, options },
        fallback: None,
        targets: vec![target],
        trust: None,
        limits: Limits::default(),
        host: "b".into(),
    };
    let application_host = ApplicationHost::start(request).map_err(|error| error.to_string())?;
    let notes = ends.clone();
    Running::start(move |stop| {
        application_host.run(stop, &mut |event| notes.note(1, event)).map_err(|error| error.to_string())
    })
}

/// Both hosts with their flow.
pub(super) struct Hosts {
    ends: Ends,
    // In the order of their drop: the application host first.
    attach: Running,
    share: Running,
    relay: Relay,
}

impl Hosts {
    /// Shares the device at one host and attaches it at the other through `pipeline`.
    pub(super) fn start(
        ends: &Ends,
        (format, class): (&Format, FlowClass),
        transport: &str,
        (network, seed): (&netsim::Params, u64),
        pipeline: &Pipeline,
    ) -> Result<Hosts, String> {
        let key = Some(Secret([seed as u8; 32]));
        let pipelines = Pipelines { key: key.clone(), ..Pipelines::default() };
        let (share, address) = share(ends, (format, class), pipelines)?;
        let relay = Relay::start(any(), address, network.clone(), seed).map_err(|error| error.to_string())?;
        let pipelines = Pipelines { via: Some(pipeline.clone()), key, ..Pipelines::default() };
        let attach = attach(ends, relay.address(), transport, pipelines)?;
        Ok(Hosts { ends: ends.clone(), attach, share, relay })
    }

    /// Waits for the application host and returns its result.
    pub(super) fn end(&mut self) -> Result<Result<(), String>, String> {
        let began = Instant::now();
        while !self.attach.has_ended() {
            if began.elapsed() > WATCHDOG {
                return Err(self.hangs());
            }
            std::thread::sleep(LOOK);
        }
        Ok(self.attach.result())
    }

    fn hangs(&self) -> String {
        let state = self.ends.state();
        let device_host = if self.share.has_ended() { "has exited" } else { "runs" };
        let lost = netsim::relay::Direction::BOTH.map(|way| self.relay.traffic(way).counters);
        format!(
            "no progress for {} s: {} messages arrived, {} were not sent; the device host {device_host}; network: {lost:?}; \
             statistics: {:?}",
            WATCHDOG.as_secs(),
            state.received.len(),
            state.to_send.len(),
            state.stats
        )
    }
}

/// The result of a flow.
pub(super) struct Arrived {
    pub(super) received: Vec<Vec<u8>>,
    /// Statistics of the device host and of the application host.
    pub(super) stats: [DriverStats; 2],
}

/// Runs the flow of `case` to its end. Statistics arrive once a second: the end waits until `is_accounted` accepts them, or
/// until they are complete.
pub(super) fn carry(
    case: &Case,
    to_send: VecDeque<(Duration, Vec<u8>)>,
    mut is_accounted: impl FnMut(&Arrived) -> bool,
) -> Result<Arrived, String> {
    let ends = Ends::new(to_send)?;
    let network = (&case.network, case.seed);
    let mut hosts = Hosts::start(&ends, (&case.format, case.class), case.transport, network, &case.pipeline)?;
    let began = Instant::now();
    let mut at_end = None;
    loop {
        if hosts.attach.has_ended() {
            let result = hosts.attach.result();
            return Err(format!(
                "the application host exited before its application confirmed the end: {result:?}"
            ));
        }
        if began.elapsed() > WATCHDOG {
            return Err(hosts.hangs());
        }
        if ends.state().is_ending {
            let (counts, stats): (Vec<_>, Vec<_>) = ends.state().stats.clone().into_iter().unzip();
            let before = at_end.get_or_insert_with(|| counts.clone());
            let stats = stats.try_into().unwrap_or_default();
            let arrived = Arrived { received: ends.received(), stats };
            // The second further report was taken after the end.
            let is_settled = counts.iter().zip(&*before).all(|(now, then)| *now >= then + 2);
            if is_settled || is_accounted(&arrived) {
                ends.change(|state| state.can_end = true);
                hosts.end()??;
                return Ok(Arrived { received: ends.received(), ..arrived });
            }
        }
        std::thread::sleep(LOOK);
    }
}
