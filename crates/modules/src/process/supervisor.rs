//! Supervises the processes of one run: starts, checks and restarts them. The states are in [`super`].

mod failure;

use super::checkpoint::Saved;
use super::group::{Event, ProcessGroup, Program, ReadOutcome, StageFault};
use super::ledger::{Ledger, ProtocolError};
use super::window::Window;
use super::{Module, SharedRun, move_all};
use contract::{
    Body, Drop, Feedback, Half, Incident, Input, Message, Outbox, Port, StageError, StageResult, Time,
    interned,
};
use failure::EXIT_TIMEOUT;
use links::shm::{self, Geometry};
use pipeline::REFUSED;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use sys::exit;
use sys::poller::PollSet;
use wire::module::{ModuleFeedback, SHARED_MEMORY};
use wire::{ModuleFrame, ModuleReport};

/// Most incidents that wait to be reported, per stage, and most of those that name lost messages.
const INCIDENTS_MAX: [usize; 2] = [32, 1024];
/// Most lines of standard error that are reported in an interval, per stage.
const LINES_MAX: usize = 20;
const LINES_INTERVAL: Duration = Duration::from_secs(10);
/// Longest error that a process reports; the rest is cut off.
const ERROR_CHARACTERS_MAX: usize = 500;
/// Interval between requests for reports on shared memory, while messages move: no stage needs a timer for it.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Polling interval while something waits for room without a notification.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The same while an input on trial is in flight. A process that finishes it gives notice.
const TRIAL_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Tags of control messages between the links of a pair with a history.
const STAGE_TAG: u8 = 0;
const RENEW_TAG: u8 = 1;

pub(super) enum State {
    Running(Box<ProcessGroup>),
    /// Restart at this time.
    Waiting(Time),
    /// Exited successfully after the end of the flow.
    Ended,
    /// Does not start. Messages are dropped for this reason.
    Abandoned(&'static str),
}

/// Result of polling the processes.
enum Status {
    Alive,
    Ended,
    Failed { stage: usize, why: String, blame: Blame },
}

impl Status {
    /// A failure of the process itself.
    fn failed(stage: usize, why: String) -> Status {
        Status::Failed { stage, why, blame: Blame::Process }
    }
}

/// The cause of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blame {
    Process,
    /// The process wrote bytes that the protocol does not have.
    Output,
    /// Somebody else ended the process.
    Outside,
}

/// Lines of standard error in the present interval, over all restarts.
#[derive(Default)]
struct LineCount {
    since: Time,
    shown: usize,
    hidden: usize,
}

/// Data of one stage.
struct StageState {
    module: Module,
    /// Output for its link.
    outbox: Outbox,
    incidents: Vec<Incident>,
    lines: LineCount,
    /// The last line of its standard error since the start.
    last_line: Option<String>,
    /// The error with which it is about to exit.
    error: Option<String>,
    unread_frames: u64,
    /// The stage's last report.
    report: ModuleReport,
}

impl StageState {
    fn add_incident(&mut self, text: String) {
        self.add(text, false);
    }

    /// Adds an incident that names a lost message.
    fn add_loss(&mut self, text: String) {
        self.add(text, true);
    }

    fn add(&mut self, text: String, is_loss: bool) {
        let known = self.incidents.iter().filter(|incident| incident.is_loss == is_loss).count();
        if known < INCIDENTS_MAX[usize::from(is_loss)] {
            let text = format!("{} half {text}", self.module.half);
            self.incidents.push(Incident { text, is_loss });
        }
    }

    /// Records a line of standard error. A process on trial repeats the lines of those before it.
    fn add_line(&mut self, line: String, is_on_trial: bool, now: Time) {
        self.end_interval(now);
        if !is_on_trial && self.lines.shown < LINES_MAX {
            self.lines.shown += 1;
            self.add_incident(format!("prints: {line}"));
        } else if !is_on_trial {
            self.lines.hidden += 1;
        }
        self.last_line = Some(line);
    }

