//! Runs the real program: to its end, or as a service with an event stream.
#![allow(dead_code, reason = "each test program uses its part")]

pub(crate) mod disk;
pub(crate) mod disk_server;
pub(crate) mod display;
pub(crate) mod driven;
pub(crate) mod pipewire;
pub(crate) mod relay;
pub(crate) mod schema;
pub(crate) mod screen;
pub(crate) mod users;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Timeout of every wait: far more than any step takes on the busiest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Directory of the program's local sockets.
pub(crate) const RUNTIME_DIRECTORY: &str = env!("CARGO_TARGET_TMPDIR");

/// The first bytes of a frame that is longer than anybody waits for.
pub(crate) const FRAME_LENGTH: [u8; 4] = (1_u32 << 20).to_le_bytes();

/// A directory for one test; dropping it removes the directory.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("the target directory is text").into()
    }

    /// Writes a file of random bytes.
    pub(crate) fn noise(&self, name: &str, bytes: usize) -> (String, Vec<u8>) {
        let content = noise(bytes);
        std::fs::write(self.path(name), &content).unwrap();
        (self.path(name), content)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a port of loopback that nobody uses.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Returns pseudo-random bytes (xorshift).
pub(crate) fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// Exit status and output of the program.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the objects of an output with one object a line.
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        let object = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        self.text().lines().map(object).collect()
    }

    #[track_caller]
    pub(crate) fn done(self) -> Ended {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }

    /// Checks the exit status, and that standard error contains this text.
    #[track_caller]
    pub(crate) fn refused_with(self, code: i32, says: &str) {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        assert!(self.stderr.contains(says), "not said: {says:?} in:\n{}", self.stderr);
    }

    /// Checks the exit status, and that standard error contains all of these texts.
    #[track_caller]
    pub(crate) fn refused(self, code: i32, says: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        for words in says {
            assert!(self.stderr.contains(words), "not said: {words:?} in:\n{}", self.stderr);
        }
        assert!(self.stdout.is_empty(), "on standard output: {}", self.text());
    }
}

pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outboard"));
    command.env("XDG_RUNTIME_DIR", RUNTIME_DIRECTORY);
    command.env("XDG_STATE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/state"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the program to its end.
#[track_caller]
pub(crate) fn outboard(arguments: &[&str]) -> Ended {
    outboard_fed(arguments, &[])
}

/// Runs the program to its end, with this as its standard input.
#[track_caller]
pub(crate) fn outboard_fed(arguments: &[&str], input: &[u8]) -> Ended {
    let mut child = command(arguments).stdin(Stdio::piped()).spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    // A program that does not read all of it closes the pipe.
    thread::spawn(move || stdin.write_all(&input));
    end(child, &arguments.join(" "))
}

/// Returns a command that runs a file with `--json`. A shell knows the process id before it executes the program, as a service
/// manager does.
pub(crate) fn below_manager(file: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        r#"LISTEN_PID=$$ exec "$@""#,
        "sh",
        env!("CARGO_BIN_EXE_outboard"),
        "run",
        file,
        "--json",
    ]);
    shell.env("XDG_RUNTIME_DIR", RUNTIME_DIRECTORY);
    shell.stdout(Stdio::piped());
    shell
}

/// Waits for the exit of a process, up to a timeout.
#[track_caller]
pub(crate) fn end(mut child: Child, name: &str) -> Ended {
    fn collect(mut from: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
        thread::spawn(move || {
            let mut all = Vec::new();
            from.read_to_end(&mut all).unwrap();
            all
        })
    }
    let stdout = child.stdout.take().map(collect);
    let stderr = child.stderr.take().map(collect);
    let since = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if since.elapsed() > PATIENCE => {
                child.kill().unwrap();
                panic!("`{name}` does not end");
            }
            None => thread::sleep(Duration::from_millis(2)),
        }
    };
    let bytes =
        |thread: Option<thread::JoinHandle<Vec<u8>>>| thread.map(|t| t.join().unwrap()).unwrap_or_default();
    Ended {
        code: status.code(),
        stdout: bytes(stdout),
        stderr: String::from_utf8_lossy(&bytes(stderr)).into_owned(),
    }
}

