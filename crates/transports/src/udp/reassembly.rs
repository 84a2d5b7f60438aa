//! From datagrams, in any order, some lost, some repeated, to whole records, without copying them.

use super::fragment::{Fragment, ID_BYTES, RecordId};
use bytes::{Buf, Bytes};
use contract::{Body, Time};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::{Container, Preamble, RecordHeader};

/// Records that are remembered after they came whole, to know a repeated one.
const RECENT_RECORDS: usize = 1024;
/// What a part costs beside its bytes: its place in a list or a tree.
const PART_BYTES: usize = 64;

/// How much unfinished business is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Largest body of a record.
    pub(super) body_bytes_max: usize,
    /// Records of which some part is missing.
    pub(super) partials_max: usize,
    /// Memory that their parts hold.
    pub(super) partial_bytes_max: usize,
    /// How long a missing part is waited for while no other comes.
    pub(super) patience: Duration,
}

/// What happened to datagrams and records.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    /// Records that came whole.
    pub(super) received: u64,
    /// Their bytes.
    pub(super) received_bytes: u64,
    /// Records given up because parts of them never came.
    pub(super) lost_partial: u64,
    /// Datagrams that had come before.
    pub(super) repeated: u64,
    /// Datagrams that no peer of ours sends.
    pub(super) malformed: u64,
}

/// Memory that datagrams are received into; a slice of it keeps all of it alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slab {
    /// Which one.
    pub(super) number: u64,
    pub(super) bytes: usize,
}

/// Puts records together again.
#[derive(Debug)]
pub(super) struct Reassembly {
    limits: Limits,
    whole: VecDeque<(u32, Body)>,
    /// The one of which something came last is the last.
    partials: VecDeque<Partial>,
    /// What `partials` hold.
    partial_bytes: usize,
    /// By sequence, so that the last ones are all there.
    recent: Box<[Option<RecordId>]>,
    pub(super) counts: Counts,
}

/// A record of which some part is missing.
#[derive(Debug)]
struct Partial {
    id: RecordId,
    count: u16,
    /// When something of it came.
    came: Time,
    /// Parts from 0 up to the first that is missing.
    front: Body,
    /// The first part that is missing.
    next: u16,
    /// Parts that came before their turn.
    early: BTreeMap<u16, Bytes>,
    bytes: usize,
    /// Memory it is charged for: it keeps whole slabs alive.
    charged: usize,
    slab: Option<u64>,
}

impl Reassembly {
    pub(super) fn new(limits: Limits) -> Self {
        Reassembly {
            limits,
            whole: VecDeque::new(),
            partials: VecDeque::new(),
            partial_bytes: 0,
            recent: vec![None; RECENT_RECORDS].into_boxed_slice(),
            counts: Counts::default(),
        }
    }

    /// Whether [`Reassembly::next`] would find a record.
    pub(super) fn has_next(&self) -> bool {
        !self.whole.is_empty()
    }

    /// How many it would find.
    pub(super) fn ready(&self) -> usize {
        self.whole.len()
    }

    /// The next whole record and its flow.
    pub(super) fn next(&mut self) -> Option<(u32, Body)> {
        self.whole.pop_front()
    }

    /// One datagram, a slice of `slab`; its header, if it has one.
    pub(super) fn datagram(&mut self, mut datagram: Bytes, slab: Slab, now: Time) -> Option<Fragment> {
        // A peer that is not sure it was heard introduces itself again.
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
            self.part(fragment, datagram, slab, now);
        }
        Some(fragment)
    }

    /// When [`Reassembly::expire`] would give up a record.
    pub(super) fn expires(&self) -> Option<Time> {
        self.partials.front().map(|oldest| oldest.came.after(self.limits.patience))
    }

    /// Gives up records that waited too long.
    pub(super) fn expire(&mut self, now: Time) {
        while self.expires().is_some_and(|time| time <= now) {
            self.give_up_oldest();
        }
    }

    /// Records of which some part is missing, and the memory they are charged for.
    pub(super) fn held(&self) -> (usize, usize) {
        (self.partials.len(), self.partial_bytes)
    }

    fn part(&mut self, fragment: Fragment, part: Bytes, slab: Slab, now: Time) {
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
        partial.came = now;
        let charged = partial.charged;
        if !partial.take(fragment.index, part, slab) {
            self.counts.repeated += 1;
            return;
        }
        self.partial_bytes += partial.charged - charged;
        let is_whole = partial.next == partial.count;
        let is_too_large = partial.bytes > Container::BYTES + self.limits.body_bytes_max;
        if (is_whole || is_too_large)
            && let Some(partial) = self.remove(at)
        {
            match is_too_large {
                true => self.counts.malformed += 1,
                false => self.finish(fragment, partial.front),
            }
        }
        if self.partial_bytes > self.limits.partial_bytes_max {
            self.compact();
        }
        while self.partials.len() > self.limits.partials_max
            || self.partial_bytes > self.limits.partial_bytes_max
        {
            self.give_up_oldest();
        }
    }

    /// Copies what keeps much more memory alive than it needs.
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

    fn give_up_oldest(&mut self) {
        if self.remove(0).is_some() {
            self.counts.lost_partial += 1;
        }
    }

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
        self.whole.push_back((fragment.flow(), body));
    }
}

impl Partial {
    fn new(fragment: Fragment, now: Time) -> Self {
        Partial {
            id: fragment.id,
            count: fragment.count,
            came: now,
            front: Body::new(),
            next: 0,
            early: BTreeMap::new(),
            bytes: 0,
            charged: 0,
            slab: None,
        }
    }

    /// Lets go of the slabs, if they are more than twice its bytes.
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

    /// Takes a part; `false` if it is there already.
    fn take(&mut self, index: u16, part: Bytes, slab: Slab) -> bool {
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

/// Neighbours in sequence lie in different slots, and so do flows and epochs, mostly.
fn recent_slot(id: &RecordId) -> usize {
    let field = |at: usize| u32::from_le_bytes([id[at], id[at + 1], id[at + 2], id[at + 3]]) as usize;
    const { assert!(ID_BYTES == 16) };
    field(8).wrapping_add(field(0).wrapping_mul(0x9e37)).wrapping_add(field(4).wrapping_mul(0x79b9))
        % RECENT_RECORDS
}
