//! Records the unfinished inputs and unconfirmed outputs of a module's process. No I/O.
//!
//! The ledger keeps each input until the process reports that all its output has been sent (`done`), and withholds
//! each output until then. When the process dies, the withheld outputs are discarded and the kept inputs are
//! replayed to the next process. So every output leaves the ledger exactly once, in order.
//!
//! ```text
//!   inputs:  |  finished  |   handed over, unfinished   |  partial  |  waiting  |
//!            first        committed                     handed                  first + kept.len()
//!
//!   outputs: |  released  |   withheld: read, not confirmed   |
//!                         confirmed                           read
//! ```
//!
//! - A process that never reports `done` is one-in-one-out: its output number n finishes its input number n.
//! - After a death the unfinished inputs are sent one at a time, and one that kills three processes is dropped:
//!   [`trial`].
//! - A drop that the process reports counts once the inputs that it belongs to are finished; until then it is
//!   discarded at a death, like an output.
//! - The host's knowledge of a message ([`Attributes`]) does not cross to the process. It is restored on the first
//!   output that has the creation time of an unfinished input.
//!
//! A decoder with a history needs all earlier messages. Its inputs belong to *eras*: the ledger keeps them to the
//! end of their era and replays all of them to a new process, whose first outputs and drops are discarded as far as
//! they were released before. If an era has become too long to be kept, its remaining messages are lost when the
//! process dies.

mod resume;
mod trial;

pub(super) use trial::Death;

use contract::{Attributes, Body, Bytes, Drop, Message, Port, Time};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io::IoSlice;
use trial::Trial;
use wire::{Container, Word};

/// Follows each message in a chain: one more of the host's messages is complete. [`Word::Complete`] of 1, encoded.
const ONE_MORE: &[u8; Word::BYTES] = &[255, 255, 255, 255, 1, 0, 0, 0, 0, 0, 0, 0];

/// Reason of inputs that cannot be processed without an earlier one.
const HISTORY_LOST: &str = "module history lost";

/// Most slices in one write.
const SLICES_MAX: usize = 64;

/// Most `done` reports that wait for their outputs; further ones are merged.
const DONES_MAX: usize = 1024;

/// Most drop reports that wait for confirmation.
const DROPS_MAX: usize = 1024;

/// Most unfinished inputs to search for the origin of an output.
const SEARCHED_MAX: usize = 256;

/// Limits of the messages kept and sent ahead.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most messages kept.
    pub kept_messages: usize,
    /// Most bytes kept, and most bytes withheld.
    pub kept_bytes: usize,
    /// Most messages that wait to be sent to the process.
    pub ahead_messages: usize,
    /// Most bytes that wait to be sent to the process.
    pub ahead_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { kept_messages: 1 << 16, kept_bytes: 128 << 20, ahead_messages: 64, ahead_bytes: 1 << 20 }
    }
}

/// The process violated the protocol; the text describes how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProtocolError(pub(super) String);

/// Encoding of a message for the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// None: the message is sent through shared memory.
    Bare,
    /// With a container header.
    Container,
    /// With a container header, and followed by a [`Word`] that tells each process of the chain that the message is
    /// complete.
    Chain,
}

struct Kept {
    /// Number of the input, from 1. Unlike the number in the ledger, it also counts inputs that were dropped.
    number: u64,
    /// The message; its body includes the [`Framing`].
    message: Message,
    /// The message has attributes that were not restored yet.
    has_attributes: bool,
    /// Size of its body and of a container header, even if it has none.
    bytes: usize,
    era: u32,
    /// Messages were lost before it.
    has_gap: bool,
    /// Deaths counted against it, in quarters ([`trial`]).
    quarters: u32,
}

/// A drop that the process reported.
struct ReportedDrop {
    stage: usize,
    drop: Drop,
    /// It belongs to the process's first `until` inputs; `None`: to the inputs of the next `done`.
    until: Option<u64>,
}

