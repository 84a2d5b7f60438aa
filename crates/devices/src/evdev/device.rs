//! The device side: an event node as a partner. Frames and snapshots are pulled out of it; lights, sounds and effects
//! are pushed into it.
//!
//! | event | effect |
//! |---|---|
//! | flow opened, [`Ctl::Snapshot`], kernel overflow, queue full | `needs_snapshot`: the next pull reads the state and queues a snapshot |
//! | device unplugged | `is_gone`: a neutral snapshot is queued, then pulls return [`PartnerError::Gone`] |
//!
//! | [`Grab`] | next |
//! |---|---|
//! | `Off` (`grab=off`, or `grab=on` where the broker grabs) | never changes |
//! | `Idle` | flow opened → `Waiting` |
//! | `Waiting` | no key is down, except switches of a joystick ([`momentary`]), and no other program has it → `Active`; flow closed → `Idle` |
//! | `Active`, at first if a killed worker has left the node grabbed | flow closed, or dropped → `Idle` |

use super::frames::{Assembled, Assembler, Queue};
use super::kernel::{effect_to_kernel, to_format, to_kernel};
use super::kind::momentary;
use super::properties::Properties;
use super::state::{State, neutral};
use crate::flows::{Endpoint, FlowPartner, OUT, invalid};
use contract::{
    Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Interest, Message, Next, Options, PartnerError,
    PartnerResult, PullSlot, Readiness, RecoveryCtl, Report, Time,
};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use sys::clock::boot_ns;
use sys::input::code::*;
use sys::input::{Bits, Event, evdev, read_events, write_events};
use wire::formats::evdev::{Effect, Update};

/// Reads of a state, at most, until no event changed it meanwhile.
const SNAPSHOT_TRIES: usize = 8;

/// Reads of 64 events in one pull, at most, so that a device with constant events does not starve the path.
const READS_MAX: usize = 64;

/// Interval of tries to grab a device whose events do not arrive because another program has grabbed it.
const GRAB_INTERVAL: Duration = Duration::from_secs(1);

/// Exclusive access to the device, with `grab=auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grab {
    Off,
    Idle,
    Waiting,
    Active,
}

/// An event node as a partner.
pub(super) struct DevicePartner {
    node: OwnedFd,
    properties: Properties,
    assembler: Assembler,
    queue: Queue,
    needs_snapshot: bool,
    is_gone: bool,
    grab: Grab,
    /// Time of the next try without an event, while the grab waits.
    grab_at: Option<Time>,
    /// Events have arrived since the last of these tries: the state is known.
    has_events: bool,
    /// Another program has grabbed the device.
    is_taken: bool,
    note: Option<String>,
    /// Keys that are down, axes and fingers.
    state: State,
    /// Keys that have been down since before the first snapshot: they were pressed for another program (the Enter of the
    /// command line), so snapshots do not contain them. Set by the first snapshot; empty without `grab=auto` and after a
    /// killed worker, whose application knows them.
    pressed_before: Option<Bits>,
    lights: Bits,
    /// Sounds that go on until they are turned off.
    sounds: Bits,
    /// The device's IDs of effects by the application's IDs.
    effects: BTreeMap<u16, i16>,
    batch: Vec<(u64, Event)>,
    counts: Counts,
}

/// Figures of [`Ctl::Report`].
#[derive(Debug, Default)]
struct Counts {
    frames: u64,
    snapshots: u64,
    kernel_overflows: u64,
    dropped: u64,
    feedback: u64,
    feedback_refused: u64,
    effects_refused: u64,
}

impl Counts {
    /// Counts an event that is dropped because a snapshot replaces it.
    fn count_dropped(&mut self, event: &Event) {
        match (event.kind, event.code) {
            (EV_SYN, SYN_REPORT) => self.dropped += 1,
            (EV_SYN, SYN_DROPPED) => self.kernel_overflows += 1,
            _ => {}
        }
    }
}

