//! What there is between two hosts, how often what may go wrong, and what may happen next.

use contract::FlowClass;
use session::{Limits, StoreFull};

/// What there is, and how often each thing may go wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// What the flow promises: reliable or state.
    pub class: FlowClass,
    /// Whether the transport may lose, repeat and reorder.
    pub lossy: bool,
    /// Whether the sink's stages remember: what was taken is kept, with what they remember, when it is acknowledged. Only
    /// of a flow whose full store gives nothing up.
    pub remembers: bool,
    /// Messages that the store holds.
    pub store_messages: usize,
    /// Records that the sink holds.
    pub held_records: usize,
    /// What becomes of the flow when the store is full.
    pub store_full: StoreFull,
    /// Records under way at once.
    pub under_way: usize,
    /// Messages that the device makes.
    pub messages: u64,
    /// Records lost on a link that lives.
    pub losses: u32,
    /// Records that come twice.
    pub repeats: u32,
    /// Links that end.
    pub cuts: u32,
    /// Processes killed, on either host.
    pub kills: u32,
    /// Changes of the pipeline.
    pub changes: u32,
    /// Changes of the transport, to one that loses no more and no less.
    pub switches: u32,
    /// Brokers killed, on either host, and what they kept with them. Only of a reliable flow whose full store blocks.
    pub brokers: u32,
}

impl Scope {
    /// A flow of which everything may go wrong, as often as somebody likes, but for what is not the flow's alone: its
    /// hosts' brokers, and the transport.
    pub fn boundless(class: FlowClass, lossy: bool, store_full: StoreFull) -> Scope {
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

    /// A flow that so many messages enter and of which nothing goes wrong.
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

/// What may happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// The source sends what is to be sent again, or else the device makes a message.
    Send,
    /// A record comes: the oldest of a stream, any of datagrams.
    Arrive(u8),
    /// The sink hands a message on, or goes on in the next epoch.
    HandOn,
    /// The partner takes what was handed on.
    Take,
    /// The sink says what was taken.
    Acknowledge,
    /// The sink names what it misses.
    Miss,
    /// An acknowledgement comes, or what is missed, in any order.
    Acknowledged(u8),
    /// The source has waited for an acknowledgement.
    Timeout,
    /// The source says what it keeps no longer.
    TellGone,
    /// The next word comes to the sink.
    HearAtSink,
    /// The next word comes to the source.
    HearAtSource,
    /// The link is there again.
    Join,
    /// A process begins where the killed one at the source stood.
    StartSource,
    /// The same at the sink.
    StartSink,
    /// A record is lost.
    Lose(u8),
    /// A record comes and will come again.
    Repeat(u8),
    /// The link ends with what is under way on it.
    Cut,
    /// The process at the source is killed, and its link with it.
    KillSource,
    /// The same at the sink; what was not taken is gone with it.
    KillSink,
    /// The source's host has heard nothing for long.
    SilenceAtSource,
    /// The sink's host has heard nothing for long.
    SilenceAtSink,
    /// Somebody wishes another pipeline.
    Change,
    /// The source takes the other transport, on which nothing is under way; the sink still has the first, or has taken
    /// the other before.
    SwitchSource,
    /// The same at the sink.
    SwitchSink,
    /// The broker of the source's host is killed, and begins anew.
    KillSourceBroker,
    /// The same at the sink's host; the application's node is new as well.
    KillSinkBroker,
}

impl Move {
    /// All of them, what brings a flow on first.
    pub const ALL: &[Move] = &[
        Move::StartSource,
        Move::StartSink,
        Move::Join,
        Move::HearAtSink,
        Move::HearAtSource,
        Move::TellGone,
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

    /// Whether it brings the flow on, rather than harm it or wish for something.
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
