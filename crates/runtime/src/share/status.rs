//! What a sharer tells of itself.

use super::Sharer;
use crate::console::{OfferStatus, Status};
use crate::discovery::Announcement;
use crate::events::Event;
use crate::offers::Shared;
use crate::share_session::Session;

impl Sharer {
    /// Tells the local network that it shares, if it is to. That it cannot be told keeps nobody from coming.
    pub(super) fn announce(&self, tell: &mut dyn FnMut(Event)) -> Option<Announcement> {
        if !self.request.announce {
            return None;
        }
        match Announcement::start(&self.request.host, self.address) {
            Ok(announcement) => Some(announcement),
            Err(error) => {
                tell(Event::Warning { problem: format!("nobody is told that this host shares: {error}") });
                None
            }
        }
    }

    pub(super) fn status(&self) -> Status {
        let drivers = self.sessions.values().flat_map(|session| session.status(&self.shared));
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
