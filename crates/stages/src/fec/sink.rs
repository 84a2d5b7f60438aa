//! The half that delivers messages at once and recovers lost ones.
//!
//! State is kept for each source half, because messages of a restarted one may arrive behind those
//! of its successor. With `parity=auto`, the sink reports the outcome of each group that
//! [`SETTLED_GROUPS`] others follow, and every change of [`Pace`].

use super::GROUP_BYTES_MAX;
use super::group::Group;
use super::header::{Header, Part};
use super::outcome::Outcome;
use super::pace::Pace;
use crate::HELD_BYTES_MAX;
use contract::{Message, Options, Outbox, Port, Report, Stage, StageError, StageResult, Time};
use reed_solomon_simd::ReedSolomonDecoder;
use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const DUPLICATE: &str = "duplicate, or already recovered";
const FORGOTTEN: &str = "later than its group is remembered";
/// Most groups remembered per source half.
const GROUPS_MAX: usize = 256;
/// Most source halves remembered.
const SOURCES_MAX: usize = 4;
/// Groups that must follow a group before its missing messages count as lost.
const SETTLED_GROUPS: usize = 8;
/// Most different outcomes in a report.
const REPORT_ENTRIES_MAX: usize = 128;
/// Interval between two reports, and the shortest interval if the pace changes.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);
const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(20);

/// The groups of one source half.
struct SourceHalf {
    id: u32,
    /// Groups by the number of their first message.
    groups: BTreeMap<u64, Group>,
    /// Group and index of the first message received. A restarted sink half cannot know which
    /// earlier messages its predecessor delivered, so it recovers none of them.
    first_seen: (u64, u8),
    /// Groups below this number are forgotten.
    floor: u64,
    /// Outcomes of the groups before this are reported.
    settled_before: u64,
    /// Range of message numbers known to have been sent.
    sent: (u64, u64),
    delivered: u64,
}

pub(super) struct Sink {
    data: u8,
    sources: VecDeque<SourceHalf>,
    decoder: Option<ReedSolomonDecoder>,
    scratch: Vec<u8>,
    /// Bytes stored by all groups.
    bytes: usize,
    /// The next report; `None` unless `parity=auto`.
    outcomes: Option<PendingReport>,
    repaired: u64,
    duplicates: u64,
    late: u64,
    /// Missing messages of forgotten source halves.
    missing_of_forgotten: u64,
    /// True if messages were sent before this half started.
    has_restarted: bool,
}

/// The next report to the source half.
#[derive(Default)]
struct PendingReport {
    /// Number of groups by outcome, since the last report.
    outcomes: BTreeMap<Outcome, u16>,
    /// Time of the last report.
    at: Option<Time>,
    pace: Pace,
    /// The pace in the last report.
    reported_slow: bool,
}

impl SourceHalf {
    fn missing(&self) -> u64 {
        (self.sent.1 - self.sent.0).saturating_sub(self.delivered)
    }

    fn bytes(&self) -> usize {
        self.groups.values().map(Group::bytes).sum()
    }
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        Sink {
            // The range of the option fits.
            data: u8::try_from(options.integer("data")).unwrap_or(u8::MAX),
            sources: VecDeque::new(),
            decoder: None,
            scratch: Vec::new(),
            bytes: 0,
            outcomes: options.is_auto("parity").then(PendingReport::default),
            repaired: 0,
            duplicates: 0,
            late: 0,
            missing_of_forgotten: 0,
            has_restarted: false,
        }
    }

    /// Index of a source half; adds it if it is new.
    fn source_index(&mut self, header: &Header) -> usize {
        let Header { source_id: id, group, .. } = *header;
        if let Some(known) = self.sources.iter().rposition(|source| source.id == id) {
            return known;
        }
        if self.sources.len() == SOURCES_MAX
            && let Some(forgotten) = self.sources.pop_front()
        {
            self.missing_of_forgotten += forgotten.missing();
            self.bytes -= forgotten.bytes();
        }
        let first_seen = match header.part {
            // Nothing was sent before the first group.
            _ if group == 0 && !self.has_restarted => (0, 0),
            Part::Data { index, .. } => (group, index),
            Part::Parity { .. } => (group + 1, 0),
        };
        let (groups, sent) = (BTreeMap::new(), (group, group));
        self.sources.push_back(SourceHalf {
            id,
            groups,
            first_seen,
            floor: 0,
            settled_before: 0,
            sent,
            delivered: 0,
        });
        self.sources.len() - 1
    }

    /// Opens a group; `false` if it is too old to be remembered.
    fn open_group(&mut self, source_index: usize, header: &Header) -> bool {
        let source = &mut self.sources[source_index];
        if source.groups.contains_key(&header.group) {
            return true;
        }
        if source.groups.len() == GROUPS_MAX {
            match source.groups.first_entry() {
                Some(oldest) if *oldest.key() < header.group => {
                    source.floor = oldest.key() + 1;
                    self.bytes -= oldest.remove().bytes();
                }
                _ => return false,
            }
        }
        let first_recoverable = match header.group.cmp(&source.first_seen.0) {
            Ordering::Less => u8::MAX,
            Ordering::Equal => source.first_seen.1,
            Ordering::Greater => 0,
        };
        source.groups.insert(header.group, Group::new(header.parity, header.is_slow, first_recoverable));
        // The previous group is complete if its messages reach the new group, even if its parity is
        // lost.
        if let Some((first, group)) = source.groups.range_mut(..header.group).next_back()
            && u64::from(group.delivered()) == header.group - first
        {
            let before = group.bytes();
            group.set_size(group.size());
            self.bytes -= before - group.bytes();
        }
        if let Some(pending) = &mut self.outcomes {
            source.collect_settled(&mut pending.outcomes, self.data);
        }
        true
    }

    /// Updates the totals after a change of a group; `before` holds its stored bytes and delivered
    /// messages before the change. Over the bound of bytes, abandons the oldest groups.
    fn account(&mut self, source_index: usize, group: u64, before: (usize, u32)) {
        let source = &mut self.sources[source_index];
        let Some(entry) = source.groups.get(&group) else { return };
        source.delivered += u64::from(entry.delivered() - before.1);
        source.sent = (source.sent.0.min(group), source.sent.1.max(group + u64::from(entry.size())));
        self.bytes = self.bytes + entry.bytes() - before.0;
        let mut oldest = self.sources.iter_mut().flat_map(|source| source.groups.values_mut());
        while self.bytes > HELD_BYTES_MAX
            && let Some(group) = oldest.next()
        {
            self.bytes -= group.bytes();
            if group.bytes() > 0 {
                group.abandon();
            }
        }
    }

    /// Sends a report to the source half: regularly, and soon after a change of the pace.
    fn send_report(&mut self, now: Time, out: &mut Outbox) {
        let Some(pending) = &mut self.outcomes else { return };
        let is_slow = pending.pace.is_slow();
        let has_changed = is_slow != pending.reported_slow;
        let interval = if has_changed { REPORT_INTERVAL_MIN } else { REPORT_INTERVAL };
        if pending.at.is_some_and(|at| now.since(at) < interval)
            || !has_changed && pending.outcomes.is_empty()
        {
            return;
        }
        let entries = std::mem::take(&mut pending.outcomes).into_iter().take(REPORT_ENTRIES_MAX);
        let mut report = vec![u8::from(is_slow)];
        report.extend(entries.flat_map(|(outcome, groups)| outcome.to_bytes(groups)));
        pending.at = Some(now);
        pending.reported_slow = is_slow;
        out.control(report);
    }
}

