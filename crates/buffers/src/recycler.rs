//! Memory for receiving that comes back by itself: a buffer that is filled, shared out in slices and used
//! again as soon as the last slice is dropped, without a lock and without ever being zeroed.

use bytes::BytesMut;

/// Buffers that were shared out and may be free again. Handed out last in, first out: the one used last is
/// the one still in the cache.
///
/// What is handed out is a plain [`BytesMut`]: fill it, split slices off its front and freeze them, then
/// [`Recycler::retire`] what is left of it.
#[derive(Debug)]
pub struct Recycler {
    /// Capacity, and an empty handle on the memory; oldest first.
    retired: Vec<(usize, BytesMut)>,
    buffers_max: usize,
    bytes_max: usize,
}

impl Recycler {
    /// Remembers at most `buffers_max` buffers of `bytes_max` bytes in all.
    pub fn new(buffers_max: usize, bytes_max: usize) -> Self {
        Recycler { retired: Vec::new(), buffers_max, bytes_max }
    }

    /// An empty buffer with room for at least `capacity` bytes: one whose slices are all dropped, if there is
    /// one so large, or a new one.
    pub fn take(&mut self, capacity: usize) -> BytesMut {
        let free =
            self.retired.iter_mut().rposition(|(bytes, rest)| *bytes >= capacity && rest.try_reclaim(*bytes));
        match free {
            Some(i) => self.retired.remove(i).1,
            None => BytesMut::with_capacity(capacity),
        }
    }

    /// Remembers the memory behind `rest`, what is left of a buffer of `capacity` bytes when its slices are
    /// split off. Bytes still in it are forgotten.
    pub fn retire(&mut self, mut rest: BytesMut, capacity: usize) {
        if capacity > self.bytes_max || self.buffers_max == 0 {
            return;
        }
        rest.clear();
        self.retired.push((capacity, rest));
        while self.retired.len() > self.buffers_max || self.bytes() > self.bytes_max {
            self.retired.remove(0);
        }
    }

    /// Bytes of the buffers remembered, in use or free.
    pub fn bytes(&self) -> usize {
        self.retired.iter().map(|(capacity, _)| capacity).sum()
    }
}
