//! What the pairs for pictures share: they take a picture out of a message, hand it to a [`Filter`] and put what
//! that makes of it into the message's place.
//!
//! What is no picture, or not whole, is passed on as it came: whoever takes it in the end says what is wrong.

#[cfg(test)]
pub(crate) mod tests;

use buffers::{Lease, Pool};
use bytes::Bytes;
use contract::{
    Body, Format, Half, Message, OptionKind, OptionSpec, Options, Outbox, PassThrough, Port, Report, Stage,
    StageError, Time,
};
use wire::WireError;
use wire::formats::video::{
    Content, Geometry, Header, Kind, PixelFormat, Rectangle, emit_rectangles, unpack_yuyv,
};

/// Pictures' worth of memory kept for use again.
const PICTURES_KEPT: usize = 8;

/// The option of all pairs for pictures: where the work is done.
pub(crate) const AT: OptionSpec = crate::agreed(
    "at",
    OptionKind::Choice(&["source", "sink"]),
    "source",
    "which half does the work: the source, so that less is sent, or the sink",
);

/// A whole picture.
#[derive(Debug, Clone)]
pub(crate) struct Picture {
    pub(crate) geometry: Geometry,
    /// As many bytes as the geometry says.
    pub(crate) pixels: Bytes,
}

impl Picture {
    fn into_body(self) -> Body {
        let mut body = Body::from(self.pixels);
        body.push_front(&Header::frame(self.geometry).emit());
        body
    }
}

/// Parts of a picture, of packed pixels.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    /// Of the whole picture.
    pub(crate) geometry: Geometry,
    pub(crate) rectangles: Vec<Rectangle>,
    /// Of one rectangle behind those of the other, rows without padding.
    pub(crate) pixels: Bytes,
}

impl Parts {
    fn into_body(self) -> Body {
        let mut body = Body::from(emit_rectangles(&self.rectangles));
        body.push(self.pixels);
        body.push_front(&Header { kind: Kind::Rectangles, geometry: self.geometry }.emit());
        body
    }
}

/// The shape of a pointer.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// Of the whole picture.
    pub(crate) geometry: Geometry,
    /// What follows the header.
    rest: Body,
}

impl Shape {
    fn into_body(self) -> Body {
        let mut body = self.rest;
        body.push_front(&Header { kind: Kind::Cursor, geometry: self.geometry }.emit());
        body
    }
}

/// What a message holds that a filter can work on.
pub(crate) enum Taken {
    Frame(Picture),
    Parts(Parts),
    Shape(Shape),
}

impl Taken {
    /// The picture in `body`, without a copy if it lies in one piece; `None` if it is no picture or not whole.
    pub(crate) fn of(body: &Body) -> Option<Taken> {
        let header = Header::parse(&body.peek_front::<{ Header::BYTES }>()?).ok()?;
        let geometry = header.geometry;
        let wanted = Header::BYTES + geometry.bytes();
        if header.kind == Kind::Frame && geometry.pixels() != PixelFormat::Mjpeg && body.len() != wanted {
            return None;
        }
        let mut rest = body.clone();
        rest.skip_front(Header::BYTES);
        let bytes = rest.into_bytes();
        match header.parse_content(&bytes).ok()? {
            Content::Frame(_) => Some(Taken::Frame(Picture { geometry, pixels: bytes })),
            Content::Rectangles(rectangles, pixels) => {
                Some(Taken::Parts(Parts { geometry, rectangles, pixels: bytes.slice_ref(pixels) }))
            }
            Content::Cursor(..) => Some(Taken::Shape(Shape { geometry, rest: bytes.into() })),
            Content::Boxes(_) => None,
        }
    }
}

/// Memory for pictures, used again as soon as the last one that lay in it is gone.
pub(crate) struct Memory {
    pool: Pool,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Memory { pool: Pool::new(0, 0) }
    }

    /// So many bytes, of arbitrary content.
    pub(crate) fn take(&mut self, bytes: usize) -> Lease {
        if self.pool.capacity() != bytes {
            self.pool = Pool::new(bytes, PICTURES_KEPT);
        }
        self.pool.take()
    }
}

