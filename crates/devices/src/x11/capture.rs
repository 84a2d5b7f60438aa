//! Captures a screen: first a whole picture, then the damaged rectangles, one message for each pull.
//!
//! The capture is a state machine driven by pulls and by the server's packets. It sends no request before the path
//! pulls. Until then the server accumulates the damage (DAMAGE), so no picture is captured that the path does not take.
//!
//! | phase | outstanding requests | event | next phase |
//! |---|---|---|---|
//! | `Idle` | none | pull, and a whole picture is due | `Pixels` |
//! | | | pull, and damage is due | `Region` |
//! | `Region` | the damaged region; perhaps the whole picture, as a prediction | reply, something to send | `Pixels` |
//! | | | reply, nothing to send | `Idle` |
//! | | | error | `Idle`; a whole picture becomes due |
//! | `Pixels` | the pixels of some rectangles | the last reply | `Idle`; the message is complete |
//! | | | the last reply, after an error or a resize | `Idle`; a whole picture becomes due |
//!
//! The pointer shape is requested independently of the phase (`CursorCapture`).

use super::client::{Client, Sequence};
use super::cursor::{self, CursorCapture};
use super::display::{Extension, Extensions, parse, wait_reply};
use super::slots::{Slot, Slots};
use crate::backlog::{Backlog, RECTANGLES_MAX, area};
use crate::portion::Portion;
use contract::{Body, Bytes, Message, Options, Time};
use std::borrow::Cow;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use wire::formats::video::{Geometry, Header, Kind, PixelFormat, Rectangle, emit_rectangles};
use x11rb_protocol::protocol::xfixes::{CursorNotifyMask, FetchRegionReply};
use x11rb_protocol::protocol::xproto::{
    self, ChangeWindowAttributesAux, ChangeWindowAttributesRequest, ConfigureNotifyEvent, EventMask,
    GetGeometryReply, GetGeometryRequest, GetImageRequest, ImageFormat,
};
use x11rb_protocol::protocol::{damage, shm, xfixes};

/// No region, no resource (`None`).
const NONE: u32 = 0;
/// The fraction of damaged bytes from which the next picture is predicted to be whole: numerator and denominator.
const MOSTLY_DAMAGED: (usize, usize) = (7, 8);
/// Bytes of a `GetImage` reply before its pixels.
const IMAGE_HEADER_BYTES: usize = 32;

/// The phase of the state machine; see the table above.
#[derive(Debug)]
enum Phase {
    Idle,
    /// The request for the region, and the predicted request for the whole picture.
    Region(Sequence, Option<PixelRequest>),
    Pixels(PixelRequest),
}

/// Outstanding requests for the pixels of one message.
#[derive(Debug)]
struct PixelRequest {
    created: Time,
    is_whole: bool,
    parts: Vec<Rectangle>,
    /// The last of the requests; there is one for each part.
    last: Sequence,
    /// The slot that the server writes to, if the message borrows it.
    slot: Option<Slot>,
    /// Pixels from replies, if there is no shared memory.
    pieces: Body,
    has_failed: bool,
}

/// The user's options.
#[derive(Debug)]
struct Settings {
    /// Any damage causes a whole picture.
    always_whole: bool,
    /// The shortest time between pictures.
    period: Duration,
    /// The time from the first damage to its capture.
    delay: Duration,
}

/// Memory shared with the server.
struct SharedMemory {
    memory: OwnedFd,
    /// `None` if the server does not support shared memory.
    slots: Option<(Slots, Extension)>,
    /// The request to attach new slots; it may fail.
    attaching: Option<Sequence>,
}

/// The DAMAGE extension's resources.
#[derive(Debug, Clone, Copy)]
struct Damage {
    extension: Extension,
    xfixes: Extension,
    number: damage::Damage,
    region: xfixes::Region,
}

/// The figures that the partner reports.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) frames: u64,
    pub(super) partial: u64,
    pub(super) rectangles: u64,
    pub(super) cursors: u64,
    pub(super) failed: u64,
    pub(super) sizes: u64,
}

