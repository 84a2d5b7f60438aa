//! Sends pixels inside requests (`PutImage`), for servers and drawables without shared memory.

use super::client::Client;
use crate::bgrx::PIXEL_BYTES;
use wire::formats::video::Rectangle;
use x11rb_protocol::protocol::xproto::{self, ImageFormat, PutImageRequest};

/// Bytes of a `PutImage` request before its pixels.
const HEADER_BYTES: usize = 24;

/// Sends the pixels of a part of a drawable. Splits them into strips, since the length of a request is limited.
pub(super) fn put_image(
    client: &mut Client,
    (drawable, gc, depth): (xproto::Drawable, xproto::Gcontext, u8),
    part: &Rectangle,
    pixels: &[u8],
) {
    let request_bytes = usize::from(client.setup().maximum_request_length) * 4;
    let row_bytes = part.width as usize * PIXEL_BYTES;
    let rows = (request_bytes.saturating_sub(HEADER_BYTES) / row_bytes.max(1)).max(1);
    let mut y = part.y as i16;
    for strip in pixels.chunks(rows * row_bytes.max(1)) {
        let (width, height) = (part.width as u16, (strip.len() / row_bytes) as u16);
        let (format, dst_x, dst_y, left_pad) = (ImageFormat::Z_PIXMAP, part.x as i16, y, 0);
        let data = strip.into();
        let put =
            PutImageRequest { format, drawable, gc, width, height, dst_x, dst_y, left_pad, depth, data };
        client.send(put.serialize());
        y += height as i16;
    }
}
