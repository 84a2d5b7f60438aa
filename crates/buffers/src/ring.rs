//! A bounded queue between two threads. Waking the other side is its user's business.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// A bounded queue; clones are handles on the same one.
#[derive(Debug)]
pub struct Ring<T> {
    shared: Arc<Shared<T>>,
}

#[derive(Debug)]
struct Shared<T> {
    capacity: usize,
    queue: Mutex<VecDeque<T>>,
}

/// The ring has no room; the item comes back.
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

    /// Appends an item. Says whether the ring was empty, which is when the reader may be asleep.
    pub fn push(&self, item: T) -> Result<bool, RingFull<T>> {
        let mut queue = self.lock();
        if queue.len() >= self.shared.capacity {
            return Err(RingFull(item));
        }
        queue.push_back(item);
        Ok(queue.len() == 1)
    }

    /// Takes the oldest item. With it, whether the ring was full, which is when the writer may wait.
    pub fn pop(&self) -> Option<(T, bool)> {
        let mut queue = self.lock();
        let was_full = queue.len() >= self.shared.capacity;
        queue.pop_front().map(|item| (item, was_full))
    }

    /// Items in the ring.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is no room.
    pub fn is_full(&self) -> bool {
        self.len() >= self.shared.capacity
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<T>> {
        // A panic elsewhere leaves the queue itself whole: every operation above is a single step.
        self.shared.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
