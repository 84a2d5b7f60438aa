//! The format `video`: pictures, parts of pictures, boxes in pictures, the shape of the pointer, and the clipboard.
//! `docs/reference/formats-video.md` has the layout and vectors.
//!
//! Every message carries the geometry of its picture. So each frame is complete without any earlier one, and
//! the geometry can change at any frame.

use super::viewer::parse_text;
use crate::{BODY_BYTES_MAX, Reader, WireError, Writer};

/// Largest width and height, in pixels.
pub const SIDE_MAX: u32 = 16384;

/// The most rectangles or boxes in one message.
pub const RECTANGLES_MAX: usize = 1024;

/// Largest width and height of a [`Cursor`], in pixels.
pub const CURSOR_SIDE_MAX: u32 = 256;

/// The largest distance between rows, in bytes.
const STRIDE_MAX: u32 = 1 << 17;

/// The layout of pixels in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PixelFormat {
    /// One byte of brightness for each pixel.
    Gray8,
    /// Red, green, blue: a byte each.
    Rgb24,
    /// Blue, green, red and an unused byte: the format of most screens.
    Bgrx32,
    /// Two pixels in four bytes: Y, Cb, Y, Cr.
    Yuyv,
    /// A plane of Y, then planes of Cb and Cr with half the width and half the height.
    I420,
    /// A plane of Y, then planes of Cb and Cr with half the width.
    I422,
    /// Planes of Y, Cb and Cr of equal size.
    I444,
    /// A JPEG image.
    Mjpeg,
}

impl PixelFormat {
    /// Each format with its FourCC: V4L2's, or DRM's if V4L2 has none for a single buffer.
    pub const ALL: [(PixelFormat, [u8; 4]); 8] = [
        (PixelFormat::Gray8, *b"GREY"),
        (PixelFormat::Rgb24, *b"RGB3"),
        (PixelFormat::Bgrx32, *b"XR24"),
        (PixelFormat::Yuyv, *b"YUYV"),
        (PixelFormat::I420, *b"YU12"),
        (PixelFormat::I422, *b"422P"),
        (PixelFormat::I444, *b"YU24"),
        (PixelFormat::Mjpeg, *b"MJPG"),
    ];

    /// Its FourCC.
    pub fn fourcc(self) -> [u8; 4] {
        Self::ALL.iter().find(|(format, _)| *format == self).map_or([0; 4], |(_, fourcc)| *fourcc)
    }

    /// Returns the format with this FourCC.
    pub fn from_fourcc(fourcc: [u8; 4]) -> Option<PixelFormat> {
        Self::ALL.iter().find(|(_, known)| *known == fourcc).map(|(format, _)| *format)
    }

    /// How many pixels share one pair of Cb and Cr, across and down, in formats with separate planes.
    pub fn subsampling(self) -> Option<(u32, u32)> {
        match self {
            PixelFormat::I420 => Some((2, 2)),
            PixelFormat::I422 => Some((2, 1)),
            PixelFormat::I444 => Some((1, 1)),
            _ => None,
        }
    }

    /// Returns true if the bytes of each pixel are adjacent and no two pixels share any.
    pub fn is_packed(self) -> bool {
        matches!(self, PixelFormat::Gray8 | PixelFormat::Rgb24 | PixelFormat::Bgrx32)
    }

    /// Bytes between pixels in the first plane, in formats with separate bytes for each pixel.
    pub fn pixel_bytes(self) -> usize {
        match self {
            PixelFormat::Rgb24 => 3,
            PixelFormat::Bgrx32 => 4,
            PixelFormat::Yuyv => 2,
            PixelFormat::Gray8 | PixelFormat::I420 | PixelFormat::I422 | PixelFormat::I444 => 1,
            PixelFormat::Mjpeg => 0,
        }
    }

    /// The length of a row of the first plane, in bytes.
    fn row_bytes(self, width: u32) -> u32 {
        match self {
            PixelFormat::Yuyv => width.div_ceil(2) * 4,
            _ => width * self.pixel_bytes() as u32,
        }
    }
}

