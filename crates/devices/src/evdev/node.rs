//! A node made with `uinput`, as a state machine: frames and snapshots are written to it, what applications
//! ask of it is read, answered and queued.

use super::frames::{Echoes, Queue};
use super::fuzz::raw_steps;
use super::kernel::{effect_to_format, to_format, to_kernel};
use super::properties::{Properties, REPEAT_MS_MAX};
use super::state::{State, neutral};
use contract::{Message, Report, Time};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use sys::clock::boot_ns;
use sys::input::code::*;
use sys::input::{Event, read_events, uinput, write_events};
use wire::formats::evdev::{Effect, Update};

/// Messages that wait for the path; more, and they are replaced by a snapshot.
const QUEUE_MAX: usize = 256;

/// Reads of 64 events each at a time. The kernel's own queue of a device has 16.
const READS_MAX: usize = 16;

/// What an application that uploads an effect of a kind not known here is told.
const REFUSED: i32 = -rustix::io::Errno::INVAL.raw_os_error();

/// An effect that an application gave the node.
struct Kept {
    effect: Effect,
    /// How often it was told to play; 0 once stopped.
    plays: i32,
}

/// An application's node and what is known of it.
pub(super) struct Node {
    node: Arc<OwnedFd>,
    properties: Properties,
    /// Whether what applications ask for is wanted.
    pub(super) is_heard: bool,
    state: State,
    echoes: Echoes,
    effects: BTreeMap<u16, Kept>,
    /// Gain and centring force, where an application set them.
    strengths: BTreeMap<u16, i32>,
    queue: Queue,
    is_snapshot_wanted: bool,
    batch: Vec<(u64, Event)>,
    figures: Figures,
}

/// What [`Ctl::Report`] tells.
#[derive(Debug, Default)]
struct Figures {
    frames: u64,
    snapshots: u64,
    neutrals: u64,
    refused: u64,
    feedback: u64,
    dropped: u64,
    uploads: u64,
}

impl Node {
    /// A node that exists, opened without blocking. Whatever was held is let go: who drove it before is no
    /// longer there.
    pub(super) fn new(node: Arc<OwnedFd>, properties: Properties) -> io::Result<Self> {
        let mut made = Node {
            is_heard: false,
            state: State::unknown(&properties),
            properties,
            node,
            echoes: Echoes::default(),
            effects: BTreeMap::new(),
            strengths: BTreeMap::new(),
            queue: Queue::new(QUEUE_MAX, QUEUE_MAX),
            is_snapshot_wanted: false,
            batch: Vec::new(),
            figures: Figures::default(),
        };
        made.settle(&neutral(&made.properties))?;
        Ok(made)
    }

    /// The device's name.
    pub(super) fn name(&self) -> &str {
        &self.properties.name
    }

    /// Takes what came from the device.
    pub(super) fn take(&mut self, update: Update) -> io::Result<()> {
        match update {
            Update::Frame(events) => {
                self.figures.frames += 1;
                self.happen(&to_kernel(events))
            }
            Update::Snapshot(events) => {
                self.figures.snapshots += 1;
                let (events, refused): (Vec<_>, Vec<_>) =
                    to_kernel(events).into_iter().partition(|event| self.is_fit(*event));
                self.figures.refused += refused.len() as u64;
                self.settle(&events)
            }
            // Effects go the other way.
            Update::Upload(_) | Update::Erase(_) => {
                self.figures.refused += 1;
                Ok(())
            }
        }
    }

    /// Writes a frame, but for what the node has not.
    fn happen(&mut self, events: &[Event]) -> io::Result<()> {
        let mut written = Vec::with_capacity(events.len() + 1);
        for event in events {
            match self.is_fit(*event) {
                true => self.stage(*event, &mut written),
                false => self.figures.refused += 1,
            }
        }
        self.write(written)
    }

