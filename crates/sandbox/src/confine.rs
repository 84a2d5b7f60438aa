//! Confinement of modules and workers: removes permissions from the calling process, with `landlock(7)`,
//! `seccomp(2)`, `capabilities(7)` and resource limits.
//!
//! A launcher (`outboard confined`) calls [`confine`] and then executes the module's program. The module keeps its
//! descriptors 0 to 3 and can use them to communicate. Otherwise:
//!
//! | resource | a confined module ([`confine`]) | a locked worker ([`lock_up`]) |
//! |---|---|---|
//! | files | reads and executes its own program, the interpreter, system libraries and the paths that its user named; writes nothing. `stat(2)` still shows existence and size of any file | sees and opens nothing |
//! | network | no sockets except unconnected pairs; with landlock version 4 and 6, no TCP and no abstract names | the same, but accepts connections on inherited sockets |
//! | other processes | starts, traces, signals and inspects none | the same, and executes no program |
//! | memory | private writable memory up to a limit (`RLIMIT_DATA`); no shared memory | no limit; none that is executable |
//! | capabilities of root | with landlock, it may read the files of other users that landlock permits | none |
//! | system calls | those of its list (`calls.rs`) | those of its list, and the ioctls of its devices |

use crate::calls::{self, NEWEST_CALL, Rules};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, PathFdError,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter, sock_filter};
use std::collections::BTreeSet;
use std::env;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use sys::seccomp::{self, WATCHER_CALLS};
use syscalls::Sysno;
use thiserror::Error;

/// Most open descriptors of a module.
const DESCRIPTORS_MAX: u64 = 64;
/// Most stack of a module.
const STACK_BYTES: u64 = 8 << 20;
/// Longest chain of interpreters.
const INTERPRETERS_MAX: usize = 4;
/// Paths that the loader and libraries of every program need.
const SYSTEM: &[&str] = &[
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/dev/null",
    "/dev/urandom",
];
/// Environment variables that a module keeps. None may contain a secret.
const ENVIRONMENT: &[&str] = &["PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH"];

/// Permissions of a module.
#[derive(Debug, Clone, Default)]
pub struct Confinement {
    /// Most private memory, in bytes.
    pub memory_bytes: u64,
    /// Files and directories that it may read, besides its own program.
    pub reads: Vec<PathBuf>,
    /// Return an error if this kernel lacks a needed feature.
    pub is_required: bool,
}

/// Error of [`confine`] and [`lock_up`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfineError {
    /// The kernel has no landlock.
    #[error("this kernel has no landlock, or it is off: {ADVICE}")]
    NoLandlock,
    /// A path that the module may read cannot be opened.
    #[error("a path that the module may read: {0}")]
    Path(#[from] PathFdError),
    /// A landlock call failed.
    #[error("landlock: {0}")]
    Landlock(#[from] RulesetError),
    /// A seccomp call failed.
    #[error("seccomp: {0}")]
    Seccomp(String),
    /// Setting a resource limit failed.
    #[error("{0}: {1}")]
    Limit(&'static str, std::io::Error),
}

/// Advice for a kernel without landlock.
pub const ADVICE: &str = "boot Linux 5.13 or newer with `landlock` in the list of `lsm=`, or use \
                          sandbox=possible to continue without it";

/// The trace that a refused call leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusals {
    /// A watcher names each call once on standard error ([`sys::seccomp`]), if the kernel can.
    Named,
    /// Only the calling program sees the error.
    Silent,
}

/// Returns an error if this kernel cannot isolate modules.
pub fn check_kernel() -> Result<(), ConfineError> {
    sys::process::landlock_version().map(drop).ok_or(ConfineError::NoLandlock)
}

/// The environment of an isolated module.
pub fn environment() -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    ENVIRONMENT.iter().filter_map(|name| env::var_os(name).map(|value| (name.into(), value))).collect()
}

