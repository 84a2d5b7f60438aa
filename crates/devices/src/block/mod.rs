//! `block:PATH`: a disk, or a file with the bytes of one.
//!
//! | module | content |
//! |---|---|
//! | `device` | the disk as a partner: threads, and the agreement with the application's side |
//! | `storage` | reads and writes on the open file |
//! | `discovery` | disks of this host, and one that was plugged in again |
//! | `identity` | the comparison of a disk with one that was open before |
//! | `properties` | description of a disk |
//! | `udev` | the links of disks, and the marks of their media |

mod device;
mod discovery;
pub mod fuzz;
mod identity;
pub(crate) mod properties;
mod storage;
#[cfg(test)]
pub(crate) mod tests;
mod udev;

use crate::plain::{self, os};
use crate::side::wrong_side;
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowClass, FlowDirection, FlowOffer, Format, Kind,
    Listing, ModuleEntry, Opened, OptionKind, OptionSpec, Partner, Role, local,
};
use device::DiskPartner;
use properties::{Properties, SECTOR_BYTES};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, SeekFrom, flock, fstat, ioctl_blksszget, seek};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;
use storage::Storage;
use udev::Udev;
use wire::formats::block::{Abilities, Geometry, SIZE_BYTES_MAX};

/// The class `block`.
#[derive(Debug)]
pub struct Block;

static OPTIONS: [OptionSpec; 1] = [local(
    "write",
    OptionKind::Flag,
    "false",
    "as a device: the other host may write; else the disk is read-only",
)];

/// The block that suits the page cache of every host.
const PREFERRED_BYTES: u32 = 4096;

/// Returns the flows of a disk.
pub(crate) fn flows() -> Vec<FlowOffer> {
    let flow = |direction| FlowOffer { direction, format: Format::Block, class: FlowClass::Reliable };
    vec![flow(FlowDirection::DeviceToApplication), flow(FlowDirection::ApplicationToDevice)]
}

fn is_writable(spec: &DeviceSpec) -> bool {
    spec.options.flag("write")
}

/// Returns the advice for a disk that cannot be opened.
fn advice(error: Errno, write: bool) -> Option<&'static str> {
    match error {
        Errno::BUSY => Some("it is in use: unmount it, and check `swapon` and `lsblk`"),
        Errno::ACCESS if write => Some("writing needs permission: `sudo`, or membership of the group `disk`"),
        Errno::ACCESS => Some("reading needs permission: `sudo`, or membership of the group `disk`"),
        Errno::PERM => Some(plain::DENIED_BY_UNIT),
        Errno::ROFS => Some("it is read-only: share it without `write=true`"),
        Errno::NOMEDIUM => Some("the drive is empty"),
        Errno::NOENT => Some("`outboard devices` lists the disks"),
        _ => None,
    }
}

/// Opens a disk or a file. Nobody else writes it meanwhile, if this host can tell.
fn open(path: &Path, write: bool) -> Result<(OwnedFd, u64), DeviceError> {
    let shown = path.display();
    let opening = |error| os(format!("opening {shown}"), error, advice(error, write));
    let not_a_disk = || DeviceError::Spec {
        what: format!("`block:{shown}`"),
        problem: "it is neither a disk nor a file with the bytes of one".into(),
    };
    let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
    // A FIFO does not block the broker.
    let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let kind = rustix::fs::stat(path).map_err(opening)?;
    // With O_EXCL the kernel refuses a block device that is mounted, or opened so by another program (`open(2)`).
    let exclusive = match FileType::from_raw_mode(kind.st_mode) {
        FileType::BlockDevice if write => OFlags::EXCL,
        FileType::BlockDevice | FileType::RegularFile => OFlags::empty(),
        _ => return Err(not_a_disk()),
    };
    let disk = rustix::fs::open(path, flags | exclusive, Mode::empty()).map_err(opening)?;
    let opened = fstat(&disk).map_err(opening)?;
    if FileType::from_raw_mode(opened.st_mode) != FileType::from_raw_mode(kind.st_mode) {
        return Err(not_a_disk());
    }
    if FileType::from_raw_mode(opened.st_mode) == FileType::RegularFile {
        let lock = if write {
            FlockOperation::NonBlockingLockExclusive
        } else {
            FlockOperation::NonBlockingLockShared
        };
        flock(&disk, lock).map_err(|error| match error {
            Errno::WOULDBLOCK => os(
                format!("locking {shown}"),
                Errno::BUSY,
                Some("another program uses this file as a disk; one that writes excludes all others"),
            ),
            error => os(format!("locking {shown}"), error, None),
        })?;
    }
    let size = seek(&disk, SeekFrom::End(0)).map_err(opening)?;
    let is_device = FileType::from_raw_mode(opened.st_mode) == FileType::BlockDevice;
    if is_device && write && sys::disk::is_read_only(&disk) {
        return Err(opening(Errno::ROFS));
    }
    match size {
        1..=SIZE_BYTES_MAX => Ok((disk, size)),
        // `O_NONBLOCK` opens a drive without a medium as well.
        0 if is_device => Err(opening(Errno::NOMEDIUM)),
        _ => Err(DeviceError::Spec {
            what: format!("`block:{shown}`"),
            problem: "it is empty: `truncate -s 1G FILE` makes a file with room for a disk".into(),
        }),
    }
}

