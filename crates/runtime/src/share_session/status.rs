//! What a session tells of itself.

use super::Session;
use crate::console::{DriverStatus, PeerStatus};
use crate::offers::Offers;
use crate::share::now;
use crate::stats::DriverStats;
use contract::Time;

impl Session {
    /// What it runs, with the last figures.
    pub(crate) fn status(&self, shared: &Offers) -> Vec<DriverStatus> {
        let one = |(driver, number): (&u32, &u64)| {
            let (at, stats) = self.stats.get(driver).cloned().unwrap_or_default();
            let name = shared.get(number)?.name.clone();
            Some(DriverStatus { name, peer: self.peer.clone(), node: String::new(), at_ns: at.0, stats })
        };
        self.drivers.iter().filter_map(one).collect()
    }

    /// Has its workers tell how far they are.
    pub(crate) fn ask_stats(&mut self) {
        self.stats_at = Time::ZERO;
        self.is_pending = true;
    }

    /// What its drivers told last, and when, if they did; of a peer that is not heard, nothing.
    pub(crate) fn told(&self) -> impl Iterator<Item = Option<&(Time, DriverStats)>> {
        let drivers = self.drivers.keys().filter(|_| self.silent_since.is_none());
        drivers.map(|driver| self.stats.get(driver))
    }

    /// The session, as it stands.
    pub(crate) fn peer_status(&self) -> PeerStatus {
        PeerStatus {
            name: self.name.clone(),
            address: self.address.to_string(),
            silent_seconds: self.silent_since.map(|since| now().since(since).as_secs_f64()),
            round_trip_seconds: self.facts.map(|facts| facts.round_trip.as_secs_f64()),
            drivers: self.drivers.len(),
            ..PeerStatus::of(self.stats.values().map(|(_, stats)| stats))
        }
    }
}
