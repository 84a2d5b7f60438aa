//! Types keysyms on a server's keyboard: finds the key that gives a keysym, and the modifiers that it needs.

use super::layout::{LEVEL3S, Layout, NONE};
use std::collections::{BTreeMap, VecDeque};

/// Lock keys. They are not forwarded: the viewer's own locks already determine the keysyms that arrive.
pub(crate) const LOCKS: [u32; 3] = [0xff7f, 0xffe5, 0xffe6];
const SHIFTS: [u32; 2] = [0xffe1, 0xffe2];
/// Keysyms of function keys, which give no character (from `ISO_Lock`), apart from [`DEAD`].
const FUNCTIONS: std::ops::RangeInclusive<u32> = 0xfe00..=0xffff;
/// Keysyms of dead keys, from `dead_grave`, with a few of AccessX between them: Shift and the group select the accent, as they
/// select a character.
const DEAD: std::ops::RangeInclusive<u32> = 0xfe50..=0xfe9f;
/// The most keys that may be held at a time.
const HELD_MAX: usize = 64;

/// The part of a keyboard's state that lasts without a key: the group, such as the second layout of its user, and Caps Lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Locks {
    pub(crate) group: u8,
    pub(crate) has_caps: bool,
}

/// A change to the server's keyboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyAction {
    /// A key goes down or up.
    Key(u8, bool),
    /// A key gets a keysym.
    Bind(u8, u32),
    /// The keyboard gets another group or Caps Lock.
    Lock(Locks),
}

impl KeyAction {
    fn key(self) -> Option<u8> {
        match self {
            KeyAction::Key(key, _) | KeyAction::Bind(key, _) => Some(key),
            KeyAction::Lock(_) => None,
        }
    }
}

fn is_character(keysym: u32) -> bool {
    DEAD.contains(&keysym) || !FUNCTIONS.contains(&keysym)
}

/// A server's keyboard, driven by keysyms from a viewer.
#[derive(Debug, Default)]
pub(crate) struct Keyboard {
    layout: Layout,
    /// `None` if they are unknown or cannot change: then the first group counts.
    locks: Option<Locks>,
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

    /// Replaces the locks that the server's user has set.
    pub(crate) fn set_locks(&mut self, locks: Locks) {
        self.locks = Some(locks);
    }

    /// Returns the group, key and level that give `keysym`: those of the present group, if it has one.
    fn find(&self, keysym: u32) -> Option<(u8, u8, usize)> {
        let groups = self.locks.map_or([0; 3], |locks| [locks.group, 0, 1]);
        // The layout may name the keysym that a key was bound to before.
        let is_bound = |key: u8| self.bound.iter().any(|(bound, _)| *bound == key);
        groups.into_iter().find_map(|group| {
            let (key, level) = self.layout.find_key(keysym, group).filter(|(key, _)| !is_bound(*key))?;
            Some((group, key, level))
        })
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
        let (group, key, level) = match self.find(keysym) {
            Some(found) if !self.layout.depends_on_num_lock(found.1) => found,
            // A bound key has only one group.
            _ => (self.locks.map_or(0, |locks| locks.group), self.bind(keysym, &mut actions)?, 0),
        };
        if self.is_down(key) {
            self.held.retain(|_, held| *held != key);
            actions.push(KeyAction::Key(key, false));
        }
        // Change the locks and the modifiers, press the key, undo the changes in reverse order.
        let locks = self.locks.filter(|_| is_character(keysym));
        let needed = locks.map(|_| Locks { group, has_caps: false });
        actions.extend(needed.filter(|_| needed != locks).map(KeyAction::Lock));
        let changes = self.modifier_changes(keysym, (group, key, level));
        actions.extend(&changes);
        actions.push(KeyAction::Key(key, true));
        actions.extend(changes.iter().rev().map(|action| match action {
            KeyAction::Key(key, down) => KeyAction::Key(*key, !down),
            other => *other,
        }));
        actions.extend(locks.filter(|_| needed != locks).map(KeyAction::Lock));
        self.held.insert(keysym, key);
        Some(actions)
    }

