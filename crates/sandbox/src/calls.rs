//! The system calls that each role may make. Everything else does not exist for it (`seccomp(2)`).
//!
//! | list | worker | module |
//! |---|---|---|
//! | [`COMMON`]: data on open descriptors, memory, threads, clocks, signals of its own | yes | yes |
//! | [`FILES`]: names of files, which landlock checks, and programs | no | yes |
//! | `sendmsg`: descriptors leave with it; its address lies in memory, where a filter cannot see it | on [`SENDMSG_DESCRIPTOR`] | yes: it has no socket with addresses |
//! | `accept`, `memfd_create`, `recvmmsg`, `setsockopt` of [`SOCKET_OPTIONS`] | yes | no |
//! | `ioctl` | [`IOCTLS`] and those of the classes of its devices, by number | [`IOCTLS`] |
//! | executable memory | no | yes |
//!
//! Arguments are compared where they decide. A refused call returns EPERM; a call that these lists do not know, newer than
//! [`NEWEST_CALL`], returns ENOSYS. A call of another architecture (`int 0x80`) kills the process.

use libc as c;
use seccompiler::{
    BackendError, SeccompCmpArgLen as Length, SeccompCmpOp as Compare, SeccompCondition, SeccompRule,
};
use std::collections::BTreeMap;
use std::os::fd::RawFd;

/// Allowed calls, with alternative conditions on their arguments. Without conditions a call is allowed always.
pub type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The newest call that these lists consider, `mseal` of Linux 6.10. Newer calls do not exist for a confined process.
pub const NEWEST_CALL: i64 = c::SYS_mseal;

/// The only descriptor on which a worker may call `sendmsg`: its spawner's socket. The worker can neither close nor replace it, so
/// no socket with addresses ever has this number.
pub const SENDMSG_DESCRIPTOR: RawFd = 4;

/// Calls of every role.
const COMMON: &[i64] = &[
    // Data on open descriptors.
    c::SYS_read,
    c::SYS_readv,
    c::SYS_pread64,
    c::SYS_preadv,
    c::SYS_preadv2,
    c::SYS_write,
    c::SYS_writev,
    c::SYS_pwrite64,
    c::SYS_pwritev,
    c::SYS_pwritev2,
    c::SYS_recvfrom,
    c::SYS_recvmsg,
    c::SYS_shutdown,
    c::SYS_getsockname,
    c::SYS_getpeername,
    c::SYS_getsockopt,
    c::SYS_splice,
    c::SYS_tee,
    c::SYS_vmsplice,
    c::SYS_sendfile,
    c::SYS_lseek,
    c::SYS_fstat,
    c::SYS_fstatfs,
    c::SYS_fsync,
    c::SYS_fdatasync,
    c::SYS_ftruncate,
    c::SYS_fallocate,
    c::SYS_dup,
    c::SYS_pipe2,
    c::SYS_eventfd2,
    c::SYS_timerfd_create,
    c::SYS_timerfd_settime,
    c::SYS_timerfd_gettime,
    c::SYS_epoll_create1,
    c::SYS_epoll_ctl,
    c::SYS_epoll_pwait,
    c::SYS_epoll_pwait2,
    c::SYS_ppoll,
    c::SYS_pselect6,
    // Memory.
    c::SYS_brk,
    c::SYS_munmap,
    c::SYS_mremap,
    c::SYS_madvise,
    c::SYS_mincore,
    c::SYS_msync,
    c::SYS_mlock,
    c::SYS_munlock,
    // Threads.
    c::SYS_futex,
    c::SYS_futex_waitv,
    c::SYS_set_robust_list,
    c::SYS_set_tid_address,
    c::SYS_rseq,
    c::SYS_membarrier,
    c::SYS_sched_yield,
    c::SYS_sched_getaffinity,
    c::SYS_sched_getparam,
    c::SYS_sched_getscheduler,
    c::SYS_sched_get_priority_max,
    c::SYS_sched_get_priority_min,
    c::SYS_sched_rr_get_interval,
    c::SYS_getcpu,
    c::SYS_exit,
    c::SYS_exit_group,
    c::SYS_restart_syscall,
    // Signals of its own.
    c::SYS_rt_sigaction,
    c::SYS_rt_sigprocmask,
    c::SYS_rt_sigpending,
    c::SYS_rt_sigreturn,
    c::SYS_rt_sigsuspend,
    c::SYS_rt_sigtimedwait,
    c::SYS_sigaltstack,
    c::SYS_getitimer,
    c::SYS_setitimer,
    // Clocks.
    c::SYS_clock_getres,
    c::SYS_clock_gettime,
    c::SYS_clock_nanosleep,
    c::SYS_gettimeofday,
    c::SYS_nanosleep,
    c::SYS_times,
    // Facts about itself and the system.
    c::SYS_getpid,
    c::SYS_getppid,
    c::SYS_gettid,
    c::SYS_getuid,
    c::SYS_geteuid,
    c::SYS_getgid,
    c::SYS_getegid,
    c::SYS_getresuid,
    c::SYS_getresgid,
    c::SYS_getgroups,
    c::SYS_capget,
    c::SYS_getpgid,
    c::SYS_getsid,
    c::SYS_getrusage,
    c::SYS_getrandom,
    c::SYS_uname,
    c::SYS_sysinfo,
    c::SYS_umask,
    #[cfg(target_arch = "x86_64")]
    c::SYS_arch_prctl,
    #[cfg(target_arch = "x86_64")]
    c::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    c::SYS_getpgrp,
    #[cfg(target_arch = "x86_64")]
    c::SYS_getrlimit,
    #[cfg(target_arch = "x86_64")]
    c::SYS_pipe,
    #[cfg(target_arch = "x86_64")]
    c::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    c::SYS_select,
    #[cfg(target_arch = "x86_64")]
    c::SYS_time,
];

