//! The settings of a terminal, in the layout of `struct termios` and `struct termios2` (`asm-generic/termbits.h`).

use crate::serial::{FlowControl, Parity, Settings, Speed};

/// Bytes of `struct termios`, and of `struct termios2`, which also has both speeds.
pub(super) const TERMIOS_BYTES: usize = 36;
pub(super) const TERMIOS2_BYTES: usize = 44;

/// Bits of `c_iflag`.
pub(super) const IGNBRK: u32 = 0o1;
pub(super) const BRKINT: u32 = 0o2;
pub(super) const IGNPAR: u32 = 0o4;
pub(super) const PARMRK: u32 = 0o10;
pub(super) const INPCK: u32 = 0o20;
pub(super) const ISTRIP: u32 = 0o40;
pub(super) const INLCR: u32 = 0o100;
pub(super) const IGNCR: u32 = 0o200;
pub(super) const ICRNL: u32 = 0o400;
const IXON: u32 = 0o2000;
const IXOFF: u32 = 0o10000;
/// Bits of `c_oflag`.
const OPOST: u32 = 0o1;
const ONLCR: u32 = 0o4;
const OCRNL: u32 = 0o10;
/// Bits of `c_cflag`.
const CBAUD: u32 = 0o10017;
const BOTHER: u32 = 0o10000;
const CBAUDEX: u32 = 0o10000;
const INPUT_BAUD_SHIFT: u32 = 16;
const CSIZE: u32 = 0o60;
const CS8: u32 = 0o60;
const CSTOPB: u32 = 0o100;
const CREAD: u32 = 0o200;
const PARENB: u32 = 0o400;
const PARODD: u32 = 0o1000;
pub(super) const HUPCL: u32 = 0o2000;
pub(super) const CLOCAL: u32 = 0o4000;
const CMSPAR: u32 = 0o10_000_000_000;
const CRTSCTS: u32 = 0o20_000_000_000;
const B9600: u32 = 0o15;
/// Bits of `c_lflag`.
pub(super) const ICANON: u32 = 0o2;
const IEXTEN: u32 = 0o100_000;
/// Places in `c_cc`.
pub(super) const VERASE: usize = 2;
pub(super) const VKILL: usize = 3;
pub(super) const VEOF: usize = 4;
pub(super) const VTIME: usize = 5;
pub(super) const VMIN: usize = 6;
pub(super) const VSTART: usize = 8;
pub(super) const VSTOP: usize = 9;
pub(super) const VEOL: usize = 11;
pub(super) const VEOL2: usize = 16;
const CONTROLS: usize = 19;

/// The bits that have an effect; the others are off, so that a program finds which of its settings apply.
const OUTPUT_FLAGS: u32 = OPOST | ONLCR | OCRNL;
const LOCAL_FLAGS: u32 = ICANON | IEXTEN;

/// Speeds by their code in `c_cflag`: 0 to 15, and those with CBAUDEX from 1 on.
const BAUDS: [u32; 16] =
    [0, 50, 75, 110, 134, 150, 200, 300, 600, 1200, 1800, 2400, 4800, 9600, 19_200, 38_400];
const FAST_BAUDS: [u32; 15] = [
    57_600, 115_200, 230_400, 460_800, 500_000, 576_000, 921_600, 1_000_000, 1_152_000, 1_500_000, 2_000_000,
    2_500_000, 3_000_000, 3_500_000, 4_000_000,
];

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Termios {
    pub(super) input: u32,
    output: u32,
    pub(super) control: u32,
    local: u32,
    line: u8,
    pub(super) characters: [u8; CONTROLS],
    speed: Speed,
}

impl Default for Termios {
    /// As the kernel's USB serial ports have them (`tty_std_termios`), but without the echo.
    fn default() -> Termios {
        Termios {
            input: ICRNL | IXON,
            output: OPOST | ONLCR,
            control: B9600 | CS8 | CREAD | HUPCL | CLOCAL,
            local: ICANON | IEXTEN,
            line: 0,
            characters: [3, 28, 127, 21, 4, 0, 1, 0, 17, 19, 26, 0, 18, 15, 23, 22, 0, 0, 0],
            speed: Speed { input_baud: 9600, output_baud: 9600 },
        }
    }
}

/// Returns the speed of a code. `other` is the speed with the code BOTHER.
fn baud(code: u32, other: u32) -> u32 {
    match code & CBAUD {
        BOTHER => other,
        fast if fast & CBAUDEX != 0 => FAST_BAUDS[(fast & 0o17) as usize - 1],
        slow => BAUDS[slow as usize],
    }
}

