//! The description of a disk.

use super::identity::Identity;
use contract::{Description, DeviceError};
use wire::formats::block::{Geometry, UNKNOWN_INSTANCE};
use wire::{Reader, WireError, Writer};

/// The longest name and the longest identity, in bytes.
pub(crate) const TEXT_BYTES_MAX: usize = 256;

/// The sector that the clients of a disk assume unless they are told.
pub(super) const SECTOR_BYTES: u32 = 512;

/// The facts about a disk that a peer needs, and those by which it is found again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Properties {
    /// Its geometry.
    pub(crate) geometry: Geometry,
    /// Another number once the disk may have lost writes; [`UNKNOWN_INSTANCE`](wire::formats::block::UNKNOWN_INSTANCE) if nobody knows.
    pub(crate) instance: u64,
    /// Its name for users.
    pub(crate) name: String,
    /// As `block::identity` reads it; of a server's disk, its address; of a node, the inode of its socket.
    pub(crate) identity: String,
}

impl Properties {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        self.geometry.write(&mut writer);
        writer.u64(self.instance).text(cut(&self.name)).text(cut(&self.identity));
        writer.finish()
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Properties, WireError> {
        let mut reader = Reader::new(bytes);
        let (geometry, instance) = (Geometry::read(&mut reader)?, reader.u64("instance")?);
        let name = reader.text("name", TEXT_BYTES_MAX)?.into();
        let identity = reader.text("identity", TEXT_BYTES_MAX)?.into();
        reader.end("description of a disk").map(|()| Properties { geometry, instance, name, identity })
    }

    /// Returns the facts in a description, which may come from the network.
    pub(crate) fn of(description: &Description) -> Result<Properties, DeviceError> {
        Properties::parse(&description.properties).map_err(|error| DeviceError::Spec {
            what: "the description of a disk".into(),
            problem: error.to_string(),
        })
    }

    /// Returns whether a disk has the medium of this one, as far as a host can tell.
    pub(crate) fn is_same_medium(&self, found: &Properties) -> bool {
        // The same instance was not unplugged: its user may have written another partition table.
        (self.instance == found.instance && self.instance != UNKNOWN_INSTANCE)
            || Identity::parse(&found.identity).is_same(Identity::parse(&self.identity))
    }

    /// Returns the line of text for users. `class`: the device class of the disk.
    pub(crate) fn summary(&self, class: &str) -> String {
        let access = if self.geometry.abilities.read_only { "read-only" } else { "read and write" };
        let (name, size) = (&self.name, size(self.geometry.size_bytes));
        match self.geometry.block_bytes {
            ..=SECTOR_BYTES => format!("{name} (disk, {size}, {access})"),
            // An NBD server tells which requests it takes. The partition table of its image may count other sectors.
            bytes if class == "nbd" => {
                format!("{name} (disk, {size}, requests of whole {bytes} bytes, {access})")
            }
            bytes => format!("{name} (disk, {size}, sectors of {bytes} bytes, {access})"),
        }
    }
}

/// Checks that a disk which the other host describes anew is the known one: data that belong on one disk would damage another.
pub(crate) fn check_same(known: &Description, found: &Description) -> Result<(), String> {
    let [before, now] = [known, found].map(Properties::of);
    let (before, now) = (before.map_err(|e| e.to_string())?, now.map_err(|e| e.to_string())?);
    let (old, new) = (before.geometry, now.geometry);
    let difference = if old.size_bytes != new.size_bytes {
        format!("it has {} bytes instead of {}", new.size_bytes, old.size_bytes)
    } else if old.block_bytes != new.block_bytes {
        format!("its blocks have {} bytes instead of {}", new.block_bytes, old.block_bytes)
    } else if known.class != found.class {
        format!("its class is `{}` instead of `{}`", found.class, known.class)
    } else if !before.is_same_medium(&now) && !is_unknown(&known.class, [&before, &now]) {
        "its serial number, its partition table, its file system or its file is another one".into()
    } else {
        return Ok(());
    };
    Err(format!(
        "this is another disk than the attached one, or may be: {difference}. Requests wait for the attached one: share it again under \
         this name. To use the disk that is shared now, end this `attach` and start it again"
    ))
}

/// Returns whether a disk comes from a build that gave no identity to the disks of servers and to files.
fn is_unknown(class: &str, disks: [&Properties; 2]) -> bool {
    let is_file = |disk: &&Properties| disk.identity.starts_with(" file-");
    disks.iter().any(|disk| disk.identity.is_empty()) && (class != "block" || disks.iter().any(is_file))
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

/// Returns a size in the largest unit that it fills.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} bytes"),
    }
}
