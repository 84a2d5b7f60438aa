//! Cache of answers that were not requested yet: oldest first out.

use contract::{Bytes, Message, Time};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Approximate memory of an entry besides the bytes of request and answer.
const ENTRY_BYTES: usize = 512;

#[derive(Debug)]
struct Entry {
    answer: Message,
    since: Time,
    /// Its place in the order of insertion.
    number: u64,
    bytes: usize,
}

/// Answers by request, within a bound of bytes.
#[derive(Debug, Default)]
pub(super) struct Cache {
    answers: HashMap<Bytes, Entry>,
    by_age: BTreeMap<u64, Bytes>,
    inserted: u64,
    bytes: usize,
}

impl Cache {
    /// Inserts an answer. Returns the number of evicted answers.
    pub(super) fn insert(&mut self, request: Bytes, mut answer: Message, now: Time, max: usize) -> u64 {
        let mut evicted = u64::from(self.remove(&request).is_some());
        let bytes = ENTRY_BYTES + request.len() + answer.body.len();
        if bytes > max {
            return evicted + 1;
        }
        while self.bytes + bytes > max
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            evicted += u64::from(self.remove(&oldest).is_some());
        }
        // Copied, because a small piece may keep a large buffer alive.
        answer.body = answer
            .body
            .chunks()
            .fold(Vec::with_capacity(answer.body.len()), |mut copy, chunk| {
                copy.extend_from_slice(chunk);
                copy
            })
            .into();
        self.inserted += 1;
        self.by_age.insert(self.inserted, request.clone());
        self.bytes += bytes;
        self.answers.insert(request, Entry { answer, since: now, number: self.inserted, bytes });
        evicted
    }

    /// True if there is an answer to this request, not older than `fresh`.
    pub(super) fn has(&self, request: &Bytes, now: Time, fresh: Duration) -> bool {
        self.answers.get(request).is_some_and(|entry| now.since(entry.since) <= fresh)
    }

    /// Takes the answer to this request, if there is one not older than `fresh`.
    pub(super) fn take(&mut self, request: &Bytes, now: Time, fresh: Duration) -> Option<Message> {
        self.has(request, now, fresh).then(|| self.remove(request))?
    }

    /// Clears the cache. Returns the number of answers in it.
    pub(super) fn clear(&mut self) -> u64 {
        let count = self.answers.len();
        self.answers.clear();
        self.by_age.clear();
        self.bytes = 0;
        count as u64
    }

    /// Bytes kept.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn remove(&mut self, request: &Bytes) -> Option<Message> {
        let entry = self.answers.remove(request)?;
        self.by_age.remove(&entry.number);
        self.bytes -= entry.bytes;
        Some(entry.answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(number: u8) -> Bytes {
        vec![number; 8].into()
    }

    #[test]
    fn the_oldest_is_evicted() {
        let (mut cache, fresh) = (Cache::default(), Duration::from_secs(1));
        let answer = |number| Message::new(Time(number), vec![number as u8; 80]);
        let max = 3 * (ENTRY_BYTES + 88);
        for number in 1..4 {
            assert_eq!(cache.insert(bytes(number), answer(number.into()), Time::ZERO, max), 0);
        }
        assert_eq!(cache.insert(bytes(4), answer(4), Time::ZERO, max), 1);
        assert_eq!(cache.take(&bytes(1), Time::ZERO, fresh), None, "evicted");
        assert_eq!(cache.take(&bytes(3), Time::ZERO, fresh), Some(answer(3)));
        assert_eq!(cache.take(&bytes(3), Time::ZERO, fresh), None, "removed when it was requested");
        assert_eq!(cache.take(&bytes(4), Time::ZERO.after(2 * fresh), fresh), None, "it is too old");
        assert_eq!(
            cache.insert(bytes(5), Message::new(Time(5), vec![0; max]), Time::ZERO, max),
            1,
            "too large"
        );
        assert_eq!((cache.bytes(), cache.clear()), (2 * (ENTRY_BYTES + 88), 2));
        assert_eq!((cache.bytes(), cache.by_age.len()), (0, 0));
    }
}
