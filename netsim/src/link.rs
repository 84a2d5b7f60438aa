//! One direction of a link, as pure logic; time is an argument.
//!
//! ```text
//! push -> loss -> bottleneck queue (rate, queue) -> delay line (delay, jitter) -> pop
//! ```
//!
//! Times are nanoseconds of any one clock. The link schedules in its own virtual time: a caller that is late
//! receives a packet late, but does not make the link slower. All random numbers are drawn in `push`, so the
//! fate of a packet does not depend on the times of `pop`.

use crate::params::{ALL_PPM, Params, burst_chance};
use crate::rng::Rng;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// The default memory limit of one direction ([`Link::hold_at_most`]), in bytes: a second of half a gigabit. It
/// matters for a fast sender on a link with a long delay and no rate.
pub const HELD_MAX_BYTES: u64 = 64 << 20;

/// A unit is late if it is popped this long after it was due.
pub const LATE_NS: u64 = 200_000;

/// A packet that a link can carry.
pub trait Packet: Clone {
    /// Flips one bit, chosen by `random`.
    fn corrupt(&mut self, random: u64);
}

impl Packet for Vec<u8> {
    fn corrupt(&mut self, random: u64) {
        flip(self, random);
    }
}

impl Packet for Box<[u8]> {
    fn corrupt(&mut self, random: u64) {
        flip(self, random);
    }
}

/// A packet that consists only of its number, for simulations.
impl Packet for u64 {
    fn corrupt(&mut self, random: u64) {
        *self ^= 1 << (random % 64);
    }
}

fn flip(bytes: &mut [u8], random: u64) {
    if !bytes.is_empty() {
        let bit = random % (bytes.len() as u64 * 8);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

/// The reason that a packet does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A random loss, single or in a burst.
    Lost,
    /// The bottleneck queue, or the link's memory, was full.
    Overflowed,
    /// The link was down.
    Cut,
}

/// A packet that does not arrive, returned with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped<T> {
    /// The reason.
    pub fate: Fate,
    /// The packet.
    pub packet: T,
}

/// Counters of all packets so far. `sent + duplicated` equals `lost + overflowed + cut + delivered` plus the
/// packets in the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets pushed.
    pub sent: u64,
    /// Bytes pushed.
    pub sent_bytes: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets that found the queue full.
    pub overflowed: u64,
    /// Packets pushed while the link was down, or inside when it went down.
    pub cut: u64,
    /// Packets duplicated.
    pub duplicated: u64,
    /// Packets with a flipped bit.
    pub corrupted: u64,
    /// Packets popped.
    pub delivered: u64,
    /// The sum of delays between due time and `pop`: the caller's lateness, not the link's.
    pub late_ns: u64,
    /// The longest of these delays.
    pub late_max_ns: u64,
    /// Units popped more than [`LATE_NS`] after they were due. If this exceeds a percent or two, the machine
    /// was too busy and the measurement is unreliable.
    pub late_units: u64,
}

/// Waiting for transmission, or in transmission: `packets` of `bytes` in total that travel as one unit.
struct Queued<T> {
    item: T,
    packets: u32,
    bytes: u32,
    jitter_ns: u64,
}

/// A unit in the delay line. The order makes a heap return the earliest due first, and among equals the first
/// pushed.
struct InFlight<T> {
    due_ns: u64,
    order: u64,
    unit: Queued<T>,
}

impl<T> Ord for InFlight<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due_ns, other.order).cmp(&(self.due_ns, self.order))
    }
}

impl<T> PartialOrd for InFlight<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for InFlight<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for InFlight<T> {}

/// One direction of a link. [`push`](Link::push) packets in, and [`pop`](Link::pop) them when they are due.
pub struct Link<T> {
    params: Params,
    queue: VecDeque<Queued<T>>,
    /// Packets in `queue`, including the one in transmission.
    queue_packets: u32,
    /// The time at which the transmission of the first unit in `queue` ends.
    head_done_ns: u64,
    line: BinaryHeap<InFlight<T>>,
    /// The latest due time assigned so far. It keeps packets in order.
    last_due_ns: u64,
    entered: u64,
    held_packets: u64,
    held_bytes: u64,
    held_max_bytes: u64,
    in_burst: bool,
    /// Draws the fates of packets, separately from their delays.
    fates: Rng,
    jitters: Rng,
    counters: Counters,
}

