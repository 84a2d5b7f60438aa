//! Programs that run while a value exists, X servers among them.

use crate::setting::Failure;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use x11rb::connection::Connection;
use x11rb::protocol::xproto::{AtomEnum, ConnectionExt};
use x11rb::rust_connection::RustConnection;

/// The longest start of a program.
const PATIENCE: Duration = Duration::from_secs(15);
/// The interval of checks.
const LOOK: Duration = Duration::from_millis(5);

/// Returns true if a program is installed.
pub(crate) fn is_installed(name: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|path| path.join(name).exists())
}

/// Returns the processor time of all threads of a process in nanoseconds (`/proc/PID/task/*/schedstat`).
pub(crate) fn cpu_ns(process: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return 0 };
    let used = |thread: &Path| {
        fs::read_to_string(thread.join("schedstat")).ok()?.split(' ').next()?.parse::<u64>().ok()
    };
    threads.flatten().filter_map(|thread| used(&thread.path())).sum()
}

/// A program. Dropping the value stops it.
#[derive(Debug)]
pub(crate) struct Program(Child);

impl Program {
    /// Starts a program without input and output.
    pub(crate) fn start(command: &mut Command) -> Result<Program, Failure> {
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        started
            .map(Program)
            .map_err(|error| format!("cannot start {}: {error}", command.get_program().display()).into())
    }

    /// Returns the program's processor time.
    pub(crate) fn cpu_ns(&self) -> u64 {
        cpu_ns(self.0.id())
    }

    /// Returns the program's process.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns the exit status, if the program has exited.
    pub(crate) fn end(&mut self) -> Option<String> {
        self.0.try_wait().ok().flatten().map(|status| status.to_string())
    }

    /// Waits until `attempt` succeeds. An exit of the program is an error.
    pub(crate) fn until<T>(
        &mut self,
        step: &str,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Result<T, Failure> {
        let begun = Instant::now();
        loop {
            if let Some(done) = attempt() {
                return Ok(done);
            }
            if let Some(status) = self.0.try_wait()? {
                return Err(format!("{step}: the program exited: {status}").into());
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("{step}: no success within {PATIENCE:?}").into());
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SIGTERM first, so that an X server removes its socket and its lock.
        if let Some(id) = rustix::process::Pid::from_raw(self.0.id() as i32) {
            let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        }
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An X server with its display.
#[derive(Debug)]
pub(crate) struct Display {
    /// The value of `DISPLAY`.
    pub(crate) name: String,
    pub(crate) program: Program,
}

impl Display {
    /// Starts a server on a free display. `command` returns the command for a display.
    pub(crate) fn start(command: impl FnOnce(&str) -> Command) -> Result<Display, Failure> {
        let is_free = |number: &u32| {
            let traces = [format!("/tmp/.X11-unix/X{number}"), format!("/tmp/.X{number}-lock")];
            traces.iter().all(|trace| !Path::new(trace).exists())
        };
        let number = (100 + std::process::id() % 800..).find(is_free).ok_or("no display is free")?;
        let name = format!(":{number}");
        let mut program = Program::start(&mut command(&name))?;
        let socket = format!("/tmp/.X11-unix/X{number}");
        program.until("the X server", || std::os::unix::net::UnixStream::connect(&socket).ok().map(drop))?;
        Ok(Display { name, program })
    }

    /// Starts a window manager and waits until it manages windows.
    pub(crate) fn manage(&self, command: &mut Command) -> Result<Program, Failure> {
        let mut manager = Program::start(command.env("DISPLAY", &self.name))?;
        let (connection, screen) = RustConnection::connect(Some(&self.name))?;
        let root = connection.setup().roots[screen].root;
        let check = connection.intern_atom(false, b"_NET_SUPPORTING_WM_CHECK")?.reply()?.atom;
        // A window manager announces itself (EWMH).
        manager.until("the window manager", || {
            let asked = connection.get_property(false, root, check, AtomEnum::WINDOW, 0, 1).ok()?;
            asked.reply().ok().filter(|reply| reply.value_len > 0).map(drop)
        })?;
        Ok(manager)
    }

    /// Starts a server without hardware.
    pub(crate) fn headless(width: usize, height: usize) -> Result<Display, Failure> {
        Display::start(|name| {
            let mut command = Command::new("Xvfb");
            command.args([
                name,
                "-noreset",
                "-nolisten",
                "tcp",
                "-screen",
                "0",
                &format!("{width}x{height}x24"),
            ]);
            command
        })
    }
}
