//! Listening sockets: one port for TCP and UDP; an unspecified address covers IPv4 and IPv6.

use crate::datagram::{Ends, keep_destinations};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;

/// If any port will do: the attempts to find one that is also free for UDP.
const PORT_ATTEMPTS: u32 = 16;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Sockets are close-on-exec and non-blocking.
const UDP_FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// The listening sockets of a device host: one port for both protocols.
pub struct Listening {
    /// Accepts connections; non-blocking.
    pub tcp: TcpListener,
    /// Receives datagrams, with their addresses ([`receive`](crate::datagram::receive)); non-blocking.
    pub udp: UdpSocket,
    /// The address of both.
    pub address: SocketAddr,
}

impl Listening {
    /// Starts to listen; `[::]` includes IPv4 ([`bind_tcp`]). With port 0, ports that are in use for UDP are
    /// skipped. Errors are those of `bind(2)`.
    pub fn at(at: SocketAddr) -> io::Result<Listening> {
        let mut attempts = if at.port() == 0 { PORT_ATTEMPTS } else { 1 };
        loop {
            attempts -= 1;
            let listener = bind_tcp(at)?;
            match bind_udp(listener.local_addr()?) {
                Ok(udp) => return Listening::on(listener, udp.into()),
                Err(error) if error.kind() != io::ErrorKind::AddrInUse || attempts == 0 => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Uses sockets that are already bound to one address. The device host binds further datagram sockets to
    /// it.
    pub fn on(tcp: TcpListener, udp: UdpSocket) -> io::Result<Listening> {
        tcp.set_nonblocking(true)?;
        udp.set_nonblocking(true)?;
        sockopt::set_socket_reuseaddr(&udp, true)?;
        keep_destinations(&udp)?;
        let address = tcp.local_addr()?;
        Ok(Listening { tcp, udp, address })
    }
}

/// Checks that this process may listen at this address, without listening. A port in use is no error: its owner may be
/// the process that will listen there.
pub fn check(at: SocketAddr) -> io::Result<()> {
    match bound(at, SocketType::STREAM, SocketFlags::CLOEXEC) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(()),
        Err(error) if at.is_ipv6() && at.ip().is_unspecified() && lacks_ipv6(&error) => Ok(()),
        bound => bound.map(drop),
    }
}

/// Listens for connections. `[::]` covers both families, whatever `net.ipv6.bindv6only` says; on a host without
/// IPv6 it covers IPv4. Errors are those of `bind(2)`; [`io::ErrorKind::AddrInUse`] names the process that has the port.
pub fn bind_tcp(at: SocketAddr) -> io::Result<TcpListener> {
    let listener = match bound(at, SocketType::STREAM, SocketFlags::CLOEXEC) {
        Err(error) if at.is_ipv6() && at.ip().is_unspecified() && lacks_ipv6(&error) => {
            let at = (Ipv4Addr::UNSPECIFIED, at.port()).into();
            bound(at, SocketType::STREAM, SocketFlags::CLOEXEC)?
        }
        bound => bound?,
    };
    listen(&listener, BACKLOG)?;
    Ok(listener.into())
}

/// A datagram socket at the address that a peer has sent to, connected to that peer.
pub fn connect_udp(ends: Ends) -> io::Result<OwnedFd> {
    let socket = unbound(ends.local, SocketType::DGRAM, UDP_FLAGS)?;
    // Before it is connected, it would receive datagrams from anybody. Drop them.
    crate::net::take_nothing(&socket)?;
    bind(&socket, &ends.local)?;
    rustix::net::connect(&socket, &ends.peer)?;
    crate::net::take_all(&socket)?;
    Ok(socket)
}

/// The listening socket and one connected socket for each peer share the port.
fn bind_udp(address: SocketAddr) -> io::Result<OwnedFd> {
    bound(address, SocketType::DGRAM, UDP_FLAGS)
}

fn bound(at: SocketAddr, kind: SocketType, flags: SocketFlags) -> io::Result<OwnedFd> {
    let socket = unbound(at, kind, flags)?;
    bind(&socket, &at).map_err(|error| crate::port_user::explain(at, error.into()))?;
    Ok(socket)
}

/// A socket that can be bound to this address.
fn unbound(at: SocketAddr, kind: SocketType, flags: SocketFlags) -> io::Result<OwnedFd> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, kind, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if let IpAddr::V6(ip) = at.ip() {
        let has_four = ip.is_unspecified() || ip.to_ipv4_mapped().is_some();
        sockopt::set_ipv6_v6only(&socket, !has_four)?;
    }
    Ok(socket)
}

/// Returns true if the host has no IPv6.
fn lacks_ipv6(error: &io::Error) -> bool {
    let is = |errno: rustix::io::Errno| error.raw_os_error() == Some(errno.raw_os_error());
    is(rustix::io::Errno::AFNOSUPPORT) || is(rustix::io::Errno::ADDRNOTAVAIL)
}

/// The usual form of an address: an IPv4 address that arrived on an IPv6 socket becomes a plain IPv4 address.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        // Other properties of the address, such as its interface, stay.
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::TcpStream;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Datagrams that arrived before `connect` are not delivered to the connected socket.
    #[test]
    fn a_connected_socket_receives_only_from_its_peer() {
        let listening = Listening::at("127.0.0.1:0".parse().unwrap()).unwrap();
        let [stranger, peer] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let (stop, said) = (AtomicBool::new(false), Barrier::new(2));
        let others = std::thread::scope(|scope| {
            scope.spawn(|| {
                stranger.send_to(b"stranger", listening.address).unwrap();
                said.wait();
                while !stop.load(Ordering::Relaxed) {
                    let _ = stranger.send_to(b"stranger", listening.address);
                }
            });
            said.wait();
            let hears_its_peer = || -> io::Result<bool> {
                let socket = UdpSocket::from(connect_udp(Ends {
                    local: listening.address,
                    peer: peer.local_addr()?,
                })?);
                peer.send_to(b"peer", listening.address)?;
                let mut bytes = [0; 16];
                let count = socket.recv(&mut bytes)?;
                Ok(&bytes[..count] == b"peer")
            };
            let others = (0..500).filter(|_| !hears_its_peer().unwrap_or(false)).count();
            stop.store(true, Ordering::Relaxed);
            others
        });
        assert_eq!(others, 0, "of 500 sockets");
    }

