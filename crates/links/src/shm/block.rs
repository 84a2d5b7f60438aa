//! What the processes of a run tell each other by the word: a ring from each to the next, who sleeps, who wants
//! room, and who holds which slots.
//!
//! One page-aligned file, mapped by all. Process 0 is the host, 1 to `stages` are the stages; ring `i` leads from
//! process `i` to the next, the last one back to the host. Whoever reads a word does not rely on it: a ring's
//! indices are checked against its size, everything else can only make its writer's own flow wait.

use super::entry::{ENTRY_WORDS, Entry, Line};
use smallvec::SmallVec;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use sys::memory::Words;

/// Words of a cache line.
const LINE: usize = 8;
const WORD_BYTES: usize = size_of::<u64>();
/// `OBSHM` and the version of this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"OBSHM\0\0\x05");
/// Words of the header: [`MAGIC`], six sizes, and whether there is a processor for everybody.
const CALM: usize = 7;
/// Words before a process's hold words, each in a cache line of its own.
const HEAD: usize = 0;
const TAIL: usize = LINE;
const SLEEPS: usize = 2 * LINE;
const TOLD: usize = SLEEPS + 1;
const WANTS: usize = 3 * LINE;
const PINS: usize = 4 * LINE;
const HOLDS: usize = 5 * LINE;

/// Most processes besides the host.
pub const STAGES_MAX: usize = 32;
/// Most slots of a region.
pub const SLOTS_MAX: usize = 4096;
/// Most entries of a ring.
const RING_MAX: usize = 1 << 16;

/// How large everything is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Processes besides the host.
    pub stages: usize,
    /// Slots of each region.
    pub slots: usize,
    /// Bytes of each slot.
    pub slot_bytes: usize,
    /// Entries of each ring, a power of two.
    pub ring: usize,
    /// Slots of a region that a process may keep for longer; of what comes beyond that it makes copies.
    pub keeps: usize,
    /// Whether the host, and whether a stage, may look a moment longer before it sleeps.
    pub spins: [bool; 2],
}

impl Geometry {
    fn is_possible(&self) -> bool {
        (1..=STAGES_MAX).contains(&self.stages)
            && (1..=SLOTS_MAX).contains(&self.slots)
            && u32::try_from(self.slot_bytes).is_ok_and(|bytes| bytes > 0)
            && self.ring.is_power_of_two()
            && self.ring <= RING_MAX
    }

    /// Words of a bit for each slot.
    pub fn words(&self) -> usize {
        self.slots.div_ceil(64)
    }

    /// Bytes of a region.
    pub fn region_bytes(&self) -> usize {
        self.slots * self.slot_bytes
    }

    /// Words of a process before its ring.
    fn entries(&self) -> usize {
        (HOLDS + (self.stages + 1) * self.words()).next_multiple_of(LINE)
    }

    /// Words of all that is one process's.
    fn of_process(&self) -> usize {
        self.entries() + self.ring * ENTRY_WORDS
    }

    /// Bytes of the whole block.
    pub fn block_bytes(&self) -> usize {
        (LINE + (self.stages + 1) * self.of_process()) * WORD_BYTES
    }
}

/// Somebody broke the rules of the ring; the text says how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(pub String);

/// The block of a run, as one process sees it.
#[derive(Debug)]
pub struct Block {
    words: Words,
    geometry: Geometry,
    /// Words of all that is one process's, and those before its ring.
    of_process: usize,
    entries: usize,
}

impl Block {
    /// A fresh one, of [`Geometry::block_bytes`] zero bytes.
    pub fn begin(words: Words, geometry: Geometry) -> io::Result<Block> {
        let block = Block::checked(words, geometry)?;
        let Geometry { stages, slots, slot_bytes, ring, keeps, spins } = geometry;
        let spins = usize::from(spins[0]) | usize::from(spins[1]) << 1;
        for (index, value) in [stages, slots, slot_bytes, ring, keeps, spins].into_iter().enumerate() {
            block.words[index + 1].store(value as u64, Ordering::Relaxed);
        }
        block.words[0].store(MAGIC, Ordering::Release);
        Ok(block)
    }

