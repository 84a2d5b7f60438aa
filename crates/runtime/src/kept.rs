//! What a worker leaves behind, so that another goes on where it stood: memory that its broker holds too.
//!
//! A driver has one piece of memory, with a part for each of its flows: a ticket ([`wire::ticket`]), twice, so that one is
//! always whole; what a source has not been acknowledged, in a ring; and counts of what is in the worker's memory alone.
//! Every change is one store of a word, made after what it tells of is there: whoever is killed between two
//! instructions leaves the state before or the one after.
//!
//! A sink has nothing to send again, and keeps in the ring's place what its stages remember: a checkpoint, in one half of
//! it or the other, which the ticket names. The source sends again from there on: so both move together, and with
//! what is acknowledged. Keeping the whole after each message would cost a copy of a picture for a byte that changed.
//!
//! What is read here another worker wrote, which may have been taken over: it is checked as what a stranger says.

mod ring;

use contract::{Body, Bytes, Ctl, CtlReply, FlowKey, LEGACY_BYTES_MAX, Message, Partner};
use session::Limits;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sys::memory::{Access, Shared, create};
use wire::control::{FLOWS_MAX, PIPELINE_BYTES_MAX};
use wire::ticket::{FlowTicket, SinkTicket, SourceTicket};
use wire::{BODY_BYTES_MAX, Reader, RecordHeader, Writer};

/// Bytes of a flow's part in front of its ring: words, then two tickets.
const HEAD_BYTES: usize = 32 << 10;
/// Where the tickets begin, and how long each may be.
const TICKETS: [usize; 2] = [4 << 10, 16 << 10];
const TICKET_BYTES_MAX: usize = 8 << 10;
/// Which ticket counts: 1 or 2; 0 is none yet.
const WHICH: usize = 0;
/// Where the ring begins and ends, 32 bits each.
const ENDS: usize = 8;
/// Outputs that the partner took, from bit 28 on, how many bytes of one more it wrote, and in bit 0 whether it is just
/// being given one.
const PROGRESS: usize = 16;
const PARTWAY_BITS: u32 = 28;
/// Messages that a source's stages hold, and in bit 0 whether one is just being taken from the device.
const HELD: usize = 24;
/// How many were lost so, and how many may have been, with all workers before.
const LOST: usize = 32;
const IN_DOUBT: usize = 40;
/// Bytes that were read of the device and are in no message yet, and how many were lost so with all workers before.
const AHEAD: usize = 48;
const AHEAD_LOST: usize = 56;
/// What all workers until now counted as dropped.
const DROPPED: usize = 64;
/// Bytes of what the partner leaves ([`Ctl::Leave`]), and one more; 0: it left nothing yet. Where they are.
const LEGACY: usize = 72;
const LEGACY_AT: usize = 24 << 10;
/// Bytes of a length.
const LENGTH_BYTES: usize = 4;

fn ring_bytes(limits: &Limits) -> usize {
    // One message may go over the bound, and one may not fit at the end; nor is there less room where the ring went on at
    // its start before that ([`Kept::place`]).
    let bodies = limits.store_bytes.saturating_add(2 * BODY_BYTES_MAX);
    let headers = limits.store_messages.saturating_mul(RecordHeader::BYTES + 2 * LENGTH_BYTES);
    bodies.saturating_add(headers).min(u32::MAX as usize & !4095)
}

/// Fresh memory for a driver. Only what is used of it is there.
pub(crate) fn memory(limits: &Limits) -> io::Result<OwnedFd> {
    create("outboard-kept", FLOWS_MAX * (HEAD_BYTES + ring_bytes(limits)))
}

/// The parts of a driver's flows, in their order.
pub(crate) fn map(memory: OwnedFd, limits: &Limits) -> io::Result<[Kept; FLOWS_MAX]> {
    let shared = Arc::new(Shared::map(memory.as_fd(), Access::Write)?);
    let ring = ring_bytes(limits);
    if shared.bytes() < FLOWS_MAX * (HEAD_BYTES + ring) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "less memory than these limits need"));
    }
    Ok(std::array::from_fn(|index| Kept {
        shared: shared.clone(),
        base: index * (HEAD_BYTES + ring),
        ring_bytes: ring,
        entries: VecDeque::new(),
        writer: Writer::new(),
        pushed: 0,
        settled: 0,
        checkpoint: (0, 0),
        has_legacy: false,
        has_gap: false,
    }))
}

