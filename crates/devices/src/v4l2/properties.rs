//! What a camera is, as the other host is told: its name, its pictures, its controls. The layout is in
//! docs/formats-controls.md; it comes from a stranger and is checked before anything is made of it.

use std::io;
use std::os::fd::BorrowedFd;
use sys::v4l2::controls::{self, Control, Kind};
use wire::formats::controls::{SETTINGS_MAX, Setting};
use wire::formats::video::{self, Geometry, Header};
use wire::{Reader, WireError, Writer};

/// Version of the layout.
const LAYOUT: u8 = 1;
/// Bytes of a name or a word, at most.
const TEXT_BYTES_MAX: usize = 63;
/// Words of a menu, at most.
const MENU_MAX: usize = 64;
/// Bytes of all; controls that do not fit are left out.
const BYTES_MAX: usize = 60 << 10;

/// A control of the camera.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Knob {
    pub(super) control: Control,
    /// Where it stood when it was asked.
    pub(super) value: i64,
    /// The words of a menu.
    pub(super) menu: Vec<(i64, String)>,
}

/// A camera's name, pictures and controls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties {
    /// Its name.
    pub(super) card: String,
    /// Where it is plugged in.
    pub(super) bus: String,
    /// Its pictures, as they are when nothing else is said.
    pub(super) geometry: Geometry,
    /// Its controls, in rising order of their numbers.
    pub(super) knobs: Vec<Knob>,
}

impl Properties {
    /// Asks a node, whose pictures are of this geometry.
    pub(super) fn of(node: BorrowedFd<'_>, card: &str, bus: &str, geometry: Geometry) -> io::Result<Self> {
        let cut = |text: &str| {
            let text = text.replace('\0', "");
            text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_string()
        };
        let mut properties = Properties { card: cut(card), bus: cut(bus), geometry, knobs: Vec::new() };
        let mut bytes = properties.to_bytes().len();
        for mut control in controls::controls(node)?.into_iter().take(SETTINGS_MAX) {
            let has_menu = matches!(control.kind, Kind::Menu | Kind::IntegerMenu);
            let menu = if has_menu { controls::menu(node, &control)? } else { Vec::new() };
            // What can only be set stands nowhere.
            let value = controls::value(node, control.id, control.kind).unwrap_or(control.default);
            control.name = cut(&control.name);
            control.maximum = control.maximum.max(control.minimum);
            let menu = menu.into_iter().take(MENU_MAX).map(|(value, word)| (value, cut(&word))).collect();
            let knob = Knob { control, value, menu };
            bytes += knob.to_bytes().len();
            if bytes > BYTES_MAX {
                break;
            }
            properties.knobs.push(knob);
        }
        Ok(properties)
    }

    /// Reads the layout.
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
        let mut knobs: Vec<Knob> = Vec::with_capacity(count);
        for _ in 0..count {
            let knob = Knob::parse(&mut reader)?;
            // In order and each once, so that there is one layout for each camera.
            if knobs.last().is_some_and(|last| last.control.id >= knob.control.id) {
                return Err(WireError::Value { what: "control", value: knob.control.id.into() });
            }
            knobs.push(knob);
        }
        reader.end("properties of a camera")?;
        Ok(Properties { card, bus, geometry, knobs })
    }

    /// The bytes of [`Properties::parse`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u8(LAYOUT).text(&self.card).text(&self.bus).raw(&Header::frame(self.geometry).emit());
        writer.u16(self.knobs.len() as u16);
        self.knobs.iter().for_each(|knob| _ = writer.raw(&knob.to_bytes()));
        writer.finish()
    }

    /// Whether another is the same camera, as far as it can be told.
    pub(super) fn is_same_camera(&self, card: &str, bus: &str) -> bool {
        self.card == card && self.bus == bus
    }
}

