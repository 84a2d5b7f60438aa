//! What leaves pairs by side ports, to partners of this host: `--port record=file:/tmp/x.rec,frame=container`.
//!
//! Paths put messages into a bounded queue and never wait; a thread for each port hands them to its partner. When
//! nothing can put any more, the partner gets what is queued and the end.
//!
//! The broker opens what a port leads to. The queue and its thread begin with the first message, where the path runs:
//! a path in a locked worker is handed what is open ([`hand`], [`take`]), and writes there itself. What the paths of
//! several devices share, which may be in several workers, stays with the broker: each worker is handed a way to the
//! queue's thread there ([`crate::active`]), so that messages of different paths do not mix.

use crate::active::{Endpoint, FarEnd, Taken};
use crate::driver::{Wake, flush, forget};
use crate::registry;
use crate::worker::{OpenPort, PartnerOrigin, make_partner};
use buffers::Ring;
use contract::{
    Attributes, Ctl, CtlReply, Description, Direction, FlowClass, FlowDirection, FlowKey, FlowOffer,
    FlowTemplate, Format, Message, Opened, Partner, PartnerError, Port, Pushed, Readiness, Role,
};
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

/// Messages that wait for a port's partner.
const QUEUE: usize = 1024;
/// How long, at the end, a partner may take for what is queued.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most ports of which a worker is handed what they lead to.
pub(crate) const PORTS_MAX: usize = 16;

/// Opens what these words name, `PAIR[.PORT]=SPEC` each, as application partners of this host. `is_shared`: by the paths
/// of several devices.
pub(crate) fn open(words: &[String], is_shared: bool) -> Result<Vec<NamedOutlet>, String> {
    let one = |words: &String| {
        let (pair, port, spec) = read(words)?;
        let exit = Exit::open(spec, is_shared).map_err(|problem| format!("port `{words}`: {problem}"))?;
        Ok(NamedOutlet { pair, port, outlet: Arc::new(exit) })
    };
    words.iter().map(one).collect()
}

/// What these lead to, for a worker that has paths which use them; `None` if it cannot be handed over.
pub(crate) fn hand(outlets: &[NamedOutlet]) -> Option<Vec<OpenPort>> {
    let one = |NamedOutlet { pair, port, outlet }: &NamedOutlet| {
        let origin = (&**outlet as &dyn Any).downcast_ref::<Exit>()?.hand()?;
        Some(OpenPort { pair, port: *port, origin })
    };
    (outlets.len() <= PORTS_MAX).then(|| outlets.iter().map(one).collect()).flatten()
}

/// In the worker: outlets that lead to what it was handed.
pub(crate) fn take(ports: Vec<OpenPort>) -> Vec<NamedOutlet> {
    let one = |OpenPort { pair, port, origin }| {
        let outlet: Arc<dyn Outlet> = match origin {
            PartnerOrigin::Opened(opened) => Arc::new(Exit::new(*opened, false)),
            PartnerOrigin::Way(far) => Arc::new(Lead::new(far)),
            PartnerOrigin::Ready(_) => unreachable!("no partner of this program's own crosses to a worker"),
        };
        NamedOutlet { pair, port, outlet }
    };
    ports.into_iter().map(one).collect()
}

/// Says what is wrong with these words, and opens nothing.
pub(crate) fn check(words: &[String]) -> Result<(), String> {
    words.iter().try_for_each(|words| {
        let (_, _, spec) = read(words)?;
        let spec = registry::device_spec(spec, Role::Application);
        spec.map(drop).map_err(|error| format!("port `{words}`: {error}"))
    })
}

/// `PAIR[.PORT]=SPEC`, taken apart.
fn read(words: &str) -> Result<(&'static str, Port, &str), String> {
    let wrong = |problem: String| format!("port `{words}`: {problem}");
    let (name, spec) = words.split_once('=').ok_or_else(|| {
        wrong("write PAIR=SPEC or PAIR.PORT=SPEC, such as record=file:/tmp/x.rec,frame=container".into())
    })?;
    let (pair, port) = side_port(name.trim(), registry::pairs()).map_err(wrong)?;
    Ok((pair, port, spec.trim()))
}

/// What a port leads to, and the queue there once somebody has put something.
struct Exit {
    /// Until the queue has it.
    opened: Mutex<Option<Opened>>,
    is_shared: bool,
    /// `None`: it did not begin.
    queue: OnceLock<Option<Queue>>,
    problem: Mutex<Option<String>>,
}

