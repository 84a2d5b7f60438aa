//! A message: one update from a device or an application.

use crate::{Body, Time};

/// One update, with when it was created and what this host knows of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// When it was created, on this host's clock.
    pub created: Time,
    /// What this host knows of it and never sends.
    pub attributes: Attributes,
    /// Its bytes.
    pub body: Body,
}

/// What a host knows of a message, or of a whole flow, and never sends. The same set serves both
/// (paper P, section 3.2: flow attributes and data attributes).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// After this it is worthless.
    pub deadline: Option<Time>,
    /// Higher goes first.
    pub priority: u8,
    /// Which part of the flow it belongs to (an axis, a block, a client).
    pub key: Option<u64>,
    /// It may be dropped under pressure.
    pub droppable: bool,
    /// It only repeats what was true once.
    pub stale: bool,
    /// By what its trace knows it, if it is traced; else 0.
    pub mark: u32,
}

impl Message {
    /// A message with default attributes.
    #[inline]
    pub fn new(created: Time, body: impl Into<Body>) -> Self {
        Message { created, attributes: Attributes::default(), body: body.into() }
    }
}
