//! The control block of a run: the rings, the sleep flags and the slot bitmaps.
//!
//! One page-aligned file, mapped by every process of the run. Process 0 is the host; processes 1 to `stages` are
//! the stages. Ring `i` leads from process `i` to the next one, the last ring back to the host. Each process has
//! these words, the hot ones in cache lines of their own:
//!
//! | word | written by | meaning |
//! |---|---|---|
//! | `HEAD` | writer of the ring | entries written to this process's ring |
//! | `TAIL` | reader of the ring | entries read from this process's ring |
//! | `SLEEPS` | this process; cleared by its waker | the process is about to sleep or sleeps |
//! | `CONTROL` | host | number of writes to the control descriptor of this stage |
//! | `WAITS` | this process | it waits for room in a ring or for a free slot |
//! | `HELD_COUNT` | this process | number of slots that it holds |
//! | `HELD_SLOTS` | this process | per region, a bit for each slot that it holds |
//!
//! A reader does not trust these words: it checks the indices of a ring against the ring's size. A wrong value of
//! any other word can only delay the flow of its own writer. A writer may change a word at any moment, so every
//! function loads a word once, into a local copy, and then checks and uses that copy: an index in `Producer::look`,
//! all words of an entry in `Consumer::peek_raw`. The sizes are kept in `Block::geometry` and never loaded again.

use super::entry::{ENTRY_WORDS, Entry, Line};
use smallvec::SmallVec;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use sys::memory::Words;

/// Words in a cache line.
const LINE: usize = 8;
const WORD_BYTES: usize = size_of::<u64>();
/// `OBSHM` and the version of this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"OBSHM\0\0\x06");
/// Offsets of the words of a process, see the table above.
const HEAD: usize = 0;
const TAIL: usize = LINE;
const SLEEPS: usize = 2 * LINE;
const CONTROL: usize = SLEEPS + 1;
const WAITS: usize = 3 * LINE;
const HELD_COUNT: usize = 4 * LINE;
const HELD_SLOTS: usize = 5 * LINE;

/// Most stages in a run.
pub const STAGES_MAX: usize = 32;
/// Most slots in a region.
pub const SLOTS_MAX: usize = 4096;
/// Most entries in a ring.
const RING_MAX: usize = 1 << 16;

/// Sizes of the parts of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Number of stages.
    pub stages: usize,
    /// Slots in each region.
    pub slots: usize,
    /// Bytes in each slot.
    pub slot_bytes: usize,
    /// Entries in each ring, a power of two.
    pub ring: usize,
    /// Slots of a region that a process may hold; it copies any further message.
    pub held_max: usize,
}

impl Geometry {
    fn is_possible(&self) -> bool {
        (1..=STAGES_MAX).contains(&self.stages)
            && (1..=SLOTS_MAX).contains(&self.slots)
            && u32::try_from(self.slot_bytes).is_ok_and(|bytes| bytes > 0)
            && self.ring.is_power_of_two()
            && self.ring <= RING_MAX
    }

    /// Words in a bitmap with a bit for each slot.
    pub fn words(&self) -> usize {
        self.slots.div_ceil(64)
    }

    /// Bytes in a region.
    pub fn region_bytes(&self) -> usize {
        self.slots * self.slot_bytes
    }

    /// Words of a process before its ring.
    fn entries(&self) -> usize {
        (HELD_SLOTS + (self.stages + 1) * self.words()).next_multiple_of(LINE)
    }

    /// Words of a process, with its ring.
    fn of_process(&self) -> usize {
        self.entries() + self.ring * ENTRY_WORDS
    }

    /// Bytes in the block.
    pub fn block_bytes(&self) -> usize {
        (LINE + (self.stages + 1) * self.of_process()) * WORD_BYTES
    }
}

/// A process violated the protocol of the ring; the text describes how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(pub String);

/// The block of a run, mapped into one process.
#[derive(Debug)]
pub struct Block {
    words: Words,
    geometry: Geometry,
    /// [`Geometry::of_process`] and [`Geometry::entries`], computed once.
    of_process: usize,
    entries: usize,
}

