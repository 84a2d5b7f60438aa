//! A node made with `uinput`, as a state machine: writes frames and snapshots to it, and reads, answers and queues the
//! requests of applications.

use super::effects::Effects;
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
use sys::input::{Bits, Event, read_events, uinput, write_events};
use wire::formats::evdev::Update;

/// Queued messages, at most; then a snapshot replaces them.
const QUEUE_MAX: usize = 256;

/// Reads of 64 events in one call, at most. The kernel's queue of a `uinput` device has 16 events.
const READS_MAX: usize = 16;

/// Reply to an application that uploads an effect of an unknown kind.
const REFUSED: i32 = -rustix::io::Errno::INVAL.raw_os_error();

/// A node and its state.
pub(super) struct Node {
    node: Arc<OwnedFd>,
    properties: Properties,
    /// The flow of feedback is open; otherwise nothing is queued.
    pub(super) is_feedback_open: bool,
    state: State,
    echoes: Echoes,
    effects: Effects,
    /// Gain and autocentre force by code, once an application has set them.
    gains: BTreeMap<u16, i32>,
    queue: Queue,
    needs_snapshot: bool,
    batch: Vec<(u64, Event)>,
    counts: Counts,
}

/// Figures of [`contract::Ctl::Report`].
#[derive(Debug, Default)]
struct Counts {
    frames: u64,
    snapshots: u64,
    neutrals: u64,
    refused: u64,
    feedback: u64,
    dropped: u64,
    uploads: u64,
}

impl Node {
    /// Wraps an existing, non-blocking node. Releases everything that a crashed process may have left pressed.
    pub(super) fn new(node: Arc<OwnedFd>, properties: Properties) -> io::Result<Self> {
        let mut node = Node {
            is_feedback_open: false,
            state: State::all_pressed(&properties),
            properties,
            node,
            echoes: Echoes::default(),
            effects: Effects::default(),
            gains: BTreeMap::new(),
            queue: Queue::new(QUEUE_MAX, QUEUE_MAX),
            needs_snapshot: false,
            batch: Vec::new(),
            counts: Counts::default(),
        };
        node.apply_snapshot(&neutral(&node.properties))?;
        Ok(node)
    }

    /// Returns the device's name.
    pub(super) fn name(&self) -> &str {
        &self.properties.name
    }

    /// Applies a message of the device.
    pub(super) fn apply(&mut self, update: Update) -> io::Result<()> {
        match update {
            Update::Frame(events) => {
                self.counts.frames += 1;
                let events = to_kernel(events);
                self.apply_frame(&events)?;
                self.state.learn_rest(&mut self.properties, &events);
                Ok(())
            }
            Update::Snapshot(events) => {
                self.counts.snapshots += 1;
                let (events, refused): (Vec<_>, Vec<_>) =
                    to_kernel(events).into_iter().partition(|event| self.is_valid(*event));
                self.counts.refused += refused.len() as u64;
                self.apply_snapshot(&events)?;
                self.state.learn_rest(&mut self.properties, &events);
                Ok(())
            }
            // Effects only go from applications to the device.
            Update::Upload(_) | Update::Erase(_) => {
                self.counts.refused += 1;
                Ok(())
            }
        }
    }

    /// Writes the valid events of a frame.
    fn apply_frame(&mut self, events: &[Event]) -> io::Result<()> {
        let mut written = Vec::with_capacity(events.len() + 1);
        for event in events {
            if self.is_valid(*event) { self.stage(*event, &mut written) } else { self.counts.refused += 1 }
        }
        self.write(written)
    }

    /// Writes the events that lead from the node's state to the state of a snapshot.
    fn apply_snapshot(&mut self, snapshot: &[Event]) -> io::Result<()> {
        let target = self.state.with_snapshot(snapshot);
        for events in self.state.changes_to(&target, &self.properties) {
            let mut written = Vec::with_capacity(events.len() + 1);
            events.iter().for_each(|event| self.stage(*event, &mut written));
            self.write(written)?;
        }
        Ok(())
    }

    /// Returns true if the node has this event and the value is valid.
    fn is_valid(&self, event: Event) -> bool {
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

    /// Appends an event to `written`, with axis values corrected for the kernel's smoothing, and applies it to the state.
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

    /// Writes events as one frame. The kernel echoes some of them to this process, in the same short queue as the
    /// requests of applications. The queue is read at once, so that no request is lost.
    fn write(&mut self, mut events: Vec<Event>) -> io::Result<()> {
        if events.is_empty() {
            return Ok(());
        }
        let has_echo = events.iter().any(|event| matches!(event.kind, EV_MSC | EV_LED | EV_REP));
        events.push(Event::REPORT);
        write_events(self.node.as_fd(), &events)?;
        if has_echo { self.read_requests() } else { Ok(()) }
    }

    /// Reads the requests of applications. Replies to those that wait, without involving the network.
    pub(super) fn read_requests(&mut self) -> io::Result<()> {
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
            let mut feedback = Vec::new();
            for (_, event) in &batch {
                match event.kind {
                    EV_UINPUT => {
                        self.queue_frame(std::mem::take(&mut feedback));
                        self.reply(event.code, event.value.cast_unsigned());
                    }
                    _ if self.track_feedback(*event) => feedback.push(*event),
                    _ => {}
                }
            }
            self.queue_frame(feedback);
            self.batch = batch;
        }
        Ok(())
    }

