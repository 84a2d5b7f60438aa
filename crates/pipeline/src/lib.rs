//! Pipelines: text to checked pairs to the two ordered halves (paper N, section 4.8.1).
//!
//! ```text
//! pipeline = [ pair { "|" pair } ]
//! pair     = [ "@" link ] name [ "/" version ] [ "(" [ option { "," option } ] ")" ]
//! option   = [ name "=" ] ( word | '"' text '"' | call )        call = word "(" ... ")"
//! joined   = { flow ":" "(" pipeline ")" "," } pair [ "|" pipeline ]
//! ```
//!
//! `bundle(count=10) | compress(zstd, level=3)` is written in source order. The first option may stand
//! without its name. A call, such as `frame=chunk(64KiB)`, is one value, kept as its text. The text may come
//! from a stranger: every step is bounded, and every error says what is wrong and points at the place.
//!
//! - [`Pipeline`]: what a text says, checked against a table of pairs.
//! - [`Requirement`]: what a proposal must be equal to (`--require`).
//! - [`Chain`]: one half of a pipeline, running.
//! - [`Joined`]: several flows that meet, each through a pipeline of its own.
//! - [`Outlet`]: where what leaves a pair by a side port goes.
//! - [`Trace`]: when messages of a sample passed which points of their path.

mod chain;
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
pub use edit::Edit;
pub use error::PipelineError;
pub use joined::{Joined, PARTS_MAX};
pub use outlet::{NamedOutlet, Outlet, side_port};
pub use parsed::{Isolation, LINKS, LinkKind, Origin, PairUse, Pipeline, Running};
pub use requirement::Requirement;
pub use syntax::{DEPTH_MAX, OPTIONS_MAX, PAIRS_MAX};
pub use trace::{Point, Stamp, Stamps, Trace};
