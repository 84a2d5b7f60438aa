//! `share`, `attach` and `connect`: parses the request, and runs it until it ends or a signal arrives.

use crate::arguments::{Attach, Connect, Session, Share};
use crate::confirm::{ask, confirm_place};
use crate::output::{Events, Failure};
use broker::ShareWords;
use broker::{ApplicationHost, AttachRequest, DeviceHost, Event, Join, ShareDevice, ShareRequest};
use contract::{KindChange, ServiceError};
use daemon::config;
use daemon::config::{AttachWords, ConnectWords};
use daemon::service;
use daemon::service::{Source, Supervisor};
use flow::nodes::Conflict;
use hub::Joint;
use modules::Pipelines;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandbox::SENDMSG_DESCRIPTOR;
use sandbox::{is_sandbox_required, require_sandbox};
use std::io;
use std::sync::Arc;
use std::thread;
use sys::activation::Passed;
use sys::signal::Termination;
use sys::stop::Stop;

/// A request that runs until it ends or is stopped.
enum Service {
    /// Listens for peers; if another `share` of this user has the address, adds the device to that one.
    ShareOrJoin(ShareRequest, Box<ShareWords>),
    Attach(AttachRequest),
    Joint(Joint),
    Connect(ConnectWords, Pipelines),
}

impl Service {
    fn run(self, stop: &Stop, events: &Events) -> Result<(), ServiceError> {
        let mut tell = |event| events.emit(event);
        match self {
            Service::ShareOrJoin(request, words) => share_or_join(request, &words, stop, &mut tell),
            Service::Attach(request) => {
                let mut confirm = |address: &str, peer: &str, fingerprint: &str| {
                    events.may_ask() && confirm_place(address, peer, fingerprint, stop)
                };
                ApplicationHost::start_with(request, &mut confirm)?.run(stop, &mut tell)
            }
            Service::Joint(joint) => joint.run(stop, &mut |event| tell(event.into())),
            Service::Connect(words, pipelines) => {
                let moved = flow::raw_path::connect(&words.source, &words.sink, &pipelines, stop)?;
                let result = moved.check();
                tell(Event::Connected { source: words.source, sink: words.sink, moved });
                result
            }
        }
    }
}

fn share_or_join(
    request: ShareRequest,
    words: &ShareWords,
    stop: &Stop,
    tell: &mut dyn FnMut(Event),
) -> Result<(), ServiceError> {
    let listen = request.listen;
    let in_use = match DeviceHost::start_until(request, stop) {
        // The running `share` may have no `--require-sandbox`, so do not join it.
        Err(ServiceError::Os { operation, error })
            if error.kind() == io::ErrorKind::AddrInUse && !is_sandbox_required() =>
        {
            ServiceError::Os { operation, error }
        }
        device_host => return device_host?.map_or(Ok(()), |device_host| device_host.run(stop, tell)),
    };
    match Join::request(words, listen, stop)? {
        Join::Joined(joined) => joined.run(stop, tell),
        Join::Stopped => Ok(()),
        Join::NoHost => Err(in_use),
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
        allowed: None,
        listen: Some(words.listen),
        transport: words.transport,
        insecure: words.session.insecure,
        limits: limits(&words.session)?,
    };
    if service::is_rule(&words) {
        return share_by_rule(words, events);
    }
    let request = words.request()?;
    // Opening the device waits for the answer.
    let questions = request.devices.iter().filter_map(ShareDevice::question);
    questions.for_each(|question| events.emit(Event::Question { question }));
    run_all(vec![Service::ShareOrJoin(request, Box::new(words))], &events)
}

/// Shares every device that matches the pattern, as soon as it is plugged in.
fn share_by_rule(words: ShareWords, events: Events) -> Result<(), Failure> {
    service::check_rule(&words)?;
    use_worker_processes();
    let stop = Stop::new()?;
    stop_on_signals(&stop)?;
    let tell = Arc::new(move |event| events.emit(event));
    let source = Source::Share(Box::new(words));
    let started = Supervisor::start(source, None, Passed::default(), tell);
    Ok(started.map_err(explain_no_join)?.run(&stop)?)
}

/// Adds to an address in use that a pattern does not join the `share` there.
fn explain_no_join(error: ServiceError) -> ServiceError {
    match error {
        ServiceError::Os { operation, error } if error.kind() == io::ErrorKind::AddrInUse => {
            let advice = "a pattern cannot join a `share` that runs: put both into a run file";
            ServiceError::os(operation, io::Error::new(error.kind(), format!("{error}; {advice}")))
        }
        other => other,
    }
}

