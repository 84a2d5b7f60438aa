//! The device side: a serial port in raw mode.
//!
//! Settings take effect between the data before and behind them:
//!
//! ```text
//! push(data) ─► written ─► push(settings) ─► wait until the port has sent all data ─► set ─► push(data) …
//!                                              while waiting, pushes return Full
//! ```

use super::line::Line;
use super::message::{SerialMessage, Settings};
use crate::flows::{Endpoint, FlowPartner};
use crate::stream::{Channel, now};
use contract::{
    Body, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Interest, Message, Next, PartnerError,
    PartnerResult, PullSlot, Readiness, RecoveryCtl, Time,
};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use std::time::Duration;

/// Interval between checks whether the port has sent all data.
const DRAIN_INTERVAL: Duration = Duration::from_millis(2);

/// Time after which settings are set although the port sends nothing: the other end has stopped it by flow control.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// Assumed size of the hardware FIFO for drivers that cannot report whether it is empty: 64 bytes as in a 16750 and in
/// common USB converters.
const FIFO_BYTES: u64 = 64;

/// Bits of the longest character: start, 8 data, parity, 2 stop.
const CHARACTER_BITS: u64 = 12;

/// A serial port as a partner.
#[derive(Debug)]
pub(crate) struct Port {
    line: Line,
    /// Settings that wait until the data before them are sent.
    pending_change: Option<PendingChange>,
    /// Actual settings to report to the application.
    actual: Option<Settings>,
    changes: u64,
    refusals: u64,
}

#[derive(Debug)]
struct PendingChange {
    settings: Settings,
    check_at: Time,
    /// Bytes in the kernel's output queue at the last check.
    queued: usize,
    /// The first check with this number of bytes.
    queued_since: Time,
}

impl Port {
    pub(crate) fn new(name: String, channel: Channel) -> FlowPartner<Self> {
        let partner = Port {
            line: Line::new(name, channel, 0),
            pending_change: None,
            actual: None,
            changes: 0,
            refusals: 0,
        };
        FlowPartner::new(partner, Some(Format::Bytes), Some(Format::Bytes))
    }

    /// Writes pending data, then sets pending settings once the data are sent. Returns true if nothing is pending.
    fn advance(&mut self, now: Time) -> PartnerResult<bool> {
        if !self.line.write()? {
            return Ok(false);
        }
        let Some(change) = &mut self.pending_change else { return Ok(true) };
        if now < change.check_at || !is_sent(&self.line.channel, change, now) {
            return Ok(false);
        }
        let settings = change.settings;
        self.pending_change = None;
        self.set(&settings)?;
        Ok(true)
    }

    /// Sets the port and reads the result back.
    fn set(&mut self, settings: &Settings) -> PartnerResult {
        let mut termios = tcgetattr(&self.line.channel)
            .map_err(|error| self.line.error("reading the settings of", error))?;
        let refused = settings
            .apply(&mut termios)
            .and_then(|()| tcsetattr(&self.line.channel, OptionalActions::Now, &termios))
            .is_err();
        let actual = tcgetattr(&self.line.channel)
            .map_err(|error| self.line.error("reading the settings of", error))?;
        let actual = Settings::from_port(&actual).restricted_to(settings);
        self.changes += 1;
        self.refusals += u64::from(refused);
        // The application's terminal shows the settings that the port could not take.
        if actual != *settings {
            self.actual = Some(actual);
        }
        Ok(())
    }
}

/// Returns true if the port has sent all data, or the timeout is over.
fn is_sent(channel: &Channel, change: &mut PendingChange, now: Time) -> bool {
    let queued = sys::tty::output_queued(channel).unwrap_or(0);
    if queued != change.queued {
        (change.queued, change.queued_since) = (queued, now);
    }
    let waited = now.since(change.queued_since);
    if queued == 0 {
        match sys::tty::is_transmitter_empty(channel) {
            Ok(true) => return true,
            Ok(false) => {}
            // The driver cannot report it: wait as long as a full FIFO needs.
            Err(_) => {
                let baud = tcgetattr(channel).map_or(0, |termios| termios.output_speed());
                let fifo_ns = FIFO_BYTES * CHARACTER_BITS * 1_000_000_000 / u64::from(baud.max(1));
                if waited >= Duration::from_nanos(fifo_ns) {
                    return true;
                }
            }
        }
    }
    change.check_at = now.after(DRAIN_INTERVAL);
    waited >= DRAIN_TIMEOUT
}

impl Endpoint for Port {
    fn opened(&mut self, template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        self.line.opened(template);
        Ok(())
    }

    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        let now = now();
        if !self.advance(now)? {
            return Ok(false);
        }
        match self.line.decode(message)? {
            SerialMessage::Data(data) => self.line.pending.replace(data),
            SerialMessage::Settings(settings) => {
                let change = PendingChange { settings, check_at: now, queued: 0, queued_since: now };
                self.pending_change = Some(change);
            }
        }
        self.advance(now)?;
        Ok(true)
    }

    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        if self.line.sends_settings()
            && let Some(settings) = self.actual.take()
        {
            return Ok(Next::Message(Message::new(now, SerialMessage::Settings(settings).emit())));
        }
        match self.line.buffer.read(&self.line.channel) {
            Ok(0) => Err(PartnerError::Gone(self.line.name.clone())),
            Ok(count) => {
                self.line.read_bytes += count as u64;
                let data = Body::from(self.line.buffer.take());
                Ok(Next::Message(Message::new(now, self.line.encode(data))))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Next::Nothing),
            Err(error) => Err(self.line.error("reading", error)),
        }
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish => match self.advance(now())? {
                true => Ok(CtlReply::Done),
                false => Ok(CtlReply::Pending),
            },
            Ctl::Neutral => {
                // It fails on ports without breaks, which send none.
                let _ = sys::tty::clear_break(&self.line.channel);
                Ok(CtlReply::Done)
            }
            Ctl::Snapshot => {
                let termios = tcgetattr(&self.line.channel)
                    .map_err(|error| self.line.error("reading the settings of", error))?;
                self.actual = Some(Settings::from_port(&termios));
                Ok(CtlReply::Done)
            }
            Ctl::Recovery(RecoveryCtl::PartialWrite) => Ok(self.line.pending.partial_write()),
            Ctl::Recovery(RecoveryCtl::Skip(bytes)) => {
                self.line.pending.skip(bytes);
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

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        let has_settings = self.line.sends_settings() && self.actual.is_some();
        match direction {
            Direction::Out if has_settings => Readiness::now(),
            Direction::Out => self.line.channel.readiness(Interest::Read),
            Direction::In if self.line.pending.left() > 0 => self.line.channel.readiness(Interest::Write),
            Direction::In => {
                let change = self.pending_change.as_ref();
                change.map_or(Readiness::now(), |change| Readiness::at(change.check_at))
            }
        }
    }
}
