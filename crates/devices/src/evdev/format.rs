//! The format `evdev`: bodies of messages (docs/formats-evdev.md has the layout and vectors).

use sys::input::code::FF_EFFECTS_MAX;
use sys::input::{EFFECT_PARAMETERS_MAX, Effect, Event, effect_parameters};
use wire::{Reader, WireError, Writer};

/// Events in one frame or snapshot. A snapshot of every key, axis and slot there can be has fewer.
pub const EVENTS_MAX: usize = 4096;

const EVENT_BYTES: usize = 8;

const FRAME: u8 = 0;
const SNAPSHOT: u8 = 1;
const UPLOAD: u8 = 2;
const ERASE: u8 = 3;

/// One message of the format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// What happened at one time: the events before a SYN_REPORT, which is left out.
    Frame(Vec<Event>),
    /// Where things stand. Keys that are not named are up, effects are gone; what else is not named stays.
    Snapshot(Vec<Event>),
    /// An application gave its node an effect, or changed one, under the number in it.
    Upload(Effect),
    /// An application took the effect of this number back.
    Erase(u16),
}

impl Update {
    /// Reads a message from a stranger.
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

    /// The bytes of [`Update::parse`].
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
        id if id < FF_EFFECTS_MAX => Ok(id),
        id => Err(WireError::Value { what: "effect number", value: id.into() }),
    }
}

fn parse_effect(reader: &mut Reader<'_>) -> Result<Effect, WireError> {
    let kind = reader.u16("effect kind")?;
    let count =
        effect_parameters(kind).ok_or(WireError::Value { what: "effect kind", value: kind.into() })?;
    let mut effect = Effect {
        kind,
        id: parse_effect_id(reader)?.cast_signed(),
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
    writer.u16(effect.kind).u16(effect.id.cast_unsigned()).u16(effect.direction);
    writer.u16(effect.trigger_button).u16(effect.trigger_interval_ms);
    writer.u16(effect.length_ms).u16(effect.delay_ms);
    let count = effect_parameters(effect.kind).unwrap_or(0);
    effect.parameters[..count].iter().for_each(|parameter| {
        writer.u16(*parameter);
    });
}
