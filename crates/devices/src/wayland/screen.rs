//! The pictures of an output on their way to the viewer: whole ones and changed rectangles, one message for each pull.
//!
//! A [`Way`](super::way::Way) reads a frame into it; the tiles that differ are due.

use super::picture::{Frame, Picture, Turn};
use crate::backlog::Backlog;
use crate::portion::Portion;
use buffers::Recycler;
use contract::{Body, Message, Options, Time};
use std::io;
use std::time::Duration;
use wire::formats::video::{Geometry, Header, Kind, PixelFormat, Rectangle, emit_rectangles};

/// The most rectangles of new changes in one message; one around them all replaces more.
const RECTANGLES_MAX: usize = 512;
/// The number and the total size of message buffers that are recycled.
const BUFFERS_KEPT: usize = 4;
const BYTES_KEPT: usize = 64 << 20;

/// The figures that the partner reports.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) frames: u64,
    pub(super) partial: u64,
    pub(super) rectangles: u64,
    pub(super) copies: u64,
    pub(super) failed: u64,
    pub(super) sizes: u64,
}

/// The times at which frames may be requested: at most so many a second.
#[derive(Debug)]
pub(super) struct Rhythm {
    period: Duration,
    /// The earliest time of the next frame.
    next_at: Time,
}

impl Rhythm {
    fn new(rate_hz: f64) -> Rhythm {
        let period = if rate_hz > 0.0 { Duration::from_secs_f64(1.0 / rate_hz) } else { Duration::ZERO };
        Rhythm { period, next_at: Time::ZERO }
    }

    /// Returns the earliest time of the next frame.
    pub(super) fn next_at(&self) -> Time {
        self.next_at
    }

    /// A frame is requested now. The period counts from the due time, so that small delays do not add up.
    pub(super) fn advance(&mut self, now: Time) {
        let is_late = now.since(self.next_at) > self.period;
        self.next_at = if is_late { now } else { self.next_at }.after(self.period);
    }

    /// Delays the next frame.
    pub(super) fn pause_until(&mut self, at: Time) {
        self.next_at = at;
    }
}

/// The pictures of one output.
#[derive(Debug)]
pub(super) struct Screen {
    always_whole: bool,
    rate_hz: f64,
    pub(super) rhythm: Rhythm,
    picture: Option<Picture>,
    /// The turn of the present picture.
    turn: Turn,
    is_whole_due: bool,
    /// The time when the present picture was complete.
    copied_at: Time,
    portion: Portion,
    backlog: Backlog,
    recycler: Recycler,
    pub(super) figures: Figures,
}

impl Screen {
    /// Makes a screen without a picture.
    pub(super) fn new(options: &Options) -> Screen {
        let rate_hz = options.number("rate");
        Screen {
            always_whole: options.text("damage") == "whole",
            rate_hz,
            rhythm: Rhythm::new(rate_hz),
            picture: None,
            turn: Turn::default(),
            is_whole_due: false,
            copied_at: Time::ZERO,
            portion: Portion::new(options.duration("portion")),
            backlog: Backlog::new(0, 0),
            recycler: Recycler::new(BUFFERS_KEPT, BYTES_KEPT),
            figures: Figures::default(),
        }
    }

    /// Returns the size of the picture, in pixels.
    pub(super) fn size(&self) -> Option<(u32, u32)> {
        self.picture.as_ref().map(Picture::size)
    }

    /// Returns the turn of the last frame.
    pub(super) fn turn(&self) -> Turn {
        self.turn
    }

    /// Returns the picture.
    pub(super) fn picture(&self) -> Option<&Picture> {
        self.picture.as_ref()
    }

    /// Makes a whole picture due.
    pub(super) fn request_whole(&mut self) {
        self.is_whole_due = true;
    }

    /// Returns whether a message is due.
    pub(super) fn is_ready(&self) -> bool {
        let is_due = self.is_whole_due || !self.backlog.is_empty();
        self.picture.as_ref().is_some_and(|picture| is_due || picture.has_changed())
    }

    /// The pipeline merges changes, or does not.
    pub(super) fn set_merging(&mut self, merges: bool) {
        self.portion.set_merging(merges);
    }

    /// The path pulls a message.
    pub(super) fn handle_pull(&mut self, now: Time) {
        self.portion.handle_pull(now);
    }

