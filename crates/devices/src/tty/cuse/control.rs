//! The ioctls of the terminal.

use super::ioctl::*;
use super::packets::{self, Ioctl};
use super::port::{Port, TENTH, Then, Wait};
use super::termios::{TERMIOS_BYTES, VSTART, VSTOP};
use crate::serial::{Inputs, OutputLines};
use contract::Time;
use rustix::io::Errno;
use std::time::Duration;

/// The break of `tcsendbreak(fd, 0)`.
const BREAK: Duration = Duration::from_millis(250);
/// TIOCSER_TEMT: the transmitter is empty.
const IS_EMPTY: u32 = 1;
/// Bit of the ioctl's flags: of a 32-bit program, whose `struct serial_struct` is another one.
const COMPAT: u32 = 1;
/// Fields of `struct serial_struct`, and its flags.
const TYPE: usize = 0;
const FLAGS: usize = 16;
const BAUD_BASE: usize = 28;
const PORT_16550A: u32 = 4;
const LOW_LATENCY: u32 = 1 << 13;
const CUSTOM_SPEED: u32 = 0x30;
const BAUD_MAX: u32 = 4_000_000;

/// Values that a program sets, and that have no effect here.
#[derive(Debug)]
pub(super) struct Serial {
    /// The flags of `struct serial_struct`.
    flags: u32,
    window: [u8; WINDOW_BYTES],
}

impl Default for Serial {
    fn default() -> Serial {
        Serial { flags: LOW_LATENCY, window: [0; WINDOW_BYTES] }
    }
}

