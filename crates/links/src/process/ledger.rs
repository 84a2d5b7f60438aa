//! What a module's process was given and has not finished, and what it gave and has not vouched for. Sans-IO.
//!
//! Inputs are kept until the process says that everything that came of them is out (`done`); what it gives
//! before that is withheld. When it dies, what was withheld is void and what was kept is handed to the next
//! process, so that whatever leaves the ledger left it once, in order. A process that never says `done` is
//! one-in-one-out: its output number n finishes its input number n. A message that was first in line, and read,
//! at [`DEATHS_MAX`] deaths is dropped. What the process itself drops counts once the inputs it belongs to are
//! finished; before that it is void like an output.
//!
//! What the host knows of a message ([`Attributes`]) does not cross to the process. It is put back on the first
//! output that was created when an unfinished input was.
//!
//! Where a process needs all that went before (it decodes with a history), inputs belong to an *era*: they are
//! kept to the era's end, a new process is handed all of them again, and as many of its outputs, and of its drops, as
//! had left already are void. Where the era has grown too long to be kept, what remains of it dies with its process.

use contract::{Attributes, Body, Bytes, Drop, Message, Port, Time};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io::IoSlice;
use wire::{Container, Word};

/// Behind a message of a chain: with it, one more of the host's is there. [`Word::Complete`] of 1, as bytes.
const ONE_MORE: &[u8; Word::BYTES] = &[255, 255, 255, 255, 1, 0, 0, 0, 0, 0, 0, 0];

/// A message is dropped that was first in line at so many deaths, and so many deaths before a process came to
/// what is not finished make its history useless.
const DEATHS_MAX: u32 = 3;
/// Deaths that somebody else caused speak against a message too, in the end: the system's killer for lack of
/// memory looks like a person's.
const OUTSIDE_DEATHS_MAX: u32 = 12;

/// Pieces that are handed over at once.
const SLICES_MAX: usize = 64;

/// `done`s that wait for the outputs they vouch for; more are merged.
const DONES_MAX: usize = 1024;

/// Reasons for drops that wait to be vouched for.
const TOLD_MAX: usize = 1024;

/// Unfinished inputs among which the one is looked for that an output came of.
const LOOKED_AT_MAX: usize = 256;

/// How much is kept and handed over ahead.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Messages kept.
    pub kept_messages: usize,
    /// Bytes kept, and bytes withheld.
    pub kept_bytes: usize,
    /// Messages that wait to be handed over.
    pub ahead_messages: usize,
    /// Bytes that wait to be handed over.
    pub ahead_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { kept_messages: 1 << 16, kept_bytes: 128 << 20, ahead_messages: 64, ahead_bytes: 1 << 20 }
    }
}

/// The process broke the rules; the text says how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rubbish(pub(super) String);

/// What stands around a message that is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// Nothing: it is handed over in shared memory.
    Bare,
    /// The header in front.
    Container,
    /// That, and behind it, for each process of a chain, that it is whole ([`Word`]).
    Chain,
}

struct Kept {
    /// Its body is in its [`Framing`].
    message: Message,
    /// The host knows something of it that has not been put back.
    is_known: bool,
    /// Its bytes, and those of a header, whether it has one or not.
    bytes: usize,
    era: u32,
    /// Something was lost before it.
    has_gap: bool,
    deaths: u32,
    outside_deaths: u32,
}

/// Messages that the process says it dropped.
struct Told {
    stage: usize,
    drop: Drop,
    /// They belong to its first so many inputs; `None`: to those that it says next are done.
    until: Option<u64>,
}

/// What a death cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Death {
    /// Messages that the next process is handed again.
    pub(super) again: usize,
    /// Messages dropped because they killed the process too often.
    pub(super) poison: u64,
    /// Messages that nobody can read any more, their era being too long to be kept.
    pub(super) unreadable: u64,
}

