//! The known hosts: names, keys, addresses and permitted devices.
//!
//! Configurations name hosts, so a name belongs to one key for ever: a name that was removed or changed is kept with its
//! key and given to no other host. Only the owner passes a name on, by a line with another key for it ([`KeyLine`]).

use crate::{KeyLine, PeerKey, owners_command};
use contract::ServiceError;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use sys::address::host_of;

/// Limit of known hosts.
pub const PEERS_MAX: usize = 1024;
/// Limit of present and former names together.
const NAMES_MAX: usize = 4096;
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
    /// Its own host name, which it announces, unless it has or had this name here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_name: Option<String>,
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
    /// The directory of key lines that lists it: there it is edited, and it is removed with its line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listed_in: Option<String>,
}

/// The effect of a key line on the known hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LineEffect {
    /// The host is new.
    Added,
    /// The host was known with another name, address or permit.
    Changed,
    /// The host was known with all of this.
    Unchanged,
    /// The line is this host's own, and has no effect.
    Own,
}

/// A former name of a host, which no other host may get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FormerName {
    name: String,
    key: PeerKey,
}

impl Peer {
    fn new(name: String, key: PeerKey, address: Option<String>) -> Peer {
        Peer { name, key, host_name: None, address, places: Vec::new(), may_open: None, listed_in: None }
    }
}

/// The list of known hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peers {
    peers: Vec<Peer>,
    /// The names of removed hosts, and the earlier names of renamed hosts, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    former: Vec<FormerName>,
}

/// The name of a host that was added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Added {
    pub(super) name: String,
    /// The name that the host calls itself, if it is taken.
    pub(super) claimed: Option<String>,
}