/// Calls of a module: it executes its program, loads libraries and reads files, as far as landlock permits.
const FILES: &[i64] = &[
    c::SYS_execve,
    c::SYS_execveat,
    c::SYS_openat,
    c::SYS_openat2,
    c::SYS_close,
    c::SYS_close_range,
    c::SYS_dup3,
    c::SYS_faccessat,
    c::SYS_faccessat2,
    c::SYS_newfstatat,
    c::SYS_statx,
    c::SYS_statfs,
    c::SYS_readlinkat,
    c::SYS_getdents64,
    c::SYS_getcwd,
    c::SYS_chdir,
    c::SYS_fchdir,
    c::SYS_fadvise64,
    c::SYS_readahead,
    c::SYS_flock,
    c::SYS_mprotect,
    c::SYS_sendmsg,
    c::SYS_wait4,
    c::SYS_waitid,
    c::SYS_getpriority,
    c::SYS_get_mempolicy,
    c::SYS_sched_getattr,
    c::SYS_signalfd4,
    c::SYS_timer_create,
    c::SYS_timer_delete,
    c::SYS_timer_getoverrun,
    c::SYS_timer_gettime,
    c::SYS_timer_settime,
    #[cfg(target_arch = "x86_64")]
    c::SYS_access,
    #[cfg(target_arch = "x86_64")]
    c::SYS_alarm,
    #[cfg(target_arch = "x86_64")]
    c::SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    c::SYS_epoll_create,
    #[cfg(target_arch = "x86_64")]
    c::SYS_eventfd,
    #[cfg(target_arch = "x86_64")]
    c::SYS_getdents,
    #[cfg(target_arch = "x86_64")]
    c::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    c::SYS_open,
    #[cfg(target_arch = "x86_64")]
    c::SYS_pause,
    #[cfg(target_arch = "x86_64")]
    c::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    c::SYS_signalfd,
    #[cfg(target_arch = "x86_64")]
    c::SYS_stat,
];

/// Commands of `fcntl(2)`: copies, flags, sizes and seals. None sends signals, watches directories or takes leases.
const FCNTLS: &[c::c_int] = &[
    c::F_DUPFD,
    c::F_DUPFD_CLOEXEC,
    c::F_GETFD,
    c::F_SETFD,
    c::F_GETFL,
    c::F_SETFL,
    c::F_GETPIPE_SZ,
    c::F_SETPIPE_SZ,
    c::F_GET_SEALS,
    c::F_ADD_SEALS,
];

/// Returns the auxiliary vector of the process itself (`linux/prctl.h` since Linux 6.4), which libc lacks.
const PR_GET_AUXV: c::c_int = 0x4155_5856;

