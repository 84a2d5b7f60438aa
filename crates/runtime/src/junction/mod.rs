//! Junctions: threads that run what lies between several partners.
//!
//! A path joins two partners, and one thread runs many. Where several flows meet, none of their paths can own what
//! lies between: a junction does, in a thread of its own, and is an active partner ([`crate::active`]) of each path. The
//! thread is the broker's; the paths are in the locked workers of their sessions.
//!
//! - [`hub`]: one opened device that feeds several hosts, and one owner of what flows back.
//! - [`joint`]: flows of several devices that become one, or stay several but keep in step.
//! - [`outlet`]: what leaves pairs by side ports, to partners of this host.

pub(crate) mod hub;
pub(crate) mod joint;
pub(crate) mod outlet;
mod spread;
mod way;
