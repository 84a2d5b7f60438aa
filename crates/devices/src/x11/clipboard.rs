//! The clipboard of a display (ICCCM, section 2): notices that a program copies, reads its text, and offers a text from
//! the other host.

use super::client::{Client, Packet};
use super::display::{Extension, parse, wait_reply};
use super::selection::{PROPERTIES, ReadOutcome, Reader, Types};
use crate::clipboard::to_latin_1;
use contract::Time;
use std::borrow::Cow;
use std::io;
use std::time::Instant;
use x11rb_protocol::protocol::xfixes::{self, SelectionEventMask};
use x11rb_protocol::protocol::xproto::{
    self, Atom, AtomEnum, ChangePropertyRequest, CreateWindowAux, CreateWindowRequest, EventMask,
    InternAtomReply, InternAtomRequest, PropMode, SELECTION_NOTIFY_EVENT, SelectionNotifyEvent,
    SelectionRequestEvent, SendEventRequest, SetSelectionOwnerRequest, Timestamp, WindowClass,
};

/// Bytes of a `ChangeProperty` request before its data.
const HEADER_BYTES: usize = 24;
/// The current time of the server (`CurrentTime`).
const CURRENT_TIME: Timestamp = 0;
/// The parent's visual (`CopyFromParent`).
const COPY_FROM_PARENT: u32 = 0;

/// The targets that a text is offered as.
#[derive(Debug, Clone, Copy)]
struct Targets {
    targets: Atom,
    timestamp: Atom,
    utf8: Atom,
    text: Atom,
    /// The name that toolkits prefer.
    plain: Atom,
}

/// The offered text and the window that owns the clipboard.
pub(super) struct Clipboard {
    window: xproto::Window,
    clipboard: Atom,
    targets: Targets,
    text: String,
    /// The time at which this client became the owner.
    owned_since: Timestamp,
    /// The time at which another client became the owner.
    copied_at: Timestamp,
    reader: Reader,
    xfixes: Option<Extension>,
}

/// The result of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClipboardEvent {
    /// The packet does not concern the clipboard.
    Unrelated,
    /// The packet is processed.
    Processed,
    /// Another program has copied something.
    Copied,
    /// The owner's text, as requested; `None` if it has none that can be read.
    Read(Option<String>),
}

