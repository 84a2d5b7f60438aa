//! Transports: network modules. A transport is a partner whose messages are whole records.

use crate::{ModuleEntry, OptionSpec, Options, Partner, PartnerResult, Secret};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};

/// The keys that encrypt one data connection: one for each direction, never used for another connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealKeys {
    /// Encrypts the records that this side sends.
    pub sending: Secret,
    /// Decrypts the records that this side receives.
    pub receiving: Secret,
}

/// The side that opened a data connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// This host, the application host.
    Dialled,
    /// The other host.
    Accepted,
}

/// The connection that a program makes between two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meeting<'a> {
    /// The side of this host.
    pub end: End,
    /// The other host, as the control channel reaches it.
    pub peer: IpAddr,
    /// The device's name in the catalogue.
    pub device: &'a str,
    /// The driver's number in the session, equal on both hosts.
    pub driver: u32,
}

/// The part of a transport whose records a program of the user carries. The program alone knows the way to the other host, and
/// runs for one connection.
pub trait ProgramTransport: Sync {
    /// Starts this host's program. Returns the socket on which it carries messages.
    fn begin(&self, meeting: &Meeting<'_>, options: &Options) -> PartnerResult<OwnedFd>;

    /// Returns the bytes that carry an introduction to the other host.
    fn wrap(&self, introduction: &[u8]) -> Vec<u8>;

    /// Looks for the introduction of the other host, and leaves it where it is. `None`: it has not arrived. An error: the program
    /// has ended, or something else has arrived.
    fn look(&self, socket: BorrowedFd<'_>) -> PartnerResult<Option<Vec<u8>>>;
}

/// A kind of transport: one row in the table of the `transports` crate.
///
/// Its messages are records: each body is whole and starts with a `wire::RecordHeader`; `created` is unused.
/// The broker opens the socket and exchanges the preamble; the partner then drives the connected socket.
pub trait TransportClass: Sync {
    /// Name, help and options.
    fn entry(&self) -> ModuleEntry;

    /// The name before `://`.
    fn name(&self) -> &'static str {
        self.entry().name
    }

    /// The options.
    fn options(&self) -> &'static [OptionSpec] {
        self.entry().options
    }

    /// Returns true if records may be lost, and then also reordered. The session repairs that for the flows that need it.
    fn may_lose(&self) -> bool {
        false
    }

    /// Returns true if the socket carries datagrams. The preamble may then be lost, so it is repeated until it
    /// is answered.
    fn is_datagram(&self) -> bool;

    /// Returns true if a link has several connections, which come and go: [`TransportCtl::AddWay`](crate::TransportCtl::AddWay).
    fn has_ways(&self) -> bool {
        false
    }

    /// Returns the part of a transport that a program carries. Such a transport dials no address, and only this host's own
    /// command line can choose it. Its connections are introduced as those of datagrams are.
    fn program(&self) -> Option<&dyn ProgramTransport> {
        None
    }

    /// Opens a socket towards `peer`, before the preamble. It connects in the background.
    fn dial(&self, peer: SocketAddr, options: &Options) -> PartnerResult<OwnedFd>;

    /// Makes the partner that moves records over a connected socket, after the preamble. Records are encrypted
    /// with `keys`, or not at all without them.
    fn partner(
        &self,
        socket: OwnedFd,
        end: End,
        options: &Options,
        keys: Option<&SealKeys>,
    ) -> PartnerResult<Box<dyn Partner>>;
}
