//! A device host and an application host, as root or as an ordinary user, and the confined processes below them.

use super::Role;
use crate::processes::with_descendants;
use crate::programs::beside;
use crate::reliability::hosts::Service;
use crate::setting::Failure;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::{self, File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// `nobody` and `nogroup`.
const ORDINARY: u32 = 65534;
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(2);

/// The user of the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum User {
    Root,
    /// Another user than root: this program's own, or `nobody` if that is root.
    Ordinary,
}

impl User {
    /// Returns the users that this program can be.
    pub(super) fn possible() -> Vec<User> {
        if rustix::process::geteuid().is_root() {
            vec![User::Root, User::Ordinary]
        } else {
            vec![User::Ordinary]
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            User::Root => "root",
            User::Ordinary => "ordinary",
        }
    }

    /// Returns the user id, if it is not this program's own.
    fn id(self) -> Option<u32> {
        (self == User::Ordinary && rustix::process::geteuid().is_root()).then_some(ORDINARY)
    }

    /// Makes the command run as this user.
    pub(super) fn run(self, command: &mut Command) {
        if let Some(id) = self.id() {
            command.uid(id).gid(id);
        }
    }
}

/// A program of an ordinary user without a sandbox. Dropping it ends it.
pub(super) struct Unconfined(Child);

impl Unconfined {
    pub(super) fn start() -> Result<Unconfined, Failure> {
        let mut command = Command::new("/bin/sleep");
        User::Ordinary.run(command.arg("3600").current_dir("/").stdin(Stdio::null()));
        Ok(Unconfined(command.spawn()?))
    }

    /// Waits until the program waits, and returns its process id.
    pub(super) fn find(&self) -> Result<u32, Failure> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            // The state of `nanosleep` in the program, not of its start.
            let call = fs::read_to_string(format!("/proc/{}/syscall", self.0.id()))?;
            if call.starts_with(&format!("{} ", nix::libc::SYS_clock_nanosleep)) {
                return Ok(self.0.id());
            }
            thread::sleep(LOOK);
        }
        Err("`sleep` does not sleep".into())
    }
}

impl Drop for Unconfined {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory of a user. Dropping it removes it.
pub(super) struct Home {
    pub(super) directory: PathBuf,
    pub(super) user: User,
}

impl Home {
    fn new(user: User) -> Result<Home, Failure> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("outboard-escape-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let home = Home { directory: std::env::temp_dir().join(name), user };
        home.create("")?;
        Ok(home)
    }