impl<T: Packet> Link<T> {
    /// An empty link. The same seed and the same pushes give the same result.
    pub fn new(params: Params, seed: u64) -> Link<T> {
        Link {
            params,
            queue: VecDeque::new(),
            queue_packets: 0,
            head_done_ns: 0,
            line: BinaryHeap::new(),
            last_due_ns: 0,
            entered: 0,
            held_packets: 0,
            held_bytes: 0,
            held_max_bytes: HELD_MAX_BYTES,
            in_burst: false,
            fates: Rng::new(seed, 0),
            jitters: Rng::new(seed, 1),
            counters: Counters::default(),
        }
    }

    /// Sets the memory limit in bytes, [`HELD_MAX_BYTES`] by default.
    pub fn hold_at_most(mut self, bytes: u64) -> Link<T> {
        self.held_max_bytes = bytes;
        self
    }

    /// The current parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The counters of all packets so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Packets and bytes between `push` and `pop`.
    pub fn held(&self) -> (u64, u64) {
        (self.held_packets, self.held_bytes)
    }

    /// Changes the parameters from `now_ns` on. Packets in the delay line keep their due time; packets in the
    /// queue use the new rate. A link that goes down loses its packets and returns them.
    pub fn configure(&mut self, now_ns: u64, params: Params) -> Vec<T> {
        self.advance(now_ns);
        if !self.queue.is_empty() && params.rate_bps != self.params.rate_bps {
            let left_ns = u128::from(self.head_done_ns.saturating_sub(now_ns));
            let left = left_ns * u128::from(self.params.rate_bps);
            let at_new_rate = left.checked_div(u128::from(params.rate_bps)).unwrap_or(0);
            self.head_done_ns = now_ns.saturating_add(u64::try_from(at_new_rate).unwrap_or(u64::MAX));
        }
        self.params = params;
        if self.params.down { self.clear() } else { Vec::new() }
    }

    fn clear(&mut self) -> Vec<T> {
        self.counters.cut += self.held_packets;
        (self.queue_packets, self.held_packets, self.held_bytes) = (0, 0, 0);
        let line =
            std::mem::take(&mut self.line).into_sorted_vec().into_iter().rev().map(|flying| flying.unit);
        line.chain(self.queue.drain(..)).map(|unit| unit.item).collect()
    }

    /// Sends one packet that is `bytes` long on the wire. Returns a packet that will not arrive.
    pub fn push(&mut self, now_ns: u64, mut packet: T, bytes: u32) -> Result<(), Dropped<T>> {
        if let Some(fate) = self.draw(bytes) {
            return Err(Dropped { fate, packet });
        }
        if self.params.corrupt_ppm > 0 && self.fates.chance(self.params.corrupt_ppm.into(), ALL_PPM.into()) {
            packet.corrupt(self.fates.draw());
            self.counters.corrupted += 1;
        }
        let twice = self.params.duplicate_ppm > 0
            && self.fates.chance(self.params.duplicate_ppm.into(), ALL_PPM.into());
        if twice {
            self.counters.duplicated += 1;
            let _ = self.carry(now_ns, packet.clone(), 1, bytes);
        }
        self.carry(now_ns, packet, 1, bytes)
    }

    /// Decides if the next packet is lost before it reaches the queue, for a caller that then
    /// [carries](Link::carry) several packets as one unit. Counts the packet as sent in both cases.
    pub fn draw(&mut self, bytes: u32) -> Option<Fate> {
        self.counters.sent += 1;
        self.counters.sent_bytes += u64::from(bytes);
        if self.params.down {
            self.counters.cut += 1;
            return Some(Fate::Cut);
        }
        let (enter, of) = burst_chance(self.params.burst_loss_ppm, self.params.burst_packets);
        self.in_burst = if self.in_burst {
            enter > 0 && !self.fates.chance(1, self.params.burst_packets.into())
        } else {
            self.fates.chance(enter, of)
        };
        let lost = self.in_burst || self.fates.chance(self.params.loss_ppm.into(), ALL_PPM.into());
        self.counters.lost += u64::from(lost);
        lost.then_some(Fate::Lost)
    }

