//! One group at the sink half: what came of it, and how the rest is made again.

use super::fate::Fate;
use super::header::{put_shard, read_shard, shard_bytes};
use contract::{Body, Bytes, Message, Offset, StageError, Time};
use reed_solomon_simd::ReedSolomonDecoder;

pub(super) struct Group {
    /// How many parity messages it has.
    pub(super) parity: u8,
    /// Whether it began while messages took longer than usual.
    pub(super) is_slow: bool,
    /// How many messages it has, if that is known.
    size: Option<u8>,
    /// The messages given out, a bit each.
    given: u128,
    /// How many of them came by themselves.
    came: u8,
    /// The parity messages that came, a bit each.
    parity_came: u64,
    /// When its first message was created.
    created: Time,
    /// Those before this place are not made again.
    repairs_from: u8,
    kept: Kept,
}

/// What is kept to make others again.
#[derive(Default)]
struct Kept {
    /// Place, creation after the first, and body.
    data: Vec<(u8, i64, Body)>,
    /// Place and shard; all of one length.
    parity: Vec<(u8, Bytes)>,
    bytes: usize,
    /// Nothing is to be kept any more.
    is_given_up: bool,
}

impl Group {
    pub(super) fn new(parity: u8, is_slow: bool, repairs_from: u8) -> Self {
        Group {
            parity,
            is_slow,
            size: None,
            given: 0,
            came: 0,
            parity_came: 0,
            created: Time::ZERO,
            repairs_from,
            kept: Kept::default(),
        }
    }

    /// Bytes kept.
    pub(super) fn bytes(&self) -> usize {
        self.kept.bytes
    }

    /// What became of it, as far as it came: how many messages it had is known, or `size`.
    pub(super) fn fate(&self, size: u8) -> Fate {
        let size = self.size.unwrap_or(size.max(self.size()));
        let lost = size - self.came;
        let mut short = lost;
        let mut places = (0..self.parity).filter(|place| self.parity_came & (1 << place) != 0);
        let enough = match lost {
            0 => Some(0),
            _ => places
                .find(|_| {
                    short -= 1;
                    short == 0
                })
                .map(|place| place + 1),
        };
        // At most as many as there are, which fits.
        let parity_lost = self.parity - self.parity_came.count_ones() as u8;
        Fate { size, lost, parity: self.parity, parity_lost, enough, is_slow: self.is_slow }
    }

    /// How many messages it has at least.
    pub(super) fn size(&self) -> u8 {
        self.size.unwrap_or((u128::BITS - self.given.leading_zeros()) as u8)
    }

    /// How many messages were given out.
    pub(super) fn given(&self) -> u32 {
        self.given.count_ones()
    }

    /// Learns how many messages it has; false if that cannot be.
    pub(super) fn set_size(&mut self, size: u8) -> bool {
        let fits = self.size.is_none_or(|known| known == size) && self.size() <= size;
        if fits {
            self.size = Some(size);
            self.forget_if_whole();
        }
        fits
    }

    /// A message came; false if it was given out before.
    pub(super) fn take(&mut self, place: u8, after: i64, message: &Message) -> Result<bool, StageError> {
        if self.size.is_some_and(|size| place >= size) {
            return Err(StageError::Input("its group has no such place".into()));
        }
        let bit = 1 << place;
        if self.given & bit != 0 {
            return Ok(false);
        }
        self.given |= bit;
        self.came += 1;
        self.created = message.created.shifted(Offset(after.saturating_neg()));
        if self.parity > 0 && !self.kept.is_given_up {
            self.kept.bytes += message.body.len();
            self.kept.data.push((place, after, message.body.clone()));
            self.forget_if_whole();
        }
        Ok(true)
    }

    /// A parity message came. All of a group are of one length, and all its shards fit into `bytes_max`.
    pub(super) fn take_parity(
        &mut self,
        place: u8,
        data: u8,
        message: Message,
        bytes_max: usize,
    ) -> Result<(), StageError> {
        let shard = message.body.into_bytes();
        let wrong = |problem: &str| Err(StageError::Input(problem.into()));
        let differs = |(_, other): &(u8, Bytes)| other.len() != shard.len();
        let longest = self.kept.data.iter().map(|(_, _, body)| body.len()).max().unwrap_or(0);
        if !shard.len().is_multiple_of(2) || shard.len() < shard_bytes(longest) {
            return wrong("its parity is cut short");
        }
        if self.kept.parity.first().is_some_and(differs) || usize::from(data) * shard.len() > bytes_max {
            return wrong("its parity is of another length than can be");
        }
        if !self.set_size(data) {
            return wrong("its group has another number of messages");
        }
        let bit = 1 << place;
        let is_new = self.parity_came & bit == 0;
        self.parity_came |= bit;
        if is_new && !self.kept.is_given_up {
            self.created = message.created;
            self.kept.bytes += shard.len();
            self.kept.parity.push((place, shard));
        }
        Ok(())
    }

    /// Makes again what is missing, if enough came. Gives it out, oldest first.
    pub(super) fn repair(
        &mut self,
        decoder: &mut Option<ReedSolomonDecoder>,
        scratch: &mut Vec<u8>,
    ) -> Result<Vec<Message>, StageError> {
        let Some((_, first)) = self.kept.parity.first() else { return Ok(Vec::new()) };
        let (size, bytes) = (usize::from(self.size()), first.len());
        if self.kept.data.len() + self.kept.parity.len() < size {
            return Ok(Vec::new());
        }
        if self.kept.data.iter().any(|(_, _, body)| shard_bytes(body.len()) > bytes) {
            self.give_up();
            return Err(StageError::Input("a message of its group is longer than its parity says".into()));
        }
        let kept = std::mem::take(&mut self.kept);
        self.give_up();
        let own = |error: reed_solomon_simd::Error| StageError::Own(format!("Reed-Solomon: {error}"));
        let decoder = match decoder {
            Some(decoder) => {
                decoder.reset(size, self.parity.into(), bytes).map_err(own)?;
                decoder
            }
            none => none.insert(ReedSolomonDecoder::new(size, self.parity.into(), bytes).map_err(own)?),
        };
        scratch.resize(bytes, 0);
        for (place, after, body) in &kept.data {
            put_shard(*after, body, scratch);
            decoder.add_original_shard((*place).into(), &*scratch).map_err(own)?;
        }
        for (place, shard) in &kept.parity {
            decoder.add_recovery_shard((*place).into(), shard).map_err(own)?;
        }
        let (mut places, mut made) = (0, Vec::new());
        for (place, shard) in decoder.decode().map_err(own)?.restored_original_iter() {
            let (after, bytes) = read_shard(shard)
                .ok_or_else(|| StageError::Input("what its parity makes is no message".into()))?;
            if place < self.repairs_from.into() {
                continue;
            }
            places |= 1 << place;
            made.push(Message::new(self.created.shifted(Offset(after)), Bytes::copy_from_slice(bytes)));
        }
        self.given |= places;
        Ok(made)
    }

    /// Keeps nothing any more.
    pub(super) fn give_up(&mut self) {
        self.kept = Kept { is_given_up: true, ..Kept::default() };
    }

    fn forget_if_whole(&mut self) {
        if self.size.is_some_and(|size| self.given() == u32::from(size)) {
            self.give_up();
        }
    }
}
