//! The group and Caps Lock of a server's keyboard, which its user changes and typing must not depend on (XKB protocol).
//!
//! | event | effect |
//! |---|---|
//! | start | the state is queried, and changes of it are selected |
//! | `StateNotify` | the state is known, unless a query is outstanding |
//! | [`LocksQuery::change`] for one key | later events describe this client's own change: the state is queried behind it |
//! | reply to the last query | the state is known |

use super::client::{Client, Packet, Sequence};
use super::display::{Extension, parse, wait_reply};
use crate::keys::keyboard::Locks;
use crate::keys::layout::LOCK_BIT;
use std::io;
use std::time::Instant;
use x11rb_protocol::protocol::xkb::{
    EventType, GetStateReply, GetStateRequest, Group, LatchLockStateRequest, MapPart, STATE_NOTIFY_EVENT,
    SelectEventsAux, SelectEventsAuxStateNotify, SelectEventsRequest, StateNotifyEvent, StatePart,
};
use x11rb_protocol::protocol::xproto::ModMask;

/// The keyboard that all clients share (`XkbUseCoreKbd`).
pub(super) const KEYBOARD: u16 = 0x100;

/// Follows the state of a server's keyboard.
#[derive(Debug)]
pub(super) struct LocksQuery {
    xkb: Extension,
    /// The last query, while its reply is outstanding.
    request: Option<Sequence>,
}

fn locks(group: Group, locked: ModMask) -> Locks {
    Locks { group: group.into(), has_caps: u16::from(locked) & LOCK_BIT != 0 }
}

impl LocksQuery {
    /// Selects changes of the state, and waits for the present one.
    pub(super) fn wait(
        client: &mut Client,
        xkb: Extension,
        deadline: Instant,
    ) -> io::Result<(LocksQuery, Locks)> {
        let parts = StatePart::GROUP_LOCK | StatePart::MODIFIER_LOCK;
        let state = SelectEventsAuxStateNotify { affect_state: parts, state_details: parts };
        let select = SelectEventsRequest {
            device_spec: KEYBOARD,
            clear: EventType::default(),
            select_all: EventType::default(),
            affect_map: MapPart::default(),
            map: MapPart::default(),
            details: std::borrow::Cow::Owned(SelectEventsAux {
                state_notify: Some(state),
                ..SelectEventsAux::default()
            }),
        };
        client.send(select.serialize(xkb.opcode));
        let request = client.query(GetStateRequest { device_spec: KEYBOARD }.serialize(xkb.opcode));
        let state: GetStateReply = wait_reply(client, request, deadline)?;
        Ok((LocksQuery { xkb, request: None }, locks(state.locked_group, state.locked_mods)))
    }

    /// Returns whether a query is outstanding.
    #[cfg(test)]
    pub(super) fn is_pending(&self) -> bool {
        self.request.is_some()
    }

    /// Processes a packet. Returns the new state.
    pub(super) fn handle(&mut self, packet: &Packet) -> io::Result<Option<Locks>> {
        match packet {
            Packet::Event(event)
                if event[0] & 0x7f == self.xkb.event
                    && event[1] == STATE_NOTIFY_EVENT
                    && self.request.is_none() =>
            {
                let state: StateNotifyEvent = parse(event)?;
                Ok(Some(locks(state.locked_group, state.locked_mods)))
            }
            Packet::Reply(request, bytes) if self.request == Some(*request) => {
                self.request = None;
                let state: GetStateReply = parse(bytes)?;
                Ok(Some(locks(state.locked_group, state.locked_mods)))
            }
            _ => Ok(None),
        }
    }

    /// Changes the state, and queries it behind the change.
    pub(super) fn change(&mut self, client: &mut Client, locks: Locks) {
        let caps = ModMask::LOCK;
        let change = LatchLockStateRequest {
            device_spec: KEYBOARD,
            affect_mod_locks: caps,
            mod_locks: if locks.has_caps { caps } else { ModMask::default() },
            lock_group: true,
            group_lock: locks.group.into(),
            affect_mod_latches: ModMask::default(),
            latch_group: false,
            group_latch: 0,
        };
        client.send(change.serialize(self.xkb.opcode));
        self.request =
            Some(client.query(GetStateRequest { device_spec: KEYBOARD }.serialize(self.xkb.opcode)));
    }
}
