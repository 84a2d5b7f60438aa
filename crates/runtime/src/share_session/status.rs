//! What a session tells of itself.

use super::Session;
use crate::console::{DriverStatus, PeerStatus};
use crate::offers::Offers;
use crate::share::now;

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
