//! One half of a pipeline, running: a chain of stages. No I/O, no clock.
//!
//! A message passes through all stages in one call, as far as they have room. A stage without room makes its
//! input wait, and the chain then reports that it has no room either. So the waiting messages are never more
//! than the output of one call.

use crate::error::PipelineError;
use crate::outlet::Outlet;
use crate::parsed::{PairUse, Pipeline};
use crate::trace::{Point, Trace};
use contract::{
    Body, Bytes, Choice, Feedback, Fill, Format, Half, Incident, Input, Link, Message, Outbox, Port,
    Readiness, Report, Shape, StageError, StageResult, Time,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// The drop reason of a message that a stage refused with an error.
pub const REFUSED: &str = "refused by the stage";

/// The drop reason of a message that found no room behind a side port.
pub const SIDE_FULL: &str = "side port full";

/// The number of traced messages remembered for each stage. The oldest beyond it are no longer traced.
const MARKS_MAX: usize = 256;

/// The header of a stage's checkpoint: number of the pair (16 bits) and length (64 bits), little-endian.
const CHECKPOINT_HEADER_BYTES: usize = size_of::<u16>() + size_of::<u64>();

/// Makes one half of a pair for a flow of this format, on the link that the pair requests.
pub type MakeLink<'a> = dyn FnMut(&PairUse, Half, &Format) -> StageResult<Box<dyn Link>> + 'a;

/// Messages dropped by a stage, on purpose or after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedDrop {
    /// The number of the pair, in source order.
    pub pair: usize,
    /// Name of the pair.
    pub name: &'static str,
    /// The reason.
    pub reason: &'static str,
    /// The number of messages.
    pub count: u64,
    /// A failure lost them ([`contract::Drop::is_loss`]).
    pub is_loss: bool,
}

/// A message that left a stage through a side port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideMessage {
    /// The number of the pair, in source order.
    pub pair: usize,
    /// The port.
    pub port: Port,
    /// The message.
    pub message: Message,
}

/// A stage failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainError {
    /// The number of the pair, in source order.
    pub pair: usize,
    /// Name of the pair; empty if there is no such pair.
    pub name: &'static str,
    /// The stage's error.
    pub error: StageError,
}

/// The output of a chain, oldest first. The caller drains and reuses it.
#[derive(Debug, Default)]
pub struct ChainOut {
    /// Messages from the last stage.
    pub messages: VecDeque<Message>,
    /// Control messages for the other halves: number of the pair in source order, and bytes.
    pub controls: Vec<(usize, Vec<u8>)>,
    /// Dropped messages, counted by reason.
    pub drops: Vec<NamedDrop>,
    /// Messages from side ports without an outlet on this host.
    pub sides: Vec<SideMessage>,
    /// Errors of stages. The message that caused one is also in `drops`, as [`REFUSED`].
    pub errors: Vec<ChainError>,
    /// The trace of the path, if it is traced.
    pub trace: Option<Box<Trace>>,
}

/// Statistics of one half of a pair.
#[derive(Debug, Clone, PartialEq)]
pub struct PairReport {
    /// The number of the pair, in source order.
    pub pair: usize,
    /// Name of the pair.
    pub name: &'static str,
    /// The stage's statistics.
    pub figures: Vec<Report>,
    /// The values of its `auto` options, with reasons.
    pub choices: Vec<Choice>,
    /// The first error of the stage.
    pub error: Option<String>,
}

/// An input that waits in front of a stage without room.
enum Waiting {
    Message(Message),
    Gap,
}

struct Slot {
    pair: usize,
    name: &'static str,
    /// All its ports lead into this flow.
    is_fan: bool,
    /// Messages bypass the stage, because it changes none.
    passes: bool,
    /// A checkpoint saves the messages in the stage.
    saves: bool,
    link: Box<dyn Link>,
    outbox: Outbox,
    waiting: VecDeque<Waiting>,
    /// The outlets of its side ports.
    outlets: Vec<(Port, Arc<dyn Outlet>)>,
    /// The first error, and whether it was reported.
    error: Option<(String, bool)>,
    /// Traced messages in the stage, by creation time. The stage's output may have lost their marks.
    marks: VecDeque<(Time, u32)>,
}