/// Whether a partner has said what it leaves to one that goes on with its device.
pub(crate) fn has_legacy(memory: &OwnedFd, limits: &Limits) -> bool {
    let kept = memory.try_clone().and_then(|memory| map(memory, limits));
    kept.is_ok_and(|kept| kept.iter().any(|kept| kept.legacy().is_some()))
}

/// A driver of another session goes on with the same open device: it has to know what the partner before it leaves, and
/// goes on counting. What that had under way is lost, or in doubt.
pub(crate) fn hand_on(before: OwnedFd, after: OwnedFd, limits: &Limits) -> io::Result<()> {
    for (mut before, after) in map(before, limits)?.into_iter().zip(map(after, limits)?) {
        let underway = before.load(HELD) & 1 | before.load(PROGRESS) & 1;
        let unacknowledged = before.records().map_or(0, |records| records.len() as u64);
        let held = before.load(HELD) >> 1;
        let losses = before.lose(held, underway.saturating_add(unacknowledged));
        let Losses { held, in_doubt, ahead_bytes, dropped } = losses;
        [(LOST, held), (IN_DOUBT, in_doubt), (AHEAD_LOST, ahead_bytes), (DROPPED, dropped)]
            .into_iter()
            .for_each(|(at, value)| after.store(at, value));
        if let Some(left) = before.legacy() {
            after.put_legacy(&left);
        }
    }
    Ok(())
}

/// Where a source stood.
#[derive(Debug)]
pub(crate) struct SourceStand {
    pub(crate) ticket: SourceTicket,
    /// The pipeline of its epoch, as it was written.
    pub(crate) pipeline: String,
    /// What was not acknowledged, as it went out; `None` if that was not kept whole.
    pub(crate) records: Option<Vec<Message>>,
    pub(crate) losses: Losses,
}

/// What was in the memory of workers alone when they were killed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    /// Messages that stages held, and are no more.
    pub(crate) held: u64,
    /// Messages of a device that may have been taken, and are no more; or of a partner's that it may have taken, and
    /// gets again.
    pub(crate) in_doubt: u64,
    /// Bytes that were read of a device and were in no message yet.
    pub(crate) ahead_bytes: u64,
    /// Messages that those workers had counted as dropped, for whatever reason.
    pub(crate) dropped: u64,
}

/// Where a sink stood.
#[derive(Debug)]
pub(crate) struct SinkStand {
    pub(crate) ticket: SinkTicket,
    pub(crate) pipeline: String,
    /// What its stages remembered then; empty if they had taken nothing, or remember nothing.
    pub(crate) checkpoint: Bytes,
    /// Outputs of what the ticket counts as not taken that the partner took.
    pub(crate) taken: u64,
    /// Bytes of the next one that it wrote.
    pub(crate) partway: u64,
    pub(crate) losses: Losses,
}

/// What is kept of one flow.
pub(crate) struct Kept {
    shared: Arc<Shared>,
    base: usize,
    ring_bytes: usize,
    /// Records in the ring: epoch and sequence, and where each ends.
    entries: VecDeque<((u32, u64), usize)>,
    writer: Writer,
    /// Outputs that the partner took, and how many of them when it had taken all of what the ticket says.
    pushed: u64,
    settled: u64,
    /// Which half of the ring's place holds the checkpoint, 0 or 1, and its bytes.
    checkpoint: (usize, usize),
    /// Whether the partner said what it leaves, or that it never leaves anything.
    has_legacy: bool,
    /// There was no room for a record: those that follow are not kept either.
    has_gap: bool,
}

impl Kept {
    fn word(&self, at: usize) -> Option<&AtomicU64> {
        self.shared.word(self.base + at)
    }

