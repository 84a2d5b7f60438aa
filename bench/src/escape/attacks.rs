//! Attacks from inside a confined process: on files, other processes, the network, the kernel and the lock itself. All calls
//! of an attack must be refused.

use super::Role;
use super::hosts::{Home, Hosts, User};
use super::tracee::{Answer, Tracee};
use crate::setting::Failure;
use nix::errno::Errno;
use nix::libc as c;
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};

/// `setxattrat(2)` of Linux 6.13, which libc lacks.
const SYS_SETXATTRAT: i64 = 463;
const NONE: u64 = u64::MAX;
const AT_CWD: u64 = c::AT_FDCWD as u64;
/// The upper half of a register, which a kernel ignores in an `int`.
const UPPER: u64 = 1 << 32;
const UI_DEV_CREATE: u64 = 0x5501;
const UI_DEV_SETUP: u64 = 0x405c_5503;
const TUNSETIFF: u64 = 0x4004_54ca;
const SIOCSIFADDR: u64 = 0x8916;
const FIOSETOWN: u64 = 0x8901;
const SIOCSPGRP: u64 = 0x8902;
const F_SETSIG: u64 = 10;
/// The right of root's modules to read the files of other users (`CAP_DAC_READ_SEARCH`).
const READS_ALL: u64 = 1 << 2;
/// `getpid` in the table of 32-bit programs.
const GETPID_32: i64 = 20;
/// The mode of the bait file.
const MODE: u32 = 0o644;

/// Things outside that no attack may reach.
pub(super) struct Bait {
    file: PathBuf,
    identity: PathBuf,
    datagram_path: PathBuf,
    name: String,
    datagram: UnixDatagram,
    abstracts: UnixListener,
    udp: UdpSocket,
    tcp: TcpListener,
}

impl Bait {
    pub(super) fn new(home: &Home) -> Result<Bait, Failure> {
        let file = home.file("bait")?;
        fs::set_permissions(&file, fs::Permissions::from_mode(MODE))?;
        let (datagram_path, identity) =
            (home.directory.join("datagram"), home.directory.join("state/outboard/identity.key"));
        if !identity.is_file() {
            return Err(format!("there is no {}", identity.display()).into());
        }
        let datagram = UnixDatagram::bind(&datagram_path)?;
        home.open_socket(&datagram_path)?;
        let name = home.directory.display().to_string();
        let abstracts = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let (udp, tcp) = (UdpSocket::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
        datagram.set_nonblocking(true)?;
        abstracts.set_nonblocking(true)?;
        udp.set_nonblocking(true)?;
        tcp.set_nonblocking(true)?;
        Ok(Bait { file, identity, datagram_path, name, datagram, abstracts, udp, tcp })
    }

    /// Returns the things that were reached.
    fn reached(&self) -> Result<Vec<&'static str>, Failure> {
        let came = [
            ("a named socket", self.datagram.recv(&mut [0; 16]).map(drop)),
            ("an abstract socket", self.abstracts.accept().map(drop)),
            ("a UDP socket", self.udp.recv(&mut [0; 16]).map(drop)),
            ("a TCP socket", self.tcp.accept().map(drop)),
        ];
        let mut reached = Vec::new();
        for (name, came) in came {
            match came {
                Ok(()) => reached.push(name),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        let is_same = fs::read(&self.file)? == b"secret"
            && fs::metadata(&self.file)?.permissions().mode() & 0o7777 == MODE;
        reached.extend((!is_same).then_some("a file"));
        Ok(reached)
    }
}

/// A confined process and its surroundings.
struct Cell<'a> {
    tracee: &'a mut Tracee,
    bait: &'a Bait,
    parent: u64,
    answers: Vec<Answer>,
}

impl Cell<'_> {
    /// Makes a call that must be refused. Missing arguments are 0.
    fn call<const N: usize>(&mut self, number: i64, arguments: [u64; N]) -> Result<Answer, Failure> {
        let mut all = [0; 6];
        all[..N].copy_from_slice(&arguments);
        let answer = self.tracee.call(number, all)?;
        self.answers.push(answer);
        Ok(answer)
    }

    fn text(&mut self, text: &str) -> Result<u64, Failure> {
        self.tracee.put_text(text)
    }

    fn path(&mut self, path: &Path) -> Result<u64, Failure> {
        self.tracee.put_text(&path.display().to_string())
    }

