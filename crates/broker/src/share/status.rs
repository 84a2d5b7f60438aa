//! The status of a device host, and its announcement.

use super::DeviceHost;
use crate::events::Event;
use crate::offers::Shared;
use crate::share_session::Session;
use console::{OfferStatus, Status};
use hosts::discovery::Announcement;

impl DeviceHost {
    /// Announces the host on the local network, if requested. A failure is only a warning: peers can still connect.
    pub(super) fn announce(&self, emit: &mut dyn FnMut(Event)) -> Option<Announcement> {
        if !self.request.announce {
            return None;
        }
        match Announcement::start(&self.request.host, self.address) {
            Ok(announcement) => Some(announcement),
            Err(error) => {
                emit(Event::Warning {
                    problem: format!("this host is not announced on the network: {error}"),
                });
                None
            }
        }
    }

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
