//! The output reports of a device: the last of each number.
//!
//! A report of a known gamepad sets some of its outputs and leaves the others as they are. Its last state is that of all its reports
//! together: a light that is set while a motor runs does not stop the motor.

use super::pads::Pad;
use super::properties::Properties;
use std::collections::BTreeMap;

/// The output reports of a device.
#[derive(Debug)]
pub(super) struct Outputs {
    pad: Option<Pad>,
    last: BTreeMap<u8, Vec<u8>>,
}

impl Outputs {
    pub(super) fn new(properties: &Properties) -> Outputs {
        Outputs { pad: Pad::of(&properties.ids), last: BTreeMap::new() }
    }

    /// Remembers a report, which must not be empty.
    pub(super) fn observe(&mut self, report: &[u8]) {
        let merged = match (self.pad, self.last.get(&report[0])) {
            (Some(pad), Some(last)) => pad.merged(last, report),
            _ => report.to_vec(),
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

    /// Returns the reports that stop the motors. Only known gamepads have any.
    pub(super) fn stops(&self) -> Vec<Vec<u8>> {
        let stop = |pad: Pad| self.last.values().filter_map(move |report| pad.without_rumble(report));
        self.pad.into_iter().flat_map(stop).collect()
    }

    /// Returns true if no motor runs.
    pub(super) fn is_neutral(&self) -> bool {
        self.stops().is_empty()
    }
}
