//! Datagrams at a socket without a peer, with the address of this host that each one was sent to (`IP_PKTINFO`, `ip(7)`;
//! `IPV6_PKTINFO`, `ipv6(7)`).
//!
//! A host may have several addresses. An answer must come from the address that its peer has sent to: the connected
//! socket of the peer drops all others. Without these options the kernel chooses by the route.

use crate::net::{Control, ancillary, receive_message, set_option};
use rustix::net::{AddressFamily, SocketAddrAny, sockopt};
use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

/// The two addresses of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The address of this host.
    pub local: SocketAddr,
    /// The address of the peer.
    pub peer: SocketAddr,
}

/// The address of this host that a datagram was sent to, and the interface on which it arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Destination {
    pub(crate) ip: IpAddr,
    pub(crate) interface: u32,
}

impl Destination {
    /// The address as a socket of this port has it. Only a link-local address needs its interface.
    fn at(self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V6(ip) => {
                let scope = if ip.is_unicast_link_local() { self.interface } else { 0 };
                SocketAddrV6::new(ip, port, 0, scope).into()
            }
            ip => SocketAddr::new(ip, port),
        }
    }
}

/// Makes [`receive`] return the address of this host. Errors are those of `setsockopt(2)`.
pub(crate) fn keep_destinations(socket: &UdpSocket) -> io::Result<()> {
    let socket = socket.as_fd();
    let (level, option) = match sockopt::socket_domain(socket)? {
        // It covers the datagrams of IPv4 that arrive at an IPv6 socket, too.
        AddressFamily::INET6 => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
        _ => (libc::IPPROTO_IP, libc::IP_PKTINFO),
    };
    set_option(socket, level, option, 1 as libc::c_int)
}

/// Receives one datagram at a [listening](crate::listening::Listening) socket, which is bound to `address`, without
/// blocking. Returns its length, at most that of `bytes`, and its addresses.
pub fn receive(socket: &UdpSocket, address: SocketAddr, bytes: &mut [u8]) -> io::Result<(usize, Ends)> {
    // SAFETY: a zeroed address is valid: of no family.
    let mut peer: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut vector = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
    let mut control = Control::new();
    let mut header = control.header();
    header.msg_iov = vector.as_mut_ptr();
    header.msg_iovlen = 1;
    header.msg_name = (&raw mut peer).cast();
    header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let count = receive_message(socket.as_fd(), &mut header, 0)?;
    let local = ancillary(&header).destination.map_or(address, |destination| destination.at(address.port()));
    let length = header.msg_namelen.min(size_of::<libc::sockaddr_storage>() as libc::socklen_t);
    if (length as usize) < size_of::<libc::sa_family_t>() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: the kernel wrote an address of `length` bytes to `peer`, which is that long and initialized.
    let peer = unsafe { SocketAddrAny::read((&raw const peer).cast(), length) };
    Ok((count, Ends { local, peer: SocketAddr::try_from(peer)? }))
}

