//! The application side: a pseudo-terminal.
//!
//! Settings of applications are sent to the port. In packet mode the kernel reports a change at once, but only while
//! the terminal is in EXTPROC mode (`tty_ioctl(4)`, TIOCPKT). EXTPROC also disables the kernel's input processing, so it
//! is on only while the terminal is raw ([`is_raw`]). Without it, the settings are read before each piece of data, and
//! every [`CHECK_INTERVAL`], or every [`REST_INTERVAL`] once nothing has changed for [`REST_AFTER`].
//!
//! A program may open the terminal exclusively (TIOCEXCL), and seldom ends that itself: a real port forgets it at its last
//! close, which never comes here, because the terminal is held open. So the first close afterwards ends it. That is almost
//! always the close of that program, because nobody else can open the terminal meanwhile.

use super::line::Line;
use super::message::{SerialMessage, Settings};
use super::path_link::PathLink;
use crate::flows::{Endpoint, FlowPartner};
use crate::stream::{Channel, now};
use contract::{
    Body, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Interest, Message, Next, PartnerError,
    PartnerResult, PullSlot, Readiness, RecoveryCtl, Time,
};
use rustix::io::Errno;
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, Termios, ioctl_tiocnxcl, tcgetattr, tcsetattr,
};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use sys::tty::{PACKET_DATA, PACKET_SETTINGS};

/// Interval between regular checks of the settings.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The same for a terminal at rest, and the time after which it rests.
const REST_INTERVAL: Duration = Duration::from_secs(1);
const REST_AFTER: Duration = Duration::from_secs(5);
/// Interval of two checks that must both find the terminal empty at the end. One check is not enough: data that the
/// kernel moves between its buffers are counted in neither for a moment.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);

/// A pseudo-terminal as a partner.
#[derive(Debug)]
pub(crate) struct Terminal {
    line: Line,
    /// Held open so that the terminal outlives the applications that open and close it.
    slave: OwnedFd,
    /// Reports that a program has closed the terminal ([`sys::watch::watch_closes`]); `None` if the host allows no more watches.
    closes: Option<OwnedFd>,
    /// Removed when the partner is dropped.
    _link: Option<PathLink>,
    /// Settings that the device side knows.
    known: Settings,
    /// Settings to send.
    change: Option<Settings>,
    /// Data to send after the settings.
    data: Option<Body>,
    /// Time of the next regular check; `None` while the kernel reports changes.
    check_at: Option<Time>,
    /// Time of the last data or change.
    used_at: Time,
    /// Set by [`Ctl::Finish`]: closing the terminal would discard data that no application has read.
    draining: Option<Draining>,
    /// Result of the last regular check.
    last_check: Option<Fingerprint>,
    changes: u64,
}

/// Waits until applications have read all data.
#[derive(Debug, Clone, Copy)]
struct Draining {
    check_at: Time,
    /// The last check found no data.
    was_empty: bool,
}

/// All settings of a terminal, for comparison.
type Fingerprint = ([u32; 4], u32, u32);

fn fingerprint(termios: &Termios) -> Fingerprint {
    let modes = [
        termios.input_modes.bits(),
        termios.output_modes.bits(),
        termios.control_modes.bits(),
        termios.local_modes.bits(),
    ];
    (modes, termios.input_speed(), termios.output_speed())
}

/// Returns true if the kernel has no input processing to do (`n_tty_receive_buf`), so that EXTPROC changes nothing for
/// the application. XON/XOFF does not count: the port does it.
fn is_raw(termios: &Termios) -> bool {
    let local = LocalModes::ICANON | LocalModes::ISIG | LocalModes::ECHO | LocalModes::ECHONL;
    let input = InputModes::ISTRIP
        | InputModes::IUCLC
        | InputModes::IGNCR
        | InputModes::ICRNL
        | InputModes::INLCR
        | InputModes::PARMRK;
    !termios.local_modes.intersects(local) && !termios.input_modes.intersects(input)
}

