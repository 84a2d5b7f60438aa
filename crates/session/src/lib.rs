//! The state that two hosts share, as state machines without I/O: handshake, control channel, clock offset and
//! liveness; for each flow the numbering, the replay store, the order and the loss counters; and the number of parallel
//! connections.
//!
//! Time and bytes are arguments. [`Limits`] bounds all memory.

mod clock;
mod control;
pub mod features;
mod handshake;
mod heartbeat;
mod limits;
mod liveness;
mod losses;
mod reorder;
mod replay;
mod search;
mod sink;
mod source;
mod ticket;
mod timely;

pub use clock::ClockEstimator;
pub use control::{ChannelError, ControlChannel, SavedChannel};
pub use handshake::{Handshake, HandshakeError, Welcomed};
pub use heartbeat::Heartbeat;
pub use limits::{Admittance, Limits, Rates, StoreFull};
pub use liveness::Liveness;
pub use losses::{LossCounts, UnreportedLosses};
pub use replay::STORE_FACTOR_MAX;
pub use search::{Observation, Search, Searched, WAYS_MAX};
pub use sink::{Received, SinkCounters, SinkFlow};
pub use source::{Admission, SourceCounters, SourceFlow};
pub use ticket::TicketError;

/// The first epoch of every flow. No record has epoch 0.
pub const FIRST_EPOCH: u32 = 1;

/// An epoch and a sequence in it. Positions of all epochs are ordered, because later epochs have higher numbers.
type Position = (u32, u64);
