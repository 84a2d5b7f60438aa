//! The kind of an input device, from its keys, axes and properties.
//!
//! A device that can type is a keyboard, or loses the keys that type:
//!
//! | device | kind |
//! |---|---|
//! | has every key from Escape to S (the rule of udev) | `keyboard`, with all keys |
//! | six relative axes, pen, fingers, pointer, joystick buttons, six axes | that kind, in this order, without the keys that type |
//! | any other with a key that types | `keyboard`, with all keys |
//! | the others | `buttons`, `switch` or `input` |

use super::properties::Properties;
use contract::Kind;
use sys::input::Bits;
use sys::input::code::*;

/// Keys of media and mice that neither type nor start a program, outside the ranges of buttons.
const HARMLESS: [u16; 15] = [
    KEY_MUTE,
    KEY_VOLUMEDOWN,
    KEY_VOLUMEUP,
    KEY_BACK,
    KEY_FORWARD,
    KEY_NEXTSONG,
    KEY_PLAYPAUSE,
    KEY_PREVIOUSSONG,
    KEY_STOPCD,
    KEY_RECORD,
    KEY_REWIND,
    KEY_PAUSECD,
    KEY_PLAY,
    KEY_FASTFORWARD,
    KEY_MICMUTE,
];

/// Keys that only the kind `buttons` has besides: power and sleep.
const POWER: [u16; 3] = [KEY_POWER, KEY_SLEEP, KEY_WAKEUP];

/// Returns true for codes of buttons, which no keyboard layout maps to a character.
fn is_button(code: u16) -> bool {
    (BTN_MISC..KEY_OK).contains(&code)
        || (BTN_DPAD_UP..=BTN_GRIPR2).contains(&code)
        // The kernel numbers a joystick's buttons from 17 on, up to the last code (`hid-input.c`).
        || (BTN_TRIGGER_HAPPY..KEY_CNT as u16).contains(&code)
}

/// Returns the keys that a program waits for the release of: all but the buttons of joysticks and gamepads. Those may be
/// switches, dials, or a gear that is in, which stay down.
pub(crate) fn momentary(keys: &Bits) -> Bits {
    let may_stay =
        |code: &u16| is_button(*code) && (*code >= BTN_DPAD_UP || (BTN_JOYSTICK..BTN_DIGI).contains(code));
    keys.iter().filter(|code| !may_stay(code)).collect()
}

/// Returns true if a device of this kind may have the key or button.
fn may_have(kind: Kind, code: u16) -> bool {
    let is_pointer_button = (BTN_LEFT..BTN_JOYSTICK).contains(&code);
    let is_touch = (BTN_DIGI..BTN_WHEEL).contains(&code);
    match kind {
        Kind::Keyboard => true,
        Kind::Gamepad | Kind::Mouse3d if is_pointer_button || is_touch => false,
        Kind::Mouse if is_touch => false,
        Kind::Buttons if POWER.contains(&code) => true,
        _ => is_button(code) || HARMLESS.contains(&code),
    }
}

/// Returns the kind of a device with these properties.
pub(super) fn of(properties: &Properties) -> Kind {
    let (keys, axes) = (properties.codes(EV_KEY), &properties.axes);
    let motion = properties.codes(EV_REL);
    let has_touch = axes.contains_key(&ABS_MT_POSITION_X) || keys.contains(BTN_TOUCH);
    let has_six_relative = (REL_X..=REL_RZ).all(|axis| motion.contains(axis));
    let has_six_axes = has_six_relative || (ABS_X..=ABS_RZ).all(|axis| axes.contains_key(&axis));
    match () {
        () if (KEY_ESC..=KEY_S).all(|key| keys.contains(key)) => Kind::Keyboard,
        // The kernel numbers the buttons of a 3D mouse from BTN_MISC on: some have the codes of a mouse's or a pen's. A program's
        // mouse may have every axis, and then has a wheel.
        () if has_six_relative && !motion.contains(REL_WHEEL) => Kind::Mouse3d,
        () if keys.contains(BTN_TOOL_PEN) || keys.contains(BTN_STYLUS) => Kind::Tablet,
        () if has_touch && properties.props.contains(INPUT_PROP_DIRECT) => Kind::Touchscreen,
        () if has_touch => Kind::Touchpad,
        () if motion.contains(REL_X) && motion.contains(REL_Y) && keys.contains(BTN_LEFT) => Kind::Mouse,
        () if properties.is_joystick() => Kind::Gamepad,
        () if has_six_axes => Kind::Mouse3d,
        () if !is_within(&keys, Kind::Buttons) => Kind::Keyboard,
        () if !keys.is_empty() => Kind::Buttons,
        () if !properties.codes(EV_SW).is_empty() => Kind::Switch,
        () => Kind::Input,
    }
}

/// Removes the keys and buttons that a device of this kind may not have. Returns their number.
pub(super) fn remove_foreign_keys(properties: &mut Properties) -> usize {
    let (kind, keys) = (of(properties), properties.codes(EV_KEY));
    let kept: Bits = keys.iter().filter(|code| may_have(kind, *code)).collect();
    if kept.len() < keys.len() {
        properties.set_codes(EV_KEY, kept);
    }
    keys.len() - kept.len()
}

fn is_within(keys: &Bits, kind: Kind) -> bool {
    keys.iter().all(|code| may_have(kind, code))
}