impl DevicePartner {
    /// Creates a partner on a non-blocking event node that uses the boot clock.
    pub(super) fn new(node: OwnedFd, properties: Properties, options: &Options) -> FlowPartner<Self> {
        // If the device is gone already, the first pull reports it.
        let lights = evdev::state(node.as_fd(), EV_LED).unwrap_or_default();
        // A killed worker may have left one on.
        let sounds = evdev::state(node.as_fd(), EV_SND).unwrap_or_default();
        // Effects belong to the open node: those of a killed worker may still play. The device refuses those of other programs.
        for id in 0..properties.effects_max as i16 {
            let _ = evdev::erase_effect(node.as_fd(), id);
        }
        // So does the grab, and only its owner can end it.
        let is_auto = options.text("grab") == "auto";
        let was_grabbed = is_auto && evdev::grab(node.as_fd(), false).is_ok();
        let grab = match is_auto {
            false => Grab::Off,
            true if was_grabbed && evdev::grab(node.as_fd(), true).is_ok() => Grab::Active,
            true => Grab::Idle,
        };
        let limit = options.count("queue");
        let into = properties.has_feedback().then_some(Format::Evdev);
        let state = State::new(&properties);
        let partner = DevicePartner {
            properties,
            node,
            assembler: Assembler::default(),
            queue: Queue::new(options.count("merge_after").min(limit), limit),
            needs_snapshot: false,
            is_gone: false,
            grab,
            grab_at: None,
            has_events: false,
            is_taken: false,
            note: None,
            state,
            pressed_before: was_grabbed.then(Bits::new),
            lights,
            sounds,
            effects: BTreeMap::new(),
            batch: Vec::new(),
            counts: Counts::default(),
        };
        FlowPartner::new(partner, Some(Format::Evdev), into)
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

    /// Reads the kernel's events into the queue, and a snapshot if one is needed.
    fn fill(&mut self, now: Time) -> PartnerResult {
        let filled = self.read_frames().and_then(|()| {
            // While another program has grabbed the device, no event arrives, not even that of a release. A snapshot discards events, so
            // it is taken only where none arrive.
            self.needs_snapshot |=
                self.is_grab_due(now) && !self.has_events && !momentary(&self.state.keys).is_empty();
            match std::mem::take(&mut self.needs_snapshot) {
                true => self.take_snapshot(),
                false => Ok(()),
            }
        });
        match filled {
            Err(error) if is_gone(&error) => {
                self.on_unplugged();
                Ok(())
            }
            other => {
                self.try_grab(now);
                other.map_err(|error| self.failed("reading", error))
            }
        }
    }

    fn read_frames(&mut self) -> io::Result<()> {
        for _ in 0..READS_MAX {
            if self.needs_snapshot || self.read_batch()? == 0 {
                break;
            }
            let batch = std::mem::take(&mut self.batch);
            for (time_ns, event) in &batch {
                match self.needs_snapshot {
                    false => self.handle(Time(*time_ns), *event),
                    // The snapshot will contain their effect.
                    true => self.counts.count_dropped(event),
                }
            }
            self.batch = batch;
        }
        Ok(())
    }

    /// Reads events into `batch`. Returns their number, which may be 0.
    fn read_batch(&mut self) -> io::Result<usize> {
        self.batch.clear();
        match read_events(self.node.as_fd(), &mut self.batch) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(0)
            }
            other => {
                self.has_events |= other.as_ref().is_ok_and(|count| *count > 0);
                other
            }
        }
    }

    fn handle(&mut self, time: Time, event: Event) {
        self.state.apply(event);
        match event.kind {
            EV_KEY => {
                if event.value == 0
                    && let Some(pressed_before) = &mut self.pressed_before
                {
                    pressed_before.set(event.code, false);
                }
            }
            EV_LED => _ = self.lights.set(event.code, event.value != 0),
            _ => {}
        }
        match self.assembler.handle(event) {
            Assembled::Nothing => {}
            Assembled::Frame(events) => {
                self.counts.frames += 1;
                self.state.learn_rest(&mut self.properties, &events);
                if !self.queue.push(time, Update::Frame(to_format(events))) {
                    self.counts.dropped += 1 + self.queue.clear();
                    self.needs_snapshot = true;
                }
            }
            Assembled::Lost => {
                self.counts.kernel_overflows += 1;
                self.needs_snapshot = true;
            }
        }
    }

    /// Reads the state and queues a snapshot. Events that arrive meanwhile make the state inconsistent: they are
    /// discarded, and the state is read again.
    fn take_snapshot(&mut self) -> io::Result<()> {
        let mut state = State::read(self.node.as_fd(), &self.properties)?;
        for _ in 0..SNAPSHOT_TRIES {
            if self.discard_events()? == 0 {
                break;
            }
            state = State::read(self.node.as_fd(), &self.properties)?;
        }
        self.lights = state.lights;
        let pressed_before = self.pressed_before.get_or_insert_with(|| match self.grab {
            Grab::Off => Bits::new(),
            _ => momentary(&state.keys),
        });
        *pressed_before = pressed_before.common(&state.keys);
        let snapshot = state.snapshot(&self.properties, pressed_before);
        state.learn_rest(&mut self.properties, &snapshot);
        self.state = state;
        self.queue_snapshot(snapshot);
        Ok(())
    }

    fn queue_snapshot(&mut self, snapshot: Vec<Event>) {
        if self.queue.is_full() {
            self.counts.dropped += self.queue.clear();
        }
        self.counts.snapshots += 1;
        self.queue.push(Time(boot_ns()), Update::Snapshot(to_format(snapshot)));
    }

    /// Drops all messages that were not pulled.
    fn drop_queue(&mut self, slot: &mut PullSlot) {
        self.counts.dropped += u64::from(slot.is_held()) + self.queue.clear();
        *slot = PullSlot::default();
    }

    /// Discards the kernel's events. Returns their number.
    fn discard_events(&mut self) -> io::Result<usize> {
        self.assembler.clear();
        let mut events = 0;
        for _ in 0..READS_MAX {
            match self.read_batch()? {
                0 => break,
                count => events += count,
            }
            self.batch.iter().for_each(|(_, event)| self.counts.count_dropped(event));
        }
        Ok(events)
    }

    /// Queues a neutral snapshot, so that no key stays down in the application.
    fn on_unplugged(&mut self) {
        self.is_gone = true;
        self.queue_snapshot(neutral(&self.properties));
    }

    /// Returns true if it is time for another try to grab the device.
    fn is_grab_due(&self, now: Time) -> bool {
        self.grab_at.is_some_and(|at| now >= at)
    }

    /// Grabs the device once no key is down: the program that received a press must also receive the release.
    fn try_grab(&mut self, now: Time) {
        if self.grab != Grab::Waiting {
            return;
        }
        if momentary(&self.state.keys).is_empty() {
            match evdev::grab(self.node.as_fd(), true) {
                Ok(()) => {
                    self.grab = Grab::Active;
                    // The other program had the events so far.
                    self.needs_snapshot |= self.is_taken;
                    (self.grab_at, self.is_taken) = (None, false);
                    return;
                }
                Err(error) if is_busy(&error) && !self.is_taken => {
                    self.is_taken = true;
                    self.note = Some(format!(
                        "another program has grabbed {}, and its events do not arrive here: stop that program, or share \
                         the device that it makes",
                        self.properties.name
                    ));
                }
                Err(_) => {}
            }
        }
        if self.grab_at.is_none() || self.is_grab_due(now) {
            (self.grab_at, self.has_events) = (Some(now.after(GRAB_INTERVAL)), false);
        }
    }

    fn release_grab(&mut self) {
        if self.grab == Grab::Active {
            // It fails only if the device is gone, and the grab with it.
            let _ = evdev::grab(self.node.as_fd(), false);
        }
        if self.grab != Grab::Off {
            self.grab = Grab::Idle;
        }
        (self.grab_at, self.is_taken) = (None, false);
    }

    /// Applies feedback of the application.
    fn apply(&mut self, update: Update) -> io::Result<()> {
        self.counts.feedback += 1;
        match update {
            Update::Frame(events) => self.write_feedback(&to_kernel(events)),
            Update::Snapshot(events) => {
                self.end_feedback()?;
                self.write_feedback(&to_kernel(events))
            }
            Update::Upload(effect) => self.upload(&effect),
            Update::Erase(id) => match self.effects.remove(&id) {
                Some(id) => unless_refused(evdev::erase_effect(self.node.as_fd(), id)).map(drop),
                None => Ok(()),
            },
        }
    }

    /// Writes lights, sounds and effects to the device; counts those that it does not have.
    fn write_feedback(&mut self, events: &[Event]) -> io::Result<()> {
        let mut written = Vec::with_capacity(events.len() + 1);
        for event in events {
            match self.translate(*event) {
                Some(event) => written.push(event),
                None => self.counts.feedback_refused += 1,
            }
        }
        if written.is_empty() {
            return Ok(());
        }
        for event in written.iter().filter(|event| event.kind == EV_LED) {
            if self.lights.set(event.code, event.value != 0) {
                self.assembler.echoes.expect(*event);
            }
        }
        for event in written.iter().filter(|event| event.kind == EV_SND) {
            self.sounds.set(event.code, event.value != 0);
        }
        written.push(Event::REPORT);
        write_events(self.node.as_fd(), &written)
    }

    /// Translates an effect's ID to the device's. Returns `None` if the device has no such event.
    fn translate(&self, event: Event) -> Option<Event> {
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

    /// Uploads an effect. Updates the existing effect with this ID; if the device refuses, erases it and uploads a new
    /// one.
    fn upload(&mut self, effect: &Effect) -> io::Result<()> {
        let upload_as =
            |id| unless_refused(evdev::upload_effect(self.node.as_fd(), &effect_to_kernel(effect, id)));
        if let Some(id) = self.effects.remove(&effect.id) {
            if let Some(id) = upload_as(id)? {
                self.effects.insert(effect.id, id);
                return Ok(());
            }
            unless_refused(evdev::erase_effect(self.node.as_fd(), id))?;
        }
        match upload_as(-1)? {
            Some(id) => _ = self.effects.insert(effect.id, id),
            None => self.counts.effects_refused += 1,
        }
        Ok(())
    }

    /// Erases all effects, which stops them, and turns all sounds off.
    fn end_feedback(&mut self) -> io::Result<()> {
        for id in std::mem::take(&mut self.effects).into_values() {
            unless_refused(evdev::erase_effect(self.node.as_fd(), id))?;
        }
        let silence: Vec<Event> = self.sounds.iter().map(|code| Event::new(EV_SND, code, 0)).collect();
        self.write_feedback(&silence)
    }

    fn report(&self) -> Vec<Report> {
        let counts = &self.counts;
        vec![
            ("frames", counts.frames as f64),
            ("snapshots", counts.snapshots as f64),
            ("repeats suppressed", self.assembler.repeats as f64),
            ("frames merged", self.queue.merged as f64),
            ("frames dropped", counts.dropped as f64),
            ("kernel overflows", counts.kernel_overflows as f64),
            ("feedback", counts.feedback as f64),
            ("feedback refused", counts.feedback_refused as f64),
            ("effects", self.effects.len() as f64),
            ("effects refused", counts.effects_refused as f64),
            ("grabbed", f64::from(u8::from(self.grab == Grab::Active))),
        ]
    }
}

