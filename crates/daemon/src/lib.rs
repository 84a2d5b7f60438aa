//! A host as a service: its run file, its control and its metrics.

pub mod config;
pub mod metrics;
pub mod module;
pub mod service;
mod wrong_origin;

pub use module::run_module;
