//! Shared memory (`memfd_create(2)`), in types that restrict its use.
//!
//! - [`Shared`] may be written by another process at any moment. It is copied in and out, or accessed as atomic
//!   words, and never exposed as a slice. [`Words`] is such memory that consists only of words.
//! - [`Region`] can be written by this process alone; the kernel enforces that (`F_SEAL_FUTURE_WRITE`,
//!   `fcntl(2)`).
//! - [`Lent`] is such memory in another process: read-only, and valid as long as its owner keeps its promise.
//!
//! No process can shrink this memory (`F_SEAL_SHRINK`), so no access faults.

use bytes::{Bytes, BytesMut};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Makes shared memory of a fixed size, filled with zeros. Pages are allocated on first use. `name` appears in
/// `/proc/PID/maps`.
pub fn create(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let descriptor = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&descriptor, bytes as u64)?;
    fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(descriptor)
}

/// The access rights of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Read and write.
    Write,
}

/// A whole file, mapped into this process.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory by address, and it is unmapped only when its one owner is dropped.
unsafe impl Send for Mapping {}
// SAFETY: as above; the code that accesses memory through it guarantees that its access is sound.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(descriptor: BorrowedFd<'_>, access: Access) -> io::Result<Mapping> {
        if !fcntl_get_seals(descriptor)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "memory that somebody may take away"));
        }
        let bytes = usize::try_from(fstat(descriptor)?.st_size).unwrap_or(0);
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: the kernel chooses the address, so no other mapping is replaced.
        let start =
            unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, descriptor, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Mapping { start, bytes })
    }

    /// The address of a range, if the range is inside the mapping.
    #[inline]
    fn at(&self, offset: usize, length: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        // SAFETY: the offset is inside the mapping, or at its end.
        (end <= self.bytes).then(|| unsafe { self.start.as_ptr().add(offset) })
    }

    /// The offset of a slice inside the mapping.
    #[inline]
    fn offset_of(&self, slice: &[u8]) -> Option<usize> {
        let offset = (slice.as_ptr() as usize).checked_sub(self.start.as_ptr() as usize)?;
        (offset.checked_add(slice.len())? <= self.bytes).then_some(offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new`, and no borrow outlives it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Memory that other processes may write at any moment.
#[derive(Debug)]
pub struct Shared {
    mapping: Mapping,
    access: Access,
}

impl Shared {
    /// Maps all of `descriptor`, which comes from [`create`] or has the same seals.
    pub fn map(descriptor: impl AsFd, access: Access) -> io::Result<Shared> {
        Ok(Shared { mapping: Mapping::new(descriptor.as_fd(), access)?, access })
    }

    /// The size in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.mapping.bytes
    }

    /// The aligned word at `offset` of writable memory; `None` if it is not inside.
    #[inline]
    pub fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let start = self.mapping.at(offset, 8).filter(|_| offset.is_multiple_of(8))?;
        // SAFETY: inside the mapping, aligned (mappings begin at pages), writable, and only ever accessed as a
        // word.
        (self.access == Access::Write).then(|| unsafe { AtomicU64::from_ptr(start.cast()) })
    }

    /// The address of a range of writable memory, for system calls; `None` if it is not inside.
    pub(crate) fn address(&self, offset: usize, length: usize) -> Option<*mut u8> {
        self.mapping.at(offset, length).filter(|_| self.access == Access::Write)
    }

    /// Copies the current bytes to `into`; `false` if the range is not inside.
    #[inline]
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) -> bool {
        let Some(from) = self.mapping.at(offset, into.len()) else { return false };
        // SAFETY: inside the mapping, and disjoint from `into`, which is a reference. Concurrent writes of
        // another process make the copied bytes arbitrary, and any bytes are valid.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        true
    }

    /// As [`Shared::copy_out`], but appends to `into`.
    #[inline]
    pub fn append_to(&self, offset: usize, length: usize, into: &mut BytesMut) -> bool {
        let Some(from) = self.mapping.at(offset, length) else { return false };
        into.reserve(length);
        // SAFETY: as in `copy_out`; the memory was reserved, and is filled before the length grows.
        unsafe {
            std::ptr::copy_nonoverlapping(from, into.as_mut_ptr().add(into.len()), length);
            into.set_len(into.len() + length);
        }
        true
    }

    /// Copies bytes in; `false` if they do not fit or the mapping is not writable.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) -> bool {
        let Some(to) = self.mapping.at(offset, from.len()).filter(|_| self.access == Access::Write) else {
            return false;
        };
        // SAFETY: inside the mapping, writable, and disjoint from `from`: no slice of this memory exists.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        true
    }
}

/// Memory that other processes may write at any moment, as a list of words.
#[derive(Debug)]
pub struct Words {
    mapping: Mapping,
}

impl Words {
    /// Maps all of `descriptor` for reading and writing, as [`Shared::map`] does.
    pub fn map(descriptor: impl AsFd) -> io::Result<Words> {
        Ok(Words { mapping: Mapping::new(descriptor.as_fd(), Access::Write)? })
    }

    /// The first half of a word. Such a word is never accessed as a whole.
    #[inline]
    pub fn half(&self, index: usize) -> &AtomicU32 {
        // SAFETY: the whole word is valid and aligned, so its first half is too.
        unsafe { AtomicU32::from_ptr(self[index].as_ptr().cast()) }
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        let (start, words) =
            (self.mapping.start.as_ptr().cast(), self.mapping.bytes / size_of::<AtomicU64>());
        // SAFETY: the mapping lives as long as `self`, begins at a page, is writable, and is only ever accessed
        // as words.
        unsafe { std::slice::from_raw_parts(start, words) }
    }
}

/// Memory that only this process may write; others may read it.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    descriptor: OwnedFd,
}

impl Region {
    /// Makes a region of a fixed size, filled with zeros.
    pub fn create(name: &str, bytes: usize) -> io::Result<Region> {
        let descriptor = create(name, bytes)?;
        let mapping = Mapping::new(descriptor.as_fd(), Access::Write)?;
        // From here on no holder of the descriptor can write it or map it for writing.
        fcntl_add_seals(&descriptor, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok(Region { mapping, descriptor })
    }

    /// The descriptor that another process maps with [`Lent::map`].
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Deref for Region {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as `self`, and only this process's mapping is writable.
        unsafe { std::slice::from_raw_parts(self.mapping.start.as_ptr(), self.mapping.bytes) }
    }
}

impl DerefMut for Region {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; nothing else in this process has a reference to the mapping.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.start.as_ptr(), self.mapping.bytes) }
    }
}

/// Memory that another process writes and lends: the process that started this one, the previous process in the
/// same flow of the same user, or the X server of the captured screen. The owner promises not to change lent
/// memory until it is returned.
#[derive(Debug)]
pub struct Lent {
    mapping: Mapping,
}

impl Lent {
    /// Maps all of `descriptor` for reading.
    pub fn map(descriptor: impl AsFd) -> io::Result<Lent> {
        Ok(Lent { mapping: Mapping::new(descriptor.as_fd(), Access::Read)? })
    }

    /// Shares a part of it. The last share drops `token`, which returns the part. `None` if it is not inside.
    pub fn share<T: Send + 'static>(
        self: &Arc<Self>,
        offset: usize,
        length: usize,
        token: T,
    ) -> Option<Bytes> {
        struct Share<T>(Arc<Lent>, usize, usize, T);
        impl<T> AsRef<[u8]> for Share<T> {
            fn as_ref(&self) -> &[u8] {
                let Share(lent, offset, length, _) = self;
                // SAFETY: inside the mapping, as checked by `share`; the writer promises not to change lent
                // memory.
                unsafe { std::slice::from_raw_parts(lent.mapping.start.as_ptr().add(*offset), *length) }
            }
        }
        self.mapping.at(offset, length)?;
        Some(Bytes::from_owner(Share(self.clone(), offset, length, token)))
    }

    /// The offset of a slice in the memory.
    #[inline]
    pub fn offset_of(&self, slice: &[u8]) -> Option<usize> {
        self.mapping.offset_of(slice)
    }

    /// Copies a part of it; `None` if it is not inside.
    pub fn copy(&self, offset: usize, length: usize) -> Option<Bytes> {
        let start = self.mapping.at(offset, length)?;
        // SAFETY: as in `share`.
        Some(Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(start, length) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn mappings_share_their_bytes_and_check_borders() {
        let descriptor = create("test", 4096).unwrap();
        let (ours, theirs) = (
            Shared::map(&descriptor, Access::Write).unwrap(),
            Shared::map(&descriptor, Access::Read).unwrap(),
        );
        assert!(ours.copy_in(4090, b"abcdef"));
        let mut seen = [0; 6];
        assert!(theirs.copy_out(4090, &mut seen));
        assert_eq!(&seen, b"abcdef");
        assert!(!ours.copy_in(4091, b"abcdef") && !theirs.copy_out(usize::MAX, &mut seen));
        assert!(!theirs.copy_in(0, b"a") && theirs.word(0).is_none(), "a read-only mapping is not writable");
        ours.word(8).unwrap().store(7, Ordering::Release);
        let mut word = BytesMut::new();
        assert!(theirs.append_to(8, 8, &mut word) && !theirs.append_to(4095, 2, &mut word));
        assert_eq!(word[..], 7u64.to_ne_bytes());
        assert!(ours.word(4).is_none() && ours.word(4096).is_none(), "unaligned, outside");
    }

    #[test]
    fn words_cover_the_whole_mapping() {
        let descriptor = create("test", 4096).unwrap();
        let (ours, theirs) =
            (Words::map(&descriptor).unwrap(), Shared::map(&descriptor, Access::Read).unwrap());
        ours[1].store(7, Ordering::Release);
        ours.half(2).store(8, Ordering::Release);
        let mut seen = [0; 16];
        assert!(theirs.copy_out(8, &mut seen));
        assert_eq!(seen, [7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ours.len(), 512);
    }

    #[test]
    fn another_process_reads_a_region() {
        let mut region = Region::create("test", 8192).unwrap();
        region[4096..4099].copy_from_slice(b"abc");
        let lent = Arc::new(Lent::map(region.descriptor()).unwrap());
        assert_eq!(lent.copy(4096, 3).unwrap(), &b"abc"[..]);
        let seen = lent.share(4097, 2, ()).unwrap();
        assert_eq!((&seen[..], lent.offset_of(&seen)), (&b"bc"[..], Some(4097)));
        assert!(lent.share(8190, 3, ()).is_none(), "outside");
    }

    #[test]
    fn no_other_process_can_write_or_shrink_a_region() {
        let region = Region::create("test", 4096).unwrap();
        assert!(Shared::map(region.descriptor(), Access::Write).is_err());
        assert!(rustix::io::write(region.descriptor(), b"x").is_err());
        assert!(ftruncate(region.descriptor(), 0).is_err());
        // Opening the descriptor again does not help either.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&region.descriptor()));
        let opened = rustix::fs::open(path, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
        assert!(Shared::map(&opened, Access::Write).is_err() && rustix::io::write(&opened, b"x").is_err());
        let plain = memfd_create("plain", MemfdFlags::CLOEXEC).unwrap();
        assert!(Shared::map(&plain, Access::Read).is_err(), "memory that may shrink is not mapped");
    }
}
