//! The scope of a world: its parameters, its faults, and its moves.

use contract::FlowClass;
use session::{Limits, StoreFull};

/// The parameters of a world, and how often each fault may happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// The class of the flow: reliable or state.
    pub class: FlowClass,
    /// The transport may lose, repeat and reorder records.
    pub lossy: bool,
    /// The sink's stages have memory. Their checkpoint is saved at each acknowledgement, with the position of
    /// the delivered messages. Not with [`StoreFull::DropOldest`].
    pub remembers: bool,
    /// The capacity of the replay store in messages.
    pub store_messages: usize,
    /// The capacity of the sink's buffer in records.
    pub held_records: usize,
    /// The behaviour of the flow when the store is full.
    pub store_full: StoreFull,
    /// The most records in flight.
    pub under_way: usize,
    /// The number of messages from the device.
    pub messages: u64,
    /// Records lost on a working link.
    pub losses: u32,
    /// Records that arrive twice.
    pub repeats: u32,
    /// Broken links.
    pub cuts: u32,
    /// Crashes of a worker, on either host.
    pub kills: u32,
    /// Changes of the pipeline.
    pub changes: u32,
    /// Changes of the transport, to one with the same faults.
    pub switches: u32,
    /// Crashes of a broker, on either host, with the state that it retained. Only for a reliable flow whose
    /// full store blocks.
    pub brokers: u32,
}

impl Scope {
    /// A flow with unlimited faults, except those that are not the flow's alone: crashes of brokers and changes
    /// of the transport.
    pub fn unlimited(class: FlowClass, lossy: bool, store_full: StoreFull) -> Scope {
        let often = u32::MAX;
        Scope {
            store_full,
            under_way: 8,
            losses: often,
            repeats: often,
            cuts: often,
            kills: often,
            changes: often,
            ..Scope::new(class, lossy, u64::MAX)
        }
    }

    /// A flow of `messages` messages without any fault.
    pub fn new(class: FlowClass, lossy: bool, messages: u64) -> Scope {
        Scope {
            class,
            lossy,
            remembers: false,
            store_messages: 2,
            held_records: 2,
            store_full: StoreFull::Block,
            under_way: 2,
            messages,
            losses: 0,
            repeats: 0,
            cuts: 0,
            kills: 0,
            changes: 0,
            switches: 0,
            brokers: 0,
        }
    }

    pub(super) fn limits(&self) -> Limits {
        let (store_messages, held_records) = (self.store_messages, self.held_records);
        Limits { store_messages, held_records, store_full: self.store_full, ..Limits::default() }
    }
}

/// A possible next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// The source retransmits a record, or else the device makes a message and the source sends it.
    Send,
    /// A record arrives: the oldest one of a stream, any one of datagrams.
    Arrive(u8),
    /// The sink delivers a message, or advances to the next epoch.
    HandOn,
    /// The partner accepts the delivered message.
    Take,
    /// The sink sends an acknowledgement.
    Acknowledge,
    /// The sink requests missing records.
    Miss,
    /// An acknowledgement or a request arrives, in any order.
    Acknowledged(u8),
    /// The retransmission timeout of the source.
    Timeout,
    /// The source reports dropped records.
    SendGone,
    /// The next control message arrives at the sink.
    ReceiveAtSink,
    /// The next control message arrives at the source.
    ReceiveAtSource,
    /// The link is restored.
    Join,
    /// The source resumes in a new process.
    StartSource,
    /// The sink resumes in a new process.
    StartSink,
    /// A record is lost.
    Lose(u8),
    /// A record arrives and stays in flight.
    Repeat(u8),
    /// The link breaks. Everything in flight is lost.
    Cut,
    /// The source's process crashes, and its link breaks.
    KillSource,
    /// The sink's process crashes, and its link breaks. Messages that were not accepted are lost with it.
    KillSink,
    /// The silence timeout at the source's host.
    SilenceAtSource,
    /// The silence timeout at the sink's host.
    SilenceAtSink,
    /// A user requests another pipeline.
    Change,
    /// The source changes to the other transport, which is empty. The sink still uses the first one, or has
    /// changed before.
    SwitchSource,
    /// The sink changes to the other transport.
    SwitchSink,
    /// The broker of the source's host crashes and restarts.
    KillSourceBroker,
    /// The broker of the sink's host crashes and restarts. The application's node is also new.
    KillSinkBroker,
}

impl Move {
    /// All moves, those that make progress first.
    pub const ALL: &[Move] = &[
        Move::StartSource,
        Move::StartSink,
        Move::Join,
        Move::ReceiveAtSink,
        Move::ReceiveAtSource,
        Move::SendGone,
        Move::Take,
        Move::HandOn,
        Move::Arrive(0),
        Move::Arrive(1),
        Move::Arrive(2),
        Move::Acknowledged(0),
        Move::Acknowledged(1),
        Move::Send,
        Move::Acknowledge,
        Move::Miss,
        Move::Timeout,
        Move::Lose(0),
        Move::Lose(1),
        Move::Lose(2),
        Move::Repeat(0),
        Move::Repeat(1),
        Move::Repeat(2),
        Move::Cut,
        Move::KillSource,
        Move::KillSink,
        Move::SilenceAtSource,
        Move::SilenceAtSink,
        Move::Change,
        Move::SwitchSource,
        Move::SwitchSink,
        Move::KillSourceBroker,
        Move::KillSinkBroker,
    ];

    /// Returns true for a move that makes progress; false for a fault or a request.
    pub fn is_good(self) -> bool {
        !matches!(
            self,
            Move::Lose(_)
                | Move::Repeat(_)
                | Move::Cut
                | Move::KillSource
                | Move::KillSink
                | Move::SilenceAtSource
                | Move::SilenceAtSink
                | Move::Change
                | Move::KillSourceBroker
                | Move::KillSinkBroker
        )
    }
}
