//! The start of an application host: its first connection, and the claims to its nodes.

use super::{ApplicationHost, AttachRequest, service};
use crate::events::Event;
use console::Console;
use contract::ServiceError;
use hosts::place::{Confirm, Route, record_place};

impl ApplicationHost {
    /// Connects to the device host and requests the devices. An address that is not on record is refused.
    pub fn start(request: AttachRequest) -> Result<ApplicationHost, ServiceError> {
        ApplicationHost::start_with(request, &mut |_, _, _| false)
    }

    /// Does the same as [`ApplicationHost::start`]; `confirm` decides about an address that is not on record.
    pub fn start_with(
        request: AttachRequest,
        confirm: &mut Confirm<'_>,
    ) -> Result<ApplicationHost, ServiceError> {
        ApplicationHost::new(request)?.connected(confirm)
    }

    /// Does the same as [`ApplicationHost::start`] with a device host that another command than `outboard share` runs.
    pub fn start_towards(
        request: AttachRequest,
        listener: &'static str,
    ) -> Result<ApplicationHost, ServiceError> {
        let mut application_host = ApplicationHost::new(request)?;
        application_host.listener = listener;
        application_host.connected(&mut |_, _, _| false)
    }

    fn connected(mut self, confirm: &mut Confirm<'_>) -> Result<ApplicationHost, ServiceError> {
        self.connect_expected(confirm)?;
        self.claim_nodes()?;
        self.console = Console::open().ok();
        Ok(self)
    }

    /// Claims the nodes whose names are known.
    fn claim_nodes(&mut self) -> Result<(), ServiceError> {
        for driver in self.common.drivers.values_mut() {
            let Some(choice) = driver.own.application.take() else { continue };
            let service = service(self.known.as_ref(), self.key.as_ref(), &self.target, &driver.name);
            let (choice, claim) = choice.claim(service)?;
            (driver.own.application, driver.own.claim) = (Some(choice), claim);
        }
        Ok(())
    }

    /// Makes the first connection, and records a place that the user confirmed or that names its peer.
    fn connect_expected(&mut self, confirm: &mut Confirm<'_>) -> Result<(), ServiceError> {
        let mut connected = self.reach();
        if let (Err(ServiceError::UnrecordedPlace { address, peer, fingerprint }), Some(known)) =
            (&connected, &mut self.known)
            && confirm(address, peer, fingerprint)
        {
            let key = known.peers().required(peer)?.key;
            known.record(&key, address)?;
            connected = self.reach();
        }
        let ((), route) = connected?;
        self.record(route);
        Ok(())
    }

    /// Records the place of a peer that was written by its name and has moved.
    pub(super) fn record_move(&mut self) {
        let named = self.known.as_ref().and_then(|known| self.target.named(known.peers()));
        self.record(if named.is_some() { Route::Announced } else { Route::Known });
    }

    fn record(&mut self, route: Route) {
        if let (Some(known), Some(key)) = (&mut self.known, &self.key)
            && let Err(error) = record_place(known, &self.target, route, (key, self.address))
        {
            // Only a later search for the peer uses the record.
            self.choice.events.push(Event::Warning { problem: error.to_string() });
        }
    }
}