    /// One that the host began.
    pub fn join(words: Words) -> io::Result<Block> {
        let word = |index: usize| {
            let word = words.get(index).ok_or(io::ErrorKind::InvalidData)?;
            Ok::<u64, io::Error>(word.load(Ordering::Acquire))
        };
        if word(0)? != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is no block of this version"));
        }
        let size = |index| Ok::<usize, io::Error>(usize::try_from(word(index)?).unwrap_or(usize::MAX));
        let geometry = Geometry {
            stages: size(1)?,
            slots: size(2)?,
            slot_bytes: size(3)?,
            ring: size(4)?,
            keeps: size(5)?,
            spins: [word(6)? & 1 != 0, word(6)? & 2 != 0],
        };
        Block::checked(words, geometry)
    }

    fn checked(words: Words, geometry: Geometry) -> io::Result<Block> {
        match geometry.is_possible() && words.len() * WORD_BYTES >= geometry.block_bytes() {
            true => {
                let (of_process, entries) = (geometry.of_process(), geometry.entries());
                Ok(Block { words, geometry, of_process, entries })
            }
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "a block of an impossible size")),
        }
    }

    /// How large everything is.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The host found whether there is a processor for everybody that wants one.
    pub(super) fn be_calm(&self, is_calm: bool) {
        if self.is_calm() != is_calm {
            self.words[CALM].store(is_calm.into(), Ordering::Relaxed);
        }
    }

    /// What it found last.
    pub(super) fn is_calm(&self) -> bool {
        self.words[CALM].load(Ordering::Relaxed) != 0
    }

    /// Where a word of a process is.
    #[inline]
    fn at(&self, process: usize, word: usize) -> usize {
        LINE + process * self.of_process + word
    }

    #[inline]
    fn of(&self, process: usize, word: usize) -> &AtomicU64 {
        &self.words[self.at(process, word)]
    }

    /// The first line of a ring.
    fn first(&self, ring: usize) -> usize {
        self.at(ring, self.entries) / LINE
    }

    /// The line for the entry of this index of a ring that begins at `first`.
    #[inline]
    fn entry(&self, first: usize, index: u64) -> &[AtomicU64; ENTRY_WORDS] {
        let (lines, _) = self.words.as_chunks();
        &lines[first + (index as usize & (self.geometry.ring - 1))]
    }

    /// A word of bits: which slots of a region a process holds.
    pub(super) fn holds(&self, process: usize, region: usize, word: usize) -> &AtomicU64 {
        assert!(region <= self.geometry.stages && word < self.geometry.words(), "a region of this block");
        self.of(process, HOLDS + region * self.geometry.words() + word)
    }

    /// How many slots a process keeps for longer.
    pub(super) fn pins(&self, process: usize) -> &AtomicU64 {
        self.of(process, PINS)
    }

    /// Indices and entries of a ring, for whoever looks from outside: those that are on their way.
    pub(super) fn in_flight(&self, ring: usize) -> impl Iterator<Item = Entry> {
        let tail = self.of(ring, TAIL).load(Ordering::SeqCst);
        let head = self.of(ring, HEAD).load(Ordering::SeqCst);
        // A reader may be ahead of the count: entries show themselves before it does.
        let count = head.saturating_sub(tail).min(self.geometry.ring as u64);
        (0..count).filter_map(move |index| self.read(ring, tail.wrapping_add(index)))
    }

    /// Whether nothing is on its way and every stage waits.
    pub fn is_quiet(&self) -> bool {
        let sleeps = |process| self.sleeps(process).load(Ordering::SeqCst) != 0;
        let is_empty = |ring| self.in_flight(ring).next().is_none();
        (1..=self.geometry.stages).all(sleeps) && (0..=self.geometry.stages).all(is_empty)
    }

    fn read(&self, ring: usize, index: u64) -> Option<Entry> {
        let entry = self.entry(self.first(ring), index);
        Entry::parse(&std::array::from_fn(|word| entry[word].load(Ordering::Relaxed)))
    }

    /// Whether a process sleeps.
    #[inline]
    fn sleeps(&self, process: usize) -> &AtomicU32 {
        self.words.half(self.at(process, SLEEPS))
    }

    /// This process is about to sleep: whoever hands it something is to wake it. Then it looks once more.
    pub fn go_to_sleep(&self, process: usize) {
        self.sleeps(process).store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// This process is awake; whether somebody wanted it so.
    pub fn wake_up(&self, process: usize) -> bool {
        self.sleeps(process).swap(0, Ordering::SeqCst) == 0
    }

    /// Whether the process sleeps and is to be woken; the asker wakes it.
    #[inline]
    pub fn is_to_wake(&self, process: usize) -> bool {
        fence(Ordering::SeqCst);
        let sleeps = self.sleeps(process);
        sleeps.load(Ordering::SeqCst) != 0 && sleeps.swap(0, Ordering::SeqCst) != 0
    }

    /// How often a stage was told something on its control descriptor.
    pub(super) fn told(&self, process: usize) -> &AtomicU64 {
        self.of(process, TOLD)
    }

    /// This process waits for room, of a ring or of its slots, or no longer.
    #[inline]
    pub fn want_room(&self, process: usize, wants: bool) {
        let word = self.of(process, WANTS);
        if word.load(Ordering::Relaxed) != u64::from(wants) {
            word.store(u64::from(wants), Ordering::SeqCst);
        }
    }

    /// Whether a process waits for room.
    #[inline]
    pub fn wants_room(&self, process: usize) -> bool {
        self.of(process, WANTS).load(Ordering::SeqCst) != 0
    }
}

