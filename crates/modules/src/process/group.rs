//! The processes of a run, and the pipes or shared memory that carry messages to them and back.

use super::ledger::{Ledger, ProtocolError};
use super::member::{Member, MemberEvent, NAMES, Start};
use super::pipes::Pipes;
use contract::{Message, Time};
use links::shm::{Broken, HostEnd, Returned};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;
use sys::poller::PollSet;
use wire::{Container, ModuleFrame};

/// Name of the host's wake-up descriptor in the poll set.
const WAKEUP: u64 = 5;
/// While messages arrive, interval between polls of the other descriptors.
const POLL_EVERY: Duration = Duration::from_millis(1);
/// Quiet time after which a process is asked whether it holds an input on trial, and after which its silence is the answer.
const QUIET: Duration = Duration::from_millis(20);
/// Time after which an input on trial counts as held by a program that reads no control frames.
const IGNORES_FRAMES: Duration = Duration::from_secs(1);
/// Most messages read from a ring at once.
const RETURNED_MAX: usize = 4096;

/// A frame of an unknown kind, which a process ignores: tests that it reads its control descriptor.
pub(super) const PROBE: ModuleFrame = ModuleFrame::Unknown(u8::MAX);

/// Something that the processes sent.
pub(super) enum Event {
    Output(Message),
    /// The input with this number came back unchanged. All before it are finished, too.
    Unchanged(u64),
    /// The first `n` inputs are finished; their output has been received.
    Covers(u64),
    /// A control frame: stage, position, frame.
    Frame(usize, u64, ModuleFrame),
    Line(usize, String),
}

/// A violation of the protocol by one stage.
pub(super) struct StageFault {
    pub(super) stage: usize,
    pub(super) error: ProtocolError,
}

/// A program and its environment; `None`: the environment of this process.
pub(super) type Program<'a> = (&'a [OsString], Option<&'a [(OsString, OsString)]>);

/// Result of [`ProcessGroup::read`].
pub(super) enum ReadOutcome {
    /// Only messages were read; the other descriptors are not due.
    Messages,
    /// Everything was read. If the run has ended: the stage that ended it, and its status. That is the first stage
    /// that exited unexpectedly, or the last one.
    All(Option<(usize, ExitStatus)>),
}

/// Carries messages.
enum Carrier {
    Pipes(Pipes),
    Shared(Box<HostEnd>),
}

/// Frames that ask all processes whether they hold the input on trial.
#[derive(Debug, Clone, Copy)]
struct Asked {
    /// Time of the last one.
    at: Time,
    /// Their number.
    frames: usize,
    ignores_frames: bool,
}

/// Running processes. Dropping it kills and reaps them and all their children.
pub(super) struct ProcessGroup {
    // Dropped first: the memory that a stage writes must be unmapped after the stage has gone.
    members: Vec<Member>,
    carrier: Carrier,
    set: Arc<PollSet>,
    /// The processes were asked for the input on trial.
    asked: Option<Asked>,
    /// Time after which an input on trial counts as held by a program that does not answer. `None`: it always answers.
    hold: Option<Duration>,
    /// A message waits for room.
    is_blocked: bool,
    /// The caller has waited for input since the last read.
    is_awaited: bool,
    input_ended: bool,
    end_pending: bool,
    broken: Option<Broken>,
    polled_at: Time,
    read_at: Time,
}