/// Makes one picture of another. Pixels are never [`PixelFormat::Mjpeg`] or [`PixelFormat::Yuyv`] here.
pub(crate) trait Filter: Send {
    /// A whole picture.
    fn frame(&mut self, picture: Picture, memory: &mut Memory) -> Result<Picture, StageError>;

    /// Parts of a picture.
    fn parts(&mut self, parts: Parts) -> Result<Parts, StageError>;

    /// What becomes of the geometry of a picture: a pointer goes with it, and is left as it is.
    fn geometry(&self, from: &Geometry) -> Result<Geometry, StageError>;
}

/// The half of a pair that has a filter.
struct Filtering<F> {
    filter: F,
    memory: Memory,
    unpacked: Memory,
    frames: u64,
    others: u64,
}

impl<F: Filter> Stage for Filtering<F> {
    fn handle(
        &mut self,
        port: Port,
        mut message: Message,
        _now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        match Taken::of(&message.body) {
            Some(Taken::Frame(picture)) => {
                let picture = unpack(picture, &mut self.unpacked)?;
                message.body = self.filter.frame(picture, &mut self.memory)?.into_body();
                self.frames += 1;
            }
            Some(Taken::Parts(parts)) => {
                message.body = self.filter.parts(parts)?.into_body();
                self.frames += 1;
            }
            Some(Taken::Shape(mut shape)) => {
                shape.geometry = self.filter.geometry(&planar(shape.geometry)?)?;
                message.body = shape.into_body();
                self.others += 1;
            }
            None => self.others += 1,
        }
        out.send(port, message);
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        vec![("pictures", self.frames as f64), ("others", self.others as f64)]
    }
}

/// A half of a pair with a filter: it works if option [`AT`] says so, and passes on if not.
pub(crate) fn half<F: Filter + 'static>(
    half: Half,
    options: &Options,
    filter: impl FnOnce() -> F,
) -> Box<dyn Stage> {
    if !works(half, options) {
        return Box::new(PassThrough);
    }
    let (memory, unpacked) = (Memory::new(), Memory::new());
    Box::new(Filtering { filter: filter(), memory, unpacked, frames: 0, others: 0 })
}

/// Whether this half is the one that works.
pub(crate) fn works(half: Half, options: &Options) -> bool {
    options.text(AT.name) == if half == Half::Source { "source" } else { "sink" }
}

/// Pairs for pictures take nothing else.
pub(crate) fn accept(format: &Format) -> Result<Format, String> {
    match format {
        Format::Video => Ok(Format::Video),
        _ => Err("it takes only video".into()),
    }
}

/// What can be said of a geometry that a filter was to make.
pub(crate) fn too_large(error: WireError) -> StageError {
    StageError::Own(format!("no such picture can be made: {error}"))
}

/// The geometry that [`unpack`] gives.
fn planar(from: Geometry) -> Result<Geometry, StageError> {
    match from.pixels() {
        PixelFormat::Yuyv => {
            let (numerator, denominator) = from.rate();
            let to = Geometry::new(PixelFormat::I422, from.width(), from.height()).map_err(too_large)?;
            Ok(to.with_rate(numerator, denominator))
        }
        PixelFormat::Mjpeg => Err(StageError::Own(
            "the picture is compressed (MJPG): have the device give raw pixels, or leave this pair out"
                .into(),
        )),
        _ => Ok(from),
    }
}

/// Gives the pixels of cameras planes of their own, and refuses compressed ones.
pub(crate) fn unpack(picture: Picture, memory: &mut Memory) -> Result<Picture, StageError> {
    let from = picture.geometry;
    let to = planar(from)?;
    if from.pixels() != PixelFormat::Yuyv {
        return Ok(picture);
    }
    let mut into = memory.take(to.bytes());
    unpack_yuyv(&from, &picture.pixels, &mut into);
    Ok(Picture { geometry: to, pixels: into.freeze() })
}

/// Where red, green and blue stand in a packed pixel of colour.
pub(crate) fn channels(pixels: PixelFormat) -> [usize; 3] {
    match pixels {
        PixelFormat::Bgrx32 => [2, 1, 0],
        _ => [0, 1, 2],
    }
}
