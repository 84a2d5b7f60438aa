//! Requests to block devices that are ioctls (`linux/fs.h`).

use crate::ioctl::{code, ioctl_number, ioctl_pair};
use rustix::io::{Errno, retry_on_intr};
use std::ops::Range;
use std::os::fd::AsFd;

const GROUP: u8 = 0x12;
const BLOCK_SIZE: u32 = 104;
const DISCARD: u32 = 119;

/// The ioctls of a user of disks: the size of a block (`BLKSSZGET`), and [`discard`].
pub const IOCTLS: &[u32] = &[code(0, GROUP, BLOCK_SIZE), code(0, GROUP, DISCARD)];

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
