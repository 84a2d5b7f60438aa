//! The trust store: this host's identity, and the hosts that it is paired with.
//!
//! Both are files in one private directory. Hosts meet over TLS 1.3 with raw public keys ([`channel`]), pair by a
//! one-time code ([`pairing`]), and seal data with keys from the channel's exporter ([`link_keys`]).

pub mod channel;
mod commands;
mod files;
mod identity;
mod key_line;
pub mod keys;
mod kinds;
pub mod link_keys;
pub mod local_socket;
mod pairing;
mod peers;
mod places;
pub mod quic_stream;
#[cfg(test)]
mod tests;
mod tls;
mod visitors;

use commands::quoted;
pub use commands::{not_paired, owners_command};
use contract::{Kind, Secret, ServiceError};
use files::Stamp;
pub use files::state_directory;
use identity::Identity;
pub use identity::PeerKey;
pub use key_line::KeyLine;
use kinds::Kinds;
pub use pairing::{CODE_LIFETIME, Code, Offer, PairError, Paired, PairingIncident, join};
pub use peers::{LineEffect, PEERS_MAX, Peer, Peers, SELF, check_new_name};
pub use places::{KeyRefusal, Target};
use rustls::{ClientConfig, ServerConfig};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PEERS_FILE: &str = "peers.json";
const KINDS_FILE: &str = "kinds.json";
const LOCK_FILE: &str = "peers.lock";
const PEERS_BYTES_MAX: u64 = 4 << 20;
const KINDS_BYTES_MAX: u64 = 4 << 20;

/// This host's identity and its known hosts. Clones refer to the same files.
#[derive(Clone)]
pub struct Trust {
    directory: PathBuf,
    identity: Identity,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Trust({}, {})", self.directory.display(), self.identity.key)
    }
}

impl PartialEq for Trust {
    fn eq(&self, other: &Trust) -> bool {
        self.directory == other.directory && self.identity.key == other.identity.key
    }
}

impl Trust {
    /// Opens this user's store in `$XDG_STATE_HOME/outboard`, and creates the identity on first use.
    pub fn open() -> Result<Trust, ServiceError> {
        Trust::at(&files::state_directory()?)
    }

    /// Opens this user's store if it has a list of known hosts that can be read.
    pub fn existing() -> Option<Trust> {
        let directory = files::state_directory().ok()?;
        if directory.join(PEERS_FILE).exists() { Trust::at(&directory).ok() } else { None }
    }

    /// Opens the store in this directory, and creates a private directory if there is none.
    pub fn at(directory: &Path) -> Result<Trust, ServiceError> {
        files::make_directory(directory)?;
        let identity = Identity::load_or_make(directory)?;
        let failed = |error: rustls::Error| ServiceError::Usage(format!("TLS cannot be set up: {error}"));
        let client = Arc::new(tls::client(&identity, tls::CONTROL).map_err(failed)?);
        let server = Arc::new(tls::server(&identity, tls::CONTROL).map_err(failed)?);
        Ok(Trust { directory: directory.into(), identity, client, server })
    }

    /// The public key that identifies this host.
    pub fn key(&self) -> PeerKey {
        self.identity.key
    }

    /// The line that makes this host known to others: [`Peers::add_line`]. `host` is its name.
    pub fn key_line(&self, host: &str, address: Option<String>) -> KeyLine {
        KeyLine { key: self.key(), name: peers::as_name(host), address, may_open: None }
    }

    /// The secret of the stateless resets sent from this address after a restart (RFC 9000, section
    /// 10.3). Another program of this host, which has no state of these connections, uses another
    /// address.
    pub fn reset_secret(&self, address: SocketAddr) -> Secret {
        self.identity.secret(&format!("outboard quic resets at {address}"))
    }

    /// The directory of the list of known hosts.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn peers_path(&self) -> PathBuf {
        self.directory.join(PEERS_FILE)
    }

    /// Reads the known hosts.
    pub fn peers(&self) -> Result<Peers, ServiceError> {
        let path = self.peers_path();
        let Some(content) = files::read_private(&path, PEERS_BYTES_MAX)? else { return Ok(Peers::default()) };
        Peers::parse(&content)
            .map_err(|problem| ServiceError::Usage(format!("{}: {problem}", path.display())))
    }

    /// Edits the known hosts under a lock that excludes other processes. An error changes nothing.
    pub fn edit<T>(
        &self,
        change: impl FnOnce(&mut Peers) -> Result<T, ServiceError>,
    ) -> Result<T, ServiceError> {
        let _lock = files::lock(&self.directory.join(LOCK_FILE))?;
        let mut peers = self.peers()?;
        let before = peers.clone();
        let result = change(&mut peers)?;
        if peers != before {
            files::replace_private(&self.peers_path(), &peers.emit()?)?;
        }
        Ok(result)
    }
}

