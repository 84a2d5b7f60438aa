//! Disks of this host (`Documentation/ABI/stable/sysfs-block`), and one that was plugged in again.

use super::advice;
use super::identity::{self, Identity};
use super::properties::{Properties, size};
use super::udev::{LINKS, Udev};
use crate::plain::os;
use contract::{DeviceError, Listing};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, fstat, fstatfs, major, minor, statx};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const SYSFS: &str = "/sys/class/block";
const DISKS: &str = "/sys/dev/block";
/// A random number of the kernel, another one after each start.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// The unit of the sizes in sysfs.
const SECTOR_BYTES: u64 = 512;
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
    let Some(device) = block_device(&disk) else {
        let marks = file_mark(&disk, &file(&real).unwrap_or_default());
        let identity = Identity { link: "", is_removable: false, marks: &marks };
        return (name, identity.to_text());
    };
    let model = file(&real).and_then(|node| model(&Path::new(SYSFS).join(node)));
    let links = fs::read_dir(LINKS).into_iter().flatten().flatten();
    let links = links
        .filter(|link| fs::canonicalize(link.path()).is_ok_and(|target| target == real))
        .filter_map(|link| link.file_name().into_string().ok());
    let link = identity::chosen(links);
    let directory = disk_directory(device);
    let removable = attribute(&directory, "removable").or_else(|| attribute(&directory, "../removable"));
    let identity = Identity {
        link: &link,
        is_removable: removable.is_none_or(|flag| flag != "0"),
        marks: &Udev::here().marks(device),
    };
    (model.unwrap_or(name), identity.to_text())
}

/// Returns the mark of a file. A file that was deleted may leave its inode to the next one, but not the time at which it was made.
fn file_mark(file: impl AsFd, name: &str) -> String {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let Ok(stat) = statx(&file, "", AtFlags::EMPTY_PATH, wanted) else { return String::new() };
    let has_time = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    let made = has_time.then_some((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec));
    match has_lasting_inodes(&file) {
        true => identity::file_mark(&stat.stx_ino.to_string(), made),
        false => identity::file_mark(name, made),
    }
}

/// Returns whether a file keeps its inode. FAT and exFAT have none on the disk, and FUSE numbers files as they come (`linux/magic.h`).
fn has_lasting_inodes(file: impl AsFd) -> bool {
    !fstatfs(file).is_ok_and(|system| matches!(system.f_type, 0x4d44 | 0x2011_bab0 | 0x6573_5546))
}

/// Returns the number of an open block device, `None` for a file.
pub(super) fn block_device(disk: impl AsFd) -> Option<u64> {
    let stat = fstat(disk).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice).then_some(stat.st_rdev)
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
    let link = Identity::parse(&known.identity).link;
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

/// Returns the number of an open disk, which is another one after this host has restarted, and after the disk was plugged in again or has
/// another medium: the page cache with its answered writes is gone then. It is the same for each opening before that. `reopened`: its
/// number at the opening before.
pub(super) fn instance(disk: impl AsFd, sequence: Option<u64>, identity: &str, reopened: Option<u64>) -> u64 {
    let mut hasher = DefaultHasher::new();
    fs::read(BOOT).unwrap_or_default().hash(&mut hasher);
    match block_device(&disk) {
        Some(device) => {
            device.hash(&mut hasher);
            if sequence.is_none() {
                hash_uncounted(&disk_directory(device), identity, reopened, &mut hasher);
            }
        }
        None => {
            identity.hash(&mut hasher);
            let device = fstat(&disk).map(|stat| stat.st_dev).unwrap_or_default();
            device.hash(&mut hasher);
            let device = disk_directory(device);
            // A partition has the number of its disk.
            attribute(&device, "diskseq").or_else(|| attribute(&device, "../diskseq")).hash(&mut hasher);
        }
    }
    with_sequence(hasher.finish(), sequence)
}

/// Adds the signs of another medium where the kernel does not count them (before Linux 5.15): another directory in sysfs, and other marks.
/// Another card in a reader may show none, so each opening of such a drive but the first counts as one.
fn hash_uncounted(directory: &Path, identity: &str, reopened: Option<u64>, hasher: &mut impl Hasher) {
    let directory = fs::metadata(directory).map(|metadata| metadata.ino()).ok();
    let reopened = reopened.filter(|_| Identity::parse(identity).is_removable);
    (directory, identity, reopened).hash(hasher);
}

/// Puts the number of the medium into the low half of an instance, where a worker finds it ([`is_another_medium`]).
fn with_sequence(instance: u64, sequence: Option<u64>) -> u64 {
    sequence.map_or(instance, |sequence| (instance & !u64::from(u32::MAX)) | u64::from(sequence as u32))
}

/// Returns whether an open disk has another medium than at its opening, if the kernel counts them.
pub(super) fn is_another_medium(disk: impl AsFd, instance: u64) -> bool {
    sys::disk::sequence(disk).is_some_and(|sequence| sequence as u32 != instance as u32)
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
    fn a_disk_that_may_be_another_one_is_another_instance_where_media_are_not_counted() {
        let instance = |directory, identity, reopened| {
            let mut hasher = DefaultHasher::new();
            hash_uncounted(Path::new(directory), identity, reopened, &mut hasher);
            with_sequence(hasher.finish(), None)
        };
        let (card, other) = ("usb-Reader-0:0 removable 0815", "usb-Reader-0:0 removable 0816");
        let first = instance("/sys", card, None);
        assert_eq!(instance("/sys", card, None), first, "a restart of the process");
        assert_ne!(instance("/sys", other, None), first, "another card");
        let second = instance("/sys", card, Some(first));
        assert_ne!(second, first, "another card with the same marks, or the first one again");
        assert_ne!(instance("/sys", card, Some(second)), second);
        let (fixed, plugged) =
            (instance("/sys", "ata-Disk_1", None), instance("/sys/class", "ata-Disk_1", None));
        assert_eq!(instance("/sys", "ata-Disk_1", Some(fixed)), fixed);
        assert_ne!(plugged, fixed, "plugged in again");
    }
}
