//! The device's side: a camera as a partner. Out of it come frames, read in the buffers that the driver filled; into
//! it go settings of its controls.

use super::negotiate::{self, Wanted};
use super::properties::Properties;
use crate::flows::{Flows, OUT};
use crate::stream::now;
use buffers::Pool;
use contract::{
    Attributes, Body, Bytes, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Interest, Message,
    Next, Partner, PartnerError, Pull, PullSlot, Pulled, Pushed, Readiness, Report, Time,
};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use sys::clock::{boot_ns, monotonic_ns};
use sys::v4l2::queue::{Frame, Queue, end_former};
use sys::v4l2::{Event, next_event, subscribe};
use wire::formats::controls::{Setting, Update};
use wire::formats::video::{Geometry, Header, PixelFormat};

/// Buffers that the driver always has to write to: with fewer a frame is copied, so that the camera goes on.
const FREE_MIN: usize = 2;
/// Pictures' worth of memory kept for use again.
const PICTURES_KEPT: usize = 8;
/// How long a camera may be in use by another program, or by frames under way, before it counts as gone.
const BUSY_MAX: Duration = Duration::from_secs(1);
/// How often it is looked whether it is free.
const BUSY_LOOK: Duration = Duration::from_millis(20);
/// Times that frames may stop without one in between before the camera counts as gone.
const STOPS_MAX: u32 = 5;

/// A camera as a partner.
pub(super) struct Camera {
    name: String,
    node: OwnedFd,
    properties: Properties,
    wanted: Wanted,
    buffers: u32,
    is_private: bool,
    flows: Flows,
    slot: PullSlot,
    geometry: Geometry,
    /// While frames flow.
    queue: Option<Queue>,
    /// Since when frames ought to flow and cannot, and when to try again.
    busy: Option<(Time, Time)>,
    stops: u32,
    /// The other side says that nobody looks.
    is_idle: bool,
    last_sequence: Option<u32>,
    pool: Pool,
    figures: Figures,
}

/// What [`Ctl::Report`] tells.
#[derive(Debug, Default)]
struct Figures {
    frames: u64,
    copied: u64,
    missed: u64,
    damaged: u64,
    starts: u64,
    settings: u64,
    refused: u64,
}

impl Camera {
    /// A partner on a camera that was opened without blocking, in `buffers` of its driver.
    pub(super) fn new(
        name: String,
        node: OwnedFd,
        properties: Properties,
        wanted: Wanted,
        buffers: u32,
        is_private: bool,
    ) -> Self {
        Camera {
            name,
            node,
            flows: Flows::new(true, true),
            slot: PullSlot::default(),
            geometry: properties.geometry,
            properties,
            wanted,
            buffers,
            is_private,
            queue: None,
            busy: None,
            stops: 0,
            is_idle: false,
            last_sequence: None,
            pool: Pool::new(0, 0),
            figures: Figures::default(),
        }
    }

    fn gone(&self, why: &str) -> PartnerError {
        PartnerError::Gone(format!("{} ({why})", self.name))
    }

    fn failed(&self, operation: &str, error: io::Error) -> PartnerError {
        match is(&error, Errno::NODEV) {
            true => self.gone("unplugged"),
            false => PartnerError::os(format!("{operation} {}", self.name), error),
        }
    }

    /// Lets frames flow; says whether they do.
    fn start(&mut self, now: Time) -> Result<bool, PartnerError> {
        if self.busy.is_some_and(|(_, look_at)| now < look_at) {
            return Ok(false);
        }
        let started = match self.try_start() {
            // A worker that was killed left its frames flowing.
            Err(error) if is(&error, Errno::BUSY) => {
                end_former(self.node.as_fd()).and_then(|()| self.try_start())
            }
            started => started,
        };
        match started {
            Ok(()) => {
                self.busy = None;
                Ok(true)
            }
            Err(error) if is(&error, Errno::BUSY) => {
                let (since, _) = self.busy.unwrap_or((now, now));
                if now.since(since) >= BUSY_MAX {
                    return Err(self.gone("another program has it"));
                }
                self.busy = Some((since, now.after(BUSY_LOOK)));
                Ok(false)
            }
            Err(error) => Err(self.failed("starting", error)),
        }
    }

    fn try_start(&mut self) -> io::Result<()> {
        // Another program may have chosen other pictures since this one looked.
        self.geometry = match negotiate::camera(self.node.as_fd(), &self.name, &self.wanted) {
            Ok(geometry) => geometry,
            Err(contract::DeviceError::Os { error, .. }) => return Err(error),
            Err(error) => return Err(io::Error::other(error.to_string())),
        };
        // A driver that does not tell of another size stops the frames all the same.
        let _ = subscribe(self.node.as_fd(), Event::SourceChange);
        let queue = Queue::new(self.node.try_clone()?, self.buffers, self.is_private)?;
        queue.start()?;
        self.queue = Some(queue);
        self.last_sequence = None;
        self.figures.starts += 1;
        Ok(())
    }

