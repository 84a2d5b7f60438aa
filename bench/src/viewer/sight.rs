//! Eyes and hands before the viewer: they see the display that it draws on, and type and point there.

use crate::Failure;
use crate::display::PIXEL_BYTES;
use contract::{
    Attributes, Direction, FlowClass, FlowKey, FlowTemplate, Format, Interest, Message, Partner, Pull,
    Pulled, Pushed, Role, Time,
};
use runtime::registry;
use std::time::{Duration, Instant};
use sys::poller::Poller;
use wire::formats::video::{Content, Header, Rectangle};
use wire::formats::viewer::Event;

/// What does not happen within this never will.
const PATIENCE: Duration = Duration::from_secs(20);

/// Somebody before a display.
pub(super) struct Sight {
    partner: Box<dyn Partner>,
    flows: [FlowKey; 2],
    poller: Poller,
    pub(super) width: usize,
    pub(super) pixels: Vec<u8>,
}

/// What changed between two looks.
#[derive(Debug, Clone, Copy, Default)]
struct Change {
    pixels: bool,
    cursor: bool,
}

/// What is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sign {
    /// The first change of a pixel in a place.
    Pixel(Rectangle),
    /// The last one, behind which nothing changes for a while.
    Settled(Rectangle, Duration),
    /// Another shape of the pointer.
    Cursor,
}

impl Sight {
    /// Sits down before a display.
    pub(super) fn new(display: &str) -> Result<Sight, Failure> {
        let spec = registry::device_spec(&format!("x11:{display},rate=0,delay=0ms"), Role::Device)?;
        let class = registry::device_class(&spec.class).ok_or("there is no such device")?;
        let mut partner = class.partner(class.open(&spec, Role::Device, None)?)?;
        let mut open = |direction, format| {
            let template = FlowTemplate { direction, format, class: FlowClass::State };
            partner.open(&template, &Attributes::default())
        };
        let flows = [open(Direction::Out, Format::Video)?, open(Direction::In, Format::Viewer)?];
        Ok(Sight { partner, flows, poller: Poller::new()?, width: 0, pixels: Vec::new() })
    }

    /// Blue, green and red of a pixel that was seen.
    pub(super) fn pixel(&self, x: u32, y: u32) -> Option<[u8; 3]> {
        let at = (y as usize * self.width + x as usize) * PIXEL_BYTES;
        self.pixels.get(at..at + 3)?.try_into().ok()
    }

    /// Looks once; waits for something to see until then.
    fn look(&mut self, until: Instant, place: &Rectangle) -> Result<Change, Failure> {
        let mut change = Change::default();
        match self.partner.pull(self.flows[0], Pull::Yours)? {
            Pulled::Message(_, message) => self.take(&message, place, &mut change)?,
            _ => {
                let readiness = self.partner.readiness(self.flows[0], Direction::Out);
                let left = until.saturating_duration_since(Instant::now());
                let due = readiness.at.map(|at| at.since(Time(sys::clock::boot_ns())));
                for (descriptor, interest) in readiness.descriptors.into_iter().flatten() {
                    self.poller.want(descriptor, interest == Interest::Read, interest == Interest::Write);
                }
                if !readiness.now {
                    self.poller.wait(Some(due.map_or(left, |due| due.min(left))))?;
                }
            }
        }
        Ok(change)
    }

    fn take(&mut self, message: &Message, place: &Rectangle, change: &mut Change) -> Result<(), Failure> {
        let bytes = message.body.clone().into_bytes();
        let header = Header::parse(&bytes)?;
        let width = header.geometry.width() as usize;
        let whole = Rectangle { x: 0, y: 0, width: width as u32, height: header.geometry.height() };
        let (rectangles, mut rest) = match header.parse_content(&bytes[Header::BYTES..])? {
            Content::Frame(pixels) => (vec![whole], pixels),
            Content::Rectangles(rectangles, pixels) => (rectangles, pixels),
            Content::Cursor(..) => {
                change.cursor = true;
                return Ok(());
            }
            Content::Boxes(_) => return Ok(()),
        };
        self.width = width;
        self.pixels.resize(header.geometry.bytes(), 0);
        for one in rectangles {
            for y in one.y..one.y + one.height {
                let (now, later) = rest.split_at(one.width as usize * PIXEL_BYTES);
                rest = later;
                let start = (y as usize * width + one.x as usize) * PIXEL_BYTES;
                let row = &mut self.pixels[start..start + now.len()];
                let line = Rectangle { y, height: 1, ..one };
                if let Some(seen) = line.intersection(place) {
                    let from = (seen.x - one.x) as usize * PIXEL_BYTES;
                    let part = from..from + seen.width as usize * PIXEL_BYTES;
                    change.pixels |= row[part.clone()] != now[part];
                }
                row.copy_from_slice(now);
            }
        }
        Ok(())
    }

    /// Does something, not waiting for what comes of it.
    pub(super) fn act(&mut self, events: &[Event]) -> Result<(), Failure> {
        for event in events {
            let mut message = Message::new(Time(sys::clock::boot_ns()), event.to_bytes());
            loop {
                match self.partner.push(self.flows[1], message) {
                    Ok(Pushed::Full(back)) => message = back,
                    Ok(_) => break,
                    Err((error, _)) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Looks on until nothing has changed in a place for so long.
    pub(super) fn rest(&mut self, quiet: Duration, place: &Rectangle) -> Result<(), Failure> {
        let (begun, mut until) = (Instant::now(), Instant::now() + quiet);
        while Instant::now() < until && begun.elapsed() < PATIENCE {
            if self.look(until, place)?.pixels {
                until = Instant::now() + quiet;
            }
        }
        Ok(())
    }

    /// Does something and waits for a sign of it: how long that took.
    pub(super) fn time(&mut self, events: &[Event], sign: Sign) -> Result<Duration, Failure> {
        let begun = Instant::now();
        self.act(events)?;
        let (mut last, mut until) = (None, begun + PATIENCE);
        while Instant::now() < until {
            let place = match sign {
                Sign::Pixel(place) | Sign::Settled(place, _) => place,
                Sign::Cursor => Rectangle { x: 0, y: 0, width: 0, height: 0 },
            };
            let change = self.look(until, &place)?;
            match sign {
                Sign::Pixel(_) if change.pixels => return Ok(begun.elapsed()),
                Sign::Cursor if change.cursor => return Ok(begun.elapsed()),
                Sign::Settled(_, quiet) if change.pixels => {
                    last = Some(begun.elapsed());
                    until = Instant::now() + quiet;
                }
                _ => {}
            }
        }
        last.ok_or_else(|| format!("nothing came of {events:?}").into())
    }
}
