//! The links between neighbouring stages on one host. Each implements [`contract::Link`].

mod direct;
pub mod shm;

pub use direct::Direct;
