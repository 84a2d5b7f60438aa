//! The frame buffers of a camera, mapped from the driver (`V4L2_MEMORY_MMAP`).
//!
//! The driver owns a queued buffer. Taking it makes a [`Frame`], which owns the buffer until it is dropped;
//! that queues the buffer again. So frames are read in place, without a copy, and there are never more frames
//! than buffers.

use super::layout::*;
use super::{Direction, ask, is, stream};
use crate::ioctl::{READ, WRITE};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// `V4L2_BUF_FLAG_ERROR`.
const FLAG_ERROR: u32 = 0x40;
/// `V4L2_BUF_FLAG_DONE`: filled, and not taken.
const FLAG_DONE: u32 = 0x4;
/// `V4L2_BUF_FLAG_TIMESTAMP_MASK` and `_MONOTONIC`.
const FLAG_TIME_MASK: u32 = 0xe000;
const FLAG_TIME_MONOTONIC: u32 = 0x2000;

/// The driver does not write it, and no frame owns it.
const IDLE: u8 = 0;
/// The driver owns it.
const QUEUED: u8 = 1;
/// A frame owns it.
const HELD: u8 = 2;

/// One buffer, mapped into this process.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory by address, and it is unmapped only when its one owner is dropped.
unsafe impl Send for Mapping {}
// SAFETY: as above; only the owning frame reads it.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this address and length, and no frame outlives it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

struct Buffer {
    mapping: Mapping,
    owner: AtomicU8,
}

struct Inner {
    node: OwnedFd,
    buffers: Vec<Buffer>,
    queued: AtomicUsize,
    /// True while streaming. It is locked while buffers are queued and while streaming starts or stops, so that
    /// a dropped frame is queued only during streaming.
    flows: Mutex<bool>,
    /// Only the driver writes to the buffers.
    is_private: bool,
}

/// The buffers of a camera.
pub struct Queue {
    inner: Arc<Inner>,
}

/// A frame in its buffer. Dropping it returns the buffer to the driver.
pub struct Frame {
    inner: Arc<Inner>,
    index: usize,
    /// The number of bytes written.
    pub used_bytes: usize,
    /// The driver's number of the frame; a gap means that the driver had no buffer for a frame.
    pub sequence: u32,
    /// The time of capture in nanoseconds of the monotonic clock; `None` if the driver uses another clock.
    pub captured_ns: Option<u64>,
    /// The driver reports that the frame is damaged.
    pub is_damaged: bool,
}

/// A frame whose buffer is not written until it is dropped, so it can be borrowed in place.
pub struct StableFrame(Frame);

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({} buffers, {} queued)", self.count(), self.queued())
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frame(buffer {}, {} bytes, number {})", self.index, self.used_bytes, self.sequence)
    }
}

impl Queue {
    /// Requests `count` buffers for the current format; the driver may allocate fewer or more. Set `is_private`
    /// if only the driver writes to them, as all drivers of devices do; with v4l2loopback another program
    /// writes. Fails with `EBUSY` if another program uses the device, or if frames of an earlier queue still
    /// exist.
    pub fn new(node: OwnedFd, count: u32, is_private: bool) -> io::Result<Queue> {
        let count = request(node.as_fd(), count)?;
        let mut buffers = Vec::new();
        for index in 0..count {
            let buffer = query(node.as_fd(), index)?;
            let mapping = map(node.as_fd(), buffer.length as usize, buffer.offset.into())?;
            buffers.push(Buffer { mapping, owner: AtomicU8::new(IDLE) });
        }
        if buffers.is_empty() {
            return Err(Errno::NOMEM.into());
        }
        let inner =
            Inner { node, buffers, queued: AtomicUsize::new(0), flows: Mutex::new(false), is_private };
        Ok(Queue { inner: Arc::new(inner) })
    }

    /// The number of buffers.
    pub fn count(&self) -> usize {
        self.inner.buffers.len()
    }

