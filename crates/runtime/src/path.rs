//! A path as a partner: what a device offers a path, a path offers a device (paper P, section 5.2).
//!
//! [`Paths`] is P's Geni. Opening a flow makes a path, here a half of a pipeline; what is pushed into it goes
//! through its stages, and what comes out is pulled. A push or pull that names no path finds the one path
//! there is, or is told apart by the attributes' key: the answer names the sharper flow. Control reaches a
//! path (its flow's key), a stage of it ([`Ctl::Stage`]) or the whole ([`FlowKey::DEFAULT`]).

use crate::segment::{DropCounts, Segment, build_chain};
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Half, Message, Next, Partner, PartnerError,
    Pull, PullSlot, Pulled, Pushed, Readiness, Site, Time,
};
use pipeline::Pipeline;
use std::collections::BTreeMap;

/// Many paths behind one partner interface.
pub struct Paths {
    half: Half,
    pipeline: Pipeline,
    clock: fn() -> Time,
    waiting_max: usize,
    paths: BTreeMap<FlowKey, Path>,
    next: u32,
}

struct Path {
    segment: Segment,
    slot: PullSlot,
    drops: DropCounts,
    /// Messages of this key are this path's, where none is named.
    key: Option<u64>,
    ended: bool,
}

impl Paths {
    /// Paths of one half of `pipeline`, each with at most `waiting_max` messages waiting to be pulled.
    pub fn new(half: Half, pipeline: Pipeline, waiting_max: usize, clock: fn() -> Time) -> Paths {
        Paths { half, pipeline, clock, waiting_max, paths: BTreeMap::new(), next: 1 }
    }

    /// Which path a message without a flow belongs to: P's demultiplexing.
    fn demultiplex(&self, flow: FlowKey, key: Option<u64>) -> Result<FlowKey, PartnerError> {
        if flow != FlowKey::DEFAULT {
            return self.paths.contains_key(&flow).then_some(flow).ok_or(PartnerError::NoFlow(flow));
        }
        let by_key = || self.paths.iter().find(|(_, path)| path.key.is_some() && path.key == key);
        let only = || self.paths.first_key_value().filter(|_| self.paths.len() == 1);
        by_key().or_else(only).map(|(flow, _)| *flow).ok_or(PartnerError::NoFlow(flow))
    }

    fn find(&self, flow: FlowKey) -> Option<FlowKey> {
        match flow {
            FlowKey::DEFAULT => {
                self.paths.iter().find(|(_, path)| path.has_something()).map(|(flow, _)| *flow)
            }
            named => Some(named),
        }
    }
}

impl Path {
    fn has_something(&self) -> bool {
        self.slot.is_held() || !self.segment.out.messages.is_empty()
    }
}

impl Partner for Paths {
    fn open(&mut self, template: &FlowTemplate, attributes: &Attributes) -> Result<FlowKey, PartnerError> {
        let chain = build_chain(self.half, &self.pipeline, &template.format, &Site::default());
        let chain = chain.map_err(|error| PartnerError::Message(error.to_string()))?;
        let flow = FlowKey(self.next);
        self.next += 1;
        let path = Path {
            segment: Segment::new(chain),
            slot: PullSlot::default(),
            drops: DropCounts::default(),
            key: attributes.key,
            ended: false,
        };
        self.paths.insert(flow, path);
        Ok(flow)
    }

    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError> {
        self.paths.remove(&flow).map(drop).ok_or(PartnerError::NoFlow(flow))
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        let found = match self.demultiplex(flow, message.attributes.key) {
            Ok(found) => found,
            Err(error) => return Err((error, message)),
        };
        let now = (self.clock)();
        let Some(path) = self.paths.get_mut(&found) else {
            return Err((PartnerError::NoFlow(found), message));
        };
        if path.segment.out.messages.len() >= self.waiting_max || !path.segment.has_room() {
            return Ok(Pushed::Full(message));
        }
        path.segment.feed(message, now);
        path.segment.settle(&mut path.drops);
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        let now = (self.clock)();
        self.paths.values_mut().for_each(|path| {
            path.segment.run_timeouts(now);
        });
        let Some(found) = self.find(flow) else { return Ok(Pulled::Nothing) };
        let path = self.paths.get_mut(&found).ok_or(PartnerError::NoFlow(found))?;
        let Path { segment, slot, ended, .. } = path;
        slot.answer(found, want, || {
            Ok(match segment.out.messages.pop_front() {
                Some(message) => Next::Message(message),
                None if *ended && !segment.is_ending() => Next::End,
                None => Next::Nothing,
            })
        })
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        let now = (self.clock)();
        if flow == FlowKey::DEFAULT {
            return match operation {
                Ctl::Flush => Ok(CtlReply::Done),
                Ctl::Report => Ok(CtlReply::Report(vec![("paths", self.paths.len() as f64)])),
                _ => Err(PartnerError::Unsupported("this operation on all paths at once")),
            };
        }
        let path = self.paths.get_mut(&flow).ok_or(PartnerError::NoFlow(flow))?;
        match operation {
            Ctl::Flush => Ok(CtlReply::Done),
            Ctl::Stage(pair, bytes) if usize::from(pair) < self.pipeline.pairs().len() => {
                path.segment.handle_control(pair, bytes, now);
                path.segment.settle(&mut path.drops);
                Ok(CtlReply::Done)
            }
            Ctl::Finish => {
                path.segment.end(now);
                path.segment.settle(&mut path.drops);
                path.ended = true;
                Ok(CtlReply::Done)
            }
            Ctl::Report => Ok(CtlReply::Report(vec![
                ("waiting", path.segment.out.messages.len() as f64),
                ("dropped", path.drops.counts.values().sum::<u64>() as f64),
            ])),
            _ => Err(PartnerError::Unsupported("this operation on a path")),
        }
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        let paths = || self.paths.iter().filter(|(known, _)| flow == FlowKey::DEFAULT || **known == flow);
        let ready = match direction {
            Direction::Out => {
                paths().any(|(_, path)| path.has_something() || path.ended && !path.segment.is_ending())
            }
            Direction::In => paths().any(|(_, path)| {
                path.segment.out.messages.len() < self.waiting_max && path.segment.has_room()
            }),
        };
        let at = paths().filter_map(|(_, path)| path.segment.poll_timeout()).min();
        // A link looks a moment longer before its caller waits: where nothing is to be waited for, it is not asked.
        if ready {
            return Readiness::now().or_at(at);
        }
        let (mut descriptors, mut now) = ([None; 2], false);
        let mut free = descriptors.iter_mut();
        for readiness in paths().flat_map(|(_, path)| path.segment.readiness()) {
            now |= readiness.now;
            let waited_for = readiness.descriptors.into_iter().flatten();
            waited_for.zip(free.by_ref()).for_each(|(descriptor, free)| *free = Some(descriptor));
        }
        Readiness { now, descriptors, at }
    }
}
