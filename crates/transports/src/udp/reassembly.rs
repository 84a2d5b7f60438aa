//! Reassembles records from datagrams that may be lost, repeated and reordered, without copying them.
//!
//! A part is a slice of the slab it was received into and keeps the whole slab in memory. Incomplete records are
//! therefore charged for whole slabs. When the limit is reached, those that use less than half of their charge are
//! copied ([`Partial::compact`]); after that the oldest are dropped.

use super::fragment::{Fragment, ID_BYTES, RecordId};
use bytes::{Buf, Bytes};
use contract::{Body, Time};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::{Container, Preamble, RecordHeader};

/// Complete records that are remembered to recognize repetitions.
const RECENT_RECORDS: usize = 1024;
/// Memory of a part besides its bytes: its node in a list or a tree.
const PART_BYTES: usize = 64;

/// Limits of the reassembly.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReassemblyLimits {
    /// Largest body of a record.
    pub(crate) body_bytes_max: usize,
    /// Incomplete records.
    pub(crate) partials_max: usize,
    /// Memory of incomplete records.
    pub(crate) partial_bytes_max: usize,
    /// An incomplete record is dropped if no part of it arrives for this long.
    pub(crate) patience: Duration,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Complete records.
    pub(crate) received: u64,
    /// Their bytes.
    pub(crate) received_bytes: u64,
    /// Records dropped while incomplete.
    pub(crate) lost_partial: u64,
    /// Repeated datagrams.
    pub(crate) repeated: u64,
    /// Datagrams that break the protocol.
    pub(crate) malformed: u64,
}

/// Identity and size of the memory that a datagram was received into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slab {
    pub(crate) number: u64,
    pub(crate) bytes: usize,
}

/// Incomplete records, and complete ones that were not pulled yet.
#[derive(Debug)]
pub(crate) struct Reassembly {
    limits: ReassemblyLimits,
    complete: VecDeque<(u32, Body)>,
    /// Memory of `complete`.
    complete_bytes: usize,
    /// Ordered by the last arrival, oldest first.
    partials: VecDeque<Partial>,
    /// Memory charged to `partials`.
    partial_bytes: usize,
    /// Complete records by [`recent_slot`].
    recent: Box<[Option<RecordId>]>,
    pub(crate) counts: Counts,
}

/// An incomplete record.
#[derive(Debug)]
struct Partial {
    id: RecordId,
    /// Number of its parts.
    count: u16,
    /// Arrival of its last part.
    last_arrival: Time,
    /// Parts from 0 to the first missing one.
    front: Body,
    /// Index of the first missing part.
    next: u16,
    /// Parts behind the first missing one.
    early: BTreeMap<u16, Bytes>,
    bytes: usize,
    /// Memory charged to this record (see the module comment).
    charged: usize,
    /// The slab that was charged last.
    slab: Option<u64>,
}

impl Reassembly {
    pub(crate) fn new(limits: ReassemblyLimits) -> Self {
        Reassembly {
            limits,
            complete: VecDeque::new(),
            complete_bytes: 0,
            partials: VecDeque::new(),
            partial_bytes: 0,
            recent: vec![None; RECENT_RECORDS].into_boxed_slice(),
            counts: Counts::default(),
        }
    }

    /// Returns true if [`Reassembly::next`] would return a record.
    pub(crate) fn has_next(&self) -> bool {
        !self.complete.is_empty()
    }

    /// Returns the number of complete records.
    pub(crate) fn ready(&self) -> usize {
        self.complete.len()
    }

    /// Returns the memory of the complete records.
    pub(crate) fn ready_bytes(&self) -> usize {
        self.complete_bytes
    }

    /// Returns the next complete record and its flow.
    pub(crate) fn next(&mut self) -> Option<(u32, Body)> {
        let (flow, body) = self.complete.pop_front()?;
        self.complete_bytes -= body.len() + PART_BYTES;
        Some((flow, body))
    }

    /// Adds a datagram, which is a slice of `slab`. Returns its header if that is valid.
    pub(crate) fn insert(&mut self, mut datagram: Bytes, slab: Slab, now: Time) -> Option<Fragment> {
        // The peer repeats its introduction until it is answered.
        if datagram.len() == Preamble::BYTES && Preamble::parse(&datagram).is_ok() {
            return None;
        }
        let fragment = match Fragment::parse(&datagram) {
            Some(fragment) if datagram.len() > Fragment::BYTES => fragment,
            _ => {
                self.counts.malformed += 1;
                return None;
            }
        };
        datagram.advance(Fragment::BYTES);
        if self.recent[recent_slot(&fragment.id)] == Some(fragment.id) {
            self.counts.repeated += 1;
        } else if fragment.count == 1 {
            self.finish(fragment, Body::from(datagram));
        } else {
            self.insert_part(fragment, datagram, slab, now);
        }
        Some(fragment)
    }

    /// Lets a complete record arrive again: the session had no room for it.
    pub(crate) fn forget(&mut self, id: &RecordId) {
        self.recent[recent_slot(id)].take_if(|recent| recent == id);
    }

    /// Returns the time at which [`Reassembly::expire`] drops a record.
    pub(crate) fn expires(&self) -> Option<Time> {
        self.partials.front().map(|oldest| oldest.last_arrival.after(self.limits.patience))
    }

