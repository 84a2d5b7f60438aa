//! The end of a flow at its sink.
//!
//! | progress | event | next progress | action |
//! |---|---|---|---|
//! | any | `End` | the same | note the position of the end |
//! | any | an epoch after that of the end begins | the same | forget the end: the source sends `End` again |
//! | `Receiving` | everything before the end is delivered, the stages are empty | `Drained` | |
//! | `Receiving`, not reliable | the end is late, the stages are empty | `Drained` | |
//! | `Drained` | the partner has accepted all output and finished it | `Finished` | acknowledge, report the end |

use contract::Time;
use std::time::Duration;

/// Time that an ended flow waits for late records, unless it is reliable.
pub(super) const LATE_WAIT: Duration = Duration::from_millis(500);

/// The end of the source's records.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlowEnd {
    pub(super) epoch: u32,
    /// One past the last sequence.
    pub(super) sequence: u64,
    /// Time from which missing records are lost, unless the flow is reliable.
    pub(super) late_at: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Progress {
    /// Messages may still come out of the stages.
    #[default]
    Receiving,
    /// The stages are empty.
    Drained,
    /// The partner has finished.
    Finished,
}

/// Progress of a flow towards its end.
#[derive(Debug, Default)]
pub(super) struct Lifecycle {
    end: Option<FlowEnd>,
    progress: Progress,
}

impl Lifecycle {
    /// Handles `End`.
    pub(super) fn handle_end(&mut self, epoch: u32, sequence: u64, now: Time) {
        self.end = Some(FlowEnd { epoch, sequence, late_at: now.after(LATE_WAIT) });
    }

    /// Handles the start of an epoch.
    pub(super) fn handle_epoch(&mut self, epoch: u32) {
        self.end = self.end.filter(|end| end.epoch >= epoch);
    }

    /// Handles that the stages are empty.
    pub(super) fn handle_drained(&mut self) {
        self.progress = Progress::Drained;
    }

    /// Handles that the partner has finished.
    pub(super) fn handle_finished(&mut self) {
        self.progress = Progress::Finished;
    }

    /// Returns the end of the flow, if it is known and the flow has not finished.
    pub(super) fn pending_end(&self) -> Option<FlowEnd> {
        self.end.filter(|_| self.progress != Progress::Finished)
    }

    /// Returns whether the stages are still in use.
    pub(super) fn is_receiving(&self) -> bool {
        self.progress == Progress::Receiving
    }

    /// Returns whether the partner has yet to finish after the last output of the stages.
    pub(super) fn is_finishing(&self) -> bool {
        self.progress == Progress::Drained
    }
}