impl Termios {
    /// Decodes either layout; settings that it lacks stay as they are in `self`.
    pub(super) fn parse(&self, bytes: &[u8]) -> Option<Termios> {
        let (words, rest) = bytes.split_at_checked(16)?;
        let word = |bytes: &[u8]| bytes.try_into().map(u32::from_ne_bytes).ok();
        let (line, rest) = rest.split_first()?;
        let (characters, rest) = rest.split_first_chunk::<CONTROLS>()?;
        let control = word(&words[8..12])?;
        let other = match rest {
            [] => self.speed,
            _ => Speed { input_baud: word(rest.get(..4)?)?, output_baud: word(rest.get(4..8)?)? },
        };
        let output_baud = baud(control, other.output_baud);
        let input_baud = match control >> INPUT_BAUD_SHIFT & CBAUD {
            0 => output_baud,
            code => baud(code, other.input_baud),
        };
        Some(Termios {
            input: word(&words[..4])?,
            output: word(&words[4..8])? & OUTPUT_FLAGS,
            control,
            local: word(&words[12..16])? & LOCAL_FLAGS,
            line: *line,
            characters: *characters,
            speed: Speed { input_baud, output_baud },
        })
    }

    /// Encodes `struct termios2`, whose front is `struct termios`.
    pub(super) fn emit(&self) -> [u8; TERMIOS2_BYTES] {
        let mut bytes = [0; TERMIOS2_BYTES];
        let Speed { input_baud, output_baud } = self.speed;
        let flags = [self.input, self.output, self.control, self.local];
        for (place, word) in
            [0, 4, 8, 12, 36, 40].into_iter().zip(flags.into_iter().chain([input_baud, output_baud]))
        {
            bytes[place..place + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes[16] = self.line;
        bytes[17..TERMIOS_BYTES].copy_from_slice(&self.characters);
        bytes
    }

    /// Returns true if the input is lines.
    pub(super) fn is_canonical(&self) -> bool {
        self.local & ICANON != 0
    }

    /// Returns true if the program hangs up by its speed (B0).
    pub(super) fn is_hung_up(&self) -> bool {
        self.speed.output_baud == 0
    }

    /// Returns true if a carrier and its loss do not matter.
    pub(super) fn is_local(&self) -> bool {
        self.control & CLOCAL != 0
    }

    /// Returns the settings for the port. A speed of 0 only turns the lines off.
    pub(super) fn settings(&self) -> Settings {
        let has = |bits: u32| self.control & bits != 0;
        let parity = match (has(PARENB), has(CMSPAR), has(PARODD)) {
            (false, ..) => Parity::None,
            (true, false, false) => Parity::Even,
            (true, false, true) => Parity::Odd,
            (true, true, false) => Parity::Space,
            (true, true, true) => Parity::Mark,
        };
        Settings {
            speed: Some(self.speed).filter(|_| !self.is_hung_up()),
            data_bits: Some(5 + ((self.control & CSIZE) >> 4) as u8),
            parity: Some(parity),
            stop_bits: Some(if has(CSTOPB) { 2 } else { 1 }),
            flow: Some(FlowControl {
                xon_output: self.input & IXON != 0,
                xoff_input: self.input & IXOFF != 0,
                rts_cts: has(CRTSCTS),
            }),
        }
    }

    /// Returns the bytes for the line: with OPOST, line ends are converted.
    pub(super) fn process_output(&self, data: Vec<u8>) -> Vec<u8> {
        let has = |bit: u32| self.output & bit != 0;
        if !has(OPOST) || !has(ONLCR | OCRNL) {
            return data;
        }
        let mut processed = Vec::with_capacity(data.len());
        for byte in data {
            match byte {
                b'\n' if has(ONLCR) => processed.extend(b"\r\n"),
                b'\r' if has(OCRNL) => processed.push(b'\n'),
                _ => processed.push(byte),
            }
        }
        processed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn settings_with_an_effect_come_back(bytes in proptest::collection::vec(any::<u8>(), TERMIOS2_BYTES)) {
            let parsed = Termios::default().parse(&bytes).unwrap();
            prop_assert_eq!(Termios::default().parse(&parsed.emit()), Some(parsed));
            let old = parsed.emit();
            prop_assert_eq!(parsed.parse(&old[..TERMIOS_BYTES]), Some(parsed));
            let _ = parsed.settings();
        }

        #[test]
        fn short_structures_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..TERMIOS_BYTES)) {
            prop_assert_eq!(Termios::default().parse(&bytes), None);
        }
    }

    #[test]
    fn speeds_have_codes_and_any_other_has_its_number() {
        let mut termios = Termios::default();
        termios.control = termios.control & !CBAUD | 0o10002;
        let fast = Termios::default().parse(&termios.emit()).unwrap();
        assert_eq!(fast.speed, Speed { input_baud: 115_200, output_baud: 115_200 });
        termios.control = termios.control & !CBAUD | BOTHER;
        termios.speed.output_baud = 74_880;
        let other = Termios::default().parse(&termios.emit()).unwrap();
        assert_eq!(other.speed, Speed { input_baud: 74_880, output_baud: 74_880 });
    }
}
