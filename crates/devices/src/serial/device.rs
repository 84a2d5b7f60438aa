//! The device side: a serial port in raw mode.
//!
//! Settings and lines change between the data before and behind them. A push that has to wait returns Full, so a message that is not
//! applied stays in the path and survives the worker:
//!
//! ```text
//! push(data) ─► written ─► push(settings) ─► Full until the port has sent all data ─► set ─► push(data) …
//!                          push(outputs)  ─► the same, and until it is due (Spacing) ─► set
//! ```
//!
//! | lines of the port | reported |
//! |---|---|
//! | before the first [`SerialMessage::Outputs`] | never: the application is a pseudo-terminal, or plain bytes |
//! | then | at first, and when they differ; they are read every [`WATCH_INTERVAL`] while a program has the terminal open, every [`REST_INTERVAL`] while DTR and RTS are off |

use super::line::Line;
use super::marks::MarkDecoder;
use super::message::{Inputs, OutputLines, Parity, SerialMessage, Settings};
use super::spacing::Spacing;
use crate::flows::{Endpoint, FlowPartner};
use crate::stream::{Channel, now};
use contract::{
    Body, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Interest, Message, Next, PartnerError,
    PartnerResult, PullSlot, Readiness, RecoveryCtl, Time,
};
use rustix::io::Errno;
use rustix::termios::{InputModes, OptionalActions, tcgetattr, tcsetattr};
use std::collections::VecDeque;
use std::time::Duration;
use sys::tty::ModemOutput;

/// Interval between checks whether the port has sent all data.
const DRAIN_INTERVAL: Duration = Duration::from_millis(2);

/// Time after which settings and lines are set although the port sends nothing: the other end has stopped it by flow control.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// The most bytes that an adapter holds whose driver cannot report that it has sent them: 640 in a CP2102.
const FIFO_BYTES_MAX: u64 = 640;
/// Time after which an adapter has begun to send what was written.
const ADAPTER_LATENCY: Duration = Duration::from_millis(5);
/// Bytes that a worker before this one may have left in the port: the FIFO of a 16750.
const LEFT_BYTES: u64 = 64;

/// Interval between reads of the lines. TIOCMIWAIT would block a thread that nothing can end. The driver's counts of changes
/// (TIOCGICOUNT) stay at 0 where it does not count: a 16550 with CLOCAL and without CRTSCTS, a CP2102.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);
/// The same while DTR and RTS are off.
const REST_INTERVAL: Duration = Duration::from_millis(200);

/// A serial port as a partner.
#[derive(Debug)]
pub(crate) struct Port {
    line: Line,
    /// Decodes received bytes; `None` if the port does not mark faults.
    marks: Option<MarkDecoder>,
    received: VecDeque<SerialMessage>,
    /// Wait for the transmitter; `None` if it is known to be empty.
    drain: Option<Drain>,
    spacing: Spacing,
    /// Lines that the application has set.
    outputs: Option<OutputLines>,
    watch: Watch,
    /// Actual settings to report to the application.
    actual: Option<Settings>,
    changes: u64,
    refusals: u64,
    line_changes: u64,
}

#[derive(Debug, Default)]
struct Drain {
    check_at: Time,
    /// Bytes in the kernel's output queue at the last check.
    queued: usize,
    /// The first check with this number of bytes.
    queued_since: Option<Time>,
    /// The time at which the line has sent all bytes, by its speed.
    sent_at: Time,
}

impl Drain {
    /// Adds bytes that were written to the port.
    fn add(&mut self, bytes: u64, channel: &Channel, now: Time) {
        self.sent_at = self.sent_at.max(now).after(line_time(channel, bytes));
    }

