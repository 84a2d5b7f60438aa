//! Partners: one symmetric interface for devices, nodes, networks, files, programs and paths (The Partner
//! architecture (2002), 3.2, 3.3 and 5.2). A path offers a device the same operations as a device offers a
//! path.

use crate::{Attributes, Body, FlowClass, Format, Message, SealKeys, Time};
use std::os::fd::{BorrowedFd, OwnedFd};
use thiserror::Error;

/// The flow of a partner that an operation applies to: the demux key of the Partner architecture. A result may
/// name a sharper key than the call did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct FlowKey(pub u32);

impl FlowKey {
    /// Any flow that has a message; the result names its key.
    pub const DEFAULT: FlowKey = FlowKey(0);
}

/// The direction of a flow, seen from the partner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Messages are pushed into the partner.
    In,
    /// Messages are pulled from the partner.
    Out,
}

/// The properties of a flow, given when it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowTemplate {
    /// Pushed into the partner, or pulled from it.
    pub direction: Direction,
    /// The format of its messages.
    pub format: Format,
    /// Its class: reliable, timely or state.
    pub class: FlowClass,
}

/// A partner operation failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PartnerError {
    /// The device, the program or the connection is gone; it may return.
    #[error("{0} is gone")]
    Gone(String),
    /// The flow is not open.
    #[error("no flow {0:?} is open here")]
    NoFlow(FlowKey),
    /// The partner does not support the operation.
    #[error("this partner does not support {0}")]
    Unsupported(&'static str),
    /// The partner cannot accept this message.
    #[error("the message does not fit: {0}")]
    Message(String),
    /// The other side of the connection broke its protocol.
    #[error("the peer broke the protocol: {0}")]
    Peer(String),
    /// The bytes of a file or stream have another format.
    #[error("{0}")]
    Data(String),
    /// A system call failed.
    #[error("{operation}: {error}")]
    Os {
        /// The operation and its object.
        operation: String,
        /// The system's error.
        error: std::io::Error,
    },
}

/// The result of a call to a partner.
pub type PartnerResult<T = ()> = Result<T, PartnerError>;

impl PartnerError {
    /// Makes a system error with its operation.
    pub fn os(operation: impl Into<String>, error: impl Into<std::io::Error>) -> Self {
        PartnerError::Os { operation: operation.into(), error: error.into() }
    }
}

/// The result of a push that did not fail.
#[derive(Debug)]
pub enum Pushed {
    /// The partner has accepted the message.
    Taken,
    /// The partner is full and returns the message. [`Partner::readiness`] tells when to try again.
    Full(Message),
}