/// The inputs of one link and the outputs of its process.
pub(super) struct Ledger {
    limits: Limits,
    framing: Framing,
    /// Whether inputs are kept to the end of their era.
    has_history: bool,
    /// Inputs; the first has number `first`.
    kept: VecDeque<Kept>,
    kept_bytes: usize,
    first: u64,
    /// Inputs before this are finished, by whichever process.
    committed: u64,
    /// Inputs before this are finished by the process there is now: so many bytes of what it was handed.
    finished: u64,
    finished_bytes: u64,
    /// Bytes that the process there is now was handed.
    handed_bytes: u64,
    /// The first input that the process there is now was handed.
    begun: u64,
    /// The next input to hand over, of which `partial` bytes are over already.
    handed: u64,
    partial: usize,
    is_stopped: bool,
    ahead_bytes: usize,
    gap_told: bool,
    gap_waits: bool,
    era: u32,
    newest_era: u32,
    /// The era's first inputs are gone: no other process could go on with it.
    is_torn: bool,
    /// Its process is gone too.
    is_lost: bool,
    /// Deaths before a process came to what was not finished.
    early_deaths: u32,
    /// Outputs read and not vouched for.
    withheld: VecDeque<Message>,
    withheld_bytes: usize,
    /// Outputs of this process: read, vouched for.
    read: u64,
    vouched: u64,
    /// As many of its first outputs left an earlier process.
    void: u64,
    /// Outputs of this era that left.
    left: u64,
    says_done: bool,
    dones: VecDeque<(u64, u64)>,
    last_done: (u64, u64),
    told: Vec<Told>,
    /// What was vouched for of those, by stage.
    told_drops: Vec<(usize, Drop)>,
    /// Messages of this era that were so counted, and as many of its next that were already.
    counted: u64,
    void_drops: u64,
    /// Inputs of which something is known.
    known: usize,
    /// What may leave.
    ready: VecDeque<(Port, Message)>,
    drops: Vec<Drop>,
}

impl Ledger {
    /// Empty, of what is handed over as containers. `says_done`: the process is known to say done.
    pub(super) fn new(limits: Limits, says_done: bool, has_history: bool) -> Ledger {
        Ledger {
            limits,
            framing: Framing::Container,
            has_history,
            kept: VecDeque::new(),
            kept_bytes: 0,
            first: 0,
            committed: 0,
            finished: 0,
            finished_bytes: 0,
            handed_bytes: 0,
            begun: 0,
            handed: 0,
            partial: 0,
            is_stopped: false,
            ahead_bytes: 0,
            gap_told: false,
            gap_waits: false,
            era: 0,
            newest_era: 0,
            is_torn: false,
            is_lost: false,
            early_deaths: 0,
            withheld: VecDeque::new(),
            withheld_bytes: 0,
            read: 0,
            vouched: 0,
            void: 0,
            left: 0,
            says_done,
            dones: VecDeque::new(),
            last_done: (0, 0),
            told: Vec::new(),
            told_drops: Vec::new(),
            counted: 0,
            void_drops: 0,
            known: 0,
            ready: VecDeque::new(),
            drops: Vec::new(),
        }
    }

    /// The same for a chain.
    pub(super) fn of_chain(limits: Limits, has_history: bool) -> Ledger {
        Ledger { framing: Framing::Chain, ..Ledger::new(limits, true, has_history) }
    }

    /// The same for a run on shared memory.
    pub(super) fn of_run(limits: Limits, has_history: bool) -> Ledger {
        Ledger { framing: Framing::Bare, ..Ledger::new(limits, true, has_history) }
    }

    /// One more input, of this era (0 where there are none).
    pub(super) fn admit(&mut self, mut message: Message, era: u32) {
        if era < self.newest_era || (self.is_lost && era == self.era) {
            let reason = "its module's history is gone";
            return self.drops.push(Drop { reason, count: 1 });
        }
        self.newest_era = era;
        let (created, length) = (message.created, message.body.len());
        let bytes = Container::BYTES + length + if self.framing == Framing::Chain { Word::BYTES } else { 0 };
        self.kept_bytes += bytes;
        self.ahead_bytes += bytes;
        // A mark is its trace's, which follows it by itself.
        message.attributes.mark = 0;
        let is_known = message.attributes != Attributes::default();
        self.known += usize::from(is_known);
        let has_gap = std::mem::take(&mut self.gap_waits);
        self.kept.push_back(Kept { message, is_known, bytes, era, has_gap, deaths: 0, outside_deaths: 0 });
        // Where it is kept: a body is large to be moved.
        let body =
            self.kept.back_mut().map(|kept| &mut kept.message.body).filter(|_| self.framing != Framing::Bare);
        if let Some(body) = body {
            body.push_front(&Container { length: length as u32, created: created.0 }.emit());
            if self.framing == Framing::Chain {
                body.push(Bytes::from_static(ONE_MORE));
            }
        }
    }

