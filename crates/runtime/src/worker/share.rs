//! What a session's worker takes of the processors, as the kernel counts it: it is looked at by the broker, so that it
//! holds for a worker that was taken over too. Who takes more than its share runs behind others for as long; where nobody
//! else wants the processor, that costs it nothing.

use contract::Time;
use rustix::process::{Pid, getpriority_process, setpriority_process};
use std::fs;
use std::time::Duration;

/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How much less than others one gets that took too much (`sched(7)`, the nice value): a tenth.
const BEHIND: i32 = 10;
const NICE_MAX: i32 = 19;

/// One process's.
#[derive(Debug)]
pub(super) struct Share {
    process: Pid,
    /// Of one processor; 1 and more is no bound.
    most: f64,
    looked: Option<(Time, u64)>,
    /// Its nice value, while it does not.
    usual: i32,
    is_behind: bool,
}

impl Share {
    pub(super) fn new(process: Pid, most: f64) -> Share {
        let usual = getpriority_process(Some(process)).unwrap_or(0);
        Share { process, most, looked: None, usual, is_behind: false }
    }

    /// Looks how much it took since the last time, if that is a while ago.
    pub(super) fn look(&mut self, now: Time) {
        let is_early = self.looked.is_some_and(|(at, _)| now < at.after(LOOK_INTERVAL));
        if self.most >= 1.0 || is_early {
            return;
        }
        let Some(used_ns) = used_ns(self.process) else { return };
        if let Some((at, before_ns)) = self.looked.replace((now, used_ns)) {
            let elapsed_ns = now.since(at).as_nanos().max(1) as f64;
            let is_behind = used_ns.saturating_sub(before_ns) as f64 > self.most * elapsed_ns;
            // Who may not take it back (`setpriority(2)`) leaves it, and tries again.
            let nice = if is_behind { (self.usual + BEHIND).min(NICE_MAX) } else { self.usual };
            if is_behind != self.is_behind && setpriority_process(Some(self.process), nice).is_ok() {
                self.is_behind = is_behind;
            }
        }
    }
}

/// Processor time until now (`/proc/PID/schedstat`, its first number); `None` where the kernel does not tell.
fn used_ns(process: Pid) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{}/schedstat", process.as_raw_nonzero())).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::thread::sleep;
    use std::time::Instant;

    #[test]
    fn who_takes_more_than_its_share_runs_behind_and_who_does_not_does_not() {
        let now = || Time(sys::clock::boot_ns());
        for (program, behind) in
            [(["sh", "-c", "while :; do :; done"], true), (["sh", "-c", "read x"], false)]
        {
            let mut command = Command::new(program[0]);
            let mut child = command.args(&program[1..]).stdin(std::process::Stdio::piped()).spawn().unwrap();
            let pid = Pid::from_child(&child);
            // Of a busy machine it gets little: its share is less than that.
            let mut share = Share::new(pid, 0.01);
            let nice = || getpriority_process(Some(pid)).unwrap();
            let (begun, usual) = (Instant::now(), nice());
            let patience = Duration::from_secs(if behind { 60 } else { 1 });
            while nice() == usual && begun.elapsed() < patience {
                share.look(now());
                sleep(Duration::from_millis(20));
            }
            assert_eq!(nice() > usual, behind);
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
