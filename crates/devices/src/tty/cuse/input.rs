//! Received bytes on their way to the program, as the kernel's line discipline handles them (`n_tty`, `termios(3)`): line ends,
//! marks of breaks and faults, lines in canonical mode. Echo and signals do not exist.

use super::termios::*;
use crate::serial::Fault;
use std::collections::VecDeque;

/// Received bytes that wait for the program; then the network waits.
const READY_BYTES_MAX: usize = 16 << 10;
/// The longest line in canonical mode. More bytes are dropped, as a terminal drops them.
const LINE_BYTES_MAX: usize = 4095;
/// Lines in canonical mode that wait.
const LINES_MAX: usize = 4096;

/// Bytes that wait for the program.
#[derive(Debug, Default)]
pub(super) struct Input {
    /// Bytes that can be read.
    ready: VecDeque<u8>,
    /// The lengths of the lines in them, in canonical mode.
    lines: VecDeque<usize>,
    /// The line that has no end yet.
    line: Vec<u8>,
}

impl Input {
    /// Returns true if there is room for received bytes.
    pub(super) fn has_room(&self) -> bool {
        self.ready.len() < READY_BYTES_MAX && self.lines.len() < LINES_MAX
    }

    /// The bytes that can be read.
    pub(super) fn len(&self) -> usize {
        self.ready.len()
    }

    /// Drops everything. Returns the number of bytes.
    pub(super) fn clear(&mut self) -> usize {
        let dropped = self.ready.len() + self.line.len();
        *self = Input::default();
        dropped
    }

    /// Takes received bytes.
    pub(super) fn receive(&mut self, bytes: &[u8], fault: Option<Fault>, termios: &Termios) {
        let has = |bits: u32| termios.input & bits != 0;
        for byte in bytes.iter().copied() {
            match fault {
                Some(Fault::Break) if has(IGNBRK) => {}
                // Without a process group to interrupt, BRKINT only takes the break away.
                Some(Fault::Break) if has(BRKINT) => drop(self.clear()),
                Some(Fault::Break) if has(PARMRK) => self.extend(&[0xff, 0, 0], termios),
                Some(Fault::Break) => self.extend(&[0], termios),
                Some(Fault::Corrupt) if has(INPCK) && has(IGNPAR) => {}
                Some(Fault::Corrupt) if has(INPCK) && has(PARMRK) => self.extend(&[0xff, 0, byte], termios),
                Some(Fault::Corrupt) if has(INPCK) => self.extend(&[0], termios),
                _ => self.receive_byte(byte, termios),
            }
        }
    }

    fn receive_byte(&mut self, byte: u8, termios: &Termios) {
        let has = |bits: u32| termios.input & bits != 0;
        match if has(ISTRIP) { byte & 0x7f } else { byte } {
            0xff if has(PARMRK) => self.extend(&[0xff, 0xff], termios),
            b'\r' if has(IGNCR) => {}
            b'\r' if has(ICRNL) => self.add(b'\n', termios),
            b'\n' if has(INLCR) => self.add(b'\r', termios),
            byte => self.add(byte, termios),
        }
    }

    fn extend(&mut self, bytes: &[u8], termios: &Termios) {
        if !termios.is_canonical() {
            self.ready.extend(bytes);
        } else if self.line.len() + bytes.len() <= LINE_BYTES_MAX {
            self.line.extend(bytes);
        }
    }

    fn add(&mut self, byte: u8, termios: &Termios) {
        let is = |place: usize| byte != 0 && byte == termios.characters[place];
        if !termios.is_canonical() {
            self.ready.push_back(byte);
        } else if byte == b'\n' || is(VEOL) || is(VEOL2) {
            self.line.push(byte);
            self.end_line();
        } else if is(VEOF) {
            self.end_line();
        } else if is(VERASE) {
            self.line.pop();
        } else if is(VKILL) {
            self.line.clear();
        } else {
            self.extend(&[byte], termios);
        }
    }

    fn end_line(&mut self) {
        self.lines.push_back(self.line.len());
        self.ready.extend(self.line.drain(..));
    }