    /// Whether one more input, of this era, may be handed over whole before it is admitted: nothing is before it.
    pub(super) fn is_clear(&self, era: u32) -> bool {
        self.waiting() == 0
            && self.framing == Framing::Bare
            && !(self.is_stopped || self.gap_waits || self.is_lost)
            && (era, era) == (self.era, self.newest_era)
    }

    /// Something was lost before the next input.
    pub(super) fn admit_gap(&mut self) {
        self.gap_waits = true;
    }

    /// Whether another input is welcome.
    pub(super) fn has_room(&self) -> bool {
        self.unfinished() < self.limits.kept_messages
            && self.kept_bytes < self.limits.kept_bytes
            && self.waiting() < self.limits.ahead_messages
            && self.ahead_bytes < self.limits.ahead_bytes
    }

    /// Inputs that wait to be handed over whole.
    pub(super) fn waiting(&self) -> usize {
        self.kept.len() - (self.handed - self.first) as usize
    }

    /// Inputs that are not finished.
    pub(super) fn unfinished(&self) -> usize {
        self.kept.len() - (self.committed - self.first) as usize
    }

    /// Whether the process has nothing to answer for.
    pub(super) fn is_idle(&self) -> bool {
        self.handed == self.finished && self.partial == 0
    }

    /// Whether the process vouches for its outputs itself.
    pub(super) fn says_done(&self) -> bool {
        self.says_done
    }

    /// The process said that it will.
    pub(super) fn expect_done(&mut self) {
        self.says_done = true;
    }

    /// The era of the process.
    pub(super) fn era(&self) -> u32 {
        self.era
    }

    /// The era's inputs take so much room that it should end.
    pub(super) fn is_long(&self) -> bool {
        self.is_torn
            || self.has_history
                && (self.kept_bytes > self.limits.kept_bytes / 4
                    || self.kept.len() > self.limits.kept_messages / 4)
    }

    /// The era of the next input to hand over, if that begins a new one.
    pub(super) fn next_era(&self) -> Option<u32> {
        self.next().map(|kept| kept.era).filter(|era| *era > self.era)
    }

    fn next(&self) -> Option<&Kept> {
        self.kept.get((self.handed - self.first) as usize)
    }

    /// Whether there is an input for this process.
    pub(super) fn has_next(&self) -> bool {
        self.next().is_some_and(|kept| kept.era == self.era && (!self.is_stopped || self.partial > 0))
    }

    /// Hands over nothing more to this process but the rest of what it has in part.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Whether this process was handed nothing yet.
    pub(super) fn is_untouched(&self) -> bool {
        self.handed == self.begun && self.partial == 0
    }

    /// Whether the era's history is gone with its process: only a new era can go on.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// How many containers will have gone to the process before what comes now.
    pub(super) fn place(&self) -> u64 {
        self.first + self.kept.len() as u64 - self.begun
    }

    /// If a gap is to be told before the next input: how many containers went before it. Asked once.
    pub(super) fn next_gap(&mut self) -> Option<u64> {
        let is_due = self.partial == 0
            && !self.gap_told
            && self.has_next()
            && self.next().is_some_and(|kept| kept.has_gap);
        self.gap_told |= is_due;
        is_due.then_some(self.handed - self.begun)
    }

    /// Whether an input was handed over in part.
    pub(super) fn is_amidst(&self) -> bool {
        self.partial > 0
    }

    /// The bytes to hand over next, of so many inputs at most, and as far as no gap is to be told first.
    pub(super) fn next_slices<'a>(&'a self, most: usize, into: &mut SmallVec<[IoSlice<'a>; 8]>) {
        let start = (self.handed - self.first) as usize;
        for (index, kept) in self.kept.iter().enumerate().skip(start).take(most) {
            let is_next = index == start;
            let has_stopped = self.is_stopped && !(is_next && self.partial > 0);
            let has_gap = kept.has_gap && !(is_next && self.gap_told);
            if kept.era != self.era || into.len() >= SLICES_MAX || has_stopped || has_gap {
                break;
            }
            kept.message.body.io_slices(if is_next { self.partial } else { 0 }, into);
        }
    }

