//! What a screen shows, taken from it: first all of it, then what changed, each time somebody takes a message.
//!
//! A state machine that asks the server and is told its answers. While nobody takes anything, nothing is asked:
//! the server adds up what changes meanwhile (DAMAGE), and pictures that nobody saw are never made.

use super::client::{Client, Sequence};
use super::display::{Extension, Extensions, parse};
use super::portion::Portion;
use super::slots::{Slot, Slots};
use crate::damage::{self as tiles, TILE};
use contract::{Attributes, Body, Bytes, Message, Options, Time};
use std::borrow::Cow;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use wire::formats::video::{
    CURSOR_SIDE_MAX, Cursor, Geometry, Header, Kind, PixelFormat, Rectangle, emit_rectangles,
};
use x11rb_protocol::protocol::xfixes::{CursorNotifyMask, FetchRegionReply, GetCursorImageReply};
use x11rb_protocol::protocol::xproto::{
    self, ChangeWindowAttributesAux, ChangeWindowAttributesRequest, ConfigureNotifyEvent, EventMask,
    GetGeometryReply, GetGeometryRequest, GetImageRequest, ImageFormat,
};
use x11rb_protocol::protocol::{damage, shm, xfixes};

/// No region, no resource (`None`).
const NONE: u32 = 0;
/// Rectangles asked for one by one; of more, the one around them all is.
const RECTANGLES_MAX: usize = 64;
/// What is no more than so many portions is told at once.
const PORTIONS_AT_ONCE: u64 = 2;
/// So much of a picture that all of it is taken as well.
const MOST: (usize, usize) = (7, 8);
/// The pointer's shape in a flow, where pictures have no key.
const CURSOR_KEY: u64 = 1;
/// Side of the pieces, in pixels across, that what waits to be told is taken in; down it is a tile.
const PIECE: u32 = 16 * TILE;
/// Bytes of an answer before the pixels it brings (`GetImage`).
const IMAGE_HEADER_BYTES: usize = 32;

/// What is asked of the server.
#[derive(Debug)]
enum Stage {
    Idle,
    /// What changed; and all pixels, where most of them are likely to have.
    Region(Sequence, Option<Shot>),
    /// Pixels.
    Pixels(Shot),
}

/// A picture, or parts of one, on its way.
#[derive(Debug)]
struct Shot {
    created: Time,
    is_whole: bool,
    parts: Vec<Rectangle>,
    /// The last that was asked for.
    last: Sequence,
    /// Where they are written, if they are lent from there.
    slot: Option<Slot>,
    /// Pixels that came in answers instead of shared memory.
    pieces: Body,
    has_failed: bool,
}

/// What a pull finds when it looks.
pub(super) struct Capture {
    root: xproto::Window,
    extensions: Extensions,
    geometry: Geometry,
    memory: OwnedFd,
    slots: Option<(Slots, Extension)>,
    attaching: Option<Sequence>,
    damage: Option<Damage>,
    /// What changed, the whole picture is sent.
    sends_whole: bool,
    /// Most of the picture changed the last time.
    expects_whole: bool,
    /// The pointer's shape is told.
    has_cursor: bool,
    period: Duration,
    delay: Duration,
    portion: Portion,
    /// What changed and was more than a message may tell, and the piece of it that is next.
    waiting: tiles::Damage,
    next_piece: u32,
    /// The last message told what had just changed, and nothing that waits.
    told_new: bool,
    stage: Stage,
    cursor: Option<Sequence>,
    is_cursor_due: bool,
    is_whole_due: bool,
    /// When something changed that was not taken yet.
    damaged_at: Option<Time>,
    /// Not before.
    next_at: Time,
    pub(super) figures: Figures,
}

/// The extension DAMAGE at work.
#[derive(Debug, Clone, Copy)]
struct Damage {
    extension: Extension,
    xfixes: Extension,
    number: damage::Damage,
    region: xfixes::Region,
}

/// What is reported.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) frames: u64,
    pub(super) partial: u64,
    pub(super) rectangles: u64,
    pub(super) cursors: u64,
    pub(super) failed: u64,
    pub(super) sizes: u64,
}

fn geometry(width: u16, height: u16, rate_hz: f64) -> io::Result<Geometry> {
    let geometry = Geometry::new(PixelFormat::Bgrx32, width.into(), height.into());
    Ok(geometry
        .map_err(|error| io::Error::other(format!("the screen is no picture: {error}")))?
        .with_rate_hz(rate_hz))
}

