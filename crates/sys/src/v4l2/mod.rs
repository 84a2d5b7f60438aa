//! Cameras and what takes pictures as one gives them (V4L2): what a node is, its pictures' layout and rate, and
//! what happens to it. Controls are in [`controls`], the buffers that frames come in are in [`queue`].
//!
//! The kernel's own numbers and names: `linux/videodev2.h`, and its document `userspace-api/media/v4l`.

pub mod controls;
mod layout;
pub mod queue;

use crate::ioctl::{READ, WRITE, ioctl_number, ioctl_struct};
use layout::*;
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;

const GROUP: u8 = b'V';
/// Most answers that are asked for in a list, so that a driver without an end does not hold anybody up.
const LIST_MAX: u32 = 256;

/// A bit of [`Capability::capabilities`]: frames can be captured (`V4L2_CAP_VIDEO_CAPTURE`).
pub const CAPTURE: u32 = 1;
/// A bit of [`Capability::capabilities`]: frames can be put out (`V4L2_CAP_VIDEO_OUTPUT`).
pub const OUTPUT: u32 = 2;
/// A bit of [`Capability::capabilities`]: frames come in buffers (`V4L2_CAP_STREAMING`).
pub const STREAMING: u32 = 0x0400_0000;
/// `V4L2_CAP_DEVICE_CAPS`.
const DEVICE_CAPS: u32 = 0x8000_0000;

/// Into the host or out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// A camera.
    Capture,
    /// What shows or hands on pictures.
    Output,
}

impl Direction {
    fn number(self) -> u32 {
        match self {
            Direction::Capture => BUFFER_TYPE_CAPTURE,
            Direction::Output => BUFFER_TYPE_OUTPUT,
        }
    }
}

/// Who drives a node and what it can do (`VIDIOC_QUERYCAP`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// The driver.
    pub driver: String,
    /// The device's name.
    pub card: String,
    /// Where it is plugged in.
    pub bus: String,
    /// What this node can do now: [`CAPTURE`] and so on.
    pub capabilities: u32,
}

/// How pictures lie in memory (`struct v4l2_pix_format`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PixelLayout {
    /// Pixels across.
    pub width: u32,
    /// Pixels down.
    pub height: u32,
    /// What a pixel is.
    pub fourcc: [u8; 4],
    /// Bytes from one row to the next.
    pub stride: u32,
    /// Bytes of a picture, at most.
    pub size_bytes: u32,
}

/// The sizes that pictures can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizes {
    /// This one: across and down.
    One(u32, u32),
    /// Any between these, in steps.
    Range {
        /// Across: smallest, largest, step.
        across: [u32; 3],
        /// Down: smallest, largest, step.
        down: [u32; 3],
    },
}

/// What a driver tells of by itself (`VIDIOC_DQEVENT`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Somebody changed this control.
    Control(u32),
    /// The pictures have another size now.
    SourceChange,
    /// Something else.
    Other(u32),
}

/// `V4L2_EVENT_CTRL`.
const EVENT_CONTROL: u32 = 3;
/// `V4L2_EVENT_SOURCE_CHANGE`.
const EVENT_SOURCE_CHANGE: u32 = 5;

