//! The trace of a path: timestamps of sampled messages (Multimedia teleconferencing driver (1995), 2 to 4).
//!
//! A message is sampled by the number of its record, so both hosts sample the same messages without any
//! exchange. The stamps go into a ring, allocated at the start of tracing. A full ring overwrites the oldest
//! stamps and counts them. The runtime supplies the clock.

use contract::Time;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// A point on the path. Each point also names the time since the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Point {
    /// The device made it. For an event: the kernel's timestamp.
    Made,
    /// The kernel received the last bytes of its record.
    Arrived,
    /// The read of the device or socket that returned it started.
    Read,
    /// It was read. From the network: its number is known.
    Received,
    /// It is next in the flow's order.
    Ordered,
    /// It has waited for room in front of a half: number of the pair in source order.
    Waited(u16),
    /// It has left a half: number of the pair in source order.
    Left(u16),
    /// It has a number and is in the replay store.
    Numbered,
    /// The transport has accepted it.
    Pushed,
    /// The transport started to write its pending data.
    Writing,
    /// The kernel has accepted its record completely.
    Written,
    /// It entered the kernel's packet scheduler.
    Scheduled,
    /// The kernel passed it to the network driver.
    Sent,
    /// The peer's kernel acknowledged it.
    Acknowledged,
    /// It is next at the device or node.
    Handing,
    /// The device or node has accepted it.
    Handed,
    /// The device or node has written its pending data.
    Delivered,
}

/// The time at which a message passed a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Nanoseconds of the boot clock.
    pub at_ns: u64,
    /// The message's [`contract::Attributes::mark`].
    pub mark: u32,
    /// The point.
    pub point: Point,
    /// The length of its body there; 0 if unknown.
    pub bytes: u32,
    /// Epoch and sequence of its record, where they are assigned.
    pub number: Option<(u32, u64)>,
}

/// The stamps since the last call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamps {
    /// Oldest first.
    pub stamps: Vec<Stamp>,
    /// Stamps that were overwritten.
    pub overwritten: u64,
    /// All messages.
    pub passed: u64,
    /// Sampled messages.
    pub sampled: u64,
}

/// The trace of one path.
#[derive(Debug)]
pub struct Trace {
    clock: fn() -> Time,
    one_in: NonZeroU32,
    /// The current block of `one_in` numbers: its first number, and its sampled number.
    block: (u64, u64),
    mark: u32,
    ring: Vec<Stamp>,
    /// The index of the oldest stamp in a full ring.
    oldest: usize,
    taken: Stamps,
}

impl Trace {
    /// Samples one message in `one_in`. The ring holds `stamps_max` stamps.
    pub fn new(one_in: NonZeroU32, stamps_max: usize, clock: fn() -> Time) -> Trace {
        Trace {
            clock,
            one_in,
            block: block_of(0, one_in),
            // Start at another mark than an earlier trace, whose marks may still be in use.
            mark: (clock().0 >> 10) as u32,
            ring: Vec::with_capacity(stamps_max.max(1)),
            oldest: 0,
            taken: Stamps::default(),
        }
    }

    /// The sampling interval.
    pub fn one_in(&self) -> NonZeroU32 {
        self.one_in
    }

    /// The current time.
    pub fn now(&self) -> Time {
        (self.clock)()
    }

    /// Returns true if the message with this number is sampled: one in each block of numbers, at a
    /// pseudo-random position, while the ring has room for its stamps.
    pub fn picks(&mut self, number: u64) -> bool {
        // This runs for every message. Only a new block needs more than two comparisons.
        if number.wrapping_sub(self.block.0) >= self.one_in.get().into() {
            self.block = block_of(number, self.one_in);
        }
        number == self.block.1 && self.ring.len() < self.ring.capacity()
    }

    /// The number of messages, from this number on, before the sampled one of its block.
    pub fn before_pick(&self, number: u64) -> Option<u64> {
        block_of(number, self.one_in).1.checked_sub(number)
    }