/// How a pull receives its message: the four cases of The Partner architecture (2002), 3.3.
#[derive(Debug)]
pub enum Pull<'a> {
    /// Only check for a message.
    Ask,
    /// A new message in the partner's memory.
    Yours,
    /// The partner's memory, appended to the caller's vector.
    Vector(&'a mut Body),
    /// A copy in the caller's memory.
    Mine(&'a mut [u8]),
}

/// The result of a pull. Every variant with data names its flow.
#[derive(Debug)]
pub enum Pulled {
    /// No message now.
    Nothing,
    /// Reply to [`Pull::Ask`]: a message is available.
    Available(FlowKey),
    /// Reply to [`Pull::Yours`].
    Message(FlowKey, Message),
    /// Reply to [`Pull::Vector`] and [`Pull::Mine`]: the bytes are in the caller's memory.
    Filled {
        /// The flow of the message.
        flow: FlowKey,
        /// Its creation time.
        created: Time,
        /// Its attributes.
        attributes: Attributes,
        /// Its length in bytes.
        length: usize,
    },
    /// Reply to [`Pull::Mine`]: the memory is too small. The partner keeps the message.
    TooSmall {
        /// The needed bytes.
        needed: usize,
    },
    /// No more messages will ever come.
    End,
}

/// The largest reply to [`RecoveryCtl::SaveState`], in bytes.
pub const SAVED_STATE_BYTES_MAX: usize = 4 << 10;

/// A control operation. Any partner may answer these; [`TransportCtl`] and [`RecoveryCtl`] have the others, by the
/// component that answers them.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ctl<'a> {
    /// Flush: the end of a burst of pushes.
    Flush,
    /// Make the next pull return the complete current state.
    Snapshot,
    /// The pipeline behind the flow merges changes into the current state ([`Promises::merges`](crate::Promises::merges)), if
    /// true. A device that divides a large change, so that a small one need not wait behind it, then leaves it whole. Until the
    /// first call it does not merge.
    Merging(bool),
    /// Go to the neutral state: keys up, axes centred, effects stopped, breaks cleared.
    Neutral,
    /// Returns 1 if the flow's state is neutral, else 0 ([`CtlReply::Count`]). A partner that does not know its state
    /// does not support this; the path then derives it from the messages.
    IsNeutral,
    /// Returns how much sound the partner holds ([`CtlReply::Fill`]). It is asked after each push of sound, also a refused
    /// one; a partner whose device has no clock of its own does not support this.
    Fill,
    /// No more pushes will follow; finish the pending work.
    Finish,
    /// A command of the local user in the words of the class (`brightness=128`); an empty command lists the
    /// possible ones. The reply is text; an invalid command fails with [`PartnerError::Message`].
    Command(&'a str),
    /// Returns statistics.
    Report,
    /// An operation of transports.
    Transport(TransportCtl),
    /// An operation of device classes that resume after a crash of their process.
    Recovery(RecoveryCtl<'a>),
}

/// A control operation that only transports answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum TransportCtl {
    /// Returns a number that grows with everything that arrives from the peer, partial records included, apart from packets
    /// that only keep the connection alive ([`CtlReply::Count`]). The path calls it in every round, so a transport with its own protocol
    /// ([`Partner::upkeep`]) runs it here.
    Received,
    /// Returns 1 once ([`CtlReply::Count`]) when losses hold this connection back, or when the peer does not acknowledge
    /// data, so that a new one would do better. The path asks after each flush, and when the timer of [`Partner::upkeep`]
    /// has expired; a transport makes the checks that are due here.
    HeldBack,
    /// The session had no room for this record, and the peer sends it again: a transport that drops repeated records has to
    /// deliver it again.
    Overflow {
        /// The record's flow.
        flow: u32,
        /// Its epoch.
        epoch: u32,
        /// Its sequence.
        sequence: u64,
    },
    /// The peer answers again after a silence. Retry now, regardless of backed-off timers.
    Probe,
    /// The host has a new address. Continue on this socket, which is connected to the peer's current address.
    Move(OwnedFd),
    /// Another connection of the same link, with its own keys. Only a transport with
    /// [`TransportClass::has_ways`](crate::TransportClass::has_ways) accepts it. The transport closes it when it needs it no more.
    AddWay(OwnedFd, Option<SealKeys>),
    /// Do the work of the connections apart from records. Returns the number of further connections that this host
    /// is to make ([`CtlReply::Count`]); each is reported once.
    ServeWays,
    /// Trace records inside the kernel.
    Trace(TraceCtl),
}

/// A control operation that serves the recovery after a crash. A device class answers it if it can lose data or
/// state with its process.
#[derive(Debug)]
#[non_exhaustive]
pub enum RecoveryCtl<'a> {
    /// Returns the written bytes of the last pushed message as [`CtlReply::Count`], if the write was partial;
    /// else [`CtlReply::Done`].
    PartialWrite,
    /// The first bytes of the next pushed message were already written by a crashed process; skip this many.
    Skip(u64),
    /// The next pushed message follows one of which a crashed process wrote this many bytes, and which never comes
    /// again. A partner whose messages all have one size keeps its reader in step.
    Abandon(u64),
    /// Returns the number of bytes read but not yet pulled ([`CtlReply::Count`]). A crash would lose them.
    ReadAhead,
    /// Returns the number of messages that this partner has read and discarded ([`CtlReply::Count`]), because a
    /// newer state includes their effect.
    Discarded,
    /// Returns the state that a successor needs after a crash and cannot find out itself: [`CtlReply::Bytes`],
    /// at most [`SAVED_STATE_BYTES_MAX`]. It is constant for the life of the partner; before it is known, the
    /// reply is [`CtlReply::Pending`].
    SaveState,
    /// Restores the state that a crashed process saved with [`RecoveryCtl::SaveState`].
    RestoreState(&'a [u8]),
}

/// Operations for tracing records inside the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceCtl {
    /// Let the kernel report the progress of records, where it can, for the records that ask for it.
    Begin,
    /// Start or stop receive timestamps. They cost the kernel some work for every packet.
    Arrivals(bool),
    /// Stop tracing.
    End,
    /// Trace the next pushed record.
    Next,
    /// Return the progress as [`CtlReply::Progress`].
    Progress,
}

/// The progress of a transport's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Records pushed since the connection was opened.
    pub pushed: u64,
    /// Records that the kernel has accepted completely.
    pub written: u64,
    /// The kernel's receive timestamp of the newest data, if enabled.
    pub arrived: Option<Time>,
    /// The next kernel report on a traced record, if any; more may follow.
    pub report: Option<TraceReport>,
    /// The kernel will send more reports.
    pub expects: bool,
}

/// One kernel report: the place and the time of a traced record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceReport {
    /// The record's number since the connection was opened, from 1.
    pub record: u64,
    /// The place.
    pub moment: Moment,
    /// The time.
    pub at: Time,
}

/// Places in the kernel that a record passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The packet scheduler.
    Scheduled,
    /// The network driver.
    Sent,
    /// The peer's kernel.
    Acknowledged,
}

/// The reply to a control operation.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum CtlReply {
    /// Done.
    #[default]
    Done,
    /// Started. Repeat the call when [`Partner::readiness`] for [`Direction::In`] is due.
    Pending,
    /// Done, with a result.
    Bytes(Vec<u8>),
    /// Statistics.
    Report(Vec<crate::Report>),
    /// A number.
    Count(u64),
    /// Reply to [`Ctl::Fill`].
    Fill(crate::Fill),
    /// Reply to [`TraceCtl::Progress`].
    Progress(Progress),
}

