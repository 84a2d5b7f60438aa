//! The processes of one run, kept alive: started, judged, started again. See [`super`].

use super::child::{Blame, Child, Event, Program, Seen};
use super::ledger::{Ledger, Rubbish};
use super::window::Window;
use super::{Module, SharedRun, move_all, reason};
use crate::shm::{self, Geometry};
use contract::{Drop, Feedback, Half, Input, Message, Outbox, StageError, Time};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use sys::memory::{Lease, Slots};
use sys::poller::PollSet;
use wire::module::ModuleFeedback;
use wire::{ModuleFrame, ModuleReport};

/// The kind of frame that asks whether anybody reads: unknown, and so ignored.
const PROBE: ModuleFrame = ModuleFrame::Unknown(u8::MAX);
/// What a process that has not given anything yet is granted: an interpreter on a busy host starts slowly.
const STARTING: Duration = Duration::from_secs(20);
/// The first pause before a start, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(5)];
/// Incidents that wait to be told, of each stage.
const INCIDENTS_MAX: usize = 32;
/// Lines of a process's own that are told, of every start.
const LINES_MAX: usize = 20;
/// Stages on shared memory are asked so often how they fare, while there is something to tell: none needs a timer for it.
const ASK: Duration = Duration::from_secs(1);
/// Where nobody tells of room, it is looked for so often.
const LOOK: Duration = Duration::from_millis(1);

/// Tags of what the links of a pair with a history say to each other.
const STAGE_TAG: u8 = 0;
const RENEW_TAG: u8 = 1;

pub(super) enum State {
    Running(Box<Child>),
    /// To be started at this time.
    Waiting(Time),
    /// It ended well after the flow did.
    Ended,
}

/// What a look at the processes found.
enum Found {
    Alive,
    Ended,
    Failed { stage: usize, why: String, is_outside: bool },
}

impl Found {
    /// By its own doing.
    fn failed(stage: usize, why: String) -> Found {
        Found::Failed { stage, why, is_outside: false }
    }
}

/// What is kept of one stage.
struct Place {
    module: Module,
    /// What its link is to give next.
    outbox: Outbox,
    incidents: Vec<String>,
    /// Lines of its process, and the last.
    lines: usize,
    last_line: Option<String>,
    unread_frames: u64,
    /// How the stage fares, by its own last word.
    told: ModuleReport,
}

impl Place {
    fn tell(&mut self, what: String) {
        if self.incidents.len() < INCIDENTS_MAX {
            self.incidents.push(format!("{} half {what}", self.module.half));
        }
    }
}

/// Where a run on shared memory puts its messages.
struct Shared {
    geometry: Geometry,
    slots: Arc<Slots>,
    window: Window,
    is_realtime: bool,
}

/// The processes of one run, or chain, and what they owe: stages that are handed messages as one.
pub(super) struct Supervisor {
    places: Vec<Place>,
    /// `None`: between pipes.
    shared: Option<Shared>,
    /// Between pipes: as a chain.
    has_words: bool,
    set: Arc<PollSet>,
    ledger: Ledger,
    pub(super) state: State,
    /// The flow has ended here.
    is_ending: bool,
    /// A new incarnation was asked for.
    is_renewing: bool,
    pub(super) incarnation: u32,
    /// The incarnation after which another was asked for last.
    renewal_asked: u32,
    /// Stages were asked last how they fare, and have done something since.
    asked_at: Time,
    is_report_due: bool,
    progress_at: Time,
    was_idle: bool,
    is_probed: bool,
    /// These processes have given something.
    has_given: bool,
    /// When it was last seen that something waits for room that nobody may tell of.
    blocked_at: Option<Time>,
    /// Up to this input, one at a time: among several on their way, one ended a process.
    cautious_until: u64,
    /// Starts since a process finished something.
    attempts: u32,
    committed_before: u64,
    starts: u64,
    failures: u64,
}

