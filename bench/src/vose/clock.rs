//! Slower processors: by their frequency where the machine allows it, else by a quota of processor time.

use crate::setting::Failure;
use std::fs;
use std::path::{Path, PathBuf};

const PROCESSORS: &str = "/sys/devices/system/cpu";
const GROUPS: &str = "/sys/fs/cgroup";
/// The period of a quota, microseconds: the kernel's default is 100 ms, which a queue of messages would notice.
const PERIOD_US: f64 = 10_000.0;

/// The clock of the programs that are measured. Dropping it restores the machine.
pub(super) enum Clock {
    /// The files with the largest frequency of each processor, their first content, and the highest frequency in kHz.
    Frequency(Vec<(PathBuf, String, f64)>),
    /// A control group, and whether it is one of version 2 (`cgroups(7)`).
    Quota { group: PathBuf, is_unified: bool },
    /// Only the full clock is measured.
    Full,
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()).into())
}

impl Clock {
    /// Returns a clock that can have these shares of the full one.
    pub(super) fn new(shares: &[f64]) -> Result<Clock, Failure> {
        if shares.iter().all(|share| *share == 1.0) {
            return Ok(Clock::Full);
        }
        let files = frequencies();
        // Writing the present value shows whether this machine allows it.
        if !files.is_empty() && files.iter().all(|(file, before, _)| fs::write(file, before).is_ok()) {
            return Ok(Clock::Frequency(files));
        }
        let is_unified = Path::new(GROUPS).join("cgroup.controllers").exists();
        let parent = Path::new(GROUPS).join(if is_unified { "" } else { "cpu" });
        if is_unified {
            write(&parent.join("cgroup.subtree_control"), "+cpu")?;
        }
        let group = parent.join(format!("outboard-bench-{}", std::process::id()));
        fs::create_dir(&group).map_err(|error| {
            format!("{}: {error}; other clocks than 1 need root and control groups", group.display())
        })?;
        Ok(Clock::Quota { group, is_unified })
    }

    /// Returns a name for the page.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Clock::Frequency(_) => "the frequency of the processors (cpufreq)",
            Clock::Quota { .. } => {
                "a quota of the time of all processors in periods of 10 ms (control group), because this machine has no cpufreq"
            }
            Clock::Full => "the full clock only",
        }
    }

    /// Sets the share of the full clock.
    pub(super) fn set(&self, share: f64) -> Result<(), Failure> {
        match self {
            Clock::Frequency(files) => files
                .iter()
                .try_for_each(|(file, _, highest)| write(file, &format!("{:.0}", highest * share))),
            Clock::Quota { group, is_unified } => {
                let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
                let quota = PERIOD_US * processors * share;
                if *is_unified {
                    return write(&group.join("cpu.max"), &format!("{quota:.0} {PERIOD_US:.0}"));
                }
                write(&group.join("cpu.cfs_period_us"), &format!("{PERIOD_US:.0}"))?;
                write(&group.join("cpu.cfs_quota_us"), &format!("{quota:.0}"))
            }
            Clock::Full => Ok(()),
        }
    }

    /// Applies the clock to a process that has just started.
    pub(super) fn admit(&self, process: u32) -> Result<(), Failure> {
        match self {
            Clock::Quota { group, .. } => write(&group.join("cgroup.procs"), &process.to_string()),
            Clock::Frequency(_) | Clock::Full => Ok(()),
        }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        match self {
            Clock::Frequency(files) => {
                for (file, before, _) in files {
                    let _ = fs::write(file, before);
                }
            }
            // Its processes have ended.
            Clock::Quota { group, .. } => drop(fs::remove_dir(group)),
            Clock::Full => {}
        }
    }
}

fn frequencies() -> Vec<(PathBuf, String, f64)> {
    let processors = fs::read_dir(PROCESSORS).into_iter().flatten().flatten();
    let file = |processor: fs::DirEntry| {
        let directory = processor.path().join("cpufreq");
        let highest = fs::read_to_string(directory.join("cpuinfo_max_freq")).ok()?.trim().parse().ok()?;
        let file = directory.join("scaling_max_freq");
        Some((file.clone(), fs::read_to_string(file).ok()?, highest))
    };
    processors.filter_map(file).collect()
}
