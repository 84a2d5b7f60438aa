//! The half that restores messages, and puts the pictures of the film on the screen.
//!
//! Messages arrive in order while the link is up. A number that is missing was lost with an epoch: the source half is told, and
//! sends the pixels again, as they are then. A number below the last one is a repetition and is dropped.

use super::canvas::{Canvas, PIXEL_BYTES};
use super::header::{Coding, Control, Header};
use super::{FILM_PICTURE_BYTES_MAX, TILE};
use crate::encode::Decoding;
use crate::picture::VideoMessage;
use crate::recode::TiledPicture;
use crate::varint;
use contract::{Body, Message, Outbox, Port, Report, Stage, StageError, StageResult, Time};
use std::time::Duration;
use wire::BODY_BYTES_MAX;
use wire::formats::video::{Geometry, Header as VideoHeader, Kind, PixelFormat, RECTANGLES_MAX, Rectangle};
use zstd::bulk::Decompressor;

/// Drop reasons.
pub(super) const REPEATED: &str = "screen: repeated";
pub(super) const LOST: &str = "screen: its reference was lost";

/// A key picture is requested again after this time, while pictures that need it arrive.
const KEY_EVERY: Duration = Duration::from_millis(100);

pub(super) struct Sink {
    decompressor: Option<Decompressor<'static>>,
    decoding: Decoding,
    canvas: Option<Canvas>,
    /// Number of the next message; `None` before the first.
    next: Option<u64>,
    /// Time of the last arrival.
    arrived_at: Time,
    /// Pieces of the next picture of the film.
    pieces: Body,
    /// The decoder needs a key picture.
    needs_key: bool,
    /// Time of the last request for one.
    key_asked_at: Option<Time>,
    has_told: bool,
    stored: u64,
    compressed: u64,
    pictures: u64,
    missing: u64,
}

fn malformed(problem: &str) -> StageError {
    StageError::Input(problem.into())
}

impl Sink {
    pub(super) fn new() -> Sink {
        Sink {
            decompressor: None,
            decoding: Decoding::default(),
            canvas: None,
            next: None,
            arrived_at: Time::ZERO,
            pieces: Body::new(),
            needs_key: true,
            key_asked_at: None,
            has_told: false,
            stored: 0,
            compressed: 0,
            pictures: 0,
            missing: 0,
        }
    }

    fn lose_film(&mut self) {
        self.pieces = Body::new();
        self.needs_key = true;
    }

    /// Requests a key picture, unless one was requested a moment ago.
    fn request_key(&mut self, now: Time, out: &mut Outbox) {
        self.needs_key = true;
        if self.key_asked_at.is_none_or(|at| now >= at.after(KEY_EVERY)) {
            self.key_asked_at = Some(now);
            out.control(Control::KeyNeeded.emit());
        }
    }

    /// Compares the number of a message with the expected one. Returns false for a repetition.
    fn follow(&mut self, sequence: u64, out: &mut Outbox) -> bool {
        match self.next {
            // A source half begins with 0, so this one has begun anew.
            _ if sequence == 0 => self.lose_film(),
            None => {
                self.lose_film();
                out.control(Control::Refresh.emit());
            }
            Some(next) if sequence < next => return false,
            Some(next) if sequence > next => {
                self.lose_film();
                self.missing += sequence - next;
                out.control(Control::Missing { from: next, below: sequence }.emit());
            }
            Some(_) => {}
        }
        self.next = Some(sequence.saturating_add(1));
        true
    }

    fn decompress(&mut self, mut body: Body, length: u64) -> StageResult<Vec<u8>> {
        let length = usize::try_from(length).ok().filter(|length| *length <= BODY_BYTES_MAX);
        let length = length.ok_or_else(|| malformed("it is longer than a message may be"))?;
        if self.decompressor.is_none() {
            let made = Decompressor::new().map_err(|error| StageError::Own(format!("zstd: {error}")))?;
            self.decompressor = Some(made);
        }
        let Some(decompressor) = &mut self.decompressor else { return Ok(Vec::new()) };
        // The library allocates no more than `length`, and fails if the content is longer.
        let bytes = decompressor.decompress(body.as_slice(), length);
        let bytes = bytes.ok().filter(|bytes| bytes.len() == length);
        bytes.ok_or_else(|| malformed("its zstd is damaged"))
    }

    /// Restores a picture in tiles.
    fn restore(&mut self, body: Body, length: u64) -> StageResult<Body> {
        let tiles = self.decompress(body, length)?;
        let picture = TiledPicture::read(&tiles).map_err(StageError::Input)?;
        if picture.bytes() > BODY_BYTES_MAX {
            return Err(malformed("its picture is longer than a message may be"));
        }
        let mut bytes = vec![0; picture.bytes()];
        picture.write(&mut bytes).map_err(StageError::Input)?;
        Ok(bytes.into())
    }

