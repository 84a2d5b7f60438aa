//! Kinds of devices, as users expect them.

use crate::{Description, Format};
use std::fmt;

/// The kind of a device, derived from its description. A kind never depends on a name that a peer chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Types: letters, digits, Enter.
    Keyboard,
    /// Relative motion and buttons.
    Mouse,
    /// Six axes and buttons.
    Mouse3d,
    /// A gamepad, joystick or wheel.
    Gamepad,
    /// Fingers on a pad.
    Touchpad,
    /// Fingers on a screen.
    Touchscreen,
    /// A pen.
    Tablet,
    /// Media keys or a power button, but no key that types.
    Buttons,
    /// A switch, such as that of a lid.
    Switch,
    /// A FIDO key.
    SecurityKey,
    /// A HID device of several kinds, or of none that is known here.
    Hid,
    /// Any other input device, such as an accelerometer.
    Input,
    /// Pictures of a camera or a film.
    Camera,
    /// Pictures of a screen.
    Screen,
    /// Notes: a keyboard of music, a synthesizer.
    Midi,
    /// A serial line.
    Serial,
    /// A disk.
    Disk,
    /// Sound.
    Audio,
    /// Settings of a device, without its data.
    Controls,
    /// Bytes without a meaning of their own.
    Bytes,
}

impl Kind {
    const NAMES: [(&'static str, Kind); 20] = [
        ("keyboard", Kind::Keyboard),
        ("mouse", Kind::Mouse),
        ("3d-mouse", Kind::Mouse3d),
        ("gamepad", Kind::Gamepad),
        ("touchpad", Kind::Touchpad),
        ("touchscreen", Kind::Touchscreen),
        ("tablet", Kind::Tablet),
        ("buttons", Kind::Buttons),
        ("switch", Kind::Switch),
        ("security-key", Kind::SecurityKey),
        ("hid", Kind::Hid),
        ("input", Kind::Input),
        ("camera", Kind::Camera),
        ("screen", Kind::Screen),
        ("midi", Kind::Midi),
        ("serial", Kind::Serial),
        ("disk", Kind::Disk),
        ("audio", Kind::Audio),
        ("controls", Kind::Controls),
        ("bytes", Kind::Bytes),
    ];

    /// The names of all kinds.
    pub fn names() -> [&'static str; 20] {
        Self::NAMES.map(|(name, _)| name)
    }

    /// Returns the kind with this name.
    pub fn from_name(name: &str) -> Option<Kind> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    /// The name on the command line and in files.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind)| *kind == self).map_or("input", |(name, _)| name)
    }

    /// Returns the kind of a device whose class defines none: from the formats of its flows. A device with a flow of
    /// input events or HID reports is a keyboard, because nothing limits their keys.
    pub fn of_flows(description: &Description) -> Kind {
        let has = |format: Format| description.flows.iter().any(|flow| flow.format == format);
        match () {
            () if has(Format::Evdev) || has(Format::Hid) => Kind::Keyboard,
            () if has(Format::Viewer) => Kind::Screen,
            () if has(Format::Video) => Kind::Camera,
            () if has(Format::Motion) => Kind::Mouse3d,
            () if has(Format::Midi) => Kind::Midi,
            () if has(Format::Serial) => Kind::Serial,
            () if has(Format::Block) => Kind::Disk,
            () if has(Format::Audio) => Kind::Audio,
            () if has(Format::Controls) => Kind::Controls,
            () => Kind::Bytes,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A device has another kind than before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name} of {address}: the kind of this device was `{before}` and is `{now}` now, so it is not attached; if the \
     change is intended, attach it with `--expect {now}` (`expect = \"{now}\"` in a run file)"
)]
pub struct KindChange {
    /// The device's name at its host.
    pub name: String,
    /// Address of the device host, with the port.
    pub address: String,
    /// The remembered kind.
    pub before: String,
    /// The kind of its description.
    pub now: Kind,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        for (name, kind) in Kind::NAMES {
            assert_eq!((Kind::from_name(name), kind.name()), (Some(kind), name));
        }
        assert_eq!(Kind::from_name("wheel"), None);
    }
}
