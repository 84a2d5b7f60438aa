//! The keysyms that a viewer holds. The portal takes keysyms, and the compositor alone knows its layout: which key gives a
//! keysym, and which other keysyms that key has.

use crate::keys::keyboard::LOCKS;
use std::collections::BTreeSet;

/// The most keys that may be held at a time.
const HELD_MAX: usize = 64;
/// Keysyms of modifier keys: from `Shift_L` to `Hyper_R`, `Mode_switch` and `ISO_Level3_Shift`.
const MODIFIERS: std::ops::RangeInclusive<u32> = 0xffe1..=0xffee;
const LEVEL3S: [u32; 2] = crate::keys::layout::LEVEL3S;

/// The held keysyms.
#[derive(Debug, Default)]
pub(super) struct HeldKeys(BTreeSet<u32>);

fn is_modifier(keysym: u32) -> bool {
    MODIFIERS.contains(&keysym) || LEVEL3S.contains(&keysym)
}

impl HeldKeys {
    /// Returns the keysym to press, if it is not held; `Err` if the keyboard cannot give it. Locks stay at the viewer: they
    /// already determine the keysyms that arrive.
    pub(super) fn press(&mut self, keysym: u32) -> Result<Option<u32>, ()> {
        match keysym {
            0 => Err(()),
            lock if LOCKS.contains(&lock) => Ok(None),
            held if self.0.contains(&held) => Ok(None),
            _ if self.0.len() >= HELD_MAX => Err(()),
            new => {
                self.0.insert(new);
                Ok(Some(new))
            }
        }
    }

    /// Returns the keysyms to release. A keysym that is not held belongs to a key that was pressed for another one: Shift has
    /// changed since then. Only the compositor knows which, so all keys but modifiers go up; none repeats for ever.
    pub(super) fn release(&mut self, keysym: u32) -> Vec<u32> {
        if LOCKS.contains(&keysym) {
            return Vec::new();
        }
        match self.0.remove(&keysym) {
            true => vec![keysym],
            false if is_modifier(keysym) => Vec::new(),
            false => {
                let held = std::mem::take(&mut self.0);
                let (modifiers, others): (BTreeSet<u32>, BTreeSet<u32>) =
                    held.into_iter().partition(|held| is_modifier(*held));
                self.0 = modifiers;
                others.into_iter().collect()
            }
        }
    }

    /// All keys go up.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIFT: u32 = 0xffe1;

    #[test]
    fn keys_are_pressed_once_and_released_once() {
        let mut keys = HeldKeys::default();
        assert_eq!(keys.press('a'.into()), Ok(Some('a'.into())));
        assert_eq!(keys.press('a'.into()), Ok(None), "the compositor repeats keys on its own");
        assert_eq!(keys.release('a'.into()), ['a'.into()]);
        assert!(keys.release('a'.into()).is_empty());
        assert_eq!(keys.press(0xffe5), Ok(None), "Caps Lock stays at the viewer");
        assert_eq!(keys.press(0), Err(()));
        for keysym in 1..=HELD_MAX as u32 {
            assert_eq!(keys.press(keysym), Ok(Some(keysym)));
        }
        assert_eq!(keys.press(0x100), Err(()));
    }

    #[test]
    fn a_key_does_not_stay_down_under_another_keysym() {
        let mut keys = HeldKeys::default();
        for keysym in [SHIFT, '!'.into()] {
            assert_eq!(keys.press(keysym), Ok(Some(keysym)));
        }
        assert_eq!(keys.release(0xffe2), [0; 0], "the other Shift");
        assert_eq!(keys.release('1'.into()), ['!'.into()]);
        assert_eq!(keys.release(SHIFT), [SHIFT]);
    }
}
