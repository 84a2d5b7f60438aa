//! The server's handshake with a viewer (RFC 6143, 7.1 to 7.3), without I/O.
//!
//! | phase | waits for | reply | next phase |
//! |---|---|---|---|
//! | `Version` | the version | the security type; version 3.3: as below | `Security`; version 3.3: as below |
//! | `Security` | the chosen type | with a password: the challenge | `Challenge` |
//! | | | without: the result (version 3.8) | `Init` |
//! | `Challenge` | the response | the result | `Init`; an error if the password is wrong |
//! | `Init` | the shared flag | | `Done` |

use super::auth::{CHALLENGE_BYTES, Password};
use super::protocol::{Fault, parse_version, security};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Version,
    Security,
    Challenge,
    Init,
    Done,
}

/// The handshake with one viewer.
#[derive(Debug)]
pub(super) struct Handshake {
    phase: Phase,
    /// The minor version of the protocol: 3, 7 or 8.
    minor: u8,
    password: Option<Password>,
    challenge: [u8; CHALLENGE_BYTES],
}

impl Handshake {
    /// Starts a handshake. `challenge` is random; it is used if there is a password.
    pub(super) fn new(password: Option<Password>, challenge: [u8; CHALLENGE_BYTES]) -> Handshake {
        Handshake { phase: Phase::Version, minor: 8, password, challenge }
    }

    pub(super) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Returns whether the viewer is at the challenge. After an error this means that its password was wrong.
    pub(super) fn is_at_challenge(&self) -> bool {
        self.phase == Phase::Challenge
    }

    /// The only security type that the server offers.
    fn security(&self) -> u8 {
        if self.password.is_some() { security::PASSWORD } else { security::NONE }
    }

    /// Processes the next step. Returns `false` if it is incomplete.
    pub(super) fn step(&mut self, input: &mut &[u8], output: &mut Vec<u8>) -> Result<bool, Fault> {
        match self.phase {
            Phase::Version => {
                let Some((version, rest)) = input.split_first_chunk() else { return Ok(false) };
                self.minor = parse_version(version)?;
                *input = rest;
                if self.minor >= 7 {
                    output.extend([1, self.security()]);
                    self.phase = Phase::Security;
                } else {
                    output.extend(u32::from(self.security()).to_be_bytes());
                    self.begin_security(output);
                }
            }
            Phase::Security => {
                let Some((&kind, rest)) = input.split_first() else { return Ok(false) };
                *input = rest;
                if kind != self.security() {
                    return Err(Fault(format!("it chose security type {kind}, which was not offered")));
                }
                self.begin_security(output);
            }
            Phase::Challenge => {
                let Some((response, rest)) = input.split_first_chunk() else { return Ok(false) };
                *input = rest;
                self.check_response(response, output)?;
                self.phase = Phase::Init;
            }
            Phase::Init => {
                // The shared flag is ignored: all viewers share the screen.
                let Some((_, rest)) = input.split_first() else { return Ok(false) };
                *input = rest;
                self.phase = Phase::Done;
            }
            Phase::Done => return Ok(false),
        }
        Ok(true)
    }

    fn begin_security(&mut self, output: &mut Vec<u8>) {
        if self.password.is_some() {
            output.extend(self.challenge);
            self.phase = Phase::Challenge;
            return;
        }
        if self.minor >= 8 {
            output.extend(0u32.to_be_bytes());
        }
        self.phase = Phase::Init;
    }

    fn check_response(&self, response: &[u8; CHALLENGE_BYTES], output: &mut Vec<u8>) -> Result<(), Fault> {
        if self.password.as_ref().is_some_and(|password| password.verify(&self.challenge, response)) {
            output.extend(0u32.to_be_bytes());
            return Ok(());
        }
        output.extend(1u32.to_be_bytes());
        if self.minor >= 8 {
            let reason = b"the password is wrong";
            output.extend((reason.len() as u32).to_be_bytes());
            output.extend(reason);
        }
        Err(Fault::new("it sent a wrong password"))
    }
}
