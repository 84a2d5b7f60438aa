//! Socket functions that all transports share.

use contract::{OptionKind, OptionSpec, PartnerError, PartnerResult, local};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketFlags, SocketType, connect, getpeername, getsockname, ipproto,
    socket_with, sockopt,
};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Payload size that every QUIC path must carry (RFC 9000, section 14).
pub(crate) const DATAGRAM_BYTES_MIN: usize = 1200;
/// Largest payload of a UDP datagram over IPv4.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Largest frame of any network. A route with a larger MTU stays within this machine, or leads to a relay of it that fragments
/// the datagrams: the interface of a container without root, for example.
pub(crate) const FRAME_BYTES_MAX: usize = 16 << 10;
/// Payload of a UDP datagram in an Ethernet frame, which the network behind such a relay probably has.
const ETHERNET_BYTES: usize = 1452;

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

/// The route of a connected socket to its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    /// Largest datagram payload that leaves this host unfragmented, or [`DATAGRAM_BYTES_MIN`] if the kernel does not know the
    /// path MTU.
    pub(crate) datagram_bytes: usize,
    /// It stays within this machine, and carries larger datagrams than any network.
    pub(crate) is_local: bool,
}

impl Route {
    /// Returns the present route.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> Route {
        let mtu = sys::net::path_mtu(socket).unwrap_or(0) as usize;
        let address = |any: SocketAddrAny| SocketAddr::try_from(any).ok();
        let own = getsockname(socket).ok().and_then(address);
        let peer = getpeername(socket).ok().flatten().and_then(address);
        Route::between(own, peer, mtu)
    }

    fn between(own: Option<SocketAddr>, peer: Option<SocketAddr>, mtu: usize) -> Route {
        // IP and UDP headers.
        let header_bytes = if peer.is_some_and(|peer| peer.is_ipv4()) { 20 + 8 } else { 40 + 8 };
        let datagram_bytes = mtu.saturating_sub(header_bytes).clamp(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX);
        let is_large = datagram_bytes > FRAME_BYTES_MAX;
        let ip = |end: SocketAddr| end.ip().to_canonical();
        let is_here = peer.map(ip).is_some_and(|peer| peer.is_loopback() || own.map(ip) == Some(peer));
        match is_large && !is_here {
            true => Route { datagram_bytes: ETHERNET_BYTES, is_local: false },
            false => Route { datagram_bytes, is_local: is_large },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_route_to_this_host_is_local() {
        for (own, peer, mtu, datagram_bytes, is_local) in [
            ("127.0.0.1:1", "127.0.0.1:2", 65_536, 65_507, true),
            ("127.0.0.1:1", "127.0.0.2:2", 65_536, 65_507, true),
            ("[::1]:1", "[::1]:2", 65_536, 65_488, true),
            ("10.0.0.5:1", "10.0.0.5:2", 65_536, 65_507, true),
            ("[::ffff:10.0.0.5]:1", "[::ffff:10.0.0.5]:2", 65_536, 65_488, true),
            // In a container without root, and behind a proxy with a TUN device.
            ("10.0.2.100:1", "10.0.0.5:2", 65_520, 1452, false),
            ("10.0.2.100:1", "10.0.0.5:2", 65_535, 1452, false),
            ("10.0.0.4:1", "10.0.0.5:2", 1500, 1472, false),
            ("10.0.0.4:1", "10.0.0.5:2", 9000, 8972, false),
            ("[fd00::4]:1", "[fd00::5]:2", 1500, 1452, false),
            ("10.0.0.4:1", "10.0.0.5:2", 0, 1200, false),
        ] {
            let [own_end, peer_end] = [own, peer].map(|end| end.parse().ok());
            let route = Route::between(own_end, peer_end, mtu);
            assert_eq!(route, Route { datagram_bytes, is_local }, "{own} to {peer}, MTU {mtu}");
        }
        let unknown = Route::between(None, None, 65_536);
        assert_eq!(unknown, Route { datagram_bytes: ETHERNET_BYTES, is_local: false });
    }
}
