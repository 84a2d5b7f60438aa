//! The device side: a camera as a partner. Pulls return frames, without a copy from the driver's buffers; pushes take
//! settings of its controls.
//!
//! | state | fields | next state |
//! |---|---|---|
//! | off: no open flow, or no reader | no `queue` | at a pull: on or refused |
//! | refused: another program uses the camera, or its bus is full | `refusals` | at a retry: on; after a while also absent |
//! | on | `queue` | off; after an error: on again, up to `RESTARTS_MAX` times |

use super::negotiate::{self, PictureOptions};
use super::properties::Properties;
use super::recent::Recent;
use super::refusals::{Refusals, reason};
use crate::flows::{Endpoint, FlowPartner, invalid};
use crate::stream::now;
use buffers::Pool;
use contract::{
    Body, Bytes, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Interest, Message, Next,
    PartnerError, PartnerResult, Presence, PullSlot, Readiness, Report, Time,
};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use sys::clock::{boot_ns, monotonic_ns};
use sys::v4l2::queue::{Frame, Queue, end_former, release};
use sys::v4l2::{Event, next_event, subscribe};
use wire::formats::controls::{Setting, Update};
use wire::formats::video::{Geometry, Header, PixelFormat};

/// The number of frame buffers in the driver.
const BUFFERS: u32 = 6;
/// The number of buffers that the driver needs to continue. If it has fewer, frames are copied.
const FREE_MIN: usize = 2;
/// The number of picture buffers that are recycled.
const PICTURES_KEPT: usize = 8;
/// The most restarts after errors without a frame in between before the camera counts as gone.
const RESTARTS_MAX: u32 = 5;

/// A camera as a partner.
pub(super) struct Camera {
    name: String,
    node: OwnedFd,
    properties: Properties,
    options: PictureOptions,
    is_private: bool,
    is_out_open: bool,
    geometry: Geometry,
    /// The queue of buffers, while the camera is on.
    queue: Option<Queue>,
    refusals: Refusals,
    /// Restarts since the last frame.
    restarts: u32,
    /// The application side has no reader.
    is_idle: bool,
    recent: Recent,
    pool: Pool,
    note: Option<String>,
    figures: Figures,
}

/// The figures of [`Ctl::Report`].
#[derive(Debug, Default)]
struct Figures {
    frames: u64,
    copied: u64,
    /// The number of the last frame.
    sequence: Option<u32>,
    missed: u64,
    old: u64,
    damaged: u64,
    starts: u64,
    settings: u64,
    refused: u64,
}

impl Figures {
    /// Counts the frames that the driver missed before the one with this number.
    fn count_missed(&mut self, sequence: u32) {
        let last = self.sequence.replace(sequence);
        self.missed += last.map_or(0, |last| u64::from(missed(last, sequence)));
    }
}

impl Camera {
    /// Makes a partner from a camera that was opened non-blocking.
    pub(super) fn new(
        name: String,
        node: OwnedFd,
        properties: Properties,
        options: PictureOptions,
        is_private: bool,
    ) -> FlowPartner<Self> {
        let is_jpeg = options.pixels.is_none() && properties.geometry.pixels() == PixelFormat::Mjpeg;
        let note = is_jpeg.then(|| {
            let formats = sys::v4l2::formats(node.as_fd(), sys::v4l2::Direction::Capture);
            negotiate::jpeg_note(&name, &formats.unwrap_or_default())
        });
        let camera = Camera {
            name,
            node,
            is_out_open: false,
            geometry: properties.geometry,
            properties,
            options,
            is_private,
            queue: None,
            refusals: Refusals::default(),
            restarts: 0,
            is_idle: false,
            recent: Recent::default(),
            pool: Pool::new(0, 0),
            note,
            figures: Figures::default(),
        };
        FlowPartner::new(camera, Some(Format::Video), Some(Format::Controls))
    }

    fn gone(&self, reason: &str) -> PartnerError {
        PartnerError::Gone(format!("{} ({reason})", self.name))
    }

    fn error(&self, operation: &str, error: io::Error) -> PartnerError {
        match is(&error, Errno::NODEV) {
            true => self.gone("unplugged"),
            false => PartnerError::os(format!("{operation} {}", self.name), error),
        }
    }