    /// Returns zeros that a call may read and write.
    fn zeros(&mut self) -> Result<u64, Failure> {
        self.tracee.put(&[0; 4096])
    }

    /// Returns address and length of the UDP bait.
    fn udp(&mut self) -> Result<[u64; 2], Failure> {
        let port = self.bait.udp.local_addr()?.port();
        self.internet(port)
    }

    fn internet(&mut self, port: u16) -> Result<[u64; 2], Failure> {
        let family = (c::AF_INET as u16).to_ne_bytes();
        let bytes = [&family[..], &port.to_be_bytes(), &[127, 0, 0, 1], &[0; 8]].concat();
        Ok([self.tracee.put(&bytes)?, bytes.len() as u64])
    }

    /// Returns address and length of a Unix socket; a name that begins with zero is abstract.
    fn unix(&mut self, name: &[u8]) -> Result<[u64; 2], Failure> {
        let bytes = [&(c::AF_UNIX as u16).to_ne_bytes()[..], name].concat();
        Ok([self.tracee.put(&bytes)?, bytes.len() as u64])
    }

    /// Returns the header of a message of one byte to an address (`struct msghdr`).
    fn message(&mut self, [address, length]: [u64; 2]) -> Result<u64, Failure> {
        let byte = self.text("x")?;
        let parts = self.tracee.put_words(&[byte, 1])?;
        self.tracee.put_words(&[address, length, parts, 1, 0, 0, 0])
    }
}

/// The result of an attack.
pub(super) struct Outcome {
    pub(super) text: String,
    pub(super) is_breach: bool,
}

type Run = fn(&mut Cell<'_>) -> Result<(), Failure>;

/// The rows beside those of the attacks.
const CAPABILITIES: &str = "capabilities";
const REACHED: &str = "files and sockets outside that the attacks reached";

/// Returns the names of all outcomes in their order.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let attacks = ATTACKS.iter().map(|attack| attack.name);
    [CAPABILITIES].into_iter().chain(attacks).chain([REACHED])
}

/// How the calls of an attack fail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// By the filter.
    Filter,
    /// By the filter, or by landlock with EACCES.
    Files,
    /// By a socket that has no addresses: it returns an error, or ignores the address.
    Address,
}

impl Refusal {
    fn is_kept(self, answer: &Answer) -> bool {
        match answer {
            Answer::Error(Errno::EPERM | Errno::ENOSYS) => true,
            // The filter kills a process that makes a call of another architecture.
            Answer::Ended(signal) => *signal == c::SIGSYS,
            Answer::Error(Errno::EACCES) => self == Refusal::Files,
            Answer::Error(Errno::EISCONN | Errno::EOPNOTSUPP) | Answer::Value(_) => self == Refusal::Address,
            _ => false,
        }
    }
}

/// An attack by calls.
struct Attack {
    name: &'static str,
    roles: &'static [Role],
    refusal: Refusal,
    run: Run,
}

const ALL: &[Role] = &[Role::Worker, Role::Stage, Role::Module];
const WORKER: &[Role] = &[Role::Worker];
const MODULES: &[Role] = &[Role::Stage, Role::Module];

/// An attack whose calls the filter refuses.
const fn attack(name: &'static str, roles: &'static [Role], run: Run) -> Attack {
    Attack { name, roles, refusal: Refusal::Filter, run }
}

/// An attack on files. Landlock refuses a module's with EACCES.
const fn on_files(name: &'static str, run: Run) -> Attack {
    Attack { name, roles: ALL, refusal: Refusal::Files, run }
}

