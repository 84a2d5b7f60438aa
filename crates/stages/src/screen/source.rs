//! The half that keeps the screen and chooses the next message.
//!
//! ```text
//! order  content                                                  condition
//! 1      text: new damage that does not move, the newest first    there is a message full at most, or it is its turn
//! 2      the pieces of a picture of the film                      the picture was begun
//! 3      the next picture of the film                             it is due
//! 4      the rest: tiles that moved and stand still, lost tiles   the film leaves room
//! ```
//!
//! Much text, such as a new page, takes turns with the film.

use super::canvas::Canvas;
use super::film::Film;
use super::header::{Coding, Control, Header};
use super::link::{Content, Link};
use super::tiles::{Choice, Tiles};
use crate::picture::{PartialPicture, Picture, VideoMessage};
use crate::recode;
use contract::{
    Attributes, Body, Bytes, Message, Outbox, Port, Report, Stage, StageError, StageResult, Time,
};
use std::collections::VecDeque;
use std::time::Duration;
use wire::formats::video::{Geometry, Header as VideoHeader, PixelFormat, Rectangle};
use zstd::bulk::Compressor;

/// Level of zstd: more would take longer than it saves.
const LEVEL: i32 = 3;
/// Messages up to this length are not compressed.
const COMPRESSED_FROM: usize = 128;
/// A message of tiles that is so many times as long as it should be is made anew, from fewer tiles.
const PIECES_MAX: usize = 2;
/// Bytes of a compressed tile before the first one.
const TILE_BYTES_FIRST: f64 = 200.0;
/// Weight of a message in the mean bytes of a tile.
const TILE_BYTES_WEIGHT: f64 = 0.2;
/// Most tiles of a message: 1 MiB of pixels.
const TILES_MAX: usize = 1024;
/// Most tiles that one message changes as text is typed.
const RECENT_MAX: usize = 64;
/// Text is behind the film when so many messages of it were sent since its last piece.
const TEXT_TURN: usize = 3;
/// While the link is busy, the device is asked this often for changes.
const BUSY_EVERY: Duration = Duration::from_millis(8);
/// How often tiles are looked at that will stand still.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The next look after a call that made as many messages as it may.
const LOOK_AGAIN: Duration = Duration::from_micros(100);
/// A device that sends whole pictures only begins the screen anew this often at most.
const BEGIN_EVERY: Duration = Duration::from_secs(1);
/// Period of the rate of text.
const TEXT_RATE_FOR: Duration = Duration::from_millis(500);
/// Most messages that one call makes; the next call goes on.
const MESSAGES_MAX: usize = 512;

/// The screen as the device last showed it.
struct Shown {
    canvas: Canvas,
    tiles: Tiles,
    /// Tiles of text that the last message with text changed, if they were few.
    recent: Vec<usize>,
    began_at: Time,
    /// A whole picture began the screen since the last changed rectangles.
    was_frame: bool,
}

impl Shown {
    /// Copies the rows of a part to the canvas, touches the tiles whose pixels change, and adds those of text to `typed`.
    fn compare<'a>(
        &mut self,
        part: &Rectangle,
        rows: impl Iterator<Item = &'a [u8]>,
        now_ms: u32,
        typed: &mut Vec<usize>,
    ) {
        let tiles = &mut self.tiles;
        self.canvas.compare(part, rows, |column, row| {
            let number = tiles.number(column, row);
            // A film beside the text is in the same message.
            if tiles.touch(number, now_ms) && tiles.is_text(number) && typed.len() <= RECENT_MAX {
                typed.push(number);
            }
        });
    }

    /// The tiles of text that a message changed. One without any leaves those before it the next to be sent.
    fn set_recent(&mut self, typed: Vec<usize>) {
        match typed.len() {
            0 => {}
            1..=RECENT_MAX => self.recent = typed,
            _ => self.recent.clear(),
        }
    }
}

/// Figures of the half.
#[derive(Debug, Default)]
struct Counts {
    as_is: u64,
    tiles: u64,
    others: u64,
    begun: u64,
    lost: u64,
    bytes_before: u64,
    bytes_after: u64,
}

pub(super) struct Source {
    is_film_allowed: bool,
    shown: Option<Shown>,
    film: Film,
    link: Link,
    tiled: recode::Encoder,
    compressor: Compressor<'static>,
    /// Number of the next message.
    sequence: u64,
    /// Creation time and attributes of the last message from the device.
    created: Time,
    attributes: Attributes,
    /// Pieces of a picture of the film.
    pieces: VecDeque<Bytes>,
    /// Messages of text since the last piece of the film.
    text_run: usize,
    /// Mean bytes of a compressed tile of text, and of a hot one.
    tile_bytes: [f64; 2],
    /// Bytes of text in this period, its begin, and the bytes a second before it.
    text: (f64, Time, f64),
    /// No message is taken until then.
    rests_until: Option<Time>,
    next_look: Option<Time>,
    counts: Counts,
}