    /// Turns the camera on. Returns `false` if it refuses that for now.
    fn start(&mut self, now: Time) -> PartnerResult<bool> {
        if self.refusals.retry_at().is_some_and(|retry_at| now < retry_at) {
            return Ok(false);
        }
        let started = match self.try_start() {
            // A worker that was killed may have left the camera on.
            Err(error) if is(&error, Errno::BUSY) => {
                end_former(self.node.as_fd()).and_then(|()| self.try_start())
            }
            started => started,
        };
        match started {
            Ok(()) => {
                self.refusals.started();
                Ok(true)
            }
            Err(error) => {
                // The format that was set keeps other programs out. An error means that one of them uses the camera.
                let _ = release(self.node.as_fd());
                match reason(&error) {
                    Some(reason) => {
                        self.refusals.refused(reason, now);
                        Ok(false)
                    }
                    None => Err(self.error("starting", error)),
                }
            }
        }
    }

    fn try_start(&mut self) -> io::Result<()> {
        let announced = &self.properties.geometry;
        let restored = negotiate::restore(self.node.as_fd(), &self.name, announced, &self.options);
        self.geometry = match restored {
            Ok(geometry) => geometry,
            Err(contract::DeviceError::Os { error, .. }) => return Err(error),
            Err(error) => return Err(io::Error::other(error.to_string())),
        };
        // Optional: a driver without this event stops the frames when the size of its source changes.
        let _ = subscribe(self.node.as_fd(), Event::SourceChange);
        let queue = Queue::new(self.node.try_clone()?, BUFFERS, self.is_private)?;
        if let Err(error) = queue.start() {
            // The buffers alone keep other programs out.
            let _ = queue.end();
            return Err(error);
        }
        self.queue = Some(queue);
        self.recent = Recent::default();
        self.figures.sequence = None;
        self.figures.starts += 1;
        Ok(())
    }

    /// Turns the camera off, so that other programs can use it.
    fn stop(&mut self) {
        if let Some(queue) = self.queue.take() {
            // An error means that the camera is gone.
            let _ = queue.end();
        }
        self.refusals.stopped();
    }

    fn is_wanted(&self) -> bool {
        self.is_out_open && !self.is_idle
    }

    /// Restarts the camera after the driver stopped it: the source has a new size, or there was an error.
    fn restart(&mut self, error: io::Error) -> PartnerResult {
        self.restarts += 1;
        if self.restarts > RESTARTS_MAX {
            return Err(self.error("reading", error));
        }
        self.stop();
        while let Ok(Some(_)) = next_event(self.node.as_fd()) {}
        self.start(now()).map(|_| ())
    }

    /// Takes a frame of the driver.
    fn take(&mut self) -> io::Result<Option<Frame>> {
        let Some(queue) = &self.queue else { return Ok(None) };
        // A loopback node misses frames by itself, and its buffers do not tell. An error shows at the frame.
        let is_full = self.is_private && queue.is_full().unwrap_or(false);
        let figures = &mut self.figures;
        self.recent.take(
            is_full,
            || queue.take(),
            |old| {
                figures.count_missed(old.sequence);
                figures.old += 1;
            },
        )
    }

    /// Converts a frame to a message. Returns `None` if the frame is damaged.
    fn message(&mut self, frame: Frame) -> Option<Message> {
        self.figures.count_missed(frame.sequence);
        let is_compressed = self.geometry.pixels() == PixelFormat::Mjpeg;
        let bytes = if is_compressed { frame.used_bytes } else { self.geometry.bytes() };
        if frame.is_damaged || frame.used_bytes < bytes || bytes == 0 {
            self.figures.damaged += 1;
            return None;
        }
        let created = match frame.captured_ns {
            Some(captured_ns) => Time(boot_ns().saturating_sub(monotonic_ns().saturating_sub(captured_ns))),
            None => now(),
        };
        let mut body = Body::from(self.pixels(frame, bytes));
        body.push_front(&Header::frame(self.geometry).emit());
        self.figures.frames += 1;
        Some(Message::new(created, body))
    }

    /// Returns the first `bytes` of a frame: in the driver's buffer if the driver has enough others, else copied.
    fn pixels(&mut self, frame: Frame, bytes: usize) -> Bytes {
        match self.queue.as_ref().is_some_and(|queue| queue.queued() >= FREE_MIN) {
            false => self.copy(frame, bytes),
            true => match frame.stable() {
                Ok(stable) => Bytes::from_owner(stable).slice(..bytes),
                Err(frame) => self.copy(frame, bytes),
            },
        }
    }

