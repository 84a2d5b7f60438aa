//! The requests of a connection without a reply, and the ring of their data.

use super::memory::{REQUESTS_MAX, RING_BYTES};
use std::collections::VecDeque;
use wire::formats::block::{Command, DATA_BYTES_MAX, Failure, Geometry, Request};
use wire::nbd::{self, Asked};

/// Data of reads without a reply, at most; one read may have more.
const READ_BYTES_MAX: usize = 32 << 20;

/// A request of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its number in the connection, from 1.
    pub(super) sequence: u64,
    /// The request.
    pub(super) request: nbd::Request,
    /// The place of its data in the ring.
    pub(super) data_at: usize,
}

impl Entry {
    /// The length of its data in the ring.
    pub(super) fn data_bytes(&self) -> usize {
        if self.request.asked == Asked::Do(Command::Write) { self.request.length as usize } else { 0 }
    }

    /// The length of the data of its answer.
    pub(super) fn read_bytes(&self) -> usize {
        if self.request.asked == Asked::Do(Command::Read) { self.request.length as usize } else { 0 }
    }

    /// Returns whether its success says that data are durable.
    pub(super) fn is_durable(&self) -> bool {
        match self.request.asked {
            Asked::Do(Command::Flush) => true,
            Asked::Do(command) => self.request.force && command.changes_data(),
            _ => false,
        }
    }

    /// Returns the request for the disk, or its failure if the disk does not need to be asked.
    pub(super) fn for_disk(&self, id: u64, geometry: &Geometry) -> Result<Request, Failure> {
        let nbd::Request { asked, force, keep_space, has_unknown_flags, offset, length, .. } = self.request;
        let command = match asked {
            Asked::Do(command) if !has_unknown_flags => command,
            _ => return Err(Failure::Invalid),
        };
        let (offset, length, force) = match command {
            // A forced read or flush is one: both ask for no writes of their own.
            Command::Flush => (0, 0, false),
            Command::Read => (offset, length, false),
            _ => (offset, length, force),
        };
        let is_empty = length == 0 && command != Command::Flush;
        let is_long = matches!(command, Command::Read | Command::Write) && length as usize > DATA_BYTES_MAX;
        if is_empty || is_long {
            return Err(Failure::Invalid);
        }
        let request = Request { id, command, force, keep_space, offset, length };
        request.refusal(geometry).map_or(Ok(request), Err)
    }
}

/// The requests of a connection.
#[derive(Debug)]
pub(super) struct Requests {
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
    /// Parts of the ring in use, in the order of their numbers: number, start, length.
    used: VecDeque<(u64, usize, usize)>,
    read_bytes: usize,
}

impl Requests {
    /// No requests.
    pub(super) fn new() -> Requests {
        let free = (0..REQUESTS_MAX).rev().collect();
        Requests { entries: vec![None; REQUESTS_MAX], free, used: VecDeque::new(), read_bytes: 0 }
    }

    /// Restores saved requests. `None` if their data overlap.
    pub(super) fn restore(saved: Vec<Option<Entry>>) -> Option<Requests> {
        let mut requests = Requests::new();
        requests.free.retain(|index| saved.get(*index).is_none_or(Option::is_none));
        let mut parts: Vec<_> = saved.iter().flatten().filter(|entry| entry.data_bytes() > 0).collect();
        parts.sort_by_key(|entry| entry.data_at);
        if parts.windows(2).any(|two| two[0].data_at + two[0].data_bytes() > two[1].data_at) {
            return None;
        }
        parts.sort_by_key(|entry| entry.sequence);
        requests.used =
            parts.iter().map(|entry| (entry.sequence, entry.data_at, entry.data_bytes())).collect();
        requests.read_bytes = saved.iter().flatten().map(Entry::read_bytes).sum();
        requests.entries = saved;
        Some(requests)
    }

