//! The status of a session.

use super::Session;
use console::{DriverStatus, PeerStatus};
use contract::Time;
use flow::stats::DriverStats;

impl Session {
    /// Returns the drivers with their latest statistics.
    pub fn status(&self) -> impl Iterator<Item = DriverStatus> {
        self.common.drivers.values().map(|driver| driver.status(&self.common.peer, ""))
    }

    /// Requests statistics from the workers at the next turn.
    pub fn ask_stats(&mut self) {
        self.common.ask_stats();
        self.is_pending = true;
    }

    /// Returns the latest statistics of each driver with their arrival time, if there are any. Yields nothing while
    /// the peer is silent.
    pub fn latest_stats(&self) -> impl Iterator<Item = Option<&(Time, DriverStats)>> {
        let drivers = self.common.drivers.values().filter(|_| self.common.silent_since().is_none());
        drivers.map(|driver| driver.stats.as_ref())
    }

    /// Returns the state of the session.
    pub fn peer_status(&self) -> PeerStatus {
        self.common.peer_status(&self.name, self.address.to_string(), self.common.drivers.len())
    }
}