    /// The message to hand over next, where one is handed over whole: when it was created, its bytes, and whether
    /// something was lost before it.
    pub(super) fn next_whole(&self) -> Option<(Time, &Body, bool)> {
        let next = self.next().filter(|_| self.has_next());
        next.map(|Kept { message, has_gap, .. }| (message.created, &message.body, *has_gap))
    }

    /// It is over.
    pub(super) fn hand_over_whole(&mut self) {
        if let Some(bytes) = self.next().map(|kept| kept.bytes) {
            self.ahead_bytes -= bytes;
            self.handed_bytes += bytes as u64;
            self.handed += 1;
        }
    }

    /// So many of those bytes are over.
    pub(super) fn hand_over(&mut self, mut bytes: usize) {
        self.ahead_bytes -= bytes;
        self.handed_bytes += bytes as u64;
        while bytes > 0
            && let Some(kept) = self.next()
        {
            let left = kept.bytes - self.partial;
            if bytes < left {
                self.partial += bytes;
                return;
            }
            bytes -= left;
            (self.partial, self.gap_told) = (0, false);
            self.handed += 1;
        }
    }

    /// One more output of the process.
    pub(super) fn take(&mut self, message: Message) -> Result<(), Rubbish> {
        self.read += 1;
        let given = self.handed + u64::from(self.partial > 0) - self.begun;
        if !self.says_done && self.read > given {
            return Err(Rubbish(format!(
                "it gave {} messages for {given}, and never said that they are done",
                self.read
            )));
        }
        self.withheld_bytes += message.body.len();
        self.withheld.push_back(message);
        if self.withheld_bytes > self.limits.kept_bytes || self.withheld.len() > self.limits.kept_messages {
            let messages = self.withheld.len();
            return Err(Rubbish(format!("it gave {messages} messages without saying that they are done")));
        }
        self.settle();
        Ok(())
    }

    /// The process vouches: everything that came of its first `inputs` is in its first `outputs`.
    pub(super) fn take_done(&mut self, inputs: u64, outputs: u64) -> Result<(), Rubbish> {
        let given = self.handed - self.begun;
        if inputs > given {
            return Err(Rubbish(format!("it says that {inputs} are done of {given} it was given")));
        }
        if inputs < self.last_done.0 || outputs < self.last_done.1 {
            let (before, _) = self.last_done;
            return Err(Rubbish(format!("it says that {inputs} are done, after {before}")));
        }
        self.says_done = true;
        self.last_done = (inputs, outputs);
        self.place_told(inputs);
        if self.dones.len() >= DONES_MAX {
            self.dones.pop_back();
        }
        self.dones.push_back((inputs, outputs));
        self.settle();
        Ok(())
    }

    /// As [`Ledger::take_done`], said with the outputs themselves: all that came so far.
    pub(super) fn take_covers(&mut self, inputs: u64) -> Result<(), Rubbish> {
        self.take_done(inputs, self.read)
    }

    /// The process's input number `inputs`, from 1, came back as it went, and with it all before it is finished.
    pub(super) fn take_back(&mut self, inputs: u64) -> Result<(), Rubbish> {
        let is_next = self.begun + inputs == self.first + 1 && self.first < self.handed;
        let is_alone = self.withheld.is_empty() && self.dones.is_empty() && self.told.is_empty();
        if is_next && is_alone && !self.has_history {
            return self.give_back(inputs);
        }
        let place = (self.begun + inputs).checked_sub(self.first + 1);
        let kept = place.and_then(|place| self.kept.get(place as usize));
        let Some(Kept { message: Message { created, body, .. }, .. }) = kept else {
            return Err(Rubbish(format!("it gives back message {inputs}, which is finished")));
        };
        let message = Message::new(*created, body.clone());
        self.take(message)?;
        self.take_covers(inputs)
    }

    /// The first input is its own output. All that a `done` would have done, in one step.
    fn give_back(&mut self, inputs: u64) -> Result<(), Rubbish> {
        let Some(Kept { message, is_known, bytes, .. }) = self.kept.pop_front() else {
            return Err(Rubbish("it gives back what it was not given".into()));
        };
        self.ready.push_back((Port::MAIN, message));
        self.first += 1;
        (self.committed, self.finished) = (self.first, self.first);
        (self.kept_bytes, self.known) = (self.kept_bytes - bytes, self.known - usize::from(is_known));
        self.finished_bytes += bytes as u64;
        (self.read, self.vouched, self.left) = (self.read + 1, self.vouched + 1, self.left + 1);
        (self.last_done, self.early_deaths) = ((inputs, self.read), 0);
        Ok(())
    }

