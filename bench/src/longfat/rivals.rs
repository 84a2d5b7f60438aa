//! iperf3 on the same network.

use crate::lab::Lab;
use crate::programs::Running;
use crate::setting::Failure;
use clap::ValueEnum;
use serde_json::Value;
use std::fmt;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

/// The address of the receiving host.
const ADDRESS_B: &str = "10.77.0.2";
/// Attempts to reach the server after its start.
const ATTEMPTS_MAX: usize = 20;
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Streams of iperf3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Rival {
    /// One stream with cubic.
    Cubic,
    /// Eight streams with cubic.
    Cubic8,
    /// One stream with bbr.
    Bbr,
}

impl Rival {
    pub(super) fn name(self) -> &'static str {
        match self {
            Rival::Cubic => "cubic",
            Rival::Cubic8 => "cubic8",
            Rival::Bbr => "bbr",
        }
    }

    /// Returns the congestion control and the number of streams.
    fn streams(self) -> (&'static str, &'static str) {
        match self {
            Rival::Cubic => ("cubic", "1"),
            Rival::Cubic8 => ("cubic", "8"),
            Rival::Bbr => ("bbr", "1"),
        }
    }
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Runs iperf3 from host a to host b. Returns the goodput at the receiver in the second half of this time.
pub(super) fn goodput_mbit(lab: &Lab, rival: Rival, lasts: Duration) -> Result<f64, Failure> {
    let missing = |error| format!("iperf3: {error}; install it");
    let mut server = lab.program("b", "iperf3");
    let server = server.args(["-s", "-1", "-J"]).stdout(Stdio::null()).stderr(Stdio::null());
    // A server may stay after its test, so the client brings its report.
    let _server = Running(server.spawn().map_err(missing)?);
    let (congestion, streams) = rival.streams();
    let seconds = lasts.as_secs_f64().ceil().max(1.0).to_string();
    let mut attempt = 1;
    let report: Value = loop {
        let mut client = lab.program("a", "iperf3");
        client.args(["-c", ADDRESS_B, "-t", &seconds, "-C", congestion, "-P", streams]);
        let output = client.args(["-J", "--get-server-output"]).output().map_err(missing)?;
        if output.status.success() {
            break serde_json::from_slice(&output.stdout)?;
        }
        if attempt == ATTEMPTS_MAX {
            return Err(format!("iperf3: {}", String::from_utf8_lossy(&output.stdout)).into());
        }
        attempt += 1;
        // The server does not listen yet.
        thread::sleep(RETRY_AFTER);
    };
    let intervals =
        report["server_output_json"]["intervals"].as_array().ok_or("iperf3 reports no intervals")?;
    let sums = intervals.iter().map(|interval| &interval["sum"]);
    let half = |sum: &&Value| {
        let [start, end] = ["start", "end"].map(|key| sum[key].as_f64().unwrap_or_default());
        start >= lasts.as_secs_f64() / 2.0 - 0.5 && end <= lasts.as_secs_f64() + 0.5
    };
    let (bytes, seconds) = sums.filter(half).fold((0.0, 0.0), |(bytes, seconds), sum| {
        let figure = |key: &str| sum[key].as_f64().unwrap_or_default();
        (bytes + figure("bytes"), seconds + figure("seconds"))
    });
    Ok(bytes * 8.0 / 1e6 / f64::max(seconds, f64::MIN_POSITIVE))
}