    fn load(&self, at: usize) -> u64 {
        self.word(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.word(at) {
            word.store(value, Ordering::Release);
        }
    }

    /// The same, with nothing in it.
    pub(crate) fn cleared(mut self) -> Kept {
        self.entries.clear();
        self.has_gap = false;
        (self.pushed, self.settled, self.checkpoint) = (0, 0, (0, 0));
        let words = [WHICH, ENDS, PROGRESS, HELD, LOST, IN_DOUBT, AHEAD, AHEAD_LOST, DROPPED];
        words.into_iter().for_each(|at| self.store(at, 0));
        self
    }

    /// Asks a partner what it leaves, until it says that, or that it leaves nothing.
    pub(crate) fn keep_legacy(&mut self, partner: &mut dyn Partner, key: FlowKey) {
        if self.has_legacy {
            return;
        }
        let left = match partner.ctl(key, Ctl::Leave) {
            Ok(CtlReply::Bytes(left)) => left,
            Ok(CtlReply::Pending) => return,
            _ => Vec::new(),
        };
        self.has_legacy = true;
        self.put_legacy(&left);
    }

    fn put_legacy(&self, left: &[u8]) {
        if left.len() <= LEGACY_BYTES_MAX && self.shared.copy_in(self.base + LEGACY_AT, left) {
            self.store(LEGACY, left.len() as u64 + 1);
        }
    }

    /// What a partner before left; `None` if none said yet what it leaves.
    fn legacy(&self) -> Option<Vec<u8>> {
        let bytes = usize::try_from(self.load(LEGACY)).ok()?.checked_sub(1)?;
        let mut left = vec![0; bytes.min(LEGACY_BYTES_MAX)];
        self.shared.copy_out(self.base + LEGACY_AT, &mut left).then_some(left)
    }

    /// Has a partner go on where that of a worker before this one stood, if it left anything.
    pub(crate) fn hand_legacy(&mut self, partner: &mut dyn Partner, key: FlowKey) {
        let Some(left) = self.legacy() else { return };
        self.has_legacy = true;
        if !left.is_empty() {
            // What another said it reads as what a stranger says; of no use to it, it begins anew.
            let _ = partner.ctl(key, Ctl::GoOn(&left));
        }
    }

    /// The partner is another: what the one before would leave is nothing to it.
    pub(crate) fn forget_legacy(&mut self) {
        self.has_legacy = false;
        self.store(LEGACY, 0);
    }

    /// The ticket is this one from now on.
    pub(crate) fn put_ticket(&mut self, ticket: &FlowTicket, pipeline: &str) {
        let mut writer = std::mem::take(&mut self.writer);
        writer.clear();
        let (half, bytes) = self.checkpoint;
        ticket.write(writer.u64(self.settled).u8(half as u8).u64(bytes as u64).text(pipeline));
        let which = if self.load(WHICH) == 1 { 2 } else { 1 };
        let at = self.base + TICKETS[which - 1];
        let bytes = writer.bytes();
        if bytes.len() <= TICKET_BYTES_MAX && self.shared.copy_in(at, bytes) {
            self.store(WHICH, which as u64);
        }
        self.writer = writer;
    }

    /// What a sink's stages remember is this, from the next ticket on; `false`, and nothing, if it is larger than there is
    /// room for.
    #[must_use]
    pub(crate) fn put_checkpoint(&mut self, checkpoint: &Body) -> bool {
        let half = 1 - self.checkpoint.0;
        let bytes = checkpoint.len();
        if bytes > self.ring_bytes / 2 {
            self.checkpoint = (half, 0);
            return false;
        }
        let mut at = self.checkpoint_at(half);
        for piece in checkpoint.chunks() {
            self.shared.copy_in(at, piece);
            at += piece.len();
        }
        self.checkpoint = (half, bytes);
        true
    }

    fn checkpoint_at(&self, half: usize) -> usize {
        self.base + HEAD_BYTES + half * (self.ring_bytes / 2)
    }

    /// The ticket, how many outputs the partner had taken then, where the checkpoint is, and the pipeline; `None` if there
    /// is none that means anything.
    fn ticket(&self) -> Option<(FlowTicket, u64, (usize, usize), String)> {
        let at = *TICKETS.get(usize::try_from(self.load(WHICH)).ok()?.checked_sub(1)?)?;
        let mut bytes = vec![0; TICKET_BYTES_MAX];
        self.shared.copy_out(self.base + at, &mut bytes).then_some(())?;
        let mut r = Reader::new(&bytes);
        let pushed = r.u64("kept pushed").ok().filter(|pushed| *pushed <= u64::MAX >> PARTWAY_BITS)?;
        let half = usize::from(r.u8("kept half").ok()? & 1);
        let bytes = usize::try_from(r.u64("kept checkpoint").ok()?).ok()?;
        let pipeline = r.text("kept pipeline", PIPELINE_BYTES_MAX).ok()?.into();
        Some((FlowTicket::read(&mut r).ok()?, pushed, (half, bytes.min(self.ring_bytes / 2)), pipeline))
    }

    /// Where a source stood before this worker, if it did.
    pub(crate) fn source(&mut self) -> Option<SourceStand> {
        let (FlowTicket::Source(ticket), _, _, pipeline) = self.ticket()? else { return None };
        let records = self.records();
        let held = self.load(HELD);
        Some(SourceStand { ticket, pipeline, records, losses: self.lose(held >> 1, held & 1) })
    }

    /// Adds to what was lost with all workers.
    fn lose(&mut self, held: u64, in_doubt: u64) -> Losses {
        let held = self.load(LOST).saturating_add(held);
        let in_doubt = self.load(IN_DOUBT).saturating_add(in_doubt);
        let ahead_bytes = self.load(AHEAD_LOST).saturating_add(self.load(AHEAD));
        [(LOST, held), (IN_DOUBT, in_doubt), (AHEAD_LOST, ahead_bytes), (HELD, 0), (AHEAD, 0)]
            .into_iter()
            .for_each(|(at, value)| self.store(at, value));
        self.losses()
    }

    /// What was lost with all workers before this one.
    pub(crate) fn losses(&self) -> Losses {
        let [held, in_doubt, ahead_bytes, dropped] =
            [LOST, IN_DOUBT, AHEAD_LOST, DROPPED].map(|at| self.load(at));
        Losses { held, in_doubt, ahead_bytes, dropped }
    }

    /// So many messages this worker and those before have counted as dropped.
    pub(crate) fn keep_dropped(&self, count: u64) {
        self.store(DROPPED, count);
    }

    /// Where a sink stood before this worker, if it did.
    pub(crate) fn sink(&mut self) -> Option<SinkStand> {
        let (FlowTicket::Sink(ticket), before, checkpoint, pipeline) = self.ticket()? else { return None };
        let progress = self.load(PROGRESS);
        // Of what an epoch before made, it may have written the last in part when that was given up.
        let is_of_before = progress >> PARTWAY_BITS < before;
        self.pushed = (progress >> PARTWAY_BITS).max(before);
        (self.settled, self.checkpoint) = (before, checkpoint);
        self.store(PROGRESS, if is_of_before { before << PARTWAY_BITS } else { progress & !1 });
        let held = self.load(HELD) >> 1;
        let mut bytes = vec![0; checkpoint.1];
        self.shared.copy_out(self.checkpoint_at(checkpoint.0), &mut bytes).then_some(())?;
        Some(SinkStand {
            ticket,
            pipeline,
            checkpoint: bytes.into(),
            taken: self.pushed - before,
            partway: if is_of_before { 0 } else { progress >> 1 & ((1 << (PARTWAY_BITS - 1)) - 1) },
            losses: self.lose(held, progress & 1),
        })
    }

    /// The source is about to take messages from its device, or takes them, and has so much of them in this process's
    /// memory alone, and bytes that are in no message yet.
    pub(crate) fn handle_taking(&self, held: usize, ahead_bytes: u64) {
        self.store(AHEAD, ahead_bytes);
        self.store(HELD, (held as u64) << 1 | 1);
    }

    /// It has, and what it has of them in this process's memory alone is so much.
    pub(crate) fn handle_taken(&self, held: usize, ahead_bytes: u64) {
        self.store(AHEAD, ahead_bytes);
        self.store(HELD, (held as u64) << 1);
    }

    /// The partner is about to be given something, or to write.
    pub(crate) fn begin_pushing(&self) {
        self.store(PROGRESS, self.load(PROGRESS) | 1);
    }

    /// Whether it was not yet told what came of [`Kept::begin_pushing`].
    pub(crate) fn is_pushing(&self) -> bool {
        self.load(PROGRESS) & 1 == 1
    }

    /// It has written everything that it took; says whether that is more than before, and the ticket to be put anew.
    #[must_use]
    pub(crate) fn handle_settled(&mut self) -> bool {
        std::mem::replace(&mut self.settled, self.pushed) != self.pushed
    }

    /// What follows is of stages that have taken nothing yet. Of what the partner took until now only so much
    /// `comes_again`.
    pub(crate) fn begin_anew(&mut self, comes_again: u64) {
        self.settled = self.pushed.saturating_sub(comes_again);
        self.checkpoint.1 = 0;
    }

    /// It took so many more, and of the last one wrote these bytes, if that is not whole yet.
    pub(crate) fn handle_pushed(&mut self, count: u64, partway: Option<u64>) {
        self.pushed += count;
        let whole = self.pushed.saturating_sub(partway.is_some().into());
        self.store(PROGRESS, whole << PARTWAY_BITS | partway.unwrap_or(0) << 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{FlowPlan, Surroundings};
    use crate::outgoing::Outgoing;
    use crate::registry;
    use contract::{
        Attributes, Direction, FlowClass, FlowDirection, FlowTemplate, Format, PartnerError, Pull, Pulled,
        Pushed, Readiness, Site, Time,
    };
    use pipeline::{Origin, Pipeline};
    use proptest::prelude::*;
    use wire::Container;

    fn limits() -> Limits {
        Limits { store_bytes: 1 << 16, store_messages: 64, ..Limits::default() }
    }

    fn record(sequence: u64, bytes: usize) -> Message {
        let container = Container { length: bytes as u32, created: sequence };
        let header = RecordHeader { flow: 2, epoch: 1, sequence, container };
        let mut body = Body::from(Bytes::from(vec![sequence as u8; bytes]));
        body.push_front(&header.emit());
        Message::new(Time(sequence), body)
    }

    fn source(next: u64) -> FlowTicket {
        FlowTicket::Source(SourceTicket { flow: 2, epoch: 1, next, before: (0, 0), goes_on: false })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Killed between any two steps, another finds exactly what was put and not settled.
        #[test]
        fn what_is_kept_is_found_whole(steps in prop::collection::vec((0usize..3000, 0u64..40), 1..300)) {
            let memory = memory(&limits()).unwrap();
            let [mut kept, _] = map(memory.try_clone().unwrap(), &limits()).unwrap();
            let (mut first, mut next) = (0, 0);
            kept.put_ticket(&source(0), "compress");
            for (bytes, lag) in steps {
                kept.append((1, next), &record(next, bytes).body);
                next += 1;
                if next - first > lag {
                    first = next - lag;
                    kept.put_ticket(&source(next), "compress");
                    kept.settle((1, first));
                }
                let [mut again, _] = map(memory.try_clone().unwrap(), &limits()).unwrap();
                let stand = again.source().unwrap();
                let records = stand.records.unwrap();
                let found: Vec<_> = records.iter().map(|message| message.created.0).collect();
                prop_assert_eq!(found, (first..next).collect::<Vec<_>>());
                prop_assert!(records.last().is_none_or(|last| last.body == record(next - 1, bytes).body));
            }
        }

        #[test]
        fn what_a_worker_left_there_is_checked(words in prop::collection::vec((0usize..10, any::<u64>()), 0..8), at in 0usize..40_000, value in any::<u64>()) {
            let memory = memory(&limits()).unwrap();
            let [mut kept, _] = map(memory.try_clone().unwrap(), &limits()).unwrap();
            kept.put_ticket(&source(1), "");
            kept.append((1, 0), &record(0, 100).body);
            words.into_iter().for_each(|(word, value)| kept.store(8 * word, value));
            kept.shared.copy_in(at, &value.to_le_bytes());
            let [mut again, _] = map(memory, &limits()).unwrap();
            let _ = again.source();
            let _ = again.sink();
            again.append((1, 1), &record(1, 10).body);
        }
    }

    /// Little waits while all is well, and everything that a store may hold when nothing is acknowledged any more.
    #[test]
    fn what_waits_longer_is_kept_whole_too() {
        const BYTES: usize = 10_000;
        let memory = memory(&limits()).unwrap();
        let [mut kept, _] = map(memory.try_clone().unwrap(), &limits()).unwrap();
        kept.put_ticket(&source(0), "");
        let (mut first, mut next) = (0, 0);
        for (count, waiting) in [(300, 5), (800, 800), (200, 90), (300, 4), (900, 1000), (1, 0), (130, 2)] {
            for _ in 0..count {
                kept.append((1, next), &record(next, BYTES).body);
                next += 1;
                first = first.max(next.saturating_sub(waiting));
                kept.settle((1, first));
                if next % 37 == 0 {
                    let [mut again, _] = map(memory.try_clone().unwrap(), &limits()).unwrap();
                    let records = again.source().unwrap().records.expect("no gap");
                    let found: Vec<_> = records.iter().map(|message| message.created.0).collect();
                    assert_eq!(found, (first..next).collect::<Vec<_>>());
                    assert!(
                        records.iter().all(|message| message.body == record(message.created.0, BYTES).body)
                    );
                }
            }
        }
        let [mut again, _] = map(memory.try_clone().unwrap(), &limits()).unwrap();
        kept.append((1, next), &Body::from(vec![0; ring_bytes(&limits())]));
        assert!(!kept.is_whole());
        let stand = again.source().expect("where it stood");
        assert!(stand.records.is_none(), "a gap");
    }

    #[test]
    fn a_sink_knows_what_its_partner_took_and_what_is_in_doubt() {
        let memory = memory(&limits()).unwrap();
        let [_, mut kept] = map(memory.try_clone().unwrap(), &limits()).unwrap();
        let ticket = |next| SinkTicket {
            flow: 3,
            epoch: 1,
            given_up: 0,
            next,
            lost: 0,
            following: None,
            gone: (0, 0),
        };
        kept.handle_pushed(4, None);
        assert!(kept.handle_settled());
        kept.put_ticket(&FlowTicket::Sink(ticket(4)), "");
        kept.begin_pushing();
        kept.handle_pushed(1, None);
        kept.begin_pushing();
        kept.handle_pushed(1, Some(7));
        let look = || map(memory.try_clone().unwrap(), &limits()).unwrap()[1].sink().unwrap();
        let stand = look();
        assert_eq!(
            (stand.ticket, stand.taken, stand.partway, stand.losses),
            (ticket(4), 1, 7, Losses::default())
        );
        kept.begin_pushing();
        let stand = look();
        assert_eq!((stand.taken, stand.partway, stand.losses.in_doubt), (1, 7, 1));
        assert_eq!(look().losses.in_doubt, 1, "counted once");
    }

    #[test]
    fn a_checkpoint_is_kept_with_the_ticket_that_names_it_and_not_before() {
        let memory = memory(&limits()).unwrap();
        let [_, mut kept] = map(memory.try_clone().unwrap(), &limits()).unwrap();
        let ticket = |next| {
            let (flow, epoch, given_up, lost, following, gone) = (3, 1, 0, 0, None, (0, 0));
            FlowTicket::Sink(SinkTicket { flow, epoch, given_up, next, lost, following, gone })
        };
        let look = || {
            let stand = map(memory.try_clone().unwrap(), &limits()).unwrap()[1].sink().unwrap();
            (stand.ticket.next, stand.taken, stand.checkpoint)
        };
        kept.put_ticket(&ticket(0), "");
        for next in 1..5u64 {
            kept.handle_pushed(1, None);
            let before = look();
            let checkpoint: Body =
                [vec![next as u8; 40_000].into(), Bytes::from_static(b"end")].into_iter().collect();
            assert!(kept.put_checkpoint(&checkpoint));
            assert_eq!((look(), before.1), (before, 1));
            let _ = kept.handle_settled();
            for _ in 0..3 {
                kept.put_ticket(&ticket(next), "");
                assert_eq!(look(), (next, 0, checkpoint.clone().into_bytes()));
            }
        }
        assert!(
            !kept.put_checkpoint(&Body::from(vec![0; ring_bytes(&limits())])),
            "more than there is room for"
        );
        kept.put_ticket(&ticket(5), "");
        assert_eq!(look(), (5, 0, Bytes::new()));
        kept.handle_pushed(3, None);
        kept.begin_anew(1);
        kept.put_ticket(&ticket(0), "");
        assert_eq!(look(), (0, 1, Bytes::new()), "of stages that begin");
    }

    #[test]
    fn what_was_in_a_workers_memory_alone_is_counted_once() {
        let memory = memory(&limits()).unwrap();
        let look = || map(memory.try_clone().unwrap(), &limits()).unwrap().into_iter().next().unwrap();
        let mut kept = look();
        kept.put_ticket(&source(0), "");
        kept.handle_taking(3, 100);
        kept.keep_dropped(7);
        let lost = Losses { held: 3, in_doubt: 1, ahead_bytes: 100, dropped: 7 };
        assert_eq!(look().source().unwrap().losses, lost);
        let mut kept = look();
        assert_eq!(kept.source().unwrap().losses, lost);
        kept.handle_taken(2, 5);
        let lost = Losses { held: 5, ahead_bytes: 105, ..lost };
        assert_eq!(look().source().unwrap().losses, lost);
        assert_eq!(look().cleared().source().map(|stand| stand.losses), None);
    }

    /// Leaves nothing until it has something, and notes what another left.
    #[derive(Default)]
    struct Leaver {
        leaves: Option<Vec<u8>>,
        was_left: Option<Vec<u8>>,
        gave_up: u64,
    }

    impl Partner for Leaver {
        fn open(&mut self, _: &FlowTemplate, _: &Attributes) -> Result<FlowKey, PartnerError> {
            Ok(FlowKey::DEFAULT)
        }

        fn close(&mut self, _: FlowKey) -> Result<(), PartnerError> {
            Ok(())
        }

        fn push(&mut self, _: FlowKey, _: Message) -> Result<Pushed, (PartnerError, Message)> {
            Ok(Pushed::Taken)
        }

        fn pull(&mut self, _: FlowKey, _: Pull<'_>) -> Result<Pulled, PartnerError> {
            Ok(Pulled::Nothing)
        }

        fn ctl(&mut self, _: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
            match operation {
                Ctl::Leave => Ok(self.leaves.clone().map_or(CtlReply::Pending, CtlReply::Bytes)),
                Ctl::GivenUp => Ok(CtlReply::Count(self.gave_up)),
                Ctl::GoOn(left) => {
                    self.was_left = Some(left.into());
                    Ok(CtlReply::Done)
                }
                _ => Err(PartnerError::Unsupported("this")),
            }
        }

        fn readiness(&self, _: FlowKey, _: Direction) -> Readiness<'_> {
            Readiness::never()
        }
    }

    #[test]
    fn what_a_device_gave_up_is_told_after_its_worker_was_killed() {
        let memory = memory(&limits()).unwrap();
        let worker = || {
            let [kept, _] = map(memory.try_clone().unwrap(), &limits()).unwrap();
            let plan = FlowPlan {
                flow: 7,
                direction: FlowDirection::DeviceToApplication,
                class: FlowClass::State,
                format: Format::Evdev,
                pipeline: Pipeline::parse("", registry::pairs(), Origin::Local).unwrap(),
                site: Site::default(),
            };
            Outgoing::new(plan, FlowKey::DEFAULT, false, &limits(), Some(kept)).unwrap()
        };
        let mut killed = worker();
        for gave_up in [2, 5, 5] {
            let mut partner: Box<dyn Partner> = Box::new(Leaver { gave_up, ..Leaver::default() });
            let (partner, notices) = (Some(&mut partner), &mut Vec::new());
            let now = Time::ZERO;
            killed.run(Surroundings { partner, transport: None, facts: None, now, notices }).unwrap();
        }
        assert_eq!(killed.stats().drops["by the device"], 5);
        assert_eq!(worker().stats().drops["counted by workers that ended"], 5);
    }

    #[test]
    fn what_a_partner_leaves_is_handed_to_the_next() {
        let memory = memory(&limits()).unwrap();
        let look = || map(memory.try_clone().unwrap(), &limits()).unwrap().into_iter().next().unwrap();
        let hand = || {
            let mut next = Leaver::default();
            look().hand_legacy(&mut next, FlowKey::DEFAULT);
            next.was_left
        };
        let (mut kept, mut partner) = (look(), Leaver::default());
        kept.keep_legacy(&mut partner, FlowKey::DEFAULT);
        assert_eq!(hand(), None);
        partner.leaves = Some(b"a line".into());
        kept.keep_legacy(&mut partner, FlowKey::DEFAULT);
        assert_eq!(hand().as_deref(), Some(&b"a line"[..]));
        kept.handle_taking(3, 100);
        let after = super::memory(&limits()).unwrap();
        hand_on(memory.try_clone().unwrap(), after.try_clone().unwrap(), &limits()).unwrap();
        let [mut of_next, _] = map(after, &limits()).unwrap();
        let mut next = Leaver::default();
        of_next.hand_legacy(&mut next, FlowKey::DEFAULT);
        assert_eq!(next.was_left.as_deref(), Some(&b"a line"[..]), "in another session");
        assert!(of_next.source().is_none(), "its flows are others");
        let lost = Losses { held: 3, in_doubt: 1, ahead_bytes: 100, dropped: 0 };
        assert_eq!(of_next.losses(), lost);
        kept.forget_legacy();
        assert_eq!(hand(), None, "of another device");
        partner.leaves = Some(vec![0; LEGACY_BYTES_MAX + 1]);
        kept.keep_legacy(&mut partner, FlowKey::DEFAULT);
        assert_eq!(hand(), None, "more than may be");
    }
}
