//! Links to stages that live in processes of their own (paper N, chapter 5): messages on pipes, or in shared memory
//! ([`crate::shm`]), control frames on descriptor 3 (`docs/modules.md`), what it writes to 2 told to people line by
//! line.
//!
//! Nothing blocks: descriptors are non-blocking, queues bounded, and [`Link::readiness`] is one descriptor that
//! stands for all of the process's.
//!
//! Consecutive stages on shared memory are one *run*, and consecutive ones of Outboard's own on pipes one *chain*: each has
//! its link, but messages are handed to the first and come from the last, and are not seen between. They live and die
//! together. In a chain each writes into the pipe that the next one reads, with a word ([`wire::Word`]) behind what
//! completes a message of the host's; so one that does nothing to messages moves what comes on, unread (`splice(2)`).
//!
//! # Supervision
//!
//! A process may die, hang or write rubbish at any moment; the flow goes on. The ledger keeps what it was
//! given and withholds what it gave until it vouches for that (`done`; a program that never says it is
//! one-in-one-out). What died is started again with back-off (10 ms, doubling to 5 s; the first step again
//! once a process has finished something) and is handed what was not finished. A message that was first in line,
//! and read, at three deaths is dropped by name; a process that somebody else killed counts for a quarter.
//!
//! Of a run or a chain, any process's death is all's; and since it is not known which of the messages on their way was whose,
//! they are handed over one at a time after it, so that the one that kills is found.
//!
//! A process *hangs* if it owes something and, for as long as [`Module::patience`], nothing came out of it; one
//! that has just started is granted 20 s for its first sign. One that says done may hold messages back longer, if it reads its control descriptor meanwhile: that is tried
//! with a frame of an unknown kind, which it ignores.
//!
//! The flow ends with the end of the process's input: it gives out what it holds and exits with status 0.
//!
//! # Pairs with a history
//!
//! Where the sink half needs every message of its source half in order ([`Promises::needs_order`]
//! (contract::Promises::needs_order)), a source half that starts anew is one that its sink half cannot follow.
//! The link of such a pair puts a 4-byte incarnation number (little-endian) in front of each message, from link
//! to link. The source's link raises it with every start. The sink's link, when it sees a higher one, ends its
//! process, which gives out what it holds, and starts another before it hands the message over; a message with
//! a lower one is dropped and counted. When the sink's own process dies, the next one is handed all of this
//! incarnation again, without what had left already; meanwhile the sink's link asks the source's for a new
//! incarnation, and does so too before this one grows too long to be kept. If it has grown too long before the
//! source's link heard, what remains of it is dropped and counted.
//!
//! What such halves say to each other has a tag in front: 0 the stages' own, 1 a request for an incarnation
//! after the one that follows (4 bytes).

mod child;
mod launch;
mod ledger;
#[cfg(test)]
mod ledger_tests;
mod member;
mod pipes;
mod reader;
mod reason;
mod supervisor;
#[cfg(test)]
mod tests;
mod together;
mod warden;
mod window;

pub use launch::start_by;
pub use ledger::Limits;
pub use warden::{Allowed, Wardship};

use contract::{Choice, Half, Input, Interest, Link, Outbox, Readiness, Report, StageError, Time, Value};
use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use supervisor::Supervisor;
use sys::memory::Lease;
use sys::poller::PollSet;
use wire::ModuleFrame;

/// A module as a process.
#[derive(Debug, Clone)]
pub struct Module {
    /// The program and its arguments.
    pub words: Vec<OsString>,
    /// Its environment; `None`: that of this process.
    pub environment: Option<Vec<(OsString, OsString)>>,
    /// Which half of its pair it is.
    pub half: Half,
    /// The frames it begins with.
    pub greeting: Vec<ModuleFrame>,
    /// Outboard's own: it says done, and is told how its flow fares.
    pub is_own: bool,
    /// It was told that it stands in a chain of pipes: with words between the containers, and no `done`.
    pub is_chained: bool,
    /// The pair's sink half needs all that its source half made, in order.
    pub has_history: bool,
    /// How long it may owe something without giving anything.
    pub patience: Duration,
    /// How much is kept for it.
    pub limits: Limits,
}

