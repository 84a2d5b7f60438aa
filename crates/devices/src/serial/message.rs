//! Messages of a serial flow: data, and settings between them.
//!
//! | kind: u8 | then |
//! |---|---|
//! | 0 | the bytes of the line |
//! | 1 | `known: u8`, `input_baud: u32`, `output_baud: u32`, `data_bits: u8`, `parity: u8`, `stop_bits: u8`, `flow: u8` |
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
}

/// Kind byte of data.
const DATA: u8 = 0;

/// Kind byte of settings.
const SETTINGS: u8 = 1;

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
        }
    }

    /// Decodes a body. Shares its data instead of copying them.
    pub fn parse(body: &Body) -> Result<SerialMessage, WireError> {
        let mut body = body.clone();
        let [kind] = body.take_front().ok_or(WireError::Short { what: "serial kind", needed: 1, left: 0 })?;
        match kind {
            DATA => Ok(SerialMessage::Data(body)),
            SETTINGS => {
                let mut bytes = [0; Settings::BYTES + 1];
                let length = body.len().min(bytes.len());
                body.split_off_front(length).unwrap_or_default().copy_to(&mut bytes);
                let mut reader = Reader::new(&bytes[..length]);
                let settings = Settings::parse(&mut reader)?;
                reader.end("serial settings")?;
                Ok(SerialMessage::Settings(settings))
            }
            other => Err(WireError::Value { what: "serial kind", value: other.into() }),
        }
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
        Settings {
            speed: Some(Speed { input_baud: termios.input_speed(), output_baud: termios.output_speed() }),
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