impl Supervisor {
    /// Starts a run. An error says which stage does not start at all, and why.
    pub(super) fn start(
        modules: Vec<Module>,
        shared: Option<SharedRun>,
        set: Arc<PollSet>,
    ) -> Result<Supervisor, StageError> {
        let own = |error: io::Error| StageError::Own(format!("no shared memory: {error}"));
        let shared = shared.map(|run| {
            let window = Window::new(run.slots, run.latency, modules.len());
            let [host, stages] = shm::may_look(run.spins, modules.len());
            // Who is before everybody and only looks keeps everybody from what it looks for.
            let spins = [host, stages && !run.is_realtime];
            let geometry = shm::geometry(modules.len(), window.most(), spins);
            Ok(Shared { geometry, slots: shm::slots(geometry)?, window, is_realtime: run.is_realtime })
        });
        let shared = shared.transpose().map_err(own)?;
        // The source's link marks incarnations; the sink's follows them.
        let follows = modules.iter().any(|module| module.has_history && module.half == Half::Sink);
        let limits = modules.first().map(|module| module.limits).unwrap_or_default();
        let limits = match shared {
            // What waits for a slot waits with whoever hands it over.
            Some(_) => super::Limits { ahead_messages: 1, ..limits },
            None => limits,
        };
        let says_done = modules.iter().all(|module| module.is_own);
        let has_words = shared.is_none() && modules.iter().all(|module| module.is_chained);
        let ledger = match (&shared, has_words) {
            (Some(_), _) => Ledger::of_run(limits, follows),
            (None, true) => Ledger::of_chain(limits, follows),
            (None, false) => Ledger::new(limits, says_done, follows),
        };
        let place = |module| Place {
            module,
            outbox: Outbox::default(),
            incidents: Vec::new(),
            lines: 0,
            last_line: None,
            unread_frames: 0,
            told: ModuleReport::default(),
        };
        let mut supervisor = Supervisor {
            places: modules.into_iter().map(place).collect(),
            shared,
            has_words,
            set,
            ledger,
            state: State::Ended,
            is_ending: false,
            is_renewing: false,
            incarnation: 0,
            renewal_asked: 0,
            asked_at: Time::ZERO,
            is_report_due: false,
            progress_at: Time::ZERO,
            was_idle: true,
            is_probed: false,
            has_given: false,
            blocked_at: None,
            cautious_until: 0,
            attempts: 0,
            committed_before: 0,
            starts: 0,
            failures: 0,
        };
        let child = supervisor.make().map_err(|error| {
            let program =
                |place: &Place| place.module.words.first().map(|word| word.to_string_lossy().into_owned());
            let programs: Vec<_> = supervisor.places.iter().filter_map(program).collect();
            StageError::Own(format!("cannot start {}: {error}", programs.join(", ")))
        })?;
        supervisor.begin(child, Time::ZERO);
        Ok(supervisor)
    }

    fn make(&self) -> io::Result<Child> {
        let programs: Vec<Program<'_>> = self
            .places
            .iter()
            .map(|place| (&place.module.words[..], place.module.environment.as_deref()))
            .collect();
        match &self.shared {
            None => Child::between_pipes(&programs, self.has_words, &self.set),
            Some(Shared { geometry, slots, is_realtime, .. }) => {
                let run = shm::Lane::begin(*geometry, slots.clone())?;
                Child::in_a_row(&programs, run, *is_realtime, &self.set)
            }
        }
    }

    /// The module that stands for all: a run of several has no history.
    fn module(&self) -> &Module {
        &self.places[0].module
    }

    fn last(&self) -> usize {
        self.places.len() - 1
    }

