//! The device's side: an event node as a partner. Out of it come frames and snapshots; into it go lights,
//! sounds and effects.

use super::frames::{Assembled, Assembler, Queue};
use super::kernel::{effect_to_kernel, to_format, to_kernel};
use super::properties::Properties;
use super::state::{State, neutral};
use crate::flows::{Flows, OUT};
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Interest, Message, Next, Options,
    Partner, PartnerError, Pull, PullSlot, Pulled, Pushed, Readiness, Report, Time,
};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use sys::clock::boot_ns;
use sys::input::code::*;
use sys::input::{Bits, Event, evdev, read_events, write_events};
use wire::formats::evdev::{Effect, Update};

/// How often a state is read again because the device moved meanwhile.
const SETTLE_TRIES: usize = 8;

/// Reads of 64 events each for one pull, so that a device that never stops does not keep the path.
const READS_MAX: usize = 64;

/// Whether the device is taken for this program alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grab {
    /// Nobody asked for it, or it was taken when it was opened.
    Settled,
    /// As soon as no key is down.
    Wanted,
    /// By this partner, which gives it back.
    Taken,
}

/// An event node and what the path does not know of it.
pub(super) struct DevicePartner {
    node: OwnedFd,
    properties: Properties,
    flows: Flows,
    assembler: Assembler,
    queue: Queue,
    slot: PullSlot,
    is_snapshot_wanted: bool,
    is_gone: bool,
    grabs: bool,
    grab: Grab,
    /// Keys that are down.
    held: Bits,
    /// Keys that were down before the first flow was opened, and still are: they were pressed for somebody
    /// else (the Enter of the command line), and are in no snapshot.
    foreign: Option<Bits>,
    lights: Bits,
    /// The application's numbers of effects, and the device's.
    effects: BTreeMap<u16, i16>,
    batch: Vec<(u64, Event)>,
    figures: Figures,
}

/// What [`Ctl::Report`] tells.
#[derive(Debug, Default)]
struct Figures {
    frames: u64,
    snapshots: u64,
    kernel_overflows: u64,
    dropped: u64,
    feedback: u64,
    feedback_refused: u64,
    effects_refused: u64,
}

impl Figures {
    /// An event is read and goes nowhere; it may say that the kernel dropped others before.
    fn give_up(&mut self, event: &Event) {
        match (event.kind, event.code) {
            (EV_SYN, SYN_REPORT) => self.dropped += 1,
            (EV_SYN, SYN_DROPPED) => self.kernel_overflows += 1,
            _ => {}
        }
    }
}

impl DevicePartner {
    /// A partner on an event node that was opened without blocking, on the boot clock.
    pub(super) fn new(node: OwnedFd, properties: Properties, options: &Options) -> Self {
        // A device that went away already says so at the first pull.
        let lights = evdev::state(node.as_fd(), EV_LED).unwrap_or_default();
        let limit = options.count("queue");
        DevicePartner {
            flows: Flows::new(true, properties.has_feedback()),
            properties,
            node,
            assembler: Assembler::default(),
            queue: Queue::new(options.count("merge_after").min(limit), limit),
            slot: PullSlot::default(),
            is_snapshot_wanted: false,
            is_gone: false,
            grabs: options.text("grab") == "auto",
            grab: Grab::Settled,
            held: Bits::new(),
            foreign: None,
            lights,
            effects: BTreeMap::new(),
            batch: Vec::new(),
            figures: Figures::default(),
        }
    }

    fn gone(&self) -> PartnerError {
        PartnerError::Gone(self.properties.name.clone())
    }

    fn failed(&self, operation: &str, error: io::Error) -> PartnerError {
        match is_gone(&error) {
            true => self.gone(),
            false => PartnerError::os(format!("{operation} {}", self.properties.name), error),
        }
    }

    fn next(&mut self) -> Result<Next, PartnerError> {
        if !self.is_gone {
            self.fill()?;
        }
        match self.queue.pop() {
            Some((created, update)) => Ok(Next::Message(Message::new(created, update.to_bytes()))),
            None if self.is_gone => Err(self.gone()),
            None => Ok(Next::Nothing),
        }
    }

    /// Moves what the kernel has into the queue, and a snapshot where one is due.
    fn fill(&mut self) -> Result<(), PartnerError> {
        let filled = self.read_frames().and_then(|()| match std::mem::take(&mut self.is_snapshot_wanted) {
            true => self.take_snapshot(),
            false => Ok(()),
        });
        match filled {
            Err(error) if is_gone(&error) => {
                self.leave();
                Ok(())
            }
            other => {
                self.try_grab();
                other.map_err(|error| self.failed("reading", error))
            }
        }
    }

    fn read_frames(&mut self) -> io::Result<()> {
        for _ in 0..READS_MAX {
            if self.is_snapshot_wanted || self.read_batch()? == 0 {
                break;
            }
            let batch = std::mem::take(&mut self.batch);
            for (time_ns, event) in &batch {
                match self.is_snapshot_wanted {
                    false => self.handle(Time(*time_ns), *event),
                    // The snapshot will say what these led to.
                    true => self.figures.give_up(event),
                }
            }
            self.batch = batch;
        }
        Ok(())
    }