fn opened(spec: &DeviceSpec, path: &Path, known: Option<&Properties>) -> Result<Opened, DeviceError> {
    let write = is_writable(spec);
    let (disk, size_bytes) = open(path, write)?;
    if let Some(known) = known.filter(|known| known.geometry.size_bytes != size_bytes) {
        return Err(DeviceError::Spec {
            what: format!("`block:{}`", path.display()),
            problem: format!("it has {size_bytes} bytes, and had {} before", known.geometry.size_bytes),
        });
    }
    let abilities = Abilities {
        read_only: !write,
        flush: true,
        force: write,
        trim: write,
        zeroes: write,
        many_connections: true,
    };
    let geometry = Geometry { size_bytes, block_bytes: 1, preferred_bytes: PREFERRED_BYTES, abilities };
    // Another medium that comes later than this number is noticed at the first request.
    let sequence = sys::disk::sequence(&disk);
    match discovery::block_device(&disk) {
        Some(device) if known.is_none() => Udev::here().wait(device, udev::TIMEOUT),
        Some(_) if Udev::here().is_busy() => {
            return Err(DeviceError::Spec {
                what: format!("`block:{}`", path.display()),
                problem: "udev still looks at it".into(),
            });
        }
        _ => {}
    }
    let (mut name, identity) = discovery::name_and_identity(path, &disk);
    // Requests need not be whole sectors, but the partition table counts them. The name reaches the other host's user.
    if let Ok(bytes) = ioctl_blksszget(&disk)
        && bytes > SECTOR_BYTES
    {
        name = format!("{name}, sectors of {bytes} bytes");
    }
    let instance = discovery::instance(&disk, sequence, &identity, known.map(|known| known.instance));
    let properties = Properties { geometry, instance, name, identity };
    if known.is_some_and(|known| !known.is_same_medium(&properties)) {
        return Err(DeviceError::Spec {
            what: format!("`block:{}`", path.display()),
            problem: "it may be another disk than before it was unplugged: share it again".into(),
        });
    }
    Ok(Opened {
        spec: spec.clone(),
        role: Role::Device,
        description: describe(Block.name(), &properties),
        descriptors: vec![disk],
    })
}

/// Describes a disk of a class.
pub(crate) fn describe(class: &str, properties: &Properties) -> Description {
    Description {
        class: class.into(),
        summary: properties.summary(class),
        flows: flows(),
        application: "nbd",
        properties: properties.to_bytes(),
    }
}

impl DeviceClass for Block {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "block",
            summary: "a disk, or a file with the bytes of one",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn target(&self) -> &'static str {
        "PATH"
    }

    fn has_role(&self, role: Role) -> bool {
        role == Role::Device
    }

    fn application(&self) -> &'static str {
        "nbd"
    }

    fn kind(&self, described: &Description) -> Result<Kind, DeviceError> {
        Properties::of(described).map(|_| Kind::Disk)
    }

    fn check_same(&self, known: &Description, found: &Description) -> Result<(), String> {
        properties::check_same(known, found)
    }

    fn subsystem(&self) -> Option<&'static str> {
        Some("block")
    }

    fn list(&self) -> Vec<Listing> {
        discovery::list()
    }

    fn flows(&self, _spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        Ok(flows())
    }

    fn ioctls(&self) -> &'static [u32] {
        sys::disk::IOCTLS
    }

    fn open(&self, spec: &DeviceSpec, role: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        match role {
            Role::Device => opened(spec, Path::new(&spec.target), None),
            Role::Application => Err(wrong_side(self.name(), role)),
        }
    }

    fn reopen(&self, spec: &DeviceSpec, role: Role, known: &Description) -> Result<Opened, DeviceError> {
        if role != Role::Device {
            return Err(wrong_side(self.name(), role));
        }
        let known = Properties::of(known)?;
        opened(spec, &discovery::find_again(&spec.target, &known)?, Some(&known))
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let properties = Properties::of(&opened.description)?;
        let [disk] = plain::descriptors(opened)?;
        let storage = Storage::new(disk, properties.geometry.size_bytes, properties.instance);
        DiskPartner::new(&properties, storage)
            .map(|partner| Box::new(partner) as Box<dyn Partner>)
            .map_err(|error| os(format!("driving {}", properties.name), error, None))
    }
}