/// All attacks. The last one ends the process.
const ATTACKS: &[Attack] = &[
    on_files("open the keys of the host", open_keys),
    on_files("open /etc/passwd", open_passwords),
    attack("create, remove, rename, link", ALL, change_directories),
    attack("change modes, owners, times and sizes by name", ALL, change_files),
    attack("`fchmodat2`", ALL, |cell| {
        let path = cell.path(&cell.bait.file.clone())?;
        cell.call(c::SYS_fchmodat2, [AT_CWD, path, 0o777]).map(drop)
    }),
    attack("`setxattrat`", ALL, |cell| {
        let (path, name, value) = (cell.path(&cell.bait.file.clone())?, cell.text("user.x")?, cell.zeros()?);
        cell.call(SYS_SETXATTRAT, [AT_CWD, path, 0, name, value, 16]).map(drop)
    }),
    attack("`inotify_init` and other watches", ALL, watch),
    on_files("execute /bin/sh", execute),
    attack("executable memory", WORKER, executable_memory),
    attack("execute a file in memory", ALL, execute_memory),
    attack("fork, clone, namespaces", ALL, start_processes),
    attack("trace and read the parent", ALL, trace),
    attack("signal the parent", ALL, signal),
    attack("schedule and limit the parent", ALL, schedule),
    attack("new sockets", ALL, new_sockets),
    attack("connect, bind, listen on its sockets", ALL, connect),
    attack("abstract sockets of others", ALL, |cell| {
        let name = [&[0], cell.bait.name.clone().as_bytes()].concat();
        let [address, length] = cell.unix(&name)?;
        let fresh = cell.call(c::SYS_socket, [c::AF_UNIX as u64, c::SOCK_STREAM as u64])?;
        let fresh = if let Answer::Value(fresh) = fresh { fresh.cast_unsigned() } else { NONE };
        for socket in cell.tracee.sockets()?.into_iter().chain([fresh]) {
            cell.call(c::SYS_connect, [socket, address, length])?;
        }
        Ok(())
    }),
    attack("datagram pair, then `sendto` with a path", ALL, datagram_pair),
    attack("`sendto` with an address on its sockets", ALL, |cell| {
        let ([address, length], byte) = (cell.udp()?, cell.text("x")?);
        for socket in cell.tracee.sockets()? {
            cell.call(c::SYS_sendto, [socket, byte, 1, 0, address, length])?;
        }
        Ok(())
    }),
    attack("`sendmsg` with an address on its sockets", WORKER, |cell| {
        let spawner = sandbox::SENDMSG_DESCRIPTOR as u64;
        let address = cell.udp()?;
        let message = cell.message(address)?;
        for socket in cell.tracee.sockets()?.into_iter().filter(|socket| *socket != spawner) {
            cell.call(c::SYS_sendmsg, [socket, message, 0])?;
            cell.call(c::SYS_sendmmsg, [socket, message, 1, 0])?;
        }
        Ok(())
    }),
    // The sockets of these processes are pairs, which have no addresses.
    Attack {
        name: "`sendmsg` with an address where it is allowed",
        roles: ALL,
        refusal: Refusal::Address,
        run: |cell| {
            let name = [cell.bait.datagram_path.display().to_string().as_bytes(), &[0]].concat();
            let addresses = [cell.unix(&name)?, cell.udp()?];
            let own = match cell.tracee.sockets()? {
                sockets if sockets.contains(&(sandbox::SENDMSG_DESCRIPTOR as u64)) => {
                    vec![sandbox::SENDMSG_DESCRIPTOR as u64]
                }
                sockets => sockets,
            };
            for (socket, address) in
                own.into_iter().flat_map(|socket| addresses.map(|address| (socket, address)))
            {
                let message = cell.message(address)?;
                cell.call(c::SYS_sendmsg, [socket, message, 0])?;
            }
            Ok(())
        },
    },
    attack("`MSG_FASTOPEN`", ALL, |cell| {
        let (address, byte) = (cell.udp()?, cell.text("x")?);
        for socket in cell.tracee.sockets()? {
            for [address, length] in [address, [0, 0]] {
                cell.call(c::SYS_sendto, [socket, byte, 1, c::MSG_FASTOPEN as u64, address, length])?;
            }
        }
        Ok(())
    }),
    attack("replace the spawner's socket", WORKER, |cell| {
        let spawner = sandbox::SENDMSG_DESCRIPTOR as u64;
        for number in [spawner, spawner | UPPER] {
            cell.call(c::SYS_close, [number])?;
            cell.call(c::SYS_dup2, [0, number])?;
            cell.call(c::SYS_dup3, [0, number])?;
        }
        cell.call(c::SYS_close_range, [spawner, spawner]).map(drop)
    }),
    attack("`TIOCSTI` into the controlling terminal", ALL, |cell| {
        let byte = cell.text("\n")?;
        for (number, code) in [c::TIOCSTI, c::TIOCSCTTY, c::TIOCNOTTY, c::TIOCSPGRP, c::TIOCLINUX]
            .into_iter()
            .flat_map(|code| [0, 1, 2].map(|number| (number, code)))
        {
            cell.call(c::SYS_ioctl, [number, code, byte])?;
            cell.call(c::SYS_ioctl, [number, code | UPPER, byte])?;
        }
        Ok(())
    }),
    attack("`F_SETOWN`, `F_SETSIG` and other redirected signals", ALL, redirect_signals),
    attack("create and configure devices", ALL, |cell| {
        let zeros = cell.zeros()?;
        for (number, code) in [UI_DEV_CREATE, UI_DEV_SETUP, TUNSETIFF, SIOCSIFADDR]
            .into_iter()
            .flat_map(|code| [0, 3].map(|number| (number, code)))
        {
            cell.call(c::SYS_ioctl, [number, code, zeros])?;
        }
        Ok(())
    }),
    attack("`adjtimex` and other clocks", ALL, |cell| {
        let zeros = cell.zeros()?;
        cell.call(c::SYS_adjtimex, [zeros])?;
        cell.call(c::SYS_clock_adjtime, [0, zeros])?;
        cell.call(c::SYS_clock_settime, [0, zeros])?;
        cell.call(c::SYS_settimeofday, [zeros, 0]).map(drop)
    }),
    attack("memory without a limit, shared with others", MODULES, |cell| {
        let access = (c::PROT_READ | c::PROT_WRITE) as u64;
        for kind in [c::MAP_SHARED | c::MAP_ANONYMOUS, c::MAP_PRIVATE | c::MAP_ANONYMOUS | c::MAP_GROWSDOWN] {
            cell.call(c::SYS_mmap, [0, 4096, access, kind as u64, NONE, 0])?;
        }
        Ok(())
    }),
    attack("System V and POSIX queues and memory", ALL, |cell| {
        let name = cell.text("/outboard-escape")?;
        cell.call(c::SYS_shmget, [0, 4096, 0o600])?;
        cell.call(c::SYS_msgget, [0, 0o600])?;
        cell.call(c::SYS_semget, [0, 1, 0o600])?;
        cell.call(c::SYS_mq_open, [name, c::O_CREAT as u64 | c::O_RDWR as u64, 0o600]).map(drop)
    }),
    attack("BPF, io_uring, keys, modules, performance counters", ALL, kernel),
    attack("another user, another group", ALL, |cell| {
        let zeros = cell.zeros()?;
        for call in [c::SYS_setuid, c::SYS_setgid, c::SYS_setfsuid, c::SYS_setfsgid] {
            cell.call(call, [0])?;
        }
        cell.call(c::SYS_setresuid, [0, 0, 0])?;
        cell.call(c::SYS_setresgid, [0, 0, 0])?;
        cell.call(c::SYS_setgroups, [0, zeros])?;
        cell.call(c::SYS_capset, [zeros, zeros]).map(drop)
    }),
    attack("unlock itself, outlive its parent", ALL, |cell| {
        let zeros = cell.zeros()?;
        for option in [c::PR_SET_NO_NEW_PRIVS, c::PR_SET_SECCOMP, c::PR_SET_DUMPABLE, c::PR_SET_PDEATHSIG] {
            cell.call(c::SYS_prctl, [option as u64, 0])?;
            cell.call(c::SYS_prctl, [option as u64 | UPPER, 0])?;
        }
        cell.call(c::SYS_seccomp, [1, 0, zeros])?;
        cell.call(c::SYS_landlock_restrict_self, [NONE, 0])?;
        cell.call(c::SYS_landlock_create_ruleset, [zeros, 16, 0])?;
        cell.call(c::SYS_personality, [0x0040_0000])?;
        cell.call(c::SYS_setsid, []).map(drop)
    }),
    attack("a call through the 32-bit entry (`int 0x80`)", ALL, |cell| {
        let answer = cell.tracee.call_32(GETPID_32)?;
        cell.answers.push(answer);
        Ok(())
    }),
];

