//! The device side: an output as a partner. Pulls return pictures and changed rectangles. Pushes take the viewer's input.

use super::screen::Screen;
use super::way::Way;
use crate::flows::{Endpoint, FlowPartner, OUT, invalid};
use crate::plain::is_view_only;
use contract::{
    Ctl, CtlReply, DeviceSpec, Direction, FlowKey, FlowTemplate, Format, Message, Next, PartnerError,
    PartnerResult, PullSlot, Readiness, Report, Time,
};
use std::io;
use sys::clock::boot_ns;
use wire::formats::viewer::Event;

/// An output as a partner.
#[derive(Debug)]
pub(super) struct DevicePartner<W: Way> {
    way: W,
    screen: Screen,
    is_view_only: bool,
    inputs: u64,
    refused: u64,
}

fn now() -> Time {
    Time(boot_ns())
}

impl<W: Way> DevicePartner<W> {
    /// Makes a partner that uses this way.
    pub(super) fn new(spec: &DeviceSpec, way: W) -> FlowPartner<Self> {
        let is_view_only = is_view_only(spec);
        let partner =
            DevicePartner { way, screen: Screen::new(&spec.options), is_view_only, inputs: 0, refused: 0 };
        FlowPartner::new(partner, Some(Format::Video), (!is_view_only).then_some(Format::Viewer))
    }

    fn next_message(&mut self) -> io::Result<Next> {
        self.way.exchange(&mut self.screen, now())?;
        self.screen.handle_pull(now());
        self.way.pull(&mut self.screen, now())?;
        Ok(self.screen.message(now()).map_or(Next::Nothing, Next::Message))
    }

    fn size(&self) -> (u32, u32) {
        self.screen.size().unwrap_or_else(|| self.way.size())
    }

    /// Applies an input event of the viewer. Counts events that this screen cannot apply.
    fn apply(&mut self, event: Event) -> io::Result<()> {
        self.inputs += 1;
        let size = self.size();
        match event {
            Event::Refresh => self.screen.request_whole(),
            Event::Key { keysym, pressed } if !self.is_view_only => {
                self.refused += u64::from(!self.way.change_key(keysym, pressed)?);
            }
            Event::Pointer { x, y, buttons } if !self.is_view_only => {
                self.way.change_pointer((x, y), buttons, size)?;
            }
            _ => self.refused += 1,
        }
        self.way.flush()
    }

    /// Releases all keys and buttons.
    fn release_all(&mut self) -> io::Result<()> {
        let size = self.size();
        self.way.release_all(size)?;
        self.way.flush()
    }

    fn report(&self) -> Vec<Report> {
        let figures = &self.screen.figures;
        let mut report = vec![
            ("frames", figures.frames as f64),
            ("partial", figures.partial as f64),
            ("rectangles", figures.rectangles as f64),
            ("copies", figures.copies as f64),
            ("failed", figures.failed as f64),
            ("sizes", figures.sizes as f64),
            ("inputs", self.inputs as f64),
            ("inputs refused", self.refused as f64),
        ];
        report.extend(self.way.figures());
        report
    }
}

impl<W: Way> Drop for DevicePartner<W> {
    /// Releases what the viewer holds: the broker may keep the connection open.
    fn drop(&mut self) {
        // An error means that the desktop is gone, and its keyboard with it.
        let _ = self.release_all();
    }
}

impl<W: Way> Endpoint for DevicePartner<W> {
    fn opened(&mut self, template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        if template.direction == Direction::Out {
            self.screen.request_whole();
            self.way.set_watched(true);
            self.way.flush().map_err(|error| self.way.error(error))?;
        }
        Ok(())
    }

    fn closed(&mut self, direction: Direction, slot: &mut PullSlot) -> PartnerResult {
        match direction {
            Direction::Out => {
                *slot = PullSlot::default();
                self.way.set_watched(false);
                self.way.flush().map_err(|error| self.way.error(error))
            }
            Direction::In => self.release_all().map_err(|error| self.way.error(error)),
        }
    }

    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        if self.way.is_full() {
            self.way.exchange(&mut self.screen, now()).map_err(|error| self.way.error(error))?;
        }
        if self.way.is_full() {
            return Ok(false);
        }
        let event = Event::parse(message.body.as_slice()).map_err(invalid)?;
        self.apply(event).map_err(|error| self.way.error(error))?;
        Ok(true)
    }

    fn next(&mut self, _now: Time) -> PartnerResult<Next> {
        self.next_message().map_err(|error| self.way.error(error))
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>, slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish => {}
            Ctl::Snapshot => {
                *slot = PullSlot::default();
                self.screen.request_whole();
            }
            Ctl::Merging(merges) => self.screen.set_merging(merges),
            Ctl::Neutral if flow == OUT => {}
            Ctl::Neutral => self.release_all().map_err(|error| self.way.error(error))?,
            Ctl::Report => return Ok(CtlReply::Report(self.report())),
            _ => return Err(PartnerError::Unsupported("this control operation")),
        }
        Ok(CtlReply::Done)
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::In if self.way.is_full() => self.way.input_readiness(),
            Direction::In => Readiness::now(),
            Direction::Out if self.screen.is_ready() => Readiness::now(),
            Direction::Out => self.way.frame_readiness(&self.screen),
        }
    }
}