/// Bytes of a kept message beside its body.
fn kept_extra(framing: Framing) -> usize {
    Container::BYTES + if framing == Framing::Chain { Word::BYTES } else { 0 }
}

/// The inputs of one link and the outputs of its process.
pub(super) struct Ledger {
    limits: Limits,
    framing: Framing,
    /// Keep inputs to the end of their era.
    has_history: bool,
    /// Inputs; the first one has number `first`.
    kept: VecDeque<Kept>,
    kept_bytes: usize,
    /// Inputs admitted so far.
    admitted: u64,
    first: u64,
    /// Inputs before this number are finished, by this or an earlier process.
    committed: u64,
    /// Inputs before this number were finished by the present process, and their bytes.
    finished: u64,
    finished_bytes: u64,
    /// Bytes sent to the present process.
    handed_bytes: u64,
    /// First input that was sent to the present process.
    process_first: u64,
    /// Next input to send, and its bytes that were sent already.
    handed: u64,
    partial: usize,
    is_stopped: bool,
    ahead_bytes: usize,
    gap_sent: bool,
    gap_pending: bool,
    era: u32,
    newest_era: u32,
    /// The first inputs of the era were discarded, so no other process can continue it.
    is_truncated: bool,
    /// The era is truncated and its process has died: the era cannot continue.
    is_lost: bool,
    /// Deaths while inputs were replayed that an earlier process had finished.
    early_deaths: u32,
    trial: Option<Trial>,
    /// Outputs that were read and not confirmed.
    withheld: VecDeque<Message>,
    withheld_bytes: usize,
    /// Outputs of the present process: read, confirmed.
    read: u64,
    confirmed: u64,
    /// Number of outputs to discard: an earlier process's were released already.
    outputs_to_skip: u64,
    /// Outputs of this era that were released.
    released: u64,
    reports_done: bool,
    dones: VecDeque<(u64, u64)>,
    last_done: (u64, u64),
    reported_drops: Vec<ReportedDrop>,
    /// Confirmed drops, by stage.
    confirmed_drops: Vec<(usize, Drop)>,
    /// Drops of this era that were counted, and drops to discard because they were counted already.
    counted_drops: u64,
    drops_to_skip: u64,
    /// Number of inputs with attributes to restore.
    attributed: usize,
    /// Outputs to release.
    ready: VecDeque<(Port, Message)>,
    drops: Vec<Drop>,
}

impl Ledger {
    /// Creates an empty ledger for a process between pipes. `reports_done`: the process is known to report `done`.
    pub(super) fn new(limits: Limits, reports_done: bool, has_history: bool) -> Ledger {
        Ledger {
            limits,
            framing: Framing::Container,
            has_history,
            kept: VecDeque::new(),
            kept_bytes: 0,
            admitted: 0,
            first: 0,
            committed: 0,
            finished: 0,
            finished_bytes: 0,
            handed_bytes: 0,
            process_first: 0,
            handed: 0,
            partial: 0,
            is_stopped: false,
            ahead_bytes: 0,
            gap_sent: false,
            gap_pending: false,
            era: 0,
            newest_era: 0,
            is_truncated: false,
            is_lost: false,
            early_deaths: 0,
            trial: None,
            withheld: VecDeque::new(),
            withheld_bytes: 0,
            read: 0,
            confirmed: 0,
            outputs_to_skip: 0,
            released: 0,
            reports_done,
            dones: VecDeque::new(),
            last_done: (0, 0),
            reported_drops: Vec::new(),
            confirmed_drops: Vec::new(),
            counted_drops: 0,
            drops_to_skip: 0,
            attributed: 0,
            ready: VecDeque::new(),
            drops: Vec::new(),
        }
    }

    /// Creates a ledger for a chain.
    pub(super) fn of_chain(limits: Limits, has_history: bool) -> Ledger {
        Ledger { framing: Framing::Chain, ..Ledger::new(limits, true, has_history) }
    }

