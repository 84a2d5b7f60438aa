//! Gamepads whose reports are known beyond their report descriptors, by vendor and product.

use super::properties::Ids;
use super::{dualsense, dualshock, switch};

/// A gamepad whose reports are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pad {
    DualSense,
    DualShock4,
    Switch,
}

const SONY: u32 = 0x54c;
const NINTENDO: u32 = 0x57e;

impl Pad {
    /// Returns the gamepad with these ids, if it is known.
    pub(super) fn of(ids: &Ids) -> Option<Pad> {
        match (ids.vendor, ids.product) {
            (SONY, 0xce6 | 0xdf2) => Some(Pad::DualSense),
            // Both models, and the adapter for USB.
            (SONY, 0x5c4 | 0x9cc | 0xba0) => Some(Pad::DualShock4),
            // Left and right Joy-Con, Pro Controller, charging grip; those for games of the SNES, the Nintendo 64 and the Mega Drive.
            (NINTENDO, 0x2006 | 0x2007 | 0x2009 | 0x200e | 0x2017 | 0x2019 | 0x201e) => Some(Pad::Switch),
            _ => None,
        }
    }

    /// Makes an input report neutral. `first` is the first of its number. Returns false for a report whose parts the descriptor tells.
    pub(super) fn release(self, report: &mut [u8], first: &[u8]) -> bool {
        match self {
            Pad::DualSense => dualsense::release(report),
            Pad::DualShock4 => dualshock::release(report),
            Pad::Switch => switch::release(report, first),
        }
    }

    /// Returns true if an input report is neutral. `None` for a report whose parts the descriptor tells.
    pub(super) fn is_neutral(self, report: &[u8], first: &[u8]) -> Option<bool> {
        match self {
            Pad::DualSense => dualsense::is_neutral(report),
            Pad::DualShock4 => dualshock::is_neutral(report),
            Pad::Switch => switch::is_neutral(report, first),
        }
    }

    /// Returns the output report that sets all that the last ones and this one set.
    pub(super) fn merged(self, last: &[u8], report: &[u8]) -> Vec<u8> {
        match self {
            Pad::DualSense => dualsense::merged(last, report),
            Pad::DualShock4 => dualshock::merged(last, report),
            Pad::Switch => report.to_vec(),
        }
    }

    /// Returns the output report that stops the motors after this one. `None` if none runs, or if they stop without further reports,
    /// as those of a Switch do.
    pub(super) fn without_rumble(self, report: &[u8]) -> Option<Vec<u8>> {
        match self {
            Pad::DualSense => dualsense::is_rumbling(report).then(|| dualsense::without_rumble(report)),
            Pad::DualShock4 => dualshock::without_rumble(report),
            Pad::Switch => None,
        }
    }
}