impl Knob {
    fn parse(reader: &mut Reader<'_>) -> Result<Knob, WireError> {
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
            let value = reader.u64("value of a word")?.cast_signed();
            menu.push((value, parse_text(reader, "word of a menu")?));
        }
        Ok(Knob { control: Control { id, kind, name, minimum, maximum, step, default }, value, menu })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let Control { id, kind, name, minimum, maximum, step, default } = &self.control;
        let number = Kind::ALL.iter().find(|(known, _)| known == kind).map_or(0, |(_, number)| *number);
        let mut writer = Writer::new();
        writer.u32(*id).u8(number as u8).text(name);
        for value in [*minimum, *maximum, step.cast_signed(), *default, self.value] {
            writer.u64(value.cast_unsigned());
        }
        writer.u16(self.menu.len() as u16);
        for (value, word) in &self.menu {
            writer.u64(value.cast_unsigned()).text(word);
        }
        writer.finish()
    }

    /// What a user calls it: `Exposure, Auto` is `exposure_auto`, as in `v4l2-ctl`.
    pub(super) fn name(&self) -> String {
        plain(&self.control.name)
    }

    /// The setting that a user means by this value.
    pub(super) fn setting(&self, text: &str) -> Result<Setting, String> {
        let Control { id, kind, minimum, maximum, .. } = self.control;
        let name = self.name();
        let of_word =
            || self.menu.iter().find(|(_, word)| plain(word) == plain(text)).map(|(value, _)| *value);
        let number = || match text.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).ok(),
            None => text.parse::<i64>().ok(),
        };
        let value = match (kind, text) {
            (Kind::Boolean, "true" | "on") => Some(1),
            (Kind::Boolean, "false" | "off") => Some(0),
            (Kind::Menu | Kind::IntegerMenu, _) => of_word().or_else(number),
            _ => number(),
        };
        let has_word = |value| self.menu.is_empty() || self.menu.iter().any(|(known, _)| *known == value);
        match value {
            Some(value) if kind == Kind::Button => Ok(Setting { id, value }),
            Some(value) if kind == Kind::Bitmask && value >= 0 => Ok(Setting { id, value }),
            Some(value) if (minimum..=maximum).contains(&value) && has_word(value) => {
                Ok(Setting { id, value })
            }
            _ => Err(format!("`{name}` takes {}, not `{text}`", self.range())),
        }
    }

    /// What values it takes, for people.
    fn range(&self) -> String {
        let Control { kind, minimum, maximum, step, .. } = &self.control;
        match kind {
            Kind::Boolean => "on or off".into(),
            Kind::Button => "any number, and is then pressed".into(),
            Kind::Bitmask => "bits, such as 0x3".into(),
            Kind::Menu | Kind::IntegerMenu => {
                let words: Vec<_> =
                    self.menu.iter().map(|(value, word)| format!("{value} ({word})")).collect();
                format!("one of {}", words.join(", "))
            }
            _ if *step > 1 => format!("{minimum} to {maximum} in steps of {step}"),
            _ => format!("{minimum} to {maximum}"),
        }
    }

    /// One line for people, with where it stands.
    pub(super) fn describe(&self, value: i64) -> String {
        let default = self.control.default;
        format!("{}={value}  ({}; at first {default})", self.name(), self.range())
    }
}

/// Letters and digits, small, with a line between words.
fn plain(name: &str) -> String {
    let words = name.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("_")
}

/// The settings that a user's words mean: `brightness=128`, several with commas or line ends between them.
pub(super) fn settings(knobs: &[Knob], words: &str) -> Result<Vec<Setting>, String> {
    let words = words.strip_prefix('(').and_then(|words| words.strip_suffix(')')).unwrap_or(words);
    let words = words.split([',', '\n']).map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| setting(knobs, word)).collect()
}

fn setting(knobs: &[Knob], word: &str) -> Result<Setting, String> {
    let (name, value) = word.split_once('=').ok_or_else(|| format!("`{word}`: write NAME=VALUE"))?;
    let known = knobs.iter().find(|knob| knob.name() == plain(name));
    let knob = known.ok_or_else(|| {
        let names: Vec<_> = knobs.iter().map(Knob::name).collect();
        match names.is_empty() {
            true => "this camera has no controls".to_string(),
            false => format!("there is no control `{name}`; there is: {}", names.join(", ")),
        }
    })?;
    knob.setting(value)
}

fn parse_text(reader: &mut Reader<'_>, what: &'static str) -> Result<String, WireError> {
    let text = reader.text(what, TEXT_BYTES_MAX)?;
    match text.contains('\0') {
        true => Err(WireError::Text { what }),
        false => Ok(text.into()),
    }
}
