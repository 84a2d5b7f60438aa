//! The application's side: a node of v4l2loopback as a partner. Into it go frames, made into what its readers were told
//! of; out of it come the settings that this host's user asks of the camera, and whether anybody reads.

use super::negotiate::{self, Wanted};
use super::properties::{Knob, settings};
use super::watch::Watch;
use crate::flows::{Flows, OUT};
use crate::pixels;
use crate::stream::now;
use buffers::Pool;
use contract::{
    Attributes, Body, Bytes, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Interest, Message,
    Next, Partner, PartnerError, Pull, PullSlot, Pulled, Pushed, Readiness, Report, Time,
};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use sys::v4l2::controls::{Kind, named, set_value};
use wire::formats::controls::{SETTINGS_MAX, Setting, Update};
use wire::formats::video::{Geometry, PixelFormat};

/// Pictures' worth of memory kept for use again.
const PICTURES_KEPT: usize = 2;
/// The control of v4l2loopback that repeats the last picture at the rate of the node.
const SUSTAIN: &str = "sustain_framerate";

/// A node as a partner.
pub(super) struct NodePartner {
    name: String,
    node: OwnedFd,
    wanted: Wanted,
    flows: Flows,
    slot: PullSlot,
    /// What the node takes, once it is settled.
    target: Option<Geometry>,
    pool: Pool,
    /// The node repeats its last picture: this is its control, and whether it is on.
    sustain: Option<(u32, bool)>,
    knobs: Vec<Knob>,
    /// Where each control was asked to stand.
    asked: BTreeMap<u32, i64>,
    /// To be said to the camera.
    waiting: VecDeque<Update>,
    /// Who reads; none if the camera is always on.
    watch: Option<Watch>,
    /// Whether the camera was told that it is wanted.
    told: Option<bool>,
    figures: Figures,
}

/// What [`Ctl::Report`] tells.
#[derive(Debug, Default)]
struct Figures {
    frames: u64,
    converted: u64,
    neutrals: u64,
    settings: u64,
}

/// What a node is made of.
pub(super) struct Parts {
    pub(super) name: String,
    /// Opened without blocking.
    pub(super) node: OwnedFd,
    /// Pictures that are known to come, for which the node is made ready at once.
    pub(super) pictures: Option<Geometry>,
    /// What the user asks of the node's own pictures.
    pub(super) wanted: Wanted,
    /// The camera's controls.
    pub(super) knobs: Vec<Knob>,
    /// What they are to be set to at first.
    pub(super) settings: Vec<Setting>,
    /// Who reads, if the camera is to be on only then.
    pub(super) watch: Option<Watch>,
}

