//! Cells of the table and their results.

use super::count::Tally;
use super::fault::Fault;
use super::hosts::{Host, Reported};
use super::subject::{Class, Ended, Subject};
use std::thread;
use std::time::{Duration, Instant};

/// The undisturbed flow before the fault and after the recovery.
pub(super) const CALM: Duration = Duration::from_secs(2);
/// The longest wait for recovery.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// One fault with one class of devices and one transport.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) class: Class,
    pub(super) fault: Fault,
    pub(super) transport: String,
}

/// The result of a cell.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    /// The fault is impossible, with the reason.
    Impossible(&'static str),
    /// The measurement failed, with the reason.
    Failed(String),
    /// The measurement.
    Seen(Seen),
}

#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) ended: Ended,
    /// The time from the end of the cause until a unit created since had arrived in each direction.
    pub(super) recovery: Option<Duration>,
    pub(super) reported: Reported,
}

impl Seen {
    /// Returns true if the kernel reported losses without a count.
    pub(super) fn is_unnumbered(&self) -> bool {
        self.reported.is_unnumbered || self.ended.overruns > 0
    }

    /// Returns true if the result is as promised: no unit is lost without a report, repeated or torn, and the flow
    /// recovers within a second.
    pub(super) fn holds(&self, cell: &Cell) -> bool {
        let Ended { tally, stuck, node_losses, .. } = self.ended;
        let is_reported = tally.lost <= self.reported.dropped() || self.is_unnumbered();
        let is_right = match (cell.fault.loses_the_store(), cell.class.is_state()) {
            // Repeated units are reported as uncertain.
            (true, _) => tally.disordered == 0 && (tally.repeated == 0 || self.reported.dropped() > 0),
            (false, true) => is_reported && Tally { lost: 0, ..tally }.is_exact(),
            // A timely flow drops late pictures, and no host can count the pictures that a camera does not take.
            (false, false) if cell.class == Class::Camera => Tally { lost: 0, ..tally }.is_exact(),
            (false, false) if cell.fault == Fault::KillWorkers(Host::Device) => {
                // Units that a worker had read were not in the store yet.
                is_reported && Tally { lost: 0, ..tally }.is_exact()
            }
            (false, false) => tally.is_exact(),
        };
        let node_stays = cell.fault == Fault::Kill(Host::Application) || node_losses == 0;
        is_right
            && node_stays
            && stuck == 0
            && self.reported.alive
            && self.recovery.is_some_and(|recovery| recovery <= Duration::from_secs(1))
    }
}

/// Waits until a unit created after `since` has arrived in each direction.
pub(super) fn wait_for(subject: &Subject, since: Instant) -> Option<Instant> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(came) = subject.made_after_came(since) {
            return Some(came);
        }
        thread::sleep(Duration::from_millis(2));
    }
    None
}
