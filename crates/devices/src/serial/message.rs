//! Messages of a serial flow: data; settings, lines and faults between them (`docs/reference/formats-serial.md`).
//!
//! | kind: u8 | then |
//! |---|---|
//! | 0 | the bytes of the line |
//! | 1 | `known: u8`, `input_baud: u32`, `output_baud: u32`, `data_bits: u8`, `parity: u8`, `stop_bits: u8`, `flow: u8` |
//! | 2 | the program's lines: `lines: u8`, `since_us: u32` |
//! | 3 | the port's lines: `lines: u8` |
//! | 4 | bytes received with a fault: `fault: u8`, the bytes |
//!
//! Little-endian. Each bit of `known` marks a setting as present, in the order above (both speeds share bit 0). Absent
//! settings are zero.

use contract::Body;
use rustix::termios::{ControlModes, InputModes, Termios};
use wire::{Reader, WireError, Writer};

/// A message of a serial flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SerialMessage {
    /// Bytes of the line.
    Data(Body),
    /// Settings for the following data.
    Settings(Settings),
    /// The lines that the program sets.
    Outputs(Outputs),
    /// The lines that the other end of the cable sets.
    Inputs(Inputs),
    /// Bytes that the port received with a fault, at least one.
    Fault(Fault, Body),
}

/// Kind bytes.
const DATA: u8 = 0;
const SETTINGS: u8 = 1;
const OUTPUTS: u8 = 2;
const INPUTS: u8 = 3;
const FAULT: u8 = 4;

/// Lines that a program sets, and the time since it set them last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outputs {
    /// The lines.
    pub lines: OutputLines,
    /// Time since the change before this one; [`Outputs::UNRELATED`] if it is not known or longer. Measured by the clock of
    /// one host, so that an estimate of the hosts' clock offset does not shift it.
    pub since_us: u32,
}

impl Outputs {
    /// Value of `since_us` for a change whose spacing does not matter.
    pub const UNRELATED: u32 = u32::MAX;
}

/// Lines that a program sets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputLines {
    /// Data terminal ready.
    pub dtr: bool,
    /// Request to send.
    pub rts: bool,
    /// A break is sent.
    pub breaks: bool,
}

impl OutputLines {
    fn bits(self) -> u8 {
        u8::from(self.dtr) | u8::from(self.rts) << 1 | u8::from(self.breaks) << 2
    }
}

/// Lines that the other end of the cable sets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Inputs {
    /// Clear to send.
    pub cts: bool,
    /// Data set ready.
    pub dsr: bool,
    /// Data carrier detect.
    pub dcd: bool,
    /// Ring indicator.
    pub ri: bool,
}

impl Inputs {
    fn bits(self) -> u8 {
        u8::from(self.cts) | u8::from(self.dsr) << 1 | u8::from(self.dcd) << 2 | u8::from(self.ri) << 3
    }
}

/// A fault of received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A break, received as a zero byte.
    Break,
    /// A wrong parity bit, or no stop bit.
    Corrupt,
}

/// Settings of a serial line. `None` is unknown: a pseudo-terminal has neither data bits nor parity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settings {
    /// Bits a second.
    pub speed: Option<Speed>,
    /// 5 to 8.
    pub data_bits: Option<u8>,
    /// Parity bit.
    pub parity: Option<Parity>,
    /// 1 or 2.
    pub stop_bits: Option<u8>,
    /// Flow control.
    pub flow: Option<FlowControl>,
}

/// Bits a second in each direction; 0 hangs up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Speed {
    /// Of received data.
    pub input_baud: u32,
    /// Of sent data.
    pub output_baud: u32,
}

/// The parity bit behind the data bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parity {
    /// No parity bit.
    None,
    /// An odd number of ones.
    Odd,
    /// An even number of ones.
    Even,
    /// Always one.
    Mark,
    /// Always zero.
    Space,
}

/// Flow control (`termios(3)`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowControl {
    /// XOFF from the other end stops the output (IXON).
    pub xon_output: bool,
    /// A full input sends XOFF to the other end (IXOFF).
    pub xoff_input: bool,
    /// The lines RTS and CTS control both directions (CRTSCTS).
    pub rts_cts: bool,
}

/// Speeds that have a code of their own (`termios(3)`).
const CODED_BAUDS: &[u32] = &[
    50, 75, 110, 134, 150, 200, 300, 600, 1200, 1800, 2400, 4800, 9600, 19_200, 38_400, 57_600, 115_200,
    230_400, 460_800, 500_000, 576_000, 921_600, 1_000_000, 1_152_000, 1_500_000, 2_000_000, 2_500_000,
    3_000_000, 3_500_000, 4_000_000,
];