/// How a run on shared memory is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedRun {
    /// Most messages on their way at once; `None`: as many as keep to the latency.
    pub slots: Option<usize>,
    /// How long a message is to be on its way: of the slots only so many are used. `None`: all, if their number is
    /// set, or else those that keep the processes busy.
    pub latency: Option<Duration>,
    /// Whether who waits may look a moment longer before it sleeps, where that has paid.
    pub spins: bool,
    /// Its processes were told to take real-time priority.
    pub is_realtime: bool,
}

/// The processes of a run, in the hands of its links.
enum Run {
    /// The one link needs no lock.
    Alone(Box<RefCell<Supervisor>>),
    Shared(Arc<Mutex<Supervisor>>),
}

/// A run while one of its links is at it.
enum Held<'a> {
    Alone(RefMut<'a, Supervisor>),
    Shared(MutexGuard<'a, Supervisor>),
}

impl Deref for Held<'_> {
    type Target = Supervisor;

    #[inline]
    fn deref(&self) -> &Supervisor {
        match self {
            Held::Alone(run) => run,
            Held::Shared(run) => run,
        }
    }
}

impl DerefMut for Held<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Supervisor {
        match self {
            Held::Alone(run) => run,
            Held::Shared(run) => run,
        }
    }
}

/// The link to a module in a process of its own.
pub struct Process {
    run: Run,
    set: Arc<PollSet>,
    stage: usize,
    stages: usize,
}

impl Process {
    /// Starts the module between pipes. An error says why it does not start at all.
    pub fn start(module: Module) -> Result<Process, StageError> {
        let mut links = Process::links(vec![module], None)?;
        links.pop().ok_or_else(|| StageError::Own("no module to start".into()))
    }

    /// Starts modules that were told that they stand in a chain, with a pipe from each to the next; gives a link for each.
    /// Where there are several, none has a history.
    pub fn start_chain(modules: Vec<Module>) -> Result<Vec<Process>, StageError> {
        let has_history = modules.len() > 1 && modules.iter().any(|module| module.has_history);
        if modules.is_empty()
            || has_history
            || !modules.iter().all(|module| module.is_own && module.is_chained)
        {
            return Err(StageError::Own("these modules cannot stand in one chain".into()));
        }
        Process::links(modules, None)
    }

    /// Starts modules of Outboard's own on shared memory, one behind the other; gives a link for each. Where there
    /// are several, none has a history.
    pub fn start_run(modules: Vec<Module>, setting: SharedRun) -> Result<Vec<Process>, StageError> {
        let has_history = modules.len() > 1 && modules.iter().any(|module| module.has_history);
        if modules.is_empty() || has_history || !modules.iter().all(|module| module.is_own) {
            return Err(StageError::Own("these modules cannot share memory".into()));
        }
        Process::links(modules, Some(setting))
    }

    fn links(modules: Vec<Module>, shared: Option<SharedRun>) -> Result<Vec<Process>, StageError> {
        let set = PollSet::new().map_err(|error| StageError::Own(format!("epoll: {error}")))?;
        let (set, stages) = (Arc::new(set), modules.len());
        let run = Supervisor::start(modules, shared, set.clone())?;
        if stages == 1 {
            let run = Run::Alone(Box::new(RefCell::new(run)));
            return Ok(vec![Process { run, set, stage: 0, stages }]);
        }
        let run = Arc::new(Mutex::new(run));
        let link = |stage| Process { run: Run::Shared(run.clone()), set: set.clone(), stage, stages };
        Ok((0..stages).map(link).collect())
    }

