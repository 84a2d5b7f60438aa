//! Requests to block devices that are ioctls (`linux/fs.h`).

use crate::ioctl::{READ, answer, code, ioctl_number, ioctl_pair, ioctl_struct};
use rustix::io::{Errno, retry_on_intr};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

const GROUP: u8 = 0x12;
const READ_ONLY: u32 = 94;
const BLOCK_SIZE: u32 = 104;
const DISCARD: u32 = 119;
const SEQUENCE: u32 = 128;

/// The ioctls of a user of disks: the size of a block (`BLKSSZGET`), [`discard`] and [`sequence`].
pub const IOCTLS: &[u32] =
    &[code(0, GROUP, BLOCK_SIZE), code(0, GROUP, DISCARD), code(READ, GROUP, SEQUENCE)];

/// Returns the number that the kernel has given to the medium of a block device (`BLKGETDISKSEQ`). Each medium has a higher one than those
/// before it, on every drive, and a partition has that of its disk. `None` for a file, and from a kernel before Linux 5.15.
pub fn sequence(disk: impl AsFd) -> Option<u64> {
    let mut sequence = 0u64;
    // SAFETY: the kernel writes one number of 64 bits.
    let asked = unsafe { ioctl_struct(disk.as_fd(), GROUP, READ, SEQUENCE, &mut sequence) };
    asked.ok().map(|_| sequence)
}

/// Returns whether the kernel refuses writes to a block device (`BLKROGET`). With most drivers it can be opened for writing all the same.
pub fn is_read_only(disk: impl AsFd) -> bool {
    let mut is_read_only: libc::c_int = 0;
    let (raw, request) = (disk.as_fd().as_raw_fd(), ioctl_number(0, GROUP, READ_ONLY, 0));
    // SAFETY: the kernel writes one number of this type.
    let asked = unsafe { libc::ioctl(raw, request, std::ptr::from_mut(&mut is_read_only)) };
    answer(asked).is_ok() && is_read_only != 0
}

/// Releases the space of whole blocks of a block device, whose content is undefined then (`BLKDISCARD`).
pub fn discard(disk: impl AsFd, range: Range<u64>) -> Result<(), Errno> {
    let request = ioctl_number(0, GROUP, DISCARD, 0);
    let pair = [range.start, range.end.saturating_sub(range.start)];
    retry_on_intr(|| {
        // SAFETY: the kernel reads two numbers of 64 bits: start and length.
        unsafe { ioctl_pair(disk.as_fd(), request, &pair) }
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    })
    .map(drop)
}
