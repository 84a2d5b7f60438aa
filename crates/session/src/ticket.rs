//! What can be wrong with a ticket. Whoever kept it may have kept it badly.

use thiserror::Error;

/// Why a flow cannot go on from a ticket: it begins anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TicketError {
    /// Its epochs are in no order that a flow has.
    #[error("the ticket's epochs contradict each other")]
    Epochs,
    /// A record kept beside it is damaged, of another flow, over a limit, or does not follow the one before.
    #[error("the records kept beside the ticket are not those that it speaks of")]
    Record,
}