    fn end_interval(&mut self, now: Time) {
        if now >= self.lines.since.after(LINES_INTERVAL) {
            self.report_hidden_lines();
            self.lines = LineCount { since: now, ..LineCount::default() };
        }
    }

    fn report_hidden_lines(&mut self) {
        let hidden = std::mem::take(&mut self.lines.hidden);
        if hidden > 0 {
            self.add_incident(format!(
                "prints more than {LINES_MAX} lines in {LINES_INTERVAL:?}: {hidden} not shown"
            ));
        }
    }
}

/// Shared memory of a run.
struct Shared {
    geometry: Geometry,
    window: Window,
}

/// The processes of one run or chain, treated as one stage, and their ledger.
pub(super) struct Supervisor {
    stages: Vec<StageState>,
    /// `None`: pipes.
    shared: Option<Shared>,
    /// Pipes of a chain, with words between containers.
    has_words: bool,
    set: Arc<PollSet>,
    ledger: Ledger,
    pub(super) state: State,
    /// The flow has ended at this link.
    is_ending: bool,
    /// A new incarnation was requested.
    is_renewing: bool,
    pub(super) incarnation: u32,
    /// The last incarnation for which a replacement was requested.
    renewal_requested: u32,
    /// Time of the last request for reports; something has moved since.
    reports_requested_at: Time,
    is_report_due: bool,
    progress_at: Time,
    was_idle: bool,
    /// When half of the allowed silence had passed.
    probed_at: Option<Time>,
    /// The present processes have sent something; they have finished an input or made output.
    has_sent: bool,
    has_answered: bool,
    /// When the present processes were first seen.
    started_at: Option<Time>,
    /// Longest time from a start to the first answer.
    slowest_start: Option<Duration>,
    /// When something was last found waiting for room without a notification.
    blocked_at: Option<Time>,
    /// When a process reported the error with which it is about to exit.
    error_at: Option<Time>,
    /// Failures since a process finished an input, or since an input was dropped.
    attempts: u32,
    /// Failures before any process has read a message, and the time of the first.
    early_exits: (u32, Time),
    committed_before: u64,
    starts: u64,
    failures: u64,
}

impl Supervisor {
    /// Starts a run. An error says which program cannot start at all, and why.
    pub(super) fn start(
        modules: Vec<Module>,
        shared: Option<SharedRun>,
        set: Arc<PollSet>,
    ) -> StageResult<Supervisor> {
        let shared = shared.map(|run| {
            let window = Window::new(run.slots, run.latency, modules.len());
            Shared { geometry: shm::geometry(modules.len(), window.most()), window }
        });
        // The source's link marks incarnations; the sink's link follows them.
        let follows = modules.iter().any(|module| module.has_history && module.half == Half::Sink);
        let limits = modules.first().map(|module| module.limits).unwrap_or_default();
        let limits = match shared {
            // If there is no free slot, the message waits with the caller.
            Some(_) => super::Limits { ahead_messages: 1, ..limits },
            None => limits,
        };
        let reports_done = modules.iter().all(|module| module.is_own);
        let has_words = shared.is_none() && modules.iter().all(|module| module.is_chained);
        let ledger = match (&shared, has_words) {
            (Some(_), _) => Ledger::of_run(limits, follows),
            (None, true) => Ledger::of_chain(limits, follows),
            (None, false) => Ledger::new(limits, reports_done, follows),
        };
        let stage_state = |module| StageState {
            module,
            outbox: Outbox::default(),
            incidents: Vec::new(),
            lines: LineCount::default(),
            last_line: None,
            error: None,
            unread_frames: 0,
            report: ModuleReport::default(),
        };
        let mut supervisor = Supervisor {
            stages: modules.into_iter().map(stage_state).collect(),
            shared,
            has_words,
            set,
            ledger,
            state: State::Ended,
            is_ending: false,
            is_renewing: false,
            incarnation: 0,
            renewal_requested: 0,
            reports_requested_at: Time::ZERO,
            is_report_due: false,
            progress_at: Time::ZERO,
            was_idle: true,
            probed_at: None,
            has_sent: false,
            has_answered: false,
            started_at: None,
            slowest_start: None,
            blocked_at: None,
            error_at: None,
            attempts: 0,
            early_exits: (0, Time::ZERO),
            committed_before: 0,
            starts: 0,
            failures: 0,
        };
        let group = supervisor.spawn().map_err(|error| {
            let program = |stage_state: &StageState| {
                stage_state.module.words.first().map(|word| word.to_string_lossy().into_owned())
            };
            let programs: Vec<_> = supervisor.stages.iter().filter_map(program).collect();
            StageError::Own(format!("cannot start {}: {error}", programs.join(", ")))
        })?;
        supervisor.on_spawned(group, Time::ZERO);
        Ok(supervisor)
    }