impl Slot {
    /// Records the input of a traced message.
    fn note(&mut self, message: &Message) {
        if self.marks.is_empty() {
            self.marks.reserve_exact(MARKS_MAX);
        } else if self.marks.len() == MARKS_MAX {
            self.marks.pop_front();
        }
        self.marks.push_back((message.created, message.attributes.mark));
    }

    /// Marks an output message, if it is the first result of a traced message.
    fn trace(&mut self, message: &mut Message, trace: &mut Trace) {
        let Message { created, attributes, body } = message;
        let is_it = |(of, mark): &(Time, u32)| match attributes.mark {
            0 => of == created,
            known => *mark == known,
        };
        attributes.mark = match self.marks.iter().position(is_it).and_then(|place| self.marks.remove(place)) {
            Some((_, mark)) => {
                trace.stamp(mark, Point::Left(self.pair as u16), body.len());
                mark
            }
            None => 0,
        };
    }
}

/// One half of a pipeline.
pub struct Chain {
    slots: Vec<Slot>,
    /// The number of messages and gaps in all `waiting` queues.
    waiting: usize,
    /// While the flow ends here: the next stage to end.
    ending: Option<usize>,
}

impl Chain {
    /// The source halves, first pair first. `format` enters the flow.
    pub fn source(
        pipeline: &Pipeline,
        format: &Format,
        make: &mut MakeLink<'_>,
    ) -> Result<Chain, PipelineError> {
        Self::half(Half::Source, pipeline, format, make)
    }

    /// The sink halves, last pair first. `format` entered the flow at its source and leaves it here.
    pub fn sink(
        pipeline: &Pipeline,
        format: &Format,
        make: &mut MakeLink<'_>,
    ) -> Result<Chain, PipelineError> {
        Self::half(Half::Sink, pipeline, format, make)
    }

    fn half(
        half: Half,
        pipeline: &Pipeline,
        format: &Format,
        make: &mut MakeLink<'_>,
    ) -> Result<Chain, PipelineError> {
        let formats = pipeline.formats(format)?;
        let mut slots = Vec::with_capacity(pipeline.pairs().len());
        let pairs = pipeline.pairs().iter().zip(&formats).enumerate();
        for (pair, (used, format)) in pairs.filter(|(_, (used, _))| !used.is_in_junction) {
            let link = make(used, half, format).map_err(|error| {
                let problem = format!("`{}` does not start: {error}", used.pair.name());
                PipelineError::new(pipeline.text(), used.place.clone(), problem)
            })?;
            let name = used.pair.name();
            let is_fan = matches!(used.pair.shape(&used.options), Shape::Fan(_));
            let (outbox, waiting) = (Outbox::default(), VecDeque::new());
            let outlets = pipeline.outlets_of(used);
            let (passes, saves) = (link.passes(), link.checkpoint().is_some());
            let (error, marks) = (None, VecDeque::new());
            slots.push(Slot {
                pair,
                name,
                is_fan,
                passes,
                saves,
                link,
                outbox,
                waiting,
                outlets,
                error,
                marks,
            });
        }
        if half == Half::Sink {
            slots.reverse();
        }
        Ok(Chain { slots, waiting: 0, ending: None })
    }

    /// Takes a message at the start.
    pub fn handle(&mut self, message: Message, now: Time, out: &mut ChainOut) {
        self.feed(0, message, now, out);
        self.pump(now, out);
    }

    /// Takes a control message from the other half of pair number `pair`.
    pub fn handle_control(&mut self, pair: usize, control: &[u8], now: Time, out: &mut ChainOut) {
        let Some(index) = self.slots.iter().position(|slot| slot.pair == pair) else {
            let error = StageError::Control(format!("no pair {pair} in this pipeline"));
            out.errors.push(ChainError { pair, name: "", error });
            return;
        };
        self.hand(index, Input::Control(control), now, out);
        self.pump(now, out);
    }

    /// The flow ends, or changes its pipeline, here. Stage by stage outputs its held messages. A stage in its
    /// own process needs time for this: see [`Chain::is_ending`].
    pub fn handle_end(&mut self, now: Time, out: &mut ChainOut) {
        self.ending = Some(0);
        self.go_on_ending(now, out);
    }

