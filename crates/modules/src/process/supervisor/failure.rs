//! Failures of the processes of a run: silence, the report of a failure, the back-off before a restart.

use super::super::group::PROBE;
use super::{Blame, StageState, State, Status, Supervisor};
use crate::process::launch::denies_code;
use crate::process::ledger::Death;
use contract::{Time, interned};
use std::time::Duration;

/// Timeout until the first frame or output: an interpreter starts slowly on a busy host.
const GREETING_TIMEOUT: Duration = Duration::from_secs(20);
/// Multiple of the patience until the first output, and its limit: a small host loads a model for up to a minute.
const STARTUP_FACTOR: u32 = 12;
const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a process to exit after it has reported an error. It prints the cause meanwhile.
pub(super) const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// First and longest back-off before a restart.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(5)];
/// Failures without progress, after which the end of the flow no longer waits for a process: more than a message survives
/// that an external signal kills.
const ATTEMPTS_MAX: u32 = 14;
/// Failures before any process has read a message, within the time of one more start, after which the module is abandoned.
const EARLY_EXITS_MAX: u32 = 3;

impl Supervisor {
    /// Returns the time before the next start. It doubles with each failure without progress.
    pub(super) fn back_off(&mut self) -> Duration {
        if self.ledger.committed() > self.committed_before {
            (self.attempts, self.committed_before) = (0, self.ledger.committed());
        }
        self.attempts += 1;
        (BACK_OFF[0] * (1 << (self.attempts - 1).min(16))).min(BACK_OFF[1])
    }

    /// Returns true while unfinished inputs have a bounded time: the process has been told the end, or it is restarted for
    /// them.
    pub(in super::super) fn is_settling(&self) -> bool {
        let is_bounded = match &self.state {
            State::Running(group) => group.is_input_ended() || self.ledger.is_on_trial(),
            State::Waiting(_) => self.can_start(),
            State::Ended | State::Abandoned(_) => false,
        };
        is_bounded && self.ledger.unfinished() > 0 && self.attempts <= ATTEMPTS_MAX
    }

    /// Updates the time since which unfinished input has had no output.
    pub(super) fn note_progress(&mut self, has_moved: bool, now: Time) {
        let is_input_ended = matches!(&self.state, State::Running(group) if group.is_input_ended());
        let is_idle = self.ledger.is_idle() && !is_input_ended;
        if is_idle || has_moved || self.was_idle {
            (self.progress_at, self.probed_at) = (now, None);
        }
        self.was_idle = is_idle;
    }

    pub(super) fn patience(&self) -> Duration {
        self.stages.iter().map(|stage_state| stage_state.module.patience).max().unwrap_or_default()
    }

    /// Longest silence of the present processes. A process may load a model before its first answer, so the first one has the
    /// time for that, and later ones have twice the time that it took.
    fn silence_max(&self) -> Duration {
        let patience = self.patience();
        let first = patience.saturating_mul(STARTUP_FACTOR).min(STARTUP_TIMEOUT);
        let start = self.slowest_start.map_or(first, |slowest| slowest.saturating_mul(2).min(first));
        match (self.has_answered, self.has_sent) {
            (true, _) => patience,
            (false, true) => patience.max(start),
            (false, false) => patience.max(start).max(GREETING_TIMEOUT),
        }
    }

    /// The boot clock runs on while the host is suspended, so the second half of the silence begins with the probe.
    pub(super) fn timeout_at(&self) -> Time {
        let silence = self.silence_max();
        match self.probed_at {
            None => self.progress_at.after(silence / 2),
            Some(at) => self.progress_at.after(silence).max(at.after(silence / 2)),
        }
    }

    pub(super) fn on_timeout(&mut self, now: Time) -> Status {
        let silence = self.silence_max();
        let State::Running(group) = &mut self.state else { return Status::Alive };
        if self.probed_at.is_none() {
            self.probed_at = Some(now);
            group.queue_frame_all(&PROBE, 0);
            group.write(&mut self.ledger);
            return Status::Alive;
        }
        let unresponsive = group.unresponsive();
        if self.ledger.reports_done() && unresponsive.is_none() && !group.is_input_ended() {
            (self.progress_at, self.probed_at) = (now, None);
            return Status::Alive;
        }
        let stage = unresponsive.unwrap_or(0);
        // Only programs of the user have the option.
        let advice = match self.stages[stage].module.is_own {
            true => String::new(),
            false => format!("; set patience={}s if it needs longer", (4 * silence.as_secs()).max(60)),
        };
        Status::failed(stage, format!("hung (no output for {silence:?}{advice}) and was killed"))
    }

    /// A process reported an error, but does not exit.
    pub(super) fn on_exit_timeout(&self) -> Status {
        let stage = self.stages.iter().position(|stage_state| stage_state.error.is_some());
        Status::failed(stage.unwrap_or(0), "did not exit and was killed".into())
    }