impl NodePartner {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { name, node, pictures, wanted, knobs, settings, watch } = parts;
        let sustain = named(node.as_fd(), SUSTAIN).ok().flatten().map(|control| (control.id, false));
        let flows = Flows::new(!knobs.is_empty() || watch.is_some(), true);
        let mut partner = NodePartner {
            name,
            node,
            wanted,
            flows,
            slot: PullSlot::default(),
            target: None,
            pool: Pool::new(0, 0),
            sustain,
            knobs,
            asked: settings.iter().map(|setting| (setting.id, setting.value)).collect(),
            waiting: VecDeque::new(),
            watch,
            told: None,
            figures: Figures::default(),
        };
        // v4l2loopback tells its readers of pictures once somebody gave some: a worker that was killed.
        let goes_on = sys::v4l2::format(partner.node.as_fd(), sys::v4l2::Direction::Capture).is_ok();
        // Who opens the node before anything came sees black, and does not wait; who reads already sees no black between
        // pictures. If that fails, so will the first picture, and say why.
        if let Some(target) = pictures.and_then(|pictures| partner.settle(&pictures).ok()) {
            if !goes_on && pixels::is_convertible(target.pixels()) {
                let mut memory = partner.memory(target.bytes());
                pixels::black(&target, &mut memory);
                let _ = rustix::io::write(&partner.node, &memory);
            }
            partner.repeat(true);
        }
        partner
    }

    /// Decides what the node takes for pictures like these, and tells its readers.
    fn settle(&mut self, pictures: &Geometry) -> Result<Geometry, String> {
        let target = negotiate::sink(self.node.as_fd(), pictures, &self.wanted)?;
        // Makes it a camera to others (v4l2loopback with exclusive_caps, which else does so at the first picture, and
        // is no output any more once this closes); what has no use for that refuses.
        let _ = sys::v4l2::stream(self.node.as_fd(), sys::v4l2::Direction::Output, true);
        self.target = Some(target);
        Ok(target)
    }

    fn memory(&mut self, bytes: usize) -> buffers::Lease {
        if self.pool.capacity() != bytes {
            self.pool = Pool::new(bytes, PICTURES_KEPT);
        }
        self.pool.take()
    }

    /// Has the node repeat its last picture, or not, so that who reads does not hang while none comes.
    fn repeat(&mut self, on: bool) {
        if let Some((id, is_on)) = &mut self.sustain
            && *is_on != on
            && set_value(self.node.as_fd(), *id, Kind::Boolean, on.into()).is_ok()
        {
            *is_on = on;
        }
    }

    /// Shows a picture; says whether the node took it.
    fn show(&mut self, body: &Body) -> Result<bool, PartnerError> {
        let (pictures, bytes) = pixels::picture(body).map_err(PartnerError::Message)?;
        let target = match self.target {
            Some(target) => target,
            None => self.settle(&pictures).map_err(|problem| self.wrong(&problem))?,
        };
        let bytes = self.fitted(&pictures, bytes, &target)?;
        match rustix::io::write(&self.node, &bytes) {
            Ok(_) => {
                self.figures.frames += 1;
                self.repeat(false);
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

    /// The picture as the node takes it: the same bytes, if they lie so already.
    fn fitted(&mut self, from: &Geometry, bytes: Bytes, to: &Geometry) -> Result<Bytes, PartnerError> {
        let lies =
            |geometry: &Geometry| (geometry.pixels(), geometry.width(), geometry.height(), geometry.stride());
        if lies(from) == lies(to) {
            return Ok(bytes);
        }
        if from.pixels() == PixelFormat::Mjpeg || to.pixels() == PixelFormat::Mjpeg {
            let (theirs, size) = (from.pixels().fourcc(), (from.width(), from.height()));
            let theirs = String::from_utf8_lossy(&theirs);
            return Err(self.wrong(&format!(
                "pictures of {theirs}, {size:?}, come now, which cannot be made into what its readers were told of: attach again"
            )));
        }
        let mut memory = self.memory(to.bytes());
        pixels::convert(from, &bytes, to, &mut memory);
        self.figures.converted += 1;
        Ok(memory.freeze())
    }

    fn next(&mut self, now: Time) -> Next {
        self.tell_wanted();
        match self.waiting.pop_front() {
            Some(update) => Next::Message(Message::new(now, update.to_bytes())),
            None => Next::Nothing,
        }
    }

    /// Tells the camera if somebody comes to read, or the last one left a while ago.
    fn tell_wanted(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let wanted = watch.look();
        if self.told.is_some_and(|told| told != wanted) {
            self.told = Some(wanted);
            self.waiting.push_back(Update::Wanted(wanted));
        }
        // While the camera rests, who has the node open all the same sees its last picture.
        if !wanted {
            self.repeat(true);
        }
    }

    /// Says everything anew.
    fn say_all(&mut self) {
        self.waiting.clear();
        self.slot = PullSlot::default();
        let settings = self.asked.iter().map(|(id, value)| Setting { id: *id, value: *value }).collect();
        self.waiting.push_back(Update::Settings(settings));
        if let Some(watch) = &mut self.watch {
            let wanted = watch.look();
            self.told = Some(wanted);
            self.waiting.push_back(Update::Wanted(wanted));
        }
    }

    /// What the user says: settings, or nothing, to be told what there is.
    fn hear(&mut self, words: &str) -> Result<String, String> {
        let new = settings(&self.knobs, words)?;
        if new.len() > SETTINGS_MAX {
            return Err(format!("at most {SETTINGS_MAX} settings at once"));
        }
        if !new.is_empty() {
            self.asked.extend(new.iter().map(|setting| (setting.id, setting.value)));
            self.figures.settings += new.len() as u64;
            // What is not said yet is said with it: nothing waits without bound.
            self.waiting.retain(|update| !matches!(update, Update::Settings(_)));
            let all = self.asked.iter().map(|(id, value)| Setting { id: *id, value: *value });
            self.waiting.push_back(Update::Settings(all.collect()));
        }
        let shown = self
            .knobs
            .iter()
            .filter(|knob| new.is_empty() || new.iter().any(|setting| setting.id == knob.control.id));
        let stands = |knob: &Knob| self.asked.get(&knob.control.id).copied().unwrap_or(knob.value);
        Ok(shown.map(|knob| knob.describe(stands(knob))).collect::<Vec<_>>().join("\n"))
    }

    fn report(&self) -> Vec<Report> {
        let mut report = vec![
            ("frames", self.figures.frames as f64),
            ("frames converted", self.figures.converted as f64),
            ("neutral", self.figures.neutrals as f64),
            ("settings", self.figures.settings as f64),
        ];
        report.extend(self.watch.as_ref().map(|watch| ("readers", watch.readers() as f64)));
        report
    }
}

impl Drop for NodePartner {
    fn drop(&mut self) {
        self.repeat(false);
    }
}

impl Partner for NodePartner {
    fn open(&mut self, template: &FlowTemplate, _: &Attributes) -> Result<FlowKey, PartnerError> {
        let format = match template.direction {
            Direction::In => Format::Video,
            Direction::Out => Format::Controls,
        };
        let flow = self.flows.open(template, &format)?;
        if template.direction == Direction::Out {
            self.say_all();
        }
        Ok(flow)
    }

    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError> {
        if self.flows.close(flow)? == Direction::In {
            self.repeat(true);
        }
        Ok(())
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        match self.flows.check(flow, Direction::In).and_then(|()| self.show(&message.body)) {
            Ok(true) => Ok(Pushed::Taken),
            Ok(false) => Ok(Pushed::Full(message)),
            Err(error) => Err((error, message)),
        }
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        self.flows.check(flow, Direction::Out)?;
        let mut slot = std::mem::take(&mut self.slot);
        let answer = slot.answer(OUT, want, || Ok(self.next(now())));
        self.slot = slot;
        answer
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        self.flows.check_any(flow)?;
        match operation {
            Ctl::Flush | Ctl::Finish => Ok(CtlReply::Done),
            Ctl::Neutral => {
                self.figures.neutrals += 1;
                self.repeat(true);
                Ok(CtlReply::Done)
            }
            Ctl::Snapshot => {
                self.say_all();
                Ok(CtlReply::Done)
            }
            Ctl::Say(words) => match self.hear(words) {
                Ok(answer) => Ok(CtlReply::Bytes(answer.into_bytes())),
                Err(problem) => Err(PartnerError::Message(problem)),
            },
            Ctl::Report => Ok(CtlReply::Report(self.report())),
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        if !self.flows.names(flow, direction) {
            return Readiness::never();
        }
        let has_one = self.slot.is_held() || !self.waiting.is_empty();
        match (direction, &self.watch) {
            (Direction::Out, Some(watch)) => Readiness {
                now: has_one,
                descriptors: [watch.descriptor().map(|news| (news, Interest::Read)), None],
                ..Readiness::never()
            },
            (Direction::Out, None) if has_one => Readiness::now(),
            (Direction::Out, None) => Readiness::never(),
            // v4l2loopback takes a picture at any time; what is slower says when it does.
            (Direction::In, _) => Readiness::descriptor(self.node.as_fd(), Interest::Write),
        }
    }
}
