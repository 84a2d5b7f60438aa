//! One half of a pipeline, running: messages in at its start, messages out at its end. No I/O, no clock.
//!
//! A message goes through all stages at once, as far as there is room. Where a stage has none, what comes
//! waits in front of it, and the chain says that it has no room either until that is gone: so what waits is
//! never more than what one message, or one moment, makes.

use crate::error::PipelineError;
use crate::outlet::Outlet;
use crate::parsed::{PairUse, Pipeline};
use crate::trace::{Point, Trace};
use contract::{
    Body, Bytes, Choice, Feedback, Format, Half, Input, Link, Message, Outbox, Port, Readiness, Report,
    Shape, StageError, Time,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a message is counted as that a stage returned an error for.
pub const REFUSED: &str = "refused by the stage";

/// What a message is counted as that found no room behind a side port.
pub const SIDE_FULL: &str = "no room behind the side port";

/// Marked messages that a stage is known to hold; of more, the oldest are no longer traced.
const MARKS_MAX: usize = 256;

/// In front of what a stage remembers: number of its pair, 16 bits, and bytes, 64 bits, little-endian.
const CHECKPOINT_HEADER_BYTES: usize = size_of::<u16>() + size_of::<u64>();

/// Makes one half of a pair for a flow of this format, behind the link that the pair asks for.
pub type MakeLink<'a> = dyn FnMut(&PairUse, Half, &Format) -> Result<Box<dyn Link>, StageError> + 'a;

/// Messages that ended at a stage, on purpose or by an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedDrop {
    /// Number of the pair, in source order.
    pub pair: usize,
    /// Its name.
    pub name: &'static str,
    /// Why.
    pub reason: &'static str,
    /// How many messages.
    pub count: u64,
}

/// A message that left a stage by another port than the main one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideMessage {
    /// Number of the pair, in source order.
    pub pair: usize,
    /// The port.
    pub port: Port,
    /// The message.
    pub message: Message,
}

/// A stage could not do its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainError {
    /// Number of the pair, in source order.
    pub pair: usize,
    /// Its name; empty if there is no such pair.
    pub name: &'static str,
    /// What went wrong.
    pub error: StageError,
}

/// Where a chain puts what it makes, oldest first. The caller drains it and uses it again.
#[derive(Debug, Default)]
pub struct ChainOut {
    /// What left the last stage.
    pub messages: VecDeque<Message>,
    /// For the other halves: number of the pair in source order, and bytes.
    pub controls: Vec<(usize, Vec<u8>)>,
    /// What ended here, counted by name.
    pub drops: Vec<NamedDrop>,
    /// What left by side ports that lead nowhere here.
    pub sides: Vec<SideMessage>,
    /// What went wrong. A message that caused it is in `drops` too, as [`REFUSED`].
    pub errors: Vec<ChainError>,
    /// The path's trace, while it is traced.
    pub trace: Option<Box<Trace>>,
}

impl ChainOut {
    /// Whether there is nothing in it for the caller to drain.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.controls.is_empty()
            && self.drops.is_empty()
            && self.sides.is_empty()
            && self.errors.is_empty()
    }
}

/// Figures of one pair's half.
#[derive(Debug, Clone, PartialEq)]
pub struct PairReport {
    /// Number of the pair, in source order.
    pub pair: usize,
    /// Its name.
    pub name: &'static str,
    /// Its figures.
    pub figures: Vec<Report>,
    /// What its `auto` options stand at, and why.
    pub choices: Vec<Choice>,
    /// What first went wrong in it.
    pub error: Option<String>,
}

/// What waits in front of a stage that has no room.
enum Waiting {
    Message(Message),
    Gap,
}

