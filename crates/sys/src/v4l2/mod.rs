//! Video devices (V4L2): capabilities, picture layout, frame rate and events. [`controls`] has the controls,
//! [`queue`] the buffers of frames.
//!
//! Names and numbers are the kernel's: `linux/videodev2.h`, and its document `userspace-api/media/v4l`.

pub mod controls;
mod layout;
pub mod queue;

use crate::ioctl::{READ, WRITE, code, ioctl_number, ioctl_struct};
use layout::*;
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;

const GROUP: u8 = b'V';
const BOTH: u32 = READ | WRITE;
/// The ioctls of an open camera or loopback node: formats, buffers, controls and events.
pub const IOCTLS: [u32; 20] = [
    code(READ, GROUP, 0),
    code(BOTH, GROUP, 2),
    code(BOTH, GROUP, 4),
    code(BOTH, GROUP, 5),
    code(BOTH, GROUP, 8),
    code(BOTH, GROUP, 9),
    code(BOTH, GROUP, 15),
    code(BOTH, GROUP, 17),
    code(WRITE, GROUP, 18),
    code(WRITE, GROUP, 19),
    code(BOTH, GROUP, 21),
    code(BOTH, GROUP, 22),
    code(BOTH, GROUP, 27),
    code(BOTH, GROUP, 28),
    code(BOTH, GROUP, 37),
    code(BOTH, GROUP, 71),
    code(BOTH, GROUP, 72),
    code(READ, GROUP, 89),
    code(WRITE, GROUP, 90),
    code(BOTH, GROUP, 103),
];
/// The most entries requested of a list, as a faulty driver may never end it.
const LIST_MAX: u32 = 256;

/// A bit of [`Capability::capabilities`]: captures frames (`V4L2_CAP_VIDEO_CAPTURE`).
pub const CAPTURE: u32 = 1;
/// A bit of [`Capability::capabilities`]: outputs frames (`V4L2_CAP_VIDEO_OUTPUT`).
pub const OUTPUT: u32 = 2;
/// A bit of [`Capability::capabilities`]: frames are passed in buffers (`V4L2_CAP_STREAMING`).
pub const STREAMING: u32 = 0x0400_0000;
/// `V4L2_CAP_DEVICE_CAPS`.
const DEVICE_CAPS: u32 = 0x8000_0000;

/// The direction of pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// A camera.
    Capture,
    /// A display or a loopback device.
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

/// The driver and the capabilities of a node (`VIDIOC_QUERYCAP`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// The driver.
    pub driver: String,
    /// The device's name.
    pub card: String,
    /// Its physical location.
    pub bus: String,
    /// The current capabilities of this node: [`CAPTURE`] and so on.
    pub capabilities: u32,
}

/// The layout of pictures in memory (`struct v4l2_pix_format`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PixelLayout {
    /// Pixels across.
    pub width: u32,
    /// Pixels down.
    pub height: u32,
    /// The pixel format.
    pub fourcc: [u8; 4],
    /// Bytes between the starts of two rows.
    pub stride: u32,
    /// The largest size of a picture in bytes.
    pub size_bytes: u32,
}

/// An event of the driver (`VIDIOC_DQEVENT`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The value of this control changed.
    Control(u32),
    /// The size of the pictures changed.
    SourceChange,
    /// Another event.
    Other(u32),
}

/// `V4L2_EVENT_CTRL`.
const EVENT_CONTROL: u32 = 3;
/// `V4L2_EVENT_SOURCE_CHANGE`.
const EVENT_SOURCE_CHANGE: u32 = 5;

