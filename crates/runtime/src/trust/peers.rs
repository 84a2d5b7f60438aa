//! The hosts that this user knows: names, keys, addresses, and what each may open.

use crate::error::RuntimeError;
use crate::trust::PeerKey;
use serde::{Deserialize, Serialize};

/// Most hosts that are known.
const PEERS_MAX: usize = 1024;
/// Bytes of the longest name.
const NAME_BYTES_MAX: usize = wire::control::NAME_BYTES_MAX;
/// What this host is called where its own key is met: another process of the same user.
pub(crate) const SELF: &str = "this user";

/// A host that was paired with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// What this user calls it.
    pub name: String,
    /// Its public key.
    pub key: PeerKey,
    /// Where it was met last: a name or an address, without a port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The only devices of this host that it may see and open; without a list, all that are shared with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_open: Option<Vec<String>>,
}

/// All of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peers {
    peers: Vec<Peer>,
}

fn no_such(name: &str) -> RuntimeError {
    RuntimeError::Usage(format!("no host called `{name}` is paired; `outboard peers` lists them"))
}

impl Peers {
    /// Reads the file's content.
    pub(super) fn parse(content: &[u8]) -> Result<Peers, String> {
        let peers: Peers = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        let names_alike = |one: &Peer| peers.peers.iter().filter(|other| other.name == one.name).count() > 1;
        match peers.peers.iter().find(|peer| !is_name(&peer.name) || names_alike(peer)) {
            Some(peer) => Err(format!("`{}` is no name, or the name of two", peer.name)),
            None => Ok(peers),
        }
    }

    pub(super) fn emit(&self) -> Result<Vec<u8>, RuntimeError> {
        let mut content = serde_json::to_vec_pretty(self)
            .map_err(|error| RuntimeError::Usage(format!("the known hosts cannot be written: {error}")))?;
        content.push(b'\n');
        Ok(content)
    }

    /// Each.
    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter()
    }

    /// The host of this key.
    pub fn of_key(&self, key: &PeerKey) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.key == *key)
    }

    /// The host of this name.
    pub fn named(&self, name: &str) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.name == name)
    }

    fn named_mut(&mut self, name: &str) -> Result<&mut Peer, RuntimeError> {
        self.peers.iter_mut().find(|peer| peer.name == name).ok_or_else(|| no_such(name))
    }

    /// Knows a host from now on. One that is known already keeps its name and what it may open. Under which name
    /// it is known: `name`, or one like it if another has that.
    pub(super) fn add(
        &mut self,
        name: &str,
        key: PeerKey,
        address: Option<String>,
    ) -> Result<String, RuntimeError> {
        if let Some(known) = self.peers.iter_mut().find(|peer| peer.key == key) {
            known.address = address.or(known.address.take());
            return Ok(known.name.clone());
        }
        if self.peers.len() >= PEERS_MAX {
            return Err(RuntimeError::Usage(format!(
                "{PEERS_MAX} hosts are known, which is all there may be: `outboard peers remove` forgets one"
            )));
        }
        let base = as_name(name);
        let numbered = (2..).map(|number| format!("{base}-{number}"));
        let mut names = std::iter::once(base.clone()).chain(numbered);
        let free = names.find(|name| name != SELF && self.named(name).is_none());
        let name = free.unwrap_or(base);
        self.peers.push(Peer { name: name.clone(), key, address, may_open: None });
        Ok(name)
    }

    /// Gives a host another name.
    pub fn rename(&mut self, name: &str, new: &str) -> Result<(), RuntimeError> {
        if !is_name(new) || new == SELF {
            return Err(RuntimeError::Usage(format!(
                "`{new}` cannot be a host's name: 1 to {NAME_BYTES_MAX} bytes, without `/`, blanks and control characters"
            )));
        }
        if name != new && self.named(new).is_some() {
            return Err(RuntimeError::Usage(format!("another host is called `{new}` already")));
        }
        self.named_mut(name)?.name = new.into();
        Ok(())
    }

    /// Lets a host open these devices only, or all that are shared with it.
    pub fn restrict(&mut self, name: &str, may_open: Option<Vec<String>>) -> Result<(), RuntimeError> {
        self.named_mut(name)?.may_open = may_open;
        Ok(())
    }

    /// Knows a host no longer.
    pub fn remove(&mut self, name: &str) -> Result<Peer, RuntimeError> {
        let index = self.peers.iter().position(|peer| peer.name == name).ok_or_else(|| no_such(name))?;
        Ok(self.peers.remove(index))
    }
}

/// Whether it can be said on the command line, in `HOST/NAME` too.
fn is_name(text: &str) -> bool {
    let fits = |c: char| !c.is_control() && !c.is_whitespace() && c != '/';
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.chars().all(fits)
}

/// A name from what a stranger calls itself.
fn as_name(text: &str) -> String {
    let fits = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = text.chars().take(32).map(fits).collect();
    if name.trim_matches('-').is_empty() { "host".into() } else { name }
}