struct Slot {
    pair: usize,
    name: &'static str,
    /// All its ports go on in this flow.
    is_fan: bool,
    /// Messages go past it, since its stage has nothing to do.
    passes: bool,
    link: Box<dyn Link>,
    outbox: Outbox,
    waiting: VecDeque<Waiting>,
    /// Where what leaves by side ports goes.
    outlets: Vec<(Port, Arc<dyn Outlet>)>,
    /// What first went wrong, and whether that was told.
    error: Option<(String, bool)>,
    /// Marked messages that went in, by when they were created: what the stage makes of them may bear no mark.
    marks: VecDeque<(Time, u32)>,
}

impl Slot {
    /// A marked message goes in.
    fn note(&mut self, message: &Message) {
        if self.marks.is_empty() {
            self.marks.reserve_exact(MARKS_MAX);
        } else if self.marks.len() == MARKS_MAX {
            self.marks.pop_front();
        }
        self.marks.push_back((message.created, message.attributes.mark));
    }

    /// A message came out: if it is the first that came of a marked one, it bears the mark.
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
    /// Messages and gaps in all `waiting`s.
    waiting: usize,
    /// While the flow ends here: the stage to be told next.
    ending: Option<usize>,
}

impl Chain {
    /// The source halves, first pair first. `format` is what enters the flow.
    pub fn source(
        pipeline: &Pipeline,
        format: &Format,
        make: &mut MakeLink<'_>,
    ) -> Result<Chain, PipelineError> {
        Self::half(Half::Source, pipeline, format, make)
    }