    /// Creates a ledger for a run on shared memory.
    pub(super) fn of_run(limits: Limits, has_history: bool) -> Ledger {
        Ledger { framing: Framing::Bare, ..Ledger::new(limits, true, has_history) }
    }

    /// Adds an input of this era (0 if there are no eras).
    pub(super) fn admit(&mut self, mut message: Message, era: u32) {
        self.admitted = self.admitted.saturating_add(1);
        if era < self.newest_era || (self.is_lost && era == self.era) {
            return self.drops.push(Drop { reason: HISTORY_LOST, count: 1, is_loss: true });
        }
        self.newest_era = era;
        let (created, length) = (message.created, message.body.len());
        let bytes = length + kept_extra(self.framing);
        self.kept_bytes += bytes;
        self.ahead_bytes += bytes;
        // The mark identifies a trace and is not restored from here.
        message.attributes.mark = 0;
        let has_attributes = message.attributes != Attributes::default();
        self.attributed += usize::from(has_attributes);
        let has_gap = std::mem::take(&mut self.gap_pending);
        let number = self.admitted;
        self.kept.push_back(Kept { number, message, has_attributes, bytes, era, has_gap, quarters: 0 });
        // Frame the body in place: moving it is expensive.
        let body =
            self.kept.back_mut().map(|kept| &mut kept.message.body).filter(|_| self.framing != Framing::Bare);
        if let Some(body) = body {
            body.push_front(&Container { length: length as u32, created: created.0 }.emit());
            if self.framing == Framing::Chain {
                body.push(Bytes::from_static(ONE_MORE));
            }
        }
    }

    /// Returns true if an input of this era may be sent before it is admitted: no other input waits.
    pub(super) fn can_bypass(&self, era: u32) -> bool {
        self.waiting() == 0
            && self.framing == Framing::Bare
            && !(self.is_stopped || self.gap_pending || self.is_lost || self.is_on_trial())
            && (era, era) == (self.era, self.newest_era)
    }

    /// Records that messages were lost before the next input.
    pub(super) fn admit_gap(&mut self) {
        self.gap_pending = true;
    }

    /// Returns true if another input fits.
    pub(super) fn has_room(&self) -> bool {
        self.unfinished() < self.limits.kept_messages
            && self.kept_bytes < self.limits.kept_bytes
            && self.waiting() < self.limits.ahead_messages
            && self.ahead_bytes < self.limits.ahead_bytes
    }

    /// Number of inputs that were not sent completely.
    pub(super) fn waiting(&self) -> usize {
        self.kept.len() - (self.handed - self.first) as usize
    }

    /// Number of inputs that are not finished.
    pub(super) fn unfinished(&self) -> usize {
        self.kept.len() - (self.committed - self.first) as usize
    }

    /// Returns true if the process has finished all inputs that it received.
    pub(super) fn is_idle(&self) -> bool {
        self.handed == self.finished && self.partial == 0
    }

    /// Returns true if the process has finished an input or made output.
    pub(super) fn has_answered(&self) -> bool {
        self.read > 0 || self.finished > self.process_first
    }

    /// Returns true if the process reports `done`.
    pub(super) fn reports_done(&self) -> bool {
        self.reports_done
    }

    /// The process announced that it reports `done`.
    pub(super) fn expect_done(&mut self) {
        self.reports_done = true;
    }

    /// Era of the present process.
    pub(super) fn era(&self) -> u32 {
        self.era
    }

    /// Returns true if the inputs of the era need so much memory that it should end.
    pub(super) fn is_era_long(&self) -> bool {
        self.is_truncated
            || self.has_history
                && (self.kept_bytes > self.limits.kept_bytes / 4
                    || self.kept.len() > self.limits.kept_messages / 4)
    }

    /// Era of the next input to send, if that begins a new era.
    pub(super) fn next_era(&self) -> Option<u32> {
        self.next().map(|kept| kept.era).filter(|era| *era > self.era)
    }

