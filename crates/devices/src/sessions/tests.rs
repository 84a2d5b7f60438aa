//! The schedule against a plain map of blocks: a server that executes orders in any order, sessions that break at any time, and
//! writes of lost sessions that land as late as they can.

use super::connection::Connection;
use super::demand::{Demand, Progress};
use super::schedule::{Assigned, Schedule};
use super::{BUSY_PAUSE, Ended, Expected, Order, Reply, Session, SessionCount};
use buffers::Body;
use contract::Time;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use wire::formats::block::{
    ANSWER_BYTES, Abilities, Answer, Command, Failure, FromDisk, Geometry, Request, ToDisk,
};

const BLOCK_BYTES: usize = 512;
const BLOCKS: usize = 24;
/// The bytes of a chunk, so that most requests have several.
const CHUNK_BYTES: u32 = 2 * BLOCK_BYTES as u32;

fn geometry() -> Geometry {
    let abilities = Abilities {
        read_only: false,
        flush: true,
        force: true,
        trim: true,
        zeroes: true,
        many_connections: true,
    };
    let block_bytes = BLOCK_BYTES as u32;
    let size_bytes = (BLOCKS * BLOCK_BYTES) as u64;
    Geometry { size_bytes, block_bytes, preferred_bytes: 4096, abilities }
}

/// Random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) % limit as u64) as usize
    }
}

/// An order that a server has.
struct Held {
    order: Order,
    data: Vec<u8>,
    is_done: bool,
}

/// The content of a block: the number of its last write. `None` if no check is possible: a write had no answer when the application's
/// side restarted.
type Content = Option<u32>;

/// A request without an answer.
struct Asked {
    request: Request,
    /// For a read: the content of its blocks.
    expected: Vec<Content>,
}

struct Model {
    random: Random,
    schedule: Schedule,
    disk: [u32; BLOCKS],
    sessions: BTreeMap<u64, Vec<Held>>,
    /// Writes of lost sessions that may still land.
    late: BTreeMap<u64, Vec<Held>>,
    next_session: u64,
    /// The content after all requests so far, in their order.
    expected: [Content; BLOCKS],
    asked: BTreeMap<u64, Asked>,
    next_id: u64,
    /// The application's side waits for the answer to this beginning.
    beginning: Option<u64>,
    answered: u64,
    breaks: u64,
}

impl Model {
    fn new(seed: u64) -> Model {
        let mut model = Model {
            random: Random(seed),
            schedule: Schedule::new(geometry(), CHUNK_BYTES),
            disk: [0; BLOCKS],
            sessions: BTreeMap::new(),
            late: BTreeMap::new(),
            next_session: 1,
            expected: [Some(0); BLOCKS],
            asked: BTreeMap::new(),
            next_id: 1,
            beginning: None,
            answered: 0,
            breaks: 0,
        };
        let ready = model.schedule.take_answer().unwrap();
        assert_eq!(ready.into_bytes()[..], FromDisk::Ready.to_bytes());
        model.begin();
        model
    }

    fn begin(&mut self) {
        let number = self.next_id;
        self.next_id += 1;
        for (_, asked) in std::mem::take(&mut self.asked) {
            if asked.request.command.changes_data() {
                blocks(&asked.request).for_each(|block| self.expected[block] = None);
            }
        }
        self.beginning = Some(number);
        let begin = ToDisk::Begin { number };
        self.schedule.accept(begin, Body::from(begin.to_bytes()));
    }