    /// Returns true while [`Chain::handle_end`] waits for a stage; [`Chain::collect`] continues it.
    pub fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    fn go_on_ending(&mut self, now: Time, out: &mut ChainOut) {
        while let Some(index) = self.ending {
            if index.checked_sub(1).is_some_and(|before| self.slots[before].link.is_ending()) {
                return;
            }
            if index == self.slots.len() {
                self.ending = None;
                return;
            }
            while let Some(waiting) = self.slots[index].waiting.pop_front() {
                self.waiting -= 1;
                self.hand_waiting(index, waiting, now, out);
            }
            self.hand(index, Input::End(Port::MAIN), now, out);
            self.ending = Some(index + 1);
        }
    }

    /// Messages were lost before here, or the flow restarted. Every stage is notified, after the messages that
    /// wait.
    pub fn handle_gap(&mut self, now: Time, out: &mut ChainOut) {
        self.feed_gap(0, now, out);
        self.pump(now, out);
    }

    /// Passes measurements to every stage.
    pub fn handle_feedback(&mut self, feedback: &Feedback, now: Time, out: &mut ChainOut) {
        for index in 0..self.slots.len() {
            self.hand(index, Input::Feedback(feedback), now, out);
        }
        self.pump(now, out);
    }

    /// Tells every stage how much sound the partner behind the chain holds.
    pub fn handle_fill(&mut self, fill: Fill, now: Time, out: &mut ChainOut) {
        for index in 0..self.slots.len() {
            self.hand(index, Input::Fill(Port::MAIN, fill), now, out);
        }
        self.pump(now, out);
    }

