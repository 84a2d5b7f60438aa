//! Cache of answers: least recently used first out.

use contract::{Bytes, Message, Time};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Approximate memory of an entry besides the bytes of request and answer.
const ENTRY_BYTES: usize = 512;

#[derive(Debug)]
struct Entry {
    answer: Message,
    since: Time,
    /// Number of the last use: the entry with the smallest was not used for the longest time.
    used: u64,
    requested: bool,
    bytes: usize,
}

/// Answers by request, within a bound of bytes.
#[derive(Debug, Default)]
pub(super) struct Cache {
    answers: HashMap<Bytes, Entry>,
    by_use: BTreeMap<u64, Bytes>,
    uses: u64,
    bytes: usize,
}

impl Cache {
    /// Inserts an answer. Returns the number of evicted answers that were never requested.
    pub(super) fn insert(
        &mut self,
        request: Bytes,
        mut answer: Message,
        requested: bool,
        now: Time,
        max: usize,
    ) -> u64 {
        let mut unused = self.remove(&request);
        let bytes = ENTRY_BYTES + request.len() + answer.body.len();
        if bytes > max {
            return unused + u64::from(!requested);
        }
        while self.bytes + bytes > max
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            unused += self.remove(&oldest);
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
        self.uses += 1;
        self.by_use.insert(self.uses, request.clone());
        self.bytes += bytes;
        self.answers.insert(request, Entry { answer, since: now, used: self.uses, requested, bytes });
        unused
    }

    /// True if there is an answer to this request, not older than `fresh`.
    pub(super) fn has(&self, request: &Bytes, now: Time, fresh: Duration) -> bool {
        self.answers.get(request).is_some_and(|entry| now.since(entry.since) <= fresh)
    }

    /// The answer to this request, if there is one not older than `fresh`. It stays in the cache if
    /// `retain`.
    pub(super) fn get(
        &mut self,
        request: &Bytes,
        retain: bool,
        now: Time,
        fresh: Duration,
    ) -> Option<Message> {
        if !self.has(request, now, fresh) {
            return None;
        }
        let entry = self.answers.get_mut(request)?;
        self.by_use.remove(&entry.used);
        if !retain {
            self.bytes -= entry.bytes;
            return self.answers.remove(request).map(|entry| entry.answer);
        }
        self.uses += 1;
        (entry.used, entry.requested) = (self.uses, true);
        self.by_use.insert(self.uses, request.clone());
        Some(entry.answer.clone())
    }

    /// Clears the cache. Returns the number of answers that were never requested.
    pub(super) fn clear(&mut self) -> u64 {
        let unused = self.answers.values().filter(|entry| !entry.requested).count();
        self.answers.clear();
        self.by_use.clear();
        self.bytes = 0;
        unused as u64
    }

    /// Bytes kept.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn remove(&mut self, request: &Bytes) -> u64 {
        let Some(entry) = self.answers.remove(request) else { return 0 };
        self.by_use.remove(&entry.used);
        self.bytes -= entry.bytes;
        u64::from(!entry.requested)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(number: u8) -> Bytes {
        vec![number; 8].into()
    }

    #[test]
    fn the_least_recently_used_is_evicted() {
        let (mut cache, fresh) = (Cache::default(), Duration::from_secs(1));
        let answer = |number| Message::new(Time(number), vec![number as u8; 80]);
        let max = 3 * (ENTRY_BYTES + 88);
        for number in 1..4 {
            assert_eq!(cache.insert(bytes(number), answer(number.into()), false, Time::ZERO, max), 0);
        }
        assert_eq!(cache.get(&bytes(1), true, Time::ZERO, fresh), Some(answer(1)));
        assert_eq!(cache.insert(bytes(4), answer(4), false, Time::ZERO, max), 1, "2 was never requested");
        assert_eq!(cache.get(&bytes(2), false, Time::ZERO, fresh), None);
        assert_eq!(cache.get(&bytes(3), false, Time::ZERO, fresh), Some(answer(3)));
        assert_eq!(cache.get(&bytes(3), false, Time::ZERO, fresh), None, "removed when it was requested");
        assert_eq!(cache.get(&bytes(4), false, Time::ZERO.after(2 * fresh), fresh), None, "it is too old");
        assert_eq!(cache.insert(bytes(5), Message::new(Time(5), vec![0; max]), false, Time::ZERO, max), 1);
        assert_eq!((cache.bytes(), cache.clear()), (2 * (ENTRY_BYTES + 88), 1), "1 was requested, 4 was not");
        assert_eq!((cache.bytes(), cache.by_use.len()), (0, 0));
    }
}
