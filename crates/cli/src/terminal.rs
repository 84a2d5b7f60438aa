//! The terminal for live views: an alternate screen, keys without Enter, and the previous state afterwards. A signal ends a view
//! by [`Stop`]: a process that dies by it would leave the terminal without cursor and echo. For the same reason, the key that
//! suspends a command (Ctrl-Z) arrives here as a character, and not as a signal.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, kill_current_process_group};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr,
};
use std::io::{self, Write};
use std::time::{Duration, Instant};
use sys::stop::Stop;

/// The alternate screen, without a cursor. A line that is too long is cut, because a second row would move the others.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[2K";
const CLEAR_BELOW: &str = "\x1b[J";
/// The value of a terminal's special code that no key has (`_POSIX_VDISABLE`).
const NO_CODE: u8 = 0;
/// Size if the terminal reports none.
const COLUMNS: usize = 80;
const ROWS: usize = 24;

/// The terminal in live mode; dropping it restores the previous state.
pub(crate) struct Terminal {
    /// Previous state of standard input, if it is a terminal.
    before: Option<Termios>,
    stop: Stop,
    /// Lines that are scrolled out at the top.
    first: usize,
}

/// A key: one that scrolls, by lines or screens, or a character.
#[derive(Debug, PartialEq)]
enum Key {
    Lines(isize),
    Screens(isize),
    Character(char),
}

impl Terminal {
    /// Switches the terminal to live mode; `None` if standard output is not a terminal, or is one without escape sequences
    /// (`TERM=dumb`). Signals have to request the stop.
    pub(crate) fn take(stop: &Stop) -> io::Result<Option<Terminal>> {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if is_dumb || !isatty(rustix::stdio::stdout()) {
            return Ok(None);
        }
        let before = tcgetattr(rustix::stdio::stdin()).ok();
        let terminal = Terminal { before, stop: stop.clone(), first: 0 };
        terminal.enter()?;
        Ok(Some(terminal))
    }

    fn enter(&self) -> io::Result<()> {
        if let Some(before) = &self.before {
            let mut raw = before.clone();
            raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            raw.special_codes[SpecialCodeIndex::VSUSP] = NO_CODE;
            tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw)?;
        }
        write(ENTER)
    }

    fn leave(&self) {
        let _ = write(LEAVE);
        if let Some(before) = &self.before {
            let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, before);
        }
    }

    /// Returns whether this key suspends the command.
    fn suspends(&self, key: char) -> bool {
        let code =
            self.before.as_ref().map_or(NO_CODE, |before| before.special_codes[SpecialCodeIndex::VSUSP]);
        code != NO_CODE && key == char::from(code)
    }

    /// Returns the terminal to the shell, and stops the processes of this command. The shell continues them later (`fg`).
    fn suspend(&self) -> io::Result<()> {
        self.leave();
        kill_current_process_group(Signal::TSTP)?;
        self.enter()
    }

    pub(crate) fn columns(&self) -> usize {
        stdout_columns().unwrap_or(COLUMNS)
    }

    /// Shows these lines, and the keys below them, until a key, the stop, or `patience` has passed. Keys that scroll the
    /// lines are not returned.
    pub(crate) fn show(
        &mut self,
        lines: &[String],
        keys: &str,
        patience: Duration,
    ) -> io::Result<Option<char>> {
        let until = Instant::now() + patience;
        let help = match self.before {
            Some(_) => [keys, "   ↑ and ↓ scroll"],
            None => ["Ctrl-C quits", ""],
        };
        loop {
            let rows = stdout_rows();
            let frame = frame(lines, help, rows, &mut self.first);
            let body: Vec<_> = frame.iter().map(|line| format!("{CLEAR_LINE}{line}")).collect();
            write(&format!("{HOME}{}{CLEAR_BELOW}", body.join("\r\n")))?;
            let (steps, size) = match self.key(until.saturating_duration_since(Instant::now())) {
                Some(Key::Lines(steps)) => (steps, 1),
                Some(Key::Screens(steps)) => (steps, rows.saturating_sub(2)),
                Some(Key::Character(key)) if self.suspends(key) => {
                    self.suspend()?;
                    continue;
                }
                Some(Key::Character(key)) => return Ok(Some(key)),
                None => return Ok(None),
            };
            self.first = self.first.saturating_add_signed(steps * size as isize);
        }
    }

    /// Waits up to `patience` for a key or the stop.
    fn key(&self, patience: Duration) -> Option<Key> {
        if self.before.is_none() {
            pause(patience, &self.stop);
            return None;
        }
        let (stdin, wakes) = (rustix::stdio::stdin(), self.stop.wakes());
        let mut sources = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&wakes, PollFlags::IN)];
        wait(&mut sources, patience);
        let is_ready = sources[0].revents().contains(PollFlags::IN);
        is_ready.then(|| parse_key(read_byte)).flatten()
    }
}