    /// Counts a message. Returns its mark if it is sampled.
    pub fn pass(&mut self, is_picked: bool) -> Option<u32> {
        self.taken.passed += 1;
        if !is_picked {
            return None;
        }
        self.taken.sampled += 1;
        self.mark = self.mark.wrapping_add(1).max(1);
        Some(self.mark)
    }

    /// Stamps the message with this mark at `point`, now.
    pub fn stamp(&mut self, mark: u32, point: Point, bytes: usize) {
        self.add(Stamp { at_ns: self.now().0, mark, point, bytes: bytes as u32, number: None });
    }

    /// Stamps the message with this mark at `point`, at `at`.
    pub fn stamp_at(&mut self, mark: u32, point: Point, at: Time) {
        self.add(Stamp { at_ns: at.0, mark, point, bytes: 0, number: None });
    }

    /// Stamps the message with this mark at `point`, now, with its epoch and sequence.
    pub fn stamp_number(&mut self, mark: u32, point: Point, bytes: usize, number: (u32, u64)) {
        self.add(Stamp { at_ns: self.now().0, mark, point, bytes: bytes as u32, number: Some(number) });
    }

    fn add(&mut self, stamp: Stamp) {
        if self.ring.len() < self.ring.capacity() {
            return self.ring.push(stamp);
        }
        self.taken.overwritten += 1;
        self.ring[self.oldest] = stamp;
        self.oldest = (self.oldest + 1) % self.ring.len();
    }

    /// Takes the stamps since the last call.
    pub fn take(&mut self) -> Stamps {
        let (newer, older) = self.ring.split_at(self.oldest);
        let stamps = [older, newer].concat();
        self.ring.clear();
        self.oldest = 0;
        Stamps { stamps, ..std::mem::take(&mut self.taken) }
    }
}

/// The first number of the block of `number`, and the sampled number of that block, by SplitMix64.
fn block_of(number: u64, one_in: NonZeroU32) -> (u64, u64) {
    let size = u64::from(one_in.get());
    let block = number / size;
    let mut mixed = (block ^ (block >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let first = block * size;
    (first, first.wrapping_add(((mixed >> 32) * size) >> 32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn trace(one_in: u32, stamps_max: usize) -> Trace {
        Trace::new(NonZeroU32::new(one_in).unwrap(), stamps_max, || Time(7 << 10))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

        /// The sampling rate is right for every stride of numbers.
        #[test]
        fn one_in_n_is_sampled(one_in in 1u32..2000, first in any::<u64>(), step in 1u64..1000) {
            let mut trace = trace(one_in, 1);
            let count = u64::from(one_in) * 200;
            let picked = (0..count).filter(|n| trace.picks(first.wrapping_add(n * step))).count() as f64;
            prop_assert!((100.0..=300.0).contains(&picked), "{picked} of {count}");
        }

        /// Every stamp is kept or counted, and the order stays.
        #[test]
        fn overwritten_stamps_are_counted(max in 1usize..50, rounds in prop::collection::vec(0u64..120, 1..5)) {
            let mut trace = trace(1, max);
            for count in rounds {
                (0..count).for_each(|n| trace.stamp_at(1, Point::Read, Time(n)));
                let taken = trace.take();
                prop_assert_eq!(taken.stamps.len() as u64 + taken.overwritten, count);
                prop_assert_eq!(taken.overwritten, count.saturating_sub(max as u64));
                prop_assert!(taken.stamps.iter().map(|stamp| stamp.at_ns).eq(taken.overwritten..count));
            }
        }
    }

    #[test]
    fn marks_are_never_zero_and_differ() {
        let mut trace = trace(1, 1);
        trace.mark = u32::MAX - 1;
        assert_eq!(
            [true, false, true].map(|is_picked| trace.pass(is_picked)),
            [Some(u32::MAX), None, Some(1)]
        );
        let taken = trace.take();
        assert_eq!((taken.passed, taken.sampled), (3, 2));
    }
}
