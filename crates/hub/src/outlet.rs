//! Outlets: messages that leave pairs by side ports, to partners on this host: `--port record=file:/tmp/x.rec`.
//!
//! Paths put messages into a bounded queue and never wait. Each port has a thread that delivers them to
//! its partner. After the last path, the partner receives the queued messages and the end.
//!
//! The broker opens the target of a port. The queue and its thread start with the first message, in the
//! path's process: a path in a sandboxed worker receives the open target ([`export`], [`import`]) and writes
//! to it directly. A target that paths of several devices share stays with the broker, because those
//! paths may be in several workers. Each worker then receives an endpoint of the queue's thread
//! ([`crate::endpoint`]), so that messages of different paths do not mix.

use crate::endpoint::{Endpoint, Failure, FarEnd, Incoming};
use crate::origin::{OpenPort, PartnerOrigin, make_partner};
use buffers::Ring;
use contract::{
    Attributes, Ctl, CtlReply, Description, DeviceError, DeviceSpec, Direction, FlowClass, FlowDirection,
    FlowKey, FlowOffer, FlowTemplate, Format, Message, Opened, Partner, PartnerResult, Port, Pushed,
    Readiness, Role,
};
use flow::nodes::{self, Claim, Claimant, Conflict, Misfit};
use flow::types::{Wake, flush, forget};
use modules::registry;
use pipeline::{NamedOutlet, Outlet, side_port};
use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::event::Event;
use sys::poller::Poller;

/// Limit of messages that wait for a port's partner.
const QUEUE: usize = 1024;
/// Limit of the time that a partner may need for the queued messages at the end.
const PATIENCE: Duration = Duration::from_secs(5);

/// The problem of a target whose disk is full. The partner tries again, and the flow never waits for a side port.
const DISK_FULL: &str = "the disk of its side port is full: messages are missing there until it has room";

/// Limit of side ports that a worker receives.
pub const PORTS_MAX: usize = 16;

/// Opens the targets of `PAIR[.PORT]=SPEC` arguments, as application partners on this host. `is_shared`:
/// paths of several devices use them.
pub fn open(arguments: &[String], is_shared: bool) -> Result<Vec<NamedOutlet>, String> {
    let one = |argument: &String| {
        let (pair, port, spec) = parse(argument)?;
        let wrong = |problem| format!("port `{argument}`: {problem}");
        let target = Target::open(&target_spec(pair, spec).map_err(wrong)?, is_shared).map_err(wrong)?;
        Ok(NamedOutlet { pair, port, outlet: Arc::new(target) })
    };
    arguments.iter().map(one).collect()
}

/// Exports the targets for a worker with paths that use them; `None` if one cannot be exported.
pub fn export(outlets: &[NamedOutlet]) -> Option<Vec<OpenPort>> {
    let one = |NamedOutlet { pair, port, outlet }: &NamedOutlet| {
        let origin = (&**outlet as &dyn Any).downcast_ref::<Target>()?.export()?;
        Some(OpenPort { pair, port: *port, origin })
    };
    (outlets.len() <= PORTS_MAX).then(|| outlets.iter().map(one).collect()).flatten()
}

/// Creates the outlets in a worker from the targets that it received.
pub fn import(ports: Vec<OpenPort>) -> Vec<NamedOutlet> {
    let one = |OpenPort { pair, port, origin }| {
        let outlet: Arc<dyn Outlet> = match origin {
            PartnerOrigin::Opened(opened) => Arc::new(Target::new(*opened, false, None)),
            PartnerOrigin::Hub(far) => Arc::new(QueueClient::new(far)),
            PartnerOrigin::Ready(_) => {
                unreachable!("a partner that this program provides cannot be passed to a worker")
            }
        };
        NamedOutlet { pair, port, outlet }
    };
    ports.into_iter().map(one).collect()
}

/// Checks the arguments without opening anything.
pub fn check(arguments: &[String]) -> Result<(), String> {
    arguments.iter().try_for_each(|argument| {
        let (pair, _, spec) = parse(argument)?;
        target_spec(pair, spec).map(drop).map_err(|problem| format!("port `{argument}`: {problem}"))
    })
}