    /// Copies the picture in a message to the canvas.
    fn copy(&mut self, body: &Body) -> StageResult {
        match VideoMessage::parse(body) {
            Some(VideoMessage::Frame(picture)) if picture.geometry.pixels() == PixelFormat::Bgrx32 => {
                let geometry = picture.geometry;
                self.pieces = Body::new();
                let canvas = self.canvas(geometry)?;
                let whole = canvas.whole();
                canvas.write(&whole, geometry.plane(0).rows(&picture.pixels));
            }
            Some(VideoMessage::Partial(partial)) if partial.geometry.pixels() == PixelFormat::Bgrx32 => {
                let canvas = self.canvas(partial.geometry)?;
                let mut rest = &partial.pixels[..];
                for part in &partial.rectangles {
                    let (pixels, remaining) = rest.split_at(part.bytes(PixelFormat::Bgrx32));
                    canvas.write(part, pixels.chunks_exact(part.width as usize * PIXEL_BYTES));
                    rest = remaining;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The canvas for pictures of this size, black if it is new.
    fn canvas(&mut self, geometry: Geometry) -> StageResult<&mut Canvas> {
        let fitting = self.canvas.take().filter(|canvas| canvas.fits(&geometry));
        let canvas = match fitting {
            Some(canvas) => canvas,
            None => Canvas::new(geometry)?,
        };
        Ok(self.canvas.insert(canvas))
    }

    fn begin(&mut self, mut body: Body) -> StageResult<Body> {
        let header = body.take_front::<{ VideoHeader::BYTES }>().filter(|_| body.is_empty());
        let header = header.ok_or_else(|| malformed("its screen has no header, or more than that"))?;
        let header = VideoHeader::parse(&header).map_err(|error| malformed(&error.to_string()))?;
        if header.kind != Kind::Frame {
            return Err(malformed("its screen is no frame"));
        }
        // The rest of a picture never comes.
        self.pieces = Body::new();
        Ok(self.canvas(header.geometry)?.frame())
    }

    fn add_piece(&mut self, piece: Message, is_last: bool, now: Time, out: &mut Outbox) -> StageResult {
        if self.pieces.len() + piece.body.len() > FILM_PICTURE_BYTES_MAX {
            self.lose_film();
            self.request_key(now, out);
            return Err(malformed("its picture is too long"));
        }
        if self.pieces.is_empty() && !begins_picture(&piece.body) {
            // The pieces before it were lost.
            self.needs_key = true;
            if is_last {
                self.request_key(now, out);
                out.drop_counted(LOST, 1);
            }
            return Ok(());
        }
        self.pieces.append(piece.body);
        if !is_last {
            return Ok(());
        }
        let body = std::mem::take(&mut self.pieces);
        let shown = self.show(body, piece.created, now, out);
        if shown.is_err() {
            self.request_key(now, out);
        }
        shown
    }

    /// Decodes a picture of the film and sends its tiles.
    fn show(&mut self, mut body: Body, created: Time, now: Time, out: &mut Outbox) -> StageResult {
        let short = || malformed("its picture of the film is cut short");
        let header = body.take_front::<{ VideoHeader::BYTES }>().ok_or_else(short)?;
        let screen = VideoHeader::parse(&header).map_err(|error| malformed(&error.to_string()))?.geometry;
        let [is_key] = body.take_front().ok_or_else(short)?;
        let part = take_part(&mut body, &screen)?;
        let shown = take_mask(&mut body, &part)?;
        if self.needs_key && is_key == 0 {
            // A lost message without a part of the film makes the source half send no key picture.
            self.request_key(now, out);
            out.drop_counted(LOST, 1);
            return Ok(());
        }
        let Some(canvas) = self.canvas.as_mut().filter(|canvas| canvas.fits(&screen)) else {
            return Err(malformed("its film is on a screen of another size"));
        };
        let expected = Geometry::new(PixelFormat::Bgrx32, part.width, part.height);
        let described =
            body.peek_front().and_then(|bytes: [u8; VideoHeader::BYTES]| VideoHeader::parse(&bytes).ok());
        let is_expected = |described: VideoHeader| {
            let rate = described.geometry.rate();
            expected.is_ok_and(|expected| expected.with_rate(rate.0, rate.1) == described.geometry)
        };
        if !described.is_some_and(is_expected) {
            return Err(malformed("its picture of the film has another size than its place"));
        }
        let decoded = self.decoding.decode(body)?.into_bytes();
        self.needs_key = false;
        let (pixels, stride) = (&decoded[VideoHeader::BYTES..], part.width as usize * PIXEL_BYTES);
        for tile in &shown {
            let left = (tile.x - part.x) as usize * PIXEL_BYTES;
            let rows = pixels.chunks_exact(stride).skip((tile.y - part.y) as usize);
            canvas.write(tile, rows.map(|row| &row[left..left + tile.width as usize * PIXEL_BYTES]));
        }
        self.pictures += 1;
        for shown in shown.chunks(RECTANGLES_MAX) {
            out.send(Port::MAIN, Message::new(created, canvas.rectangles(shown)));
        }
        Ok(())
    }
}

/// Returns true for the first piece of a picture of the film.
fn begins_picture(piece: &Body) -> bool {
    let header =
        piece.peek_front().and_then(|bytes: [u8; VideoHeader::BYTES]| VideoHeader::parse(&bytes).ok());
    header.is_some_and(|header| header.kind == Kind::Rectangles)
}

/// Takes the place of the film on the screen: its corner is that of a tile.
fn take_part(body: &mut Body, screen: &Geometry) -> StageResult<Rectangle> {
    let mut number = || varint::take(body).and_then(|number| u32::try_from(number).ok());
    let part = (|| Some(Rectangle { x: number()?, y: number()?, width: number()?, height: number()? }))();
    let whole = Rectangle { x: 0, y: 0, width: screen.width(), height: screen.height() };
    let is_inside = |part: &Rectangle| {
        part.x.is_multiple_of(TILE) && part.y.is_multiple_of(TILE) && part.intersection(&whole) == Some(*part)
    };
    part.filter(is_inside).ok_or_else(|| malformed("its film lies outside the screen"))
}

/// Takes the mask of the tiles in a part, as lengths of runs of hidden and shown tiles in turn. Returns the shown tiles, joined
/// to rectangles on the screen.
fn take_mask(body: &mut Body, part: &Rectangle) -> StageResult<Vec<Rectangle>> {
    let (across, down) = (part.width.div_ceil(TILE), part.height.div_ceil(TILE));
    let count = u64::from(across) * u64::from(down);
    let (mut at, mut is_shown, mut joined) = (0u64, false, Vec::<Rectangle>::new());
    while at < count {
        let run = varint::take(body).filter(|run| *run <= count - at && (*run > 0 || at == 0));
        let end = at + run.ok_or_else(|| malformed("its mask does not fit its film"))?;
        while is_shown && at < end {
            // Less than 2^32 tiles are in a screen.
            let (column, row) = ((at % u64::from(across)) as u32, (at / u64::from(across)) as u32);
            let width = (across - column).min((end - at) as u32);
            let tiles = Rectangle { x: column * TILE, y: row * TILE, width: width * TILE, height: TILE };
            let tiles = Rectangle { x: part.x + tiles.x, y: part.y + tiles.y, ..tiles };
            let Some(shown) = tiles.intersection(part) else { break };
            let is_above = |above: &&mut Rectangle| {
                (above.x, above.width, above.y + above.height) == (shown.x, shown.width, shown.y)
            };
            match joined.last_mut().filter(is_above) {
                Some(above) => above.height += shown.height,
                None => joined.push(shown),
            }
            at += u64::from(width);
        }
        (at, is_shown) = (end, !is_shown);
    }
    Ok(joined)
}

impl Stage for Sink {
    fn handle(&mut self, port: Port, mut message: Message, now: Time, out: &mut Outbox) -> StageResult {
        if !Decoding::IS_POSSIBLE && !self.has_told {
            self.has_told = true;
            out.control(Control::NoDecoder.emit());
        }
        let Header { coding, sequence } = Header::take(&mut message.body)?;
        let gap = now.since(std::mem::replace(&mut self.arrived_at, now));
        let gap_us = u64::try_from(gap.as_micros()).unwrap_or(u64::MAX);
        out.control(Control::Arrived { sequence, gap_us }.emit());
        if !self.follow(sequence, out) {
            out.drop_counted(REPEATED, 1);
            return Ok(());
        }
        match coding {
            Coding::Stored => {
                self.stored += 1;
                self.copy(&message.body)?;
            }
            Coding::Compressed { length } => {
                self.compressed += 1;
                let body = std::mem::take(&mut message.body);
                message.body = self.decompress(body, length)?.into();
                self.copy(&message.body)?;
            }
            Coding::Tiled { length } => {
                self.compressed += 1;
                message.body = self.restore(std::mem::take(&mut message.body), length)?;
                self.copy(&message.body)?;
            }
            Coding::Piece { is_last } => return self.add_piece(message, is_last, now, out),
            Coding::Begin => message.body = self.begin(std::mem::take(&mut message.body))?,
        }
        out.send(port, message);
        Ok(())
    }

    fn handle_gap(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> StageResult {
        self.lose_film();
        if self.canvas.is_some() {
            out.control(Control::Refresh.emit());
        }
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("stored", self.stored as f64),
            ("compressed", self.compressed as f64),
            ("pictures", self.pictures as f64),
            ("missing", self.missing as f64),
        ]
    }
}
