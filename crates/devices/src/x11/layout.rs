//! What the keys of a server's keyboard stand for, and the question that finds it out.

use super::client::{Client, Packet, Sequence};
use super::display::{answer, parse};
use std::io;
use std::time::Instant;
use x11rb_protocol::protocol::xproto::{
    GetKeyboardMappingReply, GetKeyboardMappingRequest, GetModifierMappingReply, GetModifierMappingRequest,
    MAPPING_NOTIFY_EVENT,
};

/// No symbol (`NoSymbol`).
pub(super) const NONE: u32 = 0;
/// `Mode_switch`, `ISO_Level3_Shift`.
pub(super) const LEVEL3S: [u32; 2] = [0xff7e, 0xfe03];
const NUM_LOCK: u32 = 0xff7f;
/// Keysyms of the keypad that depend on Num Lock.
const KEYPAD: std::ops::RangeInclusive<u32> = 0xff80..=0xffbd;
/// Unicode characters as keysyms begin here.
pub(super) const UNICODE: u32 = 0x0100_0000;
/// Bits of a key's modifiers (X11 protocol, appendix B: KEYBUTMASK).
pub(super) const SHIFT_BIT: u16 = 1 << 0;
pub(super) const LOCK_BIT: u16 = 1 << 1;

/// What the keys of a keyboard stand for (`GetKeyboardMapping`, `GetModifierMapping`).
#[derive(Debug, Clone, Default)]
pub(super) struct Layout {
    first: u8,
    /// Columns: without and with Shift, of the first group; of the second; then of the first group's third level.
    columns: usize,
    keysyms: Vec<u32>,
    /// Modifier bits that lead to the third level, and that make digits of the keypad.
    level3_bits: u16,
    num_lock_bits: u16,
}

impl Layout {
    /// `modifiers`: eight rows of keys.
    pub(super) fn new(first: u8, columns: usize, keysyms: Vec<u32>, modifiers: &[u8]) -> Layout {
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

    pub(super) fn row(&self, key: u8) -> &[u32] {
        let row = usize::from(key).checked_sub(self.first.into());
        row.and_then(|row| self.keysyms.get(row * self.columns..(row + 1) * self.columns)).unwrap_or_default()
    }

    pub(super) fn keys(&self) -> impl DoubleEndedIterator<Item = u8> + use<'_> {
        (self.first..=u8::MAX).filter(|key| !self.row(*key).is_empty())
    }

    /// What a key gives at a level: bit 0 is Shift, bit 1 the third level.
    fn at(&self, key: u8, level: usize) -> u32 {
        let column = if level < 2 { level } else { level + 2 };
        let row = self.row(key);
        let found = row.get(column).copied().unwrap_or(NONE);
        let plain = row.get(column & !1).copied().unwrap_or(NONE);
        // A letter alone stands for both of its cases.
        match (found, level & 1) {
            (NONE, 1) => upper(plain),
            _ if level & 1 == 0 && found == row.get(column + 1).copied().unwrap_or(NONE) => lower(found),
            _ => found,
        }
    }

    /// The key that gives a symbol, at the lowest level that does.
    pub(super) fn place(&self, keysym: u32) -> Option<(u8, usize)> {
        (0..4).find_map(|level| {
            let key = self.keys().find(|key| same(self.at(*key, level), keysym))?;
            Some((key, level))
        })
    }

    /// Whether Shift makes no difference to a key.
    pub(super) fn is_single(&self, key: u8) -> bool {
        let (plain, shifted) = (self.at(key, 0), self.at(key, 1));
        shifted == NONE || shifted == plain
    }

    /// Whether Num Lock, which stays where the hand is, decides what a key gives; with it Shift says nothing, or the opposite.
    pub(super) fn needs_num_lock(&self, key: u8) -> bool {
        KEYPAD.contains(&self.at(key, 1)) && !self.is_single(key)
    }