    fn begin(&mut self, mut child: Child, now: Time) {
        for (stage, place) in self.places.iter_mut().enumerate() {
            for frame in &place.module.greeting {
                child.tell(stage, frame, 0);
            }
            (place.lines, place.last_line) = (0, None);
        }
        if let Some(shared) = &self.shared {
            child.set_window(shared.window.messages());
        }
        child.is_cautious = self.ledger.committed() < self.cautious_until;
        child.write(&mut self.ledger);
        self.incarnation = self.incarnation.saturating_add(1);
        self.starts += 1;
        self.committed_before = self.ledger.committed();
        (self.progress_at, self.was_idle, self.is_probed) = (now, true, false);
        (self.is_renewing, self.has_given, self.blocked_at) = (false, false, None);
        self.state = State::Running(Box::new(child));
    }

    fn start_again(&mut self, now: Time) {
        if !self.ledger.has_next() && self.ledger.next_era().is_some() {
            self.ledger.begin_era();
        }
        match self.make() {
            Ok(child) => self.begin(child, now),
            Err(error) => {
                self.starts += 1;
                let pause = self.pause();
                self.state = State::Waiting(now.after(pause));
                self.places[0].tell(format!("cannot be started: {error}; tried again in {pause:?}"));
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
    pub(super) fn advance(&mut self, now: Time) {
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
                State::Running(_) => match self.look(now) {
                    Found::Alive => break,
                    Found::Ended => {
                        self.ledger.end();
                        self.give();
                        self.state = State::Waiting(now);
                    }
                    Found::Failed { stage, why, is_outside } => self.fail(stage, &why, is_outside, now),
                },
            }
        }
        self.give();
    }

    /// Reads from the processes and writes to them.
    fn look(&mut self, now: Time) -> Found {
        let State::Running(child) = &mut self.state else { return Found::Alive };
        let (ledger, places, has_covers) =
            (&mut self.ledger, &mut self.places, self.shared.is_some() || self.has_words);
        let mut has_moved = false;
        let seen = child.read(now, |event| {
            match event {
                Event::Output(message) => {
                    has_moved = true;
                    ledger.take(message)?;
                }
                Event::Back(inputs) => {
                    has_moved = true;
                    ledger.take_back(inputs)?;
                }
                Event::Covers(inputs) => {
                    has_moved = true;
                    ledger.take_covers(inputs)?;
                }
                Event::Frame(stage, at, ModuleFrame::Drop { count, reason }) => {
                    has_moved = true;
                    let reason = reason::interned(&reason).unwrap_or("dropped by its module");
                    ledger.take_drop(stage, Drop { reason, count }, has_covers.then_some(at))?;
                }
                Event::Frame(stage, _, frame) => {
                    has_moved |= !matches!(frame, ModuleFrame::Report(_));
                    take_frame(frame, ledger, &mut places[stage])?;
                }
                Event::Line(stage, line) => {
                    let place = &mut places[stage];
                    place.lines += 1;
                    if place.lines <= LINES_MAX {
                        place.tell(format!("says: {line}"));
                    }
                    place.last_line = Some(line);
                }
            }
            Ok(())
        });
        self.has_given |= has_moved;
        self.is_report_due |= has_moved && self.shared.is_some();
        let status = match seen {
            // It gives what it owes, and nothing waits for it: all else has time until the kernel is asked.
            Ok(Seen::Messages)
                if has_moved && ledger.waiting() == 0 && !self.is_ending && !self.is_renewing =>
            {
                self.note_progress(true, now);
                return Found::Alive;
            }
            Ok(Seen::Messages) => None,
            Ok(Seen::All(status)) => status,
            Err(Blame { stage, what: Rubbish(what) }) => {
                return Found::failed(stage, format!("was killed: {what}"));
            }
        };
        if ledger.is_untouched() && ledger.next_era().is_some() {
            ledger.begin_era();
        }
        child.is_cautious = ledger.committed() < self.cautious_until;
        child.write(ledger);
        let follows = ledger.next_era().is_some();
        if (self.is_ending || self.is_renewing || follows) && !ledger.has_next() {
            child.end_input();
        }
        self.blocked_at = child.is_blocked().then_some(now);
        if let Some((stage, status)) = status {
            return match child.was_told_end() && status.success() && !ledger.has_next() {
                true => Found::Ended,
                false => {
                    Found::Failed { stage, why: reason::of(status), is_outside: reason::is_outside(status) }
                }
            };
        }
        if self.is_report_due && now >= self.asked_at.after(ASK) {
            child.ask_reports();
            (self.asked_at, self.is_report_due) = (now, false);
        }
        self.note_progress(has_moved, now);
        match !self.was_idle && now >= self.patience_ends() {
            true => self.lose_patience(now),
            false => Found::Alive,
        }
    }

    /// Whether the processes owe anything, and since when nothing came of it.
    fn note_progress(&mut self, has_moved: bool, now: Time) {
        let is_told_end = matches!(&self.state, State::Running(child) if child.was_told_end());
        let is_idle = self.ledger.is_idle() && !is_told_end;
        if is_idle || has_moved || self.was_idle {
            (self.progress_at, self.is_probed) = (now, false);
        }
        self.was_idle = is_idle;
    }

    fn patience(&self) -> Duration {
        self.places.iter().map(|place| place.module.patience).max().unwrap_or_default()
    }

    fn patience_ends(&self) -> Time {
        let patience = match self.has_given {
            true => self.patience(),
            false => self.patience().max(STARTING),
        };
        let is_asked = self.is_probed || !self.ledger.says_done();
        self.progress_at.after(if is_asked { patience } else { patience / 2 })
    }

    fn lose_patience(&mut self, now: Time) -> Found {
        let patience = self.patience();
        let State::Running(child) = &mut self.state else { return Found::Alive };
        if self.ledger.says_done() && !self.is_probed {
            self.is_probed = true;
            child.tell_all(&PROBE, self.ledger.place());
            child.write(&mut self.ledger);
            return Found::Alive;
        }
        let deaf = child.deaf();
        if self.ledger.says_done() && deaf.is_none() && !child.was_told_end() {
            (self.progress_at, self.is_probed) = (now, false);
            return Found::Alive;
        }
        Found::failed(
            deaf.unwrap_or(0),
            format!("hangs (nothing came of it for {patience:?}) and was killed"),
        )
    }

    /// A process is of no more use, and none of its run.
    fn fail(&mut self, stage: usize, why: &str, is_outside: bool, now: Time) {
        // What it vouched for leaves as its own incarnation's.
        self.give();
        let unread = match &mut self.state {
            State::Running(child) => child.unread(),
            _ => 0,
        };
        if self.places.len() > 1 && !is_outside {
            self.cautious_until = self.ledger.handed();
        }
        let death = self.ledger.die(unread, is_outside);
        self.failures += 1;
        let pause = self.pause();
        // Dropped here, the processes are killed if they still run.
        self.state = State::Waiting(now.after(pause));
        let place = &mut self.places[stage];
        let mut text = why.to_string();
        if let Some(line) = &place.last_line {
            text.push_str(&format!(" (its last words: {line})"));
        }
        text.push_str(&reason::of_memory(place.last_line.as_deref()));
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
        place.tell(text);
        self.renew_from_source();
    }

    /// The sink's link asks for a new incarnation, once after each.
    fn renew_from_source(&mut self) {
        let era = self.ledger.era();
        if self.module().has_history && self.module().half == Half::Sink && era > self.renewal_asked {
            self.renewal_asked = era;
            let mut body = vec![RENEW_TAG];
            body.extend(era.to_le_bytes());
            self.places[0].outbox.control(body);
        }
    }

    /// Passes on what may leave.
    fn give(&mut self) {
        let marks = self.module().has_history && self.module().half == Half::Source;
        let last = self.last();
        let out = &mut self.places[last].outbox;
        let ready = self.ledger.ready();
        if marks {
            let mark = self.incarnation.to_le_bytes();
            ready.iter_mut().for_each(|(_, message)| message.body.push_front(&mark));
        }
        move_all(ready, &mut out.messages);
        if self.ledger.has_dropped() {
            out.drops.extend(self.ledger.drops());
            for (stage, drop) in self.ledger.told_drops() {
                self.places[stage].outbox.drops.push(drop);
            }
        }
        if self.ledger.is_long() {
            self.renew_from_source();
        }
    }

    fn admit(&mut self, mut message: Message, now: Time) -> Result<(), StageError> {
        let mut era = 0;
        if self.module().has_history && self.module().half == Half::Sink {
            let mark = message.body.take_front::<4>().map(u32::from_le_bytes).filter(|mark| *mark > 0);
            era = mark.ok_or_else(|| StageError::Input("it bears no incarnation number".into()))?;
        }
        let is_clear = self.ledger.is_clear(era);
        let at_once = match &mut self.state {
            State::Running(child) if is_clear && child.takes_at_once() => Some(child.hand_over(&message)),
            _ => None,
        };
        // What is to be known of it is noted while the stage is at it.
        self.ledger.admit(message, era);
        if at_once == Some(true) {
            self.ledger.hand_over_whole();
        }
        if let (Some(shared), State::Running(child)) = (&mut self.shared, &mut self.state) {
            child.set_window(shared.window.note(now));
        }
        match &mut self.state {
            // The usual way: what it makes of it is collected when it is there.
            State::Running(child) if at_once.is_some() || self.ledger.has_next() => {
                if std::mem::take(&mut self.was_idle) {
                    (self.progress_at, self.is_probed) = (now, false);
                }
                match at_once {
                    Some(true) => child.wake(),
                    Some(false) => {}
                    None => child.write(&mut self.ledger),
                }
                self.blocked_at = child.is_blocked().then_some(now);
            }
            _ => self.advance(now),
        }
        Ok(())
    }

    fn take_control(&mut self, stage: usize, bytes: &[u8]) -> Result<(), StageError> {
        let is_source = self.module().half == Half::Source;
        let body = match bytes {
            _ if !self.module().has_history => bytes,
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
        self.say(stage, &ModuleFrame::Peer(body.to_vec()));
        Ok(())
    }

    /// Tells a stage's process something behind what it was given so far; one that is not there is told nothing.
    fn say(&mut self, stage: usize, frame: &ModuleFrame) {
        // What the stages behind the first were given is not known here: they take it at once.
        let at = if stage == 0 { self.ledger.place() } else { 0 };
        if let State::Running(child) = &mut self.state {
            self.is_report_due |= self.shared.is_some();
            match child.tell(stage, frame, at) {
                true => child.write(&mut self.ledger),
                false => self.places[stage].unread_frames += 1,
            }
        }
    }

    /// Takes what is handed to the link of a stage. Messages, gaps and the end are the first one's.
    pub(super) fn hand(&mut self, stage: usize, input: Input<'_>, now: Time) -> Result<(), StageError> {
        match input {
            Input::Message(_, message) => return self.admit(message, now),
            Input::Control(bytes) => {
                self.take_control(stage, bytes)?;
                self.advance(now);
            }
            Input::End(_) if stage == 0 => {
                self.is_ending = true;
                self.advance(now);
            }
            Input::Gap(_) if stage == 0 => self.ledger.admit_gap(),
            Input::End(_) | Input::Gap(_) => {}
            Input::Feedback(feedback) if self.places[stage].module.is_own => {
                self.say(stage, &frame_of(feedback));
            }
            Input::Feedback(_) => {}
            Input::Timeout => self.advance(now),
        }
        Ok(())
    }

    /// What the link of a stage is to give.
    pub(super) fn outbox(&mut self, stage: usize) -> &mut Outbox {
        &mut self.places[stage].outbox
    }

    /// Whether there is something for the link of a stage to give.
    pub(super) fn has_something(&self, stage: usize) -> bool {
        let out = &self.places[stage].outbox;
        !(out.messages.is_empty() && out.controls.is_empty() && out.drops.is_empty())
    }

    /// What went wrong with a stage since the last call.
    pub(super) fn incidents(&mut self, stage: usize) -> Vec<String> {
        std::mem::take(&mut self.places[stage].incidents)
    }

    /// Before the host waits: whether there is something to take after all.
    pub(super) fn go_to_sleep(&mut self) -> bool {
        let unfinished = if self.ledger.is_idle() { 0 } else { self.ledger.unfinished() };
        match &mut self.state {
            State::Running(child) => child.go_to_sleep(unfinished, || Time(sys::clock::boot_ns())),
            _ => false,
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let at = match &self.state {
            State::Running(_) if self.was_idle => None,
            State::Running(_) => Some(self.patience_ends()),
            State::Waiting(at) => Some(*at).filter(|_| self.can_start()),
            State::Ended => None,
        };
        let look = self.blocked_at.map(|at| at.after(LOOK));
        let is_running = matches!(self.state, State::Running(_));
        let ask = (self.is_report_due && is_running).then(|| self.asked_at.after(ASK));
        at.into_iter().chain(look).chain(ask).min()
    }

    pub(super) fn has_room(&self) -> bool {
        self.ledger.has_room() && !self.is_ending()
    }

    pub(super) fn is_ending(&self) -> bool {
        self.is_ending && !matches!(self.state, State::Ended)
    }

    /// What a process that says done has read, it may hold for reasons of its own.
    pub(super) fn held(&self) -> usize {
        match self.ledger.says_done() {
            true => self.ledger.waiting(),
            false => self.ledger.unfinished(),
        }
    }

    pub(super) fn unfinished(&self) -> usize {
        self.ledger.unfinished()
    }

    /// The number of a stage's process, while there is one.
    pub(super) fn process_id(&self, stage: usize) -> Option<u32> {
        match &self.state {
            State::Running(child) => child.id(stage),
            _ => None,
        }
    }

    /// How a stage fares, by its own last word.
    pub(super) fn told(&self, stage: usize) -> &ModuleReport {
        &self.places[stage].told
    }

    /// Starts, failures, and frames that a stage's process did not read.
    pub(super) fn counts(&self, stage: usize) -> [u64; 3] {
        [self.starts, self.failures, self.places[stage].unread_frames]
    }

    /// On shared memory: how many messages may be on their way, and why; and the slots of the host's region that
    /// are in somebody's hands, of how many.
    pub(super) fn slots(&mut self) -> Option<(&Window, usize, usize)> {
        let out = match &mut self.state {
            State::Running(child) => child.slots_out().unwrap_or(0),
            _ => 0,
        };
        let Shared { geometry, slots, window, .. } = self.shared.as_ref()?;
        Some((window, out + slots.taken(), geometry.slots))
    }

    /// On shared memory: a slot to make a body in.
    pub(super) fn lease(&mut self) -> Option<Lease> {
        match &mut self.state {
            State::Running(child) => child.lease(),
            _ => None,
        }
    }
}

fn take_frame(frame: ModuleFrame, ledger: &mut Ledger, place: &mut Place) -> Result<(), Rubbish> {
    match frame {
        ModuleFrame::Done { inputs, outputs } => ledger.take_done(inputs, outputs)?,
        ModuleFrame::Hello { options, .. }
            if options.iter().any(|(name, value)| name == "done" && value == "true") =>
        {
            ledger.expect_done();
        }
        ModuleFrame::Peer(mut body) => {
            if place.module.has_history {
                body.insert(0, STAGE_TAG);
            }
            place.outbox.control(body);
        }
        ModuleFrame::Report(report) => {
            if place.told.problem.is_empty() && !report.problem.is_empty() {
                place.tell(format!("has a problem: {}", report.problem));
            }
            place.told = report;
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