/// Confines this process, and every program that it executes, to the needs of `program`. A watcher names refused calls on
/// standard error ([`sys::seccomp`]), if the kernel can.
pub fn confine(program: &Path, confinement: &Confinement) -> Result<(), ConfineError> {
    limit(confinement.memory_bytes)?;
    match sys::process::landlock_version() {
        Some(_) => restrict_files(program, &confinement.reads)?,
        None if confinement.is_required => return Err(ConfineError::NoLandlock),
        None => {}
    }
    // A program of another user can be in a directory that only its owner and this capability can read.
    let kept = match sys::process::landlock_version() {
        Some(_) => CapabilitySet::DAC_READ_SEARCH,
        None => CapabilitySet::empty(),
    };
    drop_capabilities(kept).map_err(|error| ConfineError::Limit("capabilities", error))?;
    calls::of_module()
        .map_err(Into::into)
        .and_then(|rules| restrict_calls(rules, Refusals::Named))
        .map_err(|error| ConfineError::Seccomp(error.to_string()))
}

/// Locks a worker's process up: it can use only the descriptors that it has and those that it is sent. It cannot
/// open files, create or connect sockets, start programs or inspect other processes; its broker opens everything it
/// needs. Returns a description of the restrictions that this kernel lacks, if any. Call it before the process
/// starts other threads: existing ones keep their permissions. `ioctls` are the ioctls of the devices that it may get
/// ([`sys::ioctl::code`]).
pub fn lock_up(ioctls: &[u32], refusals: Refusals) -> Result<Option<String>, ConfineError> {
    // rustix reads the auxiliary vector when it is first needed, before Linux 6.4 from a file.
    let _ = rustix::param::page_size();
    let landlock = match sys::process::landlock_version() {
        Some(_) => deny_all().map(|()| None)?,
        None => Some(
            "this kernel has no landlock, or it is off: workers are locked up by seccomp alone".to_string(),
        ),
    };
    drop_capabilities(CapabilitySet::empty()).map_err(|error| ConfineError::Limit("capabilities", error))?;
    let filter =
        calls::of_worker(ioctls).map_err(Into::into).and_then(|rules| restrict_calls(rules, refusals));
    let seccomp = filter.err().map(|error| {
        format!(
            "this kernel has no seccomp filter, or refuses it ({error}): workers can open files and sockets"
        )
    });
    Ok(seccomp.or(landlock))
}

/// Tests in a temporary thread that [`lock_up`] can apply all restrictions. The error names a missing one.
pub fn try_lock() -> Result<(), String> {
    let tried = std::thread::Builder::new()
        .spawn(|| lock_up(&[], Refusals::Silent))
        .map_err(|error| error.to_string())?;
    match tried.join() {
        Ok(Ok(None)) => Ok(()),
        Ok(Ok(Some(weakness))) => Err(weakness),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the test thread panicked".into()),
    }
}

/// Denies all files and directories, and if the kernel supports it, TCP, abstract names and signals to other
/// processes.
fn deny_all() -> Result<(), RulesetError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))?
        .handle_access(AccessNet::from_all(ABI::V4))?
        .scope(Scope::from_all(ABI::V6))?;
    ruleset.create()?.restrict_self()?;
    Ok(())
}

/// Gives up all capabilities of this thread but `kept`.
fn drop_capabilities(kept: CapabilitySet) -> std::io::Result<()> {
    let own = capabilities(None)?;
    let left = own.permitted & kept;
    // A service manager may forbid the call to a process that has nothing to give up.
    if left == own.permitted && own.inheritable.is_empty() {
        return Ok(());
    }
    // A process without capabilities may not change its bounding set, and needs not.
    if own.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(left).iter() {
            // An older kernel does not know the newest capabilities.
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    let sets = CapabilitySets { effective: left, permitted: left, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

fn limit(memory_bytes: u64) -> Result<(), ConfineError> {
    let limits = [
        ("RLIMIT_DATA", Resource::Data, memory_bytes),
        ("RLIMIT_STACK", Resource::Stack, STACK_BYTES),
        ("RLIMIT_CORE", Resource::Core, 0),
        ("RLIMIT_FSIZE", Resource::Fsize, 0),
        ("RLIMIT_NOFILE", Resource::Nofile, DESCRIPTORS_MAX),
        ("RLIMIT_MEMLOCK", Resource::Memlock, 0),
        ("RLIMIT_MSGQUEUE", Resource::Msgqueue, 0),
    ];
    for (name, resource, most) in limits {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, limit).map_err(|error| ConfineError::Limit(name, error.into()))?;
    }
    Ok(())
}

fn restrict_files(program: &Path, reads: &[PathBuf]) -> Result<(), ConfineError> {
    // Version 1 is required; features of later versions are used if available.
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))?
        .handle_access(AccessNet::from_all(ABI::V4))?
        .scope(Scope::from_all(ABI::V6))?;
    let mut ruleset = ruleset.create()?;
    for path in readable(program) {
        // A missing file needs no permission.
        if let Ok(opened) = PathFd::new(&path) {
            ruleset = ruleset.add_rule(PathBeneath::new(opened, access(&path)))?;
        }
    }
    for path in reads {
        ruleset = ruleset.add_rule(PathBeneath::new(PathFd::new(path)?, access(path)))?;
    }
    ruleset.restrict_self()?;
    Ok(())
}