    fn create(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.directory.join(name);
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o700))?;
        chown(&path, self.user.id(), self.user.id())?;
        Ok(path)
    }

    /// Creates a file of the user.
    pub(super) fn file(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.directory.join(name);
        fs::write(&path, "secret")?;
        chown(&path, self.user.id(), self.user.id())?;
        Ok(path)
    }

    /// Lets the user connect to a socket.
    pub(super) fn open_socket(&self, path: &Path) -> Result<(), Failure> {
        Ok(fs::set_permissions(path, Permissions::from_mode(0o777))?)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // A directory that stays does no harm.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Both hosts. The device is a Unix socket that sends nothing.
pub(super) struct Hosts {
    pub(super) share: Service,
    _attach: Service,
    _device: UnixStream,
    /// The terminal that controls the device host.
    _terminal: OwnedFd,
    pub(super) home: Home,
}

impl Hosts {
    /// Starts the hosts. The device host runs a stage or a module if `role` is one.
    pub(super) fn start(user: User, role: Role) -> Result<Hosts, Failure> {
        let home = Home::new(user)?;
        for part in ["state", "run"] {
            home.create(part)?;
        }
        let path = home.directory.join("device");
        let devices = UnixListener::bind(&path)?;
        home.open_socket(&path)?;
        let opened = thread::spawn(move || devices.accept());
        let (via, via_there) = match role {
            Role::Worker | Role::Watcher => ("null", None),
            Role::Stage => ("compress(isolate=true)", None),
            // Any program can be a module.
            Role::Module => ("exec(source=\"/bin/sleep 3600\", isolate=true)", Some("exec(isolate=true)")),
        };
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&terminal)?;
        unlockpt(&terminal)?;
        let name = ptsname(&terminal, Vec::new())?;
        let name = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes())).to_path_buf();
        chown(&name, user.id(), None)?;
        let near_end = File::options().read(true).write(true).open(&name)?;

        let device = format!("unix:{}", path.display());
        let outboard = beside("outboard")?.display().to_string();
        // `setsid --ctty` makes the standard input the controlling terminal.
        let mut share = home.command("setsid");
        share.args(["--ctty", &outboard, "share", &device, "--name", "device", "--listen", "127.0.0.1:0"]);
        share.args(["--via", via, "--json"]);
        share.stdin(near_end.try_clone()?).stdout(Stdio::piped()).stderr(near_end);
        let mut child = share.spawn()?;
        let events = child.stdout.take().ok_or("no standard output")?;
        let mut share = Service::of(child, events);
        let listening = share.wait("listening")?;
        let address = listening["address"].as_str().ok_or("`listening` has no address")?;
        let mut attach = home.command(&outboard);
        attach.args(["attach", &format!("{address}/device"), "--as", "null"]);
        attach.args(via_there.iter().flat_map(|via| ["--via", via]));
        let mut attach = Service::start(attach)?;
        attach.wait("attached")?;
        let (device, _) = opened.join().map_err(|_| "a thread panicked")??;
        Ok(Hosts { share, _attach: attach, _device: device, _terminal: terminal, home })
    }

    /// Waits for the confined process of a role at the device host.
    pub(super) fn find(&mut self, role: Role) -> Result<u32, Failure> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let mut all = with_descendants(self.share.child.id()).into_iter();
            let found = match role {
                Role::Watcher => {
                    let worker = all.find(|process| is_confined(*process, Role::Worker));
                    worker.and_then(watcher_of)
                }
                role => all.find(|process| is_confined(*process, role)),
            };
            if let Some(process) = found {
                return Ok(process);
            }
            if let Some(status) = self.share.child.try_wait()? {
                return Err(format!("`outboard share` exited ({status})").into());
            }
            thread::sleep(LOOK);
        }
        Err(format!("the device host has no confined {}", role.name()).into())
    }

    /// Returns the descendants of the device host that are neither workers nor stages.
    pub(super) fn strangers(&self) -> Vec<String> {
        let all = with_descendants(self.share.child.id());
        let words = all.into_iter().skip(1).map(words_of).filter(|words| !words.is_empty());
        words.filter(|words| !words.starts_with("outboard worker ")).collect()
    }
}

impl Home {
    /// Returns a command of the user with this home.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.directory)
            .env("HOME", &self.directory)
            .env("XDG_STATE_HOME", self.directory.join("state"))
            .env("XDG_RUNTIME_DIR", self.directory.join("run"));
        self.user.run(&mut command);
        command
    }
}

fn words_of(process: u32) -> String {
    let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    words.trim().into()
}

/// Returns true if the process has its role, is locked up, and waits.
fn is_confined(process: u32, role: Role) -> bool {
    let words = words_of(process);
    let has_role = match role {
        Role::Worker => words.contains(" worker ") && has_data_socket(process),
        Role::Watcher => has_listener(process),
        Role::Stage => words.contains(" module ") && !words.contains(" confined "),
        Role::Module => words.starts_with("/bin/sleep "),
    };
    let status = || fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    has_role && status().contains("Seccomp:\t2") && status().contains("State:\tS")
}

/// Returns the watcher of a worker. It is in the worker's session, and not below the device host.
fn watcher_of(worker: u32) -> Option<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    all.find(|process| session_of(*process) == Some(worker) && is_confined(*process, Role::Watcher))
}

/// Returns the number of a process's session (`proc_pid_stat(5)`).
fn session_of(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // After the name: state, parent, group, session.
    stat.rsplit_once(") ")?.1.split(' ').nth(3)?.parse().ok()
}

/// Returns true if the process receives the refused calls of another one (`seccomp_unotify(2)`).
fn has_listener(process: u32) -> bool {
    fs::read_link(format!("/proc/{process}/fd/0")).is_ok_and(|to| to.ends_with("anon_inode:seccomp notify"))
}

/// Returns true if the process has a UDP socket, which the default transport uses for data.
fn has_data_socket(process: u32) -> bool {
    let table = fs::read_to_string(format!("/proc/{process}/net/udp")).unwrap_or_default();
    // The tenth column is the inode (`proc_net_udp` in the kernel's documentation).
    let inodes: Vec<&str> = table.lines().filter_map(|line| line.split_whitespace().nth(9)).collect();
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|to| {
        let to = to.to_string_lossy();
        let inode = to.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        inode.is_some_and(|inode| inodes.contains(&inode))
    })
}
