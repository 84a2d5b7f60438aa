//! Numbers of `linux/input-event-codes.h`, by their kernel names.
#![allow(missing_docs)]

pub const EV_SYN: u16 = 0x00;
pub const EV_KEY: u16 = 0x01;
pub const EV_REL: u16 = 0x02;
pub const EV_ABS: u16 = 0x03;
pub const EV_MSC: u16 = 0x04;
pub const EV_SW: u16 = 0x05;
pub const EV_LED: u16 = 0x11;
pub const EV_SND: u16 = 0x12;
pub const EV_REP: u16 = 0x14;
pub const EV_FF: u16 = 0x15;
/// The event kind of `uinput`'s own requests (`linux/uinput.h`).
pub const EV_UINPUT: u16 = 0x0101;
pub const UI_FF_UPLOAD: u16 = 1;
pub const UI_FF_ERASE: u16 = 2;

pub const EV_CNT: usize = 0x20;
pub const KEY_CNT: usize = 0x300;
pub const REL_CNT: usize = 0x10;
pub const ABS_CNT: usize = 0x40;
pub const MSC_CNT: usize = 0x08;
pub const SW_CNT: usize = 0x11;
pub const LED_CNT: usize = 0x10;
pub const SND_CNT: usize = 0x08;
pub const REP_CNT: usize = 0x02;
pub const FF_CNT: usize = 0x80;
pub const INPUT_PROP_CNT: usize = 0x20;

pub const BUS_USB: u16 = 0x03;

pub const SYN_REPORT: u16 = 0;
pub const SYN_MT_REPORT: u16 = 2;
pub const SYN_DROPPED: u16 = 3;

pub const KEY_ESC: u16 = 1;
pub const KEY_A: u16 = 30;
pub const KEY_S: u16 = 31;
pub const KEY_LEFTSHIFT: u16 = 42;
pub const KEY_MUTE: u16 = 113;
pub const KEY_VOLUMEDOWN: u16 = 114;
pub const KEY_VOLUMEUP: u16 = 115;
pub const KEY_POWER: u16 = 116;
pub const KEY_SLEEP: u16 = 142;
pub const KEY_WAKEUP: u16 = 143;
pub const KEY_BACK: u16 = 158;
pub const KEY_FORWARD: u16 = 159;
pub const KEY_NEXTSONG: u16 = 163;
pub const KEY_PLAYPAUSE: u16 = 164;
pub const KEY_PREVIOUSSONG: u16 = 165;
pub const KEY_STOPCD: u16 = 166;
pub const KEY_RECORD: u16 = 167;
pub const KEY_REWIND: u16 = 168;
pub const KEY_PAUSECD: u16 = 201;
pub const KEY_PLAY: u16 = 207;
pub const KEY_FASTFORWARD: u16 = 208;
pub const KEY_MICMUTE: u16 = 248;
pub const BTN_MISC: u16 = 0x100;
pub const BTN_LEFT: u16 = 0x110;
pub const BTN_JOYSTICK: u16 = 0x120;
pub const BTN_GAMEPAD: u16 = 0x130;
pub const BTN_DIGI: u16 = 0x140;
pub const BTN_TOOL_PEN: u16 = 0x140;
pub const BTN_TOUCH: u16 = 0x14a;
pub const BTN_STYLUS: u16 = 0x14b;
pub const BTN_WHEEL: u16 = 0x150;
pub const KEY_OK: u16 = 0x160;
pub const BTN_DPAD_UP: u16 = 0x220;
pub const BTN_GRIPR2: u16 = 0x227;
pub const BTN_TRIGGER_HAPPY: u16 = 0x2c0;

pub const REL_X: u16 = 0x00;
pub const REL_Y: u16 = 0x01;
pub const REL_RZ: u16 = 0x05;
pub const REL_WHEEL: u16 = 0x08;

pub const MSC_SCAN: u16 = 0x04;

pub const ABS_X: u16 = 0x00;
pub const ABS_Y: u16 = 0x01;
pub const ABS_Z: u16 = 0x02;
pub const ABS_RX: u16 = 0x03;
pub const ABS_RY: u16 = 0x04;
pub const ABS_RZ: u16 = 0x05;
pub const ABS_RUDDER: u16 = 0x07;
pub const ABS_WHEEL: u16 = 0x08;
pub const ABS_GAS: u16 = 0x09;
pub const ABS_BRAKE: u16 = 0x0a;
pub const ABS_HAT0X: u16 = 0x10;
pub const ABS_HAT3Y: u16 = 0x17;
pub const ABS_MT_SLOT: u16 = 0x2f;
pub const ABS_MT_TOUCH_MAJOR: u16 = 0x30;
pub const ABS_MT_POSITION_X: u16 = 0x35;
pub const ABS_MT_TRACKING_ID: u16 = 0x39;
pub const ABS_MT_TOOL_Y: u16 = 0x3d;

pub const MSC_TIMESTAMP: u16 = 0x05;

pub const REP_DELAY: u16 = 0;
pub const REP_PERIOD: u16 = 1;

pub const INPUT_PROP_POINTER: u16 = 0;
pub const INPUT_PROP_DIRECT: u16 = 1;

pub const FF_RUMBLE: u16 = 0x50;
pub const FF_PERIODIC: u16 = 0x51;
pub const FF_CONSTANT: u16 = 0x52;
pub const FF_SPRING: u16 = 0x53;
pub const FF_INERTIA: u16 = 0x56;
pub const FF_RAMP: u16 = 0x57;
pub const FF_GAIN: u16 = 0x60;
/// Effect numbers are below [`FF_GAIN`] among the codes of `EV_FF`, so there are at most that many.
pub const FF_EFFECTS_MAX: u16 = FF_GAIN;