    /// TCP and UDP of both families reach the socket.
    #[test]
    fn the_unspecified_address_covers_both_families() {
        let listening = Listening::at("[::]:0".parse().unwrap()).unwrap();
        let port = listening.address.port();
        let six = listening.address.is_ipv6();
        if !six {
            eprintln!("SKIPPED: this host has no IPv6");
        }
        for (host, is_there) in [("127.0.0.1", true), ("::1", six)] {
            let peer = SocketAddr::new(host.parse().unwrap(), port);
            let from = SocketAddr::new(host.parse().unwrap(), 0);
            if !is_there {
                continue;
            }
            let stream = TcpStream::connect(peer).unwrap();
            let came = loop {
                match listening.tcp.accept() {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                    came => break came.unwrap().1,
                }
            };
            assert_eq!(canonical(came), stream.local_addr().unwrap());
            let asking = UdpSocket::bind(from).unwrap();
            asking.send_to(b"?", peer).unwrap();
            let mut bytes = [0; 8];
            let came = loop {
                match listening.udp.recv_from(&mut bytes) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                    came => break came.unwrap().1,
                }
            };
            assert_eq!(canonical(came), asking.local_addr().unwrap());
            let ends = Ends { local: listening.address, peer: came };
            let answering = UdpSocket::from(connect_udp(ends).unwrap());
            answering.send(b"!").unwrap();
            let (_, answered) = asking.recv_from(&mut bytes).unwrap();
            assert_eq!(answered, peer);
        }
    }

    #[test]
    fn an_address_is_checked_without_listening() {
        let listening = Listening::at("127.0.0.1:0".parse().unwrap()).unwrap();
        check(listening.address).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        check(free).unwrap();
        assert!(TcpStream::connect(free).is_err());
        // Reserved for documentation (RFC 5737).
        let error = check("192.0.2.1:7845".parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    }

    #[test]
    fn a_specific_address_has_one_family() {
        let Ok(one) = Listening::at("[::1]:0".parse().unwrap()) else {
            eprintln!("SKIPPED: this host has no IPv6");
            return;
        };
        let refused = TcpStream::connect(("127.0.0.1", one.address.port())).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn addresses_are_shown_in_their_usual_form() {
        for (came, told) in [
            ("[::ffff:10.0.0.7]:1", "10.0.0.7:1"),
            ("10.0.0.7:1", "10.0.0.7:1"),
            ("[2001:db8::1]:1", "[2001:db8::1]:1"),
            ("[fe80::1%3]:1", "[fe80::1%3]:1"),
        ] {
            assert_eq!(canonical(came.parse().unwrap()).to_string(), told);
        }
    }
}
