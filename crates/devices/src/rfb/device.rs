//! The device side: a VNC client as a partner. The server's screen is the source of the pictures.

use super::client::{Changes, Client, ServerEvent, ServerInit, preferring};
use super::pixels::PixelFormat;
use crate::clipboard::Copies;
use crate::flows::{Endpoint, FlowPartner, invalid};
use crate::plain::{has_clipboard, is_lost, is_view_only};
use buffers::Recycler;
use bytes::BytesMut;
use contract::{
    Body, Ctl, CtlReply, DeviceSpec, Direction, FlowKey, FlowTemplate, Format, Interest, Message, Next,
    PartnerError, PartnerResult, PullSlot, Readiness, Time,
};
use std::io::{ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use sys::net::Room;
use wire::formats::video::{
    Cursor, Geometry, Header, Kind, PixelFormat as VideoPixels, RECTANGLES_MAX, Rectangle, emit_rectangles,
};
use wire::formats::viewer::Event;

/// The most bytes read at a time.
const READ_BYTES: usize = 1 << 18;

/// Unsent bytes above which pushes are refused.
const OUTPUT_BYTES_MAX: usize = 1 << 16;

/// Unsent bytes above which the server violates the protocol: it sends updates and reads no requests. The limit is
/// larger than two texts with their headers.
const UNREAD_BYTES_MAX: usize = 4 << 20;

/// The number and the total size of message buffers that are recycled.
const BUFFERS_KEPT: usize = 4;
const BYTES_KEPT: usize = 64 << 20;

/// The most pressed keys that are tracked.
const KEYS_PRESSED_MAX: usize = 64;

/// Messages that are due in addition to changes.
#[derive(Debug, Clone, Copy, Default)]
struct Due {
    /// A whole picture.
    picture: bool,
    /// The pointer shape.
    cursor: bool,
}

impl Due {
    const ALL: Due = Due { picture: true, cursor: true };
}

/// The clipboard of the server.
#[derive(Debug, Default)]
struct Clipboard {
    copies: Copies,
    /// The text of a server that does not wait for requests. It is kept until the viewer fetches it.
    text: Option<String>,
    /// The text is requested from the server.
    is_requested: bool,
}

impl Clipboard {
    /// The server's clipboard has a new text; `None` if it has to be requested.
    fn handle_copy(&mut self, text: Option<String>) {
        match text {
            Some(text) if std::mem::take(&mut self.is_requested) => self.copies.provide(text),
            text => {
                (self.text, self.is_requested) = (text, false);
                self.copies.handle_copy();
            }
        }
    }

    /// The viewer requests the text. Returns whether it has to be requested from the server.
    fn handle_fetch(&mut self) -> bool {
        if !self.copies.handle_fetch() {
            return false;
        }
        match self.text.take() {
            Some(text) => self.copies.provide(text),
            None => self.is_requested = true,
        }
        self.is_requested
    }
}

/// A VNC client as a partner.
#[derive(Debug)]
pub(super) struct DevicePartner {
    name: String,
    socket: OwnedFd,
    client: Client,
    buffer: BytesMut,
    recycler: Recycler,
    due: Due,
    /// The first update is complete.
    has_picture: bool,
    cursor: Option<(Cursor, Vec<u8>)>,
    /// The keys that the viewer holds.
    keys: Vec<u32>,
    /// The pointer's position and buttons.
    pointer: (u32, u32, u16),
    /// `None` if the clipboard is not shared.
    clipboard: Option<Clipboard>,
    /// The client may have another event before it needs more input.
    may_have_event: bool,
    updates: u64,
    read_bytes: u64,
}

impl DevicePartner {
    /// Makes a partner after the handshake with a server.
    pub(super) fn new(spec: &DeviceSpec, socket: OwnedFd, init: &ServerInit) -> FlowPartner<Self> {
        let has_clipboard = has_clipboard(spec);
        let encodings = preferring(spec.options.text("encoding"), &init.name, has_clipboard);
        let partner = DevicePartner {
            name: format!("rfb:{}", spec.target),
            socket,
            client: Client::new(init, PixelFormat::NATIVE, &encodings),
            buffer: BytesMut::with_capacity(READ_BYTES),
            recycler: Recycler::new(BUFFERS_KEPT, BYTES_KEPT),
            due: Due::default(),
            has_picture: false,
            cursor: None,
            keys: Vec::new(),
            pointer: (0, 0, 0),
            clipboard: has_clipboard.then(Clipboard::default),
            may_have_event: false,
            updates: 0,
            read_bytes: 0,
        };
        let input = (!is_view_only(spec)).then_some(Format::Viewer);
        FlowPartner::new(partner, Some(Format::Video), input)
    }

    fn gone(&self) -> PartnerError {
        PartnerError::Gone(self.name.clone())
    }

    fn error(&self, operation: &str, error: std::io::Error) -> PartnerError {
        match is_lost(error.kind()) {
            true => self.gone(),
            false => PartnerError::os(format!("{operation} {}", self.name), error),
        }
    }

    /// Sends the output. Returns whether all of it was sent.
    fn write(&mut self) -> PartnerResult<bool> {
        while !self.client.output.is_empty() {
            match sys::net::send(&self.socket, &[IoSlice::new(&self.client.output)]) {
                Ok(count) => drop(self.client.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(self.error("writing to", error)),
            }
        }
        Ok(true)
    }

    fn next_message(&mut self, now: Time) -> PartnerResult<Next> {
        loop {
            if let Some(message) = self.take_due(now) {
                return Ok(Next::Message(message));
            }
            let event =
                self.client.next().map_err(|fault| PartnerError::Peer(format!("{}: {fault}", self.name)))?;
            match event {
                Some(ServerEvent::Update) => {
                    self.updates += 1;
                    let changes = self.client.take_changes();
                    self.client.ask();
                    self.write()?;
                    match changes {
                        Some(Changes::All) => (self.due.picture, self.has_picture) = (true, true),
                        Some(Changes::Only(changes)) if !self.due.picture => {
                            if let Some(message) = self.partial_picture(changes, now) {
                                return Ok(Next::Message(message));
                            }
                            self.due.picture = true;
                        }
                        _ => {}
                    }
                }
                Some(ServerEvent::Cursor(cursor, pixels)) => {
                    (self.cursor, self.due.cursor) = (Some((cursor, pixels)), true);
                }
                Some(ServerEvent::Copied) => self.handle_copy(None),
                Some(ServerEvent::Text(text)) => self.handle_copy(Some(text)),
                None if !self.read()? => return Ok(Next::Nothing),
                None => {}
            }
        }
    }

    fn handle_copy(&mut self, text: Option<String>) {
        self.clipboard.iter_mut().for_each(|clipboard| clipboard.handle_copy(text.clone()));
    }

    /// Reads from the socket once. Returns whether there were any bytes.
    fn read(&mut self) -> PartnerResult<bool> {
        self.client.ask();
        self.write()?;
        if self.client.output.len() > UNREAD_BYTES_MAX {
            return Err(PartnerError::Peer(format!(
                "{}: it sends updates and does not read the requests for them",
                self.name
            )));
        }
        self.buffer.clear();
        let room = Room { buffer: &mut self.buffer, limit: READ_BYTES };
        match sys::net::receive(&self.socket, [room]) {
            Ok(0) => Err(self.gone()),
            Ok(count) => {
                self.read_bytes += count as u64;
                self.client.receive(&self.buffer);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(self.error("reading from", error)),
        }
    }

    /// Returns a message that is due: the whole picture or the pointer shape.
    fn take_due(&mut self, now: Time) -> Option<Message> {
        let geometry = self.geometry()?;
        if self.has_picture && std::mem::take(&mut self.due.picture) {
            let pixels = self.client.picture().pixels();
            let mut buffer = self.recycler.take(pixels.len());
            buffer.extend_from_slice(pixels);
            return Some(Message::new(now, self.body(&Header::frame(geometry), &[], buffer)));
        }
        if let Some(clipboard) = &mut self.clipboard
            && let Some(message) = clipboard.copies.next(geometry, now)
        {
            return Some(message);
        }
        if !std::mem::take(&mut self.due.cursor) {
            return None;
        }
        let (cursor, pixels) = self.cursor.as_ref()?;
        let mut buffer = self.recycler.take(pixels.len());
        buffer.extend_from_slice(pixels);
        let header = Header { kind: Kind::Cursor, geometry };
        let front = cursor.emit();
        Some(Message::new(now, self.body(&header, &front, buffer)))
    }

    fn geometry(&self) -> Option<Geometry> {
        let picture = self.client.picture();
        // Always `Some`: the client has checked the size.
        Geometry::new(VideoPixels::Bgrx32, picture.width(), picture.height()).ok()
    }

    /// Returns a message with the changed rectangles; `None` if a whole picture is shorter.
    fn partial_picture(&mut self, changes: Vec<Rectangle>, now: Time) -> Option<Message> {
        let picture = self.client.picture();
        let bytes: usize = changes.iter().map(|rectangle| rectangle.bytes(VideoPixels::Bgrx32)).sum();
        if changes.len() > RECTANGLES_MAX || bytes >= picture.pixels().len() {
            return None;
        }
        let mut buffer = self.recycler.take(bytes);
        for rectangle in &changes {
            picture.rows(rectangle).for_each(|row| buffer.extend_from_slice(row));
        }
        let header = Header { kind: Kind::Rectangles, geometry: self.geometry()? };
        Some(Message::new(now, self.body(&header, &emit_rectangles(&changes), buffer)))
    }

    /// Joins a header, its table and pixels. The recycler gets the memory of the pixels back.
    fn body(&mut self, header: &Header, front: &[u8], mut pixels: BytesMut) -> Body {
        let capacity = pixels.capacity();
        let mut body = Body::from(pixels.split().freeze());
        self.recycler.retire(pixels, capacity);
        body.push_front(front);
        body.push_front(&header.emit());
        body
    }

    /// Sends an input event to the server, and tracks the pressed keys and buttons.
    fn send(&mut self, event: &Event) {
        match *event {
            Event::Key { keysym, pressed } => {
                self.keys.retain(|pressed| *pressed != keysym);
                if pressed && self.keys.len() < KEYS_PRESSED_MAX {
                    self.keys.push(keysym);
                }
            }
            Event::Pointer { x, y, buttons } => self.pointer = (x, y, buttons),
            Event::Refresh => self.due = Due::ALL,
            Event::Text(_) | Event::Fetch => return self.send_clipboard(event),
            Event::Size { .. } => {}
        }
        self.client.send(event);
    }

    fn send_clipboard(&mut self, event: &Event) {
        let Some(clipboard) = &mut self.clipboard else { return };
        match event {
            Event::Text(text) => {
                if let Some(text) = clipboard.copies.handle_text(text) {
                    self.client.send(&Event::Text(text));
                }
            }
            _ if clipboard.handle_fetch() => self.client.request_text(),
            _ => {}
        }
    }

    /// Releases all keys and buttons.
    fn release_all(&mut self) {
        for keysym in std::mem::take(&mut self.keys) {
            self.client.send(&Event::Key { keysym, pressed: false });
        }
        let (x, y, buttons) = self.pointer;
        if buttons != 0 {
            self.pointer.2 = 0;
            self.client.send(&Event::Pointer { x, y, buttons: 0 });
        }
    }
}

impl Endpoint for DevicePartner {
    fn opened(&mut self, template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        if template.direction == Direction::Out {
            // The reader of a flow that is opened again does not have the picture.
            self.due = Due::ALL;
            self.client.ask();
            self.write()?;
        }
        Ok(())
    }

    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        self.write()?;
        if self.client.output.len() > OUTPUT_BYTES_MAX {
            return Ok(false);
        }
        let event = Event::parse(&message.body.clone().into_bytes()).map_err(invalid)?;
        self.send(&event);
        self.write()?;
        Ok(true)
    }

    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        let next = self.next_message(now);
        self.may_have_event = matches!(next, Ok(Next::Message(_)));
        next
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish => Ok(if self.write()? { CtlReply::Done } else { CtlReply::Pending }),
            Ctl::Neutral => {
                self.release_all();
                self.write()?;
                Ok(CtlReply::Done)
            }
            Ctl::Snapshot => {
                self.due = Due::ALL;
                self.clipboard.iter_mut().for_each(|clipboard| clipboard.copies.handle_snapshot());
                Ok(CtlReply::Done)
            }
            Ctl::Report => Ok(CtlReply::Report(vec![
                ("updates", self.updates as f64),
                ("read bytes", self.read_bytes as f64),
            ])),
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        let write = (!self.client.output.is_empty()).then_some((self.socket.as_fd(), Interest::Write));
        match direction {
            Direction::Out => {
                let has_text = self.clipboard.as_ref().is_some_and(|clipboard| clipboard.copies.is_ready());
                let is_due = has_text
                    || self.has_picture && self.due.picture
                    || self.cursor.is_some() && self.due.cursor;
                Readiness {
                    now: is_due || self.may_have_event,
                    descriptors: [Some((self.socket.as_fd(), Interest::Read)), write],
                    at: None,
                }
            }
            Direction::In => Readiness {
                now: self.client.output.len() <= OUTPUT_BYTES_MAX,
                descriptors: [write, None],
                at: None,
            },
        }
    }
}