    /// Reads events into `batch`; none is no error.
    fn read_batch(&mut self) -> io::Result<usize> {
        self.batch.clear();
        match read_events(self.node.as_fd(), &mut self.batch) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(0)
            }
            other => other,
        }
    }

    fn handle(&mut self, time: Time, event: Event) {
        match event.kind {
            EV_KEY => {
                self.held.set(event.code, event.value != 0);
                if event.value == 0
                    && let Some(foreign) = &mut self.foreign
                {
                    foreign.set(event.code, false);
                }
            }
            EV_LED => _ = self.lights.set(event.code, event.value != 0),
            _ => {}
        }
        match self.assembler.handle(event) {
            Assembled::Nothing => {}
            Assembled::Frame(events) => {
                self.figures.frames += 1;
                if !self.queue.push(time, Update::Frame(to_format(events))) {
                    self.figures.dropped += 1 + self.queue.clear();
                    self.is_snapshot_wanted = true;
                }
            }
            Assembled::Lost => {
                self.figures.kernel_overflows += 1;
                self.is_snapshot_wanted = true;
            }
        }
    }

    /// Queues where things stand. What was read before is in it; motion among that is dropped.
    fn take_snapshot(&mut self) -> io::Result<()> {
        let mut state = State::read(self.node.as_fd(), &self.properties)?;
        for _ in 0..SETTLE_TRIES {
            if self.discard()? == 0 {
                break;
            }
            state = State::read(self.node.as_fd(), &self.properties)?;
        }
        self.held = state.keys;
        self.lights = state.lights;
        let foreign = self.foreign.get_or_insert_with(|| match self.grabs {
            true => state.keys,
            false => Bits::new(),
        });
        *foreign = foreign.common(&state.keys);
        let snapshot = state.snapshot(&self.properties, foreign);
        self.queue_snapshot(snapshot);
        Ok(())
    }

    fn queue_snapshot(&mut self, snapshot: Vec<Event>) {
        if self.queue.is_full() {
            self.figures.dropped += self.queue.clear();
        }
        self.figures.snapshots += 1;
        self.queue.push(Time(boot_ns()), Update::Snapshot(to_format(snapshot)));
    }

    /// Drops what waits to be pulled.
    fn forget(&mut self) {
        self.figures.dropped += u64::from(self.slot.is_held()) + self.queue.clear();
        self.slot = PullSlot::default();
    }

    /// Throws away what the kernel has; says how many events that were.
    fn discard(&mut self) -> io::Result<usize> {
        self.assembler.clear();
        let mut events = 0;
        for _ in 0..READS_MAX {
            match self.read_batch()? {
                0 => break,
                count => events += count,
            }
            self.batch.iter().for_each(|(_, event)| self.figures.give_up(event));
        }
        Ok(events)
    }

    /// The device went away: its application shall not be left with keys held.
    fn leave(&mut self) {
        self.is_gone = true;
        self.queue_snapshot(neutral(&self.properties));
    }

    /// Takes the device for this program alone once nothing is held: who pressed a key must also see it
    /// come up. Somebody else may have it; it is tried again at the next frame.
    fn try_grab(&mut self) {
        if self.grab == Grab::Wanted && self.held.is_empty() && evdev::grab(self.node.as_fd(), true).is_ok() {
            self.grab = Grab::Taken;
        }
    }

    fn release_grab(&mut self) {
        if std::mem::replace(&mut self.grab, Grab::Settled) == Grab::Taken {
            // Fails only if the device is gone, and the grab with it.
            let _ = evdev::grab(self.node.as_fd(), false);
        }
    }

    fn take(&mut self, update: Update) -> io::Result<()> {
        self.figures.feedback += 1;
        match update {
            Update::Frame(events) => self.say(&to_kernel(events)),
            Update::Snapshot(events) => {
                self.erase_all()?;
                self.say(&to_kernel(events))
            }
            Update::Upload(effect) => self.upload(&effect),
            Update::Erase(id) => match self.effects.remove(&id) {
                Some(id) => unless_refused(evdev::erase_effect(self.node.as_fd(), id)).map(drop),
                None => Ok(()),
            },
        }
    }

    /// Writes lights, sounds and effects to the device, those that it has.
    fn say(&mut self, events: &[Event]) -> io::Result<()> {
        let mut said = Vec::with_capacity(events.len() + 1);
        for event in events {
            match self.fit(*event) {
                Some(event) => said.push(event),
                None => self.figures.feedback_refused += 1,
            }
        }
        if said.is_empty() {
            return Ok(());
        }
        for event in said.iter().filter(|event| event.kind == EV_LED) {
            if self.lights.set(event.code, event.value != 0) {
                self.assembler.echoes.expect(*event);
            }
        }
        said.push(Event::REPORT);
        write_events(self.node.as_fd(), &said)
    }

    /// The event as the device must be told it; `None` if it has no such thing.
    fn fit(&self, event: Event) -> Option<Event> {
        let is_effect = event.kind == EV_FF && event.code < FF_EFFECTS_MAX;
        match event.kind {
            EV_FF if is_effect => {
                let id = u16::try_from(*self.effects.get(&event.code)?).ok()?;
                Some(Event { code: id, ..event })
            }
            EV_LED | EV_SND | EV_FF => self.properties.has(event).then_some(event),
            _ => None,
        }
    }

    /// Gives the device an effect: a new version of the one of this number, if it will take that.
    fn upload(&mut self, effect: &Effect) -> io::Result<()> {
        let give =
            |id| unless_refused(evdev::upload_effect(self.node.as_fd(), &effect_to_kernel(effect, id)));
        if let Some(id) = self.effects.remove(&effect.id) {
            if let Some(id) = give(id)? {
                self.effects.insert(effect.id, id);
                return Ok(());
            }
            unless_refused(evdev::erase_effect(self.node.as_fd(), id))?;
        }
        match give(-1)? {
            Some(id) => _ = self.effects.insert(effect.id, id),
            None => self.figures.effects_refused += 1,
        }
        Ok(())
    }

    /// Stops and takes back all effects.
    fn erase_all(&mut self) -> io::Result<()> {
        for id in std::mem::take(&mut self.effects).into_values() {
            unless_refused(evdev::erase_effect(self.node.as_fd(), id))?;
        }
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        let figures = &self.figures;
        vec![
            ("frames", figures.frames as f64),
            ("snapshots", figures.snapshots as f64),
            ("repeats left out", self.assembler.repeats as f64),
            ("frames merged", self.queue.merged as f64),
            ("frames dropped", figures.dropped as f64),
            ("kernel overflows", figures.kernel_overflows as f64),
            ("feedback", figures.feedback as f64),
            ("feedback refused", figures.feedback_refused as f64),
            ("effects", self.effects.len() as f64),
            ("effects refused", figures.effects_refused as f64),
            ("grabbed", f64::from(u8::from(self.grab == Grab::Taken))),
        ]
    }
}

