//! The last message of each length, within bounds. Both halves apply the same rule: every reference
//! that the source half has, the sink half has too, unless the message was lost.

/// A message that others may be compared with.
#[derive(Debug)]
pub(super) struct Reference<T> {
    pub(super) sequence: u64,
    pub(super) length: usize,
    pub(super) value: T,
}

/// References, the last used at the end.
#[derive(Debug)]
pub(super) struct References<T> {
    references: Vec<Reference<T>>,
    bytes: usize,
    lengths_max: usize,
    bytes_max: usize,
}

impl<T> References<T> {
    /// Keeps at most `lengths_max` references of `bytes_max` bytes in total.
    pub(super) fn new(lengths_max: usize, bytes_max: usize) -> Self {
        References { references: Vec::new(), bytes: 0, lengths_max, bytes_max }
    }

    /// Removes and returns the reference of this length.
    pub(super) fn take_length(&mut self, length: usize) -> Option<Reference<T>> {
        self.take(|reference| reference.length == length)
    }

    /// Removes and returns the reference with this sequence.
    pub(super) fn take_sequence(&mut self, sequence: u64) -> Option<Reference<T>> {
        self.take(|reference| reference.sequence == sequence)
    }

    fn take(&mut self, matches: impl Fn(&Reference<T>) -> bool) -> Option<Reference<T>> {
        let at = self.references.iter().rposition(matches)?;
        let taken = self.references.remove(at);
        self.bytes -= taken.length;
        Some(taken)
    }

    /// Replaces the reference of the same length, if this one is newer. Over a bound, evicts the
    /// least recently used.
    pub(super) fn put(&mut self, reference: Reference<T>) {
        let older = self.take_length(reference.length);
        let newer = match older {
            Some(older) if older.sequence > reference.sequence => older,
            _ => reference,
        };
        self.bytes += newer.length;
        self.references.push(newer);
        while self.references.len() > self.lengths_max || self.bytes > self.bytes_max {
            self.bytes -= self.references.remove(0).length;
        }
    }

    /// All references, the last used at the end.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Reference<T>> {
        self.references.iter()
    }

    /// Removes all references.
    pub(super) fn clear(&mut self) {
        self.references.clear();
        self.bytes = 0;
    }
}
