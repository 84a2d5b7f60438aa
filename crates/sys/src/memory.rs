//! Memory that processes share (`memfd_create(2)`), in types that say what may be done with it.
//!
//! - [`Shared`] may change at any moment, by somebody else's hand: it is copied in and out, or loaded and stored by
//!   the word, and never seen as a slice.
//! - [`Slots`] is written by this process alone, which the kernel holds (`F_SEAL_FUTURE_WRITE`, `fcntl(2)`): a slot is
//!   a writable slice to the one that leased it, and [`Bytes`] once it is done.
//! - [`Lent`] is such memory as another process sees it: to read, as long as its owner keeps to what it lent.
//!
//! Nobody can shrink any of it (`F_SEAL_SHRINK`), so that no access faults.

use bytes::{Bytes, BytesMut};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Fresh shared memory of a fixed size, all zero; none of it is used before it is touched. `name` is seen in
/// `/proc/PID/maps`.
pub fn create(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let descriptor = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&descriptor, bytes as u64)?;
    fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(descriptor)
}

/// What a mapping may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Read and write.
    Write,
}

/// A whole file in this process's memory.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory by address, and unmapped only when its one owner goes.
unsafe impl Send for Mapping {}
// SAFETY: as above; who reads and writes through it answers for that.
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
        // SAFETY: the kernel chooses the address, so nothing that is there is replaced.
        let start =
            unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, descriptor, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Mapping { start, bytes })
    }

    /// The address of a range that is all inside.
    #[inline]
    fn at(&self, offset: usize, length: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        // SAFETY: the offset is inside the mapping, or just behind it.
        (end <= self.bytes).then(|| unsafe { self.start.as_ptr().add(offset) })
    }

    /// Where a slice lies in it.
    #[inline]
    fn offset_of(&self, slice: &[u8]) -> Option<usize> {
        let offset = (slice.as_ptr() as usize).checked_sub(self.start.as_ptr() as usize)?;
        (offset.checked_add(slice.len())? <= self.bytes).then_some(offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new`, and whoever borrowed from it has gone.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Memory that others may write at any moment.
#[derive(Debug)]
pub struct Shared {
    mapping: Mapping,
    access: Access,
}

impl Shared {
    /// Maps all of `descriptor`, which is of [`create`] or sealed like it.
    pub fn map(descriptor: impl AsFd, access: Access) -> io::Result<Shared> {
        Ok(Shared { mapping: Mapping::new(descriptor.as_fd(), access)?, access })
    }

    /// Its size.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.mapping.bytes
    }

    /// The aligned word at `offset` of memory that may be written; `None` if there is none.
    #[inline]
    pub fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let start = self.mapping.at(offset, 8).filter(|_| offset.is_multiple_of(8))?;
        // SAFETY: inside the mapping, aligned (mappings begin at pages), writable, and only ever seen as a word.
        (self.access == Access::Write).then(|| unsafe { AtomicU64::from_ptr(start.cast()) })
    }

    /// As [`Shared::word`], of half the size: what `futex(2)` takes.
    #[inline]
    pub fn half_word(&self, offset: usize) -> Option<&AtomicU32> {
        let start = self.mapping.at(offset, 4).filter(|_| offset.is_multiple_of(4))?;
        // SAFETY: as in `word`.
        (self.access == Access::Write).then(|| unsafe { AtomicU32::from_ptr(start.cast()) })
    }

    /// Copies out what is there at this moment; `false` if that is not all inside.
    #[inline]
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) -> bool {
        let Some(from) = self.mapping.at(offset, into.len()) else { return false };
        // SAFETY: inside the mapping, and apart from `into`, which is a reference. What another process writes
        // meanwhile makes the copy arbitrary bytes, which any bytes are.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        true
    }

    /// As [`Shared::copy_out`], behind what `into` holds.
    #[inline]
    pub fn append_to(&self, offset: usize, length: usize, into: &mut BytesMut) -> bool {
        let Some(from) = self.mapping.at(offset, length) else { return false };
        into.reserve(length);
        // SAFETY: as in `copy_out`; the room was reserved, and is filled before it counts.
        unsafe {
            std::ptr::copy_nonoverlapping(from, into.as_mut_ptr().add(into.len()), length);
            into.set_len(into.len() + length);
        }
        true
    }

    /// Copies in; `false` if there is no room, or no right to.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) -> bool {
        let Some(to) = self.mapping.at(offset, from.len()).filter(|_| self.access == Access::Write) else {
            return false;
        };
        // SAFETY: inside the mapping, writable, and apart from `from`: nobody sees this memory as a slice.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        true
    }
}

/// Slots of one size that this process alone may write, and others may read.
#[derive(Debug)]
pub struct Slots {
    mapping: Mapping,
    descriptor: OwnedFd,
    slot_bytes: usize,
    taken: Vec<AtomicBool>,
}

impl Slots {
    /// So many slots of so many bytes each.
    pub fn create(name: &str, count: usize, slot_bytes: usize) -> io::Result<Slots> {
        let bytes = count.checked_mul(slot_bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let descriptor = create(name, bytes)?;
        let mapping = Mapping::new(descriptor.as_fd(), Access::Write)?;
        // From here on nobody, who ever gets the descriptor, can write it or map it to write.
        fcntl_add_seals(&descriptor, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        let taken = (0..count).map(|_| AtomicBool::new(false)).collect();
        Ok(Slots { mapping, descriptor, slot_bytes, taken })
    }

    /// What another process maps with [`Lent::map`].
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Whether somebody in this process holds it.
    #[inline]
    pub fn is_taken(&self, slot: usize) -> bool {
        self.taken.get(slot).is_some_and(|taken| taken.load(Ordering::Acquire))
    }

    /// How many somebody in this process holds.
    pub fn taken(&self) -> usize {
        self.taken.iter().filter(|taken| taken.load(Ordering::Acquire)).count()
    }

    /// The slot, to be written; `None` if there is none such, or somebody holds it.
    pub fn lease(self: &Arc<Self>, slot: usize) -> Option<Lease> {
        let was_taken = self.taken.get(slot)?.swap(true, Ordering::AcqRel);
        (!was_taken).then(|| Lease { slots: self.clone(), slot, used: 0..self.slot_bytes })
    }

    /// The slot that a slice lies in, and where in it.
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
    used: Range<usize>,
}

impl Lease {
    /// Which it is.
    #[inline]
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Shares the first `bytes` of it, read-only; the slot is free again when the last share is dropped.
    pub fn freeze(mut self, bytes: usize) -> Bytes {
        self.used.end = bytes.min(self.used.end);
        Bytes::from_owner(self)
    }

    #[inline]
    fn start(&self) -> *mut u8 {
        let offset = self.slot * self.slots.slot_bytes + self.used.start;
        // SAFETY: the slot is one of the mapping's.
        unsafe { self.slots.mapping.start.as_ptr().add(offset) }
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: inside the mapping; only this process's mapping may write, and of this slot only the lease.
        unsafe { std::slice::from_raw_parts(self.start(), self.used.len()) }
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and there is one lease of a slot.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.used.len()) }
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.slots.taken[self.slot].store(false, Ordering::Release);
    }
}

/// Memory that another process writes and lends: whoever started this one, or stands before it in the same flow and
/// for the same user, or the X server whose screen is shown. What is lent stays as it is until it is given back, which is
/// their word.
#[derive(Debug)]
pub struct Lent {
    mapping: Mapping,
}

impl Lent {
    /// Maps all of `descriptor` to read.
    pub fn map(descriptor: impl AsFd) -> io::Result<Lent> {
        Ok(Lent { mapping: Mapping::new(descriptor.as_fd(), Access::Read)? })
    }

    /// Part of it, which is given back when `token` is dropped, with the last share; `None` if it is not all inside.
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
                // SAFETY: inside the mapping, as `share` found; its writer leaves alone what it has lent.
                unsafe { std::slice::from_raw_parts(lent.mapping.start.as_ptr().add(*offset), *length) }
            }
        }
        self.mapping.at(offset, length)?;
        Some(Bytes::from_owner(Share(self.clone(), offset, length, token)))
    }

    /// Where a slice lies in it.
    #[inline]
    pub fn offset_of(&self, slice: &[u8]) -> Option<usize> {
        self.mapping.offset_of(slice)
    }

    /// A copy of part of it; `None` if it is not all inside.
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
    fn what_one_mapping_writes_another_sees_and_borders_hold() {
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
        assert!(!theirs.copy_in(0, b"a") && theirs.word(0).is_none(), "what is read is not written");
        ours.word(8).unwrap().store(7, Ordering::Release);
        let mut word = BytesMut::new();
        assert!(theirs.append_to(8, 8, &mut word) && !theirs.append_to(4095, 2, &mut word));
        assert_eq!(word[..], 7u64.to_ne_bytes());
        assert!(ours.word(4).is_none() && ours.word(4096).is_none(), "unaligned, outside");
    }

    #[test]
    fn slots_are_one_holders_and_come_back_with_the_last_share() {
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
        drop(share);
        assert_eq!((slots.is_taken(1), slots.taken()), (false, 0));
    }

    #[test]
    fn nobody_else_can_write_slots_or_take_them_away() {
        let slots = Slots::create("test", 1, 4096).unwrap();
        assert!(Shared::map(slots.descriptor(), Access::Write).is_err());
        assert!(rustix::io::write(slots.descriptor(), b"x").is_err());
        assert!(ftruncate(slots.descriptor(), 0).is_err());
        // Not by opening it anew either.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&slots.descriptor()));
        let opened = rustix::fs::open(path, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
        assert!(Shared::map(&opened, Access::Write).is_err() && rustix::io::write(&opened, b"x").is_err());
        let plain = memfd_create("plain", MemfdFlags::CLOEXEC).unwrap();
        assert!(Shared::map(&plain, Access::Read).is_err(), "memory that may shrink is not mapped");
    }
}
