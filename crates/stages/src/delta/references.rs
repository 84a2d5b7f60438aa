//! The last body of each length, as many as are allowed. Both halves keep them by the same rule: what the
//! source half still has, the sink half has too, if it came.

/// A body that another may be told from.
#[derive(Debug)]
pub(super) struct Reference<T> {
    pub(super) sequence: u64,
    pub(super) length: usize,
    pub(super) held: T,
}

/// References, the one used last at the end.
#[derive(Debug)]
pub(super) struct References<T> {
    held: Vec<Reference<T>>,
    bytes: usize,
    lengths_max: usize,
    bytes_max: usize,
}

impl<T> References<T> {
    /// At most `lengths_max` of `bytes_max` bytes in all.
    pub(super) fn new(lengths_max: usize, bytes_max: usize) -> Self {
        References { held: Vec::new(), bytes: 0, lengths_max, bytes_max }
    }

    /// Takes out the one of this length.
    pub(super) fn take_length(&mut self, length: usize) -> Option<Reference<T>> {
        self.take(|reference| reference.length == length)
    }

    /// Takes out the one of this sequence.
    pub(super) fn take_sequence(&mut self, sequence: u64) -> Option<Reference<T>> {
        self.take(|reference| reference.sequence == sequence)
    }

    fn take(&mut self, is_it: impl Fn(&Reference<T>) -> bool) -> Option<Reference<T>> {
        let at = self.held.iter().rposition(is_it)?;
        let taken = self.held.remove(at);
        self.bytes -= taken.length;
        Some(taken)
    }

    /// Keeps one in place of the one of its length, if it is newer; those used least lately go where there
    /// would be too many.
    pub(super) fn put(&mut self, reference: Reference<T>) {
        let older = self.take_length(reference.length);
        let newer = match older {
            Some(older) if older.sequence > reference.sequence => older,
            _ => reference,
        };
        self.bytes += newer.length;
        self.held.push(newer);
        while self.held.len() > self.lengths_max || self.bytes > self.bytes_max {
            self.bytes -= self.held.remove(0).length;
        }
    }

    /// All, the one used last at the end.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Reference<T>> {
        self.held.iter()
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.held.clear();
        self.bytes = 0;
    }
}
