//! The life cycle of a lab: its namespaces, files and emulator process.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Directory of the labs' files.
const STATE: &str = "/run/outboard-netlab";
const NAME_MAX_BYTES: usize = 32;
/// One host for each letter.
pub(crate) const HOSTS_MAX: usize = 26;
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for the emulator, and for processes that are asked to end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A lab's name and its files: `lock` (locked by the emulator while it lives; holds its pid), `hosts` (their
/// number), `control` (a socket), `log`.
pub(crate) struct Lab {
    name: String,
}

pub(crate) fn host_letter(index: usize) -> char {
    (b'a' + index as u8) as char
}

pub(crate) fn host_index(letter: &str) -> Option<usize> {
    matches!(letter.as_bytes(), [b'a'..=b'z']).then(|| usize::from(letter.as_bytes()[0] - b'a'))
}

/// Runs iproute2's `ip`; returns its output.
pub(crate) fn ip(args: &[&str]) -> io::Result<String> {
    let run = Command::new("ip").args(args).output();
    let out = run.map_err(|error| io::Error::new(error.kind(), format!("ip (package iproute2): {error}")))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        return Err(io::Error::other(format!("ip {}: {}", args.join(" "), said.trim())));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into())
}

/// Polls until `done` returns true, or the time limit. Returns the last result.
pub(crate) fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !done() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

impl Lab {
    pub(crate) fn new(name: &str) -> Result<Lab> {
        let sound = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let length = (1..=NAME_MAX_BYTES).contains(&name.len());
        if !length || name.starts_with('-') || !name.chars().all(sound) {
            return Err(
                format!("lab name {name:?}: use 1 to {NAME_MAX_BYTES} letters, digits, - and _").into()
            );
        }
        Ok(Lab { name: name.into() })
    }

    /// All labs that have files, running or not.
    pub(crate) fn all() -> Vec<Lab> {
        let entries = fs::read_dir(STATE).into_iter().flatten().flatten();
        entries.filter_map(|entry| Lab::new(&entry.file_name().to_string_lossy()).ok()).collect()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        Path::new(STATE).join(&self.name).join(file)
    }

    /// The name of a host's network namespace.
    pub(crate) fn namespace(&self, index: usize) -> String {
        format!("{}-{}", self.name, host_letter(index))
    }

    /// Opens the namespace of one of the lab's hosts.
    pub(crate) fn open_namespace(&self, host: &str) -> Result<File> {
        let index = host_index(host).filter(|index| *index < self.hosts());
        let index = index.ok_or_else(|| format!("lab {} has no host {host}, or is not up", self.name))?;
        Ok(File::open(format!("/run/netns/{}", self.namespace(index)))?)
    }

    /// Takes the lock, unless an emulator of this lab is running.
    fn lock(&self) -> Result<Option<File>> {
        fs::create_dir_all(self.path(""))?;
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(self.path("lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    fn hosts(&self) -> usize {
        let text = fs::read_to_string(self.path("hosts")).unwrap_or_default();
        text.trim().parse().ok().filter(|count| *count <= HOSTS_MAX).unwrap_or(0)
    }

    /// Sends a request to the emulator; returns the answer.
    pub(crate) fn request(&self, words: &[&str]) -> Result<String> {
        let stream = UnixStream::connect(self.path("control"));
        let mut stream = stream.map_err(|_| format!("lab {} is not up", self.name))?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.write_all(format!("{}\n", words.join("\t")).as_bytes())?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        match reply.strip_prefix("ok\n") {
            Some(body) => Ok(body.into()),
            None => Err(reply.trim_end().into()),
        }
    }

    /// Creates the lab; `arguments` are for its emulator. First removes the remains of a crashed lab of this name.
    pub(crate) fn up(&self, hosts: usize, arguments: &[String]) -> Result<()> {
        let Some(mut lock) = self.lock()? else {
            return Err(format!("lab {} is already up", self.name).into());
        };
        if self.path("hosts").exists() {
            self.clean()?;
            drop(lock);
            lock = self.lock()?.ok_or("another netlab is making this lab")?;
        }
        let present = ip(&["netns", "list"])?;
        let namespaces: Vec<String> = (0..hosts).map(|index| self.namespace(index)).collect();
        let taken = |name: &String| present.lines().any(|line| line.split(' ').next() == Some(name));
        if let Some(name) = namespaces.iter().find(|name| taken(name)) {
            fs::remove_dir_all(self.path(""))?;
            return Err(format!("there is a namespace {name} already, which no lab made").into());
        }
        fs::write(self.path("hosts"), hosts.to_string())?;
        self.start(&namespaces, arguments, lock).inspect_err(|_| drop(self.clean()))
    }

    fn start(&self, namespaces: &[String], arguments: &[String], lock: File) -> Result<()> {
        for name in namespaces {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        // The emulator inherits the locked file as its standard input.
        let mut child = Command::new("/proc/self/exe")
            .args(["emulate", "--name", &self.name])
            .args(arguments)
            .current_dir("/")
            .stdin(lock)
            .stdout(Stdio::piped())
            .stderr(File::create(self.path("log"))?)
            .process_group(0)
            .spawn()?;
        fs::write(self.path("lock"), child.id().to_string())?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line != "ready\n" {
            child.wait()?;
            let log = fs::read_to_string(self.path("log"))?;
            return Err(log.trim().trim_start_matches("netlab: ").into());
        }
        Ok(())
    }

    /// Ends the processes in the lab, then the lab. Succeeds if it does not run.
    pub(crate) fn down(&self) -> Result<()> {
        if !self.path("").exists() {
            return Ok(());
        }
        self.end_processes()?;
        let gone = || matches!(self.lock(), Ok(Some(_)));
        if !gone() {
            let asked = self.request(&["quit"]);
            if asked.is_err() || !wait_until(END_TIMEOUT, gone) {
                // The lock is held, so the pid in it is the emulator's.
                let pid = fs::read_to_string(self.path("lock"))?.trim().parse()?;
                end(pid, Signal::KILL);
                wait_until(END_TIMEOUT, gone);
            }
        }
        self.clean()
    }

    /// Removes namespaces and files of a lab whose emulator has ended.
    fn clean(&self) -> Result<()> {
        self.end_processes()?;
        for name in (0..self.hosts()).map(|index| self.namespace(index)) {
            if Path::new("/run/netns").join(&name).exists() {
                ip(&["netns", "del", &name])?;
            }
        }
        Ok(fs::remove_dir_all(self.path(""))?)
    }

    /// All processes in the lab's hosts, except this one.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let me = std::process::id() as i32;
        let of = |index| ip(&["netns", "pids", &self.namespace(index)]).unwrap_or_default();
        let all: Vec<String> = (0..self.hosts()).map(of).collect();
        let pids = all.iter().flat_map(|text| text.lines()).filter_map(|line| line.trim().parse().ok());
        pids.filter(|pid| *pid != me).collect()
    }

    fn end_processes(&self) -> Result<()> {
        for signal in [Signal::TERM, Signal::KILL] {
            self.processes().into_iter().for_each(|pid| end(pid, signal));
            if wait_until(END_TIMEOUT, || self.processes().is_empty()) {
                return Ok(());
            }
        }
        Err(format!("processes in lab {} do not end: {:?}", self.name, self.processes()).into())
    }
}

/// The process may have ended already.
fn end(pid: i32, signal: Signal) {
    let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, signal));
}
