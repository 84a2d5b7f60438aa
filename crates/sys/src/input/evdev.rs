//! Event nodes: what a device is, where it stands, and what it is told (`drivers/input/evdev.c`).

use super::effect::KernelEffect;
use super::{Axis, BITS_COUNT, Bits, Effect, Ids};
use super::{code, ioctl_text};
use crate::ioctl::{READ, WRITE, ioctl_fill, ioctl_number, ioctl_struct, ioctl_value};
use std::io;
use std::os::fd::BorrowedFd;

const GROUP: u8 = b'E';
const GRAB: libc::Ioctl = ioctl_number(WRITE, GROUP, 0x90, size_of::<libc::c_int>());
const ERASE_EFFECT: libc::Ioctl = ioctl_number(WRITE, GROUP, 0x81, size_of::<libc::c_int>());

/// The kinds whose state [`state`] can read, with the number of the request.
const STATES: [(u16, u32); 4] =
    [(code::EV_KEY, 0x18), (code::EV_LED, 0x19), (code::EV_SND, 0x1a), (code::EV_SW, 0x1b)];

/// The device's name (EVIOCGNAME).
pub fn name(node: BorrowedFd<'_>) -> io::Result<String> {
    ioctl_text(node, GROUP, 0x06)
}

/// Where it is plugged in (EVIOCGPHYS); empty if it does not say.
pub fn physical_location(node: BorrowedFd<'_>) -> io::Result<String> {
    absent_is_empty(ioctl_text(node, GROUP, 0x07))
}

/// Its serial number or address (EVIOCGUNIQ); empty if it does not say.
pub fn unique_id(node: BorrowedFd<'_>) -> io::Result<String> {
    absent_is_empty(ioctl_text(node, GROUP, 0x08))
}

fn absent_is_empty(text: io::Result<String>) -> io::Result<String> {
    match text {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(String::new()),
        other => other,
    }
}

/// Bus, maker, product, version (EVIOCGID).
pub fn ids(node: BorrowedFd<'_>) -> io::Result<Ids> {
    let mut ids = Ids::default();
    // SAFETY: EVIOCGID fills a `struct input_id`, which `Ids` is.
    unsafe { ioctl_struct(node, GROUP, READ, 0x02, &mut ids)? };
    Ok(ids)
}

/// `INPUT_PROP_POINTER` and so on (EVIOCGPROP).
pub fn properties(node: BorrowedFd<'_>) -> io::Result<Bits> {
    bits(node, 0x09)
}

/// The kinds of events it has, for kind 0, or else the codes of a kind (EVIOCGBIT).
pub fn codes(node: BorrowedFd<'_>, kind: u16) -> io::Result<Bits> {
    match usize::from(kind) < code::EV_CNT {
        true => bits(node, 0x20 + u32::from(kind)),
        false => Ok(Bits::new()),
    }
}

/// Which keys are down, switches closed, lights or sounds on (EVIOCGKEY, -SW, -LED, -SND); empty for
/// another kind. The kernel takes events of that kind out of the descriptor's queue: they are in the answer.
pub fn state(node: BorrowedFd<'_>, kind: u16) -> io::Result<Bits> {
    match STATES.iter().find(|(known, _)| *known == kind) {
        Some((_, number)) => bits(node, *number),
        None => Ok(Bits::new()),
    }
}

fn bits(node: BorrowedFd<'_>, number: u32) -> io::Result<Bits> {
    const WORDS: usize = BITS_COUNT / libc::c_ulong::BITS as usize;
    let mut words: [libc::c_ulong; WORDS] = [0; WORDS];
    // SAFETY: every caller names a request that fills a bit map of any length.
    unsafe { ioctl_fill(node, GROUP, number, &mut words)? };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Ok(Bits::from_bytes(&bytes))
}

/// An absolute axis, where it stands and its range (EVIOCGABS).
pub fn axis(node: BorrowedFd<'_>, axis: u16) -> io::Result<Axis> {
    if usize::from(axis) >= code::ABS_CNT {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut info = Axis::default();
    // SAFETY: EVIOCGABS fills a `struct input_absinfo`, which `Axis` is.
    unsafe { ioctl_struct(node, GROUP, READ, 0x40 + u32::from(axis), &mut info)? };
    Ok(info)
}

/// What a multi-touch axis stands at in each slot (EVIOCGMTSLOTS).
pub fn slots(node: BorrowedFd<'_>, axis: u16, count: usize) -> io::Result<Vec<i32>> {
    // The axis goes in at the front, the values come out behind it; the length has 14 bits.
    let mut request = vec![0i32; 1 + count.min(4000)];
    request[0] = i32::from(axis);
    // SAFETY: EVIOCGMTSLOTS reads the first word and fills the others, of the length in the request.
    unsafe { ioctl_fill(node, GROUP, 0x0a, &mut request)? };
    request.remove(0);
    Ok(request)
}

/// Delay before a held key repeats and the time between repeats, in milliseconds (EVIOCGREP); `None` if it
/// does not repeat.
pub fn repeat_ms(node: BorrowedFd<'_>) -> io::Result<Option<[u32; 2]>> {
    let mut repeat = [0u32; 2];
    // SAFETY: EVIOCGREP fills two unsigned ints.
    match unsafe { ioctl_struct(node, GROUP, READ, 0x03, &mut repeat) } {
        Ok(_) => Ok(Some(repeat)),
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(None),
        Err(error) => Err(error),
    }
}

/// How many effects it holds at a time (EVIOCGEFFECTS).
pub fn effects_max(node: BorrowedFd<'_>) -> io::Result<u32> {
    let mut count: libc::c_int = 0;
    // SAFETY: EVIOCGEFFECTS fills an int.
    unsafe { ioctl_struct(node, GROUP, READ, 0x84, &mut count)? };
    Ok(u32::try_from(count).unwrap_or(0))
}

/// Takes the device for this descriptor alone, or gives it back (EVIOCGRAB). EBUSY: another has it.
pub fn grab(node: BorrowedFd<'_>, grab: bool) -> io::Result<()> {
    // SAFETY: EVIOCGRAB takes a number that is zero or not.
    unsafe { ioctl_value(node, GRAB, libc::c_ulong::from(grab)) }.map(drop)
}

/// Events read from this descriptor carry the time of the boot clock (EVIOCSCLOCKID, CLOCK_BOOTTIME).
pub fn use_boot_clock(node: BorrowedFd<'_>) -> io::Result<()> {
    let mut clock: libc::c_int = libc::CLOCK_BOOTTIME;
    // SAFETY: EVIOCSCLOCKID reads an int.
    unsafe { ioctl_struct(node, GROUP, WRITE, 0xa0, &mut clock) }.map(drop)
}

/// Gives the device an effect, or a new version of one it has, and returns its number (EVIOCSFF).
pub fn upload_effect(node: BorrowedFd<'_>, effect: &Effect) -> io::Result<i16> {
    let mut kernel = KernelEffect::from(effect);
    // SAFETY: EVIOCSFF reads a `struct ff_effect` and writes its number; its pointer is null, its length 0.
    unsafe { ioctl_struct(node, GROUP, WRITE, 0x80, &mut kernel)? };
    Ok(kernel.id)
}

/// Stops an effect and takes it from the device (EVIOCRMFF).
pub fn erase_effect(node: BorrowedFd<'_>, id: i16) -> io::Result<()> {
    // SAFETY: EVIOCRMFF takes a number.
    unsafe { ioctl_value(node, ERASE_EFFECT, id as libc::c_ulong) }.map(drop)
}
