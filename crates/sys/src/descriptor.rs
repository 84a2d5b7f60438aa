//! Inherited descriptors, and descriptors sent over Unix sockets (`SCM_RIGHTS`, `unix(7)`).

use bytes::BytesMut;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most descriptors in one [`send_with`]: those that the kernel accepts (`SCM_MAX_FD`).
pub const DESCRIPTORS_MAX: usize = 253;
/// The most bytes that one [`receive_with`] requests.
const RECEIVED_BYTES_MAX: usize = 64 << 10;

/// Duplicates the inherited descriptor with this number, close-on-exec. Fails with `EBADF` if it is not open.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the number goes only to the kernel, which replies `EBADF` if it is not open.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    match copy {
        // SAFETY: the kernel has just made this descriptor, and no other code knows it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(copy) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The descriptors that [`take_over`] has returned, one bit each.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Takes over descriptor `number` (below 64), which this process inherited and nothing else uses, without a copy. Fails
/// with `EBADF` if it is not open, or was taken over before.
pub fn take_over(number: RawFd) -> io::Result<OwnedFd> {
    let bad = || io::Error::from_raw_os_error(libc::EBADF);
    let bit = 1_u64.checked_shl(number as u32).ok_or_else(bad)?;
    // SAFETY: the call changes a flag of the descriptor, if it is open.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    if TAKEN.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
        return Err(bad());
    }
    // SAFETY: it is open. The program that started this one gave it, and this is its first owner here.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Returns whether both directions of a connection have ended. Any descriptor of it may have ended them (`POLLHUP`, `poll(2)`).
pub fn is_hung_up(connection: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&connection, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().contains(PollFlags::HUP)
}

/// Sends like [`send_with`], for a process that may not call `sendmsg(2)`.
pub type Sender = fn(BorrowedFd<'_>, &[u8], &[OwnedFd]) -> io::Result<usize>;

/// The sender of this process; without one, it sends itself.
static SENDER: OnceLock<Sender> = OnceLock::new();

/// Makes all later [`pass`] of this process use `sender`. Only the first call has an effect.
pub fn use_sender(sender: Sender) {
    SENDER.get_or_init(|| sender);
}

/// As [`send_with`], also in a process whose sandbox forbids `sendmsg(2)` on this socket ([`use_sender`]).
pub fn pass(socket: impl AsFd, bytes: &[u8], descriptors: &[OwnedFd]) -> io::Result<usize> {
    match SENDER.get() {
        Some(sender) if !descriptors.is_empty() => sender(socket.as_fd(), bytes, descriptors),
        _ => send_with(socket, bytes, descriptors),
    }
}

/// Sends `bytes` over a Unix stream, without blocking and without `SIGPIPE`, with copies of `descriptors`
/// attached to the first byte. Returns the number of bytes sent. Errors are those of `sendmsg(2)`: a full
/// socket is `WouldBlock`, more than [`DESCRIPTORS_MAX`] descriptors is `InvalidInput`.
pub fn send_with(socket: impl AsFd, bytes: &[u8], descriptors: &[OwnedFd]) -> io::Result<usize> {
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    if descriptors.is_empty() {
        // A locked worker may not call `sendmsg(2)` on most sockets.
        return Ok(retry_on_intr(|| rustix::net::send(&socket, bytes, flags))?);
    }
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags))?)
}

/// Receives from a Unix stream and appends to `into`, without blocking: at most `bytes`, with the attached
/// descriptors, close-on-exec. Without a vector for descriptors, the kernel closes them. Returns 0 at the end
/// of the stream; fails with `WouldBlock` if nothing is there.
pub fn receive_with(
    socket: impl AsFd,
    into: &mut BytesMut,
    bytes: usize,
    descriptors: Option<&mut VecDeque<OwnedFd>>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = match descriptors.is_some() {
        true => RecvAncillaryBuffer::new(&mut space),
        false => RecvAncillaryBuffer::default(),
    };
    let start = into.len();
    into.resize(start + bytes.min(RECEIVED_BYTES_MAX), 0);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received =
        retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(&mut into[start..])], &mut control, flags));
    into.truncate(start + received.as_ref().map_or(0, |received| received.bytes));
    let received = received?;
    if let Some(descriptors) = descriptors {
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(given) = message {
                descriptors.extend(given);
            }
        }
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_connection_that_any_descriptor_has_ended_is_hung_up() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let copy = ours.try_clone().unwrap();
        assert!(!is_hung_up(&copy));
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(!is_hung_up(&copy));
        ours.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(is_hung_up(&copy));
    }

    #[test]
    fn descriptors_arrive_with_their_first_byte_and_only_on_request() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut here, there) = UnixStream::pair().unwrap();
        assert_eq!(send_with(&ours, b"abc", &[there.into()]).unwrap(), 3);
        let (mut bytes, mut descriptors) = (BytesMut::from(&b"_"[..]), VecDeque::new());
        assert_eq!(receive_with(&theirs, &mut bytes, 1, Some(&mut descriptors)).unwrap(), 1);
        assert_eq!(descriptors.len(), 1);
        assert_eq!(receive_with(&theirs, &mut bytes, 9, Some(&mut descriptors)).unwrap(), 2);
        assert_eq!((&bytes[..], descriptors.len()), (&b"_abc"[..], 1));
        let mut there = UnixStream::from(descriptors.pop_front().unwrap());
        there.write_all(b"x").unwrap();
        drop(there);
        let mut heard = Vec::new();
        here.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"x");
        let (mut here, there) = UnixStream::pair().unwrap();
        send_with(&ours, b"d", &[there.into()]).unwrap();
        assert_eq!(receive_with(&theirs, &mut bytes, 9, None).unwrap(), 1);
        assert_eq!(here.read(&mut [0]).unwrap(), 0, "descriptors without a receiver are closed");
        let error = receive_with(&theirs, &mut bytes, 9, None).unwrap_err();
        assert_eq!((error.kind(), bytes.len()), (io::ErrorKind::WouldBlock, 5));
        drop(ours);
        assert_eq!(receive_with(&theirs, &mut bytes, 9, None).unwrap(), 0);
    }

    #[test]
    fn an_inherited_descriptor_must_be_open() {
        assert!(inherited(1).is_ok());
        for number in [-1, 1 << 20] {
            assert_eq!(inherited(number).unwrap_err().raw_os_error(), Some(libc::EBADF));
        }
    }
}
