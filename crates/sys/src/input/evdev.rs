//! Event nodes: their description, their state, and operations on them (`drivers/input/evdev.c`).

use super::effect::KernelEffect;
use super::{Axis, BITS_COUNT, Bits, Effect, Ids};
use super::{code as event_code, ioctl_text};
use crate::ioctl::{READ, WRITE, code, ioctl_fill, ioctl_number, ioctl_struct, ioctl_value};
use std::io;
use std::os::fd::BorrowedFd;

const GROUP: u8 = b'E';
/// Numbers of the axes begin here (EVIOCGABS).
const AXES: u32 = 0x40;
/// Axes of `linux/input-event-codes.h` (ABS_CNT).
const AXES_COUNT: usize = 0x40;
/// Ioctls of an open device that send or read its state; none configures it.
const RUNNING: [u32; 8] = [
    code(READ, GROUP, 0x0a),
    code(READ, GROUP, 0x18),
    code(READ, GROUP, 0x19),
    code(READ, GROUP, 0x1a),
    code(READ, GROUP, 0x1b),
    code(WRITE, GROUP, 0x80),
    code(WRITE, GROUP, 0x81),
    code(WRITE, GROUP, 0x90),
];
/// The ioctls of an open device that is in use: its state, its effects, its grab.
pub const IOCTLS: [u32; RUNNING.len() + AXES_COUNT] = {
    let mut codes = [0; RUNNING.len() + AXES_COUNT];
    let mut at = 0;
    while at < codes.len() {
        codes[at] = match at < RUNNING.len() {
            true => RUNNING[at],
            false => code(READ, GROUP, AXES + (at - RUNNING.len()) as u32),
        };
        at += 1;
    }
    codes
};
const GRAB: libc::Ioctl = ioctl_number(WRITE, GROUP, 0x90, size_of::<libc::c_int>());
const REVOKE: libc::Ioctl = ioctl_number(WRITE, GROUP, 0x91, size_of::<libc::c_int>());
const ERASE_EFFECT: libc::Ioctl = ioctl_number(WRITE, GROUP, 0x81, size_of::<libc::c_int>());

/// The kinds of events that [`state`] can read, with the number of the request.
const STATES: [(u16, u32); 4] = [
    (event_code::EV_KEY, 0x18),
    (event_code::EV_LED, 0x19),
    (event_code::EV_SND, 0x1a),
    (event_code::EV_SW, 0x1b),
];

/// The name of the device (`EVIOCGNAME`).
pub fn name(node: BorrowedFd<'_>) -> io::Result<String> {
    ioctl_text(node, GROUP, 0x06)
}

/// The physical location (`EVIOCGPHYS`); empty if unknown.
pub fn physical_location(node: BorrowedFd<'_>) -> io::Result<String> {
    absent_is_empty(ioctl_text(node, GROUP, 0x07))
}

/// The serial number or address (`EVIOCGUNIQ`); empty if unknown.
pub fn unique_id(node: BorrowedFd<'_>) -> io::Result<String> {
    absent_is_empty(ioctl_text(node, GROUP, 0x08))
}

fn absent_is_empty(text: io::Result<String>) -> io::Result<String> {
    match text {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(String::new()),
        other => other,
    }
}

/// Bus, vendor, product and version (`EVIOCGID`).
pub fn ids(node: BorrowedFd<'_>) -> io::Result<Ids> {
    let mut ids = Ids::default();
    // SAFETY: EVIOCGID fills a `struct input_id`, which is the layout of `Ids`.
    unsafe { ioctl_struct(node, GROUP, READ, 0x02, &mut ids)? };
    Ok(ids)
}

/// The properties: `INPUT_PROP_POINTER` and so on (`EVIOCGPROP`).
pub fn properties(node: BorrowedFd<'_>) -> io::Result<Bits> {
    bits(node, 0x09)
}

/// For kind 0 the kinds of events of the device, otherwise the codes of this kind (`EVIOCGBIT`).
pub fn codes(node: BorrowedFd<'_>, kind: u16) -> io::Result<Bits> {
    if usize::from(kind) < event_code::EV_CNT { bits(node, 0x20 + u32::from(kind)) } else { Ok(Bits::new()) }
}

/// The pressed keys, closed switches, lit lights or active sounds (`EVIOCGKEY`, `-SW`, `-LED`, `-SND`); empty
/// for other kinds. The kernel removes events of that kind from the descriptor's queue, because the result
/// includes them.
pub fn state(node: BorrowedFd<'_>, kind: u16) -> io::Result<Bits> {
    match STATES.iter().find(|(known, _)| *known == kind) {
        Some((_, number)) => bits(node, *number),
        None => Ok(Bits::new()),
    }
}

