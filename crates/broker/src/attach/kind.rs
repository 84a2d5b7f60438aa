//! The check that a device has the expected kind, before anything of it appears on this host.
//!
//! | expected by | the kind differs |
//! |---|---|
//! | the user (`--expect`) | refused |
//! | nobody; the device had a kind in this process | refused: [`KindChange`] |
//! | nobody; this host remembers a kind for the peer and the name | refused: [`KindChange`] |
//! | nobody, for a new name | not possible: the kind is shown and remembered |

use contract::{Description, Kind, KindChange, ServiceError};
use modules::registry;
use trust::{PeerKey, Trust};

/// A device of the other host, before it is used.
pub(super) struct Named<'a> {
    /// Its name there.
    pub(super) name: &'a str,
    /// The other host, as the user wrote it, with the port.
    pub(super) address: &'a str,
    /// The memory of kinds, and the key of the other host; `None` with `--insecure`.
    pub(super) memory: Option<(&'a Trust, &'a PeerKey)>,
}

/// A checked device.
pub(super) struct Found {
    pub(super) kind: Kind,
    /// Its class, or `unknown`.
    pub(super) class: &'static str,
    /// It had this kind before.
    pub(super) known: bool,
}

impl Named<'_> {
    /// Checks the kind of a device. `used_as`: its kind in this process. Remembers the kind of an accepted device.
    pub(super) fn check(
        &self,
        description: &Description,
        expect: Option<Kind>,
        used_as: Option<Kind>,
    ) -> Result<Found, ServiceError> {
        let Named { name, address, memory } = *self;
        let kind = registry::kind(description)?;
        let before = match (used_as, memory) {
            (Some(kind), _) => Some(kind.name().into()),
            (None, Some((trust, key))) => trust.kind_of(key, name)?,
            (None, None) => None,
        };
        let known = before.as_deref() == Some(kind.name());
        match (expect, before) {
            (Some(expected), _) if expected != kind => {
                return Err(ServiceError::Peer(format!(
                    "{name} of {address}: the kind of this device is `{kind}`, and not `{expected}` as `--expect` \
                     demands, so it is not attached"
                )));
            }
            (None, Some(before)) if !known => {
                let change = KindChange { name: name.into(), address: address.into(), before, now: kind };
                return Err(Box::new(change).into());
            }
            _ => {}
        }
        if let (false, Some((trust, key))) = (known, memory) {
            trust.remember_kind(key, name, kind)?;
        }
        let class = registry::device_class(&description.class).map_or("unknown", |class| class.name());
        Ok(Found { kind, class, known })
    }
}