fn access(path: &Path) -> BitFlags<AccessFs> {
    match path.is_dir() {
        true => AccessFs::Execute | AccessFs::ReadFile | AccessFs::ReadDir,
        false => AccessFs::Execute | AccessFs::ReadFile,
    }
}

/// The program, its interpreters, and the libraries of all of them.
fn readable(program: &Path) -> BTreeSet<PathBuf> {
    let mut paths: BTreeSet<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
    let mut next = Some(program.to_path_buf());
    for _ in 0..INTERPRETERS_MAX {
        let Some(path) = next.take() else { break };
        let first = first_line(&path);
        next = first.as_ref().and_then(|words| interpreter(words));
        paths.extend(first.and_then(|words| words.into_iter().next()).map(PathBuf::from));
        for name in [Some(path.clone()), path.canonicalize().ok()].into_iter().flatten() {
            paths.extend(libraries(&name));
            paths.insert(name);
        }
    }
    paths
}

/// Directories of the libraries of `PREFIX/bin/NAME`.
fn libraries(binary: &Path) -> Vec<PathBuf> {
    let prefix = binary.parent().filter(|folder| folder.ends_with("bin")).and_then(Path::parent);
    let prefix = prefix.filter(|prefix| *prefix != Path::new("/"));
    let below = |prefix: &Path| ["lib", "lib64", "pyvenv.cfg"].map(|name| prefix.join(name)).to_vec();
    prefix.map(below).unwrap_or_default()
}

/// Splits the first line of a script (`execve(2)`). The first word is the program that the kernel starts.
fn first_line(script: &Path) -> Option<Vec<String>> {
    let mut line = [0; 256];
    let count = File::open(script).ok()?.read(&mut line).ok()?;
    let line = line[..count].strip_prefix(b"#!")?;
    let line = String::from_utf8_lossy(line.split(|byte| *byte == b'\n').next()?).into_owned();
    Some(line.split_whitespace().map(String::from).collect())
}

/// Finds the interpreter of a script, also through `env`.
fn interpreter(words: &[String]) -> Option<PathBuf> {
    let first = Path::new(words.first()?);
    if first.file_name()? != "env" {
        return Some(first.to_path_buf());
    }
    let name = words[1..].iter().find(|word| !word.starts_with('-') && !word.contains('='))?;
    find(name)
}

/// Finds a program in `PATH`, like a shell.
pub fn find(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name));
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Refuses every call but those of `rules` with EPERM, and calls that no list knows with ENOSYS.
fn restrict_calls(rules: Rules, refusals: Refusals) -> Result<(), Box<dyn std::error::Error>> {
    let known = compile(rules)?;
    let program: BpfProgram = no_unknown_calls().into_iter().chain(known).collect();
    if refusals == Refusals::Named {
        let own = compile(WATCHER_CALLS.iter().map(|call| (*call, Vec::new())).collect())?;
        let own: Vec<_> = own.iter().map(instruction).collect();
        let watched: Vec<_> = program.iter().map(instruction).map(handed_over).collect();
        // An older kernel has no listeners; a container's own filter may have the only one.
        if seccomp::apply_watched(&watched, &own, |call| Sysno::new(call).map(|call| call.name())).is_ok() {
            return Ok(());
        }
    }
    Ok(apply_filter(&program)?)
}

/// Compiles a filter that refuses every call but those of `rules` with EPERM.
fn compile(rules: Rules) -> Result<BpfProgram, Box<dyn std::error::Error>> {
    let architecture = TargetArch::try_from(env::consts::ARCH)?;
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    Ok(SeccompFilter::new(rules, refuse, SeccompAction::Allow, architecture)?.try_into()?)
}

