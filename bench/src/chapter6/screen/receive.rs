//! The receivers on this host: of Outboard, of an RFB server, and of plain frames in a stream.

use super::super::instruments::{Gauge, IN, OUT, Passing, plain_partner};
use super::super::setting::{Block, Carrier, WATCHDOG};
use crate::display::{self, NUMBER_PIXELS, PIXEL_BYTES};
use crate::measure::Times;
use crate::setting::Failure;
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowClass, FlowKey, FlowTemplate, Format, Interest, Message,
    Partner, PartnerError, PartnerResult, Pull, Pulled, Pushed, Readiness, Role,
};
use modules::registry;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Instant;
use sys::poller::Poller;
use wire::formats::video::{Content, Header, Rectangle};

static TCP: Gauge = Gauge::tcp();
static QUIC: Gauge = Gauge::quic();

/// Returns the transport that counts the bytes of Outboard's records.
pub(super) fn gauge(carrier: Carrier) -> &'static Gauge {
    if carrier == Carrier::Tcp { &TCP } else { &QUIC }
}

/// The result of a film.
pub(super) struct Seen {
    /// Times from one picture to the next.
    pub(super) times: Times,
    /// Mean bytes of a picture on the network.
    pub(super) bytes: f64,
    /// Mean processor time of a picture: X server, painter, server and receiver.
    pub(super) cpu_us: f64,
}

/// Recognizes pictures, reports them to the painter and records the times.
pub(super) struct Looker {
    side: usize,
    block: Block,
    painter: Option<Sender<u32>>,
    cpu_ns: Box<dyn Fn() -> u64 + Send>,
    /// Bytes received from the network.
    pub(super) bytes: Arc<AtomicU64>,
    /// The number in the first row and the number in the last row.
    corners: [u32; 2],
    newest: u32,
    count: usize,
    begun_ns: u64,
    last_ns: u64,
    /// Bytes and processor time before the first picture that counts.
    before: [u64; 2],
    times: Times,
}

impl Looker {
    pub(super) fn new(
        side: usize,
        block: &Block,
        painter: Option<Sender<u32>>,
        cpu_ns: Box<dyn Fn() -> u64 + Send>,
    ) -> Looker {
        Looker {
            side,
            block: *block,
            painter,
            cpu_ns,
            bytes: Arc::default(),
            corners: [0; 2],
            newest: 0,
            count: 0,
            begun_ns: 0,
            last_ns: 0,
            before: [0; 2],
            times: Times::with_capacity(block.count),
        }
    }

    /// Returns the positions of the numbers.
    fn places(&self) -> [(u32, u32); 2] {
        let last = self.side as u32 - 1;
        [(0, 0), (last + 1 - NUMBER_PIXELS as u32, last)]
    }

    /// Examines a message of the format `video`.
    fn look(&mut self, header: &Header, content: &Content<'_>) -> Option<Seen> {
        let places = self.places();
        for (corner, place) in self.corners.iter_mut().zip(places) {
            match display::number_at(pixels_at(header, content, place).unwrap_or_default()) {
                0 => {}
                number => *corner = number,
            }
        }
        self.see()
    }

    /// Examines a whole picture.
    fn look_at(&mut self, picture: &[u8]) -> Option<Seen> {
        let length = NUMBER_PIXELS * PIXEL_BYTES;
        let places = [&picture[..length], &picture[picture.len() - length..]];
        self.corners = places.map(display::number_at);
        self.see()
    }

    /// Counts a picture when both numbers are the same or newer. Returns the result after the last picture.
    fn see(&mut self) -> Option<Seen> {
        let whole = self.corners[0].min(self.corners[1]);
        if whole <= self.newest {
            return None;
        }
        self.newest = whole;
        if let Some(painter) = &self.painter {
            // The painter may have stopped.
            let _ = painter.send(whole);
        }
        let now = sys::clock::boot_ns();
        let figures = || [self.bytes.load(Ordering::Relaxed), (self.cpu_ns)()];
        match self.count {
            0 => self.begun_ns = now,
            count if count == Block::WARM_UP => self.before = figures(),
            count if count > Block::WARM_UP => self.times.add(now - self.last_ns),
            _ => {}
        }
        // Reading the figures does not count.
        (self.count, self.last_ns) = (self.count + 1, sys::clock::boot_ns());
        if !self.block.is_done(self.count - 1, now - self.begun_ns) || self.times.count() == 0 {
            return None;
        }
        let [bytes, cpu_ns] = [0, 1].map(|at| {
            let after = [self.bytes.load(Ordering::Relaxed), (self.cpu_ns)()][at];
            (after - self.before[at]) as f64 / self.times.count() as f64
        });
        Some(Seen { times: std::mem::take(&mut self.times), bytes, cpu_us: cpu_ns / 1e3 })
    }
}