fn bits(node: BorrowedFd<'_>, number: u32) -> io::Result<Bits> {
    const WORDS: usize = BITS_COUNT / libc::c_ulong::BITS as usize;
    let mut words: [libc::c_ulong; WORDS] = [0; WORDS];
    // SAFETY: every caller uses a request that fills a bit map of any length.
    unsafe { ioctl_fill(node, GROUP, number, &mut words)? };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Ok(Bits::from_bytes(&bytes))
}

/// The value and the range of an absolute axis (`EVIOCGABS`).
pub fn axis(node: BorrowedFd<'_>, axis: u16) -> io::Result<Axis> {
    if usize::from(axis) >= event_code::ABS_CNT {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut info = Axis::default();
    // SAFETY: EVIOCGABS fills a `struct input_absinfo`, which is the layout of `Axis`.
    unsafe { ioctl_struct(node, GROUP, READ, AXES + u32::from(axis), &mut info)? };
    Ok(info)
}

/// The value of a multi-touch axis in each slot (`EVIOCGMTSLOTS`).
pub fn slots(node: BorrowedFd<'_>, axis: u16, count: usize) -> io::Result<Vec<i32>> {
    // The first word is the axis, the values follow; the length has 14 bits.
    let mut request = vec![0i32; 1 + count.min(4000)];
    request[0] = i32::from(axis);
    // SAFETY: EVIOCGMTSLOTS reads the first word and fills the others, up to the length in the request.
    unsafe { ioctl_fill(node, GROUP, 0x0a, &mut request)? };
    request.remove(0);
    Ok(request)
}

/// The delay before a held key repeats and the time between repeats, in milliseconds (`EVIOCGREP`); `None`
/// without repetition.
pub fn repeat_ms(node: BorrowedFd<'_>) -> io::Result<Option<[u32; 2]>> {
    let mut repeat = [0u32; 2];
    // SAFETY: EVIOCGREP fills two unsigned ints.
    match unsafe { ioctl_struct(node, GROUP, READ, 0x03, &mut repeat) } {
        Ok(_) => Ok(Some(repeat)),
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The number of effects that the device can hold (`EVIOCGEFFECTS`).
pub fn effects_max(node: BorrowedFd<'_>) -> io::Result<u32> {
    let mut count: libc::c_int = 0;
    // SAFETY: EVIOCGEFFECTS fills an int.
    unsafe { ioctl_struct(node, GROUP, READ, 0x84, &mut count)? };
    Ok(u32::try_from(count).unwrap_or(0))
}

/// Grabs the device for this descriptor alone, or releases it (`EVIOCGRAB`). Fails with `EBUSY` if another
/// descriptor has grabbed it.
pub fn grab(node: BorrowedFd<'_>, grab: bool) -> io::Result<()> {
    // SAFETY: EVIOCGRAB takes a number.
    unsafe { ioctl_value(node, GRAB, libc::c_ulong::from(grab)) }.map(drop)
}

/// Ends the access of this descriptor and of all its duplicates, in every process (`EVIOCREVOKE`): reads, writes and ioctls
/// fail with `ENODEV` from now on. The device itself stays.
pub fn revoke(node: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: EVIOCREVOKE takes a number, which must be 0.
    unsafe { ioctl_value(node, REVOKE, 0) }.map(drop)
}

/// Makes events of this descriptor use the boot clock (`EVIOCSCLOCKID`, `CLOCK_BOOTTIME`).
pub fn use_boot_clock(node: BorrowedFd<'_>) -> io::Result<()> {
    let mut clock: libc::c_int = libc::CLOCK_BOOTTIME;
    // SAFETY: EVIOCSCLOCKID reads an int.
    unsafe { ioctl_struct(node, GROUP, WRITE, 0xa0, &mut clock) }.map(drop)
}

/// Uploads a new or changed effect and returns its number (`EVIOCSFF`).
pub fn upload_effect(node: BorrowedFd<'_>, effect: &Effect) -> io::Result<i16> {
    let mut kernel = KernelEffect::from(effect);
    // SAFETY: EVIOCSFF reads a `struct ff_effect` and writes its number; its pointer is null and its length 0.
    unsafe { ioctl_struct(node, GROUP, WRITE, 0x80, &mut kernel)? };
    Ok(kernel.id)
}

/// Stops and erases an effect (`EVIOCRMFF`).
pub fn erase_effect(node: BorrowedFd<'_>, id: i16) -> io::Result<()> {
    // SAFETY: EVIOCRMFF takes a number.
    unsafe { ioctl_value(node, ERASE_EFFECT, id as libc::c_ulong) }.map(drop)
}
