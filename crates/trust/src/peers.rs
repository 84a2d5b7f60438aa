//! The known hosts: names, keys, addresses and permitted devices.

use crate::PeerKey;
use contract::ServiceError;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Limit of known hosts.
const PEERS_MAX: usize = 1024;
/// Limit of a name, in bytes.
const NAME_BYTES_MAX: usize = wire::control::NAME_BYTES_MAX;
/// The name of a peer that shows this host's own key: another process of the same user.
pub const SELF: &str = "this user";

/// A paired host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// The user's name for it.
    pub name: String,
    /// Its public key.
    pub key: PeerKey,
    /// Its address at the last pairing, by name or number, without a port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The places that the user confirmed for its key, `HOST:PORT`, the latest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<String>,
    /// The only devices of this host that it may see and open; `None` permits all that are shared with
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_open: Option<Vec<String>>,
}

/// The list of known hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peers {
    peers: Vec<Peer>,
}

impl Peers {
    /// Parses the file's content.
    pub(super) fn parse(content: &[u8]) -> Result<Peers, String> {
        let peers: Peers = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        let names_alike = |one: &Peer| peers.peers.iter().filter(|other| other.name == one.name).count() > 1;
        match peers.peers.iter().find(|peer| !is_name(&peer.name) || names_alike(peer)) {
            Some(peer) => Err(format!("`{}` is no name, or the name of two", peer.name)),
            None => Ok(peers),
        }
    }

    pub(super) fn emit(&self) -> Result<Vec<u8>, ServiceError> {
        let mut content = serde_json::to_vec_pretty(self)
            .map_err(|error| ServiceError::Usage(format!("the known hosts cannot be written: {error}")))?;
        content.push(b'\n');
        Ok(content)
    }

    /// Iterates over the hosts.
    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter()
    }

    /// Finds the host with this key.
    pub fn of_key(&self, key: &PeerKey) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.key == *key)
    }

    /// Finds the host with this name.
    pub fn named(&self, name: &str) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.name == name)
    }

    /// Finds the host with this name. An error lists the names of all hosts.
    pub fn required(&self, name: &str) -> Result<&Peer, ServiceError> {
        self.named(name).ok_or_else(|| self.no_such(name))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.peers.iter_mut()
    }

    fn index_of(&self, name: &str) -> Result<usize, ServiceError> {
        self.peers.iter().position(|peer| peer.name == name).ok_or_else(|| self.no_such(name))
    }

    fn no_such(&self, name: &str) -> ServiceError {
        let names: Vec<_> = self.peers.iter().map(|peer| peer.name.as_str()).collect();
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        ServiceError::Usage(format!(
            "no host called `{name}` is paired; paired hosts: {names} (`outboard pair` adds one)"
        ))
    }

    /// Adds a host. A known host keeps its name and permitted devices. Returns the name: `name`, or a
    /// similar one if that is in use.
    pub(super) fn add(
        &mut self,
        name: &str,
        key: PeerKey,
        address: Option<String>,
    ) -> Result<String, ServiceError> {
        if let Some(known) = self.peers.iter_mut().find(|peer| peer.key == key) {
            known.address = address.or(known.address.take());
            return Ok(known.name.clone());
        }
        if self.peers.len() >= PEERS_MAX {
            return Err(ServiceError::Usage(format!(
                "{PEERS_MAX} hosts are known, which is all there may be: `outboard peers remove` forgets one"
            )));
        }
        let base = as_name(name);
        let numbered = (2..).map(|number| format!("{base}-{number}"));
        let mut names = std::iter::once(base.clone()).chain(numbered);
        let free = names.find(|name| name != SELF && self.named(name).is_none() && !self.has_host(name));
        let name = free.unwrap_or(base);
        self.peers.push(Peer { name: name.clone(), key, address, places: Vec::new(), may_open: None });
        Ok(name)
    }

    /// Renames a host.
    pub fn rename(&mut self, name: &str, new: &str) -> Result<(), ServiceError> {
        if !is_new_name(new) {
            return Err(ServiceError::Usage(format!(
                "`{new}` cannot be a host's name: 1 to {NAME_BYTES_MAX} bytes, no IP address, without `/`, `@`, `:`, \
                 blanks and control characters"
            )));
        }
        if name != new && self.named(new).is_some() {
            return Err(ServiceError::Usage(format!("another host is called `{new}` already")));
        }
        let index = self.index_of(name)?;
        self.peers[index].name = new.into();
        Ok(())
    }

    /// Restricts a host to these devices, or permits all that are shared with it.
    pub fn restrict(&mut self, name: &str, may_open: Option<Vec<String>>) -> Result<(), ServiceError> {
        let index = self.index_of(name)?;
        self.peers[index].may_open = may_open;
        Ok(())
    }

    /// Removes a host.
    pub fn remove(&mut self, name: &str) -> Result<Peer, ServiceError> {
        let index = self.index_of(name)?;
        Ok(self.peers.remove(index))
    }
}

/// Checks that the name can be used on the command line as `HOST`, also in `PEER@HOST:PORT/NAME`.
fn is_new_name(text: &str) -> bool {
    is_name(text) && !text.contains(['@', ':']) && text.parse::<IpAddr>().is_err()
}

/// Checks a name of the file, which may have been written by an earlier version.
fn is_name(text: &str) -> bool {
    let fits = |c: char| !c.is_control() && !c.is_whitespace() && c != '/';
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.chars().all(fits)
}

/// Makes a valid name from the name that an unknown host sent.
fn as_name(text: &str) -> String {
    let fits = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = text.chars().take(32).map(fits).collect();
    // A host named like an address would own that address.
    let name = if name.parse::<IpAddr>().is_ok() { name.replace('.', "-") } else { name };
    if name.trim_matches('-').is_empty() { "host".into() } else { name }
}
