//! Transports: network modules. A transport is a partner whose messages are whole records.

use crate::{ModuleEntry, OptionSpec, Options, Partner, PartnerResult, Secret};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

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
