//! The acceptor: a thread of the broker that accepts clients, and keeps the descriptors of their connections for the next worker.
//!
//! The worker has one end of a socket pair, with one message a packet:
//!
//! | direction | packet | meaning |
//! |---|---|---|
//! | worker → acceptor | [`BEGIN`], nonce: u64 | a worker begins: all connections, with this nonce |
//! | worker → acceptor | [`CLOSED`], number: u8, id: u64 | the connection is over |
//! | acceptor → worker | nonce: u64, number: u8, id: u64; socket, read end and write end of a pipe | a connection |
//!
//! A worker ignores packets with another nonce: they were for the worker before it. The acceptor reads no byte of a client. It exits when
//! all copies of the worker's end are closed; then the connections close, too.

use super::memory::CONNECTIONS_MAX;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, accept_with, recv, socketpair};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use sys::descriptor::send_with;
use sys::poller::Poller;

/// Request of a worker: all connections.
pub(super) const BEGIN: u8 = 0;
/// A connection is over.
pub(super) const CLOSED: u8 = 1;
/// Length of a packet of the acceptor.
pub(super) const PACKET_BYTES: usize = 17;
/// Bytes of replies that wait for a client, in the pipe and in its socket. The kernel may allow less.
const REPLY_BYTES: usize = 1 << 20;

/// A connection and its pipe.
struct Kept {
    id: u64,
    /// Socket, read end, write end.
    descriptors: [OwnedFd; 3],
}

/// The end of the worker.
struct Ended;

struct Acceptor {
    listener: UnixListener,
    worker: OwnedFd,
    kept: [Option<Kept>; CONNECTIONS_MAX],
    next_id: u64,
    /// The nonce of the present worker.
    nonce: Option<u64>,
}

/// Starts the thread. Returns the worker's end of its connection.
pub(super) fn start(listener: UnixListener) -> io::Result<OwnedFd> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let (kept, poller) = (std::array::from_fn(|_| None), Poller::new()?);
    let mut acceptor = Acceptor { listener, worker: ours, kept, next_id: 1, nonce: None };
    let body = move || {
        let mut poller = poller;
        while acceptor.turn(&mut poller).is_ok() {}
    };
    std::thread::Builder::new().name("nbd".into()).spawn(body)?;
    Ok(theirs)
}

impl Acceptor {
    fn turn(&mut self, poller: &mut Poller) -> Result<(), Ended> {
        poller.register(self.worker.as_fd(), true, false);
        if self.kept.iter().any(Option::is_none) {
            poller.register(self.listener.as_fd(), true, false);
        }
        poller.wait(None).map_err(|_| Ended)?;
        while let Some((packet, count)) = self.receive()? {
            self.handle(&packet[..count]);
        }
        if poller.is_ready(self.listener.as_fd()) {
            self.accept();
        }
        Ok(())
    }

    fn receive(&self) -> Result<Option<([u8; PACKET_BYTES], usize)>, Ended> {
        let mut packet = [0; PACKET_BYTES];
        match recv(&self.worker, &mut packet[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(Ended),
            Ok((count, _)) => Ok(Some((packet, count.min(PACKET_BYTES)))),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(_) => Err(Ended),
        }
    }

    fn handle(&mut self, packet: &[u8]) {
        let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        match packet {
            [BEGIN, nonce @ ..] => {
                self.nonce = number(nonce);
                (0..CONNECTIONS_MAX).for_each(|place| self.send(place));
            }
            [CLOSED, place, id @ ..] => {
                if let Some(kept) = self.kept.get_mut(usize::from(*place)) {
                    kept.take_if(|kept| Some(kept.id) == number(id));
                }
            }
            _ => {}
        }
    }

    fn accept(&mut self) {
        let Some(place) = self.kept.iter().position(Option::is_none) else { return };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = accept_with(&self.listener, flags) else { return };
        let Ok((read, write)) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) else { return };
        // Both only save calls; the kernel limits them by itself.
        let _ = fcntl_setpipe_size(&write, REPLY_BYTES);
        let _ = set_socket_send_buffer_size(&socket, REPLY_BYTES);
        self.kept[place] = Some(Kept { id: self.next_id, descriptors: [socket, read, write] });
        self.next_id += 1;
        self.send(place);
    }

    /// Sends a connection to the worker, if there are both.
    fn send(&self, place: usize) {
        let (Some(kept), Some(nonce)) = (&self.kept[place], self.nonce) else { return };
        let packet = [&nonce.to_le_bytes()[..], &[place as u8], &kept.id.to_le_bytes()].concat();
        // It fails when nobody reads: the next worker asks again. A connection has one packet for each worker, so there is room.
        let _ = send_with(&self.worker, &packet, &kept.descriptors);
    }
}
