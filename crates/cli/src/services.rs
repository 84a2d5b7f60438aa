//! `share`, `attach`, `connect` and `run`: requests made of words, run until they end or are told to.

use crate::arguments::{Attach, Connect, Report, Session, Share};
use crate::output::{Events, Failure};
use runtime::config::{AttachWords, ConnectWords, RunFile, ShareWords};
use runtime::{
    AttachRequest, Attacher, Connected, Event, Joined, Joint, Pipelines, RuntimeError, ShareRequest, Sharer,
    Stop,
};
use serde::Serialize;
use std::io;
use std::path::Path;
use std::thread;
use sys::signal::Termination;

/// Something that runs until it ends or is told to.
enum Service {
    Share(ShareRequest),
    /// The same, or through the share that has the address already.
    ShareOrJoin(ShareRequest, ShareWords),
    Attach(AttachRequest),
    Joint(Joint),
    Connect(ConnectWords, Pipelines),
}

impl Service {
    fn run(self, stop: &Stop, events: &Events) -> Result<(), RuntimeError> {
        let mut tell = |event| events.tell(event);
        match self {
            Service::Share(request) => Sharer::start(request)?.run(stop, &mut tell),
            Service::ShareOrJoin(request, words) => share_or_join(request, &words, stop, &mut tell),
            Service::Attach(request) => Attacher::start(request)?.run(stop, &mut tell),
            Service::Joint(joint) => joint.run(stop, &mut tell),
            Service::Connect(words, pipelines) => {
                let moved = runtime::connect(&words.source, &words.sink, &pipelines, stop)?;
                let path =
                    RawPath { event: "connected", source: &words.source, sink: &words.sink, moved: &moved };
                events.tell_result(&path, &path.describe());
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
        Err(RuntimeError::Os { operation, error }) if error.kind() == io::ErrorKind::AddrInUse => {
            RuntimeError::Os { operation, error }
        }
        sharer => return sharer?.run(stop, tell),
    };
    match Joined::join(words, listen)? {
        Some(joined) => joined.run(stop, tell),
        None => Err(in_use),
    }
}

/// What a raw path moved, as `--json` tells it.
#[derive(Serialize)]
struct RawPath<'a> {
    event: &'static str,
    source: &'a str,
    sink: &'a str,
    #[serde(flatten)]
    moved: &'a Connected,
}

impl RawPath<'_> {
    fn describe(&self) -> String {
        let Connected { messages, bytes, drops, incidents } = self.moved;
        let mut text = format!("{} to {}: {messages} messages, {bytes} bytes", self.source, self.sink);
        for (reason, count) in drops {
            text.push_str(&format!(", {count} dropped ({reason})"));
        }
        for incident in incidents {
            text.push_str(&format!("\n{incident}"));
        }
        text
    }
}

/// `outboard share`.
pub(crate) fn share(words: Share) -> Result<(), Failure> {
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
        allow: words.allow,
        listen: Some(words.listen),
        insecure: words.session.insecure,
        limits: Some(limits(&words.session)),
    };
    run_all(vec![Service::ShareOrJoin(words.request()?, words)], &events)
}

/// `outboard attach`. Without `--as` the device's class chooses what stands in for it, which may be
/// standard output.
pub(crate) fn attach(words: Attach) -> Result<(), Failure> {
    let data_on_stdout =
        words.applications.is_empty() || words.applications.iter().any(|text| is_stdout(text));
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
    let events = Events::new(words.json.json, false, is_stdout(&words.sink));
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

/// `outboard run`: everything is checked before anything starts.
pub(crate) fn run(file: &Path, report: &Report) -> Result<(), Failure> {
    let read = match file.as_os_str() == "-" {
        true => std::io::read_to_string(std::io::stdin()),
        false => std::fs::read_to_string(file),
    };
    let text = read.map_err(|error| Failure::Failed(format!("reading {}: {error}", file.display())))?;
    let located = |error| match Failure::from(error) {
        Failure::Usage(problem) => Failure::Usage(format!("{}: {problem}", file.display())),
        other => other,
    };
    let words = RunFile::parse(&text).map_err(located)?;
    let data_on_stdout = words.attach.iter().any(|attach| {
        attach.applications.is_empty() || attach.applications.iter().any(|text| is_stdout(text))
    }) || words.connect.iter().any(|connect| is_stdout(&connect.sink));
    let mut services: Vec<Service> =
        words.share_requests().map_err(located)?.into_iter().map(Service::Share).collect();
    let (requests, joints) = words.attach_requests().map_err(located)?;
    services.extend(requests.into_iter().map(Service::Attach));
    services.extend(joints.into_iter().map(Service::Joint));
    let connections = words.connections().map_err(located)?;
    services
        .extend(connections.into_iter().map(|(words, pipelines)| Service::Connect(words.clone(), pipelines)));
    run_all(services, &Events::new(report.json, report.stats, data_on_stdout))
}

/// Runs each in a thread of its own, until all have ended. A signal stops them all, and so does a failure,
/// which is said once all have stopped.
fn run_all(services: Vec<Service>, events: &Events) -> Result<(), Failure> {
    // Under this name it is found even after its file was replaced by a newer one.
    runtime::worker::run_in_processes("/proc/self/exe".into());
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

/// Says `stop` when the user or the system wants the process to end.
pub(crate) fn stop_on_signals(stop: &Stop) -> Result<(), Failure> {
    let (termination, stop) = (Termination::take_over()?, stop.clone());
    thread::Builder::new().name("signals".into()).spawn(move || {
        termination.wait();
        stop.stop();
    })?;
    Ok(())
}

fn is_stdout(application: &str) -> bool {
    application == "stdout" || application.starts_with("stdout:") || matches!(application, "y4m" | "y4m:")
}

fn limits(session: &Session) -> String {
    let mut words = session.limits.clone();
    words.push(format!("silence={}", session.silence));
    words.join(",")
}
