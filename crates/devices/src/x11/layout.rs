//! The query that reads the keyboard layout of a server.

use super::client::{Client, Packet, Sequence};
use super::display::{parse, wait_reply};
use crate::keys::layout::Layout;
use std::io;
use std::time::Instant;
use x11rb_protocol::protocol::xproto::{
    GetKeyboardMappingReply, GetKeyboardMappingRequest, GetModifierMappingReply, GetModifierMappingRequest,
    MAPPING_NOTIFY_EVENT,
};

/// A query for the layout, repeated whenever the layout changes.
#[derive(Debug, Default)]
pub(super) struct LayoutQuery {
    /// The second request of the query; the first has the number before it.
    request: Option<Sequence>,
    /// The reply to the first request.
    keys: Option<GetKeyboardMappingReply>,
}

impl LayoutQuery {
    /// Queries the layout and waits for the replies.
    pub(super) fn wait(client: &mut Client, deadline: Instant) -> io::Result<Layout> {
        let request = query(client);
        let keys = wait_reply(client, request - 1, deadline)?;
        let modifiers = wait_reply(client, request, deadline)?;
        Ok(layout(client, keys, &modifiers))
    }

    /// Returns whether a query is outstanding: the layout has changed and the new one is unknown.
    pub(super) fn is_pending(&self) -> bool {
        self.request.is_some()
    }

    /// Processes a packet. Returns the new layout when the query is complete.
    pub(super) fn handle(&mut self, client: &mut Client, packet: &Packet) -> io::Result<Option<Layout>> {
        match packet {
            Packet::Event(event) if event[0] & 0x7f == MAPPING_NOTIFY_EVENT => {
                // The server may have answered an outstanding query with the old layout: forget that query.
                self.keys = None;
                self.request = Some(query(client));
            }
            Packet::Reply(request, bytes) if self.request == Some(request + 1) => {
                self.keys = Some(parse(bytes)?)
            }
            Packet::Reply(request, bytes) if self.request == Some(*request) => {
                self.request = None;
                let modifiers = parse(bytes)?;
                return Ok(self.keys.take().map(|keys| layout(client, keys, &modifiers)));
            }
            _ => {}
        }
        Ok(None)
    }
}

/// Queues the requests for keys and for modifiers, in this order. Returns the number of the second.
fn query(client: &mut Client) -> Sequence {
    let (first, last) = (client.setup().min_keycode, client.setup().max_keycode);
    let count = last.saturating_sub(first).saturating_add(1);
    client.query(GetKeyboardMappingRequest { first_keycode: first, count }.serialize());
    client.query(GetModifierMappingRequest.serialize())
}

fn layout(client: &Client, keys: GetKeyboardMappingReply, modifiers: &GetModifierMappingReply) -> Layout {
    let columns = keys.keysyms_per_keycode.into();
    Layout::new(client.setup().min_keycode, columns, keys.keysyms, &modifiers.keycodes)
}
