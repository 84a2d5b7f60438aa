//! The terminal for live views: an alternate screen, keys without Enter, and the previous state afterwards.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, Write};
use std::time::Duration;

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE_END: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
/// Width if the terminal reports none.
const COLUMNS: usize = 80;

/// The terminal in live mode; dropping it restores the previous state.
pub(crate) struct Terminal {
    /// Previous state of standard input, if it is a terminal.
    before: Option<Termios>,
}

impl Terminal {
    /// Switches the terminal to live mode; `None` if standard output is not a terminal.
    pub(crate) fn take() -> io::Result<Option<Terminal>> {
        let stdin = rustix::stdio::stdin();
        if !isatty(rustix::stdio::stdout()) {
            return Ok(None);
        }
        let before = tcgetattr(stdin).ok();
        if let Some(before) = &before {
            let mut raw = before.clone();
            raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            tcsetattr(stdin, OptionalActions::Now, &raw)?;
        }
        let terminal = Terminal { before };
        write(ENTER)?;
        Ok(Some(terminal))
    }

    /// Returns whether key presses can be read.
    pub(crate) fn has_keys(&self) -> bool {
        self.before.is_some()
    }

    pub(crate) fn columns(&self) -> usize {
        stdout_columns().unwrap_or(COLUMNS)
    }

    /// Replaces the content of the screen with these lines.
    pub(crate) fn show(&self, lines: &[String]) -> io::Result<()> {
        let body = lines.join(&format!("{CLEAR_LINE_END}\r\n"));
        write(&format!("{HOME}{body}{CLEAR_LINE_END}{CLEAR_BELOW}"))
    }

    /// Waits up to `patience` for a key.
    pub(crate) fn key(&self, patience: Duration) -> Option<char> {
        if self.before.is_none() {
            std::thread::sleep(patience);
            return None;
        }
        let stdin = rustix::stdio::stdin();
        let timeout = Timespec::try_from(patience).ok();
        // An interrupted wait counts as no key.
        let ready = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], timeout.as_ref()).unwrap_or(0);
        let mut byte = [0];
        match ready > 0 && rustix::io::read(stdin, &mut byte).is_ok_and(|count| count == 1) {
            true => Some(char::from(byte[0])),
            false => None,
        }
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
        let _ = write(LEAVE);
        if let Some(before) = &self.before {
            let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, before);
        }
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
