//! The trace of a path: when messages of a sample passed which points of it (paper M, chapters 4 and 5).
//!
//! A message is sampled by the number of its record, so that two hosts that know nothing of each other sample
//! the same. Its stamps go into a ring that was allocated when tracing began; where that is full, the oldest are
//! overwritten and counted. The runtime gives the clock.

use contract::Time;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// A point that a message passes. What lies before it, from the point before, is named by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Point {
    /// The device made it: of an event, when the kernel had it.
    Made,
    /// The kernel had its record's last bytes from the network.
    Arrived,
    /// A read of the device, or of the socket, began that brought it.
    Read,
    /// It is there. From the network, it has its number.
    Received,
    /// Its turn in the flow's order has come.
    Ordered,
    /// It has waited for room in front of a pair's half: number of the pair in source order.
    Waited(u16),
    /// It has left a pair's half.
    Left(u16),
    /// It has a number, and is kept for resending.
    Numbered,
    /// The transport has it.
    Pushed,
    /// The writing of all that the transport has began.
    Writing,
    /// The kernel has its record whole.
    Written,
    /// It entered the kernel's packet scheduler.
    Scheduled,
    /// The kernel handed it to the network's driver.
    Sent,
    /// The peer's kernel has it.
    Acknowledged,
    /// It is its turn at the device or node.
    Handing,
    /// The device or node has taken it.
    Handed,
    /// The writing of all that the device or node has taken is done.
    Delivered,
}

/// That a message passed a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// When, nanoseconds of the boot clock.
    pub at_ns: u64,
    /// Which message: [`contract::Attributes::mark`].
    pub mark: u32,
    /// Which point.
    pub point: Point,
    /// Bytes of its body there; 0 where that is not looked at.
    pub bytes: u32,
    /// Epoch and sequence of its record, where it gets them.
    pub number: Option<(u32, u64)>,
}

/// What was stamped since the last time it was taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamps {
    /// Oldest first.
    pub stamps: Vec<Stamp>,
    /// Stamps that were overwritten.
    pub overwritten: u64,
    /// Messages that passed.
    pub passed: u64,
    /// Messages that were sampled.
    pub sampled: u64,
}

/// One path's trace, while it is traced.
#[derive(Debug)]
pub struct Trace {
    clock: fn() -> Time,
    one_in: NonZeroU32,
    /// The block of `one_in` numbers that was looked at last, by its first, and the one of them that is sampled.
    block: (u64, u64),
    mark: u32,
    ring: Vec<Stamp>,
    /// Where the oldest stamp is, once the ring is full.
    oldest: usize,
    taken: Stamps,
}

impl Trace {
    /// One message in `one_in` is sampled; `stamps_max` wait to be taken.
    pub fn new(one_in: NonZeroU32, stamps_max: usize, clock: fn() -> Time) -> Trace {
        Trace {
            clock,
            one_in,
            block: block_of(0, one_in),
            // A mark that is left from a trace before is none of this one's.
            mark: (clock().0 >> 10) as u32,
            ring: Vec::with_capacity(stamps_max.max(1)),
            oldest: 0,
            taken: Stamps::default(),
        }
    }

    /// One message in so many is sampled.
    pub fn one_in(&self) -> NonZeroU32 {
        self.one_in
    }

    /// Now.
    pub fn now(&self) -> Time {
        (self.clock)()
    }

    /// Whether the message of this number is sampled: of each block of numbers one, in step with nothing, while there is
    /// room for its stamps.
    pub fn picks(&mut self, number: u64) -> bool {
        // Asked for every message: only a new block takes more than two comparisons.
        if number.wrapping_sub(self.block.0) >= self.one_in.get().into() {
            self.block = block_of(number, self.one_in);
        }
        number == self.block.1 && self.ring.len() < self.ring.capacity()
    }

    /// How many messages from the one of this number on pass before one that is sampled, in its block.
    pub fn before_pick(&self, number: u64) -> Option<u64> {
        block_of(number, self.one_in).1.checked_sub(number)
    }

    /// A message passes; if it is sampled, its mark.
    pub fn pass(&mut self, is_picked: bool) -> Option<u32> {
        self.taken.passed += 1;
        if !is_picked {
            return None;
        }
        self.taken.sampled += 1;
        self.mark = self.mark.wrapping_add(1).max(1);
        Some(self.mark)
    }

    /// The message of this mark is at `point` now, with so many bytes.
    pub fn stamp(&mut self, mark: u32, point: Point, bytes: usize) {
        self.add(Stamp { at_ns: self.now().0, mark, point, bytes: bytes as u32, number: None });
    }

    /// The message of this mark was at `point` at `at`.
    pub fn stamp_at(&mut self, mark: u32, point: Point, at: Time) {
        self.add(Stamp { at_ns: at.0, mark, point, bytes: 0, number: None });
    }

    /// The message of this mark is at `point` now, where it has so many bytes, this epoch and this sequence.
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

    /// Takes what was stamped since the last time.
    pub fn take(&mut self) -> Stamps {
        let (newer, older) = self.ring.split_at(self.oldest);
        let stamps = [older, newer].concat();
        self.ring.clear();
        self.oldest = 0;
        Stamps { stamps, ..std::mem::take(&mut self.taken) }
    }
}

/// The first of the block that `number` is in, and the one of the block that is sampled: by the mixing of SplitMix64.
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

        /// Whatever the rhythm of what is looked at, as many are sampled as was asked for.
        #[test]
        fn one_in_n_is_sampled(one_in in 1u32..2000, first in any::<u64>(), step in 1u64..1000) {
            let mut trace = trace(one_in, 1);
            let count = u64::from(one_in) * 200;
            let picked = (0..count).filter(|n| trace.picks(first.wrapping_add(n * step))).count() as f64;
            prop_assert!((100.0..=300.0).contains(&picked), "{picked} of {count}");
        }

        /// Nothing is lost without being counted, and order stays.
        #[test]
        fn what_the_ring_cannot_hold_is_counted(max in 1usize..50, rounds in prop::collection::vec(0u64..120, 1..5)) {
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
