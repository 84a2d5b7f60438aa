//! Progress of a sink's partner: accepted outputs, and an output that it wrote in part.
//!
//! A part concerns the next output, or an abandoned one:
//!
//! | event | word `PROGRESS` | word `ABANDONED` |
//! |---|---|---|
//! | the partner wrote a part of the output that it accepted last | outputs before it, the part | |
//! | the source does not repeat the output of a killed worker's part | outputs | the part |
//! | the ticket advanced past the output, and the worker is killed | outputs of the ticket | the part |
//! | the partner was told, and continues the part with the next output | outputs, the part | none |

use super::{ABANDONED, PARTIAL_BITS, PROGRESS, RecoveryLog};

impl RecoveryLog {
    /// Notes that a push to the partner or a flush starts.
    pub fn begin_push(&self) {
        self.store(PROGRESS, self.load(PROGRESS) | 1);
    }

    /// Abandons the part of a killed worker's output, since the source does not repeat that output.
    pub fn abandon_partial(&self, bytes: u64) {
        self.store(ABANDONED, bytes);
        self.store(PROGRESS, self.pushed << PARTIAL_BITS);
    }

    /// Returns the bytes of an abandoned part, until the partner was told.
    pub fn abandoned(&self) -> Option<u64> {
        Some(self.load(ABANDONED)).filter(|bytes| *bytes > 0)
    }

    /// Notes that the partner was told of the abandoned part. `is_continued`: it continues the part with the next output.
    pub fn end_abandoned(&self, is_continued: bool) {
        if is_continued {
            self.store(PROGRESS, self.pushed << PARTIAL_BITS | self.load(ABANDONED) << 1);
        }
        self.store(ABANDONED, 0);
    }

    /// Forgets all parts, since the partner is a different one.
    pub fn forget_partial(&self) {
        self.store(ABANDONED, 0);
        self.store(PROGRESS, self.pushed << PARTIAL_BITS);
    }

    /// Returns whether a push has started without a call of [`RecoveryLog::end_push`].
    pub fn is_pushing(&self) -> bool {
        self.load(PROGRESS) & 1 == 1
    }

    /// Notes that the partner has written everything it accepted. Returns whether that is more than before; then a new
    /// ticket is needed.
    #[must_use]
    pub fn settle(&mut self) -> bool {
        std::mem::replace(&mut self.settled, self.pushed) != self.pushed
    }

    /// Resets the checkpoint for new stages. The ticket's position moves to the current output, except for the last
    /// `repeated` outputs, which the stages emit again.
    pub fn begin_epoch(&mut self, repeated: u64) {
        self.settled = self.pushed.saturating_sub(repeated);
        self.checkpoint.1 = 0;
    }

    /// Notes that a flush is complete, while the rest of a partial output has not come again.
    pub fn end_flush(&self) {
        self.store(PROGRESS, self.load(PROGRESS) & !1);
    }

    /// Notes that the partner accepted `count` more outputs. `partial_bytes`: bytes written of an incomplete
    /// one.
    pub fn end_push(&mut self, count: u64, partial_bytes: Option<u64>) {
        self.pushed += count;
        let complete = self.pushed.saturating_sub(partial_bytes.is_some().into());
        self.store(PROGRESS, complete << PARTIAL_BITS | partial_bytes.unwrap_or(0) << 1);
    }
}
