//! Shared memory (`memfd_create(2)`), in types that restrict its use.
//!
//! - [`Shared`] may be written by another process at any moment. It is copied in and out, or accessed as atomic
//!   words, and never exposed as a slice. [`Words`] is such memory that consists only of words.
//! - [`Slots`] can be written by this process alone; the kernel enforces that (`F_SEAL_FUTURE_WRITE`,
//!   `fcntl(2)`). A slot is a writable slice for its lease holder, and shared [`Bytes`] afterwards.
//! - [`Lent`] is such memory in another process: read-only, and valid as long as its owner keeps its promise.
//!
//! No process can shrink this memory (`F_SEAL_SHRINK`), so no access faults.

use bytes::{Bytes, BytesMut};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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

    /// As [`Shared::word`], but half as long: the size for `futex(2)`.
    #[inline]
    pub fn half_word(&self, offset: usize) -> Option<&AtomicU32> {
        let start = self.mapping.at(offset, 4).filter(|_| offset.is_multiple_of(4))?;
        // SAFETY: as in `word`.
        (self.access == Access::Write).then(|| unsafe { AtomicU32::from_ptr(start.cast()) })
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

/// Slots of equal size. Only this process may write them; others may read.
#[derive(Debug)]
pub struct Slots {
    mapping: Mapping,
    descriptor: OwnedFd,
    slot_bytes: usize,
    /// The users of each slot: [`WRITTEN`] for a lease, plus [`SHARE`] for each share.
    holders: Vec<AtomicU32>,
}

const WRITTEN: u32 = 1;
const SHARE: u32 = 2;

impl Slots {
    /// Makes `count` slots of `slot_bytes` bytes.
    pub fn create(name: &str, count: usize, slot_bytes: usize) -> io::Result<Slots> {
        let bytes = count.checked_mul(slot_bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let descriptor = create(name, bytes)?;
        let mapping = Mapping::new(descriptor.as_fd(), Access::Write)?;
        // From here on no holder of the descriptor can write it or map it for writing.
        fcntl_add_seals(&descriptor, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        let holders = (0..count).map(|_| AtomicU32::new(0)).collect();
        Ok(Slots { mapping, descriptor, slot_bytes, holders })
    }

    /// The descriptor that another process maps with [`Lent::map`].
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Returns true if this process uses the slot.
    #[inline]
    pub fn is_taken(&self, slot: usize) -> bool {
        self.holders.get(slot).is_some_and(|holders| holders.load(Ordering::Acquire) != 0)
    }

    /// The number of slots that this process uses.
    pub fn taken(&self) -> usize {
        (0..self.holders.len()).filter(|slot| self.is_taken(*slot)).count()
    }

    /// Leases a slot for writing; `None` if it does not exist or is in use.
    pub fn lease(self: &Arc<Self>, slot: usize) -> Option<Lease> {
        // Acquire: all reads of the last holder happened before.
        self.holders.get(slot)?.compare_exchange(0, WRITTEN, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Lease { slots: self.clone(), slot })
    }

    /// Shares a part of a slot with the content of its last lease; `None` if it does not exist or is leased.
    pub fn share(self: &Arc<Self>, slot: usize, part: Range<usize>) -> Option<Bytes> {
        let more = |holders: u32| holders.checked_add(SHARE).filter(|_| holders & WRITTEN == 0);
        let holders =
            self.holders.get(slot).filter(|_| part.start <= part.end && part.end <= self.slot_bytes)?;
        // Acquire: the writes of the last lease are visible.
        holders.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok()?;
        Some(Bytes::from_owner(Share { slots: self.clone(), slot, part }))
    }

    /// The address of a slot.
    #[inline]
    fn start(&self, slot: usize) -> *mut u8 {
        // SAFETY: the slot is inside the mapping.
        unsafe { self.mapping.start.as_ptr().add(slot * self.slot_bytes) }
    }

    /// The slot that contains a slice, and the offset in it.
    #[inline]
    pub fn locate(&self, slice: &[u8]) -> Option<(usize, usize)> {
        let offset = self.mapping.offset_of(slice)?;
        Some((offset / self.slot_bytes, offset % self.slot_bytes))
    }
}

/// A slot that its one holder may write.
#[derive(Debug)]
pub struct Lease {
    slots: Arc<Slots>,
    slot: usize,
}

impl Lease {
    /// The number of the slot.
    #[inline]
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Shares the first `bytes` of it, read-only. The slot is free when the last share is dropped.
    pub fn freeze(self, bytes: usize) -> Bytes {
        let part = 0..bytes.min(self.slots.slot_bytes);
        // Relaxed: other threads see it with the end of the lease, which is a release.
        self.slots.holders[self.slot].fetch_add(SHARE, Ordering::Relaxed);
        Bytes::from_owner(Share { slots: self.slots.clone(), slot: self.slot, part })
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: inside the mapping. Only this process's mapping is writable, and only the lease may write
        // this slot.
        unsafe { std::slice::from_raw_parts(self.slots.start(self.slot), self.slots.slot_bytes) }
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above. A slot has only one lease, and no share during the lease.
        unsafe { std::slice::from_raw_parts_mut(self.slots.start(self.slot), self.slots.slot_bytes) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Release: the next lease or share sees all writes.
        self.slots.holders[self.slot].fetch_sub(WRITTEN, Ordering::Release);
    }
}

/// A part of a slot. It is not written during the life of this value.
struct Share {
    slots: Arc<Slots>,
    slot: usize,
    part: Range<usize>,
}

impl AsRef<[u8]> for Share {
    fn as_ref(&self) -> &[u8] {
        let Share { slots, slot, part } = self;
        // SAFETY: inside the mapping, as checked at creation. Only this process's mapping is writable, and a
        // shared slot is not leased.
        unsafe { std::slice::from_raw_parts(slots.start(*slot).add(part.start), part.len()) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // Release: the next lease writes after all reads of this share.
        self.slots.holders[self.slot].fetch_sub(SHARE, Ordering::Release);
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
    fn a_slot_is_free_after_its_last_share() {
        let slots = Arc::new(Slots::create("test", 2, 4096).unwrap());
        let mut lease = slots.lease(1).unwrap();
        assert!(slots.lease(1).is_none() && slots.lease(2).is_none());
        lease[..3].copy_from_slice(b"abc");
        let bytes = lease.freeze(3);
        assert_eq!(slots.locate(&bytes[1..]), Some((1, 1)));
        assert_eq!(slots.locate(b"elsewhere"), None);
        let (share, lent) = (bytes.slice(1..), Arc::new(Lent::map(slots.descriptor()).unwrap()));
        drop(bytes);
        assert!(slots.is_taken(1));
        assert_eq!(lent.copy(4096, 3).unwrap(), &b"abc"[..]);
        let seen = lent.share(4097, 2, ()).unwrap();
        assert_eq!((seen.clone(), lent.offset_of(&seen)), (share.clone(), Some(4097)));
        assert!(lent.share(8190, 3, ()).is_none());
        let again = slots.share(1, 1..3).unwrap();
        assert_eq!((&again, again.as_ptr()), (&share, share.as_ptr()));
        drop(share);
        assert!(slots.is_taken(1) && slots.lease(1).is_none());
        drop(again);
        assert_eq!((slots.is_taken(1), slots.taken()), (false, 0));
        let lease = slots.lease(1).unwrap();
        assert!(slots.share(1, 0..1).is_none(), "somebody may write it");
        drop(lease);
        assert!(slots.share(1, 0..4097).is_none() && slots.share(2, 0..1).is_none(), "outside");
        assert_eq!(slots.share(1, 0..3).unwrap(), &b"abc"[..], "as it was left");
    }

    #[test]
    fn no_other_process_can_write_or_shrink_slots() {
        let slots = Slots::create("test", 1, 4096).unwrap();
        assert!(Shared::map(slots.descriptor(), Access::Write).is_err());
        assert!(rustix::io::write(slots.descriptor(), b"x").is_err());
        assert!(ftruncate(slots.descriptor(), 0).is_err());
        // Opening the descriptor again does not help either.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&slots.descriptor()));
        let opened = rustix::fs::open(path, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
        assert!(Shared::map(&opened, Access::Write).is_err() && rustix::io::write(&opened, b"x").is_err());
        let plain = memfd_create("plain", MemfdFlags::CLOEXEC).unwrap();
        assert!(Shared::map(&plain, Access::Read).is_err(), "memory that may shrink is not mapped");
    }
}
