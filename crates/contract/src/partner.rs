//! Partners: one symmetric interface for devices, nodes, networks, files, programs and paths
//! (paper P, sections 3.2, 3.3 and 5.2). What a device offers a path, a path offers a device.

use crate::{Attributes, Body, FlowClass, Format, Message, Time};
use std::os::fd::{BorrowedFd, OwnedFd};
use thiserror::Error;

/// Which flow of a partner an operation is for: P's demux key. It sharpens as data moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct FlowKey(pub u32);

impl FlowKey {
    /// Whatever flow has something: the answer names the sharper key.
    pub const DEFAULT: FlowKey = FlowKey(0);
}

/// Into a partner or out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// What is pushed into the partner.
    In,
    /// What is pulled out of it.
    Out,
}

/// What a flow is, when it is opened on a partner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowTemplate {
    /// Pushed into the partner or pulled out of it.
    pub direction: Direction,
    /// What its messages mean.
    pub format: Format,
    /// What it promises.
    pub class: FlowClass,
}

/// Why a partner cannot do what it was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PartnerError {
    /// The device, the program or the connection went away; it may come back.
    #[error("{0} is gone")]
    Gone(String),
    /// No such flow is open.
    #[error("no flow {0:?} is open here")]
    NoFlow(FlowKey),
    /// The caller asked for something that this partner does not do.
    #[error("{0} is not something this partner does")]
    Unsupported(&'static str),
    /// The caller handed over something the partner cannot take.
    #[error("the message does not fit: {0}")]
    Message(String),
    /// The other side of the connection broke its protocol.
    #[error("the peer broke the protocol: {0}")]
    Peer(String),
    /// The system refused.
    #[error("{operation}: {error}")]
    Os {
        /// What was tried, on what.
        operation: String,
        /// What the system said.
        error: std::io::Error,
    },
}

impl PartnerError {
    /// An error of the system, with what was tried.
    pub fn os(operation: impl Into<String>, error: impl Into<std::io::Error>) -> Self {
        PartnerError::Os { operation: operation.into(), error: error.into() }
    }
}

/// The answer to a push that did not fail.
#[derive(Debug)]
pub enum Pushed {
    /// The partner has it now.
    Taken,
    /// No room: here it is again. [`Partner::readiness`] says when to try again.
    Full(Message),
}