impl Exit {
    fn new(opened: Opened, is_shared: bool) -> Exit {
        let opened = Mutex::new(Some(opened));
        Exit { opened, is_shared, queue: OnceLock::new(), problem: Mutex::default() }
    }

    fn open(text: &str, is_shared: bool) -> Result<Exit, String> {
        let spec = registry::device_spec(text, Role::Application).map_err(|error| error.to_string())?;
        let like = Description {
            class: "side port".into(),
            summary: "a side port".into(),
            flows: vec![FlowOffer {
                direction: FlowDirection::DeviceToApplication,
                format: Format::Bytes,
                class: FlowClass::Reliable,
            }],
            application: "file",
            properties: Vec::new(),
        };
        let opened =
            registry::open(&spec, Role::Application, Some(&like)).map_err(|error| error.to_string())?;
        Ok(Exit::new(opened, is_shared))
    }

    fn hand(&self) -> Option<PartnerOrigin> {
        if self.is_shared {
            let queue = self.queue.get_or_init(|| self.begin()).as_ref()?;
            return queue.admit().ok().map(PartnerOrigin::Way);
        }
        let opened = lock(&self.opened).as_ref()?.try_clone().ok()?;
        Some(PartnerOrigin::Opened(Box::new(opened)))
    }

    fn begin(&self) -> Option<Queue> {
        let begun = match lock(&self.opened).take() {
            Some(opened) => Queue::begin(opened),
            None => Err("it is not open".into()),
        };
        begun.map_err(|problem| *lock(&self.problem) = Some(problem)).ok()
    }
}

impl Outlet for Exit {
    fn put(&self, message: Message) -> bool {
        self.queue.get_or_init(|| self.begin()).as_ref().is_some_and(|queue| queue.put(message))
    }

    fn take_problem(&self) -> Option<String> {
        let own = lock(&self.problem).take();
        own.or_else(|| lock(&self.queue.get()?.as_ref()?.shared.problem).take())
    }
}

