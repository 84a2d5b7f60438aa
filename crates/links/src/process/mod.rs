//! The link to a stage that lives in a process of its own (paper N, chapter 5): containers on its descriptors
//! 0 and 1, control frames on 3 (`docs/modules.md`), what it writes to 2 told to people line by line.
//!
//! Nothing blocks: descriptors are non-blocking, queues bounded, and [`Link::readiness`] is one descriptor that
//! stands for all of the process's.
//!
//! # Supervision
//!
//! The process may die, hang or write rubbish at any moment; the flow goes on. The ledger keeps what it was
//! given and withholds what it gave until it vouches for that (`done`; a program that never says it is
//! one-in-one-out). What died is started again with back-off (10 ms, doubling to 5 s; the first step again
//! once a process has finished something) and is handed what was not finished. A message that was first in line,
//! and read, at three deaths is dropped by name; a process that somebody else killed counts for a quarter.
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
mod ledger;
#[cfg(test)]
mod ledger_tests;
mod reader;
mod reason;
#[cfg(test)]
mod tests;

pub use ledger::Limits;

use child::{Child, Event};
use contract::{
    Choice, Feedback, Half, Input, Interest, Link, Message, Outbox, Port, Readiness, Report, StageError,
    Time, Value,
};
use ledger::{Ledger, Rubbish};
use std::ffi::OsString;
use std::time::Duration;
use wire::module::ModuleFeedback;
use wire::{ModuleFrame, ModuleReport};

/// The kind of frame that asks whether anybody reads: unknown, and so ignored.
const PROBE: ModuleFrame = ModuleFrame::Unknown(u8::MAX);
/// What a process that has not given anything yet is granted: an interpreter on a busy host starts slowly.
const STARTING: Duration = Duration::from_secs(20);
/// The first pause before a start, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(5)];
/// Incidents that wait to be told.
const INCIDENTS_MAX: usize = 32;
/// Lines of a process's own that are told, of every start.
const LINES_MAX: usize = 20;

/// Tags of what the links of a pair with a history say to each other.
const STAGE_TAG: u8 = 0;
const RENEW_TAG: u8 = 1;

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
    /// The pair's sink half needs all that its source half made, in order.
    pub has_history: bool,
    /// How long it may owe something without giving anything.
    pub patience: Duration,
    /// How much is kept for it.
    pub limits: Limits,
}

enum State {
    Running(Box<Child>),
    /// To be started at this time.
    Waiting(Time),
    /// It ended well after the flow did.
    Ended,
}

/// What a look at the process found.
enum Found {
    Alive,
    Ended,
    Failed { why: String, is_outside: bool },
}

impl Found {
    /// By its own doing.
    fn failed(why: String) -> Found {
        Found::Failed { why, is_outside: false }
    }
}

/// The link to a module in a process of its own.
pub struct Process {
    module: Module,
    ledger: Ledger,
    state: State,
    /// The flow has ended here.
    is_ending: bool,
    /// A new incarnation was asked for.
    is_renewing: bool,
    incarnation: u32,
    /// The incarnation after which another was asked for last.
    renewal_asked: u32,
    progress_at: Time,
    was_idle: bool,
    is_probed: bool,
    /// This process has given something.
    has_given: bool,
    /// Starts since a process finished something.
    attempts: u32,
    committed_before: u64,
    starts: u64,
    failures: u64,
    unread_frames: u64,
    lines: usize,
    last_line: Option<String>,
    incidents: Vec<String>,
    /// How the stage fares, by its own last word.
    told: ModuleReport,
}

impl Process {
    /// Starts the module. An error says why it does not start at all.
    pub fn start(module: Module) -> Result<Process, StageError> {
        let child = Child::start(&module.words, module.environment.as_deref()).map_err(|error| {
            let program = module.words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
            StageError::Own(format!("cannot start {program}: {error}"))
        })?;
        // The source's link marks incarnations; the sink's follows them.
        let follows = module.has_history && module.half == Half::Sink;
        let mut process = Process {
            ledger: Ledger::new(module.limits, module.is_own, follows),
            module,
            state: State::Ended,
            is_ending: false,
            is_renewing: false,
            incarnation: 0,
            renewal_asked: 0,
            progress_at: Time::ZERO,
            was_idle: true,
            is_probed: false,
            has_given: false,
            attempts: 0,
            committed_before: 0,
            starts: 0,
            failures: 0,
            unread_frames: 0,
            lines: 0,
            last_line: None,
            incidents: Vec::new(),
            told: ModuleReport::default(),
        };
        process.begin(child, Time::ZERO);
        Ok(process)
    }