impl CtlReply {
    /// Returns true if [`Ctl::Flush`] or [`Ctl::Finish`] with this result is complete. A partner that does not support it has
    /// nothing to complete.
    pub fn is_complete(result: PartnerResult<CtlReply>) -> PartnerResult<bool> {
        match result {
            Ok(reply) => Ok(!matches!(reply, CtlReply::Pending)),
            Err(PartnerError::Unsupported(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// A change of a device that its partner survives: the partner, or a program that drives the device, waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// It is unplugged or in use elsewhere, for this reason.
    Absent(String),
    /// It is back.
    Present,
}

/// The event to wait for on a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Readable.
    Read,
    /// Writable.
    Write,
}

/// When a partner can make progress after [`Pulled::Nothing`] or [`Pushed::Full`]: at the earliest of these
/// events. If all are empty, it makes no progress without another call.
#[derive(Debug, Default)]
pub struct Readiness<'a> {
    /// At once.
    pub now: bool,
    /// When one of these descriptors is ready; at most two.
    pub descriptors: [Option<(BorrowedFd<'a>, Interest)>; 2],
    /// At this time.
    pub at: Option<Time>,
}

impl<'a> Readiness<'a> {
    /// Ready at once.
    pub fn now() -> Self {
        Readiness { now: true, ..Readiness::default() }
    }

    /// Never ready without another call.
    pub fn never() -> Self {
        Readiness::default()
    }

    /// Ready when `descriptor` is.
    pub fn descriptor(descriptor: BorrowedFd<'a>, interest: Interest) -> Self {
        Readiness { descriptors: [Some((descriptor, interest)), None], ..Readiness::default() }
    }

    /// Ready at a time.
    pub fn at(time: Time) -> Self {
        Readiness { at: Some(time), ..Readiness::default() }
    }

    /// Adds a time limit.
    pub fn or_at(mut self, time: Option<Time>) -> Self {
        self.at = match (self.at, time) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self
    }
}

/// An endpoint of a flow. No call blocks. The trait is object-safe.
///
/// A **passive** partner only reacts to calls. An **active** one (`runtime::active`) runs in its own thread and
/// calls its own partner, through a bounded ring and an eventfd.
pub trait Partner: Send {
    /// Opens a flow; `attributes` apply to all its messages.
    fn open(&mut self, template: &FlowTemplate, attributes: &Attributes) -> PartnerResult<FlowKey>;

    /// Closes a flow and frees what it holds.
    fn close(&mut self, flow: FlowKey) -> PartnerResult;

    /// Pushes a message. If the partner is full or fails, it returns the message, so nothing is lost.
    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)>;

    /// Pulls a message from `flow`, or from any flow with [`FlowKey::DEFAULT`].
    fn pull(&mut self, flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled>;

    /// Controls a flow, or with [`FlowKey::DEFAULT`] the partner itself.
    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply>;

    /// When a push ([`Direction::In`]) would be accepted, or a pull ([`Direction::Out`]) would return a
    /// message.
    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_>;

    /// When the partner needs a call although nobody pushes or pulls: a transport with its own protocol has
    /// acknowledgements to send and timers to run.
    fn upkeep(&self) -> Readiness<'_> {
        Readiness::never()
    }

    /// Returns the next change of the device's presence, in the order of the messages. A partner that ends with its device returns
    /// [`PartnerError::Gone`] instead.
    fn presence(&mut self) -> Option<Presence> {
        None
    }

    /// Returns the number of further connections to the device that the broker is to make
    /// ([`DeviceClass::connect`](crate::DeviceClass::connect)). Each is reported once, and ends in a call of [`Partner::connected`].
    fn connections_wanted(&mut self) -> u32 {
        0
    }

    /// Takes a connection that the partner wanted, or the reason why there is none. Only a partner that wants connections
    /// accepts it.
    fn connected(&mut self, result: Result<OwnedFd, String>) -> PartnerResult {
        let _ = result;
        Err(PartnerError::Unsupported("further connections"))
    }

    /// Returns the next note for the user about a problem after which the partner continues.
    fn note(&mut self) -> Option<String> {
        None
    }
}

/// The result of looking for the next message of a partner that produces messages.
#[derive(Debug)]
pub enum Next {
    /// A message.
    Message(Message),
    /// No message now.
    Nothing,
    /// No more messages will ever come.
    End,
}

/// Implements the four cases of pull on top of one function that finds the next message. It holds a message
/// that was only checked for, or that did not fit.
#[derive(Debug, Default)]
pub struct PullSlot {
    held: Option<Message>,
}

impl PullSlot {
    /// Returns true if a message is held; the partner is then ready at once.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Answers one pull.
    pub fn answer<E>(
        &mut self,
        flow: FlowKey,
        request: Pull<'_>,
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
        Ok(match request {
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