    fn spawn(&self) -> io::Result<ProcessGroup> {
        let programs: Vec<Program<'_>> = self
            .stages
            .iter()
            .map(|stage_state| (&stage_state.module.words[..], stage_state.module.environment.as_deref()))
            .collect();
        match &self.shared {
            None => ProcessGroup::between_pipes(&programs, self.has_words, &self.set),
            Some(Shared { geometry, .. }) => {
                ProcessGroup::on_shared_memory(&programs, shm::HostEnd::create(*geometry)?, &self.set)
            }
        }
    }

    /// Represents all modules: a run of several has no history.
    fn module(&self) -> &Module {
        &self.stages[0].module
    }

    fn last(&self) -> usize {
        self.stages.len() - 1
    }

    fn on_spawned(&mut self, mut group: ProcessGroup, now: Time) {
        for (stage, stage_state) in self.stages.iter_mut().enumerate() {
            for frame in &stage_state.module.greeting {
                group.queue_frame(stage, frame, 0);
            }
            (stage_state.last_line, stage_state.error) = (None, None);
        }
        if let Some(shared) = &self.shared {
            group.set_window(shared.window.messages());
        }
        // A half of Outboard's own always answers.
        let is_own = self.stages.iter().all(|stage_state| stage_state.module.is_own);
        group.begin(now, (!is_own).then_some(self.patience() * 3 / 4));
        group.write(&mut self.ledger);
        self.incarnation = self.incarnation.saturating_add(1);
        self.starts += 1;
        self.committed_before = self.ledger.committed();
        (self.progress_at, self.was_idle, self.probed_at) = (now, true, None);
        (self.is_renewing, self.has_sent, self.has_answered) = (false, false, false);
        self.started_at = None;
        (self.blocked_at, self.error_at) = (None, None);
        self.state = State::Running(Box::new(group));
    }

    fn restart(&mut self, now: Time) {
        if !self.ledger.has_next() && self.ledger.next_era().is_some() {
            self.ledger.begin_era();
        }
        match self.spawn() {
            Ok(group) => self.on_spawned(group, now),
            Err(error) => {
                self.starts += 1;
                let delay = self.back_off();
                self.state = State::Waiting(now.after(delay));
                self.stages[0].add_incident(format!("cannot start: {error}; next attempt in {delay:?}"));
            }
        }
    }

    /// Returns true if a new process would have something to do.
    fn can_start(&self) -> bool {
        !self.ledger.is_lost() || self.ledger.next_era().is_some()
    }