/// The capture of one screen.
pub(super) struct Capture {
    root: xproto::Window,
    extensions: Extensions,
    geometry: Geometry,
    settings: Settings,
    shared: SharedMemory,
    damage: Option<Damage>,
    cursor: CursorCapture,
    portion: Portion,
    backlog: Backlog,
    phase: Phase,
    is_whole_due: bool,
    /// Most of the picture was damaged the last time, so the next one is predicted to be whole.
    predicts_whole: bool,
    /// The time of the first damage since the last request.
    damaged_at: Option<Time>,
    /// The earliest time of the next request.
    next_at: Time,
    pub(super) figures: Figures,
}

fn geometry(width: u16, height: u16, rate_hz: f64) -> io::Result<Geometry> {
    let geometry = Geometry::new(PixelFormat::Bgrx32, width.into(), height.into());
    Ok(geometry
        .map_err(|error| io::Error::other(format!("the screen has an unsupported size: {error}")))?
        .with_rate_hz(rate_hz))
}

impl Capture {
    /// Starts to watch a screen. `memory` is shared with its server.
    pub(super) fn new(
        client: &mut Client,
        extensions: Extensions,
        root: xproto::Window,
        memory: OwnedFd,
        options: &Options,
        deadline: Instant,
    ) -> io::Result<Capture> {
        let events = ChangeWindowAttributesAux::new().event_mask(EventMask::STRUCTURE_NOTIFY);
        let watch = ChangeWindowAttributesRequest { window: root, value_list: Cow::Owned(events) };
        client.send(watch.serialize());
        let request = client.query(GetGeometryRequest { drawable: root }.serialize());
        let size: GetGeometryReply = wait_reply(client, request, deadline)?;
        let rate_hz = options.number("rate");
        let mode = options.text("damage");
        let mut capture = Capture {
            root,
            extensions,
            geometry: geometry(size.width, size.height, rate_hz)?,
            settings: Settings {
                always_whole: mode == "whole",
                period: if rate_hz > 0.0 { Duration::from_secs_f64(1.0 / rate_hz) } else { Duration::ZERO },
                delay: options.duration("delay"),
            },
            shared: SharedMemory { memory, slots: None, attaching: None },
            damage: None,
            cursor: CursorCapture::new(extensions.xfixes.filter(|_| options.flag("cursor"))),
            portion: Portion::new(options.duration("portion")),
            backlog: Backlog::new(size.width.into(), size.height.into()),
            phase: Phase::Idle,
            is_whole_due: false,
            predicts_whole: false,
            damaged_at: None,
            next_at: Time::ZERO,
            figures: Figures::default(),
        };
        if mode != "false" {
            capture.watch_damage(client);
        }
        if let Some(xfixes) = extensions.xfixes.filter(|_| options.flag("cursor")) {
            let event_mask = CursorNotifyMask::DISPLAY_CURSOR;
            let select = xfixes::SelectCursorInputRequest { window: root, event_mask };
            client.send(select.serialize(xfixes.opcode));
        }
        capture.attach(client)?;
        if let Some(request) = capture.shared.attaching.take()
            && client.wait_done(request, deadline)?.is_err()
        {
            capture.shared.slots = None;
        }
        Ok(capture)
    }

    fn watch_damage(&mut self, client: &mut Client) {
        let (Some(extension), Some(xfixes)) = (self.extensions.damage, self.extensions.xfixes) else {
            return;
        };
        let (number, region) = (client.resource(), client.resource());
        let level = damage::ReportLevel::NON_EMPTY;
        let create = damage::CreateRequest { damage: number, drawable: self.root, level };
        client.send(create.serialize(extension.opcode));
        let create = xfixes::CreateRegionRequest { region, rectangles: (&[]).into() };
        client.send(create.serialize(xfixes.opcode));
        self.damage = Some(Damage { extension, xfixes, number, region });
    }

