//! Answers that are kept until they are asked for.

use contract::{Bytes, Message, Time};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// What an answer takes besides its bytes and its request's, about.
const ENTRY_BYTES: usize = 512;

#[derive(Debug)]
struct Kept {
    answer: Message,
    since: Time,
    /// Rises with every use: the smallest was not used for the longest time.
    used: u64,
    asked_for: bool,
    bytes: usize,
}

/// Answers by request, within bounds; those not used for the longest time go first.
#[derive(Debug, Default)]
pub(super) struct Cache {
    answers: HashMap<Bytes, Kept>,
    by_use: BTreeMap<u64, Bytes>,
    uses: u64,
    bytes: usize,
}

impl Cache {
    /// Keeps an answer; gives the number of answers that went for it and were never asked for.
    pub(super) fn keep(
        &mut self,
        request: Bytes,
        mut answer: Message,
        asked_for: bool,
        now: Time,
        max: usize,
    ) -> u64 {
        let mut unused = self.remove(&request);
        let bytes = ENTRY_BYTES + request.len() + answer.body.len();
        if bytes > max {
            return unused + u64::from(!asked_for);
        }
        while self.bytes + bytes > max
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            unused += self.remove(&oldest);
        }
        // A copy: the piece may be a small part of what its owner keeps for it.
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
        self.answers.insert(request, Kept { answer, since: now, used: self.uses, asked_for, bytes });
        unused
    }

    /// Whether there is an answer to this request, not older than `fresh`.
    pub(super) fn has(&self, request: &Bytes, now: Time, fresh: Duration) -> bool {
        self.answers.get(request).is_some_and(|kept| now.since(kept.since) <= fresh)
    }

    /// The answer to this request, if there is one not older than `fresh`; it stays if it is to be kept on.
    pub(super) fn ask(
        &mut self,
        request: &Bytes,
        keeps: bool,
        now: Time,
        fresh: Duration,
    ) -> Option<Message> {
        if !self.has(request, now, fresh) {
            return None;
        }
        let kept = self.answers.get_mut(request)?;
        self.by_use.remove(&kept.used);
        if !keeps {
            self.bytes -= kept.bytes;
            return self.answers.remove(request).map(|kept| kept.answer);
        }
        self.uses += 1;
        (kept.used, kept.asked_for) = (self.uses, true);
        self.by_use.insert(self.uses, request.clone());
        Some(kept.answer.clone())
    }

    /// Forgets all; gives the number of answers that were never asked for.
    pub(super) fn clear(&mut self) -> u64 {
        let unused = self.answers.values().filter(|kept| !kept.asked_for).count();
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
        let Some(kept) = self.answers.remove(request) else { return 0 };
        self.by_use.remove(&kept.used);
        self.bytes -= kept.bytes;
        u64::from(!kept.asked_for)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(number: u8) -> Bytes {
        vec![number; 8].into()
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let (mut cache, fresh) = (Cache::default(), Duration::from_secs(1));
        let answer = |number| Message::new(Time(number), vec![number as u8; 80]);
        let max = 3 * (ENTRY_BYTES + 88);
        for number in 1..4 {
            assert_eq!(cache.keep(bytes(number), answer(number.into()), false, Time::ZERO, max), 0);
        }
        assert_eq!(cache.ask(&bytes(1), true, Time::ZERO, fresh), Some(answer(1)));
        assert_eq!(cache.keep(bytes(4), answer(4), false, Time::ZERO, max), 1, "2 was never asked for");
        assert_eq!(cache.ask(&bytes(2), false, Time::ZERO, fresh), None);
        assert_eq!(cache.ask(&bytes(3), false, Time::ZERO, fresh), Some(answer(3)));
        assert_eq!(
            cache.ask(&bytes(3), false, Time::ZERO, fresh),
            None,
            "it was kept until it was asked for"
        );
        assert_eq!(cache.ask(&bytes(4), false, Time::ZERO.after(2 * fresh), fresh), None, "it is too old");
        assert_eq!(cache.keep(bytes(5), Message::new(Time(5), vec![0; max]), false, Time::ZERO, max), 1);
        assert_eq!((cache.bytes(), cache.clear()), (2 * (ENTRY_BYTES + 88), 1), "1 was asked for, 4 was not");
        assert_eq!((cache.bytes(), cache.by_use.len()), (0, 0));
    }
}
