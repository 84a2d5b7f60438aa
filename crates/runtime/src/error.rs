//! Why a service could not do what it was asked.

use contract::DeviceError;
use thiserror::Error;

/// Why a service could not do what it was asked: says who erred.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The user asked for something that cannot be.
    #[error("{0}")]
    Usage(String),
    /// A device, or the application's node.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// The other host said no, or broke the protocol.
    #[error("{0}")]
    Peer(String),
    /// The other host cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The system refused.
    #[error("{operation}: {error}")]
    Os {
        /// What was tried.
        operation: String,
        /// What the system said.
        error: std::io::Error,
    },
}

impl RuntimeError {
    /// An error of the system, with what was tried.
    pub fn os(operation: impl Into<String>, error: impl Into<std::io::Error>) -> Self {
        RuntimeError::Os { operation: operation.into(), error: error.into() }
    }
}