/// Prepares a new pseudo-terminal: raw, with these settings, and in EXTPROC mode.
pub(crate) fn prepare(slave: &OwnedFd, settings: &Settings) -> rustix::io::Result<()> {
    let mut termios = tcgetattr(slave)?;
    termios.make_raw();
    termios.local_modes.insert(LocalModes::EXTPROC);
    settings.apply(&mut termios)?;
    tcsetattr(slave, OptionalActions::Now, &termios)
}

impl Terminal {
    /// Creates the partner. `known` are the settings from before an application could open the terminal, so that later
    /// changes are noticed.
    pub(crate) fn new(
        name: String,
        master: Channel,
        slave: OwnedFd,
        closes: Option<OwnedFd>,
        link: Option<PathLink>,
        known: Settings,
    ) -> FlowPartner<Self> {
        let partner = Terminal {
            line: Line::new(name, master, 1),
            slave,
            closes,
            _link: link,
            known,
            change: None,
            data: None,
            draining: None,
            check_at: Some(Time::ZERO),
            used_at: Time::ZERO,
            last_check: None,
            changes: 0,
        };
        FlowPartner::new(partner, Some(Format::Bytes), Some(Format::Bytes))
    }

    /// Reads the settings, notes a change, and updates EXTPROC. `is_regular`: a regular check.
    fn check_settings(&mut self, is_regular: bool) -> PartnerResult {
        let mut termios = self.termios()?;
        let settings = Settings::from_pty(&termios);
        let now = now();
        if settings != self.known {
            self.known = settings;
            self.change = Some(settings);
            self.used_at = now;
        }
        let print = fingerprint(&termios);
        let is_stable = is_regular && self.last_check.replace(print) == Some(print);
        let mut extproc = termios.local_modes.contains(LocalModes::EXTPROC);
        // EXTPROC can only be set together with all other settings. It is switched on after two equal checks, because a
        // program that is just setting its terminal could otherwise lose its newest change. It is switched off at
        // once, for the next data.
        let wanted = is_raw(&termios);
        if extproc != wanted && (!wanted || is_stable) {
            termios.local_modes.set(LocalModes::EXTPROC, wanted);
            tcsetattr(&self.slave, OptionalActions::Now, &termios)
                .map_err(|error| self.line.error("setting", error))?;
            extproc = wanted;
        }
        self.schedule_check(extproc, is_regular, now);
        Ok(())
    }

    fn schedule_check(&mut self, extproc: bool, is_regular: bool, now: Time) {
        if extproc {
            (self.check_at, self.last_check) = (None, None);
            return;
        }
        let rests = now >= self.used_at.after(REST_AFTER);
        let next = now.after(if rests { REST_INTERVAL } else { CHECK_INTERVAL });
        // An irregular check delays no regular one.
        self.check_at = self.check_at.filter(|at| !is_regular && *at < next).or(Some(next));
    }

    fn termios(&self) -> PartnerResult<Termios> {
        tcgetattr(&self.slave).map_err(|error| self.line.error("reading the settings of", error))
    }

    /// Reads once. Returns false if there was nothing.
    fn read(&mut self) -> PartnerResult<bool> {
        match self.line.buffer.read(&self.line.channel) {
            Ok(0) => return Err(PartnerError::Gone(self.line.name.clone())),
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(error) => return Err(self.line.error("reading", error)),
        }
        let mut piece = self.line.buffer.take();
        let status = piece.split_to(1)[0];
        if status == PACKET_DATA && !piece.is_empty() {
            self.line.read_bytes += piece.len() as u64;
            self.data = Some(Body::from(piece));
        }
        // Without EXTPROC the kernel does not report changes, so each piece of data is preceded by a check.
        if status == PACKET_DATA || status & PACKET_SETTINGS != 0 {
            self.used_at = now();
            self.check_settings(false)?;
        }
        Ok(true)
    }

