//! Descriptors that a process was started with, and those that it is sent (SCM_RIGHTS, `unix(7)`).

use bytes::BytesMut;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

/// Most descriptors that one [`send_with`] takes.
pub const DESCRIPTORS_MAX: usize = 64;
/// Bytes that one [`receive_with`] asks for, at most.
const RECEIVED_BYTES_MAX: usize = 64 << 10;

/// A second handle, not inherited further, on the open descriptor of this number. EBADF if there is none.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the number only goes to the kernel, which answers EBADF if it is no open descriptor.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    match copy {
        // SAFETY: the kernel has just made this descriptor, and nobody else knows of it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(copy) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends `bytes` over a Unix stream, without waiting and without SIGPIPE, and copies of `descriptors` with the first
/// of them. Says how many bytes went. Errors as of `sendmsg(2)`; no room is `WouldBlock`, more than
/// [`DESCRIPTORS_MAX`] is `InvalidInput`.
pub fn send_with(socket: impl AsFd, bytes: &[u8], descriptors: &[OwnedFd]) -> io::Result<usize> {
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags))?)
}

/// Receives of a Unix stream behind what `into` holds, without waiting: at most `bytes`, and the descriptors that came
/// with them, closed on exec. Without a place for descriptors the kernel closes them. 0 is the end of the stream;
/// nothing now is `WouldBlock`.
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
    fn descriptors_arrive_with_the_first_of_their_bytes_and_only_where_they_are_wanted() {
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
        assert_eq!(here.read(&mut [0]).unwrap(), 0, "what nobody takes is closed");
        let error = receive_with(&theirs, &mut bytes, 9, None).unwrap_err();
        assert_eq!((error.kind(), bytes.len()), (io::ErrorKind::WouldBlock, 5));
        drop(ours);
        assert_eq!(receive_with(&theirs, &mut bytes, 9, None).unwrap(), 0);
    }

    #[test]
    fn what_is_open_is_handed_out_and_what_is_not_is_refused() {
        assert!(inherited(1).is_ok());
        for number in [-1, 1 << 20] {
            assert_eq!(inherited(number).unwrap_err().raw_os_error(), Some(libc::EBADF));
        }
    }
}