    #[inline]
    fn run(&self) -> Held<'_> {
        match &self.run {
            Run::Alone(run) => Held::Alone(run.borrow_mut()),
            Run::Shared(run) => Held::Shared(run.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// The number of the process, while there is one.
    pub fn process_id(&self) -> Option<u32> {
        self.run().process_id(self.stage)
    }

    /// A slot of shared memory to make a body in that is handed to this link, so that it is not copied; `None` if
    /// none is free, or the link is a pipe.
    pub fn lease(&self) -> Option<Lease> {
        self.run().lease()
    }

    /// Whether what concerns the whole run is this link's: it is the first.
    fn is_first(&self) -> bool {
        self.stage == 0
    }

    /// Gives what is this link's to give.
    fn give(&self, run: &mut Supervisor, out: &mut Outbox) {
        if !run.has_something(self.stage) {
            return;
        }
        let ready = run.outbox(self.stage);
        move_all(&mut ready.messages, &mut out.messages);
        out.controls.append(&mut ready.controls);
        out.drops.append(&mut ready.drops);
    }
}

/// Moves all behind what is there: where nothing is, without touching any.
fn move_all<T>(from: &mut VecDeque<T>, to: &mut VecDeque<T>) {
    match to.is_empty() {
        true => std::mem::swap(from, to),
        false => to.append(from),
    }
}

impl Link for Process {
    fn hand(&mut self, input: Input<'_>, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        let mut run = self.run();
        let result = run.hand(self.stage, input, now);
        self.give(&mut run, out);
        result
    }

    fn collect(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        let mut run = self.run();
        if self.is_first() {
            run.advance(now);
        }
        self.give(&mut run, out);
        Ok(())
    }

    /// Asked before its caller waits: a run on shared memory looks a moment longer then, where that has paid.
    fn readiness(&self) -> Readiness<'_> {
        let mut run = self.run();
        if run.has_something(self.stage) || self.is_first() && run.go_to_sleep() {
            return Readiness::now();
        }
        match self.is_first() {
            true => Readiness::descriptor(std::os::fd::AsFd::as_fd(&*self.set), Interest::Read),
            false => Readiness::never(),
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.is_first().then(|| self.run().poll_timeout()).flatten()
    }

    fn has_room(&self) -> bool {
        !self.is_first() || self.run().has_room()
    }

    fn is_ending(&self) -> bool {
        self.is_first() && self.run().is_ending()
    }

    fn held(&self) -> usize {
        if self.is_first() { self.run().held() } else { 0 }
    }

    fn kept(&self) -> usize {
        let mut run = self.run();
        let unfinished = if self.is_first() { run.unfinished() } else { 0 };
        unfinished + run.outbox(self.stage).messages.len()
    }

    fn report(&self) -> Vec<Report> {
        let mut run = self.run();
        let [starts, failures, unread_frames] = run.counts(self.stage);
        let own = |(name, value): &(String, f64)| Some((reason::interned(name)?, *value));
        let mut figures: Vec<Report> = run.told(self.stage).figures.iter().filter_map(own).collect();
        figures.extend([
            ("process starts", starts as f64),
            ("process failures", failures as f64),
            ("unread control frames", unread_frames as f64),
        ]);
        if self.is_first() {
            figures.push(("unfinished messages", run.unfinished() as f64));
            if let Some((window, out, all)) = run.slots() {
                let on_their_way = ("messages on their way, at most", window.messages() as f64);
                figures.extend([on_their_way, ("slots in use", out as f64), ("slots", all as f64)]);
            }
        }
        figures
    }

    fn choices(&self) -> Vec<Choice> {
        let mut run = self.run();
        let choice = |(option, value, why): &(String, String, String)| {
            let (option, value, why) = (reason::interned(option)?, Value::Text(value.clone()), why.clone());
            Some(Choice { option, value, why })
        };
        let mut choices: Vec<Choice> = run.told(self.stage).choices.iter().filter_map(choice).collect();
        if let Some((window, ..)) = run.slots().filter(|_| self.is_first())
            && let Some(why) = window.why()
        {
            let value = Value::Integer(window.messages() as i64);
            choices.push(Choice { option: "slots", value, why });
        }
        choices
    }

    fn incidents(&mut self) -> Vec<String> {
        self.run().incidents(self.stage)
    }
}

impl Process {
    /// How many stages its run has.
    pub fn stages(&self) -> usize {
        self.stages
    }
}
