//! What two hosts keep between them, as state machines without I/O: handshake, clock offset, liveness,
//! and for each flow the numbering, the replay store, the order and the counting of what was lost.
//!
//! Time and bytes are arguments. Everything is bounded by [`Limits`].

mod clock;
mod control;
mod handshake;
mod limits;
mod liveness;
mod sink;
mod source;
mod ticket;

pub use clock::ClockEstimator;
pub use control::{ChannelError, ControlChannel};
pub use handshake::{Handshake, HandshakeError, Welcomed};
pub use limits::{Admittance, Limits, Rates, StoreFull};
pub use liveness::Liveness;
pub use sink::{Received, SinkCounters, SinkFlow};
pub use source::{Admission, SourceCounters, SourceFlow};
pub use ticket::TicketError;

/// The epoch that every flow begins in. No record is of epoch 0.
pub const FIRST_EPOCH: u32 = 1;
