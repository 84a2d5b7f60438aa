//! The format `evdev`: frames of input events. `docs/reference/formats-evdev.md` has the layout and vectors.
//!
//! Names and numbers are those of `linux/input-event-codes.h` and `linux/input.h`, on every kind of host.

mod movement;

pub use movement::{Movement, is_motion};

use crate::{Reader, WireError, Writer};

/// Event kinds and codes that stages interpret.
#[allow(missing_docs)]
pub mod code {
    pub const EV_SYN: u16 = 0x00;
    pub const EV_KEY: u16 = 0x01;
    pub const EV_REL: u16 = 0x02;
    pub const EV_ABS: u16 = 0x03;
    pub const EV_MSC: u16 = 0x04;
    pub const EV_SW: u16 = 0x05;
    pub const EV_LED: u16 = 0x11;
    pub const EV_REP: u16 = 0x14;

    pub const ABS_HAT0X: u16 = 0x10;
    pub const ABS_HAT3Y: u16 = 0x17;
    pub const ABS_PROFILE: u16 = 0x21;
    pub const ABS_MISC: u16 = 0x28;
    pub const ABS_MT_SLOT: u16 = 0x2f;
    pub const ABS_MT_TOOL_TYPE: u16 = 0x37;
    pub const ABS_MT_BLOB_ID: u16 = 0x38;
    pub const ABS_MT_TRACKING_ID: u16 = 0x39;
    pub const MSC_TIMESTAMP: u16 = 0x05;

    pub const FF_RUMBLE: u16 = 0x50;
    pub const FF_PERIODIC: u16 = 0x51;
    pub const FF_CONSTANT: u16 = 0x52;
    pub const FF_SPRING: u16 = 0x53;
    pub const FF_INERTIA: u16 = 0x56;
    pub const FF_RAMP: u16 = 0x57;
}

/// The most events in a frame or snapshot. A snapshot of every possible key, axis and slot has fewer.
pub const EVENTS_MAX: usize = 4096;

/// Effect numbers of a device are below this.
pub const EFFECTS_MAX: u16 = 0x60;

/// Parameters, in words, of the largest kind of effect: two axes of a condition, six each.
pub const EFFECT_PARAMETERS_MAX: usize = 12;

const EVENT_BYTES: usize = 8;

const FRAME: u8 = 0;
const SNAPSHOT: u8 = 1;
const UPLOAD: u8 = 2;
const ERASE: u8 = 3;

/// One event, without its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event {
    /// `EV_KEY`, `EV_REL` and so on.
    pub kind: u16,
    /// The key, axis or light.
    pub code: u16,
    /// 1 for down, 0 for up; or a distance; or a position.
    pub value: i32,
}

impl Event {
    /// An event.
    pub const fn new(kind: u16, code: u16, value: i32) -> Event {
        Event { kind, code, value }
    }
}

/// A force-feedback effect, as an application uploads it. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effect {
    /// `FF_RUMBLE`, `FF_PERIODIC` and so on.
    pub kind: u16,
    /// Its number at the application's node, below [`EFFECTS_MAX`].
    pub id: u16,
    /// The direction that the force comes from: 0x4000 is a quarter turn.
    pub direction: u16,
    /// The button that starts it.
    pub trigger_button: u16,
    /// The shortest time between two starts by the button.
    pub trigger_interval_ms: u16,
    /// How long it plays; 0 means for ever.
    pub length_ms: u16,
    /// The delay before it plays.
    pub delay_ms: u16,
    /// The parameters of this kind. Unused ones are 0 and are not sent.
    pub parameters: [u16; EFFECT_PARAMETERS_MAX],
}

/// The number of parameters of a kind of effect; `None` if the format does not carry the kind.
pub fn effect_parameters(kind: u16) -> Option<usize> {
    Some(match kind {
        code::FF_RUMBLE => 2,
        code::FF_CONSTANT => 5,
        code::FF_RAMP => 6,
        code::FF_PERIODIC => 9,
        code::FF_SPRING..=code::FF_INERTIA => 12,
        _ => return None,
    })
}