    /// Does everything that can be done now.
    pub(super) fn advance(&mut self, now: Time) {
        loop {
            match &self.state {
                State::Abandoned(reason) => {
                    self.ledger.abandon(reason);
                    break;
                }
                State::Ended if self.ledger.waiting() == 0 => break,
                State::Ended => {
                    self.is_ending = false;
                    self.state = State::Waiting(now);
                }
                State::Waiting(_) if self.is_ending && self.ledger.unfinished() == 0 => {
                    self.state = State::Ended;
                }
                State::Waiting(at) if *at > now || !self.can_start() => break,
                State::Waiting(_) => self.restart(now),
                State::Running(_) => match self.poll_processes(now) {
                    Status::Alive => break,
                    Status::Ended => {
                        let unanswered = self.ledger.on_end();
                        if unanswered > 0 {
                            self.stages[0]
                                .add_loss(format!("lost {unanswered} messages: it exited without an answer"));
                        }
                        self.release_outputs();
                        self.stages.iter_mut().for_each(StageState::report_hidden_lines);
                        self.state = State::Waiting(now);
                    }
                    Status::Failed { stage, why, blame } => self.on_failure(stage, &why, blame, now),
                },
            }
        }
        self.stages.iter_mut().for_each(|stage_state| stage_state.end_interval(now));
        self.release_outputs();
    }

    /// Reads from the processes and writes to them.
    fn poll_processes(&mut self, now: Time) -> Status {
        let State::Running(group) = &mut self.state else { return Status::Alive };
        let (ledger, stages, has_covers) =
            (&mut self.ledger, &mut self.stages, self.shared.is_some() || self.has_words);
        let (error_at, is_shared) = (&mut self.error_at, self.shared.is_some());
        let started_at = *self.started_at.get_or_insert(now);
        let mut has_moved = false;
        let outcome = group.read(now, |event| {
            match event {
                Event::Output(message) => {
                    has_moved = true;
                    ledger.on_output(message)?;
                }
                Event::Unchanged(inputs) => {
                    has_moved = true;
                    ledger.on_unchanged(inputs)?;
                }
                Event::Covers(inputs) => {
                    has_moved = true;
                    ledger.on_covers(inputs)?;
                }
                Event::Frame(stage, at, ModuleFrame::Drop { count, reason }) => {
                    has_moved = true;
                    // A half of Outboard's own reports what its stage could not use.
                    let is_loss = stages[stage].module.is_own && reason == REFUSED;
                    let reason = interned(&reason).unwrap_or("dropped by its module");
                    ledger.on_drop(stage, Drop { reason, count, is_loss }, has_covers.then_some(at))?;
                }
                Event::Frame(stage, _, ModuleFrame::Error(problem)) => {
                    let problem = problem.chars().filter(|character| !character.is_control());
                    stages[stage].error.get_or_insert_with(|| problem.take(ERROR_CHARACTERS_MAX).collect());
                    error_at.get_or_insert(now);
                }
                Event::Frame(stage, _, frame) => {
                    has_moved |= !matches!(frame, ModuleFrame::Report(_));
                    if is_shared && !stages[stage].module.is_own {
                        check_shares_memory(&frame)?;
                    }
                    take_frame(frame, ledger, &mut stages[stage])?;
                }
                Event::Line(stage, line) => stages[stage].add_line(line, ledger.is_on_trial(), now),
            }
            Ok(())
        });
        self.has_sent |= has_moved;
        if !self.has_answered && ledger.has_answered() {
            self.has_answered = true;
            self.slowest_start = self.slowest_start.max(Some(now.since(started_at)));
        }
        self.is_report_due |= has_moved && self.shared.is_some();
        let status = match outcome {
            // The common case: output arrives and no input waits. Everything else can wait for the next full poll.
            Ok(ReadOutcome::Messages)
                if has_moved && ledger.waiting() == 0 && !self.is_ending && !self.is_renewing =>
            {
                self.note_progress(true, now);
                return Status::Alive;
            }
            Ok(ReadOutcome::Messages) => None,
            Ok(ReadOutcome::All(status)) => status,
            Err(StageFault { stage, error: ProtocolError(problem) }) => {
                let why = format!("was killed: {problem}");
                return Status::Failed { stage, why, blame: Blame::Output };
            }
        };
        if ledger.is_untouched() && ledger.next_era().is_some() {
            ledger.begin_era();
        }
        group.write(ledger);
        let follows = ledger.next_era().is_some();
        if (self.is_ending || self.is_renewing || follows) && !ledger.has_next() {
            group.end_input();
        }
        self.blocked_at = group.is_blocked().then_some(now);
        if let Some((stage, status)) = status {
            let is_expected = group.is_input_ended() && status.success() && self.error_at.is_none();
            // Its last frame reports all inputs done.
            let is_complete = !ledger.has_next() && (ledger.is_idle() || !ledger.reports_done());
            return match is_expected && is_complete {
                true => Status::Ended,
                false => Status::Failed {
                    stage,
                    why: exit::describe(status),
                    blame: if exit::is_outside(status) { Blame::Outside } else { Blame::Process },
                },
            };
        }
        if self.is_report_due && now >= self.reports_requested_at.after(REPORT_INTERVAL) {
            group.request_reports();
            (self.reports_requested_at, self.is_report_due) = (now, false);
        }
        self.note_progress(has_moved, now);
        match self.error_at {
            Some(at) if now >= at.after(EXIT_TIMEOUT) => self.on_exit_timeout(),
            None if !self.was_idle && now >= self.timeout_at() => self.on_timeout(now),
            _ => Status::Alive,
        }
    }

