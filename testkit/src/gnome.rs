//! A desktop of GNOME without a monitor and without its shell: mutter, PipeWire, and the real portal with GNOME's backend on a
//! session bus of its own. The portal's dialog is answered as a screen reader would, by the accessibility bus.

use crate::skip::{has_any, has_file, has_program};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The time limit of every wait, long enough for a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// Waits for the dialog and answers it; its argument says how.
const SCRIPT: &str = include_str!("gnome_dialog.py");

/// An answer to the portal's dialog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Shares the only monitor, and allows remote interaction where the dialog offers it.
    Allow,
    /// Shares the only monitor, and allows nothing else.
    Look,
    /// Refuses.
    Cancel,
}

/// A running desktop. Dropping it ends the compositor, and the programs on it.
#[derive(Debug)]
pub struct Gnome {
    children: Vec<Child>,
    directory: PathBuf,
}

impl Gnome {
    /// Starts a desktop with one monitor of 640x480 pixels. Returns `None` on a machine without its packages, where the test
    /// counts as skipped.
    pub fn start() -> Option<Gnome> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let programs = [
            ("mutter", "mutter"),
            ("dbus-daemon", "dbus"),
            ("pipewire", "pipewire"),
            ("wireplumber", "wireplumber"),
            ("foot", "foot"),
            ("wev", "wev"),
        ];
        let files = [
            ("/usr/libexec/xdg-desktop-portal", "xdg-desktop-portal"),
            ("/usr/libexec/xdg-desktop-portal-gnome", "xdg-desktop-portal-gnome"),
            ("/usr/libexec/at-spi-bus-launcher", "at-spi2-core"),
            ("/usr/lib/python3/dist-packages/gi/__init__.py", "python3-gi"),
        ];
        let has_atspi = has_any("/usr/lib", "girepository-1.0/Atspi-2.0.typelib", "gir1.2-atspi-2.0");
        let has_all = has_atspi
            && programs.iter().all(|(program, package)| has_program(program, package))
            && files.iter().all(|(file, package)| has_file(file, package));
        if !has_all {
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // The path of a socket is short.
        let directory = std::env::temp_dir().join(format!("outboard-gnome-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a new directory");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).expect("its mode changes");
        let mut desktop = Gnome { children: Vec::new(), directory };
        let bus = format!("--address={}", desktop.bus());
        desktop.spawn("dbus-daemon", &["--session", "--nofork", "--nopidfile", &bus]);
        desktop.wait_for_socket("bus");
        desktop.spawn("pipewire", &[]);
        desktop.wait_for_socket("pipewire-0");
        desktop.spawn("wireplumber", &[]);
        desktop.spawn("mutter", &["--headless", "--wayland", "--no-x11", "--virtual-monitor", "640x480"]);
        desktop.wait_for_socket("wayland-0");
        Some(desktop)
    }

    fn bus(&self) -> String {
        format!("unix:path={}", self.path("bus"))
    }

    fn wait_for_socket(&self, name: &str) {
        // A socket is there before it is listened to.
        self.wait(name, || UnixStream::connect(self.path(name)).is_ok());
    }

    fn spawn(&mut self, program: &str, arguments: &[&str]) {
        let log = fs::File::create(self.path(&format!("{program}.log"))).expect("a writable directory");
        let mut command = self.command(program);
        command.args(arguments).stdout(Stdio::null()).stderr(log);
        self.children.push(command.spawn().expect("the program starts"));
    }

    /// Lets a program use this desktop.
    pub fn set(&self, command: &mut Command) {
        command
            .env("HOME", &self.directory)
            .env("XDG_RUNTIME_DIR", &self.directory)
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("DBUS_SESSION_BUS_ADDRESS", self.bus())
            .env("WAYLAND_DISPLAY", "wayland-0")
            .env("XDG_CURRENT_DESKTOP", "GNOME");
    }

    /// A program for this desktop. Services that the bus starts have its environment, too.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        self.set(&mut command);
        command
            .env("XDG_DATA_HOME", self.path("data"))
            .env("XDG_SESSION_TYPE", "wayland")
            .env("LANG", "C.UTF-8")
            .env("GSETTINGS_BACKEND", "memory")
            .env("LIBGL_ALWAYS_SOFTWARE", "1")
            .current_dir(&self.directory)
            .stdin(Stdio::null());
        command
    }

    /// Runs a program on the desktop, by a shell in the desktop's directory.
    pub fn run(&mut self, script: &str) {
        let mut command = self.command("sh");
        let log = fs::File::create(self.path("programs.log")).expect("a writable directory");
        self.children
            .push(command.args(["-c", script]).stdout(Stdio::null()).stderr(log).spawn().expect("a shell"));
    }

    /// Answers the next dialog of the portal. Returns the process that does it: it succeeds if there was a dialog.
    pub fn answer(&self, answer: Answer) -> Child {
        self.watch_dialog(match answer {
            Answer::Allow => "allow",
            Answer::Look => "look",
            Answer::Cancel => "cancel",
        })
    }

    /// Waits until the portal shows a dialog, and leaves it there.
    ///
    /// # Panics
    /// If it shows none within a minute.
    pub fn wait_for_dialog(&self) {
        let status = self.watch_dialog("wait").wait();
        assert!(status.is_ok_and(|status| status.success()), "no dialog");
    }

    /// Waits until the portal's dialog is closed.
    pub fn wait_for_no_dialog(&self) {
        let status = self.watch_dialog("gone").wait();
        assert!(status.is_ok_and(|status| status.success()), "the dialog stays");
    }

    fn watch_dialog(&self, word: &str) -> Child {
        let mut command = self.command("/usr/bin/python3");
        command.args(["-c", SCRIPT, word]).stdout(Stdio::null()).spawn().expect("Python starts")
    }

    /// Ends the program with this name on the desktop, such as `xdg-desktop-portal-gnome`.
    pub fn end_program(&self, name: &str) {
        self.signal(|path| path.file_name().is_some_and(|found| found == name));
    }

    /// Kills the programs that work in the desktop's directory and whose file is chosen.
    fn signal(&self, is_chosen: impl Fn(&Path) -> bool) {
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let is_here = fs::read_link(process.path().join("cwd")).is_ok_and(|path| path == self.directory);
            if is_here && fs::read_link(process.path().join("exe")).is_ok_and(|path| is_chosen(&path)) {
                let _ =
                    Command::new("kill").arg("-9").arg(process.file_name()).stderr(Stdio::null()).status();
            }
        }
    }

    /// A path in the desktop's directory.
    pub fn path(&self, name: &str) -> String {
        self.directory.join(name).to_str().expect("a path of text").into()
    }

    /// The path of the compositor's socket.
    pub fn display(&self) -> String {
        self.path("wayland-0")
    }

    /// Returns the text of a file in the desktop's directory; empty if there is none.
    pub fn text(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap_or_default()
    }

    /// Waits until a file in the desktop's directory has this text.
    ///
    /// # Panics
    /// After a minute.
    #[track_caller]
    pub fn wait_for_text(&self, file: &str, text: &str) {
        self.wait(text, || self.text(file).contains(text));
    }

    /// Waits until `done`.
    ///
    /// # Panics
    /// After a minute.
    #[track_caller]
    pub fn wait(&self, what: &str, done: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done() {
            assert!(
                Instant::now() < deadline,
                "{what}: it does not arrive; mutter wrote: {}",
                self.text("mutter.log")
            );
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for Gnome {
    fn drop(&mut self) {
        // Those that the bus has started are no children.
        self.signal(|_| true);
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}
