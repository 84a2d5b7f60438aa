//! Kernel notifications of added and removed devices (`NETLINK_KOBJECT_UEVENT`, the kernel's
//! `driver-api/driver-model` and `lib/kobject_uevent.c`).

use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The multicast group of the kernel; udev sends its own messages to another one.
const KERNEL_GROUP: u32 = 1;
/// The kernel's longest message (`UEVENT_BUFFER_SIZE`), and its header.
const MESSAGE_BYTES_MAX: usize = 8 << 10;

/// A device was added, removed or changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uevent {
    /// `add`, `remove`, `change`...
    pub action: String,
    /// `input`, `tty`, `video4linux`...
    pub subsystem: String,
    /// Its node below `/dev`; empty if it has none.
    pub node: String,
}

/// A socket that receives them.
#[derive(Debug)]
pub struct Uevents {
    socket: OwnedFd,
}

impl Uevents {
    /// Starts to listen. In a network namespace other than the initial one, nothing may ever arrive.
    pub fn open() -> io::Result<Uevents> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(KOBJECT_UEVENT))?;
        bind(&socket, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
        Ok(Uevents { socket })
    }

    /// Returns the next notification that is there now. Skips messages of other processes and invalid ones.
    /// After an overflow of the kernel's buffer, it returns a change of no particular device.
    pub fn poll(&self) -> Option<Uevent> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        loop {
            let (count, from) = match recvfrom(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((count, _, from)) => (count, from),
                Err(rustix::io::Errno::NOBUFS) => {
                    let (action, nothing) = ("change".into(), String::new());
                    return Some(Uevent { action, subsystem: nothing.clone(), node: nothing });
                }
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return None,
            };
            let sender = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
            // The kernel's port is 0; no process can have it.
            let is_kernel = sender.is_some_and(|sender| sender.pid() == 0);
            if let Some(event) = bytes.get(..count).filter(|_| is_kernel).and_then(parse) {
                return Some(event);
            }
        }
    }
}

impl AsFd for Uevents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Parses `ACTION@PATH`, then `NAME=VALUE` fields, all ended by zeros.
fn parse(message: &[u8]) -> Option<Uevent> {
    let text = std::str::from_utf8(message).ok()?;
    let mut lines = text.split('\0');
    let (action, _) = lines.next()?.split_once('@')?;
    let mut event = Uevent { action: action.into(), subsystem: String::new(), node: String::new() };
    for line in lines {
        match line.split_once('=') {
            Some(("SUBSYSTEM", subsystem)) => event.subsystem = subsystem.into(),
            Some(("DEVNAME", node)) => event.node = node.into(),
            _ => {}
        }
    }
    Some(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_of_the_kernel_are_parsed() {
        let message =
            b"add@/devices/virtual/input/input7/event5\0ACTION=add\0SUBSYSTEM=input\0DEVNAME=input/event5\0";
        let event = Uevent { action: "add".into(), subsystem: "input".into(), node: "input/event5".into() };
        assert_eq!(parse(message), Some(event));
        for wrong in [&b""[..], b"libudev\0", b"\xff@", b"add"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn messages_of_other_processes_are_ignored() {
        let Ok(uevents) = Uevents::open() else {
            eprintln!("SKIPPED: no netlink socket for uevents here");
            return;
        };
        let flags = SocketFlags::CLOEXEC;
        let liar =
            socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(KOBJECT_UEVENT)).unwrap();
        let own: SocketAddrNetlink = rustix::net::getsockname(&uevents.socket).unwrap().try_into().unwrap();
        let message = b"add@/devices/x\0ACTION=add\0SUBSYSTEM=input\0DEVNAME=input/event99\0";
        let sent = rustix::net::sendto(
            &liar,
            message,
            rustix::net::SendFlags::empty(),
            &SocketAddrNetlink::new(own.pid(), 0),
        );
        // If the kernel lets no process send it, there is nothing to test.
        if sent.is_ok() {
            while let Some(event) = uevents.poll() {
                assert_ne!(event.node, "input/event99");
            }
        }
    }
}
