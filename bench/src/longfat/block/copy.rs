//! A program of its own that copies the whole disk over a fixed number of connections.

use super::LOOK;
use super::protocol::{Disk, Protocol, Values};
use super::reading::serve;
use crate::longfat::Network;
use crate::programs::Running;
use crate::reliability::hosts::{ADDRESS_A, Host, Hosts};
use crate::setting::Failure;
use serde_json::{Value, json};
use std::fmt::{Display, Formatter, Result as FormatResult};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// A program may take this many times as long as a full link would: a path that it does not fill must not hold up everything.
const PATIENCE_FACTOR: f64 = 20.0;

/// Goodput of the second half of the disk, Mbit/s.
#[derive(Debug, Clone, Copy)]
pub(super) enum Copied {
    Done(f64),
    /// The program was ended before; its goodput was below this.
    Below(f64),
}

impl Copied {
    pub(super) fn json(self) -> Value {
        match self {
            Copied::Done(mbit) => json!({ "mbit": mbit }),
            Copied::Below(mbit) => json!({ "below_mbit": mbit }),
        }
    }
}

impl Display for Copied {
    fn fmt(&self, out: &mut Formatter<'_>) -> FormatResult {
        match self {
            Copied::Done(mbit) => write!(out, "{mbit:.0}"),
            Copied::Below(mbit) => write!(out, "< {mbit:.0}"),
        }
    }
}

/// Copies as much as a full link carries in this time.
///
/// # Errors
///
/// The program is missing, or fails.
pub(super) fn measure(
    hosts: &Hosts,
    protocol: &Protocol,
    network: Network,
    (sessions, seconds): (u32, f64),
) -> Result<Option<Copied>, Failure> {
    let Some((words, package)) = protocol.copy else { return Ok(None) };
    let bytes = (f64::from(network.rate_mbit) * 1e6 / 8.0 * seconds) as u64 / 4096 * 4096;
    let sessions = sessions.to_string();
    let values = Values { host: ADDRESS_A, disk: Disk::Pattern, size_bytes: bytes, sessions: &sessions };
    let _server = serve(hosts, protocol, Host::Device, values)?;
    let words = protocol.words(words, values);
    let program = &words[0];
    let mut copy = hosts.lab.program(Host::Application.letter(), program);
    let begun = Instant::now();
    let started = copy.args(&words[1..]).stdout(Stdio::piped()).spawn();
    let mut copy = Running(started.map_err(|error| format!("{program}: {error}; install {package}"))?);
    let progress = copy.0.stdout.take().ok_or("the program has no output")?;
    let (sender, half) = mpsc::channel();
    thread::spawn(move || {
        let shares = BufReader::new(progress).lines().map_while(Result::ok).filter_map(|line| percent(&line));
        for share in shares.filter(|share| (50..100).contains(share)) {
            // Nobody waits for those after the first, or after a program that was ended.
            let _ = sender.send((share, Instant::now()));
        }
    });
    let most = Duration::from_secs_f64(seconds * PATIENCE_FACTOR);
    loop {
        match copy.0.try_wait()? {
            Some(status) if status.success() => break,
            Some(status) => return Err(format!("{program} exited ({status})").into()),
            None if begun.elapsed() > most => {
                return Ok(Some(Copied::Below(mbit(bytes, most))));
            }
            None => thread::sleep(LOOK),
        }
    }
    let ended = Instant::now();
    let silent = |_| format!("{program} has not told when half of the disk was copied");
    let (share, since) = half.recv().map_err(silent)?;
    Ok(Some(Copied::Done(mbit(bytes * (100 - share) / 100, ended.duration_since(since)))))
}

/// Returns the share that a line of progress tells, such as `50/100`.
fn percent(line: &str) -> Option<u64> {
    line.strip_suffix("/100")?.parse().ok()
}

fn mbit(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8.0 / 1e6 / time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_was_ended_has_a_bound_and_no_goodput() {
        assert_eq!(Copied::Below(mbit(112_500_000, Duration::from_secs(20))).to_string(), "< 45");
        assert_eq!(Copied::Done(472.6).to_string(), "473");
    }
}