    /// The sink's link requests a new incarnation, once for each.
    fn request_renewal(&mut self) {
        let era = self.ledger.era();
        if self.module().has_history && self.module().half == Half::Sink && era > self.renewal_requested {
            self.renewal_requested = era;
            let mut body = vec![RENEW_TAG];
            body.extend(era.to_le_bytes());
            self.stages[0].outbox.control(body);
        }
    }

    /// Releases confirmed output to the links.
    fn release_outputs(&mut self) {
        let marks = self.module().has_history && self.module().half == Half::Source;
        let last = self.last();
        let out = &mut self.stages[last].outbox;
        let ready = self.ledger.ready();
        if marks {
            let mark = self.incarnation.to_le_bytes();
            ready.iter_mut().for_each(|(_, message)| message.body.push_front(&mark));
        }
        move_all(ready, &mut out.messages);
        if self.ledger.has_dropped() {
            out.drops.extend(self.ledger.drops());
            for (stage, drop) in self.ledger.confirmed_drops() {
                self.stages[stage].outbox.drops.push(drop);
            }
        }
        if self.ledger.is_era_long() {
            self.request_renewal();
        }
    }

    fn admit(&mut self, mut message: Message, now: Time) -> StageResult {
        let mut era = 0;
        if self.module().has_history && self.module().half == Half::Sink {
            let mark = message.body.take_front::<4>().map(u32::from_le_bytes).filter(|mark| *mark > 0);
            era = mark.ok_or_else(|| StageError::Input("it has no incarnation number".into()))?;
        }
        let can_bypass = self.ledger.can_bypass(era);
        let pushed = match &mut self.state {
            State::Running(group) if can_bypass && group.can_push_directly() => Some(group.push(&message)),
            _ => None,
        };
        // The stage processes the message while the ledger records it.
        self.ledger.admit(message, era);
        if pushed == Some(true) {
            self.ledger.mark_sent_whole();
        }
        if let (Some(shared), State::Running(group)) = (&mut self.shared, &mut self.state) {
            group.set_window(shared.window.note(now));
        }
        match &mut self.state {
            // The common case: the output is collected when it arrives.
            State::Running(group) if pushed.is_some() || self.ledger.has_next() => {
                if std::mem::take(&mut self.was_idle) {
                    (self.progress_at, self.probed_at) = (now, None);
                }
                match pushed {
                    Some(true) => group.wake(),
                    Some(false) => {}
                    None => group.write(&mut self.ledger),
                }
                self.blocked_at = group.is_blocked().then_some(now);
            }
            _ => self.advance(now),
        }
        Ok(())
    }

