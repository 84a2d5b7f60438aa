//! The device's side: a serial port, driven raw.

use super::line::Line;
use super::message::{SerialMessage, Settings};
use crate::flows::{Flows, OUT};
use crate::stream::{Channel, now};
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Interest, Message, Next, Partner,
    PartnerError, Pull, PullSlot, Pulled, Pushed, Readiness, Time,
};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use std::time::Duration;

/// How often to look whether the line has sent everything.
const DRAIN_LOOK: Duration = Duration::from_millis(2);

/// How long a line that sends nothing at all (the other side has stopped it) may hold up a change of settings.
const DRAIN_STUCK: Duration = Duration::from_secs(3);

/// Bytes that may be in the hardware's queue of a driver that cannot say whether it is empty: the 64 of a
/// 16750 and of the usual USB converters.
const FIFO_BYTES: u64 = 64;

/// Bits of the longest character: start, 8 data, parity, 2 stop.
const CHARACTER_BITS: u64 = 12;

/// A serial port as a partner.
#[derive(Debug)]
pub(crate) struct Port {
    line: Line,
    flows: Flows,
    slot: PullSlot,
    /// Settings that wait until what came before them is sent.
    change: Option<Change>,
    /// To be said to the application: how the line is really set.
    actual: Option<Settings>,
    changes: u64,
    refusals: u64,
}

#[derive(Debug)]
struct Change {
    settings: Settings,
    look_at: Time,
    /// Bytes queued when last looked at, and since when it has been so many.
    queued: usize,
    queued_since: Time,
}

impl Port {
    pub(crate) fn new(name: String, channel: Channel) -> Self {
        Port {
            line: Line::new(name, channel, 0),
            flows: Flows::new(true, true),
            slot: PullSlot::default(),
            change: None,
            actual: None,
            changes: 0,
            refusals: 0,
        }
    }

    /// Writes, then changes settings once that is sent; says whether nothing waits any more.
    fn advance(&mut self, now: Time) -> Result<bool, PartnerError> {
        if !self.line.write()? {
            return Ok(false);
        }
        let Some(change) = &mut self.change else { return Ok(true) };
        if now < change.look_at || !is_sent(&self.line.channel, change, now) {
            return Ok(false);
        }
        let settings = change.settings;
        self.change = None;
        self.set(&settings)?;
        Ok(true)
    }

    fn set(&mut self, settings: &Settings) -> Result<(), PartnerError> {
        let mut termios = tcgetattr(&self.line.channel).map_err(|error| self.line.error("asking", error))?;
        let refused = settings
            .apply(&mut termios)
            .and_then(|()| tcsetattr(&self.line.channel, OptionalActions::Now, &termios))
            .is_err();
        let actual = tcgetattr(&self.line.channel).map_err(|error| self.line.error("asking", error))?;
        let actual = Settings::of(&actual).said_by(settings);
        self.changes += 1;
        self.refusals += u64::from(refused);
        // The port does what it can; the application's node shows what that is.
        if actual != *settings {
            self.actual = Some(actual);
        }
        Ok(())
    }

    fn next(&mut self, now: Time) -> Result<Next, PartnerError> {
        if self.line.typed_out
            && let Some(settings) = self.actual.take()
        {
            return Ok(Next::Message(Message::new(now, SerialMessage::Settings(settings).emit())));
        }
        match self.line.buffer.read(&self.line.channel) {
            Ok(0) => Err(PartnerError::Gone(self.line.name.clone())),
            Ok(count) => {
                self.line.read_bytes += count as u64;
                let data = Body::from(self.line.buffer.take());
                Ok(Next::Message(Message::new(now, self.line.data_out(data))))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Next::Nothing),
            Err(error) => Err(self.line.error("reading", error)),
        }
    }
}

/// Whether everything written has left the port, or never will.
fn is_sent(channel: &Channel, change: &mut Change, now: Time) -> bool {
    let queued = sys::tty::output_queued(channel).unwrap_or(0);
    if queued != change.queued {
        (change.queued, change.queued_since) = (queued, now);
    }
    let waited = now.since(change.queued_since);
    if queued == 0 {
        match sys::tty::is_transmitter_empty(channel) {
            Ok(true) => return true,
            Ok(false) => {}
            Err(_) => {
                let baud = tcgetattr(channel).map_or(0, |termios| termios.output_speed());
                let last_ns = FIFO_BYTES * CHARACTER_BITS * 1_000_000_000 / u64::from(baud.max(1));
                if waited >= Duration::from_nanos(last_ns) {
                    return true;
                }
            }
        }
    }
    change.look_at = now.after(DRAIN_LOOK);
    waited >= DRAIN_STUCK
}

impl Partner for Port {
    fn open(&mut self, template: &FlowTemplate, _attributes: &Attributes) -> Result<FlowKey, PartnerError> {
        self.line.open(&mut self.flows, template)
    }

    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError> {
        self.flows.close(flow).map(|_| ())
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        let now = now();
        match self.flows.check(flow, Direction::In).and_then(|()| self.advance(now)) {
            Ok(true) => {}
            Ok(false) => return Ok(Pushed::Full(message)),
            Err(error) => return Err((error, message)),
        }
        match self.line.message_in(&message) {
            Ok(SerialMessage::Data(data)) => self.line.unwritten.replace(data),
            Ok(SerialMessage::Settings(settings)) => {
                self.change = Some(Change { settings, look_at: now, queued: 0, queued_since: now });
            }
            Err(error) => return Err((error, message)),
        }
        match self.advance(now) {
            Ok(_) => Ok(Pushed::Taken),
            Err(error) => Err((error, message)),
        }
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        self.flows.check(flow, Direction::Out)?;
        let mut slot = std::mem::take(&mut self.slot);
        let answer = slot.answer(OUT, want, || self.next(now()));
        self.slot = slot;
        answer
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        self.flows.check_any(flow)?;
        match operation {
            Ctl::Flush | Ctl::Finish => match self.advance(now())? {
                true => Ok(CtlReply::Done),
                false => Ok(CtlReply::Pending),
            },
            Ctl::Neutral => {
                // A port that knows no breaks sends none.
                let _ = sys::tty::clear_break(&self.line.channel);
                Ok(CtlReply::Done)
            }
            Ctl::Snapshot => {
                let termios =
                    tcgetattr(&self.line.channel).map_err(|error| self.line.error("asking", error))?;
                self.actual = Some(Settings::of(&termios));
                Ok(CtlReply::Done)
            }
            Ctl::Partway => Ok(self.line.unwritten.partway()),
            Ctl::Skip(bytes) => {
                self.line.unwritten.skip(bytes);
                Ok(CtlReply::Done)
            }
            Ctl::Report => {
                let mut report = self.line.report();
                report.push(("settings changes", self.changes as f64));
                report.push(("settings refused", self.refusals as f64));
                Ok(CtlReply::Report(report))
            }
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        if !self.flows.names(flow, direction) {
            return Readiness::never();
        }
        let says_settings = self.line.typed_out && self.actual.is_some();
        match direction {
            Direction::Out if self.slot.is_held() || says_settings => Readiness::now(),
            Direction::Out => self.line.channel.readiness(Interest::Read),
            Direction::In if self.line.unwritten.left() > 0 => self.line.channel.readiness(Interest::Write),
            Direction::In => self.change.as_ref().map_or(Readiness::now(), |c| Readiness::at(c.look_at)),
        }
    }
}
