//! Socket functions that all transports share.

use contract::{OptionKind, OptionSpec, PartnerError, PartnerResult, local};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, connect, getpeername, ipproto, socket_with, sockopt,
};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Payload size that every QUIC path must carry (RFC 9000, section 14).
pub(crate) const DATAGRAM_BYTES_MIN: usize = 1200;
/// Largest payload of a UDP datagram over IPv4.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 65_507;

/// Option for the kernel's socket buffers of a datagram transport ([`prepare`]).
pub(crate) const BUFFERS: OptionSpec = local(
    "socket_bytes",
    OptionKind::Size { min: 0, max: 1 << 30 },
    "4MiB",
    "size of each of the kernel's two socket buffers, bytes, up to the kernel's limits; 0 keeps its defaults",
);

/// Creates a non-blocking socket of this type and starts to connect it to `peer`.
pub(crate) fn dial(kind: SocketType, peer: SocketAddr) -> PartnerResult<OwnedFd> {
    let family = match peer {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let protocol = match kind {
        SocketType::STREAM => Some(ipproto::TCP),
        _ => Some(ipproto::UDP),
    };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, protocol)
        .map_err(|error| PartnerError::os("socket", error))?;
    match connect(&socket, &peer) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(PartnerError::os(format!("connect to {peer}"), error)),
    }
}

/// Returns the peer's address for messages to people.
pub(crate) fn peer_name(socket: BorrowedFd<'_>) -> String {
    match getpeername(socket).ok().flatten().map(SocketAddr::try_from) {
        Some(Ok(address)) => address.to_string(),
        _ => "a peer without an address".into(),
    }
}

/// Prepares the socket of a data connection: it never blocks, and each of its two buffers has `bytes`, or
/// less if the kernel grants less. 0 keeps the choice of the kernel, which adapts for TCP.
pub(crate) fn prepare(socket: BorrowedFd<'_>, bytes: usize) -> PartnerResult {
    rustix::io::ioctl_fionbio(socket, true)
        .map_err(|error| PartnerError::os("make the socket non-blocking", error))?;
    if bytes > 0 {
        sockopt::set_socket_send_buffer_size(socket, bytes)
            .map_err(|error| PartnerError::os("set the socket's send buffer", error))?;
        sockopt::set_socket_recv_buffer_size(socket, bytes)
            .map_err(|error| PartnerError::os("set the socket's receive buffer", error))?;
    }
    Ok(())
}

/// Returns true if the error has one of these numbers.
pub(crate) fn is(error: &io::Error, numbers: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|number| numbers.contains(&number))
}

/// Returns true for errors that end when the network or the peer returns. Until then datagrams are lost.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    let transient = [
        Errno::CONNREFUSED,
        Errno::NETUNREACH,
        Errno::HOSTUNREACH,
        Errno::HOSTDOWN,
        Errno::NETDOWN,
        Errno::NOBUFS,
        Errno::PERM,
        Errno::MSGSIZE,
    ];
    is(error, &transient)
}

/// Returns true for `EAGAIN`: the call would block.
pub(crate) fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Returns the largest datagram payload that leaves this host unfragmented on the connected socket's route, or
/// [`DATAGRAM_BYTES_MIN`] if the kernel does not know the path MTU.
pub(crate) fn datagram_bytes_max(socket: BorrowedFd<'_>) -> usize {
    let mtu = sys::net::path_mtu(socket).unwrap_or(0) as usize;
    let is_four =
        matches!(getpeername(socket).ok().flatten().map(SocketAddr::try_from), Some(Ok(SocketAddr::V4(_))));
    // IP and UDP headers.
    let header_bytes = if is_four { 20 + 8 } else { 40 + 8 };
    mtu.saturating_sub(header_bytes).clamp(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX)
}