/// Splits `PAIR[.PORT]=SPEC`.
fn parse(argument: &str) -> Result<(&'static str, Port, &str), String> {
    let wrong = |problem: String| format!("port `{argument}`: {problem}");
    let (name, spec) = argument.split_once('=').ok_or_else(|| match argument.parse::<u16>() {
        Ok(number) => {
            wrong(format!("a number is no side port; `--listen [::]:{number}` sets the port of this host"))
        }
        Err(_) => wrong("write PAIR=SPEC or PAIR.PORT=SPEC, such as record=file:/tmp/x.rec".into()),
    })?;
    let (pair, port) = side_port(name.trim(), registry::pairs()).map_err(wrong)?;
    Ok((pair, port, spec.trim()))
}

/// Parses the target of a port of `pair`, and checks that it takes bytes.
fn target_spec(pair: &str, text: &str) -> Result<DeviceSpec, String> {
    let parse = |text: &str| {
        registry::device_spec(text, Role::Application).map_err(|error: DeviceError| error.to_string())
    };
    let spec = parse(text)?;
    let class = &spec.class;
    match nodes::misfit(class, &side_port_description()) {
        Some(Misfit::Format(taken, _)) => {
            return Err(format!(
                "`{class}` takes the format `{taken}`, and a side port sends bytes: write `file`"
            ));
        }
        Some(Misfit::Class(_)) => {
            return Err(format!(
                "`{class}` stands in for a device, and a side port sends bytes: write `file`"
            ));
        }
        None => {}
    }
    // Without containers, a recording has no messages and no times, and cannot be replayed.
    match pair == "record" && class == "file" && !text.contains(",frame=") {
        true => parse(&format!("{text},frame=container")),
        false => Ok(spec),
    }
}

/// Describes a side port to the class of its target.
fn side_port_description() -> Description {
    Description {
        class: Description::SIDE_PORT.into(),
        summary: "a side port".into(),
        flows: vec![FlowOffer {
            direction: FlowDirection::DeviceToApplication,
            format: Format::Bytes,
            class: FlowClass::Reliable,
        }],
        application: "file",
        properties: Vec::new(),
    }
}

/// The target of a port, with its queue after the first message.
struct Target {
    /// The open target, until the queue takes it.
    opened: Mutex<Option<Opened>>,
    is_shared: bool,
    /// The queue; `None` if it failed to start.
    queue: OnceLock<Option<Queue>>,
    problem: Mutex<Option<String>>,
    /// The claim to the target's name; `None` in a worker.
    _claim: Option<Claim>,
}

impl Target {
    fn new(opened: Opened, is_shared: bool, claim: Option<Claim>) -> Target {
        let opened = Mutex::new(Some(opened));
        Target { opened, is_shared, queue: OnceLock::new(), problem: Mutex::default(), _claim: claim }
    }

    fn open(spec: &DeviceSpec, is_shared: bool) -> Result<Target, String> {
        let service = format!("side port {}:{}", spec.class, spec.target);
        let claimant = Claimant { service, conflict: Conflict::Refuse, yields: false };
        let (opened, claim) = nodes::open(spec, Some(&side_port_description()), &claimant)
            .map_err(|error| error.to_string())?;
        Ok(Target::new(opened, is_shared, claim))
    }

    fn export(&self) -> Option<PartnerOrigin> {
        if self.is_shared {
            let queue = self.queue.get_or_init(|| self.start()).as_ref()?;
            return queue.admit().ok().map(PartnerOrigin::Hub);
        }
        let opened = lock(&self.opened).as_ref()?.try_clone().ok()?;
        Some(PartnerOrigin::Opened(Box::new(opened)))
    }

    fn start(&self) -> Option<Queue> {
        let started = match lock(&self.opened).take() {
            Some(opened) => Queue::start(opened),
            None => Err("it is not open".into()),
        };
        started.map_err(|problem| *lock(&self.problem) = Some(problem)).ok()
    }
}

