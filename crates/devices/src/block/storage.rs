//! The bytes of a disk: a block device or a file.

use super::discovery::is_another_medium;
use bytes::Bytes;
use contract::Body;
use rustix::buffer::spare_capacity;
use rustix::fs::{FallocateFlags, FileType, SeekFrom, fallocate, fdatasync, fstat, ioctl_blksszget, seek};
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags, pread, preadv2, pwritev2, retry_on_intr};
use smallvec::SmallVec;
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::formats::block::{Command, Failure, Request};

/// Zeroes that are written at once to a disk without a request for them.
static ZEROES: [u8; 256 << 10] = [0; 256 << 10];
/// The most zeroes of one call. A dropped partner waits for the calls that run.
const ZEROES_BYTES_MAX: u64 = 16 << 20;

/// The unit of a block device that does not tell its block.
const SECTOR_BYTES: u64 = 512;

/// An open disk. All calls may run at the same time.
#[derive(Debug)]
pub(super) struct Storage {
    disk: OwnedFd,
    /// Its size and its instance when it was described.
    size_bytes: u64,
    instance: u64,
    /// The block of a block device, in bytes; `None` for a file.
    block_bytes: Option<u64>,
    /// Nobody waits for the requests any more.
    is_stopped: AtomicBool,
}

/// The failure of a request.
fn failure(error: Errno) -> Failure {
    match error {
        Errno::PERM | Errno::ACCESS | Errno::ROFS | Errno::BADF => Failure::Forbidden,
        Errno::NOMEM => Failure::NoMemory,
        Errno::INVAL => Failure::Invalid,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Failure::NoSpace,
        Errno::OPNOTSUPP | Errno::NOSYS => Failure::Unsupported,
        Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM => Failure::Gone,
        _ => Failure::Device,
    }
}

