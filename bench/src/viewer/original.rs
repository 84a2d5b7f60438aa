//! The pixels of the desktop itself, to compare those at the viewer with.

use crate::display::PIXEL_BYTES;
use crate::setting::Failure;
use wire::formats::video::Rectangle;
use x11rb::connection::Connection;
use x11rb::protocol::xproto::{ConnectionExt as _, ImageFormat};
use x11rb::rust_connection::RustConnection;

/// A display whose picture is shown elsewhere.
pub(super) struct Original {
    connection: RustConnection,
    root: u32,
}

impl Original {
    pub(super) fn open(display: &str) -> Result<Original, Failure> {
        let (connection, screen) = x11rb::connect(Some(display))?;
        let root = connection.setup().roots[screen].root;
        Ok(Original { connection, root })
    }

    /// Returns true if an area of `shown`, with rows of `width` pixels, has the display's colours now.
    pub(super) fn equals(&self, shown: &[u8], width: usize, area: &Rectangle) -> Result<bool, Failure> {
        let [x, y] = [area.x, area.y].map(|at| at as i16);
        let [columns, rows] = [area.width, area.height].map(|length| length as u16);
        let asked = self.connection.get_image(ImageFormat::Z_PIXMAP, self.root, x, y, columns, rows, !0)?;
        let pixels = asked.reply()?.data;
        let row_bytes = area.width as usize * PIXEL_BYTES;
        let start = (area.y as usize * width + area.x as usize) * PIXEL_BYTES;
        let rows = shown[start..].chunks(width * PIXEL_BYTES).map(|row| &row[..row_bytes]);
        // The fourth byte of a pixel has no meaning.
        let same = |[left, right]: [&[u8]; 2]| left[..3] == right[..3];
        Ok(pixels.chunks_exact(row_bytes).zip(rows).all(|(left, right)| {
            let pairs = left.chunks_exact(PIXEL_BYTES).zip(right.chunks_exact(PIXEL_BYTES));
            pairs.map(|(left, right)| [left, right]).all(same)
        }))
    }
}
