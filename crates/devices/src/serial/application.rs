//! The application's side: a pseudo-terminal, whose settings are watched.

use super::line::Line;
use super::message::{SerialMessage, Settings};
use crate::flows::{Flows, OUT};
use crate::stream::{Channel, now};
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Interest, Message, Next, Partner,
    PartnerError, Pull, PullSlot, Pulled, Pushed, Readiness, Time,
};
use rustix::io::Errno;
use rustix::termios::{InputModes, LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;
use sys::tty::{PACKET_DATA, PACKET_SETTINGS};

/// How often the settings are looked at, in case the kernel did not tell.
const LOOK: Duration = Duration::from_millis(100);
/// How long there must be nothing left to read before all of it counts as read: what the kernel moves from
/// one of its buffers to the next is for a moment in neither.
const READ_OUT: Duration = Duration::from_millis(20);

/// A pseudo-terminal as a partner.
#[derive(Debug)]
pub(crate) struct Terminal {
    line: Line,
    /// Held open so that the terminal outlives the applications that open and close it.
    slave: OwnedFd,
    /// Removed when the partner is dropped.
    _link: Option<PathLink>,
    flows: Flows,
    slot: PullSlot,
    /// How the terminal is set, as far as the device's side knows.
    known: Settings,
    /// Settings to be said.
    change: Option<Settings>,
    /// Read behind a change of settings.
    data: Option<Body>,
    look_at: Time,
    /// The terminal is to go, and with it what no application has read: when that is looked at again, and
    /// whether there was nothing the last time.
    ending: Option<(Time, bool)>,
    /// What the last regular look found.
    last_look: Option<Fingerprint>,
    changes: u64,
}

/// A link by which applications find the pseudo-terminal; removed when dropped, if it is still ours.
#[derive(Debug)]
pub(crate) struct PathLink {
    pub(crate) path: PathBuf,
    pub(crate) target: PathBuf,
}

impl Drop for PathLink {
    fn drop(&mut self) {
        if std::fs::read_link(&self.path).is_ok_and(|target| target == self.target) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Everything that an application can set, comparable.
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

/// Whether EXTPROC changes nothing for the application: it switches off what the kernel would do with what
/// arrives (`n_tty_receive_buf`), so it may be on only where there is nothing to do. Flow control by XON and
/// XOFF is the port's business.
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

/// Makes a fresh pseudo-terminal raw, set as `settings` says, telling of changes.
pub(crate) fn prepare(slave: &OwnedFd, settings: &Settings) -> rustix::io::Result<()> {
    let mut termios = tcgetattr(slave)?;
    termios.make_raw();
    termios.local_modes.insert(LocalModes::EXTPROC);
    settings.apply(&mut termios)?;
    tcsetattr(slave, OptionalActions::Now, &termios)
}

impl Terminal {
    /// `known`: how the terminal was set when nobody had opened it yet. What it is set to by now may be an
    /// application's doing already, and is to be said then.
    pub(crate) fn new(
        name: String,
        master: Channel,
        slave: OwnedFd,
        link: Option<PathLink>,
        known: Settings,
    ) -> Self {
        Terminal {
            line: Line::new(name, master, 1),
            slave,
            _link: link,
            flows: Flows::new(true, true),
            slot: PullSlot::default(),
            known,
            change: None,
            data: None,
            ending: None,
            look_at: Time::ZERO,
            last_look: None,
            changes: 0,
        }
    }

    /// Looks at the settings. `is_due`: it is a regular look.
    fn look(&mut self, is_due: bool) -> Result<(), PartnerError> {
        let mut termios = tcgetattr(&self.slave).map_err(|error| self.line.error("asking", error))?;
        let settings = Settings::of_pty(&termios);
        if settings != self.known {
            self.known = settings;
            self.change = Some(settings);
        }
        let print = fingerprint(&termios);
        let is_quiet = is_due && self.last_look.replace(print) == Some(print);
        let extproc = termios.local_modes.contains(LocalModes::EXTPROC);
        // On only after two looks alike: a program in the midst of setting its terminal must not find its
        // newest settings replaced by its last but one. Off at once, for what arrives next.
        let wanted = is_raw(&termios);
        if extproc != wanted && (!wanted || is_quiet) {
            termios.local_modes.set(LocalModes::EXTPROC, wanted);
            tcsetattr(&self.slave, OptionalActions::Now, &termios)
                .map_err(|error| self.line.error("setting", error))?;
        }
        Ok(())
    }

    fn next(&mut self, now: Time) -> Result<Next, PartnerError> {
        if now >= self.look_at {
            self.look_at = now.after(LOOK);
            self.look(true)?;
        }
        // A status alone is no message: at most one stands before data, so this ends.
        loop {
            if let Some(settings) = self.change.take().filter(|_| self.line.typed_out) {
                self.changes += 1;
                return Ok(Next::Message(Message::new(now, SerialMessage::Settings(settings).emit())));
            }
            if let Some(data) = self.data.take() {
                return Ok(Next::Message(Message::new(now, self.line.data_out(data))));
            }
            if !self.read()? {
                return Ok(Next::Nothing);
            }
        }
    }

    /// Reads once; says whether there was anything.
    fn read(&mut self) -> Result<bool, PartnerError> {
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
        // Looked at before every piece of data, too: without EXTPROC the kernel does not tell.
        if status == PACKET_DATA || status & PACKET_SETTINGS != 0 {
            self.look(false)?;
        }
        Ok(true)
    }

    /// The device's side says how its line is set: so the application's terminal shows it.
    fn show(&mut self, settings: &Settings) -> Result<(), PartnerError> {
        self.look(false)?;
        if self.change.is_some() {
            // The application has changed it again since.
            return Ok(());
        }
        let mut termios = tcgetattr(&self.slave).map_err(|error| self.line.error("asking", error))?;
        // Data bits and parity would be forgotten by the kernel anyway.
        let settings = Settings { data_bits: None, parity: None, ..*settings };
        settings
            .apply(&mut termios)
            .and_then(|()| tcsetattr(&self.slave, OptionalActions::Now, &termios))
            .and_then(|()| tcgetattr(&self.slave))
            .map(|termios| self.known = Settings::of_pty(&termios))
            .map_err(|error| self.line.error("setting", error))
    }

    /// Whether the application has read everything, asked every [`READ_OUT`].
    fn is_read_out(&mut self) -> Result<bool, PartnerError> {
        let (look_at, was_empty) = self.ending.unwrap_or((Time::ZERO, false));
        if now() < look_at {
            return Ok(false);
        }
        let left = rustix::io::ioctl_fionread(&self.slave)
            .map_err(|error| PartnerError::os("asking what the terminal holds", error))?;
        self.ending = Some((now().after(READ_OUT), left == 0));
        Ok(left == 0 && was_empty)
    }
}

impl Partner for Terminal {
    fn open(&mut self, template: &FlowTemplate, _attributes: &Attributes) -> Result<FlowKey, PartnerError> {
        self.line.open(&mut self.flows, template)
    }

    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError> {
        self.flows.close(flow).map(|_| ())
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        match self.flows.check(flow, Direction::In).and_then(|()| self.line.write()) {
            Ok(true) => {}
            Ok(false) => return Ok(Pushed::Full(message)),
            Err(error) => return Err((error, message)),
        }
        let done = match self.line.message_in(&message) {
            Ok(SerialMessage::Data(data)) => {
                self.line.unwritten.replace(data);
                self.line.write().map(|_| ())
            }
            Ok(SerialMessage::Settings(settings)) => self.show(&settings),
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => Ok(Pushed::Taken),
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
            Ctl::Flush => match self.line.write()? {
                true => Ok(CtlReply::Done),
                false => Ok(CtlReply::Pending),
            },
            Ctl::Finish => match self.line.write()? && self.is_read_out()? {
                true => Ok(CtlReply::Done),
                false => Ok(CtlReply::Pending),
            },
            // A terminal to which nothing arrives is as neutral as it can be.
            Ctl::Neutral => Ok(CtlReply::Done),
            Ctl::Snapshot => {
                self.look(false)?;
                self.change = Some(self.known);
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
                Ok(CtlReply::Report(report))
            }
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        if !self.flows.names(flow, direction) {
            return Readiness::never();
        }
        match direction {
            Direction::Out if self.slot.is_held() || self.data.is_some() => Readiness::now(),
            Direction::Out if self.change.is_some() && self.line.typed_out => Readiness::now(),
            Direction::Out => self.line.channel.readiness(Interest::Read).or_at(Some(self.look_at)),
            Direction::In if self.line.unwritten.left() > 0 => self.line.channel.readiness(Interest::Write),
            Direction::In => self.ending.map_or_else(Readiness::now, |(at, _)| Readiness::at(at)),
        }
    }
}
