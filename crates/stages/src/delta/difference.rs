//! What changed from one body to another of the same length: runs of bytes.

use crate::varint;
use contract::Body;
use std::ops::Range;

/// Compared at once: what is equal is passed over at the speed of `memcmp`.
const BLOCK_BYTES: usize = 1024;
const WORD_BYTES: usize = size_of::<u64>();
/// Runs nearer to each other than this are sent as one: a border costs about as much.
const BORDER_BYTES: usize = 6;

/// Runs of changed bytes, in order, none touching another. Used for one message after the other, so that
/// their memory is allocated once.
#[derive(Debug, Default)]
pub(super) struct Runs {
    runs: Vec<Range<usize>>,
    changed: usize,
}

impl Runs {
    /// Finds what changed; `false`, and nothing of use, once that would be more than `most` bytes. Both bodies
    /// have the same length; neither is copied.
    pub(super) fn find(&mut self, old: &Body, new: &Body, most: usize) -> bool {
        self.runs.clear();
        self.changed = 0;
        let (mut olds, mut news) = (old.chunks(), new.chunks());
        let (mut old, mut new) = (&[][..], &[][..]);
        let mut at = 0;
        loop {
            if old.is_empty() {
                old = olds.next().unwrap_or_default();
            }
            if new.is_empty() {
                new = news.next().unwrap_or_default();
            }
            let length = old.len().min(new.len());
            if length == 0 {
                return true;
            }
            for start in (0..length).step_by(BLOCK_BYTES) {
                let block = start..length.min(start + BLOCK_BYTES);
                if old[block.clone()] != new[block.clone()] {
                    self.find_in(&old[block.clone()], &new[block], at + start);
                    if self.bytes_max() > most {
                        return false;
                    }
                }
            }
            at += length;
            (old, new) = (&old[length..], &new[length..]);
        }
    }

    /// Compares word by word two blocks that begin at byte `at` of their bodies.
    fn find_in(&mut self, old: &[u8], new: &[u8], mut at: usize) {
        let mut open = self.runs.pop();
        self.changed -= open.as_ref().map_or(0, Range::len);
        for (old, new) in old.chunks(WORD_BYTES).zip(new.chunks(WORD_BYTES)) {
            let differs = word(old) ^ word(new);
            if differs != 0 {
                let start = at + differs.trailing_zeros() as usize / 8;
                let end = at + WORD_BYTES - differs.leading_zeros() as usize / 8;
                match &mut open {
                    Some(run) if start < run.end + BORDER_BYTES => run.end = end,
                    _ => {
                        let closed = open.replace(start..end);
                        self.add(closed);
                    }
                }
            }
            at += WORD_BYTES;
        }
        self.add(open);
    }

    fn add(&mut self, run: Option<Range<usize>>) {
        self.changed += run.as_ref().map_or(0, Range::len);
        self.runs.extend(run);
    }

    /// Bytes that [`Runs::put`] will need, roughly.
    fn bytes_max(&self) -> usize {
        self.changed + self.runs.len() * BORDER_BYTES
    }

    /// Appends the runs and their bytes in `new`.
    pub(super) fn put(&self, new: &Body, into: &mut Vec<u8>) {
        into.reserve(self.bytes_max() + 16);
        varint::put(into, self.runs.len() as u64);
        let mut end = 0;
        for run in &self.runs {
            varint::put(into, (run.start - end) as u64);
            varint::put(into, run.len() as u64);
            end = run.end;
        }
        let mut at = 0;
        let mut runs = self.runs.iter().cloned();
        let mut run = runs.next();
        for chunk in new.chunks() {
            // A run that crosses the border of a piece goes on in the next.
            while let Some(left) = &mut run
                && left.start < at + chunk.len()
            {
                let part = left.start - at..left.end.min(at + chunk.len()) - at;
                into.extend_from_slice(&chunk[part.clone()]);
                left.start += part.len();
                if left.start == left.end {
                    run = runs.next();
                }
            }
            at += chunk.len();
        }
    }
}

/// Up to eight bytes as a number, the first byte lowest.
fn word(bytes: &[u8]) -> u64 {
    match bytes.try_into() {
        Ok(whole) => u64::from_le_bytes(whole),
        Err(_) => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// A checked description of what changed, as [`Runs::put`] wrote it.
pub(super) struct Patch<'a> {
    count: u64,
    runs: &'a [u8],
    changed: &'a [u8],
}

impl<'a> Patch<'a> {
    /// Checks a patch for a body of `length` bytes.
    pub(super) fn parse(mut bytes: &'a [u8], length: usize) -> Result<Patch<'a>, &'static str> {
        const SHORT: &str = "its list of changes is cut short";
        let count = varint::take_slice(&mut bytes).ok_or(SHORT)?;
        let runs = bytes;
        let (mut end, mut changed) = (0u64, 0u64);
        for _ in 0..count {
            for is_changed in [false, true] {
                let run = varint::take_slice(&mut bytes).ok_or(SHORT)?;
                end = end.saturating_add(run);
                changed = changed.saturating_add(if is_changed { run } else { 0 });
            }
        }
        if end > length as u64 {
            return Err("it changes bytes behind the end of what it changes");
        }
        if changed != bytes.len() as u64 {
            return Err("it has not as many bytes as changed");
        }
        Ok(Patch { count, runs, changed: bytes })
    }

    /// Changes `body`, which has the length that was checked.
    pub(super) fn apply(mut self, body: &mut [u8]) {
        let mut rest = body;
        for _ in 0..self.count {
            // Checked when it was parsed.
            let mut next = || varint::take_slice(&mut self.runs).unwrap_or(0) as usize;
            let (skipped, length) = (next(), next());
            let (run, behind) = rest[skipped..].split_at_mut(length);
            let (bytes, more) = self.changed.split_at(length);
            run.copy_from_slice(bytes);
            (rest, self.changed) = (behind, more);
        }
    }
}