/// Commands of `prctl(2)`: names and timers of its own threads, and questions. glibc names memory (PR_SET_VMA).
const PRCTLS: &[c::c_int] = &[
    c::PR_SET_NAME,
    c::PR_GET_NAME,
    c::PR_SET_TIMERSLACK,
    c::PR_GET_TIMERSLACK,
    c::PR_GET_DUMPABLE,
    c::PR_GET_PDEATHSIG,
    c::PR_CAPBSET_READ,
    c::PR_GET_NO_NEW_PRIVS,
    c::PR_SET_VMA,
    PR_GET_AUXV,
];

/// Ioctls on any descriptor: blocking, close-on-exec, and counts of waiting bytes. `isatty` asks with TCGETS, in glibc since 2.42
/// with TCGETS2, in musl with TIOCGWINSZ.
const IOCTLS: &[u32] = &[
    c::FIONBIO as u32,
    c::FIONREAD as u32,
    c::FIOCLEX as u32,
    c::FIONCLEX as u32,
    c::TIOCOUTQ as u32,
    c::TCGETS as u32,
    sys::tty::TCGETS2,
    c::TIOCGWINSZ as u32,
];

/// Constants of `linux/udp.h`, and of `linux/tcp.h` since Linux 6.15, that libc lacks.
const UDP_SEGMENT: c::c_int = 103;
const UDP_GRO: c::c_int = 104;
const TCP_RTO_MAX_MS: c::c_int = 44;
const TCP_RTO_MIN_US: c::c_int = 45;

/// Options that a worker sets on its sockets: sizes, pace, timeouts, timestamps, and how datagrams are cut.
const SOCKET_OPTIONS: &[(c::c_int, c::c_int)] = &[
    (c::SOL_SOCKET, c::SO_SNDBUF),
    (c::SOL_SOCKET, c::SO_RCVBUF),
    (c::SOL_SOCKET, c::SO_KEEPALIVE),
    (c::SOL_SOCKET, c::SO_TIMESTAMPING),
    (c::SOL_SOCKET, c::SO_MAX_PACING_RATE),
    (c::SOL_UDP, UDP_SEGMENT),
    (c::SOL_UDP, UDP_GRO),
    (c::IPPROTO_TCP, c::TCP_NODELAY),
    (c::IPPROTO_TCP, c::TCP_CONGESTION),
    (c::IPPROTO_TCP, c::TCP_NOTSENT_LOWAT),
    (c::IPPROTO_TCP, c::TCP_USER_TIMEOUT),
    (c::IPPROTO_TCP, c::TCP_THIN_LINEAR_TIMEOUTS),
    (c::IPPROTO_TCP, TCP_RTO_MAX_MS),
    (c::IPPROTO_TCP, TCP_RTO_MIN_US),
    (c::IPPROTO_IP, c::IP_MTU_DISCOVER),
    (c::IPPROTO_IPV6, c::IPV6_MTU_DISCOVER),
];

/// Flags of `clone(2)` that make namespaces or trace.
const CLONE_APART: c::c_int = c::CLONE_NEWNS
    | c::CLONE_NEWUTS
    | c::CLONE_NEWIPC
    | c::CLONE_NEWUSER
    | c::CLONE_NEWPID
    | c::CLONE_NEWNET
    | c::CLONE_NEWCGROUP
    | c::CLONE_PTRACE;

/// Bits of a socket's type below its flags.
const SOCKET_TYPE_MASK: u64 = 0xf;

/// LANDLOCK_CREATE_RULESET_VERSION (`landlock_create_ruleset(2)`), which libc lacks.
const LANDLOCK_VERSION: c::c_int = 1;

type Condition = Result<SeccompCondition, BackendError>;

/// Argument `number` has the 32-bit value `value`.
fn is(number: u8, value: c::c_int) -> Condition {
    SeccompCondition::new(number, Length::Dword, Compare::Eq, u64::from(value as u32))
}

/// The bits `mask` of argument `number` are those of `value`.
fn has(number: u8, mask: u64, value: u64) -> Condition {
    SeccompCondition::new(number, Length::Qword, Compare::MaskedEq(mask), value)
}

