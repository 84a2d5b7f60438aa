//! From the name of a display to a connection that its server has accepted, as Xlib goes about it: local sockets
//! first, and the cookie in `$XAUTHORITY` or `~/.Xauthority`.
//!
//! The server's answer stays in the socket, for the worker to read.

use contract::DeviceError;
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

/// Time between two looks whether the server has answered.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// The largest number of a display.
const DISPLAY_MAX: u16 = u16::MAX - 6000;

/// Where servers on this host have their sockets.
const SOCKETS: &str = "/tmp/.X11-unix";

/// The name of the display: what was given, or `$DISPLAY`.
pub(super) fn name(target: &str) -> Result<String, DeviceError> {
    match target {
        "" => std::env::var("DISPLAY").map_err(|_| DeviceError::Spec {
            what: "display".into(),
            problem: "DISPLAY is not set: name a display behind the colon, as in `x11::0`".into(),
        }),
        target => Ok(target.into()),
    }
}

fn parse(display: &str) -> Result<ParsedDisplay, DeviceError> {
    let parsed = parse_display(Some(display)).ok();
    // Each has a TCP port from 6000 on.
    parsed.filter(|parsed| parsed.display <= DISPLAY_MAX).ok_or_else(|| DeviceError::Spec {
        what: format!("`{display}`"),
        problem: "is no display; write [HOST]:NUMBER[.SCREEN], as in `:0`".into(),
    })
}

/// The displays whose servers listen on this host.
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

/// Which of its screens a display's name means.
pub(super) fn screen(display: &str) -> Result<usize, DeviceError> {
    Ok(parse(display)?.screen.into())
}

/// Connects to a display; its server has accepted, and its answer waits in the socket.
pub(super) fn dial(display: &str, timeout: Duration) -> Result<OwnedFd, DeviceError> {
    let refused = |error: io::Error, advice: Option<&str>| DeviceError::Os {
        operation: format!("connecting to the X server at {display}"),
        error,
        advice: advice.map(String::from),
    };
    let parsed = parse(display)?;
    let (socket, family, address) = connect(&parsed, timeout)
        .map_err(|error| refused(error, Some("is it running, and is this its number?")))?;
    let cookie = get_auth(family, &address, parsed.display).ok().flatten();
    let had_cookie = cookie.is_some();
    let (protocol, data) = cookie.unwrap_or_default();
    introduce(&socket, protocol, data, timeout).map_err(|error| {
        let advice = match had_cookie {
            true => "the cookie in XAUTHORITY or ~/.Xauthority is not this server's",
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

/// A connection, and by what its cookie is looked up.
fn connect(display: &ParsedDisplay, timeout: Duration) -> io::Result<(OwnedFd, Family, Vec<u8>)> {
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

/// The abstract socket first: nobody can take its name from a running server.
fn connect_local(path: &str) -> io::Result<UnixStream> {
    let hidden = SocketAddr::from_abstract_name(path)?;
    UnixStream::connect_addr(&hidden).or_else(|_| UnixStream::connect(path))
}

fn connect_tcp((host, port): (&str, u16), timeout: Duration) -> io::Result<(TcpStream, IpAddr)> {
    let stream = sys::address::connect(&sys::address::resolve(&format!("{host}:{port}"))?, timeout)?;
    let address = stream.peer_addr()?.ip();
    Ok((stream, address))
}

/// Says who we are and waits until the server has taken us.
fn introduce(socket: &OwnedFd, protocol: Vec<u8>, data: Vec<u8>, timeout: Duration) -> io::Result<()> {
    let deadline = Instant::now() + timeout;
    // A hundred bytes into an empty socket: it does not wait.
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
                let reason = format!("it refuses us: {}", reason.trim());
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
            }
            [0, ..] => {}
            _ => return Err(super::client::broken("it asks for what it cannot be told")),
        }
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}
