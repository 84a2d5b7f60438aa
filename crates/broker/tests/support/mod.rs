//! A device and an application in memory, and hosts in this process that share and attach them.
#![allow(dead_code, reason = "each test program uses its part")]

use broker::{
    ApplicationHost, AttachRequest, AttachTarget, DeviceChoice, DeviceHost, Event, ShareDevice, ShareRequest,
};
use contract::ServiceError;
use contract::{
    Attributes, Ctl, CtlReply, Description, Direction, FlowClass, FlowDirection, FlowKey, FlowOffer,
    FlowTemplate, Format, Message, Next, Options, Partner, PartnerError, PartnerResult, Pull, PullSlot,
    Pulled, Pushed, Readiness, Time,
};
use hub::{ApplicationChoice, HubPolicy, Joint};
use modules::TransportPlan;
use modules::{Pipelines, registry};
use pipeline::Joined;
use session::Limits;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::event::Event as Wake;
use sys::stop::Stop;

/// Stops a test that hangs. Each wait of these tests normally ends with its condition.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

/// A device in memory: the messages that it will emit, the messages that it received, and whether it is plugged in.
#[derive(Default)]
pub(crate) struct Bench {
    pub(crate) to_pull: VecDeque<Vec<u8>>,
    pub(crate) ends: bool,
    pub(crate) gone: bool,
    /// Refuse messages for now.
    pub(crate) full: bool,
    pub(crate) held: Vec<u8>,
    pub(crate) snapshot_asked: bool,
    pub(crate) pushed: Vec<Vec<u8>>,
    /// Arrival times of `pushed`.
    pub(crate) arrived: Vec<Time>,
    pub(crate) neutral: usize,
    pub(crate) finished: bool,
}

#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) bench: Arc<Mutex<Bench>>,
    pub(crate) wake: Wake,
}

