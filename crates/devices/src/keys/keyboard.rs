//! Types keysyms on a server's keyboard: finds the key that gives a keysym, and the modifiers that it needs.

use super::layout::{LEVEL3S, Layout, NONE};
use std::collections::{BTreeMap, VecDeque};

/// Lock keys. They are not forwarded: the viewer's own locks already determine the keysyms that arrive.
pub(crate) const LOCKS: [u32; 3] = [0xff7f, 0xffe5, 0xffe6];
const SHIFTS: [u32; 2] = [0xffe1, 0xffe2];
/// Keysyms of function keys, which give no character (from `ISO_Lock`).
const FUNCTIONS: std::ops::RangeInclusive<u32> = 0xfe00..=0xffff;
/// The most keys that may be held at a time.
const HELD_MAX: usize = 64;

/// A change to the server's keyboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyAction {
    /// A key goes down or up.
    Key(u8, bool),
    /// A key gets a keysym.
    Bind(u8, u32),
}

impl KeyAction {
    fn key(self) -> u8 {
        match self {
            KeyAction::Key(key, _) | KeyAction::Bind(key, _) => key,
        }
    }
}

/// A server's keyboard, driven by keysyms from a viewer.
#[derive(Debug, Default)]
pub(crate) struct Keyboard {
    layout: Layout,
    /// The keysyms that are down, and the key of each.
    held: BTreeMap<u32, u8>,
    /// Unused keys that were bound to a keysym, the latest last.
    bound: VecDeque<(u8, u32)>,
}

impl Keyboard {
    /// Replaces the layout.
    pub(crate) fn set_layout(&mut self, layout: Layout) {
        self.layout = layout;
    }

    fn is_down(&self, key: u8) -> bool {
        self.held.values().any(|held| *held == key)
    }

    /// Returns the actions that press the key for `keysym`; `None` if no key can give it.
    ///
    /// There are no actions if the keysym is down already, because the server repeats keys on its own.
    pub(crate) fn press(&mut self, keysym: u32) -> Option<Vec<KeyAction>> {
        if LOCKS.contains(&keysym) || self.held.contains_key(&keysym) {
            return Some(Vec::new());
        }
        if keysym == NONE || self.held.len() >= HELD_MAX {
            return None;
        }
        let mut actions = Vec::new();
        let (key, level) = match self.layout.find_key(keysym) {
            Some(found) if !self.layout.depends_on_num_lock(found.0) => found,
            _ => (self.bind(keysym, &mut actions)?, 0),
        };
        if self.is_down(key) {
            self.held.retain(|_, held| *held != key);
            actions.push(KeyAction::Key(key, false));
        }
        // Change the modifiers, press the key, undo the changes in reverse order.
        let changes = self.modifier_changes(keysym, key, level);
        actions.extend(&changes);
        actions.push(KeyAction::Key(key, true));
        actions.extend(changes.iter().rev().map(|action| match action {
            KeyAction::Key(key, down) => KeyAction::Key(*key, !down),
            bind => *bind,
        }));
        self.held.insert(keysym, key);
        Some(actions)
    }

    /// Returns the modifier changes that make `key` give `keysym` at `level`.
    fn modifier_changes(&self, keysym: u32, key: u8, level: usize) -> Vec<KeyAction> {
        let mut actions: Vec<KeyAction> = Vec::new();
        // A modifier does not change a function key's keysym: the application interprets Shift with an arrow.
        let is_character = !FUNCTIONS.contains(&keysym);
        for (symbols, bit) in [(&SHIFTS, 1), (&LEVEL3S, 2)] {
            // On an unusual keyboard one key may be both modifiers, or may be `key` itself.
            let is_other = |other: &u8| *other != key && !actions.iter().any(|action| action.key() == *other);
            let keys: Vec<u8> = self.layout.keys_with(symbols).into_iter().filter(is_other).collect();
            let down: Vec<u8> = keys.iter().copied().filter(|key| self.is_down(*key)).collect();
            let matters = is_character && !(bit == 1 && self.layout.ignores_shift(key));
            match (level & bit != 0, down.is_empty()) {
                (true, true) => actions.extend(keys.first().map(|key| KeyAction::Key(*key, true))),
                (false, false) if matters => {
                    actions.extend(down.into_iter().map(|key| KeyAction::Key(key, false)))
                }
                _ => {}
            }
        }
        actions
    }

