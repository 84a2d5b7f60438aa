//! A Wayland desktop without a monitor: sway with its headless backend, and the programs on it.

use crate::skip::has_program;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The time limit of every wait, long enough for a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// sway refuses to run as root: then it runs as the user `nobody`.
const NOBODY: u32 = 65534;

/// A running desktop. Dropping it ends the compositor, and the programs on it.
#[derive(Debug)]
pub struct Desktop {
    compositor: Option<Child>,
    directory: PathBuf,
    configuration: String,
}

impl Desktop {
    /// Starts a desktop with one output of 640x480 pixels; `configuration` has further lines of sway's. Returns `None` on a machine
    /// without its packages, where the test counts as skipped.
    pub fn start(configuration: &str) -> Option<Desktop> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if ![("sway", "sway"), ("grim", "grim"), ("foot", "foot"), ("wev", "wev")]
            .iter()
            .all(|(program, package)| has_program(program, package))
        {
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // The path of a socket is short.
        let directory = std::env::temp_dir().join(format!("outboard-sway-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a new directory");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).expect("its mode changes");
        if is_root() {
            chown(&directory, Some(NOBODY), Some(NOBODY)).expect("its owner changes");
        }
        let configuration = format!(
            "output * mode --custom 640x480\noutput * bg #204060 solid_color\ndefault_border none\nxwayland disable\n{configuration}\n"
        );
        let mut desktop = Desktop { compositor: None, directory, configuration };
        desktop.run();
        Some(desktop)
    }

    /// Starts the compositor, if it does not run, and waits until its socket is listened to.
    pub fn run(&mut self) {
        let configuration = self.path("sway.cfg");
        fs::write(&configuration, &self.configuration).expect("a writable directory");
        let log = fs::File::create(self.path("sway.log")).expect("a writable directory");
        let mut command = self.command("sway");
        command.args(["-c", &configuration]).stdout(Stdio::null()).stderr(log);
        self.compositor = Some(command.spawn().expect("sway starts"));
        self.wait("its socket", || UnixStream::connect(self.display()).is_ok());
    }

    /// Kills the compositor, as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut compositor) = self.compositor.take() {
            let _ = compositor.kill();
            let _ = compositor.wait();
            self.end_programs();
        }
        let _ = fs::remove_file(self.display());
        let _ = fs::remove_file(self.path("ipc"));
    }

    /// Kills the programs of the compositor, which work in the desktop's directory: wev does not end without it, and keeps a
    /// processor busy.
    fn end_programs(&self) {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        for process in processes {
            if fs::read_link(process.path().join("cwd")).is_ok_and(|directory| directory == self.directory) {
                let _ =
                    Command::new("kill").arg("-9").arg(process.file_name()).stderr(Stdio::null()).status();
            }
        }
    }

    /// A program for this desktop, run as its user.
    fn command(&self, program: &str) -> Command {
        let mut command = match is_root() {
            true => {
                let mut command = Command::new("setpriv");
                let user =
                    [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".into()];
                command.args(user).arg(program);
                command
            }
            false => Command::new(program),
        };
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.directory)
            .env("LANG", "C.UTF-8")
            .env("XDG_RUNTIME_DIR", &self.directory)
            .env("WLR_BACKENDS", "headless")
            .env("WLR_HEADLESS_OUTPUTS", "1")
            .env("WLR_LIBINPUT_NO_DEVICES", "1")
            .env("WLR_RENDERER", "pixman")
            .env("SWAYSOCK", self.path("ipc"))
            .env("WAYLAND_DISPLAY", "wayland-1")
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .process_group(0);
        if program == "sway" {
            command.env_remove("WAYLAND_DISPLAY");
        }
        command
    }

    /// A path in the desktop's directory.
    pub fn path(&self, name: &str) -> String {
        self.directory.join(name).to_str().expect("a path of text").into()
    }

    /// The path of the compositor's socket.
    pub fn display(&self) -> String {
        self.path("wayland-1")
    }

    /// The directory of the socket, `XDG_RUNTIME_DIR`.
    pub fn directory(&self) -> &std::path::Path {
        &self.directory
    }

    /// Runs a command of sway, such as `output HEADLESS-1 transform 90`.
    ///
    /// # Panics
    /// If sway refuses it.
    pub fn message(&self, command: &str) {
        let mut message = self.command("swaymsg");
        let output = message.arg(command).output().expect("swaymsg runs");
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stdout));
    }

    /// Width, height, and the red, green and blue of each pixel, as `grim` sees the screen.
    ///
    /// # Panics
    /// If `grim` fails.
    pub fn screenshot(&self) -> (usize, usize, Vec<u8>) {
        let output =
            self.command("grim").args(["-o", "HEADLESS-1", "-t", "ppm", "-"]).output().expect("grim runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut parts = output.stdout.splitn(4, |byte| byte.is_ascii_whitespace());
        let mut text = || String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let (kind, width, height) = (text(), text(), text());
        assert_eq!(kind, "P6");
        let rest = parts.next().expect("a picture");
        let pixels = &rest[rest.iter().position(|byte| *byte == b'\n').expect("the most of a colour") + 1..];
        (width.parse().expect("a width"), height.parse().expect("a height"), pixels.to_vec())
    }

    /// Waits until a file in the desktop's directory has this text.
    pub fn wait_for_text(&self, file: &str, text: &str) {
        let is_there = || self.text(file).contains(text);
        let deadline = Instant::now() + PATIENCE;
        while !is_there() {
            assert!(Instant::now() < deadline, "{text}: it does not arrive in: {}", self.text(file));
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the text of a file in the desktop's directory; empty if there is none.
    pub fn text(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap_or_default()
    }

    /// Waits until `done`.
    ///
    /// # Panics
    /// After a minute.
    pub fn wait(&self, what: &str, done: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done() {
            assert!(
                Instant::now() < deadline,
                "{what}: it does not arrive; sway wrote: {}",
                self.text("sway.log")
            );
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for Desktop {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}