/// Calls a V4L2 ioctl; repeats it after interruption by a signal.
///
/// # Safety
/// As [`ioctl_struct`].
unsafe fn ask<T>(node: BorrowedFd<'_>, direction: u32, number: u32, value: &mut T) -> io::Result<()> {
    loop {
        // SAFETY: the caller guarantees it.
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

/// Calls `question` with increasing numbers until the driver has no more entries.
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

/// The capability of a node. Fails with `ENOTTY` if it is not a V4L2 device.
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

/// The pixel formats, the driver's preference first (`VIDIOC_ENUM_FMT`).
pub fn formats(node: BorrowedFd<'_>, direction: Direction) -> io::Result<Vec<[u8; 4]>> {
    list(|index| {
        let mut answer = KernelFormatName { index, kind: direction.number(), ..Plain::zeroed() };
        // SAFETY: VIDIOC_ENUM_FMT reads and writes a `struct v4l2_fmtdesc`.
        unsafe { ask(node, READ | WRITE, 2, &mut answer)? };
        Ok(answer.fourcc)
    })
}

fn kernel_format(direction: Direction) -> KernelFormat {
    KernelFormat { kind: direction.number(), ..Plain::zeroed() }
}

fn layout_of(pixels: &KernelPixels) -> PixelLayout {
    let KernelPixels { width, height, fourcc, stride, size_bytes, .. } = *pixels;
    PixelLayout { width, height, fourcc, stride, size_bytes }
}

/// The current layout of pictures (`VIDIOC_G_FMT`).
pub fn format(node: BorrowedFd<'_>, direction: Direction) -> io::Result<PixelLayout> {
    let mut format = kernel_format(direction);
    // SAFETY: VIDIOC_G_FMT reads and writes a `struct v4l2_format`; for these types it holds no pointer.
    unsafe { ask(node, READ | WRITE, 4, &mut format)? };
    Ok(layout_of(&format.pixels))
}

/// Requests a layout of pictures; returns the nearest one that the driver supports (`VIDIOC_S_FMT`). With a
/// stride of 0 the driver chooses it. Fails with `EBUSY` while streaming.
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
    // SAFETY: VIDIOC_S_FMT reads and writes a `struct v4l2_format`; for these types it holds no pointer.
    unsafe { ask(node, READ | WRITE, 5, &mut format)? };
    Ok(layout_of(&format.pixels))
}

/// The time between frames as a fraction of seconds; the denominator is 0 without a fixed rate
/// (`VIDIOC_G_PARM`).
pub fn interval(node: BorrowedFd<'_>, direction: Direction) -> io::Result<(u32, u32)> {
    let mut stream = KernelStream { kind: direction.number(), ..Plain::zeroed() };
    // SAFETY: VIDIOC_G_PARM reads and writes a `struct v4l2_streamparm`.
    unsafe { ask(node, READ | WRITE, 21, &mut stream)? };
    Ok(stream.interval.into())
}

/// Requests a time between frames; returns the nearest one that the driver supports (`VIDIOC_S_PARM`).
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

/// Subscribes to an event (`VIDIOC_SUBSCRIBE_EVENT`). Fails with `EINVAL` or `ENOTTY` if the driver lacks it.
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

/// Returns the next event; `None` if none is pending (`VIDIOC_DQEVENT` on a non-blocking descriptor).
pub fn next_event(node: BorrowedFd<'_>) -> io::Result<Option<Event>> {
    let mut event = KernelEvent::zeroed();
    // SAFETY: VIDIOC_DQEVENT fills a `struct v4l2_event`.
    match unsafe { ask(node, READ, 89, &mut event) } {
        Ok(()) => Ok(Some(match event.kind {
            EVENT_CONTROL => Event::Control(event.id),
            EVENT_SOURCE_CHANGE => Event::SourceChange,
            other => Event::Other(other),
        })),
        // ENOENT: no event is pending, or none was subscribed.
        Err(error) if [Errno::NOENT, Errno::AGAIN, Errno::NOTTY].iter().any(|none| is(&error, *none)) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

const STREAM_ON: libc::Ioctl = ioctl_number(WRITE, GROUP, 18, size_of::<libc::c_int>());
const STREAM_OFF: libc::Ioctl = ioctl_number(WRITE, GROUP, 19, size_of::<libc::c_int>());

/// Starts or stops streaming (`VIDIOC_STREAMON`, `VIDIOC_STREAMOFF`).
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

    /// The numbers that a C program prints on x86-64.
    #[test]
    fn ioctl_numbers_match_the_kernels() {
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
        assert_eq!(request::<KernelWideControls>(READ | WRITE, 72), 0xc020_5648);
        assert_eq!(request::<KernelQuery>(READ | WRITE, 103), 0xc0e8_5667);
        assert_eq!(request::<KernelMenu>(READ | WRITE, 37), 0xc02c_5625);
        assert_eq!(request::<KernelSubscription>(WRITE, 90), 0x4020_565a);
        assert_eq!(request::<KernelEvent>(READ, 89), 0x8088_5659);
        assert_eq!(request::<KernelControl>(READ | WRITE, 28), 0xc008_561c);
    }

    #[test]
    fn a_node_that_is_not_a_camera_is_refused() {
        let file = File::open("/dev/null").unwrap();
        let node = file.as_fd();
        assert!(is(&capability(node).unwrap_err(), Errno::NOTTY));
        assert!(formats(node, Direction::Capture).unwrap().is_empty());
        assert!(format(node, Direction::Output).is_err());
        assert!(stream(node, Direction::Capture, true).is_err());
        assert_eq!(next_event(node).unwrap(), None);
    }
}
