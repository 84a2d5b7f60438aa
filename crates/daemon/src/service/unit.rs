//! One `[[attach]]` or `[[connect]]` while it runs: its threads, and its restart after a failure.

use super::handover::Handovers;
use crate::config::{AttachWords, ConnectWords};
use broker::attach::ApplicationHost;
use broker::events::{EmitEvent, Event};
use broker::share::DeviceHost;
use contract::ServiceError;
use contract::Time;
use flow::raw_path;
use modules::now;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;
use sys::event::Event as Wake;
use sys::stop::Stop;

/// Delay before a restart: the first one, and the longest. It doubles in between.
const RETRY_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// A unit that has run for this long has succeeded: a later failure is a new one.
const STEADY_AFTER: Duration = Duration::from_secs(60);

/// A report of a unit's thread.
pub(super) struct Report {
    pub(super) unit: u64,
    /// The thread that reports. It may not have returned yet.
    pub(super) thread: ThreadId,
    pub(super) progress: ThreadProgress,
}

impl Report {
    /// Makes a report of this thread.
    fn new(unit: u64, progress: ThreadProgress) -> Report {
        Report { unit, thread: thread::current().id(), progress }
    }
}

pub(super) enum ThreadProgress {
    /// It has connected, and everything is open.
    Started,
    Ended {
        result: Result<(), ServiceError>,
        has_started: bool,
    },
}

/// Channel for the reports of threads, and for events.
#[derive(Clone)]
pub(super) struct UnitContext {
    pub(super) to: Sender<Report>,
    pub(super) wake: Wake,
    pub(super) emit: EmitEvent,
    pub(super) handovers: Arc<Handovers>,
}

/// Retry with exponential backoff.
#[derive(Debug, Clone, Default)]
pub(super) struct Retry {
    failures: u32,
    /// The latest error.
    pub(super) problem: Option<String>,
    pub(super) at: Option<Time>,
}

impl Retry {
    /// Records a failure and schedules a retry. Reports the problem if it is new.
    pub(super) fn fail(&mut self, name: &str, problem: String, emit: &EmitEvent) {
        let wait = RETRY_AFTER[0].saturating_mul(1 << self.failures.min(10)).min(RETRY_AFTER[1]);
        self.failures += 1;
        self.at = Some(now().after(wait));
        if self.problem.as_ref() != Some(&problem) {
            emit(Event::Warning { problem: format!("{name}: {problem}; it will be retried") });
        }
        self.problem = Some(problem);
    }

    /// Resets the backoff after a success.
    pub(super) fn succeed(&mut self) {
        *self = Retry::default();
    }

    pub(super) fn is_due(&self, now: Time) -> bool {
        self.at.is_some_and(|at| at <= now)
    }
}

/// The options of a unit, which identify it.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Words {
    Attach(AttachWords),
    Connect(ConnectWords),
}

impl Words {
    /// Returns a name for messages.
    pub(super) fn name(&self) -> String {
        match self {
            Words::Attach(words) => format!("attach {}", words.from.join(" ")),
            Words::Connect(words) => format!("connect {} {}", words.source, words.sink),
        }
    }
}

/// One `[[attach]]` or `[[connect]]`.
pub(super) struct Unit {
    pub(super) id: u64,
    pub(super) words: Words,
    pub(super) stop: Stop,
    /// Number of running threads.
    pub(super) threads: usize,
    /// Number of running threads that have not reported their start.
    starting: usize,
    started_at: Time,
    pub(super) retry: Retry,
    /// It has ended normally.
    pub(super) done: bool,
    /// It is no longer in the file.
    pub(super) gone: bool,
}

impl Unit {
    pub(super) fn new(id: u64, words: Words) -> Result<Unit, ServiceError> {
        let stop = new_stop()?;
        let (started_at, retry) = (Time::ZERO, Retry::default());
        Ok(Unit { id, words, stop, threads: 0, starting: 0, started_at, retry, done: false, gone: false })
    }

    /// Starts, or restarts, its threads.
    pub(super) fn start(&mut self, cx: &UnitContext) {
        self.retry.at = None;
        self.started_at = now();
        if let Err(error) = self.try_start(cx) {
            self.retry.fail(&self.words.name(), error.to_string(), &cx.emit);
        }
    }