/// `outboard attach`. Without `--as`, the device's class chooses the application, possibly standard output.
pub(crate) fn attach(words: Attach) -> Result<(), Failure> {
    if words.session.require_sandbox {
        require_sandbox()?;
    }
    let data_on_stdout =
        words.applications.is_empty() || words.applications.iter().any(|text| config::is_stdout(text));
    let mut attach = AttachWords {
        from: words.from,
        applications: words.applications,
        raw: words.raw,
        conflict: if words.replace { Conflict::Replace } else { Conflict::Refuse },
        expect: words.expect,
        accepted: Vec::new(),
        known: None,
        via: words.via.via,
        via_back: words.via.via_back,
        key_file: words.via.key_file,
        ports: words.via.ports,
        transport: words.transport,
        insecure: words.session.insecure,
        limits: limits(&words.session)?,
    };
    let events = Events::new(words.report.json, words.report.stats, data_on_stdout);
    loop {
        let (requests, joint) = attach.requests()?;
        let services = requests.into_iter().map(Service::Attach).chain(joint.map(Service::Joint));
        match serve(services.collect(), &events) {
            Err(ServiceError::Kind(change)) if accepts(&change)? => attach.accepted.push(*change),
            result => return Ok(result?),
        }
    }
}

/// Asks the user to accept another kind of device. Returns false if there is no terminal.
fn accepts(change: &KindChange) -> Result<bool, Failure> {
    let KindChange { name, address, before, now } = change;
    let stop = Stop::new()?;
    stop_on_signals(&stop)?;
    let question = format!("{name} of {address} was of kind {before} and is of kind {now} now. Attach?");
    Ok(ask(&question, &stop))
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

/// Runs each service in its own thread until all have ended. A signal or a failure stops all of them; the failure is
/// returned after all threads have ended.
fn run_all(services: Vec<Service>, events: &Events) -> Result<(), Failure> {
    Ok(serve(services, events)?)
}

fn serve(services: Vec<Service>, events: &Events) -> Result<(), ServiceError> {
    use_worker_processes();
    let failed = |error| ServiceError::os("handling signals", error);
    let stop = Stop::new().map_err(failed)?;
    stop_on_signals(&stop).map_err(failed)?;
    let results: Vec<Result<(), ServiceError>> = thread::scope(|scope| {
        let run = |service: Service| {
            let stop = &stop;
            scope.spawn(move || {
                let result = service.run(stop, events);
                // After a loss the service has ended as it should: the others go on.
                if result.as_ref().is_err_and(|error| !matches!(error, ServiceError::Lost(_))) {
                    stop.stop();
                }
                result
            })
        };
        let threads: Vec<_> = services.into_iter().map(run).collect();
        let panicked = || Err(ServiceError::Usage("a service panicked: please report this".into()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    results.into_iter().collect()
}

/// `outboard worker`. The worker ignores signals to the process group, because its broker ends it.
pub(crate) fn worker() -> Result<(), Failure> {
    Termination::take_over()?;
    let inherited = |number| {
        let missing = |error| format!("only a broker starts this command: descriptor {number}: {error}");
        sys::descriptor::take_over(number).map_err(|error| Failure::Usage(missing(error)))
    };
    Ok(worker::serve_worker(inherited(3)?, inherited(SENDMSG_DESCRIPTOR)?)?)
}

/// Makes sessions run in worker processes, and raises the descriptor limit of this process to its maximum.
pub(crate) fn use_worker_processes() {
    let limit = getrlimit(Resource::Nofile);
    // On failure the current limit stays in force.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    // This path stays valid after an upgrade has replaced the program's file.
    worker::run_in_processes("/proc/self/exe".into());
}

/// Triggers `stop` on SIGTERM or SIGINT.
pub(crate) fn stop_on_signals(stop: &Stop) -> io::Result<()> {
    handle_signals(stop, false)
}

/// Triggers `stop` on SIGTERM or SIGINT, and a handover on SIGUSR2.
pub(crate) fn stop_or_hand_over_on_signals(stop: &Stop) -> io::Result<()> {
    handle_signals(stop, true)
}

fn handle_signals(stop: &Stop, accepts_handover: bool) -> io::Result<()> {
    let (termination, stop) = (Termination::take_over()?, stop.clone());
    if accepts_handover {
        termination.accept_handover()?;
    }
    thread::Builder::new().name("signals".into()).spawn(move || {
        termination.wait();
        if termination.hands_over() { stop.hand_over() } else { stop.stop() }
    })?;
    Ok(())
}

/// Returns the limits of the command line in the form of a run file, with `--silence` among them.
fn limits(session: &Session) -> Result<Option<String>, Failure> {
    let mut words = session.limits.clone();
    if let Some(silence) = &session.silence {
        let mut names =
            words.iter().flat_map(|list| list.split(',')).filter_map(|word| word.split('=').next());
        if names.any(|name| name.trim() == "silence") {
            let problem = "`--silence` and `--limit silence=` set the same limit: use one of the two";
            return Err(Failure::Usage(problem.into()));
        }
        words.push(format!("silence={silence}"));
    }
    Ok((!words.is_empty()).then(|| words.join(",")))
}
