//! `track`: where something moves, or has a colour, in each picture (paper N, section 4.8.2: "object-tracking").

mod cells;
mod finder;
#[cfg(test)]
mod tests;

use crate::agreed;
use crate::picture::{self, AT, Memory, Picture, Taken, unpack};
use cells::{Cells, normal};
use contract::{
    Body, Format, Half, Message, OptionKind, OptionSpec, Options, Outbox, Pair, PassThrough, Port, Promises,
    Report, Site, Stage, StageError, Time,
};
use finder::{Finder, Wanted};
use wire::formats::video::{Header, Kind, RECTANGLES_MAX, Rectangle, emit_rectangles};

/// The pair.
pub(crate) struct Track;

/// Where boxes leave.
const BOXES: Port = Port(1);

/// Pixels of a line that is drawn.
const LINE: u32 = 2;

static OPTIONS: [OptionSpec; 7] = [
    agreed("mode", OptionKind::Choice(&["motion", "colour"]), "motion", "what is looked for"),
    agreed("colour", OptionKind::Text { max: 6 }, "ff0000", "the colour looked for: red, green, blue in hex"),
    agreed(
        "threshold",
        OptionKind::Integer { min: 1, max: 255 },
        "24",
        "difference, of 255, from which something moves, or up to which a colour is the one looked for",
    ),
    agreed(
        "smallest",
        OptionKind::Integer { min: 1, max: 1 << 20 },
        "128",
        "pixels of the smallest thing that counts",
    ),
    agreed(
        "most",
        OptionKind::Integer { min: 1, max: RECTANGLES_MAX as i64 },
        "8",
        "boxes a picture, the largest things first",
    ),
    agreed("draw", OptionKind::Flag, "false", "draws the boxes on the pictures"),
    AT,
];

impl Pair for Track {
    fn name(&self) -> &'static str {
        "track"
    }

    fn summary(&self) -> &'static str {
        "finds what moves, or has a colour, and gives boxes as a flow of their own"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
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

    fn source(&self, options: &Options, _: &Format, _: &Site) -> Result<Box<dyn Stage>, StageError> {
        half(Half::Source, options)
    }

    fn sink(&self, options: &Options, _: &Format, _: &Site) -> Result<Box<dyn Stage>, StageError> {
        half(Half::Sink, options)
    }
}

fn half(half: Half, options: &Options) -> Result<Box<dyn Stage>, StageError> {
    Ok(match picture::works(half, options) {
        true => Box::new(Tracker::new(options)?),
        false => Box::new(PassThrough),
    })
}

/// Red, green and blue of the colour looked for.
fn colour(options: &Options) -> Result<[u8; 3], String> {
    let text = options.text("colour");
    let wrong = || format!("`{text}` is no colour: write red, green and blue in hexadecimal, as in ff8000");
    let digits = text.len() == 6 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u32::from_str_radix(text, 16).ok().filter(|_| digits).ok_or_else(wrong)?;
    let [_, red, green, blue] = number.to_be_bytes();
    Ok([red, green, blue])
}

struct Tracker {
    cells: Cells,
    finder: Finder,
    draws: bool,
    memory: Memory,
    unpacked: Memory,
    pictures: u64,
    others: u64,
    boxes: u64,
}

impl Tracker {
    fn new(options: &Options) -> Result<Self, StageError> {
        let wanted = match options.text("mode") {
            "colour" => Wanted::Colour(normal(colour(options).map_err(StageError::Own)?)),
            _ => Wanted::Motion,
        };
        Ok(Tracker {
            cells: Cells::default(),
            finder: Finder::new(
                wanted,
                options.count("threshold") as i16,
                options.count("smallest"),
                options.count("most"),
            ),
            draws: options.flag("draw"),
            memory: Memory::new(),
            unpacked: Memory::new(),
            pictures: 0,
            others: 0,
            boxes: 0,
        })
    }
}

impl Stage for Tracker {
    fn handle(
        &mut self,
        port: Port,
        mut message: Message,
        _now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let Some(Taken::Frame(picture)) = Taken::of(&message.body) else {
            self.others += 1;
            out.send(port, message);
            return Ok(());
        };
        let geometry = picture.geometry;
        let picture = unpack(picture, &mut self.unpacked)?;
        self.cells.look(&picture);
        let boxes = self.finder.find(&self.cells, &geometry);
        self.pictures += 1;
        self.boxes += boxes.len() as u64;
        if self.draws && !boxes.is_empty() {
            message.body = drawn(&picture, &boxes, &mut self.memory);
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

/// A copy of the picture with white edges around `boxes`.
fn drawn(picture: &Picture, boxes: &[Rectangle], memory: &mut Memory) -> Body {
    let mut pixels = memory.take(picture.pixels.len());
    pixels.copy_from_slice(&picture.pixels);
    let plane = picture.geometry.plane(0);
    let pixel_bytes = picture.geometry.pixels().pixel_bytes();
    // White of Y is 235.
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