fn instruction(compiled: &sock_filter) -> seccomp::Instruction {
    let sock_filter { code, jt, jf, k } = *compiled;
    seccomp::Instruction { code, jt, jf, k }
}

/// Replaces the return of EPERM: the watcher returns it.
fn handed_over(instruction: seccomp::Instruction) -> seccomp::Instruction {
    const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    match (instruction.code, instruction.k) {
        (RETURN, REFUSE) => seccomp::Instruction { k: seccomp::REFUSE, ..instruction },
        _ => instruction,
    }
}

/// The instruction that ends a filter with a value (`bpf(2)`, classic).
const RETURN: u16 = 0x06;

/// The beginning of a filter: refuses with ENOSYS calls newer than [`NEWEST_CALL`], and the x32 numbers (from 0x4000_0000),
/// which name the same calls as others. So too `clone3`: a filter cannot read its flags, and libraries use `clone` if it
/// does not exist. (`bpf(2)`: classic instructions; offset 0 of the data is the number.)
fn no_unknown_calls() -> [sock_filter; 4] {
    const LOAD_NUMBER: sock_filter = sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    const REFUSE_IF_ABOVE: sock_filter = sock_filter { code: 0x25, jt: 1, jf: 0, k: NEWEST_CALL as u32 };
    const SKIP_UNLESS_CLONE3: sock_filter =
        sock_filter { code: 0x15, jt: 0, jf: 1, k: libc::SYS_clone3 as u32 };
    let refuse = sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32 };
    [LOAD_NUMBER, REFUSE_IF_ABOVE, SKIP_UNLESS_CLONE3, refuse]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_script_is_read_with_its_interpreter_and_its_libraries() {
        let script = env::temp_dir().join(format!("outboard-confine-{}", std::process::id()));
        fs::write(&script, "#!/usr/bin/env -S FOO=1 python3 -u\npass\n").unwrap();
        let python = find("python3").unwrap();
        let paths = readable(&script);
        for path in [&script, &python, &python.canonicalize().unwrap(), Path::new("/usr/lib")] {
            assert!(paths.contains(path), "{path:?} is not in {paths:?}");
        }
        assert!(!paths.contains(script.parent().unwrap()));
        fs::write(&script, "#!/bin/sh\n").unwrap();
        assert!(readable(&script).contains(Path::new("/bin/sh")));
        fs::remove_file(script).unwrap();
    }

    #[test]
    fn a_locked_thread_opens_nothing_and_still_works() {
        use std::io::{Error, ErrorKind, Write};
        use std::net::{TcpListener, TcpStream, UdpSocket};
        use std::os::unix::net::{UnixListener, UnixStream};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut pair = UnixStream::pair().unwrap();
        let mut file = File::open("/dev/zero").unwrap();
        let caller = TcpStream::connect(address).unwrap();
        let locked = std::thread::spawn(move || {
            let weakness = lock_up(&[], Refusals::Silent).unwrap();
            if weakness.as_ref().is_some_and(|weakness| weakness.contains("seccomp filter")) {
                return eprintln!("SKIPPED: {weakness:?}");
            }
            let refused = |error: Error| assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            refused(File::open("/etc/passwd").unwrap_err());
            refused(File::create("/tmp/outboard-locked").unwrap_err());
            refused(fs::remove_file("/tmp/outboard-locked").unwrap_err());
            refused(fs::read_dir("/").unwrap_err());
            refused(TcpStream::connect(address).unwrap_err());
            refused(UdpSocket::bind("127.0.0.1:0").unwrap_err());
            refused(UnixListener::bind("/tmp/outboard-locked").unwrap_err());
            refused(std::process::Command::new("/bin/true").spawn().unwrap_err());
            let init = rustix::process::Pid::INIT;
            refused(rustix::process::kill_process(init, rustix::process::Signal::HUP).unwrap_err().into());
            refused(
                rustix::process::pidfd_open(init, rustix::process::PidfdFlags::empty()).unwrap_err().into(),
            );
            let CapabilitySets { effective, permitted, .. } = capabilities(None).unwrap();
            assert_eq!((effective, permitted), (CapabilitySet::empty(), CapabilitySet::empty()));
            rustix::fs::fcntl_getfl(&file).expect("an allowed command of `fcntl`");
            refused(rustix::process::ioctl_tiocsctty(&file).unwrap_err().into());
            file.read_exact(&mut [0; 10]).unwrap();
            pair.0.write_all(b"x").unwrap();
            pair.1.read_exact(&mut [0]).unwrap();
            listener.accept().unwrap();
            assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
            assert_eq!(vec![1u8; 64 << 20].iter().map(|byte| u64::from(*byte)).sum::<u64>(), 64 << 20);
        });
        locked.join().unwrap();
        drop(caller);
        assert!(File::open("/etc/passwd").is_ok(), "other threads keep their permissions");
    }

    /// A Python module that tries operations. Each line of output begins with `yes` or `no`.
    const PROBE: &str = r#"
