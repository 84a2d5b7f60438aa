//! The opening of a session, the attacher's side: `Hello`, then `Welcome` or `Goodbye`.

use thiserror::Error;
use wire::Control;
use wire::preamble::SessionToken;

/// What a `Welcome` said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcomed {
    /// Name of the sharer, for people.
    pub host: String,
    /// The session.
    pub session: SessionToken,
    /// Whether an earlier session goes on.
    pub resumed: bool,
    /// Numbered messages of that session that came to the sharer.
    pub received: u64,
}

/// The session did not open.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The sharer said no.
    #[error("the other host refused: {0}")]
    Refused(String),
    /// The sharer said something else first.
    #[error("the other host broke the protocol: it said {0} before `Welcome`")]
    OutOfTurn(String),
}

/// The attacher's side of an opening.
#[derive(Debug, Clone)]
pub struct Handshake {
    host: String,
    resume: Option<SessionToken>,
    received: u64,
    attempt: u32,
}

impl Handshake {
    /// Opens as `host`, resuming a session if there was one, of which `received` numbered messages came. This is
    /// the attacher's connection number `attempt`.
    pub fn new(host: impl Into<String>, resume: Option<SessionToken>, received: u64, attempt: u32) -> Self {
        Handshake { host: host.into(), resume, received, attempt }
    }

    /// What to say first.
    pub fn hello(&self) -> Control {
        Control::Hello {
            host: self.host.clone(),
            resume: self.resume,
            received: self.received,
            attempt: self.attempt,
        }
    }

    /// The first answer.
    pub fn handle(&self, answer: Control) -> Result<Welcomed, HandshakeError> {
        match answer {
            Control::Welcome { host, session, resumed, received } => {
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
