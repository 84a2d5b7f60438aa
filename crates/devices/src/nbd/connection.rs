//! A connection of a client: its negotiation, its requests and its replies, all of which outlive the worker.
//!
//! | input | bytes | next |
//! |---|---|---|
//! | reply | none, until the reply to an option is in the pipe | negotiation, header, or ended |
//! | negotiation | an option | reply, negotiation |
//! | header | a write | data |
//! | header | another request | header |
//! | header | the end of the connection, a broken protocol | ended |
//! | data | the data of a write | header |
//! | ended | none; the connection is closed when all requests are answered | |
//!
//! | output | event | next |
//! |---|---|---|
//! | idle, finished | a reply is due | filling |
//! | filling | the pipe is full | draining: bytes move from the pipe to the socket |
//! | draining | the pipe has room | filling |
//! | filling | the reply is in the pipe | finished: the request is forgotten |

use super::memory::{Corrupt, Input, InputRecord, Into, LOSSY, OutputRecord, Phase, Place, REQUESTS_MAX};
use super::requests::{Entry, Requests};
use bytes::Bytes;
use contract::Body;
use rustix::io::{Errno, ioctl_fionread, retry_on_intr, writev};
use rustix::pipe::{SpliceFlags, splice};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use wire::formats::block::{Command, DATA_BYTES_MAX, Failure, Geometry};
use wire::nbd::{Asked, REQUEST_BYTES, Reply, Request, ServerNegotiation};

/// Requests that are taken from a connection before the others have their turn.
const REQUESTS_AT_ONCE: usize = 32;

/// The descriptors of a connection, which the broker keeps.
#[derive(Debug)]
pub(super) struct Descriptors {
    /// The client.
    pub(super) socket: OwnedFd,
    /// Both ends of the pipe with the bytes for the client.
    pub(super) pipe: [OwnedFd; 2],
}

/// A reply that is not completely in the pipe.
#[derive(Debug)]
struct Outgoing {
    entry: usize,
    sequence: u64,
    bytes: Body,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: u64,
    descriptors: Descriptors,
    place: Place,
    record: InputRecord,
    requests: Requests,
    output: OutputRecord,
    /// The reply that `output` describes, if it is not finished. After a restart its bytes come with the repeated request.
    current: Option<Body>,
    waiting: VecDeque<Outgoing>,
    /// Entries whose reply is in `waiting` or is being written.
    is_answered: [bool; REQUESTS_MAX],
    /// Bytes in the pipe.
    fill: usize,
    /// The client is gone, or has broken the protocol: nothing is read or written any more.
    is_broken: bool,
}

impl Connection {
    /// Begins with a connection, or continues it if its place has its state.
    pub(super) fn new(id: u64, descriptors: Descriptors, place: Place) -> Connection {
        let restored = (place.id() == id).then(|| restore(&place, &descriptors));
        let is_broken = matches!(restored, Some(Err(Corrupt)));
        let (record, requests, output, fill) = match restored {
            Some(Ok(restored)) => restored,
            _ => {
                let record = place.begin(id, &ServerNegotiation::greeting());
                (record, Requests::new(), OutputRecord::IDLE, 0)
            }
        };
        let mut connection = Connection {
            id,
            descriptors,
            place,
            record,
            requests,
            output,
            current: None,
            waiting: VecDeque::new(),
            is_answered: [false; REQUESTS_MAX],
            fill,
            is_broken,
        };
        if connection.output.phase == Phase::Finished {
            connection.finish();
        }
        connection.queue_option_reply();
        connection
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.descriptors.socket.as_fd()
    }

    /// Returns true if everything is done and the connection can be closed.
    pub(super) fn is_over(&self) -> bool {
        let is_ended = self.record.input == Input::Ended && self.waiting.is_empty() && self.fill == 0;
        self.requests.is_empty() && (self.is_broken || is_ended && self.current.is_none())
    }

    /// Returns true if bytes of the client are wanted.
    pub(super) fn wants_input(&self) -> bool {
        !self.is_broken
            && match self.record.input {
                Input::Negotiation(_) | Input::Data(_) => true,
                // A complete header waits for room.
                Input::Header => self.requests.has_room() && self.record.filled < REQUEST_BYTES,
                Input::Reply { .. } | Input::Ended => false,
            }
    }

    /// Returns true if bytes wait for the client.
    pub(super) fn wants_output(&self) -> bool {
        !self.is_broken && self.fill > 0
    }