    fn next(&self) -> Option<&Kept> {
        self.kept.get((self.handed - self.first) as usize)
    }

    /// Returns true if there is an input for the present process.
    pub(super) fn has_next(&self) -> bool {
        self.next().is_some_and(|kept| kept.era == self.era && (!self.is_stopped || self.partial > 0))
    }

    /// Sends nothing more to the present process, except for the rest of a partial message.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Returns true if nothing was sent to the present process.
    pub(super) fn is_untouched(&self) -> bool {
        self.handed == self.process_first && self.partial == 0
    }

    /// Returns true if the era cannot continue: only a new one can.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Number of containers sent to the process before a frame that is sent now.
    pub(super) fn position(&self) -> u64 {
        self.first + self.kept.len() as u64 - self.process_first
    }

    /// If a gap frame must be sent before the next input: the number of containers before it. Returns it once.
    pub(super) fn next_gap(&mut self) -> Option<u64> {
        let is_due = self.partial == 0
            && !self.gap_sent
            && self.has_next()
            && self.next().is_some_and(|kept| kept.has_gap);
        self.gap_sent |= is_due;
        is_due.then_some(self.handed - self.process_first)
    }

    /// Number of containers sent to the process, without those that wait.
    pub(super) fn sent_position(&self) -> u64 {
        self.handed - self.process_first
    }

    /// The next bytes to send, of at most `most` inputs, up to the next gap.
    pub(super) fn next_slices<'a>(&'a self, most: usize, into: &mut SmallVec<[IoSlice<'a>; 8]>) {
        let start = (self.handed - self.first) as usize;
        for (index, kept) in self.kept.iter().enumerate().skip(start).take(most) {
            let is_next = index == start;
            let has_stopped = self.is_stopped && !(is_next && self.partial > 0);
            let has_gap = kept.has_gap && !(is_next && self.gap_sent);
            if kept.era != self.era || into.len() >= SLICES_MAX || has_stopped || has_gap {
                break;
            }
            kept.message.body.io_slices(if is_next { self.partial } else { 0 }, into);
        }
    }

    /// The next message to send through shared memory: creation time, body, gap flag.
    pub(super) fn next_whole(&self) -> Option<(Time, &Body, bool)> {
        let next = self.next().filter(|_| self.has_next());
        next.map(|Kept { message, has_gap, .. }| (message.created, &message.body, *has_gap))
    }

    /// Records that the message was sent.
    pub(super) fn mark_sent_whole(&mut self) {
        if let Some(bytes) = self.next().map(|kept| kept.bytes) {
            self.ahead_bytes -= bytes;
            self.handed_bytes += bytes as u64;
            self.handed += 1;
        }
    }

    /// Records that this many bytes were sent.
    pub(super) fn mark_sent(&mut self, mut bytes: usize) {
        self.ahead_bytes -= bytes;
        self.handed_bytes += bytes as u64;
        while bytes > 0
            && let Some(kept) = self.next()
        {
            let rest = kept.bytes - self.partial;
            if bytes < rest {
                self.partial += bytes;
                return;
            }
            bytes -= rest;
            (self.partial, self.gap_sent) = (0, false);
            self.handed += 1;
        }
    }

    /// Adds an output of the process.
    pub(super) fn on_output(&mut self, message: Message) -> Result<(), ProtocolError> {
        self.read += 1;
        let inputs = self.handed + u64::from(self.partial > 0) - self.process_first;
        if !self.reports_done && self.read > inputs {
            return Err(ProtocolError(format!(
                "it sent {} messages for {inputs} inputs without reporting done",
                self.read
            )));
        }
        self.withheld_bytes += message.body.len();
        self.withheld.push_back(message);
        if self.withheld_bytes > self.limits.kept_bytes || self.withheld.len() > self.limits.kept_messages {
            let messages = self.withheld.len();
            return Err(ProtocolError(format!("it sent {messages} messages without reporting done")));
        }
        self.release_confirmed();
        Ok(())
    }