    fn ask(&mut self) {
        if self.asked.len() > 12 || self.beginning.is_some() {
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        let command = match self.random.below(10) {
            0..4 => Command::Write,
            4..7 => Command::Read,
            7 => Command::Zeroes,
            8 => Command::Trim,
            _ => Command::Flush,
        };
        let (mut first, mut count) = (self.random.below(BLOCKS), 1 + self.random.below(6));
        count = count.min(BLOCKS - first);
        if command == Command::Flush {
            (first, count) = (0, 0);
        }
        let force = command.changes_data() && self.random.below(4) == 0;
        let (offset, length) = ((first * BLOCK_BYTES) as u64, (count * BLOCK_BYTES) as u32);
        let request = Request { id, command, force, keep_space: false, offset, length };
        let mut body = Body::from(request.to_bytes().to_vec());
        let mut expected = Vec::new();
        match command {
            Command::Write => {
                body.push((id as u32).to_le_bytes().repeat(length as usize / 4).into());
                blocks(&request).for_each(|block| self.expected[block] = Some(id as u32));
            }
            Command::Zeroes => blocks(&request).for_each(|block| self.expected[block] = Some(0)),
            // A server may return anything for these blocks.
            Command::Trim => blocks(&request).for_each(|block| self.expected[block] = None),
            Command::Read => expected = blocks(&request).map(|block| self.expected[block]).collect(),
            Command::Flush => {}
        }
        self.asked.insert(id, Asked { request, expected });
        self.schedule.accept(ToDisk::Request(request), body);
    }

    fn assign(&mut self) {
        while let Some(Assigned { session, order, data }) = self.schedule.assign() {
            let data = data.into_bytes().to_vec();
            let is_write = order.command == Command::Write;
            assert_eq!(data.len(), if is_write { order.length as usize } else { 0 });
            let orders = self.sessions.get_mut(&session).expect("an open session");
            orders.push(Held { order, data, is_done: false });
            if self.random.below(8) == 0 {
                return;
            }
        }
    }

    /// The server executes an order, or replies to one that it has executed.
    fn serve(&mut self) {
        if self.sessions.is_empty() {
            return;
        }
        let index = self.random.below(self.sessions.len());
        let (&session, orders) = self.sessions.iter_mut().nth(index).unwrap();
        if orders.is_empty() {
            return;
        }
        let at = self.random.below(orders.len());
        let held = &mut orders[at];
        let order = held.order;
        if !held.is_done {
            execute(&mut self.disk, held);
        }
        if order.command == Command::Read {
            // The data are those of the time of the execution.
            let data: Vec<u8> = range(&order).flat_map(|block| block_bytes(self.disk[block])).collect();
            let half = self.random.below(data.len());
            let room = self.schedule.room(session, order.tag).unwrap();
            room.extend_from_slice(&data[..half]);
            if self.random.below(16) == 0 {
                return self.break_session(session);
            }
            self.schedule.room(session, order.tag).unwrap().extend_from_slice(&data[half..]);
        } else if self.random.below(3) == 0 {
            return;
        }
        self.sessions.get_mut(&session).unwrap().swap_remove(at);
        assert!(self.schedule.handle_reply(session, order.tag, Ok(())));
    }

    fn break_session(&mut self, session: u64) {
        self.breaks += 1;
        let orders = self.sessions.remove(&session).unwrap();
        let is_unsure = self.schedule.handle_lost(session, None, self.next_session);
        let late: Vec<_> = orders.into_iter().filter(|held| held.order.command.changes_data()).collect();
        assert_eq!(is_unsure, !late.is_empty());
        if is_unsure {
            self.late.insert(session, late);
        }
    }

    /// A write of a lost session lands, gets lost, or the server has closed the session.
    fn run_late(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let index = self.random.below(self.late.len());
        let (&session, late) = self.late.iter_mut().nth(index).unwrap();
        match late.pop() {
            Some(mut held) if self.random.below(2) == 0 => execute(&mut self.disk, &mut held),
            Some(_) => {}
            None => {
                self.late.remove(&session);
                self.schedule.handle_gone(session);
            }
        }
    }

    fn open(&mut self) {
        let order_bytes_max = if self.random.below(8) == 0 { BLOCK_BYTES as u32 } else { CHUNK_BYTES };
        self.schedule.open(self.next_session, order_bytes_max);
        self.sessions.insert(self.next_session, Vec::new());
        self.next_session += 1;
    }

    fn take_answers(&mut self) {
        while let Some(body) = self.schedule.take_answer() {
            let bytes = body.into_bytes();
            let front = &bytes[..bytes.len().min(FromDisk::HEADER_BYTES_MAX)];
            match FromDisk::parse(front, bytes.len()).unwrap() {
                FromDisk::Ready => panic!("a second beginning of the disk"),
                FromDisk::Described { number, geometry: described, .. } => {
                    assert_eq!((self.beginning.take(), described), (Some(number), geometry()));
                }
                FromDisk::Answer(Answer { id, result }) => {
                    let asked = self.asked.remove(&id).expect("one answer for each request");
                    assert_eq!(result, Ok(()));
                    self.answered += 1;
                    let contents = bytes[ANSWER_BYTES..].chunks(BLOCK_BYTES);
                    assert_eq!(contents.len(), asked.expected.len());
                    for (index, (content, expected)) in contents.zip(asked.expected).enumerate() {
                        if let Some(expected) = expected {
                            let read = u32::from_le_bytes(content[..4].try_into().unwrap());
                            assert_eq!(read, expected, "block {index} of {:?}", asked.request);
                            assert_eq!(content, block_bytes(expected), "a torn block");
                        }
                    }
                }
            }
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..30 => self.ask(),
            30..45 => self.assign(),
            45..75 => self.serve(),
            75..85 => self.run_late(),
            85..87 if self.sessions.len() < 6 => self.open(),
            87..89 if !self.sessions.is_empty() => {
                let index = self.random.below(self.sessions.len());
                let session = *self.sessions.keys().nth(index).unwrap();
                self.break_session(session);
            }
            89 => {
                let most = 1 + self.random.below(6) as u32;
                self.schedule.use_sessions(most);
                while let Some(session) = self.schedule.take_surplus(most) {
                    assert!(self.sessions.remove(&session).unwrap().is_empty());
                }
            }
            90 if self.random.below(8) == 0 => self.begin(),
            _ => self.take_answers(),
        }
    }

    /// Lets everything end: each request has its answer, and the disk has what they say.
    fn settle(&mut self) {
        let mut steps = 0;
        while !(self.schedule.is_idle()
            && self.asked.is_empty()
            && self.beginning.is_none()
            && self.late.is_empty())
        {
            steps += 1;
            assert!(steps < 1_000_000, "{} requests hang", self.asked.len());
            if self.sessions.is_empty() {
                self.open();
            }
            self.assign();
            self.serve();
            self.run_late();
            self.take_answers();
        }
        for (block, expected) in self.expected.iter().enumerate() {
            assert!(expected.is_none_or(|expected| expected == self.disk[block]), "block {block}");
        }
        assert!(!self.schedule.is_limited() || self.schedule.unanswered() == 0);
    }
}

fn execute(disk: &mut [u32; BLOCKS], held: &mut Held) {
    held.is_done = true;
    for (index, block) in range(&held.order).enumerate() {
        match held.order.command {
            Command::Write => {
                let at = index * BLOCK_BYTES;
                disk[block] = u32::from_le_bytes(held.data[at..at + 4].try_into().unwrap());
            }
            Command::Zeroes | Command::Trim => disk[block] = 0,
            Command::Read | Command::Flush => {}
        }
    }
}

fn range(order: &Order) -> std::ops::Range<usize> {
    let first = order.offset as usize / BLOCK_BYTES;
    first..first + order.length as usize / BLOCK_BYTES
}

fn blocks(request: &Request) -> std::ops::Range<usize> {
    let first = request.offset as usize / BLOCK_BYTES;
    first..first + request.length as usize / BLOCK_BYTES
}

fn block_bytes(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK_BYTES / 4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Requests behave as if one after the other, in their order, whatever happens to the sessions.
    #[test]
    fn writes_are_never_lost_torn_or_overtaken(seed: u64) {
        let mut model = Model::new(seed);
        (0..2000).for_each(|_| model.step());
        model.settle();
        prop_assert!(model.answered > 0);
    }
}

#[test]
fn without_the_wait_for_a_lost_session_an_old_write_lands_last() {
    // The model finds the error that the wait prevents: the sessions are declared gone while their writes are on their way.
    let finds = |seed| {
        std::panic::catch_unwind(move || {
            let mut model = Model::new(seed);
            for _ in 0..2000 {
                model.step();
                let lost: BTreeSet<u64> = model.late.keys().copied().collect();
                lost.into_iter().for_each(|session| model.schedule.handle_gone(session));
            }
            model.settle();
        })
        .is_err()
    };
    assert!((0..50).any(finds), "no seed finds it");
}

#[test]
fn a_session_of_an_earlier_process_holds_back_all_writes_and_no_reads() {
    let mut schedule = Schedule::new(geometry(), CHUNK_BYTES);
    schedule.inherit(7);
    schedule.open(8, CHUNK_BYTES);
    let begin = ToDisk::Begin { number: 1 };
    schedule.accept(begin, Body::from(begin.to_bytes()));
    let request =
        |id, command| Request { id, command, force: false, keep_space: false, offset: 0, length: 512 };
    for (id, command) in [(1, Command::Read), (2, Command::Zeroes), (3, Command::Read)] {
        let request = request(id, command);
        schedule.accept(ToDisk::Request(request), Body::from(request.to_bytes().to_vec()));
    }
    let first = schedule.assign().unwrap();
    assert_eq!(first.order.command, Command::Read);
    schedule.room(8, first.order.tag).unwrap().extend_from_slice(&[0; 512]);
    assert!(schedule.handle_reply(8, first.order.tag, Ok(())));
    assert!(schedule.assign().is_none(), "a copy of the write may be on its way");
    schedule.handle_gone(7);
    assert_eq!(schedule.assign().map(|assigned| assigned.order.command), Some(Command::Zeroes));
}

#[test]
fn an_order_fails_whose_status_ends_session_after_session() {
    let mut schedule = Schedule::new(geometry(), CHUNK_BYTES);
    let begin = ToDisk::Begin { number: 1 };
    schedule.accept(begin, Body::from(begin.to_bytes()));
    while schedule.take_answer().is_some() {}
    for id in [1, 2] {
        let (command, length) = (Command::Zeroes, 512);
        let request = Request { id, command, force: false, keep_space: false, offset: 0, length };
        schedule.accept(ToDisk::Request(request), Body::from(request.to_bytes().to_vec()));
    }
    // Losses of the connection are not counted.
    for session in 0..20 {
        schedule.open(session, CHUNK_BYTES);
        let tag = schedule.assign().unwrap().order.tag;
        assert!(schedule.handle_lost(session, (session >= 15).then_some(tag), session + 1));
        assert_eq!(schedule.has_answer(), session == 19);
        if session < 19 {
            schedule.handle_gone(session);
        }
    }
    let answer = Answer { id: 1, result: Err(Failure::Device) };
    assert_eq!(schedule.take_answer().unwrap().into_bytes()[..], answer.to_bytes());
    schedule.open(20, CHUNK_BYTES);
    assert!(schedule.assign().is_none(), "the first write may still be on its way");
    schedule.handle_gone(19);
    assert!(schedule.assign().is_some());
}

fn begin(schedule: &mut Schedule, number: u64) {
    let begin = ToDisk::Begin { number };
    schedule.accept(begin, Body::from(begin.to_bytes()));
}

fn ask(schedule: &mut Schedule, id: u64, command: Command) {
    let length = if command == Command::Flush { 0 } else { 512 };
    let request = Request { id, command, force: false, keep_space: false, offset: id * 512, length };
    schedule.accept(ToDisk::Request(request), Body::from(request.to_bytes().to_vec()));
}

#[test]
fn a_refused_order_waits_for_a_session_that_opens_later() {
    let mut schedule = Schedule::new(geometry(), CHUNK_BYTES);
    begin(&mut schedule, 1);
    (1..=8).for_each(|session| schedule.open(session, CHUNK_BYTES));
    (1..=2).for_each(|id| ask(&mut schedule, id, Command::Trim));
    let refused = schedule.assign().unwrap();
    assert!(schedule.handle_lost(refused.session, Some(refused.order.tag), 10));
    // The others of these have not asked the unit again.
    schedule.open(9, CHUNK_BYTES);
    assert_eq!(schedule.assign().unwrap().order.offset, 1024);
    assert!(schedule.assign().is_none() && schedule.needs_session());
    schedule.open(10, CHUNK_BYTES);
    assert!(schedule.take_surplus(1).is_none(), "it is needed");
    let again = schedule.assign().unwrap();
    assert_eq!((again.session, again.order.offset), (10, 512));
    assert!(!schedule.needs_session());
}

#[test]
fn an_order_that_waits_for_a_new_session_requests_one_beyond_those_to_keep() {
    let progress = |needs_session| Progress { open: 4, needs_session, ..Progress::default() };
    let mut demand = Demand::new(SessionCount::Fixed(4));
    demand.run(progress(false), Time(0));
    assert_eq!(demand.take_requested(), 0);
    (0..2).for_each(|_| demand.run(progress(true), Time(0)));
    assert_eq!(demand.take_requested(), 1);
}

#[test]
fn a_session_gets_no_more_writes_than_its_limit_allows_and_all_other_orders() {
    let mut schedule = Schedule::new(geometry(), CHUNK_BYTES);
    begin(&mut schedule, 1);
    (1..=2).for_each(|session| schedule.open(session, CHUNK_BYTES));
    schedule.use_sessions(2);
    schedule.limit_writes(1, 512);
    schedule.limit_writes(2, 513);
    let write = |schedule: &mut Schedule, id: u64| {
        let (command, offset, length) = (Command::Write, id * 512, 512);
        let request = Request { id, command, force: false, keep_space: false, offset, length };
        let mut body = Body::from(request.to_bytes().to_vec());
        body.push(vec![7; 512].into());
        schedule.accept(ToDisk::Request(request), body);
    };
    let assigned = |schedule: &mut Schedule| -> Vec<(u64, u64)> {
        std::iter::from_fn(|| schedule.assign()).map(|one| (one.session, one.order.tag)).collect()
    };
    (1..=5).for_each(|id| write(&mut schedule, id));
    assert_eq!(assigned(&mut schedule), [(1, 0), (2, 1), (2, 2)]);
    (6..=9).for_each(|id| ask(&mut schedule, id, Command::Read));
    ask(&mut schedule, 10, Command::Flush);
    // They pass the two writes, which wait.
    let tags: Vec<u64> = assigned(&mut schedule).into_iter().map(|(_, tag)| tag).collect();
    assert_eq!(tags, [3, 4, 5, 6, 7]);
    assert!(schedule.handle_reply(1, 0, Ok(())));
    assert_eq!(assigned(&mut schedule), [(1, 8)]);
    // The last write waits for no session that is to be opened.
    assert!(!schedule.needs_session());
    assert!(schedule.handle_reply(2, 1, Ok(())));
    assert_eq!(assigned(&mut schedule), [(2, 9)]);
}

#[test]
fn a_server_that_takes_less_gets_shorter_orders() {
    let mut schedule = Schedule::new(geometry(), CHUNK_BYTES);
    begin(&mut schedule, 1);
    let (command, length) = (Command::Read, 6 * 512);
    let request = Request { id: 1, command, force: false, keep_space: false, offset: 512, length };
    schedule.accept(ToDisk::Request(request), Body::from(request.to_bytes().to_vec()));
    while schedule.take_answer().is_some() {}
    let lengths = |assigned: &[Order]| assigned.iter().map(|order| order.length).collect::<Vec<_>>();
    let content = |blocks: std::ops::Range<usize>| -> Vec<u8> {
        blocks.flat_map(|block| block_bytes(block as u32)).collect()
    };
    let reply = |schedule: &mut Schedule, session, order: &Order| {
        schedule.room(session, order.tag).unwrap().extend_from_slice(&content(range(order)));
        assert!(schedule.handle_reply(session, order.tag, Ok(())));
    };
    schedule.open(1, CHUNK_BYTES);
    let orders: Vec<Order> = std::iter::from_fn(|| schedule.assign()).map(|one| one.order).collect();
    assert_eq!(lengths(&orders), [1024; 3]);
    reply(&mut schedule, 1, &orders[1]);
    assert!(!schedule.handle_lost(1, None, 2));
    // The server has restarted with another device.
    schedule.open(2, 512);
    let orders: Vec<Order> = std::iter::from_fn(|| schedule.assign()).map(|one| one.order).collect();
    assert_eq!(lengths(&orders), [512; 4]);
    orders.iter().rev().for_each(|order| reply(&mut schedule, 2, order));
    let answer = schedule.take_answer().unwrap().into_bytes();
    assert!(answer[ANSWER_BYTES..] == content(1..7));
}

#[test]
fn a_large_request_keeps_many_sessions_busy_and_a_small_one_does_not() {
    let mut schedule = Schedule::new(Geometry { size_bytes: 1 << 30, ..geometry() }, 128 << 10);
    (0..8).for_each(|session| schedule.open(session, 128 << 10));
    schedule.use_sessions(8);
    let begin = ToDisk::Begin { number: 1 };
    schedule.accept(begin, Body::from(begin.to_bytes()));
    let mut read = |id, offset, length| {
        let request = Request { id, command: Command::Read, force: false, keep_space: false, offset, length };
        schedule.accept(ToDisk::Request(request), Body::from(request.to_bytes().to_vec()));
        let used: BTreeSet<u64> =
            std::iter::from_fn(|| schedule.assign()).map(|assigned| assigned.session).collect();
        (used.len(), schedule.is_limited())
    };
    assert_eq!(read(1, 0, 4096), (1, false));
    assert_eq!(read(2, 1 << 20, 1 << 20), (8, true));
}

#[test]
fn without_a_session_the_next_attempt_is_soon() {
    let progress = |open| Progress { open, ..Progress::default() };
    let (mut demand, mut now) = (Demand::new(SessionCount::Fixed(4)), Time(0));
    demand.run(progress(0), now);
    assert_eq!(demand.take_requested(), 4);
    demand.handle_opened(progress(1), now);
    (0..3).for_each(|_| _ = demand.handle_failed(1, now));
    for _ in 0..10 {
        now = demand.due().unwrap();
        demand.run(progress(1), now);
        (0..demand.take_requested()).for_each(|_| _ = demand.handle_failed(1, now));
    }
    assert_eq!(demand.due().unwrap().since(now), Duration::from_secs(64), "attempts for further sessions");
    demand.run(progress(0), now);
    let due = demand.due().unwrap();
    assert!(due.since(now) <= Duration::from_secs(5));
    demand.run(progress(0), due);
    assert_eq!(demand.take_requested(), 4);
}

/// A session that sends the data of each order and gets no reply.
#[derive(Default)]
pub(super) struct Deaf {
    /// Its server is busy at first.
    is_paused: bool,
    /// The bytes that were not sent.
    left: Arc<AtomicUsize>,
}

impl Session for Deaf {
    fn submit(&mut self, _: &Order, data: Body, output: &mut Body) {
        output.append(data);
    }

