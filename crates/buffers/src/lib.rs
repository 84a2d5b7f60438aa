//! Partner vectors and the memory behind them.
//!
//! A message's body is a [`Body`]: a small head for headers that stages put in front, then a few
//! reference-counted byte ranges that each know their owner. Memory comes from a [`Pool`] where it is
//! used again and again, or a [`Recycler`] where it is filled
//! piece by piece; the last holder's drop gives it back.

mod body;
mod pool;
mod recycler;
mod ring;
mod window;

pub use body::{Body, HEAD_BYTES};
pub use pool::{Lease, Pool};
pub use recycler::Recycler;
pub use ring::{Ring, RingFull};
pub use window::Window;
