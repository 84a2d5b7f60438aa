//! Outboard: virtual clock, two peers in one process, conformance suites

pub mod clock;
pub mod joint;
pub mod partner;
pub mod peers;
pub mod resume;
pub mod stage;
pub mod taker;