impl Peers {
    /// Parses the file's content.
    pub(super) fn parse(content: &[u8]) -> Result<Peers, String> {
        let peers: Peers = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        let names_alike = |one: &Peer| peers.peers.iter().filter(|other| other.name == one.name).count() > 1;
        let is_formers = |one: &Peer| peers.is_taken(&one.name, &one.key);
        let is_wrong = |peer: &&Peer| !is_name(&peer.name) || names_alike(peer) || is_formers(peer);
        match peers.peers.iter().find(is_wrong) {
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

    /// The present name of this host, its former names, and its own host name.
    pub fn names_of<'p>(&'p self, peer: &'p Peer) -> impl Iterator<Item = &'p str> {
        let former = self.former.iter().filter(|former| former.key == peer.key);
        let names = std::iter::once(peer.name.as_str()).chain(former.map(|former| former.name.as_str()));
        names.chain(peer.host_name.as_deref())
    }

    /// Records the host name that a host gives itself.
    pub(crate) fn record_host_name(&mut self, key: &PeerKey, host: &str) {
        let is_new = |peer: &&Peer| !self.names_of(peer).any(|name| name == host);
        if self.of_key(key).filter(is_new).is_none() {
            return;
        }
        let host = if is_name(host) { host.into() } else { as_name(host) };
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.key == *key) {
            peer.host_name = Some(host);
        }
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
        let missing = match self.former.iter().any(|former| former.name == name) {
            true => format!("the host called `{name}` was removed or renamed"),
            false => format!("no host called `{name}` is paired"),
        };
        let command = owners_command("pair");
        ServiceError::Usage(format!("{missing}; paired hosts: {names} (`{command}` adds one)"))
    }

    /// Returns true if the name belongs to another host than the one with this key.
    fn is_taken(&self, name: &str, key: &PeerKey) -> bool {
        let is_other = |owner: &PeerKey| owner != key;
        name == SELF
            || self.peers.iter().any(|peer| peer.name == name && is_other(&peer.key))
            || self.former.iter().any(|former| former.name == name && is_other(&former.key))
    }

    /// Checks that the host with this key can get the name.
    pub(super) fn check_name(&self, name: &str, key: &PeerKey) -> Result<(), ServiceError> {
        // Such a name may come from an earlier version.
        if self.of_key(key).is_some_and(|peer| peer.name == name) {
            return Ok(());
        }
        check_new_name(name)?;
        let problem = match self.named(name) {
            _ if !self.is_taken(name, key) => return Ok(()),
            Some(_) => format!("another host is called `{name}` already"),
            None => format!("`{name}` was the name of another host, and names are never given again"),
        };
        Err(ServiceError::Usage(format!(
            "{problem}: choose another, or `outboard peers add KEYLINE` with `--replace` gives this one to another key"
        )))
    }

    /// Checks that there is room for another name.
    fn check_room(&self) -> Result<(), ServiceError> {
        if self.peers.len() + self.former.len() < NAMES_MAX {
            return Ok(());
        }
        Err(ServiceError::Usage(format!(
            "{NAMES_MAX} names of hosts are or were in use, which is all there may be: delete entries of `former` in the \
             list of peers"
        )))
    }

    /// Adds a host. It gets the name that the user has `chosen`, or its last name on this host, or the name that it
    /// claims, with a number if that name is taken. A known host keeps its name, unless the user has chosen another, and
    /// its permitted devices.
    pub(super) fn add(
        &mut self,
        claimed: &str,
        chosen: Option<&str>,
        key: PeerKey,
        address: Option<String>,
    ) -> Result<Added, ServiceError> {
        if let Some(chosen) = chosen {
            self.check_name(chosen, &key)?;
        }
        if let Some(known) = self.peers.iter_mut().find(|peer| peer.key == key) {
            known.address = address.or(known.address.take());
            let name = known.name.clone();
            if let Some(chosen) = chosen {
                self.rename(&name, chosen)?;
            }
            self.record_host_name(&key, claimed);
            return Ok(Added { name: chosen.map_or(name, String::from), claimed: None });
        }
        if self.peers.len() >= PEERS_MAX {
            return Err(ServiceError::Usage(format!(
                "{PEERS_MAX} hosts are known, which is all there may be: `outboard peers remove` forgets one"
            )));
        }
        self.check_room()?;
        let last = self.former.iter().rfind(|former| former.key == key).map(|former| former.name.clone());
        let base = as_name(claimed);
        let added = match chosen.map(String::from).or(last) {
            Some(name) => Added { name, claimed: None },
            None => {
                let numbered = (2..).map(|number| format!("{base}-{number}"));
                let mut names = std::iter::once(base.clone()).chain(numbered);
                let free = names.find(|name| !self.is_taken(name, &key) && !self.has_host(name));
                let name = free.unwrap_or_default();
                Added { claimed: (name != base).then_some(base), name }
            }
        };
        self.former.retain(|former| former.name != added.name);
        let name = added.name.clone();
        self.peers.push(Peer::new(name, key, address));
        self.record_host_name(&key, claimed);
        Ok(added)
    }

    /// Adds the host of a key line, or changes it to match the line; a line without a permit changes none. `own` is the
    /// key of this host. With `replace`, the host takes its name from any other host, which is removed.
    pub fn add_line(
        &mut self,
        line: &KeyLine,
        own: &PeerKey,
        replace: bool,
    ) -> Result<LineEffect, ServiceError> {
        if line.key == *own {
            return Ok(LineEffect::Own);
        }
        if replace {
            self.release(&line.name, &line.key);
        }
        self.check_name(&line.name, &line.key)?;
        let before = self.of_key(&line.key).cloned();
        self.add(&line.name, Some(&line.name), line.key, line.address.clone())?;
        if line.may_open.is_some() {
            self.restrict(&line.name, line.may_open.clone())?;
        }
        Ok(match before {
            None => LineEffect::Added,
            Some(before) if self.of_key(&line.key) == Some(&before) => LineEffect::Unchanged,
            Some(_) => LineEffect::Changed,
        })
    }

    /// Makes the hosts of a directory the ones in its lines: adds, changes and removes hosts. The lines decide on names
    /// and permits; a name of a host that is known no longer can have another key.
    pub fn declare(&mut self, directory: &str, lines: &[KeyLine], own: &PeerKey) -> Result<(), ServiceError> {
        let lines: Vec<_> = lines.iter().filter(|line| line.key != *own).collect();
        for line in &lines {
            if self.of_key(&line.key).is_none_or(|peer| peer.name != line.name) {
                check_new_name(&line.name)?;
            }
        }
        let is_gone = |peer: &&Peer| {
            peer.listed_in.as_deref() == Some(directory) && lines.iter().all(|line| line.key != peer.key)
        };
        let gone: Vec<_> = self.peers.iter().filter(is_gone).map(|peer| peer.name.clone()).collect();
        gone.iter().try_for_each(|name| self.remove(name).map(drop))?;
        // Two hosts may swap names, so all old names go first.
        for peer in &mut self.peers {
            if let Some(line) = lines.iter().find(|line| line.key == peer.key)
                && line.name != peer.name
            {
                let name = std::mem::replace(&mut peer.name, line.name.clone());
                self.former.push(FormerName { name, key: peer.key });
            }
        }
        for line in lines {
            if let Some(other) = self.peers.iter().find(|peer| peer.name == line.name && peer.key != line.key)
            {
                return Err(ServiceError::Usage(format!(
                    "{directory} gives the name `{}` to the key {}, but it belongs to the key {}: rename that host",
                    line.name,
                    line.key.short(),
                    other.key.short()
                )));
            }
            self.former.retain(|former| former.name != line.name);
            self.add_line(line, own, false)?;
            let index = self.index_of(&line.name)?;
            let peer = &mut self.peers[index];
            peer.may_open = line.may_open.clone();
            peer.listed_in = Some(directory.into());
        }
        Ok(())
    }

    /// Frees a name that belongs to another host than the one with this key: a host of that name is removed.
    fn release(&mut self, name: &str, key: &PeerKey) {
        self.peers.retain(|peer| peer.name != name || peer.key == *key);
        self.former.retain(|former| former.name != name || former.key == *key);
    }

    /// Returns the key lines of all hosts, with their permits.
    pub fn key_lines(&self) -> impl Iterator<Item = KeyLine> {
        self.peers.iter().map(|peer| {
            let latest = || peer.places.first().map(|place| host_of(place).to_string());
            KeyLine {
                key: peer.key,
                name: peer.name.clone(),
                address: peer.address.clone().or_else(latest),
                may_open: peer.may_open.clone(),
            }
        })
    }

    /// Renames a host.
    pub fn rename(&mut self, name: &str, new: &str) -> Result<(), ServiceError> {
        let index = self.index_of(name)?;
        let key = self.peers[index].key;
        self.check_name(new, &key)?;
        if name == new {
            return Ok(());
        }
        self.check_room()?;
        self.former.retain(|former| former.name != new);
        self.former.push(FormerName { name: name.into(), key });
        self.peers[index].name = new.into();
        Ok(())
    }

    /// Restricts a host to these devices, or permits all that are shared with it.
    pub fn restrict(&mut self, name: &str, may_open: Option<Vec<String>>) -> Result<(), ServiceError> {
        let index = self.index_of(name)?;
        self.peers[index].may_open = may_open;
        Ok(())
    }

    /// Removes a host. Its name stays its own.
    pub fn remove(&mut self, name: &str) -> Result<Peer, ServiceError> {
        let index = self.index_of(name)?;
        let peer = self.peers.remove(index);
        self.former.push(FormerName { name: peer.name.clone(), key: peer.key });
        Ok(peer)
    }
}

/// Checks that the name can be used on the command line as `HOST`, also in `PEER@HOST:PORT/NAME`.
pub fn check_new_name(name: &str) -> Result<(), ServiceError> {
    let is_host = !name.contains(['@', ':']) && name.parse::<IpAddr>().is_err() && !is_own_host(name);
    if is_name(name) && is_host {
        return Ok(());
    }
    Err(ServiceError::Usage(format!(
        "`{name}` cannot be a host's name: 1 to {NAME_BYTES_MAX} bytes, no IP address, not `localhost`, without `/`, `@`, \
         `:`, blanks and control characters"
    )))
}

/// Returns whether the name stands for the host itself on every host (RFC 6761, section 6.3, and `/etc/hosts` of distributions).
fn is_own_host(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"].contains(&name.as_str())
        || name.starts_with("localhost.")
        || name.ends_with(".localhost")
}

/// Checks a name of the file, which may have been written by an earlier version.
fn is_name(text: &str) -> bool {
    let fits = |c: char| !c.is_control() && !c.is_whitespace() && c != '/';
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.chars().all(fits)
}

/// Makes a valid name from the name that an unknown host sent.
pub(super) fn as_name(text: &str) -> String {
    let fits = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = text.chars().take(32).map(fits).collect();
    // A host named like an address would own that address.
    let name = if name.parse::<IpAddr>().is_ok() { name.replace('.', "-") } else { name };
    // Nor may it take `localhost/DEVICE` from this host.
    if name.trim_matches('-').is_empty() || is_own_host(&name) { "host".into() } else { name }
}
