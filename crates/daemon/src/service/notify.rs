//! Notifications to the service manager (`sd_notify(3)`): ready, reloading, stopping, watchdog.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager that started this process, if there is one.
pub(super) struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// The interval within which the manager expects a sign of life.
    pub(super) watchdog: Option<Duration>,
}

impl Manager {
    /// Reads the environment: `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`.
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

    /// Sends lines of `NAME=VALUE`. Does not block if the manager does not read.
    pub(super) fn notify(&self, lines: &str) {
        if let Some((socket, address)) = &self.socket {
            let _ = socket.send_to_addr(lines.as_bytes(), address);
        }
    }
}

/// Connects to a path, or to a name in the abstract namespace after `@`.
fn connect(place: &str) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match place.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(place),
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    Some((socket, address.ok()?))
}
