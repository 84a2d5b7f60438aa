//! The properties of a camera, sent to the other host: its name, its picture format and its controls.
//!
//! The layout is described in docs/reference/formats-controls.md. The parser does not trust its input.

use std::io;
use std::os::fd::BorrowedFd;
use sys::v4l2::controls::{self, Control, Kind};
use wire::formats::controls::{SETTINGS_MAX, Setting};
use wire::formats::video::{self, Geometry, Header};
use wire::{Reader, WireError, Writer};

/// The version of the layout.
const LAYOUT: u8 = 1;
/// The most bytes of a name or a menu item.
const TEXT_BYTES_MAX: usize = 63;
/// The most items of a menu.
const MENU_MAX: usize = 64;
/// The most bytes of all properties. Controls that do not fit are omitted.
const BYTES_MAX: usize = 60 << 10;

/// A control of the camera.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CameraControl {
    pub(super) info: Control,
    /// The value at the time of the query.
    pub(super) value: i64,
    /// The items of a menu: value and text.
    pub(super) menu: Vec<(i64, String)>,
}

/// The name, picture format and controls of a camera.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties {
    /// The camera's name.
    pub(crate) card: String,
    /// The place where it is connected.
    pub(super) bus: String,
    /// The format of its pictures, unless the user selects another.
    pub(crate) geometry: Geometry,
    /// Its controls, sorted by identifier.
    pub(crate) controls: Vec<CameraControl>,
}

impl Properties {
    /// Queries the controls of a node. Its pictures have this geometry.
    pub(super) fn query(node: BorrowedFd<'_>, card: &str, bus: &str, geometry: Geometry) -> io::Result<Self> {
        let truncated = |text: &str| {
            let text = text.replace('\0', "");
            text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_string()
        };
        let (card, bus) = (truncated(card), truncated(bus));
        let mut properties = Properties { card, bus, geometry, controls: Vec::new() };
        let mut bytes = properties.to_bytes().len();
        for mut info in controls::controls(node)?.into_iter().take(SETTINGS_MAX) {
            let has_menu = matches!(info.kind, Kind::Menu | Kind::IntegerMenu);
            let menu = if has_menu { controls::menu(node, &info)? } else { Vec::new() };
            // A write-only control has no value.
            let value = controls::value(node, info.id, info.kind).unwrap_or(info.default);
            info.name = truncated(&info.name);
            info.maximum = info.maximum.max(info.minimum);
            let items = menu.into_iter().take(MENU_MAX);
            let menu = items.map(|(value, text)| (value, truncated(&text))).collect();
            let control = CameraControl { info, value, menu };
            bytes += control.to_bytes().len();
            if bytes > BYTES_MAX {
                break;
            }
            properties.controls.push(control);
        }
        Ok(properties)
    }

    /// Parses the layout.
    pub fn parse(bytes: &[u8]) -> Result<Properties, WireError> {
        let mut reader = Reader::new(bytes);
        match reader.u8("layout version")? {
            LAYOUT => {}
            other => return Err(WireError::Value { what: "layout version", value: other.into() }),
        }
        let (card, bus) = (parse_text(&mut reader, "card")?, parse_text(&mut reader, "bus")?);
        let Header { kind, geometry } = Header::parse(reader.bytes("picture", Header::BYTES)?)?;
        if kind != video::Kind::Frame {
            return Err(WireError::Value { what: "kind of picture", value: kind as u64 });
        }
        let count = reader.count("controls", SETTINGS_MAX)?;
        let mut controls: Vec<CameraControl> = Vec::with_capacity(count);
        for _ in 0..count {
            let control = CameraControl::parse(&mut reader)?;
            // Sorted and unique, so that the encoding is canonical.
            if controls.last().is_some_and(|last| last.info.id >= control.info.id) {
                return Err(WireError::Value { what: "control", value: control.info.id.into() });
            }
            controls.push(control);
        }
        reader.end("properties of a camera")?;
        Ok(Properties { card, bus, geometry, controls })
    }

    /// Encodes the layout.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u8(LAYOUT).text(&self.card).text(&self.bus).raw(&Header::frame(self.geometry).emit());
        writer.u16(self.controls.len() as u16);
        self.controls.iter().for_each(|control| _ = writer.raw(&control.to_bytes()));
        writer.finish()
    }

    /// Returns whether a camera with this name and place is the same one.
    pub(super) fn is_same_camera(&self, card: &str, bus: &str) -> bool {
        self.card == card && self.bus == bus
    }
}

