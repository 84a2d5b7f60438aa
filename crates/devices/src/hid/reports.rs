//! The input reports of a device: the last and the first of each number, and the reports that make it neutral.

use super::descriptor::Descriptor;
use super::pads::Pad;
use super::properties::Properties;
use std::collections::BTreeMap;

/// A report that both sides have seen.
#[derive(Debug)]
struct Seen {
    /// The first that the device has sent. An axis rests near its value.
    first: Vec<u8>,
    last: Vec<u8>,
}

/// The input reports of a device.
#[derive(Debug)]
pub(super) struct Inputs {
    descriptor: Descriptor,
    pad: Option<Pad>,
    seen: BTreeMap<u8, Seen>,
}

impl Inputs {
    pub(super) fn new(properties: &Properties, descriptor: Descriptor) -> Inputs {
        Inputs { descriptor, pad: Pad::of(&properties.ids), seen: BTreeMap::new() }
    }

    pub(super) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Remembers a report of the device. Returns false for one that the device does not have.
    pub(super) fn observe(&mut self, report: &[u8]) -> bool {
        let Some(number) = self.descriptor.number_of(report) else { return false };
        match self.seen.get_mut(&number) {
            Some(seen) => {
                seen.last.clear();
                seen.last.extend(report);
            }
            None => _ = self.seen.insert(number, Seen { first: report.into(), last: report.into() }),
        }
        true
    }

    /// Returns the last report of each number, without distances.
    pub(super) fn snapshot(&self) -> Vec<Vec<u8>> {
        let stopped = |(number, seen): (&u8, &Seen)| {
            let mut report = seen.last.clone();
            self.descriptor.stop(*number, &mut report);
            report
        };
        self.seen.iter().map(stopped).collect()
    }

    /// Returns the neutral report of a number. `None` if it has no neutral state, or one that only a first report tells.
    fn released(&self, number: u8) -> Option<Vec<u8>> {
        let Some(seen) = self.seen.get(&number) else { return self.descriptor.blank(number) };
        let mut report = seen.last.clone();
        if !self.pad.is_some_and(|pad| pad.release(&mut report, &seen.first)) {
            self.descriptor.release(number, &mut report, Some(&seen.first));
        }
        Some(report)
    }

    /// Returns the numbers of the reports that the device has sent.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u8> {
        self.seen.keys().copied()
    }

    /// Makes all reports neutral, apart from those whose number is in `except`. Returns those that change, or whose last value is
    /// unknown.
    pub(super) fn release(&mut self, except: &[u8]) -> Vec<Vec<u8>> {
        let mut numbers: Vec<u8> =
            self.seen.keys().copied().chain(self.descriptor.inputs_with_state()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut changed = Vec::new();
        for number in numbers.into_iter().filter(|number| !except.contains(number)) {
            let Some(report) = self.released(number) else { continue };
            match self.seen.get_mut(&number) {
                Some(seen) if seen.last == report => {}
                Some(seen) => {
                    seen.last.clone_from(&report);
                    changed.push(report);
                }
                None => changed.push(report),
            }
        }
        changed
    }

    /// Takes over the reports of a snapshot. Returns the reports that lead from the present state to it: a report that is not in it is
    /// neutral.
    pub(super) fn move_to(&mut self, snapshot: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let numbers: Vec<u8> =
            snapshot.iter().filter_map(|report| self.descriptor.number_of(report)).collect();
        let mut changed = self.release(&numbers);
        for report in snapshot {
            let number = self.descriptor.number_of(&report);
            let is_new =
                number.is_some_and(|number| self.seen.get(&number).is_none_or(|seen| seen.last != report));
            if is_new && self.observe(&report) {
                changed.push(report);
            }
        }
        changed
    }

    /// Returns true if nothing is held.
    pub(super) fn is_neutral(&self) -> bool {
        self.seen.iter().all(|(number, seen)| {
            let known = self.pad.and_then(|pad| pad.is_neutral(&seen.last, &seen.first));
            known.unwrap_or_else(|| self.descriptor.is_neutral(*number, &seen.last, Some(&seen.first)))
        })
    }
}