    fn end(&mut self, _: &mut Body) {}

    fn is_paused(&self) -> bool {
        self.is_paused
    }

    fn resume(&mut self, output: &mut Body) {
        self.is_paused = false;
        output.push(vec![7].into());
    }

    fn expected(&self) -> Expected {
        Expected::Header(1)
    }

    fn handle_header(&mut self, _: &[u8], _: &mut Body) -> Result<Option<Reply>, Ended> {
        Ok(None)
    }

    fn handle_data(&mut self, _: u32, _: &mut Body) -> Result<Option<Reply>, Ended> {
        Ok(None)
    }

    fn handle_sent(&mut self, left: usize) {
        self.left.store(left, Relaxed);
    }
}

#[test]
fn a_session_learns_of_each_part_that_was_sent() {
    const DATA_BYTES: usize = 8 << 20;
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    let session = Deaf::default();
    let left = session.left.clone();
    let mut connection = Connection::new(1, 0, ours.into(), Box::new(session));
    let (command, force, keep_space) = (Command::Write, false, false);
    let order = Order { tag: 1, command, force, keep_space, offset: 0, length: DATA_BYTES as u32 };
    connection.submit(Assigned { session: 1, order, data: Body::from(vec![7; DATA_BYTES]) });
    let mut received = 0;
    while received < DATA_BYTES {
        connection.handle_event();
        connection.send().unwrap();
        let mut buffer = [0; 1 << 16];
        while let Ok(count) = theirs.read(&mut buffer) {
            received += count;
        }
        assert_eq!(received + left.load(Relaxed), DATA_BYTES);
    }
}

#[test]
fn a_paused_session_continues_after_the_pause() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let session = Deaf { is_paused: true, ..Deaf::default() };
    let mut connection = Connection::new(1, 0, ours.into(), Box::new(session));
    let mut sent_at = |now| {
        connection.run_pause(now);
        connection.send().unwrap();
        (theirs.read(&mut [0; 9]).unwrap_or(0), connection.resume_at)
    };
    let end = Time(1).after(BUSY_PAUSE);
    assert_eq!(sent_at(Time(1)), (0, Some(end)));
    assert_eq!(sent_at(Time(2)), (0, Some(end)));
    assert_eq!(sent_at(end), (1, None));
    assert_eq!(sent_at(end), (0, None));
}