/// Sends one datagram from `ends.local` to `ends.peer`, without blocking. Errors are those of `sendmsg(2)`.
pub fn answer(socket: &UdpSocket, bytes: &[u8], ends: Ends) -> io::Result<()> {
    let peer = SocketAddrAny::from(ends.peer);
    let mut vector = [libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
    let mut control = Control::new();
    let mut header = control.header();
    match ends.local {
        SocketAddr::V4(local) => {
            let from = libc::in_addr { s_addr: u32::from_ne_bytes(local.ip().octets()) };
            let any = libc::in_addr { s_addr: libc::INADDR_ANY };
            let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: from, ipi_addr: any };
            add(&mut header, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        }
        // The kernel chooses, as for any socket: no datagram has told an address.
        SocketAddr::V6(local) if *local.ip() == Ipv6Addr::UNSPECIFIED => header.msg_controllen = 0,
        SocketAddr::V6(local) => {
            let from = libc::in6_addr { s6_addr: local.ip().octets() };
            let info = libc::in6_pktinfo { ipi6_addr: from, ipi6_ifindex: local.scope_id() };
            add(&mut header, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        }
    }
    header.msg_iov = vector.as_mut_ptr();
    header.msg_iovlen = 1;
    header.msg_name = peer.as_ptr().cast_mut().cast();
    header.msg_namelen = peer.addr_len();
    // SAFETY: every pointer in the header is to memory that outlives the call, with its length. The kernel only reads it.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes `content` the only control message of a header that has the space of a [`Control`].
fn add<T: Copy>(header: &mut libc::msghdr, level: libc::c_int, kind: libc::c_int, content: T) {
    const { assert!(size_of::<T>() <= Control::CONTENT_BYTES_MAX) }
    let bytes = size_of::<T>() as libc::c_uint;
    // SAFETY: the space is aligned for a control message and holds one with a `T`.
    unsafe {
        let message = libc::CMSG_FIRSTHDR(header);
        (*message).cmsg_level = level;
        (*message).cmsg_type = kind;
        // The types of the lengths differ between C libraries.
        (*message).cmsg_len = libc::CMSG_LEN(bytes) as _;
        libc::CMSG_DATA(message).cast::<T>().write_unaligned(content);
        header.msg_controllen = libc::CMSG_SPACE(bytes) as _;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listening::{Listening, connect_udp};
    use std::time::Duration;

    /// Loopback has every address in 127.0.0.0/8. The route to 127.0.0.1 selects 127.0.0.1 as the source.
    #[test]
    fn an_answer_comes_from_the_address_that_was_asked() {
        for (listen, from, asked) in [
            ("[::]:0", "127.0.0.1:0", "127.0.0.2"),
            ("0.0.0.0:0", "127.0.0.1:0", "127.0.0.2"),
            ("127.0.0.2:0", "127.0.0.1:0", "127.0.0.2"),
            ("[::]:0", "[::1]:0", "::1"),
        ] {
            let listening = Listening::at(listen.parse().unwrap()).unwrap();
            if asked == "::1" && !listening.address.is_ipv6() {
                eprintln!("SKIPPED: this host has no IPv6");
                continue;
            }
            let asked = SocketAddr::new(asked.parse().unwrap(), listening.address.port());
            let asking = UdpSocket::bind(from).unwrap();
            asking.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            // A connected socket hears its peer alone.
            asking.connect(asked).unwrap();
            asking.send(b"?").unwrap();
            listening.udp.set_nonblocking(true).unwrap();
            let mut bytes = [0; 8];
            let (count, ends) = loop {
                match receive(&listening.udp, listening.address, &mut bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                    received => break received.unwrap(),
                }
            };
            assert_eq!(bytes[..count], *b"?");
            assert_eq!(crate::listening::canonical(ends.local), asked, "{listen}");
            assert_eq!(crate::listening::canonical(ends.peer), asking.local_addr().unwrap(), "{listen}");
            answer(&listening.udp, b"first", ends).unwrap();
            assert_eq!(asking.recv(&mut bytes).unwrap(), 5, "{listen}");
            let connected = UdpSocket::from(connect_udp(ends).unwrap());
            connected.send(b"then").unwrap();
            assert_eq!(asking.recv(&mut bytes).unwrap(), 4, "{listen}");
        }
    }

    #[test]
    fn only_a_link_local_address_has_an_interface() {
        for (ip, told) in [
            ("fe80::1", "[fe80::1%3]:9"),
            ("2001:db8::1", "[2001:db8::1]:9"),
            ("::ffff:10.0.0.7", "[::ffff:10.0.0.7]:9"),
            ("10.0.0.7", "10.0.0.7:9"),
        ] {
            let destination = Destination { ip: ip.parse().unwrap(), interface: 3 };
            assert_eq!(destination.at(9).to_string(), told);
        }
    }
}
