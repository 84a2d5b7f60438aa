//! What adaptive stages go by.

use std::time::Duration;

/// What the sink's host says of a flow and this host knows of the way there, since the last feedback.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Feedback {
    /// Records that arrived.
    pub received: u64,
    /// Records that the network lost, whether they were sent again or not.
    pub lost: u64,
    /// Median time from creation to hand-over.
    pub delay: Duration,
    /// 99th less 1st percentile of the same.
    pub jitter: Duration,
    /// Shortest round trip seen lately.
    pub round_trip: Duration,
    /// Bytes of bodies a second that arrived.
    pub rate_bytes: u64,
    /// Bytes of bodies that wait at the source for the network now.
    pub waiting_bytes: u64,
}