    /// The program changed its mode. Bytes that wait become a line, or lose their lines.
    pub(super) fn set_canonical(&mut self, is_canonical: bool) {
        self.lines.clear();
        if !is_canonical {
            self.ready.extend(self.line.drain(..));
        } else if !self.ready.is_empty() {
            self.lines.push_back(self.ready.len());
        }
    }

    /// Returns true if a read returns at once; for `poll`, a read of VMIN bytes.
    pub(super) fn is_ready(&self, termios: &Termios, is_poll: bool) -> bool {
        let (least, timeout) = (termios.characters[VMIN], termios.characters[VTIME]);
        match termios.is_canonical() {
            true => !self.lines.is_empty(),
            false if is_poll && timeout == 0 => self.ready.len() >= usize::from(least).max(1),
            false => !self.ready.is_empty(),
        }
    }

    /// Takes at most `room` bytes, in canonical mode of one line.
    pub(super) fn take(&mut self, room: usize, termios: &Termios) -> Vec<u8> {
        let mut count = room.min(self.ready.len());
        if termios.is_canonical() {
            let Some(line) = self.lines.front_mut() else { return Vec::new() };
            count = count.min(*line);
            *line -= count;
            if *line == 0 {
                self.lines.pop_front();
            }
        }
        self.ready.drain(..count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn raw(input: u32) -> Termios {
        let mut bytes = Termios::default().emit();
        bytes[..4].copy_from_slice(&input.to_ne_bytes());
        bytes[12..16].fill(0);
        Termios::default().parse(&bytes).unwrap()
    }

    #[test]
    fn raw_bytes_pass_and_faults_are_marked() {
        for (flags, expected) in [
            (0, &b"a\xff\r\x00x"[..]),
            (PARMRK | INPCK, b"a\xff\xff\r\xff\x00\x00\xff\x00x"),
            (INPCK, b"a\xff\r\x00\x00"),
            (IGNBRK | INPCK | IGNPAR, b"a\xff\r"),
            (ISTRIP | ICRNL, b"a\x7f\n\x00x"),
            (IGNCR, b"a\xff\x00x"),
        ] {
            let (mut input, termios) = (Input::default(), raw(flags));
            input.receive(b"a\xff\r", None, &termios);
            input.receive(b"\0", Some(Fault::Break), &termios);
            input.receive(b"x", Some(Fault::Corrupt), &termios);
            assert_eq!(input.take(100, &termios), expected, "{flags:o}");
        }
    }

    #[test]
    fn lines_are_edited_and_end() {
        let (mut input, termios) = (Input::default(), Termios::default());
        input.receive(b"wrong\x15tx\x7fwo\rlines\nhalf", None, &termios);
        assert!(input.is_ready(&termios, true));
        assert_eq!(input.take(2, &termios), b"tw");
        assert_eq!(input.take(100, &termios), b"o\n");
        assert_eq!(input.take(100, &termios), b"lines\n");
        assert!(!input.is_ready(&termios, true) && input.take(100, &termios).is_empty());
        input.receive(b"\x04\x04", None, &termios);
        assert_eq!(input.take(100, &termios), b"half");
        assert!(input.is_ready(&termios, false), "the end of a file can be read");
        assert_eq!(input.take(100, &termios), b"");
        input.receive(b"rest", None, &termios);
        input.set_canonical(false);
        assert_eq!(input.take(100, &raw(0)), b"rest");
    }

    proptest! {
        #[test]
        fn memory_is_bounded(pieces: Vec<(Vec<u8>, bool)>, flags: u32, is_canonical: bool) {
            let mut input = Input::default();
            let termios = if is_canonical { Termios::default() } else { raw(flags) };
            let mut sent = 0;
            for (piece, is_fault) in &pieces {
                input.receive(piece, is_fault.then_some(Fault::Corrupt), &termios);
                sent += piece.len();
            }
            prop_assert!(input.len() <= 3 * sent && input.line.len() <= LINE_BYTES_MAX + 1);
            let mut read = 0;
            while input.is_ready(&termios, false) {
                read += input.take(7, &termios).len();
            }
            prop_assert!(read <= 3 * sent);
        }
    }
}
