//! The pixels of a screen, as both halves keep them.

#[cfg(feature = "media")]
use super::TILE;
use contract::{Body, StageError, StageResult};
use wire::formats::video::{Geometry, Header, Kind, PixelFormat, Rectangle, emit_rectangles};

/// Bytes of a pixel: the pair divides only screens in `XR24`.
pub(super) const PIXEL_BYTES: usize = 4;

/// The pixels of a screen, rows without padding.
pub(super) struct Canvas {
    geometry: Geometry,
    pixels: Vec<u8>,
}

impl Canvas {
    /// A black screen.
    pub(super) fn new(geometry: Geometry) -> StageResult<Canvas> {
        if geometry.pixels() != PixelFormat::Bgrx32 {
            return Err(StageError::Input("its screen is not in the pixel format XR24".into()));
        }
        let geometry = geometry.tight();
        Ok(Canvas { geometry, pixels: vec![0; geometry.bytes()] })
    }

    /// The geometry, without padding.
    #[cfg(feature = "media")]
    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns true for a picture of the same size and pixel format.
    pub(super) fn fits(&self, other: &Geometry) -> bool {
        let of = |geometry: &Geometry| (geometry.width(), geometry.height(), geometry.pixels());
        of(&self.geometry) == of(other)
    }

    /// The whole screen.
    pub(super) fn whole(&self) -> Rectangle {
        Rectangle { x: 0, y: 0, width: self.geometry.width(), height: self.geometry.height() }
    }

    fn range(&self, x: u32, y: u32, width: u32) -> std::ops::Range<usize> {
        let start = (y as usize * self.geometry.width() as usize + x as usize) * PIXEL_BYTES;
        start..start + width as usize * PIXEL_BYTES
    }

    /// Part of a row.
    pub(super) fn row(&self, x: u32, y: u32, width: u32) -> &[u8] {
        &self.pixels[self.range(x, y, width)]
    }

    /// Writes the rows of a part inside the screen.
    pub(super) fn write<'a>(&mut self, part: &Rectangle, rows: impl Iterator<Item = &'a [u8]>) {
        for (y, row) in (part.y..part.y + part.height).zip(rows) {
            let range = self.range(part.x, y, part.width);
            self.pixels[range].copy_from_slice(row);
        }
    }

    /// As [`Canvas::write`], and calls `touch` with the column and the row of each tile whose pixels change, perhaps
    /// repeatedly.
    #[cfg(feature = "media")]
    pub(super) fn compare<'a>(
        &mut self,
        part: &Rectangle,
        rows: impl Iterator<Item = &'a [u8]>,
        mut touch: impl FnMut(u32, u32),
    ) {
        for (y, row) in (part.y..part.y + part.height).zip(rows) {
            let range = self.range(part.x, y, part.width);
            let into = &mut self.pixels[range];
            if into == row {
                continue;
            }
            let mut x = part.x;
            while x < part.x + part.width {
                let next = ((x / TILE + 1) * TILE).min(part.x + part.width);
                let bytes = [x, next].map(|x| (x - part.x) as usize * PIXEL_BYTES);
                let (into, from) = (&mut into[bytes[0]..bytes[1]], &row[bytes[0]..bytes[1]]);
                if into != from {
                    into.copy_from_slice(from);
                    touch(x / TILE, y / TILE);
                }
                x = next;
            }
        }
    }

    /// The message with these parts of the screen.
    pub(super) fn rectangles(&self, parts: &[Rectangle]) -> Vec<u8> {
        let mut bytes = Header { kind: Kind::Rectangles, geometry: self.geometry }.emit().to_vec();
        bytes.extend(emit_rectangles(parts));
        for part in parts {
            for y in part.y..part.y + part.height {
                bytes.extend_from_slice(self.row(part.x, y, part.width));
            }
        }
        bytes
    }

    /// The message with the whole screen.
    pub(super) fn frame(&self) -> Body {
        let mut bytes = Header::frame(self.geometry).emit().to_vec();
        bytes.extend_from_slice(&self.pixels);
        Body::from(bytes)
    }
}
