//! Disks of this host (`Documentation/ABI/stable/sysfs-block`), and one that was plugged in again.

use super::properties::{Properties, size};
use contract::{DeviceError, Listing};
use rustix::fs::{FileType, fstat, major, minor};
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

/// Returns the disk's name for users and the name of udev's link to it, which is empty if there is none.
pub(super) fn name_and_identity(path: &Path) -> (String, String) {
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
    (model.unwrap_or(name), links.into_iter().next().unwrap_or_default())
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
    if known.identity.is_empty() {
        return Ok(target.into());
    }
    // The name is part of a description that this host made, or that a peer has: it names a link and no path.
    let path = Path::new(LINKS).join(Path::new(&known.identity).file_name().unwrap_or_default());
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
        let device = Path::new(DISKS).join(format!("{}:{}", major(device), minor(device)));
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
    let problem = fs::File::open(&path).err().map(|error| {
        format!(
            "opening {path}: {error} (reading needs permission: `sudo`, or membership of the group `disk`)"
        )
    });
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
