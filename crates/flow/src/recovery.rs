//! The recovery log: shared memory in which a worker saves its state, so that a new worker resumes after a crash.
//!
//! The broker holds the memory too. A driver has one region, with a part for each of its flows:
//!
//! ```text
//! 0       words: valid ticket, ring ends, counters (VALID_TICKET ... EXPECTED_SESSION)
//! 4 KiB   ticket 1
//! 16 KiB  ticket 2
//! 24 KiB  device state of the partner
//! 32 KiB  source: ring of unacknowledged records
//!         sink:   two halves, each for a checkpoint
//! ```
//!
//! A ticket ([`wire::ticket`]) is written to the slot that is not valid; then one store to `VALID_TICKET` makes it
//! valid. Every update works like this: the data first, then one store of a word. A crash between two instructions
//! leaves either the old state or the new one.
//!
//! A new worker adds the volatile messages of the previous one to the losses, and clears them. These are several words, so
//! [`VALID_LOSSES`] has a step between: "added, not yet cleared". A worker that finds it clears without adding.
//!
//! A sink retransmits nothing, so it keeps a checkpoint of its stages in place of the ring. The ticket names the valid
//! half. The source retransmits from the position of the checkpoint, so checkpoint, ticket and acknowledgement advance
//! together. A checkpoint after each message would copy a whole picture for one changed byte.
//!
//! The previous worker may have been compromised: everything read here is validated like input from a stranger.

mod pushes;
mod restart;
mod ring;

pub use restart::expect_rebuild;

use contract::{Body, Bytes, Ctl, CtlReply, FlowKey, Message, Partner, RecoveryCtl, SAVED_STATE_BYTES_MAX};
use pipeline::DropCounts;
use session::{Limits, STORE_FACTOR_MAX};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sys::memory::{Access, Shared, create};
use wire::control::{FLOWS_MAX, PIPELINE_BYTES_MAX};
use wire::ticket::{FlowTicket, SinkTicket, SourceTicket};
use wire::{BODY_BYTES_MAX, Reader, RecordHeader, Writer};

/// Bytes of a flow's part in front of its ring.
const HEAD_BYTES: usize = 32 << 10;
/// Offsets of the tickets, and their longest length.
const TICKETS: [usize; 2] = [4 << 10, 16 << 10];
const TICKET_BYTES_MAX: usize = 8 << 10;
/// Valid ticket: 1 or 2; 0 if there is none.
const VALID_TICKET: usize = 0;
/// Start and end of the ring, 32 bits each.
const ENDS: usize = 8;
/// Outputs that the partner accepted, from bit 28; below them, the bytes of the next output that it wrote; bit 0 is
/// set during a push.
const PROGRESS: usize = 16;
const PARTIAL_BITS: u32 = 28;
/// Volatile messages and bytes, those that exist only in the worker: bit 0 is set while messages are read from the device; from
/// bit 1, messages that the stages of a source hold; from bit 24, bytes read from the device that are in no message yet.
const VOLATILE: usize = 24;
const AHEAD_SHIFT: u32 = 24;
/// Messages that all workers so far counted as dropped.
const DROPPED: usize = 32;
/// Length of the partner's device state ([`RecoveryCtl::SaveState`]) plus one; 0 if none was saved. `DEVICE_STATE_AT` is
/// its offset.
const DEVICE_STATE: usize = 40;
const DEVICE_STATE_AT: usize = 24 << 10;
/// Bit 1: the valid one of the two copies of the losses. Bit 0: they contain the volatile messages, which are not cleared yet.
const VALID_LOSSES: usize = 48;
/// Each copy of the losses of all previous workers: messages lost in the stages, messages possibly lost, bytes read ahead.
const LOSSES: [usize; 2] = [56, 80];
/// Bytes that the partner wrote of an output that never comes again; 0 if there is none.
const ABANDONED: usize = 104;
/// Number of the session of the log, and the number that the broker expects.
const SESSION: usize = 112;
const EXPECTED_SESSION: usize = 120;
/// Bytes of an entry's length.
const LENGTH_BYTES: usize = 4;

