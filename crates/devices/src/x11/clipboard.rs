//! Text that was put on a clipboard elsewhere, offered to the programs of a display (ICCCM, section 2).

use super::client::Client;
use super::display::{answer, parse};
use std::borrow::Cow;
use std::io;
use std::time::Instant;
use x11rb_protocol::protocol::xproto::{
    self, Atom, AtomEnum, ChangePropertyRequest, CreateWindowAux, CreateWindowRequest, EventMask,
    InternAtomReply, InternAtomRequest, PropMode, SELECTION_NOTIFY_EVENT, SelectionNotifyEvent,
    SelectionRequestEvent, SendEventRequest, SetSelectionOwnerRequest, WindowClass,
};

/// Bytes of a request that brings text, before the text.
const REQUEST_BYTES: usize = 24;
/// Of the server's own clock.
const CURRENT_TIME: u32 = 0;
/// As its parent has it.
const COPY_FROM_PARENT: u32 = 0;

/// What is offered, and by whom.
pub(super) struct Clipboard {
    window: xproto::Window,
    clipboard: Atom,
    targets: Atom,
    utf8: Atom,
    text: String,
}

impl Clipboard {
    /// A window that nobody sees, to own the clipboard.
    pub(super) fn new(
        client: &mut Client,
        parent: xproto::Window,
        deadline: Instant,
    ) -> io::Result<Clipboard> {
        let mut atom = |name: &[u8]| -> io::Result<Atom> {
            let request =
                client.ask(InternAtomRequest { only_if_exists: false, name: name.into() }.serialize());
            answer(client, request, deadline).map(|reply: InternAtomReply| reply.atom)
        };
        let (clipboard, targets, utf8) = (atom(b"CLIPBOARD")?, atom(b"TARGETS")?, atom(b"UTF8_STRING")?);
        let window = client.resource();
        let create = CreateWindowRequest {
            depth: 0,
            wid: window,
            parent,
            x: -1,
            y: -1,
            width: 1,
            height: 1,
            border_width: 0,
            class: WindowClass::INPUT_ONLY,
            visual: COPY_FROM_PARENT,
            value_list: Cow::Owned(CreateWindowAux::new().override_redirect(1)),
        };
        client.send(create.serialize());
        Ok(Clipboard { window, clipboard, targets, utf8, text: String::new() })
    }

    /// Offers a text instead of whatever is offered now.
    pub(super) fn offer(&mut self, client: &mut Client, text: String) {
        self.text = text;
        for selection in [self.clipboard, AtomEnum::PRIMARY.into()] {
            let owner = SetSelectionOwnerRequest { owner: self.window, selection, time: CURRENT_TIME };
            client.send(owner.serialize());
        }
    }

    /// Gives the text to who asks for it; `false` if the event is about something else.
    pub(super) fn handle_event(&self, client: &mut Client, event: &[u8]) -> io::Result<bool> {
        match event[0] & 0x7f {
            xproto::SELECTION_REQUEST_EVENT => {}
            // Somebody else has it now: nobody asks here any more.
            code => return Ok(code == xproto::SELECTION_CLEAR_EVENT),
        }
        let asked: SelectionRequestEvent = parse(event)?;
        // Old programs leave the choice to us.
        let property = if asked.property == 0 { asked.target } else { asked.property };
        let string = Atom::from(AtomEnum::STRING);
        let latin = || self.text.chars().map(|letter| u8::try_from(letter).unwrap_or(b'?')).collect();
        let (type_, format, data): (Atom, u8, Vec<u8>) = match asked.target {
            target if target == self.targets => {
                let targets = [self.targets, self.utf8, string];
                (AtomEnum::ATOM.into(), 32, targets.iter().flat_map(|atom| atom.to_ne_bytes()).collect())
            }
            target if target == self.utf8 => (self.utf8, 8, self.text.clone().into_bytes()),
            target if target == string => (string, 8, latin()),
            _ => (0, 0, Vec::new()),
        };
        // Whoever asks again and again, faster than the server takes it, gets nothing.
        let is_given = format > 0 && !client.is_full();
        if is_given {
            // A request takes so much; what is longer is added to it by the next.
            let most = usize::from(client.setup().maximum_request_length) * 4 - REQUEST_BYTES;
            let mut mode = PropMode::REPLACE;
            let mut rest = &data[..];
            loop {
                let (piece, behind) = rest.split_at(rest.len().min(most));
                let data_len = (piece.len() / usize::from(format / 8)) as u32;
                let (window, data) = (asked.requestor, piece.into());
                client.send(
                    ChangePropertyRequest { mode, window, property, type_, format, data_len, data }
                        .serialize(),
                );
                (mode, rest) = (PropMode::APPEND, behind);
                if rest.is_empty() {
                    break;
                }
            }
        }
        let notify = SelectionNotifyEvent {
            response_type: SELECTION_NOTIFY_EVENT,
            sequence: 0,
            time: asked.time,
            requestor: asked.requestor,
            selection: asked.selection,
            target: asked.target,
            property: if is_given { property } else { 0 },
        };
        let (propagate, destination, event) = (false, asked.requestor, Cow::Owned(notify.into()));
        client.send(
            SendEventRequest { propagate, destination, event_mask: EventMask::NO_EVENT, event }.serialize(),
        );
        Ok(true)
    }
}
