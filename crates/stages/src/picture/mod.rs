//! Shared part of the picture pairs (`scale`, `crop`, `gray`, `colour`, `track`): parses a picture,
//! calls the pair's [`Filter`], and replaces the message with the result.
//!
//! A message that is not a complete picture passes unchanged: its final receiver reports the error.

#[cfg(test)]
pub(crate) mod tests;

use buffers::{Lease, Pool};
use bytes::Bytes;
use contract::{
    Body, Format, Half, Message, ModuleEntry, OptionKind, OptionSpec, Options, Outbox, Pair, PassThrough,
    Port, Promises, Report, Site, Stage, StageError, StageResult, Time, Work,
};
use std::marker::PhantomData;
use wire::WireError;
use wire::formats::video::{
    Content, Geometry, Header, Kind, PixelFormat, Rectangle, emit_rectangles, unpack_yuyv,
};

/// Buffers kept for reuse, in pictures.
const PICTURES_KEPT: usize = 8;

/// The option of all picture pairs: the half that does the work.
pub(crate) const AT: OptionSpec = contract::agreed(
    "at",
    OptionKind::Choice(&["source", "sink"]),
    "source",
    "half that does the work: source, which may send less, or sink",
);

/// A whole picture.
#[derive(Debug, Clone)]
pub(crate) struct Picture {
    pub(crate) geometry: Geometry,
    /// As many bytes as the geometry requires.
    pub(crate) pixels: Bytes,
}

impl Picture {
    fn into_body(self) -> Body {
        let mut body = Body::from(self.pixels);
        body.push_front(&Header::frame(self.geometry).emit());
        body
    }
}

/// Rectangles of a picture, in packed pixels.
#[derive(Debug, Clone)]
pub(crate) struct PartialPicture {
    /// Of the whole picture.
    pub(crate) geometry: Geometry,
    pub(crate) rectangles: Vec<Rectangle>,
    /// Pixels of one rectangle after the other, rows without padding.
    pub(crate) pixels: Bytes,
}

impl PartialPicture {
    fn into_body(self) -> Body {
        let mut body = Body::from(emit_rectangles(&self.rectangles));
        body.push(self.pixels);
        body.push_front(&Header { kind: Kind::Rectangles, geometry: self.geometry }.emit());
        body
    }
}

/// A cursor message: the shape of the pointer.
#[derive(Debug, Clone)]
pub(crate) struct Cursor {
    /// Of the whole picture.
    pub(crate) geometry: Geometry,
    /// Content behind the header.
    rest: Body,
}

impl Cursor {
    fn into_body(self) -> Body {
        let mut body = self.rest;
        body.push_front(&Header { kind: Kind::Cursor, geometry: self.geometry }.emit());
        body
    }
}

/// A message that a filter can process.
pub(crate) enum VideoMessage {
    Frame(Picture),
    Partial(PartialPicture),
    Cursor(Cursor),
}

impl VideoMessage {
    /// Parses a body, without a copy if it is in one piece; `None` if it is not a complete picture.
    pub(crate) fn parse(body: &Body) -> Option<VideoMessage> {
        let header = Header::parse(&body.peek_front::<{ Header::BYTES }>()?).ok()?;
        let geometry = header.geometry;
        let expected = Header::BYTES + geometry.bytes();
        if header.kind == Kind::Frame && geometry.pixels() != PixelFormat::Mjpeg && body.len() != expected {
            return None;
        }
        let mut rest = body.clone();
        rest.skip_front(Header::BYTES);
        let bytes = rest.into_bytes();
        match header.parse_content(&bytes).ok()? {
            Content::Frame(_) => Some(VideoMessage::Frame(Picture { geometry, pixels: bytes })),
            Content::Rectangles(rectangles, pixels) => Some(VideoMessage::Partial(PartialPicture {
                geometry,
                rectangles,
                pixels: bytes.slice_ref(pixels),
            })),
            Content::Cursor(..) => Some(VideoMessage::Cursor(Cursor { geometry, rest: bytes.into() })),
            Content::Boxes(_) | Content::Clipboard(_) => None,
        }
    }
}

/// Memory for pictures, reused when the last picture in it is dropped.
pub(crate) struct Memory {
    pool: Pool,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Memory { pool: Pool::new(0, 0) }
    }

    /// Returns a buffer of this size, with arbitrary content.
    pub(crate) fn take(&mut self, bytes: usize) -> Lease {
        if self.pool.capacity() != bytes {
            self.pool = Pool::new(bytes, PICTURES_KEPT);
        }
        self.pool.take()
    }
}