fn open_keys(cell: &mut Cell<'_>) -> Result<(), Failure> {
    let path = cell.path(&cell.bait.identity.clone())?;
    let (how, handle) = (cell.zeros()?, cell.zeros()?);
    cell.call(c::SYS_openat, [AT_CWD, path])?;
    cell.call(c::SYS_open, [path])?;
    cell.call(c::SYS_openat2, [AT_CWD, path, how, 24])?;
    cell.call(c::SYS_name_to_handle_at, [AT_CWD, path, handle, handle])?;
    cell.call(c::SYS_open_by_handle_at, [AT_CWD, handle])?;
    cell.call(c::SYS_open_tree, [AT_CWD, path]).map(drop)
}

fn open_passwords(cell: &mut Cell<'_>) -> Result<(), Failure> {
    let path = cell.text("/etc/passwd")?;
    cell.call(c::SYS_openat, [AT_CWD, path])?;
    cell.call(c::SYS_open, [path])?;
    let parent = cell.text(&format!("/proc/{}/environ", cell.parent))?;
    cell.call(c::SYS_openat, [AT_CWD, parent])?;
    let memory = cell.text("/proc/self/mem")?;
    cell.call(c::SYS_openat, [AT_CWD, memory, c::O_RDWR as u64]).map(drop)
}