fn number(input: &[u8]) -> u32 {
    input.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// A reply, or an end to wait for.
type Answer = Result<Vec<u8>, Wait>;

impl Port {
    /// Handles an ioctl. The kernel sends it again if it needs memory of the program.
    pub(super) fn control(&mut self, request: u64, ioctl: &Ioctl, now: Time) -> Result<Answer, Errno> {
        let (input_bytes, output_bytes) = memory(ioctl.command).ok_or(Errno::NOTTY)?;
        if ioctl.input.len() < input_bytes || ioctl.output_room < output_bytes {
            let is_first = ioctl.input.is_empty() && ioctl.output_room == 0;
            return match is_first {
                true => Ok(Ok(packets::retry(request, ioctl.argument, input_bytes, output_bytes))),
                false => Err(Errno::INVAL),
            };
        }
        let done = |output: &[u8]| Ok(packets::controlled(request, output));
        Ok(match ioctl.command {
            TCGETS => done(&self.termios.emit()[..TERMIOS_BYTES]),
            TCGETS2 => done(&self.termios.emit()),
            TCSETS | TCSETS2 => {
                let termios = self.termios.parse(&ioctl.input).ok_or(Errno::INVAL)?;
                self.set_termios(termios, now);
                done(&[])
            }
            TCSETSW | TCSETSW2 | TCSETSF | TCSETSF2 => {
                let termios = Box::new(self.termios.parse(&ioctl.input).ok_or(Errno::INVAL)?);
                let drops_input = matches!(ioctl.command, TCSETSF | TCSETSF2);
                Err(Wait::Drain(Then::Set { termios, drops_input }))
            }
            TIOCMGET => done(&self.lines().to_ne_bytes()),
            TIOCMSET | TIOCMBIS | TIOCMBIC => {
                self.set_lines(ioctl.command, number(&ioctl.input), now);
                done(&[])
            }
            TIOCMIWAIT => Err(Wait::Lines { mask: ioctl.argument as u32, counts: self.counts.lines }),
            TIOCSBRK | TIOCCBRK => {
                let breaks = ioctl.command == TIOCSBRK;
                self.set_outputs(OutputLines { breaks, ..self.outputs }, now);
                done(&[])
            }
            // Any other argument than 0 only drains (`tcdrain(3)`).
            TCSBRK if ioctl.argument != 0 => Err(Wait::Drain(Then::Nothing)),
            TCSBRKP if ioctl.argument != 0 => {
                let tenths = u32::try_from(ioctl.argument).unwrap_or(u32::MAX).min(u16::MAX.into());
                Err(Wait::Drain(Then::Break(TENTH * tenths)))
            }
            TCSBRK | TCSBRKP => Err(Wait::Drain(Then::Break(BREAK))),
            TIOCGSERIAL | TIOCSSERIAL if ioctl.flags & COMPAT != 0 => return Err(Errno::NOTTY),
            TIOCGSERIAL => done(&self.serial_struct()),
            TIOCSSERIAL => {
                let flags = number(&ioctl.input[FLAGS..]);
                if flags & CUSTOM_SPEED == CUSTOM_SPEED {
                    return Err(Errno::INVAL);
                }
                self.serial.flags = flags;
                done(&[])
            }
            TIOCGICOUNT => done(&self.counts()),
            _ => done(&self.control_queues(ioctl, now)?),
        })
    }

    /// Handles the ioctls of queues, exclusive use and windows.
    fn control_queues(&mut self, ioctl: &Ioctl, now: Time) -> Result<Vec<u8>, Errno> {
        let number = match ioctl.command {
            TIOCINQ => self.input.len() as u32,
            TIOCOUTQ => (self.uplink.data_bytes() + self.pending_bytes()) as u32,
            TIOCSERGETLSR if self.is_idle() => IS_EMPTY,
            TIOCGETD | TIOCSERGETLSR => 0,
            TIOCGEXCL => self.is_exclusive.into(),
            TIOCGWINSZ => return Ok(self.serial.window.to_vec()),
            TIOCSWINSZ => {
                self.serial.window.copy_from_slice(&ioctl.input[..WINDOW_BYTES]);
                return Ok(Vec::new());
            }
            TIOCEXCL | TIOCNXCL => {
                self.is_exclusive = ioctl.command == TIOCEXCL;
                return Ok(Vec::new());
            }
            TCFLSH => {
                let (flushes_input, flushes_output) = match ioctl.argument {
                    0 => (true, false),
                    1 => (false, true),
                    2 => (true, true),
                    _ => return Err(Errno::INVAL),
                };
                if flushes_input {
                    self.input.clear();
                }
                if flushes_output {
                    self.uplink.drop_data();
                }
                return Ok(Vec::new());
            }
            TCXONC => {
                match ioctl.argument {
                    0 | 1 => self.is_stopped = ioctl.argument == 0,
                    2 => self.uplink.send_data(&[self.termios.characters[VSTOP]], now),
                    3 => self.uplink.send_data(&[self.termios.characters[VSTART]], now),
                    _ => return Err(Errno::INVAL),
                }
                return Ok(Vec::new());
            }
            _ => return Err(Errno::NOTTY),
        };
        Ok(number.to_ne_bytes().to_vec())
    }

    /// The lines as TIOCMGET has them.
    fn lines(&self) -> u32 {
        let Inputs { cts, dsr, dcd, ri } = self.inputs;
        let OutputLines { dtr, rts, .. } = self.outputs;
        let lines = [
            (dtr, TIOCM_DTR),
            (rts, TIOCM_RTS),
            (cts, TIOCM_CTS),
            (dcd, TIOCM_CD),
            (ri, TIOCM_RI),
            (dsr, TIOCM_DSR),
        ];
        lines.iter().filter(|(is_on, _)| *is_on).map(|(_, bit)| bit).sum()
    }

    fn set_lines(&mut self, command: u32, bits: u32, now: Time) {
        let change = |is_on: bool, bit: u32| match (command, bits & bit != 0) {
            (TIOCMSET, is_set) => is_set,
            (TIOCMBIS, true) => true,
            (TIOCMBIC, true) => false,
            _ => is_on,
        };
        let OutputLines { dtr, rts, breaks } = self.outputs;
        let outputs = OutputLines { dtr: change(dtr, TIOCM_DTR), rts: change(rts, TIOCM_RTS), breaks };
        self.set_outputs(outputs, now);
    }

    fn serial_struct(&self) -> [u8; SERIAL_BYTES] {
        let mut bytes = [0; SERIAL_BYTES];
        for (place, value) in [(TYPE, PORT_16550A), (FLAGS, self.serial.flags), (BAUD_BASE, BAUD_MAX)] {
            bytes[place..place + 4].copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    }

    /// `struct serial_icounter_struct`: lines, received and sent bytes, faults.
    fn counts(&self) -> Vec<u8> {
        let counts = &self.counts;
        let faults = [counts.received, counts.sent, 0, 0, counts.corrupt, counts.breaks, 0];
        let mut bytes: Vec<u8> =
            counts.lines.iter().chain(&faults).flat_map(|count| count.to_ne_bytes()).collect();
        bytes.resize(COUNTS_BYTES, 0);
        bytes
    }
}