/// Transforms pictures. Pixels are never [`PixelFormat::Mjpeg`] or [`PixelFormat::Yuyv`] here.
pub(crate) trait Filter: Send + Sized + 'static {
    /// The entry of the filter's pair.
    const ENTRY: ModuleEntry;

    /// Makes a filter with these options.
    fn new(options: &Options) -> Self;

    /// Checks conditions between options.
    fn check(options: &Options) -> Result<(), String> {
        let _ = options;
        Ok(())
    }

    /// Transforms a whole picture.
    fn frame(&mut self, picture: Picture, memory: &mut Memory) -> StageResult<Picture>;

    /// Transforms rectangles of a picture.
    fn partial(&mut self, partial: PartialPicture) -> StageResult<PartialPicture>;

    /// Transforms the geometry of a picture. A cursor message needs only this: its shape stays
    /// unchanged.
    fn geometry(&self, from: &Geometry) -> StageResult<Geometry>;
}

/// The active half of a pair with a filter.
struct FilterStage<F> {
    filter: F,
    memory: Memory,
    unpacked: Memory,
    frames: u64,
    others: u64,
}

impl<F: Filter> Stage for FilterStage<F> {
    fn handle(&mut self, port: Port, mut message: Message, _now: Time, out: &mut Outbox) -> StageResult {
        match VideoMessage::parse(&message.body) {
            Some(VideoMessage::Frame(picture)) => {
                let picture = unpack(picture, &mut self.unpacked)?;
                message.body = self.filter.frame(picture, &mut self.memory)?.into_body();
                self.frames += 1;
            }
            Some(VideoMessage::Partial(partial)) => {
                message.body = self.filter.partial(partial)?.into_body();
                self.frames += 1;
            }
            Some(VideoMessage::Cursor(mut cursor)) => {
                cursor.geometry = self.filter.geometry(&planar(cursor.geometry)?)?;
                message.body = cursor.into_body();
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

/// The pair of a filter. Option [`AT`] names the half that filters; the other one is pass-through.
pub(crate) struct PicturePair<F>(PhantomData<fn() -> F>);

impl<F> PicturePair<F> {
    pub(crate) const fn new() -> Self {
        PicturePair(PhantomData)
    }
}

impl<F: Filter> Pair for PicturePair<F> {
    fn entry(&self) -> ModuleEntry {
        F::ENTRY
    }

    fn promises(&self, _options: &Options) -> Promises {
        Promises { may_change: true, ..Promises::default() }
    }

    fn work(&self, _options: &Options) -> Work {
        Work::Independent
    }

    fn accept(&self, format: &Format, _options: &Options) -> Result<Format, String> {
        accept(format)
    }

    fn check(&self, options: &Options) -> Result<(), String> {
        F::check(options)
    }

    fn source(&self, options: &Options, _: &Format, _: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(half::<F>(Half::Source, options))
    }

    fn sink(&self, options: &Options, _: &Format, _: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(half::<F>(Half::Sink, options))
    }
}

fn half<F: Filter>(half: Half, options: &Options) -> Box<dyn Stage> {
    if !is_active(half, options) {
        return Box::new(PassThrough);
    }
    let (memory, unpacked) = (Memory::new(), Memory::new());
    Box::new(FilterStage { filter: F::new(options), memory, unpacked, frames: 0, others: 0 })
}

/// True if option [`AT`] makes this half the active one.
pub(crate) fn is_active(half: Half, options: &Options) -> bool {
    options.text(AT.name) == if half == Half::Source { "source" } else { "sink" }
}

/// Accepts only `video`.
pub(crate) fn accept(format: &Format) -> Result<Format, String> {
    match format {
        Format::Video => Ok(Format::Video),
        _ => Err("it takes only video".into()),
    }
}

/// The error for an output geometry that does not exist.
pub(crate) fn too_large(error: WireError) -> StageError {
    StageError::Own(format!("the output picture is impossible: {error}"))
}

/// The geometry of the result of [`unpack`].
fn planar(from: Geometry) -> StageResult<Geometry> {
    match from.pixels() {
        PixelFormat::Yuyv => {
            let (numerator, denominator) = from.rate();
            let to = Geometry::new(PixelFormat::I422, from.width(), from.height()).map_err(too_large)?;
            Ok(to.with_rate(numerator, denominator))
        }
        PixelFormat::Mjpeg => Err(StageError::Own(
            "the picture is compressed (MJPG): set the device to raw pixels, or leave this pair out".into(),
        )),
        _ => Ok(from),
    }
}

/// Converts packed `YUYV` to planes; refuses compressed pictures.
pub(crate) fn unpack(picture: Picture, memory: &mut Memory) -> StageResult<Picture> {
    let from = picture.geometry;
    let to = planar(from)?;
    if from.pixels() != PixelFormat::Yuyv {
        return Ok(picture);
    }
    let mut into = memory.take(to.bytes());
    unpack_yuyv(&from, &picture.pixels, &mut into);
    Ok(Picture { geometry: to, pixels: into.freeze() })
}

/// Offsets of red, green and blue in a packed pixel.
pub(crate) fn channels(pixels: PixelFormat) -> [usize; 3] {
    match pixels {
        PixelFormat::Bgrx32 => [2, 1, 0],
        _ => [0, 1, 2],
    }
}