    /// The sink halves, last pair first. `format` is what entered the flow at its source, and leaves it here.
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
            let (passes, error, marks) = (link.passes(), None, VecDeque::new());
            slots.push(Slot { pair, name, is_fan, passes, link, outbox, waiting, outlets, error, marks });
        }
        if half == Half::Sink {
            slots.reverse();
        }
        Ok(Chain { slots, waiting: 0, ending: None })
    }

    /// One message in at the start.
    pub fn handle(&mut self, message: Message, now: Time, out: &mut ChainOut) {
        self.feed(0, message, now, out);
        self.pump(now, out);
    }

    /// The other half of pair number `pair` says something.
    pub fn handle_control(&mut self, pair: usize, control: &[u8], now: Time, out: &mut ChainOut) {
        let Some(index) = self.slots.iter().position(|slot| slot.pair == pair) else {
            let error = StageError::Control(format!("no pair {pair} in this pipeline"));
            out.errors.push(ChainError { pair, name: "", error });
            return;
        };
        self.hand(index, Input::Control(control), now, out);
        self.pump(now, out);
    }

    /// The flow ends, or changes its pipeline, here: stage by stage, all that is held comes out. A stage in
    /// a process of its own takes a while for that: [`Chain::is_ending`].
    pub fn handle_end(&mut self, now: Time, out: &mut ChainOut) {
        self.ending = Some(0);
        self.go_on_ending(now, out);
    }

    /// Whether [`Chain::handle_end`] still waits for a stage; [`Chain::collect`] goes on with it.
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

    /// Something was lost, or restarted, before here: every stage is told, behind what went before.
    pub fn handle_gap(&mut self, now: Time, out: &mut ChainOut) {
        self.feed_gap(0, now, out);
        self.pump(now, out);
    }

    /// Tells every stage what is known of the flow's way to its sink.
    pub fn handle_feedback(&mut self, feedback: &Feedback, now: Time, out: &mut ChainOut) {
        for index in 0..self.slots.len() {
            self.hand(index, Input::Feedback(feedback), now, out);
        }
        self.pump(now, out);
    }

    /// When [`Chain::handle_timeout`] wants to be called.
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

    /// Fetches what stages behind links of their own made by themselves since.
    pub fn collect(&mut self, now: Time, out: &mut ChainOut) {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let result = slot.link.collect(now, &mut slot.outbox);
            self.settle(index, result, now, out);
        }
        self.pump(now, out);
        self.go_on_ending(now, out);
    }

    /// When [`Chain::collect`] would find something, for each link.
    pub fn readiness(&self) -> impl Iterator<Item = Readiness<'_>> {
        self.slots.iter().map(|slot| slot.link.readiness())
    }

    /// Whether the chain takes another message now. One that is handed over all the same waits inside.
    pub fn has_room(&self) -> bool {
        self.waiting == 0 && self.slots.first().is_none_or(|slot| slot.link.has_room())
    }

    /// Messages held that will leave by themselves, in time.
    pub fn held(&self) -> usize {
        self.waiting + self.slots.iter().map(|slot| slot.link.held()).sum::<usize>()
    }

    /// Messages that would be lost with the chain.
    pub fn kept(&self) -> usize {
        self.waiting + self.slots.iter().map(|slot| slot.link.kept()).sum::<usize>()
    }

    /// Whether a stage of it remembers, and says what.
    pub fn remembers(&self) -> bool {
        self.slots.iter().any(|slot| slot.link.checkpoint().is_some())
    }

    /// What its stages remember, for [`Chain::restore`]; `None` while something waits in front of one.
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

    /// A chain that has taken nothing yet goes on as one of the same pipeline would have. After an error, which names
    /// the stage, it is of no use.
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
                let error = StageError::Input("it is no checkpoint of this pipeline".into());
                return Err(ChainError { pair, name: "", error });
            };
            slot.link.restore(own).map_err(|error| ChainError { pair, name: slot.name, error })?;
        }
        Ok(())
    }

    /// Figures of every pair's half, in source order.
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

    /// What went wrong since the last call, with stages' processes, with what their side ports lead to, and the
    /// first time with the stages themselves: name of the pair, and what was done.
    pub fn incidents(&mut self) -> Vec<(&'static str, String)> {
        let one = |slot: &mut Slot| {
            let name = slot.name;
            let error = slot
                .error
                .as_mut()
                .and_then(|(error, told)| (!std::mem::replace(told, true)).then(|| error.clone()));
            let outlets = slot.outlets.iter().filter_map(|(_, outlet)| outlet.take_problem());
            let all: Vec<_> = slot.link.incidents().into_iter().chain(error).chain(outlets).collect();
            all.into_iter().map(move |what| (name, what))
        };
        self.slots.iter_mut().flat_map(one).collect()
    }

    /// Hands a message to the stage at `index` if it has room, and what that makes to those behind it.
    fn feed(&mut self, index: usize, message: Message, now: Time, out: &mut ChainOut) {
        // A message that is traced goes the whole way.
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

    /// Tells the stages from `index` on of a gap, behind what waits there.
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
            out.drops.push(NamedDrop { pair, name, reason: REFUSED, count: 1 });
        }
        self.settle(index, result, now, out);
    }

    fn hand(&mut self, index: usize, input: Input<'_>, now: Time, out: &mut ChainOut) {
        let slot = &mut self.slots[index];
        let result = slot.link.hand(input, now, &mut slot.outbox);
        self.settle(index, result, now, out);
    }

    /// Moves on what the stage at `index` made.
    fn settle(&mut self, index: usize, result: Result<(), StageError>, now: Time, out: &mut ChainOut) {
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
                |drop: contract::Drop| NamedDrop { pair, name, reason: drop.reason, count: drop.count };
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

    /// A message leaves by a side port.
    fn leave(&mut self, index: usize, port: Port, message: Message, out: &mut ChainOut) {
        let Slot { pair, name, outlets, .. } = &self.slots[index];
        let (pair, name) = (*pair, *name);
        match outlets.iter().find(|(known, _)| *known == port) {
            Some((_, outlet)) if outlet.put(message.clone()) => {}
            Some(_) => out.drops.push(NamedDrop { pair, name, reason: SIDE_FULL, count: 1 }),
            None => out.sides.push(SideMessage { pair, port, message }),
        }
    }

    /// Hands on what waits wherever there is room by now, from the end backward, until nothing moves.
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