    /// The number of the process, while there is one.
    pub fn process_id(&self) -> Option<u32> {
        match &self.state {
            State::Running(child) => Some(child.id()),
            _ => None,
        }
    }

    fn begin(&mut self, mut child: Child, now: Time) {
        for frame in &self.module.greeting {
            child.tell(frame, 0);
        }
        child.write(&mut self.ledger);
        self.incarnation = self.incarnation.saturating_add(1);
        self.starts += 1;
        self.lines = 0;
        self.last_line = None;
        self.committed_before = self.ledger.committed();
        (self.progress_at, self.was_idle, self.is_probed) = (now, true, false);
        (self.is_renewing, self.has_given) = (false, false);
        self.state = State::Running(Box::new(child));
    }

    fn start_again(&mut self, now: Time) {
        if !self.ledger.has_next() && self.ledger.next_era().is_some() {
            self.ledger.begin_era();
        }
        match Child::start(&self.module.words, self.module.environment.as_deref()) {
            Ok(child) => self.begin(child, now),
            Err(error) => {
                self.starts += 1;
                let pause = self.pause();
                self.state = State::Waiting(now.after(pause));
                self.tell(format!("cannot be started: {error}; tried again in {pause:?}"));
            }
        }
    }

    fn pause(&mut self) -> Duration {
        if self.ledger.committed() > self.committed_before {
            self.attempts = 0;
        }
        self.attempts += 1;
        (PAUSES[0] * (1 << (self.attempts - 1).min(16))).min(PAUSES[1])
    }

    /// Whether a process could do something, or show that it can.
    fn can_start(&self) -> bool {
        !self.ledger.is_lost() || self.ledger.next_era().is_some()
    }

    /// Does what can be done now.
    fn advance(&mut self, now: Time, out: &mut Outbox) {
        loop {
            match &self.state {
                State::Ended if self.ledger.waiting() == 0 => break,
                State::Ended => {
                    self.is_ending = false;
                    self.state = State::Waiting(now);
                }
                State::Waiting(_) if self.is_ending && self.ledger.unfinished() == 0 => {
                    self.state = State::Ended;
                }
                State::Waiting(at) if *at > now || !self.can_start() => break,
                State::Waiting(_) => self.start_again(now),
                State::Running(_) => match self.look(now, out) {
                    Found::Alive => break,
                    Found::Ended => {
                        self.ledger.end();
                        self.give(out);
                        self.state = State::Waiting(now);
                    }
                    Found::Failed { why, is_outside } => self.fail(&why, is_outside, now, out),
                },
            }
        }
        self.give(out);
    }

    /// Reads from the process and writes to it.
    fn look(&mut self, now: Time, out: &mut Outbox) -> Found {
        let State::Running(child) = &mut self.state else { return Found::Alive };
        let (ledger, module) = (&mut self.ledger, &self.module);
        let (lines, last_line, incidents) = (&mut self.lines, &mut self.last_line, &mut self.incidents);
        let told = &mut self.told;
        let mut has_moved = false;
        let status = child.read(|event| {
            match event {
                Event::Output(message) => {
                    has_moved = true;
                    ledger.take(message)?;
                }
                Event::Frame(ModuleFrame::Report(report)) => {
                    let is_first = told.problem.is_empty() && !report.problem.is_empty();
                    if is_first && incidents.len() < INCIDENTS_MAX {
                        incidents.push(format!("{} half: {}", module.half, report.problem));
                    }
                    *told = report;
                }
                Event::Frame(frame) => {
                    has_moved = true;
                    take_frame(frame, ledger, module, out)?;
                }
                Event::Line(line) => {
                    *lines += 1;
                    if *lines <= LINES_MAX && incidents.len() < INCIDENTS_MAX {
                        incidents.push(format!("{} half says: {line}", module.half));
                    }
                    *last_line = Some(line);
                }
            }
            Ok(())
        });
        let status = match status {
            Ok(status) => status,
            Err(Rubbish(what)) => return Found::failed(format!("was killed: {what}")),
        };
        if ledger.is_untouched() && ledger.next_era().is_some() {
            ledger.begin_era();
        }
        child.write(ledger);
        let follows = ledger.next_era().is_some();
        if (self.is_ending || self.is_renewing || follows) && !ledger.has_next() {
            child.end_input();
        }
        if let Some(status) = status {
            return match child.was_told_end() && status.success() && !ledger.has_next() {
                true => Found::Ended,
                false => Found::Failed { why: reason::of(status), is_outside: reason::is_outside(status) },
            };
        }
        self.has_given |= has_moved;
        let is_idle = ledger.is_idle() && !child.was_told_end();
        if is_idle || has_moved || self.was_idle {
            (self.progress_at, self.is_probed) = (now, false);
        }
        self.was_idle = is_idle;
        match !is_idle && now >= self.patience_ends() {
            true => self.lose_patience(now),
            false => Found::Alive,
        }
    }

