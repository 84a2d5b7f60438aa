//! `share`, `attach` and `connect`: requests made of words, run until they end or are told to.

use crate::arguments::{Attach, Connect, Session, Share};
use crate::output::{Events, Failure};
use runtime::config::{self, AttachWords, ConnectWords, ShareWords};
use runtime::service::{self, Source, Supervisor};
use runtime::worker::{is_sandbox_required, require_sandbox};
use runtime::{
    AttachRequest, Attacher, Event, Joined, Joint, Pipelines, RuntimeError, ShareRequest, Sharer, Stop,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::sync::Arc;
use std::thread;
use sys::signal::Termination;

/// Something that runs until it ends or is told to.
enum Service {
    /// A sharer, or a device that goes through the share that has the address already.
    ShareOrJoin(ShareRequest, Box<ShareWords>),
    Attach(AttachRequest),
    Joint(Joint),
    Connect(ConnectWords, Pipelines),
}

impl Service {
    fn run(self, stop: &Stop, events: &Events) -> Result<(), RuntimeError> {
        let mut tell = |event| events.tell(event);
        match self {
            Service::ShareOrJoin(request, words) => share_or_join(request, &words, stop, &mut tell),
            Service::Attach(request) => Attacher::start(request)?.run(stop, &mut tell),
            Service::Joint(joint) => joint.run(stop, &mut tell),
            Service::Connect(words, pipelines) => {
                let moved = runtime::connect(&words.source, &words.sink, &pipelines, stop)?;
                tell(Event::Connected { source: words.source, sink: words.sink, moved });
                Ok(())
            }
        }
    }
}

fn share_or_join(
    request: ShareRequest,
    words: &ShareWords,
    stop: &Stop,
    tell: &mut dyn FnMut(Event),
) -> Result<(), RuntimeError> {
    let listen = request.listen;
    let in_use = match Sharer::start(request) {
        // Who runs already was perhaps not told that a sandbox is required.
        Err(RuntimeError::Os { operation, error })
            if error.kind() == io::ErrorKind::AddrInUse && !is_sandbox_required() =>
        {
            RuntimeError::Os { operation, error }
        }
        sharer => return sharer?.run(stop, tell),
    };
    match Joined::join(words, listen)? {
        Some(joined) => joined.run(stop, tell),
        None => Err(in_use),
    }
}

/// `outboard share`.
pub(crate) fn share(words: Share) -> Result<(), Failure> {
    if words.session.require_sandbox {
        require_sandbox()?;
    }
    let events = Events::new(words.report.json, words.report.stats, false);
    let words = ShareWords {
        device: words.device,
        name: words.name,
        via: words.via.via,
        via_back: words.via.via_back,
        key_file: words.via.key_file,
        require: words.require,
        ports: words.via.ports,
        hub: words.hub,
        announce: words.announce,
        allow: words.allow,
        listen: Some(words.listen),
        transport: words.transport,
        insecure: words.session.insecure,
        limits: Some(limits(&words.session)),
    };
    if service::is_rule(&words) {
        return share_by_rule(words, events);
    }
    run_all(vec![Service::ShareOrJoin(words.request()?, Box::new(words))], &events)
}

/// Shares whatever suits the pattern, whenever it comes.
fn share_by_rule(words: ShareWords, events: Events) -> Result<(), Failure> {
    use_worker_processes();
    let stop = Stop::new()?;
    stop_on_signals(&stop)?;
    let tell = Arc::new(move |event| events.tell(event));
    let source = Source::Share(Box::new(words));
    Ok(Supervisor::start(source, None, Vec::new(), tell)?.run(&stop)?)
}

/// `outboard attach`. Without `--as` the device's class chooses what stands in for it, which may be
/// standard output.
pub(crate) fn attach(words: Attach) -> Result<(), Failure> {
    if words.session.require_sandbox {
        require_sandbox()?;
    }
    let data_on_stdout =
        words.applications.is_empty() || words.applications.iter().any(|text| config::is_stdout(text));
    let (requests, joint) = AttachWords {
        from: words.from,
        applications: words.applications,
        via: words.via.via,
        via_back: words.via.via_back,
        key_file: words.via.key_file,
        ports: words.via.ports,
        transport: words.transport,
        insecure: words.session.insecure,
        limits: Some(limits(&words.session)),
    }
    .requests()?;
    let events = Events::new(words.report.json, words.report.stats, data_on_stdout);
    let services = requests.into_iter().map(Service::Attach).chain(joint.map(Service::Joint));
    run_all(services.collect(), &events)
}

/// `outboard connect`.
pub(crate) fn connect(words: Connect) -> Result<(), Failure> {
    let events = Events::new(words.json.json, false, config::is_stdout(&words.sink));
    let words = ConnectWords {
        source: words.source,
        sink: words.sink,
        via: words.via.via,
        via_back: words.via.via_back,
        key_file: words.via.key_file,
        ports: words.via.ports,
    };
    let pipelines = words.pipelines()?;
    run_all(vec![Service::Connect(words, pipelines)], &events)
}

/// Runs each in a thread of its own, until all have ended. A signal stops them all, and so does a failure,
/// which is said once all have stopped.
fn run_all(services: Vec<Service>, events: &Events) -> Result<(), Failure> {
    use_worker_processes();
    let stop = Stop::new()?;
    stop_on_signals(&stop)?;
    let results: Vec<Result<(), RuntimeError>> = thread::scope(|scope| {
        let run = |service: Service| {
            let stop = &stop;
            scope.spawn(move || {
                let result = service.run(stop, events);
                if result.is_err() {
                    stop.stop();
                }
                result
            })
        };
        let threads: Vec<_> = services.into_iter().map(run).collect();
        let panicked = || Err(RuntimeError::Usage("a service panicked: please report this".into()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    Ok(results.into_iter().collect::<Result<(), _>>()?)
}

/// `outboard worker`: who ends it is its broker. A signal to all of a terminal's processes, or of a service's, is meant
/// for that one.
pub(crate) fn worker() -> Result<(), Failure> {
    Termination::take_over()?;
    let missing = |error| Failure::Usage(format!("it is started by a broker: descriptor 3: {error}"));
    Ok(runtime::worker::serve_worker(sys::descriptor::inherited(3).map_err(missing)?)?)
}

/// Has sessions run in processes of their own, and lets this one have as many descriptors as it may.
pub(crate) fn use_worker_processes() {
    let limit = getrlimit(Resource::Nofile);
    // Where that is refused, what is there has to do.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    // Under this name it is found even after its file was replaced by a newer one.
    runtime::worker::run_in_processes("/proc/self/exe".into());
}

/// Says `stop` when the user or the system wants the process to end.
pub(crate) fn stop_on_signals(stop: &Stop) -> Result<(), Failure> {
    let (termination, stop) = (Termination::take_over()?, stop.clone());
    thread::Builder::new().name("signals".into()).spawn(move || {
        termination.wait();
        stop.stop();
    })?;
    Ok(())
}

fn limits(session: &Session) -> String {
    let mut words = session.limits.clone();
    words.push(format!("silence={}", session.silence));
    words.join(",")
}
