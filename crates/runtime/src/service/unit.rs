//! One entry of a run file while it runs: its threads, and when it is begun again after it failed.

use crate::attach::Attacher;
use crate::config::{AttachWords, ConnectWords};
use crate::connect;
use crate::error::RuntimeError;
use crate::events::{Event, Stop, Tell};
use crate::share::{Sharer, now};
use contract::Time;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;
use sys::event::Event as Wake;

/// Time before what failed is begun again: the first time, and at most.
const RETRY_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// What a thread of a unit came to.
pub(super) struct Finished {
    pub(super) unit: u64,
    pub(super) result: Result<(), RuntimeError>,
}

/// Where threads say that they have ended.
#[derive(Clone)]
pub(super) struct Ends {
    pub(super) to: Sender<Finished>,
    pub(super) wake: Wake,
    pub(super) tell: Tell,
}

/// When to try again, later each time.
#[derive(Debug, Clone, Default)]
pub(super) struct Retry {
    failures: u32,
    /// Why it failed last.
    pub(super) problem: Option<String>,
    pub(super) at: Option<Time>,
}

impl Retry {
    /// It failed: it is to be tried again later.
    pub(super) fn fail(&mut self, what: &str, problem: String, tell: &Tell) {
        let wait = RETRY_AFTER[0].saturating_mul(1 << self.failures.min(10)).min(RETRY_AFTER[1]);
        self.failures += 1;
        self.at = Some(now().after(wait));
        // What is known already need not be said each time.
        if self.problem.as_ref() != Some(&problem) {
            tell(Event::Warning { problem: format!("{what}: {problem}; it is tried again by itself") });
        }
        self.problem = Some(problem);
    }

    /// It did not fail this time.
    pub(super) fn succeed(&mut self) {
        *self = Retry::default();
    }

    pub(super) fn is_due(&self, now: Time) -> bool {
        self.at.is_some_and(|at| at <= now)
    }
}

/// The words of a unit, and what it is known by.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Words {
    Attach(AttachWords),
    Connect(ConnectWords),
}

impl Words {
    /// For people.
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
    /// Threads that have not ended.
    pub(super) threads: usize,
    pub(super) retry: Retry,
    /// It has done what it was to do.
    pub(super) done: bool,
    /// It is in the file no longer.
    pub(super) gone: bool,
}

impl Unit {
    pub(super) fn new(id: u64, words: Words) -> Result<Unit, RuntimeError> {
        let stop = new_stop()?;
        Ok(Unit { id, words, stop, threads: 0, retry: Retry::default(), done: false, gone: false })
    }

    /// Begins, or begins again.
    pub(super) fn start(&mut self, ends: &Ends) {
        self.retry.at = None;
        if let Err(error) = self.try_start(ends) {
            self.retry.fail(&self.words.name(), error.to_string(), &ends.tell);
        }
    }

    fn try_start(&mut self, ends: &Ends) -> Result<(), RuntimeError> {
        self.stop = new_stop()?;
        match self.words.clone() {
            Words::Attach(words) => {
                let (requests, joint) = words.requests()?;
                for request in requests {
                    self.run(ends, move |stop, tell| Attacher::start(request)?.run(stop, tell))?;
                }
                if let Some(joint) = joint {
                    self.run(ends, move |stop, tell| joint.run(stop, tell))?;
                }
            }
            Words::Connect(words) => {
                let pipelines = words.pipelines()?;
                self.run(ends, move |stop, tell| {
                    let moved = connect::connect(&words.source, &words.sink, &pipelines, stop)?;
                    tell(Event::Connected { source: words.source, sink: words.sink, moved });
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    fn run(
        &mut self,
        ends: &Ends,
        work: impl FnOnce(&Stop, &mut dyn FnMut(Event)) -> Result<(), RuntimeError> + Send + 'static,
    ) -> Result<(), RuntimeError> {
        drop(spawn(self.id, &self.words.name(), self.stop.clone(), ends.clone(), work)?);
        self.threads += 1;
        Ok(())
    }

    /// One of its threads ended. The others end with it if it failed; once all have, it waits to be begun again.
    pub(super) fn handle_end(&mut self, result: Result<(), RuntimeError>, ends: &Ends) {
        self.threads -= 1;
        if let Err(error) = result
            && !self.gone
        {
            self.stop.stop();
            self.retry.fail(&self.words.name(), error.to_string(), &ends.tell);
        }
        self.done |= self.threads == 0 && self.retry.at.is_none();
    }
}

/// Runs a sharer in a thread of its own.
pub(super) fn run_sharer(
    id: u64,
    sharer: Sharer,
    stop: Stop,
    ends: &Ends,
) -> Result<JoinHandle<()>, RuntimeError> {
    spawn(id, "share", stop, ends.clone(), move |stop, tell| sharer.run(stop, tell))
}

fn spawn(
    unit: u64,
    name: &str,
    stop: Stop,
    ends: Ends,
    work: impl FnOnce(&Stop, &mut dyn FnMut(Event)) -> Result<(), RuntimeError> + Send + 'static,
) -> Result<JoinHandle<()>, RuntimeError> {
    let run = move || {
        let mut tell = |event| (ends.tell)(event);
        let work = std::panic::AssertUnwindSafe(|| work(&stop, &mut tell));
        let panicked = |_| Err(RuntimeError::Usage("it panicked: please report this".into()));
        let result = std::panic::catch_unwind(work).unwrap_or_else(panicked);
        // Whoever waits for it no longer has ended itself.
        let _ = ends.to.send(Finished { unit, result });
        ends.wake.signal();
    };
    let name = name.split(' ').next().unwrap_or(name).to_string();
    let started = std::thread::Builder::new().name(name).spawn(run);
    started.map_err(|error| RuntimeError::os("starting a thread", error))
}

pub(super) fn new_stop() -> Result<Stop, RuntimeError> {
    Stop::new().map_err(|error| RuntimeError::os("eventfd", error))
}