    /// Brings the node to where a snapshot says things stand.
    fn settle(&mut self, snapshot: &[Event]) -> io::Result<()> {
        let target = self.state.after(snapshot);
        for events in self.state.changes_to(&target, &self.properties) {
            let mut written = Vec::with_capacity(events.len() + 1);
            events.iter().for_each(|event| self.stage(*event, &mut written));
            self.write(written)?;
        }
        Ok(())
    }

    /// Whether the node has such an event, with a value that means something.
    fn is_fit(&self, event: Event) -> bool {
        let is_value = match event.kind {
            EV_KEY | EV_SW | EV_LED => matches!(event.value, 0 | 1),
            EV_REP => (0..=REPEAT_MS_MAX.cast_signed()).contains(&event.value),
            EV_ABS if event.code == ABS_MT_SLOT => {
                usize::try_from(event.value).is_ok_and(|slot| slot < self.properties.slots())
            }
            EV_SYN | EV_REL | EV_ABS | EV_MSC => true,
            _ => false,
        };
        is_value && self.properties.has(event)
    }

    /// Appends an event as the kernel must be told it, and follows what that does.
    fn stage(&mut self, event: Event, written: &mut Vec<Event>) {
        let fuzz = match event.kind {
            EV_ABS if event.code != ABS_MT_SLOT => {
                self.properties.axes.get(&event.code).map(|axis| axis.fuzz)
            }
            _ => None,
        };
        match (self.state.axis(event.code), fuzz) {
            (Some(old), Some(fuzz)) if fuzz > 0 && old != event.value => {
                let raw = raw_steps(event.value, old, fuzz);
                written.extend(raw.into_iter().map(|value| Event { value, ..event }));
            }
            _ => written.push(event),
        }
        if event.kind == EV_LED && self.state.lights.contains(event.code) != (event.value != 0) {
            self.echoes.expect(event);
        }
        self.state.apply(event);
    }

    /// Writes events as one frame. The kernel shows some of them to this program too, in a short queue that
    /// an application's request must not be lost from: so that is emptied at once.
    fn write(&mut self, mut events: Vec<Event>) -> io::Result<()> {
        if events.is_empty() {
            return Ok(());
        }
        let is_shown = events.iter().any(|event| matches!(event.kind, EV_MSC | EV_LED | EV_REP));
        events.push(Event::REPORT);
        write_events(self.node.as_fd(), &events)?;
        match is_shown {
            true => self.listen(),
            false => Ok(()),
        }
    }

