//! Places: the addresses at which this host met its peers. Each place belongs to the key that answered there, so that no
//! peer can stand in for another.

use crate::{Known, Peer, PeerKey, Peers, SELF, owners_command};
use contract::ServiceError;
use sys::address::host_of;

/// Most places of one peer; the oldest one is forgotten.
const PLACES_MAX: usize = 8;

/// A host as the user wrote it: `[PEER@]HOST[:PORT]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The peer that must answer.
    pub peer: Option<String>,
    /// `HOST:PORT`.
    pub address: String,
}

impl Target {
    /// The host, without the port.
    pub fn host(&self) -> &str {
        host_of(&self.address)
    }

    /// The port.
    pub fn port(&self) -> &str {
        self.address.rsplit_once(':').map_or("", |(_, port)| port)
    }

    /// The peer whose name is the host.
    pub fn named<'p>(&self, peers: &'p Peers) -> Option<&'p Peer> {
        if self.peer.is_some() { None } else { peers.named(self.host()) }
    }
}

/// Reasons to refuse the key of a host that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyRefusal {
    /// The host is unknown, or another peer than the expected one.
    Mismatch(String),
    /// A peer answers at a place that is not on record. The user may confirm it.
    Unrecorded {
        /// The place, `HOST:PORT`.
        address: String,
        /// The peer's name.
        peer: String,
        /// The start of its key.
        fingerprint: String,
    },
}

impl Peers {
    /// Finds the peer that must answer at the target; `None` if no record decides.
    ///
    /// | target | peer |
    /// |---|---|
    /// | `PEER@HOST:PORT`, or `HOST` is the name of a peer | this peer |
    /// | `HOST:PORT` was confirmed for a peer | this peer |
    /// | `HOST` is the address at which exactly one peer was paired | this peer |
    pub fn expected(&self, target: &Target) -> Result<Option<&Peer>, ServiceError> {
        if let Some(name) = &target.peer {
            return self.required(name).map(Some);
        }
        let is_confirmed = |peer: &&Peer| peer.places.contains(&target.address);
        if let Some(peer) = self.named(target.host()).or_else(|| self.iter().find(is_confirmed)) {
            return Ok(Some(peer));
        }
        let mut paired_there = self.iter().filter(|peer| peer.address.as_deref() == Some(target.host()));
        Ok(paired_there.next().filter(|_| paired_there.next().is_none()))
    }

    /// Records that the place belongs to this key, and to no other.
    fn record(&mut self, key: &PeerKey, place: &str) {
        for peer in self.iter_mut() {
            peer.places.retain(|known| known != place);
            if peer.key == *key {
                peer.places.insert(0, place.into());
                peer.places.truncate(PLACES_MAX);
            }
        }
    }

    /// Returns true if a peer was met at this host, on any port.
    pub(crate) fn has_host(&self, host: &str) -> bool {
        self.iter().any(|peer| {
            peer.address.as_deref() == Some(host) || peer.places.iter().any(|place| host_of(place) == host)
        })
    }
}

impl Known {
    /// Checks that the host that answers at `target` may show this key. `is_here` is set if the address is one of this
    /// host: another process of the same user may then have a place that is on record for a peer.
    pub fn expect(&self, target: &Target, key: &PeerKey, is_here: bool) -> Result<(), KeyRefusal> {
        let Some(name) = self.name_of(key) else {
            return Err(KeyRefusal::Mismatch(format!(
                "this host does not know the one there (key {}): make them known to each other with `{}`",
                key.short(),
                owners_command("pair")
            )));
        };
        let expected =
            self.peers.expected(target).map_err(|error| KeyRefusal::Mismatch(error.to_string()))?;
        let address = &target.address;
        let Some(expected) = expected else {
            return match name {
                SELF => Ok(()),
                peer => Err(KeyRefusal::Unrecorded {
                    address: address.clone(),
                    peer: peer.into(),
                    fingerprint: key.short(),
                }),
            };
        };
        let is_named = target.peer.is_some() || expected.name == target.host();
        if expected.key == *key || (name == SELF && is_here && !is_named) {
            return Ok(());
        }
        let (right, wrong) = (&expected.name, name);
        Err(KeyRefusal::Mismatch(match is_named || wrong == SELF {
            _ if is_named && wrong != SELF => format!(
                "`{wrong}` answers there, and not `{right}` (if it is `{right}` with a new key, `outboard peers add KEYLINE` \
                 with `--replace` gives it the name)"
            ),
            true => format!("`{wrong}` answers there, and not `{right}`"),
            false => format!(
                "`{wrong}` answers there, but the address is on record for `{right}`: if `{wrong}` is right, write \
                 {wrong}@{address}"
            ),
        }))
    }

    /// Records that the peer is at `place` (`HOST:PORT`), in the file too. Writes nothing if that is on record, so that the
    /// directory may be read-only then.
    pub fn record(&mut self, key: &PeerKey, place: &str) -> Result<(), ServiceError> {
        self.change(|peers| peers.record(key, place))
    }

    /// Records the host name that the peer gives itself, like [`Known::record`].
    pub fn record_host_name(&mut self, key: &PeerKey, host: &str) -> Result<(), ServiceError> {
        self.change(|peers| peers.record_host_name(key, host))
    }

    fn change(&mut self, change: impl Fn(&mut Peers)) -> Result<(), ServiceError> {
        self.refresh()?;
        let mut changed = self.peers.clone();
        change(&mut changed);
        if changed == self.peers {
            return Ok(());
        }
        self.trust.edit(|peers| {
            change(peers);
            Ok(())
        })?;
        self.refresh().map(drop)
    }
}