    /// Drops incomplete records after their patience.
    pub(crate) fn expire(&mut self, now: Time) {
        while self.expires().is_some_and(|time| time <= now) {
            self.drop_oldest();
        }
    }

    /// Returns the number of incomplete records and the memory charged to them.
    pub(crate) fn held(&self) -> (usize, usize) {
        (self.partials.len(), self.partial_bytes)
    }

    fn insert_part(&mut self, fragment: Fragment, part: Bytes, slab: Slab, now: Time) {
        let found = self.partials.iter().rposition(|p| p.id == fragment.id);
        let mut at = found.unwrap_or_else(|| {
            self.partials.push_back(Partial::new(fragment, now));
            self.partials.len() - 1
        });
        if self.partials[at].count != fragment.count {
            self.counts.malformed += 1;
            return;
        }
        if at + 1 < self.partials.len()
            && let Some(partial) = self.partials.remove(at)
        {
            at = self.partials.len();
            self.partials.push_back(partial);
        }
        let partial = &mut self.partials[at];
        partial.last_arrival = now;
        let charged = partial.charged;
        if !partial.insert(fragment.index, part, slab) {
            self.counts.repeated += 1;
            return;
        }
        self.partial_bytes += partial.charged - charged;
        let is_complete = partial.next == partial.count;
        let is_too_large = partial.bytes > Container::BYTES + self.limits.body_bytes_max;
        if (is_complete || is_too_large)
            && let Some(partial) = self.remove(at)
        {
            if is_too_large { self.counts.malformed += 1 } else { self.finish(fragment, partial.front) }
        }
        if self.partial_bytes > self.limits.partial_bytes_max {
            self.compact();
        }
        while self.partials.len() > self.limits.partials_max
            || self.partial_bytes > self.limits.partial_bytes_max
        {
            self.drop_oldest();
        }
    }

    /// Copies records that keep much more memory than they need.
    fn compact(&mut self) {
        for partial in &mut self.partials {
            self.partial_bytes -= partial.charged;
            partial.compact();
            self.partial_bytes += partial.charged;
        }
    }

    fn remove(&mut self, at: usize) -> Option<Partial> {
        let partial = self.partials.remove(at)?;
        self.partial_bytes -= partial.charged;
        Some(partial)
    }

    fn drop_oldest(&mut self) {
        if self.remove(0).is_some() {
            self.counts.lost_partial += 1;
        }
    }

    /// Checks a complete record and queues it.
    fn finish(&mut self, fragment: Fragment, mut body: Body) {
        body.push_front(&fragment.id);
        let header = body.peek_front::<{ RecordHeader::BYTES }>();
        let header = header.and_then(|bytes| RecordHeader::parse(&bytes, self.limits.body_bytes_max).ok());
        if header.is_none_or(|header| header.container.length as usize != body.len() - RecordHeader::BYTES) {
            self.counts.malformed += 1;
            return;
        }
        self.recent[recent_slot(&fragment.id)] = Some(fragment.id);
        self.counts.received += 1;
        self.counts.received_bytes += body.len() as u64;
        self.complete_bytes += body.len() + PART_BYTES;
        self.complete.push_back((fragment.flow(), body));
    }
}

impl Partial {
    fn new(fragment: Fragment, now: Time) -> Self {
        Partial {
            id: fragment.id,
            count: fragment.count,
            last_arrival: now,
            front: Body::new(),
            next: 0,
            early: BTreeMap::new(),
            bytes: 0,
            charged: 0,
            slab: None,
        }
    }

    /// Copies the parts and releases the slabs if their charge is more than twice the record's own memory.
    fn compact(&mut self) {
        let own = self.bytes + (usize::from(self.next) + self.early.len()) * PART_BYTES;
        if self.charged <= 2 * own {
            return;
        }
        let front = std::mem::take(&mut self.front).into_bytes();
        self.front = Body::from(Bytes::copy_from_slice(&front));
        self.early.values_mut().for_each(|part| *part = Bytes::copy_from_slice(part));
        (self.charged, self.slab) = (own, None);
    }

    /// Adds a part. Returns false for a repetition.
    fn insert(&mut self, index: u16, part: Bytes, slab: Slab) -> bool {
        if index < self.next || self.early.contains_key(&index) {
            return false;
        }
        self.bytes += part.len();
        self.charged += PART_BYTES;
        if self.slab.replace(slab.number) != Some(slab.number) {
            self.charged += slab.bytes;
        }
        if index != self.next {
            self.early.insert(index, part);
            return true;
        }
        self.front.push(part);
        self.next += 1;
        while let Some(part) = self.early.remove(&self.next) {
            self.front.push(part);
            self.next += 1;
        }
        true
    }
}

/// Returns the slot of a record in `recent`. Consecutive sequences use different slots, so the last records of a flow
/// are all remembered. Flows and epochs are spread by multiplication.
fn recent_slot(id: &RecordId) -> usize {
    let field = |at: usize| u32::from_le_bytes([id[at], id[at + 1], id[at + 2], id[at + 3]]) as usize;
    const { assert!(ID_BYTES == 16) };
    field(8).wrapping_add(field(0).wrapping_mul(0x9e37)).wrapping_add(field(4).wrapping_mul(0x79b9))
        % RECENT_RECORDS
}
