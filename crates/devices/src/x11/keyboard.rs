//! Typing on a server's keyboard: a keysym becomes the key that gives it, with the modifiers that it needs.

use super::layout::{LEVEL3S, Layout, NONE};
use std::collections::{BTreeMap, VecDeque};

/// Keys whose state stays where the hand is: what comes of them says all.
const LOCKS: [u32; 3] = [0xff7f, 0xffe5, 0xffe6];
const SHIFTS: [u32; 2] = [0xffe1, 0xffe2];
/// Keysyms from here on are no characters (`ISO_Lock`, and up).
const FUNCTIONS: std::ops::RangeInclusive<u32> = 0xfe00..=0xffff;
/// Most keys that are held at a time.
const HELD_MAX: usize = 64;

/// One thing to do to the server's keyboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// A key goes down or up.
    Key(u8, bool),
    /// A key without a symbol gets one.
    Bind(u8, u32),
}

impl Act {
    fn key(self) -> u8 {
        match self {
            Act::Key(key, _) | Act::Bind(key, _) => key,
        }
    }
}

/// A server's keyboard, typed on by somebody elsewhere.
#[derive(Debug, Default)]
pub(super) struct Keyboard {
    layout: Layout,
    /// What is held down, and by which key.
    held: BTreeMap<u32, u8>,
    /// Keys that had no symbol and were given one, the latest last.
    bound: VecDeque<(u8, u32)>,
}

impl Keyboard {
    /// The layout is this now.
    pub(super) fn set_layout(&mut self, layout: Layout) {
        self.layout = layout;
    }

    fn is_down(&self, key: u8) -> bool {
        self.held.values().any(|held| *held == key)
    }

    /// What to do so that a key goes down that gives `keysym`. Nothing if it is down: the server repeats keys by
    /// itself. `None` if it has none to give.
    pub(super) fn press(&mut self, keysym: u32) -> Option<Vec<Act>> {
        if LOCKS.contains(&keysym) || self.held.contains_key(&keysym) {
            return Some(Vec::new());
        }
        if keysym == NONE || self.held.len() >= HELD_MAX {
            return None;
        }
        let mut acts = Vec::new();
        let (key, level) = match self.layout.place(keysym) {
            Some(place) if !self.layout.needs_num_lock(place.0) => place,
            _ => (self.bind(keysym, &mut acts)?, 0),
        };
        if self.is_down(key) {
            self.held.retain(|_, held| *held != key);
            acts.push(Act::Key(key, false));
        }
        let around = self.around(keysym, key, level);
        acts.extend(&around);
        acts.push(Act::Key(key, true));
        acts.extend(around.iter().rev().map(|act| match act {
            Act::Key(key, down) => Act::Key(*key, !down),
            bind => *bind,
        }));
        self.held.insert(keysym, key);
        Some(acts)
    }

    /// Modifiers that must change while a key goes down, so that it gives this symbol and no other.
    fn around(&self, keysym: u32, key: u8, level: usize) -> Vec<Act> {
        let mut acts: Vec<Act> = Vec::new();
        // What is no character means the same with any modifier: Shift and an arrow is for the application.
        let is_character = !FUNCTIONS.contains(&keysym);
        for (symbols, bit) in [(&SHIFTS, 1), (&LEVEL3S, 2)] {
            // On an odd keyboard one key may be both, or the very key that goes down.
            let is_other = |other: &u8| *other != key && !acts.iter().any(|act| act.key() == *other);
            let keys: Vec<u8> = self.layout.with(symbols).into_iter().filter(is_other).collect();
            let down: Vec<u8> = keys.iter().copied().filter(|key| self.is_down(*key)).collect();
            let matters = is_character && !(bit == 1 && self.layout.is_single(key));
            match (level & bit != 0, down.is_empty()) {
                (true, true) => acts.extend(keys.first().map(|key| Act::Key(*key, true))),
                (false, false) if matters => acts.extend(down.into_iter().map(|key| Act::Key(key, false))),
                _ => {}
            }
        }
        acts
    }

    /// What to do so that the key that gave `keysym` comes up.
    pub(super) fn release(&mut self, keysym: u32) -> Vec<Act> {
        let key = self.held.remove(&keysym).or_else(|| {
            // It went down as another symbol of its key, before Shift came up.
            let (key, _) = self.layout.place(keysym)?;
            let is_of = |other: u32| self.layout.place(other).is_some_and(|(place, _)| place == key);
            let other = self.held.iter().find(|(other, held)| **held == key || is_of(**other));
            let other = other.map(|(other, _)| *other)?;
            self.held.remove(&other)
        });
        key.map(|key| Act::Key(key, false)).into_iter().collect()
    }

    /// What to do so that all keys come up.
    pub(super) fn release_all(&mut self) -> Vec<Act> {
        std::mem::take(&mut self.held).into_values().map(|key| Act::Key(key, false)).collect()
    }

    /// What to do so that keys without a symbol have none again.
    pub(super) fn unbind_all(&mut self) -> Vec<Act> {
        std::mem::take(&mut self.bound).into_iter().map(|(key, _)| Act::Bind(key, NONE)).collect()
    }