impl Drop for DevicePartner {
    /// The broker may keep the descriptor open, so effects, sounds and grab must be released explicitly.
    fn drop(&mut self) {
        let _ = self.end_feedback();
        self.release_grab();
    }
}

/// Returns true if the error means that the device was unplugged.
fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error())
}

/// Returns `None` if the device refused the operation, an error only if it was unplugged.
fn unless_refused<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if is_gone(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

impl Endpoint for DevicePartner {
    fn opened(&mut self, template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        if template.direction == Direction::Out {
            self.needs_snapshot = true;
            if self.grab == Grab::Idle {
                self.grab = Grab::Waiting;
            }
        }
        Ok(())
    }

    fn closed(&mut self, direction: Direction, slot: &mut PullSlot) -> PartnerResult {
        match direction {
            Direction::Out => {
                self.drop_queue(slot);
                self.release_grab();
                Ok(())
            }
            Direction::In => self.end_feedback().or_else(|error| match is_gone(&error) {
                true => Ok(()),
                false => Err(self.failed("stopping effects and sounds of", error)),
            }),
        }
    }

    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        let update = Update::parse(message.body.as_slice()).map_err(invalid)?;
        self.apply(update).map(|()| true).map_err(|error| self.failed("writing to", error))
    }

    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        if !self.is_gone {
            self.fill(now)?;
        }
        match self.queue.pop() {
            Some((created, update)) => Ok(Next::Message(Message::new(created, update.to_bytes()))),
            None if self.is_gone => Err(self.gone()),
            None => Ok(Next::Nothing),
        }
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>, slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish => Ok(CtlReply::Done),
            Ctl::Snapshot => {
                self.drop_queue(slot);
                self.needs_snapshot = true;
                Ok(CtlReply::Done)
            }
            Ctl::Neutral if flow == OUT => Ok(CtlReply::Done),
            Ctl::Neutral => match self.end_feedback() {
                Ok(()) => Ok(CtlReply::Done),
                Err(error) => Err(self.failed("stopping effects and sounds of", error)),
            },
            // Which effects play, only the application knows.
            Ctl::IsNeutral if flow != OUT => Ok(CtlReply::Count(1)),
            Ctl::IsNeutral => {
                let nothing = Bits::new();
                let except = self.pressed_before.as_ref().unwrap_or(&nothing);
                Ok(CtlReply::Count(self.state.is_neutral(&self.properties, except).into()))
            }
            Ctl::Recovery(RecoveryCtl::Discarded) => Ok(CtlReply::Count(self.counts.dropped)),
            Ctl::Report => Ok(CtlReply::Report(self.report())),
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        let is_ready = !self.queue.is_empty() || self.needs_snapshot || self.is_gone;
        match direction {
            Direction::In => Readiness::now(),
            Direction::Out if is_ready => Readiness::now(),
            Direction::Out => Readiness::descriptor(self.node.as_fd(), Interest::Read).or_at(self.grab_at),
        }
    }

    fn note(&mut self) -> Option<String> {
        self.note.take()
    }
}