    /// A stage of the process says that it dropped messages: of its first `until` inputs, or of those that it says
    /// next are done.
    pub(super) fn take_drop(&mut self, stage: usize, drop: Drop, until: Option<u64>) -> Result<(), Rubbish> {
        let place = |told: &Told| (told.stage, told.drop.reason, told.until);
        match self.told.iter().position(|told| place(told) == (stage, drop.reason, until)) {
            Some(index) => {
                let count = &mut self.told[index].drop.count;
                *count = count.saturating_add(drop.count);
            }
            None if self.told.len() < TOLD_MAX => self.told.push(Told { stage, drop, until }),
            None => return Err(Rubbish("it dropped messages without saying that they are done".into())),
        }
        // It may be heard after what covers it.
        if until.is_some() {
            self.count_told(self.finished - self.begun);
        }
        Ok(())
    }

    /// What it told of since belongs to its first so many inputs.
    fn place_told(&mut self, inputs: u64) {
        self.told.iter_mut().for_each(|told| _ = told.until.get_or_insert(inputs));
    }

    /// The process's first so many inputs are finished: what it dropped of them counts.
    fn count_told(&mut self, inputs: u64) {
        for told in self.told.extract_if(.., |told| told.until.is_some_and(|until| until <= inputs)) {
            let void = told.drop.count.min(self.void_drops);
            self.void_drops -= void;
            let count = told.drop.count - void;
            self.counted += count;
            self.told_drops.push((told.stage, Drop { count, ..told.drop }));
        }
    }

    /// What the process dropped and vouched for since the last call, by stage.
    pub(super) fn told_drops(&mut self) -> impl Iterator<Item = (usize, Drop)> {
        self.told_drops.drain(..).filter(|(_, drop)| drop.count > 0)
    }

