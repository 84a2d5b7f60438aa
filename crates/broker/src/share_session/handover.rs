//! A session at the device host as one program leaves it to the next ([`crate::handover`]).

use super::program::ProgramState;
use super::{OpenDevice, PeerIdentity, Session, Work};
use crate::control_link::ControlLink;
use crate::handover::SavedSession;
use crate::offers::{Offers, Shared};
use crate::peer_session::{Driver, PeerSession};
use crate::share_request::ShareRequest;
use contract::{Role, Time};
use flow::fair::Processor;
use hosts::following::Following;
use modules::now;
use session::UnreportedLosses;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use sys::poller::Poller;
use wire::Control;
use worker::{Handover, TakenDriver, Workers};

impl Session {
    /// Returns whether the next program can continue the session.
    pub(crate) fn can_hand_over(&self, shared: &Offers) -> bool {
        let is_ordinary = |driver: &Driver<OpenDevice>| {
            shared.get(&driver.own.number).is_some_and(|device| device.present && device.spec().is_some())
        };
        self.waiting.is_empty()
            && self.common.drivers.values().all(is_ordinary)
            && self.common.can_hand_over()
    }

    /// Leaves the session to the next program. Returns its state, and its drivers by number.
    pub(crate) fn hand_over(
        &mut self,
        poller: &mut Poller,
    ) -> io::Result<(SavedSession, Vec<(u32, Handover)>)> {
        // A full channel ends the session when its peer returns.
        let _ = self.report_losses();
        let (drivers, channel) = self.common.hand_over(poller)?;
        let (token, attempt, key) = (self.token, self.attempt, self.key);
        Ok((SavedSession { token, attempt, key, address: self.address.to_string(), channel }, drivers))
    }

    /// Creates the session of the previous program, without drivers. Its peer has lost its link.
    pub(crate) fn take_over(
        id: u64,
        identity: PeerIdentity,
        saved: SavedSession,
        has_catalogue: bool,
        request: &ShareRequest,
    ) -> Session {
        let workers = Workers::new(format!("session {id}"), request.limits.clone());
        let link = ControlLink::restore(&request.limits, saved.channel, now());
        let peer = format!("{} ({})", identity.name, identity.address);
        Session {
            id,
            token: saved.token,
            attempt: saved.attempt,
            name: identity.name,
            address: identity.address,
            key: identity.key,
            permit: identity.permit,
            forbidden: BTreeSet::new(),
            losses: UnreportedLosses::new(identity.has_losses),
            common: PeerSession::new(Role::Device, peer, link, workers),
            processor: Processor::new(0),
            catalogue: has_catalogue.then(Vec::new),
            following: Following::default(),
            datagram_peers: BTreeMap::new(),
            limits: request.limits.clone(),
            waiting: Vec::new(),
            due_at: Time::ZERO,
            is_pending: true,
            work: Work::default(),
            wanted_until: Time::ZERO,
        }
    }

    /// Continues a driver of the previous program on the device, which has the number before it.
    pub(crate) fn resume_driver(
        &mut self,
        device: Option<(&u64, &mut Shared)>,
        taken: TakenDriver,
    ) -> Result<(), String> {
        let is_allowed = |device: &Shared| self.permit.covers(&device.name, &device.allow);
        let (number, device) =
            device.filter(|(_, device)| is_allowed(device)).ok_or("it is no longer shared with this host")?;
        device.resume_use((self.id, self.key), taken.driver, &taken.opened)?;
        let own = OpenDevice {
            number: *number,
            transport: taken.plan.transport.clone(),
            program: ProgramState::Idle,
            program_begun_at: Time::ZERO,
        };
        let (driver, flows) = (taken.driver, taken.plan.flows.clone());
        let open = Driver::new(device.name.clone(), device.pipelines.clone(), flows, own);
        self.common.drivers.insert(driver, open);
        self.common.workers.take_over(taken).map_err(|error| error.to_string())
    }

    /// Keeps a message for the peer's next connection.
    pub(crate) fn refuse(&mut self, message: &Control) {
        // A full channel ends the session when its peer returns.
        let _ = self.common.link.send(message);
    }

    /// Returns the name of the peer.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the peer has requested the catalogue.
    pub(crate) fn has_catalogue(&self) -> bool {
        self.catalogue.is_some()
    }

    /// Returns the number of a driver's device.
    pub(crate) fn device_of(&self, driver: u32) -> Option<u64> {
        self.common.drivers.get(&driver).map(|driver| driver.own.number)
    }
}