    /// Returns true if the port has sent all bytes, or nothing for [`DRAIN_TIMEOUT`].
    fn is_over(&mut self, channel: &Channel, now: Time) -> bool {
        let queued = sys::tty::output_queued(channel).unwrap_or(0);
        if queued != self.queued {
            (self.queued, self.queued_since) = (queued, None);
        }
        let waited = now.since(*self.queued_since.get_or_insert(now));
        self.check_at = now.after(DRAIN_INTERVAL);
        if queued > 0 {
            // Flow control may have stopped the line, so that it sends them later than its speed tells.
            self.sent_at = self.sent_at.max(now.after(line_time(channel, queued as u64)));
            return waited >= DRAIN_TIMEOUT;
        }
        match sys::tty::is_transmitter_empty(channel) {
            Ok(is_empty) => is_empty || waited >= DRAIN_TIMEOUT,
            // The driver cannot report it, and the adapter may hold all bytes. A board with USB of its own takes them faster than
            // the speed of a line, but holds no more than an adapter.
            Err(_) => {
                let is_sent = now >= self.sent_at.after(ADAPTER_LATENCY);
                is_sent || waited >= line_time(channel, FIFO_BYTES_MAX)
            }
        }
    }
}

/// The port's lines as the application knows them.
#[derive(Debug, Default)]
struct Watch {
    /// Lines that were reported last.
    known: Option<Inputs>,
    /// Lines to report.
    change: Option<Inputs>,
    check_at: Time,
}

impl Watch {
    /// Notes the lines of the port.
    fn update(&mut self, inputs: Inputs) {
        if self.known != Some(inputs) {
            (self.known, self.change) = (Some(inputs), Some(inputs));
        }
    }
}

impl Port {
    pub(crate) fn new(name: String, channel: Channel) -> FlowPartner<Self> {
        let is_marking =
            tcgetattr(&channel).is_ok_and(|termios| termios.input_modes.contains(InputModes::PARMRK));
        let mut drain = Drain::default();
        drain.add(LEFT_BYTES, &channel, now());
        let partner = Port {
            line: Line::new(name, channel, 0),
            marks: is_marking.then(MarkDecoder::default),
            received: VecDeque::new(),
            drain: Some(drain),
            spacing: Spacing::default(),
            outputs: None,
            watch: Watch::default(),
            actual: None,
            changes: 0,
            refusals: 0,
            line_changes: 0,
        };
        FlowPartner::new(partner, Some(Format::Bytes), Some(Format::Bytes))
    }

    /// Writes as many pending bytes as there is room for. Returns true if none are left.
    fn write(&mut self) -> PartnerResult<bool> {
        let before = self.line.written_bytes;
        let is_written = self.line.write()?;
        let written = self.line.written_bytes - before;
        if written > 0 {
            self.drain.get_or_insert_default().add(written, &self.line.channel, now());
        }
        Ok(is_written)
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
        let actual = Settings::from_port(&actual).restricted_to(settings).without_rounding(settings);
        self.changes += 1;
        self.refusals += u64::from(refused);
        // The application's terminal shows the settings that the port could not take.
        if actual != *settings {
            self.actual = Some(actual);
        }
        Ok(())
    }

    /// Sets the lines that the application drives. A port without them takes the rest of the flow.
    fn set_outputs(&mut self, lines: OutputLines) {
        let unknown = OutputLines { dtr: !lines.dtr, rts: !lines.rts, breaks: !lines.breaks };
        let prev = self.outputs.replace(lines).unwrap_or(unknown);
        self.line_changes += 1;
        let port = &self.line.channel;
        // A board may be reset by the moment between two changes that the program made at once.
        let set = match (prev.dtr != lines.dtr, prev.rts != lines.rts) {
            (true, true) => sys::tty::set_dtr_rts(port, lines.dtr, lines.rts),
            (true, false) => sys::tty::set_modem_output(port, ModemOutput::Dtr, lines.dtr),
            (false, true) => sys::tty::set_modem_output(port, ModemOutput::Rts, lines.rts),
            (false, false) => Ok(()),
        };
        self.refusals += u64::from(set.is_err());
        if prev.breaks != lines.breaks {
            let set = sys::tty::set_break(port, lines.breaks);
            self.refusals += u64::from(set.is_err() && lines.breaks);
        }
    }

