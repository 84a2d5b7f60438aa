//! Disks of this host (`Documentation/ABI/stable/sysfs-block`), and one that was plugged in again.
//!
//! The identity of a disk is the name of udev's link to it and, behind a space, the marks of its medium: the identifiers of its partition
//! table and of its file system. The link alone names a card reader and not the card.

use super::advice;
use super::properties::{Properties, size};
use crate::plain::os;
use contract::{DeviceError, Listing};
use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

const SYSFS: &str = "/sys/class/block";
const DISKS: &str = "/sys/dev/block";
/// A random number of the kernel, another one after each start.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// udev's links, by model and serial number.
const LINKS: &str = "/dev/disk/by-id";
/// udev's facts about block devices, by their numbers.
const FACTS: &str = "/run/udev/data";
/// Those that mark a medium.
const MARKS: [&str; 2] = ["E:ID_PART_TABLE_UUID=", "E:ID_FS_UUID="];
/// The unit of the sizes in sysfs.
const SECTOR_BYTES: u64 = 512;
/// Links to the same disk that tell more to users come first.
const GENERIC: [&str; 4] = ["wwn-", "nvme-eui.", "nvme-uuid.", "scsi-"];
/// Disks without a device: memory of the kernel.
const VIRTUAL: [&str; 3] = ["ram", "zram", "nbd"];

fn attribute(device: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(device.join(name)).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Returns the disk's name for users, and its identity.
pub(super) fn name_and_identity(path: &Path, disk: impl AsFd) -> (String, String) {
    let file = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let name = file(path).unwrap_or_else(|| "disk".into());
    let model = file(&real).and_then(|node| model(&Path::new(SYSFS).join(node)));
    let links = fs::read_dir(LINKS).into_iter().flatten().flatten();
    let mut links: Vec<String> = links
        .filter(|link| fs::canonicalize(link.path()).is_ok_and(|target| target == real))
        .filter_map(|link| link.file_name().into_string().ok())
        .collect();
    links.sort_by_key(|link| (GENERIC.iter().any(|start| link.starts_with(start)), link.clone()));
    let facts = block_device(disk)
        .and_then(|device| fs::read_to_string(format!("{FACTS}/b{}:{}", major(device), minor(device))).ok());
    let link = links.into_iter().next().unwrap_or_default();
    (model.unwrap_or(name), format!("{link} {}", marks(&facts.unwrap_or_default())).trim_end().into())
}

/// Returns the number of an open block device, `None` for a file.
fn block_device(disk: impl AsFd) -> Option<u64> {
    let stat = fstat(disk).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice).then_some(stat.st_rdev)
}

/// Returns the marks of a medium in udev's facts.
fn marks(facts: &str) -> String {
    let mark = |name| facts.lines().find_map(|line| line.strip_prefix(name));
    MARKS.into_iter().filter_map(mark).collect::<Vec<_>>().join(" ")
}

/// Returns udev's link and the marks of the medium in an identity.
fn link_and_marks(identity: &str) -> (&str, &str) {
    identity.split_once(' ').unwrap_or((identity, ""))
}

/// Returns whether an open disk has the medium of one that was opened before, as far as this host can tell.
pub(super) fn has_same_medium(disk: impl AsFd, known: &Properties, found: &Properties) -> bool {
    // A file has its path, and the same instance was not unplugged: its user may have written another partition table.
    let Some(device) = block_device(disk).filter(|_| known.instance != found.instance) else { return true };
    let device = disk_directory(device);
    let removable = attribute(&device, "removable").or_else(|| attribute(&device, "../removable"));
    is_same_medium(&known.identity, &found.identity, removable.is_none_or(|flag| flag != "0"))
}

/// Compares the identities of a disk before and after it was unplugged. Without marks, the link decides if it names the disk itself.
fn is_same_medium(known: &str, found: &str, is_removable: bool) -> bool {
    let ((link, known), (_, found)) = (link_and_marks(known), link_and_marks(found));
    match known.is_empty() || found.is_empty() {
        true => !link.is_empty() && !is_removable,
        false => known == found,
    }
}

fn disk_directory(device: u64) -> PathBuf {
    Path::new(DISKS).join(format!("{}:{}", major(device), minor(device)))
}

