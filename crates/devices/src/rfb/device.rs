//! The device's side: a client, whose server's screen is the source.

use super::client::{Changes, Client, Said, ServerInit};
use super::pixels::PixelFormat;
use crate::flows::{Flows, OUT};
use crate::stream::now;
use buffers::Recycler;
use bytes::BytesMut;
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Interest, Message, Next,
    Partner, PartnerError, Pull, PullSlot, Pulled, Pushed, Readiness, Time,
};
use std::io::{ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use sys::net::Room;
use wire::formats::video::{
    Cursor, Geometry, Header, Kind, PixelFormat as VideoPixels, RECTANGLES_MAX, Rectangle, emit_rectangles,
};
use wire::formats::viewer::Event;

/// Bytes read at once.
const READ_BYTES: usize = 1 << 18;

/// Unwritten bytes for the server beyond which nothing more is taken.
const OUTPUT_BYTES_MAX: usize = 1 << 16;

/// Unwritten bytes beyond which the server asks for answers and reads none: more than two texts and what goes with them.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Memory of messages that is kept for use again.
const BUFFERS_KEPT: usize = 4;
const BYTES_KEPT: usize = 64 << 20;

/// Keys held down that are let go of when the other side falls silent; hands have fewer fingers.
const KEYS_HELD_MAX: usize = 64;

/// A server's screen as a partner.
#[derive(Debug)]
pub(super) struct Screen {
    name: String,
    socket: OwnedFd,
    client: Client,
    flows: Flows,
    slot: PullSlot,
    buffer: BytesMut,
    recycler: Recycler,
    /// A whole picture is wanted, whatever changed.
    is_whole_wanted: bool,
    has_picture: bool,
    cursor: Option<(Cursor, Vec<u8>)>,
    is_cursor_wanted: bool,
    keys: Vec<u32>,
    pointer: (u32, u32, u16),
    /// What was read may have more in it.
    may_have_more: bool,
    updates: u64,
    read_bytes: u64,
}

impl Screen {
    /// On a connection to a server that said `init`, which is asked for these encodings.
    pub(super) fn new(name: String, socket: OwnedFd, init: &ServerInit, encodings: &[i32]) -> Screen {
        Screen {
            name,
            socket,
            client: Client::new(init, PixelFormat::OURS, encodings),
            flows: Flows::new(true, true),
            slot: PullSlot::default(),
            buffer: BytesMut::with_capacity(READ_BYTES),
            recycler: Recycler::new(BUFFERS_KEPT, BYTES_KEPT),
            is_whole_wanted: false,
            has_picture: false,
            cursor: None,
            is_cursor_wanted: false,
            keys: Vec::new(),
            pointer: (0, 0, 0),
            may_have_more: false,
            updates: 0,
            read_bytes: 0,
        }
    }

    fn gone(&self) -> PartnerError {
        PartnerError::Gone(self.name.clone())
    }

    fn error(&self, what: &str, error: std::io::Error) -> PartnerError {
        match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::TimedOut => self.gone(),
            _ => PartnerError::os(format!("{what} {}", self.name), error),
        }
    }

    /// Writes what it can; says whether that was everything.
    fn write(&mut self) -> Result<bool, PartnerError> {
        while !self.client.output.is_empty() {
            match sys::net::send(&self.socket, &[IoSlice::new(&self.client.output)]) {
                Ok(count) => drop(self.client.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(self.error("writing to", error)),
            }
        }
        Ok(true)
    }

    fn next(&mut self, now: Time) -> Result<Next, PartnerError> {
        loop {
            if let Some(message) = self.owed(now) {
                return Ok(Next::Message(message));
            }
            let said =
                self.client.next().map_err(|fault| PartnerError::Peer(format!("{}: {fault}", self.name)))?;
            match said {
                Some(Said::Update) => {
                    self.updates += 1;
                    let changes = self.client.take_changes();
                    self.client.ask();
                    self.write()?;
                    match changes {
                        Some(Changes::All) => (self.is_whole_wanted, self.has_picture) = (true, true),
                        Some(Changes::Only(changes)) if !self.is_whole_wanted => {
                            if let Some(message) = self.rectangles(changes, now) {
                                return Ok(Next::Message(message));
                            }
                            self.is_whole_wanted = true;
                        }
                        _ => {}
                    }
                }
                Some(Said::Cursor(cursor, pixels)) => {
                    (self.cursor, self.is_cursor_wanted) = (Some((cursor, pixels)), true);
                }
                // A clipboard crosses the other way only.
                Some(Said::Text(_)) => {}
                None if !self.read()? => return Ok(Next::Nothing),
                None => {}
            }
        }
    }

    /// Reads once; says whether there was anything.
    fn read(&mut self) -> Result<bool, PartnerError> {
        self.client.ask();
        self.write()?;
        if self.client.output.len() > ANSWER_BYTES_MAX {
            return Err(PartnerError::Peer(format!(
                "{}: it asks, and does not read what it is told",
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

    /// What is to be said whole.
    fn owed(&mut self, now: Time) -> Option<Message> {
        let geometry = self.geometry()?;
        if self.has_picture && std::mem::take(&mut self.is_whole_wanted) {
            let pixels = self.client.picture().pixels();
            let mut buffer = self.recycler.take(pixels.len());
            buffer.extend_from_slice(pixels);
            return Some(Message::new(now, self.body(&Header::frame(geometry), &[], buffer)));
        }
        if !std::mem::take(&mut self.is_cursor_wanted) {
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
        // Its size was looked at when the server said it.
        Geometry::new(VideoPixels::Bgrx32, picture.width(), picture.height()).ok()
    }

    /// What changed; `None` if a whole picture says it shorter.
    fn rectangles(&mut self, changes: Vec<Rectangle>, now: Time) -> Option<Message> {
        let picture = self.client.picture();
        let bytes: usize = changes.iter().map(|changed| changed.bytes(VideoPixels::Bgrx32)).sum();
        if changes.len() > RECTANGLES_MAX || bytes >= picture.pixels().len() {
            return None;
        }
        let mut buffer = self.recycler.take(bytes);
        for changed in &changes {
            picture.rows(changed).for_each(|row| buffer.extend_from_slice(row));
        }
        let header = Header { kind: Kind::Rectangles, geometry: self.geometry()? };
        Some(Message::new(now, self.body(&header, &emit_rectangles(&changes), buffer)))
    }

    /// A body of a header, what follows it, and pixels, whose memory comes back.
    fn body(&mut self, header: &Header, front: &[u8], mut pixels: BytesMut) -> Body {
        let capacity = pixels.capacity();
        let mut body = Body::from(pixels.split().freeze());
        self.recycler.retire(pixels, capacity);
        body.push_front(front);
        body.push_front(&header.emit());
        body
    }

    /// Tells the server what somebody did, and remembers what is held down by it.
    fn tell(&mut self, event: &Event) {
        match *event {
            Event::Key { keysym, pressed } => {
                self.keys.retain(|held| *held != keysym);
                if pressed && self.keys.len() < KEYS_HELD_MAX {
                    self.keys.push(keysym);
                }
            }
            Event::Pointer { x, y, buttons } => self.pointer = (x, y, buttons),
            Event::Refresh => (self.is_whole_wanted, self.is_cursor_wanted) = (true, true),
            Event::Text(_) | Event::Size { .. } => {}
        }
        self.client.tell(event);
    }

    /// Lets go of every key and button.
    fn let_go(&mut self) {
        for keysym in std::mem::take(&mut self.keys) {
            self.client.tell(&Event::Key { keysym, pressed: false });
        }
        let (x, y, buttons) = self.pointer;
        if buttons != 0 {
            self.pointer.2 = 0;
            self.client.tell(&Event::Pointer { x, y, buttons: 0 });
        }
    }
}

impl Partner for Screen {
    fn open(&mut self, template: &FlowTemplate, _attributes: &Attributes) -> Result<FlowKey, PartnerError> {
        let format = match template.direction {
            Direction::Out => Format::Video,
            Direction::In => Format::Viewer,
        };
        let key = self.flows.open(template, &format)?;
        if template.direction == Direction::Out {
            // Who opens the flow anew knows nothing of the picture.
            (self.is_whole_wanted, self.is_cursor_wanted) = (true, true);
            self.client.ask();
            self.write()?;
        }
        Ok(key)
    }

    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError> {
        self.flows.close(flow).map(|_| ())
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        match self.flows.check(flow, Direction::In).and_then(|()| self.write()) {
            Ok(_) if self.client.output.len() > OUTPUT_BYTES_MAX => return Ok(Pushed::Full(message)),
            Ok(_) => {}
            Err(error) => return Err((error, message)),
        }
        match Event::parse(&message.body.clone().into_bytes()) {
            Ok(event) => self.tell(&event),
            Err(error) => return Err((PartnerError::Message(error.to_string()), message)),
        }
        match self.write() {
            Ok(_) => Ok(Pushed::Taken),
            Err(error) => Err((error, message)),
        }
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        self.flows.check(flow, Direction::Out)?;
        let mut slot = std::mem::take(&mut self.slot);
        let answer = slot.answer(OUT, want, || {
            let next = self.next(now());
            self.may_have_more = matches!(next, Ok(Next::Message(_)));
            next
        });
        self.slot = slot;
        answer
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        self.flows.check_any(flow)?;
        match operation {
            Ctl::Flush | Ctl::Finish => Ok(if self.write()? { CtlReply::Done } else { CtlReply::Pending }),
            Ctl::Neutral => {
                self.let_go();
                self.write()?;
                Ok(CtlReply::Done)
            }
            Ctl::Snapshot => {
                (self.is_whole_wanted, self.is_cursor_wanted) = (true, true);
                Ok(CtlReply::Done)
            }
            Ctl::Report => Ok(CtlReply::Report(vec![
                ("updates", self.updates as f64),
                ("read bytes", self.read_bytes as f64),
            ])),
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        if !self.flows.names(flow, direction) {
            return Readiness::never();
        }
        let write = (!self.client.output.is_empty()).then_some((self.socket.as_fd(), Interest::Write));
        match direction {
            Direction::Out => {
                let is_owed = self.has_picture && self.is_whole_wanted
                    || self.cursor.is_some() && self.is_cursor_wanted;
                Readiness {
                    now: self.slot.is_held() || is_owed || self.may_have_more,
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
