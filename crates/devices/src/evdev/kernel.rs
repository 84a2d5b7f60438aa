//! Conversions between the network format `evdev` and the kernel's types. Events of both have the same layout, so a list
//! is converted in its own memory.

use sys::input;
use wire::formats::evdev::{Effect, Event};

/// Converts events of the kernel for a message.
pub(super) fn to_format(events: Vec<input::Event>) -> Vec<Event> {
    events.into_iter().map(|input::Event { kind, code, value }| Event { kind, code, value }).collect()
}

/// Converts events of a message for the kernel.
pub(super) fn to_kernel(events: Vec<Event>) -> Vec<input::Event> {
    events.into_iter().map(|Event { kind, code, value }| input::Event { kind, code, value }).collect()
}

/// Converts an effect of the kernel for a message. Returns `None` if its ID is negative.
pub(super) fn effect_to_format(effect: &input::Effect) -> Option<Effect> {
    let id = u16::try_from(effect.id).ok()?;
    let input::Effect { kind, id: _, direction, trigger_button, trigger_interval_ms, .. } = *effect;
    let input::Effect { length_ms, delay_ms, parameters, .. } = *effect;
    Some(Effect { kind, id, direction, trigger_button, trigger_interval_ms, length_ms, delay_ms, parameters })
}

/// Converts an effect of a message for the kernel. `id` is the kernel's ID of the effect, -1 for a new one.
pub(super) fn effect_to_kernel(effect: &Effect, id: i16) -> input::Effect {
    let Effect { kind, id: _, direction, trigger_button, trigger_interval_ms, .. } = *effect;
    let Effect { length_ms, delay_ms, parameters, .. } = *effect;
    input::Effect {
        kind,
        id,
        direction,
        trigger_button,
        trigger_interval_ms,
        length_ms,
        delay_ms,
        parameters,
    }
}

// Both crates use the same codes.
const _: () = {
    use wire::formats::evdev::{EFFECTS_MAX, code};
    assert!(code::EV_SYN == input::code::EV_SYN && code::EV_KEY == input::code::EV_KEY);
    assert!(code::EV_REL == input::code::EV_REL && code::EV_ABS == input::code::EV_ABS);
    assert!(code::EV_MSC == input::code::EV_MSC && code::EV_SW == input::code::EV_SW);
    assert!(code::EV_LED == input::code::EV_LED && code::EV_REP == input::code::EV_REP);
    assert!(code::ABS_MT_SLOT == input::code::ABS_MT_SLOT && EFFECTS_MAX == input::code::FF_EFFECTS_MAX);
    assert!(code::MSC_TIMESTAMP == input::code::MSC_TIMESTAMP);
};