    /// The process reports: all output of its first `inputs` inputs is among its first `outputs` outputs.
    pub(super) fn on_done(&mut self, inputs: u64, outputs: u64) -> Result<(), ProtocolError> {
        let sent = self.handed - self.process_first;
        if inputs > sent {
            return Err(ProtocolError(format!("it reported {inputs} inputs done, but received {sent}")));
        }
        if inputs < self.last_done.0 || outputs < self.last_done.1 {
            let (before, _) = self.last_done;
            return Err(ProtocolError(format!("it reported {inputs} inputs done after {before}")));
        }
        self.reports_done = true;
        self.last_done = (inputs, outputs);
        self.assign_drops(inputs);
        if self.dones.len() >= DONES_MAX {
            self.dones.pop_back();
        }
        self.dones.push_back((inputs, outputs));
        self.release_confirmed();
        Ok(())
    }

    /// Like [`Ledger::on_done`], for an acknowledgement that is in order with the outputs.
    pub(super) fn on_covers(&mut self, inputs: u64) -> Result<(), ProtocolError> {
        self.on_done(inputs, self.read)
    }

    /// Input number `inputs` (from 1) came back unchanged; all before it are finished, too.
    pub(super) fn on_unchanged(&mut self, inputs: u64) -> Result<(), ProtocolError> {
        let is_next = self.process_first + inputs == self.first + 1 && self.first < self.handed;
        let is_alone = self.withheld.is_empty() && self.dones.is_empty() && self.reported_drops.is_empty();
        if is_next && is_alone && !self.has_history {
            return self.release_unchanged(inputs);
        }
        let index = (self.process_first + inputs).checked_sub(self.first + 1);
        let kept = index.and_then(|index| self.kept.get(index as usize));
        let Some(Kept { message: Message { created, body, .. }, .. }) = kept else {
            return Err(ProtocolError(format!("it returned message {inputs}, which is finished")));
        };
        let message = Message::new(*created, body.clone());
        self.on_output(message)?;
        self.on_covers(inputs)
    }

    /// Releases the first input as its own output. A shortcut for [`Ledger::on_output`] and [`Ledger::on_done`].
    fn release_unchanged(&mut self, inputs: u64) -> Result<(), ProtocolError> {
        let Some(Kept { message, has_attributes, bytes, .. }) = self.kept.pop_front() else {
            return Err(ProtocolError("it returned a message that it did not receive".into()));
        };
        self.ready.push_back((Port::MAIN, message));
        self.first += 1;
        (self.committed, self.finished) = (self.first, self.first);
        (self.kept_bytes, self.attributed) =
            (self.kept_bytes - bytes, self.attributed - usize::from(has_attributes));
        self.finished_bytes += bytes as u64;
        (self.read, self.confirmed, self.released) = (self.read + 1, self.confirmed + 1, self.released + 1);
        (self.last_done, self.early_deaths) = ((inputs, self.read), 0);
        Ok(())
    }

    /// A stage reports dropped messages: of its first `until` inputs, or of the inputs of the next `done`.
    pub(super) fn on_drop(
        &mut self,
        stage: usize,
        drop: Drop,
        until: Option<u64>,
    ) -> Result<(), ProtocolError> {
        let key = |reported: &ReportedDrop| (reported.stage, reported.drop.reason, reported.until);
        match self.reported_drops.iter().position(|reported| key(reported) == (stage, drop.reason, until)) {
            Some(index) => {
                let count = &mut self.reported_drops[index].drop.count;
                *count = count.saturating_add(drop.count);
            }
            None if self.reported_drops.len() < DROPS_MAX => {
                self.reported_drops.push(ReportedDrop { stage, drop, until })
            }
            None => {
                return Err(ProtocolError("it reported too many drops without reporting done".into()));
            }
        }
        // The report may arrive after the acknowledgement that confirms it.
        if until.is_some() {
            self.confirm_drops(self.finished - self.process_first);
        }
        Ok(())
    }