    /// Returns true if there is no request.
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == REQUESTS_MAX
    }

    /// Returns true if the header of another request may be received.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() && self.read_bytes < READ_BYTES_MAX
    }

    /// Returns the request in an entry.
    pub(super) fn get(&self, index: usize) -> Option<&Entry> {
        self.entries.get(index)?.as_ref()
    }

    /// Returns all requests with their entries.
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| Some((index, entry.as_ref()?)))
    }

    /// Returns true if there is room for a request and its data.
    pub(super) fn fits(&self, request: nbd::Request) -> bool {
        let data_bytes = Entry { sequence: 0, request, data_at: 0 }.data_bytes();
        !self.free.is_empty() && (data_bytes == 0 || self.find(data_bytes).is_some())
    }

    /// Adds a request. `None` if there is no room yet for it or its data.
    pub(super) fn add(&mut self, sequence: u64, request: nbd::Request) -> Option<(usize, Entry)> {
        let mut entry = Entry { sequence, request, data_at: 0 };
        let index = *self.free.last()?;
        if entry.data_bytes() > 0 {
            entry.data_at = self.find(entry.data_bytes())?;
            self.used.push_back((sequence, entry.data_at, entry.data_bytes()));
        }
        self.free.pop();
        self.read_bytes += entry.read_bytes();
        self.entries[index] = Some(entry);
        Some((index, entry))
    }

    /// Finds room in the ring: at its start, or behind the newest data. The start comes first, so that the data stay in the cache of the
    /// processor as long as they are few.
    fn find(&self, length: usize) -> Option<usize> {
        let (Some(oldest), Some(newest)) = (self.used.front(), self.used.back()) else {
            return (length <= RING_BYTES).then_some(0);
        };
        let (start, end) = (oldest.1, newest.1 + newest.2);
        match newest.1 < start {
            // The newest data are before the oldest.
            true => (end + length <= start).then_some(end),
            false if length <= start => Some(0),
            false => (end + length <= RING_BYTES).then_some(end),
        }
    }

    /// Removes a request.
    pub(super) fn remove(&mut self, index: usize) -> Option<Entry> {
        let entry = self.entries.get_mut(index)?.take()?;
        self.free.push(index);
        self.read_bytes -= entry.read_bytes();
        if entry.data_bytes() > 0 {
            self.used.retain(|(sequence, ..)| *sequence != entry.sequence);
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(length: u32) -> nbd::Request {
        nbd::Request {
            asked: Asked::Do(Command::Write),
            force: false,
            keep_space: false,
            has_unknown_flags: false,
            cookie: 0,
            offset: 0,
            length,
        }
    }

    #[test]
    fn few_data_use_the_start_of_the_ring_again_and_again() {
        let mut requests = Requests::new();
        let mut last = None;
        for sequence in 1..100 {
            let (index, entry) = requests.add(sequence, write(1 << 20)).unwrap();
            assert!(entry.data_at <= 2 << 20, "{entry:?}");
            last.replace(index).map(|index| requests.remove(index));
        }
    }

    proptest! {
        #[test]
        fn data_never_overlap(steps in prop::collection::vec((any::<bool>(), 1..(12u32 << 20), any::<usize>()), 1..200)) {
            let (mut requests, mut sequence) = (Requests::new(), 1);
            for (adds, length, which) in steps {
                if adds {
                    sequence += u64::from(requests.add(sequence, write(length)).is_some());
                } else {
                    let present: Vec<usize> = requests.all().map(|(index, _)| index).collect();
                    if !present.is_empty() {
                        requests.remove(present[which % present.len()]);
                    }
                }
                let saved: Vec<_> = requests.entries.clone();
                let restored = Requests::restore(saved);
                prop_assert!(restored.is_some(), "overlap");
                prop_assert_eq!(&restored.unwrap().used, &requests.used);
            }
            let present: Vec<usize> = requests.all().map(|(index, _)| index).collect();
            present.iter().for_each(|index| _ = requests.remove(*index));
            prop_assert!(requests.is_empty());
            prop_assert!(requests.add(sequence, write(RING_BYTES as u32)).is_some(), "the longest write fits");
        }
    }
}