import ctypes, errno, fcntl, mmap, os, socket, struct, sys, termios, threading
libc = ctypes.CDLL(None, use_errno=True)
def tried(operation, attempt):
    try: attempt(); print("yes", operation)
    except BaseException: print("no", operation)
def thread():
    one = threading.Thread(target=lambda: None); one.start(); one.join()
tried("read itself", lambda: open(__file__).read())
tried("read libraries", lambda: open(os.__file__).read())
tried("read what is named", lambda: os.listdir(sys.argv[1]))
tried("start a thread", thread)
tried("take memory", lambda: bytearray(20 << 20))
tried("read passwords", lambda: open("/etc/passwd").read())
tried("read a neighbour", lambda: open(__file__ + ".neighbour").read())
tried("write", lambda: open(__file__ + ".new", "w"))
tried("change a mode", lambda: os.chmod(__file__, 0o777))
tried("list the root", lambda: os.listdir("/"))
tried("see its parent", lambda: open("/proc/%d/environ" % os.getppid()).read())
tried("signal its parent", lambda: os.kill(os.getppid(), 0))
tried("open a socket", lambda: socket.socket())
tried("open a local socket", lambda: socket.socket(socket.AF_UNIX))
tried("start a process", lambda: os.fork())
tried("open a pair for datagrams", lambda: socket.socketpair(type=socket.SOCK_DGRAM))
def capability():
    sets = (ctypes.c_uint32 * 6)()
    libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), sets)
    # It may keep the right to read the files of other users, bit 2.
    assert (sets[0] | sets[1]) & ~4 or sets[3] | sets[4]
tried("have a capability", capability)
def called(function, *arguments):
    ctypes.set_errno(0)
    assert function(*arguments) != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)