/// The kinds of the devices that this host has attached.
impl Trust {
    fn kinds(&self) -> Result<Kinds, ServiceError> {
        let path = self.directory.join(KINDS_FILE);
        let Some(content) = files::read_private(&path, KINDS_BYTES_MAX)? else { return Ok(Kinds::default()) };
        Kinds::parse(&content)
            .map_err(|problem| ServiceError::Usage(format!("{}: {problem}", path.display())))
    }

    /// The kind that a peer's device had when it was attached last. Processes of the same user have no memory: they
    /// can open every device directly.
    pub fn kind_of(&self, peer: &PeerKey, name: &str) -> Result<Option<String>, ServiceError> {
        if *peer == self.key() {
            return Ok(None);
        }
        Ok(self.kinds()?.of(peer, name).map(String::from))
    }

    /// Stores the kind of a peer's device, and forgets the devices of removed peers.
    pub fn remember_kind(&self, peer: &PeerKey, name: &str, kind: Kind) -> Result<(), ServiceError> {
        if *peer == self.key() {
            return Ok(());
        }
        let _lock = files::lock(&self.directory.join(LOCK_FILE))?;
        let (mut kinds, peers) = (self.kinds()?, self.peers()?);
        kinds.retain(|key| peers.of_key(key).is_some());
        kinds.set(peer, name, kind);
        files::replace_private(&self.directory.join(KINDS_FILE), &kinds.emit()?)
    }
}

/// The known hosts of a running service, reloaded when another process changes the file.
pub struct Known {
    /// The store that holds the hosts.
    pub trust: Trust,
    peers: Peers,
    stamp: Option<Stamp>,
}

impl Known {
    /// Reads the known hosts for the first time.
    pub fn new(trust: Trust) -> Result<Known, ServiceError> {
        let stamp = files::stamp(&trust.peers_path());
        let peers = trust.peers()?;
        Ok(Known { trust, peers, stamp })
    }

    /// Reloads the file if it changed, and returns true if so. After a read error no host is known; the
    /// error gives the reason.
    pub fn refresh(&mut self) -> Result<bool, ServiceError> {
        let stamp = files::stamp(&self.trust.peers_path());
        if stamp == self.stamp {
            return Ok(false);
        }
        self.stamp = stamp;
        let peers = self.trust.peers();
        self.peers = peers.as_ref().cloned().unwrap_or_default();
        peers.map(|_| true)
    }

    /// The host's name, if it is known.
    pub fn name_of(&self, key: &PeerKey) -> Option<&str> {
        if *key == self.trust.key() {
            return Some(SELF);
        }
        self.peers.of_key(key).map(|peer| peer.name.as_str())
    }

    /// The devices that the host may open; `None` if it is unknown. Processes of the same user may open
    /// all.
    pub fn permit(&self, key: &PeerKey) -> Option<Permit> {
        if *key == self.trust.key() {
            return Some(Permit::All);
        }
        let peer = self.peers.of_key(key)?;
        Some(Permit::Peer { key: peer.key, may_open: peer.may_open.clone() })
    }

    /// The names of all known hosts.
    pub fn names(&self) -> Vec<String> {
        self.peers.iter().map(|peer| peer.name.clone()).collect()
    }

    /// The hosts as of the last reload.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }
}

/// The devices that a peer may see and open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permit {
    /// All: another process of this user, or any peer if authentication is disabled.
    All,
    /// The devices shared with this peer, restricted to its list.
    Peer {
        /// The peer's key.
        key: PeerKey,
        /// The permitted devices, if the peer is restricted.
        may_open: Option<Vec<String>>,
    },
}

impl Permit {
    /// Checks access to a device that is shared with `allowed`, or with every peer if that is empty.
    pub fn covers(&self, device: &str, allowed: &[PeerKey]) -> bool {
        match self {
            Permit::All => true,
            Permit::Peer { key, may_open } => {
                let may = may_open.as_ref().is_none_or(|devices| devices.iter().any(|known| known == device));
                may && (allowed.is_empty() || allowed.contains(key))
            }
        }
    }

    /// Returns the commands that give `peer` access to a device, in the words of its owner; `None` if it has access.
    pub fn remedy(&self, peer: &str, device: &str, allowed: &[PeerKey]) -> Option<String> {
        let Permit::Peer { key, may_open } = self else { return None };
        let restricted = may_open.as_ref().filter(|devices| !devices.iter().any(|known| known == device));
        let lift = restricted.map(|devices| {
            let words = devices.iter().map(String::as_str).chain([device]).map(quoted);
            let words = format!("peers restrict {} {}", quoted(peer), words.collect::<Vec<_>>().join(" "));
            format!("`{}`", owners_command(&words))
        });
        let is_excluded = !allowed.is_empty() && !allowed.contains(key);
        let add = is_excluded.then(|| format!("`--allow {}` at its `outboard share`", quoted(peer)));
        let remedies: Vec<_> = lift.into_iter().chain(add).collect();
        (!remedies.is_empty()).then(|| remedies.join(" and "))
    }
}
