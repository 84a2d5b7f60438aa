//! A window that displays pictures.
//!
//! The server stores the picture in a pixmap, and uncovered parts of the window are copied from it, scaled if the window is
//! smaller (`placement`, `scaler`). New pixels pass through shared memory with two buffers: while the server reads one, the next
//! picture is written to the other.

use super::client::{Client, Packet, Sequence};
use super::display::{Extension, Extensions, Segment, parse, picture_formats, wait_reply};
use super::image::put_image;
use super::placement::Placement;
use super::pointer::Pointer;
use super::scaler::Scaler;
use super::sizes::WindowSize;
use crate::bgrx::{PIXEL_BYTES, Update};
use contract::{Body, Bytes, Time};
use std::borrow::Cow;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;
use wire::formats::video::{Cursor, PixelFormat, Rectangle};
use x11rb_protocol::protocol::shm;
use x11rb_protocol::protocol::xproto::{
    self, AtomEnum, ChangePropertyRequest, ClearAreaRequest, ClientMessageEvent, ConfigureWindowAux,
    ConfigureWindowRequest, CopyAreaRequest, CreateGCRequest, CreatePixmapRequest, CreateWindowAux,
    CreateWindowRequest, EventMask, ExposeEvent, FreePixmapRequest, ImageFormat, InternAtomReply,
    InternAtomRequest, MapWindowRequest, PropMode, Screen, WindowClass,
};

/// The number of buffers in the shared memory.
const BUFFERS: usize = 2;

/// The suffix of the title while the peer is unreachable.
const STALE: &str = " (not connected)";

/// A window that shows a picture.
pub(super) struct Window {
    screen: Screen,
    extensions: Extensions,
    title: String,
    is_stale: bool,
    /// The type and the value of the window manager's request to close the window.
    delete: (xproto::Atom, xproto::Atom),
    pub(super) number: xproto::Window,
    gc: xproto::Gcontext,
    pixmap: xproto::Pixmap,
    /// The place of the picture; `None` before the first one.
    placement: Option<Placement>,
    pub(super) size: WindowSize,
    /// `None` if the server cannot scale: a smaller window then shows a part of the picture.
    scaler: Option<Scaler>,
    pointer: Option<Pointer>,
    /// A pointer shape that arrived before the first picture.
    shape: Option<(Cursor, Bytes)>,
    memory: OwnedFd,
    segment: Option<(Segment, Extension)>,
    attaching: Option<Sequence>,
    /// The number of buffers that the server reads now.
    in_flight: usize,
    /// The buffer for the next picture.
    next_buffer: usize,
}

/// The result of `Window::show`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShowOutcome {
    /// The server has the picture or the pointer shape.
    Displayed,
    /// The message has nothing that the window can display.
    Ignored,
    /// The message has parts of a picture that the window does not have.
    NeedsWhole,
}

