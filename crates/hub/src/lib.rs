//! Junctions: threads between several partners.
//!
//! A path joins two partners, and one thread runs many paths. Where several flows meet, no path can own
//! the part between them. A junction owns it, in its own thread, and is an active partner
//! ([`crate::endpoint`]) of each path. The thread belongs to the broker; the paths run in the sandboxed
//! workers of their sessions.
//!
//! - [`hub`]: one opened device that several hosts use, with one owner of the flow back to it.
//! - [`joint`]: flows of several devices that are merged, or stay separate but synchronised.
//! - [`outlet`]: messages that leave pairs by side ports, to partners on this host.

pub mod application;
pub mod client;
pub mod endpoint;
#[allow(clippy::module_inception)]
pub mod hub;
mod inward;
pub mod joint;
pub mod origin;
pub mod outlet;
pub mod spread;
mod wanted;

pub use application::ApplicationChoice;
pub use hub::{HubOptions, HubPolicy, HubStats};
pub use joint::{Joint, JointEvent, JointPort, JointStats};
pub use origin::{OpenPort, PartnerOrigin, make_partner};