    fn take_control(&mut self, stage: usize, bytes: &[u8]) -> StageResult {
        let is_source = self.module().half == Half::Source;
        let body = match bytes {
            _ if !self.module().has_history => bytes,
            [STAGE_TAG, body @ ..] => body,
            [RENEW_TAG, era @ ..] if is_source => {
                let era = <[u8; 4]>::try_from(era).map(u32::from_le_bytes);
                let era = era.map_err(|_| {
                    StageError::Control("a renewal request without an incarnation number".into())
                })?;
                // A request for an older incarnation was already answered.
                if era == self.incarnation && matches!(self.state, State::Running(_)) {
                    self.is_renewing = true;
                    self.ledger.stop();
                }
                return Ok(());
            }
            _ => return Err(StageError::Control("an unknown tag".into())),
        };
        self.send_frame(stage, &ModuleFrame::Peer(body.to_vec()));
        Ok(())
    }

    /// Sends a frame to a stage, to be handled after the input sent so far. Does nothing while there is no process.
    fn send_frame(&mut self, stage: usize, frame: &ModuleFrame) {
        // The input count of later stages is not known here: they handle the frame at once.
        let at = if stage == 0 { self.ledger.position() } else { 0 };
        if let State::Running(group) = &mut self.state {
            self.is_report_due |= self.shared.is_some();
            match group.queue_frame(stage, frame, at) {
                true => group.write(&mut self.ledger),
                false => self.stages[stage].unread_frames += 1,
            }
        }
    }

    /// Handles an input of a stage's link. Messages, gaps and the end count only for the first stage.
    pub(super) fn hand(&mut self, stage: usize, input: Input<'_>, now: Time) -> StageResult {
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
            Input::Feedback(feedback) if self.stages[stage].module.is_own => {
                self.send_frame(stage, &feedback_frame(feedback));
            }
            // No pair that runs as a process uses the fill: see `Pair::isolates` of `resample`.
            Input::Feedback(_) | Input::Fill(..) => {}
            Input::Timeout => self.advance(now),
        }
        Ok(())
    }

    /// Output for a stage's link.
    pub(super) fn outbox(&mut self, stage: usize) -> &mut Outbox {
        &mut self.stages[stage].outbox
    }

    /// Returns true if there is output for a stage's link.
    pub(super) fn has_output(&self, stage: usize) -> bool {
        let out = &self.stages[stage].outbox;
        !(out.messages.is_empty() && out.controls.is_empty() && out.drops.is_empty())
    }

    /// Takes the incidents of a stage since the last call.
    pub(super) fn incidents(&mut self, stage: usize) -> Vec<Incident> {
        std::mem::take(&mut self.stages[stage].incidents)
    }

    /// Called before the caller waits. Returns true if there is input after all.
    pub(super) fn go_to_sleep(&mut self) -> bool {
        match &mut self.state {
            State::Running(group) => group.go_to_sleep(),
            _ => false,
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let at = match &self.state {
            State::Running(_) if self.error_at.is_some() => self.error_at.map(|at| at.after(EXIT_TIMEOUT)),
            State::Running(_) if self.was_idle => None,
            State::Running(_) => Some(self.timeout_at()),
            State::Waiting(at) => Some(*at).filter(|_| self.can_start()),
            State::Ended | State::Abandoned(_) => None,
        };
        let interval = if self.ledger.is_on_trial() { TRIAL_POLL_INTERVAL } else { POLL_INTERVAL };
        let is_running = matches!(self.state, State::Running(_));
        let next_poll = self.blocked_at.filter(|_| is_running).map(|at| at.after(interval));
        let next_report =
            (self.is_report_due && is_running).then(|| self.reports_requested_at.after(REPORT_INTERVAL));
        let has_hidden = self.stages.iter().filter(|stage_state| stage_state.lines.hidden > 0);
        let shown_at = has_hidden.map(|stage_state| stage_state.lines.since.after(LINES_INTERVAL)).min();
        [at, next_poll, next_report, shown_at].into_iter().flatten().min()
    }

    pub(super) fn has_room(&self) -> bool {
        self.ledger.has_room() && !self.is_ending()
    }

    pub(super) fn is_ending(&self) -> bool {
        self.is_ending && !matches!(self.state, State::Ended | State::Abandoned(_))
    }

    /// A process that reports `done` may hold messages that it has read.
    pub(super) fn held(&self) -> usize {
        if self.ledger.reports_done() { self.ledger.waiting() } else { self.ledger.unfinished() }
    }

    pub(super) fn unfinished(&self) -> usize {
        self.ledger.unfinished()
    }

    /// Saves all that a new run in another process needs.
    pub(super) fn checkpoint(&self) -> Body {
        let mut saved = self.ledger.save();
        let outputs = self.stages[self.last()].outbox.messages.iter().map(|(_, output)| output.clone());
        saved.outputs.splice(..0, outputs);
        saved.emit()
    }

    /// Restores the checkpoint of another run into this new one.
    pub(super) fn restore(&mut self, checkpoint: Body) -> StageResult {
        let mut saved = Saved::parse(checkpoint, self.module().limits.kept_messages)?;
        let last = self.last();
        let outputs = std::mem::take(&mut saved.outputs).into_iter().map(|output| (Port::MAIN, output));
        self.stages[last].outbox.messages.extend(outputs);
        self.ledger.restore(saved);
        Ok(())
    }

    /// Process id of a stage, while it runs.
    pub(super) fn process_id(&self, stage: usize) -> Option<u32> {
        match &self.state {
            State::Running(group) => group.id(stage),
            _ => None,
        }
    }

    /// The stage's last report.
    pub(super) fn report(&self, stage: usize) -> &ModuleReport {
        &self.stages[stage].report
    }

    /// Number of starts, of failures, and of frames that the stage did not read.
    pub(super) fn counts(&self, stage: usize) -> [u64; 3] {
        [self.starts, self.failures, self.stages[stage].unread_frames]
    }

    /// On shared memory: the window, the slots of the host's region in use, and their total.
    pub(super) fn slots(&mut self) -> Option<(&Window, usize, usize)> {
        let out = match &mut self.state {
            State::Running(group) => group.slots_held().unwrap_or(0),
            _ => 0,
        };
        let Shared { geometry, window } = self.shared.as_ref()?;
        Some((window, out, geometry.slots))
    }
}

