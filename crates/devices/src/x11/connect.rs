//! Connects to a display by name, as Xlib does: local sockets first, with the cookie in `$XAUTHORITY` or
//! `~/.Xauthority`.
//!
//! The broker connects. It only peeks at the server's setup reply, so the worker can read it from the socket.

use contract::{DeviceError, DeviceSpec};
use rustix::net::RecvFlags;
use std::io::{self, Write};
use std::net::{IpAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};
use x11rb_protocol::connect::Connect;
use x11rb_protocol::parse_display::{ConnectAddress, ParsedDisplay, parse_display};
use x11rb_protocol::xauth::{Family, get_auth};

/// The interval at which the socket is checked for the server's reply.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The largest display number: each display has a TCP port from 6000 on.
const DISPLAY_MAX: u16 = u16::MAX - 6000;

/// The directory of the sockets of this host's servers.
const SOCKETS: &str = "/tmp/.X11-unix";

/// Returns the display name: the target, or `$DISPLAY` if it is empty.
pub(super) fn display_name(spec: &DeviceSpec) -> Result<String, DeviceError> {
    match spec.target.as_str() {
        "" => {
            std::env::var("DISPLAY").ok().filter(|name| !name.is_empty()).ok_or_else(|| DeviceError::Spec {
                what: "display".into(),
                problem: format!(
                    "DISPLAY is not set: name a display after the colon, as in `{}::0`",
                    spec.class
                ),
            })
        }
        target => Ok(target.into()),
    }
}

fn parse(display: &str) -> Result<ParsedDisplay, DeviceError> {
    let parsed = parse_display(Some(display)).ok();
    parsed.filter(|parsed| parsed.display <= DISPLAY_MAX).ok_or_else(|| DeviceError::Spec {
        what: format!("`{display}`"),
        problem: "is not a display; write [HOST]:NUMBER[.SCREEN], as in `:0`".into(),
    })
}

/// Returns the displays of the servers on this host.
pub(super) fn local_displays() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(SOCKETS) else { return Vec::new() };
    let number = |entry: io::Result<std::fs::DirEntry>| {
        entry
            .ok()?
            .file_name()
            .to_str()?
            .strip_prefix('X')?
            .parse()
            .ok()
            .filter(|number| *number <= DISPLAY_MAX)
    };
    let mut numbers: Vec<u16> = entries.filter_map(number).collect();
    numbers.sort_unstable();
    numbers.into_iter().map(|number| format!(":{number}")).collect()
}

/// Returns the screen number in a display name.
pub(super) fn screen_number(display: &str) -> Result<usize, DeviceError> {
    Ok(parse(display)?.screen.into())
}

/// Connects to a display and waits until its server accepts. The server's setup reply stays in the socket.
pub(super) fn connect(display: &str, timeout: Duration) -> Result<OwnedFd, DeviceError> {
    let refused = |error: io::Error, advice: Option<&str>| DeviceError::Os {
        operation: format!("connecting to the X server at {display}"),
        error,
        advice: advice.map(String::from),
    };
    let parsed = parse(display)?;
    let (socket, family, address) = connect_socket(&parsed, timeout)
        .map_err(|error| refused(error, Some("is it running, and is this its number?")))?;
    let cookie = get_auth(family, &address, parsed.display).ok().flatten();
    let had_cookie = cookie.is_some();
    let (protocol, data) = cookie.unwrap_or_default();
    authenticate(&socket, protocol, data, timeout).map_err(|error| {
        let advice = match had_cookie {
            true => "the cookie in XAUTHORITY or ~/.Xauthority belongs to another server",
            false => {
                "there is no cookie for it in XAUTHORITY or ~/.Xauthority: run this as the user of the \
                      screen, or set XAUTHORITY"
            }
        };
        let is_refusal = error.kind() == io::ErrorKind::PermissionDenied;
        refused(error, is_refusal.then_some(advice))
    })?;
    Ok(socket)
}

/// Connects a socket. Returns it with the address family and address under which its cookie is stored.
fn connect_socket(display: &ParsedDisplay, timeout: Duration) -> io::Result<(OwnedFd, Family, Vec<u8>)> {
    let host = || rustix::system::uname().nodename().to_bytes().to_vec();
    let mut refused = io::Error::from(io::ErrorKind::NotFound);
    for address in display.connect_instruction() {
        let connected = match address {
            ConnectAddress::Socket(path) => {
                connect_local(&path).map(|stream| (stream.into(), Family::LOCAL, host()))
            }
            ConnectAddress::Hostname(name, port) => connect_tcp((name, port), timeout).map(|(stream, ip)| {
                let (family, address) = match ip {
                    ip if ip.is_loopback() => (Family::LOCAL, host()),
                    IpAddr::V4(ip) => (Family::INTERNET, ip.octets().to_vec()),
                    IpAddr::V6(ip) => (Family::INTERNET6, ip.octets().to_vec()),
                };
                (stream.into(), family, address)
            }),
            _ => continue,
        };
        match connected {
            Ok(connected) => return Ok(connected),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Connects to a local socket, the abstract one first: no other process can take its name from a running server.
fn connect_local(path: &str) -> io::Result<UnixStream> {
    let abstract_address = SocketAddr::from_abstract_name(path)?;
    UnixStream::connect_addr(&abstract_address).or_else(|_| UnixStream::connect(path))
}

fn connect_tcp((host, port): (&str, u16), timeout: Duration) -> io::Result<(TcpStream, IpAddr)> {
    let stream = sys::address::connect(&sys::address::resolve(&format!("{host}:{port}"))?, timeout)?;
    let address = stream.peer_addr()?.ip();
    Ok((stream, address))
}

/// Sends the cookie and waits until the server accepts the connection.
fn authenticate(socket: &OwnedFd, protocol: Vec<u8>, data: Vec<u8>, timeout: Duration) -> io::Result<()> {
    let deadline = Instant::now() + timeout;
    // The socket's buffer is empty and the request has about a hundred bytes: this write does not block.
    let (_, request) = Connect::with_authorization(protocol, data);
    std::fs::File::from(socket.try_clone()?).write_all(&request)?;
    let mut answer = [0; 8 + u8::MAX as usize];
    loop {
        let (peeked, flags) = (&mut answer[..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        let received = match rustix::net::recv(socket, peeked, flags) {
            Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, received)) => received,
            Err(rustix::io::Errno::AGAIN) => 0,
            Err(error) => return Err(error.into()),
        };
        match answer {
            [1, ..] if received > 0 => return Ok(()),
            [0, length, ..] if received >= 8 + usize::from(length) => {
                let reason = String::from_utf8_lossy(&answer[8..8 + usize::from(length)]);
                let reason = format!("it refuses the connection: {}", reason.trim());
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
            }
            [0, ..] => {}
            _ => return Err(super::client::protocol_error("it asks for an unknown authentication")),
        }
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
