//! The requests of the application, in chunks, on the sessions of a disk. Sans-IO.
//!
//! # A request
//!
//! | state | event | next state |
//! |---|---|---|
//! | blocked: an earlier request overlaps, and one of them changes data | the earlier one is done | held or ready |
//! | held: it changes blocks that a lost session may still write | the session is gone | ready |
//! | ready | a session has room | running: a chunk is cut off its front |
//! | running | the session of a chunk is lost | ready, with this chunk |
//! | running | the session of a chunk is lost by the status of this chunk | ready, for a session that opens later |
//! | running | the same for the last of [`REFUSALS_MAX`] times | the chunk has failed |
//! | running | all chunks have their replies | done: the answer is in the queue |
//! | any, `discarded` | the application's side has restarted | done without an answer, as soon as no chunk runs |
//!
//! A flush has no blocks, so it waits for nothing: the server covers with it all writes that it has answered on any session, and
//! these include all that the application knows of. Without that promise of the server there is one session.

use super::{CHUNK_BYTES, Order};
use buffers::Body;
use bytes::BytesMut;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use wire::formats::block::{
    Answer, Command, Failure, FromDisk, Geometry, REQUEST_BYTES, Request, ToDisk, UNKNOWN_INSTANCE,
};

/// The most requests that have no answer, or whose answer was not pulled.
const REQUESTS_MAX: usize = 1024;
/// The most data of these requests, in bytes. It covers 1 Gbit/s at a round trip of 500 ms.
const DATA_BYTES_MAX: u64 = 64 << 20;
/// The sessions that the status of one chunk may end. A target that never gets ready for it would end all sessions for good.
pub(super) const REFUSALS_MAX: u32 = 5;
/// The fewest bytes that a session may have in progress before another one must take the next chunk.
const SHARE_BYTES_MIN: u64 = 2 * CHUNK_BYTES as u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartState {
    /// No session has it.
    Waiting,
    Running,
    Done,
}

/// A chunk of a request, or all of it that was not cut into chunks.
#[derive(Debug)]
struct Part {
    state: PartState,
    range: Range<u64>,
    /// The data of a write.
    data: Body,
    /// The place of the data of a read. That of the first part begins with the header of the answer.
    room: BytesMut,
    header_bytes: usize,
    /// Sessions that its status has ended.
    refusals: u32,
    /// Only a session with this name or a higher one gets it: those were opened after the last refusal.
    session_min: u64,
}

