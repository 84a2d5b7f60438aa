//! Errors in tickets. A ticket comes from outside of this process, so it may be damaged.

use thiserror::Error;

/// A flow cannot resume from its ticket; it must start from the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TicketError {
    /// The epochs contradict each other.
    #[error("the ticket's epochs contradict each other")]
    Epochs,
    /// A retained record is damaged, belongs to another flow, exceeds a limit, or does not follow the record
    /// before it.
    #[error("the records stored with the ticket do not match it")]
    Record,
}