    /// Returns the request with this number in this entry, if it is complete and has no answer.
    pub(super) fn request(&self, entry: usize, sequence: u64) -> Option<&Entry> {
        let request = self.requests.get(entry).filter(|request| request.sequence == sequence)?;
        (sequence < self.record.next_sequence && !self.is_answered[entry]).then_some(request)
    }

    /// Returns the number of the complete request without an answer in this entry.
    pub(super) fn unanswered_at(&self, entry: usize) -> Option<u64> {
        let sequence = self.requests.get(entry)?.sequence;
        self.request(entry, sequence).map(|_| sequence)
    }

    /// Returns all complete requests without an answer, in their order: entry, number.
    pub(super) fn unanswered(&self) -> Vec<(usize, u64)> {
        let all = self.requests.all().map(|(index, entry)| (index, entry.sequence));
        let mut all: Vec<_> =
            all.filter(|(index, sequence)| self.request(*index, *sequence).is_some()).collect();
        all.sort_by_key(|(_, sequence)| *sequence);
        all
    }

    /// Returns whether the next request, a flush or a forced one, has to fail because answered writes are lost.
    pub(super) fn reports_loss(&self, sequence: u64) -> bool {
        match self.place.loss() {
            0 => false,
            LOSSY => {
                self.place.save_loss(sequence);
                true
            }
            reporting => reporting == sequence,
        }
    }

    /// Appends the data of a write.
    pub(super) fn append_data(&self, entry: &Entry, into: &mut bytes::BytesMut) {
        self.place.append_data(entry.data_at, entry.data_bytes(), into);
    }

    /// Sends replies and receives requests as far as it can. Calls `complete` with each complete request: entry, number.
    pub(super) fn proceed(&mut self, geometry: &Geometry, mut complete: impl FnMut(usize, u64)) {
        loop {
            self.flush();
            self.receive(geometry, &mut complete);
            // The reply to an option, and those that the client has made room for meanwhile.
            self.flush();
            if !self.has_room_for_header() {
                return;
            }
        }
    }

    /// Returns true if the complete header that waited for room has it now. No event of the socket says so.
    fn has_room_for_header(&self) -> bool {
        let is_waiting = self.record.input == Input::Header && self.record.filled == REQUEST_BYTES;
        let fits = |request: Request| self.requests.fits(request);
        is_waiting && !self.is_broken && Request::parse(&self.place.header()).is_ok_and(fits)
    }

    /// Receives what the client has sent.
    fn receive(&mut self, geometry: &Geometry, mut complete: impl FnMut(usize, u64)) {
        for _ in 0..REQUESTS_AT_ONCE {
            let (into, needed) = match self.record.input {
                Input::Negotiation(state) => (Into::Ring(self.record.filled), state.needs()),
                Input::Header => (Into::Header(self.record.filled), REQUEST_BYTES),
                Input::Data(entry) => match self.requests.get(entry) {
                    Some(entry) => (Into::Ring(entry.data_at + self.record.filled), entry.data_bytes()),
                    None => return self.break_off(),
                },
                Input::Reply { .. } | Input::Ended => return,
            };
            let missing = needed.saturating_sub(self.record.filled);
            if missing > 0 {
                if !self.wants_input() {
                    return;
                }
                match self.place.receive(&self.descriptors.socket, into, missing) {
                    Ok(0) => return self.break_off(),
                    Ok(count) => self.record.filled += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                    Err(_) => return self.break_off(),
                }
                if self.record.filled < needed {
                    self.place.save_input(&self.record);
                    continue;
                }
            }
            if self.is_broken || !self.handle(geometry, &mut complete) {
                return;
            }
        }
    }

    /// Handles complete input. Returns false if it has to wait.
    fn handle(&mut self, geometry: &Geometry, complete: &mut impl FnMut(usize, u64)) -> bool {
        match self.record.input {
            Input::Negotiation(state) => {
                let bytes = self.place.data(0, self.record.filled);
                match state.take(&bytes, geometry) {
                    Ok((reply, next)) if reply.is_empty() => self.save(after(next)),
                    Ok((reply, next)) if self.place.save_reply(&reply) => {
                        self.save(Input::Reply { next, length: reply.len() });
                        self.queue_option_reply();
                    }
                    Ok(_) | Err(_) => self.break_off(),
                }
                true
            }
            Input::Header => self.handle_header(complete),
            Input::Data(index) => {
                if let Some(entry) = self.requests.get(index) {
                    let sequence = entry.sequence;
                    self.complete(index, sequence, complete);
                }
                true
            }
            Input::Reply { .. } | Input::Ended => false,
        }
    }