impl Block {
    /// Initializes a block in [`Geometry::block_bytes`] zero bytes.
    pub fn create(words: Words, geometry: Geometry) -> io::Result<Block> {
        let block = Block::checked(words, geometry)?;
        let Geometry { stages, slots, slot_bytes, ring, held_max } = geometry;
        for (index, value) in [stages, slots, slot_bytes, ring, held_max].into_iter().enumerate() {
            block.words[index + 1].store(value as u64, Ordering::Relaxed);
        }
        block.words[0].store(MAGIC, Ordering::Release);
        Ok(block)
    }

    /// Opens a block that the host initialized, and checks its sizes.
    pub fn open(words: Words) -> io::Result<Block> {
        let word = |index: usize| {
            let word = words.get(index).ok_or(io::ErrorKind::InvalidData)?;
            Ok::<u64, io::Error>(word.load(Ordering::Acquire))
        };
        if word(0)? != MAGIC {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not a shared-memory block of this version",
            ));
        }
        let size = |index| Ok::<usize, io::Error>(usize::try_from(word(index)?).unwrap_or(usize::MAX));
        // Each word is loaded once: another stage of the run may change it.
        let geometry = Geometry {
            stages: size(1)?,
            slots: size(2)?,
            slot_bytes: size(3)?,
            ring: size(4)?,
            held_max: size(5)?,
        };
        Block::checked(words, geometry)
    }

    fn checked(words: Words, geometry: Geometry) -> io::Result<Block> {
        match geometry.is_possible() && words.len() * WORD_BYTES >= geometry.block_bytes() {
            true => {
                let (of_process, entries) = (geometry.of_process(), geometry.entries());
                Ok(Block { words, geometry, of_process, entries })
            }
            false => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "invalid sizes in the shared-memory block"))
            }
        }
    }

    /// Sizes of the parts of this run.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Index of a word of a process.
    #[inline]
    fn at(&self, process: usize, word: usize) -> usize {
        LINE + process * self.of_process + word
    }

    #[inline]
    fn of(&self, process: usize, word: usize) -> &AtomicU64 {
        &self.words[self.at(process, word)]
    }

    /// First cache line of a ring.
    fn first(&self, ring: usize) -> usize {
        self.at(ring, self.entries) / LINE
    }

    /// Cache line of the entry with this index, in a ring that begins at line `first`.
    #[inline]
    fn entry(&self, first: usize, index: u64) -> &[AtomicU64; ENTRY_WORDS] {
        let (lines, _) = self.words.as_chunks();
        &lines[first + (index as usize & (self.geometry.ring - 1))]
    }

    /// Bitmap word: slots of `region` that `process` holds.
    pub(super) fn held_slots(&self, process: usize, region: usize, word: usize) -> &AtomicU64 {
        assert!(region <= self.geometry.stages && word < self.geometry.words(), "a region of this block");
        self.of(process, HELD_SLOTS + region * self.geometry.words() + word)
    }

    /// Number of slots that a process holds.
    pub(super) fn held_count(&self, process: usize) -> &AtomicU64 {
        self.of(process, HELD_COUNT)
    }

    /// Entries that are in flight in a ring, for an observer that is neither its reader nor its writer.
    pub(super) fn in_flight(&self, ring: usize) -> impl Iterator<Item = Entry> {
        let tail = self.of(ring, TAIL).load(Ordering::SeqCst);
        let head = self.of(ring, HEAD).load(Ordering::SeqCst);
        // The reader may be ahead of `HEAD`: an entry becomes visible before the counter.
        let count = head.saturating_sub(tail).min(self.geometry.ring as u64);
        (0..count).filter_map(move |index| self.read(ring, tail.wrapping_add(index)))
    }

    /// Returns true if all rings are empty and all stages sleep.
    pub fn is_idle(&self) -> bool {
        let sleeps = |process| self.sleeps(process).load(Ordering::SeqCst) != 0;
        let is_empty = |ring| self.in_flight(ring).next().is_none();
        (1..=self.geometry.stages).all(sleeps) && (0..=self.geometry.stages).all(is_empty)
    }

    fn read(&self, ring: usize, index: u64) -> Option<Entry> {
        let entry = self.entry(self.first(ring), index);
        Entry::parse(&std::array::from_fn(|word| entry[word].load(Ordering::Relaxed)))
    }

    /// Sleep flag of a process.
    #[inline]
    fn sleeps(&self, process: usize) -> &AtomicU32 {
        self.words.half(self.at(process, SLEEPS))
    }

    /// Sets the sleep flag of this process. The caller must look for entries once more before it sleeps.
    pub fn mark_asleep(&self, process: usize) {
        self.sleeps(process).store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Clears the sleep flag of this process. Returns true if another process has cleared it, which then also
    /// signals the wake-up descriptor.
    pub fn mark_awake(&self, process: usize) -> bool {
        self.sleeps(process).swap(0, Ordering::SeqCst) == 0
    }

    /// Clears the sleep flag of another process. Returns true if it was set; the caller must then signal the
    /// wake-up descriptor.
    #[inline]
    pub fn claim_wakeup(&self, process: usize) -> bool {
        fence(Ordering::SeqCst);
        let sleeps = self.sleeps(process);
        sleeps.load(Ordering::SeqCst) != 0 && sleeps.swap(0, Ordering::SeqCst) != 0
    }

    /// Number of writes to the control descriptor of a stage.
    pub(super) fn control_count(&self, process: usize) -> &AtomicU64 {
        self.of(process, CONTROL)
    }

    /// Records that this process waits for room (in its ring or region), or that it no longer does.
    #[inline]
    pub fn set_waits_for_room(&self, process: usize, waits: bool) {
        let word = self.of(process, WAITS);
        if word.load(Ordering::Relaxed) != u64::from(waits) {
            word.store(u64::from(waits), Ordering::SeqCst);
        }
    }

    /// Returns true if a process waits for room.
    #[inline]
    pub fn waits_for_room(&self, process: usize) -> bool {
        self.of(process, WAITS).load(Ordering::SeqCst) != 0
    }
}

