//! A device and an application made of memory, and hosts that share and attach them, in this process.
#![allow(dead_code, reason = "each test program uses its part")]

use contract::{
    Attributes, Ctl, CtlReply, Description, Direction, FlowClass, FlowDirection, FlowKey, FlowOffer,
    FlowTemplate, Format, Message, Next, Options, Partner, PartnerError, Pull, PullSlot, Pulled, Pushed,
    Readiness, Time,
};
use pipeline::Joined;
use runtime::worker::TransportPlan;
use runtime::{
    ApplicationChoice, AttachRequest, AttachTarget, Attacher, DeviceChoice, Event, HubPolicy, Joint, Limits,
    Pipelines, RuntimeError, ShareDevice, ShareRequest, Sharer, Stop, registry,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::event::Event as Wake;

/// Every wait in these tests ends by what it waits for; this only stops a test that hangs.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

/// A device made of memory: what it will say, what was said to it, and whether it is plugged in.
#[derive(Default)]
pub(crate) struct Bench {
    pub(crate) to_pull: VecDeque<Vec<u8>>,
    pub(crate) ends: bool,
    pub(crate) gone: bool,
    /// It takes nothing now.
    pub(crate) full: bool,
    pub(crate) held: Vec<u8>,
    pub(crate) snapshot_asked: bool,
    pub(crate) pushed: Vec<Vec<u8>>,
    /// When each of these came.
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

    /// Says a message, as an event of the device would.
    pub(crate) fn say(&self, text: impl Into<Vec<u8>>) {
        self.with(|bench| bench.to_pull.push_back(text.into()));
    }

    pub(crate) fn wait(&self, what: &str, mut done: impl FnMut(&Bench) -> bool) {
        let began = Instant::now();
        while !done(&self.bench.lock().unwrap()) {
            let pushed = self.bench.lock().unwrap().pushed.len();
            assert!(began.elapsed() < WATCHDOG, "waited in vain for: {what}; {pushed} messages came");
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
    fn open(&mut self, _template: &FlowTemplate, _attributes: &Attributes) -> Result<FlowKey, PartnerError> {
        Ok(FlowKey(1))
    }

    fn close(&mut self, _flow: FlowKey) -> Result<(), PartnerError> {
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

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        self.handle.wake.clear();
        let mut bench = self.handle.bench.lock().unwrap();
        self.slot.answer(flow, want, || {
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

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        let mut bench = self.handle.bench.lock().unwrap();
        match operation {
            Ctl::Snapshot => bench.snapshot_asked = true,
            Ctl::Neutral => bench.neutral += 1,
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

/// A device with a flow of this class each way.
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

/// A service of this process, until it is dropped.
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
    let sharer = Sharer::start(request).unwrap();
    let (address, stop) = (sharer.address(), Stop::new().unwrap());
    let said = stop.clone();
    let thread = std::thread::spawn(move || sharer.run(&said, &mut |event| show("share", &event)).unwrap());
    Running { address, stop, thread }
}

/// What attaches `bench` at this address to a node of this program.
pub(crate) fn request(address: SocketAddr, application: &Handle, via: Option<&str>) -> AttachRequest {
    let class = registry::transport("tcp").unwrap();
    let target = AttachTarget {
        name: "bench".into(),
        application: ApplicationChoice::Partner(Box::new(BenchPartner::new(application))),
        pipelines: Pipelines::parse(via, None, None).unwrap(),
    };
    AttachRequest {
        address: address.to_string(),
        transport: TransportPlan { class, options: Options::defaults(class.options()).unwrap() },
        fallback: None,
        targets: vec![target],
        trust: None,
        limits: Limits::default(),
        host: "b".into(),
    }
}

/// Attaches it; returns once it is.
pub(crate) fn attach(
    address: SocketAddr,
    application: &Handle,
    via: Option<&str>,
) -> Running<Result<(), String>> {
    let attacher = Attacher::start(request(address, application, via)).unwrap();
    let stop = Stop::new().unwrap();
    let (said, (told, attached)) = (stop.clone(), channel());
    let thread = std::thread::spawn(move || {
        let mut tell = |event| {
            show("attach", &event);
            if matches!(event, Event::Attached { .. }) {
                let _ = told.send(());
            }
        };
        attacher.run(&said, &mut tell).map_err(|error| error.to_string())
    });
    attached.recv_timeout(WATCHDOG).expect("it is attached");
    Running { address, stop, thread }
}

type Run = Box<dyn FnOnce(&Stop) -> Result<(), RuntimeError> + Send>;

/// Attaches `bench` of each of these hosts, called `a`, `b` and so on, through one joint; what it and the
/// attachments say when they end.
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
        let attacher = Attacher::start(request).unwrap();
        running.push(start(
            *address,
            Box::new(move |stop| attacher.run(stop, &mut |event| show("attach", &event))),
        ));
    }
    let (told, attached) = channel();
    let mut tell = move |event| {
        show("joint", &event);
        if matches!(event, Event::Attached { .. }) {
            let _ = told.send(());
        }
    };
    running.push(start(addresses[0], Box::new(move |stop| joint.run(stop, &mut tell))));
    attached.recv_timeout(WATCHDOG).expect("the joint is there");
    running
}

impl<T> Running<T> {
    /// Tells it to stop; what it says.
    pub(crate) fn stop(self) -> T {
        self.stop.stop();
        self.wait()
    }

    /// What it says once it has ended by itself.
    pub(crate) fn wait(self) -> T {
        self.thread.join().unwrap()
    }
}

/// Shown with a failing test.
fn show(who: &str, event: &Event) {
    if !matches!(event, Event::Stats { .. } | Event::Hub { .. } | Event::Joint { .. }) {
        println!("{who}: {event:?}");
    }
}
