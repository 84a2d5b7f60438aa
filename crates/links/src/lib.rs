//! The links between neighbouring stages on one host. Each implements [`contract::Link`].

mod bypass;
mod direct;
pub mod shm;

pub use bypass::Bypass;
pub use direct::Direct;