impl Part {
    fn length(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Cuts off the first `length` bytes. The rooms stay neighbours in memory.
    fn cut(&mut self, length: u64) -> Part {
        let middle = self.range.start + length;
        let behind = match self.room.capacity() {
            0 => BytesMut::new(),
            _ => self.room.split_off(self.header_bytes + length as usize),
        };
        let front = Part {
            state: PartState::Waiting,
            range: self.range.start..middle,
            data: self.data.split_off_front(length as usize).unwrap_or_default(),
            room: std::mem::replace(&mut self.room, behind),
            header_bytes: std::mem::take(&mut self.header_bytes),
            refusals: self.refusals,
            session_min: self.session_min,
        };
        self.range.start = middle;
        front
    }
}

/// A request without an answer.
#[derive(Debug)]
struct Pending {
    request: Request,
    parts: SmallVec<[Part; 1]>,
    /// Parts that are not done.
    parts_left: usize,
    /// Earlier requests that it waits for.
    blockers: usize,
    /// Later requests that wait for it.
    waiters: Vec<u64>,
    failure: Option<Failure>,
    is_discarded: bool,
}

fn range_of(request: &Request) -> Range<u64> {
    request.offset..request.offset + u64::from(request.length)
}

/// The bytes of a request that cross the network as data.
fn data_bytes(request: &Request) -> u64 {
    match request.command {
        Command::Read | Command::Write => request.length.into(),
        Command::Flush | Command::Trim | Command::Zeroes => 0,
    }
}

fn overlaps(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Returns whether the order of two requests matters.
fn conflicts(a: &Request, b: &Request) -> bool {
    (a.command.changes_data() || b.command.changes_data()) && overlaps(&range_of(a), &range_of(b))
}

/// Returns a request as one part.
fn whole(request: &Request, data: Body) -> Part {
    let (mut room, mut header_bytes) = (BytesMut::new(), 0);
    if request.command == Command::Read {
        let header = Answer { id: request.id, result: Ok(()) }.to_bytes();
        room = BytesMut::with_capacity(header.len() + request.length as usize);
        room.extend_from_slice(&header);
        header_bytes = header.len();
    }
    let (state, range) = (PartState::Waiting, range_of(request));
    Part { state, range, data, room, header_bytes, refusals: 0, session_min: 0 }
}

/// The orders of one session.
#[derive(Debug, Default)]
struct Orders {
    /// Request and part of each order without a reply, by tag.
    running: BTreeMap<u64, (u64, usize)>,
    /// Data of these orders, and of the writes among them.
    bytes: u64,
    write_bytes: u64,
    /// The data of writes from which on no further write follows, if there is a limit.
    write_bytes_max: Option<u64>,
}

impl Orders {
    /// Returns whether another order may follow.
    fn has_room(&self, is_write: bool) -> bool {
        !is_write || self.write_bytes_max.is_none_or(|most| self.write_bytes < most)
    }
}

/// The blocks that a lost session may still change.
#[derive(Debug)]
enum Unsure {
    All,
    These(Vec<Range<u64>>),
}

impl Unsure {
    fn overlaps(&self, range: &Range<u64>) -> bool {
        match self {
            Unsure::All => true,
            Unsure::These(ranges) => ranges.iter().any(|unsure| overlaps(unsure, range)),
        }
    }
}

/// An order for a session.
#[derive(Debug)]
pub(super) struct Assigned {
    pub(super) session: u64,
    pub(super) order: Order,
    /// The data of a write.
    pub(super) data: Body,
}

/// The requests of one disk, and its sessions by name.
#[derive(Debug)]
pub(super) struct Schedule {
    geometry: Geometry,
    chunk_bytes: u32,
    /// The number of the application's side, once it has begun.
    begun: Option<u64>,
    /// The answer to its beginning waits until no earlier request runs.
    is_beginning: bool,
    /// Requests without an answer, by number.
    requests: BTreeMap<u64, Pending>,
    next_request: u64,
    next_tag: u64,
    /// Parts to assign.
    ready: VecDeque<(u64, usize)>,
    /// Parts that wait for a session that opens after the one that refused them.
    refused: Vec<(u64, usize)>,
    /// Requests that wait until a lost session is gone.
    held: Vec<u64>,
    sessions: BTreeMap<u64, Orders>,
    lost: BTreeMap<u64, Unsure>,
    /// The number of sessions to use.
    active: usize,
    /// Messages to the application's side, with the bytes of their data.
    answers: VecDeque<(Body, u64)>,
    /// Data of the requests and of the answers in the queue.
    held_bytes: u64,
    /// Data of the parts that are not done.
    outstanding_bytes: u64,
    /// Data of all parts that were done.
    done_bytes: u64,
    /// Orders that another session got again.
    reissued: u64,
}

impl Schedule {
    /// Creates a schedule without sessions. `chunk_bytes`: the most data of an order.
    pub(super) fn new(geometry: Geometry, chunk_bytes: u32) -> Schedule {
        Schedule {
            geometry,
            chunk_bytes,
            begun: None,
            is_beginning: false,
            requests: BTreeMap::new(),
            next_request: 0,
            next_tag: 0,
            ready: VecDeque::new(),
            refused: Vec::new(),
            held: Vec::new(),
            sessions: BTreeMap::new(),
            lost: BTreeMap::new(),
            active: 1,
            answers: VecDeque::from([(Body::from(FromDisk::Ready.to_bytes()), 0)]),
            held_bytes: 0,
            outstanding_bytes: 0,
            done_bytes: 0,
            reissued: 0,
        }
    }

    /// Returns whether another request may come.
    pub(super) fn has_room(&self) -> bool {
        self.requests.len() + self.answers.len() < REQUESTS_MAX && self.held_bytes < DATA_BYTES_MAX
    }

    /// Returns whether every request has its answer.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.is_empty() && !self.is_beginning
    }

    /// Returns whether the sessions in use have enough to do: a chunk for each.
    pub(super) fn is_limited(&self) -> bool {
        self.outstanding_bytes >= self.active as u64 * u64::from(self.chunk_bytes)
    }

    pub(super) fn done_bytes(&self) -> u64 {
        self.done_bytes
    }

    pub(super) fn reissued(&self) -> u64 {
        self.reissued
    }

    /// Returns the number of requests without an answer.
    pub(super) fn unanswered(&self) -> usize {
        self.requests.len()
    }

    /// Handles a message of the application's side; `body` is all of it.
    pub(super) fn accept(&mut self, message: ToDisk, mut body: Body) {
        match message {
            ToDisk::Begin { number } => self.begin(number),
            // It belongs to the time before a restart: the application's side sends it again.
            ToDisk::Request(_) if self.begun.is_none() => {}
            ToDisk::Request(request) => match request.refusal(&self.geometry) {
                Some(failure) => self.answer(request.id, Err(failure)),
                None if request.length == 0 && request.command != Command::Flush => {
                    self.answer(request.id, Ok(()));
                }
                None => {
                    body.skip_front(REQUEST_BYTES);
                    self.submit(request, body);
                }
            },
        }
    }

    /// Drops the requests of an application's side that has restarted.
    fn begin(&mut self, number: u64) {
        (self.begun, self.is_beginning) = (Some(number), true);
        self.held_bytes -= self.answers.drain(..).map(|(_, bytes)| bytes).sum::<u64>();
        self.held.clear();
        self.ready.clear();
        self.refused.clear();
        self.requests.values_mut().for_each(|pending| pending.is_discarded = true);
        let numbers: Vec<_> = self.requests.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.discard(number));
        self.describe();
    }

