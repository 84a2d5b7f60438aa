//! Processor time and memory of processes, as the kernel counts them.

use std::fs;
use std::path::Path;

/// Ticks a second of `/proc/PID/stat` (`USER_HZ`, the same on every machine).
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns a process and its descendants, oldest first.
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

/// Returns the processor time of running processes so far.
pub(crate) fn cpu_seconds(processes: &[u32]) -> f64 {
    let ticks = |process: &u32| {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The program's name may contain spaces; the fields after its bracket do not.
        let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
        Some(fields.next()?.parse::<f64>().ok()? + fields.next()?.parse::<f64>().ok()?)
    };
    processes.iter().filter_map(ticks).sum::<f64>() / TICKS_PER_SECOND
}

/// Returns the memory of processes. Shared memory counts once.
pub(crate) fn memory_bytes(processes: &[u32]) -> f64 {
    processes.iter().filter_map(|process| pss_bytes(Path::new(&format!("/proc/{process}")))).sum()
}

/// `Pss` of `proc_pid_smaps(5)`.
fn pss_bytes(process: &Path) -> Option<f64> {
    let text = fs::read_to_string(process.join("smaps_rollup")).ok()?;
    let line = text.lines().find(|line| line.starts_with("Pss:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? * 1024.0)
}
