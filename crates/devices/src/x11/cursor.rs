//! Captures the pointer shape of a screen (XFIXES) as messages.

use super::client::{Client, Sequence};
use super::display::Extension;
use contract::{Attributes, Body, Message, Time};
use wire::formats::video::{CURSOR_SIDE_MAX, Cursor, Geometry, Header, Kind};
use x11rb_protocol::protocol::xfixes::{self, GetCursorImageReply};

/// The key of pointer shapes in a flow. Pictures have no key.
const KEY: u64 = 1;

/// The state of the pointer shape: due for a request, requested, or both if it changed during a request.
#[derive(Debug, Default)]
pub(super) struct CursorCapture {
    /// `None` if the user disabled the shape or the server lacks the extension.
    xfixes: Option<Extension>,
    is_due: bool,
    request: Option<Sequence>,
}

impl CursorCapture {
    pub(super) fn new(xfixes: Option<Extension>) -> CursorCapture {
        CursorCapture { xfixes, is_due: false, request: None }
    }

    /// The shape has changed or must be sent again.
    pub(super) fn mark_due(&mut self) {
        self.is_due = self.xfixes.is_some();
    }

    /// Returns whether a request must be sent now.
    pub(super) fn is_ready(&self) -> bool {
        self.is_due && self.request.is_none()
    }

    /// Requests the shape if it is due.
    pub(super) fn query(&mut self, client: &mut Client) {
        if let Some(xfixes) = self.xfixes.filter(|_| self.is_ready()) {
            self.is_due = false;
            self.request = Some(client.query(xfixes::GetCursorImageRequest.serialize(xfixes.opcode)));
        }
    }

    /// Returns whether `request` was the outstanding one; it is then no longer outstanding.
    pub(super) fn complete(&mut self, request: Sequence) -> bool {
        let is_complete = self.request == Some(request);
        if is_complete {
            self.request = None;
        }
        is_complete
    }
}

/// Returns whether a message has a pointer shape.
pub(super) fn is_cursor(message: &Message) -> bool {
    message.attributes.key == Some(KEY)
}

/// Returns the message with a pointer shape. A shape that is too large is cropped around its hot spot.
pub(super) fn message(image: &GetCursorImageReply, geometry: Geometry, now: Time) -> Message {
    let (width, height) = (usize::from(image.width), usize::from(image.height));
    let side_max = CURSOR_SIDE_MAX as usize;
    let (hot_x, hot_y) = (usize::from(image.xhot), usize::from(image.yhot));
    let start = |hot: usize, side: usize| hot.saturating_sub(side_max / 2).min(side.saturating_sub(side_max));
    let (left, top) = (start(hot_x, width), start(hot_y, height));
    let (across, down) = (width.min(side_max), height.min(side_max));
    let inside =
        |hot: usize, start: usize, side: usize| (hot.saturating_sub(start)).min(side.max(1) - 1) as u32;
    let is_visible = across > 0 && down > 0;
    let cursor = match is_visible {
        true => Cursor {
            width: across as u32,
            height: down as u32,
            hot_x: inside(hot_x, left, across),
            hot_y: inside(hot_y, top, down),
        },
        false => Cursor::default(),
    };
    let rows = image.cursor_image.chunks_exact(width.max(1)).skip(top).take(down).filter(|_| is_visible);
    let pixels: Vec<u8> =
        rows.flat_map(|row| &row[left..left + across]).flat_map(|pixel| straight(*pixel)).collect();
    let mut body = Body::from(pixels);
    body.push_front(&cursor.emit());
    body.push_front(&Header { kind: Kind::Cursor, geometry }.emit());
    let attributes = Attributes { key: Some(KEY), ..Attributes::default() };
    Message { attributes, ..Message::new(now, body) }
}

/// Converts a pixel whose colours are multiplied by its opacity to blue, green, red and opacity.
fn straight(pixel: u32) -> [u8; 4] {
    let [blue, green, red, opacity] = pixel.to_le_bytes();
    let divisor = u32::from(opacity).max(1);
    let divided = |colour: u8| ((u32::from(colour) * 255 + divisor / 2) / divisor).min(255) as u8;
    [divided(blue), divided(green), divided(red), opacity]
}

#[cfg(test)]
mod tests {
    use super::straight;

    #[test]
    fn colours_are_divided_by_the_opacity() {
        assert_eq!(straight(0), [0; 4]);
        assert_eq!(straight(0xff10_2030), [0x30, 0x20, 0x10, 0xff]);
        assert_eq!(straight(0x8040_0080), [255, 0, 128, 128]);
    }
}
