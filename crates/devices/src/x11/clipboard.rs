//! Offers text from a viewer's clipboard to the programs of a display (ICCCM, section 2).

use super::client::Client;
use super::display::{parse, wait_reply};
use std::borrow::Cow;
use std::io;
use std::time::Instant;
use x11rb_protocol::protocol::xproto::{
    self, Atom, AtomEnum, ChangePropertyRequest, CreateWindowAux, CreateWindowRequest, EventMask,
    InternAtomReply, InternAtomRequest, PropMode, SELECTION_NOTIFY_EVENT, SelectionNotifyEvent,
    SelectionRequestEvent, SendEventRequest, SetSelectionOwnerRequest, WindowClass,
};

/// Bytes of a `ChangeProperty` request before its data.
const HEADER_BYTES: usize = 24;
/// The current time of the server (`CurrentTime`).
const CURRENT_TIME: u32 = 0;
/// The parent's visual (`CopyFromParent`).
const COPY_FROM_PARENT: u32 = 0;

/// The offered text and the window that owns the clipboard.
pub(super) struct Clipboard {
    window: xproto::Window,
    clipboard: Atom,
    targets: Atom,
    utf8: Atom,
    text: String,
}

impl Clipboard {
    /// Makes an invisible window to own the clipboard.
    pub(super) fn new(
        client: &mut Client,
        parent: xproto::Window,
        deadline: Instant,
    ) -> io::Result<Clipboard> {
        let mut atom = |name: &[u8]| -> io::Result<Atom> {
            let request =
                client.query(InternAtomRequest { only_if_exists: false, name: name.into() }.serialize());
            wait_reply(client, request, deadline).map(|reply: InternAtomReply| reply.atom)
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

    /// Offers a text on the clipboard and to the middle button (the primary selection).
    pub(super) fn offer(&mut self, client: &mut Client, text: String) {
        self.text = text;
        for selection in [self.clipboard, AtomEnum::PRIMARY.into()] {
            let owner = SetSelectionOwnerRequest { owner: self.window, selection, time: CURRENT_TIME };
            client.send(owner.serialize());
        }
    }

    /// Answers a request for the text. Returns `false` if the event does not concern the clipboard.
    pub(super) fn handle_event(&self, client: &mut Client, event: &[u8]) -> io::Result<bool> {
        match event[0] & 0x7f {
            xproto::SELECTION_REQUEST_EVENT => {}
            // Another client owns the selection now: no more requests arrive here.
            code => return Ok(code == xproto::SELECTION_CLEAR_EVENT),
        }
        let request: SelectionRequestEvent = parse(event)?;
        // Obsolete clients name no property; ICCCM then prescribes the target.
        let property = if request.property == 0 { request.target } else { request.property };
        let string = Atom::from(AtomEnum::STRING);
        let latin = || self.text.chars().map(|letter| u8::try_from(letter).unwrap_or(b'?')).collect();
        let (type_, format, data): (Atom, u8, Vec<u8>) = match request.target {
            target if target == self.targets => {
                let targets = [self.targets, self.utf8, string];
                (AtomEnum::ATOM.into(), 32, targets.iter().flat_map(|atom| atom.to_ne_bytes()).collect())
            }
            target if target == self.utf8 => (self.utf8, 8, self.text.clone().into_bytes()),
            target if target == string => (string, 8, latin()),
            _ => (0, 0, Vec::new()),
        };
        // Under backpressure the request is refused, so a client cannot fill the queue with repeated requests.
        let is_granted = format > 0 && !client.is_full();
        if is_granted {
            // The length of a request is limited: later ones append the rest.
            let bytes_max = usize::from(client.setup().maximum_request_length) * 4 - HEADER_BYTES;
            let mut mode = PropMode::REPLACE;
            let mut rest = &data[..];
            loop {
                let (piece, remaining) = rest.split_at(rest.len().min(bytes_max));
                let data_len = (piece.len() / usize::from(format / 8)) as u32;
                let (window, data) = (request.requestor, piece.into());
                client.send(
                    ChangePropertyRequest { mode, window, property, type_, format, data_len, data }
                        .serialize(),
                );
                (mode, rest) = (PropMode::APPEND, remaining);
                if rest.is_empty() {
                    break;
                }
            }
        }
        let notify = SelectionNotifyEvent {
            response_type: SELECTION_NOTIFY_EVENT,
            sequence: 0,
            time: request.time,
            requestor: request.requestor,
            selection: request.selection,
            target: request.target,
            property: if is_granted { property } else { 0 },
        };
        let (propagate, destination, event) = (false, request.requestor, Cow::Owned(notify.into()));
        client.send(
            SendEventRequest { propagate, destination, event_mask: EventMask::NO_EVENT, event }.serialize(),
        );
        Ok(true)
    }
}