/// How a pull wants its message: P's four cases.
#[derive(Debug)]
pub enum Pull<'a> {
    /// Only ask whether there is one.
    Ask,
    /// The partner's memory, in a new message.
    Yours,
    /// The partner's memory, appended to the caller's vector.
    Vector(&'a mut Body),
    /// Copied into the caller's memory.
    Mine(&'a mut [u8]),
}

/// The answer to a pull. Every arm that carries data names the flow it belongs to.
#[derive(Debug)]
pub enum Pulled {
    /// Nothing now.
    Nothing,
    /// To [`Pull::Ask`]: there is one.
    Available(FlowKey),
    /// To [`Pull::Yours`].
    Message(FlowKey, Message),
    /// To [`Pull::Vector`] and [`Pull::Mine`]: the bytes are in the caller's vector or memory.
    Filled {
        /// The flow.
        flow: FlowKey,
        /// When the message was created.
        created: Time,
        /// What is known of it.
        attributes: Attributes,
        /// Its bytes.
        length: usize,
    },
    /// To [`Pull::Mine`]: too small; the message stays.
    TooSmall {
        /// Bytes needed.
        needed: usize,
    },
    /// There will never be another.
    End,
}

/// Most bytes of an answer to [`Ctl::Leave`].
pub const LEGACY_BYTES_MAX: usize = 4 << 10;

/// A control operation.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ctl<'a> {
    /// Hand on what is gathered: the end of a burst of pushes.
    Flush,
    /// Make the next pull answer where things stand, whole.
    Snapshot,
    /// Go to the neutral state: keys up, axes centred, effects stopped, breaks cleared.
    Neutral,
    /// No more will be pushed; finish what there is.
    Finish,
    /// To one stage of the flow's path, as its other half would say it: number of the pair and bytes.
    Stage(u16, &'a [u8]),
    /// Asked of the other side's class: operation and arguments, as `Ask` on the control channel.
    Ask(u16, &'a [u8]),
    /// What this host's user says to the partner, in words of its class (`brightness=128`); no words ask what can be
    /// said. The answer is text, or [`PartnerError::Message`].
    Say(&'a str),
    /// How much of the last message pushed was written, if not all of it: [`CtlReply::Count`], bytes; else
    /// [`CtlReply::Done`]. For who goes on after this process is killed.
    Partway,
    /// So many bytes of the message that is pushed next were written before this partner was made.
    Skip(u64),
    /// Bytes that were read and not pulled yet: [`CtlReply::Count`]. If this process is killed, they are lost.
    Ahead,
    /// Messages that this partner read and gave up by itself, as where things stand tells what they led to:
    /// [`CtlReply::Count`] since it was made.
    GivenUp,
    /// What who goes on after this process is killed has to know of what was read or written, and could not find out:
    /// [`CtlReply::Bytes`], at most [`LEGACY_BYTES_MAX`], the same for as long as the partner lives; until there is
    /// something, [`CtlReply::Pending`].
    Leave,
    /// Another process read or wrote before this partner was made, and left this.
    GoOn(&'a [u8]),
    /// Figures for people and scripts.
    Report,
    /// To a transport: has anything come of the peer? [`CtlReply::Count`]. It is asked in every round of a path: a
    /// transport that keeps up a protocol of its own ([`Partner::upkeep`]) does so then.
    Heard,
    /// To a transport: would a new connection in place of this one do better, as what was lost holds this one back?
    /// [`CtlReply::Count`], 1 once when it would.
    HeldBack,
    /// To a transport: the peer is heard again after a silence. What waits twice as long each time for an answer is tried now.
    Probe,
    /// To a transport: this host has another address; go on over this socket, connected to the same peer, or to where
    /// the peer is now.
    Move(OwnedFd),
    /// To a transport whose records are traced.
    Watch(Watch),
}

/// What is asked of a transport whose records are traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// Have the kernel tell of what it passes on, where it can and when it is asked to.
    Begin,
    /// Have it note when it has what comes, or no longer: that costs it something for all that comes.
    Arrivals(bool),
    /// No longer.
    End,
    /// The record that is pushed next: when does the kernel pass it on?
    Next,
    /// Tell: [`CtlReply::Progress`].
    Progress,
}

/// How far a transport's records have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Records pushed since the connection began.
    pub pushed: u64,
    /// So many of them the kernel has whole.
    pub written: u64,
    /// When the kernel had what was received last, if it notes that.
    pub arrived: Option<Time>,
    /// Where the kernel had a watched record, if it told since; there may be more to tell.
    pub told: Option<Told>,
    /// More will be told by itself.
    pub expects: bool,
}

/// Where the kernel had a watched record, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// Its number among the records pushed, from 1.
    pub record: u64,
    /// Where.
    pub moment: Moment,
    /// When.
    pub at: Time,
}

/// Places in the kernel that a record passes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The packet scheduler.
    Scheduled,
    /// The network's driver.
    Sent,
    /// The peer's kernel.
    Acknowledged,
}

/// The answer to a control operation.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum CtlReply {
    /// Done.
    #[default]
    Done,
    /// Begun: call again when [`Partner::readiness`] of [`Direction::In`] says so.
    Pending,
    /// Done, with a result.
    Bytes(Vec<u8>),
    /// Figures.
    Report(Vec<crate::Report>),
    /// A number. To [`Ctl::Heard`], one that grows with whatever comes, of records that are not whole too.
    Count(u64),
    /// To [`Watch::Progress`].
    Progress(Progress),
}

/// What a descriptor is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Something to read.
    Read,
    /// Room to write.
    Write,
}

