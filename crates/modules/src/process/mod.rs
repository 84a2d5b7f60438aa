//! Links to stages in processes of their own ("Networked Device Driver Architecture (2012)", chapter 5). Messages
//! cross pipes or shared memory ([`links::shm`]); control frames use descriptor 3 (`docs/reference/modules.md`);
//! lines on standard error become incidents.
//!
//! Nothing blocks: descriptors are non-blocking, queues are bounded, and [`Link::readiness`] is one descriptor for
//! all descriptors of the processes.
//!
//! Consecutive stages on shared memory are one *run*, and consecutive own stages on pipes are one *chain*. Each
//! stage has a link, but messages are sent to the first stage and received from the last one. The processes live
//! and die together. In a chain each process writes to the pipe that the next one reads, with a word
//! ([`wire::Word`]) after the output that completes a message of the host. So a stage that leaves messages
//! unchanged moves the bytes unread (`splice(2)`).
//!
//! # Supervision
//!
//! A process may crash, hang or send garbage at any time; the flow continues. The ledger keeps inputs and withholds
//! outputs until they are confirmed (`done`; a program that never reports it is one-in-one-out).
//!
//! | state | event | next state |
//! |---|---|---|
//! | running | reports an error: it has 1 s to exit | running |
//! | running | exits or is killed, hangs, sends garbage: its unfinished inputs are kept | waiting, with back-off from 10 ms, doubling to 5 s |
//! | running | fails for the third time in 4 min (or 4 times the patience), and no process has read a message yet | abandoned: messages are dropped and counted |
//! | running | exits with status 0 after the end of its input | waiting, without back-off |
//! | waiting | the time is reached, and the era can continue | running; unfinished inputs are replayed, one at a time |
//! | waiting | the flow has ended, and nothing is unfinished | ended |
//! | ended | another input | waiting |
//!
//! The back-off starts again at 10 ms once a process has finished an input, and once an input was dropped.
//!
//! After a death it is not known which of the unfinished inputs killed the process. They are replayed one at a time, and
//! one that kills three processes is dropped and named (`ledger/trial.rs`, with a table). Then inputs are sent at full
//! speed again. The death of any process of a run or chain ends all of them.
//!
//! A process *hangs* if it has unfinished input and no output for [`Module::patience`]. Until its first output it has
//! longer, because it may load a model: 12 times as long, up to 60 s, or after a restart twice the longest time that a
//! first output took; and 20 s until it sends anything. A process that reports `done` may hold messages longer, if it
//! reads its control descriptor: the link tests that with a frame of an unknown kind, which the process ignores. It
//! sends the frame at half of that time.
//!
//! At the end of the flow the link closes the input of the process, which then sends all messages that it holds and
//! exits with status 0. The end waits while unfinished inputs are replayed ([`Link::is_settling`]).
//!
//! # Pairs with a history
//!
//! Some sink halves need every message of their source half in order
//! ([`Promises::needs_order`](contract::Promises::needs_order)), so they cannot follow a source half that was
//! restarted. The links of such a pair put a 4-byte incarnation number (little-endian) in front of each message.
//!
//! - The source's link increments the number at every start of its process.
//! - The sink's link, when it receives a higher number, ends its process, which sends the messages that it holds,
//!   and starts another for the new incarnation. It drops and counts messages with a lower number.
//! - When the sink's process dies, the next one gets all messages of this incarnation again; outputs that were
//!   released before are discarded. Meanwhile the sink's link requests a new incarnation from the source's link. It
//!   also does so before an incarnation becomes too long to be kept. If it becomes too long before the source's
//!   link reacts, its remaining messages are dropped and counted.
//!
//! A control message between such halves has a tag in front: 0 for the stages' own, 1 for a request to replace the
//! incarnation that follows (4 bytes).

mod checkpoint;
mod group;
mod launch;
mod ledger;
#[cfg(test)]
mod ledger_tests;
mod member;
#[cfg(test)]
mod model;
#[cfg(test)]
mod model_tests;
mod pipes;
mod reader;
mod spawner;
#[cfg(test)]
mod stage_tests;
mod supervisor;
mod window;

pub use launch::use_spawner;
pub use ledger::Limits;
pub use spawner::{AllowedProgram, Spawner};

use contract::{
    Body, Choice, Half, Incident, Input, Interest, Link, Outbox, Readiness, Report, StageError, StageResult,
    Time, Value, interned,
};
use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use supervisor::Supervisor;
use sys::poller::PollSet;
use wire::ModuleFrame;

/// A module that runs as a process.
#[derive(Debug, Clone)]
pub struct Module {
    /// Program and arguments.
    pub words: Vec<OsString>,
    /// Environment; `None`: that of this process.
    pub environment: Option<Vec<(OsString, OsString)>>,
    /// Half of the pair.
    pub half: Half,
    /// First control frames to send.
    pub greeting: Vec<ModuleFrame>,
    /// The module is part of Outboard: it reports `done` and receives feedback about its flow.
    pub is_own: bool,
    /// The command line says that it is in a chain of pipes: with words between containers, and without `done`
    /// frames.
    pub is_chained: bool,
    /// The sink half of the pair needs all output of the source half, in order.
    pub has_history: bool,
    /// Timeout for unfinished input without output.
    pub patience: Duration,
    /// Limits of the messages kept for it.
    pub limits: Limits,
}

/// Settings of a run on shared memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SharedRun {
    /// Most messages in flight; `None`: as many as the latency allows.
    pub slots: Option<usize>,
    /// Target for the time that a message is in flight; limits the slots in use. `None`: use all slots if their
    /// number is set, otherwise enough to keep the processes busy.
    pub latency: Option<Duration>,
}

