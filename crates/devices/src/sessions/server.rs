//! The server's address, the connection to it and the options: the same for each protocol.

use crate::plain::{os, unreached};
use contract::{DeviceError, DeviceSpec, OptionKind, OptionSpec, local};
use rustix::net::sockopt;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

/// Silence of the server until the kernel asks whether it is there, the interval and the number of these questions.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 3);

/// Silence of a server that may let in one client only, until the kernel ends the connection.
pub(super) const OUTLASTED: Duration = Duration::from_secs(24 * 3600);

/// The option `sessions`.
pub(crate) const SESSIONS: OptionSpec = local(
    "sessions",
    OptionKind::OrAuto(&OptionKind::Integer { min: 1, max: session::WAYS_MAX as i64 }),
    "auto",
    "as a device: number of connections to the server; auto finds it",
);
/// The option `timeout`.
pub(crate) const TIMEOUT: OptionSpec = local(
    "timeout",
    OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(3600) },
    "10s",
    "as a device: time limit for connecting to the server and agreeing with it",
);

/// A protocol and its server, for addresses and errors.
#[derive(Debug)]
pub(crate) struct Protocol {
    /// Its port, if the address has none.
    pub(crate) port: u16,
    /// Its name.
    pub(crate) name: &'static str,
    /// A demand of servers that this client cannot meet.
    pub(crate) unsupported: &'static str,
}

impl Protocol {
    /// Splits the target of a spec without its two slashes into `HOST:PORT` and the rest.
    pub(crate) fn place<'a>(&self, address: &'a str) -> (String, &'a str) {
        let (place, rest) = address.split_once('/').unwrap_or((address, ""));
        let has_port =
            place.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
        match has_port || place.is_empty() {
            true => (place.into(), rest),
            false => (sys::address::with_port_of(place, &self.port.to_string()), rest),
        }
    }

    fn operation(&self, spec: &DeviceSpec) -> String {
        format!("connecting to the {} server {}:{}", self.name, spec.class, spec.target)
    }

    /// Describes the failure of a connection.
    pub(crate) fn absent(&self, spec: &DeviceSpec, error: io::Error) -> DeviceError {
        unreached(self.operation(spec), error, "is it listening there?")
    }

    /// Describes the failure of a negotiation.
    pub(crate) fn refused(&self, spec: &DeviceSpec, error: io::Error) -> DeviceError {
        let operation = self.operation(spec);
        let Protocol { name, unsupported, .. } = self;
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                let timeout = spec.options.duration(TIMEOUT.name);
                let silent = io::Error::other(format!("it does not answer for {timeout:?}"));
                let advice =
                    format!("is it an {name} server? If it has a limit of clients, use a smaller `sessions`");
                os(operation, silent, Some(&advice))
            }
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                let closed = io::Error::other("it closes the connection during the negotiation");
                let advice =
                    format!("is it an {name} server, and does it accept this host without {unsupported}?");
                os(operation, closed, Some(&advice))
            }
            _ => os(operation, error, None),
        }
    }

    /// Connects to `HOST:PORT`.
    pub(crate) fn connect(&self, spec: &DeviceSpec, place: &str) -> Result<TcpStream, DeviceError> {
        let timeout = spec.options.duration(TIMEOUT.name);
        let addresses = sys::address::resolve(place).map_err(|error| self.absent(spec, error))?;
        let stream = sys::address::connect(&addresses, timeout).map_err(|error| self.absent(spec, error))?;
        // Without these, a dead network is found much later.
        let _ = tune(&stream);
        Ok(stream)
    }
}

/// Decodes `%20` in the path of a URI (RFC 3986, 2.1).
pub(crate) fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        match first {
            b'%' => {
                let (code, behind) = rest.split_at_checked(2)?;
                let code =
                    str::from_utf8(code).ok().filter(|code| code.bytes().all(|b| b.is_ascii_hexdigit()))?;
                bytes.push(u8::from_str_radix(code, 16).ok()?);
                rest = behind;
            }
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// Lets the kernel ask an idle connection. `crates/devices/src/sessions/silence.rs` watches one with data on the way.
fn tune(socket: impl AsFd) -> rustix::io::Result<()> {
    let (idle, interval, count) = KEEPALIVE;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, idle)?;
    sockopt::set_tcp_keepintvl(&socket, interval)?;
    sockopt::set_tcp_keepcnt(&socket, count)
}

/// Lets the kernel keep a connection through a failure of the network, also an idle one: the limit replaces the number of unanswered
/// questions and of retransmissions. The server may wait for this connection for ever, and let in no other one.
pub(crate) fn outlast(socket: impl AsFd) {
    // It fails if the connection has ended; the first use of it says so.
    let _ = sockopt::set_tcp_user_timeout(&socket, OUTLASTED.as_millis() as u32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_kernel_asks_an_idle_server_and_waits_for_a_slow_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        tune(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 0);
        outlast(&stream);
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 86_400_000);
    }
}