    /// Stops the frames, and lets other programs have the camera.
    fn stop(&mut self) {
        if let Some(queue) = self.queue.take() {
            // A camera that went away has stopped by itself.
            let _ = queue.end();
        }
        self.busy = None;
    }

    fn is_flowing(&self) -> bool {
        self.flows.is_open(Direction::Out) && !self.is_idle
    }

    fn next(&mut self, now: Time) -> Result<Next, PartnerError> {
        if !self.is_flowing() || self.queue.is_none() && !self.start(now)? {
            return Ok(Next::Nothing);
        }
        while let Some(queue) = &self.queue {
            match queue.take() {
                Ok(None) => return Ok(Next::Nothing),
                Ok(Some(frame)) => {
                    if let Some(message) = self.message(frame) {
                        self.stops = 0;
                        return Ok(Next::Message(message));
                    }
                }
                Err(error) if is(&error, Errno::NODEV) => return Err(self.gone("unplugged")),
                Err(error) => self.begin_anew(error)?,
            }
        }
        Ok(Next::Nothing)
    }

    /// The frames stopped by themselves: the pictures have another size, or the driver has some trouble.
    fn begin_anew(&mut self, error: io::Error) -> Result<(), PartnerError> {
        self.stops += 1;
        if self.stops > STOPS_MAX {
            return Err(self.failed("reading", error));
        }
        self.stop();
        while let Ok(Some(_)) = next_event(self.node.as_fd()) {}
        self.start(now()).map(|_| ())
    }

    /// The message of a frame; `None` if the frame is not whole.
    fn message(&mut self, frame: Frame) -> Option<Message> {
        let expected = self.last_sequence.map(|last| last.wrapping_add(1));
        self.figures.missed += expected.map_or(0, |next| frame.sequence.wrapping_sub(next).into());
        self.last_sequence = Some(frame.sequence);
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

    /// The first `bytes` of a frame: where they are, if the driver has buffers enough without this one.
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

    fn set(&mut self, settings: &[Setting]) -> Result<(), PartnerError> {
        for Setting { id, value } in settings {
            let knob = self.properties.knobs.iter().find(|knob| knob.control.id == *id);
            let answer = match knob {
                Some(knob) => {
                    sys::v4l2::controls::set_value(self.node.as_fd(), *id, knob.control.kind, *value)
                }
                None => Err(Errno::INVAL.into()),
            };
            self.figures.settings += 1;
            match answer {
                Ok(()) => {}
                Err(error) if is(&error, Errno::NODEV) => return Err(self.gone("unplugged")),
                // Not in this mode, or not this value: the camera goes on as it is.
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

impl Drop for Camera {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Partner for Camera {
    fn open(&mut self, template: &FlowTemplate, _: &Attributes) -> Result<FlowKey, PartnerError> {
        let format = match template.direction {
            Direction::Out => Format::Video,
            Direction::In => Format::Controls,
        };
        self.is_idle = false;
        self.flows.open(template, &format)
    }

    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError> {
        if self.flows.close(flow)? == Direction::Out {
            self.slot = PullSlot::default();
            self.stop();
        }
        Ok(())
    }

    fn push(&mut self, flow: FlowKey, mut message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if let Err(error) = self.flows.check(flow, Direction::In) {
            return Err((error, message));
        }
        let done = match Update::parse(message.body.as_slice()) {
            Ok(Update::Settings(settings)) => self.set(&settings),
            Ok(Update::Wanted(wanted)) => {
                self.is_idle = !wanted;
                if self.is_idle {
                    self.stop();
                }
                Ok(())
            }
            Err(error) => Err(PartnerError::Message(error.to_string())),
        };
        match done {
            Ok(()) => Ok(Pushed::Taken),
            Err(error) => Err((error, message)),
        }
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        self.flows.check(flow, Direction::Out)?;
        let mut slot = std::mem::take(&mut self.slot);
        let answer = slot.answer(OUT, want, || self.next(now()));
        self.slot = slot;
        answer
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        self.flows.check_any(flow)?;
        match operation {
            // A camera stays as it was set.
            Ctl::Flush | Ctl::Finish | Ctl::Neutral => Ok(CtlReply::Done),
            Ctl::Report => Ok(CtlReply::Report(self.report())),
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        if !self.flows.names(flow, direction) {
            return Readiness::never();
        }
        match (direction, &self.queue) {
            (Direction::In, _) => Readiness::now(),
            (Direction::Out, Some(_)) => Readiness {
                now: self.slot.is_held(),
                ..Readiness::descriptor(self.node.as_fd(), Interest::Read)
            },
            (Direction::Out, None) if self.slot.is_held() => Readiness::now(),
            (Direction::Out, None) if !self.is_flowing() => Readiness::never(),
            (Direction::Out, None) => match self.busy {
                Some((_, look_at)) => Readiness::at(look_at),
                None => Readiness::now(),
            },
        }
    }
}
