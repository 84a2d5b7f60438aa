//! Explains errors of `bind(2)`; "Address already in use" with the process that listens on the port (`proc_net_tcp`, `proc(5)`).

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// The kernel's tables of sockets, and the state of a socket in each that holds its port.
const TABLES: [(&str, &str); 4] =
    [("/proc/net/tcp", "0A"), ("/proc/net/tcp6", "0A"), ("/proc/net/udp", "07"), ("/proc/net/udp6", "07")];
/// The first port that needs no permission.
const UNPRIVILEGED_PORT: u16 = 1024;
/// The longest command that is shown, in characters.
const COMMAND_CHARS_MAX: usize = 120;

/// A process that listens on a port.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PortUser {
    process: i32,
    /// The program and its arguments.
    command: String,
}

impl fmt::Display for PortUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} (`{}`)", self.process, self.command)
    }
}

/// Adds the remedy to an error of `bind(2)`, and the process that has the port. The kernel tells a user about the user's own
/// processes only, and root about all.
pub fn explain(address: SocketAddr, error: io::Error) -> io::Error {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => return in_use(address, &error),
        io::ErrorKind::PermissionDenied if address.port() < UNPRIVILEGED_PORT => {
            "ports below 1024 need root: choose another"
        }
        // Without an address family, any address is not available.
        io::ErrorKind::AddrNotAvailable if !address.ip().is_unspecified() => {
            "not an address of this host: `ip address` lists them"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{error} ({advice})"))
}

fn in_use(address: SocketAddr, error: &io::Error) -> io::Error {
    match find(address) {
        Some(user) => io::Error::new(
            error.kind(),
            format!("address already in use: {user} has it: end it, or choose another port"),
        ),
        None => io::Error::new(
            error.kind(),
            "address already in use, by a connection or by a process of another user: choose another port",
        ),
    }
}

/// Returns the process whose socket keeps another one from `address`.
fn find(address: SocketAddr) -> Option<PortUser> {
    let inodes: Vec<u64> = TABLES
        .iter()
        .filter_map(|(path, state)| Some((fs::read_to_string(path).ok()?, state)))
        .flat_map(|(table, state)| {
            let inodes = table.lines().skip(1).filter_map(|line| inode(line, state, address));
            inodes.collect::<Vec<_>>()
        })
        .collect();
    let has_one = |process: &i32| descriptors(*process).any(|inode| inodes.contains(&inode));
    let process = processes().find(has_one)?;
    Some(PortUser { process, command: command(process) })
}

/// Returns the inode of a table's socket if it has `state` and excludes another socket at `address`.
fn inode(line: &str, state: &str, address: SocketAddr) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let local = parse_address(fields.nth(1)?)?;
    let is_it = fields.nth(1)? == state && local.port() == address.port();
    let overlaps = local.ip().is_unspecified()
        || address.ip().is_unspecified()
        || local.ip().to_canonical() == address.ip().to_canonical();
    if !is_it || !overlaps {
        return None;
    }
    fields.nth(5)?.parse().ok()
}

/// Parses `0100007F:1F90`: each group of eight digits is a word in the byte order of this machine.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |index: usize| {
        let digits = ip.get(index * 8..index * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (index, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(index)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the inodes of a process's sockets.
fn descriptors(process: i32) -> impl Iterator<Item = u64> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let target = fs::read_link(entry.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    })
}

/// Returns the program of a process by its file name, and the arguments.
fn command(process: i32) -> String {
    let bytes = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let mut words = text.trim_end_matches('\0').split('\0');
    let program = words.next().unwrap_or_default();
    let program = Path::new(program).file_name().map_or(program.into(), |name| name.to_string_lossy());
    let all: Vec<_> = std::iter::once(&*program).chain(words).collect();
    all.join(" ").chars().take(COMMAND_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};

    #[test]
    fn the_process_that_has_a_port_is_named() {
        for (first, second) in
            [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "0.0.0.0"), ("::", "::")]
        {
            let at = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port);
            let Ok(listener) = TcpListener::bind(at(first, 0)) else {
                eprintln!("SKIPPED: this host has no IPv6");
                continue;
            };
            let address = at(second, listener.local_addr().unwrap().port());
            let error = explain(address, TcpListener::bind(address).unwrap_err());
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
            let process = format!("process {} (`", std::process::id());
            assert!(error.to_string().contains(&process), "{first} {second}: {error}");
            assert!(!error.to_string().contains('\0'), "{error:?}");
        }
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        assert_eq!(find(address).map(|user| user.process), Some(std::process::id() as i32));
        let other = explain(address, io::ErrorKind::PermissionDenied.into());
        assert_eq!(other.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn an_address_that_cannot_be_used_has_a_remedy() {
        let explained = |address: &str, kind: io::ErrorKind| explain(address.parse().unwrap(), kind.into());
        let denied = explained("127.0.0.1:80", io::ErrorKind::PermissionDenied);
        assert!(denied.to_string().ends_with("(ports below 1024 need root: choose another)"), "{denied}");
        let denied = explained("127.0.0.1:7845", io::ErrorKind::PermissionDenied);
        assert!(!denied.to_string().contains("root"), "{denied}");
        // RFC 5737: a documentation address that no host has.
        let error = TcpListener::bind("192.0.2.1:7845").unwrap_err();
        let error = explain("192.0.2.1:7845".parse().unwrap(), error);
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        assert!(
            error.to_string().contains("(not an address of this host: `ip address` lists them)"),
            "{error}"
        );
    }

    #[test]
    fn addresses_of_the_kernel_are_parsed() {
        let ends = |text, address: &str| assert_eq!(parse_address(text), address.parse().ok(), "{text}");
        if cfg!(target_endian = "little") {
            ends("0100007F:1F90", "127.0.0.1:8080");
            ends("00000000000000000000000001000000:0016", "[::1]:22");
        }
        for text in ["", "0100007F", "0100007F:", "é100007:1F90", "0100007F:FFFFF", "010000:1"] {
            ends(text, "none");
        }
    }
}
