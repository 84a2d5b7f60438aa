//! A camera that shows numbers: the kernel's vivid, whose picture has the brightness of the number, and the node of
//! v4l2loopback for the application.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use sys::v4l2::controls::{Kind, set_value};
use sys::v4l2::queue::Queue;

/// Columns and rows of a picture in `GREY`, one byte a pixel.
pub(crate) const SIZE: (usize, usize) = (320, 180);
/// Pictures a second. It is higher than the rate of numbers, so that each number is in a picture.
pub(crate) const RATE_HZ: u32 = 10;
/// Bytes of the node's sequence number before a picture.
pub(crate) const HEAD_BYTES: usize = 4;
/// Consecutive numbers with different pictures.
pub(crate) const SHADES: u64 = 128;
/// The value of a white pixel of vivid at brightness 0.
const DARKEST: u8 = 126;
/// Requested buffers: all of v4l2loopback's. With fewer its writer would overwrite buffers that are being read.
const BUFFERS: u32 = 8;

/// Controls of vivid (`V4L2_CID_BRIGHTNESS`, `vivid-ctrls.c`) and their values.
const BRIGHTNESS: u32 = 0x0098_0900;
const TEST_PATTERN: u32 = 0x00f0_f000;
const WHITE: i64 = 6;
const OSD_TEXT: u32 = 0x00f0_f001;
const NO_TEXT: i64 = 2;
const DISCONNECT: u32 = 0x00f0_f041;

/// Returns the pixel value of a number's picture.
pub(crate) fn pixel(number: u64) -> u8 {
    DARKEST + (number % SHADES) as u8
}

/// Returns the number of a pixel value, below [`SHADES`], or `None` before the first number.
pub(crate) fn shade(pixel: u8) -> Option<u64> {
    pixel.checked_sub(DARKEST).map(u64::from).filter(|shade| *shade < SHADES)
}

/// Returns the path of the first video node whose directory in `/sys` matches.
fn video_node(matches: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let mut nodes: Vec<PathBuf> =
        fs::read_dir("/sys/class/video4linux").ok()?.flatten().map(|entry| entry.path()).collect();
    nodes.sort();
    nodes
        .into_iter()
        .find(|node| matches(node))
        .and_then(|node| Some(Path::new("/dev").join(node.file_name()?)))
}

/// Returns the node of vivid's camera.
pub(crate) fn vivid() -> Option<PathBuf> {
    video_node(|node| {
        let name = fs::read_to_string(node.join("name")).unwrap_or_default();
        name.starts_with("vivid") && name.contains("vid-cap")
    })
}

/// Returns a node of v4l2loopback.
pub(crate) fn loopback() -> Option<PathBuf> {
    video_node(|node| node.join("buffers").exists())
}

/// The scene before vivid's camera.
#[derive(Debug)]
pub(crate) struct Scene(File);

impl Scene {
    /// Prepares vivid's node to show no number.
    pub(crate) fn new(node: File) -> io::Result<Scene> {
        let scene = Scene(node);
        scene.set(BRIGHTNESS, Kind::Integer, SHADES as i64)?;
        scene.set(OSD_TEXT, Kind::Menu, NO_TEXT)?;
        scene.set(TEST_PATTERN, Kind::Menu, WHITE)?;
        Ok(scene)
    }

    fn set(&self, control: u32, kind: Kind, value: i64) -> io::Result<()> {
        set_value(self.0.as_fd(), control, kind, value)
    }

    /// Shows the brightness of a picture.
    pub(crate) fn show(&self, picture: &[u8]) -> io::Result<usize> {
        let shade = picture.last().and_then(|pixel| shade(*pixel)).ok_or(io::ErrorKind::InvalidInput)?;
        self.set(BRIGHTNESS, Kind::Integer, shade as i64)?;
        Ok(picture.len())
    }
}

impl AsFd for Scene {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Unplugs vivid. It returns after the last close.
pub(crate) fn disconnect(node: &File) -> io::Result<()> {
    set_value(node.as_fd(), DISCONNECT, Kind::Button, 1)
}

/// A reader of a video node.
#[derive(Debug)]
pub(crate) struct View(Queue);

impl View {
    pub(crate) fn new(node: File) -> io::Result<View> {
        // Another program writes into a loopback's buffers.
        let queue = Queue::new(node.into(), BUFFERS, false)?;
        queue.start()?;
        Ok(View(queue))
    }

    /// Reads the node's sequence number and the next picture. Fails with `WouldBlock` without a picture.
    pub(crate) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        let frame = self.0.take()?.ok_or(io::ErrorKind::WouldBlock)?;
        let (head, pixels) = into.split_at_mut(HEAD_BYTES);
        head.copy_from_slice(&frame.sequence.to_le_bytes());
        Ok(HEAD_BYTES + frame.copy_to(pixels))
    }
}

impl AsFd for View {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.node()
    }
}