impl Window {
    /// Prepares a window. It appears with the first picture.
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
                client.query(InternAtomRequest { only_if_exists: false, name: name.into() }.serialize());
            wait_reply(client, request, deadline).map(|reply: InternAtomReply| reply.atom)
        };
        let delete = (atom(b"WM_PROTOCOLS")?, atom(b"WM_DELETE_WINDOW")?);
        let (number, gc, pixmap) = (client.resource(), client.resource(), client.resource());
        let (mut pointer, mut scaler) = (None, None);
        if let Some(render) = extensions.render {
            let formats = picture_formats(client, render, deadline)?;
            pointer = Pointer::new(client, render, &formats, number);
            scaler = Scaler::new(client, render, &formats, &screen);
        }
        Ok(Window {
            screen,
            extensions,
            title,
            is_stale: false,
            delete,
            number,
            gc,
            pixmap,
            placement: None,
            size: WindowSize::default(),
            scaler,
            pointer,
            shape: None,
            memory,
            segment: None,
            attaching: None,
            in_flight: 0,
            next_buffer: 0,
        })
    }

    /// Returns the pixel of the picture at a position in the window.
    pub(super) fn pixel_at(&self, x: i16, y: i16) -> (u32, u32) {
        self.placement.map_or((0, 0), |placement| placement.pixel_at(x, y))
    }

    /// Returns whether the server still reads both buffers.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight >= BUFFERS
    }

    /// Displays an update with its pixels.
    pub(super) fn show(
        &mut self,
        client: &mut Client,
        update: Update,
        pixels: &Body,
    ) -> io::Result<ShowOutcome> {
        match update {
            Update::Frame(width, height) => {
                self.fit(client, (width, height))?;
                self.put(client, &[Rectangle { x: 0, y: 0, width, height }], pixels)?;
            }
            Update::Parts(width, height, _) if self.picture() != Some((width, height)) => {
                return Ok(ShowOutcome::NeedsWhole);
            }
            Update::Parts(_, _, parts) => self.put(client, &parts, pixels)?,
            Update::Cursor(cursor) => match (&mut self.pointer, self.placement) {
                (None, _) => return Ok(ShowOutcome::Ignored),
                (Some(pointer), Some(_)) => pointer.set(client, &cursor, &pixels.clone().into_bytes()),
                (Some(_), None) => self.shape = Some((cursor, pixels.clone().into_bytes())),
            },
            Update::Clipboard(_) | Update::Nothing => return Ok(ShowOutcome::Ignored),
        }
        Ok(ShowOutcome::Displayed)
    }

    /// Returns the size of the picture.
    fn picture(&self) -> Option<(u32, u32)> {
        self.placement.map(|placement| placement.picture)
    }

    /// Returns the size of the window that shows a picture as it is, or as large as the screen.
    fn natural(&self, picture: (u32, u32)) -> (u32, u32) {
        let screen = (self.screen.width_in_pixels.into(), self.screen.height_in_pixels.into());
        self.placed(picture, screen).size()
    }

    fn configure(&self, client: &mut Client, (width, height): (u32, u32)) {
        let value_list = Cow::Owned(ConfigureWindowAux::new().width(width).height(height));
        client.send(ConfigureWindowRequest { window: self.number, value_list }.serialize());
    }

    fn clear(&self, client: &mut Client) {
        let (window, x, y, width, height) = (self.number, 0, 0, 0, 0);
        client.send(ClearAreaRequest { exposures: false, window, x, y, width, height }.serialize());
    }

    /// Makes the window, the pixmap and the shared memory fit the size of a picture.
    fn fit(&mut self, client: &mut Client, size: (u32, u32)) -> io::Result<()> {
        self.set_stale(client, false);
        if self.picture() == Some(size) {
            return Ok(());
        }
        let given = self.size.fit(self.natural(size));
        let window = self.size.expected();
        if self.placement.is_none() {
            self.create(client, window.0 as u16, window.1 as u16);
        } else {
            client.send(FreePixmapRequest { pixmap: self.pixmap }.serialize());
            match given {
                Some(window) => self.configure(client, window),
                None => self.clear(client),
            }
        }
        let (depth, pid, drawable) = (self.screen.root_depth, self.pixmap, self.number);
        let (width, height) = (size.0 as u16, size.1 as u16);
        client.send(CreatePixmapRequest { depth, pid, drawable, width, height }.serialize());
        if let Some(scaler) = &mut self.scaler {
            scaler.set_pixmap(client, pid, drawable);
        }
        // A window manager that gives another size says so.
        self.place(client, size, window);
        let bytes = BUFFERS * size.0 as usize * size.1 as usize * PIXEL_BYTES;
        if let Some(shm) = self.extensions.shm
            && self.segment.as_ref().is_none_or(|(segment, _)| segment.bytes() < bytes)
        {
            let (segment, request) = Segment::attach(client, shm, &self.memory, bytes)?;
            if let Some((prev, shm)) = self.segment.replace((segment, shm)) {
                prev.detach(client, shm);
            }
            self.attaching = Some(request);
        }
        Ok(())
    }

    /// Returns the place of a picture in a window.
    fn placed(&self, picture: (u32, u32), (width, height): (u32, u32)) -> Placement {
        match self.scaler {
            Some(_) => Placement::new(picture, (width, height)),
            None => Placement::new(picture, (width.max(picture.0), height.max(picture.1))),
        }
    }

    /// Places a picture in a window. Returns whether that changes its place.
    fn place(&mut self, client: &mut Client, picture: (u32, u32), window: (u32, u32)) -> bool {
        let placement = self.placed(picture, window);
        let is_new = self.placement.replace(placement) != Some(placement);
        if let Some(scaler) = self.scaler.as_ref().filter(|_| is_new && placement.is_scaled()) {
            scaler.set_placement(client, &placement);
        }
        is_new
    }

    /// The window has this size now.
    pub(super) fn handle_size(&mut self, client: &mut Client, size: (u32, u32), now: Time) {
        self.size.handle_report(size, now);
        let Some(picture) = self.picture() else { return };
        if let Some(given) = self.size.fit(self.natural(picture)) {
            self.configure(client, given);
        }
        if self.place(client, picture, size) {
            // Parts that were drawn since the change are at the former place.
            self.clear(client);
            self.draw(client, &Rectangle { x: 0, y: 0, width: size.0, height: size.1 });
        }
    }

    fn create(&mut self, client: &mut Client, width: u16, height: u16) {
        let events = EventMask::EXPOSURE
            | EventMask::STRUCTURE_NOTIFY
            | EventMask::FOCUS_CHANGE
            | EventMask::ENTER_WINDOW
            | EventMask::LEAVE_WINDOW
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

    /// Marks the picture in the title as stale or current.
    pub(super) fn set_stale(&mut self, client: &mut Client, is_stale: bool) {
        if std::mem::replace(&mut self.is_stale, is_stale) != is_stale && self.placement.is_some() {
            self.set_title(client);
        }
    }

    /// Sends the pixels of parts of the picture to the server and displays them. The parts' pixels follow each other.
    fn put(&mut self, client: &mut Client, parts: &[Rectangle], pixels: &Body) -> io::Result<()> {
        let (drawable, gc, depth) = (self.pixmap, self.gc, self.screen.root_depth);
        match &self.segment {
            Some((segment, shm)) => {
                let start = self.next_buffer * (segment.bytes() / BUFFERS);
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
                    self.in_flight += 1;
                    self.next_buffer = (self.next_buffer + 1) % BUFFERS;
                }
            }
            None => {
                let pixels = pixels.clone().into_bytes();
                let mut rest = &pixels[..];
                for part in parts {
                    let (part_pixels, remaining) = rest.split_at(part.bytes(PixelFormat::Bgrx32));
                    rest = remaining;
                    put_image(client, (drawable, gc, depth), part, part_pixels);
                }
            }
        }
        if let Some(placement) = self.placement {
            parts.iter().for_each(|part| self.draw(client, &placement.of_part(part)));
        }
        Ok(())
    }

    /// Draws a part of the window, as far as it shows the picture, from the pixmap.
    fn draw(&self, client: &mut Client, part: &Rectangle) {
        let Some(placement) = self.placement else { return };
        let Some(part) = part.intersection(&placement.place) else { return };
        if let Some(scaler) = self.scaler.as_ref().filter(|_| placement.is_scaled()) {
            return scaler.copy(client, &placement, &part);
        }
        let (src_drawable, dst_drawable, gc) = (self.pixmap, self.number, self.gc);
        let (src_x, src_y) = ((part.x - placement.place.x) as i16, (part.y - placement.place.y) as i16);
        let (dst_x, dst_y) = (part.x as i16, part.y as i16);
        let (width, height) = (part.width as u16, part.height as u16);
        let copy =
            CopyAreaRequest { src_drawable, dst_drawable, gc, src_x, src_y, dst_x, dst_y, width, height };
        client.send(copy.serialize());
    }

    /// Processes a packet about the window itself. Input events are left to the caller.
    pub(super) fn handle(&mut self, client: &mut Client, packet: &Packet) -> io::Result<PacketOutcome> {
        let event = match packet {
            Packet::Event(event) => event,
            Packet::Error(request, _) if self.attaching == Some(*request) => {
                // The server cannot attach the memory: pixels written there are lost.
                (self.extensions.shm, self.segment, self.attaching) = (None, None, None);
                self.in_flight = 0;
                return Ok(PacketOutcome::PictureLost);
            }
            _ => return Ok(PacketOutcome::Unrelated),
        };
        let code = event[0] & 0x7f;
        if self.extensions.shm.is_some_and(|shm| code == shm.event + shm::COMPLETION_EVENT) {
            self.in_flight = self.in_flight.saturating_sub(1);
            return Ok(PacketOutcome::Processed);
        }
        match code {
            xproto::EXPOSE_EVENT => {
                let event: ExposeEvent = parse(event)?;
                let (x, y) = (event.x.into(), event.y.into());
                let exposed = Rectangle { x, y, width: event.width.into(), height: event.height.into() };
                self.draw(client, &exposed);
                Ok(PacketOutcome::Processed)
            }
            xproto::CLIENT_MESSAGE_EVENT => {
                let event: ClientMessageEvent = parse(event)?;
                let (protocols, delete) = self.delete;
                let is_delete = event.type_ == protocols && event.data.as_data32()[0] == delete;
                Ok(if is_delete { PacketOutcome::Closed } else { PacketOutcome::Processed })
            }
            xproto::DESTROY_NOTIFY_EVENT => Ok(PacketOutcome::Closed),
            _ => Ok(PacketOutcome::Unrelated),
        }
    }
}

/// The result of `Window::handle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PacketOutcome {
    /// The packet does not concern the window itself.
    Unrelated,
    Processed,
    /// A picture was lost; a whole one is needed.
    PictureLost,
    /// The window was closed.
    Closed,
}
