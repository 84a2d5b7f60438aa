//! Finds video nodes: all cameras, the camera of a target, the same camera after it was unplugged, and a node for
//! pictures.

use super::properties::Properties;
use crate::plain::os;
use contract::{DeviceError, Listing};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use sys::v4l2::{self, CAPTURE, Capability, Direction, OUTPUT, STREAMING};

const NODES: &str = "/dev";
const SYSFS: &str = "/sys/class/video4linux";
/// The driver name of v4l2loopback.
pub(super) const LOOPBACK: &str = "v4l2 loopback";

/// An open video node.
pub(super) struct Node {
    pub(super) path: PathBuf,
    pub(super) descriptor: OwnedFd,
    pub(super) capability: Capability,
}

impl Node {
    pub(super) fn is_camera(&self) -> bool {
        let wanted = CAPTURE | STREAMING;
        self.capability.capabilities & wanted == wanted
    }

    /// Returns whether pictures can be written to the node.
    fn is_output(&self) -> bool {
        self.capability.capabilities & OUTPUT != 0
    }

    pub(super) fn is_loopback(&self) -> bool {
        self.capability.driver == LOOPBACK
    }

    /// Returns whether a program already writes pictures to the node. Only then it has a capture format.
    pub(super) fn has_writer(&self) -> bool {
        self.is_loopback() && v4l2::format(self.descriptor.as_fd(), Direction::Capture).is_ok()
    }
}

/// Returns the paths of all video nodes, sorted by number.
fn paths() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(NODES) else {
        return Vec::new();
    };
    let mut numbers: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("video")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers.into_iter().map(|number| Path::new(NODES).join(format!("video{number}"))).collect()
}

/// Opens a node and queries its capabilities.
pub(super) fn open(path: &Path) -> Result<Node, DeviceError> {
    let refused = |error: io::Error| {
        let advice = match Errno::from_io_error(&error) {
            Some(Errno::ACCESS | Errno::PERM) => {
                Some("add yourself to the group `video`: sudo usermod -aG video $USER, then log in again")
            }
            Some(Errno::NOTTY | Errno::INVAL | Errno::ISDIR) => {
                Some("it is not a video node; `outboard devices` lists the cameras")
            }
            Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
                Some("it is not plugged in; `outboard devices` lists the cameras")
            }
            _ => None,
        };
        os(format!("opening {}", path.display()), error, advice)
    };
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let descriptor = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| refused(error.into()))?;
    let capability = v4l2::capability(descriptor.as_fd()).map_err(refused)?;
    Ok(Node { path: path.into(), descriptor, capability })
}

/// Describes a node that cannot be opened, by its name in `sysfs`, which needs no permission.
fn unopened(sysfs: &Path, node: &Path) -> String {
    let name = node.file_name().and_then(|node| fs::read_to_string(sysfs.join(node).join("name")).ok());
    name.map_or_else(|| "video node".into(), |name| format!("{} (video node)", name.trim()))
}

/// Lists all cameras, and nodes that cannot be opened.
pub(super) fn list() -> Vec<Listing> {
    let listing = |path: PathBuf| {
        let spec = format!("v4l2:{}", path.display());
        match open(&path) {
            Ok(node) if node.is_camera() => {
                let summary = format!("{} ({})", node.capability.card, node.capability.bus);
                Some(Listing { spec, summary, problem: None, ours: false })
            }
            Ok(_) => None,
            Err(error) => Some(Listing {
                spec,
                summary: unopened(Path::new(SYSFS), &path),
                problem: Some(error.to_string()),
                ours: false,
            }),
        }
    };
    paths().into_iter().filter_map(listing).collect()
}

/// Returns the nodes that match a target: the one with this path, those with this name, or all.
fn candidates(target: &str) -> Result<Vec<Node>, DeviceError> {
    let named = target.strip_prefix("name=");
    match (target, named) {
        (path, None) if path.starts_with('/') => Ok(vec![open(Path::new(path))?]),
        ("", _) => Ok(paths().iter().filter_map(|path| open(path).ok()).collect()),
        (_, Some(name)) => {
            let open = paths().into_iter().filter_map(|path| open(&path).ok());
            Ok(open.filter(|node| node.capability.card == name).collect())
        }
        _ => Err(wrong(target, "write a path that begins with /, name=NAME, or nothing".into())),
    }
}

