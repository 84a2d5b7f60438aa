//! Errors of a service, by cause.

use crate::{DeviceError, KindChange};
use std::collections::BTreeMap;
use thiserror::Error;

/// A service failed. The variant tells the cause.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The user's request is invalid.
    #[error("{0}")]
    Usage(String),
    /// A device, or the application's node, failed.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// The other host refused or broke the protocol.
    #[error("{0}")]
    Peer(String),
    /// The other host cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// A peer answers at an address that is not on record for it.
    #[error(
        "{address}: `{peer}` answers there, fingerprint {fingerprint}, but this address is not on record for it: if it is \
         the right host, write {peer}@{address}"
    )]
    UnrecordedPlace {
        /// The address, `HOST:PORT`.
        address: String,
        /// The peer's name.
        peer: String,
        /// The start of its key.
        fingerprint: String,
    },
    /// A device has another kind than before.
    #[error("{0}")]
    Kind(#[from] Box<KindChange>),
    /// The service has ended, but a reliable flow lost messages; the text names their number and the reasons.
    #[error("{0}")]
    Lost(String),
    /// A system call failed.
    #[error("{operation}: {error}")]
    Os {
        /// The operation and its object.
        operation: String,
        /// The system's error.
        error: std::io::Error,
    },
}

impl ServiceError {
    /// Makes a system error with its operation.
    pub fn os(operation: impl Into<String>, error: impl Into<std::io::Error>) -> Self {
        ServiceError::Os { operation: operation.into(), error: error.into() }
    }

    /// Returns [`ServiceError::Lost`] unless `losses`, the lost messages by reason, is empty.
    pub fn check_losses(losses: &BTreeMap<String, u64>) -> Result<(), ServiceError> {
        let total = losses.values().fold(0, |sum: u64, count| sum.saturating_add(*count));
        if total == 0 {
            return Ok(());
        }
        let reasons: Vec<String> =
            losses.iter().map(|(reason, count)| format!("{count} ({reason})")).collect();
        let are = if total == 1 { "message was" } else { "messages were" };
        Err(ServiceError::Lost(format!("{total} {are} lost: {}", reasons.join(", "))))
    }
}