/// What an entry says.
#[inline]
pub(super) fn parsed(line: &Line) -> Result<Entry, Broken> {
    Entry::parse(line).ok_or_else(|| Broken("an entry has too many pieces".into()))
}

/// The number of the ring's entry of this index, as it stands in it: none of fresh memory.
fn number(index: u64) -> u32 {
    index.wrapping_add(1) as u32
}

/// The writing end of a ring.
#[derive(Debug)]
pub struct Producer {
    block: Arc<Block>,
    ring: usize,
    /// Its first line.
    first: usize,
    head: u64,
    /// The last entries, which nobody sees yet. Their places are written at once: whoever waits for the first looks
    /// at it all the time, and each write after such a look fetches the line back.
    hidden: SmallVec<[Line; 2]>,
    /// The other end, as it was seen last.
    tail: u64,
}

impl Producer {
    /// The end of a fresh ring that leads away from process `ring`.
    pub fn new(block: Arc<Block>, ring: usize) -> Producer {
        let first = block.first(ring);
        Producer { block, ring, first, head: 0, hidden: SmallVec::new(), tail: 0 }
    }

    /// Whether so many entries fit.
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

    /// How many of the entries written so far were taken.
    pub fn taken(&mut self) -> Result<u64, Broken> {
        self.look()?;
        Ok(self.tail)
    }

    fn published(&self) -> u64 {
        self.head - self.hidden.len() as u64
    }

    fn look(&mut self) -> Result<(), Broken> {
        let tail = self.block.of(self.ring, TAIL).load(Ordering::Acquire);
        let published = self.published();
        if tail < self.tail || tail > published {
            return Err(Broken(format!("a ring's reader is at {tail}, behind {} of {published}", self.tail)));
        }
        self.tail = tail;
        Ok(())
    }

    /// Writes an entry, for which there is room; nobody sees it before [`Producer::publish`].
    pub fn write(&mut self, entry: &Entry) {
        self.hidden.push(entry.emit(number(self.head)));
        self.head += 1;
    }

    /// Writes an entry of another ring as it is, for which there is room; nobody sees it before [`Producer::publish`].
    pub(super) fn write_raw(&mut self, mut entry: Line) {
        Entry::renumber(&mut entry, number(self.head));
        self.hidden.push(entry);
        self.head += 1;
    }