    /// Answers the beginning of the application's side if nothing earlier runs.
    fn describe(&mut self) {
        if let Some(number) = self.begun.filter(|_| self.is_beginning)
            && !self.requests.values().any(|pending| pending.is_discarded)
        {
            self.is_beginning = false;
            let described =
                FromDisk::Described { number, geometry: self.geometry, instance: UNKNOWN_INSTANCE };
            self.answers.push_back((Body::from(described.to_bytes()), 0));
        }
    }

    fn answer(&mut self, id: u64, result: Result<(), Failure>) {
        self.answers.push_back((Body::from(Answer { id, result }.to_bytes().to_vec()), 0));
    }

    fn submit(&mut self, request: Request, data: Body) {
        let number = self.next_request;
        self.next_request += 1;
        let mut blockers = 0;
        for earlier in self.requests.values_mut() {
            if conflicts(&earlier.request, &request) {
                earlier.waiters.push(number);
                blockers += 1;
            }
        }
        let bytes = data_bytes(&request);
        self.held_bytes += bytes;
        self.outstanding_bytes += bytes;
        let pending = Pending {
            request,
            parts_left: 1,
            parts: SmallVec::from_buf([whole(&request, data)]),
            blockers,
            waiters: Vec::new(),
            failure: None,
            is_discarded: false,
        };
        self.requests.insert(number, pending);
        self.release(number);
    }

    /// Makes the parts of a request ready, if it waits for nothing.
    fn release(&mut self, number: u64) {
        let Some(pending) = self.requests.get(&number) else { return };
        if pending.blockers > 0 || pending.is_discarded {
            return;
        }
        let range = range_of(&pending.request);
        let is_unsure = pending.request.command.changes_data()
            && self.lost.values().any(|unsure| unsure.overlaps(&range));
        match is_unsure {
            true => self.held.push(number),
            false => self.ready.extend((0..pending.parts.len()).map(|part| (number, part))),
        }
    }

    /// Gives up the parts of a request that no session has.
    fn discard(&mut self, number: u64) {
        let Some(pending) = self.requests.get_mut(&number) else { return };
        let has_data = data_bytes(&pending.request) > 0;
        for part in pending.parts.iter_mut().filter(|part| part.state == PartState::Waiting) {
            part.state = PartState::Done;
            pending.parts_left -= 1;
            self.outstanding_bytes -= if has_data { part.length() } else { 0 };
        }
        self.finish(number);
    }

    /// Answers a request if all its parts are done.
    fn finish(&mut self, number: u64) {
        if self.requests.get(&number).is_none_or(|pending| pending.parts_left > 0) {
            return;
        }
        let Some(pending) = self.requests.remove(&number) else { return };
        self.held_bytes -= data_bytes(&pending.request);
        match (pending.is_discarded, pending.failure, pending.request.command) {
            (true, ..) => {}
            (false, None, Command::Read) => {
                let mut parts = pending.parts;
                parts.sort_unstable_by_key(|part| part.range.start);
                let mut rooms = parts.into_iter().map(|part| part.room);
                let mut data = rooms.next().unwrap_or_default();
                // The rooms are neighbours, so nothing is copied.
                rooms.for_each(|room| data.unsplit(room));
                let bytes = u64::from(pending.request.length);
                self.held_bytes += bytes;
                self.answers.push_back((Body::from(data.freeze()), bytes));
            }
            (false, failure, _) => self.answer(pending.request.id, failure.map_or(Ok(()), Err)),
        }
        for waiter in pending.waiters {
            if let Some(later) = self.requests.get_mut(&waiter) {
                later.blockers -= 1;
                self.release(waiter);
            }
        }
        self.describe();
    }

