//! Reception with a receipt in shared memory (`recvmmsg(2)`).
//!
//! The kernel stores the number of received bytes in memory before the call returns, and a process is killed only at the return.
//! So with data and number in memory that outlives the process, the next process knows exactly which bytes have left the socket.

use crate::memory::Shared;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The length of a receipt in memory.
pub const RECEIPT_BYTES: usize = size_of::<libc::mmsghdr>() + size_of::<libc::iovec>();

const COUNT_AT: usize = std::mem::offset_of!(libc::mmsghdr, msg_len);
/// The number in a receipt of a call that has not received anything.
const PENDING: u32 = u32::MAX;

/// Prepares the receipt at `at` for one call. Returns false if it is not inside the memory.
pub fn prepare(memory: &Shared, at: usize) -> bool {
    memory.copy_in(at + COUNT_AT, &PENDING.to_ne_bytes())
}

/// Returns the number of bytes that the call with the receipt at `at` has received; `None` if it has not received any.
pub fn read(memory: &Shared, at: usize) -> Option<usize> {
    let mut count = [0; 4];
    let count = memory.copy_out(at + COUNT_AT, &mut count).then(|| u32::from_ne_bytes(count))?;
    (count != PENDING).then_some(count as usize)
}

/// Receives at most `length` bytes from a socket to `into`, without blocking, with a prepared receipt at `at`. Returns the number, 0 at
/// the end. The memory is that of one process at a time: a broker gives it to a worker after the worker before has exited.
pub fn receive(
    socket: impl AsFd,
    memory: &Shared,
    at: usize,
    into: usize,
    length: usize,
) -> io::Result<usize> {
    let outside = || io::Error::from(io::ErrorKind::InvalidInput);
    let data = memory.address(into, length).ok_or_else(outside)?;
    let vector_at = at + size_of::<libc::mmsghdr>();
    let vector = memory.address(vector_at, size_of::<libc::iovec>()).ok_or_else(outside)?;
    let header = memory.address(at, size_of::<libc::mmsghdr>()).ok_or_else(outside)?;
    if !at.is_multiple_of(align_of::<libc::mmsghdr>()) || length == 0 {
        return Err(outside());
    }
    // SAFETY: both structures are inside of the mapping, which is writable, and aligned; any bytes are valid for them. The message
    // length is not written, so a prepared one stays.
    unsafe {
        vector.cast::<libc::iovec>().write(libc::iovec { iov_base: data.cast(), iov_len: length });
        let header = header.cast::<libc::mmsghdr>();
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = vector.cast();
        message.msg_iovlen = 1;
        (&raw mut (*header).msg_hdr).write(message);
    }
    loop {
        // SAFETY: the kernel writes at most `length` bytes to `data`, and the header; both are inside of the mapping, to which no
        // reference exists.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_fd().as_raw_fd(),
                header.cast(),
                1,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        match count {
            1 => return read(memory, at).ok_or_else(|| Errno::IO.into()),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Access, create};
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_receipt_counts_the_bytes() {
        let descriptor = create("test", 4096).unwrap();
        let memory = Shared::map(&descriptor, Access::Write).unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        assert!(prepare(&memory, 64));
        let error = receive(&ours, &memory, 64, 1024, 100).unwrap_err();
        assert_eq!((error.kind(), read(&memory, 64)), (io::ErrorKind::WouldBlock, None));
        theirs.write_all(b"abcdef").unwrap();
        assert_eq!(receive(&ours, &memory, 64, 1024, 4).unwrap(), 4);
        // Another process finds both.
        let other = Shared::map(&descriptor, Access::Write).unwrap();
        let mut seen = [0; 4];
        assert!(other.copy_out(1024, &mut seen));
        assert_eq!((read(&other, 64), &seen), (Some(4), b"abcd"));
        drop(theirs);
        assert!(prepare(&memory, 64));
        assert_eq!(receive(&ours, &memory, 64, 1024, 100).unwrap(), 2);
        assert!(prepare(&memory, 64));
        assert_eq!(receive(&ours, &memory, 64, 1024, 100).unwrap(), 0);
        assert_eq!(read(&memory, 64), Some(0), "the end is not nothing");
        for (at, into) in [(4090, 0), (0, 4090), (4, 1024)] {
            assert!(receive(&ours, &memory, at, into, 100).is_err(), "{at} {into}");
        }
    }
}