impl Drop for DevicePartner {
    /// The descriptor may live on in the broker: its effects and its grab must not.
    fn drop(&mut self) {
        let _ = self.erase_all();
        self.release_grab();
    }
}

/// Whether the device went away.
fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}

/// What the device answered, `None` if it refused; only that it is gone is an error.
fn unless_refused<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if is_gone(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

impl Partner for DevicePartner {
    fn open(&mut self, template: &FlowTemplate, _: &Attributes) -> Result<FlowKey, PartnerError> {
        let flow = self.flows.open(template, &Format::Evdev)?;
        if template.direction == Direction::Out {
            self.is_snapshot_wanted = true;
            if self.grabs && self.grab == Grab::Settled {
                self.grab = Grab::Wanted;
            }
        }
        Ok(flow)
    }

    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError> {
        match self.flows.close(flow)? {
            Direction::Out => {
                self.forget();
                self.release_grab();
                Ok(())
            }
            Direction::In => self.erase_all().or_else(|error| match is_gone(&error) {
                true => Ok(()),
                false => Err(self.failed("stopping effects of", error)),
            }),
        }
    }

    fn push(&mut self, flow: FlowKey, mut message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if let Err(error) = self.flows.check(flow, Direction::In) {
            return Err((error, message));
        }
        match Update::parse(message.body.as_slice()) {
            Err(error) => Err((PartnerError::Message(error.to_string()), message)),
            Ok(update) => match self.take(update) {
                Ok(()) => Ok(Pushed::Taken),
                Err(error) => Err((self.failed("writing to", error), message)),
            },
        }
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        self.flows.check(flow, Direction::Out)?;
        let mut slot = std::mem::take(&mut self.slot);
        let answer = slot.answer(OUT, want, || self.next());
        self.slot = slot;
        answer
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        self.flows.check_any(flow)?;
        match operation {
            Ctl::Flush | Ctl::Finish => Ok(CtlReply::Done),
            Ctl::Snapshot => {
                self.forget();
                self.is_snapshot_wanted = true;
                Ok(CtlReply::Done)
            }
            Ctl::Neutral if flow == OUT => Ok(CtlReply::Done),
            Ctl::Neutral => match self.erase_all() {
                Ok(()) => Ok(CtlReply::Done),
                Err(error) => Err(self.failed("stopping effects of", error)),
            },
            Ctl::GivenUp => Ok(CtlReply::Count(self.figures.dropped)),
            Ctl::Report => Ok(CtlReply::Report(self.report())),
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        if !self.flows.names(flow, direction) {
            return Readiness::never();
        }
        let has_one =
            self.slot.is_held() || !self.queue.is_empty() || self.is_snapshot_wanted || self.is_gone;
        match direction {
            Direction::In => Readiness::now(),
            Direction::Out if has_one => Readiness::now(),
            Direction::Out => Readiness::descriptor(self.node.as_fd(), Interest::Read),
        }
    }
}