impl Storage {
    pub(super) fn new(disk: OwnedFd, size_bytes: u64, instance: u64) -> Storage {
        let is_device =
            fstat(&disk).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice);
        let block_bytes = is_device.then(|| ioctl_blksszget(&disk).map_or(SECTOR_BYTES, u64::from));
        Storage { disk, size_bytes, instance, block_bytes, is_stopped: AtomicBool::new(false) }
    }

    /// Ends the requests that run, as soon as possible. Their results have no meaning.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    fn check_stopped(&self) -> Result<(), Errno> {
        if self.is_stopped.load(Ordering::Relaxed) { Err(Errno::CANCELED) } else { Ok(()) }
    }

    /// Returns whether the disk has lost bytes. The kernel gives a disk that is unplugged the size 0; no call on it says so, and each
    /// fails as a broken disk does: a read returns nothing, a write finds no space, a trim an invalid range.
    fn has_shrunk(&self) -> bool {
        seek(&self.disk, SeekFrom::End(0)).is_ok_and(|size| size < self.size_bytes)
    }

    /// Returns whether the drive has another medium. The open descriptor works on with it.
    fn has_another_medium(&self) -> bool {
        self.block_bytes.is_some() && is_another_medium(&self.disk, self.instance)
    }

    fn failure(&self, error: Errno) -> Failure {
        if self.has_shrunk() || self.has_another_medium() { Failure::Gone } else { failure(error) }
    }

    /// Reads data that need no waiting; `None` if any of them do.
    pub(super) fn read_at_once(&self, request: &Request) -> Option<Bytes> {
        if self.has_another_medium() {
            return None;
        }
        let mut data = vec![0; request.length as usize];
        let count =
            preadv2(&self.disk, &mut [IoSliceMut::new(&mut data)], request.offset, ReadWriteFlags::NOWAIT);
        (count == Ok(data.len())).then(|| data.into())
    }

    /// Does a request that the disk has the range for. Returns the data of a read.
    pub(super) fn perform(&self, request: &Request, data: &Body) -> Result<Bytes, Failure> {
        let (offset, length) = (request.offset, request.length);
        if self.has_another_medium() {
            return Err(Failure::Gone);
        }
        let done = match request.command {
            Command::Read => return self.read(offset, length as usize).map_err(|error| self.failure(error)),
            Command::Write => self.write(offset, data, request.force),
            Command::Flush => self.flush(),
            Command::Trim => self.trim(request).and_then(|()| self.settle(request.force)),
            Command::Zeroes => self.zero(request).and_then(|()| self.settle(request.force)),
        };
        done.map(|()| Bytes::new()).map_err(|error| self.failure(error))
    }

    fn read(&self, offset: u64, length: usize) -> Result<Bytes, Errno> {
        let mut data = Vec::with_capacity(length);
        while data.len() < length {
            let mut rest = std::mem::take(&mut data);
            let at = offset + rest.len() as u64;
            // The vector may have more room than was asked for.
            let count = retry_on_intr(|| pread(&self.disk, spare_capacity(&mut rest), at))?;
            data = rest;
            if count == 0 {
                return Err(Errno::IO);
            }
        }
        data.truncate(length);
        Ok(data.into())
    }

    fn write(&self, offset: u64, data: &Body, force: bool) -> Result<(), Errno> {
        let flags = if force { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
        let mut written = 0;
        while written < data.len() {
            self.check_stopped()?;
            let mut slices: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
            data.io_slices(written, &mut slices);
            let at = offset + written as u64;
            match retry_on_intr(|| pwritev2(&self.disk, &slices, at, flags))? {
                0 => return Err(Errno::NOSPC),
                count => written += count,
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Errno> {
        retry_on_intr(|| fdatasync(&self.disk))
    }

    fn settle(&self, force: bool) -> Result<(), Errno> {
        if force { self.flush() } else { Ok(()) }
    }

    fn trim(&self, request: &Request) -> Result<(), Errno> {
        let range = request.offset..request.offset + u64::from(request.length);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let trimmed = match self.block_bytes.map(|block_bytes| whole_blocks(range, block_bytes)) {
            Some(blocks) if blocks.is_empty() => return Ok(()),
            // The kernel writes zeroes for `fallocate`, or refuses it, where a disk discards and has no command for zeroes.
            Some(blocks) => sys::disk::discard(&self.disk, blocks),
            None => retry_on_intr(|| fallocate(&self.disk, flags, request.offset, request.length.into())),
        };
        match trimmed {
            // A trim is advice: a disk that cannot release space keeps it.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) if !self.has_shrunk() => Ok(()),
            other => other,
        }
    }

    fn zero(&self, request: &Request) -> Result<(), Errno> {
        let end = request.offset + u64::from(request.length);
        let mut at = request.offset;
        while at < end {
            self.check_stopped()?;
            let length = ZEROES_BYTES_MAX.min(end - at);
            self.zero_piece(at, length, request.keep_space)?;
            at += length;
        }
        Ok(())
    }

    fn zero_piece(&self, offset: u64, length: u64, keep_space: bool) -> Result<(), Errno> {
        let (hole, range) = (FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE);
        let ways = if keep_space { &[range][..] } else { &[hole, range] };
        for way in ways {
            let flags = *way | FallocateFlags::KEEP_SIZE;
            match retry_on_intr(|| fallocate(&self.disk, flags, offset, length)) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
                other => return other,
            }
        }
        let mut done = 0;
        while done < length as usize {
            let piece = &ZEROES[..ZEROES.len().min(length as usize - done)];
            self.write(offset + done as u64, &Body::from(Bytes::from_static(piece)), false)?;
            done += piece.len();
        }
        Ok(())
    }
}

/// Returns the blocks that lie in a range of bytes completely.
fn whole_blocks(range: Range<u64>, block_bytes: u64) -> Range<u64> {
    range.start.next_multiple_of(block_bytes)..range.end / block_bytes * block_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trim_of_a_block_device_keeps_the_blocks_at_its_ends() {
        assert_eq!(whole_blocks(1..8193, 4096), 4096..8192);
        assert_eq!(whole_blocks(4096..8192, 4096), 4096..8192);
        assert!(whole_blocks(1..4097, 4096).is_empty() && whole_blocks(1..4000, 4096).is_empty());
    }
}
