//! The behaviour of the terminal: its opens, reads, writes, polls and signals. No I/O.
//!
//! | a program | the terminal |
//! |---|---|
//! | opens it first | sends its settings, then DTR and RTS on; without CLOCAL the open waits for a carrier |
//! | reads | replies when VMIN bytes, a line, VTIME or a signal end the read; otherwise the request is pending |
//! | writes | replies when the bytes wait for the worker; without room the request is pending |
//! | changes settings or lines | sends the change, behind the data before it |
//! | drains | replies when the worker has everything |
//! | is interrupted | replies to the pending request: bytes that a read has, otherwise EINTR |
//! | closes it last | a break, DTR and RTS off (these with HUPCL), received bytes dropped |
//!
//! A lost carrier without CLOCAL hangs up: every open handle then reads the end of the file, until programs open it again.

use super::control::Serial;
use super::input::Input;
use super::ioctl::*;
use super::packets::{self, Call, Request};
use super::termios::{HUPCL, Termios, VMIN, VTIME};
use crate::serial::{Fault, Inputs, OutputLines, SerialMessage, Settings};
use crate::tty::uplink::{Change, SNAPSHOT, Uplink};
use contract::{Body, Time};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The most opens, and the most requests that wait.
const HANDLES_MAX: usize = 1024;
const PENDING_MAX: usize = 1024;
/// The unit of VTIME and TCSBRKP.
pub(super) const TENTH: Duration = Duration::from_millis(100);

/// Events of `poll(2)`.
const EVENTS_IN: u32 = 0x1 | 0x40;
const EVENTS_OUT: u32 = 0x4 | 0x100;
const EVENTS_HANGUP: u32 = 0x8 | 0x10;

/// An open of the terminal.
#[derive(Debug, Default)]
struct Handle {
    is_hung_up: bool,
    /// The number of its wakeup, since a program waited for it. It stays valid: a program that waits for edges polls once.
    wakeup: Option<u64>,
    /// The events that the kernel knows.
    known: u32,
}

/// A request that waits.
#[derive(Debug)]
struct Pending {
    number: u64,
    handle: u64,
    wait: Wait,
}

/// The end that a request waits for.
#[derive(Debug)]
pub(super) enum Wait {
    /// An open: a carrier.
    Carrier,
    Read {
        room: usize,
        taken: Vec<u8>,
        until: Option<Time>,
    },
    /// Room for these bytes; a write of `count` bytes.
    Write {
        data: Vec<u8>,
        count: usize,
    },
    /// Everything before it was sent.
    Drain(Then),
    /// The end of a break.
    Break(Time),
    /// Another count of these lines (TIOCMIWAIT).
    Lines {
        mask: u32,
        counts: [u32; 4],
    },
}

/// The effect of an ioctl after it has drained.
#[derive(Debug)]
pub(super) enum Then {
    Nothing,
    Set { termios: Box<Termios>, drops_input: bool },
    Break(Duration),
}

/// Counts of TIOCGICOUNT.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Changes of CTS, DSR and DCD, and ends of RI: the order of TIOCGICOUNT is CTS, DSR, RI, DCD.
    pub(super) lines: [u32; 4],
    pub(super) received: u32,
    pub(super) sent: u32,
    pub(super) corrupt: u32,
    pub(super) breaks: u32,
}

/// The terminal.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) termios: Termios,
    /// Settings that were sent since the first open.
    sent: Settings,
    pub(super) outputs: OutputLines,
    pub(super) inputs: Inputs,
    pub(super) counts: Counts,
    pub(super) input: Input,
    pub(super) uplink: Uplink,
    handles: BTreeMap<u64, Handle>,
    next_handle: u64,
    pending: VecDeque<Pending>,
    replies: Vec<Vec<u8>>,
    /// Further opens are refused (TIOCEXCL).
    pub(super) is_exclusive: bool,
    /// The program stopped the output (TCXONC).
    pub(super) is_stopped: bool,
    pub(super) serial: Serial,
    /// Bytes that arrived while no program had the terminal open.
    pub(super) dropped_bytes: u64,
}