/// The processes of a run, shared by its links.
enum Run {
    /// A single link needs no lock.
    Alone(Box<RefCell<Supervisor>>),
    Shared(Arc<Mutex<Supervisor>>),
}

/// Access of one link to its run.
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
}

impl Process {
    /// Starts a module between pipes. An error says why it cannot start at all.
    pub fn start(module: Module) -> StageResult<Process> {
        let mut links = Process::links(vec![module], None)?;
        links.pop().ok_or_else(|| StageError::Own("no module to start".into()))
    }

    /// Starts modules of one chain, with a pipe from each to the next, and returns a link for each. If there are
    /// several, none may have a history.
    pub fn start_chain(modules: Vec<Module>) -> StageResult<Vec<Process>> {
        let has_history = modules.len() > 1 && modules.iter().any(|module| module.has_history);
        if modules.is_empty()
            || has_history
            || !modules.iter().all(|module| module.is_own && module.is_chained)
        {
            return Err(StageError::Own("these modules cannot form a chain".into()));
        }
        Process::links(modules, None)
    }

    /// Starts own modules on shared memory, in the order of the flow, and returns a link for each. If there are
    /// several, none may have a history. A program of the user must be alone, because the stages of a run see each other's messages.
    pub fn start_run(modules: Vec<Module>, setting: SharedRun) -> StageResult<Vec<Process>> {
        let has_history = modules.len() > 1 && modules.iter().any(|module| module.has_history);
        let may_share = modules.len() == 1 || modules.iter().all(|module| module.is_own);
        if modules.is_empty() || has_history || !may_share {
            return Err(StageError::Own("these modules cannot share memory".into()));
        }
        Process::links(modules, Some(setting))
    }

    fn links(modules: Vec<Module>, shared: Option<SharedRun>) -> StageResult<Vec<Process>> {
        let set = PollSet::new().map_err(|error| StageError::Own(format!("epoll: {error}")))?;
        let (set, stages) = (Arc::new(set), modules.len());
        let run = Supervisor::start(modules, shared, set.clone())?;
        if stages == 1 {
            let run = Run::Alone(Box::new(RefCell::new(run)));
            return Ok(vec![Process { run, set, stage: 0 }]);
        }
        let run = Arc::new(Mutex::new(run));
        let link = |stage| Process { run: Run::Shared(run.clone()), set: set.clone(), stage };
        Ok((0..stages).map(link).collect())
    }

    #[inline]
    fn run(&self) -> Held<'_> {
        match &self.run {
            Run::Alone(run) => Held::Alone(run.borrow_mut()),
            Run::Shared(run) => Held::Shared(run.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Process id, while the process runs.
    pub fn process_id(&self) -> Option<u32> {
        self.run().process_id(self.stage)
    }

    /// The first link of a run acts for the whole run.
    fn is_first(&self) -> bool {
        self.stage == 0
    }

    /// Moves the output of this link's stage to `out`.
    fn move_output(&self, run: &mut Supervisor, out: &mut Outbox) {
        if !run.has_output(self.stage) {
            return;
        }
        let ready = run.outbox(self.stage);
        move_all(&mut ready.messages, &mut out.messages);
        out.controls.append(&mut ready.controls);
        out.drops.append(&mut ready.drops);
    }
}

/// Appends all; swaps the queues if `to` is empty.
fn move_all<T>(from: &mut VecDeque<T>, to: &mut VecDeque<T>) {
    if to.is_empty() { std::mem::swap(from, to) } else { to.append(from) }
}

impl Link for Process {
    fn hand(&mut self, input: Input<'_>, now: Time, out: &mut Outbox) -> StageResult {
        let mut run = self.run();
        let result = run.hand(self.stage, input, now);
        self.move_output(&mut run, out);
        result
    }

    fn collect(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        let mut run = self.run();
        if self.is_first() {
            run.advance(now);
        }
        self.move_output(&mut run, out);
        Ok(())
    }

    /// Called before the caller waits, so a run on shared memory polls here, where that has paid off.
    fn readiness(&self) -> Readiness<'_> {
        let mut run = self.run();
        if run.has_output(self.stage) || self.is_first() && run.go_to_sleep() {
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

    fn checkpoint(&self) -> Option<Body> {
        self.is_first().then(|| self.run().checkpoint())
    }

    fn restore(&mut self, checkpoint: Body) -> StageResult {
        self.run().restore(checkpoint)
    }

    fn report(&self) -> Vec<Report> {
        let mut run = self.run();
        let [starts, failures, unread_frames] = run.counts(self.stage);
        let own = |(name, value): &(String, f64)| Some((interned(name)?, *value));
        let mut figures: Vec<Report> = run.report(self.stage).figures.iter().filter_map(own).collect();
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
            let (option, value, why) = (interned(option)?, Value::Text(value.clone()), why.clone());
            Some(Choice { option, value, why })
        };
        let mut choices: Vec<Choice> = run.report(self.stage).choices.iter().filter_map(choice).collect();
        if let Some((window, ..)) = run.slots().filter(|_| self.is_first())
            && let Some(why) = window.why()
        {
            let value = Value::Integer(window.messages() as i64);
            choices.push(Choice { option: "slots", value, why });
        }
        choices
    }

    fn is_settling(&self) -> bool {
        self.is_first() && self.run().is_settling()
    }

    fn incidents(&mut self) -> Vec<Incident> {
        self.run().incidents(self.stage)
    }
}
