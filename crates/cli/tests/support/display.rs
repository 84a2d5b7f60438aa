//! An X server with a virtual screen.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A running server. Dropping it ends the server.
pub(crate) struct Display {
    server: Child,
    /// Its name, such as `:1`.
    pub(crate) name: String,
}

impl Display {
    /// Starts a server; `None` on a machine without its package, where the test counts as skipped.
    pub(crate) fn start() -> Option<Display> {
        if !testkit::skip::has_program("Xvfb", "xvfb") {
            return None;
        }
        let mut command = Command::new("Xvfb");
        command.args(["-displayfd", "1", "-nolisten", "tcp", "-noreset", "-screen", "0", "640x480x24"]);
        let mut server = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut number = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut number).unwrap();
        Some(Display { server, name: format!(":{}", number.trim()) })
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