    /// When to call [`Chain::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        self.slots.iter().filter_map(|slot| slot.link.poll_timeout()).min()
    }

    /// Calls every stage whose time has come, once.
    pub fn handle_timeout(&mut self, now: Time, out: &mut ChainOut) {
        for index in 0..self.slots.len() {
            if self.slots[index].link.poll_timeout().is_some_and(|at| at <= now) {
                self.hand(index, Input::Timeout, now, out);
            }
        }
        self.pump(now, out);
    }

    /// Collects the output that stages in other processes have made since.
    pub fn collect(&mut self, now: Time, out: &mut ChainOut) {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let result = slot.link.collect(now, &mut slot.outbox);
            self.settle(index, result, now, out);
        }
        self.pump(now, out);
        self.go_on_ending(now, out);
    }

    /// When [`Chain::collect`] would return output, for each link.
    pub fn readiness(&self) -> impl Iterator<Item = Readiness<'_>> {
        self.slots.iter().map(|slot| slot.link.readiness())
    }

    /// Returns true if the chain accepts another message now. A message pushed anyway waits inside.
    pub fn has_room(&self) -> bool {
        self.waiting == 0 && self.slots.first().is_none_or(|slot| slot.link.has_room())
    }

    /// Returns true while a process finishes its last messages, or is restarted for them ([`Link::is_settling`]).
    pub fn is_settling(&self) -> bool {
        self.slots.iter().any(|slot| slot.link.is_settling())
    }

    /// The number of held messages that the stages will release in time.
    pub fn held(&self) -> usize {
        self.waiting + self.slots.iter().map(|slot| slot.link.held()).sum::<usize>()
    }

    /// The number of messages that would be lost with the chain.
    pub fn kept(&self) -> usize {
        self.waiting + self.slots.iter().map(|slot| slot.link.kept()).sum::<usize>()
    }

    /// The number of messages that would be lost with the chain after a checkpoint.
    pub fn unsaved(&self) -> usize {
        let unsaved = self.slots.iter().filter(|slot| !slot.saves).map(|slot| slot.link.kept());
        self.waiting + unsaved.sum::<usize>()
    }

    /// Returns true if a stage has memory that a checkpoint saves.
    pub fn remembers(&self) -> bool {
        self.slots.iter().any(|slot| slot.saves)
    }

    /// Saves the memory of all stages for [`Chain::restore`]; `None` while a message waits in front of one.
    pub fn checkpoint(&self) -> Option<Body> {
        (self.waiting == 0).then_some(())?;
        let mut all = Body::new();
        for slot in &self.slots {
            let Some(checkpoint) = slot.link.checkpoint() else { continue };
            let mut header = [0; CHECKPOINT_HEADER_BYTES];
            header[..size_of::<u16>()].copy_from_slice(&(slot.pair as u16).to_le_bytes());
            header[size_of::<u16>()..].copy_from_slice(&(checkpoint.len() as u64).to_le_bytes());
            all.push(Bytes::copy_from_slice(&header));
            all.append(checkpoint);
        }
        Some(all)
    }

    /// Restores the memory of another chain of the same pipeline into this new one. After an error, which names
    /// the stage, the chain must not be used.
    pub fn restore(&mut self, mut checkpoint: Body) -> Result<(), ChainError> {
        while !checkpoint.is_empty() {
            let header = checkpoint.take_front::<CHECKPOINT_HEADER_BYTES>();
            let (pair, length) = header.map_or((usize::MAX, 0), |header| {
                let (pair, length) = header.split_at(size_of::<u16>());
                let number =
                    |bytes: &[u8]| bytes.iter().rev().fold(0, |n: u64, byte| n << 8 | u64::from(*byte));
                (number(pair) as usize, usize::try_from(number(length)).unwrap_or(usize::MAX))
            });
            let found = self.slots.iter_mut().find(|slot| slot.pair == pair);
            let (Some(slot), Some(own)) = (found, checkpoint.split_off_front(length)) else {
                let error = StageError::Input("this is not a checkpoint of this pipeline".into());
                return Err(ChainError { pair, name: "", error });
            };
            slot.link.restore(own).map_err(|error| ChainError { pair, name: slot.name, error })?;
        }
        Ok(())
    }

    /// Statistics of every half, in source order.
    pub fn report(&self) -> Vec<PairReport> {
        let one = |slot: &Slot| PairReport {
            pair: slot.pair,
            name: slot.name,
            figures: slot.link.report(),
            choices: slot.link.choices(),
            error: slot.error.as_ref().map(|(error, _)| error.clone()),
        };
        let mut reports: Vec<_> = self.slots.iter().map(one).collect();
        reports.sort_by_key(|report| report.pair);
        reports
    }

    /// Problems since the last call: of stages' processes, of outlets, and the first error of each stage. Each
    /// has the name of the pair and how it was handled.
    pub fn incidents(&mut self) -> Vec<(&'static str, Incident)> {
        let one = |slot: &mut Slot| {
            let name = slot.name;
            let error = slot
                .error
                .as_mut()
                .and_then(|(error, told)| (!std::mem::replace(told, true)).then(|| error.clone()));
            let outlets = slot.outlets.iter().filter_map(|(_, outlet)| outlet.take_problem());
            let own = error.into_iter().chain(outlets).map(|text| Incident { text, is_loss: false });
            let all: Vec<_> = slot.link.incidents().into_iter().chain(own).collect();
            all.into_iter().map(move |problem| (name, problem))
        };
        self.slots.iter_mut().flat_map(one).collect()
    }

    /// Passes a message to the stage at `index`, if it has room, and its output to the next stages.
    fn feed(&mut self, index: usize, message: Message, now: Time, out: &mut ChainOut) {
        // A traced message visits every stage.
        let may_pass = message.attributes.mark == 0;
        let index = index + self.slots[index..].iter().take_while(|slot| may_pass && slot.passes).count();
        match self.slots.get_mut(index) {
            None => out.messages.push_back(message),
            Some(slot) if slot.waiting.is_empty() && slot.link.has_room() => {
                self.hand_message(index, message, now, out);
            }
            Some(slot) => {
                slot.waiting.push_back(Waiting::Message(message));
                self.waiting += 1;
            }
        }
    }

    /// Notifies the stages from `index` on of a gap, after the messages that wait.
    fn feed_gap(&mut self, index: usize, now: Time, out: &mut ChainOut) {
        for index in index..self.slots.len() {
            let slot = &mut self.slots[index];
            if !slot.waiting.is_empty() {
                slot.waiting.push_back(Waiting::Gap);
                self.waiting += 1;
                return;
            }
            self.hand(index, Input::Gap(Port::MAIN), now, out);
        }
    }

    fn hand_waiting(&mut self, index: usize, waiting: Waiting, now: Time, out: &mut ChainOut) {
        match waiting {
            Waiting::Message(message) => {
                if let Some(trace) = out.trace.as_deref_mut().filter(|_| message.attributes.mark != 0) {
                    let point = Point::Waited(self.slots[index].pair as u16);
                    trace.stamp(message.attributes.mark, point, message.body.len());
                }
                self.hand_message(index, message, now, out);
            }
            Waiting::Gap => {
                self.hand(index, Input::Gap(Port::MAIN), now, out);
                self.feed_gap(index + 1, now, out);
            }
        }
    }

    fn hand_message(&mut self, index: usize, message: Message, now: Time, out: &mut ChainOut) {
        let slot = &mut self.slots[index];
        if message.attributes.mark != 0 {
            slot.note(&message);
        }
        let result = slot.link.hand(Input::Message(Port::MAIN, message), now, &mut slot.outbox);
        if result.is_err() {
            let (pair, name) = (slot.pair, slot.name);
            out.drops.push(NamedDrop { pair, name, reason: REFUSED, count: 1, is_loss: true });
        }
        self.settle(index, result, now, out);
    }

    fn hand(&mut self, index: usize, input: Input<'_>, now: Time, out: &mut ChainOut) {
        let slot = &mut self.slots[index];
        let result = slot.link.hand(input, now, &mut slot.outbox);
        self.settle(index, result, now, out);
    }

    /// Passes on the output of the stage at `index`.
    fn settle(&mut self, index: usize, result: StageResult, now: Time, out: &mut ChainOut) {
        let Slot { pair, name, is_fan, outbox, error: first, .. } = &mut self.slots[index];
        let (pair, name, is_fan) = (*pair, *name, *is_fan);
        if let Err(error) = result {
            first.get_or_insert_with(|| (error.to_string(), false));
            out.errors.push(ChainError { pair, name, error });
        }
        if !outbox.controls.is_empty() {
            out.controls.extend(outbox.controls.drain(..).map(|bytes| (pair, bytes)));
        }
        if !outbox.drops.is_empty() {
            let named =
                |contract::Drop { reason, count, is_loss }| NamedDrop { pair, name, reason, count, is_loss };
            out.drops.extend(outbox.drops.drain(..).map(named));
        }
        while let Some((port, mut message)) = self.slots[index].outbox.messages.pop_front() {
            if let Some(trace) = out.trace.as_deref_mut().filter(|_| is_fan || port == Port::MAIN) {
                self.slots[index].trace(&mut message, trace);
            }
            match port {
                _ if is_fan => self.feed(index + 1, message, now, out),
                Port::MAIN => self.feed(index + 1, message, now, out),
                port => self.leave(index, port, message, out),
            }
        }
    }

    /// Sends a message to a side port.
    fn leave(&mut self, index: usize, port: Port, message: Message, out: &mut ChainOut) {
        let Slot { pair, name, outlets, .. } = &self.slots[index];
        let (pair, name) = (*pair, *name);
        match outlets.iter().find(|(known, _)| *known == port) {
            Some((_, outlet)) if outlet.put(message.clone()) => {}
            Some(_) => out.drops.push(NamedDrop { pair, name, reason: SIDE_FULL, count: 1, is_loss: false }),
            None => out.sides.push(SideMessage { pair, port, message }),
        }
    }

    /// Passes waiting messages to stages with room, from the end backwards, until nothing moves.
    fn pump(&mut self, now: Time, out: &mut ChainOut) {
        let mut moved = true;
        while moved && self.waiting > 0 {
            moved = false;
            for index in (0..self.slots.len()).rev() {
                while self.slots[index].link.has_room()
                    && let Some(waiting) = self.slots[index].waiting.pop_front()
                {
                    self.waiting -= 1;
                    self.hand_waiting(index, waiting, now, out);
                    moved = true;
                }
            }
        }
    }
}