    /// A process failed: ends the run and schedules a restart.
    pub(super) fn on_failure(&mut self, stage: usize, why: &str, blame: Blame, now: Time) {
        let is_outside = blame == Blame::Outside;
        // Confirmed output leaves with the mark of its own incarnation.
        self.release_outputs();
        let was_on_trial = self.ledger.is_on_trial();
        let mut unread = 0;
        if let State::Running(group) = &mut self.state {
            unread = group.unread();
            for (stage, line) in group.last_lines() {
                self.stages[stage].add_line(line, was_on_trial, now);
            }
        }
        self.stages.iter_mut().for_each(StageState::report_hidden_lines);
        self.failures += 1;
        let is_early = self.ledger.committed() == 0 && !self.ledger.has_read(unread);
        if is_early && !is_outside && self.has_too_many_early_exits(now) {
            return self.abandon(stage, why);
        }
        let is_damaged =
            blame == Blame::Output && !self.ledger.has_read(unread) && self.ledger.doubt_last_output();
        let death = self.ledger.on_death(unread, is_outside);
        if death.dropped.is_some() {
            self.attempts = 0;
        }
        let delay = self.back_off();
        // The old state is dropped here, which kills the processes.
        self.state = State::Waiting(now.after(delay));
        let cause = self.cause(stage, why);
        if is_damaged {
            self.stages[stage].add_loss(format!("the last message that left may be damaged: {cause}"));
        }
        self.report_failure(stage, &cause, death, delay, was_on_trial && !is_outside);
        self.request_renewal();
    }

    /// Counts a failure before any process has read a message. Returns whether there are too many.
    fn has_too_many_early_exits(&mut self, now: Time) -> bool {
        let time = self.patience().max(STARTUP_TIMEOUT) * (EARLY_EXITS_MAX + 1);
        let (count, since) = &mut self.early_exits;
        if *count == 0 || now.since(*since) > time {
            (*count, *since) = (0, now);
        }
        *count += 1;
        *count >= EARLY_EXITS_MAX
    }

    /// The module does not start: drops its messages, and starts no other process.
    fn abandon(&mut self, stage: usize, why: &str) {
        let mut cause = self.cause(stage, why);
        let reason = interned(&format!("does not start: {cause}")).unwrap_or("does not start");
        cause.push_str(code_hint(&cause, denies_code()));
        // The old state is dropped here, which kills the processes.
        self.state = State::Abandoned(reason);
        let all = format!("{EARLY_EXITS_MAX} processes in a row failed before they read a message");
        let text = format!("does not start, and later messages are lost: {all}; the last one {cause}");
        match self.ledger.abandon(reason) {
            None => self.stages[stage].add_incident(text),
            Some((first, last)) => {
                self.stages[stage].add_loss(format!("{text}; lost messages {first} to {last}"));
            }
        }
    }

    /// The cause of a failure, with the last words of the stage.
    fn cause(&self, stage: usize, why: &str) -> String {
        let stage_state = &self.stages[stage];
        let mut cause = match &stage_state.error {
            Some(error) => format!("failed: {error}"),
            None => why.to_string(),
        };
        // A module reports its error in a frame and prints it.
        let is_news = |line: &&String| {
            !cause.contains(*line) && !stage_state.error.as_ref().is_some_and(|error| line.contains(error))
        };
        if let Some(line) = stage_state.last_line.as_ref().filter(is_news) {
            cause.push_str(&format!(" (last line: {line})"));
        }
        // Only an isolated module has an environment of its own.
        cause.push_str(hint(&cause, stage_state.module.environment.is_some()));
        cause
    }

    /// Reports a failure. While inputs are on trial, only the result is of interest.
    fn report_failure(
        &mut self,
        stage: usize,
        cause: &str,
        death: Death,
        delay: Duration,
        is_on_trial: bool,
    ) {
        let stage_state = &mut self.stages[stage];
        if death.suspect.is_none() && death.dropped.is_none() || !is_on_trial {
            let mut text = format!("{cause}; restart in {delay:?}");
            if death.replayed > 0 {
                let messages = if death.replayed == 1 { "message is" } else { "messages are" };
                text.push_str(&format!(", {} {messages} replayed", death.replayed));
            }
            stage_state.add_incident(text);
        }
        if let Some(number) = death.dropped {
            stage_state.add_loss(format!("lost message {number}, which it cannot process: {cause}"));
        }
        if death.unreadable > 0 {
            let count = death.unreadable;
            stage_state.add_loss(format!("lost {count} messages with its history: {cause}"));
        }
    }
}

/// A hint if the cause is about memory, or about files that an isolated module does not see.
fn hint(cause: &str, is_isolated: bool) -> &'static str {
    const MEMORY: &[&str] =
        &["MemoryError", "memory allocation of", "Cannot allocate memory", "out of memory", "bad_alloc"];
    const FILES: &[&str] = &[
        "ModuleNotFoundError",
        "Cannot find module",
        "Permission denied",
        "permission denied",
        "No such file",
    ];
    let has = |words: &[&str]| words.iter().any(|word| cause.contains(word));
    if has(MEMORY) {
        return ": it reached its memory limit";
    }
    match is_isolated && has(FILES) {
        true => ": isolate=true hides files: name the directory with reads=DIR",
        false => "",
    }
}

/// A hint if the programs of this process may have no memory that is writable and executable, and a program died as one that
/// compiles its code while it runs.
fn code_hint(cause: &str, denies_code: bool) -> &'static str {
    let has_signal = ["SIGTRAP", "SIGABRT", "SIGILL", "SIGSEGV"].iter().any(|signal| cause.contains(signal));
    match denies_code && has_signal {
        true => {
            ": this service denies memory that is writable and executable, which node needs: run `node --jitless`, or set \
             MemoryDenyWriteExecute=no with `systemctl edit outboard`"
        }
        false => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_by_denied_memory_is_explained_where_it_is_denied() {
        let cause = "was killed by signal SIGTRAP (last line: [node])";
        assert!(code_hint(cause, true).contains("MemoryDenyWriteExecute=no"));
        assert_eq!((code_hint(cause, false), code_hint("ended with status 1", true)), ("", ""));
    }
}