    /// The number of packets that the bottleneck queue accepts at `now_ns`.
    pub fn room(&mut self, now_ns: u64) -> u32 {
        self.advance(now_ns);
        if self.held_bytes >= self.held_max_bytes {
            return 0;
        }
        self.params.queue_packets.saturating_sub(self.queue_packets)
    }

    /// The time at which the full queue accepts a packet again; `None` if it is not full.
    pub fn room_at(&self) -> Option<u64> {
        (self.queue_packets >= self.params.queue_packets && !self.queue.is_empty())
            .then_some(self.head_done_ns)
    }

    /// Puts a unit of `packets`, already [drawn](Link::draw), into the queue. It travels as a whole, arrives
    /// with its last bit, and has one jitter.
    pub fn carry(&mut self, now_ns: u64, item: T, packets: u32, bytes: u32) -> Result<(), Dropped<T>> {
        if self.room(now_ns) < packets {
            self.counters.overflowed += u64::from(packets);
            return Err(Dropped { fate: Fate::Overflowed, packet: item });
        }
        if self.queue.is_empty() {
            self.head_done_ns = now_ns.saturating_add(self.transmission_ns(bytes));
        }
        let jitter_ns = self.jitters.up_to(self.params.jitter_ns);
        self.queue.push_back(Queued { item, packets, bytes, jitter_ns });
        self.queue_packets += packets;
        self.held_packets += u64::from(packets);
        self.held_bytes += u64::from(bytes);
        self.advance(now_ns);
        Ok(())
    }

    /// Returns the next unit due by `now_ns`, with its due time.
    pub fn pop(&mut self, now_ns: u64) -> Option<(u64, T)> {
        self.advance(now_ns);
        if self.line.peek()?.due_ns > now_ns {
            return None;
        }
        let InFlight { due_ns, unit, .. } = self.line.pop()?;
        self.held_packets -= u64::from(unit.packets);
        self.held_bytes -= u64::from(unit.bytes);
        let late_ns = now_ns.saturating_sub(due_ns);
        self.counters.delivered += u64::from(unit.packets);
        self.counters.late_ns = self.counters.late_ns.saturating_add(late_ns);
        self.counters.late_max_ns = self.counters.late_max_ns.max(late_ns);
        self.counters.late_units += u64::from(late_ns > LATE_NS);
        Some((due_ns, unit.item))
    }

    /// The time of the next useful `pop`; it may still return nothing. The bottleneck needs no timer: a packet
    /// that it transmits is due only after the delay.
    pub fn deadline(&self) -> Option<u64> {
        let line = self.line.peek().map(|flying| flying.due_ns);
        let queue = self.queue.front().map(|_| self.head_done_ns.saturating_add(self.params.delay_ns));
        line.into_iter().chain(queue).min()
    }

    /// The time that the bottleneck takes for so many bytes.
    pub fn transmission_ns(&self, bytes: u32) -> u64 {
        let bits = u128::from(bytes) * 8 * 1_000_000_000;
        let ns = bits.checked_div(u128::from(self.params.rate_bps)).unwrap_or(0);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Moves all units transmitted by `now_ns` from the bottleneck to the delay line.
    fn advance(&mut self, now_ns: u64) {
        while self.head_done_ns <= now_ns
            && let Some(unit) = self.queue.pop_front()
        {
            self.queue_packets -= unit.packets;
            let mut due_ns =
                self.head_done_ns.saturating_add(self.params.delay_ns).saturating_add(unit.jitter_ns);
            if !self.params.reorder {
                due_ns = due_ns.max(self.last_due_ns);
            }
            self.last_due_ns = self.last_due_ns.max(due_ns);
            self.entered += 1;
            self.line.push(InFlight { due_ns, order: self.entered, unit });
            if let Some(next) = self.queue.front() {
                self.head_done_ns = self.head_done_ns.saturating_add(self.transmission_ns(next.bytes));
            }
        }
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
