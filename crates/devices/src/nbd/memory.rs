//! The memory of the connections: it outlives a worker, and the next one continues each connection exactly where it was.
//!
//! ```text
//! place of a connection: id | which records are current | loss | 2 input records | 2 output records | header | requests | reply | ring of data
//! behind all places: the record of the disk
//! ```
//!
//! A record is written to the place that is not current, and becomes current with one store. A kill between any two instructions
//! leaves the record before or the record after. The bytes of the socket have the same property: the kernel counts those that
//! it has received in the memory itself (`sys::receipt`), and those that are to be sent are counted by a pipe, which the broker keeps.
//!
//! A request is in the memory until its reply is in the pipe. The memory of a worker is untrusted input for the next one.

use super::requests::Entry;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use sys::memory::{Access, Shared};
use sys::receipt;
use wire::formats::block::DATA_BYTES_MAX;
use wire::nbd::{OPTION_BYTES_MAX, REQUEST_BYTES, Request, ServerNegotiation};

/// Connections at a time. Further ones wait.
pub(super) const CONNECTIONS_MAX: usize = 16;
/// Requests of a connection without a reply, at most.
pub(super) const REQUESTS_MAX: usize = 128;
/// The data of a connection's writes without a reply, at most: one of the longest.
pub(super) const RING_BYTES: usize = DATA_BYTES_MAX;

const ID_AT: usize = 0;
const INPUT_AT: usize = 8;
const OUTPUT_AT: usize = 16;
const LOSS_AT: usize = 24;
const INPUTS_AT: usize = 64;
const INPUT_BYTES: usize = 256;
const RECEIPT_AT: usize = 128;
const OUTPUTS_AT: usize = INPUTS_AT + 2 * INPUT_BYTES;
const OUTPUT_BYTES: usize = 64;
const HEADER_AT: usize = OUTPUTS_AT + 2 * OUTPUT_BYTES;
const ENTRIES_AT: usize = 1024;
const ENTRY_BYTES: usize = 64;
const REPLY_AT: usize = ENTRIES_AT + REQUESTS_MAX * ENTRY_BYTES;
/// The longest reply to an option.
const REPLY_BYTES_MAX: usize = 4096;
const RING_AT: usize = 16 << 10;
const PLACE_BYTES: usize = RING_AT + RING_BYTES;

/// The record of the disk: its instance, the number of its answered writes, and of those that are durable.
const DISK_AT: usize = CONNECTIONS_MAX * PLACE_BYTES;
const DISK_BYTES: usize = 4096;

/// The length of the memory. Pages are allocated on first use.
pub(super) const MEMORY_BYTES: usize = DISK_AT + DISK_BYTES;

/// A loss of writes that no request reports yet ([`Place::loss`]).
pub(super) const LOSSY: u64 = u64::MAX;

const _: () = assert!(RECEIPT_AT + receipt::RECEIPT_BYTES <= INPUT_BYTES);
const _: () = assert!(HEADER_AT + REQUEST_BYTES <= ENTRIES_AT);
const _: () = assert!(REPLY_AT + REPLY_BYTES_MAX <= RING_AT);
const _: () = assert!(OPTION_BYTES_MAX <= RING_BYTES);

/// The memory contradicts itself.
#[derive(Debug)]
pub(super) struct Corrupt;

/// The state of a connection's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// The bytes of the negotiation that the state needs.
    Negotiation(ServerNegotiation),
    /// The reply to an option is to be sent before the next state.
    Reply {
        /// The next state.
        next: ServerNegotiation,
        /// Length of the reply in the memory.
        length: usize,
    },
    /// The header of a request.
    Header,
    /// The data of the write in this entry.
    Data(usize),
    /// No more input.
    Ended,
}

/// The input record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InputRecord {
    /// The state.
    pub(super) input: Input,
    /// Received bytes of it.
    pub(super) filled: usize,
    /// The number of the next request or reply to an option. An entry with this number or a higher one is not complete.
    pub(super) next_sequence: u64,
}