/// The position of a plane in a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plane {
    /// Its first byte.
    pub offset: usize,
    /// Bytes between the starts of two rows.
    pub stride: usize,
    /// Bytes of pixels in a row, without padding.
    pub row_bytes: usize,
    /// The number of rows.
    pub rows: usize,
}

impl Plane {
    /// The total size in bytes.
    pub fn bytes(&self) -> usize {
        self.stride * self.rows
    }

    /// Iterates over the rows of this plane in `pixels`, without padding.
    pub fn rows(self, pixels: &[u8]) -> impl Iterator<Item = &[u8]> {
        let row_bytes = self.row_bytes;
        pixels[self.offset..self.offset + self.bytes()]
            .chunks_exact(self.stride)
            .map(move |row| &row[..row_bytes])
    }

    /// As [`Plane::rows`], but mutable.
    pub fn rows_mut(self, pixels: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
        let row_bytes = self.row_bytes;
        let plane = &mut pixels[self.offset..self.offset + self.bytes()];
        plane.chunks_exact_mut(self.stride).map(move |row| &mut row[..row_bytes])
    }
}

/// The size of a picture and its layout in memory. Every instance is valid: its bytes fit into a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    pixels: PixelFormat,
    width: u32,
    height: u32,
    stride: u32,
    rate: (u32, u32),
}

impl Geometry {
    /// The length of a geometry in bytes.
    pub const BYTES: usize = 24;

    /// A picture without padding between rows and of unknown rate.
    pub fn new(pixels: PixelFormat, width: u32, height: u32) -> Result<Geometry, WireError> {
        let stride = pixels.row_bytes(width.min(SIDE_MAX));
        Geometry { pixels, width, height, stride, rate: (0, 1) }.checked()
    }

    /// Sets the bytes between rows of the first plane.
    pub fn with_stride(self, stride: u32) -> Result<Geometry, WireError> {
        Geometry { stride, ..self }.checked()
    }

    /// Sets the frame rate as a fraction; 0 if there is no fixed rate.
    pub fn with_rate(self, numerator: u32, denominator: u32) -> Geometry {
        Geometry { rate: (numerator, denominator.max(1)), ..self }
    }

    /// Sets the frame rate with a precision of a thousandth.
    pub fn with_rate_hz(self, rate_hz: f64) -> Geometry {
        match rate_hz.fract() == 0.0 {
            true => self.with_rate(rate_hz as u32, 1),
            false => self.with_rate((rate_hz * 1000.0).round() as u32, 1000),
        }
    }

    fn checked(self) -> Result<Geometry, WireError> {
        for (what, side) in [("picture width", self.width), ("picture height", self.height)] {
            match side {
                0 => return Err(WireError::Value { what, value: 0 }),
                1..=SIDE_MAX => {}
                _ => return Err(WireError::TooLong { what, length: side.into(), limit: SIDE_MAX.into() }),
            }
        }
        let row_bytes = self.pixels.row_bytes(self.width);
        let largest = if row_bytes == 0 { 0 } else { STRIDE_MAX };
        if !(row_bytes..=largest).contains(&self.stride) {
            return Err(WireError::Value { what: "picture stride", value: self.stride.into() });
        }
        if self.rate.1 == 0 {
            return Err(WireError::Value { what: "picture rate's denominator", value: 0 });
        }
        let (bytes, limit) = (self.bytes(), BODY_BYTES_MAX - Header::BYTES);
        if bytes > limit {
            return Err(WireError::TooLong { what: "picture", length: bytes as u64, limit: limit as u64 });
        }
        Ok(self)
    }

    /// The pixel format.
    pub fn pixels(&self) -> PixelFormat {
        self.pixels
    }

    /// The width in pixels.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// The height in pixels.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Bytes between the starts of two rows of the first plane.
    pub fn stride(&self) -> u32 {
        self.stride
    }

    /// The frame rate as a fraction; 0 if there is no fixed rate.
    pub fn rate(&self) -> (u32, u32) {
        self.rate
    }

