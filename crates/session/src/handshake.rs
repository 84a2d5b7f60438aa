//! The handshake of a session on the application host: it sends `Hello` and expects `Welcome` or `Goodbye`.
//!
//! ```text
//!  application host                 device host
//!    Hello { resume, received } ──►
//!                               ◄── Welcome { session, resumed, received } or Goodbye { reason }
//! ```
//!
//! Both messages list the features of their sender ([`crate::features`]).
//!
//! A session resumes only if the application host asked for that session and the device host still has it.

use crate::features::{self, MissingFeature};
use contract::Role;
use thiserror::Error;
use wire::Control;
use wire::preamble::SessionToken;

/// The content of a `Welcome`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcomed {
    /// Name of the device host, for users.
    pub host: String,
    /// The session's token.
    pub session: SessionToken,
    /// True if an earlier session resumes.
    pub resumed: bool,
    /// The number of that session's numbered messages that the device host has received.
    pub received: u64,
}

/// The session could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The device host refused.
    #[error("the other host refused: {0}")]
    Refused(String),
    /// The device host sent another message first.
    #[error("the other host broke the protocol: it sent {0} before `Welcome`")]
    OutOfTurn(String),
    /// The device host needs a feature that this program does not have.
    #[error("{0}")]
    Feature(#[from] MissingFeature),
}

/// A handshake, on the application host.
#[derive(Debug, Clone)]
pub struct Handshake {
    host: String,
    resume: Option<SessionToken>,
    received: u64,
    attempt: u32,
}

impl Handshake {
    /// Starts a handshake as `host`. `resume` names the earlier session, if any, and `received` is its count of
    /// received numbered messages. `attempt` numbers the connections of the application host.
    pub fn new(host: impl Into<String>, resume: Option<SessionToken>, received: u64, attempt: u32) -> Self {
        Handshake { host: host.into(), resume, received, attempt }
    }

    /// The first message to send.
    pub fn hello(&self) -> Control {
        Control::Hello {
            host: self.host.clone(),
            resume: self.resume,
            received: self.received,
            attempt: self.attempt,
            features: features::offered(),
        }
    }

    /// Handles the first reply.
    pub fn handle(&self, answer: Control) -> Result<Welcomed, HandshakeError> {
        match answer {
            Control::Welcome { host, session, resumed, received, features } => {
                features::check(&features, Role::Application)?;
                let resumed = resumed && Some(session) == self.resume;
                Ok(Welcomed { host, session, resumed, received })
            }
            Control::Goodbye { reason } => Err(HandshakeError::Refused(reason)),
            other => {
                let text = format!("{other:?}");
                let name = text.split([' ', '{', '(']).next().unwrap_or_default();
                Err(HandshakeError::OutOfTurn(format!("`{name}`")))
            }
        }
    }
}