impl Port {
    pub(super) fn new(now: Time) -> Port {
        let mut port = Port {
            termios: Termios::default(),
            sent: Settings::default(),
            outputs: OutputLines::default(),
            inputs: Inputs::default(),
            counts: Counts::default(),
            input: Input::default(),
            uplink: Uplink::default(),
            handles: BTreeMap::new(),
            next_handle: 1,
            pending: VecDeque::new(),
            replies: Vec::new(),
            is_exclusive: false,
            is_stopped: false,
            serial: Serial::default(),
            dropped_bytes: 0,
        };
        // The port's lines are off until a program opens the terminal.
        port.uplink.send_state((port.sent, port.outputs), now);
        port
    }

    /// Takes the packets for the kernel.
    pub(super) fn take_replies(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.replies)
    }

    /// Handles a request of the kernel.
    pub(super) fn handle(&mut self, request: Request, now: Time) {
        let Request { number, uid, call } = request;
        let result = match call {
            Call::Open { flags } => self.open(number, uid, flags, now),
            Call::Release { handle } => {
                self.release(handle, now);
                Ok(Some(packets::reply(number, &[])))
            }
            Call::Read { handle, size, flags } => self.read(number, handle, size, flags, now),
            Call::Write { handle, flags, data } => self.write(number, handle, flags, data),
            Call::Ioctl(ioctl) => {
                match self.check(ioctl.handle).and_then(|()| self.control(number, &ioctl, now)) {
                    Ok(Ok(reply)) => Ok(Some(reply)),
                    Ok(Err(wait)) => self.wait(number, ioctl.handle, wait),
                    Err(error) => Err(error),
                }
            }
            Call::Poll { handle, wakeup } => {
                let found = self.events(handle);
                if let Some(handle) = self.handles.get_mut(&handle) {
                    (handle.wakeup, handle.known) = (wakeup.or(handle.wakeup), found);
                }
                Ok(Some(packets::polled(number, found)))
            }
            Call::Interrupt { target } => {
                self.interrupt(target, now);
                Ok(None)
            }
            Call::Init { .. } | Call::Other(_) => Err(Errno::NOSYS),
        };
        match result {
            Ok(Some(reply)) => self.replies.push(reply),
            Ok(None) => {}
            Err(error) => self.replies.push(packets::fail(number, error)),
        }
        self.advance(now);
    }

    fn wait(&mut self, number: u64, handle: u64, wait: Wait) -> Result<Option<Vec<u8>>, Errno> {
        if self.pending.len() >= PENDING_MAX {
            return Err(Errno::BUSY);
        }
        self.pending.push_back(Pending { number, handle, wait });
        Ok(None)
    }

    /// Returns an error for a handle that was hung up.
    fn check(&self, handle: u64) -> Result<(), Errno> {
        match self.handles.get(&handle) {
            Some(Handle { is_hung_up: false, .. }) => Ok(()),
            _ => Err(Errno::IO),
        }
    }

    fn has_carrier(&self) -> bool {
        self.inputs.dcd || self.termios.is_local()
    }

    /// Returns true if a program has the terminal open, or waits to open it.
    fn is_open(&self) -> bool {
        let is_opening = |pending: &Pending| matches!(pending.wait, Wait::Carrier);
        self.handles.values().any(|handle| !handle.is_hung_up) || self.pending.iter().any(is_opening)
    }

    fn open(&mut self, number: u64, uid: u32, flags: u32, now: Time) -> Result<Option<Vec<u8>>, Errno> {
        if self.is_exclusive && uid != 0 {
            return Err(Errno::BUSY);
        }
        if self.handles.len() >= HANDLES_MAX {
            return Err(Errno::NFILE);
        }
        if !self.is_open() {
            self.sent = Settings::default();
            self.send_settings(now);
            let is_on = !self.termios.is_hung_up();
            self.set_outputs(OutputLines { dtr: is_on, rts: is_on, breaks: false }, now);
        }
        match self.has_carrier() || is_nonblocking(flags) {
            true => Ok(Some(self.add_handle(number))),
            false => self.wait(number, 0, Wait::Carrier),
        }
    }

    fn add_handle(&mut self, number: u64) -> Vec<u8> {
        let handle = self.next_handle;
        self.next_handle += 1;
        self.handles.insert(handle, Handle::default());
        packets::opened(number, handle)
    }

    fn release(&mut self, handle: u64, now: Time) {
        let was_open = self.is_open();
        self.handles.remove(&handle);
        self.pending.retain(|pending| pending.handle != handle);
        if was_open && !self.is_open() {
            self.close(now);
        }
    }

    /// No program has the terminal open any more.
    fn close(&mut self, now: Time) {
        let keeps = self.termios.control & HUPCL == 0;
        let OutputLines { dtr, rts, .. } = self.outputs;
        self.set_outputs(OutputLines { dtr: dtr && keeps, rts: rts && keeps, breaks: false }, now);
        self.dropped_bytes += self.input.clear() as u64;
        (self.is_exclusive, self.is_stopped) = (false, false);
    }

    fn read(
        &mut self,
        number: u64,
        handle: u64,
        room: usize,
        flags: u32,
        now: Time,
    ) -> Result<Option<Vec<u8>>, Errno> {
        if self.check(handle).is_err() {
            // The end of the file.
            return Ok(Some(packets::reply(number, &[])));
        }
        let is_raw = !self.termios.is_canonical();
        let (least, timeout) = (self.termios.characters[VMIN], u32::from(self.termios.characters[VTIME]));
        let until = (is_raw && least == 0).then(|| now.after(TENTH * timeout));
        let is_first = !self.pending.iter().any(|pending| matches!(pending.wait, Wait::Read { .. }));
        let is_ready = is_first && self.input.is_ready(&self.termios, false);
        let is_polling = until.is_some() && timeout == 0;
        match (is_nonblocking(flags), is_ready) {
            (true, false) if !is_polling => Err(Errno::AGAIN),
            (true, _) => Ok(Some(packets::reply(number, &self.input.take(room, &self.termios)))),
            // The next call of `advance` may complete it at once.
            (false, _) => self.wait(number, handle, Wait::Read { room, taken: Vec::new(), until }),
        }
    }

    fn write(
        &mut self,
        number: u64,
        handle: u64,
        flags: u32,
        data: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, Errno> {
        self.check(handle)?;
        if is_nonblocking(flags) && !self.has_room() {
            return Err(Errno::AGAIN);
        }
        let count = data.len();
        let data = self.termios.process_output(data);
        self.wait(number, handle, Wait::Write { data, count })
    }

    /// Returns true if a write takes its bytes at once.
    fn has_room(&self) -> bool {
        !self.is_stopped && self.uplink.has_room() && self.pending_bytes() == 0
    }

    /// The bytes of writes that wait.
    pub(super) fn pending_bytes(&self) -> usize {
        let bytes = |pending: &Pending| match &pending.wait {
            Wait::Write { data, .. } => data.len(),
            _ => 0,
        };
        self.pending.iter().map(bytes).sum()
    }

    /// Returns true if the worker has everything.
    pub(super) fn is_idle(&self) -> bool {
        self.uplink.len() == 0 && self.pending_bytes() == 0
    }

    fn events(&self, handle: u64) -> u32 {
        if self.check(handle).is_err() {
            return EVENTS_IN | EVENTS_OUT | EVENTS_HANGUP;
        }
        let input = if self.input.is_ready(&self.termios, true) { EVENTS_IN } else { 0 };
        input | if self.has_room() { EVENTS_OUT } else { 0 }
    }

    fn interrupt(&mut self, target: u64, now: Time) {
        let Some(place) = self.pending.iter().position(|pending| pending.number == target) else { return };
        let Some(pending) = self.pending.remove(place) else { return };
        let reply = match pending.wait {
            Wait::Read { taken, .. } if !taken.is_empty() => packets::reply(target, &taken),
            Wait::Carrier if !self.is_open() => {
                self.close(now);
                packets::fail(target, Errno::INTR)
            }
            Wait::Break(_) => {
                self.set_outputs(OutputLines { breaks: false, ..self.outputs }, now);
                packets::fail(target, Errno::INTR)
            }
            _ => packets::fail(target, Errno::INTR),
        };
        self.replies.push(reply);
    }

    /// Sets lines and a break.
    pub(super) fn set_outputs(&mut self, outputs: OutputLines, now: Time) {
        if std::mem::replace(&mut self.outputs, outputs) != outputs {
            self.uplink.send_change(Change::Outputs(outputs), now);
        }
    }

    fn send_settings(&mut self, now: Time) {
        let settings = self.termios.settings();
        let changed = settings.changed_from(&self.sent);
        if changed != Settings::default() {
            self.sent = Settings { speed: settings.speed.or(self.sent.speed), ..settings };
            self.uplink.send_change(Change::Settings(changed), now);
        }
    }

    /// Sets the program's settings.
    pub(super) fn set_termios(&mut self, termios: Termios, now: Time) {
        let old = std::mem::replace(&mut self.termios, termios);
        if old.is_canonical() != termios.is_canonical() {
            self.input.set_canonical(termios.is_canonical());
        }
        self.send_settings(now);
        if old.is_hung_up() != termios.is_hung_up() {
            let is_on = !termios.is_hung_up();
            self.set_outputs(OutputLines { dtr: is_on, rts: is_on, ..self.outputs }, now);
        }
    }

    /// Completes the requests that can be completed, and wakes programs that poll.
    pub(super) fn advance(&mut self, now: Time) {
        if self.uplink.wants_state() {
            self.uplink.send_state((self.sent, self.outputs), now);
        }
        let mut has_writes = false;
        for mut pending in std::mem::take(&mut self.pending) {
            let is_write = matches!(pending.wait, Wait::Write { .. });
            match self.complete(&mut pending, has_writes, now) {
                Some(reply) => self.replies.push(reply),
                None => {
                    has_writes |= is_write;
                    self.pending.push_back(pending);
                }
            }
        }
        let found: Vec<u32> = self.handles.keys().map(|number| self.events(*number)).collect();
        for (handle, found) in self.handles.values_mut().zip(found) {
            let new = found & !std::mem::replace(&mut handle.known, found);
            if let Some(wakeup) = handle.wakeup.filter(|_| new != 0) {
                self.replies.push(packets::wakeup(wakeup));
            }
        }
    }

    /// Returns the reply to a request that can be completed. Writes that wait before it are not overtaken.
    fn complete(&mut self, pending: &mut Pending, has_writes: bool, now: Time) -> Option<Vec<u8>> {
        let number = pending.number;
        let is_hung_up = self.check(pending.handle).is_err();
        match &mut pending.wait {
            Wait::Carrier => self.has_carrier().then(|| self.add_handle(number)),
            Wait::Read { room, taken, until } => {
                let is_line = self.termios.is_canonical() && self.input.is_ready(&self.termios, false);
                let piece = self.input.take(*room - taken.len(), &self.termios);
                let (least, timeout) =
                    (self.termios.characters[VMIN], u32::from(self.termios.characters[VTIME]));
                if !piece.is_empty() && least > 0 && timeout > 0 {
                    *until = Some(now.after(TENTH * timeout));
                }
                taken.extend(piece);
                let is_full = taken.len() >= usize::from(least).clamp(1, (*room).max(1)) || *room == 0;
                let is_late = until.is_some_and(|until| until <= now);
                let is_raw = !self.termios.is_canonical();
                // Lines have no time limit.
                *until = until.filter(|_| is_raw);
                (is_line || is_raw && (is_full || is_late) || is_hung_up)
                    .then(|| packets::reply(number, taken))
            }
            _ if is_hung_up => Some(packets::fail(number, Errno::IO)),
            Wait::Write { data, count } => {
                if has_writes || self.is_stopped || !self.uplink.has_room() {
                    return None;
                }
                self.uplink.send_data(data, now);
                self.counts.sent = self.counts.sent.wrapping_add(data.len() as u32);
                Some(packets::written(number, *count))
            }
            Wait::Drain(_) if has_writes || self.uplink.len() > 0 => None,
            Wait::Drain(then) => match std::mem::replace(then, Then::Nothing) {
                Then::Nothing => Some(packets::controlled(number, &[])),
                Then::Set { termios, drops_input } => {
                    if drops_input {
                        self.input.clear();
                    }
                    self.set_termios(*termios, now);
                    Some(packets::controlled(number, &[]))
                }
                Then::Break(length) => {
                    self.set_outputs(OutputLines { breaks: true, ..self.outputs }, now);
                    pending.wait = Wait::Break(now.after(length));
                    None
                }
            },
            Wait::Break(until) if *until > now => None,
            Wait::Break(_) => {
                self.set_outputs(OutputLines { breaks: false, ..self.outputs }, now);
                Some(packets::controlled(number, &[]))
            }
            Wait::Lines { mask, counts } => {
                let bits = [TIOCM_CTS, TIOCM_DSR, TIOCM_RI, TIOCM_CD];
                let has_changed =
                    (0..4).any(|line| *mask & bits[line] != 0 && counts[line] != self.counts.lines[line]);
                has_changed.then(|| packets::controlled(number, &[]))
            }
        }
    }

    /// The next moment at which a request ends by itself.
    pub(super) fn deadline(&self) -> Option<Time> {
        let until = |pending: &Pending| match pending.wait {
            Wait::Read { until, .. } => until,
            Wait::Break(until) => Some(until),
            _ => None,
        };
        self.pending.iter().filter_map(until).min()
    }

    /// Handles a packet of the worker, which may have been compromised.
    pub(super) fn handle_message(&mut self, packet: &[u8], now: Time) {
        if packet == [SNAPSHOT] {
            self.uplink.request_state();
        } else {
            match SerialMessage::parse(&Body::from(packet.to_vec())) {
                Ok(SerialMessage::Data(data)) => self.receive(&data.into_bytes(), None),
                Ok(SerialMessage::Fault(fault, data)) => self.receive(&data.into_bytes(), Some(fault)),
                Ok(SerialMessage::Inputs(inputs)) => self.set_inputs(inputs, now),
                // The program decides about its settings.
                Ok(SerialMessage::Settings(_) | SerialMessage::Outputs(_)) | Err(_) => {}
            }
        }
        self.advance(now);
    }

    /// Takes received bytes. Without a program they are dropped, as a port drops them.
    fn receive(&mut self, bytes: &[u8], fault: Option<Fault>) {
        if !self.handles.values().any(|handle| !handle.is_hung_up) {
            self.dropped_bytes += bytes.len() as u64;
            return;
        }
        let count = match fault {
            None => &mut self.counts.received,
            Some(Fault::Break) => &mut self.counts.breaks,
            Some(Fault::Corrupt) => &mut self.counts.corrupt,
        };
        *count = count.wrapping_add(bytes.len() as u32);
        self.input.receive(bytes, fault, &self.termios);
    }

    /// Sets the lines of the port. A carrier that is lost hangs up, unless CLOCAL is set.
    fn set_inputs(&mut self, inputs: Inputs, now: Time) {
        let old = std::mem::replace(&mut self.inputs, inputs);
        let changed =
            [old.cts != inputs.cts, old.dsr != inputs.dsr, old.ri && !inputs.ri, old.dcd != inputs.dcd];
        for (count, has_changed) in self.counts.lines.iter_mut().zip(changed) {
            *count = count.wrapping_add(has_changed.into());
        }
        if old.dcd
            && !inputs.dcd
            && !self.termios.is_local()
            && self.handles.values().any(|handle| !handle.is_hung_up)
        {
            for handle in self.handles.values_mut() {
                handle.is_hung_up = true;
            }
            self.close(now);
        }
    }
}

/// Returns true if the program does not wait.
fn is_nonblocking(flags: u32) -> bool {
    OFlags::from_bits_retain(flags).contains(OFlags::NONBLOCK)
}