    /// Assigns the drops reported since the last `done` to the first `inputs` inputs.
    fn assign_drops(&mut self, inputs: u64) {
        self.reported_drops.iter_mut().for_each(|reported| _ = reported.until.get_or_insert(inputs));
    }

    /// Confirms the drops of the first `inputs` inputs.
    fn confirm_drops(&mut self, inputs: u64) {
        let is_confirmed = |reported: &mut ReportedDrop| reported.until.is_some_and(|until| until <= inputs);
        for reported in self.reported_drops.extract_if(.., is_confirmed) {
            let skipped = reported.drop.count.min(self.drops_to_skip);
            self.drops_to_skip -= skipped;
            let count = reported.drop.count - skipped;
            self.counted_drops += count;
            self.confirmed_drops.push((reported.stage, Drop { count, ..reported.drop }));
        }
    }

    /// Takes the drops that were confirmed since the last call, by stage.
    pub(super) fn confirmed_drops(&mut self) -> impl Iterator<Item = (usize, Drop)> {
        self.confirmed_drops.drain(..).filter(|(_, drop)| drop.count > 0)
    }

    /// Releases the outputs and drops that were confirmed.
    fn release_confirmed(&mut self) {
        let mut finished = None;
        match self.reports_done {
            false => {
                self.assign_drops(self.read);
                finished = Some((self.read, self.read));
            }
            true => {
                while let Some(done) =
                    self.dones.front().copied().filter(|(_, outputs)| *outputs <= self.read)
                {
                    finished = Some(done);
                    self.dones.pop_front();
                }
            }
        }
        let Some((inputs, outputs)) = finished else { return };
        self.release_outputs(outputs);
        self.confirm_drops(inputs);
        self.commit(self.process_first + inputs);
    }

    fn release_outputs(&mut self, outputs: u64) {
        while self.confirmed < outputs
            && let Some(mut message) = self.withheld.pop_front()
        {
            self.withheld_bytes -= message.body.len();
            self.confirmed += 1;
            if self.confirmed > self.outputs_to_skip {
                self.released += 1;
                self.restore_attributes(&mut message);
                self.ready.push_back((Port::MAIN, message));
            }
        }
    }

    /// Restores the attributes of the input that an output came from.
    fn restore_attributes(&mut self, output: &mut Message) {
        if self.attributed == 0 {
            return;
        }
        let from = (self.committed - self.first) as usize;
        let until = self.kept.len().min(from + SEARCHED_MAX);
        let mut inputs = self.kept.range_mut(from..until);
        let is_origin = |kept: &Kept| kept.has_attributes && kept.message.created == output.created;
        let Some(input) = inputs.find(|kept| is_origin(kept)) else { return };
        // If two inputs have the same creation time, the next output belongs to the other one.
        if inputs.next().is_some_and(|next| is_origin(next)) {
            (input.has_attributes, self.attributed) = (false, self.attributed - 1);
        }
        output.attributes = input.message.attributes;
    }

    fn commit(&mut self, until: u64) {
        let finished = self.finished.max(until.min(self.handed));
        self.finished_bytes += self.bytes_between(self.finished, finished);
        self.finished = finished;
        if finished > self.committed {
            (self.committed, self.early_deaths) = (finished, 0);
        }
        let over = |ledger: &Ledger| {
            ledger.kept_bytes > ledger.limits.kept_bytes / 2
                || ledger.kept.len() > ledger.limits.kept_messages / 2
        };
        while self.first < self.committed && (!self.has_history || self.is_truncated || over(self)) {
            self.is_truncated |= self.has_history;
            self.remove_first();
        }
    }

    /// Size of a range of inputs.
    fn bytes_between(&self, from: u64, until: u64) -> u64 {
        let range = (from - self.first) as usize..(until - self.first) as usize;
        self.kept.range(range).map(|kept| kept.bytes as u64).sum()
    }

