//! Pipelines: from text to checked pairs to two ordered halves (Networked Device Driver Architecture (2012),
//! 4.8.1).
//!
//! ```text
//! pipeline = [ pair { "|" pair } ]
//! pair     = [ "@" link ] name [ "/" version ] [ "(" [ option { "," option } ] ")" ]
//! option   = [ name "=" ] ( word | '"' text '"' | call )        call = word "(" ... ")"
//! joined   = { flow ":" "(" pipeline ")" "," } pair [ "|" pipeline ]
//! ```
//!
//! `bundle(count=10) | compress(zstd, level=3)` is written in source order. The first option may omit its name.
//! A call, such as `frame=chunk(64KiB)`, is one value, kept as text. A text may come from the network: every
//! step is bounded, and every error names the problem and points at its place.
//!
//! - [`Pipeline`]: a parsed text, checked against a table of pairs.
//! - [`Requirement`]: the only pipeline that a host accepts (`--require`).
//! - [`Chain`]: one half of a pipeline, running.
//! - [`Joined`]: several flows that are joined, each with its own pipeline.
//! - [`Outlet`]: the destination of a side port.
//! - [`Trace`]: timestamps of sampled messages along their path.

mod chain;
mod drops;
mod edit;
mod error;
mod joined;
mod outlet;
mod parsed;
mod requirement;
mod syntax;
mod trace;

#[cfg(test)]
mod tests;

pub use chain::{
    Chain, ChainError, ChainOut, MakeLink, NamedDrop, PairReport, REFUSED, SIDE_FULL, SideMessage,
};
pub use drops::DropCounts;
pub use edit::Edit;
pub use error::PipelineError;
pub use joined::{Joined, PARTS_MAX};
pub use outlet::{NamedOutlet, Outlet, side_port};
pub use parsed::{Isolation, LINKS, LinkKind, Origin, PairUse, Pipeline, Running};
pub use requirement::Requirement;
pub use syntax::{DEPTH_MAX, OPTIONS_MAX, PAIRS_MAX};
pub use trace::{Point, Stamp, Stamps, Trace};
