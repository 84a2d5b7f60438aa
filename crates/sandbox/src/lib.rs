//! The sandbox of modules and workers.

pub mod confine;
mod requirement;

pub use confine::{ADVICE, lock_up, try_lock};
pub use requirement::{is_sandbox_required, require_sandbox};
