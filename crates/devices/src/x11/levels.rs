//! The keysyms of a server's keys by group and level, and the modifiers that select the level (XKB protocol, sections 7 and 12).
//!
//! The map of the core protocol does not tell where the levels of each group are in a row, nor which modifiers select them.

use crate::keys::layout::{LOCK_BIT, Layout, NONE, UNICODE, upper};
use x11rb_protocol::protocol::xkb::{GetMapReply, KeySymMap, KeyType};

/// Groups and levels of a [`Layout`].
const GROUPS: usize = 2;
const LEVELS: usize = 4;
/// Bits of a key's `group_info`: the number of groups, and the treatment of a group that the key does not have.
const GROUP_COUNT: u8 = 0x0f;
const CLAMPS: u8 = 0x40;
const REDIRECTS: u8 = 0x80;

/// The keysyms of a server's keys.
#[derive(Debug, Default)]
pub(super) struct Levels {
    first: u8,
    types: Vec<KeyType>,
    keys: Vec<KeySymMap>,
}

/// Control and Alt (`Mod1`) are sent as keys of their own, and select the level at the screen: Print with Alt stays Print here.
const SENT_BITS: u16 = 1 << 2 | 1 << 3;
/// The modifiers of shortcuts: Control, Alt and Super (`Mod4`).
const SHORTCUT_BITS: u16 = SENT_BITS | 1 << 6;
/// The keysyms of the characters of ASCII.
const ASCII: std::ops::RangeInclusive<u32> = 0x20..=0x7e;

impl Levels {
    /// Takes a server's map, which has all types and keys.
    pub(super) fn new(reply: GetMapReply) -> Levels {
        let (types, keys) = (reply.map.types_rtrn, reply.map.syms_rtrn);
        Levels {
            first: reply.first_key_sym,
            types: types.unwrap_or_default(),
            keys: keys.unwrap_or_default(),
        }
    }

    /// Returns the keysym of a key that is pressed while the modifiers and the group in `state` are active.
    ///
    /// In a shortcut, a letter of another script gives way to the character of ASCII that the same key has in another group.
    /// Toolkits choose it, too, but at the screen they have only the keysym, not the key.
    pub(super) fn keysym(&self, key: u8, state: u16) -> u32 {
        let index = usize::from(key).checked_sub(self.first.into());
        let Some(key) = index.and_then(|index| self.keys.get(index)) else { return NONE };
        // Bits 13 and 14 of the state are the group.
        let Some(group) = group_of(key, usize::from(state >> 13 & 3)) else { return NONE };
        let found = self.keysym_in(key, group, state);
        if state & SHORTCUT_BITS == 0 || !is_of_other_script(found) {
            return found;
        }
        let mut all = (0..key.kt_index.len()).map(|group| self.keysym_in(key, group, state));
        all.find(|keysym| ASCII.contains(keysym)).unwrap_or(found)
    }

    /// Returns the keysym of a key in a group while the modifiers in `state` are active.
    fn keysym_in(&self, key: &KeySymMap, group: usize, state: u16) -> u32 {
        if group >= usize::from(key.group_info & GROUP_COUNT) {
            return NONE;
        }
        let kind = key.kt_index.get(group).and_then(|kind| self.types.get(usize::from(*kind)));
        let Some(kind) = kind else { return NONE };
        let modifiers = state & u16::from(kind.mods_mask) & !SENT_BITS;
        let is_selected = |mask| u16::from(mask) == modifiers;
        let selected = kind.map.iter().find(|entry| entry.active && is_selected(entry.mods_mask));
        let found = keysym_at(key, group, selected.map_or(0, |entry| entry.level.into()));
        // Programs make a capital letter of it if Caps Lock does not select a level.
        let is_capital = state & LOCK_BIT != 0 && u16::from(kind.mods_mask) & LOCK_BIT == 0;
        if is_capital { upper(found) } else { found }
    }

    /// Returns the first groups and levels of all keys.
    pub(super) fn layout(&self) -> Layout {
        let row = |key: &KeySymMap| {
            // The order of columns in a [`Layout`].
            let columns = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)];
            let count = usize::from(key.group_info & GROUP_COUNT);
            columns.map(|(group, level)| if group < count { keysym_at(key, group, level) } else { NONE })
        };
        let keysyms = self.keys.iter().flat_map(row).collect();
        Layout::new(self.first, GROUPS * LEVELS, keysyms, &[])
    }
}

/// Returns whether a keysym has a script other than Latin: kana to Greek, Hebrew to Korean, Unicode from Greek on.
fn is_of_other_script(keysym: u32) -> bool {
    let unicode = UNICODE + 0x370..=UNICODE + 0x10_ffff;
    matches!(keysym, 0x400..=0x7ff | 0xc00..=0xeff) || unicode.contains(&keysym)
}

/// Returns the group that a key has in place of `group`; `None` if the key has no group.
fn group_of(key: &KeySymMap, group: usize) -> Option<usize> {
    let count = usize::from(key.group_info & GROUP_COUNT).min(key.kt_index.len());
    let last = count.checked_sub(1)?;
    Some(match key.group_info {
        _ if group < count => group,
        info if info & REDIRECTS != 0 => usize::from(info >> 4 & 3).min(last),
        info if info & CLAMPS != 0 => last,
        _ => group % count,
    })
}

fn keysym_at(key: &KeySymMap, group: usize, level: usize) -> u32 {
    let width = usize::from(key.width);
    let found = (level < width).then(|| key.syms.get(group * width + level)).flatten();
    found.copied().unwrap_or(NONE)
}
