//! The application side: a node of v4l2loopback as a partner. Pushes take frames, which are converted to the format
//! that the node's readers know. Pulls return the settings of this host's user for the camera, and whether the camera
//! is wanted.

use super::negotiate::{self, PictureOptions};
use super::properties::CameraControl;
use super::user::CameraUser;
use super::watcher::WatcherClient;
use crate::fitting::Fitting;
use crate::flows::{Endpoint, FlowPartner};
use crate::pixels;
use contract::{
    Body, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Interest, Message, Next, PartnerError,
    PartnerResult, PullSlot, Readiness, Report, Time,
};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use sys::v4l2::controls::{Kind, named, set_value};
use wire::formats::controls::{Setting, Update};
use wire::formats::video::Geometry;

/// The control of v4l2loopback that repeats the last picture at the rate of the node.
const SUSTAIN: &str = "sustain_framerate";

/// A node as a partner.
pub(super) struct NodePartner {
    name: String,
    node: OwnedFd,
    options: PictureOptions,
    /// The format of the node, once it is negotiated.
    target: Option<Geometry>,
    fitting: Fitting,
    /// The control [`SUSTAIN`] and its value; `None` if the node lacks it.
    sustain: Option<(u32, bool)>,
    user: CameraUser,
    /// Reports the node's readers; `None` if the camera is always on.
    watcher: Option<WatcherClient>,
    figures: Figures,
}

/// The figures of [`Ctl::Report`].
#[derive(Debug, Default)]
struct Figures {
    frames: u64,
    neutrals: u64,
}

/// The parameters of [`NodePartner::new`].
pub(super) struct Parts {
    pub(super) name: String,
    /// The node, opened non-blocking.
    pub(super) node: OwnedFd,
    /// The format of the expected pictures, if it is known.
    pub(super) pictures: Option<Geometry>,
    /// The user's options for the node's own pictures.
    pub(super) options: PictureOptions,
    /// The camera's controls.
    pub(super) controls: Vec<CameraControl>,
    /// The initial settings of the controls.
    pub(super) settings: Vec<Setting>,
    /// Reports the node's readers, if the camera is on only while there are some.
    pub(super) watcher: Option<WatcherClient>,
}

impl NodePartner {
    pub(super) fn new(parts: Parts) -> FlowPartner<Self> {
        let Parts { name, node, pictures, options, controls, settings, watcher } = parts;
        let sustain = named(node.as_fd(), SUSTAIN).ok().flatten().map(|control| (control.id, false));
        let has_out = !controls.is_empty() || watcher.is_some();
        let mut partner = NodePartner {
            name,
            node,
            options,
            target: None,
            fitting: Fitting::new(),
            sustain,
            user: CameraUser::new(controls, &settings),
            watcher,
            figures: Figures::default(),
        };
        // The node has a capture format only if pictures were written to it: by a worker that was killed.
        let is_resumed = sys::v4l2::format(partner.node.as_fd(), sys::v4l2::Direction::Capture).is_ok();
        // Write a black picture, so that a program that opens the node early does not wait. After a restart, readers
        // keep the last picture instead. On an error here the first picture fails, too, and reports it.
        if let Some(target) = pictures.and_then(|pictures| partner.negotiate(&pictures).ok()) {
            if !is_resumed && let Some(black) = partner.fitting.black(&target) {
                let _ = rustix::io::write(&partner.node, &black);
            }
            partner.set_repeat(true);
        }
        FlowPartner::new(partner, has_out.then_some(Format::Controls), Some(Format::Video))
    }

    /// Negotiates the node's format for pictures of this format, and makes it known to readers.
    fn negotiate(&mut self, pictures: &Geometry) -> Result<Geometry, String> {
        let target = negotiate::sink(self.node.as_fd(), pictures, &self.options)?;
        // With exclusive_caps, v4l2loopback presents the node as a camera from here on, not only from the first
        // picture. Other drivers may refuse this.
        let _ = sys::v4l2::stream(self.node.as_fd(), sys::v4l2::Direction::Output, true);
        self.target = Some(target);
        Ok(target)
    }