    fn handle_header(&mut self, complete: &mut impl FnMut(usize, u64)) -> bool {
        let Ok(request) = Request::parse(&self.place.header()) else {
            self.break_off();
            return false;
        };
        let is_long_write =
            request.asked == Asked::Do(Command::Write) && request.length as usize > DATA_BYTES_MAX;
        match request.asked {
            Asked::Disconnect => {
                self.save(Input::Ended);
                false
            }
            // The data behind it would have no end.
            _ if is_long_write => {
                self.break_off();
                false
            }
            _ => {
                let sequence = self.record.next_sequence;
                let Some((index, entry)) = self.requests.add(sequence, request) else {
                    // The received header stays until there is room.
                    self.place.save_input(&self.record);
                    return false;
                };
                self.place.save_entry(index, &entry);
                match entry.data_bytes() {
                    0 => self.complete(index, sequence, complete),
                    _ => self.save(Input::Data(index)),
                }
                true
            }
        }
    }

    /// A request is complete: the next worker knows it from here on.
    fn complete(&mut self, index: usize, sequence: u64, complete: &mut impl FnMut(usize, u64)) {
        self.record.next_sequence = sequence + 1;
        self.save(Input::Header);
        complete(index, sequence);
    }

    /// Saves the next state of the input.
    fn save(&mut self, input: Input) {
        self.record = InputRecord { input, filled: 0, ..self.record };
        self.place.save_input(&self.record);
    }

    /// The client is gone, or has broken the protocol.
    fn break_off(&mut self) {
        if let Input::Data(entry) = self.record.input {
            self.forget(entry);
        }
        self.save(Input::Ended);
        self.is_broken = true;
        let answered: Vec<usize> = self.waiting.drain(..).map(|outgoing| outgoing.entry).collect();
        answered.into_iter().for_each(|entry| self.forget(entry));
        if self.current.take().is_some() {
            self.forget(self.output.entry);
        }
    }

    fn forget(&mut self, entry: usize) {
        if self.requests.remove(entry).is_some() {
            self.is_answered[entry] = false;
            self.place.free(entry);
        }
    }

    /// Queues the reply to an option, if one is due.
    fn queue_option_reply(&mut self) {
        if let Input::Reply { length, .. } = self.record.input {
            let bytes = Body::from(self.place.reply(length));
            self.waiting.push_back(Outgoing {
                entry: REQUESTS_MAX,
                sequence: self.record.next_sequence,
                bytes,
            });
        }
    }

    /// Answers a request. Returns false if it is unknown, or answered already.
    pub(super) fn answer(&mut self, entry: usize, sequence: u64, result: Result<Body, Failure>) -> bool {
        let Some(request) = self.request(entry, sequence) else { return false };
        let (cookie, expected) = (request.request.cookie, request.read_bytes());
        if self.is_broken {
            self.forget(entry);
            return true;
        }
        let (result, mut bytes) = match result {
            Ok(data) if data.len() == expected => (Ok(()), data),
            // Data of another length than was asked for.
            Ok(_) => (Err(Failure::Device), Body::from(Bytes::new())),
            Err(failure) => (Err(failure), Body::from(Bytes::new())),
        };
        bytes.push_front(&Reply { cookie, result }.to_bytes());
        self.is_answered[entry] = true;
        self.waiting.push_back(Outgoing { entry, sequence, bytes });
        true
    }

    /// Writes replies to the pipe, and the pipe to the client, as far as there is room.
    fn flush(&mut self) {
        while !self.is_broken && self.begin_reply() {
            if !self.fill_pipe() {
                return;
            }
        }
        self.drain();
    }

    /// Chooses the reply to write. Returns false if there is none.
    fn begin_reply(&mut self) -> bool {
        if self.current.is_some() {
            return true;
        }
        let OutputRecord { phase, entry, sequence, total, .. } = self.output;
        // After a restart only the rest of the reply that was begun may follow it.
        if matches!(phase, Phase::Filling | Phase::Draining) {
            let is_rest = |outgoing: &Outgoing| (outgoing.entry, outgoing.sequence) == (entry, sequence);
            let Some(at) = self.waiting.iter().position(is_rest) else { return false };
            let rest = self.waiting.remove(at).map(|outgoing| outgoing.bytes);
            match rest {
                Some(bytes) if bytes.len() == total => self.current = Some(bytes),
                // The first attempt succeeded, and the repeated one failed. Its reply has begun.
                _ => {
                    self.forget(entry);
                    self.break_off();
                    return false;
                }
            }
            return true;
        }
        let Some(Outgoing { entry, sequence, bytes }) = self.waiting.pop_front() else { return false };
        let (total, fill) = (bytes.len(), self.fill);
        self.output = OutputRecord { phase: Phase::Draining, entry, sequence, total, done: 0, fill };
        self.current = Some(bytes);
        true
    }

