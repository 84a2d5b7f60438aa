//! The keysyms of a keyboard's keys.

/// No keysym (`NoSymbol`).
pub(crate) const NONE: u32 = 0;
/// The keysyms that select the third level: `Mode_switch`, `ISO_Level3_Shift`.
pub(crate) const LEVEL3S: [u32; 2] = [0xff7e, 0xfe03];
const NUM_LOCK: u32 = 0xff7f;
/// The keypad's keysyms; Num Lock selects between two of them.
const KEYPAD: std::ops::RangeInclusive<u32> = 0xff80..=0xffbd;
/// The offset of keysyms that are Unicode characters.
pub(crate) const UNICODE: u32 = 0x0100_0000;
/// Modifier bits in the state of a key event (X11 protocol, appendix B: KEYBUTMASK).
pub(crate) const SHIFT_BIT: u16 = 1 << 0;
pub(crate) const LOCK_BIT: u16 = 1 << 1;

/// The keysyms of a keyboard's keys (`GetKeyboardMapping`, `GetModifierMapping`).
#[derive(Debug, Clone, Default)]
pub(crate) struct Layout {
    first: u8,
    /// Keysyms in a row. Columns 0 and 1 are the first group without and with Shift, 2 and 3 the second group, 4 and 5
    /// the third level of the first group, 6 and 7 that of the second one.
    columns: usize,
    keysyms: Vec<u32>,
    /// The modifier bits that select the third level.
    level3_bits: u16,
    /// The modifier bits of Num Lock.
    num_lock_bits: u16,
}

impl Layout {
    /// Makes a layout. `modifiers` has eight rows of keys, one for each modifier bit.
    pub(crate) fn new(first: u8, columns: usize, keysyms: Vec<u32>, modifiers: &[u8]) -> Layout {
        let mut layout = Layout { first, columns: columns.max(1), keysyms, level3_bits: 0, num_lock_bits: 0 };
        let width = modifiers.len() / 8;
        for bit in 3..8 {
            let row = modifiers.chunks_exact(width.max(1)).nth(bit).unwrap_or_default();
            let symbols = || row.iter().flat_map(|key| layout.row(*key)).copied();
            let (is_level3, is_num_lock) =
                (symbols().any(|one| LEVEL3S.contains(&one)), symbols().any(|one| one == NUM_LOCK));
            layout.level3_bits |= u16::from(is_level3) << bit;
            layout.num_lock_bits |= u16::from(is_num_lock) << bit;
        }
        layout
    }

    /// Returns the keysyms of a key.
    pub(crate) fn row(&self, key: u8) -> &[u32] {
        let row = usize::from(key).checked_sub(self.first.into());
        row.and_then(|row| self.keysyms.get(row * self.columns..(row + 1) * self.columns)).unwrap_or_default()
    }

    /// Returns the keys that the layout has a row for.
    pub(crate) fn keys(&self) -> impl DoubleEndedIterator<Item = u8> + use<'_> {
        (self.first..=u8::MAX).filter(|key| !self.row(*key).is_empty())
    }

    /// Returns the keysym of a key at a level. Bit 0 of the level is Shift, bit 1 the third level. A key without a second group
    /// has its first one there too.
    fn keysym_at(&self, key: u8, group: usize, level: usize) -> u32 {
        let row = self.row(key);
        let group = if row.get(2).is_none_or(|symbol| *symbol == NONE) { 0 } else { group };
        let column = 2 * group + if level < 2 { level } else { level + 2 };
        let found = row.get(column).copied().unwrap_or(NONE);
        let plain = row.get(column & !1).copied().unwrap_or(NONE);
        // A row with only one case of a letter stands for both cases.
        match (found, level & 1) {
            (NONE, 1) => upper(plain),
            _ if level & 1 == 0 && found == row.get(column + 1).copied().unwrap_or(NONE) => lower(found),
            _ => found,
        }
    }

    /// Returns the key that gives `keysym` in a group, and the lowest level at which it does. Only the first two groups are known.
    pub(crate) fn find_key(&self, keysym: u32, group: u8) -> Option<(u8, usize)> {
        let group = usize::from(group);
        (0..4).filter(|_| group < 2).find_map(|level| {
            let gives = |key: &u8| is_same_character(self.keysym_at(*key, group, level), keysym);
            Some((self.keys().find(gives)?, level))
        })
    }

    /// Returns whether a key has the same keysym with and without Shift.
    pub(crate) fn ignores_shift(&self, key: u8, group: u8) -> bool {
        let [plain, shifted] = [0, 1].map(|level| self.keysym_at(key, group.into(), level));
        shifted == NONE || shifted == plain
    }

    /// Returns whether Num Lock selects the keysym of a key. Num Lock inverts Shift for such a key, and the state of
    /// Num Lock at the server is unknown, so Shift cannot select the keysym.
    pub(crate) fn depends_on_num_lock(&self, key: u8) -> bool {
        KEYPAD.contains(&self.keysym_at(key, 0, 1)) && !self.ignores_shift(key, 0)
    }

    /// Returns the keysym of a key that is pressed while the modifiers in `state` are down, at a keyboard with one group.
    pub(crate) fn keysym(&self, key: u8, state: u16) -> u32 {
        let is_shifted = state & SHIFT_BIT != 0;
        let level3 = if state & self.level3_bits != 0 { 2 } else { 0 };
        let is_keypad = KEYPAD.contains(&self.keysym_at(key, 0, 1)) && state & self.num_lock_bits != 0;
        let level = level3 + usize::from(is_shifted != is_keypad);
        let found = [level, level & 1, 0]
            .map(|level| self.keysym_at(key, 0, level))
            .into_iter()
            .find(|one| *one != NONE);
        self.with_lock(found.unwrap_or(NONE), state)
    }

    /// Inverts the case of a letter while Caps Lock is on.
    fn with_lock(&self, keysym: u32, state: u16) -> u32 {
        match state & LOCK_BIT != 0 {
            true if lower(keysym) == keysym => upper(keysym),
            true => lower(keysym),
            false => keysym,
        }
    }

    /// Returns the keys that have one of `symbols`.
    pub(crate) fn keys_with(&self, symbols: &[u32]) -> Vec<u8> {
        self.keys().filter(|key| self.row(*key).iter().any(|one| symbols.contains(one))).collect()
    }
}

/// Returns whether two keysyms mean the same character. A Latin-1 character has two keysyms: a legacy one and a Unicode
/// one.
fn is_same_character(one: u32, other: u32) -> bool {
    let legacy = |keysym: u32| match keysym.checked_sub(UNICODE) {
        Some(character @ 0x20..=0xff) => character,
        _ => keysym,
    };
    one != NONE && legacy(one) == legacy(other)
}

fn lower(keysym: u32) -> u32 {
    match keysym {
        0x41..=0x5a | 0xc0..=0xd6 | 0xd8..=0xde => keysym + 0x20,
        _ => keysym,
    }
}

pub(crate) fn upper(keysym: u32) -> u32 {
    match keysym {
        0x61..=0x7a | 0xe0..=0xf6 | 0xf8..=0xfe => keysym - 0x20,
        _ => keysym,
    }
}