fn change_directories(cell: &mut Cell<'_>) -> Result<(), Failure> {
    let bait = cell.path(&cell.bait.file.clone())?;
    let other = cell.path(&cell.bait.file.with_extension("new"))?;
    cell.call(c::SYS_creat, [other, 0o600])?;
    cell.call(c::SYS_unlink, [bait])?;
    cell.call(c::SYS_unlinkat, [AT_CWD, bait])?;
    cell.call(c::SYS_rename, [bait, other])?;
    cell.call(c::SYS_renameat, [AT_CWD, bait, AT_CWD, other])?;
    cell.call(c::SYS_renameat2, [AT_CWD, bait, AT_CWD, other])?;
    cell.call(c::SYS_mkdir, [other, 0o700])?;
    cell.call(c::SYS_mkdirat, [AT_CWD, other, 0o700])?;
    cell.call(c::SYS_link, [bait, other])?;
    cell.call(c::SYS_linkat, [AT_CWD, bait, AT_CWD, other])?;
    cell.call(c::SYS_symlink, [bait, other])?;
    cell.call(c::SYS_symlinkat, [bait, AT_CWD, other])?;
    cell.call(c::SYS_mknodat, [AT_CWD, other, 0o600])?;
    cell.call(c::SYS_mount, [bait, other])?;
    cell.call(c::SYS_chroot, [other]).map(drop)
}

fn change_files(cell: &mut Cell<'_>) -> Result<(), Failure> {
    let (path, name, zeros) = (cell.path(&cell.bait.file.clone())?, cell.text("user.x")?, cell.zeros()?);
    cell.call(c::SYS_chmod, [path, 0o777])?;
    cell.call(c::SYS_fchmod, [0, 0o777])?;
    cell.call(c::SYS_fchmodat, [AT_CWD, path, 0o777])?;
    cell.call(c::SYS_chown, [path, 1, 1])?;
    cell.call(c::SYS_fchownat, [AT_CWD, path, 1, 1])?;
    cell.call(c::SYS_truncate, [path, 0])?;
    cell.call(c::SYS_utimensat, [AT_CWD, path, zeros])?;
    cell.call(c::SYS_setxattr, [path, name, zeros, 16])?;
    cell.call(c::SYS_fsetxattr, [0, name, zeros, 16])?;
    cell.call(c::SYS_removexattr, [path, name]).map(drop)
}

fn watch(cell: &mut Cell<'_>) -> Result<(), Failure> {
    let path = cell.path(&cell.bait.file.clone())?;
    let watcher = cell.call(c::SYS_inotify_init, [])?;
    cell.call(c::SYS_inotify_init1, [0])?;
    let watcher = if let Answer::Value(watcher) = watcher { watcher.cast_unsigned() } else { NONE };
    cell.call(c::SYS_inotify_add_watch, [watcher, path, 2])?;
    cell.call(c::SYS_fanotify_init, [0, 0])?;
    cell.call(c::SYS_fcntl, [0, c::F_NOTIFY as u64, 2]).map(drop)
}

fn execute(cell: &mut Cell<'_>) -> Result<(), Failure> {
    let (shell, option, command) = (cell.text("/bin/sh")?, cell.text("-c")?, cell.text("exit")?);
    let words = cell.tracee.put_words(&[shell, option, command, 0])?;
    cell.call(c::SYS_execve, [shell, words, 0])?;
    cell.call(c::SYS_execveat, [AT_CWD, shell, words, 0]).map(drop)
}

