//! What the transports' sockets have in common.

use contract::PartnerError;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, connect, getpeername, ipproto, socket_with, sockopt,
};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A non-blocking socket of this type on its way to `peer`.
pub(crate) fn dial(kind: SocketType, peer: SocketAddr) -> Result<OwnedFd, PartnerError> {
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

/// The peer, for messages to people.
pub(crate) fn peer_name(socket: BorrowedFd<'_>) -> String {
    match getpeername(socket).ok().flatten().map(SocketAddr::try_from) {
        Some(Ok(address)) => address.to_string(),
        _ => "a peer without an address".into(),
    }
}

/// Asks for kernel buffers of these sizes; 0 leaves the kernel's own choice (which for TCP adapts).
/// The kernel grants what its limits allow.
pub(crate) fn set_buffers(
    socket: BorrowedFd<'_>,
    send_bytes: usize,
    receive_bytes: usize,
) -> Result<(), PartnerError> {
    if send_bytes > 0 {
        sockopt::set_socket_send_buffer_size(socket, send_bytes)
            .map_err(|error| PartnerError::os("set the socket's send buffer", error))?;
    }
    if receive_bytes > 0 {
        sockopt::set_socket_recv_buffer_size(socket, receive_bytes)
            .map_err(|error| PartnerError::os("set the socket's receive buffer", error))?;
    }
    Ok(())
}

/// Whether the kernel only says "not now".
pub(crate) fn is_not_now(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}
