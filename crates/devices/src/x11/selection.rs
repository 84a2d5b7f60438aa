//! Reads the text of a selection that another program owns (ICCCM, sections 2.2 to 2.7).
//!
//! | state | waits for | event | next state |
//! |---|---|---|---|
//! | `Idle` | | `start` | `Converting` |
//! | `Converting` | the owner's answer | the text is in the property | `Reading` |
//! | | | refused as UTF-8 | `Converting`, as Latin-1 |
//! | | | refused as Latin-1 | `Idle`, without a text |
//! | `Reading` | the server's reply | the whole text, or the empty last piece | `Idle`, with the text |
//! | | | `INCR`, or a piece | `Waiting` |
//! | `Waiting` | the next piece in the property | it is there | `Reading` |
//! | any but `Idle` | | `OWNER_TIMEOUT` | `Idle`, without a text |
//!
//! Each attempt has another property, so that a late answer to an earlier attempt is not taken for the current one.
//! The owner is not trusted: a text longer than the limit is read to its end and dropped.

use super::client::{Client, Packet, Sequence};
use super::display::parse;
use crate::clipboard::{TEXT_BYTES_MAX, from_latin_1};
use contract::Time;
use std::io;
use std::time::Duration;
use x11rb_protocol::protocol::xproto::{
    self, Atom, AtomEnum, ConvertSelectionRequest, DeletePropertyRequest, GetPropertyReply,
    GetPropertyRequest, Property, PropertyNotifyEvent, SelectionNotifyEvent, Timestamp,
};

/// The time limit for an owner to provide its whole text.
const OWNER_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of properties that take turns.
pub(super) const PROPERTIES: usize = 4;

/// The numbers that the server has assigned to the names of types.
#[derive(Debug, Clone, Copy)]
pub(super) struct Types {
    pub(super) utf8: Atom,
    pub(super) incr: Atom,
}

/// The progress of an attempt; see the table above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadState {
    Idle,
    Converting,
    Reading(Sequence),
    Waiting,
}

/// The result of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// The packet does not concern this reader.
    Unrelated,
    /// There is more to come.
    Pending,
    /// The attempt is over; `None` if the owner has no text.
    Done(Option<String>),
}

/// Reads one text at a time.
#[derive(Debug)]
pub(super) struct Reader {
    /// The window that receives the text, in its properties.
    window: xproto::Window,
    selection: Atom,
    types: Types,
    properties: [Atom; PROPERTIES],
    /// The number of attempts so far.
    attempts: usize,
    state: ReadState,
    is_latin_1: bool,
    is_incremental: bool,
    bytes: Vec<u8>,
    is_too_long: bool,
    /// The time at which the attempt is abandoned.
    deadline: Time,
}

impl Reader {
    /// Makes a reader. `window` reports changes of its properties.
    pub(super) fn new(
        window: xproto::Window,
        selection: Atom,
        types: Types,
        properties: [Atom; PROPERTIES],
    ) -> Reader {
        Reader {
            window,
            selection,
            types,
            properties,
            attempts: 0,
            state: ReadState::Idle,
            is_latin_1: false,
            is_incremental: false,
            bytes: Vec::new(),
            is_too_long: false,
            deadline: Time::ZERO,
        }
    }

    /// Asks the owner for its text. `time` is the time at which it became the owner. An attempt before this one is
    /// abandoned.
    pub(super) fn start(&mut self, client: &mut Client, time: Timestamp, now: Time) {
        self.is_latin_1 = false;
        self.deadline = now.after(OWNER_TIMEOUT);
        self.convert(client, time);
    }

    /// Returns whether an attempt is in progress.
    pub(super) fn is_busy(&self) -> bool {
        self.state != ReadState::Idle
    }

    /// Returns the time to call [`Reader::handle_time`].
    pub(super) fn due(&self) -> Option<Time> {
        self.is_busy().then_some(self.deadline)
    }

    /// Abandons an owner that takes too long. Returns whether it did.
    pub(super) fn handle_time(&mut self, now: Time) -> bool {
        let is_late = self.is_busy() && now >= self.deadline;
        if is_late {
            self.finish();
        }
        is_late
    }

    fn property(&self) -> Atom {
        self.properties[self.attempts % PROPERTIES]
    }

    fn target(&self) -> Atom {
        if self.is_latin_1 { AtomEnum::STRING.into() } else { self.types.utf8 }
    }

    fn convert(&mut self, client: &mut Client, time: Timestamp) {
        self.finish();
        self.attempts += 1;
        self.state = ReadState::Converting;
        let (requestor, selection) = (self.window, self.selection);
        let (target, property) = (self.target(), self.property());
        client.send(ConvertSelectionRequest { requestor, selection, target, property, time }.serialize());
    }

