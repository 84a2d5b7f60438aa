//! The dispersion of a packet train (Jain and Dovrolis, Pathload, 2002, 2.2): a marker leaves right before a message of several packets,
//! and the time between their arrivals is the time that the slowest part of the path takes for the message.
//!
//! The sink half measures it with its own clock; distance, the way back and the queue in front of the marker do not enter it.

use std::time::Duration;

/// The marker shares its packet with the first bytes of its message: `quic` and `tcp` fill their packets. So the time from the
/// marker to the end of the message is that of the bytes behind this packet.
#[cfg(feature = "media")]
const FIRST_PACKET_BYTES: usize = 1200;
/// Smaller messages are no samples: one or two packets show when they happened to be sent.
#[cfg(feature = "media")]
const BYTES_MIN: usize = 2 * FIRST_PACKET_BYTES;

/// Returns the time for a byte in nanoseconds, if a message of `bytes` bytes arrived `spread` after its marker; `None` if it is too
/// short to tell.
#[cfg(feature = "media")]
pub(crate) fn byte_ns(bytes: usize, spread: Duration) -> Option<f64> {
    (bytes >= BYTES_MIN).then(|| spread.as_nanos() as f64 / (bytes - FIRST_PACKET_BYTES) as f64)
}

/// Returns the microseconds between a marker and its message, for the other half: at least 1.
pub(crate) fn spread_us(spread: Duration) -> u64 {
    u64::try_from(spread.as_micros()).unwrap_or(u64::MAX).max(1)
}