fn millis(now: Time) -> u32 {
    // Only differences matter, and they are short.
    (now.0 / 1_000_000) as u32
}

impl Source {
    pub(super) fn new(is_film_allowed: bool) -> StageResult<Source> {
        let failed = |error: std::io::Error| StageError::Own(format!("zstd: {error}"));
        Ok(Source {
            is_film_allowed,
            shown: None,
            film: Film::new(is_film_allowed),
            link: Link::default(),
            tiled: recode::Encoder::default(),
            compressor: Compressor::new(LEVEL).map_err(failed)?,
            sequence: 0,
            created: Time::ZERO,
            attributes: Attributes::default(),
            pieces: VecDeque::new(),
            text_run: 0,
            tile_bytes: [TILE_BYTES_FIRST; 2],
            text: (0.0, Time::ZERO, 0.0),
            rests_until: None,
            next_look: None,
            counts: Counts::default(),
        })
    }

    /// Numbers and sends a message. Returns its bytes.
    fn send(
        &mut self,
        coding: Coding,
        mut message: Message,
        content: Content,
        now: Time,
        out: &mut Outbox,
    ) -> usize {
        let sequence = self.sequence;
        Header { coding, sequence }.put(&mut message.body);
        let bytes = message.body.len();
        self.sequence += 1;
        self.counts.bytes_after += bytes as u64;
        self.link.sent(sequence, bytes, content, now);
        out.send(Port::MAIN, message);
        bytes
    }

    /// Compresses a body, if that makes it shorter.
    fn compress(&mut self, body: &mut Body) -> Coding {
        let length = body.len();
        if length < COMPRESSED_FROM {
            return Coding::Stored;
        }
        let (coding, compressed) = match self.tiled.encode(body) {
            Some(tiled) => (Coding::Tiled { length: tiled.len() as u64 }, self.compressor.compress(tiled)),
            None => (Coding::Compressed { length: length as u64 }, self.compressor.compress(body.as_slice())),
        };
        match compressed {
            Ok(bytes) if bytes.len() < length => {
                *body = bytes.into();
                coding
            }
            _ => Coding::Stored,
        }
    }

    fn message(&self, body: Body) -> Message {
        Message { created: self.created, attributes: self.attributes, body }
    }

    /// A message that is no picture of a screen.
    fn pass(&mut self, message: Message, now: Time, out: &mut Outbox) {
        self.counts.others += 1;
        let (content, mut message) = (Content::Message(message.clone()), message);
        let coding = self.compress(&mut message.body);
        self.send(coding, message, content, now, out);
    }

    /// Begins a screen of this geometry, if it is not there yet. Returns true if all of it is new.
    fn begin(&mut self, geometry: Geometry, now: Time, out: &mut Outbox) -> StageResult<bool> {
        let shown = self.shown.take().filter(|shown| shown.canvas.fits(&geometry));
        let is_new = shown.is_none();
        let mut shown = match shown {
            Some(shown) => shown,
            None => {
                self.drop_pieces();
                self.film.restart();
                Shown {
                    canvas: Canvas::new(geometry)?,
                    tiles: Tiles::new(geometry.width(), geometry.height()),
                    recent: Vec::new(),
                    began_at: Time::ZERO,
                    was_frame: false,
                }
            }
        };
        let is_due = !shown.was_frame || now.since(shown.began_at) >= BEGIN_EVERY;
        // The sink half forgets the first pieces of a picture as a screen begins.
        if is_new || is_due && self.pieces.is_empty() {
            (shown.began_at, shown.was_frame) = (now, true);
            self.counts.begun += 1;
            let body = Body::from(VideoHeader::frame(shown.canvas.geometry()).emit().to_vec());
            self.send(Coding::Begin, self.message(body), Content::Begin, now, out);
        }
        self.shown = Some(shown);
        Ok(is_new)
    }

