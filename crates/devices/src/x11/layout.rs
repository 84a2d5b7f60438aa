//! The query that reads the keyboard layout of a server.

use super::client::{Client, Packet, Sequence};
use super::display::{Extension, parse, wait_reply};
use super::levels::Levels;
use super::locks::KEYBOARD;
use crate::keys::layout::Layout;
use std::borrow::Cow;
use std::io;
use std::time::Instant;
use x11rb_protocol::protocol::xkb::{
    EventType, GetMapRequest, MAP_NOTIFY_EVENT, MapPart, NEW_KEYBOARD_NOTIFY_EVENT, SelectEventsAux,
    SelectEventsRequest, VMod,
};
use x11rb_protocol::protocol::xproto::{
    GetKeyboardMappingReply, GetKeyboardMappingRequest, GetModifierMappingReply, GetModifierMappingRequest,
    MAPPING_NOTIFY_EVENT,
};

/// The keyboard layout of a server.
#[derive(Debug)]
pub(super) enum ServerLayout {
    Levels(Levels),
    /// The map of the core protocol, of a server without XKB.
    Core(Layout),
}

impl ServerLayout {
    /// Returns the keysym of a key that is pressed while the modifiers in `state` are down.
    pub(super) fn keysym(&self, key: u8, state: u16) -> u32 {
        match self {
            ServerLayout::Levels(levels) => levels.keysym(key, state),
            ServerLayout::Core(layout) => layout.keysym(key, state),
        }
    }

    /// Returns the keys for typing.
    pub(super) fn into_keys(self) -> Layout {
        match self {
            ServerLayout::Levels(levels) => levels.layout(),
            ServerLayout::Core(layout) => layout,
        }
    }
}

/// A query for the layout, repeated whenever the layout changes.
#[derive(Debug, Default)]
pub(super) struct LayoutQuery {
    /// `None` if the server has no XKB.
    xkb: Option<Extension>,
    /// The last request of the query. Without XKB there are two; the first has the number before it.
    request: Option<Sequence>,
    /// The reply to the first request of two.
    keys: Option<GetKeyboardMappingReply>,
}

impl LayoutQuery {
    pub(super) fn new(xkb: Option<Extension>) -> LayoutQuery {
        LayoutQuery { xkb, ..LayoutQuery::default() }
    }

    /// Selects changes of the layout: a server reports them to a client with XKB only on request.
    pub(super) fn select_changes(&self, client: &mut Client) {
        let Some(xkb) = self.xkb else { return };
        let select = SelectEventsRequest {
            device_spec: KEYBOARD,
            clear: EventType::default(),
            select_all: EventType::NEW_KEYBOARD_NOTIFY | EventType::MAP_NOTIFY,
            affect_map: map_parts(),
            map: map_parts(),
            details: Cow::Owned(SelectEventsAux::default()),
        };
        client.send(select.serialize(xkb.opcode));
    }

    fn is_change(&self, event: &[u8]) -> bool {
        let code = event[0] & 0x7f;
        let is_xkb = self.xkb.is_some_and(|xkb| code == xkb.event);
        code == MAPPING_NOTIFY_EVENT
            || is_xkb && [NEW_KEYBOARD_NOTIFY_EVENT, MAP_NOTIFY_EVENT].contains(&event[1])
    }

    /// Queries the layout and waits for the replies.
    pub(super) fn wait(&self, client: &mut Client, deadline: Instant) -> io::Result<ServerLayout> {
        let request = self.query(client);
        if self.xkb.is_some() {
            return Ok(ServerLayout::Levels(Levels::new(wait_reply(client, request, deadline)?)));
        }
        let keys = wait_reply(client, request - 1, deadline)?;
        let modifiers = wait_reply(client, request, deadline)?;
        Ok(core_layout(client, keys, &modifiers))
    }

    /// Returns whether a query is outstanding: the layout has changed and the new one is unknown.
    pub(super) fn is_pending(&self) -> bool {
        self.request.is_some()
    }

    /// Processes a packet. Returns the new layout when the query is complete.
    pub(super) fn handle(
        &mut self,
        client: &mut Client,
        packet: &Packet,
    ) -> io::Result<Option<ServerLayout>> {
        match packet {
            Packet::Event(event) if self.is_change(event) => {
                // The server may have answered an outstanding query with the old layout: forget that query.
                self.keys = None;
                self.request = Some(self.query(client));
            }
            Packet::Reply(request, bytes) if self.request == Some(*request) => {
                self.request = None;
                if self.xkb.is_some() {
                    return Ok(Some(ServerLayout::Levels(Levels::new(parse(bytes)?))));
                }
                let modifiers = parse(bytes)?;
                return Ok(self.keys.take().map(|keys| core_layout(client, keys, &modifiers)));
            }
            Packet::Reply(request, bytes) if self.xkb.is_none() && self.request == Some(request + 1) => {
                self.keys = Some(parse(bytes)?)
            }
            _ => {}
        }
        Ok(None)
    }

    /// Queues the requests: for the map of XKB, or for keys and for modifiers. Returns the number of the last one.
    fn query(&self, client: &mut Client) -> Sequence {
        if let Some(xkb) = self.xkb {
            return client.query(map_request().serialize(xkb.opcode));
        }
        let (first, last) = (client.setup().min_keycode, client.setup().max_keycode);
        let count = last.saturating_sub(first).saturating_add(1);
        client.query(GetKeyboardMappingRequest { first_keycode: first, count }.serialize());
        client.query(GetModifierMappingRequest.serialize())
    }
}

/// Returns the parts of a map that select keysyms.
fn map_parts() -> MapPart {
    MapPart::KEY_TYPES | MapPart::KEY_SYMS
}

/// Returns the request for all types and all keys.
fn map_request() -> GetMapRequest {
    GetMapRequest {
        device_spec: KEYBOARD,
        full: map_parts(),
        partial: MapPart::default(),
        first_type: 0,
        n_types: 0,
        first_key_sym: 0,
        n_key_syms: 0,
        first_key_action: 0,
        n_key_actions: 0,
        first_key_behavior: 0,
        n_key_behaviors: 0,
        virtual_mods: VMod::default(),
        first_key_explicit: 0,
        n_key_explicit: 0,
        first_mod_map_key: 0,
        n_mod_map_keys: 0,
        first_v_mod_map_key: 0,
        n_v_mod_map_keys: 0,
    }
}

fn core_layout(
    client: &Client,
    keys: GetKeyboardMappingReply,
    modifiers: &GetModifierMappingReply,
) -> ServerLayout {
    let columns = keys.keysyms_per_keycode.into();
    let layout = Layout::new(client.setup().min_keycode, columns, keys.keysyms, &modifiers.keycodes);
    ServerLayout::Core(layout)
}
