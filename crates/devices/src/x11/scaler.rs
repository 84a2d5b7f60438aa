//! Scales pictures down to the size of their window. The X server does so (RENDER), and only where the picture has changed.

use super::client::Client;
use super::display::Extension;
use super::placement::Placement;
use std::borrow::Cow;
use wire::formats::video::Rectangle;
use x11rb_protocol::protocol::render::{
    self, CompositeRequest, CreatePictureAux, CreatePictureRequest, Fixed, FreePictureRequest, PictOp,
    QueryPictFormatsReply, Repeat, SetPictureFilterRequest, SetPictureTransformRequest, Transform,
};
use x11rb_protocol::protocol::xproto::{Drawable, Screen};

/// The interpolation. Every server has it.
const FILTER: &str = "bilinear";
/// 1 as a fixed-point number.
const ONE: Fixed = 1 << 16;

/// Copies a pixmap to a window in a smaller size.
pub(super) struct Scaler {
    render: Extension,
    format: render::Pictformat,
    /// The picture of the pixmap, and whether there is one.
    source: render::Picture,
    has_source: bool,
    /// The picture of the window.
    target: render::Picture,
}

impl Scaler {
    /// Prepares a scaler for a window of the root's visual. Returns `None` if the server has no format for it.
    pub(super) fn new(
        client: &mut Client,
        render: Extension,
        formats: &QueryPictFormatsReply,
        screen: &Screen,
    ) -> Option<Scaler> {
        let depths = formats.screens.iter().flat_map(|screen| &screen.depths);
        let mut visuals = depths.flat_map(|depth| &depth.visuals);
        let format = visuals.find(|visual| visual.visual == screen.root_visual)?.format;
        let (source, target) = (client.resource(), client.resource());
        Some(Scaler { render, format, source, has_source: false, target })
    }

    /// Reads from a new pixmap. The window is the same every time.
    pub(super) fn set_pixmap(&mut self, client: &mut Client, pixmap: Drawable, window: Drawable) {
        let Scaler { render, format, source, target, .. } = *self;
        let create = |client: &mut Client, pid: render::Picture, drawable: Drawable| {
            // Beyond the edge the interpolation reads the pixels at the edge.
            let value_list = Cow::Owned(CreatePictureAux::new().repeat(Repeat::PAD));
            client.send(CreatePictureRequest { pid, drawable, format, value_list }.serialize(render.opcode));
        };
        match std::mem::replace(&mut self.has_source, true) {
            true => {
                client.send(FreePictureRequest { picture: source }.serialize(render.opcode));
            }
            false => create(client, target, window),
        }
        create(client, source, pixmap);
        let (filter, values) = (FILTER.as_bytes().into(), Cow::default());
        let filter = SetPictureFilterRequest { picture: source, filter, values };
        client.send(filter.serialize(render.opcode));
    }

    /// Sets the factors of a placement.
    pub(super) fn set_placement(&self, client: &mut Client, placement: &Placement) {
        let factor = |picture: u32, place: u32| {
            ((u64::from(picture) << 16) / u64::from(place)).min(Fixed::MAX as u64) as Fixed
        };
        let (picture, (width, height)) = (placement.picture, placement.size());
        let transform = Transform {
            matrix11: factor(picture.0, width),
            matrix22: factor(picture.1, height),
            matrix33: ONE,
            ..Transform::default()
        };
        let transform = SetPictureTransformRequest { picture: self.source, transform };
        client.send(transform.serialize(self.render.opcode));
    }

    /// Copies the pixels of a part of the window.
    pub(super) fn copy(&self, client: &mut Client, placement: &Placement, part: &Rectangle) {
        let (left, top) = (placement.place.x, placement.place.y);
        let copy = CompositeRequest {
            op: PictOp::SRC,
            src: self.source,
            mask: 0,
            dst: self.target,
            src_x: (part.x - left) as i16,
            src_y: (part.y - top) as i16,
            mask_x: 0,
            mask_y: 0,
            dst_x: part.x as i16,
            dst_y: part.y as i16,
            width: part.width as u16,
            height: part.height as u16,
        };
        client.send(copy.serialize(self.render.opcode));
    }
}
