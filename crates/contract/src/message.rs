//! A message: one update from a device or an application.

use crate::{Body, Time};

/// One update, with its creation time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// Creation time on this host's clock.
    pub created: Time,
    /// Local facts about the message; never sent.
    pub attributes: Attributes,
    /// The bytes.
    pub body: Body,
}

/// Local facts about a message or about a whole flow; never sent. One type serves both: flow attributes and
/// data attributes of The Partner architecture (2002), 3.2.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The message is worthless after this time.
    pub deadline: Option<Time>,
    /// A higher number goes first.
    pub priority: u8,
    /// The part of the flow that the message belongs to: an axis, a block, a client.
    pub key: Option<u64>,
    /// The message may be dropped under pressure.
    pub droppable: bool,
    /// The message repeats an old state and carries no news.
    pub stale: bool,
    /// The message's number in its trace, or 0 if it is not traced.
    pub mark: u32,
}

impl Message {
    /// Makes a message with default attributes.
    #[inline]
    pub fn new(created: Time, body: impl Into<Body>) -> Self {
        Message { created, attributes: Attributes::default(), body: body.into() }
    }
}