/// Returns a figure of a partner or transport; -1 if it is missing.
pub(crate) fn figure(figures: &Value, name: &str) -> f64 {
    let mut all = figures.as_array().unwrap().iter();
    all.find(|figure| figure[0] == name).map_or(-1.0, |figure| figure[1].as_f64().unwrap())
}

/// Makes a pseudo-terminal. Returns the end of the emulator, which no child process inherits, and the path of the other.
pub(crate) fn pseudo_terminal() -> (File, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    (master.into(), path)
}

/// Waits until `done` returns true.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < PATIENCE, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the running child processes of `parent`.
pub(crate) fn children(parent: u32) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let started_by_parent = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let (state, theirs) = (fields.next(), fields.next());
        state != Some("Z") && theirs == Some(&parent.to_string())
    };
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(started_by_parent).collect()
}

/// Sends SIGTERM to a process.
pub(crate) fn terminate(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
}

/// A running service and its events.
pub(crate) struct Service {
    pub(crate) child: Child,
    events: Receiver<Value>,
    /// Events that arrived during a wait for another one.
    pub(crate) seen: Vec<Value>,
}

impl Service {
    /// Starts the program with `--json`.
    pub(crate) fn start(arguments: &[&str]) -> Service {
        Service::start_as(command(arguments))
    }

    /// Runs this command with `--json`.
    pub(crate) fn start_as(mut command: Command) -> Service {
        Service::of(command.arg("--json").stderr(Stdio::inherit()).spawn().unwrap())
    }

    /// Wraps a running program with `--json` and piped standard output.
    pub(crate) fn of(mut child: Child) -> Service {
        let events = read_events(child.stdout.take().unwrap());
        Service { child, events, seen: Vec::new() }
    }

    /// Shares a device on a free port of loopback and returns the address.
    pub(crate) fn share(device: &str, more: &[&str]) -> (Service, String) {
        let mut service = Service::start(&[&["share", device, "--listen", "127.0.0.1:0"], more].concat());
        let address = service.wait("listening")["address"].as_str().unwrap().to_string();
        (service, address)
    }

    /// Waits for the next event of this kind.
    #[track_caller]
    pub(crate) fn wait(&mut self, kind: &str) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(event) if event["event"] == kind => return event,
                Ok(event) => self.seen.push(event),
                Err(RecvTimeoutError::Timeout) => panic!("no `{kind}`; seen: {:?}", self.seen),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("it ended without `{kind}`; seen: {:?}", self.seen)
                }
            }
        }
    }

    /// Waits for the next event.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Value {
        self.events.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no event; seen: {:?}", self.seen))
    }

    /// Waits until a sink with `--stats` has received `messages` messages, and returns its statistics.
    #[track_caller]
    pub(crate) fn flows(&mut self, messages: u64) -> Value {
        let since = Instant::now();
        loop {
            let stats = self.wait("stats")["stats"].take();
            if stats["incoming"]["messages"].as_u64() >= Some(messages) {
                return stats;
            }
            assert!(since.elapsed() < PATIENCE, "{stats}");
        }
    }

    /// Returns the pending events.
    pub(crate) fn pending(&mut self) -> Vec<Value> {
        self.events.try_iter().collect()
    }

    /// Stops the service and returns its exit status.
    #[track_caller]
    pub(crate) fn stop(mut self) -> Option<i32> {
        terminate(&self.child);
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            thread::sleep(Duration::from_millis(2));
        }
        panic!("it does not end after SIGTERM");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_events(stdout: ChildStdout) -> Receiver<Value> {
    let (send, receive) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let event: Value =
                serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in `{line}`"));
            let is_of_pair =
                ["code", "wrong-guess", "crowded", "paired"].iter().any(|kind| event["event"] == *kind);
            schema::check(if is_of_pair { "pair" } else { "event" }, &event);
            if send.send(event).is_err() {
                break;
            }
        }
    });
    receive
}

/// Returns the current workers of a broker.
pub(crate) fn workers_of(broker: &Child) -> Vec<u32> {
    let parent = format!("PPid:\t{}", broker.id());
    let is_its = |pid: &u32| {
        let read = |what| std::fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default();
        read("status").lines().any(|line| line == parent) && read("cmdline").contains("\0worker\0")
    };
    let processes = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    processes.filter(is_its).collect()
}