impl Capture {
    /// Begins to watch a screen, with memory to share with its server.
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
        let request = client.ask(GetGeometryRequest { drawable: root }.serialize());
        let size: GetGeometryReply = super::display::answer(client, request, deadline)?;
        let rate_hz = options.number("rate");
        let mode = options.text("damage");
        let mut capture = Capture {
            root,
            extensions,
            geometry: geometry(size.width, size.height, rate_hz)?,
            portion: Portion::new(options.duration("portion")),
            waiting: tiles::Damage::none(size.width.into(), size.height.into()),
            next_piece: 0,
            told_new: false,
            memory,
            slots: None,
            attaching: None,
            damage: None,
            sends_whole: mode == "whole",
            expects_whole: false,
            has_cursor: options.flag("cursor"),
            period: if rate_hz > 0.0 { Duration::from_secs_f64(1.0 / rate_hz) } else { Duration::ZERO },
            delay: options.duration("delay"),
            stage: Stage::Idle,
            cursor: None,
            is_cursor_due: false,
            is_whole_due: false,
            damaged_at: None,
            next_at: Time::ZERO,
            figures: Figures::default(),
        };
        if let (true, Some(extension), Some(xfixes)) = (mode != "false", extensions.damage, extensions.xfixes)
        {
            let (number, region) = (client.resource(), client.resource());
            let level = damage::ReportLevel::NON_EMPTY;
            let create = damage::CreateRequest { damage: number, drawable: root, level };
            client.send(create.serialize(extension.opcode));
            let create = xfixes::CreateRegionRequest { region, rectangles: (&[]).into() };
            client.send(create.serialize(xfixes.opcode));
            capture.damage = Some(Damage { extension, xfixes, number, region });
        }
        if let Some(xfixes) = extensions.xfixes.filter(|_| capture.has_cursor) {
            let event_mask = CursorNotifyMask::DISPLAY_CURSOR;
            let select = xfixes::SelectCursorInputRequest { window: root, event_mask };
            client.send(select.serialize(xfixes.opcode));
        }
        capture.attach(client)?;
        if let Some(request) = capture.attaching.take()
            && client.wait_done(request, deadline)?.is_err()
        {
            capture.slots = None;
        }
        Ok(capture)
    }

    /// Shares memory for pictures with the server, instead of what was shared before.
    fn attach(&mut self, client: &mut Client) -> io::Result<()> {
        let bytes = self.geometry.bytes();
        let Some(shm) = self.extensions.shm else { return Ok(()) };
        let before = self.slots.as_ref().map(|(slots, _)| slots);
        if before.is_some_and(|slots| slots.slot_bytes() >= bytes) {
            return Ok(());
        }
        let (slots, request) = Slots::attach(client, shm, &self.memory, bytes, before)?;
        if let Some((before, shm)) = self.slots.replace((slots, shm)) {
            before.detach(client, shm);
        }
        self.attaching = Some(request);
        Ok(())
    }

    /// The next picture shall be whole, and the pointer's shape told again.
    pub(super) fn want_whole(&mut self) {
        self.is_whole_due = true;
        self.is_cursor_due = self.has_cursor && self.extensions.xfixes.is_some();
    }

    /// When there is something to ask for.
    pub(super) fn due(&self) -> Option<Time> {
        if self.is_cursor_due && self.cursor.is_none() {
            return Some(Time::ZERO);
        }
        if !matches!(self.stage, Stage::Idle) {
            return None;
        }
        let at = match (self.is_whole_due || self.damage.is_none(), self.damaged_at) {
            (true, _) => Time::ZERO,
            (false, _) if !self.waiting.is_empty() => return Some(Time::ZERO),
            (false, damaged_at) => damaged_at?.after(self.delay),
        };
        Some(at.max(self.next_at))
    }

    /// Asks for what is due.
    pub(super) fn ask(&mut self, client: &mut Client, now: Time) {
        if self.is_cursor_due
            && self.cursor.is_none()
            && let Some(xfixes) = self.extensions.xfixes
        {
            self.is_cursor_due = false;
            self.cursor = Some(client.ask(xfixes::GetCursorImageRequest.serialize(xfixes.opcode)));
        }
        if self.due().is_none_or(|due| due > now) {
            return;
        }
        if now >= self.next_at {
            // From the time it was due: what is a little late one time is not late ever after.
            let is_late = now.since(self.next_at) > self.period;
            self.next_at = if is_late { now } else { self.next_at }.after(self.period);
        }
        self.damaged_at = None;
        let is_whole = std::mem::take(&mut self.is_whole_due) || self.damage.is_none() || self.sends_whole;
        if let Some(Damage { extension, xfixes, number, region }) = self.damage {
            // Whatever changes from here on is told anew.
            let parts = if is_whole { NONE } else { region };
            let subtract = damage::SubtractRequest { damage: number, repair: NONE, parts };
            client.send(subtract.serialize(extension.opcode));
            if !is_whole {
                let fetch = xfixes::FetchRegionRequest { region };
                let asked = client.ask(fetch.serialize(xfixes.opcode));
                // A film or a game: what the answer will be is known, and not waited for.
                let expects_whole =
                    self.expects_whole && self.slots.is_some() && self.may_tell_all(area(&self.whole()));
                let guess = expects_whole.then(|| self.ask_pixels(client, vec![self.whole()], now));
                self.stage = Stage::Region(asked, guess);
                return;
            }
        }
        self.waiting.clear();
        self.stage = Stage::Pixels(self.ask_pixels(client, vec![self.whole()], now));
    }

    /// Whether a message may tell so many pixels, and nothing waits to be told.
    fn may_tell_all(&self, pixels: u64) -> bool {
        self.waiting.is_empty() && self.portion.most().saturating_mul(PORTIONS_AT_ONCE) >= pixels
    }

    /// The path asks for a message.
    pub(super) fn handle_wanted(&mut self, now: Time) {
        self.portion.handle_wanted(now);
    }

    /// The path has taken a message.
    pub(super) fn handle_given(&mut self, message: &Message, now: Time) {
        if message.attributes.key != Some(CURSOR_KEY) {
            self.portion.handle_given((message.body.len() / PixelFormat::Bgrx32.pixel_bytes()) as u64, now);
        }
    }

    /// Of what changed, what the next message tells: what is small first and alone, for that is what a hand did, and it is
    /// seen when all of its message is there. Of the rest a piece has its turn after the other, each as it looks then.
    fn choose(&mut self, mut parts: Vec<Rectangle>) -> Vec<Rectangle> {
        if self.may_tell_all(parts.iter().map(area).sum()) {
            return parts;
        }
        let mut room = self.portion.most();
        parts.sort_by_key(area);
        // What waits has its share, however much that is small comes.
        let mut room_for_new = if self.waiting.is_empty() { room } else { room / 2 };
        let mut chosen = Vec::new();
        for part in parts {
            match room_for_new.checked_sub(area(&part)) {
                Some(rest) => {
                    (room_for_new, room) = (rest, room - area(&part));
                    chosen.push(part);
                }
                None => self.waiting.add(&part),
            }
        }
        self.told_new = !self.told_new && !chosen.is_empty();
        if self.told_new {
            return chosen;
        }
        let (across, down) = (self.geometry.width().div_ceil(PIECE), self.geometry.height().div_ceil(TILE));
        for _ in 0..across * down {
            if room == 0 || chosen.len() >= RECTANGLES_MAX {
                break;
            }
            let (x, y) = (self.next_piece % across * PIECE, self.next_piece / across * TILE);
            let before = chosen.len();
            self.waiting.take(&Rectangle { x, y, width: PIECE, height: TILE }, &mut chosen);
            room = room.saturating_sub(chosen[before..].iter().map(area).sum());
            self.next_piece = (self.next_piece + 1) % (across * down);
        }
        chosen
    }

    fn whole(&self) -> Rectangle {
        Rectangle { x: 0, y: 0, width: self.geometry.width(), height: self.geometry.height() }
    }

    fn ask_pixels(&self, client: &mut Client, parts: Vec<Rectangle>, now: Time) -> Shot {
        let slot = self.slots.as_ref().and_then(|(slots, _)| slots.slot());
        let mut offset = self.slots.as_ref().map_or(0, |(slots, _)| slots.offset(slot.as_ref())) as u32;
        let mut last = 0;
        for part in &parts {
            // Sides of a picture fit: they came from 16 bits.
            let (x, y) = (part.x as i16, part.y as i16);
            let (width, height) = (part.width as u16, part.height as u16);
            let (drawable, plane_mask) = (self.root, !0);
            last = match &self.slots {
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
                    client.ask(get.serialize(shm.opcode))
                }
                None => {
                    let format = ImageFormat::Z_PIXMAP;
                    client.ask(
                        GetImageRequest { format, drawable, x, y, width, height, plane_mask }.serialize(),
                    )
                }
            };
            offset += part.bytes(PixelFormat::Bgrx32) as u32;
        }
        let is_whole = parts == [self.whole()];
        let (pieces, has_failed) = (Body::new(), false);
        Shot { created: now, is_whole, parts, last, slot, pieces, has_failed }
    }

    /// Takes an answer to one of our questions; gives the message it completes.
    pub(super) fn handle_reply(
        &mut self,
        client: &mut Client,
        request: Sequence,
        bytes: Vec<u8>,
        now: Time,
    ) -> io::Result<Option<Message>> {
        if self.cursor == Some(request) {
            self.cursor = None;
            return self.cursor_message(&parse(&bytes)?, now).map(Some);
        }
        match &mut self.stage {
            Stage::Region(asked, guess) if *asked == request => {
                let (guess, region) = (guess.take(), parse(&bytes)?);
                let parts = self.clipped(&region);
                let changed: usize = parts.iter().map(|part| part.bytes(PixelFormat::Bgrx32)).sum();
                self.expects_whole = changed >= self.geometry.bytes() / MOST.1 * MOST.0;
                self.stage = match guess.filter(|_| self.expects_whole) {
                    Some(guess) => Stage::Pixels(guess),
                    None => match self.choose(parts) {
                        none if none.is_empty() => Stage::Idle,
                        parts => Stage::Pixels(self.ask_pixels(client, parts, now)),
                    },
                };
                Ok(None)
            }
            Stage::Pixels(shot) => {
                if self.slots.is_none() {
                    let pixels = Bytes::from(bytes).slice(IMAGE_HEADER_BYTES..);
                    shot.pieces.push(pixels);
                }
                self.settle(request)
            }
            _ => Ok(None),
        }
    }

    /// One of our questions has no answer: what it was about is no longer so.
    pub(super) fn handle_error(&mut self, request: Sequence) -> io::Result<()> {
        if self.cursor == Some(request) {
            self.cursor = None;
        }
        if self.attaching == Some(request) {
            self.slots = None;
        }
        match &mut self.stage {
            Stage::Region(asked, _) if *asked == request => {
                self.stage = Stage::Idle;
                self.is_whole_due = true;
                Ok(())
            }
            Stage::Pixels(shot) if request <= shot.last => {
                shot.has_failed = true;
                self.settle(request).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Whether and how the screen changed.
    pub(super) fn handle_event(&mut self, client: &mut Client, event: &[u8], now: Time) -> io::Result<()> {
        let code = event[0] & 0x7f;
        let of =
            |extension: Option<Extension>, number| extension.is_some_and(|one| code == one.event + number);
        if of(self.damage.map(|damage| damage.extension), damage::NOTIFY_EVENT) {
            self.damaged_at.get_or_insert(now);
        } else if of(self.extensions.xfixes, xfixes::CURSOR_NOTIFY_EVENT) {
            self.is_cursor_due = self.has_cursor;
        } else if code == xproto::CONFIGURE_NOTIFY_EVENT {
            let event: ConfigureNotifyEvent = parse(event)?;
            let size = (u32::from(event.width), u32::from(event.height));
            if event.window == self.root && size != (self.geometry.width(), self.geometry.height()) {
                let (numerator, denominator) = self.geometry.rate();
                self.geometry = geometry(event.width, event.height, 0.0)?.with_rate(numerator, denominator);
                self.figures.sizes += 1;
                self.is_whole_due = true;
                self.waiting = tiles::Damage::none(size.0, size.1);
                self.next_piece = 0;
                if let Stage::Pixels(shot) | Stage::Region(_, Some(shot)) = &mut self.stage {
                    shot.has_failed = true;
                }
                self.attach(client)?;
            }
        }
        Ok(())
    }

    /// What lies on the screen of what changed.
    fn clipped(&self, region: &FetchRegionReply) -> Vec<Rectangle> {
        let clip = |one: &xproto::Rectangle| {
            let (x, y) = (u32::try_from(one.x).unwrap_or(0), u32::try_from(one.y).unwrap_or(0));
            let end = |start: i16, length: u16| (i32::from(start) + i32::from(length)).max(0) as u32;
            let (width, height) =
                (end(one.x, one.width).saturating_sub(x), end(one.y, one.height).saturating_sub(y));
            Rectangle { x, y, width, height }.intersection(&self.whole())
        };
        match region.rectangles.len() {
            0..=RECTANGLES_MAX => region.rectangles.iter().filter_map(clip).collect(),
            _ => clip(&region.extents).into_iter().collect(),
        }
    }

    /// An answer for pixels is there, or will never be: with the last, the message is.
    fn settle(&mut self, request: Sequence) -> io::Result<Option<Message>> {
        let shot = match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Pixels(shot) if shot.last <= request => shot,
            other => {
                self.stage = other;
                return Ok(None);
            }
        };
        let wanted: usize = shot.parts.iter().map(|part| part.bytes(PixelFormat::Bgrx32)).sum();
        let pixels = match &self.slots {
            _ if shot.has_failed => None,
            Some((slots, _)) => Some(Body::from(slots.take(shot.slot, wanted)?)),
            None => Some(shot.pieces).filter(|pieces| pieces.len() == wanted),
        };
        let Some(mut body) = pixels else {
            self.figures.failed += 1;
            self.is_whole_due = true;
            return Ok(None);
        };
        let geometry = self.geometry;
        match shot.is_whole {
            true => {
                self.figures.frames += 1;
                body.push_front(&Header::frame(geometry).emit());
            }
            false => {
                self.figures.partial += 1;
                self.figures.rectangles += shot.parts.len() as u64;
                body.push_front(&emit_rectangles(&shot.parts));
                body.push_front(&Header { kind: Kind::Rectangles, geometry }.emit());
            }
        }
        Ok(Some(Message::new(shot.created, body)))
    }

    /// The pointer's shape, its largest part if it is larger than any may be.
    fn cursor_message(&mut self, image: &GetCursorImageReply, now: Time) -> io::Result<Message> {
        let (width, height) = (usize::from(image.width), usize::from(image.height));
        let most = CURSOR_SIDE_MAX as usize;
        let (hot_x, hot_y) = (usize::from(image.xhot), usize::from(image.yhot));
        let start = |hot: usize, side: usize| hot.saturating_sub(most / 2).min(side.saturating_sub(most));
        let (left, top) = (start(hot_x, width), start(hot_y, height));
        let (across, down) = (width.min(most), height.min(most));
        let inside =
            |hot: usize, start: usize, side: usize| (hot.saturating_sub(start)).min(side.max(1) - 1) as u32;
        let is_seen = across > 0 && down > 0;
        let cursor = match is_seen {
            true => Cursor {
                width: across as u32,
                height: down as u32,
                hot_x: inside(hot_x, left, across),
                hot_y: inside(hot_y, top, down),
            },
            false => Cursor::default(),
        };
        let rows = image.cursor_image.chunks_exact(width.max(1)).skip(top).take(down).filter(|_| is_seen);
        let pixels: Vec<u8> =
            rows.flat_map(|row| &row[left..left + across]).flat_map(|pixel| straight(*pixel)).collect();
        self.figures.cursors += 1;
        let mut body = Body::from(pixels);
        body.push_front(&cursor.emit());
        body.push_front(&Header { kind: Kind::Cursor, geometry: self.geometry }.emit());
        let attributes = Attributes { key: Some(CURSOR_KEY), ..Attributes::default() };
        Ok(Message { attributes, ..Message::new(now, body) })
    }
}

fn area(rectangle: &Rectangle) -> u64 {
    u64::from(rectangle.width) * u64::from(rectangle.height)
}

/// Blue, green, red and opacity, of a pixel whose colours were multiplied by its opacity.
fn straight(pixel: u32) -> [u8; 4] {
    let [blue, green, red, opacity] = pixel.to_le_bytes();
    let whole = u32::from(opacity).max(1);
    let divided = |colour: u8| ((u32::from(colour) * 255 + whole / 2) / whole).min(255) as u8;
    [divided(blue), divided(green), divided(red), opacity]
}

#[cfg(test)]
mod tests {
    use super::straight;

    #[test]
    fn colours_of_a_pointer_are_told_without_its_opacity() {
        assert_eq!(straight(0), [0; 4]);
        assert_eq!(straight(0xff10_2030), [0x30, 0x20, 0x10, 0xff]);
        assert_eq!(straight(0x8040_0080), [255, 0, 128, 128]);
    }
}
