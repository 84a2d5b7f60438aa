//! Every bound of a session, in one place.

use std::time::Duration;

/// What one session may take of this host.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Bytes of bodies in one flow's replay store from which it takes no further message; one message may
    /// go over it.
    pub store_bytes: usize,
    /// Messages that one flow's replay store holds.
    pub store_messages: usize,
    /// What becomes of a flow whose replay store is full.
    pub store_full: StoreFull,
    /// Records that a sink holds while it waits for an earlier one.
    pub held_records: usize,
    /// Bytes of bodies that a sink holds while it waits for an earlier one, which always fits.
    pub held_bytes: usize,
    /// Bytes that a message of a peer may come to where a pair's sink half makes it larger than it came; pictures have
    /// their own bound.
    pub message_bytes: usize,
    /// Bytes of control frames waiting to be sent.
    pub control_bytes: usize,
    /// Silence after which a state flow's sink goes neutral.
    pub silence: Duration,
    /// Time between pings.
    pub ping_interval: Duration,
    /// How long a session without a connection is kept for its peer to come back.
    pub keep: Duration,
    /// How long flows that have ended at their source may take to arrive whole when this host stops.
    pub drain: Duration,
    /// How long a connection may take to introduce itself.
    pub greeting: Duration,
    /// Connections that have not introduced themselves yet.
    pub greetings: usize,
    /// Sessions at once.
    pub sessions: usize,
    /// Drivers of one session.
    pub drivers: usize,
    /// What is bounded of everybody together, and of who is not known yet.
    pub admission: Admittance,
    /// What may be moved in a second.
    pub rates: Rates,
}

/// Who may come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admittance {
    /// Connections of one address (of IPv6: 64 bits of it) in a second.
    pub connections_per_second: usize,
    /// Connections of one address that have not introduced themselves yet.
    pub greetings_per_address: usize,
    /// Handshakes of all together in a second.
    pub handshakes_per_second: usize,
    /// Sessions of one peer at once.
    pub sessions_per_peer: usize,
    /// Drivers of all sessions.
    pub drivers_of_all: usize,
    /// Bytes that the replay stores of all sessions may come to hold, each as full as it may be.
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

/// What may be moved in a second, both ways together, and what moving it may take; 0 is no bound. What is over it waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rates {
    /// Messages of one device's flows.
    pub device_messages: u64,
    /// Their bytes.
    pub device_bytes: u64,
    /// Messages of all flows of a session.
    pub session_messages: u64,
    /// Their bytes.
    pub session_bytes: u64,
    /// Processor time of all flows of a peer, per cent of one processor.
    pub cpu_percent_per_peer: u64,
    /// Processor time of the broker for what a peer says over its control channels, per cent of one processor.
    pub control_percent_per_peer: u64,
}

impl Default for Rates {
    fn default() -> Self {
        Rates {
            device_messages: 0,
            device_bytes: 0,
            session_messages: 0,
            session_bytes: 0,
            cpu_percent_per_peer: 0,
            control_percent_per_peer: 10,
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

/// What becomes of a flow whose replay store is full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StoreFull {
    /// Nothing more is taken until something is acknowledged: the device waits.
    #[default]
    Block,
    /// The oldest is given up for the newest, and the sink is told and counts it.
    DropOldest,
    /// The flow ends.
    Close,
}

impl StoreFull {
    /// The words that stand for them, in the order above.
    pub const WORDS: &[&str] = &["block", "drop-oldest", "close"];

    /// What a word stands for.
    pub fn parse(word: &str) -> Option<StoreFull> {
        [StoreFull::Block, StoreFull::DropOldest, StoreFull::Close]
            .into_iter()
            .find(|full| full.word() == word)
    }

    /// Its word.
    pub fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}