    fn copy(&mut self, frame: Frame, bytes: usize) -> Bytes {
        if self.pool.capacity() < bytes {
            self.pool = Pool::new(bytes, PICTURES_KEPT);
        }
        let mut memory = self.pool.take();
        frame.copy_to(&mut memory[..bytes]);
        self.figures.copied += 1;
        memory.freeze().slice(..bytes)
    }

    fn set(&mut self, settings: &[Setting]) -> PartnerResult {
        for Setting { id, value } in settings {
            let control = self.properties.controls.iter().find(|control| control.info.id == *id);
            let result = match control {
                Some(control) => {
                    sys::v4l2::controls::set_value(self.node.as_fd(), *id, control.info.kind, *value)
                }
                None => Err(Errno::INVAL.into()),
            };
            self.figures.settings += 1;
            match result {
                Ok(()) => {}
                Err(error) if is(&error, Errno::NODEV) => return Err(self.gone("unplugged")),
                // The camera does not accept the setting in its present mode, and keeps its value.
                Err(_) => self.figures.refused += 1,
            }
        }
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        let figures = &self.figures;
        vec![
            ("frames", figures.frames as f64),
            ("frames copied", figures.copied as f64),
            ("frames missed by the driver", figures.missed as f64),
            ("frames dropped as old", figures.old as f64),
            ("frames damaged", figures.damaged as f64),
            ("starts", figures.starts as f64),
            ("on", f64::from(u8::from(self.queue.is_some()))),
            ("settings", figures.settings as f64),
            ("settings refused", figures.refused as f64),
        ]
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// Returns the number of frames between two that have these sequence numbers. Some drivers start again from 0, or count nothing.
pub(super) fn missed(last: u32, sequence: u32) -> u32 {
    let between = sequence.wrapping_sub(last).wrapping_sub(1);
    if between < 1 << 31 { between } else { 0 }
}

impl Drop for Camera {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Endpoint for Camera {
    fn opened(&mut self, template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        self.is_idle = false;
        self.is_out_open |= template.direction == Direction::Out;
        Ok(())
    }

    fn closed(&mut self, direction: Direction, slot: &mut PullSlot) -> PartnerResult {
        if direction == Direction::Out {
            self.is_out_open = false;
            *slot = PullSlot::default();
            self.stop();
        }
        Ok(())
    }

    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        match Update::parse(message.body.as_slice()).map_err(invalid)? {
            Update::Settings(settings) => self.set(&settings)?,
            Update::Wanted(wanted) => {
                self.is_idle = !wanted;
                if self.is_idle {
                    self.stop();
                }
            }
        }
        Ok(true)
    }

    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        if !self.is_wanted() || self.queue.is_none() && !self.start(now)? {
            return Ok(Next::Nothing);
        }
        while self.queue.is_some() {
            match self.take() {
                Ok(None) => return Ok(Next::Nothing),
                Ok(Some(frame)) => {
                    if let Some(message) = self.message(frame) {
                        self.restarts = 0;
                        return Ok(Next::Message(message));
                    }
                }
                Err(error) if is(&error, Errno::NODEV) => return Err(self.gone("unplugged")),
                Err(error) => self.restart(error)?,
            }
        }
        Ok(Next::Nothing)
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            // The neutral state of a camera keeps its settings.
            Ctl::Flush | Ctl::Finish | Ctl::Neutral => Ok(CtlReply::Done),
            Ctl::Report => Ok(CtlReply::Report(self.report())),
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        match (direction, &self.queue) {
            (Direction::In, _) => Readiness::now(),
            (Direction::Out, Some(_)) => Readiness::descriptor(self.node.as_fd(), Interest::Read),
            (Direction::Out, None) if !self.is_wanted() => Readiness::never(),
            (Direction::Out, None) => match self.refusals.retry_at() {
                Some(retry_at) => Readiness::at(retry_at),
                None => Readiness::now(),
            },
        }
    }

    fn presence(&mut self) -> Option<Presence> {
        Some(match self.refusals.presence()? {
            Presence::Absent(reason) => Presence::Absent(format!("{} ({reason})", self.name)),
            Presence::Present => Presence::Present,
        })
    }

    fn note(&mut self) -> Option<String> {
        self.note.take()
    }
}