/// The state of a connection's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing was written yet.
    Idle,
    /// Bytes are being written to the pipe, and none leave it.
    Filling,
    /// None are being written.
    Draining,
    /// The reply is completely in the pipe.
    Finished,
}

/// The output record: the last reply that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutputRecord {
    /// The state.
    pub(super) phase: Phase,
    /// The entry, or [`REQUESTS_MAX`] for the reply to an option.
    pub(super) entry: usize,
    /// Its number.
    pub(super) sequence: u64,
    /// Length of the reply.
    pub(super) total: usize,
    /// Bytes of it in the pipe, before those that are being written.
    pub(super) done: usize,
    /// Bytes in the pipe, before those that are being written.
    pub(super) fill: usize,
}

impl OutputRecord {
    pub(super) const IDLE: OutputRecord =
        OutputRecord { phase: Phase::Idle, entry: 0, sequence: 0, total: 0, done: 0, fill: 0 };
}

/// The place of one connection.
#[derive(Debug)]
pub(super) struct Place {
    memory: Arc<Shared>,
    start: usize,
}

/// Maps the memory.
pub(super) fn map(descriptor: impl AsFd) -> io::Result<Arc<Shared>> {
    let memory = Shared::map(descriptor, Access::Write)?;
    match memory.bytes() {
        MEMORY_BYTES => Ok(Arc::new(memory)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn negotiation_words(state: ServerNegotiation) -> [u64; 4] {
    match state {
        ServerNegotiation::Flags => [0; 4],
        ServerNegotiation::Option { no_zeroes, count } => [1, no_zeroes.into(), count.into(), 0],
        ServerNegotiation::Data { no_zeroes, count, option, length } => {
            [2, no_zeroes.into(), count.into(), u64::from(option) << 32 | u64::from(length)]
        }
        ServerNegotiation::Done => [3, 0, 0, 0],
        ServerNegotiation::Ended => [4, 0, 0, 0],
    }
}

fn negotiation_of([kind, no_zeroes, count, option]: [u64; 4]) -> Result<ServerNegotiation, Corrupt> {
    let (no_zeroes, count) = (no_zeroes != 0, u32::try_from(count).map_err(|_| Corrupt)?);
    match kind {
        0 => Ok(ServerNegotiation::Flags),
        1 => Ok(ServerNegotiation::Option { no_zeroes, count }),
        2 if (option as u32) as usize <= OPTION_BYTES_MAX => {
            let (option, length) = ((option >> 32) as u32, option as u32);
            Ok(ServerNegotiation::Data { no_zeroes, count, option, length })
        }
        3 => Ok(ServerNegotiation::Done),
        4 => Ok(ServerNegotiation::Ended),
        _ => Err(Corrupt),
    }
}

impl Place {
    /// The place of connection `number`, below [`CONNECTIONS_MAX`].
    pub(super) fn new(memory: Arc<Shared>, number: usize) -> Place {
        Place { memory, start: number * PLACE_BYTES }
    }

    fn load(&self, at: usize) -> u64 {
        self.memory.word(self.start + at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.memory.word(self.start + at) {
            word.store(value, Ordering::Release);
        }
    }

    fn store_all(&self, at: usize, values: &[u64]) {
        values.iter().enumerate().for_each(|(index, value)| self.store(at + 8 * index, *value));
    }

    fn load_all<const N: usize>(&self, at: usize) -> [u64; N] {
        std::array::from_fn(|index| self.load(at + 8 * index))
    }

    /// The connection whose state this is; 0 for none.
    pub(super) fn id(&self) -> u64 {
        self.load(ID_AT)
    }

    /// Begins with a connection: with the reply `greeting`.
    pub(super) fn begin(&self, id: u64, greeting: &[u8]) -> InputRecord {
        self.store(ID_AT, 0);
        (0..REQUESTS_MAX).for_each(|entry| self.free(entry));
        self.save_output(&OutputRecord::IDLE);
        self.save_loss(0);
        self.save_reply(greeting);
        let input = Input::Reply { next: ServerNegotiation::Flags, length: greeting.len() };
        let record = InputRecord { input, filled: 0, next_sequence: 1 };
        self.save_input(&record);
        self.store(ID_AT, id);
        record
    }

    fn current_input(&self) -> usize {
        INPUTS_AT + INPUT_BYTES * (self.load(INPUT_AT) & 1) as usize
    }

    /// Saves the input record, with a prepared receipt.
    pub(super) fn save_input(&self, record: &InputRecord) {
        let next = (self.load(INPUT_AT) & 1) ^ 1;
        let at = INPUTS_AT + INPUT_BYTES * next as usize;
        let (kind, state, more) = match record.input {
            Input::Negotiation(state) => (0, state, 0),
            Input::Reply { next, length } => (1, next, length),
            Input::Header => (2, ServerNegotiation::Done, 0),
            Input::Data(entry) => (3, ServerNegotiation::Done, entry),
            Input::Ended => (4, ServerNegotiation::Done, 0),
        };
        self.store_all(at, &[kind, record.filled as u64, record.next_sequence, more as u64]);
        self.store_all(at + 32, &negotiation_words(state));
        receipt::prepare(&self.memory, self.start + at + RECEIPT_AT);
        self.store(INPUT_AT, next);
    }

    /// Returns the input record, with the bytes that were received since.
    pub(super) fn input(&self) -> Result<InputRecord, Corrupt> {
        let at = self.current_input();
        let [kind, filled, next_sequence, more] = self.load_all(at);
        let (state, more) = (negotiation_of(self.load_all(at + 32))?, more as usize);
        let input = match kind {
            0 => Input::Negotiation(state),
            1 if more <= REPLY_BYTES_MAX => Input::Reply { next: state, length: more },
            2 => Input::Header,
            3 if more < REQUESTS_MAX => Input::Data(more),
            4 => Input::Ended,
            _ => return Err(Corrupt),
        };
        let received = receipt::read(&self.memory, self.start + at + RECEIPT_AT).unwrap_or(0);
        let filled = (filled as usize).checked_add(received).filter(|filled| *filled <= RING_BYTES);
        Ok(InputRecord { input, filled: filled.ok_or(Corrupt)?, next_sequence })
    }

    /// Saves the output record.
    pub(super) fn save_output(&self, record: &OutputRecord) {
        let next = (self.load(OUTPUT_AT) & 1) ^ 1;
        let OutputRecord { phase, entry, sequence, total, done, fill } = *record;
        let words = [phase as u64, entry as u64, sequence, total as u64, done as u64, fill as u64];
        self.store_all(OUTPUTS_AT + OUTPUT_BYTES * next as usize, &words);
        self.store(OUTPUT_AT, next);
    }

    /// Returns the output record.
    pub(super) fn output(&self) -> Result<OutputRecord, Corrupt> {
        let at = OUTPUTS_AT + OUTPUT_BYTES * (self.load(OUTPUT_AT) & 1) as usize;
        let [phase, entry, sequence, total, done, fill] = self.load_all(at);
        let phases = [Phase::Idle, Phase::Filling, Phase::Draining, Phase::Finished];
        let phase = *phases.get(phase as usize).ok_or(Corrupt)?;
        let (entry, total, done, fill) = (entry as usize, total as usize, done as usize, fill as usize);
        let is_valid = entry <= REQUESTS_MAX && done <= total;
        is_valid.then_some(OutputRecord { phase, entry, sequence, total, done, fill }).ok_or(Corrupt)
    }

    /// Saves a request. It is complete once [`InputRecord::next_sequence`] is higher than its number.
    pub(super) fn save_entry(&self, index: usize, entry: &Entry) {
        let at = ENTRIES_AT + index * ENTRY_BYTES;
        self.memory.copy_in(self.start + at + 16, &entry.request.to_bytes());
        self.store(at + 8, entry.data_at as u64);
        self.store(at, entry.sequence);
    }

    /// Returns a request, if the entry has one.
    pub(super) fn entry(&self, index: usize) -> Result<Option<Entry>, Corrupt> {
        let at = ENTRIES_AT + index * ENTRY_BYTES;
        let [sequence, data_at] = self.load_all(at);
        if sequence == 0 {
            return Ok(None);
        }
        let mut header = [0; REQUEST_BYTES];
        self.memory.copy_out(self.start + at + 16, &mut header);
        let request = Request::parse(&header).map_err(|_| Corrupt)?;
        let entry = Entry { sequence, request, data_at: data_at as usize };
        let end = entry.data_at.checked_add(entry.data_bytes()).ok_or(Corrupt)?;
        if end <= RING_BYTES { Ok(Some(entry)) } else { Err(Corrupt) }
    }

    /// Returns 0, [`LOSSY`], or the number of the request that reports a loss of writes.
    pub(super) fn loss(&self) -> u64 {
        self.load(LOSS_AT)
    }

    /// Saves the value of [`Place::loss`].
    pub(super) fn save_loss(&self, loss: u64) {
        self.store(LOSS_AT, loss);
    }

    /// Frees an entry.
    pub(super) fn free(&self, index: usize) {
        self.store(ENTRIES_AT + index * ENTRY_BYTES, 0);
    }

    /// Saves the reply to an option. Returns false if it is too long.
    pub(super) fn save_reply(&self, bytes: &[u8]) -> bool {
        bytes.len() <= REPLY_BYTES_MAX && self.memory.copy_in(self.start + REPLY_AT, bytes)
    }

    /// Returns the reply to an option.
    pub(super) fn reply(&self, length: usize) -> Vec<u8> {
        self.copy(REPLY_AT, length)
    }

    /// Returns the header of a request.
    pub(super) fn header(&self) -> [u8; REQUEST_BYTES] {
        let mut header = [0; REQUEST_BYTES];
        self.memory.copy_out(self.start + HEADER_AT, &mut header);
        header
    }

    /// Returns bytes of the ring.
    pub(super) fn data(&self, at: usize, length: usize) -> Vec<u8> {
        self.copy(RING_AT + at, length)
    }

    /// Appends bytes of the ring.
    pub(super) fn append_data(&self, at: usize, length: usize, into: &mut bytes::BytesMut) {
        self.memory.append_to(self.start + RING_AT + at, length, into);
    }

    fn copy(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.copy_out(self.start + at, &mut bytes);
        bytes
    }

    /// Receives at most `length` bytes: of a header behind its first `filled` bytes, or to this place of the ring.
    pub(super) fn receive(&self, socket: impl AsFd, into: Into, length: usize) -> io::Result<usize> {
        let to = match into {
            Into::Header(filled) => HEADER_AT + filled,
            Into::Ring(at) => RING_AT + at,
        };
        let receipt_at = self.start + self.current_input() + RECEIPT_AT;
        receipt::receive(socket, &self.memory, receipt_at, self.start + to, length)
    }
}

/// The record of the disk. Writes are counted; they may be lost while the counts differ.
#[derive(Debug)]
pub(super) struct DiskRecord(Arc<Shared>);

impl DiskRecord {
    pub(super) fn new(memory: Arc<Shared>) -> DiskRecord {
        DiskRecord(memory)
    }

    fn load(&self, index: usize) -> u64 {
        self.0.word(DISK_AT + 8 * index).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, index: usize, value: u64) {
        if let Some(word) = self.0.word(DISK_AT + 8 * index) {
            word.store(value, Ordering::Release);
        }
    }

    /// The last instance that was described.
    pub(super) fn instance(&self) -> u64 {
        self.load(0)
    }

    pub(super) fn save_instance(&self, instance: u64) {
        self.store(0, instance);
    }

    /// Writes that were answered.
    pub(super) fn written(&self) -> u64 {
        self.load(1)
    }

    pub(super) fn save_written(&self, written: u64) {
        self.store(1, written);
    }

    /// Those of them that are durable, or whose loss is known.
    pub(super) fn flushed(&self) -> u64 {
        self.load(2)
    }

    pub(super) fn save_flushed(&self, flushed: u64) {
        self.store(2, flushed);
    }
}

/// The place of received bytes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Into {
    /// Behind so many bytes of the header.
    Header(usize),
    /// At this place of the ring.
    Ring(usize),
}