/// Parses an entry.
#[inline]
pub(super) fn parsed(line: &Line) -> Result<Entry, Broken> {
    Entry::parse(line).ok_or_else(|| Broken("an entry has too many pieces".into()))
}

/// Sequence number of the entry with this index. The first is 1, so fresh memory (zero) holds no entry.
fn number(index: u64) -> u32 {
    index.wrapping_add(1) as u32
}

/// The writing end of a ring.
#[derive(Debug)]
pub struct Producer {
    block: Arc<Block>,
    ring: usize,
    /// First cache line of the ring.
    first: usize,
    head: u64,
    /// The last entries, not yet visible to the reader. [`Producer::publish`] stores them in one burst: a reader that is
    /// awake looks at the line of the next entry, and each store to a line that it looks at fetches the line back.
    unpublished: SmallVec<[Line; 2]>,
    /// Reader's position, as last seen.
    tail: u64,
}

impl Producer {
    /// Opens the writing end of a fresh ring that leads away from process `ring`.
    pub fn new(block: Arc<Block>, ring: usize) -> Producer {
        let first = block.first(ring);
        Producer { block, ring, first, head: 0, unpublished: SmallVec::new(), tail: 0 }
    }

    /// Returns true if this many entries fit.
    #[inline]
    pub fn has_room(&mut self, entries: usize) -> Result<bool, Broken> {
        let fits = |producer: &Producer| {
            (producer.head - producer.tail) as usize + entries <= producer.block.geometry.ring
        };
        if !fits(self) {
            self.look()?;
        }
        Ok(fits(self))
    }

    /// Number of entries that the reader has consumed.
    pub fn consumed(&mut self) -> Result<u64, Broken> {
        self.look()?;
        Ok(self.tail)
    }

    fn published(&self) -> u64 {
        self.head - self.unpublished.len() as u64
    }

    fn look(&mut self) -> Result<(), Broken> {
        let tail = self.block.of(self.ring, TAIL).load(Ordering::Acquire);
        let published = self.published();
        if tail < self.tail || tail > published {
            return Err(Broken(format!(
                "a ring: its reader went from {} to {tail} of {published} entries",
                self.tail
            )));
        }
        self.tail = tail;
        Ok(())
    }

    /// Queues an entry, for which there is room. [`Producer::publish`] makes it visible.
    pub fn write(&mut self, entry: &Entry) {
        self.unpublished.push(entry.emit(number(self.head)));
        self.head += 1;
    }