fn wrong(target: &str, problem: String) -> DeviceError {
    DeviceError::Spec { what: format!("`v4l2:{target}`"), problem }
}

/// Returns the camera of a target; the first camera if the target is empty.
pub(super) fn camera(target: &str) -> Result<Node, DeviceError> {
    let found = candidates(target)?.into_iter().find(Node::is_camera);
    found.ok_or_else(|| wrong(target, "it is not a camera; `outboard devices` lists the cameras".into()))
}

/// Returns the same camera after it was unplugged, by its name and place. Tries the path of the target first.
pub(super) fn camera_again(target: &str, known: &Properties) -> Result<Node, DeviceError> {
    let is_it =
        |node: &Node| node.is_camera() && known.is_same_camera(&node.capability.card, &node.capability.bus);
    let named = Path::new(target);
    let others = paths().into_iter().filter(|path| path != named);
    let all = target.starts_with('/').then_some(named.to_path_buf()).into_iter().chain(others);
    let found = all.filter_map(|path| open(&path).ok()).find(is_it);
    found.ok_or_else(|| wrong(target, format!("{} is not plugged in", known.card)))
}

/// Returns the output nodes of a target that [`sink`] opens.
fn output_nodes(target: &str) -> Result<impl Iterator<Item = Node>, DeviceError> {
    let is_free = move |node: &Node| {
        node.is_output() && (!target.is_empty() || node.is_loopback() && !node.has_writer())
    };
    Ok(candidates(target)?.into_iter().filter(is_free))
}

/// Returns the paths of the output nodes of a target. A node that cannot be opened has none; [`sink`] returns the error.
pub(super) fn sinks(target: &str) -> Vec<PathBuf> {
    output_nodes(target).into_iter().flatten().map(|node| node.path).collect()
}

/// Returns the advice for a path without a node: the command that makes it.
fn missing_loopback(path: &str) -> String {
    let number = path.strip_prefix("/dev/video").filter(|number| number.parse::<u32>().is_ok());
    let number = number.map(|number| format!(" video_nr={number}")).unwrap_or_default();
    format!(
        "there is no such node: sudo modprobe v4l2loopback{number} exclusive_caps=1; Debian: apt install v4l2loopback-dkms"
    )
}

/// Returns the output node of a target; the first unused node of v4l2loopback if the target is empty.
pub(super) fn sink(target: &str) -> Result<Node, DeviceError> {
    if target.starts_with('/') && !Path::new(target).exists() {
        return Err(os(format!("opening {target}"), Errno::NOENT, Some(&missing_loopback(target))));
    }
    if let Some(node) = output_nodes(target)?.next() {
        return Ok(node);
    }
    Err(wrong(
        target,
        match target.is_empty() {
            true => "there is no unused output node: make one with v4l2loopback (Debian: apt install v4l2loopback-dkms; \
                     modprobe v4l2loopback exclusive_caps=1)"
                .into(),
            false => "it takes no pictures: it is a camera, or another program already writes to it".into(),
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_for_a_missing_node_depends_on_the_side() {
        let problem =
            |result: Result<Node, DeviceError>| result.err().map(|error| error.to_string()).unwrap();
        let path = "/dev/video4711";
        assert!(problem(camera(path)).contains("it is not plugged in"));
        let problem = problem(sink(path));
        assert!(problem.contains("sudo modprobe v4l2loopback video_nr=4711 exclusive_caps=1"), "{problem}");
        assert!(!missing_loopback("/dev/v4l/by-id/x").contains("video_nr"));
    }

    #[test]
    fn a_node_that_cannot_be_opened_has_the_name_of_its_camera() {
        let sysfs = std::env::temp_dir().join(format!("outboard-v4l2-{}", std::process::id()));
        fs::create_dir_all(sysfs.join("video7")).unwrap();
        fs::write(sysfs.join("video7/name"), "UVC Camera: Front\n").unwrap();
        assert_eq!(unopened(&sysfs, Path::new("/dev/video7")), "UVC Camera: Front (video node)");
        assert_eq!(unopened(&sysfs, Path::new("/dev/video8")), "video node");
        fs::remove_dir_all(&sysfs).unwrap();
    }
}