    /// Reads a frame. `damaged` is the part that may differ from the frame before; `None`: everything.
    pub(super) fn read(
        &mut self,
        frame: &Frame<'_>,
        damaged: Option<Rectangle>,
        now: Time,
    ) -> io::Result<()> {
        let (mut picture, is_known) = match self.picture.take() {
            Some(picture) if picture.fits(&frame.layout, frame.turn) => (picture, true),
            other => {
                let picture = Picture::new(&frame.layout, frame.turn, self.rate_hz)?;
                self.figures.sizes += u64::from(other.is_some());
                self.backlog.resize(picture.size().0, picture.size().1);
                self.is_whole_due = true;
                (picture, false)
            }
        };
        let all = picture.whole();
        // A new picture is black outside the damage.
        let damaged = damaged.filter(|_| is_known && frame.turn == self.turn).unwrap_or(all);
        picture.read(frame, &damaged)?;
        (self.turn, self.picture, self.copied_at) = (frame.turn, Some(picture), now);
        self.figures.copies += 1;
        Ok(())
    }

    /// Returns the next message, if one is due.
    pub(super) fn message(&mut self, now: Time) -> Option<Message> {
        let picture = self.picture.as_mut()?;
        let (whole, geometry) = (picture.whole(), picture.geometry());
        let is_whole = std::mem::take(&mut self.is_whole_due);
        let mut parts = Vec::new();
        if is_whole || (self.always_whole && picture.has_changed()) {
            picture.changed().clear();
            self.backlog.clear();
            parts.push(whole);
        } else {
            picture.changed().take(&whole, &mut parts);
            if parts.len() > RECTANGLES_MAX {
                parts = parts.into_iter().reduce(|all, part| around(&all, &part)).into_iter().collect();
            }
            let is_new = !parts.is_empty();
            if !is_new && self.backlog.is_empty() {
                return None;
            }
            parts = self.backlog.choose(parts, self.portion.pixels_max());
            // New damage may be left to the backlog, whose turn is next.
            if parts.is_empty() {
                parts = self.backlog.choose(parts, self.portion.pixels_max());
            }
        }
        let pixels = parts.iter().map(|part| part.bytes(PixelFormat::Bgrx32)).sum();
        if pixels == 0 {
            return None;
        }
        let body = self.body(geometry, &parts, pixels);
        let pixels = pixels / PixelFormat::Bgrx32.pixel_bytes();
        self.portion.handle_taken(pixels as u64, now);
        Some(Message::new(self.copied_at, body))
    }

    fn body(&mut self, geometry: Geometry, parts: &[Rectangle], bytes: usize) -> Body {
        let mut buffer = self.recycler.take(bytes);
        let is_whole = match &self.picture {
            Some(picture) if parts == [picture.whole()] => {
                buffer.extend_from_slice(picture.pixels());
                true
            }
            Some(picture) => {
                parts.iter().for_each(|part| picture.append(part, &mut buffer));
                false
            }
            None => false,
        };
        let mut body = Body::from(buffer.split().freeze());
        self.recycler.retire(buffer, bytes);
        match is_whole {
            true => {
                self.figures.frames += 1;
                body.push_front(&Header::frame(geometry).emit());
            }
            false => {
                self.figures.partial += 1;
                self.figures.rectangles += parts.len() as u64;
                body.push_front(&emit_rectangles(parts));
                body.push_front(&Header { kind: Kind::Rectangles, geometry }.emit());
            }
        }
        body
    }
}

/// Returns the rectangle around two rectangles. Any numbers may come from a compositor.
pub(super) fn around(one: &Rectangle, other: &Rectangle) -> Rectangle {
    let (x, y) = (one.x.min(other.x), one.y.min(other.y));
    let right = one.x.saturating_add(one.width).max(other.x.saturating_add(other.width));
    let bottom = one.y.saturating_add(one.height).max(other.y.saturating_add(other.height));
    Rectangle { x, y, width: right - x, height: bottom - y }
}

#[cfg(test)]
mod tests {
    use super::super::OPTIONS;
    use super::super::picture::BufferLayout;
    use super::super::protocol::memory::XRGB8888;
    use super::*;
    use sys::memory::{Access, Shared, create};

    /// The worker before may have read all of a frame but its last damage; a picture of another size is new, too.
    #[test]
    fn a_new_picture_takes_all_of_a_frame() {
        let mut screen = Screen::new(&Options::check(&OPTIONS, []).unwrap());
        for (width, height) in [(40, 30), (50, 20)] {
            let layout = BufferLayout { format: XRGB8888, width, height, stride: width * 4 };
            let bytes = layout.bytes().unwrap();
            let memory = Shared::map(create("outboard-test", bytes).unwrap(), Access::Write).unwrap();
            assert!(memory.copy_in(0, &vec![7; bytes]));
            let frame = Frame { memory: &memory, start: 0, layout, turn: Turn::default() };
            let damaged = Rectangle { x: 3, y: 5, width: 2, height: 1 };
            screen.read(&frame, Some(damaged), Time(1)).unwrap();
            let body = screen.message(Time(1)).unwrap().body.into_bytes();
            assert_eq!(body.len(), Header::BYTES + bytes);
            assert!(body[Header::BYTES..].iter().all(|byte| *byte == 7), "{width}x{height}");
        }
    }
}
