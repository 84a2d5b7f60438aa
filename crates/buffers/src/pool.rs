//! A pool of byte buffers of one capacity, bounded, given back by the last holder's drop.
//!
//! A fresh megabyte from the kernel costs an order of magnitude more than a warm copy of it, so whoever
//! receives messages receives them into pooled memory. Buffers are handed out last in, first out: the
//! one used last is the one still in the cache.

use bytes::Bytes;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

/// Buffers of one capacity. Clones are handles on the same pool.
#[derive(Debug, Clone)]
pub struct Pool {
    shelf: Arc<Shelf>,
}

#[derive(Debug)]
struct Shelf {
    capacity: usize,
    kept_max: usize,
    free: Mutex<Vec<Box<[u8]>>>,
}

impl Pool {
    /// A pool of buffers of `capacity` bytes that keeps at most `kept_max` of them when nobody uses them.
    pub fn new(capacity: usize, kept_max: usize) -> Self {
        Pool { shelf: Arc::new(Shelf { capacity, kept_max, free: Mutex::default() }) }
    }

    /// Bytes in each buffer.
    pub fn capacity(&self) -> usize {
        self.shelf.capacity
    }

    /// A buffer, used before if there is one; its content is arbitrary.
    pub fn take(&self) -> Lease {
        let used = self.shelf.free.lock().ok().and_then(|mut free| free.pop());
        let memory = used.unwrap_or_else(|| vec![0; self.shelf.capacity].into_boxed_slice());
        Lease { memory: Some(memory), shelf: self.shelf.clone() }
    }
}

/// A buffer on loan: writable by its one holder, until frozen into shared [`Bytes`].
#[derive(Debug)]
pub struct Lease {
    memory: Option<Box<[u8]>>,
    shelf: Arc<Shelf>,
}

impl Lease {
    /// Shares the buffer, read-only; it goes back to the pool when the last share is dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take()
            && let Ok(mut free) = self.shelf.free.lock()
            && free.len() < self.shelf.kept_max
        {
            free.push(memory);
        }
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_deref().unwrap_or(&[])
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_deref_mut().unwrap_or(&mut [])
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