impl Handle {
    pub(crate) fn new() -> Handle {
        Handle { bench: Arc::default(), wake: Wake::new().unwrap() }
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Bench) -> T) -> T {
        let value = act(&mut self.bench.lock().unwrap());
        self.wake.signal();
        value
    }

    /// Emits a message, like an event of the device.
    pub(crate) fn say(&self, text: impl Into<Vec<u8>>) {
        self.with(|bench| bench.to_pull.push_back(text.into()));
    }

    pub(crate) fn wait(&self, condition: &str, mut done: impl FnMut(&Bench) -> bool) {
        let began = Instant::now();
        while !done(&self.bench.lock().unwrap()) {
            let pushed = self.bench.lock().unwrap().pushed.len();
            assert!(began.elapsed() < WATCHDOG, "waited in vain for: {condition}; {pushed} messages came");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

pub(crate) struct BenchPartner {
    handle: Handle,
    slot: PullSlot,
}

impl BenchPartner {
    pub(crate) fn new(handle: &Handle) -> BenchPartner {
        BenchPartner { handle: handle.clone(), slot: PullSlot::default() }
    }
}

impl Partner for BenchPartner {
    fn open(&mut self, _template: &FlowTemplate, _attributes: &Attributes) -> PartnerResult<FlowKey> {
        Ok(FlowKey(1))
    }

    fn close(&mut self, _flow: FlowKey) -> PartnerResult {
        Ok(())
    }

    fn push(&mut self, _flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        self.handle.wake.clear();
        let mut bench = self.handle.bench.lock().unwrap();
        if bench.gone {
            return Err((PartnerError::Gone("the bench".into()), message));
        }
        if bench.full {
            return Ok(Pushed::Full(message));
        }
        bench.arrived.push(Time(sys::clock::boot_ns()));
        bench.pushed.push(message.body.into_bytes().to_vec());
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
        self.handle.wake.clear();
        let mut bench = self.handle.bench.lock().unwrap();
        self.slot.answer(flow, request, || {
            if bench.gone {
                return Err(PartnerError::Gone("the bench".into()));
            }
            let created = Time(sys::clock::boot_ns());
            if std::mem::take(&mut bench.snapshot_asked) {
                let mut held = b"held:".to_vec();
                held.extend(&bench.held);
                return Ok(Next::Message(Message::new(created, held)));
            }
            Ok(match bench.to_pull.pop_front() {
                Some(body) => Next::Message(Message::new(created, body)),
                None if bench.ends => Next::End,
                None => Next::Nothing,
            })
        })
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        let mut bench = self.handle.bench.lock().unwrap();
        match operation {
            Ctl::Snapshot => bench.snapshot_asked = true,
            Ctl::Neutral => bench.neutral += 1,
            Ctl::IsNeutral => return Ok(CtlReply::Count(bench.held.is_empty().into())),
            Ctl::Finish => bench.finished = true,
            Ctl::Flush => {}
            _ => return Err(PartnerError::Unsupported("this")),
        }
        Ok(CtlReply::Done)
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        let bench = self.handle.bench.lock().unwrap();
        let waiting = !bench.to_pull.is_empty() || bench.snapshot_asked || bench.gone || bench.ends;
        let ready = match direction {
            Direction::In => !bench.full,
            Direction::Out => waiting || self.slot.is_held(),
        };
        match ready {
            true => Readiness::now(),
            false => Readiness::descriptor(self.handle.wake.as_fd(), contract::Interest::Read),
        }
    }
}

/// Returns a device with a flow of this class in each direction.
pub(crate) fn description(class: FlowClass) -> Description {
    let flow = |direction| FlowOffer { direction, format: Format::Bytes, class };
    Description {
        class: "bench".into(),
        summary: "a device made of memory".into(),
        flows: vec![flow(FlowDirection::DeviceToApplication), flow(FlowDirection::ApplicationToDevice)],
        application: "stdout",
        properties: Vec::new(),
    }
}

/// A running service of this process; it stops on drop.
pub(crate) struct Running<T> {
    pub(crate) address: SocketAddr,
    pub(crate) stop: Stop,
    pub(crate) thread: JoinHandle<T>,
}

/// Shares a device as `bench`.
pub(crate) fn share(device: &Handle, class: FlowClass, listen: SocketAddr, hub: HubPolicy) -> Running<()> {
    share_via(device, class, listen, hub, None)
}

/// Shares a device as `bench`, through a pipeline.
pub(crate) fn share_via(
    device: &Handle,
    class: FlowClass,
    listen: SocketAddr,
    hub: HubPolicy,
    via: Option<&str>,
) -> Running<()> {
    let make = device.clone();
    let own = DeviceChoice::Own(
        description(class),
        Arc::new(move || {
            let gone = make.bench.lock().unwrap().gone;
            let problem =
                || contract::DeviceError::Spec { what: "bench".into(), problem: "it is gone".into() };
            (!gone).then(|| Box::new(BenchPartner::new(&make)) as Box<dyn Partner>).ok_or_else(problem)
        }),
    );
    let pipelines = Pipelines::parse(via, None, None).unwrap();
    let request = ShareRequest {
        devices: vec![ShareDevice {
            device: own,
            name: Some("bench".into()),
            pipelines,
            hub,
            allow: Vec::new(),
            transport: None,
        }],
        listen,
        trust: None,
        limits: Limits::default(),
        host: "a".into(),
        announce: false,
    };
    let device_host = DeviceHost::start(request).unwrap();
    let (address, stop) = (device_host.address(), Stop::new().unwrap());
    let said = stop.clone();
    let thread =
        std::thread::spawn(move || device_host.run(&said, &mut |event| show("share", &event)).unwrap());
    Running { address, stop, thread }
}

/// Makes a request that attaches `bench` at this address to a node of this program.
pub(crate) fn request(address: SocketAddr, application: &Handle, via: Option<&str>) -> AttachRequest {
    let class = registry::transport("tcp").unwrap();
    let target = AttachTarget {
        name: "bench".into(),
        application: ApplicationChoice::Partner(Box::new(BenchPartner::new(application))),
        pipelines: Pipelines::parse(via, None, None).unwrap(),
        expect: None,
    };
    AttachRequest {
        peer: None,
        address: address.to_string(),
        transport: TransportPlan { class, options: Options::defaults(class.options()).unwrap() },
        fallback: None,
        targets: vec![target],
        trust: None,
        limits: Limits::default(),
        host: "b".into(),
    }
}

/// Attaches `bench`; returns once it is attached.
pub(crate) fn attach(
    address: SocketAddr,
    application: &Handle,
    via: Option<&str>,
) -> Running<Result<(), String>> {
    let application_host = ApplicationHost::start(request(address, application, via)).unwrap();
    let stop = Stop::new().unwrap();
    let (said, (told, attached)) = (stop.clone(), channel());
    let thread = std::thread::spawn(move || {
        let mut emit = |event| {
            show("attach", &event);
            if matches!(event, Event::Attached { .. }) {
                let _ = told.send(());
            }
        };
        application_host.run(&said, &mut emit).map_err(|error| error.to_string())
    });
    attached.recv_timeout(WATCHDOG).expect("it is attached");
    Running { address, stop, thread }
}

type Run = Box<dyn FnOnce(&Stop) -> Result<(), ServiceError> + Send>;

/// Attaches `bench` of each of these hosts, called `a`, `b` and so on, through one joint; returns its events and
/// those of the attachments once they end.
pub(crate) fn join(
    addresses: &[SocketAddr],
    applications: &[&Handle],
    via: &str,
) -> Vec<Running<Result<(), String>>> {
    let joined = Joined::parse(via, registry::pairs()).unwrap().expect("it joins");
    let names: Vec<String> =
        (b'a'..).take(addresses.len()).map(|name| char::from(name).to_string()).collect();
    let pipelines =
        joined.pipelines(&names.iter().map(|name| vec![name.as_str()]).collect::<Vec<_>>()).unwrap();
    let nodes = applications
        .iter()
        .map(|node| ApplicationChoice::Partner(Box::new(BenchPartner::new(node))))
        .collect();
    let (joint, ports) = Joint::new(&names, joined.joint().clone(), joined.after().clone(), nodes).unwrap();
    let start = |address: SocketAddr, run: Run| {
        let stop = Stop::new().unwrap();
        let said = stop.clone();
        let thread = std::thread::spawn(move || run(&said).map_err(|error| error.to_string()));
        Running { address, stop, thread }
    };
    let mut running = Vec::new();
    for ((address, pipeline), port) in addresses.iter().zip(pipelines).zip(ports) {
        let mut request = request(*address, &Handle::new(), None);
        request.targets[0].application = ApplicationChoice::Joint(port);
        request.targets[0].pipelines.via = Some(pipeline);
        let application_host = ApplicationHost::start(request).unwrap();
        running.push(start(
            *address,
            Box::new(move |stop| application_host.run(stop, &mut |event| show("attach", &event))),
        ));
    }
    let (told, attached) = channel();
    let emit = move |event: Event| {
        show("joint", &event);
        if matches!(event, Event::Attached { .. }) {
            let _ = told.send(());
        }
    };
    running.push(start(
        addresses[0],
        Box::new(move |stop| joint.run(stop, &mut |event| emit(Event::from(event)))),
    ));
    attached.recv_timeout(WATCHDOG).expect("the joint is there");
    running
}

impl<T> Running<T> {
    /// Stops the service and returns its result.
    pub(crate) fn stop(self) -> T {
        self.stop.stop();
        self.wait()
    }

    /// Returns the result once the service has ended.
    pub(crate) fn wait(self) -> T {
        self.thread.join().unwrap()
    }
}

/// Prints an event, shown if the test fails.
fn show(role: &str, event: &Event) {
    if !matches!(event, Event::Stats { .. } | Event::Hub { .. } | Event::Joint { .. }) {
        println!("{role}: {event:?}");
    }
}
