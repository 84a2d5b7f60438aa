//! `track`: finds objects that move, or have a colour, in each picture ("Networked Device Driver
//! Architecture" (2012), 4.8.2: "object-tracking").
//!
//! [`cells`] reduces a picture to squares of 8 by 8 pixels. [`finder`] marks the squares that
//! differ from the background or have the colour, and joins adjacent ones to boxes.

mod cells;
mod finder;
#[cfg(test)]
mod tests;

use crate::picture::{self, AT, Memory, Picture, VideoMessage, unpack};
use cells::{Cells, ycc};
use contract::{
    Body, Format, Half, Message, ModuleEntry, OptionKind, OptionSpec, Options, Outbox, Pair, PassThrough,
    Port, Promises, Report, Site, Stage, StageError, StageResult, Time, agreed,
};
use finder::{Finder, Target};
use wire::formats::video::{Header, Kind, RECTANGLES_MAX, Rectangle, emit_rectangles};

/// The pair.
pub(crate) struct Track;

/// The port of the boxes.
const BOXES: Port = Port(1);

/// Width of drawn lines, in pixels.
const LINE: u32 = 2;

static OPTIONS: [OptionSpec; 7] = [
    agreed(
        "mode",
        OptionKind::Choice(&["motion", "colour"]),
        "motion",
        "find objects that move, or that have a colour",
    ),
    agreed(
        "colour",
        OptionKind::Text { max: 6 },
        "ff0000",
        "mode=colour: red, green and blue in hexadecimal",
    ),
    agreed(
        "threshold",
        OptionKind::Integer { min: 1, max: 255 },
        "24",
        "difference, 1 to 255: smallest that counts as motion, or largest that counts as the colour",
    ),
    agreed(
        "smallest",
        OptionKind::Integer { min: 1, max: 1 << 20 },
        "128",
        "size of the smallest object, in pixels",
    ),
    agreed(
        "most",
        OptionKind::Integer { min: 1, max: RECTANGLES_MAX as i64 },
        "8",
        "most boxes per picture, largest objects first",
    ),
    agreed("draw", OptionKind::Flag, "false", "true: draw the boxes into the pictures, in white"),
    AT,
];

impl Pair for Track {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "track",
            summary: "finds objects that move or have a colour; boxes leave by a side port",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn promises(&self, options: &Options) -> Promises {
        Promises { may_change: options.flag("draw"), ..Promises::default() }
    }

    fn side_ports(&self) -> &'static [&'static str] {
        &["boxes"]
    }

    fn accept(&self, format: &Format, _options: &Options) -> Result<Format, String> {
        picture::accept(format)
    }

    fn check(&self, options: &Options) -> Result<(), String> {
        colour(options).map(|_| ())
    }

    fn source(&self, options: &Options, _: &Format, _: &Site) -> StageResult<Box<dyn Stage>> {
        half(Half::Source, options)
    }

    fn sink(&self, options: &Options, _: &Format, _: &Site) -> StageResult<Box<dyn Stage>> {
        half(Half::Sink, options)
    }
}

fn half(half: Half, options: &Options) -> StageResult<Box<dyn Stage>> {
    Ok(match picture::is_active(half, options) {
        true => Box::new(Tracker::new(options)?),
        false => Box::new(PassThrough),
    })
}

/// Red, green and blue of the option `colour`.
fn colour(options: &Options) -> Result<[u8; 3], String> {
    let text = options.text("colour");
    let malformed =
        || format!("`{text}` is not a colour: write red, green and blue in hexadecimal, as in ff8000");
    let digits = text.len() == 6 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u32::from_str_radix(text, 16).ok().filter(|_| digits).ok_or_else(malformed)?;
    let [_, red, green, blue] = number.to_be_bytes();
    Ok([red, green, blue])
}

struct Tracker {
    cells: Cells,
    finder: Finder,
    draws_boxes: bool,
    memory: Memory,
    unpacked: Memory,
    pictures: u64,
    others: u64,
    boxes: u64,
}

impl Tracker {
    fn new(options: &Options) -> StageResult<Self> {
        let target = match options.text("mode") {
            "colour" => Target::Colour(ycc(colour(options).map_err(StageError::Own)?)),
            _ => Target::Motion,
        };
        Ok(Tracker {
            cells: Cells::default(),
            finder: Finder::new(
                target,
                options.count("threshold") as i16,
                options.count("smallest"),
                options.count("most"),
            ),
            draws_boxes: options.flag("draw"),
            memory: Memory::new(),
            unpacked: Memory::new(),
            pictures: 0,
            others: 0,
            boxes: 0,
        })
    }
}

impl Stage for Tracker {
    fn handle(&mut self, port: Port, mut message: Message, _now: Time, out: &mut Outbox) -> StageResult {
        let Some(VideoMessage::Frame(picture)) = VideoMessage::parse(&message.body) else {
            self.others += 1;
            out.send(port, message);
            return Ok(());
        };
        let geometry = picture.geometry;
        let picture = unpack(picture, &mut self.unpacked)?;
        self.cells.update(&picture);
        let boxes = self.finder.find(&self.cells, &geometry);
        self.pictures += 1;
        self.boxes += boxes.len() as u64;
        if self.draws_boxes && !boxes.is_empty() {
            message.body = with_boxes(&picture, &boxes, &mut self.memory);
        }
        let mut body = Body::from(emit_rectangles(&boxes));
        body.push_front(&Header { kind: Kind::Boxes, geometry }.emit());
        out.send(BOXES, Message::new(message.created, body));
        out.send(port, message);
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        vec![("pictures", self.pictures as f64), ("others", self.others as f64), ("boxes", self.boxes as f64)]
    }
}

/// A copy of the picture with white boxes.
fn with_boxes(picture: &Picture, boxes: &[Rectangle], memory: &mut Memory) -> Body {
    let mut pixels = memory.take(picture.pixels.len());
    pixels.copy_from_slice(&picture.pixels);
    let plane = picture.geometry.plane(0);
    let pixel_bytes = picture.geometry.pixels().pixel_bytes();
    // In planes, white is Y = 235.
    let white = if picture.geometry.pixels().subsampling().is_some() { 235 } else { 255 };
    for &Rectangle { x, y, width, height } in boxes {
        let (across, down) = (LINE.min(width), LINE.min(height));
        for edge in [
            Rectangle { x, y, width, height: down },
            Rectangle { x, y: y + height - down, width, height: down },
            Rectangle { x, y, width: across, height },
            Rectangle { x: x + width - across, y, width: across, height },
        ] {
            let start = edge.x as usize * pixel_bytes;
            let length = edge.width as usize * pixel_bytes;
            for row in plane.rows_mut(&mut pixels).skip(edge.y as usize).take(edge.height as usize) {
                row[start..start + length].fill(white);
            }
        }
    }
    let mut body = Body::from(pixels.freeze());
    body.push_front(&Header::frame(picture.geometry).emit());
    body
}
