//! The settings of comparisons between Outboard and a bare socket.

use clap::Args;
use rustix::thread::{CpuSet, Pid, sched_setaffinity};

/// An error for a person to read.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A comparison of mechanisms that take turns.
#[derive(Args, Debug, Clone)]
pub(crate) struct Setting {
    /// Turns of each mechanism
    #[arg(long, default_value_t = 10)]
    pub(crate) rounds: usize,
    /// Congestion control of every TCP socket
    #[arg(long, default_value = "cubic")]
    pub(crate) congestion: String,
    /// Processors of the sender and of the receiver
    #[arg(long, value_delimiter = ',', num_args = 2, default_values_t = [0, 1])]
    pub(crate) cpus: Vec<usize>,
}

/// A comparison for several message sizes.
#[derive(Args, Debug)]
pub(crate) struct SizedSetting {
    #[command(flatten)]
    pub(crate) turns: Setting,
    /// Measure one message size only, bytes
    #[arg(long)]
    pub(crate) size: Option<usize>,
}

impl SizedSetting {
    /// Returns true if the user wants this message size.
    pub(crate) fn includes(&self, size: usize) -> bool {
        self.size.is_none_or(|only| only == size)
    }
}

impl Setting {
    /// Prepares the calling thread to measure on processor 0 or 1 of the setting. It asks the scheduler for the same
    /// turns as Outboard's workers do.
    pub(crate) fn settle(&self, which: usize) {
        if let Some(cpu) = self.cpus.get(which) {
            pin_to_cpu(*cpu);
        }
        be_like_a_worker();
    }
}

/// Pins the calling thread to one processor. Returns true on success.
pub(crate) fn pin_to_cpu(cpu: usize) -> bool {
    pin(None, cpu)
}

/// Pins the first thread of another process to one processor. Returns true on success.
pub(crate) fn pin_process_to_cpu(process: u32, cpu: usize) -> bool {
    i32::try_from(process).ok().and_then(Pid::from_raw).is_some_and(|pid| pin(Some(pid), cpu))
}

fn pin(pid: Option<Pid>, cpu: usize) -> bool {
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return false;
    }
    set.set(cpu);
    sched_setaffinity(pid, &set).is_ok()
}

/// Gives the calling thread the timer slack and the scheduler's turns of Outboard's workers. Without them a bare thread
/// waits longer for a processor that other programs use too.
pub(crate) fn be_like_a_worker() {
    sys::thread::be_punctual();
    sys::thread::be_prompt();
}
