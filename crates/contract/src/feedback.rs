//! Measurements that adaptive stages use.

use std::time::Duration;

/// How much sound a partner holds that its device has not played yet. The device plays at the rate of its own clock, so the
/// difference between both times shows how much faster that clock is than the one of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// Time that the device needs to play everything it holds.
    pub held: Duration,
    /// The time that `held` is to be: as short as the partner can bear.
    pub target: Duration,
    /// The part of `target` that is left when the next message comes: the time from a push until the device plays it.
    pub lead: Duration,
    /// Frames a second at which the device plays, by its own clock.
    pub rate_hz: u32,
}

/// Measurements of one flow and its path since the last feedback. The sink's host makes most of them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Feedback {
    /// Records received.
    pub received: u64,
    /// Records that the network lost, including those that were retransmitted later.
    pub lost: u64,
    /// Median time from creation to delivery.
    pub delay: Duration,
    /// Jitter: the 99th less the 1st percentile of that time.
    pub jitter: Duration,
    /// Shortest recent round trip.
    pub round_trip: Duration,
    /// Received bytes of message bodies a second.
    pub rate_bytes: u64,
    /// Bytes of message bodies that wait at the source for the network.
    pub waiting_bytes: u64,
}
