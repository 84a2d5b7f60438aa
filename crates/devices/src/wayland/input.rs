//! The viewer's input, typed on a virtual keyboard (`zwp_virtual_keyboard_v1`) and pointed with a virtual pointer
//! (`zwlr_virtual_pointer_v1`).
//!
//! The keyboard has its own keymap ([`keymap`]). A keysym without a key is bound to a free key in a new keymap, which the
//! compositor gives to the focused program before the key.

use super::client::{Client, Object, Request};
use super::desktop::{Desktop, Output};
use super::keymap::{self, EVDEV_OFFSET};
use super::protocol::{Interface, keyboard, pointer};
use crate::keys::keyboard::{KeyAction, Keyboard};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use sys::clock::boot_ns;

/// Codes of buttons (`linux/input-event-codes.h`) by the bit of the viewer's format. Bits 3 to 6 are the wheel.
const BUTTONS: [(u8, u32); 5] = [(0, 0x110), (1, 0x112), (2, 0x111), (7, 0x113), (8, 0x114)];
/// The wheel: the bit, the axis (vertical, horizontal), and the direction.
const WHEEL: [(u8, u32, i32); 4] = [(3, 0, -1), (4, 0, 1), (5, 1, -1), (6, 1, 1)];
/// A step of a wheel in the compositor's units, 24.8 bits: 15, as libinput has.
const WHEEL_STEP: i32 = 15 << 8;

/// A virtual keyboard and a virtual pointer.
#[derive(Debug)]
pub(super) struct Input {
    keyboard: Object,
    pointer: Object,
    keys: Keyboard,
    modifier_keys: BTreeMap<u8, u32>,
    down: BTreeSet<u8>,
    bound: BTreeMap<u8, u32>,
    position: (u32, u32),
    buttons: u16,
}

/// The time of an event in milliseconds; it wraps around.
fn time_ms() -> u32 {
    (boot_ns() / 1_000_000) as u32
}

impl Input {
    /// Makes a keyboard, and a pointer on this output.
    pub(super) fn new(desktop: &mut Desktop, output: &Output) -> io::Result<Input> {
        let seat = desktop.bind(Interface::Seat, 1)?;
        let keyboards = desktop.bind(Interface::KeyboardManager, 1)?;
        let pointers = desktop.bind(Interface::PointerManager, pointer::VERSION)?;
        let client = &mut desktop.client;
        let keyboard = client.object(Interface::Keyboard)?;
        client.send(Request::new(keyboards, keyboard::CREATE).with(seat).with(keyboard));
        let pointer = client.object(Interface::Pointer)?;
        let create = Request::new(pointers, pointer::CREATE_WITH_OUTPUT);
        client.send(create.with(seat).with(output.object).with(pointer));
        let mut keys = Keyboard::default();
        keys.set_layout(keymap::layout());
        let input = Input {
            keyboard,
            pointer,
            keys,
            modifier_keys: keymap::modifiers(),
            down: BTreeSet::new(),
            bound: BTreeMap::new(),
            position: (0, 0),
            buttons: 0,
        };
        input.send_keymap(client)?;
        Ok(input)
    }

    fn send_keymap(&self, client: &mut Client) -> io::Result<()> {
        let mut text = keymap::text(&self.bound).into_bytes();
        text.push(0);
        let file = sys::memory::create("outboard-keymap", text.len())?;
        File::from(file.try_clone()?).write_all(&text)?;
        let request = Request::new(self.keyboard, keyboard::KEYMAP).with(keyboard::XKB_V1);
        client.send_with(request.with(text.len() as u32), file);
        self.send_modifiers(client);
        Ok(())
    }

    /// A compositor does not derive the modifiers of a virtual keyboard from its keys.
    fn send_modifiers(&self, client: &mut Client) {
        let down = self.down.iter().filter_map(|key| self.modifier_keys.get(key));
        let depressed = down.fold(0, |all, bit| all | bit);
        let request = Request::new(self.keyboard, keyboard::MODIFIERS).with(depressed);
        client.send(request.with(0).with(0).with(0));
    }

    /// Presses or releases a keysym. Returns whether the keyboard can give it.
    pub(super) fn change_key(&mut self, client: &mut Client, keysym: u32, pressed: bool) -> io::Result<bool> {
        let actions = match pressed {
            true => self.keys.press(keysym),
            false => Some(self.keys.release(keysym)),
        };
        let Some(actions) = actions else { return Ok(false) };
        self.act(client, actions)?;
        Ok(true)
    }

    fn act(&mut self, client: &mut Client, actions: Vec<KeyAction>) -> io::Result<()> {
        for action in actions {
            match action {
                KeyAction::Key(key, pressed) => {
                    let code = u32::from(key - EVDEV_OFFSET);
                    let request = Request::new(self.keyboard, keyboard::KEY).with(time_ms()).with(code);
                    client.send(request.with(pressed.into()));
                    if pressed {
                        self.down.insert(key)
                    } else {
                        self.down.remove(&key)
                    };
                    if self.modifier_keys.contains_key(&key) {
                        self.send_modifiers(client);
                    }
                }
                // A virtual keyboard has a state of its own, which is not set.
                KeyAction::Lock(_) => {}
                KeyAction::Bind(key, keysym) => {
                    self.bound.insert(key, keysym);
                    self.send_keymap(client)?;
                }
            }
        }
        Ok(())
    }

    /// Moves the pointer to a pixel of a picture of `size`, and changes its buttons.
    pub(super) fn change_pointer(
        &mut self,
        client: &mut Client,
        (x, y): (u32, u32),
        buttons: u16,
        (width, height): (u32, u32),
    ) {
        let pointer = self.pointer;
        let position = (x.min(width.saturating_sub(1)), y.min(height.saturating_sub(1)));
        let changed = self.buttons ^ buttons;
        if changed == 0 && self.position == position {
            return;
        }
        self.position = position;
        let motion = Request::new(pointer, pointer::MOTION_ABSOLUTE).with(time_ms());
        client.send(motion.with(position.0).with(position.1).with(width).with(height));
        for (bit, code) in BUTTONS.into_iter().filter(|(bit, _)| changed >> bit & 1 != 0) {
            let button = Request::new(pointer, pointer::BUTTON).with(time_ms()).with(code);
            client.send(button.with((buttons >> bit & 1).into()));
        }
        for (_, axis, steps) in WHEEL.into_iter().filter(|(bit, ..)| (changed & buttons) >> bit & 1 != 0) {
            client.send(Request::new(pointer, pointer::AXIS_SOURCE).with(pointer::WHEEL));
            let step = Request::new(pointer, pointer::AXIS_DISCRETE).with(time_ms()).with(axis);
            client.send(step.with_signed(steps * WHEEL_STEP).with_signed(steps));
        }
        client.send(Request::new(pointer, pointer::FRAME));
        self.buttons = buttons;
    }

    /// Releases all keys and buttons.
    pub(super) fn release_all(&mut self, client: &mut Client, size: (u32, u32)) -> io::Result<()> {
        let actions = self.keys.release_all();
        self.act(client, actions)?;
        self.change_pointer(client, self.position, 0, size);
        Ok(())
    }
}