    /// Shares slots that fit the screen's size with the server, in place of the previous ones.
    fn attach(&mut self, client: &mut Client) -> io::Result<()> {
        let bytes = self.geometry.bytes();
        let Some(shm) = self.extensions.shm else { return Ok(()) };
        let prev = self.shared.slots.as_ref().map(|(slots, _)| slots);
        if prev.is_some_and(|slots| slots.slot_bytes() >= bytes) {
            return Ok(());
        }
        let (slots, request) = Slots::attach(client, shm, &self.shared.memory, bytes, prev)?;
        if let Some((prev, shm)) = self.shared.slots.replace((slots, shm)) {
            prev.detach(client, shm);
        }
        self.shared.attaching = Some(request);
        Ok(())
    }

    /// Returns the geometry of the screen.
    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Makes a whole picture and the pointer shape due.
    pub(super) fn request_whole(&mut self) {
        self.is_whole_due = true;
        self.cursor.mark_due();
    }

    /// Returns the time at which the next request is due; `None` while nothing is known to have changed.
    pub(super) fn due(&self) -> Option<Time> {
        if self.cursor.is_ready() {
            return Some(Time::ZERO);
        }
        if !matches!(self.phase, Phase::Idle) {
            return None;
        }
        let at = match (self.is_whole_due || self.damage.is_none(), self.damaged_at) {
            (true, _) => Time::ZERO,
            (false, _) if !self.backlog.is_empty() => return Some(Time::ZERO),
            (false, damaged_at) => damaged_at?.after(self.settings.delay),
        };
        Some(at.max(self.next_at))
    }

    /// Sends the requests that are due.
    pub(super) fn send_due(&mut self, client: &mut Client, now: Time) {
        self.cursor.query(client);
        if self.due().is_none_or(|due| due > now) {
            return;
        }
        if now >= self.next_at {
            // The period counts from the due time, so that small delays do not add up.
            let is_late = now.since(self.next_at) > self.settings.period;
            self.next_at = if is_late { now } else { self.next_at }.after(self.settings.period);
        }
        self.damaged_at = None;
        let is_whole =
            std::mem::take(&mut self.is_whole_due) || self.damage.is_none() || self.settings.always_whole;
        if let Some(Damage { extension, xfixes, number, region }) = self.damage {
            // Subtracting resets the damage at the server: later damage causes a new event.
            let parts = if is_whole { NONE } else { region };
            let subtract = damage::SubtractRequest { damage: number, repair: NONE, parts };
            client.send(subtract.serialize(extension.opcode));
            if !is_whole {
                let fetch = xfixes::FetchRegionRequest { region };
                let request = client.query(fetch.serialize(xfixes.opcode));
                // A film or a game damages the whole screen every time: request its pixels together with the region.
                let predicts_whole = self.predicts_whole
                    && self.shared.slots.is_some()
                    && self.fits_one_message(area(&self.whole()));
                let predicted = predicts_whole.then(|| self.query_pixels(client, vec![self.whole()], now));
                self.phase = Phase::Region(request, predicted);
                return;
            }
        }
        self.backlog.clear();
        self.phase = Phase::Pixels(self.query_pixels(client, vec![self.whole()], now));
    }

    /// Returns whether a message may have this many pixels. Never while there is a backlog.
    fn fits_one_message(&self, pixels: u64) -> bool {
        self.backlog.fits(pixels, self.portion.pixels_max())
    }

    /// The pipeline merges changes, or does not: it decides itself which part of a large change the network carries first.
    pub(super) fn set_merging(&mut self, merges: bool) {
        self.portion.set_merging(merges);
    }

    /// The path pulls a message.
    pub(super) fn handle_pull(&mut self, now: Time) {
        self.portion.handle_pull(now);
    }

    /// The path has taken a message.
    pub(super) fn handle_taken(&mut self, message: &Message, now: Time) {
        if !cursor::is_cursor(message) {
            self.portion.handle_taken((message.body.len() / PixelFormat::Bgrx32.pixel_bytes()) as u64, now);
        }
    }

    /// Chooses the rectangles of the next message from new damage and the backlog.
    fn choose(&mut self, parts: Vec<Rectangle>) -> Vec<Rectangle> {
        self.backlog.choose(parts, self.portion.pixels_max())
    }