fn executable_memory(cell: &mut Cell<'_>) -> Result<(), Failure> {
    let (code, kind) = (c::PROT_EXEC as u64, (c::MAP_PRIVATE | c::MAP_ANONYMOUS) as u64);
    let zeros = cell.zeros()?;
    for access in [code, code | (c::PROT_READ | c::PROT_WRITE) as u64] {
        cell.call(c::SYS_mmap, [0, 4096, access, kind, NONE, 0])?;
        cell.call(c::SYS_mprotect, [zeros & !4095, 4096, access])?;
        cell.call(c::SYS_pkey_mprotect, [zeros & !4095, 4096, access, NONE])?;
    }
    cell.call(c::SYS_remap_file_pages, [zeros & !4095, 4096, 0, 0, 0])?;
    cell.call(c::SYS_shmat, [0, 0, 0o100_000]).map(drop)
}

fn execute_memory(cell: &mut Cell<'_>) -> Result<(), Failure> {
    let (name, script) = (cell.text("")?, cell.text("#!/bin/sh\nexit\n")?);
    // A worker may create files in memory.
    let created = cell.tracee.call(c::SYS_memfd_create, [name, 0, 0, 0, 0, 0])?;
    let Answer::Value(file) = created else {
        cell.answers.push(created);
        return cell.call(c::SYS_memfd_secret, [0]).map(drop);
    };
    cell.tracee.call(c::SYS_write, [file.cast_unsigned(), script, 15, 0, 0, 0])?;
    let words = cell.tracee.put_words(&[name, 0])?;
    cell.call(c::SYS_execveat, [file.cast_unsigned(), name, words, 0, c::AT_EMPTY_PATH as u64])?;
    let path = cell.text(&format!("/proc/self/fd/{file}"))?;
    cell.call(c::SYS_execve, [path, words, 0]).map(drop)
}

fn start_processes(cell: &mut Cell<'_>) -> Result<(), Failure> {
    let zeros = cell.zeros()?;
    cell.call(c::SYS_fork, [])?;
    for flags in [c::SIGCHLD, c::CLONE_NEWUSER | c::SIGCHLD, c::CLONE_VM | c::CLONE_VFORK] {
        cell.call(c::SYS_clone, [flags as u64])?;
    }
    let thread = c::CLONE_VM | c::CLONE_FS | c::CLONE_FILES | c::CLONE_SIGHAND | c::CLONE_THREAD;
    cell.call(c::SYS_clone, [(thread | c::CLONE_NEWUTS) as u64])?;
    cell.call(c::SYS_clone3, [zeros, 88])?;
    for flags in [c::CLONE_NEWUSER, c::CLONE_NEWNS, c::CLONE_NEWNET, c::CLONE_FILES] {
        cell.call(c::SYS_unshare, [flags as u64])?;
    }
    cell.call(c::SYS_setns, [0, 0]).map(drop)
}

fn trace(cell: &mut Cell<'_>) -> Result<(), Failure> {
    let (parent, zeros) = (cell.parent, cell.zeros()?);
    for request in [c::PTRACE_ATTACH, c::PTRACE_SEIZE] {
        cell.call(c::SYS_ptrace, [u64::from(request), parent])?;
    }
    let part = cell.tracee.put_words(&[zeros, 16])?;
    cell.call(c::SYS_process_vm_readv, [parent, part, 1, part, 1])?;
    cell.call(c::SYS_process_vm_writev, [parent, part, 1, part, 1])?;
    let file = cell.call(c::SYS_pidfd_open, [parent, 0])?;
    let file = if let Answer::Value(file) = file { file.cast_unsigned() } else { NONE };
    cell.call(c::SYS_pidfd_getfd, [file, 0, 0])?;
    cell.call(c::SYS_kcmp, [parent, parent, 0, 0, 0])?;
    cell.call(c::SYS_get_robust_list, [parent, zeros, zeros + 8])?;
    cell.call(c::SYS_perf_event_open, [zeros, parent, NONE, NONE])?;
    cell.call(c::SYS_process_madvise, [file, part, 1, 0]).map(drop)
}