impl SourceHalf {
    /// Adds the outcomes of settled groups to the next report.
    fn collect_settled(&mut self, outcomes: &mut BTreeMap<Outcome, u16>, data: u8) {
        let mut count = |outcome: Outcome| {
            let groups = outcomes.entry(outcome).or_default();
            *groups = groups.saturating_add(1);
        };
        while self.groups.range(self.settled_before..).nth(SETTLED_GROUPS).is_some() {
            let mut unsettled = self.groups.range(self.settled_before..);
            let (Some((first, group)), Some((next, _))) = (unsettled.next(), unsettled.next()) else {
                return;
            };
            let span = next - first;
            let outcome = group.outcome(span.min(data.into()) as u8);
            count(outcome);
            // Numbers missing up to the next group belong to groups lost as a whole. More of them
            // at once would not change the choice.
            let missing = span.saturating_sub(outcome.size.into());
            let parity = group.parity;
            let all_lost = Outcome {
                size: data,
                lost: data,
                parity,
                parity_lost: parity,
                parity_needed: None,
                is_slow: outcome.is_slow,
            };
            (0..missing.div_ceil(data.into()).min(SETTLED_GROUPS as u64)).for_each(|_| count(all_lost));
            self.settled_before = first + 1;
        }
    }
}

impl Stage for Sink {
    fn handle(&mut self, port: Port, mut message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let header = Header::take(&mut message.body, self.data)?;
        let source_index = self.source_index(&header);
        if header.group < self.sources[source_index].floor || !self.open_group(source_index, &header) {
            self.late += 1;
            // A late parity message is no loss.
            out.drop_counted(FORGOTTEN, u64::from(matches!(header.part, Part::Data { .. })));
            return Ok(());
        }
        let Some(group) = self.sources[source_index].groups.get_mut(&header.group) else { return Ok(()) };
        if (group.parity, group.is_slow) != (header.parity, header.is_slow) {
            return Err(StageError::Input("its group has a different number of parity messages".into()));
        }
        let before = (group.bytes(), group.delivered());
        let result = match header.part {
            Part::Data { index, created_after } => match group.add(index, created_after, &message) {
                Ok(true) => {
                    if let Some(pending) = &mut self.outcomes {
                        pending.pace.add(now.signed_since(message.created));
                    }
                    out.send(port, message);
                    Ok(())
                }
                Ok(false) => {
                    self.duplicates += 1;
                    out.drop_counted(DUPLICATE, 1);
                    Ok(())
                }
                Err(error) => Err(error),
            },
            Part::Parity { index, data } => group.add_parity(index, data, message, GROUP_BYTES_MAX),
        };
        let result = result.and_then(|()| {
            let recovered = group.recover(&mut self.decoder, &mut self.scratch)?;
            self.repaired += recovered.len() as u64;
            recovered.into_iter().for_each(|message| out.send(port, message));
            Ok(())
        });
        self.account(source_index, header.group, before);
        self.send_report(now, out);
        result
    }

    fn handle_gap(&mut self, _port: Port, _now: Time, _out: &mut Outbox) -> StageResult {
        self.has_restarted |= self.sources.is_empty();
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, _out: &mut Outbox) -> StageResult {
        self.sources.iter_mut().flat_map(|source| source.groups.values_mut()).for_each(Group::abandon);
        self.bytes = 0;
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        let missing: u64 = self.sources.iter().map(SourceHalf::missing).sum();
        vec![
            ("repaired", self.repaired as f64),
            ("unrepaired", (self.missing_of_forgotten + missing) as f64),
            ("duplicates", self.duplicates as f64),
            ("late", self.late as f64),
            ("held_bytes", self.bytes as f64),
        ]
    }
}
