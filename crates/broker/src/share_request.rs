//! The request to share devices: each device, its pipelines, its permissions, and where to listen.

use contract::{Description, DeviceError, DeviceSpec, Partner, Role};
use hub::hub::HubPolicy;
use modules::{Pipelines, TransportPlan, registry};
use session::Limits;
use std::net::SocketAddr;
use std::sync::Arc;
use trust::{PeerKey, Trust};

/// Creates the partner of a device implemented by this program, once for each user.
pub type MakePartner = dyn Fn() -> Result<Box<dyn Partner>, DeviceError> + Send + Sync;

/// The device to share.
#[derive(Clone)]
pub enum DeviceChoice {
    /// A spec, `kind:rest`.
    Spec(String),
    /// A device implemented by this program, such as a test pattern.
    Own(Description, Arc<MakePartner>),
}

/// One device to share.
#[derive(Clone)]
pub struct ShareDevice {
    /// The device.
    pub device: DeviceChoice,
    /// Its name in the catalogue; by default derived from the spec.
    pub name: Option<String>,
    /// The pipelines of its flows.
    pub pipelines: Pipelines,
    /// The policy for several users at once.
    pub hub: HubPolicy,
    /// Keys of the peers that may see and open it; empty for all peers.
    pub allow: Vec<PeerKey>,
    /// Options of this transport for peers that use it; other transports run with their defaults.
    pub transport: Option<TransportPlan>,
}

impl ShareDevice {
    /// Returns the question that opening the device asks this host's user in a dialog; `None` if it asks none.
    pub fn question(&self) -> Option<String> {
        self.spec().and_then(|spec| registry::question(&spec))
    }

    /// Returns whether opening the device waits for another host.
    pub fn waits_for_host(&self) -> bool {
        self.spec().is_some_and(|spec| registry::waits_for_host(&spec))
    }

    fn spec(&self) -> Option<DeviceSpec> {
        let DeviceChoice::Spec(text) = &self.device else { return None };
        registry::device_spec(text, Role::Device).ok()
    }

    /// Closes the dialog of [`ShareDevice::question`].
    pub(crate) fn withdraw(&self) {
        if let Some(spec) = self.spec() {
            registry::withdraw(&spec);
        }
    }
}

/// The devices to share, and the address to listen on.
#[derive(Clone)]
pub struct ShareRequest {
    /// The devices.
    pub devices: Vec<ShareDevice>,
    /// The address of the TCP and UDP sockets.
    pub listen: SocketAddr,
    /// This host's identity and its peers, which alone may connect; `None` (`--insecure`) accepts any host.
    pub trust: Option<Trust>,
    /// Limits of the sessions.
    pub limits: Limits,
    /// This host's name, as shown to users of other hosts.
    pub host: String,
    /// Announces the host on the local network: [`hosts::discovery`].
    pub announce: bool,
}
