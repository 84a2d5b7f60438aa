//! Brightness, exposure and so on: what a node has, where it stands, and setting it.

use super::layout::*;
use super::{LIST_MAX, ask, is, text};
use crate::ioctl::{READ, WRITE};
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;

/// What values a control takes (`enum v4l2_ctrl_type`); others are not spoken of here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number.
    Integer,
    /// 0 or 1.
    Boolean,
    /// One of several words.
    Menu,
    /// Something to be done: any value does it.
    Button,
    /// A number of 64 bits.
    Wide,
    /// Several bits.
    Bitmask,
    /// One of several numbers.
    IntegerMenu,
}

impl Kind {
    /// With the kernel's numbers.
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
    /// Its number, `V4L2_CID_BRIGHTNESS` and so on.
    pub id: u32,
    /// What values it takes.
    pub kind: Kind,
    /// What people call it.
    pub name: String,
    /// Smallest value.
    pub minimum: i64,
    /// Largest value.
    pub maximum: i64,
    /// From one value to the next.
    pub step: u64,
    /// Where it stands at first.
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
        // A driver that does not go on would never end.
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

/// The words, or the numbers, of a menu, each with its value (`VIDIOC_QUERYMENU`).
pub fn menu(node: BorrowedFd<'_>, control: &Control) -> io::Result<Vec<(i64, String)>> {
    let first = u32::try_from(control.minimum).unwrap_or(0);
    let last = u32::try_from(control.maximum).unwrap_or(0).min(first.saturating_add(LIST_MAX));
    let is_number = control.kind == Kind::IntegerMenu;
    // There may be holes in a menu.
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

/// Where a control stands (`VIDIOC_G_CTRL`, of a wide one `VIDIOC_G_EXT_CTRLS`). EACCES: it can only be set.
pub fn value(node: BorrowedFd<'_>, id: u32, kind: Kind) -> io::Result<i64> {
    match kind {
        Kind::Wide => wide(node, 71, id, 0),
        _ => {
            let mut control = KernelControl { id, value: 0 };
            // SAFETY: VIDIOC_G_CTRL reads and writes a `struct v4l2_control`.
            unsafe { ask(node, READ | WRITE, 27, &mut control)? };
            // Bits are no sign.
            Ok(match kind {
                Kind::Bitmask => control.value.cast_unsigned().into(),
                _ => control.value.into(),
            })
        }
    }
}

/// Sets a control (`VIDIOC_S_CTRL`, of a wide one `VIDIOC_S_EXT_CTRLS`); drivers take the nearest value they
/// have, or refuse with ERANGE. EBUSY or EACCES: not now.
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

/// One control of 64 bits, by the request of this number.
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
    // SAFETY: both requests read and write a `struct v4l2_ext_controls` and as many `struct v4l2_ext_control`
    // as it counts: the one that it points at, which lives through the call.
    unsafe { ask(node, READ | WRITE, number, &mut controls)? };
    Ok(control.value)
}

/// The control of this name, if the node has one: `sustain_framerate` and so on.
pub fn named(node: BorrowedFd<'_>, name: &str) -> io::Result<Option<Control>> {
    Ok(controls(node)?.into_iter().find(|control| control.name == name))
}
