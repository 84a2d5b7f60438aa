//! The half that makes again what was lost.

use super::GROUPS_HELD;
use super::fate::Fate;
use super::group::Group;
use super::header::{Header, Part};
use super::pace::Pace;
use contract::{Message, Options, Outbox, Port, Report, Stage, StageError, Time};
use reed_solomon_simd::ReedSolomonDecoder;
use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const TWICE: &str = "came twice, or was made again before";
const LATE: &str = "came later than its group is remembered";
/// Groups of a source half that are remembered.
const GROUPS_MAX: usize = 256;
/// Source halves that are remembered: those before may still be on their way.
const HALVES_MAX: usize = 4;
/// When so many groups follow a group, what is missing of it counts as lost.
const SETTLED_AFTER: usize = 8;
/// Different fates that a report tells of.
const FATES_MAX: usize = 128;
/// Time between two reports to the source half, and the least where the pace changes.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);
const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(20);

/// What came of one source half.
struct Half {
    id: u32,
    /// By the number of their first message.
    groups: BTreeMap<u64, Group>,
    /// The message that came first: group and place. A sink half made anew cannot know which before it were given
    /// out, so it makes none of them again.
    begun: (u64, u8),
    /// Groups before this are forgotten.
    floor: u64,
    /// What was lost of the groups before this is counted.
    settled: u64,
    /// Messages known to have been sent: from, to.
    sent: (u64, u64),
    given: u64,
}

pub(super) struct Sink {
    data: u8,
    bytes_max: usize,
    halves: VecDeque<Half>,
    decoder: Option<ReedSolomonDecoder>,
    scratch: Vec<u8>,
    /// Bytes kept by all groups.
    bytes: usize,
    /// Where parity is left to the source half: what it is told.
    fates: Option<Told>,
    repaired: u64,
    twice: u64,
    late: u64,
    /// Missing messages of source halves that are forgotten.
    missing_before: u64,
    /// Something was before all that this half has seen.
    is_made_anew: bool,
}

/// What the source half is told.
#[derive(Default)]
struct Told {
    /// Of how many groups what became, since the last word.
    fates: BTreeMap<Fate, u16>,
    /// When the last word was given.
    at: Option<Time>,
    pace: Pace,
    /// What the last word said.
    was_slow: bool,
}

impl Half {
    fn missing(&self) -> u64 {
        (self.sent.1 - self.sent.0).saturating_sub(self.given)
    }

    fn bytes(&self) -> usize {
        self.groups.values().map(Group::bytes).sum()
    }
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        Sink {
            // The option's range fits.
            data: u8::try_from(options.integer("data")).unwrap_or(u8::MAX),
            bytes_max: options.size("held_bytes"),
            halves: VecDeque::new(),
            decoder: None,
            scratch: Vec::new(),
            bytes: 0,
            fates: options.is_auto("parity").then(Told::default),
            repaired: 0,
            twice: 0,
            late: 0,
            missing_before: 0,
            is_made_anew: false,
        }
    }

    /// The index of the source half `id`, which is begun if it is new.
    fn half(&mut self, header: &Header) -> usize {
        let Header { half: id, group, .. } = *header;
        if let Some(known) = self.halves.iter().rposition(|half| half.id == id) {
            return known;
        }
        if self.halves.len() == HALVES_MAX
            && let Some(forgotten) = self.halves.pop_front()
        {
            self.missing_before += forgotten.missing();
            self.bytes -= forgotten.bytes();
        }
        let begun = match header.part {
            // Nothing was before the beginning.
            _ if group == 0 && !self.is_made_anew => (0, 0),
            Part::Data { place, .. } => (group, place),
            Part::Parity { .. } => (group + 1, 0),
        };
        let (groups, sent) = (BTreeMap::new(), (group, group));
        self.halves.push_back(Half { id, groups, begun, floor: 0, settled: 0, sent, given: 0 });
        self.halves.len() - 1
    }

    /// Begins a group; false if it is older than what is remembered.
    fn begin(&mut self, index: usize, header: &Header) -> bool {
        let half = &mut self.halves[index];
        if half.groups.contains_key(&header.group) {
            return true;
        }
        if half.groups.len() == GROUPS_MAX {
            match half.groups.first_entry() {
                Some(oldest) if *oldest.key() < header.group => {
                    half.floor = oldest.key() + 1;
                    self.bytes -= oldest.remove().bytes();
                }
                _ => return false,
            }
        }
        let repairs_from = match header.group.cmp(&half.begun.0) {
            Ordering::Less => u8::MAX,
            Ordering::Equal => half.begun.1,
            Ordering::Greater => 0,
        };
        half.groups.insert(header.group, Group::new(header.parity, header.is_slow, repairs_from));
        // One that has come up to where the next begins is whole, though its parity is lost.
        if let Some((first, group)) = half.groups.range_mut(..header.group).next_back()
            && u64::from(group.given()) == header.group - first
        {
            let before = group.bytes();
            group.set_size(group.size());
            self.bytes -= before - group.bytes();
        }
        if let Some(told) = &mut self.fates {
            half.settle(&mut told.fates, self.data);
        }
        true
    }

    /// Counts a message or a repair: bytes kept before and after, and messages given out.
    fn account(&mut self, index: usize, group: u64, before: (usize, u32)) {
        let half = &mut self.halves[index];
        let Some(entry) = half.groups.get(&group) else { return };
        half.given += u64::from(entry.given() - before.1);
        half.sent = (half.sent.0.min(group), half.sent.1.max(group + u64::from(entry.size())));
        self.bytes = self.bytes + entry.bytes() - before.0;
        let mut oldest = self.halves.iter_mut().flat_map(|half| half.groups.values_mut());
        while self.bytes > self.bytes_max
            && let Some(group) = oldest.next()
        {
            self.bytes -= group.bytes();
            if group.bytes() > 0 {
                group.give_up();
            }
        }
    }

    /// Tells the source half what became of groups, now and then, and at once when the pace changes.
    fn tell(&mut self, now: Time, out: &mut Outbox) {
        let Some(told) = &mut self.fates else { return };
        let is_slow = told.pace.is_slow();
        let has_changed = is_slow != told.was_slow;
        let interval = if has_changed { REPORT_INTERVAL_MIN } else { REPORT_INTERVAL };
        if told.at.is_some_and(|at| now.since(at) < interval) || !has_changed && told.fates.is_empty() {
            return;
        }
        let entries = std::mem::take(&mut told.fates).into_iter().take(FATES_MAX);
        let mut report = vec![u8::from(is_slow)];
        report.extend(entries.flat_map(|(fate, groups)| fate.to_bytes(groups)));
        told.at = Some(now);
        told.was_slow = is_slow;
        out.control(report);
    }
}

