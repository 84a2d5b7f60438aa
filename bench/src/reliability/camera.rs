//! A camera that is shown numbers: vivid of the kernel's, whose whole picture is as bright as the number says, and the node
//! of v4l2loopback at which an application sees it.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use sys::v4l2::controls::{Kind, set_value};
use sys::v4l2::queue::Queue;

/// Columns and rows of a picture in `GREY`, a byte a pixel.
pub(crate) const SIZE: (usize, usize) = (320, 180);
/// Pictures a second: more than numbers, so that each is in one.
pub(crate) const RATE_HZ: u32 = 10;
/// Before a picture stands the node's number of it.
pub(crate) const HEAD_BYTES: usize = 4;
/// Numbers that can be told apart: so many in a row have pictures of their own.
pub(crate) const SHADES: u64 = 128;
/// What a pixel of vivid's white is where the brightness is 0.
const DARKEST: u8 = 126;
/// Buffers that are asked for: as many as v4l2loopback has, or its writer would go on in fewer, and into those that are read.
const BUFFERS: u32 = 8;

/// Controls of vivid's (`V4L2_CID_BRIGHTNESS`, `vivid-ctrls.c`), and values of theirs.
const BRIGHTNESS: u32 = 0x0098_0900;
const TEST_PATTERN: u32 = 0x00f0_f000;
const WHITE: i64 = 6;
const OSD_TEXT: u32 = 0x00f0_f001;
const NO_TEXT: i64 = 2;
const DISCONNECT: u32 = 0x00f0_f041;

/// The pixel of a picture of that number.
pub(crate) fn pixel(number: u64) -> u8 {
    DARKEST + (number % SHADES) as u8
}

/// What the pixel of a whole picture says: a number below [`SHADES`], or none, as before the first.
pub(crate) fn shade(pixel: u8) -> Option<u64> {
    pixel.checked_sub(DARKEST).map(u64::from).filter(|shade| *shade < SHADES)
}

/// The name in `/dev` of the first video node whose directory in `/sys` is such a one.
fn video_node(is_it: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let mut nodes: Vec<PathBuf> =
        fs::read_dir("/sys/class/video4linux").ok()?.flatten().map(|entry| entry.path()).collect();
    nodes.sort();
    nodes
        .into_iter()
        .find(|node| is_it(node))
        .and_then(|node| Some(Path::new("/dev").join(node.file_name()?)))
}

/// vivid's camera.
pub(crate) fn vivid() -> Option<PathBuf> {
    video_node(|node| {
        let name = fs::read_to_string(node.join("name")).unwrap_or_default();
        name.starts_with("vivid") && name.contains("vid-cap")
    })
}

/// A node of v4l2loopback.
pub(crate) fn loopback() -> Option<PathBuf> {
    video_node(|node| node.join("buffers").exists())
}

/// What vivid looks at.
#[derive(Debug)]
pub(crate) struct Scene(File);

impl Scene {
    /// Of vivid's node: a wall that shows no number yet.
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

    /// Has the wall look as a picture does.
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

/// Unplugs vivid. It is back once nobody has it open any more.
pub(crate) fn disconnect(node: &File) -> io::Result<()> {
    set_value(node.as_fd(), DISCONNECT, Kind::Button, 1)
}

/// Who looks at a node.
#[derive(Debug)]
pub(crate) struct View(Queue);

impl View {
    pub(crate) fn new(node: File) -> io::Result<View> {
        // Who writes into a loopback's buffers is another program.
        let queue = Queue::new(node.into(), BUFFERS, false)?;
        queue.start()?;
        Ok(View(queue))
    }

    /// The next picture, after the node's number of it; `WouldBlock` if there is none now.
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