    /// Returns the next message to the application's side.
    pub(super) fn take_answer(&mut self) -> Option<Body> {
        let (body, bytes) = self.answers.pop_front()?;
        self.held_bytes -= bytes;
        Some(body)
    }

    pub(super) fn has_answer(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Sets the number of sessions to use: the oldest ones.
    pub(super) fn use_sessions(&mut self, active: u32) {
        self.active = active.max(1) as usize;
    }

    /// A session is open. Its server takes `order_bytes_max` bytes at a time, so no session gets more from now on.
    pub(super) fn open(&mut self, session: u64, order_bytes_max: u32) {
        self.chunk_bytes = self.chunk_bytes.min(order_bytes_max.max(self.geometry.block_bytes));
        self.sessions.insert(session, Orders::default());
        std::mem::take(&mut self.refused).into_iter().for_each(|part| self.ready.push_front(part));
    }

    /// Sets the data of writes in progress from which on a session gets no further write. One write is always possible.
    pub(super) fn limit_writes(&mut self, session: u64, bytes_max: u64) {
        if let Some(orders) = self.sessions.get_mut(&session) {
            orders.write_bytes_max = Some(bytes_max.max(1));
        }
    }

    /// Returns whether a part waits for a session that is not open yet.
    pub(super) fn needs_session(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Removes the newest of the sessions beyond the first `kept`, if it carries nothing.
    pub(super) fn take_surplus(&mut self, kept: u32) -> Option<u64> {
        if self.sessions.len() <= kept.max(1) as usize || self.has_refused() {
            return None;
        }
        let (session, orders) = self.sessions.last_key_value()?;
        let session = orders.running.is_empty().then_some(*session)?;
        self.sessions.remove(&session);
        Some(session)
    }

    /// Returns whether a part to assign may need the newest session.
    fn has_refused(&self) -> bool {
        self.ready
            .iter()
            .any(|(number, index)| self.part(*number, *index).is_some_and(|part| part.session_min > 0))
    }

    /// Assigns the next part to the session in use that has room for it, and the fewest bytes in progress. The others pass a write that
    /// waits for the limit of the sessions: an order that matters keeps a part from being ready.
    pub(super) fn assign(&mut self) -> Option<Assigned> {
        let share = (2 * DATA_BYTES_MAX / self.active as u64).max(SHARE_BYTES_MIN);
        let mut at = 0;
        loop {
            let (number, index) = *self.ready.get(at)?;
            let least = self.part(number, index).map_or(0, |part| part.session_min);
            let is_write = self.is_write(number);
            // A refused part may take a session that is not in use, so that it waits for no more of them than necessary.
            let count = if least == 0 { self.active } else { usize::MAX };
            let fewest = self
                .sessions
                .range(least..)
                .take(count)
                .min_by_key(|(_, orders)| (!orders.has_room(is_write), orders.bytes, orders.running.len()))
                .map(|(session, orders)| (*session, orders.bytes < share && orders.has_room(is_write)));
            match fewest {
                Some((session, true)) => {
                    self.ready.remove(at);
                    let index = self.take_chunk(number, index)?;
                    return self.run(number, index, session);
                }
                None if least > 0 => self.refused.extend(self.ready.remove(at)),
                Some(_) if is_write => {
                    let mut behind = self.ready.range(at + 1..);
                    at += 1 + behind.position(|(number, _)| !self.is_write(*number))?;
                }
                _ => return None,
            }
        }
    }

    /// Cuts a chunk off a long part, which becomes a part of its own; the rest is assigned next. Returns the chunk, or the part if it is one.
    fn take_chunk(&mut self, number: u64, index: usize) -> Option<usize> {
        let pending = self.requests.get_mut(&number)?;
        let has_data = data_bytes(&pending.request) > 0;
        let part = pending.parts.get_mut(index)?;
        if !has_data || part.length() <= u64::from(self.chunk_bytes) {
            return Some(index);
        }
        let chunk = part.cut(self.chunk_bytes.into());
        pending.parts.push(chunk);
        pending.parts_left += 1;
        self.ready.push_front((number, index));
        Some(pending.parts.len() - 1)
    }

    fn is_write(&self, number: u64) -> bool {
        self.requests.get(&number).is_some_and(|pending| pending.request.command == Command::Write)
    }

    fn part(&self, number: u64, index: usize) -> Option<&Part> {
        self.requests.get(&number)?.parts.get(index)
    }

    fn run(&mut self, number: u64, index: usize, session: u64) -> Option<Assigned> {
        let orders = self.sessions.get_mut(&session)?;
        let pending = self.requests.get_mut(&number)?;
        let part = pending.parts.get_mut(index)?;
        part.state = PartState::Running;
        let tag = self.next_tag;
        self.next_tag += 1;
        orders.running.insert(tag, (number, index));
        if data_bytes(&pending.request) > 0 {
            orders.bytes += part.length();
        }
        let Request { command, force, keep_space, .. } = pending.request;
        if command == Command::Write {
            orders.write_bytes += part.length();
        }
        let (offset, length) = (part.range.start, part.length() as u32);
        let order = Order { tag, command, force, keep_space, offset, length };
        Some(Assigned { session, order, data: part.data.clone() })
    }

    /// Returns the place for the data of a read.
    pub(super) fn room(&mut self, session: u64, tag: u64) -> Option<&mut BytesMut> {
        let (number, index) = self.sessions.get(&session)?.running.get(&tag)?;
        self.requests.get_mut(number)?.parts.get_mut(*index).map(|part| &mut part.room)
    }

    /// Handles the reply to an order. Returns false if the session has no such order.
    #[must_use]
    pub(super) fn handle_reply(&mut self, session: u64, tag: u64, result: Result<(), Failure>) -> bool {
        let Some(orders) = self.sessions.get_mut(&session) else { return false };
        let Some((number, index)) = orders.running.remove(&tag) else { return false };
        let Some(pending) = self.requests.get(&number) else { return false };
        let Some(part) = pending.parts.get(index) else { return false };
        if data_bytes(&pending.request) > 0 {
            orders.bytes -= part.length();
        }
        if pending.request.command == Command::Write {
            orders.write_bytes -= part.length();
        }
        self.finish_part(number, index, result);
        true
    }

    fn finish_part(&mut self, number: u64, index: usize, result: Result<(), Failure>) {
        let Some(pending) = self.requests.get_mut(&number) else { return };
        let Some(part) = pending.parts.get_mut(index) else { return };
        if data_bytes(&pending.request) > 0 {
            self.outstanding_bytes -= part.length();
            self.done_bytes += part.length();
        }
        (part.state, part.data) = (PartState::Done, Body::new());
        pending.parts_left -= 1;
        pending.failure = pending.failure.or(result.err());
        self.finish(number);
    }

    /// Handles the loss of a session: other sessions get its orders. `refused`: the tag of the order whose status has ended it, for which
    /// only a session from `next_name` on has asked the unit again. Returns whether the lost session may still change blocks; then
    /// [`Schedule::handle_gone`] has to follow.
    #[must_use]
    pub(super) fn handle_lost(&mut self, session: u64, refused: Option<u64>, next_name: u64) -> bool {
        let Some(orders) = self.sessions.remove(&session) else { return false };
        let (mut unsure, mut failed) = (Vec::new(), None);
        let newest = self.sessions.last_key_value().map_or(0, |(session, _)| *session);
        // The last one first: each goes to the front.
        for (tag, (number, index)) in orders.running.into_iter().rev() {
            let Some(pending) = self.requests.get_mut(&number) else { continue };
            let part = &mut pending.parts[index];
            part.state = PartState::Waiting;
            part.room.truncate(part.header_bytes);
            if pending.request.command.changes_data() {
                unsure.push(part.range.clone());
            }
            if refused == Some(tag) {
                part.refusals += 1;
                part.session_min = next_name;
            }
            match pending.is_discarded {
                true => self.discard(number),
                false if part.refusals == REFUSALS_MAX => failed = Some((number, index)),
                false => {
                    self.reissued += 1;
                    match part.session_min <= newest {
                        true => self.ready.push_front((number, index)),
                        false => self.refused.push((number, index)),
                    }
                }
            }
        }
        let is_unsure = !unsure.is_empty();
        if is_unsure {
            self.lost.insert(session, Unsure::These(unsure));
        }
        // Later writes to the same blocks wait for the lost session.
        if let Some((number, index)) = failed {
            self.finish_part(number, index, Err(Failure::Device));
        }
        is_unsure
    }

    /// A session of an earlier process may still change any block.
    pub(super) fn inherit(&mut self, session: u64) {
        self.lost.insert(session, Unsure::All);
    }

    /// A lost session changes no more blocks.
    pub(super) fn handle_gone(&mut self, session: u64) {
        self.lost.remove(&session);
        std::mem::take(&mut self.held).into_iter().for_each(|number| self.release(number));
    }
}
