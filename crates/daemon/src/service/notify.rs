//! Notifications to the service manager (`sd_notify(3)`): ready, reloading, stopping, watchdog; and the descriptor that it
//! keeps for the next program.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;
use sys::activation::STORED;

/// Timeout for the manager to read what it is told, in seconds.
const BARRIER_S: i64 = 5;

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

impl Manager {
    /// Lets the manager keep a descriptor for the next program.
    pub(super) fn store(&self, descriptor: OwnedFd) -> io::Result<()> {
        let (_, address) = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(address)?;
        // Without FDPOLL=0 the manager drops a socket whose other end is closed.
        let words = format!("FDSTORE=1\nFDNAME={STORED}\nFDPOLL=0");
        sys::descriptor::send_with(&socket, words.as_bytes(), &[descriptor])?;
        // The manager closes the pipe once it has read everything before: this process may exit then.
        let (end, given) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        sys::descriptor::send_with(&socket, b"BARRIER=1", &[given])?;
        let timeout = Timespec { tv_sec: BARRIER_S, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::new(&end, PollFlags::empty())], Some(&timeout))?;
        Ok(())
    }

    /// Makes the manager forget the descriptor.
    pub(super) fn forget_stored(&self) {
        self.notify(&format!("FDSTOREREMOVE=1\nFDNAME={STORED}"));
    }

    /// Returns whether there is a manager.
    pub(super) fn is_there(&self) -> bool {
        self.socket.is_some()
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
