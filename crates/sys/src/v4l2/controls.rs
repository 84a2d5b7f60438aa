//! Controls of a camera: brightness, exposure and so on. Lists, reads and sets them.

use super::layout::*;
use super::{LIST_MAX, ask, is, text};
use crate::ioctl::{READ, WRITE};
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;

/// The type of a control (`enum v4l2_ctrl_type`); other types are not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number.
    Integer,
    /// 0 or 1.
    Boolean,
    /// One of several words.
    Menu,
    /// An action; any value triggers it.
    Button,
    /// A number of 64 bits.
    Wide,
    /// Several bits.
    Bitmask,
    /// One of several numbers.
    IntegerMenu,
}

impl Kind {
    /// All types with the kernel's numbers.
    pub const ALL: [(Kind, u32); 7] = [
        (Kind::Integer, 1),
        (Kind::Boolean, 2),
        (Kind::Menu, 3),
        (Kind::Button, 4),
        (Kind::Wide, 5),
        (Kind::Bitmask, 8),
        (Kind::IntegerMenu, 9),
    ];
}

/// A control that can be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// Its number: `V4L2_CID_BRIGHTNESS` and so on.
    pub id: u32,
    /// Its type.
    pub kind: Kind,
    /// Its name for users.
    pub name: String,
    /// Smallest value.
    pub minimum: i64,
    /// Largest value.
    pub maximum: i64,
    /// The difference between two valid values.
    pub step: u64,
    /// The default value.
    pub default: i64,
}

/// `V4L2_CTRL_FLAG_DISABLED`, `_READ_ONLY`.
const UNUSABLE: u32 = 0x1 | 0x4;
/// `V4L2_CTRL_FLAG_NEXT_CTRL`.
const NEXT: u32 = 0x8000_0000;

/// The controls of a node that can be set (`VIDIOC_QUERY_EXT_CTRL`).
pub fn controls(node: BorrowedFd<'_>) -> io::Result<Vec<Control>> {
    let mut found = Vec::new();
    let mut last = 0;
    for _ in 0..LIST_MAX {
        let mut query = KernelQuery { id: last | NEXT, ..Plain::zeroed() };
        // SAFETY: VIDIOC_QUERY_EXT_CTRL reads and writes a `struct v4l2_query_ext_ctrl`.
        match unsafe { ask(node, READ | WRITE, 103, &mut query) } {
            Ok(()) => {}
            Err(error) if is(&error, Errno::INVAL) || is(&error, Errno::NOTTY) => break,
            Err(error) => return Err(error),
        }
        // A faulty driver may repeat a control; stop there.
        if query.id <= last {
            break;
        }
        last = query.id;
        let kind = Kind::ALL.iter().find(|(_, number)| *number == query.kind);
        if let Some((kind, _)) = kind.filter(|_| query.flags & UNUSABLE == 0 && query.dimension_count == 0) {
            found.push(Control {
                id: query.id,
                kind: *kind,
                name: text(&query.name),
                minimum: query.minimum,
                maximum: query.maximum,
                step: query.step,
                default: query.default,
            });
        }
    }
    Ok(found)
}

/// The entries of a menu, words or numbers, each with its value (`VIDIOC_QUERYMENU`).
pub fn menu(node: BorrowedFd<'_>, control: &Control) -> io::Result<Vec<(i64, String)>> {
    let first = u32::try_from(control.minimum).unwrap_or(0);
    let last = u32::try_from(control.maximum).unwrap_or(0).min(first.saturating_add(LIST_MAX));
    let is_number = control.kind == Kind::IntegerMenu;
    // A menu may have gaps.
    let entries = (first..=last).filter_map(|index| {
        let mut entry = KernelMenu { id: control.id, index, ..Plain::zeroed() };
        // SAFETY: VIDIOC_QUERYMENU reads and writes a `struct v4l2_querymenu`.
        match unsafe { ask(node, READ | WRITE, 37, &mut entry) } {
            Err(error) if is(&error, Errno::INVAL) => None,
            Err(error) => Some(Err(error)),
            Ok(()) => {
                let name = entry.name;
                let mut number = [0; 8];
                number.copy_from_slice(&name[..8]);
                let word = if is_number { i64::from_ne_bytes(number).to_string() } else { text(&name) };
                Some(Ok((i64::from(index), word)))
            }
        }
    });
    entries.collect()
}

/// The value of a control (`VIDIOC_G_CTRL`; `VIDIOC_G_EXT_CTRLS` for a wide one). Fails with `EACCES` if it can
/// only be set.
pub fn value(node: BorrowedFd<'_>, id: u32, kind: Kind) -> io::Result<i64> {
    match kind {
        Kind::Wide => wide(node, 71, id, 0),
        _ => {
            let mut control = KernelControl { id, value: 0 };
            // SAFETY: VIDIOC_G_CTRL reads and writes a `struct v4l2_control`.
            unsafe { ask(node, READ | WRITE, 27, &mut control)? };
            // A bit mask is unsigned.
            Ok(match kind {
                Kind::Bitmask => control.value.cast_unsigned().into(),
                _ => control.value.into(),
            })
        }
    }
}

/// Sets a control (`VIDIOC_S_CTRL`; `VIDIOC_S_EXT_CTRLS` for a wide one). Drivers use the nearest valid value
/// or fail with `ERANGE`. `EBUSY` or `EACCES` mean that it cannot be set now.
pub fn set_value(node: BorrowedFd<'_>, id: u32, kind: Kind, value: i64) -> io::Result<()> {
    match kind {
        Kind::Wide => wide(node, 72, id, value).map(drop),
        _ => {
            let fits = i32::try_from(value).or_else(|_| u32::try_from(value).map(u32::cast_signed));
            let value = fits.map_err(|_| io::Error::from(Errno::RANGE))?;
            let mut control = KernelControl { id, value };
            // SAFETY: VIDIOC_S_CTRL reads and writes a `struct v4l2_control`.
            unsafe { ask(node, READ | WRITE, 28, &mut control) }
        }
    }
}

/// Calls the request with this number for one control of 64 bits.
fn wide(node: BorrowedFd<'_>, number: u32, id: u32, value: i64) -> io::Result<i64> {
    let mut control = KernelWideControl { id, size: 0, reserved: 0, value };
    let mut controls = KernelWideControls {
        which: 0,
        count: 1,
        error_index: 0,
        request: 0,
        reserved: 0,
        controls: &raw mut control,
    };
    // SAFETY: both requests read and write a `struct v4l2_ext_controls` and the counted number of `struct
    // v4l2_ext_control`: the one that it points to, which lives through the call.
    unsafe { ask(node, READ | WRITE, number, &mut controls)? };
    Ok(control.value)
}

/// Returns the control with this name, such as `sustain_framerate`, if the node has it.
pub fn named(node: BorrowedFd<'_>, name: &str) -> io::Result<Option<Control>> {
    Ok(controls(node)?.into_iter().find(|control| control.name == name))
}
