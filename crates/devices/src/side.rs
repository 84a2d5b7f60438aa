//! The two sides of a driver that are classes of their own.

use contract::{DeviceError, Role};

/// Devices and their stand-ins that are classes of their own, which may be devices, too; of several stand-ins the default comes first.
const ONE_SIDED: &[(&str, &str)] = &[
    ("evdev", "uinput"),
    ("serial", "pty"),
    ("serial", "tty"),
    ("x11", "window"),
    ("wayland", "window"),
    ("v4l2", "pipewire"),
    ("block", "nbd"),
    ("iscsi", "nbd"),
    ("stdin", "stdout"),
];

/// The error for a class that does not have this side.
pub(crate) fn wrong_side(class: &'static str, role: Role) -> DeviceError {
    DeviceError::Role { class, role, other: counterpart(class) }
}

/// The class of the other side, for a class with one side.
pub(crate) fn counterpart(class: &str) -> &'static str {
    let of = |(device, application): &(&'static str, &'static str)| match class {
        class if class == *device => Some(*application),
        class if class == *application => Some(*device),
        _ => None,
    };
    ONE_SIDED.iter().find_map(of).unwrap_or_default()
}