    /// Shows an entry of another ring as it is, for which there is room; all before it were shown.
    #[inline]
    pub(super) fn hand_on(&mut self, mut entry: Line) {
        Entry::renumber(&mut entry, number(self.head));
        self.show(self.head, &entry);
        self.head += 1;
        self.count();
    }

    /// Writes an entry, for which there is room, and shows it; all before it were shown. Gives it as it is written.
    #[inline]
    pub(super) fn write_out(&mut self, entry: &Entry) -> Line {
        let line = entry.emit(number(self.head));
        self.show(self.head, &line);
        self.head += 1;
        self.count();
        line
    }

    /// Counts what was shown, for whoever looks from outside.
    #[inline]
    fn count(&self) {
        // Released: whoever counts an entry sees all of it.
        self.block.of(self.ring, HEAD).store(self.head, Ordering::Release);
    }

    /// Has the last entry say what it covers, if nobody has seen that entry.
    pub fn cover(&mut self, covers: u64) -> bool {
        let last = self.hidden.last_mut();
        last.map(|entry| Entry::cover(entry, covers)).is_some()
    }

    /// Entries written.
    pub fn written(&self) -> u64 {
        self.head
    }

    /// Shows what was written; whether there was anything.
    pub fn publish(&mut self) -> bool {
        let has_news = !self.hidden.is_empty();
        // The last one first: whoever sees an entry sees those behind it.
        let published = self.published();
        for (index, line) in self.hidden.iter().enumerate().rev() {
            self.show(published + index as u64, line);
        }
        if has_news {
            self.hidden.clear();
            self.count();
        }
        has_news
    }

    #[inline]
    fn show(&self, index: u64, line: &Line) {
        let entry = self.block.entry(self.first, index);
        // Relaxed: nobody looks at them before the number.
        (1..ENTRY_WORDS).for_each(|word| entry[word].store(line[word], Ordering::Relaxed));
        // Released: whoever sees the number in it sees the rest.
        entry[0].store(line[0], Ordering::Release);
    }
}

/// The reading end of a ring.
#[derive(Debug)]
pub struct Consumer {
    block: Arc<Block>,
    ring: usize,
    /// Its first line.
    first: usize,
    tail: u64,
}

impl Consumer {
    /// The end of a fresh ring that leads away from process `ring`.
    pub fn new(block: Arc<Block>, ring: usize) -> Consumer {
        let first = block.first(ring);
        Consumer { block, ring, first, tail: 0 }
    }

    /// Whether an entry waits.
    #[inline]
    pub fn has_next(&self) -> bool {
        self.entry(self.tail).is_some()
    }

    /// An entry's first word, and all of it, if that is there.
    #[inline]
    fn entry(&self, index: u64) -> Option<(u64, &[AtomicU64; ENTRY_WORDS])> {
        let entry = self.block.entry(self.first, index);
        let word = entry[0].load(Ordering::Acquire);
        (word as u32 == number(index)).then_some((word, entry))
    }

    /// Entry number `index` of those that wait, if there are so many.
    pub fn peek(&self, index: usize) -> Result<Option<Entry>, Broken> {
        self.peek_raw(index).as_ref().map(parsed).transpose()
    }

    /// The same, unread.
    #[inline]
    pub(super) fn peek_raw(&self, index: usize) -> Option<Line> {
        let (first, entry) = self.entry(self.tail + index as u64)?;
        // Relaxed: behind the number, which was loaded with acquire. Each is read once, whatever its writer does.
        let word = |word: usize| if word == 0 { first } else { entry[word].load(Ordering::Relaxed) };
        Some(std::array::from_fn(word))
    }

    /// Gives room for so many of those. Whether its writer waits for some is to be asked behind a fence, or again.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        self.tail += count as u64;
        self.block.of(self.ring, TAIL).store(self.tail, Ordering::Release);
    }
}
