//! Kernel notifications of changed addresses, routes and interfaces (`rtnetlink(7)`).

use crate::poller::Poller;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The groups of interfaces, and of addresses, routes and rules of IPv4 and IPv6. An interface that goes down removes its
/// routes of IPv4 without a notification of their own.
const GROUPS: u32 = 1 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 1 << 18;
/// The rest of a longer message is not needed.
const MESSAGE_BYTES: usize = 64;

/// A socket that receives them.
#[derive(Debug)]
pub struct RouteChanges {
    socket: OwnedFd,
}

impl RouteChanges {
    /// Starts to listen.
    pub fn open() -> io::Result<RouteChanges> {
        // `NETLINK_ROUTE` is protocol 0.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(RouteChanges { socket })
    }

    /// Returns true if there were notifications since the last call. They are hints only: another process may have sent
    /// them.
    pub fn take(&self) -> bool {
        let mut has_changed = false;
        let mut bytes = [0; MESSAGE_BYTES];
        loop {
            match recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                // After an overflow some notifications are missing.
                Ok(_) | Err(rustix::io::Errno::NOBUFS) => has_changed = true,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return has_changed,
            }
        }
    }
}

impl AsFd for RouteChanges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Interval between two checks of this host's address: while its user is awake, and at rest without notifications.
const CHECK_NS: [u64; 2] = [100_000_000, 5_000_000_000];
/// A network settles for so long after a change of addresses or routes.
const SETTLING_NS: u64 = 3_000_000_000;
const NEVER: u64 = u64::MAX;

/// Decides when a host checks its address towards a peer: whenever it is awake, and after the kernel has reported a change of
/// addresses or routes. Times are those of the boot clock.
#[derive(Debug)]
pub struct AddressWatch {
    /// `None` if the kernel does not report changes.
    changes: Option<RouteChanges>,
    next_ns: u64,
    settles_ns: u64,
}

impl Default for AddressWatch {
    fn default() -> AddressWatch {
        AddressWatch { changes: RouteChanges::open().ok(), next_ns: 0, settles_ns: 0 }
    }
}

impl AddressWatch {
    /// Returns true if a check is due, and schedules the next one.
    pub fn is_due(&mut self, poller: &Poller, now_ns: u64) -> bool {
        if self.changes.as_ref().is_some_and(|changes| poller.is_ready(changes.as_fd()) && changes.take()) {
            (self.next_ns, self.settles_ns) = (now_ns, now_ns.saturating_add(SETTLING_NS));
        }
        let is_due = now_ns >= self.next_ns;
        if is_due {
            self.next_ns = now_ns.saturating_add(CHECK_NS[0]);
        }
        is_due
    }

    /// Registers with the poller; returns the time of the next check that needs a wake-up.
    pub fn register(&self, is_resting: bool, poller: &mut Poller) -> u64 {
        self.changes.iter().for_each(|changes| poller.register(changes.as_fd(), true, false));
        match (&self.changes, is_resting) {
            (_, false) => self.next_ns,
            (Some(_), true) if self.next_ns >= self.settles_ns => NEVER,
            (Some(_), true) => self.next_ns,
            (None, true) => self.next_ns.saturating_add(CHECK_NS[1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_to_the_socket_is_a_change_once() {
        let changes = RouteChanges::open().unwrap();
        while changes.take() {}
        let own: SocketAddrNetlink = rustix::net::getsockname(&changes.socket).unwrap().try_into().unwrap();
        let (flags, to) = (SocketFlags::CLOEXEC, SocketAddrNetlink::new(own.pid(), 0));
        let other = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, None).unwrap();
        // If the kernel lets no process send it, there is nothing to test.
        if rustix::net::sendto(&other, &[0; 200], rustix::net::SendFlags::empty(), &to).is_ok() {
            assert!(changes.take() && !changes.take());
        }
    }

    #[test]
    fn a_host_at_rest_checks_its_address_after_a_change_only() {
        let mut watch = AddressWatch::default();
        let mut poller = Poller::new().unwrap();
        assert!(watch.is_due(&poller, 1) && !watch.is_due(&poller, 2));
        let due_ns = watch.register(false, &mut poller);
        assert_eq!((due_ns, watch.register(true, &mut poller)), (1 + CHECK_NS[0], NEVER));
        assert!(watch.is_due(&poller, due_ns));
        let mut unaware = AddressWatch { changes: None, next_ns: 0, settles_ns: 0 };
        assert!(unaware.is_due(&poller, 1));
        assert_eq!(unaware.register(true, &mut poller), 1 + CHECK_NS[0] + CHECK_NS[1]);
    }
}