    /// Takes in what applications ask for. One that waits for an answer gets it here, not from the network.
    pub(super) fn listen(&mut self) -> io::Result<()> {
        for _ in 0..READS_MAX {
            self.batch.clear();
            match read_events(self.node.as_fd(), &mut self.batch) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
                {
                    break;
                }
                Err(error) => return Err(error),
            }
            let batch = std::mem::take(&mut self.batch);
            let mut said = Vec::new();
            for (_, event) in &batch {
                match event.kind {
                    EV_UINPUT => {
                        self.tell(std::mem::take(&mut said));
                        self.answer(event.code, event.value.cast_unsigned());
                    }
                    _ if self.hear(*event) => said.push(*event),
                    _ => {}
                }
            }
            self.tell(said);
            self.batch = batch;
        }
        Ok(())
    }

    /// Answers an application that waits. An error is of one that waits no longer.
    fn answer(&mut self, what: u16, request: u32) {
        match what {
            UI_FF_UPLOAD => {
                let mut uploaded = None;
                let answered = uinput::answer_upload(self.node.as_fd(), request, |effect| {
                    uploaded = effect.and_then(|effect| effect_to_format(&effect));
                    if uploaded.is_some() { 0 } else { REFUSED }
                });
                if let (Ok(()), Some(effect)) = (answered, uploaded) {
                    self.figures.uploads += 1;
                    self.effects.insert(effect.id, Kept { effect, plays: 0 });
                    self.queue(Update::Upload(effect));
                }
            }
            UI_FF_ERASE => {
                let id = uinput::answer_erase(self.node.as_fd(), request).ok();
                if let Some(id) = id.and_then(|id| u16::try_from(id).ok())
                    && self.effects.remove(&id).is_some()
                {
                    self.queue(Update::Erase(id));
                }
            }
            _ => {}
        }
    }

    /// Follows what an application says; whether the device must hear of it.
    fn hear(&mut self, event: Event) -> bool {
        match event.kind {
            EV_LED if self.echoes.take(event) => false,
            EV_LED => {
                self.state.apply(event);
                true
            }
            EV_FF if event.code >= FF_EFFECTS_MAX => {
                self.strengths.insert(event.code, event.value);
                true
            }
            EV_FF => {
                if let Some(kept) = self.effects.get_mut(&event.code) {
                    kept.plays = event.value;
                }
                true
            }
            EV_SND => true,
            // What this program wrote, and the speed of repeats, which is the node's own.
            _ => false,
        }
    }

    fn tell(&mut self, events: Vec<Event>) {
        if !events.is_empty() {
            self.queue(Update::Frame(to_format(events)));
        }
    }

    fn queue(&mut self, update: Update) {
        if !self.is_heard {
            return;
        }
        self.figures.feedback += 1;
        if !self.queue.push(Time(boot_ns()), update) {
            self.figures.dropped += 1 + self.queue.clear();
            self.is_snapshot_wanted = true;
        }
    }

    /// Queues where things stand: lights and strengths, then each effect, then those that play for ever.
    fn take_snapshot(&mut self) {
        let lights = self.properties.codes(EV_LED);
        let mut events: Vec<Event> = lights
            .iter()
            .map(|code| Event::new(EV_LED, code, self.state.lights.contains(code).into()))
            .collect();
        events.extend(self.strengths.iter().map(|(code, value)| Event::new(EV_FF, *code, *value)));
        let effects: Vec<Update> = self.effects.values().map(|kept| Update::Upload(kept.effect)).collect();
        let playing = self.effects.iter().filter(|(_, kept)| kept.plays > 0 && kept.effect.length_ms == 0);
        let playing = playing.map(|(id, kept)| Event::new(EV_FF, *id, kept.plays)).collect();
        self.queue(Update::Snapshot(to_format(events)));
        effects.into_iter().for_each(|effect| self.queue(effect));
        self.tell(playing);
    }

    /// The next message of what applications ask for.
    pub(super) fn next(&mut self) -> io::Result<Option<Message>> {
        self.listen()?;
        if std::mem::take(&mut self.is_snapshot_wanted) {
            self.forget(0);
            self.take_snapshot();
        }
        Ok(self.queue.pop().map(|(created, update)| Message::new(created, update.to_bytes())))
    }

    /// Whether [`Node::next`] has one.
    pub(super) fn has_next(&self) -> bool {
        !self.queue.is_empty() || self.is_snapshot_wanted
    }

    /// The next message is a snapshot.
    pub(super) fn want_snapshot(&mut self) {
        self.is_snapshot_wanted = true;
    }

    /// Drops what waits, and counts `more` that the path has not taken yet.
    pub(super) fn forget(&mut self, more: u64) {
        self.figures.dropped += more + self.queue.clear();
    }

    /// Lets everything go.
    pub(super) fn rest(&mut self) -> io::Result<()> {
        self.figures.neutrals += 1;
        self.settle(&neutral(&self.properties))
    }

    /// Figures for people and scripts.
    pub(super) fn report(&self) -> Vec<Report> {
        let figures = &self.figures;
        vec![
            ("frames", figures.frames as f64),
            ("snapshots", figures.snapshots as f64),
            ("neutral", figures.neutrals as f64),
            ("events refused", figures.refused as f64),
            ("keys down", self.state.keys.len() as f64),
            ("feedback", figures.feedback as f64),
            ("feedback dropped", figures.dropped as f64),
            ("effects uploaded", figures.uploads as f64),
            ("effects", self.effects.len() as f64),
        ]
    }
}
