//! A network link as a model: what goes in at one end comes out at the other late, out of order,
//! damaged, twice, or never, and always the same way for the same seed.
//!
//! - [`Params`] say what the link does, and have a text form: `delay=20ms,jitter=5ms,loss=0.1%`.
//! - [`Link`] is one direction of a link, as pure logic: packets and times go in, packets and times
//!   come out. Tests drive it with a virtual clock; the network lab carries it between namespaces.
//! - [`relay::Relay`] carries real TCP and UDP traffic through two of them without privileges.

mod link;
mod params;
pub mod relay;
mod rng;

pub use link::{Counters, Dropped, Fate, HELD_MAX_BYTES, LATE_NS, Link, Packet};
pub use params::{Params, ParamsError};
pub use rng::Rng;
