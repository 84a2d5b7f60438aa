//! Observes the viewer's display and injects keys and pointer events there.

use super::original::Original;
use crate::display::PIXEL_BYTES;
use crate::setting::Failure;
use contract::{
    Attributes, Direction, FlowClass, FlowKey, FlowTemplate, Format, Interest, Message, Partner, Pull,
    Pulled, Pushed, Role, Time,
};
use modules::registry;
use std::time::{Duration, Instant};
use sys::poller::Poller;
use wire::formats::video::{Content, Header, Rectangle};
use wire::formats::viewer::Event;

/// The longest wait for a sign.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest wait for the pixels of the original: a server may refine them late or never.
pub(super) const EXACT_PATIENCE: Duration = Duration::from_secs(5);

/// An observer of a display.
pub(super) struct Sight {
    partner: Box<dyn Partner>,
    flows: [FlowKey; 2],
    poller: Poller,
    original: Original,
    pub(super) width: usize,
    pub(super) pixels: Vec<u8>,
}

/// The changes of one message.
#[derive(Debug, Clone, Copy, Default)]
struct Change {
    pixels: bool,
    cursor: bool,
}

/// The expected response to an act.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sign {
    /// The first change of a pixel in an area.
    Pixel(Rectangle),
    /// The last change in an area, before a time without changes.
    Settled(Rectangle, Duration),
    /// A change of the pointer's shape.
    Cursor,
}

impl Sight {
    /// Connects to a display that shows another one, `original`.
    pub(super) fn new(display: &str, original: &str) -> Result<Sight, Failure> {
        let spec = registry::device_spec(&format!("x11:{display},rate=0,delay=0ms"), Role::Device)?;
        let class = registry::device_class(&spec.class).ok_or("there is no such device")?;
        let mut partner = class.partner(class.open(&spec, Role::Device, None)?)?;
        let mut open = |direction, format| {
            let template = FlowTemplate { direction, format, class: FlowClass::State };
            partner.open(&template, &Attributes::default())
        };
        let flows = [open(Direction::Out, Format::Video)?, open(Direction::In, Format::Viewer)?];
        let original = Original::open(original)?;
        Ok(Sight { partner, flows, poller: Poller::new()?, original, width: 0, pixels: Vec::new() })
    }

    /// Returns blue, green and red of an observed pixel.
    pub(super) fn pixel(&self, x: u32, y: u32) -> Option<[u8; 3]> {
        let at = (y as usize * self.width + x as usize) * PIXEL_BYTES;
        self.pixels.get(at..at + 3)?.try_into().ok()
    }

    /// Handles one message. Waits for it until `until`.
    fn look(&mut self, until: Instant, place: &Rectangle) -> Result<Change, Failure> {
        let mut change = Change::default();
        match self.partner.pull(self.flows[0], Pull::Yours)? {
            Pulled::Message(_, message) => self.take(&message, place, &mut change)?,
            _ => {
                let readiness = self.partner.readiness(self.flows[0], Direction::Out);
                let left = until.saturating_duration_since(Instant::now());
                let due = readiness.at.map(|at| at.since(Time(sys::clock::boot_ns())));
                for (descriptor, interest) in readiness.descriptors.into_iter().flatten() {
                    self.poller.register(descriptor, interest == Interest::Read, interest == Interest::Write);
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
            Content::Boxes(_) | Content::Clipboard(_) => return Ok(()),
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

    /// Injects events without waiting for a response.
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

    /// Waits until an area has not changed for a while.
    pub(super) fn rest(&mut self, quiet: Duration, place: &Rectangle) -> Result<(), Failure> {
        let (begun, mut until) = (Instant::now(), Instant::now() + quiet);
        while Instant::now() < until && begun.elapsed() < PATIENCE {
            if self.look(until, place)?.pixels {
                until = Instant::now() + quiet;
            }
        }
        Ok(())
    }

    /// Injects events and waits until an area changes and then equals that of the original. Returns the time; `None` if it does not
    /// within [`EXACT_PATIENCE`].
    pub(super) fn time_until_exact(
        &mut self,
        events: &[Event],
        place: &Rectangle,
    ) -> Result<Option<Duration>, Failure> {
        let begun = Instant::now();
        self.act(events)?;
        while begun.elapsed() < EXACT_PATIENCE {
            let is_changed = self.look(begun + EXACT_PATIENCE, place)?.pixels;
            let at = begun.elapsed();
            if is_changed && self.original.equals(&self.pixels, self.width, place)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Injects events and waits for their sign. Returns the response time.
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