const PARITIES: [Parity; 5] = [Parity::None, Parity::Odd, Parity::Even, Parity::Mark, Parity::Space];

impl SerialMessage {
    /// Encodes the message.
    pub fn emit(self) -> Body {
        match self {
            SerialMessage::Data(mut body) => {
                body.push_front(&[DATA]);
                body
            }
            SerialMessage::Settings(settings) => {
                let mut body = Body::new();
                body.push_front(&settings.emit());
                body.push_front(&[SETTINGS]);
                body
            }
            SerialMessage::Outputs(Outputs { lines, since_us }) => {
                Body::from(Writer::new().u8(OUTPUTS).u8(lines.bits()).u32(since_us).finish())
            }
            SerialMessage::Inputs(inputs) => Body::from(vec![INPUTS, inputs.bits()]),
            SerialMessage::Fault(fault, mut body) => {
                body.push_front(&[FAULT, u8::from(fault == Fault::Corrupt)]);
                body
            }
        }
    }

    /// Returns the number of bytes of the line in the message.
    pub(crate) fn data_bytes(&self) -> usize {
        match self {
            SerialMessage::Data(data) | SerialMessage::Fault(_, data) => data.len(),
            _ => 0,
        }
    }

    /// Decodes a body. Shares its data instead of copying them.
    pub fn parse(body: &Body) -> Result<SerialMessage, WireError> {
        let mut body = body.clone();
        let [kind] = body.take_front().ok_or(WireError::Short { what: "serial kind", needed: 1, left: 0 })?;
        match kind {
            DATA => Ok(SerialMessage::Data(body)),
            FAULT => {
                let [fault] =
                    body.take_front().ok_or(WireError::Short { what: "serial fault", needed: 1, left: 0 })?;
                match fault {
                    _ if body.is_empty() => {
                        Err(WireError::Short { what: "serial fault bytes", needed: 1, left: 0 })
                    }
                    0 => Ok(SerialMessage::Fault(Fault::Break, body)),
                    1 => Ok(SerialMessage::Fault(Fault::Corrupt, body)),
                    other => Err(WireError::Value { what: "serial fault", value: other.into() }),
                }
            }
            SETTINGS | OUTPUTS | INPUTS => {
                let mut bytes = [0; Settings::BYTES + 1];
                let length = body.len().min(bytes.len());
                body.split_off_front(length).unwrap_or_default().copy_to(&mut bytes);
                let mut reader = Reader::new(&bytes[..length]);
                let message = match kind {
                    SETTINGS => SerialMessage::Settings(Settings::parse(&mut reader)?),
                    OUTPUTS => {
                        let bits = lines(&mut reader, 3)?;
                        let [dtr, rts, breaks] = [1, 2, 4].map(|bit| bits & bit != 0);
                        let since_us = reader.u32("serial time between changes")?;
                        SerialMessage::Outputs(Outputs { lines: OutputLines { dtr, rts, breaks }, since_us })
                    }
                    _ => {
                        let bits = lines(&mut reader, 4)?;
                        let [cts, dsr, dcd, ri] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
                        SerialMessage::Inputs(Inputs { cts, dsr, dcd, ri })
                    }
                };
                reader.end("serial message")?;
                Ok(message)
            }
            other => Err(WireError::Value { what: "serial kind", value: other.into() }),
        }
    }
}

/// Reads the bits of this many lines.
fn lines(reader: &mut Reader<'_>, count: u8) -> Result<u8, WireError> {
    let bits = reader.u8("serial lines")?;
    match bits >> count {
        0 => Ok(bits),
        _ => Err(WireError::Value { what: "serial lines", value: bits.into() }),
    }
}

/// Returns the output speed: that of the code if there is one. A driver that reports the true speed of its divisor keeps the code of
/// a speed that differs by 2 % at most (`tty_termios_encode_baud_rate`), and programs read the code.
fn output_baud(termios: &Termios) -> u32 {
    let has_code = |baud: u32| {
        let mut coded = termios.clone();
        coded.set_output_speed(baud).is_ok() && coded.control_modes == termios.control_modes
    };
    CODED_BAUDS.iter().copied().find(|baud| has_code(*baud)).unwrap_or(termios.output_speed())
}

impl Speed {
    /// Returns true if only the rounding of a port's divisor makes the difference: 2 % at most.
    fn is_rounded_from(self, wanted: Speed) -> bool {
        let is_close = |own: u32, wanted: u32| u64::from(own.abs_diff(wanted)) * 50 <= u64::from(wanted);
        is_close(self.input_baud, wanted.input_baud) && is_close(self.output_baud, wanted.output_baud)
    }
}