    /// Writes the current reply to the pipe. Returns false if it does not fit now.
    fn fill_pipe(&mut self) -> bool {
        while let Some(bytes) = &self.current {
            self.output.phase = Phase::Filling;
            self.output.fill = self.fill;
            self.place.save_output(&self.output);
            match write(&self.descriptors.pipe[1], bytes, self.output.done) {
                Ok(count) => {
                    self.fill += count;
                    self.output.done += count;
                }
                Err(Errno::AGAIN) => {
                    self.save_phase(Phase::Draining);
                    let before = self.fill;
                    self.drain();
                    if self.is_broken || self.fill == before {
                        return false;
                    }
                    continue;
                }
                Err(_) => {
                    self.break_off();
                    return false;
                }
            }
            if self.output.done >= self.output.total {
                self.save_phase(Phase::Finished);
                self.current = None;
                self.finish();
            }
        }
        true
    }

    fn save_phase(&mut self, phase: Phase) {
        self.output.phase = phase;
        self.place.save_output(&self.output);
    }

    /// A reply is completely in the pipe.
    fn finish(&mut self) {
        let OutputRecord { entry, sequence, .. } = self.output;
        if self.place.loss() == sequence {
            self.place.save_loss(0);
        }
        if entry < REQUESTS_MAX {
            if self.requests.get(entry).is_some_and(|request| request.sequence == sequence) {
                self.forget(entry);
            }
            return;
        }
        if let Input::Reply { next, .. } = self.record.input
            && sequence == self.record.next_sequence
        {
            self.record.next_sequence += 1;
            self.save(after(next));
        }
    }

    /// Moves bytes from the pipe to the client.
    fn drain(&mut self) {
        if self.output.phase == Phase::Filling {
            self.save_phase(Phase::Draining);
        }
        let Descriptors { socket, pipe } = &self.descriptors;
        while self.fill > 0 && !self.is_broken {
            match splice(&pipe[0], None, socket, None, self.fill, SpliceFlags::NONBLOCK | SpliceFlags::MOVE) {
                Ok(0) | Err(Errno::AGAIN) => return,
                Ok(count) => self.fill -= count.min(self.fill),
                Err(Errno::INTR) => {}
                Err(_) => return self.break_off(),
            }
        }
    }
}

/// Writes as many bytes behind the first `done` as a pipe has room for.
fn write(pipe: &OwnedFd, bytes: &Body, done: usize) -> Result<usize, Errno> {
    let mut slices: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
    bytes.io_slices(done, &mut slices);
    retry_on_intr(|| writev(pipe, &slices))
}

/// The state of the input after the negotiation's.
fn after(next: ServerNegotiation) -> Input {
    match next {
        ServerNegotiation::Done => Input::Header,
        ServerNegotiation::Ended => Input::Ended,
        next => Input::Negotiation(next),
    }
}

type Restored = (InputRecord, Requests, OutputRecord, usize);

/// Restores the state of a connection.
fn restore(place: &Place, descriptors: &Descriptors) -> Result<Restored, Corrupt> {
    let (record, mut output) = (place.input()?, place.output()?);
    let receiving = match record.input {
        Input::Data(entry) => Some(entry),
        _ => None,
    };
    let mut saved = Vec::with_capacity(REQUESTS_MAX);
    for index in 0..REQUESTS_MAX {
        let entry = place.entry(index)?;
        let is_known = |entry: &Entry| entry.sequence < record.next_sequence || Some(index) == receiving;
        let known = entry.filter(is_known);
        if known.is_none() {
            place.free(index);
        }
        saved.push(known);
    }
    if let Some(index) = receiving
        && saved[index].is_none_or(|entry| record.filled > entry.data_bytes())
    {
        return Err(Corrupt);
    }
    let fill = ioctl_fionread(&descriptors.pipe[0]).map_err(|_| Corrupt)? as usize;
    if output.phase == Phase::Filling {
        output.done += fill.checked_sub(output.fill).ok_or(Corrupt)?;
        output.phase = match output.done.cmp(&output.total) {
            std::cmp::Ordering::Less => Phase::Draining,
            std::cmp::Ordering::Equal => Phase::Finished,
            std::cmp::Ordering::Greater => return Err(Corrupt),
        };
    }
    output.fill = fill;
    // The saved record describes the state before bytes leave the pipe.
    place.save_output(&output);
    place.save_input(&record);
    Ok((record, Requests::restore(saved).ok_or(Corrupt)?, output, fill))
}

