//! A disk on a server that nobody modifies, over a number of sessions that is tuned: a block device layer with automatic
//! parallelism tuning, BDL-APT (Improving TCP Throughput for Cloud Applications (2014), 2.4).
//!
//! | part | purpose |
//! |---|---|
//! | [`Session`] | the protocol of one session: bytes from and to the server; sans-IO |
//! | `schedule` | splits requests into chunks, assigns them to sessions, keeps their order; sans-IO |
//! | `demand` | the number of sessions to have, and the next attempt to get one; sans-IO |
//! | `server` | the address of the server, the connection to it, and the options |
//! | `connection` | the socket of a session |
//! | `silence` | notices a dead server, unlike a slow one; sans-IO |
//! | `write_limit` | limits the writes in progress for a server that waits for their data with a time limit; sans-IO |
//! | `partner` | the device partner: all of these together |
//!
//! The layer knows nothing of the protocol. A protocol implements [`Session`], and makes its connections in its device class:
//! `crates/devices/src/nbd`, `crates/devices/src/iscsi`.
//!
//! # A session
//!
//! | state | event | next state |
//! |---|---|---|
//! | requested | the broker has connected to the server | opening |
//! | opening | the server and the session agree ([`Session::is_open`]); for NBD the broker has done that | open |
//! | opening | it takes longer than the option `timeout`, or the session is lost | none: the attempt has failed |
//! | open | the search wants fewer, and it carries nothing | ended: its last bytes say so |
//! | open | the server closes it, the network fails, or the server violates the protocol | lost |
//! | open | the server is silent, and may let in no second client ([`partner::Disk::is_alone`]) | silent: another session is requested |
//! | silent | the server acknowledges something | open |
//! | silent | another session is open | lost; the kernel drops the bytes that it has not sent |
//! | lost | the server has closed it; [`partner::LATE`] later | gone |
//! | lost, of an earlier process, the only one that the server may let in | another session is open | lost; the kernel drops the same |
//!
//! The chunks of a lost session are assigned to others. A copy of a write may still be on its way to the disk then, so a later write
//! to the same blocks waits until the session is gone. An order whose own status has ended a session goes to one that opens later, and fails
//! after [`schedule::REFUSALS_MAX`] of them.
//!
//! Each session has a slot: the lowest number that no open session has. A protocol may name its sessions by their slots, so that the
//! next session of a slot ends a lost one at the server ([`Session::replaces_earlier`]).

mod connection;
mod demand;
pub(crate) mod fuzz;
pub(crate) mod partner;
mod schedule;
pub(crate) mod server;
mod silence;
#[cfg(test)]
mod tests;
mod write_limit;

use contract::Body;
use std::time::Duration;
use wire::formats::block::{Command, Failure, Geometry};

/// The most data of one order, if the server takes as much: the chunk of table 2.1 of the thesis.
pub(crate) const CHUNK_BYTES: u32 = 128 << 10;

/// The pause of a session whose server is busy.
pub(crate) const BUSY_PAUSE: Duration = Duration::from_millis(200);

/// Describes the first difference between a server's disk as it was and as it is.
pub(crate) fn difference(before: &Geometry, now: &Geometry) -> String {
    let (had, has) = (before.abilities, now.abilities);
    let abilities = [
        ("writes", !had.read_only, !has.read_only),
        ("flush", had.flush, has.flush),
        ("forced writes (FUA)", had.force, has.force),
        ("trim", had.trim, has.trim),
        ("write zeroes", had.zeroes, has.zeroes),
        ("several connections", had.many_connections, has.many_connections),
    ];
    let changed = abilities.into_iter().find(|(_, had, has)| had != has);
    if before.size_bytes != now.size_bytes {
        format!("it had {} bytes, and has {}", before.size_bytes, now.size_bytes)
    } else if before.block_bytes != now.block_bytes {
        format!("its blocks had {} bytes, and have {}", before.block_bytes, now.block_bytes)
    } else if let Some((ability, _, has)) = changed {
        format!("it {} {ability} now", if has { "accepts" } else { "refuses" })
    } else {
        format!("its preferred block had {} bytes, and has {}", before.preferred_bytes, now.preferred_bytes)
    }
}

/// The number of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionCount {
    /// The search finds it.
    Found,
    /// This many.
    Fixed(u32),
}

/// One command for the server: a request, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    /// Names the order in its reply; unique among all orders of a disk.
    pub(crate) tag: u64,
    /// The work.
    pub(crate) command: Command,
    /// The data have to be durable before the reply.
    pub(crate) force: bool,
    /// For [`Command::Zeroes`]: the disk keeps the space allocated.
    pub(crate) keep_space: bool,
    /// The first byte.
    pub(crate) offset: u64,
    /// The number of bytes.
    pub(crate) length: u32,
}

/// The bytes that a session expects next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// A header of this many bytes.
    Header(usize),
    /// Data of an order; this many bytes are left.
    Data {
        /// The tag of the order.
        tag: u64,
        /// The bytes.
        length: u32,
    },
}

/// A reply. [`Failure::Gone`] says that the server ends, so the session is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    /// The tag of the order.
    pub(crate) tag: u64,
    /// Done, or the reason of the failure.
    pub(crate) result: Result<(), Failure>,
}

/// The end of a session: how the server violates the protocol, or why it ends the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    /// The reason.
    pub(crate) reason: String,
    /// The tag of the order whose status ends the session. Others can do it, or the order fails in the end.
    pub(crate) order: Option<u64>,
}

impl From<String> for Ended {
    fn from(reason: String) -> Ended {
        Ended { reason, order: None }
    }
}

/// The protocol of one session with a disk server. Sans-IO.
pub(crate) trait Session: Send {
    /// Appends the bytes with which the session begins.
    fn begin(&mut self, output: &mut Body) {
        let _ = output;
    }

    /// Returns whether the session accepts orders: the server has accepted it, and has the expected disk.
    fn is_open(&self) -> bool {
        true
    }

    /// Returns the most data of an order that the server takes, once it has accepted the session.
    fn order_bytes_max(&self) -> u32 {
        CHUNK_BYTES
    }

    /// Returns whether the server ends the session that had the same slot before, as soon as this one is open.
    fn replaces_earlier(&self) -> bool {
        false
    }

    /// Returns whether the server may end the session because the data of a write come late.
    fn has_write_deadline(&self) -> bool {
        false
    }

    /// Handles an order, and appends the bytes that are to be sent now to `output`; `data` are those of a write.
    fn submit(&mut self, order: &Order, data: Body, output: &mut Body);

    /// Appends the bytes that end the session in order.
    fn end(&mut self, output: &mut Body);

    /// Returns the bytes that it expects next.
    fn expected(&self) -> Expected;

    /// Handles the header that it expects, and appends the bytes that follow from it.
    fn handle_header(&mut self, header: &[u8], output: &mut Body) -> Result<Option<Reply>, Ended>;

    /// Handles that `length` bytes of the data that it expects have been stored; otherwise as [`Session::handle_header`].
    fn handle_data(&mut self, length: u32, output: &mut Body) -> Result<Option<Reply>, Ended>;

    /// Returns whether its orders, or the steps of its opening, wait for [`Session::resume`]: the server is busy, and has no order whose
    /// end would say when it is not.
    fn is_paused(&self) -> bool {
        false
    }

    /// Ends a pause: appends the orders that waited.
    fn resume(&mut self, output: &mut Body) {
        let _ = output;
    }

    /// Handles that all its bytes were sent but the last `left`.
    fn handle_sent(&mut self, left: usize) {
        let _ = left;
    }
}
