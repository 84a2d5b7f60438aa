//! The kinds of attached devices, by peer and name.

use crate::PeerKey;
use contract::{Kind, ServiceError};
use serde::{Deserialize, Serialize};

/// Limit of remembered devices; the oldest is forgotten.
const KINDS_MAX: usize = 4096;

/// A device that this host has attached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Attached {
    /// The key of its host.
    peer: PeerKey,
    /// Its name there.
    name: String,
    /// The name of its kind. A later version may know more kinds.
    kind: String,
}

/// The remembered devices, in the order of their last change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kinds {
    devices: Vec<Attached>,
}

impl Kinds {
    /// Parses the file's content.
    pub(super) fn parse(content: &[u8]) -> Result<Kinds, String> {
        serde_json::from_slice(content).map_err(|error| error.to_string())
    }

    pub(super) fn emit(&self) -> Result<Vec<u8>, ServiceError> {
        let mut content = serde_json::to_vec_pretty(self).map_err(|error| {
            ServiceError::Usage(format!("the kinds of devices cannot be written: {error}"))
        })?;
        content.push(b'\n');
        Ok(content)
    }

    /// Returns the kind of a peer's device.
    pub(super) fn of(&self, peer: &PeerKey, name: &str) -> Option<&str> {
        let device = self.devices.iter().find(|device| device.peer == *peer && device.name == name)?;
        Some(&device.kind)
    }

    /// Stores the kind of a peer's device.
    pub(super) fn set(&mut self, peer: &PeerKey, name: &str, kind: Kind) {
        self.devices.retain(|device| device.peer != *peer || device.name != name);
        let excess = (self.devices.len() + 1).saturating_sub(KINDS_MAX);
        self.devices.drain(..excess);
        self.devices.push(Attached { peer: *peer, name: name.into(), kind: kind.name().into() });
    }

    /// Forgets the devices of all peers but these.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&PeerKey) -> bool) {
        self.devices.retain(|device| is_kept(&device.peer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_stored_by_peer_and_name_within_the_limit() {
        let (studio, garage) = (PeerKey([1; 32]), PeerKey([2; 32]));
        let mut kinds = Kinds::default();
        kinds.set(&studio, "pad", Kind::Gamepad);
        kinds.set(&garage, "pad", Kind::Keyboard);
        kinds.set(&studio, "pad", Kind::Mouse);
        let kinds = Kinds::parse(&kinds.emit().unwrap()).unwrap();
        assert_eq!([kinds.of(&studio, "pad"), kinds.of(&garage, "pad")], [Some("mouse"), Some("keyboard")]);
        assert_eq!(kinds.of(&studio, "wheel"), None);
        let mut full = kinds;
        (0..KINDS_MAX).for_each(|number| full.set(&garage, &number.to_string(), Kind::Bytes));
        assert_eq!((full.devices.len(), full.of(&studio, "pad")), (KINDS_MAX, None));
        full.retain(|peer| *peer == studio);
        assert!(full.devices.is_empty());
    }
}
