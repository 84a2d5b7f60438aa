//! The terminal for live views: an alternate screen, keys without Enter, and the previous state afterwards. A signal ends a view
//! by [`Stop`]: a process that dies by it would leave the terminal without cursor and echo.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, Write};
use std::time::Duration;
use sys::stop::Stop;

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
    stop: Stop,
}

impl Terminal {
    /// Switches the terminal to live mode; `None` if standard output is not a terminal. Signals have to request the stop.
    pub(crate) fn take(stop: &Stop) -> io::Result<Option<Terminal>> {
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
        let terminal = Terminal { before, stop: stop.clone() };
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

    /// Waits up to `patience` for a key or the stop.
    pub(crate) fn key(&self, patience: Duration) -> Option<char> {
        if !self.has_keys() {
            pause(patience, &self.stop);
            return None;
        }
        let (stdin, wakes) = (rustix::stdio::stdin(), self.stop.wakes());
        let mut sources = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&wakes, PollFlags::IN)];
        wait(&mut sources, patience);
        let is_ready = sources[0].revents().contains(PollFlags::IN);
        let mut byte = [0];
        match is_ready && rustix::io::read(stdin, &mut byte).is_ok_and(|count| count == 1) {
            true => Some(char::from(byte[0])),
            false => None,
        }
    }
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
