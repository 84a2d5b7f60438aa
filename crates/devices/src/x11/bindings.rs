//! Keysyms that are bound to unused keys of the server, and their record: a property of the root window, from which the next worker
//! learns those that a killed one has left.

use super::client::Client;
use super::display::wait_reply;
use super::layout::LayoutQuery;
use crate::keys::layout::NONE;
use std::io;
use std::time::Instant;
use x11rb_protocol::protocol::xproto::{
    self, Atom, AtomEnum, ChangeKeyboardMappingRequest, ChangePropertyRequest, DeletePropertyRequest,
    GetPropertyReply, GetPropertyRequest, InternAtomReply, InternAtomRequest, PropMode,
};

/// The name of the property. Its value is a key and a keysym for each binding.
const PROPERTY: &[u8] = b"OUTBOARD_BOUND";
/// The most bindings that are read: one for each key.
const BINDINGS_MAX: u32 = 256;

/// The bindings on the keyboard of a screen.
pub(super) struct Bindings {
    root: xproto::Window,
    property: Atom,
}

impl Bindings {
    /// Removes the bindings that a killed worker has left.
    pub(super) fn new(client: &mut Client, root: xproto::Window, deadline: Instant) -> io::Result<Bindings> {
        let intern = InternAtomRequest { only_if_exists: false, name: PROPERTY.into() };
        let request = client.query(intern.serialize());
        let property = wait_reply::<InternAtomReply>(client, request, deadline)?.atom;
        let (delete, type_, long_offset, long_length) =
            (true, AtomEnum::CARDINAL.into(), 0, 2 * BINDINGS_MAX);
        let get = GetPropertyRequest { delete, window: root, property, type_, long_offset, long_length };
        let request = client.query(get.serialize());
        let reply: GetPropertyReply = wait_reply(client, request, deadline)?;
        let words: Vec<u32> = reply.value32().into_iter().flatten().collect();
        let bindings = Bindings { root, property };
        if !words.is_empty() {
            let layout = LayoutQuery::default().wait(client, deadline)?.into_keys();
            for [key, keysym] in words.as_chunks::<2>().0 {
                let Ok(key) = u8::try_from(*key) else { continue };
                let row = layout.row(key);
                // The user of the screen may have given the key another keysym since.
                if row.contains(keysym) && row.iter().all(|symbol| [*keysym, NONE].contains(symbol)) {
                    bindings.bind(client, key, NONE);
                }
            }
        }
        Ok(bindings)
    }

    /// Gives a key a keysym.
    pub(super) fn bind(&self, client: &mut Client, key: u8, keysym: u32) {
        let (keycode_count, first_keycode, keysyms_per_keycode) = (1, key, 2);
        let both = [keysym; 2];
        let keysyms = (&both[..]).into();
        let change =
            ChangeKeyboardMappingRequest { keycode_count, first_keycode, keysyms_per_keycode, keysyms };
        client.send(change.serialize());
    }

    /// Records all bindings.
    pub(super) fn record(&self, client: &mut Client, bound: impl Iterator<Item = (u8, u32)>) {
        let words: Vec<u32> = bound.flat_map(|(key, keysym)| [key.into(), keysym]).collect();
        let (window, property) = (self.root, self.property);
        if words.is_empty() {
            client.send(DeletePropertyRequest { window, property }.serialize());
            return;
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let (mode, type_, format) = (PropMode::REPLACE, AtomEnum::CARDINAL.into(), 32);
        let (data_len, data) = (words.len() as u32, bytes.into());
        client.send(
            ChangePropertyRequest { mode, window, property, type_, format, data_len, data }.serialize(),
        );
    }
}
