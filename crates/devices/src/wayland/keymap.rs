//! The layout of the virtual keyboard: a keyboard for the US, whose other keys are free for further keysyms.
//!
//! The position of a key matters only to games; everywhere else the keysym counts. Keys have the numbers of X11: those of
//! evdev, plus eight.

use crate::keys::layout::Layout;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The first and the last key of a keymap.
const FIRST: u8 = 8;
const LAST: u8 = 255;
/// Keysyms of a key: without and with Shift.
const LEVELS: usize = 2;
/// The number of an evdev key is so much lower.
pub(super) const EVDEV_OFFSET: u8 = 8;

/// Rows of keys with neighbouring numbers of evdev: the first number, the keysyms, and those with Shift.
const CHARACTERS: &[(u8, &str, &str)] = &[
    (2, "1234567890-=", "!@#$%^&*()_+"),
    (16, "qwertyuiop[]", "QWERTYUIOP{}"),
    (30, "asdfghjkl;'`", "ASDFGHJKL:\"~"),
    (43, "\\zxcvbnm,./", "|ZXCVBNM<>?"),
    (57, " ", " "),
];

/// Keys without characters: the number of evdev, and the keysym.
const FUNCTIONS: &[(u8, u32)] = &[
    (1, 0xff1b),
    (14, 0xff08),
    (15, 0xff09),
    (28, 0xff0d),
    (29, 0xffe3),
    (42, 0xffe1),
    (54, 0xffe2),
    (55, 0xffaa),
    (56, 0xffe9),
    (70, 0xff14),
    (71, 0xffb7),
    (72, 0xffb8),
    (73, 0xffb9),
    (74, 0xffad),
    (75, 0xffb4),
    (76, 0xffb5),
    (77, 0xffb6),
    (78, 0xffab),
    (79, 0xffb1),
    (80, 0xffb2),
    (81, 0xffb3),
    (82, 0xffb0),
    (83, 0xffae),
    (84, 0xfe03),
    (96, 0xff8d),
    (97, 0xffe4),
    (98, 0xffaf),
    (99, 0xff61),
    (100, 0xffea),
    (102, 0xff50),
    (103, 0xff52),
    (104, 0xff55),
    (105, 0xff51),
    (106, 0xff53),
    (107, 0xff57),
    (108, 0xff54),
    (109, 0xff56),
    (110, 0xff63),
    (111, 0xffff),
    (119, 0xff13),
    (125, 0xffeb),
    (126, 0xffec),
    (127, 0xff67),
];

/// The keysym of F1; F1 to F10 have the numbers of evdev from 59, F11 and F12 those from 87.
const F1: u32 = 0xffbe;

/// Modifier keys: keysyms, the name and the bit of their modifier.
const MODIFIERS: &[(&[u32], &str, u32)] = &[
    (&[0xffe1, 0xffe2], "Shift", 1 << 0),
    (&[0xffe3, 0xffe4], "Control", 1 << 2),
    (&[0xffe9, 0xffea], "Mod1", 1 << 3),
    (&[0xffeb, 0xffec], "Mod4", 1 << 6),
    (&[0xfe03], "Mod5", 1 << 7),
];

/// Returns the keysyms of each key.
fn rows() -> Vec<[u32; LEVELS]> {
    let mut rows = vec![[0; LEVELS]; usize::from(LAST - FIRST) + 1];
    let row = |number: u8| usize::from(number + EVDEV_OFFSET - FIRST);
    for (first, plain, shifted) in CHARACTERS {
        for (number, (plain, shifted)) in (*first..).zip(plain.chars().zip(shifted.chars())) {
            rows[row(number)] = [plain.into(), shifted.into()];
        }
    }
    let numbered = (59..69).chain(87..89).zip(F1..);
    for (number, keysym) in FUNCTIONS.iter().copied().chain(numbered) {
        rows[row(number)] = [keysym, 0];
    }
    rows
}

/// Returns the layout.
pub(super) fn layout() -> Layout {
    Layout::new(FIRST, LEVELS, rows().concat(), &[])
}

/// Returns the modifier bit of each modifier key.
pub(super) fn modifiers() -> BTreeMap<u8, u32> {
    let bit = |keysym: u32| {
        let found = MODIFIERS.iter().find(|(keysyms, ..)| keysyms.contains(&keysym));
        found.map(|(_, _, bit)| *bit)
    };
    (FIRST..=LAST).zip(rows()).filter_map(|(key, [plain, _])| Some((key, bit(plain)?))).collect()
}

/// Returns the keymap as libxkbcommon reads it. `bound` are keysyms of keys that the layout leaves free.
pub(super) fn text(bound: &BTreeMap<u8, u32>) -> String {
    let (mut codes, mut symbols) = (String::new(), String::new());
    for (key, [plain, shifted]) in (FIRST..=LAST).zip(rows()) {
        let plain = bound.get(&key).copied().unwrap_or(plain);
        if plain == 0 {
            continue;
        }
        // Writing to a string never fails.
        let _ = writeln!(codes, "<K{key}> = {key};");
        let _ = match shifted {
            0 => writeln!(symbols, "key <K{key}> {{ [ {plain:#06x} ] }};"),
            _ => writeln!(symbols, "key <K{key}> {{ [ {plain:#06x}, {shifted:#06x} ] }};"),
        };
    }
    for (key, bit) in modifiers() {
        let name = MODIFIERS.iter().find(|(.., of)| *of == bit).map_or("None", |(_, name, _)| name);
        let _ = writeln!(symbols, "modifier_map {name} {{ <K{key}> }};");
    }
    format!(
        "xkb_keymap {{\nxkb_keycodes \"outboard\" {{\nminimum = {FIRST};\nmaximum = {LAST};\n{codes}}};\n\
         xkb_types \"outboard\" {{ include \"complete\" }};\nxkb_compatibility \"outboard\" {{ include \"complete\" }};\n\
         xkb_symbols \"outboard\" {{\n{symbols}}};\n}};\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_and_modifier_has_a_key() {
        let layout = layout();
        for character in ' '..='~' {
            assert!(layout.find_key(character.into(), 0).is_some(), "{character}");
        }
        assert_eq!(layout.find_key('A'.into(), 0), Some((38, 1)), "where evdev has the letter");
        assert_eq!(layout.find_key(F1 + 11, 0), Some((88 + EVDEV_OFFSET, 0)));
        let bits: u32 = modifiers().values().fold(0, |all, bit| all | bit);
        assert_eq!((modifiers().len(), bits), (9, 0b1100_1101));
        assert!(layout.keys().filter(|key| layout.row(*key).iter().all(|one| *one == 0)).count() > 100);
    }

    #[test]
    fn a_bound_keysym_is_in_the_keymap() {
        let euro = 0x0100_20ac;
        let text = text(&BTreeMap::from([(255, euro)]));
        assert!(text.contains("<K255> = 255;") && text.contains("key <K255> { [ 0x10020ac ] };"), "{text}");
    }
}