    /// Returns the modifier changes that make `key` give `keysym` at `level`.
    fn modifier_changes(&self, keysym: u32, (group, key, level): (u8, u8, usize)) -> Vec<KeyAction> {
        let mut actions: Vec<KeyAction> = Vec::new();
        // A modifier does not change a function key's keysym: the application interprets Shift with an arrow.
        for (symbols, bit) in [(&SHIFTS, 1), (&LEVEL3S, 2)] {
            // On an unusual keyboard one key may be both modifiers, or may be `key` itself.
            let is_other =
                |other: &u8| *other != key && !actions.iter().any(|action| action.key() == Some(*other));
            let keys: Vec<u8> = self.layout.keys_with(symbols).into_iter().filter(is_other).collect();
            let down: Vec<u8> = keys.iter().copied().filter(|key| self.is_down(*key)).collect();
            let matters = is_character(keysym) && !(bit == 1 && self.layout.ignores_shift(key, group));
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
            let (_, key, _) = self.find(keysym)?;
            let is_on_key = |other: u32| self.find(other).is_some_and(|(_, found, _)| found == key);
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

    /// Returns the bound keys, and the keysym of each.
    pub(crate) fn bound(&self) -> impl Iterator<Item = (u8, u32)> {
        self.bound.iter().copied()
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
    fn the_groups_and_caps_lock_of_the_servers_user_change_no_character() {
        // A Latin letter beside a Cyrillic one, the Return key, Shift, and an unused key.
        let rows = [[0x66, 0x46, 0x6c1, 0x6e1], [0xff0d, 0, 0, 0], [SHIFT, 0, 0, 0], [0; 4]];
        let layout = Layout::new(8, 4, rows.concat(), &[10, 0, 0, 0, 0, 0, 0, 0]);
        let mut keys = Keyboard { layout, ..Keyboard::default() };
        let mut type_key = |locks: Option<(u8, bool)>, keysym| {
            keys.locks = locks.map(|(group, has_caps)| Locks { group, has_caps });
            let actions = keys.press(keysym).unwrap();
            keys.release(keysym);
            actions
        };
        let lock = |group, has_caps| KeyAction::Lock(Locks { group, has_caps });
        let press = |key| vec![Key(key, true)];
        assert_eq!(type_key(None, 0x66), press(8));
        assert_eq!(type_key(Some((0, false)), 0x66), press(8));
        assert_eq!(type_key(Some((1, false)), 0x6c1), press(8));
        let [latin, cyrillic] = [0, 1].map(|group| lock(group, false));
        assert_eq!(type_key(Some((1, false)), 0x66), [vec![latin], press(8), vec![cyrillic]].concat());
        assert_eq!(type_key(Some((0, false)), 0x6c1), [vec![cyrillic], press(8), vec![latin]].concat());
        assert_eq!(type_key(Some((3, false)), 0x66), [vec![latin], press(8), vec![lock(3, false)]].concat());
        assert_eq!(type_key(Some((0, true)), 0x66), [vec![latin], press(8), vec![lock(0, true)]].concat());
        assert_eq!(type_key(Some((1, true)), 0xff0d), press(9), "no lock changes a function key");
        let bound = [vec![Bind(11, 0x3c0)], press(11)].concat();
        assert_eq!(type_key(Some((1, false)), 0x3c0), bound, "a bound key has one keysym in every group");
        let without_caps = [vec![cyrillic], press(11), vec![lock(1, true)]].concat();
        assert_eq!(type_key(Some((1, true)), 0x3c0), without_caps, "a program makes a capital of it");
    }

    /// The accents of two keyboards are on different levels: `dead_tilde` with Shift on one, without it on the other.
    #[test]
    fn the_modifiers_and_the_group_of_a_dead_key_are_those_of_its_accent() {
        let (tilde, circumflex) = (0xfe53, 0xfe52);
        // A dead key beside two Cyrillic letters, Shift, AltGr, and a key with the accent on its third level.
        let rows = [
            [tilde, circumflex, 0x6c1, 0x6e1, 0, 0],
            [SHIFT, 0, 0, 0, 0, 0],
            [ALT_GR, 0, 0, 0, 0, 0],
            [0x32, 0x40, 0, 0, 0xfe50, 0],
        ];
        let layout = Layout::new(8, 6, rows.concat(), &[9, 0, 0, 0, 0, 0, 0, 10]);
        let mut keys = Keyboard { layout, ..Keyboard::default() };
        assert_eq!(keys.press(SHIFT), Some(vec![Key(9, true)]));
        assert_eq!(keys.press(tilde), Some(vec![Key(9, false), Key(8, true), Key(9, true)]));
        keys.release(tilde);
        assert_eq!(keys.press(circumflex), Some(vec![Key(8, true)]), "Shift is down already");
        keys.release_all();
        assert_eq!(keys.press(0xfe50), Some(vec![Key(10, true), Key(11, true), Key(10, false)]));
        keys.release_all();
        keys.locks = Some(Locks { group: 1, has_caps: false });
        let [latin, cyrillic] = [0, 1].map(|group| KeyAction::Lock(Locks { group, has_caps: false }));
        assert_eq!(keys.press(tilde), Some(vec![latin, Key(8, true), cyrillic]));
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

        /// For any layout, any locks and any input, each key that goes down comes up exactly once.
        #[test]
        fn every_pressed_key_is_released(
            keysyms in prop::collection::vec(prop_oneof![0..0x80u32, Just(SHIFT), Just(ALT_GR)], 0..90),
            columns in 0..7usize,
            locks in prop::option::of((0..4u8, any::<bool>())),
            modifiers in prop::collection::vec(any::<u8>(), 0..20),
            typed in prop::collection::vec((prop_oneof![0..0x80u32, Just(SHIFT), Just(ALT_GR)], any::<bool>()), 0..60),
        ) {
            let layout = Layout::new(8, columns, keysyms, &modifiers);
            let locks = locks.map(|(group, has_caps)| Locks { group, has_caps });
            let mut keys = Keyboard { layout, locks, ..Keyboard::default() };
            let mut down = std::collections::BTreeSet::new();
            let mut follow = |actions: Vec<KeyAction>| {
                actions.into_iter().all(|action| match action {
                    Key(key, true) => down.insert(key),
                    Key(key, false) => down.remove(&key),
                    Bind(..) | KeyAction::Lock(_) => true,
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
