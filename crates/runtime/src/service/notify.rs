//! What a service manager is told: that the service is up, reads its file again, ends, lives (`sd_notify(3)`).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager that started this process, or nobody.
pub(super) struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// How often it wants to hear that the service lives.
    pub(super) watchdog: Option<Duration>,
}

impl Manager {
    /// As the environment says: `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`.
    pub(super) fn of_environment() -> Manager {
        let text = |name: &str| std::env::var(name).ok();
        let pid = std::process::id().to_string();
        let is_meant = text("WATCHDOG_PID").is_none_or(|meant| meant == pid);
        let micros =
            text("WATCHDOG_USEC").and_then(|micros| micros.parse().ok()).filter(|micros| *micros > 0);
        Manager {
            socket: text("NOTIFY_SOCKET").and_then(|place| connect(&place)),
            watchdog: micros.filter(|_| is_meant).map(Duration::from_micros),
        }
    }

    /// Tells it lines of `NAME=VALUE`. A manager that does not listen is not waited for.
    pub(super) fn tell(&self, lines: &str) {
        if let Some((socket, address)) = &self.socket {
            let _ = socket.send_to_addr(lines.as_bytes(), address);
        }
    }
}

/// A path, or `@` and a name in the abstract namespace.
fn connect(place: &str) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match place.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(place),
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    Some((socket, address.ok()?))
}