fn ring_bytes(limits: &Limits) -> usize {
    // One message may exceed the limit, and another may not fit at the end. The ring may also have wrapped early
    // ([`RecoveryLog::allocate`]); the margin covers that too.
    let bodies = limits.store_bytes.saturating_mul(STORE_FACTOR_MAX).saturating_add(2 * BODY_BYTES_MAX);
    let headers = limits.store_messages.saturating_mul(RecordHeader::BYTES + 2 * LENGTH_BYTES);
    bodies.saturating_add(headers).min(u32::MAX as usize & !4095)
}

/// Creates the memory of a driver. The kernel allocates pages on first use only.
pub fn memory(limits: &Limits) -> io::Result<OwnedFd> {
    create("outboard-recovery", FLOWS_MAX * (HEAD_BYTES + ring_bytes(limits)))
}

/// Maps the memory and returns one log per flow.
pub fn map(memory: OwnedFd, limits: &Limits) -> io::Result<[RecoveryLog; FLOWS_MAX]> {
    let shared = Arc::new(Shared::map(memory.as_fd(), Access::Write)?);
    let ring = ring_bytes(limits);
    if shared.bytes() < FLOWS_MAX * (HEAD_BYTES + ring) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the memory is smaller than these limits require",
        ));
    }
    Ok(std::array::from_fn(|index| RecoveryLog {
        shared: shared.clone(),
        base: index * (HEAD_BYTES + ring),
        ring_bytes: ring,
        entries: VecDeque::new(),
        writer: Writer::new(),
        pushed: 0,
        settled: 0,
        checkpoint: (0, 0),
        has_device_state: false,
        has_gap: false,
    }))
}

/// Returns whether a partner has saved device state.
pub fn has_device_state(memory: &OwnedFd, limits: &Limits) -> bool {
    let logs = memory.try_clone().and_then(|memory| map(memory, limits));
    logs.is_ok_and(|logs| logs.iter().any(|log| log.device_state().is_some()))
}

/// Copies the device state and the counters from an ended driver's memory to that of its successor on the same open
/// device. Messages in flight count as lost or in doubt.
pub fn carry_over(prev: OwnedFd, next: OwnedFd, limits: &Limits) -> io::Result<()> {
    for (mut prev, next) in map(prev, limits)?.into_iter().zip(map(next, limits)?) {
        let losses = prev.lose_all();
        next.store_losses(0, &losses);
        next.save_dropped(losses.dropped);
        if let Some(state) = prev.device_state() {
            next.store_device_state(&state);
        }
    }
    Ok(())
}

/// Saved state of a source.
#[derive(Debug)]
pub struct SavedSource {
    /// Position of the flow.
    pub ticket: SourceTicket,
    /// Pipeline of the epoch, as text.
    pub pipeline: String,
    /// Unacknowledged records, as sent; `None` if the ring overflowed.
    pub records: Option<Vec<Message>>,
    /// Losses of all previous workers.
    pub losses: Losses,
}

/// Messages that existed only in the memory of workers that crashed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Losses {
    /// Messages lost in stages.
    pub held: u64,
    /// Messages in transfer during a crash. A message read from a device may be lost; one pushed to a partner may be
    /// delivered twice.
    pub in_doubt: u64,
    /// Bytes read from a device that were in no message yet.
    pub ahead_bytes: u64,
    /// Messages that those workers had counted as dropped, for any reason.
    pub dropped: u64,
}

impl Losses {
    /// Returns the drop counts of a path that resumes after these losses.
    pub(crate) fn drop_counts(&self) -> DropCounts {
        DropCounts::resume(
            self.dropped,
            &[
                ("held by stages when the worker ended", self.held),
                ("in doubt when the worker ended", self.in_doubt),
                ("bytes read ahead when the worker ended", self.ahead_bytes),
            ],
        )
    }
}