/// Calls an ioctl of V4L2 again if a signal interrupted it.
///
/// # Safety
/// As [`ioctl_struct`].
unsafe fn ask<T>(node: BorrowedFd<'_>, direction: u32, number: u32, value: &mut T) -> io::Result<()> {
    loop {
        // SAFETY: the caller vouches for it.
        match unsafe { ioctl_struct(node, GROUP, direction, number, value) } {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            answer => return answer.map(drop),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Answers of numbered questions, until the driver has no more.
fn list<T>(mut question: impl FnMut(u32) -> io::Result<T>) -> io::Result<Vec<T>> {
    let mut answers = Vec::new();
    for index in 0..LIST_MAX {
        match question(index) {
            Ok(answer) => answers.push(answer),
            Err(error) if is(&error, Errno::INVAL) || is(&error, Errno::NOTTY) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(answers)
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// What a node is. ENOTTY: none of V4L2's.
pub fn capability(node: BorrowedFd<'_>) -> io::Result<Capability> {
    let mut answer = KernelCapability::zeroed();
    // SAFETY: VIDIOC_QUERYCAP fills a `struct v4l2_capability`.
    unsafe { ask(node, READ, 0, &mut answer)? };
    let capabilities = match answer.capabilities & DEVICE_CAPS != 0 {
        true => answer.device_caps,
        false => answer.capabilities,
    };
    Ok(Capability {
        driver: text(&answer.driver),
        card: text(&answer.card),
        bus: text(&answer.bus_info),
        capabilities,
    })
}

/// The pixel formats it has, the driver's favourite first (`VIDIOC_ENUM_FMT`).
pub fn formats(node: BorrowedFd<'_>, direction: Direction) -> io::Result<Vec<[u8; 4]>> {
    list(|index| {
        let mut answer = KernelFormatName { index, kind: direction.number(), ..Plain::zeroed() };
        // SAFETY: VIDIOC_ENUM_FMT reads and writes a `struct v4l2_fmtdesc`.
        unsafe { ask(node, READ | WRITE, 2, &mut answer)? };
        Ok(answer.fourcc)
    })
}

/// The sizes it has with these pixels (`VIDIOC_ENUM_FRAMESIZES`); none if it does not say.
pub fn sizes(node: BorrowedFd<'_>, fourcc: [u8; 4]) -> io::Result<Vec<Sizes>> {
    list(|index| {
        let mut answer = KernelSize { index, fourcc, ..Plain::zeroed() };
        // SAFETY: VIDIOC_ENUM_FRAMESIZES reads and writes a `struct v4l2_frmsizeenum`.
        unsafe { ask(node, READ | WRITE, 74, &mut answer)? };
        let [a, b, c, d, e, f] = answer.words;
        Ok(match answer.kind {
            1 => Sizes::One(a, b),
            _ => Sizes::Range { across: [a, b, c], down: [d, e, f] },
        })
    })
}

/// The times between frames that it has with such pictures, as fractions of seconds, or the shortest and the
/// longest (`VIDIOC_ENUM_FRAMEINTERVALS`); none if it does not say.
pub fn intervals(
    node: BorrowedFd<'_>,
    fourcc: [u8; 4],
    (width, height): (u32, u32),
) -> io::Result<Vec<(u32, u32)>> {
    let answers = list(|index| {
        let mut answer = KernelInterval { index, fourcc, width, height, ..Plain::zeroed() };
        // SAFETY: VIDIOC_ENUM_FRAMEINTERVALS reads and writes a `struct v4l2_frmivalenum`.
        unsafe { ask(node, READ | WRITE, 75, &mut answer)? };
        let count = if answer.kind == 1 { 1 } else { 2 };
        Ok(answer.intervals.into_iter().take(count).map(|[numerator, denominator]| (numerator, denominator)))
    })?;
    Ok(answers.into_iter().flatten().collect())
}

fn kernel_format(direction: Direction) -> KernelFormat {
    KernelFormat { kind: direction.number(), ..Plain::zeroed() }
}

fn layout_of(pixels: &KernelPixels) -> PixelLayout {
    let KernelPixels { width, height, fourcc, stride, size_bytes, .. } = *pixels;
    PixelLayout { width, height, fourcc, stride, size_bytes }
}

/// How its pictures lie now (`VIDIOC_G_FMT`).
pub fn format(node: BorrowedFd<'_>, direction: Direction) -> io::Result<PixelLayout> {
    let mut format = kernel_format(direction);
    // SAFETY: VIDIOC_G_FMT reads and writes a `struct v4l2_format`; of these kinds it holds no pointer.
    unsafe { ask(node, READ | WRITE, 4, &mut format)? };
    Ok(layout_of(&format.pixels))
}

/// Asks for pictures that lie so; the driver answers with what comes nearest (`VIDIOC_S_FMT`). A stride of 0
/// leaves that to it. EBUSY: frames flow.
pub fn set_format(
    node: BorrowedFd<'_>,
    direction: Direction,
    wanted: &PixelLayout,
) -> io::Result<PixelLayout> {
    /// `V4L2_FIELD_NONE`: whole pictures.
    const PROGRESSIVE: u32 = 1;
    let mut format = kernel_format(direction);
    let PixelLayout { width, height, fourcc, stride, size_bytes } = *wanted;
    format.pixels =
        KernelPixels { width, height, fourcc, stride, size_bytes, field: PROGRESSIVE, ..format.pixels };
    // SAFETY: VIDIOC_S_FMT reads and writes a `struct v4l2_format`; of these kinds it holds no pointer.
    unsafe { ask(node, READ | WRITE, 5, &mut format)? };
    Ok(layout_of(&format.pixels))
}

/// The time from one frame to the next, as a fraction of seconds; 0 as a denominator if it has no fixed rate
/// (`VIDIOC_G_PARM`).
pub fn interval(node: BorrowedFd<'_>, direction: Direction) -> io::Result<(u32, u32)> {
    let mut stream = KernelStream { kind: direction.number(), ..Plain::zeroed() };
    // SAFETY: VIDIOC_G_PARM reads and writes a `struct v4l2_streamparm`.
    unsafe { ask(node, READ | WRITE, 21, &mut stream)? };
    Ok(stream.interval.into())
}

/// Asks for a time between frames; the driver answers with what comes nearest (`VIDIOC_S_PARM`).
pub fn set_interval(
    node: BorrowedFd<'_>,
    direction: Direction,
    interval: (u32, u32),
) -> io::Result<(u32, u32)> {
    let mut stream = KernelStream { kind: direction.number(), interval: interval.into(), ..Plain::zeroed() };
    // SAFETY: VIDIOC_S_PARM reads and writes a `struct v4l2_streamparm`.
    unsafe { ask(node, READ | WRITE, 22, &mut stream)? };
    Ok(stream.interval.into())
}

/// Wants to be told of these changes (`VIDIOC_SUBSCRIBE_EVENT`); EINVAL or ENOTTY if the driver does not tell.
pub fn subscribe(node: BorrowedFd<'_>, event: Event) -> io::Result<()> {
    let (kind, id) = match event {
        Event::Control(id) => (EVENT_CONTROL, id),
        Event::SourceChange => (EVENT_SOURCE_CHANGE, 0),
        Event::Other(kind) => (kind, 0),
    };
    let mut subscription = KernelSubscription { kind, id, ..Plain::zeroed() };
    // SAFETY: VIDIOC_SUBSCRIBE_EVENT reads a `struct v4l2_event_subscription`.
    unsafe { ask(node, WRITE, 90, &mut subscription) }
}

/// The next thing it tells; `None` if there is nothing now (`VIDIOC_DQEVENT` on a non-blocking descriptor).
pub fn next_event(node: BorrowedFd<'_>) -> io::Result<Option<Event>> {
    let mut event = KernelEvent::zeroed();
    // SAFETY: VIDIOC_DQEVENT fills a `struct v4l2_event`.
    match unsafe { ask(node, READ, 89, &mut event) } {
        Ok(()) => Ok(Some(match event.kind {
            EVENT_CONTROL => Event::Control(event.id),
            EVENT_SOURCE_CHANGE => Event::SourceChange,
            other => Event::Other(other),
        })),
        // ENOENT: no event waits, or none was asked for.
        Err(error) if [Errno::NOENT, Errno::AGAIN, Errno::NOTTY].iter().any(|none| is(&error, *none)) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

const STREAM_ON: libc::Ioctl = ioctl_number(WRITE, GROUP, 18, size_of::<libc::c_int>());
const STREAM_OFF: libc::Ioctl = ioctl_number(WRITE, GROUP, 19, size_of::<libc::c_int>());

/// Lets frames flow, or stops them (`VIDIOC_STREAMON`, `VIDIOC_STREAMOFF`).
pub fn stream(node: BorrowedFd<'_>, direction: Direction, on: bool) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let kind = direction.number() as libc::c_int;
    let request = if on { STREAM_ON } else { STREAM_OFF };
    // SAFETY: both requests read an int.
    crate::ioctl::answer(unsafe { libc::ioctl(node.as_raw_fd(), request, &raw const kind) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    /// Numbers as a C program prints them on x86-64.
    #[test]
    fn ioctl_numbers_are_the_kernels() {
        fn request<T>(direction: u32, number: u32) -> u32 {
            ioctl_number(direction, GROUP, number, size_of::<T>()) as u32
        }
        assert_eq!(request::<KernelCapability>(READ, 0), 0x8068_5600);
        assert_eq!(request::<KernelFormatName>(READ | WRITE, 2), 0xc040_5602);
        assert_eq!(request::<KernelFormat>(READ | WRITE, 5), 0xc0d0_5605);
        assert_eq!(request::<KernelRequest>(READ | WRITE, 8), 0xc014_5608);
        assert_eq!(request::<KernelBuffer>(READ | WRITE, 17), 0xc058_5611);
        assert_eq!(STREAM_ON as u32, 0x4004_5612);
        assert_eq!(STREAM_OFF as u32, 0x4004_5613);
        assert_eq!(request::<KernelStream>(READ | WRITE, 22), 0xc0cc_5616);
        assert_eq!(request::<KernelSize>(READ | WRITE, 74), 0xc02c_564a);
        assert_eq!(request::<KernelInterval>(READ | WRITE, 75), 0xc034_564b);
        assert_eq!(request::<KernelWideControls>(READ | WRITE, 72), 0xc020_5648);
        assert_eq!(request::<KernelQuery>(READ | WRITE, 103), 0xc0e8_5667);
        assert_eq!(request::<KernelMenu>(READ | WRITE, 37), 0xc02c_5625);
        assert_eq!(request::<KernelSubscription>(WRITE, 90), 0x4020_565a);
        assert_eq!(request::<KernelEvent>(READ, 89), 0x8088_5659);
        assert_eq!(request::<KernelControl>(READ | WRITE, 28), 0xc008_561c);
    }

    #[test]
    fn what_is_no_camera_says_so() {
        let file = File::open("/dev/null").unwrap();
        let node = file.as_fd();
        assert!(is(&capability(node).unwrap_err(), Errno::NOTTY));
        assert!(formats(node, Direction::Capture).unwrap().is_empty());
        assert!(format(node, Direction::Output).is_err());
        assert!(stream(node, Direction::Capture, true).is_err());
        assert_eq!(next_event(node).unwrap(), None);
    }
}
