//! All limits of a session.

use std::time::Duration;

/// The resources of this host that one session may use.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Replay store of one flow: bytes of bodies. A message is admitted while the store is below this limit, so
    /// the last one may exceed it.
    pub store_bytes: usize,
    /// Replay store of one flow: messages.
    pub store_messages: usize,
    /// The behaviour of a flow whose replay store is full.
    pub store_full: StoreFull,
    /// Records that a sink buffers while an earlier one is missing.
    pub held_records: usize,
    /// Bytes of bodies that a sink buffers while an earlier one is missing. The missing one always fits.
    pub held_bytes: usize,
    /// The size to which a sink half may expand a peer's message. Pictures have their own limit.
    pub message_bytes: usize,
    /// Bytes of control frames that wait to be sent.
    pub control_bytes: usize,
    /// The timeout after which the sink of a state flow goes neutral.
    pub silence: Duration,
    /// The time between pings while something is held.
    pub ping_interval: Duration,
    /// The longest time between pings of a session at rest.
    pub rest_interval: Duration,
    /// How long a session without a connection waits for its peer.
    pub keep: Duration,
    /// When this host stops: the time limit for delivering the rest of flows that have ended at their source.
    pub drain: Duration,
    /// The time limit for the handshake of a connection.
    pub greeting: Duration,
    /// Connections that have not completed their handshake.
    pub greetings: usize,
    /// Concurrent sessions.
    pub sessions: usize,
    /// Drivers in one session.
    pub drivers: usize,
    /// Limits for all peers together, and for unidentified ones.
    pub admission: Admittance,
    /// Limits on throughput and processor time.
    pub rates: Rates,
}

/// Admission limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admittance {
    /// New connections a second from one address (IPv6: from one /64 prefix).
    pub connections_per_second: usize,
    /// Connections from one address that have not completed their handshake.
    pub greetings_per_address: usize,
    /// Handshakes a second, of all peers.
    pub handshakes_per_second: usize,
    /// Concurrent sessions of one peer.
    pub sessions_per_peer: usize,
    /// Drivers of all sessions.
    pub drivers_of_all: usize,
    /// The sum of the replay store limits of all sessions, in bytes.
    pub store_bytes_of_all: usize,
}

impl Default for Admittance {
    fn default() -> Self {
        Admittance {
            connections_per_second: 100,
            greetings_per_address: 128,
            handshakes_per_second: 200,
            sessions_per_peer: 64,
            drivers_of_all: 4096,
            store_bytes_of_all: 16 << 30,
        }
    }
}

/// Limits on throughput, both directions together, and on processor time. 0 means unlimited. Traffic above a
/// limit waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rates {
    /// Bytes a second of one device's flows.
    pub device_bytes: u64,
    /// Bytes a second of all flows of a session.
    pub session_bytes: u64,
    /// Processor time for all flows of a peer, in per cent of one processor.
    pub cpu_percent_per_peer: u64,
    /// Control messages and reads a second of all control channels of a peer. A peer with many flows sends some thousands.
    pub control_messages_per_peer: u64,
    /// Control messages a second of a peer that are work for the broker: devices opened and closed, pipelines changed,
    /// catalogues listed.
    pub control_requests_per_peer: u64,
}

impl Default for Rates {
    fn default() -> Self {
        Rates {
            device_bytes: 0,
            session_bytes: 0,
            cpu_percent_per_peer: 0,
            control_messages_per_peer: 20_000,
            control_requests_per_peer: 200,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            store_bytes: 16 << 20,
            store_messages: 65536,
            store_full: StoreFull::default(),
            held_records: 4096,
            held_bytes: 16 << 20,
            message_bytes: 4 << 20,
            control_bytes: 4 << 20,
            silence: Duration::from_millis(700),
            ping_interval: Duration::from_millis(100),
            rest_interval: Duration::from_secs(12),
            keep: Duration::from_secs(120),
            drain: Duration::from_secs(2),
            greeting: Duration::from_secs(5),
            greetings: 256,
            sessions: 128,
            drivers: 64,
            admission: Admittance::default(),
            rates: Rates::default(),
        }
    }
}

/// The behaviour of a flow whose replay store is full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StoreFull {
    /// Admit no message until another is acknowledged. The device waits.
    #[default]
    Block,
    /// Drop the oldest message. The sink is notified and counts the drop.
    DropOldest,
    /// End the flow.
    Close,
}

impl StoreFull {
    /// The names of the variants, in the order above.
    pub const WORDS: &[&str] = &["block", "drop-oldest", "close"];

    /// Returns the variant with this name.
    pub fn parse(word: &str) -> Option<StoreFull> {
        [StoreFull::Block, StoreFull::DropOldest, StoreFull::Close]
            .into_iter()
            .find(|full| full.word() == word)
    }

    /// The name of the variant.
    pub fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}