/// Allows `call` if all of `conditions` hold, besides its other rules.
fn allow<const N: usize>(
    rules: &mut Rules,
    call: i64,
    conditions: [Condition; N],
) -> Result<(), BackendError> {
    let conditions = conditions.into_iter().collect::<Result<Vec<_>, _>>()?;
    rules.entry(call).or_default().push(SeccompRule::new(conditions)?);
    Ok(())
}

fn always(rules: &mut Rules, calls: &[i64]) {
    rules.extend(calls.iter().map(|call| (*call, Vec::new())));
}

fn allow_ioctls(rules: &mut Rules, ioctls: &[u32]) -> Result<(), BackendError> {
    let mask = u64::from(sys::ioctl::CODE_MASK);
    ioctls.iter().try_for_each(|code| allow(rules, c::SYS_ioctl, [has(1, mask, u64::from(*code))]))
}

/// Calls of both roles.
fn common() -> Result<Rules, BackendError> {
    let mut rules = Rules::new();
    let all = &mut rules;
    always(all, COMMON);
    let own = std::process::id() as c::c_int;
    allow(all, c::SYS_kill, [is(0, own)])?;
    allow(all, c::SYS_tgkill, [is(0, own)])?;
    // Threads, but no processes.
    let thread = c::CLONE_THREAD as u64;
    allow(all, c::SYS_clone, [has(0, thread, thread), has(0, CLONE_APART as u64, 0)])?;
    // Data without an address, and no connection by the first data.
    let no_fast_open = |number| has(number, c::MSG_FASTOPEN as u64, 0);
    allow(all, c::SYS_sendto, [has(4, u64::MAX, 0), no_fast_open(3)])?;
    // Pairs of stream sockets have no addresses either; a datagram socket could send to a name.
    for kind in [c::SOCK_STREAM, c::SOCK_SEQPACKET] {
        allow(all, c::SYS_socketpair, [is(0, c::AF_UNIX), has(1, SOCKET_TYPE_MASK, kind as u64)])?;
    }
    FCNTLS.iter().try_for_each(|command| allow(all, c::SYS_fcntl, [is(1, *command)]))?;
    PRCTLS.iter().try_for_each(|command| allow(all, c::SYS_prctl, [is(0, *command)]))?;
    allow_ioctls(all, IOCTLS)?;
    // The question for the version of landlock, without attributes.
    allow(all, c::SYS_landlock_create_ruleset, [has(0, u64::MAX, 0), is(2, LANDLOCK_VERSION)])?;
    // A process may read limits: its own, without new values.
    for process in [0, own] {
        allow(all, c::SYS_prlimit64, [is(0, process), has(2, u64::MAX, 0)])?;
    }
    Ok(rules)
}

/// Calls of a module.
pub fn of_module() -> Result<Rules, BackendError> {
    let mut rules = common()?;
    always(&mut rules, FILES);
    // Not memory that does not count towards a limit: shared and without a file, or growing.
    let (shared, nameless) = (c::MAP_SHARED as u64, c::MAP_ANONYMOUS as u64);
    let mask = shared | nameless | c::MAP_GROWSDOWN as u64;
    for value in [0, shared, nameless] {
        allow(&mut rules, c::SYS_mmap, [has(3, mask, value)])?;
    }
    Ok(rules)
}

/// Calls of a worker. `ioctls` are those of the classes of its devices ([`sys::ioctl::code`]).
pub fn of_worker(ioctls: &[u32]) -> Result<Rules, BackendError> {
    let mut rules = common()?;
    let all = &mut rules;
    always(all, &[c::SYS_accept, c::SYS_accept4, c::SYS_memfd_create, c::SYS_recvmmsg]);
    let no_code = || has(2, c::PROT_EXEC as u64, 0);
    allow(all, c::SYS_mmap, [no_code()])?;
    allow(all, c::SYS_mprotect, [no_code()])?;
    let fixed = u64::from(SENDMSG_DESCRIPTOR as u32);
    allow(all, c::SYS_sendmsg, [is(0, SENDMSG_DESCRIPTOR)])?;
    allow(all, c::SYS_close, [SeccompCondition::new(0, Length::Dword, Compare::Ne, fixed)])?;
    for (level, option) in SOCKET_OPTIONS {
        allow(all, c::SYS_setsockopt, [is(1, *level), is(2, *option)])?;
    }
    allow_ioctls(all, ioctls)?;
    Ok(rules)
}
