//! How neighbours in one host hand messages on: one implementation of [`contract::Link`] each.

mod direct;
pub mod process;

pub use direct::Direct;