/// Returns the model of a disk, or of the disk that a partition belongs to.
fn model(device: &Path) -> Option<String> {
    let own = |device: &Path| {
        let text = |name| attribute(device, name);
        match (text("device/vendor"), text("device/model")) {
            (Some(vendor), Some(model)) if !vendor.starts_with("0x") && vendor != "ATA" => {
                Some(format!("{vendor} {model}"))
            }
            (_, model) => model,
        }
    };
    own(device).or_else(|| {
        let number = attribute(device, "partition")?;
        let whole = fs::canonicalize(device).ok()?;
        Some(format!("{}, partition {number}", own(whole.parent()?)?))
    })
}

/// Returns the path of a disk that was opened before: by udev's link, or by its path if it had none.
pub(super) fn find_again(target: &str, known: &Properties) -> Result<PathBuf, DeviceError> {
    let (link, _) = link_and_marks(&known.identity);
    if link.is_empty() {
        return Ok(target.into());
    }
    // The name is part of a description that this host made, or that a peer has: it names a link and no path.
    let path = Path::new(LINKS).join(Path::new(link).file_name().unwrap_or_default());
    match path.exists() {
        true => Ok(path),
        false => Err(DeviceError::Os {
            operation: format!("looking for {}", known.name),
            error: std::io::ErrorKind::NotFound.into(),
            advice: Some("it is unplugged".into()),
        }),
    }
}

/// Returns the number of an open disk, which is another one after this host has restarted, and after the disk was plugged in again: the
/// page cache with its answered writes is gone then. It is the same for each opening before that.
pub(super) fn instance(disk: impl AsFd) -> u64 {
    let mut hasher = DefaultHasher::new();
    fs::read(BOOT).unwrap_or_default().hash(&mut hasher);
    if let Ok(stat) = fstat(&disk) {
        let device = match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => stat.st_rdev,
            _ => {
                stat.st_ino.hash(&mut hasher);
                stat.st_dev
            }
        };
        device.hash(&mut hasher);
        let device = disk_directory(device);
        // The kernel counts the disks that it has found. A partition has the number of its disk.
        attribute(&device, "diskseq").or_else(|| attribute(&device, "../diskseq")).hash(&mut hasher);
    }
    hasher.finish()
}

/// Returns the disks and partitions of this host.
pub(super) fn list() -> Vec<Listing> {
    let entries = fs::read_dir(SYSFS).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names.iter().filter_map(|name| listing(name)).collect()
}

fn listing(name: &str) -> Option<Listing> {
    let device = Path::new(SYSFS).join(name);
    let bytes = attribute(&device, "size")?.parse::<u64>().ok()?.checked_mul(SECTOR_BYTES)?;
    let is_virtual = VIRTUAL.iter().any(|start| name.strip_prefix(start).is_some_and(is_number));
    if bytes == 0 || is_virtual {
        return None;
    }
    let path = format!("/dev/{name}");
    let what =
        model(&device).or_else(|| attribute(&device, "loop/backing_file")).unwrap_or_else(|| name.into());
    let note = if is_mounted(&path) { "; mounted" } else { "" };
    let opened = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let problem =
        opened.err().map(|error| os(format!("opening {path}"), error, advice(error, false)).to_string());
    let summary = format!("{what} (disk, {}{note})", size(bytes));
    Some(Listing { spec: format!("block:{path}"), summary, problem, ours: false })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_mounted(path: &str) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').next() == Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_reader_with_another_card_is_another_disk() {
        let facts = "S:disk/by-id/usb-Reader-0:0\nE:ID_PART_TABLE_UUID=0815\nE:ID_FS_UUID=47-11\nE:ID_FS_UUID_ENC=x\n";
        assert_eq!(marks(facts), "0815 47-11");
        let (reader, no_link) = ("usb-Reader-0:0 0815", " 0815");
        assert_eq!(link_and_marks(reader), ("usb-Reader-0:0", "0815"));
        for (known, found, is_removable, is_same) in [
            (reader, reader, true, true),
            (reader, "usb-Reader-0:0 0816", true, false),
            (reader, "usb-Reader-0:0", true, false),
            ("usb-Reader-0:0", "usb-Reader-0:0", true, false),
            // Its user has written a partition table.
            ("ata-Disk_1", "ata-Disk_1 0816", false, true),
            ("ata-Disk_1 0815", "ata-Disk_1 0816", false, false),
            (no_link, no_link, true, true),
            ("", "", false, false),
        ] {
            assert_eq!(is_same_medium(known, found, is_removable), is_same, "{known}, {found}");
        }
    }
}
