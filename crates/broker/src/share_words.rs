//! The options of a shared device, as on the command line and in a run file.

use crate::programs::{check_programs, check_transport};
use crate::share_request::{DeviceChoice, ShareDevice, ShareRequest};
use contract::{Role, ServiceError};
use hosts::place::{DEFAULT_LISTEN, listen_address, split_transport};
use hub::hub::HubPolicy;
use hub::outlet;
use modules::limits::limits;
use modules::{Pipelines, TransportPlan, registry, transport_plan};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use sys::address::host_name;
use trust::keys::read_key_file;
use trust::{PeerKey, Peers, Trust};

/// The options of `share`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareWords {
    /// The device, `kind:rest`.
    pub device: String,
    /// Its name in the catalogue; by default the device's own.
    pub name: Option<String>,
    /// Pipeline, device to application.
    pub via: Option<String>,
    /// Pipeline, application to device.
    #[serde(alias = "via-back")]
    pub via_back: Option<String>,
    /// The only pipeline, device to application, that a peer may request.
    pub require: Option<String>,
    /// A key file for pairs that encrypt, in addition to the session's key.
    #[serde(alias = "key-file")]
    pub key_file: Option<PathBuf>,
    /// Outlets of side ports, `PAIR[.PORT]=SPEC` each.
    #[serde(default, rename = "port", deserialize_with = "one_or_several")]
    pub ports: Vec<String>,
    /// The policy for several users at once ([`HubPolicy::parse`]); by default the one of the pipeline.
    pub hub: Option<String>,
    /// The address to listen on, `[TRANSPORT://]ADDRESS[:PORT]`, for UDP and TCP; [`DEFAULT_LISTEN`] by default.
    pub listen: Option<String>,
    /// Options of that transport, `name=value,...`, for peers that use it.
    pub transport: Option<String>,
    /// Announces this host on the local network.
    #[serde(default)]
    pub announce: bool,
    /// Names of the peers that may see and open the device; empty for all peers.
    #[serde(default, deserialize_with = "one_or_several")]
    pub allow: Vec<String>,
    /// The keys that these names had at the start: [`ShareWords::find_peers`].
    #[serde(skip)]
    pub allowed: Option<Vec<PeerKey>>,
    /// Disables authentication and encryption.
    #[serde(default)]
    pub insecure: bool,
    /// Limits, `name=value,...` of [`LIMITS`](modules::limits::LIMITS).
    #[serde(alias = "limit")]
    pub limits: Option<String>,
}

impl ShareWords {
    /// Checks the options and converts them to a request.
    pub fn request(&self) -> Result<ShareRequest, ServiceError> {
        registry::device_spec(&self.device, Role::Device)?;
        let pipelines = pipelines(
            [&self.via, &self.via_back, &self.require].map(Option::as_deref),
            self.key_file.as_deref(),
            (&self.ports, false),
            Some(Role::Device),
        )?;
        let hub = self.hub.as_deref().map(HubPolicy::parse).transpose();
        let device = ShareDevice {
            device: DeviceChoice::Spec(self.device.clone()),
            name: self.name.clone(),
            pipelines,
            hub: hub.map_err(|problem| ServiceError::Usage(format!("hub: {problem}")))?.unwrap_or_default(),
            allow: self.allowed_keys()?,
            transport: self.transport_plan()?,
        };
        Ok(ShareRequest {
            devices: vec![device],
            listen: self.listen_address()?,
            trust: trust(self.insecure)?,
            limits: limits(self.limits.as_deref())?,
            host: host_name(),
            announce: self.announce,
        })
    }
}

impl ShareWords {
    /// Finds the keys of the peers in `allow`, once: a later request has the same keys, and no other peer can get the
    /// permission with a name. `known` replaces the stored list of peers.
    pub fn find_peers(&mut self, known: Option<&Peers>) -> Result<(), ServiceError> {
        let keys = |peers: &Peers| {
            self.allow.iter().map(|name| peers.required(name).map(|peer| peer.key)).collect::<Result<_, _>>()
        };
        self.allowed = Some(match known.filter(|_| !self.insecure) {
            Some(peers) => keys(peers)?,
            None => self.allowed_keys()?,
        });
        Ok(())
    }

    fn allowed_keys(&self) -> Result<Vec<PeerKey>, ServiceError> {
        if let Some(keys) = &self.allowed {
            return Ok(keys.clone());
        }
        match trust(self.insecure)? {
            None if !self.allow.is_empty() => {
                let problem =
                    "`allow` names peers, but `insecure` does not authenticate them: use one of the two";
                Err(ServiceError::Usage(problem.into()))
            }
            None => Ok(Vec::new()),
            Some(trust) => {
                let peers = trust.peers()?;
                self.allow.iter().map(|name| peers.required(name).map(|peer| peer.key)).collect()
            }
        }
    }

    /// Returns the address to listen on.
    pub fn listen_address(&self) -> Result<SocketAddr, ServiceError> {
        listen_address(self.listen.as_deref().unwrap_or(DEFAULT_LISTEN))
    }

    fn transport_plan(&self) -> Result<Option<TransportPlan>, ServiceError> {
        let Some(options) = self.transport.as_deref() else { return Ok(None) };
        let (name, _) = split_transport(self.listen.as_deref().unwrap_or(DEFAULT_LISTEN))?;
        let plan = transport_plan(name, Some(options))?;
        check_transport(&plan)?;
        Ok(Some(plan))
    }
}

/// Opens the identity and the peers of this user; returns `None` with `insecure`.
pub fn trust(insecure: bool) -> Result<Option<Trust>, ServiceError> {
    (!insecure).then(Trust::open).transpose()
}

/// Parses the pipelines of a device on the host with this role (`None`: both), reads its key file and opens the outlets of
/// its side ports.
pub fn pipelines(
    [via, via_back, require]: [Option<&str>; 3],
    key_file: Option<&Path>,
    (ports, are_shared): (&[String], bool),
    host: Option<Role>,
) -> Result<Pipelines, ServiceError> {
    let pipelines = Pipelines::parse(via, via_back, require).map_err(ServiceError::Usage)?;
    check_programs(&pipelines, host)?;
    let key = key_file.map(read_key_file).transpose()?;
    let outlets = outlet::open(ports, are_shared).map_err(ServiceError::Usage)?;
    Ok(Pipelines { key, outlets, ..pipelines })
}

/// Deserializes a string, or a list of strings, of a run file.
pub fn one_or_several<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a string, or a list of strings")]
    enum Words {
        One(String),
        Several(Vec<String>),
    }
    Ok(match Words::deserialize(deserializer)? {
        Words::One(word) => vec![word],
        Words::Several(words) => words,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem<T>(result: Result<T, ServiceError>) -> String {
        match result {
            Err(ServiceError::Usage(problem)) => problem,
            Err(other) => panic!("not the user's error: {other}"),
            Ok(_) => panic!("accepted"),
        }
    }

    #[test]
    fn share_options_are_those_of_the_transport_it_listens_on() {
        let plan = |listen: Option<&str>, options: &str| {
            let (listen, transport) = (listen.map(String::from), Some(options.into()));
            ShareWords { listen, transport, ..ShareWords::default() }.transport_plan()
        };
        let named = |listen, options| plan(listen, options).unwrap().unwrap().class.name();
        assert_eq!(named(None, "congestion=bbr"), "quic");
        assert_eq!(named(Some("tcp://127.0.0.1"), "congestion=bbr"), "tcp");
        assert!(ShareWords::default().transport_plan().unwrap().is_none());
        assert!(problem(plan(Some("udp://[::]:1"), "colour=red")).contains("there is no option `colour`"));
    }
}