    fn patience_ends(&self) -> Time {
        let patience = match self.has_given {
            true => self.module.patience,
            false => self.module.patience.max(STARTING),
        };
        let is_asked = self.is_probed || !self.ledger.says_done();
        self.progress_at.after(if is_asked { patience } else { patience / 2 })
    }

    fn lose_patience(&mut self, now: Time) -> Found {
        let State::Running(child) = &mut self.state else { return Found::Alive };
        if self.ledger.says_done() && !self.is_probed {
            self.is_probed = true;
            child.tell(&PROBE, self.ledger.place());
            child.write(&mut self.ledger);
            return Found::Alive;
        }
        if self.ledger.says_done() && child.listens() && !child.was_told_end() {
            (self.progress_at, self.is_probed) = (now, false);
            return Found::Alive;
        }
        Found::failed(format!("hangs (nothing came of it for {:?}) and was killed", self.module.patience))
    }

    /// The process is of no more use.
    fn fail(&mut self, why: &str, is_outside: bool, now: Time, out: &mut Outbox) {
        // What it vouched for leaves as its own incarnation's.
        self.give(out);
        let unread = match &self.state {
            State::Running(child) => child.unread(),
            _ => 0,
        };
        let death = self.ledger.die(unread, is_outside);
        self.failures += 1;
        let pause = self.pause();
        // Dropped here, the process is killed if it still runs.
        self.state = State::Waiting(now.after(pause));
        let mut text = why.to_string();
        if let Some(line) = &self.last_line {
            text.push_str(&format!(" (its last words: {line})"));
        }
        text.push_str(&reason::of_memory(self.last_line.as_deref()));
        text.push_str(&format!("; started again in {pause:?}"));
        if death.again > 0 {
            text.push_str(&format!(", {} messages are handed over again", death.again));
        }
        if death.poison > 0 {
            text.push_str("; the message that killed it three times is dropped");
        }
        if death.unreadable > 0 {
            text.push_str(&format!("; {} messages are unreadable without what it knew", death.unreadable));
        }
        self.tell(text);
        self.renew_from_source(out);
    }

    /// The sink's link asks for a new incarnation, once after each.
    fn renew_from_source(&mut self, out: &mut Outbox) {
        let era = self.ledger.era();
        if self.module.has_history && self.module.half == Half::Sink && era > self.renewal_asked {
            self.renewal_asked = era;
            let mut body = vec![RENEW_TAG];
            body.extend(era.to_le_bytes());
            out.control(body);
        }
    }

    fn tell(&mut self, what: String) {
        if self.incidents.len() < INCIDENTS_MAX {
            self.incidents.push(format!("{} half {what}", self.module.half));
        }
    }

    /// Passes on what may leave.
    fn give(&mut self, out: &mut Outbox) {
        let marks = self.module.has_history && self.module.half == Half::Source;
        while let Some(mut message) = self.ledger.ready() {
            if marks {
                message.body.push_front(&self.incarnation.to_le_bytes());
            }
            out.send(Port::MAIN, message);
        }
        out.drops.extend(self.ledger.drops());
        if self.ledger.is_long() {
            self.renew_from_source(out);
        }
    }

    fn admit(&mut self, mut message: Message, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        let mut era = 0;
        if self.module.has_history && self.module.half == Half::Sink {
            let mark = message.body.take_front::<4>().map(u32::from_le_bytes).filter(|mark| *mark > 0);
            era = mark.ok_or_else(|| StageError::Input("it bears no incarnation number".into()))?;
        }
        self.ledger.admit(message, era);
        match &mut self.state {
            // The usual way: what it makes of it is collected when it is there.
            State::Running(child) if self.ledger.has_next() => {
                if std::mem::take(&mut self.was_idle) {
                    (self.progress_at, self.is_probed) = (now, false);
                }
                child.write(&mut self.ledger);
            }
            _ => self.advance(now, out),
        }
        Ok(())
    }

    fn take_control(&mut self, bytes: &[u8]) -> Result<(), StageError> {
        let is_source = self.module.half == Half::Source;
        let body = match bytes {
            _ if !self.module.has_history => bytes,
            [STAGE_TAG, body @ ..] => body,
            [RENEW_TAG, era @ ..] if is_source => {
                let era = <[u8; 4]>::try_from(era).map(u32::from_le_bytes);
                let era = era.map_err(|_| StageError::Control("a request without a number".into()))?;
                // One that is older was answered already.
                if era == self.incarnation && matches!(self.state, State::Running(_)) {
                    self.is_renewing = true;
                    self.ledger.stop();
                }
                return Ok(());
            }
            _ => return Err(StageError::Control("a tag that no link gives".into())),
        };
        self.say(&ModuleFrame::Peer(body.to_vec()));
        Ok(())
    }

