//! The pointer shape of a window. The viewer's own X server draws it, so that the pointer moves without network delay
//! (Improving TCP Throughput for Cloud Applications (2014), 4.5.2).

use super::client::Client;
use super::display::Extension;
use super::image::put_image;
use std::borrow::Cow;
use wire::formats::video::{Cursor, Rectangle};
use x11rb_protocol::protocol::render;
use x11rb_protocol::protocol::xproto::{
    self, ChangeWindowAttributesAux, ChangeWindowAttributesRequest, CreateGCRequest, CreatePixmapRequest,
    FreeCursorRequest, FreeGCRequest, FreePixmapRequest,
};

/// Bits of a pixel of a pointer shape.
const DEPTH: u8 = 32;

/// Makes pointer shapes from pixels (RENDER).
pub(super) struct Pointer {
    render: Extension,
    /// The format of the pixels: blue, green, red and opacity.
    format: render::Pictformat,
    window: xproto::Window,
    /// Identifiers of temporary resources; each call of `set` makes and frees them.
    pixmap: xproto::Pixmap,
    gc: xproto::Gcontext,
    picture: render::Picture,
    /// Identifiers of cursors, used in turn: one is displayed while the other is made.
    cursors: [xproto::Cursor; 2],
    /// The number of cursors made so far.
    made: usize,
}

impl Pointer {
    /// Prepares the pointer of a window. Returns `None` if the server does not support such pointers.
    pub(super) fn new(
        client: &mut Client,
        render: Extension,
        formats: &render::QueryPictFormatsReply,
        window: xproto::Window,
    ) -> Option<Pointer> {
        let fits = |format: &&render::Pictforminfo| {
            let direct = &format.direct;
            let shifts = [direct.blue_shift, direct.green_shift, direct.red_shift, direct.alpha_shift];
            let masks = [direct.blue_mask, direct.green_mask, direct.red_mask, direct.alpha_mask];
            format.depth == DEPTH && shifts == [0, 8, 16, 24] && masks == [0xff; 4]
        };
        let format = formats.formats.iter().find(fits)?.id;
        let [pixmap, gc, picture, first, second] = std::array::from_fn(|_| client.resource());
        let cursors = [first, second];
        Some(Pointer { render, format, window, pixmap, gc, picture, cursors, made: 0 })
    }

    /// Sets the pointer shape of the window. RENDER expects the colours multiplied by the opacity.
    pub(super) fn set(&mut self, client: &mut Client, cursor: &Cursor, pixels: &[u8]) {
        let is_visible = cursor.width > 0;
        let (width, height) = (cursor.width.max(1), cursor.height.max(1));
        let multiplied = |pixel: &[u8; 4]| {
            let times = |colour: u8| ((u16::from(colour) * u16::from(pixel[3]) + 127) / 255) as u8;
            [times(pixel[0]), times(pixel[1]), times(pixel[2]), pixel[3]]
        };
        let pixels: Vec<u8> = match is_visible {
            true => pixels.as_chunks::<4>().0.iter().flat_map(multiplied).collect(),
            false => vec![0; 4],
        };
        let (pid, drawable) = (self.pixmap, self.window);
        let (w, h) = (width as u16, height as u16);
        client.send(CreatePixmapRequest { depth: DEPTH, pid, drawable, width: w, height: h }.serialize());
        let gc = CreateGCRequest { cid: self.gc, drawable: pid, value_list: Cow::default() };
        client.send(gc.serialize());
        put_image(client, (pid, self.gc, DEPTH), &Rectangle { x: 0, y: 0, width, height }, &pixels);
        let (format, value_list) = (self.format, Cow::default());
        let picture = render::CreatePictureRequest { pid: self.picture, drawable: pid, format, value_list };
        client.send(picture.serialize(self.render.opcode));
        let (x, y) = (cursor.hot_x as u16, cursor.hot_y as u16);
        let [cid, prev] = [self.made, self.made + 1].map(|number| self.cursors[number % 2]);
        let create = render::CreateCursorRequest { cid, source: self.picture, x, y };
        client.send(create.serialize(self.render.opcode));
        let value_list = Cow::Owned(ChangeWindowAttributesAux::new().cursor(cid));
        client.send(ChangeWindowAttributesRequest { window: self.window, value_list }.serialize());
        client.send(render::FreePictureRequest { picture: self.picture }.serialize(self.render.opcode));
        client.send(FreeGCRequest { gc: self.gc }.serialize());
        client.send(FreePixmapRequest { pixmap: self.pixmap }.serialize());
        if self.made > 0 {
            client.send(FreeCursorRequest { cursor: prev }.serialize());
        }
        self.made += 1;
    }
}