    fn whole(&self) -> Rectangle {
        Rectangle { x: 0, y: 0, width: self.geometry.width(), height: self.geometry.height() }
    }

    fn query_pixels(&self, client: &mut Client, parts: Vec<Rectangle>, now: Time) -> PixelRequest {
        let slots = self.shared.slots.as_ref();
        let slot = slots.and_then(|(slots, _)| slots.slot());
        let mut offset = slots.map_or(0, |(slots, _)| slots.offset(slot.as_ref())) as u32;
        let mut last = 0;
        for part in &parts {
            // The screen's sides have 16 bits, so these casts lose nothing.
            let (x, y) = (part.x as i16, part.y as i16);
            let (width, height) = (part.width as u16, part.height as u16);
            let (drawable, plane_mask) = (self.root, !0);
            last = match slots {
                Some((slots, shm)) => {
                    let (format, shmseg) = (ImageFormat::Z_PIXMAP.into(), slots.number());
                    let get = shm::GetImageRequest {
                        drawable,
                        x,
                        y,
                        width,
                        height,
                        plane_mask,
                        format,
                        shmseg,
                        offset,
                    };
                    client.query(get.serialize(shm.opcode))
                }
                None => {
                    let format = ImageFormat::Z_PIXMAP;
                    client.query(
                        GetImageRequest { format, drawable, x, y, width, height, plane_mask }.serialize(),
                    )
                }
            };
            offset += part.bytes(PixelFormat::Bgrx32) as u32;
        }
        let is_whole = parts == [self.whole()];
        let (pieces, has_failed) = (Body::new(), false);
        PixelRequest { created: now, is_whole, parts, last, slot, pieces, has_failed }
    }

    /// Processes a reply. Returns the message that it completes.
    pub(super) fn handle_reply(
        &mut self,
        client: &mut Client,
        request: Sequence,
        bytes: Vec<u8>,
        now: Time,
    ) -> io::Result<Option<Message>> {
        if self.cursor.complete(request) {
            let message = cursor::message(&parse(&bytes)?, self.geometry, now);
            self.figures.cursors += 1;
            return Ok(Some(message));
        }
        match &mut self.phase {
            Phase::Region(region_request, predicted) if *region_request == request => {
                let (predicted, region) = (predicted.take(), parse(&bytes)?);
                self.handle_region(client, predicted, &region, now);
                Ok(None)
            }
            Phase::Pixels(pixels) => {
                if self.shared.slots.is_none() {
                    pixels.pieces.push(Bytes::from(bytes).slice(IMAGE_HEADER_BYTES..));
                }
                self.complete_pixels(request)
            }
            _ => Ok(None),
        }
    }

    /// Continues with the predicted request if most of the screen is damaged; else requests the damaged rectangles.
    ///
    /// If the prediction was wrong, its slot is free again at once. The server executes requests in order, so it cannot
    /// overwrite a later picture. The reply is ignored: its number is below that of any later request.
    fn handle_region(
        &mut self,
        client: &mut Client,
        predicted: Option<PixelRequest>,
        region: &FetchRegionReply,
        now: Time,
    ) {
        let parts = self.clipped(region);
        let damaged_bytes: usize = parts.iter().map(|part| part.bytes(PixelFormat::Bgrx32)).sum();
        self.predicts_whole = damaged_bytes >= self.geometry.bytes() / MOSTLY_DAMAGED.1 * MOSTLY_DAMAGED.0;
        self.phase = match predicted.filter(|_| self.predicts_whole) {
            Some(predicted) => Phase::Pixels(predicted),
            None => match self.choose(parts) {
                none if none.is_empty() => Phase::Idle,
                parts => Phase::Pixels(self.query_pixels(client, parts, now)),
            },
        };
    }