    /// Tells the process something behind what it was given so far; one that is not there is told nothing.
    fn say(&mut self, frame: &ModuleFrame) {
        let at = self.ledger.place();
        if let State::Running(child) = &mut self.state {
            match child.tell(frame, at) {
                true => child.write(&mut self.ledger),
                false => self.unread_frames += 1,
            }
        }
    }
}

fn take_frame(
    frame: ModuleFrame,
    ledger: &mut Ledger,
    module: &Module,
    out: &mut Outbox,
) -> Result<(), Rubbish> {
    match frame {
        ModuleFrame::Done { inputs, outputs } => ledger.take_done(inputs, outputs)?,
        ModuleFrame::Hello { options, .. }
            if options.iter().any(|(name, value)| name == "done" && value == "true") =>
        {
            ledger.expect_done();
        }
        ModuleFrame::Peer(mut body) => {
            if module.has_history {
                body.insert(0, STAGE_TAG);
            }
            out.control(body);
        }
        ModuleFrame::Drop { count, reason } => {
            out.drop_counted(reason::interned(&reason).unwrap_or("dropped by its module"), count);
        }
        ModuleFrame::Error(what) => return Err(Rubbish(format!("it failed: {what}"))),
        _ => {}
    }
    Ok(())
}

fn frame_of(feedback: &Feedback) -> ModuleFrame {
    let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    ModuleFrame::Feedback(ModuleFeedback {
        received: feedback.received,
        lost: feedback.lost,
        delay_ns: ns(feedback.delay),
        jitter_ns: ns(feedback.jitter),
        round_trip_ns: ns(feedback.round_trip),
        rate_bytes: feedback.rate_bytes,
        waiting_bytes: feedback.waiting_bytes,
    })
}

impl Link for Process {
    fn hand(&mut self, input: Input<'_>, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        match input {
            Input::Message(_, message) => return self.admit(message, now, out),
            Input::Control(bytes) => {
                self.take_control(bytes)?;
                self.advance(now, out);
            }
            Input::End(_) => {
                self.is_ending = true;
                self.advance(now, out);
            }
            Input::Gap(_) => self.ledger.admit_gap(),
            Input::Feedback(feedback) if self.module.is_own => self.say(&frame_of(feedback)),
            Input::Feedback(_) => {}
            Input::Timeout => self.advance(now, out),
        }
        Ok(())
    }

    fn collect(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.advance(now, out);
        Ok(())
    }

    fn readiness(&self) -> Readiness<'_> {
        match &self.state {
            State::Running(child) => Readiness::descriptor(child.wakes(), Interest::Read),
            _ => Readiness::never(),
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        match &self.state {
            State::Running(_) if self.was_idle => None,
            State::Running(_) => Some(self.patience_ends()),
            State::Waiting(at) => Some(*at).filter(|_| self.can_start()),
            State::Ended => None,
        }
    }

    fn has_room(&self) -> bool {
        self.ledger.has_room() && !Link::is_ending(self)
    }

    fn is_ending(&self) -> bool {
        self.is_ending && !matches!(self.state, State::Ended)
    }

    /// What a process that says done has read, it may hold for reasons of its own.
    fn held(&self) -> usize {
        match self.ledger.says_done() {
            true => self.ledger.waiting(),
            false => self.ledger.unfinished(),
        }
    }

    fn kept(&self) -> usize {
        self.ledger.unfinished()
    }

    fn report(&self) -> Vec<Report> {
        let own = |(name, value): &(String, f64)| Some((reason::interned(name)?, *value));
        let mut figures: Vec<Report> = self.told.figures.iter().filter_map(own).collect();
        figures.extend([
            ("process starts", self.starts as f64),
            ("process failures", self.failures as f64),
            ("unfinished messages", self.ledger.unfinished() as f64),
            ("unread control frames", self.unread_frames as f64),
        ]);
        figures
    }

    fn choices(&self) -> Vec<Choice> {
        let choice = |(option, value, why): &(String, String, String)| {
            Some(Choice {
                option: reason::interned(option)?,
                value: Value::Text(value.clone()),
                why: why.clone(),
            })
        };
        self.told.choices.iter().filter_map(choice).collect()
    }

    fn incidents(&mut self) -> Vec<String> {
        std::mem::take(&mut self.incidents)
    }
}
