//! The connection's receive window: it grows with the bandwidth and the round trip of the path, and shrinks again.

use super::connection::QuicConnection;
use quinn_proto::VarInt;
use std::time::{Duration, Instant};

/// Largest window, as a multiple of the option `window`.
pub(super) const FACTOR_MAX: u32 = 8;
/// Window, as a multiple of the bytes that arrive in a round trip. A lost packet holds up all behind it in its stream
/// for one round trip, or for two if it is lost again.
const ROUND_TRIPS: f64 = 4.0;
/// Shortest measurement of the arrival rate.
const MEASURED_MIN: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct ReceiveWindow {
    /// The option `window`, bytes.
    least: u32,
    current: u32,
    since: Option<Instant>,
    /// Bytes received until then.
    received_bytes: u64,
}

impl ReceiveWindow {
    pub(super) fn new(least: u32) -> ReceiveWindow {
        ReceiveWindow { least, current: least, since: None, received_bytes: 0 }
    }

    /// Updates the window after the connection has received datagrams.
    pub(super) fn update(&mut self, link: &mut QuicConnection, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let elapsed = now.saturating_duration_since(since);
        let Some(connection) = link.state().filter(|_| elapsed >= MEASURED_MIN) else { return };
        let stats = connection.stats();
        let round_trip = stats.path.rtt;
        if elapsed < round_trip {
            return;
        }
        let received_bytes = stats.udp_rx.bytes;
        let arrived = received_bytes.saturating_sub(self.received_bytes) as f64;
        (self.since, self.received_bytes) = (Some(now), received_bytes);
        let per_round_trip = arrived * round_trip.as_secs_f64() / elapsed.as_secs_f64();
        let wanted = self.next(per_round_trip);
        if wanted != self.current {
            self.current = wanted;
            connection.set_receive_window(VarInt::from_u32(wanted));
        }
    }

    /// Returns the window for a path on which so many bytes arrive in a round trip. A pause does not shrink it at once.
    fn next(&self, per_round_trip: f64) -> u32 {
        let most = self.least.saturating_mul(FACTOR_MAX);
        let wanted = ((ROUND_TRIPS * per_round_trip) as u32).clamp(self.least, most);
        wanted.max(self.current - self.current / 8).max(self.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_follows_the_path_within_its_bounds() {
        let mut window = ReceiveWindow::new(16 << 20);
        assert_eq!(window.next(1e6), 16 << 20);
        window.current = window.next(40e6);
        assert_eq!(window.current, 128 << 20);
        assert_eq!(window.next(1e9), 128 << 20);
        for _ in 0..30 {
            window.current = window.next(0.0);
        }
        assert_eq!(window.current, 16 << 20);
    }
}
