//! Partner vectors and their memory.
//!
//! The body of a message is a [`Body`]: a small head for the headers of stages, then a few reference-counted
//! pieces. Memory comes from a [`Pool`] of equal buffers, or from a [`Recycler`] for buffers that are filled
//! piece by piece. Dropping the last reference returns the memory.

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
