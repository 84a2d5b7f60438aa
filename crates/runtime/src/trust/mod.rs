//! Whom this user trusts: this host's identity, and the hosts it was paired with (DESIGN: between hosts).
//!
//! Both are files in one private directory. Hosts meet over TLS 1.3 with raw public keys ([`channel`]), pair by a
//! one-time code ([`pairing`]), and seal data with keys from the channel's exporter ([`link_keys`]).

pub(crate) mod channel;
mod files;
mod identity;
pub(crate) mod link_keys;
mod pairing;
mod peers;
pub(crate) mod quic_stream;
#[cfg(test)]
mod tests;
mod tls;

use crate::error::RuntimeError;
use contract::Secret;
use files::Stamp;
use identity::Identity;
pub use identity::PeerKey;
pub use pairing::{CODE_LIFETIME, Code, Offer, PairError, Paired, join};
pub(crate) use peers::SELF;
pub use peers::{Peer, Peers};
use rustls::{ClientConfig, ServerConfig};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PEERS_FILE: &str = "peers.json";
const LOCK_FILE: &str = "peers.lock";
const PEERS_BYTES_MAX: u64 = 4 << 20;

/// This host's identity and the hosts it knows. Clones are handles on the same files.
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
    /// This user's, in `$XDG_STATE_HOME/outboard`; the identity is made on first use.
    pub fn open() -> Result<Trust, RuntimeError> {
        Trust::at(&files::state_directory()?)
    }

    /// In this directory, which is made private to the user if it is not there.
    pub fn at(directory: &Path) -> Result<Trust, RuntimeError> {
        files::make_directory(directory)?;
        let identity = Identity::load_or_make(directory)?;
        let failed = |error: rustls::Error| RuntimeError::Usage(format!("TLS cannot be set up: {error}"));
        let client = Arc::new(tls::client(&identity, tls::CONTROL).map_err(failed)?);
        let server = Arc::new(tls::server(&identity, tls::CONTROL).map_err(failed)?);
        Ok(Trust { directory: directory.into(), identity, client, server })
    }

    /// What other hosts know this one by.
    pub fn key(&self) -> PeerKey {
        self.identity.key
    }

    /// What shows its former peers that whoever waited at this address has begun anew (RFC 9000, section 10.3). Another
    /// program of this host, which knows none of these peers, waits elsewhere.
    pub(crate) fn reset_secret(&self, address: SocketAddr) -> Secret {
        self.identity.secret(&format!("outboard quic resets at {address}"))
    }

    fn peers_path(&self) -> PathBuf {
        self.directory.join(PEERS_FILE)
    }

    /// The hosts that are known.
    pub fn peers(&self) -> Result<Peers, RuntimeError> {
        let path = self.peers_path();
        let Some(content) = files::read_private(&path, PEERS_BYTES_MAX)? else { return Ok(Peers::default()) };
        Peers::parse(&content)
            .map_err(|problem| RuntimeError::Usage(format!("{}: {problem}", path.display())))
    }

    /// Changes what is known of hosts; other processes change it before or after. An error changes nothing.
    pub fn edit<T>(
        &self,
        change: impl FnOnce(&mut Peers) -> Result<T, RuntimeError>,
    ) -> Result<T, RuntimeError> {
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

/// The hosts that are known as long as a service runs: what other processes change comes into force.
pub(crate) struct Known {
    pub(crate) trust: Trust,
    peers: Peers,
    stamp: Option<Stamp>,
}

impl Known {
    pub(crate) fn new(trust: Trust) -> Result<Known, RuntimeError> {
        let stamp = files::stamp(&trust.peers_path());
        let peers = trust.peers()?;
        Ok(Known { trust, peers, stamp })
    }

    /// Reads the file again if it changed; whether it did. A file that cannot be read knows nobody: the error
    /// says why.
    pub(crate) fn refresh(&mut self) -> Result<bool, RuntimeError> {
        let stamp = files::stamp(&self.trust.peers_path());
        if stamp == self.stamp {
            return Ok(false);
        }
        self.stamp = stamp;
        let peers = self.trust.peers();
        self.peers = peers.as_ref().cloned().unwrap_or_default();
        peers.map(|_| true)
    }

    /// Its name, if it is known.
    pub(crate) fn name_of(&self, key: &PeerKey) -> Option<&str> {
        if *key == self.trust.key() {
            return Some(SELF);
        }
        self.peers.of_key(key).map(|peer| peer.name.as_str())
    }

    /// What it may open; `None` if it is not known. Another process of this user may open all.
    pub(crate) fn permit(&self, key: &PeerKey) -> Option<Permit> {
        if *key == self.trust.key() {
            return Some(Permit::All);
        }
        let peer = self.peers.of_key(key)?;
        Some(Permit::Peer { name: peer.name.clone(), may_open: peer.may_open.clone() })
    }

    /// Whether the host at `place`, a name of a peer or where one was met, may show this key.
    pub(crate) fn expect(&self, place: &str, key: &PeerKey) -> Result<(), String> {
        let Some(name) = self.name_of(key) else {
            return Err(format!(
                "this host does not know the one there (key {}): make them known to each other with `outboard pair`",
                key.short()
            ));
        };
        let mut meant = self.peers.iter().filter(|peer| peer.name == place).peekable();
        let mut met = self.peers.iter().filter(|peer| peer.address.as_deref() == Some(place)).peekable();
        let is_right = match (meant.peek(), met.peek()) {
            (None, None) => true,
            (Some(_), _) => meant.any(|peer| peer.key == *key),
            (None, Some(_)) => *key == self.trust.key() || met.any(|peer| peer.key == *key),
        };
        match is_right {
            true => Ok(()),
            false => Err(format!(
                "`{name}` answers there, and not the host that `{place}` was when they were paired: attach by the \
                 name of a peer (`outboard peers`), or pair them again"
            )),
        }
    }

    /// Names of all that are known.
    pub(crate) fn names(&self) -> Vec<String> {
        self.peers.iter().map(|peer| peer.name.clone()).collect()
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }
}

/// What a peer may see and open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Permit {
    /// Everything: another process of this user, or whoever comes to a host that is told not to ask.
    All,
    /// What is shared with it and what it is not kept from.
    Peer {
        name: String,
        /// The only devices, if it is restricted.
        may_open: Option<Vec<String>>,
    },
}

impl Permit {
    /// Whether it is good for a device that is shared with `allowed`, or with all if that is empty.
    pub(crate) fn covers(&self, device: &str, allowed: &[String]) -> bool {
        match self {
            Permit::All => true,
            Permit::Peer { name, may_open } => {
                let may = may_open.as_ref().is_none_or(|devices| devices.iter().any(|known| known == device));
                may && (allowed.is_empty() || allowed.contains(name))
            }
        }
    }
}
