//! The bodies of a serial flow: data, and settings in their place among the data.
//!
//! | kind: u8 | then |
//! |---|---|
//! | 0 | the bytes of the line |
//! | 1 | `known: u8`, `input_baud: u32`, `output_baud: u32`, `data_bits: u8`, `parity: u8`, `stop_bits: u8`, `flow: u8` |
//!
//! Little-endian. The bits of `known` say which of the settings are meant, in the order above (both speeds share bit 0);
//! the others are zero.

use contract::Body;
use rustix::termios::{ControlModes, InputModes, Termios};
use wire::{Reader, WireError, Writer};

/// A message of a serial flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SerialMessage {
    /// Bytes of the line.
    Data(Body),
    /// How the line is set from here on.
    Settings(Settings),
}

/// Kind byte of data.
const DATA: u8 = 0;

/// Kind byte of settings.
const SETTINGS: u8 = 1;

/// How a serial line is set. What is `None` is not said: a pseudo-terminal knows neither data bits nor parity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settings {
    /// Bits a second.
    pub speed: Option<Speed>,
    /// 5 to 8.
    pub data_bits: Option<u8>,
    /// The bit behind the data bits.
    pub parity: Option<Parity>,
    /// 1 or 2.
    pub stop_bits: Option<u8>,
    /// Who may stop whom, and how.
    pub flow: Option<FlowControl>,
}

/// Bits a second, each way; 0 hangs up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Speed {
    /// Received.
    pub input_baud: u32,
    /// Sent.
    pub output_baud: u32,
}

/// The bit behind the data bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parity {
    /// There is none.
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

/// Flow control, of `termios(3)`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowControl {
    /// XOFF from the other side stops what we send (IXON).
    pub xon_output: bool,
    /// We send XOFF when we have no room (IXOFF).
    pub xoff_input: bool,
    /// The lines RTS and CTS do it (CRTSCTS).
    pub rts_cts: bool,
}

const PARITIES: [Parity; 5] = [Parity::None, Parity::Odd, Parity::Even, Parity::Mark, Parity::Space];

impl SerialMessage {
    /// The message as a body.
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

    /// Reads a body, whose data is shared, not copied.
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
    /// Bytes of [`Settings::emit`].
    pub const BYTES: usize = 13;

    /// The settings as bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let known = [
            self.speed.is_some(),
            self.data_bits.is_some(),
            self.parity.is_some(),
            self.stop_bits.is_some(),
            self.flow.is_some(),
        ];
        let known = known.iter().enumerate().map(|(bit, said)| u8::from(*said) << bit).sum();
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

    /// Reads settings, and refuses those that no line has.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Settings, WireError> {
        let known = reader.u8("serial settings known")?;
        if known >> 5 != 0 {
            return Err(WireError::Value { what: "serial settings known", value: known.into() });
        }
        let said = |bit: u8| known >> bit & 1 == 1;
        let speed = Speed {
            input_baud: reader.u32("serial input baud")?,
            output_baud: reader.u32("serial output baud")?,
        };
        let (data_bits, parity) = (reader.u8("serial data bits")?, reader.u8("serial parity")?);
        let (stop_bits, flow) = (reader.u8("serial stop bits")?, reader.u8("serial flow control")?);
        let wrong = |what, value: u8| Err(WireError::Value { what, value: value.into() });
        if !(if said(1) { 5..=8 } else { 0..=0 }).contains(&data_bits) {
            return wrong("serial data bits", data_bits);
        }
        if parity > if said(2) { 4 } else { 0 } {
            return wrong("serial parity", parity);
        }
        if !(if said(3) { 1..=2 } else { 0..=0 }).contains(&stop_bits) {
            return wrong("serial stop bits", stop_bits);
        }
        if flow > if said(4) { 7 } else { 0 } {
            return wrong("serial flow control", flow);
        }
        if !said(0) && speed != Speed::default() {
            return Err(WireError::Value { what: "serial speed", value: speed.output_baud.into() });
        }
        let flow =
            FlowControl { xon_output: flow & 1 != 0, xoff_input: flow & 2 != 0, rts_cts: flow & 4 != 0 };
        Ok(Settings {
            speed: said(0).then_some(speed),
            data_bits: said(1).then_some(data_bits),
            parity: said(2).then(|| PARITIES[usize::from(parity)]),
            stop_bits: said(3).then_some(stop_bits),
            flow: said(4).then_some(flow),
        })
    }

    /// What a terminal is set to.
    pub(crate) fn of(termios: &Termios) -> Settings {
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

    /// What a pseudo-terminal is set to: the kernel keeps it at 8 data bits and no parity, whatever an
    /// application asks (`drivers/tty/pty.c`, `pty_set_termios`), so it says nothing of these.
    pub(crate) fn of_pty(termios: &Termios) -> Settings {
        Settings { data_bits: None, parity: None, ..Settings::of(termios) }
    }

    /// Sets what is said in `termios`.
    pub(crate) fn apply(&self, termios: &mut Termios) -> rustix::io::Result<()> {
        if let Some(speed) = self.speed {
            // Left at 0 it follows the output speed, also when a program that knows only one speed sets it.
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

    /// These, of what `other` says anything about.
    pub(crate) fn said_by(self, other: &Settings) -> Settings {
        Settings {
            speed: self.speed.filter(|_| other.speed.is_some()),
            data_bits: self.data_bits.filter(|_| other.data_bits.is_some()),
            parity: self.parity.filter(|_| other.parity.is_some()),
            stop_bits: self.stop_bits.filter(|_| other.stop_bits.is_some()),
            flow: self.flow.filter(|_| other.flow.is_some()),
        }
    }
}
