//! Host names as users write them, and TCP connections to them.

use crate::net;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with, sockopt};
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::Duration;

/// Returns all addresses of `HOST:PORT`, at least one, from the system's resolver. IPv6 is written in brackets.
/// A link-local address has its interface after it (RFC 4007, section 11): `[fe80::1%eth0]:7845`.
pub fn resolve(place: &str) -> io::Result<Vec<SocketAddr>> {
    let wrong = |problem| io::Error::new(io::ErrorKind::InvalidInput, problem);
    let (_, port) = place.rsplit_once(':').ok_or_else(|| wrong("there is no port"))?;
    let port: u16 = port.parse().map_err(|_| wrong("the port is no number below 65536"))?;
    let found: Vec<_> = (host_of(place), port).to_socket_addrs()?.collect();
    match found.is_empty() {
        true => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
        false => Ok(found),
    }
}

/// The host of `HOST:PORT`, without the port and without brackets.
pub fn host_of(place: &str) -> &str {
    let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Joins a host and a port; adds brackets to IPv6.
pub fn with_port_of(host: &str, port: &str) -> String {
    if is_bare_v6(host) { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Writes an address as `HOST:PORT` for [`resolve`]. A link-local address gets the name of its interface: the number is another one
/// when the interface is made again, or after a restart.
pub fn place_of(address: SocketAddr) -> String {
    match address {
        SocketAddr::V6(linked) if linked.scope_id() != 0 => match interface_name(linked.scope_id()) {
            Ok(name) => format!("[{}%{name}]:{}", linked.ip(), linked.port()),
            Err(_) => address.to_string(),
        },
        _ => address.to_string(),
    }
}

fn interface_name(number: u32) -> rustix::io::Result<String> {
    let any_socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    netdevice::index_to_name(any_socket, number)
}

/// Returns true for an IPv6 address without brackets, with or without its interface.
pub fn is_bare_v6(host: &str) -> bool {
    let address = host.split_once('%').map_or(host, |(address, _)| address);
    address.parse::<std::net::Ipv6Addr>().is_ok()
}

/// Returns the remedy for a link-local address without its interface, to which nothing can connect.
pub fn interface_advice(address: SocketAddr) -> Option<&'static str> {
    match address {
        SocketAddr::V6(address) if address.ip().is_unicast_link_local() && address.scope_id() == 0 => Some(
            "an address that begins with fe80 needs the interface: write [fe80::1%eth0]; `ip link` lists the interfaces",
        ),
        _ => None,
    }
}

/// The name of this host, for users.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "a host without a name".into(),
        name => name.into(),
    }
}

/// Silence of a server until the kernel asks whether it is there, the interval and the number of these questions.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(20), Duration::from_secs(5), 4);

/// Connects to the first address that answers, each within `timeout`. Small writes are sent at once
/// (`TCP_NODELAY`). The connection fails about a minute after the server or the network has failed.
pub fn connect(addresses: &[SocketAddr], timeout: Duration) -> io::Result<TcpStream> {
    let mut refused = io::Error::new(io::ErrorKind::NotFound, "there is no address");
    for address in addresses {
        match TcpStream::connect_timeout(address, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                // Best effort: without these, a dead server is found late or never.
                let _ = (keep_alive(&stream), net::limit_backoff(&stream));
                return Ok(stream);
            }
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Lets the kernel ask an idle connection. No `TCP_USER_TIMEOUT`: it also ends a connection whose server answers but reads nothing
/// for a while, such as a printer without paper.
fn keep_alive(socket: impl AsFd) -> rustix::io::Result<()> {
    let (idle, interval, count) = KEEPALIVE;
    sockopt::set_tcp_keepidle(&socket, idle)?;
    sockopt::set_tcp_keepintvl(&socket, interval)?;
    sockopt::set_tcp_keepcnt(&socket, count)?;
    sockopt::set_socket_keepalive(&socket, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_in_every_form() {
        for (place, address) in [("127.0.0.1:9", "127.0.0.1:9"), ("[::1]:9", "[::1]:9"), ("::1:9", "[::1]:9")]
        {
            assert_eq!(resolve(place).unwrap(), [address.parse().unwrap()], "{place}");
        }
        let SocketAddr::V6(linked) = resolve("[fe80::1%lo]:9").unwrap()[0] else { panic!("IPv4") };
        assert_eq!((linked.scope_id(), linked.port()), (1, 9));
        for wrong in ["", "localhost", "localhost:", "localhost:65536", "[::1]", "[fe80::1%no-such-link]:9"] {
            assert!(resolve(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_place_has_the_name_of_its_interface() {
        for (address, place) in [
            ("127.0.0.1:9", "127.0.0.1:9"),
            ("[::1]:9", "[::1]:9"),
            ("[fe80::1]:9", "[fe80::1]:9"),
            ("[fe80::1%1]:9", "[fe80::1%lo]:9"),
            ("[fe80::1%2147483647]:9", "[fe80::1%2147483647]:9"),
        ] {
            assert_eq!(place_of(address.parse().unwrap()), place);
        }
        assert_eq!(resolve("[fe80::1%lo]:9").unwrap(), ["[fe80::1%1]:9".parse().unwrap()]);
    }

    #[test]
    fn a_refusing_address_is_skipped() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let timeout = Duration::from_secs(60);
        assert_eq!(connect(&[closed, open], timeout).unwrap().peer_addr().unwrap(), open);
        assert!(connect(&[closed], timeout).is_err() && connect(&[], timeout).is_err());
    }

    #[test]
    fn the_kernel_asks_whether_an_idle_server_is_there() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = connect(&[listener.local_addr().unwrap()], Duration::from_secs(60)).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        let asks = (
            sockopt::tcp_keepidle(&stream).unwrap(),
            sockopt::tcp_keepintvl(&stream).unwrap(),
            sockopt::tcp_keepcnt(&stream).unwrap(),
        );
        assert_eq!(asks, KEEPALIVE);
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 0, "a server may be slow to read");
    }
}