    /// The number of planes.
    pub fn planes(&self) -> usize {
        if self.pixels.subsampling().is_some() { 3 } else { 1 }
    }

    /// The position of plane `number`.
    pub fn plane(&self, number: usize) -> Plane {
        let (stride, row_bytes) = (self.stride as usize, self.pixels.row_bytes(self.width) as usize);
        let first = Plane { offset: 0, stride, row_bytes, rows: self.height as usize };
        match self.pixels.subsampling().filter(|_| number > 0) {
            None => first,
            Some((across, down)) => {
                let chroma = Plane {
                    offset: first.bytes(),
                    stride: stride.div_ceil(across as usize),
                    row_bytes: row_bytes.div_ceil(across as usize),
                    rows: first.rows.div_ceil(down as usize),
                };
                Plane { offset: first.bytes() + chroma.bytes() * (number - 1), ..chroma }
            }
        }
    }

    /// The size of a whole picture in bytes; 0 for [`PixelFormat::Mjpeg`], which varies.
    pub fn bytes(&self) -> usize {
        let last = self.plane(self.planes() - 1);
        last.offset + last.bytes()
    }

    /// Returns true if no padding separates rows.
    pub fn is_tight(&self) -> bool {
        self.stride == self.pixels.row_bytes(self.width)
    }

    /// The same picture without padding between rows.
    pub fn tight(self) -> Geometry {
        Geometry { stride: self.pixels.row_bytes(self.width), ..self }
    }
}

/// Converts packed camera pixels to planes. `from` has the format [`PixelFormat::Yuyv`]. `into` has
/// [`PixelFormat::I422`], the same size, and no padding between rows.
pub fn unpack_yuyv(from: &Geometry, pixels: &[u8], into: &mut [u8]) {
    let (width, height) = (from.width as usize, from.height as usize);
    let half = width.div_ceil(2);
    let (luma, chroma) = into.split_at_mut(width * height);
    let (blue, red) = chroma.split_at_mut(half * height);
    let rows = from.plane(0).rows(pixels).zip(luma.chunks_exact_mut(width));
    for ((row, luma), (blue, red)) in rows.zip(blue.chunks_exact_mut(half).zip(red.chunks_exact_mut(half))) {
        for (brightness, pair) in luma.iter_mut().zip(row.chunks_exact(2)) {
            *brightness = pair[0];
        }
        for ((blue, red), four) in blue.iter_mut().zip(red).zip(row.chunks_exact(4)) {
            (*blue, *red) = (four[1], four[3]);
        }
    }
}

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole picture.
    Frame,
    /// The changed parts of a picture.
    Rectangles,
    /// Positions of objects in a picture, without the picture.
    Boxes,
    /// The shape of the pointer, which is not part of the picture.
    Cursor,
    /// The clipboard of the computer that the picture shows.
    Clipboard,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Frame, Kind::Rectangles, Kind::Boxes, Kind::Cursor, Kind::Clipboard];
}

/// A part of a picture, in pixels from its upper left corner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rectangle {
    /// Left edge.
    pub x: u32,
    /// Upper edge.
    pub y: u32,
    /// Pixels across.
    pub width: u32,
    /// Pixels down.
    pub height: u32,
}

impl Rectangle {
    /// The length of a rectangle in bytes.
    pub const BYTES: usize = 16;

    /// Returns the overlap with `other`, if any.
    pub fn intersection(&self, other: &Rectangle) -> Option<Rectangle> {
        let span = |a: u32, a_length: u32, b: u32, b_length: u32| {
            let (start, end) = (a.max(b), a.saturating_add(a_length).min(b.saturating_add(b_length)));
            (start < end).then(|| (start, end - start))
        };
        let (x, width) = span(self.x, self.width, other.x, other.width)?;
        let (y, height) = span(self.y, self.height, other.y, other.height)?;
        Some(Rectangle { x, y, width, height })
    }