    /// Queues an entry copied from another ring, for which there is room. [`Producer::publish`] makes it visible.
    pub(super) fn write_raw(&mut self, mut entry: Line) {
        Entry::renumber(&mut entry, number(self.head));
        self.unpublished.push(entry);
        self.head += 1;
    }

    /// Publishes an entry copied from another ring, for which there is room. No entry may be queued.
    #[inline]
    pub(super) fn forward(&mut self, mut entry: Line) {
        Entry::renumber(&mut entry, number(self.head));
        self.show(self.head, &entry);
        self.head += 1;
        self.count();
    }

    /// Publishes an entry, for which there is room, and returns it as stored. No entry may be queued.
    #[inline]
    pub(super) fn write_published(&mut self, entry: &Entry) -> Line {
        let line = entry.emit(number(self.head));
        self.show(self.head, &line);
        self.head += 1;
        self.count();
        line
    }

    /// Publishes the counter of entries, for observers.
    #[inline]
    fn count(&self) {
        // Release: an observer that sees the counter sees the entries.
        self.block.of(self.ring, HEAD).store(self.head, Ordering::Release);
    }

    /// Sets `covers` of the last entry. Returns false if that entry is already visible.
    pub fn cover(&mut self, covers: u64) -> bool {
        let last = self.unpublished.last_mut();
        last.map(|entry| Entry::cover(entry, covers)).is_some()
    }

    /// Number of entries written, with the queued ones.
    pub fn written(&self) -> u64 {
        self.head
    }

    /// Makes the queued entries visible. Returns true if there were any.
    pub fn publish(&mut self) -> bool {
        let has_news = !self.unpublished.is_empty();
        // Last entry first: a reader that sees an entry then sees all queued entries after it.
        let published = self.published();
        for (index, line) in self.unpublished.iter().enumerate().rev() {
            self.show(published + index as u64, line);
        }
        if has_news {
            self.unpublished.clear();
            self.count();
        }
        has_news
    }

    #[inline]
    fn show(&self, index: u64, line: &Line) {
        let entry = self.block.entry(self.first, index);
        // Relaxed: the reader loads these words only after the sequence number.
        (1..ENTRY_WORDS).for_each(|word| entry[word].store(line[word], Ordering::Relaxed));
        // Release: a reader that sees the sequence number sees the other words.
        entry[0].store(line[0], Ordering::Release);
    }
}

/// The reading end of a ring.
#[derive(Debug)]
pub struct Consumer {
    block: Arc<Block>,
    ring: usize,
    /// First cache line of the ring.
    first: usize,
    tail: u64,
}

impl Consumer {
    /// Opens the reading end of a fresh ring that leads away from process `ring`.
    pub fn new(block: Arc<Block>, ring: usize) -> Consumer {
        let first = block.first(ring);
        Consumer { block, ring, first, tail: 0 }
    }

    /// Returns true if an entry is ready.
    #[inline]
    pub fn has_next(&self) -> bool {
        self.entry(self.tail).is_some()
    }

    /// Loads the first word of an entry, and checks that the entry has been written.
    #[inline]
    fn entry(&self, index: u64) -> Option<(u64, &[AtomicU64; ENTRY_WORDS])> {
        let entry = self.block.entry(self.first, index);
        let word = entry[0].load(Ordering::Acquire);
        (word as u32 == number(index)).then_some((word, entry))
    }

    /// Returns the entry `index` places after the next one, if it has been written.
    pub fn peek(&self, index: usize) -> Result<Option<Entry>, Broken> {
        self.peek_raw(index).as_ref().map(parsed).transpose()
    }

    /// Like [`Consumer::peek`], without parsing.
    #[inline]
    pub(super) fn peek_raw(&self, index: usize) -> Option<Line> {
        let (first, entry) = self.entry(self.tail + index as u64)?;
        // Relaxed: ordered by the acquire load of the sequence number. Each word is loaded once, so a writer that
        // changes it meanwhile cannot make this process see two values.
        let word = |word: usize| if word == 0 { first } else { entry[word].load(Ordering::Relaxed) };
        Some(std::array::from_fn(word))
    }

    /// Frees this many entries. To learn whether the writer waits for room, check [`Block::waits_for_room`] after a
    /// fence, or check again later.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        self.tail += count as u64;
        self.block.of(self.ring, TAIL).store(self.tail, Ordering::Release);
    }
}
