//! The output reports of a device: the last of each number.
//!
//! A report of a DualSense sets some of its outputs and leaves the others as they are. Its last state is that of all its reports
//! together: a light that is set while a motor runs does not stop the motor.

use super::dualsense;
use super::properties::Properties;
use std::collections::BTreeMap;

/// The output reports of a device.
#[derive(Debug)]
pub(super) struct Outputs {
    is_dualsense: bool,
    last: BTreeMap<u8, Vec<u8>>,
}

impl Outputs {
    pub(super) fn new(properties: &Properties) -> Outputs {
        Outputs { is_dualsense: dualsense::is(&properties.ids), last: BTreeMap::new() }
    }

    /// Remembers a report, which must not be empty.
    pub(super) fn observe(&mut self, report: &[u8]) {
        let merged = match self.last.get(&report[0]).filter(|_| self.is_dualsense) {
            Some(last) => dualsense::merged(last, report),
            None => report.to_vec(),
        };
        self.last.insert(report[0], merged);
    }

    /// Returns true if a report sets nothing that is not set already.
    pub(super) fn has(&self, report: &[u8]) -> bool {
        report.first().and_then(|number| self.last.get(number)).is_some_and(|last| last == report)
    }

    /// Returns the reports that set all outputs.
    pub(super) fn snapshot(&self) -> Vec<Vec<u8>> {
        self.last.values().cloned().collect()
    }

    /// Returns the reports that stop the motors. Only a DualSense has reports that are known.
    pub(super) fn stops(&self) -> Vec<Vec<u8>> {
        let rumbling =
            self.last.values().filter(|report| self.is_dualsense && dualsense::is_rumbling(report));
        rumbling.map(|report| dualsense::without_rumble(report)).collect()
    }

    /// Returns true if no motor runs.
    pub(super) fn is_neutral(&self) -> bool {
        self.stops().is_empty()
    }
}