    /// Processes an error: the state that the request relied on has changed.
    pub(super) fn handle_error(&mut self, request: Sequence) -> io::Result<()> {
        self.cursor.complete(request);
        if self.shared.attaching == Some(request) {
            self.shared.slots = None;
        }
        match &mut self.phase {
            Phase::Region(region_request, _) if *region_request == request => {
                self.phase = Phase::Idle;
                self.is_whole_due = true;
                Ok(())
            }
            Phase::Pixels(pixels) if request <= pixels.last => {
                pixels.has_failed = true;
                self.complete_pixels(request).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Processes an event: damage, a new pointer shape or a new size.
    pub(super) fn handle_event(&mut self, client: &mut Client, event: &[u8], now: Time) -> io::Result<()> {
        let code = event[0] & 0x7f;
        let is_event = |extension: Option<Extension>, number| {
            extension.is_some_and(|extension| code == extension.event + number)
        };
        if is_event(self.damage.map(|damage| damage.extension), damage::NOTIFY_EVENT) {
            self.damaged_at.get_or_insert(now);
        } else if is_event(self.extensions.xfixes, xfixes::CURSOR_NOTIFY_EVENT) {
            self.cursor.mark_due();
        } else if code == xproto::CONFIGURE_NOTIFY_EVENT {
            let event: ConfigureNotifyEvent = parse(event)?;
            let size = (u32::from(event.width), u32::from(event.height));
            if event.window == self.root && size != (self.geometry.width(), self.geometry.height()) {
                let (numerator, denominator) = self.geometry.rate();
                self.geometry = geometry(event.width, event.height, 0.0)?.with_rate(numerator, denominator);
                self.figures.sizes += 1;
                self.is_whole_due = true;
                self.backlog.resize(size.0, size.1);
                if let Phase::Pixels(pixels) | Phase::Region(_, Some(pixels)) = &mut self.phase {
                    pixels.has_failed = true;
                }
                self.attach(client)?;
            }
        }
        Ok(())
    }

    /// Returns the rectangles of a region, clipped to the screen; one around them all if they are too many.
    fn clipped(&self, region: &FetchRegionReply) -> Vec<Rectangle> {
        let clip = |part: &xproto::Rectangle| {
            let (x, y) = (u32::try_from(part.x).unwrap_or(0), u32::try_from(part.y).unwrap_or(0));
            let end = |start: i16, length: u16| (i32::from(start) + i32::from(length)).max(0) as u32;
            let (width, height) =
                (end(part.x, part.width).saturating_sub(x), end(part.y, part.height).saturating_sub(y));
            Rectangle { x, y, width, height }.intersection(&self.whole())
        };
        match region.rectangles.len() {
            0..=RECTANGLES_MAX => region.rectangles.iter().filter_map(clip).collect(),
            _ => clip(&region.extents).into_iter().collect(),
        }
    }

    /// A request for pixels has succeeded or failed. Returns the message if it was the last request.
    fn complete_pixels(&mut self, request: Sequence) -> io::Result<Option<Message>> {
        let pixels = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Pixels(pixels) if pixels.last <= request => pixels,
            other => {
                self.phase = other;
                return Ok(None);
            }
        };
        let bytes: usize = pixels.parts.iter().map(|part| part.bytes(PixelFormat::Bgrx32)).sum();
        let body = match &self.shared.slots {
            _ if pixels.has_failed => None,
            Some((slots, _)) => Some(Body::from(slots.take(pixels.slot, bytes)?)),
            None => Some(pixels.pieces).filter(|pieces| pieces.len() == bytes),
        };
        let Some(mut body) = body else {
            self.figures.failed += 1;
            self.is_whole_due = true;
            return Ok(None);
        };
        let geometry = self.geometry;
        match pixels.is_whole {
            true => {
                self.figures.frames += 1;
                body.push_front(&Header::frame(geometry).emit());
            }
            false => {
                self.figures.partial += 1;
                self.figures.rectangles += pixels.parts.len() as u64;
                body.push_front(&emit_rectangles(&pixels.parts));
                body.push_front(&Header { kind: Kind::Rectangles, geometry }.emit());
            }
        }
        Ok(Some(Message::new(pixels.created, body)))
    }
}