/// One message of the format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// Events at one time: those before a `SYN_REPORT`, which is left out.
    Frame(Vec<Event>),
    /// The complete state. Unnamed keys are up and unnamed effects are erased; all else unnamed is unchanged.
    Snapshot(Vec<Event>),
    /// An application uploaded an effect to its node, or changed one.
    Upload(Effect),
    /// An application erased this effect.
    Erase(u16),
}

impl Update {
    /// Parses a message from the network.
    pub fn parse(body: &[u8]) -> Result<Update, WireError> {
        let mut reader = Reader::new(body);
        let update = match reader.u8("kind")? {
            FRAME => Update::Frame(parse_events(&mut reader)?),
            SNAPSHOT => Update::Snapshot(parse_events(&mut reader)?),
            UPLOAD => Update::Upload(parse_effect(&mut reader)?),
            ERASE => Update::Erase(parse_effect_id(&mut reader)?),
            kind => return Err(WireError::Value { what: "kind", value: kind.into() }),
        };
        reader.end("evdev message")?;
        Ok(update)
    }

    /// Returns the bytes that [`Update::parse`] reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        match self {
            Update::Frame(events) => put_events(writer.u8(FRAME), events),
            Update::Snapshot(events) => put_events(writer.u8(SNAPSHOT), events),
            Update::Upload(effect) => put_effect(writer.u8(UPLOAD), effect),
            Update::Erase(id) => {
                writer.u8(ERASE).u16(*id);
            }
        }
        writer.finish()
    }
}

fn parse_events(reader: &mut Reader<'_>) -> Result<Vec<Event>, WireError> {
    let count = reader.left() / EVENT_BYTES;
    if count > EVENTS_MAX {
        return Err(WireError::TooLong { what: "events", length: count as u64, limit: EVENTS_MAX as u64 });
    }
    (0..count)
        .map(|_| {
            let (kind, code) = (reader.u16("event type")?, reader.u16("event code")?);
            Ok(Event { kind, code, value: reader.u32("event value")?.cast_signed() })
        })
        .collect()
}

fn put_events(writer: &mut Writer, events: &[Event]) {
    for event in events {
        writer.u16(event.kind).u16(event.code).u32(event.value.cast_unsigned());
    }
}

fn parse_effect_id(reader: &mut Reader<'_>) -> Result<u16, WireError> {
    match reader.u16("effect number")? {
        id if id < EFFECTS_MAX => Ok(id),
        id => Err(WireError::Value { what: "effect number", value: id.into() }),
    }
}

fn parse_effect(reader: &mut Reader<'_>) -> Result<Effect, WireError> {
    let kind = reader.u16("effect kind")?;
    let count =
        effect_parameters(kind).ok_or(WireError::Value { what: "effect kind", value: kind.into() })?;
    let mut effect = Effect {
        kind,
        id: parse_effect_id(reader)?,
        direction: reader.u16("effect direction")?,
        trigger_button: reader.u16("effect trigger")?,
        trigger_interval_ms: reader.u16("effect trigger interval")?,
        length_ms: reader.u16("effect length")?,
        delay_ms: reader.u16("effect delay")?,
        parameters: [0; EFFECT_PARAMETERS_MAX],
    };
    for parameter in &mut effect.parameters[..count] {
        *parameter = reader.u16("effect parameter")?;
    }
    Ok(effect)
}

fn put_effect(writer: &mut Writer, effect: &Effect) {
    writer.u16(effect.kind).u16(effect.id).u16(effect.direction);
    writer.u16(effect.trigger_button).u16(effect.trigger_interval_ms);
    writer.u16(effect.length_ms).u16(effect.delay_ms);
    let count = effect_parameters(effect.kind).unwrap_or(0);
    effect.parameters[..count].iter().for_each(|parameter| {
        writer.u16(*parameter);
    });
}
