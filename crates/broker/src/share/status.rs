//! The status of a device host.

use super::DeviceHost;
use crate::offers::Shared;
use crate::share_session::Session;
use console::{OfferStatus, Status};

impl DeviceHost {
    pub(super) fn status(&self) -> Status {
        let drivers = self.sessions.values().flat_map(Session::status);
        let offer = |device: &Shared| OfferStatus {
            name: device.name.clone(),
            present: device.present,
            users: device.users.len(),
            hub: device.hub_stats(),
        };
        Status {
            peers: self.sessions.values().map(Session::peer_status).collect(),
            offers: self.shared.values().map(offer).collect(),
            refused: self.admissions.refused.clone(),
            ..Status::of("share", drivers.collect())
        }
    }
}
