//! Sockets: receiving into memory that was never zeroed, and datagrams in batches that the kernel cuts and
//! joins (`UDP_SEGMENT` and `UDP_GRO`, `udp(7)`).

use bytes::BytesMut;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Most slices that one gathering system call takes (`UIO_MAXIOV`).
pub const SLICES_MAX: usize = 1024;

/// Most datagrams that one [`send_datagrams`] takes on every kernel that has it (`UDP_MAX_SEGMENTS`).
pub const SEGMENTS_MAX: usize = 64;

/// Numbers of `linux/udp.h`, of which libc names none for glibc.
const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;

/// Where received bytes go: behind what `buffer` holds, at most `limit` of them and never beyond its capacity.
#[derive(Debug)]
pub struct Room<'a> {
    /// Grows by what was received.
    pub buffer: &'a mut BytesMut,
    /// Most bytes to receive here.
    pub limit: usize,
}

impl Room<'_> {
    /// How many bytes fit.
    pub fn bytes(&self) -> usize {
        self.limit.min(self.buffer.capacity() - self.buffer.len())
    }

    fn iovec(&mut self) -> libc::iovec {
        let bytes = self.bytes();
        libc::iovec { iov_base: self.buffer.spare_capacity_mut().as_mut_ptr().cast(), iov_len: bytes }
    }

    /// # Safety
    /// The first `count` bytes of what [`Room::iovec`] gave have been written, and `count` is at most its
    /// length.
    unsafe fn filled(&mut self, count: usize) {
        // SAFETY: they are written and within the capacity, as the caller promises.
        unsafe { self.buffer.set_len(self.buffer.len() + count) }
    }
}

/// Receives from a stream into `rooms`, one after the other, without waiting. 0 is the end of the stream
/// (or no room). Errors as of `recvmsg(2)`; none to receive is `WouldBlock`.
pub fn receive<const N: usize>(socket: impl AsFd, mut rooms: [Room<'_>; N]) -> io::Result<usize> {
    let mut vector = rooms.each_mut().map(Room::iovec);
    // SAFETY: all zero is a valid `msghdr` of no address, no data and no control bytes.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vector.as_mut_ptr();
    header.msg_iovlen = N as _;
    let received = receive_message(socket.as_fd(), &mut header)?;
    let mut left = received;
    for room in &mut rooms {
        let here = left.min(room.bytes());
        // SAFETY: the kernel filled the rooms in order, with `received` bytes in all.
        unsafe { room.filled(here) };
        left -= here;
    }
    Ok(received)
}

/// What one call of [`receive_datagrams`] brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Bytes appended to the buffer.
    pub bytes: usize,
    /// Bytes in each datagram but the last, which may be shorter.
    pub segment: usize,
    /// Whether there was more than fitted; what was over is lost.
    pub truncated: bool,
}

/// Room for the one control message that is expected, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Receives one datagram, or several of one size that the kernel joined (see [`join_datagrams`]), behind what
/// `into` holds, without waiting. 64 KiB of spare capacity hold whatever comes.
pub fn receive_datagrams(socket: impl AsFd, into: &mut BytesMut) -> io::Result<Received> {
    let mut room = Room { buffer: into, limit: usize::MAX };
    let mut vector = [room.iovec()];
    let mut control = Control([0; 64]);
    // SAFETY: all zero is a valid `msghdr` of no address, no data and no control bytes.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vector.as_mut_ptr();
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len() as _;
    let bytes = receive_message(socket.as_fd(), &mut header)?.min(room.bytes());
    // SAFETY: the kernel wrote `bytes` bytes from the start of the room.
    unsafe { room.filled(bytes) };
    let segment = segment_size(&header).filter(|size| *size > 0).unwrap_or(bytes);
    Ok(Received { bytes, segment, truncated: header.msg_flags & libc::MSG_TRUNC != 0 })
}

fn receive_message(socket: BorrowedFd<'_>, header: &mut libc::msghdr) -> io::Result<usize> {
    loop {
        // SAFETY: every pointer in the header is to memory of the caller's that outlives the call, with its
        // length beside it; the kernel writes only there.
        let count = unsafe { libc::recvmsg(socket.as_raw_fd(), header, libc::MSG_DONTWAIT) };
        match usize::try_from(count) {
            Ok(count) => return Ok(count),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

fn segment_size(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the kernel filled the header's control bytes, which are alive; the macros stay within them, and
    // a message of this level, type and length holds a C int at its data, which may lie unaligned.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(found) = message.as_ref() {
            if found.cmsg_level == libc::SOL_UDP
                && found.cmsg_type == UDP_GRO
                && found.cmsg_len >= libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as usize
            {
                let size = libc::CMSG_DATA(message).cast::<libc::c_int>().read_unaligned();
                return usize::try_from(size).ok();
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    None
}

/// Sends `slices` as one run of bytes of a stream, or as one datagram, without waiting and without SIGPIPE.
/// Says how many bytes went. Errors as of `sendmsg(2)`; no room is `WouldBlock`.
pub fn send(socket: impl AsFd, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent =
        rustix::io::retry_on_intr(|| sendmsg(&socket, slices, &mut SendAncillaryBuffer::default(), flags))?;
    Ok(sent)
}

/// Sends `slices` as datagrams of `segment` bytes each, the last of what is left, in one system call: all or
/// none. At most [`SEGMENTS_MAX`] of them and 64 KiB. A kernel or device that cannot answers EIO or EINVAL.
pub fn send_datagrams(socket: impl AsFd, slices: &[IoSlice<'_>], segment: u16) -> io::Result<usize> {
    let mut control = Control([0; 64]);
    // SAFETY: all zero is a valid `msghdr` of no address, no data and no control bytes.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = slices.as_ptr().cast_mut().cast();
    header.msg_iovlen = slices.len() as _;
    header.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: the control buffer is larger than one message of two bytes and aligned for its header; `IoSlice`
    // is guaranteed to be laid out like `iovec`, and the kernel only reads through it.
    let count = unsafe {
        header.msg_controllen = libc::CMSG_SPACE(size_of::<u16>() as u32) as _;
        let message = libc::CMSG_FIRSTHDR(&header);
        (*message).cmsg_level = libc::SOL_UDP;
        (*message).cmsg_type = UDP_SEGMENT;
        (*message).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
        libc::CMSG_DATA(message).cast::<u16>().write_unaligned(segment);
        libc::sendmsg(socket.as_fd().as_raw_fd(), &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Lets the kernel join datagrams of one size that came together (UDP_GRO), for [`receive_datagrams`].
/// Errors as of `setsockopt(2)` where the kernel has no such thing.
pub fn join_datagrams(socket: impl AsFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option's value lives through the call, and its length is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_UDP,
            UDP_GRO,
            std::ptr::from_ref(&on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
