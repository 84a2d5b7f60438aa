//! Buffers for records that cannot be delivered yet, or were not delivered yet.

use contract::Message;
use std::collections::BTreeMap;

/// The most that one buffer holds. The last record may exceed the bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BufferLimit {
    pub(crate) records: usize,
    pub(crate) bytes: usize,
}

/// Buffered records of one epoch, by sequence.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReorderBuffer {
    messages: BTreeMap<u64, Message>,
    bytes: usize,
}

impl ReorderBuffer {
    pub(crate) fn insert(&mut self, sequence: u64, message: Message) {
        self.bytes += message.body.len();
        self.messages.insert(sequence, message);
    }

    pub(crate) fn remove(&mut self, sequence: u64) -> Option<Message> {
        let message = self.messages.remove(&sequence)?;
        self.bytes -= message.body.len();
        Some(message)
    }

    pub(crate) fn contains(&self, sequence: u64) -> bool {
        self.messages.contains_key(&sequence)
    }

    /// The lowest sequence.
    pub(crate) fn first(&self) -> Option<u64> {
        self.messages.first_key_value().map(|(sequence, _)| *sequence)
    }

    pub(crate) fn sequences(&self) -> impl Iterator<Item = u64> {
        self.messages.keys().copied()
    }

    pub(crate) fn is_full(&self, limit: BufferLimit) -> bool {
        self.messages.len() >= limit.records || self.bytes >= limit.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Removes all records, in the order of their sequences.
    pub(crate) fn drain(&mut self) -> impl ExactSizeIterator<Item = (u64, Message)> {
        self.bytes = 0;
        std::mem::take(&mut self.messages).into_iter()
    }
}
