//! Formats: the meaning of a message's bytes.

use std::fmt;

/// The format of a flow. A typed body starts with a kind byte, so that its geometry can change during the flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// Any bytes. Only the pair that uses them interprets them.
    Bytes,
    /// Frames of input events (`wire::formats::evdev`).
    Evdev,
    /// Six axes and buttons of a 3D mouse (`wire::formats::motion`).
    Motion,
    /// MIDI messages (`wire::formats::midi`).
    Midi,
    /// Bytes of a serial line, its settings and its lines (`devices::serial`).
    Serial,
    /// Pictures (`wire::formats::video`).
    Video,
    /// Actions of a viewer at a shared screen: keys, pointer, requests (`wire::formats::viewer`).
    Viewer,
    /// Settings of a device, such as the brightness of a camera (`wire::formats::controls`).
    Controls,
    /// Reports of a HID device, and requests for them (`wire::formats::hid`).
    Hid,
    /// Requests to a disk, and its answers (`wire::formats::block`).
    Block,
    /// Sound: frames of samples (`wire::formats::audio`).
    Audio,
}

impl Format {
    const NAMES: [(&'static str, Format); 11] = [
        ("bytes", Format::Bytes),
        ("evdev", Format::Evdev),
        ("motion", Format::Motion),
        ("midi", Format::Midi),
        ("serial", Format::Serial),
        ("video", Format::Video),
        ("viewer", Format::Viewer),
        ("controls", Format::Controls),
        ("hid", Format::Hid),
        ("block", Format::Block),
        ("audio", Format::Audio),
    ];

    /// The names of all formats.
    pub fn names() -> Vec<&'static str> {
        Self::NAMES.iter().map(|(name, _)| *name).collect()
    }

    /// Returns the format with this name.
    pub fn from_name(name: &str) -> Option<Format> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| format.clone())
    }

    /// Returns true if a reliable flow of this format carries a state beside its data. While the peer is silent or its
    /// device is absent, the state is neutral; a snapshot restores it.
    pub fn has_state(&self) -> bool {
        matches!(self, Format::Serial | Format::Midi)
    }

    /// The name used in texts and on the wire.
    pub fn name(&self) -> &'static str {
        Self::NAMES.iter().find(|(_, format)| format == self).map_or("bytes", |(name, _)| name)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
