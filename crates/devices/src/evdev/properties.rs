//! Properties of an input device: enough to create a node that applications cannot distinguish from it. The encoding
//! (docs/reference/formats-evdev.md) comes from the peer and is checked completely.

use super::kind;
use contract::Kind;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use sys::input::code::*;
use sys::input::{Axis, Bits, Event, Ids, evdev};
use wire::{Reader, WireError, Writer};

/// Version of the layout.
const LAYOUT: u8 = 1;

/// Longest name, physical location and serial number, bytes.
const TEXT_BYTES_MAX: usize = 255;

/// Multitouch slots of a device, at most: the limit of `uinput` in newer kernels.
pub(super) const SLOTS_MAX: i32 = 99;

/// Longest delay and period of key repeats.
pub(super) const REPEAT_MS_MAX: u32 = 60_000;

/// Event types with a plain set of codes, and the number of codes of each.
const CODED: [(u16, usize); 7] = [
    (EV_KEY, KEY_CNT),
    (EV_REL, REL_CNT),
    (EV_MSC, MSC_CNT),
    (EV_SW, SW_CNT),
    (EV_LED, LED_CNT),
    (EV_SND, SND_CNT),
    (EV_FF, FF_CNT),
];

/// A device's name, numbers and capabilities.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Properties {
    /// Name.
    pub name: String,
    /// Physical location.
    pub phys: String,
    /// Serial number or address.
    pub uniq: String,
    /// Bus, vendor, product, version.
    pub ids: Ids,
    /// Input properties, `INPUT_PROP_POINTER` and so on.
    pub props: Bits,
    /// Event types.
    pub kinds: Bits,
    /// Codes of each event type in [`CODED`].
    pub(super) codes: [Bits; CODED.len()],
    /// Absolute axes by code.
    pub axes: BTreeMap<u16, Axis>,
    /// Delay and period of key repeats.
    pub repeat_ms: Option<[u32; 2]>,
    /// Number of force-feedback effects that the device can store.
    pub effects_max: u32,
}

impl Properties {
    /// Reads the properties of an event node.
    pub fn read(node: BorrowedFd<'_>) -> io::Result<Properties> {
        let kinds = evdev::codes(node, 0)?;
        let mut properties = Properties {
            name: evdev::name(node)?,
            phys: evdev::physical_location(node)?,
            uniq: evdev::unique_id(node)?,
            ids: evdev::ids(node)?,
            props: within(evdev::properties(node)?, INPUT_PROP_CNT),
            kinds: within(kinds, EV_CNT),
            ..Properties::default()
        };
        for text in [&mut properties.name, &mut properties.phys, &mut properties.uniq] {
            text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        }
        for (at, (kind, count)) in CODED.into_iter().enumerate() {
            if kinds.contains(kind) {
                properties.codes[at] = within(evdev::codes(node, kind)?, count);
            }
        }
        if kinds.contains(EV_ABS) {
            for code in within(evdev::codes(node, EV_ABS)?, ABS_CNT).iter() {
                properties.axes.extend(usable(code, evdev::axis(node, code)?).map(|axis| (code, axis)));
            }
        }
        if kinds.contains(EV_REP) {
            let repeat = evdev::repeat_ms(node)?;
            properties.repeat_ms = repeat.map(|pair| pair.map(|ms| ms.min(REPEAT_MS_MAX)));
        }
        if kinds.contains(EV_FF) {
            properties.effects_max = evdev::effects_max(node)?.min(FF_EFFECTS_MAX.into());
        }
        Ok(properties)
    }

    /// Decodes the properties.
    pub fn parse(bytes: &[u8]) -> Result<Properties, WireError> {
        let mut reader = Reader::new(bytes);
        match reader.u8("layout version")? {
            LAYOUT => {}
            other => return Err(WireError::Value { what: "layout version", value: other.into() }),
        }
        let mut properties = Properties {
            name: parse_text(&mut reader, "name")?,
            phys: parse_text(&mut reader, "phys")?,
            uniq: parse_text(&mut reader, "uniq")?,
            ids: Ids {
                bus: reader.u16("bus")?,
                vendor: reader.u16("vendor")?,
                product: reader.u16("product")?,
                version: reader.u16("version")?,
            },
            props: parse_bits(&mut reader, "properties", INPUT_PROP_CNT)?,
            kinds: parse_bits(&mut reader, "kinds", EV_CNT)?,
            ..Properties::default()
        };
        for (bits, (_, count)) in properties.codes.iter_mut().zip(CODED) {
            *bits = parse_bits(&mut reader, "codes", count)?;
        }
        for _ in 0..reader.count("axes", ABS_CNT)? {
            let (code, axis) = parse_axis(&mut reader)?;
            // Ascending codes make the encoding of a device unique.
            if properties.axes.last_key_value().is_some_and(|(last, _)| *last >= code) {
                return Err(WireError::Value { what: "axis", value: code.into() });
            }
            properties.axes.insert(code, axis);
        }
        properties.repeat_ms = match reader.u8("repeat")? {
            0 => None,
            1 => Some([parse_repeat(&mut reader)?, parse_repeat(&mut reader)?]),
            other => return Err(WireError::Value { what: "repeat", value: other.into() }),
        };
        properties.effects_max = reader.u32("effects")?;
        if properties.effects_max > FF_EFFECTS_MAX.into() {
            let (length, limit) = (properties.effects_max.into(), FF_EFFECTS_MAX.into());
            return Err(WireError::TooLong { what: "effects", length, limit });
        }
        reader.end("evdev properties")?;
        Ok(properties)
    }

