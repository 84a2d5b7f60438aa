//! The terminal of what is shown live: a screen of its own, keys without Enter, and everything as it was afterwards.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, Write};
use std::time::Duration;

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE_END: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
/// Where the size is not known.
const COLUMNS: usize = 80;

/// The terminal, while it is ours.
pub(crate) struct Terminal {
    /// How standard input was, if keys come from there.
    before: Option<Termios>,
}

impl Terminal {
    /// Takes the terminal; `None` if standard output is none.
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

    /// Whether keys can be pressed.
    pub(crate) fn has_keys(&self) -> bool {
        self.before.is_some()
    }

    pub(crate) fn columns(&self) -> usize {
        match tcgetwinsize(rustix::stdio::stdout()) {
            Ok(size) if size.ws_col > 0 => size.ws_col.into(),
            _ => COLUMNS,
        }
    }

    /// Shows these lines and nothing else.
    pub(crate) fn show(&self, lines: &[String]) -> io::Result<()> {
        let body = lines.join(&format!("{CLEAR_LINE_END}\r\n"));
        write(&format!("{HOME}{body}{CLEAR_LINE_END}{CLEAR_BELOW}"))
    }

    /// Waits for a key, `patience` at most.
    pub(crate) fn key(&self, patience: Duration) -> Option<char> {
        if self.before.is_none() {
            std::thread::sleep(patience);
            return None;
        }
        let stdin = rustix::stdio::stdin();
        let timeout = Timespec::try_from(patience).ok();
        // Interrupted is as good as nothing pressed.
        let ready = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], timeout.as_ref()).unwrap_or(0);
        let mut byte = [0];
        match ready > 0 && rustix::io::read(stdin, &mut byte).is_ok_and(|count| count == 1) {
            true => Some(char::from(byte[0])),
            false => None,
        }
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