    fn remove_first(&mut self) {
        if let Some(kept) = self.kept.pop_front() {
            self.kept_bytes -= kept.bytes;
            self.attributed -= usize::from(kept.has_attributes);
            self.first += 1;
        }
    }

    /// The process exited successfully at the end of its input, which confirms all output. Begins a new era. Returns
    /// the number of inputs without an answer, which are lost.
    pub(super) fn on_end(&mut self) -> u64 {
        let unanswered = match self.reports_done {
            true => 0,
            false => self.handed.saturating_sub(self.committed),
        };
        let reason = "module exited without an answer";
        self.drops.push(Drop { reason, count: unanswered, is_loss: true });
        self.release_outputs(self.read);
        self.assign_drops(u64::MAX);
        self.confirm_drops(u64::MAX);
        self.begin_era();
        unanswered
    }

    /// No process will come: drops the unfinished inputs for this reason. Returns the numbers of the first and the last one.
    pub(super) fn abandon(&mut self, reason: &'static str) -> Option<(u64, u64)> {
        let mut unfinished = self.kept.iter().skip((self.committed - self.first) as usize);
        let first = unfinished.next()?.number;
        let last = unfinished.next_back().map_or(first, |kept| kept.number);
        self.drops.push(Drop { reason, count: self.unfinished() as u64, is_loss: true });
        self.committed = self.first + self.kept.len() as u64;
        while self.first < self.committed {
            self.remove_first();
        }
        self.restart(self.first);
        Some((first, last))
    }

    /// All inputs sent are finished. The next process begins with the next input and its era.
    pub(super) fn begin_era(&mut self) {
        let era = self.next().map_or(self.era, |kept| kept.era);
        self.committed = self.committed.max(self.handed);
        while self.first < self.committed {
            self.remove_first();
        }
        self.restart(self.first);
        (self.era, self.is_truncated, self.is_lost) = (era, false, false);
        (self.outputs_to_skip, self.released, self.early_deaths) = (0, 0, 0);
        (self.drops_to_skip, self.counted_drops) = (0, 0);
    }

    fn restart(&mut self, first: u64) {
        (self.handed, self.process_first, self.finished) = (first, first, first);
        (self.handed_bytes, self.finished_bytes) = (0, 0);
        (self.partial, self.gap_sent, self.is_stopped) = (0, false, false);
        self.ahead_bytes = self.kept_bytes;
        self.withheld.clear();
        (self.withheld_bytes, self.read, self.confirmed) = (0, 0, 0);
        self.dones.clear();
        self.reported_drops.clear();
        self.last_done = (0, 0);
    }

    /// Outputs to release, oldest first.
    pub(super) fn ready(&mut self) -> &mut VecDeque<(Port, Message)> {
        &mut self.ready
    }

    /// Returns true if [`Ledger::drops`] or [`Ledger::confirmed_drops`] has entries.
    pub(super) fn has_dropped(&self) -> bool {
        !(self.drops.is_empty() && self.confirmed_drops.is_empty())
    }

    /// Takes the messages that the ledger dropped since the last call.
    pub(super) fn drops(&mut self) -> impl Iterator<Item = Drop> {
        self.drops.drain(..).filter(|drop| drop.count > 0)
    }

    /// Number of the next input to send.
    pub(super) fn handed(&self) -> u64 {
        self.handed
    }

    /// The process wrote rubbish behind its last output. That output may be damaged, too, unless the process reported
    /// that it was complete. Returns whether the present process has made one; it counts as a loss.
    pub(super) fn doubt_last_output(&mut self) -> bool {
        let may_be_damaged = !self.reports_done && self.finished > self.process_first;
        if may_be_damaged {
            self.drops.push(Drop { reason: "the message may be damaged", count: 1, is_loss: true });
        }
        may_be_damaged
    }

    /// Number of the first unfinished input.
    pub(super) fn committed(&self) -> u64 {
        self.committed
    }
}
