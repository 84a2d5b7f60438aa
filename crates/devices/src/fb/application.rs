//! The application side: a framebuffer as a partner. Pushed pictures are written from its upper left corner.

use super::layout::{Layout, Order};
use crate::bgrx::{self, PIXEL_BYTES, Update};
use crate::flows::{Endpoint, FlowPartner};
use bytes::BytesMut;
use contract::{
    Body, Ctl, CtlReply, Direction, FlowKey, Format, Message, PartnerError, PartnerResult, PullSlot,
    Readiness,
};
use std::os::fd::OwnedFd;
use wire::formats::video::{PixelFormat, Rectangle};

/// A framebuffer as a partner.
pub(super) struct ApplicationPartner {
    name: String,
    file: OwnedFd,
    layout: Layout,
    pictures: u64,
    unusable: u64,
    /// Told once.
    note: Option<String>,
}

impl ApplicationPartner {
    pub(super) fn new(name: String, file: OwnedFd, layout: Layout) -> FlowPartner<Self> {
        let note = layout.has_console.then(|| {
            format!(
                "{name}: the kernel's text console and its cursor draw on it, too; to take them off, as root: echo 0 | \
                 tee /sys/class/vtconsole/vtcon1/bind"
            )
        });
        let partner = ApplicationPartner { name, file, layout, pictures: 0, unusable: 0, note };
        FlowPartner::new(partner, None, Some(Format::Video))
    }

    fn show(&mut self, body: &Body) -> PartnerResult {
        let (update, pixels) = bgrx::read(body).map_err(PartnerError::Message)?;
        let parts = match update {
            Update::Frame(width, height) => vec![Rectangle { x: 0, y: 0, width, height }],
            Update::Parts(_, _, parts) => parts,
            Update::Cursor(_) | Update::Clipboard(_) | Update::Nothing => {
                self.unusable += 1;
                return Ok(());
            }
        };
        let mut pixels = pixels.into_bytes();
        if self.layout.order == Order::RedFirst {
            let mut converted = BytesMut::from(pixels);
            self.layout.order.convert(&mut converted);
            pixels = converted.freeze();
        }
        let mut rest = &pixels[..];
        for part in &parts {
            let (part_pixels, remaining) = rest.split_at(part.bytes(PixelFormat::Bgrx32));
            rest = remaining;
            let written = self.write(part, part_pixels);
            written.map_err(|error| PartnerError::os(format!("writing to {}", self.name), error))?;
        }
        self.pictures += 1;
        Ok(())
    }

    /// Writes a part, cropped to the framebuffer.
    fn write(&self, part: &Rectangle, pixels: &[u8]) -> rustix::io::Result<()> {
        let geometry = self.layout.geometry;
        let whole = Rectangle { x: 0, y: 0, width: geometry.width(), height: geometry.height() };
        let Some(inside) = part.intersection(&whole) else { return Ok(()) };
        let (row_bytes, stride) = (part.width as usize * PIXEL_BYTES, u64::from(geometry.stride()));
        let length = inside.width as usize * PIXEL_BYTES;
        let start =
            self.layout.offset + u64::from(inside.y) * stride + u64::from(inside.x) * PIXEL_BYTES as u64;
        if length == row_bytes && row_bytes as u64 == stride {
            return self.write_at(&pixels[..inside.height as usize * row_bytes], start);
        }
        let rows = pixels.chunks_exact(row_bytes).take(inside.height as usize);
        (0..).zip(rows).try_for_each(|(y, row)| self.write_at(&row[..length], start + y * stride))
    }

    fn write_at(&self, mut bytes: &[u8], mut at: u64) -> rustix::io::Result<()> {
        while !bytes.is_empty() {
            match rustix::io::pwrite(&self.file, bytes, at) {
                Ok(0) => return Err(rustix::io::Errno::NOSPC),
                Ok(written) => {
                    bytes = &bytes[written..];
                    at += written as u64;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Endpoint for ApplicationPartner {
    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        self.show(&message.body).map(|()| true)
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish | Ctl::Neutral => Ok(CtlReply::Done),
            Ctl::Report => Ok(CtlReply::Report(vec![
                ("pictures", self.pictures as f64),
                ("unusable", self.unusable as f64),
            ])),
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, _direction: Direction) -> Readiness<'_> {
        Readiness::now()
    }

    fn note(&mut self) -> Option<String> {
        self.note.take()
    }
}