    /// Lets go of what is vouched for.
    fn settle(&mut self) {
        let mut finished = None;
        match self.says_done {
            false => {
                self.place_told(self.read);
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
        self.let_go(outputs);
        self.count_told(inputs);
        self.commit(self.begun + inputs);
    }

    fn let_go(&mut self, outputs: u64) {
        while self.vouched < outputs
            && let Some(mut message) = self.withheld.pop_front()
        {
            self.withheld_bytes -= message.body.len();
            self.vouched += 1;
            if self.vouched > self.void {
                self.left += 1;
                self.put_back(&mut message);
                self.ready.push_back((Port::MAIN, message));
            }
        }
    }

    /// Puts back on an output what is known of the input that it came of.
    fn put_back(&mut self, output: &mut Message) {
        if self.known == 0 {
            return;
        }
        let from = (self.committed - self.first) as usize;
        let until = self.kept.len().min(from + LOOKED_AT_MAX);
        let mut inputs = self.kept.range_mut(from..until);
        let is_it = |kept: &Kept| kept.is_known && kept.message.created == output.created;
        let Some(input) = inputs.find(|kept| is_it(kept)) else { return };
        // Of two created at once, the next output came of the other.
        if inputs.next().is_some_and(|next| is_it(next)) {
            (input.is_known, self.known) = (false, self.known - 1);
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
        while self.first < self.committed && (!self.has_history || self.is_torn || over(self)) {
            self.is_torn |= self.has_history;
            self.forget_first();
        }
    }

    /// Bytes of inputs that are kept.
    fn bytes_between(&self, from: u64, until: u64) -> u64 {
        let range = (from - self.first) as usize..(until - self.first) as usize;
        self.kept.range(range).map(|kept| kept.bytes as u64).sum()
    }

    fn forget_first(&mut self) {
        if let Some(kept) = self.kept.pop_front() {
            self.kept_bytes -= kept.bytes;
            self.known -= usize::from(kept.is_known);
            self.first += 1;
        }
    }

    /// The process died: what it had not vouched for is void, what it had not finished goes to the next one.
    /// `unread`: bytes that it was handed and had not read. What it had not read did not kill it. `is_outside`:
    /// somebody else ended it.
    pub(super) fn die(&mut self, unread: u64, is_outside: bool) -> Death {
        let mut death = Death::default();
        let front = (self.committed - self.first) as usize;
        let has_reached = self.handed + u64::from(self.partial > 0) > self.committed && {
            let before = self.finished_bytes + self.bytes_between(self.finished, self.committed);
            self.handed_bytes.saturating_sub(unread) > before
        };
        if !has_reached && !is_outside && self.committed > self.finished && self.handed_bytes > unread {
            self.early_deaths += 1;
        }
        self.is_torn |= self.early_deaths >= DEATHS_MAX;
        if has_reached && let Some(kept) = self.kept.get_mut(front) {
            match is_outside {
                true => kept.outside_deaths += 1,
                false => kept.deaths += 1,
            }
            if (kept.deaths >= DEATHS_MAX || kept.outside_deaths >= OUTSIDE_DEATHS_MAX)
                && let Some(kept) = self.kept.remove(front)
            {
                self.kept_bytes -= kept.bytes;
                self.known -= usize::from(kept.is_known);
                death.poison = 1;
                let reason = "killed the module three times";
                self.drops.push(Drop { reason, count: 1 });
            }
        }
        if self.is_torn {
            while self.first < self.committed {
                self.forget_first();
            }
            while self.kept.front().is_some_and(|kept| kept.era == self.era) {
                self.forget_first();
                death.unreadable += 1;
            }
            self.committed = self.first;
            self.is_lost = true;
            let reason = "its module's history is gone";
            self.drops.push(Drop { reason, count: death.unreadable });
        }
        let handed = self.handed;
        self.restart(self.first);
        // With its history the next process knows what was before; without, it is told that there was something.
        if death.poison > 0 || (!self.has_history && self.committed > 0) {
            match self.kept.get_mut((self.committed - self.first) as usize) {
                Some(next) => next.has_gap = true,
                None => self.gap_waits = true,
            }
        }
        (self.void, self.void_drops) = if self.has_history { (self.left, self.counted) } else { (0, 0) };
        death.again = (handed.saturating_sub(self.committed) as usize).min(self.unfinished());
        death
    }

    /// The process ended well, at the end of its input: it vouches for everything. The next one begins anew.
    pub(super) fn end(&mut self) {
        if self.handed > self.committed && !self.says_done {
            let reason = "its module ended without an answer to it";
            self.drops.push(Drop { reason, count: self.handed - self.committed });
        }
        self.let_go(self.read);
        self.place_told(u64::MAX);
        self.count_told(u64::MAX);
        self.begin_era();
    }

    /// Everything handed over is finished; the next process begins with what comes next, and its era.
    pub(super) fn begin_era(&mut self) {
        let era = self.next().map_or(self.era, |kept| kept.era);
        self.committed = self.committed.max(self.handed);
        while self.first < self.committed {
            self.forget_first();
        }
        self.restart(self.first);
        (self.era, self.is_torn, self.is_lost) = (era, false, false);
        (self.void, self.left, self.early_deaths) = (0, 0, 0);
        (self.void_drops, self.counted) = (0, 0);
    }

    fn restart(&mut self, first: u64) {
        (self.handed, self.begun, self.finished) = (first, first, first);
        (self.handed_bytes, self.finished_bytes) = (0, 0);
        (self.partial, self.gap_told, self.is_stopped) = (0, false, false);
        self.ahead_bytes = self.kept_bytes;
        self.withheld.clear();
        (self.withheld_bytes, self.read, self.vouched) = (0, 0, 0);
        self.dones.clear();
        self.told.clear();
        self.last_done = (0, 0);
    }

    /// What may leave, oldest first.
    pub(super) fn ready(&mut self) -> &mut VecDeque<(Port, Message)> {
        &mut self.ready
    }

    /// Whether there is anything in [`Ledger::drops`] or [`Ledger::told_drops`].
    pub(super) fn has_dropped(&self) -> bool {
        !(self.drops.is_empty() && self.told_drops.is_empty())
    }

    /// Messages that ended here since the last call.
    pub(super) fn drops(&mut self) -> impl Iterator<Item = Drop> {
        self.drops.drain(..).filter(|drop| drop.count > 0)
    }

    /// Inputs handed over so far, by number.
    pub(super) fn handed(&self) -> u64 {
        self.handed
    }

    /// Inputs finished so far, of all processes.
    pub(super) fn committed(&self) -> u64 {
        self.committed
    }
}
