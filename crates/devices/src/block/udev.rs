//! udev's facts about block devices. udev gives a disk its links, and reads the marks of its medium, a moment after the kernel has found them.

use rustix::fs::{major, minor};
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use sys::poller::Poller;
use sys::watch::DirectoryWatch;

/// udev's links, by model and serial number.
pub(super) const LINKS: &str = "/dev/disk/by-id";
/// The facts that mark a medium.
const MARKS: [&str; 2] = ["E:ID_PART_TABLE_UUID=", "E:ID_FS_UUID="];
/// The longest wait for the facts about a disk that was just plugged in.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between two looks at the queue of udev.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The files of udev.
pub(super) struct Udev<'a>(&'a Path);

impl Udev<'static> {
    /// Those of this host.
    pub(super) fn here() -> Udev<'static> {
        Udev(Path::new("/run/udev"))
    }
}

impl Udev<'_> {
    fn facts(&self, device: u64) -> PathBuf {
        self.0.join(format!("data/b{}:{}", major(device), minor(device)))
    }

    /// Returns the marks of the medium of a disk.
    pub(super) fn marks(&self, device: u64) -> String {
        marks(&fs::read_to_string(self.facts(device)).unwrap_or_default())
    }

    fn is_running(&self) -> bool {
        self.0.join("control").exists()
    }

    /// Returns whether udev still handles events: its facts may be those of the medium before.
    pub(super) fn is_busy(&self) -> bool {
        self.is_running() && self.0.join("queue").exists()
    }

    /// Waits until udev has facts about a disk and handles no event, until the timeout at most. A card reader has facts without a card, too.
    pub(super) fn wait(&self, device: u64, timeout: Duration) {
        let end = Instant::now() + timeout;
        let facts = self.facts(device);
        let watch = facts.parent().and_then(|directory| DirectoryWatch::new(directory).ok());
        let (Some(watch), Ok(mut poller)) = (watch, Poller::new()) else { return };
        while self.is_running() && (!facts.exists() || self.is_busy()) {
            poller.register(watch.as_fd(), true, false);
            let left = end.saturating_duration_since(Instant::now());
            // The watch does not see the queue.
            if left.is_zero() || poller.wait(Some(left.min(LOOK_INTERVAL))).is_err() {
                return;
            }
            watch.take();
        }
    }
}

/// Returns the marks in the facts about a disk.
fn marks(facts: &str) -> String {
    let mark = |name| facts.lines().find_map(|line| line.strip_prefix(name));
    MARKS.into_iter().filter_map(mark).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::makedev;

    #[test]
    fn the_facts_of_udev_have_the_marks_of_a_medium() {
        let facts = "S:disk/by-id/usb-Reader-0:0\nE:ID_PART_TABLE_UUID=0815\nE:ID_FS_UUID=47-11\nE:ID_FS_UUID_ENC=x\n";
        assert_eq!(marks(facts), "0815 47-11");
    }

    #[test]
    fn the_facts_about_a_new_disk_are_waited_for() {
        let root = std::env::temp_dir().join(format!("outboard-udev-{}", std::process::id()));
        let (udev, device) = (Udev(&root), makedev(8, 16));
        // A host without udev.
        udev.wait(device, Duration::from_secs(600));
        fs::create_dir_all(root.join("data")).unwrap();
        udev.wait(device, Duration::from_secs(600));
        fs::write(root.join("queue"), "").unwrap();
        assert!(!udev.is_busy() && udev.marks(device).is_empty());
        fs::write(root.join("control"), "").unwrap();
        assert!(udev.is_busy());
        // A new disk, and another card in its drive.
        for mark in ["47-11", "47-12"] {
            fs::write(root.join("queue"), "").unwrap();
            let (began, timeout) = (Instant::now(), Duration::from_millis(20));
            udev.wait(device, timeout);
            assert!(began.elapsed() >= timeout, "{mark}");
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| {
                    udev.wait(device, Duration::from_secs(600));
                    udev.marks(device)
                });
                fs::write(root.join("new"), format!("E:ID_FS_UUID={mark}\n")).unwrap();
                fs::rename(root.join("new"), udev.facts(device)).unwrap();
                fs::remove_file(root.join("queue")).unwrap();
                assert_eq!(waits.join().unwrap(), mark);
            });
        }
        fs::remove_dir_all(root).unwrap();
    }
}