#[cfg(test)]
mod tests {
    use super::super::memory::{MEMORY_BYTES, map};
    use super::*;
    use rustix::net::sockopt::set_socket_send_buffer_size;
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use wire::formats::block::Abilities;
    use wire::nbd::{ClientNegotiation, ClientStep};

    /// More than a pipe has room for, and less than a pipe and a socket.
    const READ_BYTES: u32 = 100 << 10;
    /// The ring has room for one of these.
    const WRITE_BYTES: u32 = 20 << 20;

    fn geometry() -> Geometry {
        let abilities = Abilities { flush: true, ..Abilities::default() };
        Geometry { size_bytes: 1 << 30, block_bytes: 1, preferred_bytes: 4096, abilities }
    }

    /// Returns a connection whose client has negotiated, the client, and another handle of the connection's socket.
    fn connected() -> (Connection, UnixStream, UnixStream) {
        let (ours, mut client) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        set_socket_send_buffer_size(&ours, 1 << 20).unwrap();
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let memory = map(sys::memory::create("nbd", MEMORY_BYTES).unwrap()).unwrap();
        let descriptors = Descriptors { socket: ours.try_clone().unwrap().into(), pipe: [read, write] };
        let mut connection = Connection::new(1, descriptors, Place::new(memory, 0));
        let mut negotiation = ClientNegotiation::new("");
        loop {
            connection.proceed(&geometry(), |_, _| {});
            let mut input = vec![0; negotiation.needs()];
            client.read_exact(&mut input).unwrap();
            match negotiation.take(&input).unwrap() {
                ClientStep::Send(output) => client.write_all(&output).unwrap(),
                ClientStep::Done { .. } => break,
            }
        }
        client.set_nonblocking(true).unwrap();
        (connection, client, ours)
    }

    fn header(command: Command, length: u32) -> [u8; REQUEST_BYTES] {
        let (force, keep_space, has_unknown_flags, cookie, offset) = (false, false, false, 7, 0);
        let asked = Asked::Do(command);
        Request { asked, force, keep_space, has_unknown_flags, cookie, offset, length }.to_bytes()
    }

    /// Sends a request while the connection receives. Returns its entry and its number.
    fn ask(connection: &mut Connection, client: &mut UnixStream, bytes: &[u8]) -> (usize, u64) {
        let (mut left, mut completed) = (bytes, None);
        while completed.is_none() {
            match client.write(left) {
                Ok(count) => left = &left[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("writing: {error}"),
            }
            connection.proceed(&geometry(), |entry, sequence| completed = Some((entry, sequence)));
        }
        completed.unwrap()
    }

    #[test]
    fn a_header_that_waits_for_room_is_handled_when_the_replies_before_it_leave_late() {
        let (mut connection, mut client, mut ours) = connected();
        let read = ask(&mut connection, &mut client, &header(Command::Read, READ_BYTES));
        let mut bytes = header(Command::Write, WRITE_BYTES).to_vec();
        bytes.resize(REQUEST_BYTES + WRITE_BYTES as usize, 7);
        let write = ask(&mut connection, &mut client, &bytes);
        // The client reads nothing, so the replies stay here.
        while ours.write(&[0; 4096]).is_ok() {}
        assert!(connection.answer(read.0, read.1, Ok(Body::from(vec![0; READ_BYTES as usize]))));
        assert!(connection.answer(write.0, write.1, Ok(Body::new())));
        let next = [header(Command::Flush, 0), header(Command::Write, WRITE_BYTES)].concat();
        assert_eq!(client.write(&next).unwrap(), next.len());
        // The client reads after the connection has found the socket full, and before it finds no room for the second write.
        let mut flushes = 0;
        connection.proceed(&geometry(), |_, _| {
            flushes += 1;
            while client.read(&mut [0; 1 << 16]).is_ok_and(|count| count > 0) {}
        });
        assert_eq!(flushes, 1);
        assert!(!connection.wants_output(), "all replies have left");
        assert!(connection.wants_input(), "nothing would wake the connection again");
    }
}
