//! A window: pictures into it, and what somebody does there out of it.
//!
//! The server keeps the picture (a pixmap), so that what is uncovered it can show by itself. New pixels get there
//! through shared memory, in two halves: while the server copies out of one, the next picture goes into the other.

use super::client::{Client, Packet, Sequence};
use super::display::{Extension, Extensions, Segment, parse};
use super::pointer::Pointer;
use crate::bgrx::{self, PIXEL_BYTES, Shown};
use contract::{Body, Bytes};
use std::borrow::Cow;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;
use wire::formats::video::{Cursor, PixelFormat, Rectangle};
use x11rb_protocol::protocol::shm;
use x11rb_protocol::protocol::xproto::{
    self, AtomEnum, ChangePropertyRequest, ClientMessageEvent, ConfigureWindowAux, ConfigureWindowRequest,
    CopyAreaRequest, CreateGCRequest, CreatePixmapRequest, CreateWindowAux, CreateWindowRequest, EventMask,
    ExposeEvent, FreePixmapRequest, ImageFormat, InternAtomReply, InternAtomRequest, MapWindowRequest,
    PropMode, PutImageRequest, Screen, WindowClass,
};

/// Pictures under way to the server.
const HALVES: usize = 2;
/// Bytes of a request before the pixels it brings (`PutImage`).
const PUT_HEADER_BYTES: usize = 24;

/// What is said of the picture while nothing comes.
const STALE: &str = " (not connected)";

/// A window that shows a picture.
pub(super) struct Window {
    screen: Screen,
    extensions: Extensions,
    title: String,
    is_stale: bool,
    /// The request to close it.
    delete: (xproto::Atom, xproto::Atom),
    pub(super) number: xproto::Window,
    gc: xproto::Gcontext,
    pixmap: xproto::Pixmap,
    /// Of what is shown: none before the first picture.
    size: Option<(u32, u32)>,
    pointer: Option<Pointer>,
    /// The pointer's shape, told before there was a window.
    shape: Option<(Cursor, Bytes)>,
    memory: OwnedFd,
    segment: Option<(Segment, Extension)>,
    attaching: Option<Sequence>,
    /// Halves of the memory that the server reads, and the next to be written.
    under_way: usize,
    half: usize,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is on its way to the glass.
    Shown,
    /// It says nothing that can be shown.
    Nothing,
    /// It is a part of a picture that is not there.
    NeedsWhole,
}

impl Window {
    /// A window that appears with the first picture.
    pub(super) fn new(
        client: &mut Client,
        extensions: Extensions,
        screen: Screen,
        title: String,
        memory: OwnedFd,
        deadline: Instant,
    ) -> io::Result<Window> {
        let mut atom = |name: &[u8]| -> io::Result<xproto::Atom> {
            let request =
                client.ask(InternAtomRequest { only_if_exists: false, name: name.into() }.serialize());
            super::display::answer(client, request, deadline).map(|reply: InternAtomReply| reply.atom)
        };
        let delete = (atom(b"WM_PROTOCOLS")?, atom(b"WM_DELETE_WINDOW")?);
        let (number, gc, pixmap) = (client.resource(), client.resource(), client.resource());
        let pointer = Pointer::new(client, extensions, number, deadline)?;
        Ok(Window {
            screen,
            extensions,
            title,
            is_stale: false,
            delete,
            number,
            gc,
            pixmap,
            size: None,
            pointer,
            shape: None,
            memory,
            segment: None,
            attaching: None,
            under_way: 0,
            half: 0,
        })
    }

    /// The size of what is shown.
    pub(super) fn size(&self) -> Option<(u32, u32)> {
        self.size
    }