    /// The number of buffers that the driver owns.
    pub fn queued(&self) -> usize {
        self.inner.queued.load(Ordering::Acquire)
    }

    /// Returns true if all buffers of the driver are filled: it misses the frames that come now.
    pub fn is_full(&self) -> io::Result<bool> {
        for (index, buffer) in self.inner.buffers.iter().enumerate() {
            let is_queued = buffer.owner.load(Ordering::Acquire) == QUEUED;
            if is_queued && query(self.node(), index as u32)?.flags & FLAG_DONE == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The camera.
    pub fn node(&self) -> BorrowedFd<'_> {
        self.inner.node.as_fd()
    }

    /// Queues all idle buffers and starts streaming.
    pub fn start(&self) -> io::Result<()> {
        let mut flows = self.inner.lock();
        for index in 0..self.count() {
            self.inner.queue(index, IDLE)?;
        }
        stream(self.node(), Direction::Capture, true)?;
        *flows = true;
        Ok(())
    }

    /// Stops streaming. Filled buffers that were not taken are lost; existing frames stay valid.
    pub fn stop(&self) -> io::Result<()> {
        let mut flows = self.inner.lock();
        *flows = false;
        stream(self.node(), Direction::Capture, false)?;
        for buffer in &self.inner.buffers {
            let was_queued =
                buffer.owner.compare_exchange(QUEUED, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok();
            self.inner.queued.fetch_sub(usize::from(was_queued), Ordering::AcqRel);
        }
        Ok(())
    }

    /// Takes the oldest filled buffer; `None` if there is none now. Fails with `EPIPE`, `EIO` or `EINVAL` when
    /// not streaming.
    pub fn take(&self) -> io::Result<Option<Frame>> {
        let mut buffer = kernel_buffer(0);
        // SAFETY: VIDIOC_DQBUF reads and writes a `struct v4l2_buffer`; for one plane it follows no pointer.
        match unsafe { ask(self.node(), READ | WRITE, 17, &mut buffer) } {
            Ok(()) => {}
            Err(error) if is(&error, Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error),
        }
        let index = buffer.index as usize;
        let known = self.inner.buffers.get(index).ok_or(Errno::IO)?;
        // Refuse a buffer that the driver did not own; the driver is faulty.
        if known.owner.compare_exchange(QUEUED, HELD, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(Errno::IO.into());
        }
        self.inner.queued.fetch_sub(1, Ordering::AcqRel);
        let is_monotonic = buffer.flags & FLAG_TIME_MASK == FLAG_TIME_MONOTONIC;
        let nanoseconds = buffer.seconds.cast_unsigned().saturating_mul(1_000_000_000);
        let nanoseconds =
            nanoseconds.saturating_add(buffer.microseconds.cast_unsigned().saturating_mul(1000));
        Ok(Some(Frame {
            inner: self.inner.clone(),
            index,
            used_bytes: (buffer.used_bytes as usize).min(known.mapping.bytes),
            sequence: buffer.sequence,
            captured_ns: is_monotonic.then_some(nanoseconds),
            is_damaged: buffer.flags & FLAG_ERROR != 0,
        }))
    }

    /// Frees the buffers; if frames still exist, when the last one is dropped.
    pub fn end(self) -> io::Result<()> {
        self.stop()?;
        release(self.node())
    }
}

impl Inner {
    fn lock(&self) -> std::sync::MutexGuard<'_, bool> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a buffer if its state is `from`.
    fn queue(&self, index: usize, from: u8) -> io::Result<()> {
        let owner = &self.buffers[index].owner;
        if owner.compare_exchange(from, QUEUED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Ok(());
        }
        let mut buffer = kernel_buffer(index as u32);
        // SAFETY: VIDIOC_QBUF reads and writes a `struct v4l2_buffer`; no reference to the buffer's memory
        // remains.
        match unsafe { ask(self.node.as_fd(), READ | WRITE, 15, &mut buffer) } {
            Ok(()) => {
                self.queued.fetch_add(1, Ordering::AcqRel);
                Ok(())
            }
            Err(error) => {
                owner.store(IDLE, Ordering::Release);
                Err(error)
            }
        }
    }
}

impl Frame {
    /// Copies bytes from the front of the frame, up to the length of `into`; returns the number of bytes.
    pub fn copy_to(&self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.used_bytes);
        let from = self.inner.buffers[self.index].mapping.start.as_ptr();
        // SAFETY: `used_bytes` are inside the mapping, which lives as long as `inner`. If another program
        // writes to it concurrently, the copied bytes are a mixture; no reference to them is made.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), count) };
        count
    }

    /// Converts to a frame that can be borrowed in place, if only the driver writes to its buffer.
    pub fn stable(self) -> Result<StableFrame, Frame> {
        if self.inner.is_private { Ok(StableFrame(self)) } else { Err(self) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        let flows = self.inner.lock();
        match *flows {
            // An unplugged camera fails here, which is harmless.
            true => drop(self.inner.queue(self.index, HELD)),
            false => self.inner.buffers[self.index].owner.store(IDLE, Ordering::Release),
        }
    }
}

impl AsRef<[u8]> for StableFrame {
    fn as_ref(&self) -> &[u8] {
        let frame = &self.0;
        let start = frame.inner.buffers[frame.index].mapping.start.as_ptr();
        // SAFETY: `used_bytes` are inside the mapping, which lives as long as `inner`. The buffer is HELD, so
        // it is not queued before this frame is dropped. Only the driver writes to it, and only while it is
        // queued.
        unsafe { std::slice::from_raw_parts(start, frame.used_bytes) }
    }
}

fn kernel_buffer(index: u32) -> KernelBuffer {
    KernelBuffer { index, kind: BUFFER_TYPE_CAPTURE, memory: MEMORY_MMAP, ..Plain::zeroed() }
}

/// Returns the state of a buffer (`VIDIOC_QUERYBUF`).
fn query(node: BorrowedFd<'_>, index: u32) -> io::Result<KernelBuffer> {
    let mut buffer = kernel_buffer(index);
    // SAFETY: VIDIOC_QUERYBUF reads and writes a `struct v4l2_buffer`; for one plane it follows no pointer.
    unsafe { ask(node, READ | WRITE, 9, &mut buffer)? };
    Ok(buffer)
}

/// Ends the streaming of a dead process that had the same open file: streaming lasts until the last duplicate
/// of the descriptor is closed. Fails with `EBUSY` if another program streams, without effect on it.
pub fn end_former(node: BorrowedFd<'_>) -> io::Result<()> {
    stream(node, Direction::Capture, false)?;
    release(node)
}

/// Lets other programs set and use a camera that is not on. The driver of USB cameras binds it to the open file that set its
/// format, until this file frees its buffers. Fails with `EBUSY` if another program uses the camera, without effect on it.
pub fn release(node: BorrowedFd<'_>) -> io::Result<()> {
    request(node, 0).map(drop)
}

/// Requests `count` buffers (`VIDIOC_REQBUFS`); returns their actual number.
fn request(node: BorrowedFd<'_>, count: u32) -> io::Result<u32> {
    let mut request =
        KernelRequest { count, kind: BUFFER_TYPE_CAPTURE, memory: MEMORY_MMAP, ..Plain::zeroed() };
    // SAFETY: VIDIOC_REQBUFS reads and writes a `struct v4l2_requestbuffers`.
    unsafe { ask(node, READ | WRITE, 8, &mut request)? };
    // The kernel has at most 32 (`VIDEO_MAX_FRAME`).
    Ok(request.count.min(32))
}

fn map(node: BorrowedFd<'_>, bytes: usize, offset: u64) -> io::Result<Mapping> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address, so no other mapping is replaced.
    let start = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, node, offset)? };
    let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok(Mapping { start, bytes })
}