    /// Returns the actions that release the key that was pressed for `keysym`.
    pub(crate) fn release(&mut self, keysym: u32) -> Vec<KeyAction> {
        let key = self.held.remove(&keysym).or_else(|| {
            // The key was pressed for another of its keysyms: Shift has changed since then.
            let (key, _) = self.layout.find_key(keysym)?;
            let is_on_key = |other: u32| self.layout.find_key(other).is_some_and(|(found, _)| found == key);
            let other = self.held.iter().find(|(other, held)| **held == key || is_on_key(**other));
            let other = other.map(|(other, _)| *other)?;
            self.held.remove(&other)
        });
        key.map(|key| KeyAction::Key(key, false)).into_iter().collect()
    }

    /// Returns the actions that release all keys.
    pub(crate) fn release_all(&mut self) -> Vec<KeyAction> {
        std::mem::take(&mut self.held).into_values().map(|key| KeyAction::Key(key, false)).collect()
    }

    /// Returns the actions that remove the keysyms of all bound keys.
    pub(crate) fn unbind_all(&mut self) -> Vec<KeyAction> {
        std::mem::take(&mut self.bound).into_iter().map(|(key, _)| KeyAction::Bind(key, NONE)).collect()
    }

    /// Binds `keysym` to an unused key: one that was never bound, else the one that was bound the longest ago.
    fn bind(&mut self, keysym: u32, actions: &mut Vec<KeyAction>) -> Option<u8> {
        if let Some((key, _)) = self.bound.iter().find(|(_, bound)| *bound == keysym) {
            return Some(*key);
        }
        let is_free = |key: &u8| {
            self.layout.row(*key).iter().all(|symbol| *symbol == NONE)
                && !self.bound.iter().any(|(bound, _)| bound == key)
        };
        let key = match self.layout.keys().rev().find(is_free) {
            Some(key) => key,
            None => {
                let oldest = self.bound.iter().position(|(key, _)| !self.is_down(*key))?;
                self.bound.remove(oldest)?.0
            }
        };
        self.bound.push_back((key, keysym));
        actions.push(KeyAction::Bind(key, keysym));
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::{LOCK_BIT, SHIFT_BIT, UNICODE};
    use super::*;
    use KeyAction::{Bind, Key};
    use proptest::prelude::*;

    const SHIFT: u32 = 0xffe1;
    const ALT_GR: u32 = 0xfe03;

    /// Keys 8 to 16: a letter, a digit, a letter without its capital, Shift, AltGr, the space, an arrow, and two unused
    /// keys.
    fn layout() -> Layout {
        let rows: [[u32; 6]; 9] = [
            [0x61, 0x41, 0, 0, 0xe4, 0],
            [0x32, 0x40, 0, 0, 0xb2, 0],
            [0x62, 0, 0, 0, 0, 0],
            [SHIFT, 0, 0, 0, 0, 0],
            [ALT_GR, 0, 0, 0, 0, 0],
            [0x20, 0, 0, 0, 0, 0],
            [0xff51, 0, 0, 0, 0, 0],
            [0; 6],
            [0; 6],
        ];
        let mut modifiers = [0; 8];
        (modifiers[0], modifiers[7]) = (11, 12);
        Layout::new(8, 6, rows.concat(), &modifiers)
    }

    fn keyboard() -> Keyboard {
        Keyboard { layout: layout(), ..Keyboard::default() }
    }

    #[test]
    fn modifiers_change_around_a_key_press() {
        let mut keys = keyboard();
        assert_eq!(keys.press(0x61), Some(vec![Key(8, true)]));
        assert_eq!(keys.press(0x61), Some(vec![]), "the server repeats keys on its own");
        assert_eq!(keys.release(0x61), [Key(8, false)]);
        assert_eq!(keys.press(0x41), Some(vec![Key(11, true), Key(8, true), Key(11, false)]));
        assert_eq!(keys.release(0x41), [Key(8, false)]);
        assert_eq!(keys.press(SHIFT), Some(vec![Key(11, true)]));
        assert_eq!(keys.press(0x40), Some(vec![Key(9, true)]), "Shift is down already");
        assert_eq!(keys.press(0x62), Some(vec![Key(11, false), Key(10, true), Key(11, true)]));
        assert_eq!(keys.press(0x20), Some(vec![Key(13, true)]), "Shift makes no difference");
        assert_eq!(keys.press(0xff51), Some(vec![Key(14, true)]), "the application interprets Shift");
        let third = keys.press(0xb2).unwrap();
        assert_eq!(
            third,
            [Key(9, false), Key(11, false), Key(12, true), Key(9, true), Key(12, false), Key(11, true)]
        );
        assert_eq!(keys.release(SHIFT), [Key(11, false)]);
        assert_eq!(keys.release_all().len(), 4);
        assert_eq!(keys.release_all(), []);
    }

    #[test]
    fn a_key_is_released_under_another_of_its_keysyms() {
        let mut keys = keyboard();
        keys.press(SHIFT);
        keys.press(0x41);
        keys.release(SHIFT);
        assert_eq!(keys.release(0x61), [Key(8, false)]);
        assert_eq!(keys.release(0x61), []);
    }

    #[test]
    fn both_keysyms_of_a_character_match_and_a_letter_has_two_cases() {
        let mut keys = keyboard();
        assert_eq!(keys.press(UNICODE + 0x61), Some(vec![Key(8, true)]));
        assert_eq!(keys.press(0x42), Some(vec![Key(11, true), Key(10, true), Key(11, false)]));
        assert_eq!(keys.press(0xffe5), Some(vec![]), "Caps Lock stays at the viewer");
    }

    #[test]
    fn keypad_keysyms_do_not_depend_on_num_lock() {
        let (five, begin) = (0xffb5, 0xff9d);
        let layout = Layout::new(8, 2, vec![begin, five, 0xffab, 0xffab, 0, 0, 0, 0], &[0; 8]);
        let mut keys = Keyboard { layout, ..Keyboard::default() };
        assert_eq!(keys.press(0xffab), Some(vec![Key(9, true)]), "Num Lock does not change plus");
        assert_eq!(keys.press(five), Some(vec![Bind(11, five), Key(11, true)]));
        assert_eq!(keys.release(begin), [Key(11, false)], "the viewer's Num Lock has changed");
        assert_eq!(keys.press(begin), Some(vec![Bind(10, begin), Key(10, true)]));
        assert_eq!(keys.release(begin), [Key(10, false)]);
    }

    #[test]
    fn a_keysym_without_a_key_is_bound_to_an_unused_key() {
        let mut keys = keyboard();
        let euro = UNICODE + 0x20ac;
        assert_eq!(keys.press(euro), Some(vec![Bind(16, euro), Key(16, true)]));
        assert_eq!(keys.press(0x3c0), Some(vec![Bind(15, 0x3c0), Key(15, true)]));
        assert_eq!(keys.press(0x3c1), None, "both unused keys are down");
        keys.release(0x3c0);
        assert_eq!(keys.press(0x3c1), Some(vec![Bind(15, 0x3c1), Key(15, true)]));
        keys.release(euro);
        assert_eq!(keys.press(euro), Some(vec![Key(16, true)]), "it is still bound");
        assert_eq!(keys.unbind_all().len(), 2);
    }

    #[test]
    fn the_state_selects_the_keysym_of_a_key() {
        let layout = layout();
        for (key, state, keysym) in [
            (8, 0, 0x61),
            (8, SHIFT_BIT, 0x41),
            (8, LOCK_BIT, 0x41),
            (8, LOCK_BIT | SHIFT_BIT, 0x61),
            (9, LOCK_BIT, 0x32),
            (9, 1 << 7, 0xb2),
            (10, SHIFT_BIT, 0x42),
            (10, 1 << 7, 0x62),
            (15, 0, 0),
            (200, 0, 0),
        ] {
            assert_eq!(layout.keysym(key, state), keysym, "key {key}, modifiers {state:#x}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// For any layout and any input, each key that goes down comes up exactly once.
        #[test]
        fn every_pressed_key_is_released(
            keysyms in prop::collection::vec(prop_oneof![0..0x80u32, Just(SHIFT), Just(ALT_GR)], 0..90),
            columns in 0..7usize,
            modifiers in prop::collection::vec(any::<u8>(), 0..20),
            typed in prop::collection::vec((prop_oneof![0..0x80u32, Just(SHIFT), Just(ALT_GR)], any::<bool>()), 0..60),
        ) {
            let layout = Layout::new(8, columns, keysyms, &modifiers);
            let mut keys = Keyboard { layout, ..Keyboard::default() };
            let mut down = std::collections::BTreeSet::new();
            let mut follow = |actions: Vec<KeyAction>| {
                actions.into_iter().all(|action| match action {
                    Key(key, true) => down.insert(key),
                    Key(key, false) => down.remove(&key),
                    Bind(..) => true,
                })
            };
            for (keysym, pressed) in typed {
                let actions = if pressed { keys.press(keysym).unwrap_or_default() } else { keys.release(keysym) };
                prop_assert!(follow(actions));
            }
            prop_assert!(follow(keys.release_all()));
            prop_assert!(down.is_empty());
        }
    }
}