/// When a partner would answer otherwise than [`Pulled::Nothing`] or [`Pushed::Full`]: whichever of
/// these comes first. All empty: never by itself.
#[derive(Debug, Default)]
pub struct Readiness<'a> {
    /// Now.
    pub now: bool,
    /// When one of these is ready; at most two are looked at.
    pub descriptors: [Option<(BorrowedFd<'a>, Interest)>; 2],
    /// At this time.
    pub at: Option<Time>,
}

impl<'a> Readiness<'a> {
    /// At once.
    pub fn now() -> Self {
        Readiness { now: true, ..Readiness::default() }
    }

    /// Never by itself.
    pub fn never() -> Self {
        Readiness::default()
    }

    /// When `descriptor` is ready.
    pub fn descriptor(descriptor: BorrowedFd<'a>, interest: Interest) -> Self {
        Readiness { descriptors: [Some((descriptor, interest)), None], ..Readiness::default() }
    }

    /// At a time.
    pub fn at(time: Time) -> Self {
        Readiness { at: Some(time), ..Readiness::default() }
    }

    /// The same, and at `time` at the latest.
    pub fn or_at(mut self, time: Option<Time>) -> Self {
        self.at = match (self.at, time) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self
    }
}

/// What a flow starts or ends at. Never blocks; object-safe.
///
/// A **passive** partner is only called. An **active** one (`runtime::active`) also holds a handle on its
/// partner and calls it from a thread of its own, behind a bounded ring and an eventfd.
pub trait Partner: Send {
    /// Opens a flow; `attributes` hold for all its messages.
    fn open(&mut self, template: &FlowTemplate, attributes: &Attributes) -> Result<FlowKey, PartnerError>;

    /// Closes a flow and frees what it holds.
    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError>;

    /// Hands a message over. Full or failed gives it back: nothing is lost.
    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)>;

    /// Asks for a message, of `flow` or, by default, of any.
    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError>;

    /// Controls a flow, or by [`FlowKey::DEFAULT`] the partner itself.
    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError>;

    /// When a push ([`Direction::In`]) would be taken or a pull ([`Direction::Out`]) would find something.
    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_>;

    /// What else it has to be called for, though nobody pushes or pulls: a transport that keeps up a protocol of its
    /// own has acknowledgements to give and time to keep.
    fn upkeep(&self) -> Readiness<'_> {
        Readiness::never()
    }
}

/// What a partner that makes messages finds when it looks for the next.
#[derive(Debug)]
pub enum Next {
    /// A message.
    Message(Message),
    /// None now.
    Nothing,
    /// None ever again.
    End,
}

/// Answers P's four cases of pull from one function that finds the next message. It holds a message that
/// was asked for or did not fit.
#[derive(Debug, Default)]
pub struct PullSlot {
    held: Option<Message>,
}

impl PullSlot {
    /// Whether a message is held: readiness is then "now".
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Answers one pull.
    pub fn answer<E>(
        &mut self,
        flow: FlowKey,
        want: Pull<'_>,
        next: impl FnOnce() -> Result<Next, E>,
    ) -> Result<Pulled, E> {
        let message = match self.held.take() {
            Some(message) => message,
            None => match next()? {
                Next::Message(message) => message,
                Next::Nothing => return Ok(Pulled::Nothing),
                Next::End => return Ok(Pulled::End),
            },
        };
        let length = message.body.len();
        let (created, attributes) = (message.created, message.attributes);
        Ok(match want {
            Pull::Ask => {
                self.held = Some(message);
                Pulled::Available(flow)
            }
            Pull::Yours => Pulled::Message(flow, message),
            Pull::Vector(vector) => {
                vector.append(message.body);
                Pulled::Filled { flow, created, attributes, length }
            }
            Pull::Mine(memory) => match message.body.copy_to(memory) {
                true => Pulled::Filled { flow, created, attributes, length },
                false => {
                    self.held = Some(message);
                    Pulled::TooSmall { needed: length }
                }
            },
        })
    }
}