    /// The size of its pixels in bytes, without padding.
    pub fn bytes(&self, pixels: PixelFormat) -> usize {
        self.width as usize * self.height as usize * pixels.pixel_bytes()
    }
}

/// The shape of a pointer, drawn at the viewer's pointer. The size 0 by 0 hides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    /// Pixels across.
    pub width: u32,
    /// Pixels down.
    pub height: u32,
    /// The x coordinate of the hot spot.
    pub hot_x: u32,
    /// The y coordinate of the hot spot.
    pub hot_y: u32,
}

impl Cursor {
    /// The length of a cursor in bytes, without its pixels.
    pub const BYTES: usize = 16;

    /// The size of its pixels in bytes: blue, green, red and opacity each.
    pub fn pixel_bytes(&self) -> usize {
        self.width as usize * self.height as usize * 4
    }

    /// Returns the bytes between a [`Header`] and the pixels.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let fields = [self.width, self.height, self.hot_x, self.hot_y];
        for (into, field) in bytes.chunks_exact_mut(4).zip(fields) {
            into.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Cursor, WireError> {
        let (width, height) = (reader.u32("cursor width")?, reader.u32("cursor height")?);
        for (what, side, other) in [("cursor width", width, height), ("cursor height", height, width)] {
            match side {
                0 if other > 0 => return Err(WireError::Value { what, value: 0 }),
                0..=CURSOR_SIDE_MAX => {}
                _ => {
                    let limit = CURSOR_SIDE_MAX.into();
                    return Err(WireError::TooLong { what, length: side.into(), limit });
                }
            }
        }
        let (hot_x, hot_y) = (reader.u32("hot spot")?, reader.u32("hot spot")?);
        for (hot, side) in [(hot_x, width), (hot_y, height)] {
            if hot >= side.max(1) {
                return Err(WireError::Value { what: "hot spot", value: hot.into() });
            }
        }
        Ok(Cursor { width, height, hot_x, hot_y })
    }
}

/// The start of every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The kind of the message.
    pub kind: Kind,
    /// The geometry of the picture that the message holds or refers to.
    pub geometry: Geometry,
}

