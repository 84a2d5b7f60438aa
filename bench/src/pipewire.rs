//! PipeWire servers on the hosts of `netlab`, without hardware.

use crate::display::Program;
use crate::lab::Lab;
use crate::processes::with_descendants;
use crate::setting::Failure;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
/// Required commands and their packages.
pub(crate) const NEEDED: [(&str, &str); 6] = [
    ("pipewire", "pipewire"),
    ("wireplumber", "wireplumber"),
    ("pw-play", "pipewire-bin"),
    ("pw-cli", "pipewire-bin"),
    ("dbus-daemon", "dbus"),
    ("ip", "iproute2"),
];

/// A PipeWire server on a host, with its session manager.
pub(crate) struct Server<'lab> {
    lab: &'lab Lab,
    host: &'static str,
    directory: PathBuf,
    programs: Vec<Program>,
}

impl<'lab> Server<'lab> {
    /// Starts a server with this configuration. Its sockets are in a directory in `scratch`.
    pub(crate) fn start(
        lab: &'lab Lab,
        host: &'static str,
        scratch: &Path,
        configuration: &str,
    ) -> Result<Self, Failure> {
        let directory = scratch.join(format!("{}-{host}", lab.namespace(host)));
        let files = directory.join("pipewire/pipewire.conf.d");
        std::fs::create_dir_all(&files)?;
        std::fs::write(files.join("bench.conf"), configuration)?;
        let mut server = Server { lab, host, directory, programs: Vec::new() };
        let bus = format!("--address=unix:path={}", server.directory.join("bus").display());
        server.spawn("dbus-daemon", &["--session", "--nofork", "--nopidfile", &bus], "bus")?;
        server.spawn("pipewire", &[], "pipewire-0")?;
        server.spawn("wireplumber", &[], "pipewire-0")?;
        Ok(server)
    }

    /// Returns the command of a program that uses the server.
    pub(crate) fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = self.lab.program(self.host, program);
        let bus = format!("unix:path={}", self.directory.join("bus").display());
        command.args(words).stdin(Stdio::null()).env("XDG_RUNTIME_DIR", &self.directory);
        command.env("XDG_CONFIG_HOME", &self.directory).env("XDG_STATE_HOME", &self.directory);
        command.env("DBUS_SESSION_BUS_ADDRESS", bus).env_remove("PIPEWIRE_REMOTE");
        command
    }

    /// Starts a program, and waits for its socket.
    fn spawn(&mut self, program: &str, words: &[&str], socket: &str) -> Result<(), Failure> {
        let mut started = Program::start(&mut self.command(program, words))?;
        let socket = self.directory.join(socket);
        started.until(program, || socket.exists().then_some(()))?;
        self.programs.push(started);
        Ok(())
    }

    /// Waits until programs find a node of this name.
    pub(crate) fn wait_for_node(&self, name: &str) -> Result<(), Failure> {
        let begun = Instant::now();
        let line = format!("node.name = \"{name}\"");
        loop {
            let output = self.command("pw-cli", &["ls", "Node"]).output()?;
            if String::from_utf8_lossy(&output.stdout).contains(&line) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("host {}: no node {name} within {PATIENCE:?}", self.host).into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns the processes of the server and its session manager.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.programs.iter().flat_map(|program| with_descendants(program.id())).collect()
    }
}
