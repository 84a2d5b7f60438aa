//! What processes use, as the kernel counts it.

use std::fs;
use std::path::Path;

/// Kernel's ticks of `/proc/PID/stat` in a second (`USER_HZ`, the same on every machine).
const TICKS_PER_SECOND: f64 = 100.0;

/// A process and all that it started, oldest first.
pub(crate) fn with_descendants(process: u32) -> Vec<u32> {
    let mut all = vec![process];
    let mut at = 0;
    while let Some(process) = all.get(at) {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let parsed =
            |text: String| text.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>();
        let children: Vec<u32> = children.flat_map(parsed).collect();
        all.extend(children);
        at += 1;
    }
    all
}

/// Processor time of processes until now. Of those that have ended nothing is known any more.
pub(crate) fn cpu_seconds(processes: &[u32]) -> f64 {
    let ticks = |process: &u32| {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name of the program may have spaces; what follows its bracket has none.
        let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
        Some(fields.next()?.parse::<f64>().ok()? + fields.next()?.parse::<f64>().ok()?)
    };
    processes.iter().filter_map(ticks).sum::<f64>() / TICKS_PER_SECOND
}

/// What processes have of the machine's memory, what they share counted once.
pub(crate) fn memory_bytes(processes: &[u32]) -> f64 {
    processes.iter().filter_map(|process| pss_bytes(Path::new(&format!("/proc/{process}")))).sum()
}

/// `Pss` of `proc_pid_smaps(5)`.
fn pss_bytes(process: &Path) -> Option<f64> {
    let text = fs::read_to_string(process.join("smaps_rollup")).ok()?;
    let line = text.lines().find(|line| line.starts_with("Pss:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? * 1024.0)
}