fn signal(cell: &mut Cell<'_>) -> Result<(), Failure> {
    // Its default is to do nothing.
    let (parent, harmless, zeros) = (cell.parent, c::SIGWINCH as u64, cell.zeros()?);
    for process in [parent, parent | UPPER, 0, NONE] {
        cell.call(c::SYS_kill, [process, if process == NONE { 0 } else { harmless }])?;
    }
    cell.call(c::SYS_tkill, [parent, harmless])?;
    cell.call(c::SYS_tgkill, [parent, parent, harmless])?;
    cell.call(c::SYS_rt_sigqueueinfo, [parent, harmless, zeros])?;
    cell.call(c::SYS_pidfd_send_signal, [NONE, harmless]).map(drop)
}

fn schedule(cell: &mut Cell<'_>) -> Result<(), Failure> {
    let (parent, zeros) = (cell.parent, cell.zeros()?);
    let mask = cell.tracee.put_words(&[1])?;
    cell.call(c::SYS_sched_setaffinity, [parent, 8, mask])?;
    cell.call(c::SYS_sched_setscheduler, [parent, 0, zeros])?;
    cell.call(c::SYS_sched_setattr, [parent, zeros])?;
    cell.call(c::SYS_setpriority, [0, parent, 0])?;
    cell.call(c::SYS_ioprio_set, [1, parent, 0])?;
    cell.call(c::SYS_prlimit64, [parent, c::RLIMIT_CORE.into(), zeros, zeros])?;
    cell.call(c::SYS_prlimit64, [0, c::RLIMIT_CORE.into(), zeros, 0])?;
    cell.call(c::SYS_migrate_pages, [parent, 0])?;
    cell.call(c::SYS_move_pages, [parent, 0]).map(drop)
}

fn new_sockets(cell: &mut Cell<'_>) -> Result<(), Failure> {
    let families = [c::AF_UNIX, c::AF_INET, c::AF_INET6, c::AF_NETLINK, c::AF_PACKET, c::AF_VSOCK, c::AF_ALG];
    for (family, kind) in families.into_iter().flat_map(|family| {
        [c::SOCK_STREAM, c::SOCK_DGRAM, c::SOCK_RAW].map(|kind| (family as u64, kind as u64))
    }) {
        cell.call(c::SYS_socket, [family, kind])?;
        cell.call(c::SYS_socket, [family | UPPER, kind])?;
    }
    let zeros = cell.zeros()?;
    cell.call(c::SYS_socketpair, [c::AF_UNIX as u64, c::SOCK_DGRAM as u64, 0, zeros])?;
    cell.call(c::SYS_socketpair, [c::AF_UNIX as u64, c::SOCK_RAW as u64 | UPPER, 0, zeros]).map(drop)
}

fn connect(cell: &mut Cell<'_>) -> Result<(), Failure> {
    let port = cell.bait.tcp.local_addr()?.port();
    let addresses = [cell.internet(port)?, cell.udp()?, [cell.zeros()?, 16]];
    for socket in cell.tracee.sockets()? {
        for [address, length] in addresses {
            cell.call(c::SYS_connect, [socket, address, length])?;
            cell.call(c::SYS_bind, [socket, address, length])?;
        }
        cell.call(c::SYS_listen, [socket, 1])?;
    }
    Ok(())
}

fn datagram_pair(cell: &mut Cell<'_>) -> Result<(), Failure> {
    let (pair, byte) = (cell.zeros()?, cell.text("x")?);
    let name = [cell.bait.datagram_path.display().to_string().as_bytes(), &[0]].concat();
    let [address, length] = cell.unix(&name)?;
    cell.call(c::SYS_socketpair, [c::AF_UNIX as u64, c::SOCK_DGRAM as u64, 0, pair])?;
    let mut number = [0; 4];
    cell.tracee.get(pair, &mut number)?;
    let socket = u64::from(u32::from_ne_bytes(number));
    cell.call(c::SYS_sendto, [socket, byte, 1, 0, address, length]).map(drop)
}

fn redirect_signals(cell: &mut Cell<'_>) -> Result<(), Failure> {
    let parent = cell.parent;
    let value = cell.tracee.put_words(&[parent])?;
    for socket in [0, 1, 3] {
        for command in [c::F_SETOWN as u64, F_SETSIG, c::F_SETLEASE as u64, c::F_SETLK as u64] {
            cell.call(c::SYS_fcntl, [socket, command, parent])?;
            cell.call(c::SYS_fcntl, [socket, command | UPPER, parent])?;
        }
        for code in [c::FIOASYNC, FIOSETOWN, SIOCSPGRP] {
            cell.call(c::SYS_ioctl, [socket, code, value])?;
        }
    }
    Ok(())
}

