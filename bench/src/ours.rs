//! A host of ours: a device and a transport, joined by two paths that one thread runs.
//!
//! The seam to the product: [`Host::run`] is what a path's loop does, and nothing else of the experiments
//! knows how.

use crate::Failure;
use contract::{Ctl, Direction, FlowKey, Message, Outbox, Partner, Port, Pull, Pulled, Pushed, Stage, Time};
use smallvec::{SmallVec, smallvec};
use std::time::Duration;
use sys::poller::Poller;
use wire::{Container, RecordHeader};

/// A device, a transport, and the stages of each way.
pub(crate) struct Host {
    device: Box<dyn Partner>,
    transport: Box<dyn Partner>,
    outbound: Chain,
    inbound: Chain,
    /// Of the next record.
    sequence: u64,
    /// A record that found the transport full.
    waiting: Option<Message>,
    poller: Poller,
}

/// Whether a way has more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    Something,
    Nothing,
    Ended,
}

impl Host {
    pub(crate) fn new(device: Box<dyn Partner>, transport: Box<dyn Partner>) -> Result<Self, Failure> {
        Ok(Host {
            device,
            transport,
            outbound: Chain::default(),
            inbound: Chain::default(),
            sequence: 0,
            waiting: None,
            poller: Poller::new()?,
        })
    }

    /// Moves messages both ways until one of the two ends, or `until` says so after an idle `pause`.
    pub(crate) fn run(&mut self, pause: Option<Duration>, until: impl Fn() -> bool) -> Result<(), Failure> {
        loop {
            let inward = self.inward()?;
            let outward = self.outward()?;
            if inward == Moved::Ended || (outward == Moved::Ended && self.is_flushed()) {
                self.transport.ctl(FlowKey::DEFAULT, Ctl::Finish)?;
                return Ok(());
            }
            if inward != Moved::Something && outward != Moved::Something {
                let is_idle = !self.wait(pause)?;
                if is_idle && until() {
                    return Ok(());
                }
            }
        }
    }

    fn is_flushed(&self) -> bool {
        let descriptors = self.transport.readiness(FlowKey::DEFAULT, Direction::In).descriptors;
        self.waiting.is_none() && descriptors[0].is_none()
    }

    fn inward(&mut self) -> Result<Moved, Failure> {
        let mut message = match self.transport.pull(FlowKey::DEFAULT, Pull::Yours)? {
            Pulled::Message(_, message) => message,
            Pulled::End => return Ok(Moved::Ended),
            _ => return Ok(Moved::Nothing),
        };
        let header = message.body.take_front::<{ RecordHeader::BYTES }>().ok_or("a record has a header")?;
        message.created = Time(RecordHeader::parse(&header, wire::BODY_BYTES_MAX)?.container.created);
        for message in self.inbound.through(message)? {
            self.device.push(FlowKey::DEFAULT, message).map_err(|(error, _)| error)?;
        }
        Ok(Moved::Something)
    }

    fn outward(&mut self) -> Result<Moved, Failure> {
        let mut moved = Moved::Nothing;
        loop {
            if let Some(record) = self.waiting.take()
                && let Pushed::Full(back) =
                    self.transport.push(FlowKey::DEFAULT, record).map_err(|(error, _)| error)?
            {
                self.waiting = Some(back);
                break;
            }
            match self.device.pull(FlowKey::DEFAULT, Pull::Yours)? {
                Pulled::Message(_, message) => {
                    // With no stage that keeps or splits, one in is one out.
                    let message = self.outbound.through(message)?.pop();
                    self.waiting = message.map(|message| self.numbered(message));
                    moved = Moved::Something;
                }
                Pulled::End => {
                    moved = Moved::Ended;
                    break;
                }
                _ => break,
            }
        }
        self.transport.ctl(FlowKey::DEFAULT, Ctl::Flush)?;
        Ok(moved)
    }

    fn numbered(&mut self, mut message: Message) -> Message {
        let container = Container { length: message.body.len() as u32, created: message.created.0 };
        let header = RecordHeader { flow: 1, epoch: 0, sequence: self.sequence, container };
        message.body.push_front(&header.emit());
        self.sequence += 1;
        message
    }

    /// Waits until something can move; `false` if nothing could within `pause`.
    fn wait(&mut self, pause: Option<Duration>) -> Result<bool, Failure> {
        let out = self.transport.readiness(FlowKey::DEFAULT, Direction::Out);
        let device = self.device.readiness(FlowKey::DEFAULT, Direction::Out);
        if out.now || (device.now && self.waiting.is_none()) {
            return Ok(true);
        }
        let inward = self.transport.readiness(FlowKey::DEFAULT, Direction::In);
        for (descriptor, interest) in out.descriptors.into_iter().chain(inward.descriptors).flatten() {
            let is_read = interest == contract::Interest::Read;
            self.poller.want(descriptor, is_read, !is_read);
        }
        Ok(self.poller.wait(pause)?)
    }
}

/// Stages in order; none, in these experiments.
#[derive(Default)]
struct Chain {
    stages: Vec<Box<dyn Stage>>,
}

impl Chain {
    fn through(&mut self, message: Message) -> Result<SmallVec<[Message; 1]>, Failure> {
        let mut messages = smallvec![message];
        for stage in &mut self.stages {
            let mut out = Outbox::default();
            for message in messages {
                stage.handle(Port::MAIN, message, Time(sys::clock::boot_ns()), &mut out)?;
            }
            messages = out.messages.into_iter().map(|(_, message)| message).collect();
        }
        Ok(messages)
    }
}
