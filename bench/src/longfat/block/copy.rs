//! A program of its own that copies the whole disk over a fixed number of connections.

use super::LOOK;
use super::protocol::{Disk, Protocol, Values};
use super::reading::serve;
use crate::programs::Running;
use crate::reliability::hosts::{ADDRESS_A, Host, Hosts};
use crate::setting::Failure;
use serde_json::{Value, json};
use std::fmt::{Display, Formatter, Result as FormatResult};
use std::thread;
use std::time::{Duration, Instant};

/// The part of a disk that nbdcopy gives to a thread at a time (`THREAD_WORK_SIZE` in its `nbdcopy.h`): a smaller disk uses fewer connections.
const THREAD_BYTES: u64 = 128 << 20;
/// The longest copy: a path that it does not fill must not hold up everything.
const PATIENCE: Duration = Duration::from_secs(200);

/// Goodput of a whole copy, Mbit/s.
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

/// Copies a disk that keeps all connections busy, from the program's start to its end.
///
/// # Errors
///
/// The program is missing, or fails.
pub(super) fn measure(hosts: &Hosts, protocol: &Protocol, sessions: u32) -> Result<Option<Copied>, Failure> {
    let Some((words, package)) = protocol.copy else { return Ok(None) };
    let bytes = u64::from(sessions) * THREAD_BYTES;
    let sessions = sessions.to_string();
    let values = Values { host: ADDRESS_A, disk: Disk::Pattern, size_bytes: bytes, sessions: &sessions };
    let _server = serve(hosts, protocol, Host::Device, values)?;
    let words = protocol.words(words, values);
    let program = &words[0];
    let mut copy = hosts.lab.program(Host::Application.letter(), program);
    let begun = Instant::now();
    let started = copy.args(&words[1..]).spawn();
    let mut copy = Running(started.map_err(|error| format!("{program}: {error}; install {package}"))?);
    loop {
        match copy.0.try_wait()? {
            Some(status) if status.success() => return Ok(Some(Copied::Done(mbit(bytes, begun.elapsed())))),
            Some(status) => return Err(format!("{program} exited ({status})").into()),
            None if begun.elapsed() > PATIENCE => return Ok(Some(Copied::Below(mbit(bytes, PATIENCE)))),
            None => thread::sleep(LOOK),
        }
    }
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