    /// Takes a whole picture.
    fn take_frame(
        &mut self,
        picture: &Picture,
        message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> StageResult {
        let geometry = picture.geometry;
        let is_at_once = !self.film.is_on() && self.link.takes_at_once(message.body.len());
        if !is_at_once {
            self.begin(geometry, now, out)?;
        } else if self.shown.as_ref().is_none_or(|shown| !shown.canvas.fits(&geometry)) {
            let canvas = Canvas::new(geometry)?;
            let tiles = Tiles::new(geometry.width(), geometry.height());
            let (recent, began_at, was_frame) = (Vec::new(), now, true);
            self.shown = Some(Shown { canvas, tiles, recent, began_at, was_frame });
            self.drop_pieces();
        }
        let Some(shown) = &mut self.shown else { return Ok(()) };
        let (whole, rows) = (shown.canvas.whole(), geometry.plane(0).rows(&picture.pixels));
        if is_at_once {
            shown.canvas.write(&whole, rows);
            shown.tiles.sent_all();
            shown.was_frame = true;
            self.counts.as_is += 1;
            self.send(Coding::Stored, message, Content::Begin, now, out);
            return Ok(());
        }
        let mut typed = Vec::new();
        shown.compare(&whole, rows, millis(now), &mut typed);
        shown.set_recent(typed);
        Ok(())
    }

    /// Takes changed rectangles.
    fn take_partial(&mut self, partial: &PartialPicture, message: Message, now: Time, out: &mut Outbox) {
        let is_at_once = !self.film.is_on() && self.link.takes_at_once(message.body.len());
        let Some(shown) = self.shown.as_mut().filter(|shown| shown.canvas.fits(&partial.geometry)) else {
            return self.pass(message, now, out);
        };
        shown.was_frame = false;
        let is_at_once = is_at_once && shown.tiles.inexact() == 0;
        let (now_ms, mut typed, mut rest) = (millis(now), Vec::new(), &partial.pixels[..]);
        for part in &partial.rectangles {
            let (pixels, remaining) = rest.split_at(part.bytes(PixelFormat::Bgrx32));
            rest = remaining;
            let rows = pixels.chunks_exact(part.width as usize * super::canvas::PIXEL_BYTES);
            if is_at_once {
                shown.canvas.write(part, rows);
                continue;
            }
            shown.compare(part, rows, now_ms, &mut typed);
        }
        shown.set_recent(typed);
        if is_at_once {
            self.counts.as_is += 1;
            let numbers = partial.rectangles.iter().flat_map(|part| shown.tiles.covered(part)).collect();
            self.send(Coding::Stored, message, Content::Tiles(numbers), now, out);
        }
    }

    fn drop_pieces(&mut self) {
        if !self.pieces.is_empty() {
            self.pieces.clear();
            // The sink half cannot complete the picture, and joins the next pieces to it.
            self.film.request_key();
        }
        if let Some(shown) = &mut self.shown {
            shown.tiles.end_picture();
        }
    }

    /// Bytes a second of text in the last period.
    fn text_rate(&mut self, now: Time) -> f64 {
        let (bytes, since, rate) = self.text;
        let time = now.since(since);
        if time < TEXT_RATE_FOR {
            return rate;
        }
        self.text = (0.0, now, bytes / time.as_secs_f64());
        self.text.2
    }

    /// Tiles that fit a message.
    fn tiles_of_message(&self, choice: Choice) -> usize {
        let bytes = self.tile_bytes[usize::from(choice == Choice::Rest)];
        ((self.link.piece() as f64 / bytes) as usize).clamp(1, TILES_MAX)
    }

    /// Sends tiles as they are.
    fn send_tiles(&mut self, mut numbers: Vec<usize>, choice: Choice, now: Time, out: &mut Outbox) {
        let (coding, body, taken) = loop {
            let Some(shown) = &mut self.shown else { return };
            let (parts, taken) = shown.tiles.rectangles(&numbers);
            numbers.truncate(taken);
            let mut body = Body::from(shown.canvas.rectangles(&parts));
            let coding = self.compress(&mut body);
            // Tiles of a picture are many times as long as those of text, by which their number was chosen.
            let (bytes, piece) = (body.len(), self.link.piece());
            if taken == 1 || bytes <= PIECES_MAX * piece {
                break (coding, body, taken);
            }
            numbers.truncate((taken * piece / bytes).max(1));
        };
        let Some(shown) = &mut self.shown else { return };
        numbers.iter().for_each(|number| shown.tiles.sent(*number));
        self.counts.tiles += taken as u64;
        let bytes = self.send(coding, self.message(body), Content::Tiles(numbers), now, out);
        let mean = &mut self.tile_bytes[usize::from(choice == Choice::Rest)];
        *mean += (bytes as f64 / taken.max(1) as f64 - *mean) * TILE_BYTES_WEIGHT;
        // The rest takes what film and text leave.
        if choice != Choice::Rest {
            self.text.0 += bytes as f64;
        }
        self.text_run += 1;
    }

    /// Sends a piece of the film.
    fn send_piece(&mut self, now: Time, out: &mut Outbox) {
        let Some(piece) = self.pieces.pop_front() else { return };
        let is_last = self.pieces.is_empty();
        self.send(Coding::Piece { is_last }, self.message(Body::from(piece)), Content::Film, now, out);
        self.text_run = 0;
        if let Some(shown) = self.shown.as_mut().filter(|_| is_last) {
            shown.tiles.end_picture();
        }
    }

    /// Encodes the next picture of the film, if it is due. Returns false if there is none.
    fn encode(&mut self, now: Time) -> StageResult<bool> {
        let text_rate = self.text_rate(now);
        let Some(shown) = &mut self.shown else { return Ok(false) };
        let rates = (text_rate, self.link.rate());
        let times = (now, millis(now));
        let Some(picture) = self.film.encode(&shown.canvas, &shown.tiles, rates, times)? else {
            return Ok(false);
        };
        picture.tiles.iter().for_each(|number| shown.tiles.filmed(*number));
        let (mut bytes, piece) = (picture.body.into_bytes(), self.link.piece());
        while !bytes.is_empty() {
            self.pieces.push_back(bytes.split_to(piece.min(bytes.len())));
        }
        Ok(true)
    }

    /// Sends the next message. Returns false if there is nothing to send now.
    fn send_next(&mut self, now: Time, out: &mut Outbox) -> StageResult<bool> {
        let Some(shown) = self.shown.as_ref().filter(|shown| shown.tiles.inexact() > 0) else {
            let has_piece = !self.pieces.is_empty();
            self.send_piece(now, out);
            return Ok(has_piece);
        };
        let (is_film, now_ms) = (self.film.is_on(), millis(now));
        let recent = shown.recent.clone();
        for choice in [Choice::Text, Choice::Rest] {
            let most = self.tiles_of_message(choice);
            let Some(shown) = &mut self.shown else { break };
            let numbers = shown.tiles.choose(choice, &recent, most, now_ms, is_film);
            let is_turn = choice == Choice::Text && (numbers.len() < most || self.text_run < TEXT_TURN);
            if !numbers.is_empty() && is_turn {
                self.send_tiles(numbers, choice, now, out);
                return Ok(true);
            }
            if !self.pieces.is_empty() || is_film && self.encode(now)? {
                self.send_piece(now, out);
                return Ok(true);
            }
            if !numbers.is_empty() {
                self.send_tiles(numbers, choice, now, out);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sends as much as the link has room for.
    fn pump(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        let mut is_done = false;
        for _ in 0..MESSAGES_MAX {
            if !self.link.has_room(now) {
                break;
            }
            if !self.send_next(now, out)? {
                is_done = true;
                break;
            }
        }
        let has_rest = self.shown.as_ref().is_some_and(|shown| shown.tiles.inexact() > 0);
        let waits = has_rest || !self.pieces.is_empty();
        self.next_look = match is_done {
            _ if !waits => None,
            true => Some(now.after(LOOK_EVERY)),
            false => self.link.room_at().map(|at| at.max(now.after(LOOK_AGAIN))),
        };
        Ok(())
    }

    /// The sink half does not have a message.
    fn lose(&mut self, content: Option<Content>, now: Time, out: &mut Outbox) {
        self.counts.lost += 1;
        match content {
            Some(Content::Message(message)) => self.pass(message, now, out),
            Some(Content::Tiles(numbers)) => {
                if let Some(shown) = &mut self.shown {
                    numbers.into_iter().for_each(|number| shown.tiles.mark(number));
                }
            }
            Some(Content::Film) => self.film.request_key(),
            Some(Content::Begin) | None => self.send_anew(now, out),
        }
    }

    /// Sends the whole screen again.
    fn send_anew(&mut self, now: Time, out: &mut Outbox) {
        self.drop_pieces();
        self.film.request_key();
        let Some(shown) = &mut self.shown else { return };
        shown.tiles.mark_all();
        shown.began_at = now;
        let body = Body::from(VideoHeader::frame(shown.canvas.geometry()).emit().to_vec());
        self.counts.begun += 1;
        self.send(Coding::Begin, self.message(body), Content::Begin, now, out);
    }
}

impl Stage for Source {
    fn handle(&mut self, _port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        self.counts.bytes_before += message.body.len() as u64;
        (self.created, self.attributes) = (message.created, message.attributes);
        match VideoMessage::parse(&message.body) {
            Some(VideoMessage::Frame(picture)) if picture.geometry.pixels() == PixelFormat::Bgrx32 => {
                self.take_frame(&picture, message, now, out)?;
            }
            Some(VideoMessage::Partial(partial)) if partial.geometry.pixels() == PixelFormat::Bgrx32 => {
                self.take_partial(&partial, message, now, out);
            }
            _ => self.pass(message, now, out),
        }
        if let Some(shown) = &mut self.shown {
            self.film.choose_mode(&mut shown.tiles, self.tile_bytes[1], self.link.rate(), now);
        }
        self.pump(now, out)?;
        let is_busy = self.shown.as_ref().is_some_and(|shown| shown.tiles.inexact() > 0);
        self.rests_until = is_busy.then(|| now.after(BUSY_EVERY));
        Ok(())
    }

    fn handle_control(&mut self, control: &[u8], now: Time, out: &mut Outbox) -> StageResult {
        match Control::parse(control)? {
            Control::Arrived { sequence, gap_us } if sequence < self.sequence => {
                self.link.arrived(sequence, Duration::from_micros(gap_us), now);
            }
            Control::Missing { from, below } if from < below && below <= self.sequence => {
                // Messages that are remembered no more were so many that the screen is sent anew.
                if below - from > MESSAGES_MAX as u64 {
                    self.send_anew(now, out);
                } else {
                    for sequence in from..below {
                        let content = self.link.remove(sequence);
                        self.lose(content, now, out);
                    }
                }
            }
            Control::Arrived { .. } | Control::Missing { .. } => {
                return Err(StageError::Control("it names a message not yet sent".into()));
            }
            Control::Refresh => self.send_anew(now, out),
            // The sink half requested it before the last key picture could arrive.
            Control::KeyNeeded if self.film.has_key_on_its_way(self.link.round_trip(), now) => {}
            Control::KeyNeeded => self.film.request_key(),
            Control::NoDecoder => {
                self.film.forbid();
                self.drop_pieces();
            }
        }
        self.pump(now, out)
    }

    fn handle_end(&mut self, _port: Port, now: Time, out: &mut Outbox) -> StageResult {
        while !self.pieces.is_empty() {
            self.send_piece(now, out);
        }
        // Everything that the sink half does not show leaves at once.
        let count = self.shown.as_ref().map_or(0, |shown| shown.tiles.count());
        for _ in 0..count {
            let Some(shown) = &mut self.shown else { break };
            let numbers = shown.tiles.choose(Choice::Rest, &[], TILES_MAX, millis(now), false);
            if numbers.is_empty() {
                break;
            }
            self.send_tiles(numbers, Choice::Rest, now, out);
        }
        (self.next_look, self.rests_until) = (None, None);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        let lost = self.link.loss_deadline().filter(|_| self.link.room_at().is_none());
        [self.rests_until, self.next_look, lost].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        self.rests_until = self.rests_until.filter(|until| *until > now);
        // A message that is only late is reported by its number if it was lost.
        while self.link.take_lost(now).is_some() {}
        self.pump(now, out)
    }

    fn has_room(&self) -> bool {
        self.rests_until.is_none() && !self.link.is_full()
    }

    /// The screen counts as one message until the other half shows it exactly.
    fn held(&self) -> usize {
        self.shown.as_ref().map_or(0, |shown| usize::from(shown.tiles.inexact() > 0))
    }

    fn report(&self) -> Vec<Report> {
        let counts = &self.counts;
        let inexact = self.shown.as_ref().map_or(0, |shown| shown.tiles.inexact());
        vec![
            ("as_is", counts.as_is as f64),
            ("tiles", counts.tiles as f64),
            ("others", counts.others as f64),
            ("begun", counts.begun as f64),
            ("pictures", self.film.pictures as f64),
            ("keys", self.film.keys as f64),
            ("film_kbit", f64::from(if self.film.has_region() { self.film.rate_kbit() } else { 0 })),
            ("moving_kbit", self.film.demand() * 8e-3),
            ("link_kbit", self.link.rate().unwrap_or_default() * 8e-3),
            ("round_trip_ms", self.link.round_trip().unwrap_or_default().as_secs_f64() * 1e3),
            ("inexact", inexact as f64),
            ("lost", counts.lost as f64),
            ("ratio", counts.bytes_before as f64 / counts.bytes_after.max(1) as f64),
        ]
    }

    fn choices(&self) -> Vec<contract::Choice> {
        self.is_film_allowed.then(|| self.film.choice(self.link.rate())).into_iter().collect()
    }
}