/// Returns the pixels of a number at a position, if the message has them.
fn pixels_at<'a>(header: &Header, content: &Content<'a>, (x, y): (u32, u32)) -> Option<&'a [u8]> {
    let length = NUMBER_PIXELS * PIXEL_BYTES;
    match content {
        Content::Frame(pixels) => {
            let at = (y * header.geometry.width() + x) as usize * PIXEL_BYTES;
            pixels.get(at..at + length)
        }
        Content::Rectangles(rectangles, pixels) => {
            let (mut start, mut found) = (0, None);
            for one in rectangles {
                let inside =
                    (one.x..one.x + one.width).contains(&x) && (one.y..one.y + one.height).contains(&y);
                if inside {
                    let at = start + ((y - one.y) * one.width + x - one.x) as usize * PIXEL_BYTES;
                    found = pixels.get(at..at + length);
                }
                start += one.bytes(header.geometry.pixels());
            }
            found
        }
        _ => None,
    }
}

/// An application side of Outboard that paints into memory.
pub(super) struct Screen {
    looker: Looker,
    picture: Vec<u8>,
    results: Sender<Seen>,
}

impl Screen {
    pub(super) fn new(looker: Looker, carrier: Carrier, results: Sender<Seen>) -> Screen {
        let bytes = looker.bytes.clone();
        gauge(carrier).set(Arc::new(move |passing, _, _| {
            if let Passing::In(length) = passing {
                bytes.fetch_add(length as u64, Ordering::Relaxed);
            }
        }));
        let picture = vec![0; looker.side * looker.side * PIXEL_BYTES];
        Screen { looker, picture, results }
    }

    fn show(&mut self, body: &Body) -> Result<(), String> {
        let front = body.peek_front::<{ Header::BYTES }>().ok_or("a message without a header")?;
        let header = Header::parse(&front).map_err(|error| error.to_string())?;
        let mut rest = body.clone();
        rest.skip_front(Header::BYTES);
        let bytes = rest.into_bytes();
        let content = header.parse_content(&bytes).map_err(|error| error.to_string())?;
        match &content {
            Content::Frame(pixels) if pixels.len() == self.picture.len() => {
                self.picture.copy_from_slice(pixels);
            }
            Content::Rectangles(rectangles, pixels) => {
                let mut rest = *pixels;
                for Rectangle { x, y, width, height } in rectangles {
                    let length = *width as usize * PIXEL_BYTES;
                    for row in *y..y + height {
                        let (now, later) = rest.split_at(length);
                        let at = (row as usize * self.looker.side + *x as usize) * PIXEL_BYTES;
                        if let Some(into) = self.picture.get_mut(at..at + length) {
                            into.copy_from_slice(now);
                        }
                        rest = later;
                    }
                }
            }
            _ => return Ok(()),
        }
        if let Some(seen) = self.looker.look(&header, &content) {
            // The receiver may have timed out.
            let _ = self.results.send(seen);
        }
        Ok(())
    }
}

impl Partner for Screen {
    plain_partner!();

    fn push(&mut self, _: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        match self.show(&message.body) {
            Ok(()) => Ok(Pushed::Taken),
            Err(problem) => Err((PartnerError::Message(problem), message)),
        }
    }

    fn pull(&mut self, _: FlowKey, _: Pull<'_>) -> PartnerResult<Pulled> {
        Ok(Pulled::Nothing)
    }

    fn readiness(&self, _: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::In => Readiness::now(),
            Direction::Out => Readiness::never(),
        }
    }
}

/// Receives a stream of frames.
pub(super) fn frames(mut socket: TcpStream, mut looker: Looker) -> Result<Seen, Failure> {
    socket.set_read_timeout(Some(WATCHDOG))?;
    let mut picture = vec![0; looker.side * looker.side * PIXEL_BYTES];
    loop {
        socket.read_exact(&mut picture)?;
        looker.bytes.fetch_add(picture.len() as u64, Ordering::Relaxed);
        if let Some(seen) = looker.look_at(&picture) {
            return Ok(seen);
        }
    }
}

/// Receives the screen of an RFB server with Outboard's client in a bare loop.
pub(super) fn rfb(address: SocketAddr, encoding: &str, mut looker: Looker) -> Result<Seen, Failure> {
    let spec = registry::device_spec(&format!("rfb:{address},encoding={encoding}"), Role::Device)?;
    let class = registry::device_class(&spec.class).ok_or("there is no such device")?;
    let mut client = class.partner(class.open(&spec, Role::Device, None)?)?;
    let template = FlowTemplate { direction: Direction::Out, format: Format::Video, class: FlowClass::State };
    let flow = client.open(&template, &Attributes::default())?;
    let (mut poller, begun) = (Poller::new()?, Instant::now());
    loop {
        let Pulled::Message(_, message) = client.pull(flow, Pull::Yours)? else {
            if begun.elapsed() > WATCHDOG {
                return Err("the server shows nothing more".into());
            }
            for (descriptor, interest) in
                client.readiness(flow, Direction::Out).descriptors.into_iter().flatten()
            {
                poller.register(descriptor, interest == Interest::Read, interest == Interest::Write);
            }
            poller.wait(Some(WATCHDOG))?;
            continue;
        };
        if let CtlReply::Report(figures) = client.ctl(flow, Ctl::Report)? {
            let read = figures.iter().find(|(name, _)| *name == "read bytes").map_or(0.0, |(_, read)| *read);
            looker.bytes.store(read as u64, Ordering::Relaxed);
        }
        let bytes = message.body.into_bytes();
        let header = Header::parse(&bytes)?;
        if let Some(seen) = looker.look(&header, &header.parse_content(&bytes[Header::BYTES..])?) {
            return Ok(seen);
        }
    }
}
