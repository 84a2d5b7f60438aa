//! What a sharer tells of itself.

use super::Sharer;
use crate::console::{OfferStatus, Status};
use crate::offers::Shared;
use crate::share_session::Session;

impl Sharer {
    pub(super) fn status(&self) -> Status {
        let drivers = self.sessions.values().flat_map(|session| session.status(&self.shared));
        let offer = |device: &Shared| OfferStatus {
            name: device.name.clone(),
            present: device.present,
            users: device.users.len(),
        };
        Status {
            peers: self.sessions.values().map(Session::peer_status).collect(),
            offers: self.shared.values().map(offer).collect(),
            refused: self.admissions.refused.clone(),
            ..Status::of("share", drivers.collect())
        }
    }
}