impl Settings {
    /// Size of encoded settings.
    pub const BYTES: usize = 13;

    /// Encodes the settings.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let known = [
            self.speed.is_some(),
            self.data_bits.is_some(),
            self.parity.is_some(),
            self.stop_bits.is_some(),
            self.flow.is_some(),
        ];
        let known = known.iter().enumerate().map(|(bit, is_known)| u8::from(*is_known) << bit).sum();
        let speed = self.speed.unwrap_or_default();
        let parity = PARITIES.iter().position(|parity| Some(*parity) == self.parity).unwrap_or(0);
        let flow = self.flow.unwrap_or_default();
        let flow = u8::from(flow.xon_output) | u8::from(flow.xoff_input) << 1 | u8::from(flow.rts_cts) << 2;
        let mut writer = Writer::new();
        writer.u8(known).u32(speed.input_baud).u32(speed.output_baud);
        writer.u8(self.data_bits.unwrap_or(0)).u8(parity as u8).u8(self.stop_bits.unwrap_or(0)).u8(flow);
        let mut bytes = [0; Self::BYTES];
        bytes.copy_from_slice(&writer.finish());
        bytes
    }

    /// Decodes settings. Refuses values that no line can have.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Settings, WireError> {
        let known = reader.u8("serial settings known")?;
        if known >> 5 != 0 {
            return Err(WireError::Value { what: "serial settings known", value: known.into() });
        }
        let is_known = |bit: u8| known >> bit & 1 == 1;
        let speed = Speed {
            input_baud: reader.u32("serial input baud")?,
            output_baud: reader.u32("serial output baud")?,
        };
        let (data_bits, parity) = (reader.u8("serial data bits")?, reader.u8("serial parity")?);
        let (stop_bits, flow) = (reader.u8("serial stop bits")?, reader.u8("serial flow control")?);
        let wrong = |field, value: u8| Err(WireError::Value { what: field, value: value.into() });
        if !(if is_known(1) { 5..=8 } else { 0..=0 }).contains(&data_bits) {
            return wrong("serial data bits", data_bits);
        }
        if parity > if is_known(2) { 4 } else { 0 } {
            return wrong("serial parity", parity);
        }
        if !(if is_known(3) { 1..=2 } else { 0..=0 }).contains(&stop_bits) {
            return wrong("serial stop bits", stop_bits);
        }
        if flow > if is_known(4) { 7 } else { 0 } {
            return wrong("serial flow control", flow);
        }
        if !is_known(0) && speed != Speed::default() {
            return Err(WireError::Value { what: "serial speed", value: speed.output_baud.into() });
        }
        let flow =
            FlowControl { xon_output: flow & 1 != 0, xoff_input: flow & 2 != 0, rts_cts: flow & 4 != 0 };
        Ok(Settings {
            speed: is_known(0).then_some(speed),
            data_bits: is_known(1).then_some(data_bits),
            parity: is_known(2).then(|| PARITIES[usize::from(parity)]),
            stop_bits: is_known(3).then_some(stop_bits),
            flow: is_known(4).then_some(flow),
        })
    }

    /// Reads the settings of a port.
    pub(crate) fn from_port(termios: &Termios) -> Settings {
        let (control, input) = (termios.control_modes, termios.input_modes);
        let size = control & ControlModes::CSIZE;
        let data_bits = match size {
            ControlModes::CS5 => 5,
            ControlModes::CS6 => 6,
            ControlModes::CS7 => 7,
            _ => 8,
        };
        let (odd, stick) = (control.contains(ControlModes::PARODD), control.contains(ControlModes::CMSPAR));
        let parity = match (control.contains(ControlModes::PARENB), stick, odd) {
            (false, ..) => Parity::None,
            (true, false, true) => Parity::Odd,
            (true, false, false) => Parity::Even,
            (true, true, true) => Parity::Mark,
            (true, true, false) => Parity::Space,
        };
        let output_baud = output_baud(termios);
        let input_baud = match termios.input_speed() {
            same if same == termios.output_speed() => output_baud,
            own => own,
        };
        Settings {
            speed: Some(Speed { input_baud, output_baud }),
            data_bits: Some(data_bits),
            parity: Some(parity),
            stop_bits: Some(if control.contains(ControlModes::CSTOPB) { 2 } else { 1 }),
            flow: Some(FlowControl {
                xon_output: input.contains(InputModes::IXON),
                xoff_input: input.contains(InputModes::IXOFF),
                rts_cts: control.contains(ControlModes::CRTSCTS),
            }),
        }
    }

    /// Reads the settings of a pseudo-terminal. The kernel fixes it to 8 data bits without parity
    /// (`drivers/tty/pty.c`, `pty_set_termios`), so these are unknown.
    pub(crate) fn from_pty(termios: &Termios) -> Settings {
        Settings { data_bits: None, parity: None, ..Settings::from_port(termios) }
    }

    /// Applies the known settings to `termios`.
    pub(crate) fn apply(&self, termios: &mut Termios) -> rustix::io::Result<()> {
        if let Some(speed) = self.speed {
            // An input speed of 0 follows the output speed, also when a program sets only that.
            let own_input = speed.input_baud != speed.output_baud;
            termios.set_input_speed(if own_input { speed.input_baud } else { 0 })?;
            termios.set_output_speed(speed.output_baud)?;
        }
        let control = &mut termios.control_modes;
        if let Some(bits) = self.data_bits {
            control.remove(ControlModes::CSIZE);
            control.insert(match bits {
                5 => ControlModes::CS5,
                6 => ControlModes::CS6,
                7 => ControlModes::CS7,
                _ => ControlModes::CS8,
            });
        }
        if let Some(parity) = self.parity {
            control.set(ControlModes::PARENB, parity != Parity::None);
            control.set(ControlModes::PARODD, matches!(parity, Parity::Odd | Parity::Mark));
            control.set(ControlModes::CMSPAR, matches!(parity, Parity::Mark | Parity::Space));
        }
        if let Some(bits) = self.stop_bits {
            control.set(ControlModes::CSTOPB, bits == 2);
        }
        if let Some(flow) = self.flow {
            control.set(ControlModes::CRTSCTS, flow.rts_cts);
            termios.input_modes.set(InputModes::IXON, flow.xon_output);
            termios.input_modes.set(InputModes::IXOFF, flow.xoff_input);
        }
        Ok(())
    }

    /// Returns the settings that differ from those in `other`.
    pub(crate) fn changed_from(&self, other: &Settings) -> Settings {
        Settings {
            speed: self.speed.filter(|_| self.speed != other.speed),
            data_bits: self.data_bits.filter(|_| self.data_bits != other.data_bits),
            parity: self.parity.filter(|_| self.parity != other.parity),
            stop_bits: self.stop_bits.filter(|_| self.stop_bits != other.stop_bits),
            flow: self.flow.filter(|_| self.flow != other.flow),
        }
    }

    /// Takes over the wanted speed if the port has it as close as its divisor allows.
    pub(crate) fn without_rounding(self, wanted: &Settings) -> Settings {
        let rounded = self.speed.zip(wanted.speed).filter(|(own, wanted)| own.is_rounded_from(*wanted));
        Settings { speed: rounded.map(|(_, wanted)| wanted).or(self.speed), ..self }
    }

    /// Removes the settings that are unknown in `other`.
    pub(crate) fn restricted_to(self, other: &Settings) -> Settings {
        Settings {
            speed: self.speed.filter(|_| other.speed.is_some()),
            data_bits: self.data_bits.filter(|_| other.data_bits.is_some()),
            parity: self.parity.filter(|_| other.parity.is_some()),
            stop_bits: self.stop_bits.filter(|_| other.stop_bits.is_some()),
            flow: self.flow.filter(|_| other.flow.is_some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serial::tests::raw_pair;
    use rustix::termios::tcgetattr;

    fn speed(baud: u32) -> Settings {
        Settings { speed: Some(Speed { input_baud: baud, output_baud: baud }), ..Settings::default() }
    }

    /// The driver of a CP2102N reports the true speed of its divisor.
    #[test]
    fn the_speed_of_a_port_is_that_of_its_code() {
        let (_master, slave) = raw_pair();
        let mut termios = tcgetattr(&slave).unwrap();
        termios.set_speed(115_384).unwrap();
        assert_eq!(Settings::from_port(&termios).speed, speed(115_384).speed, "it has no code");
        let mut coded = termios.clone();
        coded.set_speed(115_200).unwrap();
        termios.control_modes = coded.control_modes;
        assert_eq!(Settings::from_port(&termios).speed, speed(115_200).speed);
    }

    #[test]
    fn a_rounded_speed_is_the_wanted_one() {
        let wanted = speed(74_880);
        assert_eq!(speed(74_906).without_rounding(&wanted), wanted);
        assert_eq!(speed(9600).without_rounding(&wanted), speed(9600), "the port refused it");
        assert_eq!(speed(9600).without_rounding(&Settings::default()), speed(9600));
        assert_eq!(speed(9600).without_rounding(&speed(0)), speed(9600));
    }
}
