//! A program that declares its format as a partner: containers on its descriptors 0 and 1, control frames on 3.
//!
//! | event | effect |
//! |---|---|
//! | [`Ctl::Neutral`] of the flow in | frame `neutral`, after the containers before it |
//! | [`Ctl::Snapshot`] | the messages so far are dropped, and frame `snapshot` requests the state that includes them |
//! | frame `absent` | the neutral state of the format is queued, then [`Presence::Absent`] |
//! | frame `present` | [`Presence::Present`]; a state flow then requests a snapshot |
//! | frame `hello` | it must declare the known flows: the program was started again |
//! | frame `error`, a broken rule | the partner fails |
//! | the program exits | the flow out ends, or the partner fails with its status |

use super::containers::ContainerReader;
use super::frames::FrameSocket;
use super::program::Program;
use super::{EXIT_PATIENCE, Running, hello, name};
use crate::flows::{Endpoint, FlowPartner, IN, OUT};
use crate::plain::{self, os};
use crate::stream::{Channel, Framing, MessageWriter, StreamWriter, now};
use contract::{
    Ctl, CtlReply, DeviceError, Direction, FlowDirection, FlowKey, FlowOffer, FlowTemplate, Format, Interest,
    Message, Next, Opened, Partner, PartnerError, PartnerResult, Presence, PullSlot, Pushed, Readiness,
    RecoveryCtl, Role, Time,
};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use sys::memory::Words;
use wire::ModuleFrame;
use wire::formats::{evdev, motion};

/// Frames that wait for their place among the containers, at most. More stay in the socket.
const EARLY_FRAMES_MAX: usize = 16;
/// Changes of presence that nobody has asked for, at most. Older ones are forgotten.
const CHANGES_MAX: usize = 16;
/// Messages dropped for one snapshot, at most: more than a socket holds.
const STALE_MESSAGES_MAX: usize = 4096;

/// A running program that has declared its flows.
#[derive(Debug)]
struct DeclaredPartner {
    flows: Vec<FlowOffer>,
    has_snapshots: bool,
    reader: ContainerReader,
    running: Running,
    frames: FrameSocket,
    /// Frames whose place has not come.
    early: VecDeque<(u64, ModuleFrame)>,
    /// Messages of this partner itself.
    queue: VecDeque<Message>,
    is_absent: bool,
    changes: VecDeque<Presence>,
    /// The end of [`EXIT_PATIENCE`], once the program has closed descriptor 3.
    must_exit_at: Option<Time>,
    /// Repeated by every call that can fail.
    failure: Option<Failure>,
    /// Messages pushed to the program, by earlier workers too.
    pushed: u64,
    /// In memory that the next worker has too: the messages written completely, without which it would not know the place of a frame.
    written: Words,
    discarded: u64,
}

#[derive(Debug, Clone)]
enum Failure {
    /// The program is started again.
    Lost(String),
    Final(String),
}

impl Failure {
    fn error(&self) -> PartnerError {
        match self {
            Failure::Lost(what) => PartnerError::Gone(what.clone()),
            Failure::Final(problem) => PartnerError::Data(problem.clone()),
        }
    }
}

/// Makes the partner of a program that was opened with its description.
pub(super) fn partner(opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
    let (name, role) = (name(&opened.spec), opened.role);
    let (flows, properties) = (opened.description.flows.clone(), opened.description.properties.clone());
    let format =
        |direction| flows.iter().find(|flow| flow.direction == direction).map(|flow| flow.format.clone());
    let (forward, back) =
        (format(FlowDirection::DeviceToApplication), format(FlowDirection::ApplicationToDevice));
    let (out, into) = match role {
        Role::Device => (forward, back),
        Role::Application => (back, forward),
    };
    let [output, control, frames, written] = plain::descriptors(opened)?;
    let failed = |error| os(format!("preparing {name}"), error, None);
    let written = Words::map(written).map_err(failed)?;
    let pushed = written.first().map_or(0, |written| written.load(Relaxed));
    let (program, input) = Program::new(control).map_err(failed)?;
    let input = Channel::own(input).map_err(|error| failed(error.into()))?;
    let failure = program.was_in_part().then(|| {
        Failure::Lost(format!(
            "{name}: a killed worker had read a part of a message of it, so it is started again; it"
        ))
    });
    let partner = DeclaredPartner {
        flows,
        has_snapshots: properties.first() == Some(&1),
        reader: ContainerReader::new(name.clone(), output),
        running: Running {
            writer: StreamWriter::new(name.clone(), input, Framing::containers()),
            program,
            is_out_open: false,
            name,
        },
        frames: FrameSocket::new(frames),
        early: VecDeque::new(),
        queue: VecDeque::new(),
        is_absent: false,
        changes: VecDeque::new(),
        must_exit_at: None,
        failure,
        pushed,
        written,
        discarded: 0,
    };
    Ok(Box::new(FlowPartner::new(partner, out, into)))
}

