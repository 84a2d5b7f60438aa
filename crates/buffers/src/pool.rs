//! A bounded pool of byte buffers of one capacity. Dropping the last reference to a buffer returns it.
//!
//! A fresh megabyte from the kernel costs ten times as much as copying a warm one, so messages are received
//! into pooled memory. The pool is last in, first out: the newest buffer is still in the cache.

use bytes::Bytes;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

/// Buffers of one capacity. Clones share the pool.
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
    /// A pool of buffers of `capacity` bytes. It retains at most `kept_max` unused ones.
    pub fn new(capacity: usize, kept_max: usize) -> Self {
        Pool { shelf: Arc::new(Shelf { capacity, kept_max, free: Mutex::default() }) }
    }

    /// The size of each buffer in bytes.
    pub fn capacity(&self) -> usize {
        self.shelf.capacity
    }

    /// Returns a buffer, a used one if possible. Its content is arbitrary.
    pub fn take(&self) -> Lease {
        let used = self.shelf.free.lock().ok().and_then(|mut free| free.pop());
        let memory = used.unwrap_or_else(|| vec![0; self.shelf.capacity].into_boxed_slice());
        Lease { memory: Some(memory), shelf: self.shelf.clone() }
    }
}

/// A borrowed buffer. Its owner may write to it until it is frozen into shared [`Bytes`].
#[derive(Debug)]
pub struct Lease {
    memory: Option<Box<[u8]>>,
    shelf: Arc<Shelf>,
}

impl Lease {
    /// Shares the buffer read-only. It returns to the pool when the last share is dropped.
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