impl Drop for Exit {
    /// What its class leaves behind is cleared away, where a worker could not.
    fn drop(&mut self) {
        if let Some(opened) = lock(&self.opened).take()
            && let Some(class) = registry::device_class(&opened.spec.class)
        {
            class.release(&opened);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What leads to a port's queue in the broker, at the worker's end.
struct Lead {
    /// `None`: it cannot be had, or has failed.
    end: Mutex<Option<Endpoint>>,
    problem: Mutex<Option<String>>,
}

impl Lead {
    fn new(far: FarEnd) -> Lead {
        let template =
            FlowTemplate { direction: Direction::In, format: Format::Bytes, class: FlowClass::Reliable };
        let opened = far.take_up().map_err(|error| error.to_string()).and_then(|mut end| {
            let key = end.open(&template, &Attributes::default()).map_err(|error| error.to_string());
            key.map(|_| end)
        });
        match opened {
            Ok(end) => Lead { end: Mutex::new(Some(end)), problem: Mutex::default() },
            Err(problem) => Lead { end: Mutex::default(), problem: Mutex::new(Some(problem)) },
        }
    }
}

impl Outlet for Lead {
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
    /// Ways of workers that the queue's thread has not seen yet.
    arrivals: Mutex<Vec<Endpoint>>,
    wake: Event,
    ended: AtomicBool,
    failed: AtomicBool,
    problem: Mutex<Option<String>>,
}

/// The paths' end of a port.
struct Queue {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Queue {
    fn begin(opened: Opened) -> Result<Queue, String> {
        let mut partner =
            make_partner(PartnerOrigin::Opened(Box::new(opened))).map_err(|error| error.to_string())?;
        let (direction, class) = (Direction::In, FlowClass::Reliable);
        let template = FlowTemplate { direction, format: Format::Bytes, class };
        let key = partner.open(&template, &Attributes::default()).map_err(|error| error.to_string())?;
        let system = |error: io::Error| error.to_string();
        let shared = Arc::new(Shared {
            ring: Ring::new(QUEUE),
            arrivals: Mutex::default(),
            wake: Event::new().map_err(system)?,
            ended: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            problem: Mutex::default(),
        });
        let poller = Poller::new().map_err(system)?;
        let writer =
            Writer { shared: shared.clone(), partner, key, poller, held: None, ways: VecDeque::new() };
        let thread = std::thread::Builder::new().name("side port".into()).spawn(move || writer.run());
        Ok(Queue { shared, thread: Some(thread.map_err(system)?) })
    }

    /// A way for a worker.
    fn admit(&self) -> io::Result<FarEnd> {
        let (mut end, far) = Endpoint::pair(QUEUE)?;
        let (direction, class) = (Direction::Out, FlowClass::Reliable);
        let template = FlowTemplate { direction, format: Format::Bytes, class };
        // An endpoint opens whatever it is asked for.
        let _ = end.open(&template, &Attributes::default());
        match lock(&self.shared.problem).as_deref() {
            Some(problem) => end.fail(false, problem),
            None => lock(&self.shared.arrivals).push(end),
        }
        self.shared.wake.signal();
        Ok(far)
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
        self.shared.ended.store(true, Ordering::Release);
        self.shared.wake.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The partner's end of a port.
struct Writer {
    shared: Arc<Shared>,
    partner: Box<dyn Partner>,
    key: FlowKey,
    poller: Poller,
    held: Option<Message>,
    /// From workers, the one whose turn it is first.
    ways: VecDeque<Endpoint>,
}

impl Writer {
    fn run(mut self) {
        if let Err(error) = self.write() {
            let problem = format!("what its side port leads to: {error}");
            self.shared.failed.store(true, Ordering::Release);
            *lock(&self.shared.problem) = Some(problem.clone());
            self.let_in();
            self.ways.iter_mut().for_each(|way| way.fail(false, &problem));
        }
        forget(&mut self.poller, self.partner.as_ref());
    }

    fn write(&mut self) -> Result<(), PartnerError> {
        let mut until = None;
        let mut unflushed = false;
        loop {
            let ended = self.shared.ended.load(Ordering::Acquire);
            if ended && Instant::now() >= *until.get_or_insert_with(|| Instant::now() + PATIENCE) {
                return Ok(());
            }
            self.let_in();
            let pushed = self.push()?;
            if pushed || unflushed {
                unflushed = flush(Some(&mut self.partner))?;
            }
            let empty = self.held.is_none() && self.shared.ring.is_empty() && !self.has_arrivals();
            if ended && empty && self.finish()? {
                return Ok(());
            }
            if empty && !ended {
                self.shared.wake.clear();
                let has_news = !self.shared.ring.is_empty() || self.has_arrivals();
                if has_news || self.shared.ended.load(Ordering::Acquire) {
                    continue;
                }
            }
            self.sleep(unflushed, ended);
        }
    }

    fn let_in(&mut self) {
        self.ways.append(&mut lock(&self.shared.arrivals).drain(..).collect());
    }

    fn has_arrivals(&self) -> bool {
        !lock(&self.shared.arrivals).is_empty()
    }

    /// What is to be written next: of the paths here, then of the workers in turn.
    fn next(&mut self) -> Option<Message> {
        if let Some((message, _)) = self.shared.ring.pop() {
            return Some(message);
        }
        for _ in 0..self.ways.len() {
            let mut way = self.ways.pop_front()?;
            match way.take() {
                Taken::Message(message) => {
                    self.ways.push_back(way);
                    return Some(message);
                }
                Taken::End => forget(&mut self.poller, &way),
                Taken::Neutral | Taken::Nothing => self.ways.push_back(way),
            }
        }
        None
    }

    /// Hands on what is queued; says whether anything was.
    fn push(&mut self) -> Result<bool, PartnerError> {
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

    fn finish(&mut self) -> Result<bool, PartnerError> {
        match self.partner.ctl(self.key, Ctl::Finish) {
            Ok(reply) => Ok(!matches!(reply, CtlReply::Pending)),
            Err(PartnerError::Unsupported(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn sleep(&mut self, unflushed: bool, ended: bool) {
        let mut wake = Wake::default();
        if !ended {
            self.poller.want(self.shared.wake.as_fd(), true, false);
        }
        if self.held.is_none() {
            for way in &self.ways {
                wake.add(&mut self.poller, way.readiness(FlowKey::DEFAULT, Direction::Out));
            }
        }
        if self.held.is_some() || unflushed || ended {
            let readiness = self.partner.readiness(self.key, Direction::In);
            let now = readiness.now && self.held.is_some();
            wake.add(&mut self.poller, Readiness { now, ..readiness });
        }
        let timeout = match (wake.now, wake.at, ended) {
            (true, ..) => Some(Duration::ZERO),
            (_, Some(at), _) => Some(at.since(crate::share::now())),
            (_, _, true) => Some(Duration::from_millis(10)),
            _ => None,
        };
        // Waiting fails only for lack of memory; a pause is then all there is to do.
        if self.poller.wait(timeout).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