impl Outlet for Target {
    fn put(&self, message: Message) -> bool {
        self.queue.get_or_init(|| self.start()).as_ref().is_some_and(|queue| queue.put(message))
    }

    fn take_problem(&self) -> Option<String> {
        let own = lock(&self.problem).take();
        own.or_else(|| lock(&self.queue.get()?.as_ref()?.shared.problem).take())
    }

    fn finish(&self) -> Option<String> {
        if let Some(Some(queue)) = self.queue.get() {
            queue.end();
        }
        self.take_problem()
    }
}

impl Drop for Target {
    /// Releases the resources of the device class, which a worker cannot do.
    fn drop(&mut self) {
        if let Some(opened) = lock(&self.opened).take() {
            registry::release(&opened);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The worker's end of a queue in the broker.
struct QueueClient {
    /// `None` if opening failed or the end has failed.
    end: Mutex<Option<Endpoint>>,
    problem: Mutex<Option<String>>,
}

impl QueueClient {
    fn new(far: FarEnd) -> QueueClient {
        let template =
            FlowTemplate { direction: Direction::In, format: Format::Bytes, class: FlowClass::Reliable };
        let opened = far.open().map_err(|error| error.to_string()).and_then(|mut end| {
            let key = end.open(&template, &Attributes::default()).map_err(|error| error.to_string());
            key.map(|_| end)
        });
        match opened {
            Ok(end) => QueueClient { end: Mutex::new(Some(end)), problem: Mutex::default() },
            Err(problem) => QueueClient { end: Mutex::default(), problem: Mutex::new(Some(problem)) },
        }
    }
}

impl Outlet for QueueClient {
    fn put(&self, message: Message) -> bool {
        let mut end = lock(&self.end);
        match end.as_mut().map(|end| end.push(FlowKey::DEFAULT, message)) {
            Some(Ok(Pushed::Taken)) => true,
            Some(Ok(Pushed::Full(_))) | None => false,
            Some(Err((error, _))) => {
                *lock(&self.problem) = Some(error.to_string());
                *end = None;
                false
            }
        }
    }

    fn take_problem(&self) -> Option<String> {
        lock(&self.problem).take()
    }
}

struct Shared {
    ring: Ring<Message>,
    /// Endpoints of workers that the queue's thread has not added yet.
    arrivals: Mutex<Vec<Endpoint>>,
    wake: Event,
    ended: AtomicBool,
    failed: AtomicBool,
    problem: Mutex<Option<String>>,
}

impl Shared {
    fn new() -> io::Result<Shared> {
        Ok(Shared {
            ring: Ring::new(QUEUE),
            arrivals: Mutex::default(),
            wake: Event::new()?,
            ended: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            problem: Mutex::default(),
        })
    }
}

/// The sending end of a port's queue.
struct Queue {
    shared: Arc<Shared>,
    /// `None` after the end.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Queue {
    fn start(opened: Opened) -> Result<Queue, String> {
        let mut partner =
            make_partner(PartnerOrigin::Opened(Box::new(opened))).map_err(|error| error.to_string())?;
        let (direction, class) = (Direction::In, FlowClass::Reliable);
        let template = FlowTemplate { direction, format: Format::Bytes, class };
        let key = partner.open(&template, &Attributes::default()).map_err(|error| error.to_string())?;
        let system = |error: io::Error| error.to_string();
        let shared = Arc::new(Shared::new().map_err(system)?);
        let poller = Poller::new().map_err(system)?;
        let writer =
            Writer { shared: shared.clone(), partner, key, poller, held: None, endpoints: VecDeque::new() };
        let thread = std::thread::Builder::new().name("side port".into()).spawn(move || writer.run());
        Ok(Queue { shared, thread: Mutex::new(Some(thread.map_err(system)?)) })
    }

    /// Creates an endpoint for a worker.
    fn admit(&self) -> io::Result<FarEnd> {
        let (mut end, far) = Endpoint::pair(QUEUE)?;
        let (direction, class) = (Direction::Out, FlowClass::Reliable);
        let template = FlowTemplate { direction, format: Format::Bytes, class };
        // An endpoint opens any flow.
        let _ = end.open(&template, &Attributes::default());
        match self.shared.failed.load(Ordering::Acquire) {
            true => {
                let problem = lock(&self.shared.problem);
                end.fail(
                    Failure::Broken,
                    problem.as_deref().unwrap_or("the target of its side port has failed"),
                );
            }
            false => lock(&self.shared.arrivals).push(end),
        }
        self.shared.wake.signal();
        Ok(far)
    }

    /// Delivers the queued messages, within [`PATIENCE`], and ends.
    fn end(&self) {
        self.shared.ended.store(true, Ordering::Release);
        self.shared.wake.signal();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
        self.shared.failed.store(true, Ordering::Release);
    }

    fn put(&self, message: Message) -> bool {
        if self.shared.failed.load(Ordering::Acquire) {
            return false;
        }
        match self.shared.ring.push(message) {
            Ok(was_empty) => {
                if was_empty {
                    self.shared.wake.signal();
                }
                true
            }
            Err(_) => false,
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.end();
    }
}

/// The thread that writes to the port's partner.
struct Writer {
    shared: Arc<Shared>,
    partner: Box<dyn Partner>,
    key: FlowKey,
    poller: Poller,
    held: Option<Message>,
    /// Endpoints of workers, in round-robin order.
    endpoints: VecDeque<Endpoint>,
}

impl Writer {
    fn run(mut self) {
        if let Err(error) = self.write() {
            let problem = format!("the target of its side port: {error}");
            self.shared.failed.store(true, Ordering::Release);
            *lock(&self.shared.problem) = Some(problem.clone());
            self.add_arrivals();
            self.endpoints.iter_mut().for_each(|endpoint| endpoint.fail(Failure::Broken, &problem));
        }
        forget(&mut self.poller, self.partner.as_ref());
    }

    fn write(&mut self) -> PartnerResult {
        let mut until = None;
        let (mut unflushed, mut is_told) = (false, false);
        loop {
            let ended = self.shared.ended.load(Ordering::Acquire);
            if ended && Instant::now() >= *until.get_or_insert_with(|| Instant::now() + PATIENCE) {
                self.report_unwritten(unflushed);
                return Ok(());
            }
            self.add_arrivals();
            let pushed = self.push()?;
            if pushed || unflushed {
                unflushed = flush(Some(&mut self.partner))?;
            }
            if !is_told && (unflushed || self.held.is_some()) && self.is_disk_full() {
                is_told = true;
                *lock(&self.shared.problem) = Some(DISK_FULL.into());
            }
            let empty = self.held.is_none() && self.shared.ring.is_empty() && !self.has_arrivals();
            if ended && empty && self.finish()? {
                return Ok(());
            }
            self.sleep(unflushed, ended);
        }
    }

    fn add_arrivals(&mut self) {
        self.endpoints.append(&mut lock(&self.shared.arrivals).drain(..).collect());
    }

    fn has_arrivals(&self) -> bool {
        !lock(&self.shared.arrivals).is_empty()
    }

    /// The next message: from the paths of this process first, then from the workers in turn.
    fn next(&mut self) -> Option<Message> {
        if let Some((message, _)) = self.shared.ring.pop() {
            return Some(message);
        }
        for _ in 0..self.endpoints.len() {
            let mut endpoint = self.endpoints.pop_front()?;
            match endpoint.receive() {
                Incoming::Message(message) => {
                    self.endpoints.push_back(endpoint);
                    return Some(message);
                }
                Incoming::End => forget(&mut self.poller, &endpoint),
                Incoming::Neutral | Incoming::Nothing => self.endpoints.push_back(endpoint),
            }
        }
        None
    }

    /// Delivers queued messages; returns true if there were any.
    fn push(&mut self) -> PartnerResult<bool> {
        let mut pushed = false;
        while let Some(message) = self.held.take().or_else(|| self.next()) {
            match self.partner.push(self.key, message) {
                Ok(Pushed::Taken) => pushed = true,
                Ok(Pushed::Full(message)) => {
                    self.held = Some(message);
                    break;
                }
                Err((error, _)) => return Err(error),
            }
        }
        Ok(pushed)
    }

    /// Reports the messages that the partner did not take in time.
    fn report_unwritten(&mut self, unflushed: bool) {
        let waiting = self.held.take().iter().count() + std::iter::from_fn(|| self.next()).count();
        let problem = match waiting + usize::from(unflushed) {
            0 => return,
            1 => "1 message was not written to its side port".into(),
            count => format!("{count} messages were not written to its side port"),
        };
        *lock(&self.shared.problem) = Some(problem);
    }

    /// Returns whether the partner tries a full disk again.
    fn is_disk_full(&mut self) -> bool {
        let report = self.partner.ctl(self.key, Ctl::Report);
        matches!(report, Ok(CtlReply::Report(figures)) if figures.iter().any(|(name, _)| *name == "disk full"))
    }

    fn finish(&mut self) -> PartnerResult<bool> {
        CtlReply::is_complete(self.partner.ctl(self.key, Ctl::Finish))
    }

    /// Waits for messages, for an arrival or the end, or for the partner's room.
    fn sleep(&mut self, unflushed: bool, ended: bool) {
        let mut wake = Wake::default();
        if !ended {
            self.poller.register(self.shared.wake.as_fd(), true, false);
        }
        if self.held.is_none() {
            for endpoint in &self.endpoints {
                wake.add(&mut self.poller, endpoint.readiness(FlowKey::DEFAULT, Direction::Out));
            }
        }
        if self.held.is_some() || unflushed || ended {
            let readiness = self.partner.readiness(self.key, Direction::In);
            let now = readiness.now && self.held.is_some();
            wake.add(&mut self.poller, Readiness { now, ..readiness });
        }
        let timeout = match (wake.now, wake.at, ended) {
            (true, ..) => Some(Duration::ZERO),
            (_, Some(at), _) => Some(at.since(modules::now())),
            (_, _, true) => Some(Duration::from_millis(10)),
            _ => None,
        };
        // Polling fails only for lack of memory; pause and try again.
        if self.poller.wait(timeout).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Also while a message is held, since a set event ends each wait. The next round handles all that was signalled before.
        self.shared.wake.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::{Body, PartnerError, Pull, Pulled, Time};

    /// A target without room.
    struct FullTarget;

    impl Partner for FullTarget {
        fn open(&mut self, _template: &FlowTemplate, _attributes: &Attributes) -> PartnerResult<FlowKey> {
            Ok(FlowKey::DEFAULT)
        }

        fn close(&mut self, _flow: FlowKey) -> PartnerResult {
            Ok(())
        }

        fn push(&mut self, _flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
            Ok(Pushed::Full(message))
        }

        fn pull(&mut self, _flow: FlowKey, _pull: Pull<'_>) -> PartnerResult<Pulled> {
            Ok(Pulled::Nothing)
        }

        fn ctl(&mut self, _flow: FlowKey, _operation: Ctl<'_>) -> PartnerResult<CtlReply> {
            Err(PartnerError::Unsupported("this operation"))
        }

        fn readiness(&self, _flow: FlowKey, _direction: Direction) -> Readiness<'_> {
            Readiness::never()
        }
    }

    #[test]
    fn a_message_behind_a_held_one_wakes_the_thread_once() {
        let queue = Queue { shared: Arc::new(Shared::new().unwrap()), thread: Mutex::default() };
        let (shared, poller) = (queue.shared.clone(), Poller::new().unwrap());
        let (partner, endpoints) = (Box::new(FullTarget), VecDeque::new());
        let mut writer = Writer { shared, partner, key: FlowKey::DEFAULT, poller, held: None, endpoints };
        for time in 1..3 {
            assert!(queue.put(Message::new(Time(time), Body::from(vec![0]))));
            assert!(!writer.push().unwrap());
            writer.sleep(false, false);
            assert!(writer.held.is_some() && !queue.shared.wake.clear(), "message {time}");
        }
        assert!(queue.put(Message::new(Time(3), Body::from(vec![0]))));
        assert!(!queue.shared.wake.clear(), "the thread waits for the target alone");
    }
}
