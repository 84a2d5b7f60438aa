//! A model of a network link. It delays, reorders, damages, duplicates and loses packets, and does the same for
//! the same seed.
//!
//! - [`Params`] describe a link, and have a text form: `delay=20ms,jitter=5ms,loss=0.1%`.
//! - [`Link`] is one direction of a link, as pure logic on packets and times. Tests drive it with a virtual
//!   clock; the network lab applies it between namespaces.
//! - [`relay::Relay`] applies two links to real TCP and UDP traffic, without privileges.

mod link;
mod params;
pub mod relay;
mod rng;

pub use link::{Counters, Dropped, Fate, HELD_MAX_BYTES, LATE_NS, Link, Packet};
pub use params::{Params, ParamsError};
pub use rng::Rng;