    /// Gives a key without a symbol this one: a free one, or the one that was given one longest ago.
    fn bind(&mut self, keysym: u32, acts: &mut Vec<Act>) -> Option<u8> {
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
        acts.push(Act::Bind(key, keysym));
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::{LOCK_BIT, SHIFT_BIT, UNICODE};
    use super::*;
    use Act::{Bind, Key};
    use proptest::prelude::*;

    const SHIFT: u32 = 0xffe1;
    const ALT_GR: u32 = 0xfe03;

    /// Keys 8 to 16: a letter, a digit, a letter without its capital, Shift, AltGr, the space, an arrow, and two
    /// without symbols.
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
    fn modifiers_are_as_a_symbol_needs_them_while_its_key_goes_down() {
        let mut keys = keyboard();
        assert_eq!(keys.press(0x61), Some(vec![Key(8, true)]));
        assert_eq!(keys.press(0x61), Some(vec![]), "the server repeats by itself");
        assert_eq!(keys.release(0x61), [Key(8, false)]);
        assert_eq!(keys.press(0x41), Some(vec![Key(11, true), Key(8, true), Key(11, false)]));
        assert_eq!(keys.release(0x41), [Key(8, false)]);
        assert_eq!(keys.press(SHIFT), Some(vec![Key(11, true)]));
        assert_eq!(keys.press(0x40), Some(vec![Key(9, true)]), "Shift is down already");
        assert_eq!(keys.press(0x62), Some(vec![Key(11, false), Key(10, true), Key(11, true)]));
        assert_eq!(keys.press(0x20), Some(vec![Key(13, true)]), "Shift makes no difference");
        assert_eq!(keys.press(0xff51), Some(vec![Key(14, true)]), "Shift is for the application");
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
    fn a_key_comes_up_by_whatever_it_is_called_by_then() {
        let mut keys = keyboard();
        keys.press(SHIFT);
        keys.press(0x41);
        keys.release(SHIFT);
        assert_eq!(keys.release(0x61), [Key(8, false)]);
        assert_eq!(keys.release(0x61), []);
    }

    #[test]
    fn the_two_numbers_of_a_character_are_one_and_a_letter_has_two_cases() {
        let mut keys = keyboard();
        assert_eq!(keys.press(UNICODE + 0x61), Some(vec![Key(8, true)]));
        assert_eq!(keys.press(0x42), Some(vec![Key(11, true), Key(10, true), Key(11, false)]));
        assert_eq!(keys.press(0xffe5), Some(vec![]), "Caps Lock stays where the hand is");
    }

    #[test]
    fn keys_of_the_keypad_mean_the_same_with_and_without_num_lock() {
        let (five, begin) = (0xffb5, 0xff9d);
        let layout = Layout::new(8, 2, vec![begin, five, 0xffab, 0xffab, 0, 0, 0, 0], &[0; 8]);
        let mut keys = Keyboard { layout, ..Keyboard::default() };
        assert_eq!(keys.press(0xffab), Some(vec![Key(9, true)]), "plus is always plus");
        assert_eq!(keys.press(five), Some(vec![Bind(11, five), Key(11, true)]));
        assert_eq!(keys.release(begin), [Key(11, false)], "Num Lock went on or off meanwhile");
        assert_eq!(keys.press(begin), Some(vec![Bind(10, begin), Key(10, true)]));
        assert_eq!(keys.release(begin), [Key(10, false)]);
    }

    #[test]
    fn what_no_key_gives_is_given_to_a_free_one() {
        let mut keys = keyboard();
        let euro = UNICODE + 0x20ac;
        assert_eq!(keys.press(euro), Some(vec![Bind(16, euro), Key(16, true)]));
        assert_eq!(keys.press(0x3c0), Some(vec![Bind(15, 0x3c0), Key(15, true)]));
        assert_eq!(keys.press(0x3c1), None, "both are held");
        keys.release(0x3c0);
        assert_eq!(keys.press(0x3c1), Some(vec![Bind(15, 0x3c1), Key(15, true)]));
        keys.release(euro);
        assert_eq!(keys.press(euro), Some(vec![Key(16, true)]), "it still has it");
        assert_eq!(keys.unbind_all().len(), 2);
    }

    #[test]
    fn a_key_that_is_hit_gives_what_the_layout_says() {
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

        /// However somebody types, on whatever keyboard, every key that went down comes up, and none twice.
        #[test]
        fn all_that_goes_down_comes_up(
            keysyms in prop::collection::vec(prop_oneof![0..0x80u32, Just(SHIFT), Just(ALT_GR)], 0..90),
            columns in 0..7usize,
            modifiers in prop::collection::vec(any::<u8>(), 0..20),
            typed in prop::collection::vec((prop_oneof![0..0x80u32, Just(SHIFT), Just(ALT_GR)], any::<bool>()), 0..60),
        ) {
            let layout = Layout::new(8, columns, keysyms, &modifiers);
            let mut keys = Keyboard { layout, ..Keyboard::default() };
            let mut down = std::collections::BTreeSet::new();
            let mut follow = |acts: Vec<Act>| {
                acts.into_iter().all(|act| match act {
                    Key(key, true) => down.insert(key),
                    Key(key, false) => down.remove(&key),
                    Bind(..) => true,
                })
            };
            for (keysym, pressed) in typed {
                let acts = if pressed { keys.press(keysym).unwrap_or_default() } else { keys.release(keysym) };
                prop_assert!(follow(acts));
            }
            prop_assert!(follow(keys.release_all()));
            prop_assert!(down.is_empty());
        }
    }
}
