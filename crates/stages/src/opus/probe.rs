//! Probes of the link, and the sink half's answers. `doc.md` has the layout.

use super::NO_DECODER;
use crate::{control, dispersion};
use contract::{Body, Message, StageResult, Time};
use std::time::Duration;

/// The kinds of the two messages of a probe.
pub(super) const MARKER: u8 = 2;
pub(super) const BURST: u8 = 3;
/// A link of a megabit a second takes this for 40 ms, which no buffer of sound has to grow for.
const BURST_BYTES: usize = 5000;
/// The kind of the control message with the time between marker and burst.
const SPREAD: u8 = 1;

/// A control message, sink to source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    /// The sink's host has no decoder.
    NoDecoder,
    /// The time from a marker to its burst.
    Spread(Duration),
}

impl Control {
    /// Returns the bytes.
    pub(super) fn emit(self) -> Vec<u8> {
        match self {
            Control::NoDecoder => control::emit(NO_DECODER, &[]),
            Control::Spread(spread) => control::emit(SPREAD, &[dispersion::spread_us(spread)]),
        }
    }

    /// Parses bytes from the peer.
    pub(super) fn parse(bytes: &[u8]) -> StageResult<Control> {
        control::parse(bytes, |kind, numbers| {
            Some(match kind {
                NO_DECODER => Control::NoDecoder,
                SPREAD => Control::Spread(Duration::from_micros(numbers.take()?)),
                _ => return None,
            })
        })
    }
}

/// Returns the messages of a probe.
pub(super) fn messages(now: Time) -> [Message; 2] {
    let mut burst = vec![0; BURST_BYTES];
    burst[0] = BURST;
    [Message::new(now, vec![MARKER]), Message::new(now, Body::from(burst))]
}

/// Returns the bytes a second of a link that spreads a probe like this.
pub(super) fn bytes_a_second(spread: Duration) -> f64 {
    dispersion::byte_ns(BURST_BYTES, spread).map_or(0.0, |byte_ns| 1e9 / byte_ns.max(1e-3))
}