impl ProcessGroup {
    /// Starts programs with a pipe from each to the next, and from the last one back to this process. With
    /// `has_words` they are a chain.
    pub(super) fn between_pipes(
        programs: &[Program<'_>],
        has_words: bool,
        set: &Arc<PollSet>,
    ) -> io::Result<ProcessGroup> {
        let (input, mut theirs) = Pipes::input()?;
        let mut members = Vec::new();
        for (index, (words, environment)) in programs.iter().enumerate() {
            let (next, output) = Pipes::between()?;
            let (input, output) = (Some(std::mem::replace(&mut theirs, next)), Some(output));
            let start = Start { words, environment: *environment, input, output, descriptors: Vec::new() };
            members.push(Member::start(start, index, set)?);
        }
        let pipes = Pipes::new(input, theirs, has_words, set)?;
        Ok(ProcessGroup::new(members, Carrier::Pipes(pipes), set))
    }

    /// Starts a run on shared memory. Each program gets the descriptors of its stage.
    pub(super) fn on_shared_memory(
        programs: &[Program<'_>],
        (host, descriptors): (HostEnd, Vec<Vec<OwnedFd>>),
        set: &Arc<PollSet>,
    ) -> io::Result<ProcessGroup> {
        let mut members = Vec::new();
        for (index, ((words, environment), descriptors)) in programs.iter().zip(descriptors).enumerate() {
            let start = Start { words, environment: *environment, input: None, output: None, descriptors };
            members.push(Member::start(start, index, set)?);
        }
        set.add(host.wakeup(), WAKEUP, true, false)?;
        Ok(ProcessGroup::new(members, Carrier::Shared(Box::new(host)), set))
    }

    fn new(members: Vec<Member>, carrier: Carrier, set: &Arc<PollSet>) -> ProcessGroup {
        ProcessGroup {
            members,
            carrier,
            set: set.clone(),
            asked: None,
            hold: None,
            is_blocked: false,
            is_awaited: true,
            input_ended: false,
            end_pending: false,
            broken: None,
            polled_at: Time::ZERO,
            read_at: Time::ZERO,
        }
    }

    /// Begins at this time. An input on trial counts as held by a program that does not answer for `hold`.
    pub(super) fn begin(&mut self, now: Time, hold: Option<Duration>) {
        (self.read_at, self.hold) = (now, hold);
        if let Carrier::Pipes(pipes) = &mut self.carrier {
            pipes.moved_at = now;
        }
    }

    /// Process id of a stage.
    pub(super) fn id(&self, stage: usize) -> Option<u32> {
        self.members.get(stage).map(|member| member.process.id())
    }

    /// Reads everything that is ready, and passes it to `take`.
    pub(super) fn read(
        &mut self,
        now: Time,
        mut take: impl FnMut(Event) -> Result<(), ProtocolError>,
    ) -> Result<ReadOutcome, StageFault> {
        let last = self.members.len() - 1;
        let of_last = |error| StageFault { stage: last, error };
        self.read_at = now;
        let is_awaited = std::mem::take(&mut self.is_awaited);
        let has_read = match &mut self.carrier {
            Carrier::Pipes(pipes) => pipes.read(now, false, &mut take).map_err(of_last)?,
            Carrier::Shared(host) => {
                host.wake_up();
                let has_read = receive_all(host, &mut take).map_err(of_last)?;
                if let Some(Broken(problem)) = self.broken.take() {
                    return Err(StageFault { stage: 0, error: ProtocolError(problem) });
                }
                has_read
            }
        };
        if (has_read || !is_awaited) && now < self.polled_at.after(POLL_EVERY) {
            return Ok(ReadOutcome::Messages);
        }
        self.polled_at = now;
        let ready = self.set.ready().map_err(|error| of_last(ProtocolError(error.to_string())))?;
        let names: Vec<u64> = ready.collect();
        let mut ended = Vec::new();
        for (stage, member) in self.members.iter_mut().enumerate() {
            let mut sent = |sent| take(event(stage, sent));
            if member.read(&names, &mut sent).map_err(|error| StageFault { stage, error })? {
                ended.push(stage);
            }
        }
        // A stage may have reported on messages that the next one has finished: read all reports, whichever stage
        // has ended.
        if !ended.is_empty() {
            for (stage, member) in self.members.iter_mut().enumerate() {
                let mut sent = |sent| take(event(stage, sent));
                member.read_control(true, &mut sent).map_err(|error| StageFault { stage, error })?;
            }
        }
        match &mut self.carrier {
            _ if ended.is_empty() => {}
            // Output that was sent before the end counts, too.
            Carrier::Pipes(pipes) => drop(pipes.read(now, true, &mut take).map_err(of_last)?),
            Carrier::Shared(host) => drop(receive_all(host, &mut take).map_err(of_last)?),
        }
        ended.into_iter().for_each(|stage| self.members[stage].reap());
        Ok(ReadOutcome::All(self.end()))
    }

    /// Reads the lines that the processes have printed, up to the last one, before they are killed.
    pub(super) fn last_lines(&mut self) -> Vec<(usize, String)> {
        let mut lines = Vec::new();
        for (stage, member) in self.members.iter_mut().enumerate() {
            let mut take = |sent| {
                if let MemberEvent::Line(line) = sent {
                    lines.push((stage, line));
                }
                Ok(())
            };
            // The closure above returns no error.
            let _ = member.read_errors(true, &mut take);
        }
        lines
    }

    /// The stage that ended the run, with its exit status.
    fn end(&self) -> Option<(usize, ExitStatus)> {
        let ends = || self.members.iter().enumerate().filter_map(|(stage, m)| Some((stage, m.status()?)));
        // In a chain, a stage exits successfully if its neighbour has gone; then the neighbour ended the run.
        let has_failed = |status: &ExitStatus| {
            !status.success() || !self.input_ended && matches!(self.carrier, Carrier::Shared(_))
        };
        let unexpected = ends().find(|(_, status)| has_failed(status));
        unexpected.or_else(|| ends().next_back().filter(|_| ends().count() == self.members.len()))
    }

    /// Queues a frame for a stage, to be handled after `at` containers. Returns false if the stage does not read
    /// frames.
    pub(super) fn queue_frame(&mut self, stage: usize, frame: &ModuleFrame, at: u64) -> bool {
        self.members.get_mut(stage).is_some_and(|member| member.queue_frame(frame, at))
    }

    /// Queues a frame for every stage.
    pub(super) fn queue_frame_all(&mut self, frame: &ModuleFrame, at: u64) {
        for member in &mut self.members {
            member.queue_frame(frame, at);
        }
    }

    /// Returns true if a message may be sent before the ledger keeps it, provided that no other one waits.
    pub(super) fn can_push_directly(&self) -> bool {
        !self.input_ended && self.broken.is_none() && matches!(self.carrier, Carrier::Shared(_))
    }

    /// Sends such a message; the caller then calls [`ProcessGroup::wake`]. Returns false if there is no room.
    pub(super) fn push(&mut self, message: &Message) -> bool {
        let Carrier::Shared(host) = &mut self.carrier else { return false };
        let result = host.push_without_wakeup(message.created, &message.body, false);
        self.is_blocked = result == Ok(false);
        let has_sent = result == Ok(true);
        self.broken = result.err();
        has_sent
    }

    /// Wakes the reader of that message, if it sleeps.
    pub(super) fn wake(&mut self) {
        if let Carrier::Shared(host) = &mut self.carrier {
            host.wake_next();
        }
    }

    /// Inputs before this number may be sent now. On trial, a process gets the next input when the last one is finished,
    /// or when it holds that one until more come.
    ///
    /// A busy process does not read its control descriptor; one that waits for input does. So a frame shows the
    /// difference. A process may read an input and a frame together, and then handle the input: the first frame is sent
    /// when the input has been read, and each later process of a chain gets two more frames, one after the other, so that
    /// it has handled the input when it reads the second one.
    fn sendable(&mut self, ledger: &Ledger) -> u64 {
        let (until, now) = (ledger.sendable(), self.read_at);
        let Carrier::Pipes(pipes) = &self.carrier else { return until };
        // A program that never reports `done` answers each input.
        if until > ledger.handed() || !ledger.reports_done() {
            self.asked = None;
            return until;
        }
        let moved_at = pipes.moved_at;
        let asked = match self.asked {
            None if pipes.unread() > 0 || now < moved_at.after(QUIET) => return until,
            // A program that has read an input has also read the frames before it, or it reads none.
            None => Asked { at: now, frames: 0, ignores_frames: self.unresponsive().is_some() },
            Some(asked) if now >= asked.at.after(QUIET) && self.unresponsive().is_none() => asked,
            Some(asked) => {
                let hold =
                    self.hold.map(|hold| if asked.ignores_frames { hold.min(IGNORES_FRAMES) } else { hold });
                return until + u64::from(hold.is_some_and(|hold| now >= moved_at.after(hold)));
            }
        };
        if asked.frames == 2 * self.members.len() - 1 {
            return until + 1;
        }
        self.asked = Some(Asked { at: now, frames: asked.frames + 1, ..asked });
        match ledger.has_flushes() {
            true => self.queue_frame_all(&ModuleFrame::Flush, ledger.sent_position()),
            // Its position is in the past, so that it holds up no other frame.
            false => self.queue_frame_all(&PROBE, 0),
        }
        until
    }

    /// Writes messages and frames as far as there is room.
    pub(super) fn write(&mut self, ledger: &mut Ledger) {
        let until = self.sendable(ledger);
        match &mut self.carrier {
            Carrier::Pipes(pipes) => {
                let sent = ledger.handed();
                self.is_blocked = !pipes.write(ledger, &mut self.members[0], until, self.read_at);
                if ledger.handed() > sent {
                    self.asked = None;
                }
            }
            Carrier::Shared(host) => {
                let result = send_all(host, ledger);
                self.is_blocked = result.as_ref().is_ok_and(|has_room| !has_room);
                self.broken = result.err().or(self.broken.take());
                if self.end_pending && !ledger.has_next() {
                    self.end_pending = !host.end().unwrap_or(true);
                }
            }
        }
        for (stage, member) in self.members.iter_mut().enumerate() {
            if member.write()
                && let Carrier::Shared(host) = &self.carrier
            {
                host.notify_control(stage);
            }
        }
    }

    /// On shared memory: requests a report from every stage.
    pub(super) fn request_reports(&self) {
        if let Carrier::Shared(host) = &self.carrier {
            (0..self.members.len()).for_each(|stage| host.notify_control(stage));
        }
    }

    /// Returns true if something waits for room, and no notification may come when there is some.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked || self.end_pending
    }

    /// Ends the input of the first stage.
    pub(super) fn end_input(&mut self) {
        match &mut self.carrier {
            Carrier::Pipes(pipes) => pipes.end_input(),
            Carrier::Shared(host) if !self.input_ended => self.end_pending = !host.end().unwrap_or(true),
            Carrier::Shared(_) => {}
        }
        self.input_ended = true;
    }

    /// Returns true after [`ProcessGroup::end_input`].
    pub(super) fn is_input_ended(&self) -> bool {
        self.input_ended
    }

    /// Bytes sent to the first stage that it has not read.
    pub(super) fn unread(&mut self) -> u64 {
        match &mut self.carrier {
            Carrier::Pipes(pipes) => pipes.unread(),
            Carrier::Shared(host) => {
                let (bytes, messages) = host.unread();
                (bytes + messages * Container::BYTES) as u64
            }
        }
    }

    /// The first stage that does not read its control frames.
    pub(super) fn unresponsive(&self) -> Option<usize> {
        self.members.iter().position(|member| !member.reads_control())
    }

    /// On shared memory: sets the most messages in flight.
    pub(super) fn set_window(&mut self, messages: usize) {
        if let Carrier::Shared(host) = &mut self.carrier {
            host.window = messages;
        }
    }

    /// On shared memory: slots of the host's region that the stages hold.
    pub(super) fn slots_held(&mut self) -> Option<usize> {
        match &mut self.carrier {
            Carrier::Pipes(_) => None,
            Carrier::Shared(host) => Some(host.slots_held()),
        }
    }

    /// Prepares to wait. Returns true if there is input after all.
    pub(super) fn go_to_sleep(&mut self) -> bool {
        self.is_awaited = true;
        match &mut self.carrier {
            Carrier::Shared(host) => host.go_to_sleep(),
            Carrier::Pipes(_) => false,
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Carrier::Shared(host) = &self.carrier {
            self.set.remove(host.wakeup());
        }
    }
}

fn event(stage: usize, sent: MemberEvent) -> Event {
    match sent {
        MemberEvent::Frame(at, frame) => Event::Frame(stage, at, frame),
        MemberEvent::Line(line) => Event::Line(stage, line),
    }
}

/// Reads messages from the ring. Returns true if there were any.
fn receive_all(
    host: &mut HostEnd,
    take: &mut impl FnMut(Event) -> Result<(), ProtocolError>,
) -> Result<bool, ProtocolError> {
    for taken in 0..RETURNED_MAX {
        match host.pop().map_err(|Broken(problem)| ProtocolError(problem))? {
            None => return Ok(taken > 0),
            Some(Returned::Unchanged(number)) => {
                take(Event::Unchanged(number))?;
                if !host.has_outstanding() {
                    return Ok(true);
                }
            }
            Some(Returned::End) => {}
            Some(Returned::Covers(covers)) => take(Event::Covers(covers))?,
            Some(Returned::Message(message, covers)) => {
                take(Event::Output(message))?;
                if covers > 0 {
                    take(Event::Covers(covers))?;
                }
            }
        }
    }
    Ok(true)
}

/// Sends messages as far as there is room. On trial, idle processes hold the last message. Returns true if that was all.
fn send_all(host: &mut HostEnd, ledger: &mut Ledger) -> Result<bool, Broken> {
    while let Some((created, body, has_gap)) = ledger.next_whole() {
        let is_free = ledger.handed() < ledger.sendable() || host.is_idle();
        if !is_free || !host.push(created, body, has_gap)? {
            return Ok(false);
        }
        ledger.mark_sent_whole();
    }
    Ok(true)
}

const _: () = assert!(WAKEUP < NAMES);
