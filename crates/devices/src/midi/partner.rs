//! A MIDI device or node as a partner. Both sides are alike: messages are pulled out of a line and pushed into it.
//!
//! | event | effect |
//! |---|---|
//! | the line's other end is gone (device), the kernel dropped events, the last program left (application) | the notes that its messages hold are ended, by further messages |
//! | the device is gone | then pulls and pushes return [`PartnerError::Gone`] |
//! | [`Ctl::Neutral`], flow in closed | the notes that pushed messages hold are ended, pedals released, pitch bend centred |
//! | the next push | pedals and pitch bend return to their values, unless the message sets them |
//! | the worker is killed | the next one reads the held state from [`Memory`] |

use super::held::{HELD_BYTES, Held, is_overridden};
use super::input::{Arrival, Input};
use super::output::{Output, Receiver};
use super::stream::{SAVED_BYTES, Splitter};
use crate::flows::{Endpoint, FlowPartner, OUT, invalid};
use crate::stream::now;
use contract::{
    Ctl, CtlReply, Direction, FlowKey, Format, Interest, Message, Next, PartnerError, PartnerResult,
    PullSlot, Readiness, RecoveryCtl, Report, Time,
};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use sys::sequencer::Address;
use wire::formats::midi::MidiMessage;

/// Bytes of [`Memory`].
pub(super) const MEMORY_BYTES: usize = HELD_BYTES + SAVED_BYTES;
/// Reads in one pull, at most, so that events without a message do not starve the path.
const READS_MAX: usize = 64;

/// Shared memory that the broker keeps for the next worker: the state that pushed messages hold, and that of a [`Splitter`].
#[derive(Debug)]
pub(super) struct Memory(pub(super) OwnedFd);

impl Memory {
    fn held(&self) -> Held {
        let mut bytes = [0; HELD_BYTES];
        // Without it the state is neutral.
        let _ = rustix::io::pread(&self.0, &mut bytes, 0);
        Held::from_bytes(&bytes)
    }

    fn splitter(&self) -> Splitter {
        let mut bytes = [0; SAVED_BYTES];
        let _ = rustix::io::pread(&self.0, &mut bytes, HELD_BYTES as u64);
        Splitter::restore(bytes)
    }

    fn save(&self, bytes: &[u8], at: usize) {
        // It cannot fail: the memory has its size already.
        let _ = rustix::io::pwrite(&self.0, bytes, at as u64);
    }
}

/// The line that a partner uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    Raw,
    /// A port of this sequencer: the port of the device, or any program.
    Sequencer {
        device: Option<Address>,
        receiver: Receiver,
    },
}

/// A MIDI device or node as a partner.
#[derive(Debug)]
pub(super) struct MidiPartner {
    name: String,
    line: OwnedFd,
    memory: Memory,
    input: Input,
    queue: VecDeque<(Time, MidiMessage)>,
    /// The state after all messages that were pulled or wait for it.
    played: Held,
    is_gone: bool,
    output: Output,
    /// The state after all messages that were pushed.
    held: Held,
    /// Pedals and pitch bend before the neutral state.
    controls: Vec<MidiMessage>,
    counts: Counts,
}

/// Figures of [`Ctl::Report`].
#[derive(Debug, Default)]
struct Counts {
    read: u64,
    overflows: u64,
    releases: u64,
}

impl MidiPartner {
    /// Creates a partner on a non-blocking descriptor.
    pub(super) fn new(name: String, line: OwnedFd, kind: Line, memory: Memory) -> FlowPartner<Self> {
        let (input, receiver) = match kind {
            Line::Raw => (Input::Raw(memory.splitter()), Receiver::Raw),
            Line::Sequencer { device, receiver } => (Input::events(device), receiver),
        };
        let partner = MidiPartner {
            name,
            line,
            input,
            queue: VecDeque::new(),
            played: Held::default(),
            is_gone: false,
            output: Output::new(receiver),
            held: memory.held(),
            controls: Vec::new(),
            memory,
            counts: Counts::default(),
        };
        FlowPartner::new(partner, Some(Format::Midi), Some(Format::Midi))
    }

    fn gone(&self) -> PartnerError {
        PartnerError::Gone(self.name.clone())
    }

