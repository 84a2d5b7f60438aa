//! Test support: a virtual clock, two peers in one process, conformance suites, a Wayland desktop, and skipped tests.

pub mod clock;
pub mod desktop;
pub mod gnome;
pub mod heartbeats;
pub mod joint;
pub mod partner;
pub mod peers;
pub mod resume;
pub mod skip;
pub mod stage;
pub mod taker;

/// Compiles and runs the examples of CONTRIBUTING.md.
#[cfg(doctest)]
#[doc = include_str!("../../CONTRIBUTING.md")]
pub struct Contributing;
