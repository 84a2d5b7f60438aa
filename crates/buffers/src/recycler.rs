//! Receive buffers that are recycled: a buffer is filled, split into shared slices, and reused when the last
//! slice is dropped. There is no lock, and memory is never zeroed.

use bytes::BytesMut;

/// Buffers whose slices are still shared, or free again. The list is last in, first out: the newest buffer is
/// still in the cache.
///
/// A caller takes a plain [`BytesMut`], fills it, splits frozen slices off its front, and gives the rest to
/// [`Recycler::retire`].
#[derive(Debug)]
pub struct Recycler {
    /// Capacity, and an empty handle to the memory; oldest first.
    retired: Vec<(usize, BytesMut)>,
    buffers_max: usize,
    bytes_max: usize,
}

impl Recycler {
    /// Retains at most `buffers_max` buffers of `bytes_max` bytes in total.
    pub fn new(buffers_max: usize, bytes_max: usize) -> Self {
        Recycler { retired: Vec::new(), buffers_max, bytes_max }
    }

    /// Returns an empty buffer with room for at least `capacity` bytes: a retained one without live slices if
    /// it is large enough, or a new one.
    pub fn take(&mut self, capacity: usize) -> BytesMut {
        let free =
            self.retired.iter_mut().rposition(|(bytes, rest)| *bytes >= capacity && rest.try_reclaim(*bytes));
        match free {
            Some(i) => self.retired.remove(i).1,
            None => BytesMut::with_capacity(capacity),
        }
    }

    /// Retains the memory of a buffer of `capacity` bytes. `rest` is the part that was not split off; its bytes
    /// are discarded.
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

    /// The size of the retained buffers in bytes, in use or free.
    pub fn bytes(&self) -> usize {
        self.retired.iter().map(|(capacity, _)| capacity).sum()
    }
}
