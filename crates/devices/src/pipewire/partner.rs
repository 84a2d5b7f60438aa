//! The worker's side: pictures from messages to the shared memory, and the user's settings to the camera.
//!
//! | event | effect |
//! |---|---|
//! | a picture comes | it is fitted to the format that programs know, and becomes the newest one |
//! | the link is silent, the camera is absent, the flow closes, a worker starts | the last picture is stale: the thread repeats it |
//! | a program begins or stops to take pictures | the camera is told |
//! | the picture thread is gone | [`PartnerError::Gone`] |

use super::memory::{Pictures, Word};
use super::target;
use crate::fitting::Fitting;
use crate::flows::{Endpoint, FlowPartner};
use crate::helper_thread::{Other, clear, signal};
use crate::pixels;
use crate::v4l2::{CameraUser, PictureOptions};
use contract::{
    Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Interest, Message, Next, PartnerError,
    PartnerResult, PullSlot, Readiness, Report, Time,
};
use std::os::fd::{AsFd, OwnedFd};
use wire::formats::controls::Update;
use wire::formats::video::Geometry;

/// A video source of PipeWire as a partner.
#[derive(Debug)]
pub(super) struct CameraPartner {
    name: String,
    control: OwnedFd,
    memory: Pictures,
    options: PictureOptions,
    fitting: Fitting,
    user: CameraUser,
    /// The camera is on only while a program takes its pictures.
    is_on_demand: bool,
    figures: Figures,
}

/// The figures of [`Ctl::Report`].
#[derive(Debug, Default)]
struct Figures {
    frames: u64,
    neutrals: u64,
}

/// The parameters of [`CameraPartner::new`].
pub(super) struct Parts {
    pub(super) name: String,
    pub(super) control: OwnedFd,
    pub(super) memory: Pictures,
    /// The user's options for the pictures of the node.
    pub(super) options: PictureOptions,
    pub(super) user: CameraUser,
    /// The device has a flow of settings.
    pub(super) has_controls: bool,
    pub(super) is_on_demand: bool,
}

impl CameraPartner {
    pub(super) fn new(parts: Parts) -> FlowPartner<CameraPartner> {
        let Parts { name, control, memory, options, user, has_controls, is_on_demand } = parts;
        let (fitting, figures) = (Fitting::new(), Figures::default());
        let mut partner =
            CameraPartner { name, control, memory, options, fitting, user, is_on_demand, figures };
        // A program that comes early gets a black picture. After a restart of the worker, the last picture stays.
        if let Some(geometry) = partner.memory.geometry().filter(|_| !partner.has_picture())
            && let Some(picture) = partner.fitting.black(&geometry)
        {
            partner.memory.write(&picture);
        }
        partner.set_stale(true);
        FlowPartner::new(partner, has_controls.then_some(Format::Controls), Some(Format::Video))
    }

    fn has_picture(&self) -> bool {
        self.memory.is_fresh() || self.memory.front_bytes().is_some()
    }

    fn check(&self) -> PartnerResult {
        match clear(self.control.as_fd()) {
            Other::Here => Ok(()),
            Other::Gone => Err(PartnerError::Gone(self.name.clone())),
        }
    }

    fn set_stale(&self, is_stale: bool) {
        if self.memory.is(Word::IsStale) != is_stale {
            self.memory.store(Word::IsStale, is_stale.into());
            signal(self.control.as_fd());
        }
    }

    fn wrong(&self, problem: &str) -> PartnerError {
        PartnerError::Message(format!("{}: {problem}", self.name))
    }

    /// Returns true while the camera is wanted; `None` if it is always on.
    fn is_wanted(&self) -> Option<bool> {
        self.is_on_demand.then(|| self.memory.is(Word::IsWanted))
    }

    /// Returns the geometry of the node. The first picture determines it, unless the camera has.
    fn geometry(&self, pictures: &Geometry) -> PartnerResult<Geometry> {
        if let Some(geometry) = self.memory.geometry() {
            return Ok(geometry);
        }
        let geometry = target(pictures, &self.options).map_err(|problem| self.wrong(&problem))?;
        self.memory.set_geometry(geometry);
        signal(self.control.as_fd());
        Ok(geometry)
    }

    fn report(&self) -> Vec<Report> {
        let word = |word| self.memory.load(word) as f64;
        vec![
            ("frames", self.figures.frames as f64),
            ("frames converted", self.fitting.converted() as f64),
            ("frames shown", word(Word::Shown)),
            ("frames repeated", word(Word::Repeated)),
            ("frames without room", word(Word::Busy)),
            ("neutral", self.figures.neutrals as f64),
            ("settings", self.user.settings_made() as f64),
            ("is wanted", word(Word::IsWanted)),
        ]
    }
}

impl Endpoint for CameraPartner {
    fn opened(&mut self, template: &FlowTemplate, slot: &mut PullSlot) -> PartnerResult {
        if template.direction == Direction::Out {
            *slot = PullSlot::default();
            self.user.queue_state(self.is_wanted());
        }
        Ok(())
    }

    fn closed(&mut self, direction: Direction, _slot: &mut PullSlot) -> PartnerResult {
        if direction == Direction::In {
            self.set_stale(true);
        }
        Ok(())
    }

    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        self.check()?;
        let (pictures, bytes) = pixels::picture(&message.body).map_err(PartnerError::Message)?;
        let geometry = self.geometry(&pictures)?;
        let fitted = self.fitting.fit(&pictures, bytes, &geometry);
        let picture = fitted.map_err(|problem| self.wrong(&problem))?;
        self.memory.write(&picture);
        // A pair may repeat the last picture of a silent camera, too.
        self.memory.store(Word::IsStale, message.attributes.stale.into());
        // Without a program, the thread has nothing to do. It looks at the memory when one comes.
        if self.memory.is(Word::IsWanted) {
            signal(self.control.as_fd());
        }
        self.figures.frames += 1;
        Ok(true)
    }

    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        self.check()?;
        if let Some(wanted) = self.is_wanted() {
            self.user.set_wanted(wanted);
        }
        let message = |update: Update| Next::Message(Message::new(now, update.to_bytes()));
        Ok(self.user.next().map_or(Next::Nothing, message))
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish => Ok(CtlReply::Done),
            Ctl::Neutral => {
                self.figures.neutrals += 1;
                self.set_stale(true);
                Ok(CtlReply::Done)
            }
            Ctl::Snapshot => {
                *slot = PullSlot::default();
                self.user.queue_state(self.is_wanted());
                Ok(CtlReply::Done)
            }
            Ctl::Command(text) => match self.user.handle_command(text) {
                Ok(answer) => Ok(CtlReply::Bytes(answer.into_bytes())),
                Err(problem) => Err(PartnerError::Message(problem)),
            },
            Ctl::Report => Ok(CtlReply::Report(self.report())),
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::In => Readiness::now(),
            Direction::Out if self.user.has_update() => Readiness::now(),
            Direction::Out => Readiness::descriptor(self.control.as_fd(), Interest::Read),
        }
    }
}
