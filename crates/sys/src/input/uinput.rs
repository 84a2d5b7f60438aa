//! Input devices made by programs (`drivers/input/misc/uinput.c`).

use super::effect::KernelEffect;
use super::{Axis, Effect, Ids};
use super::{code as event_code, ioctl_text};
use crate::ioctl::{READ, WRITE, answer, code, ioctl_number, ioctl_struct, ioctl_value};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

const GROUP: u8 = b'U';
/// The ioctls of a created device that answer its applications; none creates or changes it.
pub const IOCTLS: [u32; 4] = [
    code(READ | WRITE, GROUP, 200),
    code(WRITE, GROUP, 201),
    code(READ | WRITE, GROUP, 202),
    code(WRITE, GROUP, 203),
];
const INT: usize = size_of::<libc::c_int>();
const CREATE: libc::Ioctl = ioctl_number(0, GROUP, 1, 0);
const DESTROY: libc::Ioctl = ioctl_number(0, GROUP, 2, 0);
const SET_PHYS: libc::Ioctl = ioctl_number(WRITE, GROUP, 108, size_of::<usize>());

/// Longer names are truncated to this many bytes (`UINPUT_MAX_NAME_SIZE` less the final zero).
pub const NAME_BYTES_MAX: usize = 79;

#[repr(C)]
struct Setup {
    ids: Ids,
    name: [u8; NAME_BYTES_MAX + 1],
    effects_max: u32,
}

#[repr(C)]
struct AxisSetup {
    code: u16,
    axis: Axis,
}

#[repr(C)]
struct Upload {
    request: u32,
    result: i32,
    effect: KernelEffect,
    old: KernelEffect,
}

#[repr(C)]
struct Erase {
    request: u32,
    result: i32,
    effect: u32,
}

/// Sets the name, the ids, and the number of effects (`UI_DEV_SETUP`).
pub fn set_up(device: BorrowedFd<'_>, name: &str, ids: Ids, effects_max: u32) -> io::Result<()> {
    let mut setup = Setup { ids, name: [0; NAME_BYTES_MAX + 1], effects_max };
    let length = name.floor_char_boundary(NAME_BYTES_MAX);
    setup.name[..length].copy_from_slice(&name.as_bytes()[..length]);
    // SAFETY: UI_DEV_SETUP reads a `struct uinput_setup`, which is the layout of `Setup`.
    unsafe { ioctl_struct(device, GROUP, WRITE, 3, &mut setup) }.map(drop)
}

/// Sets up an absolute axis (`UI_ABS_SETUP`).
pub fn set_axis(device: BorrowedFd<'_>, code: u16, axis: Axis) -> io::Result<()> {
    let mut setup = AxisSetup { code, axis };
    // SAFETY: UI_ABS_SETUP reads a `struct uinput_abs_setup`, which is the layout of `AxisSetup`.
    unsafe { ioctl_struct(device, GROUP, WRITE, 4, &mut setup) }.map(drop)
}

/// Enables a kind of event (`UI_SET_EVBIT`).
pub fn enable_kind(device: BorrowedFd<'_>, kind: u16) -> io::Result<()> {
    set_bit(device, 100, kind)
}

/// Enables a code of a kind (`UI_SET_KEYBIT` and others). Does nothing for kinds without codes.
pub fn enable_code(device: BorrowedFd<'_>, kind: u16, code: u16) -> io::Result<()> {
    let number = match kind {
        event_code::EV_KEY => 101,
        event_code::EV_REL => 102,
        event_code::EV_ABS => 103,
        event_code::EV_MSC => 104,
        event_code::EV_LED => 105,
        event_code::EV_SND => 106,
        event_code::EV_FF => 107,
        event_code::EV_SW => 109,
        _ => return Ok(()),
    };
    set_bit(device, number, code)
}

/// Enables a property (`UI_SET_PROPBIT`).
pub fn enable_property(device: BorrowedFd<'_>, property: u16) -> io::Result<()> {
    set_bit(device, 110, property)
}

fn set_bit(device: BorrowedFd<'_>, number: u32, bit: u16) -> io::Result<()> {
    // SAFETY: the requests 100 to 107, 109 and 110 take a number.
    unsafe { ioctl_value(device, ioctl_number(WRITE, GROUP, number, INT), bit.into()) }.map(drop)
}

/// Sets the physical location (`UI_SET_PHYS`).
pub fn set_physical_location(device: BorrowedFd<'_>, location: &CStr) -> io::Result<()> {
    // SAFETY: UI_SET_PHYS copies a string that ends with a zero, and retains no pointer to it.
    let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), SET_PHYS, location.as_ptr()) };
    answer(result).map(drop)
}

/// Makes the device after its setup; then its event node exists (`UI_DEV_CREATE`).
pub fn create(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: UI_DEV_CREATE takes no argument.
    unsafe { ioctl_value(device, CREATE, 0) }.map(drop)
}

/// Removes the device, as if it was unplugged (`UI_DEV_DESTROY`).
pub fn destroy(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: UI_DEV_DESTROY takes no argument.
    unsafe { ioctl_value(device, DESTROY, 0) }.map(drop)
}

/// The name under `/sys/devices/virtual/input`, such as `input7` (`UI_GET_SYSNAME`).
pub fn system_name(device: BorrowedFd<'_>) -> io::Result<String> {
    ioctl_text(device, GROUP, 44)
}

/// Answers an application that waits in `EVIOCSFF`. `decide` gets the effect, with the number that the kernel
/// assigned (`None` for an unknown kind), and returns 0 or a negative errno (`UI_BEGIN_FF_UPLOAD`,
/// `UI_END_FF_UPLOAD`).
pub fn answer_upload(
    device: BorrowedFd<'_>,
    request: u32,
    decide: impl FnOnce(Option<Effect>) -> i32,
) -> io::Result<()> {
    let (effect, old) = (KernelEffect::default(), KernelEffect::default());
    let mut upload = Upload { request, result: 0, effect, old };
    // SAFETY: both requests take a `struct uinput_ff_upload`, which is the layout of `Upload`.
    unsafe { ioctl_struct(device, GROUP, READ | WRITE, 200, &mut upload)? };
    upload.result = decide(upload.effect.effect());
    // SAFETY: as above.
    unsafe { ioctl_struct(device, GROUP, WRITE, 201, &mut upload) }.map(drop)
}

/// Answers an application that waits in `EVIOCRMFF`, or closes the node, with success; returns the effect's
/// number (`UI_BEGIN_FF_ERASE`, `UI_END_FF_ERASE`).
pub fn answer_erase(device: BorrowedFd<'_>, request: u32) -> io::Result<u32> {
    let mut erase = Erase { request, result: 0, effect: 0 };
    // SAFETY: both requests take a `struct uinput_ff_erase`, which is the layout of `Erase`.
    unsafe { ioctl_struct(device, GROUP, READ | WRITE, 202, &mut erase)? };
    let effect = erase.effect;
    // SAFETY: as above.
    unsafe { ioctl_struct(device, GROUP, WRITE, 203, &mut erase)? };
    Ok(effect)
}
