//! Transports: network modules. A transport is a partner whose messages are whole records.

use crate::{OptionSpec, Options, Partner, PartnerError, Secret};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// What a transport does not promise; the session makes up for it where the flow needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramFacts {
    /// Whether records may be lost.
    pub may_lose: bool,
    /// Whether records may overtake each other.
    pub may_reorder: bool,
}

/// What seals one data connection: a key a direction, which no other connection has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealKeys {
    /// Of what this side sends.
    pub sending: Secret,
    /// Of what this side receives.
    pub receiving: Secret,
}

/// Who made a data connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// This host did: the attacher.
    Dialled,
    /// The other host did.
    Accepted,
}

/// A kind of transport: one row in the table of `transports`.
///
/// Its messages are records: `wire::RecordHeader` at the front of the body, whole, `created` unused. The
/// broker makes the socket and says the preamble on it; the partner drives a connected socket.
pub trait TransportClass: Sync {
    /// Its name before `://`.
    fn name(&self) -> &'static str;

    /// One line.
    fn summary(&self) -> &'static str;

    /// The whole documentation, Markdown.
    fn doc(&self) -> &'static str;

    /// Its options.
    fn options(&self) -> &'static [OptionSpec];

    /// What it does not promise to flows that must not lose.
    fn facts(&self) -> DatagramFacts;

    /// Whether its socket carries datagrams: the preamble may then be lost, and is said until it is answered.
    fn is_datagram(&self) -> bool;

    /// A socket towards `peer`, not yet introduced; connecting goes on in the background.
    fn dial(&self, peer: SocketAddr, options: &Options) -> Result<OwnedFd, PartnerError>;

    /// The partner that moves records over a connected socket whose preamble has been said; sealed with these
    /// keys, or bare without any.
    fn partner(
        &self,
        socket: OwnedFd,
        end: End,
        options: &Options,
        keys: Option<&SealKeys>,
    ) -> Result<Box<dyn Partner>, PartnerError>;
}