    /// Sets the terminal to the port's actual settings.
    fn show_settings(&mut self, settings: &Settings) -> PartnerResult {
        self.check_settings(false)?;
        if self.change.is_some() {
            // The application has made a newer change.
            return Ok(());
        }
        let mut termios = self.termios()?;
        // The kernel ignores data bits and parity of a pseudo-terminal.
        let settings = Settings { data_bits: None, parity: None, ..*settings };
        settings
            .apply(&mut termios)
            .and_then(|()| tcsetattr(&self.slave, OptionalActions::Now, &termios))
            .and_then(|()| tcgetattr(&self.slave))
            .map(|termios| self.known = Settings::from_pty(&termios))
            .map_err(|error| self.line.error("setting", error))
    }

    /// Returns true if applications have read all data (see [`DRAIN_INTERVAL`]).
    fn is_drained(&mut self) -> PartnerResult<bool> {
        let last = self.draining.unwrap_or(Draining { check_at: Time::ZERO, was_empty: false });
        if now() < last.check_at {
            return Ok(false);
        }
        let left = rustix::io::ioctl_fionread(&self.slave)
            .map_err(|error| PartnerError::os("counting the terminal's unread bytes", error))?;
        self.draining = Some(Draining { check_at: now().after(DRAIN_INTERVAL), was_empty: left == 0 });
        Ok(left == 0 && last.was_empty)
    }
}

impl Endpoint for Terminal {
    fn opened(&mut self, template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        self.line.opened(template);
        Ok(())
    }

    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        if !self.line.write()? {
            return Ok(false);
        }
        match self.line.decode(message)? {
            // A pseudo-terminal passes faults on as a local port without PARMRK does.
            SerialMessage::Data(data) | SerialMessage::Fault(_, data) => {
                self.line.pending.replace(data);
                self.line.write()?;
            }
            // It has no modem lines.
            SerialMessage::Inputs(_) | SerialMessage::Outputs(_) => {}
            SerialMessage::Settings(settings) => self.show_settings(&settings)?,
        }
        Ok(true)
    }

    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        if self.closes.as_ref().is_some_and(sys::watch::take_events) {
            // It fails only for a terminal that is gone, which the read below reports.
            let _ = ioctl_tiocnxcl(&self.slave);
        }
        if self.check_at.is_some_and(|at| now >= at) {
            self.check_settings(true)?;
        }
        // A read may return only a status, which makes no message. At most one precedes data, so the loop ends.
        loop {
            if let Some(settings) = self.change.take().filter(|_| self.line.sends_messages()) {
                self.changes += 1;
                return Ok(Next::Message(Message::new(now, SerialMessage::Settings(settings).emit())));
            }
            if let Some(data) = self.data.take() {
                return Ok(Next::Message(Message::new(now, self.line.encode(SerialMessage::Data(data)))));
            }
            if !self.read()? {
                return Ok(Next::Nothing);
            }
        }
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush => {
                if self.line.write()? {
                    Ok(CtlReply::Done)
                } else {
                    Ok(CtlReply::Pending)
                }
            }
            Ctl::Finish => match self.line.write()? && self.is_drained()? {
                true => Ok(CtlReply::Done),
                false => Ok(CtlReply::Pending),
            },
            // A terminal without input is neutral.
            Ctl::Neutral => Ok(CtlReply::Done),
            Ctl::Snapshot => {
                self.check_settings(false)?;
                self.change = Some(self.known);
                Ok(CtlReply::Done)
            }
            Ctl::Recovery(RecoveryCtl::PartialWrite | RecoveryCtl::Skip(_)) => {
                self.line.pending.resume(operation)
            }
            Ctl::Report => {
                let mut report = self.line.report();
                report.push(("settings changes", self.changes as f64));
                Ok(CtlReply::Report(report))
            }
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::Out if self.data.is_some() => Readiness::now(),
            Direction::Out if self.change.is_some() && self.line.sends_messages() => Readiness::now(),
            Direction::Out => {
                let mut readiness = self.line.channel.readiness(Interest::Read).or_at(self.check_at);
                readiness.descriptors[1] =
                    self.closes.as_ref().map(|closes| (closes.as_fd(), Interest::Read));
                readiness
            }
            Direction::In if self.line.pending.left() > 0 => self.line.channel.readiness(Interest::Write),
            Direction::In => {
                self.draining.map_or_else(Readiness::now, |draining| Readiness::at(draining.check_at))
            }
        }
    }
}
