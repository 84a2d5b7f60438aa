//! `outboard run FILE`: runs the entries of a file and reports to the service manager.
//!
//! SIGHUP and `outboard reload` read the file again. The whole file is checked first; a file with an error changes
//! nothing. Then entries are compared by their options: equal entries keep running, new ones start, missing ones
//! stop. All `[[share]]` entries with one address belong to one `DeviceHost`. It keeps running while devices come and
//! go, and restarts only if `insecure`, `announce` or `limits` change.
//!
//! An entry that fails now (an unplugged device, a host that does not answer, an address of an interface that is not up) is
//! reported and retried automatically, and the other entries keep running.

mod fleet;
mod handover;
mod hotplug;
mod manager;
mod metrics_server;
mod notify;
mod plan;
mod sharing;
mod unit;

pub use hotplug::{check_rule, is_rule};
pub use plan::Source;

use broker::events::{EmitEvent, Event};
use console::{Answer, Console, Operation, Reloaded, Status, ask, own_consoles};
use contract::ServiceError;
use contract::Time;
use handover::Handovers;
use manager::Inherited;
use metrics_server::MetricsServer;
use modules::now;
use notify::Manager;
use plan::Plan;
use sharing::Sharing;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use sys::activation::Passed;
use sys::event::Event as Wake;
use sys::poller::{Poller, note_closed};
use sys::signal::Hangup;
use sys::stop::Stop;
use sys::uevent::Uevents;
use trust::Trust;
use unit::{Report, ThreadProgress, Unit, UnitContext, Words};

/// Time before the end of a start that is refused. A packet that arrives later starts the service again, and systemd gives up a
/// socket with 20 starts in 2 s.
const REFUSED_START: Duration = Duration::from_secs(1);

/// Timeout of each shutdown step.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// Longest time for which the console stays away after a logout has removed its path.
const CONSOLE_INTERVAL: Duration = Duration::from_secs(30);

/// Interval between two searches for devices that match rules.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Reads the state that the previous program has left, if any, and tells the manager that it is taken.
fn take_over(stored: Option<OwnedFd>, manager: &Manager, emit: &EmitEvent) -> Handovers {
    let Some(stored) = stored else { return Handovers::default() };
    let taken = handover::unpack(stored).unwrap_or_else(|problem| {
        let problem =
            format!("the state of the previous program is not used, and devices open again: {problem}");
        emit(Event::Warning { problem });
        Vec::new()
    });
    manager.forget_stored();
    Handovers::of(taken)
}

fn is_in_use(error: &ServiceError) -> bool {
    matches!(error, ServiceError::Os { error, .. } if error.kind() == ErrorKind::AddrInUse)
}

/// Returns whether this host has no interface with the address, which may come up later.
fn is_not_here(error: &ServiceError) -> bool {
    matches!(error, ServiceError::Os { error, .. } if error.kind() == ErrorKind::AddrNotAvailable)
}

/// A running file.
pub struct Supervisor {
    source: Source,
    inherited: Inherited,
    sharings: Vec<Sharing>,
    units: Vec<Unit>,
    next: u64,
    metrics_server: MetricsServer,
    /// The metrics address of the command line, which takes precedence over the file.
    metrics: Option<SocketAddr>,
    cx: UnitContext,
    reports: Receiver<Report>,
    console: Option<Console>,
    /// Set if there is a file to read again; otherwise SIGHUP ends the process.
    hangup: Option<Hangup>,
    /// Kernel events about devices, if available.
    uevents: Option<Uevents>,
    /// Times of the coming searches for devices.
    looks: Vec<Time>,
    manager: Arc<Manager>,
    poller: Poller,
}

impl Supervisor {
    /// Checks the file and starts its entries. `passed` comes from a service manager
    /// ([`take_passed`](sys::activation::take_passed)): sockets, and the state of the previous program, which the entries
    /// continue. `metrics` takes precedence over the file. After an error of the user, nothing waits in the sockets.
    pub fn start(
        source: Source,
        metrics: Option<SocketAddr>,
        passed: Passed,
        emit: EmitEvent,
    ) -> Result<Supervisor, ServiceError> {
        let copies: io::Result<Vec<_>> = passed.sockets.iter().map(OwnedFd::try_clone).collect();
        let copies = copies.map_err(|error| ServiceError::os("starting", error))?;
        let started = Supervisor::start_entries(source, metrics, passed, emit);
        if matches!(started, Err(ServiceError::Usage(_))) {
            if !copies.is_empty() {
                thread::sleep(REFUSED_START);
            }
            manager::discard_waiting(&copies);
        }
        started
    }

