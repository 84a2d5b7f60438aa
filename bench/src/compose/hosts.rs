//! Two hosts in one process, a bad network between them, and a device and an application made of memory.

use super::draw::Case;
use contract::{
    Attributes, Ctl, CtlReply, Description, Direction, FlowClass, FlowDirection, FlowKey, FlowOffer,
    FlowTemplate, Format, Interest, Message, Next, Options, Partner, PartnerError, Pull, PullSlot, Pulled,
    Pushed, Readiness, Secret, Time,
};
use netsim::relay::Relay;
use pipeline::Pipeline;
use runtime::worker::TransportPlan;
use runtime::{
    ApplicationChoice, AttachRequest, AttachTarget, Attacher, DeviceChoice, DriverStats, Event, HubPolicy,
    Limits, Pipelines, ShareDevice, ShareRequest, Sharer, Stop, registry,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::event::Event as Wake;

/// Longer than any of these flows takes on a busy machine.
const WATCHDOG: Duration = Duration::from_secs(60);
/// Time between two looks at what came.
const LOOK: Duration = Duration::from_millis(5);
/// From the attachment to the first message: what is timely is worth nothing before the hosts have a data connection.
const FIRST: Duration = Duration::from_millis(200);
/// The device's name.
const NAME: &str = "bench";

/// What both partners of a flow, and who looks on, know.
#[derive(Default)]
struct State {
    /// When the device begins to speak.
    begun: Option<Time>,
    /// What it will say, each this long after it began.
    to_say: VecDeque<(Duration, Vec<u8>)>,
    /// When it said what it said.
    said: Vec<Time>,
    came: Vec<Vec<u8>>,
    /// When each of those came.
    arrived: Vec<Time>,
    is_attached: bool,
    /// Partners that were made, or told that a flow opens.
    opened: usize,
    /// The application was told that the flow has ended, and may say that it has everything.
    is_ending: bool,
    may_end: bool,
    /// Figures of the sharer's and the attacher's driver, and how many came.
    stats: [(usize, DriverStats); 2],
}

/// A handle on them.
#[derive(Clone)]
pub(crate) struct Bench {
    state: Arc<Mutex<State>>,
    device: Wake,
    application: Wake,
}

fn now() -> Time {
    Time(sys::clock::boot_ns())
}

impl Bench {
    pub(crate) fn new(to_say: VecDeque<(Duration, Vec<u8>)>) -> Result<Bench, String> {
        let wake = || Wake::new().map_err(|error| format!("eventfd: {error}"));
        let state = State { to_say, ..State::default() };
        Ok(Bench { state: Arc::new(Mutex::new(state)), device: wake()?, application: wake()? })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.device.signal();
        self.application.signal();
    }

    /// One of the two: the device gives out, the application takes in.
    pub(super) fn partner(&self, role: Direction) -> Box<dyn Partner> {
        self.state().opened += 1;
        Box::new(End { bench: self.clone(), role, slot: PullSlot::default() })
    }

    /// How many partners were made, and flows of them opened.
    pub(super) fn opened(&self) -> usize {
        self.state().opened
    }

    pub(super) fn came(&self) -> Vec<Vec<u8>> {
        self.state().came.clone()
    }

    /// The device begins to speak a little later, whoever is there.
    pub(crate) fn begin(&self) {
        self.change(|state| {
            state.begun.get_or_insert_with(|| now().after(FIRST));
        });
    }

    /// The application has everything as soon as its flow has ended.
    pub(crate) fn may_end(&self) {
        self.change(|state| state.may_end = true);
    }

    /// Whether the application's host has its flow.
    pub(crate) fn is_attached(&self) -> bool {
        self.state().is_attached
    }

    /// When the device said what it said.
    pub(crate) fn said(&self) -> Vec<Time> {
        self.state().said.clone()
    }

    /// When each message came, and its body.
    pub(crate) fn arrivals(&self) -> Vec<(Time, Vec<u8>)> {
        let state = self.state();
        state.arrived.iter().copied().zip(state.came.iter().cloned()).collect()
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

/// The device, or the application.
struct End {
    bench: Bench,
    role: Direction,
    slot: PullSlot,
}

impl End {
    fn wake(&self) -> &Wake {
        if self.role == Direction::Out { &self.bench.device } else { &self.bench.application }
    }
}

impl Partner for End {
    fn open(&mut self, template: &FlowTemplate, _: &Attributes) -> Result<FlowKey, PartnerError> {
        if template.direction != self.role {
            return Err(PartnerError::Unsupported("this direction"));
        }
        self.bench.state().opened += 1;
        Ok(FlowKey(1))
    }

    fn close(&mut self, _: FlowKey) -> Result<(), PartnerError> {
        Ok(())
    }

    fn push(&mut self, _: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        let mut state = self.bench.state();
        state.arrived.push(now());
        state.came.push(message.body.into_bytes().to_vec());
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        self.wake().clear();
        let mut state = self.bench.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.slot.answer(flow, want, || {
            let Some(begun) = state.begun else { return Ok(Next::Nothing) };
            let now = now();
            Ok(match state.to_say.front() {
                None => Next::End,
                Some((after, _)) if begun.after(*after) > now => Next::Nothing,
                Some(_) => match state.to_say.pop_front() {
                    Some((_, body)) => {
                        state.said.push(now);
                        Next::Message(Message::new(now, body))
                    }
                    None => Next::End,
                },
            })
        })
    }

    fn ctl(&mut self, _: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        if let Ctl::Finish = operation {
            self.wake().clear();
            let mut state = self.bench.state();
            state.is_ending = true;
            return Ok(if state.may_end { CtlReply::Done } else { CtlReply::Pending });
        }
        match operation {
            Ctl::Flush | Ctl::Neutral => Ok(CtlReply::Done),
            _ => Err(PartnerError::Unsupported("this")),
        }
    }

    fn readiness(&self, _: FlowKey, direction: Direction) -> Readiness<'_> {
        let state = self.bench.state();
        let waits = Readiness::descriptor(self.wake().as_fd(), Interest::Read);
        if direction == Direction::In {
            return waits;
        }
        let due =
            state.begun.map(|begun| state.to_say.front().map_or(begun, |(after, _)| begun.after(*after)));
        match due {
            _ if self.slot.is_held() => Readiness::now(),
            Some(due) if due <= now() => Readiness::now(),
            due => waits.or_at(due),
        }
    }
}

/// The device's one flow.
pub(super) fn flows(format: &Format, class: FlowClass) -> Vec<FlowOffer> {
    vec![FlowOffer { direction: FlowDirection::DeviceToApplication, format: format.clone(), class }]
}

/// A service in a thread of its own; it stops when this is dropped.
pub(crate) struct Running {
    stop: Stop,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Running {
    fn start(run: impl FnOnce(&Stop) -> Result<(), String> + Send + 'static) -> Result<Running, String> {
        let stop = Stop::new().map_err(|error| error.to_string())?;
        let said = stop.clone();
        Ok(Running { stop, thread: Some(std::thread::spawn(move || run(&said))) })
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// What it says, once it ends by itself.
    pub(crate) fn result(&mut self) -> Result<(), String> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err("it panicked".into()),
            None => Ok(()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        // What it says is of no use any more.
        let _ = self.result();
    }
}

/// An address of this host that is free.
pub(crate) fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Shares the device, at the address that is given.
pub(crate) fn share(
    bench: &Bench,
    (format, class): (&Format, FlowClass),
    pipelines: Pipelines,
) -> Result<(Running, SocketAddr), String> {
    let description = Description {
        class: NAME.into(),
        summary: "a device made of memory".into(),
        flows: flows(format, class),
        application: "stdout",
        properties: Vec::new(),
    };
    let make = bench.clone();
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
    let sharer = Sharer::start(request).map_err(|error| error.to_string())?;
    let address = sharer.address();
    let notes = bench.clone();
    let share = Running::start(move |stop| {
        sharer.run(stop, &mut |event| notes.note(0, event)).map_err(|error| error.to_string())
    })?;
    Ok((share, address))
}

/// Attaches what is shared at this address to the application.
pub(crate) fn attach(
    bench: &Bench,
    address: SocketAddr,
    transport: &str,
    pipelines: Pipelines,
) -> Result<Running, String> {
    let class = registry::transport(transport).ok_or("there is no such transport")?;
    let options = Options::defaults(class.options()).map_err(|error| error.to_string())?;
    let target = AttachTarget {
        name: NAME.into(),
        application: ApplicationChoice::Partner(bench.partner(Direction::In)),
        pipelines,
    };
    let request = AttachRequest {
        address: address.to_string(),
        transport: TransportPlan { class, options },
        fallback: None,
        targets: vec![target],
        trust: None,
        limits: Limits::default(),
        host: "b".into(),
    };
    let attacher = Attacher::start(request).map_err(|error| error.to_string())?;
    let notes = bench.clone();
    Running::start(move |stop| {
        attacher.run(stop, &mut |event| notes.note(1, event)).map_err(|error| error.to_string())
    })
}

/// Both hosts, while their flow runs.
pub(super) struct Hosts {
    bench: Bench,
    // Dropped in this order: who uses the device goes first.
    attach: Running,
    share: Running,
    relay: Relay,
}

impl Hosts {
    /// Shares the device at one host, and attaches it at the other through `pipeline`.
    pub(super) fn start(
        bench: &Bench,
        (format, class): (&Format, FlowClass),
        transport: &str,
        (network, seed): (&netsim::Params, u64),
        pipeline: &Pipeline,
    ) -> Result<Hosts, String> {
        let key = Some(Secret([seed as u8; 32]));
        let pipelines = Pipelines { key: key.clone(), ..Pipelines::default() };
        let (share, address) = share(bench, (format, class), pipelines)?;
        let relay = Relay::start(any(), address, network.clone(), seed).map_err(|error| error.to_string())?;
        let pipelines = Pipelines { via: Some(pipeline.clone()), key, ..Pipelines::default() };
        let attach = attach(bench, relay.address(), transport, pipelines)?;
        Ok(Hosts { bench: bench.clone(), attach, share, relay })
    }

    /// Waits for the attacher to end by itself, and gives what it says.
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
        let state = self.bench.state();
        let sharer = if self.share.has_ended() { "has ended" } else { "runs" };
        let lost = netsim::relay::Direction::BOTH.map(|way| self.relay.traffic(way).counters);
        format!(
            "nothing more for {} s: {} messages came, {} were not said; the sharer {sharer}; the network: {lost:?}; \
             figures: {:?}",
            WATCHDOG.as_secs(),
            state.came.len(),
            state.to_say.len(),
            state.stats
        )
    }
}

/// What came of a flow.
pub(super) struct Arrived {
    pub(super) came: Vec<Vec<u8>>,
    /// Figures of the sharer's and the attacher's driver.
    pub(super) stats: [DriverStats; 2],
}

/// Runs the flow of `case` until its end. `is_accounted` says whether what came, with these figures, is all that
/// there is to know: figures are told once a second.
pub(super) fn carry(
    case: &Case,
    to_say: VecDeque<(Duration, Vec<u8>)>,
    mut is_accounted: impl FnMut(&Arrived) -> bool,
) -> Result<Arrived, String> {
    let bench = Bench::new(to_say)?;
    let network = (&case.network, case.seed);
    let mut hosts =
        Hosts::start(&bench, (&case.format, case.class), case.transport, network, &case.pipeline)?;
    let began = Instant::now();
    let mut at_end = None;
    loop {
        if hosts.attach.has_ended() {
            let said = hosts.attach.result();
            return Err(format!("the attacher ended before its application let it: {said:?}"));
        }
        if began.elapsed() > WATCHDOG {
            return Err(hosts.hangs());
        }
        if bench.state().is_ending {
            let (counts, stats): (Vec<_>, Vec<_>) = bench.state().stats.clone().into_iter().unzip();
            let before = at_end.get_or_insert_with(|| counts.clone());
            let stats = stats.try_into().unwrap_or_default();
            let arrived = Arrived { came: bench.came(), stats };
            // Of two more that are told, the second was taken after the end.
            let is_settled = counts.iter().zip(&*before).all(|(now, then)| *now >= then + 2);
            if is_settled || is_accounted(&arrived) {
                bench.change(|state| state.may_end = true);
                hosts.end()??;
                return Ok(Arrived { came: bench.came(), ..arrived });
            }
        }
        std::thread::sleep(LOOK);
    }
}
