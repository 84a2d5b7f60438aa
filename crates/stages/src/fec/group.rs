//! One group at the sink half: the messages received, and recovery of the others.

use super::header::{put_shard, read_shard, shard_bytes};
use super::outcome::Outcome;
use contract::{Body, Bytes, Message, Offset, StageError, StageResult, Time};
use reed_solomon_simd::ReedSolomonDecoder;

pub(super) struct Group {
    /// Parity messages of the group.
    pub(super) parity: u8,
    /// True if it began while messages took longer than usual.
    pub(super) is_slow: bool,
    /// Messages of the group, once known.
    size: Option<u8>,
    /// A bit for each delivered message.
    delivered: u128,
    /// Messages received, not recovered.
    received: u8,
    /// A bit for each parity message received.
    parity_received: u64,
    /// Creation time of its first message.
    created: Time,
    /// Messages before this index are not recovered.
    first_recoverable: u8,
    stored: Stored,
}

/// Shards stored for recovery.
#[derive(Default)]
struct Stored {
    /// Index, creation time after the first, and body.
    data: Vec<(u8, i64, Body)>,
    /// Index and shard; all of the same length.
    parity: Vec<(u8, Bytes)>,
    bytes: usize,
    /// Nothing more is stored.
    is_abandoned: bool,
}

impl Group {
    pub(super) fn new(parity: u8, is_slow: bool, first_recoverable: u8) -> Self {
        Group {
            parity,
            is_slow,
            size: None,
            delivered: 0,
            received: 0,
            parity_received: 0,
            created: Time::ZERO,
            first_recoverable,
            stored: Stored::default(),
        }
    }

    /// Bytes stored.
    pub(super) fn bytes(&self) -> usize {
        self.stored.bytes
    }

    /// The outcome so far. If the number of messages is unknown, `size` is used.
    pub(super) fn outcome(&self, size: u8) -> Outcome {
        let size = self.size.unwrap_or(size.max(self.size()));
        let lost = size - self.received;
        let mut still_missing = lost;
        let mut indices = (0..self.parity).filter(|index| self.parity_received & (1 << index) != 0);
        let parity_needed = match lost {
            0 => Some(0),
            _ => indices
                .find(|_| {
                    still_missing -= 1;
                    still_missing == 0
                })
                .map(|index| index + 1),
        };
        // At most `parity`, which fits.
        let parity_lost = self.parity - self.parity_received.count_ones() as u8;
        Outcome { size, lost, parity: self.parity, parity_lost, parity_needed, is_slow: self.is_slow }
    }

    /// Messages of the group, at least.
    pub(super) fn size(&self) -> u8 {
        self.size.unwrap_or((u128::BITS - self.delivered.leading_zeros()) as u8)
    }

    /// Messages delivered.
    pub(super) fn delivered(&self) -> u32 {
        self.delivered.count_ones()
    }

    /// Sets the number of messages; `false` if it contradicts the messages received.
    pub(super) fn set_size(&mut self, size: u8) -> bool {
        let fits = self.size.is_none_or(|known| known == size) && self.size() <= size;
        if fits {
            self.size = Some(size);
            self.release_if_complete();
        }
        fits
    }

    /// Adds a message; `false` if it was delivered before.
    pub(super) fn add(&mut self, index: u8, created_after: i64, message: &Message) -> StageResult<bool> {
        if self.size.is_some_and(|size| index >= size) {
            return Err(StageError::Input("its index is outside its group".into()));
        }
        let bit = 1 << index;
        if self.delivered & bit != 0 {
            return Ok(false);
        }
        self.delivered |= bit;
        self.received += 1;
        self.created = message.created.shifted(Offset(created_after.saturating_neg()));
        if self.parity > 0 && !self.stored.is_abandoned {
            self.stored.bytes += message.body.len();
            self.stored.data.push((index, created_after, message.body.clone()));
            self.release_if_complete();
        }
        Ok(true)
    }

    /// Adds a parity message. Within a group, all have the same length, and all shards fit into
    /// `bytes_max`.
    pub(super) fn add_parity(
        &mut self,
        index: u8,
        data: u8,
        message: Message,
        bytes_max: usize,
    ) -> StageResult {
        let shard = message.body.into_bytes();
        let malformed = |problem: &str| Err(StageError::Input(problem.into()));
        let differs = |(_, other): &(u8, Bytes)| other.len() != shard.len();
        let longest = self.stored.data.iter().map(|(_, _, body)| body.len()).max().unwrap_or(0);
        if !shard.len().is_multiple_of(2) || shard.len() < shard_bytes(longest) {
            return malformed("its parity is cut short");
        }
        if self.stored.parity.first().is_some_and(differs) || usize::from(data) * shard.len() > bytes_max {
            return malformed("its parity has a different length");
        }
        if !self.set_size(data) {
            return malformed("its group has a different number of messages");
        }
        let bit = 1 << index;
        let is_new = self.parity_received & bit == 0;
        self.parity_received |= bit;
        if is_new && !self.stored.is_abandoned {
            self.created = message.created;
            self.stored.bytes += shard.len();
            self.stored.parity.push((index, shard));
        }
        Ok(())
    }

    /// Recovers the missing messages, if enough were received; oldest first.
    pub(super) fn recover(
        &mut self,
        decoder: &mut Option<ReedSolomonDecoder>,
        scratch: &mut Vec<u8>,
    ) -> StageResult<Vec<Message>> {
        let Some((_, first)) = self.stored.parity.first() else { return Ok(Vec::new()) };
        let (size, bytes) = (usize::from(self.size()), first.len());
        if self.stored.data.len() + self.stored.parity.len() < size {
            return Ok(Vec::new());
        }
        if self.stored.data.iter().any(|(_, _, body)| shard_bytes(body.len()) > bytes) {
            self.abandon();
            return Err(StageError::Input("a message of its group is longer than its parity".into()));
        }
        let stored = std::mem::take(&mut self.stored);
        self.abandon();
        let failed = |error: reed_solomon_simd::Error| StageError::Own(format!("Reed-Solomon: {error}"));
        let decoder = match decoder {
            Some(decoder) => {
                decoder.reset(size, self.parity.into(), bytes).map_err(failed)?;
                decoder
            }
            none => none.insert(ReedSolomonDecoder::new(size, self.parity.into(), bytes).map_err(failed)?),
        };
        scratch.resize(bytes, 0);
        for (index, created_after, body) in &stored.data {
            put_shard(*created_after, body, scratch);
            decoder.add_original_shard((*index).into(), &*scratch).map_err(failed)?;
        }
        for (index, shard) in &stored.parity {
            decoder.add_recovery_shard((*index).into(), shard).map_err(failed)?;
        }
        let (mut indices, mut recovered) = (0, Vec::new());
        for (index, shard) in decoder.decode().map_err(failed)?.restored_original_iter() {
            let (created_after, bytes) = read_shard(shard)
                .ok_or_else(|| StageError::Input("its parity recovers no valid message".into()))?;
            if index < self.first_recoverable.into() {
                continue;
            }
            indices |= 1 << index;
            recovered.push(Message::new(
                self.created.shifted(Offset(created_after)),
                Bytes::copy_from_slice(bytes),
            ));
        }
        self.delivered |= indices;
        Ok(recovered)
    }

    /// Releases the stored shards and stores no more.
    pub(super) fn abandon(&mut self) {
        self.stored = Stored { is_abandoned: true, ..Stored::default() };
    }

    fn release_if_complete(&mut self) {
        if self.size.is_some_and(|size| self.delivered() == u32::from(size)) {
            self.abandon();
        }
    }
}