/// Reads a key: a character, or the bytes that a terminal sends for an arrow or a page key.
fn parse_key(mut next: impl FnMut() -> Option<u8>) -> Option<Key> {
    let first = next()?;
    if first != b'\x1b' {
        return Some(match first {
            b'j' => Key::Lines(1),
            b'k' => Key::Lines(-1),
            b' ' => Key::Screens(1),
            _ => Key::Character(char::from(first)),
        });
    }
    // `ESC [ PARAMETERS FINAL`, or `ESC O FINAL`.
    let mut sequence = vec![next()?];
    while sequence.len() == 1 || sequence.last().is_some_and(|byte| !matches!(byte, 0x40..=0x7e)) {
        sequence.push(next()?);
    }
    match sequence.as_slice() {
        b"[A" | b"OA" => Some(Key::Lines(-1)),
        b"[B" | b"OB" => Some(Key::Lines(1)),
        b"[5~" => Some(Key::Screens(-1)),
        b"[6~" => Some(Key::Screens(1)),
        _ => None,
    }
}

/// Reads a byte of standard input, if one has arrived.
fn read_byte() -> Option<u8> {
    let stdin = rustix::stdio::stdin();
    let mut sources = [PollFd::new(&stdin, PollFlags::IN)];
    wait(&mut sources, Duration::ZERO);
    let mut byte = [0];
    let is_ready = sources[0].revents().contains(PollFlags::IN);
    (is_ready && rustix::io::read(stdin, &mut byte) == Ok(1)).then_some(byte[0])
}

/// Returns at most `rows` lines: those from `first` on, and the help. `first` becomes one that fills the screen.
fn frame(lines: &[String], help: [&str; 2], rows: usize, first: &mut usize) -> Vec<String> {
    let [keys, scroll] = help;
    let room = rows.saturating_sub(1);
    *first = (*first).min(lines.len().saturating_sub(room));
    let last = lines.len().min(*first + room);
    let mut shown = lines[*first..last].to_vec();
    if shown.len() < lines.len() {
        shown.push(format!("{keys}{scroll}   lines {}-{last} of {}", *first + 1, lines.len()));
        return shown;
    }
    // A blank line, if there is a row for it.
    shown.extend((lines.len() < room).then(String::new));
    shown.push(keys.into());
    shown
}

/// Waits up to `patience` for the stop.
pub(crate) fn pause(patience: Duration, stop: &Stop) {
    let wakes = stop.wakes();
    wait(&mut [PollFd::new(&wakes, PollFlags::IN)], patience);
}

/// Waits for one of these. An interrupted wait ends early.
fn wait(sources: &mut [PollFd<'_>], patience: Duration) {
    let _ = poll(sources, Timespec::try_from(patience).ok().as_ref());
}

fn stdout_rows() -> usize {
    match tcgetwinsize(rustix::stdio::stdout()) {
        Ok(size) if size.ws_row > 0 => size.ws_row.into(),
        _ => ROWS,
    }
}

/// Returns the width of standard output, if it is a terminal.
pub(crate) fn stdout_columns() -> Option<usize> {
    if !isatty(rustix::stdio::stdout()) {
        return None;
    }
    match tcgetwinsize(rustix::stdio::stdout()) {
        Ok(size) if size.ws_col > 0 => Some(size.ws_col.into()),
        _ => Some(COLUMNS),
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.leave();
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fits_every_height() {
        for count in 0..12 {
            let lines: Vec<_> = (1..=count).map(|line| line.to_string()).collect();
            for rows in 1..12 {
                for scrolled in 0..12 {
                    let mut first = scrolled;
                    let frame = frame(&lines, ["q quits", ""], rows, &mut first);
                    // The lines, a blank one and the keys; no row is blank while a line is hidden.
                    assert_eq!(frame.len(), rows.min(count + 2), "{rows} rows: {frame:?}");
                    assert!(frame[frame.len() - 1].starts_with("q quits"), "{frame:?}");
                }
            }
        }
    }

    #[test]
    fn the_hidden_lines_are_counted() {
        let lines: Vec<_> = (1..=26).map(|line| line.to_string()).collect();
        let mut first = 0;
        assert_eq!(frame(&lines, ["q quits", ""], 27, &mut first).last().unwrap(), "q quits");
        let top = frame(&lines, ["q quits", ""], 10, &mut first);
        assert!(top[0] == "1" && top[9].ends_with("lines 1-9 of 26"), "{top:?}");
        first = 100;
        let end = frame(&lines, ["q quits", ""], 10, &mut first);
        assert!(first == 17 && end[8] == "26" && end[9].ends_with("lines 18-26 of 26"), "{end:?}");
    }

    #[test]
    fn arrows_and_page_keys_scroll() {
        let keys = |bytes: &[u8]| {
            let mut bytes = bytes.iter().copied();
            let keys: Vec<_> = std::iter::from_fn(|| parse_key(|| bytes.next())).collect();
            (keys, bytes.count())
        };
        let (scrolls, _) = keys(b"j\x1b[A\x1bOB\x1b[5~ \x1b[6~kq");
        let [down, up] = [1, -1].map(Key::Lines);
        let (next, last) = (Key::Screens(1), Key::Screens(-1));
        assert_eq!(scrolls[..4], [down, up, Key::Lines(1), last]);
        assert_eq!(scrolls[4..], [next, Key::Screens(1), Key::Lines(-1), Key::Character('q')]);
        // Other keys take all of their bytes, and a lone Escape waits for none.
        assert_eq!(keys(b"\x1b[1;5Cq"), (vec![], 1));
        assert_eq!(keys(b"\x1b"), (vec![], 0));
    }
}
