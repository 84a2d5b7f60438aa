//! The start of a device host: it listens, and opens its devices.

use super::DeviceHost;
use super::openings::open_until;
use crate::offers::{OpenDevice, add_offer, free_name};
use crate::share_request::{ShareDevice, ShareRequest};
use contract::ServiceError;
use std::net::SocketAddr;
use sys::listening::Listening;
use sys::stop::Stop;

impl DeviceHost {
    /// Opens the devices and starts to listen.
    pub fn start(request: ShareRequest) -> Result<DeviceHost, ServiceError> {
        DeviceHost::start_on(DeviceHost::bind(&request)?, request)
    }

    /// Does the same as [`DeviceHost::start`]. Returns `None` if `stop` is raised while the user of a device is asked.
    pub fn start_until(request: ShareRequest, stop: &Stop) -> Result<Option<DeviceHost>, ServiceError> {
        let mut host = DeviceHost::listen(DeviceHost::bind(&request)?, request)?;
        Ok(host.offer_all(|device| open_until(device, stop))?.then_some(host))
    }

    fn bind(request: &ShareRequest) -> Result<Listening, ServiceError> {
        let failed = |error| ServiceError::os(format!("listening on {}", request.listen), error);
        Listening::at(request.listen).map_err(failed)
    }

    /// Does the same as [`DeviceHost::start`], on existing sockets.
    pub fn start_on(listening: Listening, request: ShareRequest) -> Result<DeviceHost, ServiceError> {
        let mut host = DeviceHost::listen(listening, request)?;
        host.offer_all(|device| OpenDevice::open(device).map(Some))?;
        Ok(host)
    }

    /// Returns whether a request for this address means this host. On a host without IPv6, the address of its socket is not the
    /// one that was asked for.
    pub(super) fn listens_at(&self, listen: SocketAddr) -> bool {
        let at = SocketAddr::new(self.request.listen.ip(), self.address.port());
        [self.address, at].contains(&listen)
    }

    /// Offers the devices of the request. Returns false if one of them is not opened.
    fn offer_all(
        &mut self,
        open: impl Fn(&ShareDevice) -> Result<Option<OpenDevice>, ServiceError>,
    ) -> Result<bool, ServiceError> {
        for (number, device) in (0..).zip(&self.request.devices) {
            free_name(&self.shared, device)?;
            let Some(opened) = open(device)? else { return Ok(false) };
            add_offer(&mut self.shared, number, device, opened)?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use session::Limits;

    #[test]
    fn a_host_without_ipv6_listens_at_the_address_that_was_asked_for() {
        let listening = Listening::at("0.0.0.0:0".parse().unwrap()).unwrap();
        let port = listening.address.port();
        let request = ShareRequest {
            devices: Vec::new(),
            listen: "[::]:0".parse().unwrap(),
            trust: None,
            limits: Limits::default(),
            host: "test".into(),
            announce: false,
        };
        let host = DeviceHost::start_on(listening, request).unwrap();
        let listens_at = |ip: &str, port| host.listens_at(SocketAddr::new(ip.parse().unwrap(), port));
        assert!(listens_at("::", port) && listens_at("0.0.0.0", port));
        assert!(!listens_at("127.0.0.1", port) && !listens_at("::", port ^ 1));
    }
}