    fn start_entries(
        source: Source,
        metrics: Option<SocketAddr>,
        passed: Passed,
        emit: EmitEvent,
    ) -> Result<Supervisor, ServiceError> {
        let failed = |error| ServiceError::os("starting", error);
        let (to, reports) = channel();
        let plan = source.plan()?;
        let has_file = matches!(source, Source::File(_));
        let manager = Arc::new(Manager::of_environment());
        let handovers = Arc::new(take_over(passed.stored, &manager, &emit));
        let mut supervisor = Supervisor {
            source,
            inherited: Inherited::new(passed.sockets, handovers.clone())?,
            sharings: Vec::new(),
            units: Vec::new(),
            next: 0,
            metrics_server: MetricsServer::default(),
            metrics,
            cx: UnitContext { to, wake: Wake::new().map_err(failed)?, emit, handovers },
            reports,
            console: Console::open().ok(),
            hangup: has_file.then(Hangup::take_over).transpose().map_err(failed)?,
            uevents: Uevents::open().ok(),
            looks: Vec::new(),
            manager,
            poller: Poller::new().map_err(failed)?,
        };
        supervisor.apply(plan)?;
        supervisor.cx.handovers.discard();
        // Some errors of the file show only when the device is opened; they are the user's errors like the others.
        let wrong = supervisor.sharings.iter_mut().find_map(Sharing::take_wrong);
        match wrong {
            Some(problem) => {
                supervisor.end();
                Err(ServiceError::Usage(problem))
            }
            None => Ok(supervisor),
        }
    }

    /// Runs until all entries have ended or `stop` is raised.
    pub fn run(mut self, stop: &Stop) -> Result<(), ServiceError> {
        self.watch_over()?;
        self.manager.notify(&format!("READY=1\nSTATUS={}", self.describe()));
        while !stop.is_requested() {
            self.collect();
            if self.sharings.is_empty() && self.units.iter().all(|unit| unit.done) {
                break;
            }
            if self.hangup.as_ref().is_some_and(Hangup::take) {
                // `reload` has reported the error.
                let _ = self.reload();
            }
            self.serve_console();
            self.retry();
            self.look();
            self.sleep(stop)?;
        }
        self.manager.notify("STOPPING=1\nSTATUS=ending");
        if !stop.hands_over() || !self.manager.is_there() {
            self.end();
            return Ok(());
        }
        self.sharings.iter().for_each(Sharing::hand_over);
        self.units.iter().for_each(|unit| unit.stop.hand_over());
        self.end();
        let stored = self.cx.handovers.pack().and_then(|packed| self.manager.store(packed));
        stored.map_err(|error| ServiceError::os("leaving devices and sessions to the next program", error))
    }

    fn describe(&self) -> String {
        let devices: usize = self.sharings.iter().map(Sharing::devices).sum();
        let units = self.units.iter().filter(|unit| !unit.done).count();
        let problems = self.problems().len();
        let waits = if problems > 0 { format!(", {problems} to be retried") } else { String::new() };
        format!("{devices} shared, {units} attached or connected{waits}")
    }

    /// Lists the entries that do not run, with the reason.
    fn problems(&self) -> Vec<String> {
        let unit = |unit: &Unit| Some(format!("{}: {}", unit.words.name(), unit.problem()?));
        let shares = self.sharings.iter().flat_map(Sharing::problems);
        shares.chain(self.units.iter().filter_map(unit)).chain(self.metrics_server.problem()).collect()
    }

