//! Every system call, made by a confined process, beside the list of its role.

use super::Role;
use super::tracee::{Answer, Tracee};
use crate::setting::Failure;
use modules::registry;
use nix::errno::Errno;
use nix::libc as c;
use sandbox::calls::{self, NEWEST_CALL, Rules};
use serde::Serialize;
use sys::seccomp::WATCHER_CALLS;

/// The highest number that is tried; Linux 6.18 ends at 469.
const HIGHEST: i64 = 600;
/// The x32 numbers begin here (`__X32_SYSCALL_BIT`).
const X32: i64 = 0x4000_0000;
/// No descriptor, no address, no process, and no flags that a call knows.
const NOTHING: [u64; 6] = [u64::MAX; 6];
/// Calls that end the process or replace its registers. They are on the lists, and are not made.
const ENDS: &[i64] = &[c::SYS_exit, c::SYS_exit_group, c::SYS_rt_sigreturn];

/// `uretprobe` and `uprobe`: kernels that have them show them to no filter, and serve them only in the code that they themselves
/// placed into a traced program (`seccomp: passthrough uretprobe systemcall without filtering`, Linux 6.14).
const UNFILTERED: &[i64] = &[335, 336];
/// Calls of an unconfined process that start another one or leave an object behind.
const LEAVES: &[i64] = &[c::SYS_fork, c::SYS_vfork, c::SYS_msgget];

/// The counts of one sweep.
#[derive(Debug, Default, Clone, Serialize)]
pub(super) struct Sweep {
    pub(super) tried: usize,
    /// Calls on the list of the role, and those that only some arguments allow.
    pub(super) listed: usize,
    pub(super) by_arguments: usize,
    /// Calls off the list, by their answer.
    pub(super) eperm: usize,
    pub(super) enosys: usize,
    /// Calls that the kernel shows to no filter and refuses itself.
    pub(super) unfiltered: usize,
    /// Calls with another answer than the filter's.
    pub(super) breaches: Vec<String>,
}

impl Sweep {
    fn count(&mut self, errno: Errno) {
        match errno {
            Errno::EPERM => self.eperm += 1,
            Errno::ENOSYS => self.enosys += 1,
            _ => {}
        }
    }
}

/// Returns the list of a role.
fn list(role: Role) -> Result<Rules, Failure> {
    let ioctls: Vec<_> =
        registry::device_classes().iter().flat_map(|class| class.ioctls()).copied().collect();
    Ok(match role {
        Role::Worker => calls::of_worker(&ioctls)?,
        Role::Watcher => WATCHER_CALLS.iter().map(|call| (*call, Vec::new())).collect(),
        Role::Stage | Role::Module => calls::of_module()?,
    })
}

/// Returns the filter's answer to a call off the list of a role.
fn refusal(role: Role, number: i64) -> Errno {
    if role == Role::Watcher {
        return Errno::EPERM;
    }
    if number > NEWEST_CALL || number == c::SYS_clone3 { Errno::ENOSYS } else { Errno::EPERM }
}

/// Makes every call once in a process without a sandbox, and counts the answers that a filter could have given.
pub(super) fn sweep_unconfined(tracee: &mut Tracee) -> Result<Sweep, Failure> {
    let mut sweep = Sweep::default();
    for number in (0..=HIGHEST).chain(X32..=X32 + HIGHEST) {
        if ENDS.contains(&number) || LEAVES.contains(&number) {
            continue;
        }
        sweep.tried += 1;
        match tracee.call(number, NOTHING)? {
            Answer::Error(errno) => sweep.count(errno),
            answer @ Answer::Ended(_) => {
                return Err(format!("call {number} ended the process: {answer}").into());
            }
            Answer::Value(_) | Answer::Waits => {}
        }
    }
    Ok(sweep)
}

/// Makes every call once in the process of a role.
pub(super) fn sweep(role: Role, tracee: &mut Tracee) -> Result<Sweep, Failure> {
    let list = list(role)?;
    let mut sweep = Sweep::default();
    for number in (0..=HIGHEST).chain(X32..=X32 + HIGHEST) {
        let rules = list.get(&number);
        if let Some(rules) = rules {
            sweep.listed += 1;
            sweep.by_arguments += usize::from(!rules.is_empty());
            if ENDS.contains(&number) {
                continue;
            }
        }
        sweep.tried += 1;
        let answer = tracee.call(number, NOTHING)?;
        match answer {
            // A rule may compare arguments: then the call reaches the kernel or is refused.
            answer if rules.is_some_and(|rules| rules.is_empty() || matches!(answer, Answer::Error(_))) => {}
            Answer::Error(errno) if errno == refusal(role, number) => sweep.count(errno),
            Answer::Error(_) if UNFILTERED.contains(&number) => sweep.unfiltered += 1,
            answer => sweep.breaches.push(format!("call {number:#x}: {answer}")),
        }
        match (number, answer) {
            (_, Answer::Ended(_)) => return Err(format!("call {number} ended the process: {answer}").into()),
            // These change the process; undo it.
            (c::SYS_umask, Answer::Value(before)) => {
                tracee.call(number, [before.cast_unsigned(), 0, 0, 0, 0, 0])?;
            }
            (c::SYS_alarm, Answer::Value(_)) => {
                tracee.call(number, [0; 6])?;
            }
            _ => {}
        }
    }
    Ok(sweep)
}
