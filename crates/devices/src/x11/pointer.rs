//! The pointer's shape on a window: drawn by the viewer's own server, so that it moves with the hand (paper T,
//! section 4.5.2).

use super::client::Client;
use super::display::{Extension, Extensions, answer};
use super::window::put_image;
use std::borrow::Cow;
use std::io;
use std::time::Instant;
use wire::formats::video::{Cursor, Rectangle};
use x11rb_protocol::protocol::render;
use x11rb_protocol::protocol::xproto::{
    self, ChangeWindowAttributesAux, ChangeWindowAttributesRequest, CreateGCRequest, CreatePixmapRequest,
    FreeCursorRequest, FreeGCRequest, FreePixmapRequest,
};

/// Bits of a pixel of a pointer.
const DEPTH: u8 = 32;

/// Makes pointers of pixels (RENDER).
pub(super) struct Pointer {
    render: Extension,
    /// Blue, green, red and opacity.
    format: render::Pictformat,
    window: xproto::Window,
    /// Numbers of what is made on the way, and let go of at once.
    pixmap: xproto::Pixmap,
    gc: xproto::Gcontext,
    picture: render::Picture,
    /// One is shown while the other is made.
    cursors: [xproto::Cursor; 2],
    made: usize,
}

impl Pointer {
    /// For the pointer on a window; `None` where the server cannot.
    pub(super) fn new(
        client: &mut Client,
        extensions: Extensions,
        window: xproto::Window,
        deadline: Instant,
    ) -> io::Result<Option<Pointer>> {
        let Some(render) = extensions.render else { return Ok(None) };
        let version = render::QueryVersionRequest { client_major_version: 0, client_minor_version: 11 };
        let request = client.ask(version.serialize(render.opcode));
        let _: render::QueryVersionReply = answer(client, request, deadline)?;
        let request = client.ask(render::QueryPictFormatsRequest.serialize(render.opcode));
        let formats: render::QueryPictFormatsReply = answer(client, request, deadline)?;
        let fits = |format: &&render::Pictforminfo| {
            let direct = &format.direct;
            let shifts = [direct.blue_shift, direct.green_shift, direct.red_shift, direct.alpha_shift];
            let masks = [direct.blue_mask, direct.green_mask, direct.red_mask, direct.alpha_mask];
            format.depth == DEPTH && shifts == [0, 8, 16, 24] && masks == [0xff; 4]
        };
        let Some(format) = formats.formats.iter().find(fits).map(|format| format.id) else { return Ok(None) };
        let [pixmap, gc, picture, first, second] = std::array::from_fn(|_| client.resource());
        let cursors = [first, second];
        Ok(Some(Pointer { render, format, window, pixmap, gc, picture, cursors, made: 0 }))
    }

    /// Gives the window a pointer of this shape.
    pub(super) fn set(&mut self, client: &mut Client, cursor: &Cursor, pixels: &[u8]) {
        let is_seen = cursor.width > 0;
        let (width, height) = (cursor.width.max(1), cursor.height.max(1));
        let multiplied = |pixel: &[u8; 4]| {
            let times = |colour: u8| ((u16::from(colour) * u16::from(pixel[3]) + 127) / 255) as u8;
            [times(pixel[0]), times(pixel[1]), times(pixel[2]), pixel[3]]
        };
        let pixels: Vec<u8> = match is_seen {
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
        let [cid, before] = [self.made, self.made + 1].map(|number| self.cursors[number % 2]);
        let create = render::CreateCursorRequest { cid, source: self.picture, x, y };
        client.send(create.serialize(self.render.opcode));
        let value_list = Cow::Owned(ChangeWindowAttributesAux::new().cursor(cid));
        client.send(ChangeWindowAttributesRequest { window: self.window, value_list }.serialize());
        client.send(render::FreePictureRequest { picture: self.picture }.serialize(self.render.opcode));
        client.send(FreeGCRequest { gc: self.gc }.serialize());
        client.send(FreePixmapRequest { pixmap: self.pixmap }.serialize());
        if self.made > 0 {
            client.send(FreeCursorRequest { cursor: before }.serialize());
        }
        self.made += 1;
    }
}
