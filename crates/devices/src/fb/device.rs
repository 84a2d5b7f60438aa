//! The device side: a framebuffer as a partner. Each pull reads the pixels, compares them with the last message, and
//! returns the tiles that changed.

use super::layout::{Layout, Order};
use crate::bgrx::PIXEL_BYTES;
use crate::damage::{Damage, TILE};
use crate::flows::{Endpoint, FlowPartner};
use buffers::Pool;
use contract::{
    Body, Bytes, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Message, Next, PartnerError,
    PartnerResult, PullSlot, Readiness, Time,
};
use std::os::fd::OwnedFd;
use std::time::Duration;
use wire::formats::video::{Geometry, Header, Kind, RECTANGLES_MAX, Rectangle, emit_rectangles};

/// The number of picture buffers that are recycled.
const PICTURES_KEPT: usize = 4;

/// A framebuffer as a partner.
pub(super) struct DevicePartner {
    name: String,
    file: OwnedFd,
    offset: u64,
    order: Order,
    geometry: Geometry,
    period: Duration,
    /// Only whole pictures are sent.
    always_whole: bool,
    pool: Pool,
    /// The pixels of the last message, with the padding of rows; `None` if a whole picture is due.
    last: Option<Bytes>,
    damage: Damage,
    next_at: Time,
    looks: u64,
    frames: u64,
    partial: u64,
}

impl DevicePartner {
    pub(super) fn new(
        name: String,
        file: OwnedFd,
        layout: Layout,
        rate_hz: f64,
        always_whole: bool,
    ) -> FlowPartner<Self> {
        let geometry = layout.geometry;
        let partner = DevicePartner {
            name,
            file,
            offset: layout.offset,
            order: layout.order,
            geometry: geometry.with_rate_hz(rate_hz),
            period: if rate_hz > 0.0 { Duration::from_secs_f64(1.0 / rate_hz) } else { Duration::ZERO },
            always_whole,
            pool: Pool::new(geometry.bytes(), PICTURES_KEPT),
            last: None,
            damage: Damage::none(geometry.width(), geometry.height()),
            next_at: Time::ZERO,
            looks: 0,
            frames: 0,
            partial: 0,
        };
        FlowPartner::new(partner, Some(Format::Video), None)
    }

    fn whole(&self) -> Rectangle {
        Rectangle { x: 0, y: 0, width: self.geometry.width(), height: self.geometry.height() }
    }

    /// Reads all pixels.
    fn read(&self) -> PartnerResult<Bytes> {
        let mut pixels = self.pool.take();
        let mut done = 0;
        while done < pixels.len() {
            match rustix::io::pread(&self.file, &mut pixels[done..], self.offset + done as u64) {
                Ok(0) => {
                    return Err(PartnerError::Gone(format!("{} (the file has shrunk)", self.name)));
                }
                Ok(read) => done += read,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(PartnerError::os(format!("reading {}", self.name), error)),
            }
        }
        self.order.convert(&mut pixels);
        Ok(pixels.freeze())
    }

    fn part_body(&self, parts: &[Rectangle], pixels: &[u8]) -> Body {
        let stride = self.geometry.stride() as usize;
        let rows = parts.iter().flat_map(|part| {
            let (x, length) = (part.x as usize * PIXEL_BYTES, part.width as usize * PIXEL_BYTES);
            let (y, height) = (part.y as usize, part.height as usize);
            pixels.chunks(stride).skip(y).take(height).map(move |row| &row[x..x + length])
        });
        let rows: Vec<&[u8]> = rows.collect();
        let mut body = Body::from(rows.concat());
        body.push_front(&emit_rectangles(parts));
        body.push_front(&Header { kind: Kind::Rectangles, geometry: self.geometry }.emit());
        body
    }
}

/// Adds the tiles in which two pictures differ to `damage`.
fn find_changes(geometry: &Geometry, prev: &[u8], current: &[u8], damage: &mut Damage) {
    let plane = geometry.plane(0);
    let tile_bytes = TILE as usize * PIXEL_BYTES;
    for (y, (prev, current)) in plane.rows(prev).zip(plane.rows(current)).enumerate() {
        if prev == current {
            continue;
        }
        let row = y as u32 / TILE;
        for (column, (prev, current)) in prev.chunks(tile_bytes).zip(current.chunks(tile_bytes)).enumerate() {
            if prev != current {
                damage.add_tile(column as u32, row);
            }
        }
    }
}

impl Endpoint for DevicePartner {
    fn opened(&mut self, _template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        self.last = None;
        Ok(())
    }

    fn closed(&mut self, _direction: Direction, slot: &mut PullSlot) -> PartnerResult {
        *slot = PullSlot::default();
        Ok(())
    }

    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        if self.next_at > now {
            return Ok(Next::Nothing);
        }
        let is_late = now.since(self.next_at) > self.period;
        self.next_at = if is_late { now } else { self.next_at }.after(self.period);
        let pixels = self.read()?;
        self.looks += 1;
        if let Some(last) = &self.last {
            find_changes(&self.geometry, last, &pixels, &mut self.damage);
            if self.damage.is_empty() {
                return Ok(Next::Nothing);
            }
        }
        let mut parts = Vec::new();
        self.damage.take(&self.whole(), &mut parts);
        let is_part = self.last.is_some() && !self.always_whole && parts.len() <= RECTANGLES_MAX;
        let area =
            |parts: &[Rectangle]| parts.iter().map(|part| part.bytes(self.geometry.pixels())).sum::<usize>();
        let body = match is_part && area(&parts) < self.geometry.tight().bytes() {
            true => {
                self.partial += 1;
                self.part_body(&parts, &pixels)
            }
            false => {
                self.frames += 1;
                let mut body = Body::from(pixels.clone());
                body.push_front(&Header::frame(self.geometry).emit());
                body
            }
        };
        self.last = Some(pixels);
        Ok(Next::Message(Message::new(now, body)))
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish | Ctl::Neutral => Ok(CtlReply::Done),
            Ctl::Snapshot => {
                *slot = PullSlot::default();
                self.last = None;
                Ok(CtlReply::Done)
            }
            Ctl::Report => Ok(CtlReply::Report(vec![
                ("looks", self.looks as f64),
                ("frames", self.frames as f64),
                ("partial", self.partial as f64),
            ])),
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, _direction: Direction) -> Readiness<'_> {
        Readiness::at(self.next_at)
    }
}