impl CameraControl {
    fn parse(reader: &mut Reader<'_>) -> Result<CameraControl, WireError> {
        let id = reader.u32("control")?;
        let number = reader.u8("kind of control")?;
        let known = Kind::ALL.iter().find(|(_, known)| *known == u32::from(number));
        let wrong = WireError::Value { what: "kind of control", value: number.into() };
        let (kind, _) = *known.ok_or(wrong)?;
        let name = parse_text(reader, "name of a control")?;
        let mut value = || reader.u64("value of a control").map(u64::cast_signed);
        let (minimum, maximum, step) = (value()?, value()?, value()?.cast_unsigned());
        let (default, value) = (value()?, value()?);
        if minimum > maximum {
            return Err(WireError::Value { what: "smallest value of a control", value: id.into() });
        }
        let mut menu = Vec::new();
        for _ in 0..reader.count("menu", MENU_MAX)? {
            let value = reader.u64("value of a menu item")?.cast_signed();
            menu.push((value, parse_text(reader, "text of a menu item")?));
        }
        let info = Control { id, kind, name, minimum, maximum, step, default };
        Ok(CameraControl { info, value, menu })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let Control { id, kind, name, minimum, maximum, step, default } = &self.info;
        let number = Kind::ALL.iter().find(|(known, _)| known == kind).map_or(0, |(_, number)| *number);
        let mut writer = Writer::new();
        writer.u32(*id).u8(number as u8).text(name);
        for value in [*minimum, *maximum, step.cast_signed(), *default, self.value] {
            writer.u64(value.cast_unsigned());
        }
        writer.u16(self.menu.len() as u16);
        for (value, text) in &self.menu {
            writer.u64(value.cast_unsigned()).text(text);
        }
        writer.finish()
    }

    /// Returns the name as in `v4l2-ctl`: `Exposure, Auto` becomes `exposure_auto`.
    pub(super) fn name(&self) -> String {
        identifier(&self.info.name)
    }

    /// Parses a value that a user has written for this control.
    pub(super) fn setting(&self, text: &str) -> Result<Setting, String> {
        let Control { id, kind, minimum, maximum, .. } = self.info;
        let name = self.name();
        let menu_item = || {
            let is_same = |item: &str| identifier(item) == identifier(text);
            self.menu.iter().find(|(_, item)| is_same(item)).map(|(value, _)| *value)
        };
        let number = || match text.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).ok(),
            None => text.parse::<i64>().ok(),
        };
        let value = match (kind, text) {
            (Kind::Boolean, "true" | "on") => Some(1),
            (Kind::Boolean, "false" | "off") => Some(0),
            (Kind::Menu | Kind::IntegerMenu, _) => menu_item().or_else(number),
            _ => number(),
        };
        let has_item = |value| self.menu.is_empty() || self.menu.iter().any(|(known, _)| *known == value);
        match value {
            Some(value) if kind == Kind::Button => Ok(Setting { id, value }),
            Some(value) if kind == Kind::Bitmask && value >= 0 => Ok(Setting { id, value }),
            Some(value) if (minimum..=maximum).contains(&value) && has_item(value) => {
                Ok(Setting { id, value })
            }
            _ => Err(format!("`{name}` takes {}, not `{text}`", self.range())),
        }
    }

    /// Describes the valid values to the user.
    fn range(&self) -> String {
        let Control { kind, minimum, maximum, step, .. } = &self.info;
        match kind {
            Kind::Boolean => "on or off".into(),
            Kind::Button => "any number, which presses it".into(),
            Kind::Bitmask => "bits, such as 0x3".into(),
            Kind::Menu | Kind::IntegerMenu => {
                let items: Vec<_> =
                    self.menu.iter().map(|(value, text)| format!("{value} ({text})")).collect();
                format!("one of {}", items.join(", "))
            }
            _ if *step > 1 => format!("{minimum} to {maximum} in steps of {step}"),
            _ => format!("{minimum} to {maximum}"),
        }
    }

    /// Describes the control with a current value to the user, in one line.
    pub(super) fn describe(&self, value: i64) -> String {
        let default = self.info.default;
        format!("{}={value}  ({}; default {default})", self.name(), self.range())
    }
}

/// Converts a name to lower case letters and digits, with underscores between words.
fn identifier(name: &str) -> String {
    let words = name.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("_")
}

/// Parses a user's settings: `brightness=128`, separated by commas or line ends.
pub(super) fn settings(controls: &[CameraControl], text: &str) -> Result<Vec<Setting>, String> {
    let text = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).unwrap_or(text);
    let words = text.split([',', '\n']).map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| setting(controls, word)).collect()
}

fn setting(controls: &[CameraControl], word: &str) -> Result<Setting, String> {
    let (name, value) = word.split_once('=').ok_or_else(|| format!("`{word}`: write NAME=VALUE"))?;
    let known = controls.iter().find(|control| control.name() == identifier(name));
    let control = known.ok_or_else(|| {
        let names: Vec<_> = controls.iter().map(CameraControl::name).collect();
        match names.is_empty() {
            true => "this camera has no controls".to_string(),
            false => format!("there is no control `{name}`; its controls are: {}", names.join(", ")),
        }
    })?;
    control.setting(value)
}

fn parse_text(reader: &mut Reader<'_>, what: &'static str) -> Result<String, WireError> {
    let text = reader.text(what, TEXT_BYTES_MAX)?;
    if text.contains('\0') { Err(WireError::Text { what }) } else { Ok(text.into()) }
}