    /// Encodes the properties for [`Properties::parse`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u8(LAYOUT).text(&self.name).text(&self.phys).text(&self.uniq);
        let Ids { bus, vendor, product, version } = self.ids;
        writer.u16(bus).u16(vendor).u16(product).u16(version);
        writer.blob(&self.props.to_bytes()).blob(&self.kinds.to_bytes());
        self.codes.iter().for_each(|bits| {
            writer.blob(&bits.to_bytes());
        });
        writer.u16(self.axes.len() as u16);
        for (code, axis) in &self.axes {
            writer.u16(*code);
            let Axis { value, minimum, maximum, fuzz, flat, resolution } = *axis;
            for number in [value, minimum, maximum, fuzz, flat, resolution] {
                writer.u32(number.cast_unsigned());
            }
        }
        match self.repeat_ms {
            None => writer.u8(0),
            Some([delay, period]) => writer.u8(1).u32(delay).u32(period),
        };
        writer.u32(self.effects_max);
        writer.finish()
    }

    /// Returns the codes of an event type; for absolute axes see [`Properties::axes`].
    pub fn codes(&self, kind: u16) -> Bits {
        let at = CODED.iter().position(|(known, _)| *known == kind);
        at.map_or_else(Bits::new, |at| self.codes[at])
    }

    /// Adds an event type with its codes.
    pub fn set_codes(&mut self, kind: u16, codes: Bits) {
        self.kinds.set(kind, true);
        if let Some(at) = CODED.iter().position(|(known, _)| *known == kind) {
            self.codes[at] = within(codes, CODED[at].1);
        }
    }

    /// Returns true if the device has the type and code of this event.
    pub fn has(&self, event: Event) -> bool {
        let has_code = match event.kind {
            EV_SYN => return event.code == SYN_MT_REPORT,
            EV_ABS => self.axes.contains_key(&event.code),
            EV_REP => usize::from(event.code) < REP_CNT,
            kind => self.codes(kind).contains(event.code),
        };
        has_code && self.kinds.contains(event.kind)
    }

    /// Returns true if another device has the same event types, codes and axes.
    pub(super) fn has_same_capabilities(&self, other: &Properties) -> bool {
        self.kinds == other.kinds
            && self.props == other.props
            && self.codes == other.codes
            && self.axes.keys().eq(other.axes.keys())
    }

    /// Returns the number of multitouch slots.
    pub fn slots(&self) -> usize {
        let slots = self.axes.get(&ABS_MT_SLOT).map_or(0, |axis| axis.maximum.clamp(0, SLOTS_MAX - 1) + 1);
        slots as usize
    }

    /// Returns true if the device accepts feedback: lights, sounds, effects.
    pub fn has_feedback(&self) -> bool {
        [EV_LED, EV_SND, EV_FF].iter().any(|kind| !self.codes(*kind).is_empty())
    }

    /// Returns true for a joystick, gamepad or wheel. Their axes have a rest position.
    pub fn is_joystick(&self) -> bool {
        let keys = self.codes(EV_KEY);
        (BTN_JOYSTICK..BTN_DIGI).any(|button| keys.contains(button)) || keys.contains(BTN_TRIGGER_HAPPY)
    }

    /// Returns true if the axes have a rest position: those of a joystick, and the cap of a 3D mouse.
    pub(super) fn has_rest(&self) -> bool {
        self.is_joystick() || self.kind() == Kind::Mouse3d
    }

    /// Returns the kind of the device.
    pub fn kind(&self) -> Kind {
        kind::of(self)
    }
}

fn within(bits: Bits, count: usize) -> Bits {
    bits.iter().filter(|code| usize::from(*code) < count).collect()
}

fn parse_text(reader: &mut Reader<'_>, what: &'static str) -> Result<String, WireError> {
    let text = reader.text(what, TEXT_BYTES_MAX)?;
    if text.contains('\0') { Err(WireError::Text { what }) } else { Ok(text.into()) }
}

fn parse_bits(reader: &mut Reader<'_>, what: &'static str, count: usize) -> Result<Bits, WireError> {
    let bytes = reader.blob(what, count.div_ceil(8))?;
    let bits = Bits::from_bytes(bytes);
    match bits.iter().last() {
        Some(last) if usize::from(last) >= count => Err(WireError::Value { what, value: last.into() }),
        _ if bits.to_bytes() != bytes => Err(WireError::Trailing { what, left: 1 }),
        _ => Ok(bits),
    }
}

fn parse_axis(reader: &mut Reader<'_>) -> Result<(u16, Axis), WireError> {
    let code = reader.u16("axis")?;
    let mut number = || reader.u32("axis range").map(u32::cast_signed);
    let axis = Axis {
        value: number()?,
        minimum: number()?,
        maximum: number()?,
        fuzz: number()?,
        flat: number()?,
        resolution: number()?,
    };
    match usize::from(code) < ABS_CNT && usable(code, axis) == Some(axis) {
        true => Ok((code, axis)),
        false => Err(WireError::Value { what: "axis", value: code.into() }),
    }
}

/// Returns an axis as a description may have it: without negative fuzz and flat, which some drivers set. `None` for an axis
/// that no node can have.
pub(super) fn usable(code: u16, axis: Axis) -> Option<Axis> {
    let is_slot_count = code != ABS_MT_SLOT || (0..SLOTS_MAX).contains(&axis.maximum);
    let is_usable = axis.minimum <= axis.maximum && is_slot_count;
    is_usable.then(|| Axis { fuzz: axis.fuzz.max(0), flat: axis.flat.max(0), ..axis })
}

fn parse_repeat(reader: &mut Reader<'_>) -> Result<u32, WireError> {
    match reader.u32("repeat")? {
        ms if ms <= REPEAT_MS_MAX => Ok(ms),
        ms => Err(WireError::TooLong { what: "repeat", length: ms.into(), limit: REPEAT_MS_MAX.into() }),
    }
}