/// The message that releases everything in a flow of this format; `None` if the format has no such message.
fn neutral(format: &Format, now: Time) -> Option<Message> {
    let body = match format {
        Format::Motion => {
            motion::Update::Snapshot { axes: [0; motion::AXES], pressed: Vec::new() }.to_bytes()
        }
        Format::Evdev => evdev::Update::Snapshot(Vec::new()).to_bytes(),
        _ => return None,
    };
    Some(Message::new(now, body))
}

impl DeclaredPartner {
    fn fail<T>(&mut self, problem: impl std::fmt::Display) -> PartnerResult<T> {
        let failure = Failure::Final(format!("{}: {problem}", self.running.name));
        Err(self.failure.insert(failure).error())
    }

    /// Reads the available control frames, sends the waiting ones, and checks that the program still listens.
    fn run_frames(&mut self, now: Time) -> PartnerResult {
        if let Some(failure) = &self.failure {
            return Err(failure.error());
        }
        self.frames.flush()?;
        while self.early.len() < EARLY_FRAMES_MAX {
            match self.frames.next(now) {
                Ok(Some(frame)) => self.early.push_back(frame),
                Ok(None) => break,
                Err(problem) => return self.fail(problem),
            }
        }
        if self.frames.has_ended() && self.running.program.outcome().is_none() {
            let until = *self.must_exit_at.get_or_insert(now.after(EXIT_PATIENCE));
            if now >= until {
                return self.fail("it closed descriptor 3, on which it receives `neutral` and `snapshot`");
            }
        }
        Ok(())
    }

    /// Handles the frames whose place among the containers has come; with `all`, the others too.
    fn handle_frames(&mut self, all: bool, now: Time) -> PartnerResult {
        while let Some((at, _)) = self.early.front()
            && (all || *at <= self.reader.count())
            && let Some((at, frame)) = self.early.pop_front()
        {
            self.reader.catch_up(at);
            match frame {
                ModuleFrame::Absent(reason) if !self.is_absent => {
                    self.is_absent = true;
                    let format = self.flows.first().map(|flow| flow.format.clone());
                    self.queue.extend(format.and_then(|format| neutral(&format, now)));
                    self.change(Presence::Absent(if reason.is_empty() {
                        "unplugged".into()
                    } else {
                        reason
                    }));
                }
                // The worker that saw the device leave may have been killed.
                ModuleFrame::Present => {
                    self.is_absent = false;
                    self.change(Presence::Present);
                }
                ModuleFrame::Hello { format, options, .. } => match hello::parse(&format, &options) {
                    Ok(declared) if declared.flows == self.flows => {}
                    Ok(_) => return self.fail("it declares other flows than before"),
                    Err(problem) => return self.fail(problem),
                },
                ModuleFrame::Error(problem) => return self.fail(format!("it reports: {problem}")),
                // Those of other modules, and of later versions.
                _ => {}
            }
        }
        Ok(())
    }

    /// A message that is written in part counts for the worker that writes its rest.
    fn save_written(&mut self) {
        let parts = u64::from(self.running.writer.pending().left() > 0);
        if let Some(written) = self.written.first() {
            written.store(self.pushed.saturating_sub(parts), Relaxed);
        }
    }

    fn change(&mut self, change: Presence) {
        if self.changes.len() == CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
    }