/// Refuses the hello of a program that does not know shared memory: it would wait for messages on descriptor 0.
fn check_shares_memory(frame: &ModuleFrame) -> Result<(), ProtocolError> {
    match frame {
        ModuleFrame::Hello { options, .. }
            if !options.iter().any(|(name, value)| name == SHARED_MEMORY && value == "true") =>
        {
            Err(ProtocolError("it has no shared memory: write `@pipe` in place of `@shm`".into()))
        }
        _ => Ok(()),
    }
}

fn take_frame(
    frame: ModuleFrame,
    ledger: &mut Ledger,
    stage_state: &mut StageState,
) -> Result<(), ProtocolError> {
    match frame {
        ModuleFrame::Done { inputs, outputs } => ledger.on_done(inputs, outputs)?,
        ModuleFrame::Hello { options, .. }
            if options.iter().any(|(name, value)| name == "done" && value == "true") =>
        {
            ledger.expect_done();
        }
        ModuleFrame::Peer(mut body) => {
            if stage_state.module.has_history {
                body.insert(0, STAGE_TAG);
            }
            stage_state.outbox.control(body);
        }
        ModuleFrame::Report(report) => {
            if stage_state.report.problem.is_empty() && !report.problem.is_empty() {
                stage_state.add_incident(format!("reports a problem: {}", report.problem));
            }
            stage_state.report = report;
        }
        _ => {}
    }
    Ok(())
}

fn feedback_frame(feedback: &Feedback) -> ModuleFrame {
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