    /// Compares the port's lines with those that the application knows.
    fn check_inputs(&mut self, now: Time) {
        let Some(outputs) = self.outputs.filter(|_| self.line.sends_messages()) else { return };
        if now < self.watch.check_at {
            return;
        }
        let interval = if outputs.dtr || outputs.rts { WATCH_INTERVAL } else { REST_INTERVAL };
        self.watch.check_at = now.after(interval);
        if let Ok(lines) = sys::tty::modem_lines(&self.line.channel) {
            self.watch.update(Inputs { cts: lines.cts, dsr: lines.dsr, dcd: lines.dcd, ri: lines.ri });
        }
    }

    /// Returns true if the port has sent all data, or the timeout is over.
    fn is_drained(&mut self, now: Time) -> bool {
        let Some(drain) = &mut self.drain else { return true };
        if now < drain.check_at || !drain.is_over(&self.line.channel, now) {
            return false;
        }
        self.drain = None;
        true
    }

    /// Reads once.
    fn read(&mut self) -> PartnerResult {
        match self.line.buffer.read(&self.line.channel) {
            Ok(0) => Err(PartnerError::Gone(self.line.name.clone())),
            Ok(count) => {
                self.line.read_bytes += count as u64;
                let piece = self.line.buffer.take();
                match &mut self.marks {
                    Some(marks) => marks.decode(piece, &mut self.received),
                    None => self.received.push_back(SerialMessage::Data(Body::from(piece))),
                }
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(self.line.error("reading", error)),
        }
    }
}

/// Returns the time that the line needs for this many bytes: none while it is hung up.
fn line_time(channel: &Channel, bytes: u64) -> Duration {
    let settings = tcgetattr(channel).map(|termios| Settings::from_port(&termios)).unwrap_or_default();
    let has_parity = settings.parity.is_some_and(|parity| parity != Parity::None);
    // A start bit comes first.
    let bits = 1 + settings.data_bits.unwrap_or(8) + u8::from(has_parity) + settings.stop_bits.unwrap_or(1);
    let baud = u64::from(settings.speed.unwrap_or_default().output_baud);
    let nanoseconds = bytes.saturating_mul(u64::from(bits) * 1_000_000_000).checked_div(baud);
    nanoseconds.map_or(Duration::ZERO, Duration::from_nanos)
}

impl Endpoint for Port {
    fn opened(&mut self, template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        self.line.opened(template);
        Ok(())
    }

    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        let at = now();
        if !self.write()? {
            return Ok(false);
        }
        let message = self.line.decode(message)?;
        if !matches!(message, SerialMessage::Outputs(_)) {
            self.spacing.forget();
        }
        match message {
            SerialMessage::Data(data) => {
                self.line.pending.replace(data);
                self.write()?;
            }
            SerialMessage::Settings(settings) => {
                if !self.is_drained(at) {
                    return Ok(false);
                }
                self.set(&settings)?;
            }
            SerialMessage::Outputs(change) => {
                if !self.is_drained(at) || !self.spacing.is_due(&change, at) {
                    return Ok(false);
                }
                self.set_outputs(change.lines);
                self.spacing.handle_made(now());
            }
            SerialMessage::Inputs(_) | SerialMessage::Fault(..) => {
                let problem = format!("for {}: only a port sends such a message", self.line.name);
                return Err(PartnerError::Message(problem));
            }
        }
        Ok(true)
    }

    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        if self.line.sends_messages()
            && let Some(settings) = self.actual.take()
        {
            return Ok(Next::Message(Message::new(now, SerialMessage::Settings(settings).emit())));
        }
        // Lines are looked at first, so that data are never followed by lines from before them.
        self.check_inputs(now);
        if let Some(inputs) = self.watch.change.take() {
            return Ok(Next::Message(Message::new(now, SerialMessage::Inputs(inputs).emit())));
        }
        if self.received.is_empty() {
            self.read()?;
        }
        Ok(match self.received.pop_front() {
            Some(message) => Next::Message(Message::new(now, self.line.encode(message))),
            None => Next::Nothing,
        })
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish => match self.write()? {
                true => Ok(CtlReply::Done),
                false => Ok(CtlReply::Pending),
            },
            // As if the program had closed the port. A pseudo-terminal drives no lines: those of its port stay.
            Ctl::Neutral => {
                match self.outputs {
                    Some(_) => self.set_outputs(OutputLines::default()),
                    None => drop(sys::tty::set_break(&self.line.channel, false)),
                }
                Ok(CtlReply::Done)
            }
            Ctl::IsNeutral => {
                let is_neutral = self.outputs.unwrap_or_default() == OutputLines::default();
                Ok(CtlReply::Count(is_neutral.into()))
            }
            Ctl::Snapshot => {
                let termios = tcgetattr(&self.line.channel)
                    .map_err(|error| self.line.error("reading the settings of", error))?;
                self.actual = Some(Settings::from_port(&termios));
                self.watch = Watch::default();
                Ok(CtlReply::Done)
            }
            Ctl::Recovery(RecoveryCtl::PartialWrite | RecoveryCtl::Skip(_)) => {
                self.line.pending.resume(operation)
            }
            Ctl::Recovery(RecoveryCtl::ReadAhead) => {
                let received: usize = self.received.iter().map(SerialMessage::data_bytes).sum();
                let held = self.marks.as_ref().map_or(0, MarkDecoder::held_bytes);
                Ok(CtlReply::Count(received as u64 + held))
            }
            Ctl::Report => {
                let mut report = self.line.report();
                report.push(("settings changes", self.changes as f64));
                report.push(("settings refused", self.refusals as f64));
                report.push(("line changes", self.line_changes as f64));
                report.push(("line changes late", self.spacing.late() as f64));
                Ok(CtlReply::Report(report))
            }
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        let sends_messages = self.line.sends_messages();
        match direction {
            Direction::Out if !self.received.is_empty() => Readiness::now(),
            Direction::Out if sends_messages && (self.actual.is_some() || self.watch.change.is_some()) => {
                Readiness::now()
            }
            Direction::Out => {
                let check_at = self.outputs.filter(|_| sends_messages).map(|_| self.watch.check_at);
                self.line.channel.readiness(Interest::Read).or_at(check_at)
            }
            Direction::In if self.line.pending.left() > 0 => self.line.channel.readiness(Interest::Write),
            Direction::In => match self.spacing.due_at() {
                Some(due) => Readiness::at(due),
                None => {
                    self.drain.as_ref().map_or_else(Readiness::now, |drain| Readiness::at(drain.check_at))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serial::tests::raw_pair;

    /// A pseudo-terminal stands for an adapter: its queue is empty at once, and it does not report its transmitter.
    #[test]
    fn a_change_waits_for_the_bytes_in_an_adapter() {
        let (_master, slave) = raw_pair();
        let mut termios = tcgetattr(&slave).unwrap();
        termios.set_speed(9600).unwrap();
        tcsetattr(&slave, OptionalActions::Now, &termios).unwrap();
        let channel = Channel::own(slave).unwrap();
        let written = Time(1_000_000_000);
        let after = |ms| written.after(Duration::from_millis(ms));
        let is_over = |bytes, at_ms: &[u64]| {
            let mut drain = Drain::default();
            drain.add(bytes, &channel, written);
            at_ms.iter().map(|ms| drain.is_over(&channel, after(*ms))).collect::<Vec<_>>()
        };
        // 8N1: 10 bits each, 312.5 ms in all, although a 16750 would have sent what it holds after 67 ms.
        assert_eq!(is_over(300, &[0, 80, 312, 318]), [false, false, false, true]);
        assert_eq!(is_over(3, &[0, 9]), [false, true]);
        // A board with USB of its own takes a megabyte at once: the wait is that for the largest FIFO.
        assert_eq!(is_over(1_000_000, &[0, 600, 667]), [false, false, true]);
    }

    /// The driver of a 16550 does not count the changes of a port with CLOCAL.
    #[test]
    fn lines_are_compared_themselves() {
        let mut watch = Watch::default();
        let (off, carrier) = (Inputs::default(), Inputs { dcd: true, ..Inputs::default() });
        for (inputs, change) in
            [(off, Some(off)), (off, None), (carrier, Some(carrier)), (carrier, None), (off, Some(off))]
        {
            watch.update(inputs);
            assert_eq!(watch.change.take(), change);
        }
    }
}