/// Saved state of a sink.
#[derive(Debug)]
pub struct SavedSink {
    /// Position of the flow.
    pub ticket: SinkTicket,
    /// Pipeline of the epoch, as text.
    pub pipeline: String,
    /// Checkpoint of the stages; empty if they had processed nothing or keep no state.
    pub checkpoint: Bytes,
    /// Outputs that the partner accepted after the position of the ticket.
    pub accepted: u64,
    /// Bytes of the next output that the partner wrote.
    pub partial_bytes: u64,
    /// Losses of all previous workers.
    pub losses: Losses,
}

/// Recovery log of one flow.
pub struct RecoveryLog {
    shared: Arc<Shared>,
    base: usize,
    ring_bytes: usize,
    /// Records in the ring: epoch and sequence, and the end of each entry.
    entries: VecDeque<((u32, u64), usize)>,
    writer: Writer,
    /// Outputs that the partner accepted; `settled` is their number at the position of the ticket.
    pushed: u64,
    settled: u64,
    /// Valid half of the checkpoint area, 0 or 1, and the length of the checkpoint.
    checkpoint: (usize, usize),
    /// The partner's device state is saved, or it has none.
    has_device_state: bool,
    /// The ring overflowed: it keeps no further records either.
    has_gap: bool,
}

impl RecoveryLog {
    fn word(&self, at: usize) -> Option<&AtomicU64> {
        self.shared.word(self.base + at)
    }