    /// Sets whether the node repeats its last picture, so that readers do not hang while no picture arrives.
    fn set_repeat(&mut self, on: bool) {
        if let Some((id, is_on)) = &mut self.sustain
            && *is_on != on
            && set_value(self.node.as_fd(), *id, Kind::Boolean, on.into()).is_ok()
        {
            *is_on = on;
        }
    }

    /// Writes a picture to the node. Returns `false` if the node is busy.
    fn write_picture(&mut self, body: &Body) -> PartnerResult<bool> {
        let (pictures, bytes) = pixels::picture(body).map_err(PartnerError::Message)?;
        let target = match self.target {
            Some(target) => target,
            None => self.negotiate(&pictures).map_err(|problem| self.wrong(&problem))?,
        };
        let fitted = self.fitting.fit(&pictures, bytes, &target);
        let bytes = fitted.map_err(|problem| self.wrong(&problem))?;
        match rustix::io::write(&self.node, &bytes) {
            Ok(_) => {
                self.figures.frames += 1;
                self.set_repeat(false);
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(Errno::NODEV) => Err(PartnerError::Gone(self.name.clone())),
            Err(error) => Err(PartnerError::os(format!("writing to {}", self.name), error)),
        }
    }

    fn wrong(&self, problem: &str) -> PartnerError {
        PartnerError::Message(format!("{}: {problem}", self.name))
    }

    /// Queues an update if the camera has become wanted or unwanted.
    fn queue_wanted(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        let wanted = watcher.is_wanted();
        self.user.set_wanted(wanted);
        // A reader that the watcher has missed gets the last picture while the camera is off.
        if !wanted {
            self.set_repeat(true);
        }
    }

    /// Replaces the queue by the current state.
    fn queue_state(&mut self, slot: &mut PullSlot) {
        *slot = PullSlot::default();
        let wanted = self.watcher.as_mut().map(WatcherClient::is_wanted);
        self.user.queue_state(wanted);
    }

    fn report(&self) -> Vec<Report> {
        let mut report = vec![
            ("frames", self.figures.frames as f64),
            ("frames converted", self.fitting.converted() as f64),
            ("neutral", self.figures.neutrals as f64),
            ("settings", self.user.settings_made() as f64),
        ];
        report.extend(self.watcher.as_ref().map(|watcher| ("readers", watcher.readers() as f64)));
        report
    }
}

impl Drop for NodePartner {
    fn drop(&mut self) {
        self.set_repeat(false);
    }
}

impl Endpoint for NodePartner {
    fn opened(&mut self, template: &FlowTemplate, slot: &mut PullSlot) -> PartnerResult {
        if template.direction == Direction::Out {
            self.queue_state(slot);
        }
        Ok(())
    }

    fn closed(&mut self, direction: Direction, _slot: &mut PullSlot) -> PartnerResult {
        if direction == Direction::In {
            self.set_repeat(true);
        }
        Ok(())
    }

    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        self.write_picture(&message.body)
    }

    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        self.queue_wanted();
        let message = |update: Update| Next::Message(Message::new(now, update.to_bytes()));
        Ok(self.user.next().map_or(Next::Nothing, message))
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish => Ok(CtlReply::Done),
            Ctl::Neutral => {
                self.figures.neutrals += 1;
                self.set_repeat(true);
                Ok(CtlReply::Done)
            }
            Ctl::Snapshot => {
                self.queue_state(slot);
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
        let has_update = self.user.has_update();
        match (direction, &self.watcher) {
            (Direction::Out, Some(watcher)) => Readiness {
                now: has_update,
                descriptors: [watcher.descriptor().map(|socket| (socket, Interest::Read)), None],
                ..Readiness::never()
            },
            (Direction::Out, None) if has_update => Readiness::now(),
            (Direction::Out, None) => Readiness::never(),
            // v4l2loopback is always writable; other drivers block until they have room.
            (Direction::In, _) => Readiness::descriptor(self.node.as_fd(), Interest::Write),
        }
    }
}