tried("ask for a terminal as newer libraries do", lambda: called(libc.ioctl, 0, ctypes.c_ulong(0x802c542a), ctypes.create_string_buffer(44)))
tried("ask for the size of a terminal", lambda: called(libc.ioctl, 0, termios.TIOCGWINSZ, ctypes.create_string_buffer(8)))
tried("type into a terminal", lambda: called(libc.ioctl, 0, termios.TIOCSTI, b"x"))
tried("take a terminal over", lambda: called(libc.ioctl, 0, termios.TIOCSCTTY, 0))
tried("redirect signals", lambda: called(libc.fcntl, 0, fcntl.F_SETOWN, os.getppid()))
tried("send to an address", lambda: called(libc.sendto, 0, b"x", 1, 0, b"address", 7))
tried("connect by sending", lambda: called(libc.sendto, 0, b"x", 1, 0x20000000, None, 0))
tried("set the clock", lambda: called(libc.adjtimex, bytes(208)))
tried("watch files", lambda: called(libc.inotify_init))
tried("change a mode by a newer call", lambda: called(libc.syscall, 452, -100, b"/nowhere", 0, 0))
tried("change attributes by a newer call", lambda: called(libc.syscall, 463, -100, b"/nowhere", 0, b"x", None, 0))
tried("use a call that nobody knows", lambda: called(libc.syscall, 700))
tried("use a call of the second table", lambda: called(libc.syscall, 0x40000000 + 39))
tried("take much memory", lambda: bytearray(200 << 20))
tried("share memory", lambda: mmap.mmap(-1, 4096))
"#;

    /// Not a test of its own: [`a_confined_program_does_its_work_and_nothing_else`] starts it, because confinement
    /// needs a separate process.
    #[test]
    fn launcher() {
        let Some(program) = env::var_os("OUTBOARD_TEST_CONFINED").map(PathBuf::from) else { return };
        let reads = vec![program.with_extension("data")];
        let confinement = Confinement { memory_bytes: 100 << 20, reads: reads.clone(), is_required: true };
        confine(&program, &confinement).unwrap();
        let error = std::os::unix::process::CommandExt::exec(
            std::process::Command::new(&program).arg(&reads[0]).stdout(std::io::stderr()),
        );
        panic!("{error}");
    }

    #[test]
    fn a_confined_program_does_its_work_and_nothing_else() {
        if check_kernel().is_err() {
            eprintln!("SKIPPED: this kernel has no landlock");
            return;
        }
        let folder = env::temp_dir().join(format!("outboard-confined-{}", std::process::id()));
        fs::create_dir_all(folder.join("probe.data")).unwrap();
        let program = folder.join("probe.py");
        // The program in `PATH` may be a script that starts another program, which is forbidden.
        let mut python = std::process::Command::new("python3");
        python.args(["-c", "import sys; print(sys.executable)"]);
        let python = String::from_utf8(python.output().unwrap().stdout).unwrap();
        fs::write(&program, format!("#!{}\n{PROBE}", python.trim())).unwrap();
        fs::write(folder.join("probe.py.neighbour"), "secret").unwrap();
        let mut mode = fs::metadata(&program).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
        fs::set_permissions(&program, mode).unwrap();
        let output = std::process::Command::new(env::current_exe().unwrap())
            .args(["--exact", "confine::tests::launcher", "--nocapture"])
            .env("OUTBOARD_TEST_CONFINED", &program)
            .output()
            .unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        let found: Vec<_> = text.lines().filter_map(|line| line.split_once(' ')).collect();
        let allowed: Vec<_> =
            found.iter().filter(|(answer, _)| *answer == "yes").map(|(_, operation)| *operation).collect();
        let expected = [
            "read itself",
            "read libraries",
            "read what is named",
            "start a thread",
            "take memory",
            "ask for a terminal as newer libraries do",
            "ask for the size of a terminal",
        ];
        assert_eq!(allowed, expected, "{text}");
        assert_eq!(found.iter().filter(|(answer, _)| *answer == "no").count(), 25, "{text}");
        let named: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(seccomp::REFUSED)).collect();
        for call in ["socket", "kill", "clock_adjtime", "ioctl", "fchmodat2"] {
            assert_eq!(named.iter().filter(|name| **name == call).count(), 1, "{call}: {text}");
        }
    }

    /// As [`launcher`]: locks itself up until it is killed, and says so.
    #[test]
    fn locked_process() {
        if env::var_os("OUTBOARD_TEST_LOCKED").is_none() {
            return;
        }
        lock_up(&[], Refusals::Named).unwrap();
        rustix::io::write(rustix::stdio::stderr(), b"locked").unwrap();
        loop {
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
    }

    /// A watcher shares the descriptors of its process at first. It must not keep them open: a broker would wait for the end of a
    /// killed worker.
    #[test]
    fn a_process_killed_while_it_locks_itself_up_leaves_no_watcher() {
        use std::process::{Command, Stdio};
        let start = || {
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(["--exact", "confine::tests::locked_process", "--nocapture"]);
            command.env("OUTBOARD_TEST_LOCKED", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let begun = std::time::Instant::now();
        let mut first = start();
        first.stderr.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        let locked_after = begun.elapsed();
        for turn in 0..100 {
            let mut child = if turn == 0 { std::mem::replace(&mut first, start()) } else { start() };
            std::thread::sleep(locked_after * (turn % 25) / 20);
            child.kill().unwrap();
            child.wait().unwrap();
            // Ends when the last descriptor of the pipe is closed.
            child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
            child.stderr.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
        }
        first.kill().unwrap();
        first.wait().unwrap();
    }

    #[test]
    fn the_filters_compile() {
        let architecture = TargetArch::try_from(env::consts::ARCH).unwrap();
        let refuse = SeccompAction::Errno(1);
        for rules in [calls::of_module().unwrap(), calls::of_worker(&[1, 2]).unwrap()] {
            let count = rules.len();
            let filter = SeccompFilter::new(rules, refuse.clone(), SeccompAction::Allow, architecture);
            let program: BpfProgram = filter.unwrap().try_into().unwrap();
            assert!(program.len() > count && program.len() < 4096);
        }
    }
}
