//! The difference of two bodies of the same length, as runs of changed bytes.

use crate::varint;
use contract::Body;
use std::ops::Range;

/// Bytes compared at a time: equal blocks are skipped at the speed of `memcmp`.
const BLOCK_BYTES: usize = 1024;
const WORD_BYTES: usize = size_of::<u64>();
/// Runs closer than this are merged: another run costs about as many bytes.
const RUN_OVERHEAD_BYTES: usize = 6;

/// Runs of changed bytes, in order and apart. Reused, so that memory is allocated once.
#[derive(Debug, Default)]
pub(super) struct Runs {
    runs: Vec<Range<usize>>,
    changed: usize,
}

impl Runs {
    /// Finds the changed runs of two bodies of the same length, without copying them. Returns
    /// `false`, with unusable content, once the encoding would exceed `bytes_max`.
    pub(super) fn find(&mut self, old: &Body, new: &Body, bytes_max: usize) -> bool {
        self.runs.clear();
        self.changed = 0;
        let (mut old_chunks, mut new_chunks) = (old.chunks(), new.chunks());
        let (mut old, mut new) = (&[][..], &[][..]);
        let mut at = 0;
        loop {
            if old.is_empty() {
                old = old_chunks.next().unwrap_or_default();
            }
            if new.is_empty() {
                new = new_chunks.next().unwrap_or_default();
            }
            let length = old.len().min(new.len());
            if length == 0 {
                return true;
            }
            for start in (0..length).step_by(BLOCK_BYTES) {
                let block = start..length.min(start + BLOCK_BYTES);
                if old[block.clone()] != new[block.clone()] {
                    self.find_in(&old[block.clone()], &new[block], at + start);
                    if self.encoded_bytes() > bytes_max {
                        return false;
                    }
                }
            }
            at += length;
            (old, new) = (&old[length..], &new[length..]);
        }
    }

    /// Compares, word by word, two blocks that start at byte `at` of their bodies.
    fn find_in(&mut self, old: &[u8], new: &[u8], mut at: usize) {
        let mut open = self.runs.pop();
        self.changed -= open.as_ref().map_or(0, Range::len);
        for (old, new) in old.chunks(WORD_BYTES).zip(new.chunks(WORD_BYTES)) {
            let differs = word(old) ^ word(new);
            if differs != 0 {
                let start = at + differs.trailing_zeros() as usize / 8;
                let end = at + WORD_BYTES - differs.leading_zeros() as usize / 8;
                match &mut open {
                    Some(run) if start < run.end + RUN_OVERHEAD_BYTES => run.end = end,
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

    /// Approximate size of the encoding by [`Runs::put`].
    fn encoded_bytes(&self) -> usize {
        self.changed + self.runs.len() * RUN_OVERHEAD_BYTES
    }

    /// Encodes the runs and their bytes in `new`.
    pub(super) fn put(&self, new: &Body, into: &mut Vec<u8>) {
        into.reserve(self.encoded_bytes() + 16);
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
            // A run that crosses the end of a chunk continues in the next.
            while let Some(current) = &mut run
                && current.start < at + chunk.len()
            {
                let part = current.start - at..current.end.min(at + chunk.len()) - at;
                into.extend_from_slice(&chunk[part.clone()]);
                current.start += part.len();
                if current.start == current.end {
                    run = runs.next();
                }
            }
            at += chunk.len();
        }
    }
}

/// Up to eight bytes as a little-endian number.
fn word(bytes: &[u8]) -> u64 {
    match bytes.try_into() {
        Ok(whole) => u64::from_le_bytes(whole),
        Err(_) => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// A checked encoding of [`Runs::put`].
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
            return Err("it changes bytes behind the end of its reference");
        }
        if changed != bytes.len() as u64 {
            return Err("the number of its bytes differs from its list of changes");
        }
        Ok(Patch { count, runs, changed: bytes })
    }

    /// Changes `body`, which has the length that was checked.
    pub(super) fn apply(mut self, body: &mut [u8]) {
        let mut rest = body;
        for _ in 0..self.count {
            // `parse` has checked all of this.
            let mut next = || varint::take_slice(&mut self.runs).unwrap_or(0) as usize;
            let (skipped, length) = (next(), next());
            let (run, after) = rest[skipped..].split_at_mut(length);
            let (bytes, rest_changed) = self.changed.split_at(length);
            run.copy_from_slice(bytes);
            (rest, self.changed) = (after, rest_changed);
        }
    }
}
