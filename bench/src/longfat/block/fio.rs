//! fio, an unmodified client of NBD disks.

use super::Running;
use crate::reliability::hosts::{Host, Hosts};
use crate::setting::Failure;
use serde_json::Value;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(20);

/// A load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// As `--rw` of fio: `randread`, or `randrw` for as many writes as reads.
    pub(super) rw: &'static str,
    pub(super) block_bytes: u32,
    pub(super) depth: u32,
}

/// The figures of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    pub(super) requests_per_second: f64,
    pub(super) mbit: f64,
}

/// The part of the disk that fio uses.
const REGION: &str = "256m";
/// fio ends later than asked by the requests that are under way. Over a slow path that takes a while.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs fio on the application host. The first of the two times does not count.
pub(super) fn run(
    hosts: &Hosts,
    address: &str,
    load: Load,
    [ramp, lasts]: [Duration; 2],
) -> Result<Done, Failure> {
    let mut fio = hosts.lab.program(Host::Application.letter(), "fio");
    fio.args(["--name=load", "--ioengine=nbd", "--output-format=json", "--time_based", "--randrepeat=1"]);
    fio.args([&format!("--size={REGION}"), &format!("--rw={}", load.rw), &format!("--uri={address}")]);
    fio.args([&format!("--bs={}", load.block_bytes), &format!("--iodepth={}", load.depth)]);
    for (option, time) in [("--ramp_time", ramp), ("--runtime", lasts)] {
        fio.arg(format!("{option}={}ms", time.as_millis()));
    }
    let started = fio.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut fio = Running(started.map_err(|error| format!("fio: {error}; install fio"))?);
    let output = fio.0.stdout.take().ok_or("fio has no standard output")?;
    let reader = thread::spawn(move || std::io::read_to_string(output));
    let begun = Instant::now();
    let status = loop {
        match fio.0.try_wait()? {
            Some(status) => break status,
            None if begun.elapsed() > ramp + lasts + PATIENCE => return Err("fio does not end".into()),
            None => thread::sleep(LOOK),
        }
    };
    let text = reader.join().map_err(|_| "the reader of fio panicked")??;
    if !status.success() {
        return Err(format!("fio exited ({status}) at {address}").into());
    }
    parse(&text)
}

fn parse(text: &str) -> Result<Done, Failure> {
    // Notes come before the report.
    let report: Value = serde_json::from_str(&text[text.find('{').ok_or("fio prints no report")?..])?;
    let job = &report["jobs"][0];
    let sum = |key: &str| ["read", "write"].iter().filter_map(|side| job[side][key].as_f64()).sum::<f64>();
    Ok(Done { requests_per_second: sum("iops"), mbit: sum("bw_bytes") * 8.0 / 1e6 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_of_a_report_are_added() {
        let text = "note: x\n{\"jobs\":[{\"read\":{\"iops\":10.5,\"bw_bytes\":1000000},\"write\":{\"iops\":9.5,\"bw_bytes\":500000}}]}";
        let done = parse(text).unwrap();
        assert_eq!([done.requests_per_second, done.mbit], [20.0, 12.0]);
        parse("no report").unwrap_err();
    }
}