    fn try_start(&mut self, cx: &UnitContext) -> Result<(), ServiceError> {
        self.stop = new_stop()?;
        let is_retry = self.retry.failures > 0;
        match self.words.clone() {
            Words::Attach(words) => {
                let identity = words.identity();
                let words = if is_retry { words.retried() } else { words };
                let (requests, joint) = words.requests()?;
                for (number, request) in requests.into_iter().enumerate() {
                    let key = format!("attach {number} {identity}");
                    let (left, handovers) = (cx.handovers.take(&key), cx.handovers.clone());
                    self.run(cx, move |stop, emit, report_start| {
                        let host = match left {
                            Some(handover) => ApplicationHost::resume(request, handover)?,
                            None => ApplicationHost::start(request)?,
                        };
                        report_start();
                        match host.run_or_hand_over(stop, emit) {
                            Ok(Some(handover)) => handovers.leave(key, handover),
                            Ok(None) => {}
                            // It has ended. Another run would begin the flow again.
                            Err(ServiceError::Lost(problem)) => emit(Event::Warning { problem }),
                            Err(error) => return Err(error),
                        }
                        Ok(())
                    })?;
                }
                if let Some(joint) = joint {
                    self.run(cx, move |stop, emit, report_start| {
                        report_start();
                        joint.run(stop, &mut |event| emit(event.into()))
                    })?;
                }
            }
            Words::Connect(words) => {
                let words = if is_retry { words.retried() } else { words };
                let pipelines = words.pipelines()?;
                self.run(cx, move |stop, emit, report_start| {
                    let connection = raw_path::open(&words.source, &words.sink, &pipelines)?;
                    report_start();
                    let moved = connection.run(stop)?.with_ports(&pipelines);
                    emit(Event::Connected { source: words.source, sink: words.sink, moved });
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Returns whether a running thread has started: it has a session, a node or a device. One that still connects has none.
    pub(super) fn is_open(&self) -> bool {
        self.threads > self.starting
    }

    /// Describes a first attempt, or one after a success, that has not started yet.
    pub(super) fn waiting(&self) -> Option<String> {
        let is_first = self.starting > 0 && self.problem().is_none();
        is_first.then(|| format!("{}: no answer yet", self.words.name()))
    }

    /// Returns the latest error, until a new attempt has started.
    pub(super) fn problem(&self) -> Option<&String> {
        self.retry.problem.as_ref().filter(|_| self.retry.at.is_some() || self.starting > 0)
    }

    fn run(
        &mut self,
        cx: &UnitContext,
        work: impl FnOnce(&Stop, &mut dyn FnMut(Event), &mut dyn FnMut()) -> Result<(), ServiceError>
        + Send
        + 'static,
    ) -> Result<(), ServiceError> {
        drop(spawn(self.id, &self.words.name(), self.stop.clone(), cx.clone(), work)?);
        (self.threads, self.starting) = (self.threads + 1, self.starting + 1);
        Ok(())
    }

    /// Handles the report of one thread.
    pub(super) fn handle_report(&mut self, progress: ThreadProgress, at: Time, cx: &UnitContext) {
        match progress {
            ThreadProgress::Started => self.starting -= 1,
            ThreadProgress::Ended { result, has_started } => {
                self.starting -= usize::from(!has_started);
                self.handle_end(result, at, cx);
            }
        }
    }

    /// Handles the end of one thread. After the first failure, stops the others and schedules a restart.
    fn handle_end(&mut self, result: Result<(), ServiceError>, at: Time, cx: &UnitContext) {
        self.threads -= 1;
        let has_failed = self.retry.at.is_some();
        if let Err(error) = result
            && !self.gone
            && !has_failed
        {
            self.stop.stop();
            if at.since(self.started_at) >= STEADY_AFTER {
                self.retry.succeed();
            }
            self.retry.fail(&self.words.name(), error.to_string(), &cx.emit);
        }
        self.done |= self.threads == 0 && self.retry.at.is_none();
    }
}

/// Runs a `DeviceHost` in a thread.
pub(super) fn run_device_host(
    (id, key): (u64, String),
    device_host: DeviceHost,
    stop: Stop,
    cx: &UnitContext,
) -> Result<JoinHandle<()>, ServiceError> {
    let handovers = cx.handovers.clone();
    spawn(id, "share", stop, cx.clone(), move |stop, emit, _| {
        if let Some(handover) = device_host.run_or_hand_over(stop, emit)? {
            handovers.leave(key, handover);
        }
        Ok(())
    })
}

/// Runs `work` in a thread, with the stop, and with functions that emit an event and that report the start.
fn spawn(
    unit: u64,
    name: &str,
    stop: Stop,
    cx: UnitContext,
    work: impl FnOnce(&Stop, &mut dyn FnMut(Event), &mut dyn FnMut()) -> Result<(), ServiceError> + Send + 'static,
) -> Result<JoinHandle<()>, ServiceError> {
    let run = move || {
        let UnitContext { to, wake, emit, .. } = cx;
        // The receiver has gone if the supervisor has ended.
        let report = |progress| {
            let _ = to.send(Report::new(unit, progress));
            wake.signal();
        };
        let mut has_started = false;
        let mut report_start = || {
            has_started = true;
            report(ThreadProgress::Started);
        };
        let work = std::panic::AssertUnwindSafe(|| work(&stop, &mut |event| emit(event), &mut report_start));
        let panicked = |_| Err(ServiceError::Usage("it panicked: please report this".into()));
        let result = std::panic::catch_unwind(work).unwrap_or_else(panicked);
        // The program may end after the last report. It writes the last lines of its log when the last user drops the log.
        drop(emit);
        report(ThreadProgress::Ended { result, has_started });
    };
    let name = name.split(' ').next().unwrap_or(name).to_string();
    let started = thread::Builder::new().name(name).spawn(run);
    started.map_err(|error| ServiceError::os("starting a thread", error))
}

pub(super) fn new_stop() -> Result<Stop, ServiceError> {
    Stop::new().map_err(|error| ServiceError::os("eventfd", error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    fn unit() -> Unit {
        let (source, sink) = ("null:".into(), "null:".into());
        let words =
            ConnectWords { source, sink, via: None, via_back: None, key_file: None, ports: Vec::new() };
        Unit::new(0, Words::Connect(words)).unwrap()
    }

    fn unreachable() -> ThreadProgress {
        let result = Err(ServiceError::Unreachable("no answer".into()));
        ThreadProgress::Ended { result, has_started: false }
    }

    #[test]
    fn a_long_run_resets_the_backoff_and_a_run_fails_once() {
        let warnings = Arc::new(Mutex::new(0));
        let counted = warnings.clone();
        let emit: EmitEvent = Arc::new(move |_| *counted.lock().unwrap() += 1);
        let cx = UnitContext { to: channel().0, wake: Wake::new().unwrap(), emit, handovers: Arc::default() };
        let mut unit = unit();
        let fail = |unit: &mut Unit, ran: Duration| {
            // As after a start of two threads.
            (unit.threads, unit.starting, unit.retry.at) = (2, 2, None);
            for _ in 0..2 {
                unit.handle_report(unreachable(), unit.started_at.after(ran), &cx);
            }
            (unit.retry.failures, *warnings.lock().unwrap())
        };
        assert_eq!(fail(&mut unit, Duration::ZERO), (1, 1));
        assert_eq!(fail(&mut unit, STEADY_AFTER / 2), (2, 1));
        assert_eq!(fail(&mut unit, STEADY_AFTER), (1, 2));
    }
    #[test]
    fn a_failed_unit_is_a_problem_until_a_new_attempt_has_started() {
        let cx = UnitContext {
            to: channel().0,
            wake: Wake::new().unwrap(),
            emit: Arc::new(|_| {}),
            handovers: Arc::default(),
        };
        let mut unit = unit();
        // As `start` does with two threads.
        let attempt = |unit: &mut Unit| (unit.retry.at, unit.threads, unit.starting) = (None, 2, 2);
        attempt(&mut unit);
        assert_eq!((unit.problem(), unit.is_open()), (None, false));
        assert_eq!(unit.waiting().unwrap(), "connect null: null:: no answer yet");
        (0..2).for_each(|_| unit.handle_report(unreachable(), Time::ZERO, &cx));
        assert!(unit.problem().is_some() && unit.waiting().is_none());
        attempt(&mut unit);
        assert!(unit.problem().is_some());
        unit.handle_report(ThreadProgress::Started, Time::ZERO, &cx);
        assert!(unit.problem().is_some() && unit.is_open());
        unit.handle_report(ThreadProgress::Started, Time::ZERO, &cx);
        assert_eq!((unit.problem(), unit.retry.failures), (None, 1));
    }
}
