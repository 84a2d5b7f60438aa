//! The sandbox of modules and workers.

pub mod calls;
pub mod confine;
mod requirement;

pub use calls::SENDMSG_DESCRIPTOR;
pub use confine::{ADVICE, Refusals, lock_up, try_lock};
pub use requirement::{is_sandbox_required, require_sandbox};