    fn next_message(&mut self, now: Time) -> PartnerResult<Next> {
        self.run_frames(now)?;
        loop {
            self.handle_frames(false, now)?;
            if let Some(message) = self.queue.pop_front() {
                return Ok(Next::Message(message));
            }
            match self.reader.next(now, &self.running.program) {
                Ok(Next::Message(_)) if self.is_absent => {
                    return self.fail("it sent a message while its device is absent: send `present` before");
                }
                Ok(Next::Message(message)) => return Ok(Next::Message(message)),
                // The containers before these frames were read by an earlier worker.
                Ok(_) if !self.early.is_empty() => self.handle_frames(true, now)?,
                // The flow ends with the program, which may close its output earlier.
                Ok(Next::End) if !self.running.has_ended()? => return Ok(Next::Nothing),
                Ok(next) => return Ok(next),
                Err(PartnerError::Data(problem)) => {
                    return Err(self.failure.insert(Failure::Final(problem)).error());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Drops the messages that a snapshot is about to replace. A failure shows in the next pull.
    fn discard_stale(&mut self, slot: &mut PullSlot) {
        self.discarded += u64::from(slot.is_held());
        *slot = PullSlot::default();
        for _ in 0..STALE_MESSAGES_MAX {
            match self.next_message(now()) {
                Ok(Next::Message(_)) => self.discarded += 1,
                _ => break,
            }
        }
        // The neutral state of an absent device stays the newest.
        if self.is_absent
            && let Some(format) = self.flows.first().map(|flow| flow.format.clone())
        {
            self.queue.extend(neutral(&format, now()));
        }
    }

    /// Reads and discards the output of a program without an open flow out, which would block on a full socket.
    fn discard_output(&mut self) -> PartnerResult {
        self.run_frames(now())?;
        match self.running.is_out_open {
            true => Ok(()),
            false => {
                self.reader.discard()?;
                self.handle_frames(true, now())
            }
        }
    }
}

impl Endpoint for DeclaredPartner {
    fn opened(&mut self, template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        self.running.opened(template.direction);
        Ok(())
    }

    fn closed(&mut self, direction: Direction, slot: &mut PullSlot) -> PartnerResult {
        if direction == Direction::Out {
            self.discarded += u64::from(slot.is_held());
            *slot = PullSlot::default();
        }
        self.running.closed(direction)
    }

    fn push(&mut self, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if let Err(error) = self.discard_output() {
            return Err((error, message));
        }
        let pushed = self.running.writer.push(message);
        self.pushed += u64::from(matches!(pushed, Ok(Pushed::Taken)));
        self.save_written();
        pushed
    }

    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        self.next_message(now)
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>, slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush => {
                self.discard_output()?;
                let flushed = self.running.writer.flush();
                self.save_written();
                flushed
            }
            Ctl::Finish => {
                self.discard_output()?;
                self.running.finish()
            }
            Ctl::Snapshot if self.has_snapshots => {
                self.discard_stale(slot);
                self.frames.send_snapshot(self.pushed).map(|()| CtlReply::Done)
            }
            Ctl::Neutral if flow == OUT => Ok(CtlReply::Done),
            Ctl::Neutral => self.frames.send_neutral(self.pushed).map(|()| CtlReply::Done),
            Ctl::Recovery(RecoveryCtl::PartialWrite) | Ctl::Recovery(RecoveryCtl::Skip(_)) => {
                self.running.writer.resume_write(operation)
            }
            Ctl::Recovery(RecoveryCtl::ReadAhead) if flow != IN => Ok(CtlReply::Count(self.reader.ahead())),
            Ctl::Recovery(RecoveryCtl::Discarded) => Ok(CtlReply::Count(self.discarded)),
            Ctl::Report => Ok(CtlReply::Report(vec![
                ("read bytes", self.reader.bytes() as f64),
                ("written bytes", self.running.writer.bytes() as f64),
                ("messages dropped", self.discarded as f64),
            ])),
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        let exit = Some((self.running.program.as_fd(), Interest::Read));
        let until = self.must_exit_at.filter(|_| !self.running.program.has_outcome());
        let mut readiness = match direction {
            _ if self.failure.is_some() => return Readiness::now(),
            Direction::Out if !self.queue.is_empty() => return Readiness::now(),
            Direction::Out if self.reader.has_ended() && self.running.program.has_outcome() => {
                Readiness::never()
            }
            Direction::Out if self.reader.has_ended() => {
                Readiness { descriptors: [exit, None], ..Readiness::never() }
            }
            Direction::Out => Readiness::descriptor(self.reader.as_fd(), Interest::Read),
            Direction::In if self.running.writer.is_finished() => {
                Readiness { descriptors: [exit, None], ..Readiness::never() }
            }
            Direction::In => self.running.writer.readiness(),
        };
        match direction {
            _ if readiness.now => {}
            Direction::Out => {
                if self.early.len() < EARLY_FRAMES_MAX {
                    self.frames.add_to(&mut readiness);
                }
                readiness = readiness.or_at(until);
            }
            Direction::In if !self.running.is_out_open && !self.reader.has_ended() => {
                readiness.descriptors[1] = Some((self.reader.as_fd(), Interest::Read));
            }
            Direction::In => {}
        }
        readiness
    }

    fn presence(&mut self) -> Option<Presence> {
        self.changes.pop_front()
    }
}