    /// Reads once. Returns false if nothing came.
    fn fill(&mut self, now: Time) -> PartnerResult<bool> {
        let mut messages = Vec::new();
        let arrival = self
            .input
            .read(&self.line, &mut messages)
            .map_err(|error| PartnerError::os(format!("reading {}", self.name), error))?;
        if let Input::Raw(splitter) = &self.input {
            self.memory.save(&splitter.save(), HELD_BYTES);
        }
        self.counts.read += messages.len() as u64;
        messages.iter().for_each(|message| self.played.apply(message));
        match arrival {
            Arrival::Nothing => return Ok(false),
            Arrival::Some => {}
            Arrival::Lost => self.counts.overflows += 1,
            Arrival::NoPlayer => {}
            Arrival::Gone => self.is_gone = true,
        }
        if arrival != Arrival::Some {
            messages.extend(self.played.release().messages);
        }
        self.queue.extend(messages.into_iter().map(|message| (now, message)));
        Ok(true)
    }

    /// Writes the messages that wait. Returns true if nothing is left.
    fn advance(&mut self) -> PartnerResult<bool> {
        self.output.advance(&self.line, now()).map_err(|error| match is_gone(&error) {
            true => self.gone(),
            false => PartnerError::os(format!("writing to {}", self.name), error),
        })
    }

    fn go_neutral(&mut self) -> PartnerResult {
        if !self.held.is_neutral() {
            let release = self.held.release();
            self.controls = release.controls;
            self.output.append(release.messages);
            self.counts.releases += 1;
            self.memory.save(&self.held.to_bytes(), 0);
        }
        self.advance().map(drop)
    }

    fn report(&self) -> Vec<Report> {
        let [sysex_dropped, other] = self.input.dropped();
        vec![
            ("messages read", self.counts.read as f64),
            ("messages written", self.output.messages as f64),
            ("kernel overflows", self.counts.overflows as f64),
            ("notes ended", self.counts.releases as f64),
            ("long messages dropped", sysex_dropped as f64),
            ("events without a message", other as f64),
            ("writes refused", self.output.refused as f64),
        ]
    }
}

fn is_gone(error: &io::Error) -> bool {
    [rustix::io::Errno::NODEV, rustix::io::Errno::IO]
        .iter()
        .any(|gone| error.raw_os_error() == Some(gone.raw_os_error()))
}

impl Endpoint for MidiPartner {
    fn closed(&mut self, direction: Direction, slot: &mut PullSlot) -> PartnerResult {
        match direction {
            Direction::Out => {
                *slot = PullSlot::default();
                self.queue.clear();
            }
            // A device that is gone holds nothing.
            Direction::In => _ = self.go_neutral(),
        }
        Ok(())
    }

    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        if self.is_gone {
            return Err(self.gone());
        }
        if !self.advance()? {
            return Ok(false);
        }
        let message = MidiMessage::parse(message.body.as_slice()).map_err(invalid)?;
        let mut controls = std::mem::take(&mut self.controls);
        controls.retain(|control| !is_overridden(control, &message));
        controls.iter().chain([&message]).for_each(|applied| self.held.apply(applied));
        // Before the write: a killed worker leaves no note that the next one does not know.
        self.memory.save(&self.held.to_bytes(), 0);
        self.output.append(controls);
        self.output.push(message);
        self.advance()?;
        Ok(true)
    }

    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        for _ in 0..READS_MAX {
            if let Some((created, message)) = self.queue.pop_front() {
                return Ok(Next::Message(Message::new(created, message.into_bytes())));
            }
            if self.is_gone {
                return Err(self.gone());
            }
            if !self.fill(now)? {
                break;
            }
        }
        Ok(Next::Nothing)
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish => match self.advance()? {
                true => Ok(CtlReply::Done),
                false => Ok(CtlReply::Pending),
            },
            Ctl::Neutral if flow == OUT => Ok(CtlReply::Done),
            Ctl::Neutral => self.go_neutral().map(|()| CtlReply::Done),
            Ctl::IsNeutral => {
                Ok(CtlReply::Count((self.held.is_neutral() && self.played.is_neutral()).into()))
            }
            Ctl::Recovery(RecoveryCtl::PartialWrite) => Ok(self.output.partial_write()),
            Ctl::Recovery(RecoveryCtl::Skip(bytes)) => {
                self.output.skip(bytes);
                Ok(CtlReply::Done)
            }
            Ctl::Recovery(RecoveryCtl::ReadAhead) => {
                let queued: usize = self.queue.iter().map(|(_, message)| message.as_bytes().len()).sum();
                Ok(CtlReply::Count((queued + self.input.bytes_ahead()) as u64))
            }
            Ctl::Report => Ok(CtlReply::Report(self.report())),
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::In => self.output.readiness(&self.line),
            Direction::Out if !self.queue.is_empty() || self.is_gone => Readiness::now(),
            Direction::Out => Readiness::descriptor(self.line.as_fd(), Interest::Read),
        }
    }
}