    /// Replies to an application that waits. An error means that it no longer waits.
    fn reply(&mut self, kind: u16, request: u32) {
        match kind {
            UI_FF_UPLOAD => {
                let mut uploaded = None;
                let replied = uinput::answer_upload(self.node.as_fd(), request, |effect| {
                    uploaded = effect.and_then(|effect| effect_to_format(&effect));
                    if uploaded.is_some() { 0 } else { REFUSED }
                });
                if let (Ok(()), Some(effect)) = (replied, uploaded) {
                    self.counts.uploads += 1;
                    self.effects.upload(effect, Time(boot_ns()));
                    self.queue(Update::Upload(effect));
                }
            }
            UI_FF_ERASE => {
                let id = uinput::answer_erase(self.node.as_fd(), request).ok();
                if let Some(id) = id.and_then(|id| u16::try_from(id).ok())
                    && self.effects.erase(id)
                {
                    self.queue(Update::Erase(id));
                }
            }
            _ => {}
        }
    }

    /// Applies an event of an application to the state. Returns true if it must be sent to the device.
    fn track_feedback(&mut self, event: Event) -> bool {
        match event.kind {
            EV_LED if self.echoes.take(event) => false,
            EV_LED => {
                self.state.apply(event);
                true
            }
            EV_FF if event.code >= FF_EFFECTS_MAX => {
                self.gains.insert(event.code, event.value);
                true
            }
            EV_FF => {
                self.effects.play(event.code, event.value, Time(boot_ns()));
                true
            }
            EV_SND => true,
            // Echoes, and the repeat settings, which belong to the node alone.
            _ => false,
        }
    }

    fn queue_frame(&mut self, events: Vec<Event>) {
        if !events.is_empty() {
            self.queue(Update::Frame(to_format(events)));
        }
    }

    fn queue(&mut self, update: Update) {
        if !self.is_feedback_open {
            return;
        }
        self.counts.feedback += 1;
        if !self.queue.push(Time(boot_ns()), update) {
            self.counts.dropped += 1 + self.queue.clear();
            self.needs_snapshot = true;
        }
    }

    /// Queues the state of the feedback: lights and gains, then all effects, then the commands for effects that play
    /// without end.
    fn take_snapshot(&mut self) {
        let lights = self.properties.codes(EV_LED);
        let mut events: Vec<Event> = lights
            .iter()
            .map(|code| Event::new(EV_LED, code, self.state.lights.contains(code).into()))
            .collect();
        events.extend(self.gains.iter().map(|(code, value)| Event::new(EV_FF, *code, *value)));
        let uploads: Vec<Update> = self.effects.uploaded().map(Update::Upload).collect();
        let playing = self.effects.endless_plays();
        self.queue(Update::Snapshot(to_format(events)));
        uploads.into_iter().for_each(|upload| self.queue(upload));
        self.queue_frame(playing);
    }

    /// Returns the next message of feedback.
    pub(super) fn next(&mut self) -> io::Result<Option<Message>> {
        self.read_requests()?;
        if std::mem::take(&mut self.needs_snapshot) {
            self.drop_queue(0);
            self.take_snapshot();
        }
        Ok(self.queue.pop().map(|(created, update)| Message::new(created, update.to_bytes())))
    }

    /// Returns true if [`Node::next`] would return a message.
    pub(super) fn has_next(&self) -> bool {
        !self.queue.is_empty() || self.needs_snapshot
    }

    /// Makes the next message a snapshot.
    pub(super) fn request_snapshot(&mut self) {
        self.needs_snapshot = true;
    }

    /// Drops the queue. `more`: messages that the caller drops too, for the count.
    pub(super) fn drop_queue(&mut self, more: u64) {
        self.counts.dropped += more + self.queue.clear();
    }

    /// Brings the node to the neutral state.
    pub(super) fn go_neutral(&mut self) -> io::Result<()> {
        self.counts.neutrals += 1;
        self.apply_snapshot(&neutral(&self.properties))
    }

    /// Returns true if the node is in the neutral state.
    pub(super) fn is_neutral(&self) -> bool {
        self.state.is_neutral(&self.properties, &Bits::new())
    }

    /// Returns true if no effect plays that an application has started.
    pub(super) fn is_feedback_neutral(&self) -> bool {
        !self.effects.is_any_playing(Time(boot_ns()))
    }

    /// Returns the figures of [`contract::Ctl::Report`].
    pub(super) fn report(&self) -> Vec<Report> {
        let counts = &self.counts;
        vec![
            ("frames", counts.frames as f64),
            ("snapshots", counts.snapshots as f64),
            ("neutral", counts.neutrals as f64),
            ("events refused", counts.refused as f64),
            ("keys down", self.state.keys.len() as f64),
            ("feedback", counts.feedback as f64),
            ("feedback dropped", counts.dropped as f64),
            ("effects uploaded", counts.uploads as f64),
            ("effects", self.effects.len() as f64),
        ]
    }
}