impl Half {
    /// Says what became of groups that so many followed that nothing more of them is to come.
    fn settle(&mut self, fates: &mut BTreeMap<Fate, u16>, data: u8) {
        let mut count = |fate: Fate| {
            let groups = fates.entry(fate).or_default();
            *groups = groups.saturating_add(1);
        };
        while self.groups.range(self.settled..).nth(SETTLED_AFTER).is_some() {
            let mut open = self.groups.range(self.settled..);
            let (Some((first, group)), Some((next, _))) = (open.next(), open.next()) else { return };
            let span = next - first;
            let fate = group.fate(span.min(data.into()) as u8);
            count(fate);
            // What is missing to the next are whole groups. More lost at once say no more of what would help.
            let missing = span.saturating_sub(fate.size.into());
            let parity = group.parity;
            let gone = Fate {
                size: data,
                lost: data,
                parity,
                parity_lost: parity,
                enough: None,
                is_slow: fate.is_slow,
            };
            (0..missing.div_ceil(data.into()).min(SETTLED_AFTER as u64)).for_each(|_| count(gone));
            self.settled = first + 1;
        }
    }
}

impl Stage for Sink {
    fn handle(
        &mut self,
        port: Port,
        mut message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let header = Header::take(&mut message.body, self.data)?;
        let index = self.half(&header);
        if header.group < self.halves[index].floor || !self.begin(index, &header) {
            self.late += 1;
            // A parity message is none that anybody misses.
            out.drop_counted(LATE, u64::from(matches!(header.part, Part::Data { .. })));
            return Ok(());
        }
        let Some(group) = self.halves[index].groups.get_mut(&header.group) else { return Ok(()) };
        if (group.parity, group.is_slow) != (header.parity, header.is_slow) {
            return Err(StageError::Input("its group has another number of parity messages".into()));
        }
        let before = (group.bytes(), group.given());
        let result = match header.part {
            Part::Data { place, after } => match group.take(place, after, &message) {
                Ok(true) => {
                    if let Some(told) = &mut self.fates {
                        told.pace.see(now.signed_since(message.created));
                    }
                    out.send(port, message);
                    Ok(())
                }
                Ok(false) => {
                    self.twice += 1;
                    out.drop_counted(TWICE, 1);
                    Ok(())
                }
                Err(error) => Err(error),
            },
            Part::Parity { place, data } => {
                group.take_parity(place, data, message, self.bytes_max / GROUPS_HELD)
            }
        };
        let result = result.and_then(|()| {
            let made = group.repair(&mut self.decoder, &mut self.scratch)?;
            self.repaired += made.len() as u64;
            made.into_iter().for_each(|message| out.send(port, message));
            Ok(())
        });
        self.account(index, header.group, before);
        self.tell(now, out);
        result
    }

    fn handle_gap(&mut self, _port: Port, _now: Time, _out: &mut Outbox) -> Result<(), StageError> {
        self.is_made_anew |= self.halves.is_empty();
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, _out: &mut Outbox) -> Result<(), StageError> {
        self.halves.iter_mut().flat_map(|half| half.groups.values_mut()).for_each(Group::give_up);
        self.bytes = 0;
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        let missing: u64 = self.halves.iter().map(Half::missing).sum();
        vec![
            ("repaired", self.repaired as f64),
            ("unrepaired", (self.missing_before + missing) as f64),
            ("twice", self.twice as f64),
            ("late", self.late as f64),
            ("held_bytes", self.bytes as f64),
        ]
    }
}