    /// Reads the file again and applies it.
    fn reload(&mut self) -> Result<Reloaded, ServiceError> {
        let micros = now().0 / 1000;
        self.manager.notify(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
        let result = match &self.source {
            Source::File(_) => self.source.plan().and_then(|plan| self.apply(plan)),
            Source::Text(_) | Source::Share(_) => {
                Err(ServiceError::Usage("it has no run file to read again".into()))
            }
        };
        match &result {
            Ok(done) => (self.cx.emit)(Event::Reloaded { done: *done }),
            Err(error) => {
                let problem = format!("the file was not reloaded, and nothing has changed: {error}");
                (self.cx.emit)(Event::Warning { problem });
            }
        }
        self.manager.notify(&format!("READY=1\nSTATUS={}", self.describe()));
        result
    }

    /// Starts and stops entries to match the plan. An error changes nothing.
    fn apply(&mut self, plan: Plan) -> Result<Reloaded, ServiceError> {
        let metrics = self.metrics.or(plan.metrics);
        let endpoint = self.metrics_server.prepare(metrics)?;
        let mut fresh = Vec::new();
        for share in &plan.shares {
            let request = &share.request;
            if self.sharings.iter().any(|sharing| sharing.listen() == request.listen) {
                continue;
            }
            fresh.push(match Sharing::start(self.next, request, &mut self.inherited) {
                Err(error) if is_in_use(&error) && self.leaves_port_of(request.listen, &plan) => {
                    Sharing::new(self.next, request)?
                }
                // At a command line, somebody reads the error.
                Err(error) if is_not_here(&error) && !matches!(self.source, Source::Share(_)) => {
                    let mut sharing = Sharing::new(self.next, request)?;
                    sharing.postpone(&error, &self.cx);
                    sharing
                }
                sharing => sharing?,
            });
            self.next += 1;
        }
        if let Some(fleet) = &plan.fleet {
            fleet.apply(&Trust::open()?)?;
        }
        plan.remarks.iter().for_each(|problem| (self.cx.emit)(Event::Warning { problem: problem.clone() }));
        // From here on, only single entries can fail.
        self.metrics_server.replace(metrics, endpoint, &self.cx.emit);
        self.sharings.extend(fresh);
        let mut done = Reloaded::default();
        self.apply_shares(&plan, &mut done);
        let attaches = plan.attaches.into_iter().map(Words::Attach);
        let words: Vec<_> = attaches.chain(plan.connects.into_iter().map(Words::Connect)).collect();
        self.apply_units(words, &mut done)?;
        Ok(done)
    }

    /// Returns whether a sharing that is not in the plan has the port of this address, which so becomes free.
    fn leaves_port_of(&self, at: SocketAddr, plan: &Plan) -> bool {
        self.sharings
            .iter()
            .any(|sharing| sharing.listen().port() == at.port() && !plan.listens_on(sharing.listen()))
    }

    fn apply_shares(&mut self, plan: &Plan, done: &mut Reloaded) {
        let cx = self.cx.clone();
        self.sharings.retain_mut(|sharing| {
            let kept = plan.listens_on(sharing.listen());
            if !kept {
                done.ended += sharing.end();
                // The poller knows its wakeup.
                note_closed();
            }
            kept
        });
        for share in &plan.shares {
            let listen = share.request.listen;
            let Some(sharing) = self.sharings.iter_mut().find(|sharing| sharing.listen() == listen) else {
                continue;
            };
            if !sharing.continues(share) {
                done.ended += sharing.end();
                sharing.restart(&share.request, &mut self.inherited, &cx);
            }
            sharing.apply(&share.devices, &cx, done);
        }
    }

    fn apply_units(&mut self, mut words: Vec<Words>, done: &mut Reloaded) -> Result<(), ServiceError> {
        for unit in &mut self.units {
            match words.iter().position(|words| *words == unit.words) {
                // An entry that has ended normally is not started again.
                Some(index) => {
                    words.remove(index);
                    done.unchanged += 1;
                }
                None => {
                    done.ended += 1;
                    unit.gone = true;
                    unit.stop.stop();
                }
            }
        }
        // A new entry may need a node that a stopped one still has.
        self.settle(|unit| unit.gone && unit.is_open());
        self.units.retain(|unit| !unit.gone);
        for words in words {
            let mut unit = Unit::new(self.next, words)?;
            self.next += 1;
            unit.start(&self.cx);
            self.units.push(unit);
            done.started += 1;
        }
        Ok(())
    }

    /// Waits until no unit satisfies `is_awaited`, or until the timeout.
    fn settle(&mut self, is_awaited: impl Fn(&Unit) -> bool) {
        // A thread that has started counts from its report on.
        self.take_reports();
        let until = now().after(STOP_PATIENCE);
        while self.units.iter().any(&is_awaited)
            && let Ok(report) = self.reports.recv_timeout(until.since(now()))
        {
            self.handle_report(report);
        }
    }

    fn collect(&mut self) {
        self.cx.wake.clear();
        self.take_reports();
        for sharing in &mut self.sharings {
            sharing.finish_openings(&self.poller, &self.cx);
        }
    }

    fn take_reports(&mut self) {
        while let Ok(report) = self.reports.try_recv() {
            self.handle_report(report);
        }
    }

    fn handle_report(&mut self, Report { unit: id, thread, progress }: Report) {
        if let Some(unit) = self.units.iter_mut().find(|unit| unit.id == id) {
            unit.handle_report(progress, now(), &self.cx);
        } else if let Some(sharing) = self.sharings.iter_mut().find(|sharing| sharing.id() == id)
            && let ThreadProgress::Ended { result, .. } = progress
        {
            sharing.handle_end(thread, result, &self.cx);
        }
    }

    /// Restarts failed entries whose time has come.
    fn retry(&mut self) {
        let at = now();
        for unit in self.units.iter_mut().filter(|unit| unit.threads == 0 && unit.retry.is_due(at)) {
            unit.start(&self.cx);
        }
        for sharing in &mut self.sharings {
            sharing.retry(at, &mut self.inherited, &self.cx);
        }
        self.metrics_server.retry(at, &self.cx.emit);
    }

    /// Searches for devices after kernel events, and at intervals, because not every change causes an event.
    fn look(&mut self) {
        let waits = |sharing: &Sharing| sharing.has_rules() || sharing.retry_at().is_some();
        let is_wanted = self.sharings.iter().any(waits);
        let at = now();
        if self.uevents.as_ref().is_some_and(hotplug::poll) && is_wanted {
            self.looks.extend(hotplug::LOOKS.map(|wait| at.after(wait)));
        }
        let due = self.looks.iter().any(|look| *look <= at);
        self.looks.retain(|look| *look > at);
        if due {
            self.sharings.iter_mut().for_each(|sharing| sharing.look(&self.cx));
            // After the last look, udev has set the permissions of a new node.
            if self.looks.is_empty() {
                self.sharings.iter_mut().for_each(|sharing| sharing.report_blocked(&self.cx));
            }
        }
        if is_wanted && self.looks.is_empty() {
            self.looks.push(at.after(LOOK_INTERVAL));
        }
    }

    fn sleep(&mut self, stop: &Stop) -> Result<(), ServiceError> {
        self.poller.register(stop.wakes(), true, false);
        self.poller.register(self.cx.wake.as_fd(), true, false);
        if let Some(hangup) = &self.hangup {
            self.poller.register(hangup.as_fd(), true, false);
        }
        self.sharings.iter().for_each(|sharing| sharing.register(&mut self.poller));
        if let Some(uevents) = &self.uevents {
            self.poller.register(uevents.as_fd(), true, false);
        }
        if let Some(console) = &self.console {
            console.register(&mut self.poller);
        }
        let units = self.units.iter().filter(|unit| unit.threads == 0).filter_map(|unit| unit.retry.at);
        let at: Option<Time> = units
            .chain(self.sharings.iter().filter_map(Sharing::retry_at))
            .chain(self.looks.iter().copied())
            .chain(self.metrics_server.retry_at())
            .chain(self.console.iter().map(|_| now().after(CONSOLE_INTERVAL)))
            .min();
        let waited = self.poller.wait(at.map(|at| at.since(now())));
        waited.map(drop).map_err(|error| ServiceError::os("waiting", error))
    }

    fn serve_console(&mut self) {
        let Some(mut console) = self.console.take() else { return };
        console.reopen(&mut self.poller);
        for (visitor, operation) in console.poll(&mut self.poller) {
            let answer = match operation {
                Operation::Stats {} => {
                    let waiting = self.sharings.iter().flat_map(Sharing::waiting);
                    let waiting = waiting.chain(self.units.iter().filter_map(Unit::waiting)).collect();
                    let problems = self.problems();
                    Answer::Status(Status { problems, waiting, ..Status::of("run", Vec::new()) })
                }
                Operation::Reload {} => match self.reload() {
                    Ok(done) => Answer::Reloaded(done),
                    Err(error) => Answer::Refused { problem: error.to_string() },
                },
                _ => Answer::Refused {
                    problem: "this console serves the run file only: use the other consoles of the process"
                        .into(),
                },
            };
            console.answer(visitor, &answer, &mut self.poller);
        }
        self.console = Some(console);
    }

    /// Starts the watchdog thread: it reports to the service manager that the service is alive, as long as every
    /// console of this process answers.
    fn watch_over(&self) -> Result<(), ServiceError> {
        let Some(interval) = self.manager.watchdog else { return Ok(()) };
        let manager = self.manager.clone();
        let watch = move || {
            loop {
                let answers = |console: &std::path::PathBuf| ask(console, &Operation::Stats {}).is_ok();
                if own_consoles().is_ok_and(|consoles| consoles.iter().all(answers)) {
                    manager.notify("WATCHDOG=1");
                }
                std::thread::sleep(interval / 3);
            }
        };
        let started = std::thread::Builder::new().name("watchdog".into()).spawn(watch);
        started.map(drop).map_err(|error| ServiceError::os("starting a thread", error))
    }

    /// Stops all entries and waits for those that have started, up to the timeout. A first connection may block for long.
    fn end(&mut self) {
        self.sharings.iter().for_each(Sharing::stop);
        for unit in &mut self.units {
            unit.gone = true;
            unit.stop.stop();
        }
        for sharing in &mut self.sharings {
            sharing.end();
        }
        self.settle(Unit::is_open);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn entries(host: &str, [port, metrics]: [u16; 2]) -> Source {
        let share = "[[share]]\ndevice = 'pattern:rate=5'\ninsecure = true";
        let text = format!("{share}\nlisten = '{host}:{port}'\n[service]\nmetrics = '{host}:{metrics}'\n");
        Source::Text(text)
    }

    #[test]
    fn another_address_of_the_same_port_replaces_the_old_one() {
        let bound = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = bound.map(|listener| listener.local_addr().unwrap().port());
        let source = |host: &str| entries(host, ports);
        let start = Supervisor::start(source("127.0.0.1"), None, Passed::default(), Arc::new(|_| {}));
        let mut supervisor = start.unwrap();
        // Nobody serves it here, and other tests of this process ask all consoles.
        supervisor.console = None;
        // There is no file to read again: SIGHUP keeps its default action.
        assert!(supervisor.hangup.is_none());
        for host in ["0.0.0.0", "127.0.0.1"] {
            let done = supervisor.apply(source(host).plan().unwrap()).unwrap();
            assert_eq!((done.started, done.ended, done.unchanged), (1, 1, 0));
            let at = |port| format!("{host}:{port}").parse().unwrap();
            assert_eq!(supervisor.sharings[0].listen(), at(ports[0]));
            assert!(supervisor.sharings[0].runs() && supervisor.sharings.len() == 1);
            assert_eq!(supervisor.metrics_server.address(), Some(at(ports[1])));
        }
        supervisor.end();
    }
    #[test]
    fn an_address_that_this_host_does_not_have_is_retried() {
        let text = |host: &str| {
            let share = "[[share]]\ndevice = 'pattern:rate=5'\ninsecure = true\n";
            format!(
                "{share}listen = '{host}:0'\n{share}listen = '127.0.0.1:0'\n[service]\nmetrics = '{host}:0'\n"
            )
        };
        let source = Source::Text(text("192.0.2.1"));
        let mut supervisor = Supervisor::start(source, None, Passed::default(), Arc::new(|_| {})).unwrap();
        supervisor.console = None;
        assert_eq!(supervisor.sharings.iter().map(Sharing::devices).collect::<Vec<_>>(), [0, 1]);
        let problems = supervisor.problems().join("\n");
        for says in ["share: listening on 192.0.2.1:0: ", "metrics: serving metrics on 192.0.2.1:0: "] {
            assert!(problems.contains(says), "{problems}");
        }
        assert!(
            supervisor.sharings[0].retry_at().is_some() && supervisor.metrics_server.retry_at().is_some()
        );
        supervisor.end();
    }
}