    fn load(&self, at: usize) -> u64 {
        self.word(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, at: usize, value: u64) {
        #[cfg(test)]
        if tests::is_killed() {
            return;
        }
        if let Some(word) = self.word(at) {
            word.store(value, Ordering::Release);
        }
    }

    /// Clears the log, except for the device state.
    pub fn cleared(mut self) -> RecoveryLog {
        self.entries.clear();
        self.has_gap = false;
        // Outputs begin with 1: a part that the partner still writes, output 0, is abandoned.
        (self.pushed, self.settled, self.checkpoint) = (1, 1, (0, 0));
        [VALID_TICKET, ENDS, VOLATILE, DROPPED, VALID_LOSSES].into_iter().for_each(|at| self.store(at, 0));
        self.store(PROGRESS, self.pushed << PARTIAL_BITS);
        self.store_losses(0, &Losses::default());
        self.enter_session();
        self
    }

    /// Saves the partner's device state once it has one. A pending answer is asked for again at the next call.
    pub fn save_device_state(&mut self, partner: &mut dyn Partner, key: FlowKey) {
        if self.has_device_state {
            return;
        }
        let state = match partner.ctl(key, Ctl::Recovery(RecoveryCtl::SaveState)) {
            Ok(CtlReply::Bytes(state)) => state,
            Ok(CtlReply::Pending) => return,
            _ => Vec::new(),
        };
        self.has_device_state = true;
        self.store_device_state(&state);
    }

    fn store_device_state(&self, state: &[u8]) {
        if state.len() <= SAVED_STATE_BYTES_MAX && self.shared.copy_in(self.base + DEVICE_STATE_AT, state) {
            self.store(DEVICE_STATE, state.len() as u64 + 1);
        }
    }

    /// Returns the saved device state; `None` if there is none.
    fn device_state(&self) -> Option<Vec<u8>> {
        let bytes = usize::try_from(self.load(DEVICE_STATE)).ok()?.checked_sub(1)?;
        let mut state = vec![0; bytes.min(SAVED_STATE_BYTES_MAX)];
        self.shared.copy_out(self.base + DEVICE_STATE_AT, &mut state).then_some(state)
    }

    /// Restores the device state of the previous worker's partner, if any was saved.
    pub fn restore_device_state(&mut self, partner: &mut dyn Partner, key: FlowKey) {
        let Some(state) = self.device_state() else { return };
        self.has_device_state = true;
        if !state.is_empty() {
            // The partner validates the state. It starts without the state if that is unusable.
            let _ = partner.ctl(key, Ctl::Recovery(RecoveryCtl::RestoreState(&state)));
        }
    }

    /// Deletes the device state, since the partner is a different one.
    pub fn forget_device_state(&mut self) {
        self.has_device_state = false;
        self.store(DEVICE_STATE, 0);
    }

    /// Makes this ticket the valid one.
    pub fn save_ticket(&mut self, ticket: &FlowTicket, pipeline: &str) {
        let mut writer = std::mem::take(&mut self.writer);
        writer.clear();
        let (half, bytes) = self.checkpoint;
        ticket.write(writer.u64(self.settled).u8(half as u8).u64(bytes as u64).text(pipeline));
        let slot = if self.load(VALID_TICKET) == 1 { 2 } else { 1 };
        let at = self.base + TICKETS[slot - 1];
        let bytes = writer.bytes();
        if bytes.len() <= TICKET_BYTES_MAX && self.shared.copy_in(at, bytes) {
            self.store(VALID_TICKET, slot as u64);
        }
        self.writer = writer;
    }

    /// Saves a checkpoint of a sink's stages. It becomes valid with the next ticket. Returns `false` and saves an
    /// empty checkpoint if it is too large.
    #[must_use]
    pub fn save_checkpoint(&mut self, checkpoint: &Body) -> bool {
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

    /// Returns the valid ticket, the value of `settled`, the half and length of the checkpoint, and the pipeline;
    /// `None` if there is no valid ticket.
    fn ticket(&self) -> Option<(FlowTicket, u64, (usize, usize), String)> {
        let at = *TICKETS.get(usize::try_from(self.load(VALID_TICKET)).ok()?.checked_sub(1)?)?;
        let mut bytes = vec![0; TICKET_BYTES_MAX];
        self.shared.copy_out(self.base + at, &mut bytes).then_some(())?;
        let mut r = Reader::new(&bytes);
        let pushed = r.u64("log outputs").ok().filter(|pushed| *pushed <= u64::MAX >> PARTIAL_BITS)?;
        let half = usize::from(r.u8("log checkpoint half").ok()? & 1);
        let bytes = usize::try_from(r.u64("log checkpoint length").ok()?).ok()?;
        let pipeline = r.text("log pipeline", PIPELINE_BYTES_MAX).ok()?.into();
        Some((FlowTicket::read(&mut r).ok()?, pushed, (half, bytes.min(self.ring_bytes / 2)), pipeline))
    }

    /// Returns the state that the previous worker's source saved, if any.
    pub fn source(&mut self) -> Option<SavedSource> {
        let (FlowTicket::Source(ticket), _, _, pipeline) = self.ticket()? else { return None };
        let records = self.records();
        let losses = self.add_losses(self.load(VOLATILE) & 1, self.load(PROGRESS));
        Some(SavedSource { ticket, pipeline, records, losses })
    }

    /// Adds the volatile messages, and `in_doubt` others, to the losses of all workers, and clears them; `progress` is the
    /// value of `PROGRESS` from then on.
    fn add_losses(&self, in_doubt: u64, progress: u64) -> Losses {
        let valid = self.load(VALID_LOSSES);
        let mut copy = valid >> 1 & 1;
        if valid & 1 == 0 {
            let volatile = self.load(VOLATILE);
            let mut losses = self.losses();
            losses.held = losses.held.saturating_add((volatile & ((1 << AHEAD_SHIFT) - 1)) >> 1);
            losses.in_doubt = losses.in_doubt.saturating_add(in_doubt);
            losses.ahead_bytes = losses.ahead_bytes.saturating_add(volatile >> AHEAD_SHIFT);
            copy = 1 - copy;
            self.store_losses(copy as usize, &losses);
            self.store(VALID_LOSSES, copy << 1 | 1);
        }
        self.store(VOLATILE, 0);
        self.store(PROGRESS, progress);
        self.store(VALID_LOSSES, copy << 1);
        self.losses()
    }

    fn store_losses(&self, copy: usize, losses: &Losses) {
        for (index, value) in [losses.held, losses.in_doubt, losses.ahead_bytes].into_iter().enumerate() {
            self.store(LOSSES[copy] + 8 * index, value);
        }
    }

    /// Returns the losses of all previous workers.
    pub fn losses(&self) -> Losses {
        let at = LOSSES[(self.load(VALID_LOSSES) >> 1 & 1) as usize];
        let [held, in_doubt, ahead_bytes, dropped] = [at, at + 8, at + 16, DROPPED].map(|at| self.load(at));
        Losses { held, in_doubt, ahead_bytes, dropped }
    }

    /// Saves the number of dropped messages of this worker and all previous ones.
    pub fn save_dropped(&self, count: u64) {
        self.store(DROPPED, count);
    }

    /// Returns the state that the previous worker's sink saved, if any.
    pub fn sink(&mut self) -> Option<SavedSink> {
        let Some((FlowTicket::Sink(ticket), settled, checkpoint, pipeline)) = self.ticket() else {
            self.pushed = self.load(PROGRESS) >> PARTIAL_BITS;
            self.settled = self.pushed;
            return None;
        };
        let progress = self.load(PROGRESS);
        // The partially written output belongs to an abandoned epoch if it precedes the ticket.
        let is_abandoned = progress >> PARTIAL_BITS < settled;
        self.pushed = (progress >> PARTIAL_BITS).max(settled);
        (self.settled, self.checkpoint) = (settled, checkpoint);
        let partial_bytes = progress >> 1 & ((1 << (PARTIAL_BITS - 1)) - 1);
        if is_abandoned && partial_bytes > 0 {
            self.store(ABANDONED, partial_bytes);
        }
        let mut bytes = vec![0; checkpoint.1];
        self.shared.copy_out(self.checkpoint_at(checkpoint.0), &mut bytes).then_some(())?;
        Some(SavedSink {
            ticket,
            pipeline,
            checkpoint: bytes.into(),
            accepted: self.pushed - settled,
            partial_bytes: if is_abandoned { 0 } else { partial_bytes },
            losses: self
                .add_losses(progress & 1, if is_abandoned { settled << PARTIAL_BITS } else { progress & !1 }),
        })
    }

    /// Notes that a read from the device starts or continues. `held` messages and `ahead_bytes` exist only in this
    /// process.
    pub fn begin_read(&self, held: usize, ahead_bytes: u64) {
        self.store(VOLATILE, volatile(held, ahead_bytes) | 1);
    }

    /// Notes that the read is complete. `held` messages and `ahead_bytes` exist only in this process.
    pub fn end_read(&self, held: usize, ahead_bytes: u64) {
        self.store(VOLATILE, volatile(held, ahead_bytes));
    }
}

/// Returns the word of the volatile messages and bytes ([`VOLATILE`]); each is limited to its bits.
fn volatile(held: usize, ahead_bytes: u64) -> u64 {
    let held = (held as u64).min((1 << (AHEAD_SHIFT - 1)) - 1);
    ahead_bytes.min(u64::MAX >> AHEAD_SHIFT) << AHEAD_SHIFT | held << 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source_path::SourcePath;
    use crate::types::{FlowPlan, PathContext};
    use contract::{
        Attributes, Direction, FlowClass, FlowDirection, FlowTemplate, Format, PartnerError, PartnerResult,
        Pull, Pulled, Pushed, Readiness, Site, Time,
    };
    use modules::registry;
    use pipeline::{Origin, Pipeline};
    use proptest::prelude::*;
    use std::cell::Cell;
    use wire::Container;

    thread_local! {
        /// Stores until the worker of this thread is killed.
        static STORES_LEFT: Cell<u32> = const { Cell::new(u32::MAX) };
    }

    /// Counts a store; returns whether the worker was killed before it.
    pub(super) fn is_killed() -> bool {
        STORES_LEFT.replace(STORES_LEFT.get().saturating_sub(1)) == 0
    }

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
        FlowTicket::Source(SourceTicket { flow: 2, epoch: 1, next, prev: (0, 0), continues: false })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A worker killed between any two steps leaves exactly the unacknowledged records.
        #[test]
        fn the_ring_restores_all_records(steps in prop::collection::vec((0usize..3000, 0u64..40), 1..300)) {
            let memory = memory(&limits()).unwrap();
            let [mut log, _] = map(memory.try_clone().unwrap(), &limits()).unwrap();
            let (mut first, mut next) = (0, 0);
            log.save_ticket(&source(0), "compress");
            for (bytes, lag) in steps {
                log.append((1, next), &record(next, bytes).body);
                next += 1;
                if next - first > lag {
                    first = next - lag;
                    log.save_ticket(&source(next), "compress");
                    log.trim((1, first));
                }
                let [mut again, _] = map(memory.try_clone().unwrap(), &limits()).unwrap();
                let saved = again.source().unwrap();
                let records = saved.records.unwrap();
                let found: Vec<_> = records.iter().map(|message| message.created.0).collect();
                prop_assert_eq!(found, (first..next).collect::<Vec<_>>());
                prop_assert!(records.last().is_none_or(|last| last.body == record(next - 1, bytes).body));
            }
        }

        #[test]
        fn hostile_memory_is_validated(words in prop::collection::vec((0usize..16, any::<u64>()), 0..8), at in 0usize..40_000, value in any::<u64>()) {
            let memory = memory(&limits()).unwrap();
            let [mut log, _] = map(memory.try_clone().unwrap(), &limits()).unwrap();
            log.save_ticket(&source(1), "");
            log.append((1, 0), &record(0, 100).body);
            words.into_iter().for_each(|(word, value)| log.store(8 * word, value));
            log.shared.copy_in(at, &value.to_le_bytes());
            let [mut again, _] = map(memory, &limits()).unwrap();
            let _ = again.source();
            let _ = again.sink();
            again.append((1, 1), &record(1, 10).body);
        }
    }

    /// The ring stays small while acknowledgements arrive, and holds a full store when none arrive.
    #[test]
    fn a_full_store_fits_into_the_ring() {
        const BYTES: usize = 10_000;
        let memory = memory(&limits()).unwrap();
        let [mut log, _] = map(memory.try_clone().unwrap(), &limits()).unwrap();
        log.save_ticket(&source(0), "");
        let (mut first, mut next) = (0, 0);
        for (count, waiting) in [(300, 5), (800, 800), (200, 90), (300, 4), (900, 1000), (1, 0), (130, 2)] {
            for _ in 0..count {
                log.append((1, next), &record(next, BYTES).body);
                next += 1;
                first = first.max(next.saturating_sub(waiting));
                log.trim((1, first));
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
        log.append((1, next), &Body::from(vec![0; ring_bytes(&limits())]));
        assert!(!log.is_whole());
        let saved = again.source().expect("saved state");
        assert!(saved.records.is_none(), "a gap");
    }

    #[test]
    fn a_sink_restores_accepted_outputs_and_those_in_doubt() {
        let memory = memory(&limits()).unwrap();
        let [_, mut log] = map(memory.try_clone().unwrap(), &limits()).unwrap();
        let ticket = |next| SinkTicket {
            flow: 3,
            epoch: 1,
            abandoned: 0,
            next,
            lost: 0,
            upcoming: None,
            trimmed_to: (0, 0),
        };
        log.end_push(4, None);
        assert!(log.settle());
        log.save_ticket(&FlowTicket::Sink(ticket(4)), "");
        log.begin_push();
        log.end_push(1, None);
        log.begin_push();
        log.end_push(1, Some(7));
        let read = || map(memory.try_clone().unwrap(), &limits()).unwrap()[1].sink().unwrap();
        let saved = read();
        assert_eq!(
            (saved.ticket, saved.accepted, saved.partial_bytes, saved.losses),
            (ticket(4), 1, 7, Losses::default())
        );
        log.begin_push();
        let saved = read();
        assert_eq!((saved.accepted, saved.partial_bytes, saved.losses.in_doubt), (1, 7, 1));
        assert_eq!(read().losses.in_doubt, 1, "counted once");
    }

    #[test]
    fn a_checkpoint_is_valid_from_its_ticket_on() {
        let memory = memory(&limits()).unwrap();
        let [_, mut log] = map(memory.try_clone().unwrap(), &limits()).unwrap();
        let ticket = |next| {
            let (flow, epoch, abandoned, lost, upcoming, trimmed_to) = (3, 1, 0, 0, None, (0, 0));
            FlowTicket::Sink(SinkTicket { flow, epoch, abandoned, next, lost, upcoming, trimmed_to })
        };
        let read = || {
            let saved = map(memory.try_clone().unwrap(), &limits()).unwrap()[1].sink().unwrap();
            (saved.ticket.next, saved.accepted, saved.checkpoint)
        };
        log.save_ticket(&ticket(0), "");
        for next in 1..5u64 {
            log.end_push(1, None);
            let before = read();
            let checkpoint: Body =
                [vec![next as u8; 40_000].into(), Bytes::from_static(b"end")].into_iter().collect();
            assert!(log.save_checkpoint(&checkpoint));
            assert_eq!((read(), before.1), (before, 1));
            let _ = log.settle();
            for _ in 0..3 {
                log.save_ticket(&ticket(next), "");
                assert_eq!(read(), (next, 0, checkpoint.clone().into_bytes()));
            }
        }
        assert!(!log.save_checkpoint(&Body::from(vec![0; ring_bytes(&limits())])), "too large");
        log.save_ticket(&ticket(5), "");
        assert_eq!(read(), (5, 0, Bytes::new()));
        log.end_push(3, None);
        log.begin_epoch(1);
        log.save_ticket(&ticket(0), "");
        assert_eq!(read(), (0, 1, Bytes::new()), "fresh stages");
    }

    #[test]
    fn messages_lost_with_a_worker_count_once() {
        let memory = memory(&limits()).unwrap();
        let read = || map(memory.try_clone().unwrap(), &limits()).unwrap().into_iter().next().unwrap();
        let mut log = read();
        log.save_ticket(&source(0), "");
        log.begin_read(3, 100);
        log.save_dropped(7);
        let lost = Losses { held: 3, in_doubt: 1, ahead_bytes: 100, dropped: 7 };
        assert_eq!(read().source().unwrap().losses, lost);
        let mut log = read();
        assert_eq!(log.source().unwrap().losses, lost);
        log.end_read(2, 5);
        let lost = Losses { held: 5, ahead_bytes: 105, ..lost };
        assert_eq!(read().source().unwrap().losses, lost);
        assert_eq!(read().cleared().source().map(|saved| saved.losses), None);
    }

    /// The next worker is killed too, between any two stores of its resumption.
    #[test]
    fn losses_count_once_whenever_the_next_worker_is_killed() {
        for stores in 0..12 {
            let memory = memory(&limits()).unwrap();
            let read = || map(memory.try_clone().unwrap(), &limits()).unwrap().into_iter().next().unwrap();
            let mut log = read();
            log.save_ticket(&source(0), "");
            log.begin_read(3, 100);
            let killed = read();
            STORES_LEFT.set(stores);
            let _ = killed.add_losses(1, 0);
            STORES_LEFT.set(u32::MAX);
            let lost = Losses { held: 3, in_doubt: 1, ahead_bytes: 100, dropped: 0 };
            assert_eq!(read().source().unwrap().losses, lost, "killed after {stores} stores");
        }
    }

    /// Saves device state once it has some, and records the state that it is given.
    #[derive(Default)]
    struct StatefulPartner {
        state: Option<Vec<u8>>,
        restored: Option<Vec<u8>>,
        dropped: u64,
    }

    impl Partner for StatefulPartner {
        fn open(&mut self, _: &FlowTemplate, _: &Attributes) -> PartnerResult<FlowKey> {
            Ok(FlowKey::DEFAULT)
        }

        fn close(&mut self, _: FlowKey) -> PartnerResult {
            Ok(())
        }

        fn push(&mut self, _: FlowKey, _: Message) -> Result<Pushed, (PartnerError, Message)> {
            Ok(Pushed::Taken)
        }

        fn pull(&mut self, _: FlowKey, _: Pull<'_>) -> PartnerResult<Pulled> {
            Ok(Pulled::Nothing)
        }

        fn ctl(&mut self, _: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
            match operation {
                Ctl::Recovery(RecoveryCtl::SaveState) => {
                    Ok(self.state.clone().map_or(CtlReply::Pending, CtlReply::Bytes))
                }
                Ctl::Recovery(RecoveryCtl::Discarded) => Ok(CtlReply::Count(self.dropped)),
                Ctl::Recovery(RecoveryCtl::RestoreState(state)) => {
                    self.restored = Some(state.into());
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
    fn drops_of_a_device_survive_a_crash() {
        let memory = memory(&limits()).unwrap();
        let worker = || {
            let [log, _] = map(memory.try_clone().unwrap(), &limits()).unwrap();
            let plan = FlowPlan {
                flow: 7,
                direction: FlowDirection::DeviceToApplication,
                class: FlowClass::State,
                format: Format::Evdev,
                pipeline: Pipeline::parse("", registry::pairs(), Origin::Local).unwrap(),
                requested: Vec::new(),
                site: Site::default(),
            };
            SourcePath::new(plan, FlowKey::DEFAULT, false, &limits(), Some(log)).unwrap()
        };
        let mut killed = worker();
        for dropped in [2, 5, 5] {
            let mut partner: Box<dyn Partner> =
                Box::new(StatefulPartner { dropped, ..StatefulPartner::default() });
            let (partner, notices) = (Some(&mut partner), &mut Vec::new());
            let now = Time::ZERO;
            killed.run(PathContext { partner, transport: None, facts: None, now, notices }).unwrap();
        }
        assert_eq!(killed.stats().drops["dropped by the device"], 5);
        assert_eq!(worker().stats().drops["counted by earlier workers"], 5);
    }

    #[test]
    fn device_state_is_passed_to_the_next_partner() {
        let memory = memory(&limits()).unwrap();
        let read = || map(memory.try_clone().unwrap(), &limits()).unwrap().into_iter().next().unwrap();
        let restore = || {
            let mut next = StatefulPartner::default();
            read().restore_device_state(&mut next, FlowKey::DEFAULT);
            next.restored
        };
        let (mut log, mut partner) = (read(), StatefulPartner::default());
        log.save_device_state(&mut partner, FlowKey::DEFAULT);
        assert_eq!(restore(), None);
        partner.state = Some(b"a line".into());
        log.save_device_state(&mut partner, FlowKey::DEFAULT);
        assert_eq!(restore().as_deref(), Some(&b"a line"[..]));
        log.begin_read(3, 100);
        let next_memory = super::memory(&limits()).unwrap();
        carry_over(memory.try_clone().unwrap(), next_memory.try_clone().unwrap(), &limits()).unwrap();
        let [mut next_log, _] = map(next_memory, &limits()).unwrap();
        let mut next = StatefulPartner::default();
        next_log.restore_device_state(&mut next, FlowKey::DEFAULT);
        assert_eq!(next.restored.as_deref(), Some(&b"a line"[..]), "in another session");
        assert!(next_log.source().is_none(), "a new session has other flows");
        let lost = Losses { held: 3, in_doubt: 1, ahead_bytes: 100, dropped: 0 };
        assert_eq!(next_log.losses(), lost);
        log.forget_device_state();
        assert_eq!(restore(), None, "a different device");
        partner.state = Some(vec![0; SAVED_STATE_BYTES_MAX + 1]);
        log.save_device_state(&mut partner, FlowKey::DEFAULT);
        assert_eq!(restore(), None, "too long");
    }
}