    /// The keysym of a key that was hit while modifiers were down.
    pub(super) fn keysym(&self, key: u8, state: u16) -> u32 {
        let group = usize::from(state >> 13 & 3);
        let is_shifted = state & SHIFT_BIT != 0;
        let level3 = if state & self.level3_bits != 0 { 2 } else { 0 };
        if group > 0 && self.columns >= 4 {
            let row = self.row(key);
            let found = row.get(2 + usize::from(is_shifted)).copied().unwrap_or(NONE);
            let found = if found == NONE { row.get(2).copied().unwrap_or(NONE) } else { found };
            if found != NONE {
                return self.with_lock(found, state);
            }
        }
        let is_keypad = KEYPAD.contains(&self.at(key, 1)) && state & self.num_lock_bits != 0;
        let level = level3 + usize::from(is_shifted != is_keypad);
        let found =
            [level, level & 1, 0].map(|level| self.at(key, level)).into_iter().find(|one| *one != NONE);
        self.with_lock(found.unwrap_or(NONE), state)
    }

    fn with_lock(&self, keysym: u32, state: u16) -> u32 {
        match state & LOCK_BIT != 0 {
            true if lower(keysym) == keysym => upper(keysym),
            true => lower(keysym),
            false => keysym,
        }
    }

    pub(super) fn with(&self, symbols: &[u32]) -> Vec<u8> {
        self.keys().filter(|key| self.row(*key).iter().any(|one| symbols.contains(one))).collect()
    }
}

/// The two numbers of a Latin-1 character are one.
fn same(one: u32, other: u32) -> bool {
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

fn upper(keysym: u32) -> u32 {
    match keysym {
        0x61..=0x7a | 0xe0..=0xf6 | 0xf8..=0xfe => keysym - 0x20,
        _ => keysym,
    }
}

/// The question what keys stand for, asked again whenever that changes.
#[derive(Debug, Default)]
pub(super) struct LayoutQuery {
    asked: Option<Sequence>,
    keys: Option<GetKeyboardMappingReply>,
}

impl LayoutQuery {
    /// Asks and waits for the answer.
    pub(super) fn wait(client: &mut Client, deadline: Instant) -> io::Result<Layout> {
        let asked = ask(client);
        let keys = answer(client, asked - 1, deadline)?;
        let modifiers = answer(client, asked, deadline)?;
        Ok(layout(client, keys, &modifiers))
    }

    /// Whether the answer is still to come: what keys stand for is not known.
    pub(super) fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// Takes what the server says; gives the new layout when it is known.
    pub(super) fn handle(&mut self, client: &mut Client, packet: &Packet) -> io::Result<Option<Layout>> {
        match packet {
            Packet::Event(event) if event[0] & 0x7f == MAPPING_NOTIFY_EVENT => {
                // One that is under way may be answered already, with what was so before.
                self.keys = None;
                self.asked = Some(ask(client));
            }
            Packet::Reply(request, bytes) if self.asked == Some(request + 1) => {
                self.keys = Some(parse(bytes)?)
            }
            Packet::Reply(request, bytes) if self.asked == Some(*request) => {
                self.asked = None;
                let modifiers = parse(bytes)?;
                return Ok(self.keys.take().map(|keys| layout(client, keys, &modifiers)));
            }
            _ => {}
        }
        Ok(None)
    }
}

/// Asks for keys, then modifiers; the answer to the second completes it.
fn ask(client: &mut Client) -> Sequence {
    let (first, last) = (client.setup().min_keycode, client.setup().max_keycode);
    let count = last.saturating_sub(first).saturating_add(1);
    client.ask(GetKeyboardMappingRequest { first_keycode: first, count }.serialize());
    client.ask(GetModifierMappingRequest.serialize())
}

fn layout(client: &Client, keys: GetKeyboardMappingReply, modifiers: &GetModifierMappingReply) -> Layout {
    let columns = keys.keysyms_per_keycode.into();
    Layout::new(client.setup().min_keycode, columns, keys.keysyms, &modifiers.keycodes)
}