impl Clipboard {
    /// Makes an invisible window to own the clipboard, and watches the clipboard if the server supports that (XFIXES).
    pub(super) fn new(
        client: &mut Client,
        parent: xproto::Window,
        xfixes: Option<Extension>,
        deadline: Instant,
    ) -> io::Result<Clipboard> {
        let mut atom = |name: &str| -> io::Result<Atom> {
            let name = name.as_bytes().into();
            let request = client.query(InternAtomRequest { only_if_exists: false, name }.serialize());
            wait_reply(client, request, deadline).map(|reply: InternAtomReply| reply.atom)
        };
        let clipboard = atom("CLIPBOARD")?;
        let targets = Targets {
            targets: atom("TARGETS")?,
            timestamp: atom("TIMESTAMP")?,
            utf8: atom("UTF8_STRING")?,
            text: atom("TEXT")?,
            plain: atom("text/plain;charset=utf-8")?,
        };
        let types = Types { utf8: targets.utf8, incr: atom("INCR")? };
        let mut properties = [0; PROPERTIES];
        for (number, property) in properties.iter_mut().enumerate() {
            *property = atom(&format!("OUTBOARD_{number}"))?;
        }
        let window = client.resource();
        let values = CreateWindowAux::new().override_redirect(1).event_mask(EventMask::PROPERTY_CHANGE);
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
            value_list: Cow::Owned(values),
        };
        client.send(create.serialize());
        if let Some(xfixes) = xfixes {
            let event_mask = SelectionEventMask::SET_SELECTION_OWNER;
            let select = xfixes::SelectSelectionInputRequest { window, selection: clipboard, event_mask };
            client.send(select.serialize(xfixes.opcode));
        }
        Ok(Clipboard {
            window,
            clipboard,
            targets,
            text: String::new(),
            owned_since: CURRENT_TIME,
            copied_at: CURRENT_TIME,
            reader: Reader::new(window, clipboard, types, properties),
            xfixes,
        })
    }

    /// Offers a text on the clipboard and to the middle button (the primary selection).
    pub(super) fn offer(&mut self, client: &mut Client, text: String) {
        self.text = text;
        for selection in [self.clipboard, AtomEnum::PRIMARY.into()] {
            let owner = SetSelectionOwnerRequest { owner: self.window, selection, time: CURRENT_TIME };
            client.send(owner.serialize());
        }
    }

    /// Starts to read the text on the clipboard.
    pub(super) fn read(&mut self, client: &mut Client, now: Time) {
        self.reader.start(client, self.copied_at, now);
    }

    /// Returns whether a text is being read.
    pub(super) fn is_reading(&self) -> bool {
        self.reader.is_busy()
    }

    /// Returns the time to call [`Clipboard::handle_time`].
    pub(super) fn due(&self) -> Option<Time> {
        self.reader.due()
    }

    /// Abandons an owner that takes too long.
    pub(super) fn handle_time(&mut self, now: Time) -> ClipboardEvent {
        match self.reader.handle_time(now) {
            true => ClipboardEvent::Read(None),
            false => ClipboardEvent::Processed,
        }
    }

    /// Processes a packet.
    pub(super) fn handle(&mut self, client: &mut Client, packet: &Packet) -> io::Result<ClipboardEvent> {
        if let Packet::Event(event) = packet {
            let code = event[0] & 0x7f;
            match code {
                xproto::SELECTION_REQUEST_EVENT => {
                    self.answer(client, &parse(event)?);
                    return Ok(ClipboardEvent::Processed);
                }
                // Another client owns a selection now: no more requests for it arrive here.
                xproto::SELECTION_CLEAR_EVENT => return Ok(ClipboardEvent::Processed),
                _ if self
                    .xfixes
                    .is_some_and(|xfixes| code == xfixes.event + xfixes::SELECTION_NOTIFY_EVENT) =>
                {
                    return Ok(self.handle_owner(&parse(event)?));
                }
                _ => {}
            }
        }
        Ok(match self.reader.handle(client, packet)? {
            ReadOutcome::Unrelated => ClipboardEvent::Unrelated,
            ReadOutcome::Pending => ClipboardEvent::Processed,
            ReadOutcome::Done(text) => ClipboardEvent::Read(text),
        })
    }

    /// The clipboard has a new owner.
    fn handle_owner(&mut self, event: &xfixes::SelectionNotifyEvent) -> ClipboardEvent {
        if event.owner == self.window {
            self.owned_since = event.selection_timestamp;
            return ClipboardEvent::Processed;
        }
        if event.selection != self.clipboard || event.owner == 0 {
            return ClipboardEvent::Processed;
        }
        self.copied_at = event.selection_timestamp;
        ClipboardEvent::Copied
    }

    /// Answers a request for the text.
    fn answer(&self, client: &mut Client, request: &SelectionRequestEvent) {
        // Obsolete clients name no property; ICCCM then prescribes the target.
        let property = if request.property == 0 { request.target } else { request.property };
        let answer = self.convert(request.target);
        // Under backpressure the request is refused, so a client cannot fill the queue with repeated requests.
        let answer = answer.filter(|_| !client.is_full());
        let granted = if answer.is_some() { property } else { 0 };
        if let Some((type_, format, data)) = answer {
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
            property: granted,
        };
        let (propagate, destination, event) = (false, request.requestor, Cow::Owned(notify.into()));
        client.send(
            SendEventRequest { propagate, destination, event_mask: EventMask::NO_EVENT, event }.serialize(),
        );
    }

    /// Converts the text to a target: type, bits of an element and data. `None` if the target is not supported.
    fn convert(&self, target: Atom) -> Option<(Atom, u8, Vec<u8>)> {
        let Targets { targets, timestamp, utf8, text, plain } = self.targets;
        let string = Atom::from(AtomEnum::STRING);
        Some(match target {
            _ if target == targets => {
                let all = [targets, timestamp, utf8, plain, text, string];
                (AtomEnum::ATOM.into(), 32, all.iter().flat_map(|atom| atom.to_ne_bytes()).collect())
            }
            _ if target == timestamp => (AtomEnum::INTEGER.into(), 32, self.owned_since.to_ne_bytes().into()),
            // With `TEXT` the owner chooses the type.
            _ if target == utf8 || target == text => (utf8, 8, self.text.clone().into_bytes()),
            _ if target == plain => (plain, 8, self.text.clone().into_bytes()),
            _ if target == string => (string, 8, to_latin_1(&self.text)),
            _ => return None,
        })
    }
}