    /// Whether the server has not caught up with what it was given.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way >= HALVES
    }

    /// Shows what a message says; the error says what is wrong with it.
    pub(super) fn show(&mut self, client: &mut Client, body: &Body) -> io::Result<Result<Outcome, String>> {
        let (shown, pixels) = match bgrx::read(body) {
            Ok(read) => read,
            Err(problem) => return Ok(Err(problem)),
        };
        match shown {
            Shown::Frame(width, height) => {
                self.fit(client, (width, height))?;
                self.put(client, &[Rectangle { x: 0, y: 0, width, height }], &pixels)?;
            }
            Shown::Parts(width, height, _) if self.size != Some((width, height)) => {
                return Ok(Ok(Outcome::NeedsWhole));
            }
            Shown::Parts(_, _, parts) => self.put(client, &parts, &pixels)?,
            Shown::Cursor(cursor) => match (&mut self.pointer, self.size) {
                (None, _) => return Ok(Ok(Outcome::Nothing)),
                (Some(pointer), Some(_)) => pointer.set(client, &cursor, &pixels.into_bytes()),
                (Some(_), None) => self.shape = Some((cursor, pixels.into_bytes())),
            },
            Shown::Nothing => return Ok(Ok(Outcome::Nothing)),
        }
        Ok(Ok(Outcome::Shown))
    }

    /// Makes window, pixmap and memory of the size of a picture.
    fn fit(&mut self, client: &mut Client, size: (u32, u32)) -> io::Result<()> {
        self.set_stale(client, false);
        if self.size == Some(size) {
            return Ok(());
        }
        let (width, height) = (size.0 as u16, size.1 as u16);
        match self.size.replace(size) {
            None => self.create(client, width, height),
            Some(_) => {
                client.send(FreePixmapRequest { pixmap: self.pixmap }.serialize());
                let sides = ConfigureWindowAux::new().width(size.0).height(size.1);
                let configure = ConfigureWindowRequest { window: self.number, value_list: Cow::Owned(sides) };
                client.send(configure.serialize());
            }
        }
        let (depth, pid, drawable) = (self.screen.root_depth, self.pixmap, self.number);
        client.send(CreatePixmapRequest { depth, pid, drawable, width, height }.serialize());
        let bytes = HALVES * size.0 as usize * size.1 as usize * PIXEL_BYTES;
        if let Some(shm) = self.extensions.shm
            && self.segment.as_ref().is_none_or(|(segment, _)| segment.bytes() < bytes)
        {
            let (segment, request) = Segment::attach(client, shm, &self.memory, bytes)?;
            if let Some((before, shm)) = self.segment.replace((segment, shm)) {
                before.detach(client, shm);
            }
            self.attaching = Some(request);
        }
        Ok(())
    }

    fn create(&mut self, client: &mut Client, width: u16, height: u16) {
        let events = EventMask::EXPOSURE
            | EventMask::STRUCTURE_NOTIFY
            | EventMask::FOCUS_CHANGE
            | EventMask::KEY_PRESS
            | EventMask::KEY_RELEASE
            | EventMask::BUTTON_PRESS
            | EventMask::BUTTON_RELEASE
            | EventMask::POINTER_MOTION;
        let values = CreateWindowAux::new().background_pixel(self.screen.black_pixel).event_mask(events);
        let (parent, visual, depth) = (self.screen.root, self.screen.root_visual, self.screen.root_depth);
        let (wid, class, value_list) = (self.number, WindowClass::INPUT_OUTPUT, Cow::Owned(values));
        let (x, y, border_width) = (0, 0, 0);
        let create = CreateWindowRequest {
            depth,
            wid,
            parent,
            x,
            y,
            width,
            height,
            border_width,
            class,
            visual,
            value_list,
        };
        client.send(create.serialize());
        let gc = CreateGCRequest { cid: self.gc, drawable: self.number, value_list: Cow::default() };
        client.send(gc.serialize());
        let (protocols, delete) = self.delete;
        self.set_property(client, protocols, AtomEnum::ATOM, (32, 1), &delete.to_ne_bytes());
        self.set_title(client);
        if let (Some(pointer), Some((cursor, pixels))) = (&mut self.pointer, self.shape.take()) {
            pointer.set(client, &cursor, &pixels);
        }
        client.send(MapWindowRequest { window: self.number }.serialize());
    }

    fn set_property(
        &self,
        client: &mut Client,
        property: xproto::Atom,
        type_: AtomEnum,
        (format, data_len): (u8, u32),
        data: &[u8],
    ) {
        let (mode, window, type_, data) = (PropMode::REPLACE, self.number, type_.into(), data.into());
        client.send(
            ChangePropertyRequest { mode, window, property, type_, format, data_len, data }.serialize(),
        );
    }

    fn set_title(&self, client: &mut Client) {
        let stale = if self.is_stale { STALE } else { "" };
        let title: Vec<u8> = self.title.bytes().chain(stale.bytes()).collect();
        let property = AtomEnum::WM_NAME.into();
        self.set_property(client, property, AtomEnum::STRING, (8, title.len() as u32), &title);
    }

    /// Says on the window whether what it shows is how things stand.
    pub(super) fn set_stale(&mut self, client: &mut Client, is_stale: bool) {
        if std::mem::replace(&mut self.is_stale, is_stale) != is_stale && self.size.is_some() {
            self.set_title(client);
        }
    }

    /// Gives the server pixels of parts of the picture, one behind the other, and has it show them.
    fn put(&mut self, client: &mut Client, parts: &[Rectangle], pixels: &Body) -> io::Result<()> {
        let (drawable, gc, depth) = (self.pixmap, self.gc, self.screen.root_depth);
        match &self.segment {
            Some((segment, shm)) => {
                let start = self.half * (segment.bytes() / HALVES);
                segment.write(pixels.chunks(), start)?;
                let mut offset = start as u32;
                for (number, part) in parts.iter().enumerate() {
                    let (width, height) = (part.width as u16, part.height as u16);
                    let put = shm::PutImageRequest {
                        drawable,
                        gc,
                        total_width: width,
                        total_height: height,
                        src_x: 0,
                        src_y: 0,
                        src_width: width,
                        src_height: height,
                        dst_x: part.x as i16,
                        dst_y: part.y as i16,
                        depth,
                        format: ImageFormat::Z_PIXMAP.into(),
                        send_event: number + 1 == parts.len(),
                        shmseg: segment.number,
                        offset,
                    };
                    client.send(put.serialize(shm.opcode));
                    offset += part.bytes(PixelFormat::Bgrx32) as u32;
                }
                if !parts.is_empty() {
                    self.under_way += 1;
                    self.half = (self.half + 1) % HALVES;
                }
            }
            None => {
                let pixels = pixels.clone().into_bytes();
                let mut rest = &pixels[..];
                for part in parts {
                    let (own, others) = rest.split_at(part.bytes(PixelFormat::Bgrx32));
                    rest = others;
                    put_image(client, (drawable, gc, depth), part, own);
                }
            }
        }
        parts.iter().for_each(|part| self.copy(client, part));
        Ok(())
    }

    /// Shows a part of the picture.
    fn copy(&self, client: &mut Client, part: &Rectangle) {
        let (src_drawable, dst_drawable, gc) = (self.pixmap, self.number, self.gc);
        let (src_x, src_y, dst_x, dst_y) = (part.x as i16, part.y as i16, part.x as i16, part.y as i16);
        let (width, height) = (part.width as u16, part.height as u16);
        let copy =
            CopyAreaRequest { src_drawable, dst_drawable, gc, src_x, src_y, dst_x, dst_y, width, height };
        client.send(copy.serialize());
    }

    /// Takes what the server says of the window itself; what it says of hands is left.
    pub(super) fn handle(&mut self, client: &mut Client, packet: &Packet) -> io::Result<Handled> {
        let event = match packet {
            Packet::Event(event) => event,
            Packet::Error(request, _) if self.attaching == Some(*request) => {
                // It shares no memory after all: what was put there is lost.
                (self.extensions.shm, self.segment, self.attaching) = (None, None, None);
                self.under_way = 0;
                return Ok(Handled::Lost);
            }
            _ => return Ok(Handled::Not),
        };
        let code = event[0] & 0x7f;
        if self.extensions.shm.is_some_and(|shm| code == shm.event + shm::COMPLETION_EVENT) {
            self.under_way = self.under_way.saturating_sub(1);
            return Ok(Handled::Yes);
        }
        match code {
            xproto::EXPOSE_EVENT => {
                let event: ExposeEvent = parse(event)?;
                let whole = self.size.map(|(width, height)| Rectangle { x: 0, y: 0, width, height });
                let (x, y) = (event.x.into(), event.y.into());
                let seen = Rectangle { x, y, width: event.width.into(), height: event.height.into() };
                if let Some(part) = whole.and_then(|whole| seen.intersection(&whole)) {
                    self.copy(client, &part);
                }
                Ok(Handled::Yes)
            }
            xproto::CLIENT_MESSAGE_EVENT => {
                let event: ClientMessageEvent = parse(event)?;
                let (protocols, delete) = self.delete;
                let is_delete = event.type_ == protocols && event.data.as_data32()[0] == delete;
                Ok(if is_delete { Handled::Closed } else { Handled::Yes })
            }
            xproto::DESTROY_NOTIFY_EVENT => Ok(Handled::Closed),
            _ => Ok(Handled::Not),
        }
    }
}

/// Whether something that a server said was about the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handled {
    Not,
    Yes,
    /// A picture was lost on the way.
    Lost,
    /// Somebody closed it.
    Closed,
}

/// Gives the server pixels with the request itself, in as many as it takes.
pub(super) fn put_image(
    client: &mut Client,
    (drawable, gc, depth): (xproto::Drawable, xproto::Gcontext, u8),
    part: &Rectangle,
    pixels: &[u8],
) {
    let request_bytes = usize::from(client.setup().maximum_request_length) * 4;
    let row_bytes = part.width as usize * PIXEL_BYTES;
    let rows = (request_bytes.saturating_sub(PUT_HEADER_BYTES) / row_bytes.max(1)).max(1);
    let mut y = part.y as i16;
    for strip in pixels.chunks(rows * row_bytes.max(1)) {
        let (width, height) = (part.width as u16, (strip.len() / row_bytes) as u16);
        let (format, dst_x, dst_y, left_pad) = (ImageFormat::Z_PIXMAP, part.x as i16, y, 0);
        let data = strip.into();
        let put =
            PutImageRequest { format, drawable, gc, width, height, dst_x, dst_y, left_pad, depth, data };
        client.send(put.serialize());
        y += height as i16;
    }
}