fn kernel(cell: &mut Cell<'_>) -> Result<(), Failure> {
    let (zeros, name) = (cell.zeros()?, cell.text("user")?);
    cell.call(c::SYS_bpf, [0, zeros, 64])?;
    cell.call(c::SYS_io_uring_setup, [1, zeros])?;
    cell.call(c::SYS_perf_event_open, [zeros, 0, NONE, NONE])?;
    cell.call(c::SYS_userfaultfd, [1])?;
    cell.call(c::SYS_keyctl, [0, NONE - 2, 0])?;
    cell.call(c::SYS_add_key, [name, name, zeros, 1, NONE - 2])?;
    cell.call(c::SYS_request_key, [name, name])?;
    cell.call(c::SYS_init_module, [zeros, 0, name])?;
    cell.call(c::SYS_finit_module, [NONE, name])?;
    cell.call(c::SYS_kexec_load, [0, NONE, zeros])?;
    cell.call(c::SYS_reboot, [0, 0, 0])?;
    cell.call(c::SYS_syslog, [3, zeros, 16])?;
    cell.call(c::SYS_modify_ldt, [0, zeros, 16])?;
    cell.call(c::SYS_iopl, [3])?;
    cell.call(c::SYS_ioperm, [0, 1, 1])?;
    cell.call(c::SYS_swapon, [name])?;
    cell.call(c::SYS_sethostname, [name, 0]).map(drop)
}

/// Returns the capabilities that a process has or can get, and those that it may have.
fn capabilities(tracee: &Tracee, role: Role, user: User) -> Result<Outcome, Failure> {
    let status = fs::read_to_string(format!("/proc/{}/status", tracee.id()))?;
    let mut all = 0;
    for line in status
        .lines()
        .filter(|line| ["CapInh", "CapPrm", "CapEff", "CapAmb"].iter().any(|set| line.starts_with(set)))
    {
        let (_, set) = line.split_once('\t').ok_or("a capability set without a value")?;
        all |= u64::from_str_radix(set.trim(), 16)?;
    }
    let allowed = if MODULES.contains(&role) && user == User::Root { READS_ALL } else { 0 };
    let text = match all {
        0 => "none".into(),
        READS_ALL => "CAP_DAC_READ_SEARCH".into(),
        all => format!("{all:#x}"),
    };
    Ok(Outcome { text, is_breach: all & !allowed != 0 })
}

fn judge(answers: &[Answer], refusal: Refusal) -> Outcome {
    let is_breach = !answers.iter().all(|answer| refusal.is_kept(answer));
    let shown = answers.iter().filter(|answer| !is_breach || !refusal.is_kept(answer));
    let texts: BTreeSet<String> = shown
        .map(|answer| match answer {
            Answer::Value(_) if !is_breach => "the address is ignored".into(),
            answer => answer.to_string(),
        })
        .collect();
    Outcome { text: texts.into_iter().collect::<Vec<_>>().join(", "), is_breach }
}

/// Runs all attacks of a role on its process. Returns their names with the outcomes.
pub(super) fn run(
    hosts: &Hosts,
    role: Role,
    tracee: &mut Tracee,
) -> Result<Vec<(&'static str, Outcome)>, Failure> {
    let bait = Bait::new(&hosts.home)?;
    let mut outcomes = vec![(CAPABILITIES, capabilities(tracee, role, hosts.home.user)?)];
    if role == Role::Watcher {
        // Without memory for arguments, no call of an attack can name anything.
        return Ok(outcomes);
    }
    for attack in ATTACKS.iter().filter(|attack| attack.roles.contains(&role)) {
        tracee.clear();
        let parent = u64::from(hosts.share.child.id());
        let mut cell = Cell { tracee, bait: &bait, parent, answers: Vec::new() };
        (attack.run)(&mut cell).map_err(|error| format!("{}: {error}", attack.name))?;
        outcomes.push((attack.name, judge(&cell.answers, attack.refusal)));
    }
    let reached = bait.reached()?;
    let text = if reached.is_empty() { "nothing".into() } else { reached.join(", ") };
    outcomes.push((REACHED, Outcome { text, is_breach: !reached.is_empty() }));
    Ok(outcomes)
}