/// The content of a message after its [`Header`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content<'a> {
    /// A whole picture; its geometry tells the length.
    Frame(&'a [u8]),
    /// Changed rectangles, then the pixels of each in the same order, without padding.
    Rectangles(Vec<Rectangle>, &'a [u8]),
    /// Positions of objects, the most important first.
    Boxes(Vec<Rectangle>),
    /// The shape of the pointer: blue, green, red and opacity of each pixel (255 is opaque).
    Cursor(Cursor, &'a [u8]),
    /// The text on the clipboard, at most [`TEXT_BYTES_MAX`](super::viewer::TEXT_BYTES_MAX). `None`: there is a new text,
    /// which a viewer may fetch.
    Clipboard(Option<&'a str>),
}

impl Header {
    /// The length of a header in bytes.
    pub const BYTES: usize = 1 + Geometry::BYTES;

    /// The header of a whole picture.
    pub fn frame(geometry: Geometry) -> Header {
        Header { kind: Kind::Frame, geometry }
    }

    /// The header as bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let Geometry { pixels, width, height, stride, rate } = self.geometry;
        let mut bytes = [self.kind as u8; Self::BYTES];
        bytes[1..5].copy_from_slice(&pixels.fourcc());
        let fields = [width, height, stride, rate.0, rate.1];
        for (into, field) in bytes[5..].chunks_exact_mut(4).zip(fields) {
            into.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Parses the header of a message from the network, without its content.
    pub fn parse(bytes: &[u8]) -> Result<Header, WireError> {
        let mut reader = Reader::new(bytes);
        let kind = reader.u8("kind")?;
        let unknown = WireError::Value { what: "kind", value: kind.into() };
        let kind = *Kind::ALL.get(usize::from(kind)).ok_or(unknown)?;
        let fourcc: [u8; 4] = reader.array("pixel format")?;
        let unknown = WireError::Value { what: "pixel format", value: u32::from_le_bytes(fourcc).into() };
        let geometry = Geometry {
            pixels: PixelFormat::from_fourcc(fourcc).ok_or(unknown)?,
            width: reader.u32("picture width")?,
            height: reader.u32("picture height")?,
            stride: reader.u32("picture stride")?,
            rate: (reader.u32("picture rate")?, reader.u32("picture rate")?),
        };
        Ok(Header { kind, geometry: geometry.checked()? })
    }

    /// Parses the content after the header. It must use all bytes.
    pub fn parse_content<'a>(&self, rest: &'a [u8]) -> Result<Content<'a>, WireError> {
        let mut reader = Reader::new(rest);
        if self.kind == Kind::Frame {
            let pixels = match self.geometry.pixels {
                PixelFormat::Mjpeg => reader.rest(),
                _ => reader.bytes("pixels", self.geometry.bytes())?,
            };
            reader.end("frame")?;
            return Ok(Content::Frame(pixels));
        }
        if self.kind == Kind::Cursor {
            let cursor = Cursor::parse(&mut reader)?;
            let pixels = reader.bytes("pixels of a cursor", cursor.pixel_bytes())?;
            reader.end("cursor")?;
            return Ok(Content::Cursor(cursor, pixels));
        }
        if self.kind == Kind::Clipboard {
            let text = parse_text(&mut reader)?;
            return Ok(Content::Clipboard((!text.is_empty()).then_some(text)));
        }
        let rectangles = self.parse_rectangles(&mut reader)?;
        if self.kind == Kind::Boxes {
            reader.end("boxes")?;
            return Ok(Content::Boxes(rectangles));
        }
        let pixels = self.geometry.pixels;
        if !pixels.is_packed() {
            let value = u32::from_le_bytes(pixels.fourcc()).into();
            return Err(WireError::Value { what: "pixel format of rectangles", value });
        }
        let bytes = rectangles.iter().map(|rectangle| rectangle.bytes(pixels)).sum();
        let bytes = reader.bytes("pixels of rectangles", bytes)?;
        reader.end("rectangles")?;
        Ok(Content::Rectangles(rectangles, bytes))
    }

    /// Parses the rectangles after the header. Returns them and the unparsed pixels.
    pub fn parse_places<'a>(&self, rest: &'a [u8]) -> Result<(Vec<Rectangle>, &'a [u8]), WireError> {
        let mut reader = Reader::new(rest);
        let rectangles = self.parse_rectangles(&mut reader)?;
        Ok((rectangles, reader.rest()))
    }

    fn parse_rectangles(&self, reader: &mut Reader<'_>) -> Result<Vec<Rectangle>, WireError> {
        let count = reader.count("rectangles", RECTANGLES_MAX)?;
        let mut table = Reader::new(reader.bytes("rectangles", count * Rectangle::BYTES)?);
        let whole = Rectangle { x: 0, y: 0, width: self.geometry.width, height: self.geometry.height };
        let mut rectangles = Vec::with_capacity(count);
        for _ in 0..count {
            let rectangle = Rectangle {
                x: table.u32("rectangle")?,
                y: table.u32("rectangle")?,
                width: table.u32("rectangle")?,
                height: table.u32("rectangle")?,
            };
            if rectangle.intersection(&whole) != Some(rectangle) {
                let (what, value) = ("rectangle that lies outside its picture", rectangles.len() as u64);
                return Err(WireError::Value { what, value });
            }
            rectangles.push(rectangle);
        }
        Ok(rectangles)
    }
}

/// Returns the count and the positions of `rectangles`, as they follow a [`Header`]; at most
/// [`RECTANGLES_MAX`].
pub fn emit_rectangles(rectangles: &[Rectangle]) -> Vec<u8> {
    let rectangles = &rectangles[..rectangles.len().min(RECTANGLES_MAX)];
    let mut writer = Writer::new();
    writer.u16(rectangles.len() as u16);
    for Rectangle { x, y, width, height } in rectangles {
        writer.u32(*x).u32(*y).u32(*width).u32(*height);
    }
    writer.finish()
}
