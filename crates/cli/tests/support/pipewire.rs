//! A private PipeWire server with its session manager.

use super::{Scratch, Service, end, wait_until, workers_of};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use testkit::skip::has_program;

/// A PipeWire server with its session manager and its PulseAudio socket, on a session bus of its own.
pub(crate) struct Server {
    pub(crate) scratch: Scratch,
    children: Vec<Child>,
}

impl Server {
    /// Starts a server without any device; `None` if a package is missing.
    pub(crate) fn start() -> Option<Server> {
        Server::start_with("")
    }

    /// Starts a server with this configuration.
    pub(crate) fn start_with(configuration: &str) -> Option<Server> {
        let needed = [
            ("dbus-daemon", "dbus"),
            ("pipewire", "pipewire"),
            ("wireplumber", "wireplumber"),
            ("pipewire-pulse", "pipewire-pulse"),
            ("pactl", "pulseaudio-utils"),
        ];
        if !needed.iter().all(|(program, package)| has_program(program, package)) {
            return None;
        }
        let mut server = Server { scratch: Scratch::new(), children: Vec::new() };
        let directory = server.scratch.path("config/pipewire/pipewire.conf.d");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(format!("{directory}/test.conf"), configuration).unwrap();
        server.start_all();
        Some(server)
    }

    /// Starts a server for pictures alone beside the daemon of PulseAudio, for which a shell stands; `None` if a package is missing.
    pub(crate) fn start_for_pictures() -> Option<Server> {
        if !has_program("pipewire", "pipewire") {
            return None;
        }
        let mut server = Server { scratch: Scratch::new(), children: Vec::new() };
        server.spawn("pipewire", &[]);
        server.wait_for_socket("pipewire-0");
        let (program, directory) = (server.scratch.path("pulseaudio"), server.scratch.path("pulse"));
        std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
        let mut daemon = server.command(&program, &["-c", "while :; do sleep 1; done"]);
        let daemon = daemon.arg0("sh").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(format!("{directory}/pid"), format!("{}\n", daemon.id())).unwrap();
        server.children.push(daemon);
        Some(server)
    }

    /// Starts all programs of the server.
    pub(crate) fn start_all(&mut self) {
        let bus = format!("--address=unix:path={}", self.scratch.path("bus"));
        self.spawn("dbus-daemon", &["--session", "--nofork", "--nopidfile", &bus]);
        self.wait_for_socket("bus");
        self.spawn("pipewire", &[]);
        self.wait_for_socket("pipewire-0");
        self.spawn("wireplumber", &[]);
        self.spawn("pipewire-pulse", &[]);
        self.wait_for_socket("pulse/native");
    }

    /// Kills all programs of the server, and removes the leftovers.
    pub(crate) fn stop_all(&mut self) {
        for mut child in self.children.drain(..).rev() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        for name in ["bus", "pipewire-0", "pipewire-0.lock", "pulse/native"] {
            let _ = std::fs::remove_file(self.scratch.path(name));
        }
    }

    fn wait_for_socket(&self, name: &str) {
        wait_until(name, || std::fs::exists(self.scratch.path(name)).unwrap());
    }

    /// Lets a program use this server.
    pub(crate) fn set(&self, command: &mut Command) {
        let bus = format!("unix:path={}", self.scratch.path("bus"));
        command.env("XDG_RUNTIME_DIR", self.scratch.path("")).env("DBUS_SESSION_BUS_ADDRESS", bus);
        command
            .env("XDG_CONFIG_HOME", self.scratch.path("config"))
            .env("XDG_STATE_HOME", self.scratch.path("state"));
        command.env_remove("PIPEWIRE_RUNTIME_DIR").env_remove("PULSE_SERVER").env_remove("PIPEWIRE_REMOTE");
        command.env_remove("PULSE_RUNTIME_PATH");
    }

    pub(crate) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        self.set(command.args(arguments).stdin(Stdio::null()));
        command
    }

    fn spawn(&mut self, program: &str, arguments: &[&str]) {
        let mut command = self.command(program, arguments);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.children.push(child);
    }

    /// Returns the output of a program that ends.
    #[track_caller]
    pub(crate) fn output(&self, program: &str, arguments: &[&str]) -> String {
        let child = self.command(program, arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        end(child.unwrap(), program).done().text().trim().to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A program that is killed at the end.
pub(crate) struct Program(pub(crate) Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills the only worker of a service.
#[track_caller]
pub(crate) fn kill_worker(service: &Service) {
    let [worker] = workers_of(&service.child)[..] else { panic!("not one worker") };
    kill_process(Pid::from_raw(worker as i32).unwrap(), Signal::KILL).unwrap();
}
