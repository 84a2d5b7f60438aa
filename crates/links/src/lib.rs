//! How neighbours in one host hand messages on: one implementation of [`contract::Link`] each.

pub mod confine;
mod direct;
pub mod process;
pub mod shm;

pub use direct::Direct;