    /// Ends the attempt. Returns its bytes.
    fn finish(&mut self) -> Vec<u8> {
        self.state = ReadState::Idle;
        (self.is_incremental, self.is_too_long) = (false, false);
        std::mem::take(&mut self.bytes)
    }

    /// Processes a packet.
    pub(super) fn handle(&mut self, client: &mut Client, packet: &Packet) -> io::Result<ReadOutcome> {
        match packet {
            Packet::Reply(request, bytes) if self.state == ReadState::Reading(*request) => {
                let reply: GetPropertyReply = parse(bytes)?;
                Ok(self.handle_piece(client, &reply))
            }
            Packet::Error(request, _) if self.state == ReadState::Reading(*request) => {
                self.finish();
                Ok(ReadOutcome::Done(None))
            }
            Packet::Event(event) => match event[0] & 0x7f {
                xproto::SELECTION_NOTIFY_EVENT => self.handle_answer(client, &parse(event)?),
                xproto::PROPERTY_NOTIFY_EVENT => Ok(self.handle_property(client, &parse(event)?)),
                _ => Ok(ReadOutcome::Unrelated),
            },
            _ => Ok(ReadOutcome::Unrelated),
        }
    }

    /// The owner has answered, or there is none.
    fn handle_answer(
        &mut self,
        client: &mut Client,
        answer: &SelectionNotifyEvent,
    ) -> io::Result<ReadOutcome> {
        let is_current = self.state == ReadState::Converting
            && answer.requestor == self.window
            && (answer.selection, answer.target) == (self.selection, self.target());
        if is_current && answer.property == self.property() {
            self.query(client);
            return Ok(ReadOutcome::Pending);
        }
        if answer.requestor == self.window && self.properties.contains(&answer.property) {
            // The late answer to an earlier attempt.
            let (window, property) = (self.window, answer.property);
            client.send(DeletePropertyRequest { window, property }.serialize());
        }
        if !is_current || answer.property != 0 {
            return Ok(ReadOutcome::Pending);
        }
        if self.is_latin_1 {
            self.finish();
            return Ok(ReadOutcome::Done(None));
        }
        self.is_latin_1 = true;
        self.convert(client, answer.time);
        Ok(ReadOutcome::Pending)
    }

    /// Requests the content of the property, and deletes it: a deletion is the request for the next piece.
    fn query(&mut self, client: &mut Client) {
        let (window, property, type_) = (self.window, self.property(), AtomEnum::ANY.into());
        let (delete, long_offset, long_length) = (true, 0, TEXT_BYTES_MAX as u32 / 4 + 1);
        let get = GetPropertyRequest { delete, window, property, type_, long_offset, long_length };
        self.state = ReadState::Reading(client.query(get.serialize()));
    }

    fn handle_property(&mut self, client: &mut Client, event: &PropertyNotifyEvent) -> ReadOutcome {
        if event.window != self.window {
            return ReadOutcome::Unrelated;
        }
        let is_piece = event.atom == self.property() && event.state == Property::NEW_VALUE;
        if is_piece && self.state == ReadState::Waiting {
            self.query(client);
        }
        ReadOutcome::Pending
    }

    fn handle_piece(&mut self, client: &mut Client, reply: &GetPropertyReply) -> ReadOutcome {
        if reply.type_ == self.types.incr && !self.is_incremental {
            self.is_incremental = true;
            self.state = ReadState::Waiting;
            return ReadOutcome::Pending;
        }
        let has_text = reply.type_ == self.target() && reply.format == 8;
        self.is_too_long |= reply.bytes_after > 0 || self.bytes.len() + reply.value.len() > TEXT_BYTES_MAX;
        if has_text && !self.is_too_long {
            self.bytes.extend(&reply.value);
        }
        if reply.bytes_after > 0 {
            // The server deletes a property only with its last byte.
            let (window, property) = (self.window, self.property());
            client.send(DeletePropertyRequest { window, property }.serialize());
        }
        if self.is_incremental && !reply.value.is_empty() {
            self.state = ReadState::Waiting;
            return ReadOutcome::Pending;
        }
        let is_readable = (has_text || self.is_incremental) && !self.is_too_long;
        let is_latin_1 = self.is_latin_1;
        let bytes = self.finish();
        ReadOutcome::Done(is_readable.then(|| match is_latin_1 {
            true => from_latin_1(&bytes),
            false => String::from_utf8_lossy(&bytes).into_owned(),
        }))
    }
}
