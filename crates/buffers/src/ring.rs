//! A bounded queue between two threads. The user must wake the other side.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// A bounded queue. Clones share it.
#[derive(Debug)]
pub struct Ring<T> {
    shared: Arc<Shared<T>>,
}

#[derive(Debug)]
struct Shared<T> {
    capacity: usize,
    queue: Mutex<VecDeque<T>>,
}

/// The ring is full and returns the item.
#[derive(Debug, PartialEq, Eq)]
pub struct RingFull<T>(pub T);

impl<T> Clone for Ring<T> {
    fn clone(&self) -> Self {
        Ring { shared: self.shared.clone() }
    }
}

impl<T> Ring<T> {
    /// A ring for `capacity` items.
    pub fn new(capacity: usize) -> Self {
        Ring { shared: Arc::new(Shared { capacity, queue: Mutex::new(VecDeque::with_capacity(capacity)) }) }
    }

    /// Appends an item. Returns true if the ring was empty, so that the reader may be asleep.
    pub fn push(&self, item: T) -> Result<bool, RingFull<T>> {
        let mut queue = self.lock();
        if queue.len() >= self.shared.capacity {
            return Err(RingFull(item));
        }
        queue.push_back(item);
        Ok(queue.len() == 1)
    }

    /// Removes the oldest item. Returns true with it if the ring was full, so that the writer may be waiting.
    pub fn pop(&self) -> Option<(T, bool)> {
        let mut queue = self.lock();
        let was_full = queue.len() >= self.shared.capacity;
        queue.pop_front().map(|item| (item, was_full))
    }

    /// The number of items.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns true if the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if the ring is full.
    pub fn is_full(&self) -> bool {
        self.len() >= self.shared.capacity
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<T>> {
        // A panic elsewhere leaves the queue intact: every operation above is a single step.
        self.shared.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
