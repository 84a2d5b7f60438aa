//! Input devices: event nodes (`evdev`), and devices made by programs (`uinput`).
//!
//! Names and numbers are the kernel's: `linux/input-event-codes.h`, `linux/input.h`, `linux/uinput.h`, and its
//! documents `input/event-codes.rst`, `input/multi-touch-protocol.rst`, `input/ff.rst`, `input/uinput.rst`.

mod bits;
pub mod code;
mod effect;
pub mod evdev;
pub mod uinput;

pub use bits::{BITS_COUNT, Bits};
pub use effect::{EFFECT_PARAMETERS_MAX, Effect, effect_parameters};

use crate::ioctl::ioctl_fill;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::BorrowedFd;

/// One event, without its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event {
    /// `EV_KEY`, `EV_REL` and so on.
    pub kind: u16,
    /// The key, axis or light.
    pub code: u16,
    /// 1 for down, 0 for up; or a distance; or a position.
    pub value: i32,
}

impl Event {
    /// An event.
    pub const fn new(kind: u16, code: u16, value: i32) -> Event {
        Event { kind, code, value }
    }

    /// The event that ends a frame.
    pub const REPORT: Event = Event::new(code::EV_SYN, code::SYN_REPORT, 0);
}

/// Longer names, locations and serial numbers are truncated to this many bytes.
const TEXT_BYTES_MAX: usize = 256;

/// Bus, vendor, product and version of a device (`struct input_id`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Ids {
    /// `BUS_USB` and so on.
    pub bus: u16,
    /// The vendor.
    pub vendor: u16,
    /// The product.
    pub product: u16,
    /// Its version.
    pub version: u16,
}

/// An absolute axis (`struct input_absinfo`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Axis {
    /// The current value.
    pub value: i32,
    /// Smallest value.
    pub minimum: i32,
    /// Largest value.
    pub maximum: i32,
    /// The noise that the kernel filters out.
    pub fuzz: i32,
    /// The values around the centre that programs should treat as the centre.
    pub flat: i32,
    /// Units per millimetre, or per radian.
    pub resolution: i32,
}

const EVENT_BYTES: usize = size_of::<libc::input_event>();

/// Reads and appends the pending events, at most 64, and returns their number. Each has its time in nanoseconds
/// on the clock of the descriptor ([`evdev::use_boot_clock`]). Without events a non-blocking descriptor fails
/// with [`io::ErrorKind::WouldBlock`]; a removed device fails with `ENODEV`.
pub fn read_events(descriptor: BorrowedFd<'_>, into: &mut Vec<(u64, Event)>) -> io::Result<usize> {
    let mut bytes = [0; 64 * EVENT_BYTES];
    let length = rustix::io::read(descriptor, &mut bytes)?;
    into.extend(bytes[..length].chunks_exact(EVENT_BYTES).map(parse_event));
    Ok(length / EVENT_BYTES)
}

/// Writes events in one call, so that no other events come between them.
pub fn write_events(descriptor: BorrowedFd<'_>, events: &[Event]) -> io::Result<()> {
    let mut bytes = vec![0; events.len() * EVENT_BYTES];
    for (bytes, event) in bytes.chunks_exact_mut(EVENT_BYTES).zip(events) {
        put(bytes, offset_of!(libc::input_event, type_), event.kind.to_ne_bytes());
        put(bytes, offset_of!(libc::input_event, code), event.code.to_ne_bytes());
        put(bytes, offset_of!(libc::input_event, value), event.value.to_ne_bytes());
    }
    match rustix::io::write(descriptor, &bytes)? {
        written if written == bytes.len() => Ok(()),
        _ => Err(io::Error::from(io::ErrorKind::WriteZero)),
    }
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[at..at + N]);
    value
}

fn parse_event(bytes: &[u8]) -> (u64, Event) {
    // The time is at the front: two words of the kernel's type `unsigned long`.
    const WORD: usize = size_of::<usize>();
    let seconds = usize::from_ne_bytes(get::<WORD>(bytes, 0)) as u64;
    let microseconds = usize::from_ne_bytes(get::<WORD>(bytes, WORD)) as u64;
    let event = Event {
        kind: u16::from_ne_bytes(get(bytes, offset_of!(libc::input_event, type_))),
        code: u16::from_ne_bytes(get(bytes, offset_of!(libc::input_event, code))),
        value: i32::from_ne_bytes(get(bytes, offset_of!(libc::input_event, value))),
    };
    (seconds.saturating_mul(1_000_000_000).saturating_add(microseconds * 1000), event)
}

/// Calls an ioctl of `evdev` or `uinput` that returns a text; removes the final zero.
fn ioctl_text(descriptor: BorrowedFd<'_>, group: u8, number: u32) -> io::Result<String> {
    let mut bytes = [0u8; TEXT_BYTES_MAX];
    // SAFETY: every caller in this module uses a request that fills a byte string of any length.
    unsafe { ioctl_fill(descriptor, group, number, &mut bytes)? };
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ioctl::{READ, WRITE, ioctl_number};
    use std::os::fd::AsFd;

    #[test]
    fn structures_have_the_kernels_size() {
        assert_eq!(size_of::<Axis>(), size_of::<libc::input_absinfo>());
        assert_eq!(size_of::<Ids>(), size_of::<libc::input_id>());
    }

    /// The numbers that a C program prints on x86-64: `EVIOCGID`, `EVIOCGRAB`, `EVIOCGNAME(256)`.
    #[test]
    fn ioctl_numbers_match_the_kernels() {
        assert_eq!(ioctl_number(READ, b'E', 2, size_of::<Ids>()) as u32, 0x8008_4502);
        assert_eq!(ioctl_number(WRITE, b'E', 0x90, 4) as u32, 0x4004_4590);
        assert_eq!(ioctl_number(READ, b'E', 6, 256) as u32, 0x8100_4506);
    }

    #[test]
    fn events_cross_a_pipe_unchanged() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let events = [Event::new(1, 30, 1), Event::new(3, 0, -5), Event::REPORT];
        write_events(write.as_fd(), &events).unwrap();
        let mut got = Vec::new();
        assert_eq!(read_events(read.as_fd(), &mut got).unwrap(), 3);
        assert_eq!(got, events.map(|event| (0, event)));
    }
}
