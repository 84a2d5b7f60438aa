//! A running program as a partner: whole records in messages of a limited size.
//!
//! | sending | event | next state |
//! |---|---|---|
//! | `Open` | [`Ctl::Finish`] | `Finishing` |
//! | `Finishing` | the queue is empty: [`Signal::End`] is written | `Finished` |
//!
//! | receiving | event | next state |
//! |---|---|---|
//! | `Greeting` | the program's hello | `Open`, and the queue is sent |
//! | `Open` | [`Signal::End`] | `Ended` |
//! | `Greeting`, `Open` | the program closes its output, or breaks a rule | `Failed` |

use super::MESSAGE_BYTES_MAX;
use super::given::{self, Given};
use super::hello::{self, Declared, HELLO_BYTES_MAX};
use super::message::{self, Kind, Signal, Splitter};
use super::silence::{Due, Silence};
use crate::seal::{NUMBER_BYTES, OpenError, Seal};
use crate::send_queue::{SendQueue, check_record};
use crate::socket::would_block;
use crate::udp::fragment::{Fragment, RecordId, record_id};
use crate::udp::reassembly::{Reassembly, ReassemblyLimits, Slab};
use bytes::{Buf, Bytes, BytesMut};
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Interest, Message, Next, Options, Partner,
    PartnerError, PartnerResult, Pull, PullSlot, Pulled, Pushed, Readiness, SealKeys, Time, TransportCtl,
};
use std::io::{ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use sys::net::Room;
use wire::Container;

/// Bytes read at a time. Memory grows with what arrives, not with the announced length.
const READ_BYTES: usize = 64 << 10;
/// Bytes of small messages that are joined before they are written.
const JOINED_BYTES: usize = 64 << 10;
/// Reads and messages of one pull, at most, so that a fast peer does not starve the rest of the event loop.
const STEPS_MAX: usize = 64;
/// Complete records, and their bytes, at which this end stops reading, because nobody pulls.
const READY_RECORDS_MAX: usize = 64;
const READY_BYTES_MAX: usize = 1 << 20;
const REASSEMBLY_LIMITS: ReassemblyLimits = ReassemblyLimits {
    body_bytes_max: wire::BODY_BYTES_MAX,
    partials_max: 1024,
    partial_bytes_max: 96 << 20,
    patience: Duration::from_secs(30),
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendState {
    Open,
    Finishing,
    Finished,
}

#[derive(Debug)]
enum ReceiveState {
    /// The program has not declared its properties.
    Greeting,
    Open(Declared),
    /// The other host has ended the connection.
    Ended(Declared),
    /// Repeated by every call that can fail.
    Failed(String),
}

#[derive(Debug, Default)]
struct Counts {
    sent: u64,
    sent_bytes: u64,
    /// Bytes read from the program.
    raw_bytes: u64,
    /// Messages that do not open, or that are no messages.
    refused: u64,
}

#[derive(Debug)]
pub(super) struct ExecPartner {
    name: String,
    socket: OwnedFd,
    /// `None` on an unencrypted connection.
    seal: Option<Box<Seal>>,
    given: Given,
    queue: SendQueue<()>,
    /// The record that is being sent.
    splitter: Option<Splitter>,
    /// Records that end in the output.
    ended: Vec<RecordId>,
    /// Number of the next message with a part of a record.
    number: u32,
    /// Containers to write, and the number of their bytes that are written.
    output: Vec<u8>,
    written: usize,
    send_state: SendState,
    receive_state: ReceiveState,
    input: BytesMut,
    /// The last read emptied the socket: poll before the next one.
    is_drained: bool,
    /// The number that the next message of an ordered program has at least.
    next_number: u64,
    slabs: u64,
    reassembly: Reassembly,
    silence: Silence,
    slot: PullSlot,
    /// Flow of the record in the slot.
    flow: FlowKey,
    counts: Counts,
}

fn now() -> Time {
    Time(sys::clock::boot_ns())
}

impl ExecPartner {
    pub(super) fn new(socket: OwnedFd, options: &Options, keys: Option<&SealKeys>) -> Self {
        ExecPartner {
            name: format!("the program `{}`", options.text("command")),
            socket,
            seal: keys.map(|keys| Box::new(Seal::new(keys))),
            given: Given::default(),
            queue: SendQueue::new(options.count("outbox")),
            splitter: None,
            ended: Vec::new(),
            number: 0,
            output: Vec::new(),
            written: 0,
            send_state: SendState::Open,
            receive_state: ReceiveState::Greeting,
            input: BytesMut::new(),
            is_drained: false,
            next_number: 0,
            slabs: 0,
            reassembly: Reassembly::new(REASSEMBLY_LIMITS),
            silence: Silence::new(options.duration("patience"), now()),
            slot: PullSlot::default(),
            flow: FlowKey::DEFAULT,
            counts: Counts::default(),
        }
    }

    /// Ends the connection for this reason, for this call and all later ones.
    fn fail<T>(&mut self, problem: impl std::fmt::Display) -> PartnerResult<T> {
        let problem = format!("{}: {problem}", self.name);
        self.receive_state = ReceiveState::Failed(problem.clone());
        Err(PartnerError::Data(problem))
    }

    fn check(&self) -> PartnerResult {
        match &self.receive_state {
            ReceiveState::Failed(problem) => Err(PartnerError::Data(problem.clone())),
            _ => Ok(()),
        }
    }

    fn declared(&self) -> Option<Declared> {
        match &self.receive_state {
            ReceiveState::Open(declared) | ReceiveState::Ended(declared) => Some(*declared),
            _ => None,
        }
    }

    // Sending.

    /// Sends a signal that asks for a sign of life, or is one. Whatever waits to be written already does as well.
    fn signal_life(&mut self, signal: Signal) -> PartnerResult {
        if !self.is_writing() {
            self.signal(signal);
        }
        self.flush()
    }

    fn signal(&mut self, signal: Signal) {
        let content = [signal as u8];
        let sealer = self.seal.as_mut().map(|seal| &mut seal.sealer);
        message::append(std::iter::once(&content[..]), sealer, &mut self.output);
    }

    /// Appends messages to the output. Returns false if there is nothing to send.
    fn fill(&mut self, declared: Declared) -> bool {
        if self.splitter.is_some() || !self.queue.is_empty() {
            self.silence.handle_sent(now());
        }
        while self.output.len() < JOINED_BYTES {
            let sealer = self.seal.as_mut().map(|seal| &mut seal.sealer);
            if let Some(splitter) = &mut self.splitter {
                if splitter.append_next(self.number, sealer, &mut self.output) {
                    self.number = self.number.wrapping_add(1);
                } else {
                    self.ended.push(splitter.id());
                    self.splitter = None;
                    self.counts.sent += 1;
                }
            } else if let Some(record) = self.queue.pop() {
                let is_sealed = self.seal.is_some();
                self.splitter = Some(Splitter::new(record, declared.message_bytes_max, is_sealed));
            } else {
                break;
            }
        }
        if self.send_state == SendState::Finishing && self.queue.is_empty() && self.splitter.is_none() {
            self.send_state = SendState::Finished;
            self.signal(Signal::End);
        }
        !self.output.is_empty()
    }

    /// Sends until nothing is left, or the program takes no more.
    fn flush(&mut self) -> PartnerResult {
        if self.declared().is_none() {
            self.is_drained = false;
            self.receive(1)?;
        }
        self.check()?;
        // The size of a message is not known before the program's hello.
        let Some(declared) = self.declared() else { return Ok(()) };
        loop {
            if self.written == self.output.len() {
                self.output.clear();
                self.output.shrink_to(2 * JOINED_BYTES);
                self.written = 0;
                self.handle_written();
                if !self.fill(declared) {
                    // The end of a record may have been found only now.
                    self.handle_written();
                    return Ok(());
                }
            }
            match sys::net::send(&self.socket, &[IoSlice::new(&self.output[self.written..])]) {
                Ok(count) => {
                    self.written += count;
                    self.counts.sent_bytes += count as u64;
                }
                Err(error) if would_block(&error) => {
                    // A program that takes nothing more shows no other sign.
                    self.silence.handle_sent(now());
                    return Ok(());
                }
                Err(error) => return self.end_or(error),
            }
        }
    }

    /// Handles that the program has taken all of the output.
    fn handle_written(&mut self) {
        let now = now();
        self.ended.drain(..).for_each(|id| self.given.handle_written(&id, now));
    }

    /// Returns whether the session sends a record again that is still on its way.
    fn is_under_way(&self, id: &RecordId) -> bool {
        let is_reliable = self.declared().is_some_and(|declared| declared.is_reliable);
        self.given.is_under_way(id, given::first_wait(is_reliable, self.silence.answer()), now())
    }

    /// Handles a failed write. Messages that the program wrote before its end are read first.
    fn end_or(&mut self, error: std::io::Error) -> PartnerResult {
        match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                self.is_drained = false;
                self.output.clear();
                self.written = 0;
                (self.splitter, self.send_state) = (None, SendState::Finished);
                while self.queue.pop().is_some() {}
                Ok(())
            }
            _ => self.fail(error),
        }
    }

    /// Returns whether the program has not taken all of the output.
    fn is_writing(&self) -> bool {
        self.written < self.output.len()
    }

    fn is_unsent(&self) -> bool {
        !self.queue.is_empty() || self.splitter.is_some() || self.is_writing()
    }

    fn flushed(&self) -> CtlReply {
        if self.is_unsent() || self.send_state == SendState::Finishing {
            CtlReply::Pending
        } else {
            CtlReply::Done
        }
    }

    // Receiving.

    /// Returns whether so many records wait for a pull that this end reads no more.
    fn is_held_back(&self) -> bool {
        self.reassembly.ready() >= READY_RECORDS_MAX || self.reassembly.ready_bytes() >= READY_BYTES_MAX
    }

    /// Reads and handles messages until this many records are complete.
    fn receive(&mut self, records: usize) -> PartnerResult {
        for _ in 0..STEPS_MAX {
            let is_enough = self.reassembly.ready() >= records || self.is_held_back();
            if is_enough || matches!(self.receive_state, ReceiveState::Ended(_)) {
                return Ok(());
            }
            self.check()?;
            match self.next_message() {
                Ok(Some(message)) => self.handle(message)?,
                Ok(None) if self.is_drained => return Ok(()),
                Ok(None) => self.read()?,
                Err(problem) => return self.fail(problem),
            }
        }
        Ok(())
    }

    fn has_message(&self) -> bool {
        self.whole_bytes().is_err()
            || matches!(self.whole_bytes(), Ok(Some(whole)) if whole <= self.input.len())
    }

    /// Returns the size of the container at the front, if its header is there.
    fn whole_bytes(&self) -> Result<Option<usize>, String> {
        let Some(header) = self.input.first_chunk::<{ Container::BYTES }>() else { return Ok(None) };
        let limit = self.declared().map_or(HELLO_BYTES_MAX, |_| MESSAGE_BYTES_MAX);
        let container = Container::parse(header, limit).map_err(|error| error.to_string())?;
        Ok(Some(Container::BYTES + container.length as usize))
    }

    fn next_message(&mut self) -> Result<Option<BytesMut>, String> {
        let Some(whole) = self.whole_bytes()?.filter(|whole| *whole <= self.input.len()) else {
            return Ok(None);
        };
        let mut message = self.input.split_to(whole);
        message.advance(Container::BYTES);
        Ok(Some(message))
    }

    fn read(&mut self) -> PartnerResult {
        self.input.reserve(READ_BYTES);
        let received = sys::net::receive(&self.socket, [Room { buffer: &mut self.input, limit: READ_BYTES }]);
        // ECONNRESET: the program ended with unread messages.
        let received = received.or_else(|error| match error.kind() {
            ErrorKind::ConnectionReset => Ok(0),
            _ => Err(error),
        });
        match received {
            Ok(0) if self.input.is_empty() => self.fail("it has ended; its own output tells why"),
            Ok(0) => self.fail("it has ended in the middle of a message"),
            Ok(count) => {
                self.counts.raw_bytes += count as u64;
                self.is_drained = count < READ_BYTES && !self.has_message();
                Ok(())
            }
            Err(error) if would_block(&error) => {
                self.is_drained = true;
                Ok(())
            }
            Err(error) => self.fail(error),
        }
    }

    fn handle(&mut self, mut message: BytesMut) -> PartnerResult {
        let Some(declared) = self.declared() else {
            return match hello::parse(&message) {
                Ok(declared) => {
                    self.receive_state = ReceiveState::Open(declared);
                    self.flush()
                }
                Err(problem) => self.fail(problem),
            };
        };
        let kind = message.first().copied();
        if kind.is_some() {
            message.advance(1);
        }
        let content = match &mut self.seal {
            // The other host repeats its introduction until it is answered.
            _ if kind == Some(Kind::Introduction as u8) => return Ok(()),
            Some(seal) if kind == Some(Kind::Sealed as u8) => {
                let number =
                    message.first_chunk::<NUMBER_BYTES>().map_or(0, |number| u64::from_le_bytes(*number));
                match seal.opener.datagram(&mut message) {
                    Ok(bytes) => {
                        self.check_order(declared, number)?;
                        message.freeze().slice(NUMBER_BYTES..NUMBER_BYTES + bytes)
                    }
                    Err(error) => return self.refuse(declared, error),
                }
            }
            None if kind == Some(Kind::Bare as u8) => message.freeze(),
            _ => return self.refuse(declared, OpenError::Altered),
        };
        self.silence.handle_received(now());
        self.take(declared, content)
    }

    /// Checks that a program keeps the order that it declares, and loses nothing if it is reliable.
    fn check_order(&mut self, declared: Declared, number: u64) -> PartnerResult {
        let expected = self.next_number;
        self.next_number = expected.max(number.saturating_add(1));
        match declared.is_ordered {
            true if number < expected => {
                self.fail("a message overtook another, though it declares to be ordered")
            }
            true if declared.is_reliable && number > expected => {
                self.fail("a message is missing, though it declares to be reliable and ordered")
            }
            _ => Ok(()),
        }
    }

    /// Drops a message that is not one of the other host's. A reliable program has not carried it unchanged.
    fn refuse(&mut self, declared: Declared, error: OpenError) -> PartnerResult {
        self.counts.refused += 1;
        match (declared.is_reliable, error) {
            (true, OpenError::Altered) => self.fail(
                "a message was altered, or belongs to another connection, though it declares to be reliable",
            ),
            _ => Ok(()),
        }
    }

    fn take(&mut self, declared: Declared, content: Bytes) -> PartnerResult {
        if let [byte] = content[..] {
            match Signal::parse(byte) {
                Some(Signal::Probe) => return self.signal_life(Signal::Answer),
                Some(Signal::End) => self.receive_state = ReceiveState::Ended(declared),
                Some(Signal::Answer) => {}
                None => self.counts.refused += 1,
            }
            return Ok(());
        }
        self.slabs += 1;
        // A small part of a large record must not keep the whole buffer that it was read into.
        let is_small_part =
            content.len() < READ_BYTES / 2 && Fragment::parse(&content).is_some_and(|part| part.count > 1);
        let content = if is_small_part { Bytes::copy_from_slice(&content) } else { content };
        let slab = Slab { number: self.slabs, bytes: content.len() };
        let now = now();
        self.reassembly.insert(content, slab, now);
        match self.silence.take_answer(now) {
            true => self.signal_life(Signal::Answer),
            false => Ok(()),
        }
    }

    fn next(&mut self) -> PartnerResult<Next> {
        self.run_timeouts()?;
        self.receive(1)?;
        match self.reassembly.next() {
            Some((flow, body)) => {
                self.flow = FlowKey(flow);
                Ok(Next::Message(Message::new(Time::ZERO, body)))
            }
            None if matches!(self.receive_state, ReceiveState::Ended(_)) => Ok(Next::End),
            None => {
                self.is_drained = false;
                Ok(Next::Nothing)
            }
        }
    }

    fn run_timeouts(&mut self) -> PartnerResult {
        let now = now();
        self.reassembly.expire(now);
        if self.is_over() {
            return self.check();
        }
        match self.silence.take_due(now) {
            // Before the hello, nothing can be sent.
            Due::Probe if self.declared().is_some() => self.signal_life(Signal::Probe)?,
            Due::Lost => {
                let patience = self.silence.patience.as_secs_f64();
                return self
                    .fail(format!("nothing has arrived from the other host for {patience} s (`patience`)"));
            }
            Due::Probe | Due::Nothing => {}
        }
        match self.is_held_back() && self.silence.take_answer(now) {
            true => self.signal_life(Signal::Answer),
            false => Ok(()),
        }
    }

    /// Returns whether nothing more arrives.
    fn is_over(&self) -> bool {
        matches!(self.receive_state, ReceiveState::Ended(_) | ReceiveState::Failed(_))
    }

    fn report(&self) -> CtlReply {
        let (counts, arrived) = (&self.counts, &self.reassembly.counts);
        CtlReply::Report(vec![
            ("sent", counts.sent as f64),
            ("sent_bytes", counts.sent_bytes as f64),
            ("received", arrived.received as f64),
            ("received_bytes", arrived.received_bytes as f64),
            ("waiting", self.queue.records.len() as f64),
            ("waiting_bytes", self.queue.bytes as f64),
            ("lost_partial", arrived.lost_partial as f64),
            ("repeated", arrived.repeated as f64),
            ("refused", (counts.refused + arrived.malformed) as f64),
        ])
    }
}

impl Partner for ExecPartner {
    fn open(&mut self, _template: &FlowTemplate, _attributes: &Attributes) -> PartnerResult<FlowKey> {
        // The record header names the flow.
        Ok(FlowKey::DEFAULT)
    }

    fn close(&mut self, _flow: FlowKey) -> PartnerResult {
        self.flush()
    }

    fn push(&mut self, _flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if let Err(error) = self.check() {
            return Err((error, message));
        }
        if self.send_state != SendState::Open {
            return Err((PartnerError::Unsupported("accepting records after the end"), message));
        }
        if let Err(error) = check_record(&message) {
            return Err((error, message));
        }
        let id: RecordId = message.body.peek_front().unwrap_or_default();
        if self.is_under_way(&id) {
            return Ok(Pushed::Taken);
        }
        if self.queue.is_full_for(message.body.len()) {
            if let Err(error) = self.flush() {
                return Err((error, message));
            }
            if self.queue.is_full_for(message.body.len()) {
                self.queue.refuse(message.body.len());
                return Ok(Pushed::Full(message));
            }
        }
        self.given.handle_queued(id);
        self.queue.push((), message.body);
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, _flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
        let next = if self.slot.is_held() { Next::Nothing } else { self.next()? };
        self.slot.answer(self.flow, request, || Ok(next))
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush => self.flush().map(|()| self.flushed()),
            Ctl::Finish => {
                if self.send_state == SendState::Open {
                    self.send_state = SendState::Finishing;
                }
                self.flush().map(|()| self.flushed())
            }
            Ctl::Report => Ok(self.report()),
            Ctl::Transport(TransportCtl::Received) => {
                self.run_timeouts()?;
                // Answers probes, and takes the hello, while nobody pulls.
                self.receive(READY_RECORDS_MAX)?;
                self.is_drained = false;
                if self.is_writing() {
                    self.flush()?;
                }
                Ok(CtlReply::Count(self.counts.raw_bytes))
            }
            Ctl::Transport(TransportCtl::HeldBack) => Ok(CtlReply::Count(0)),
            Ctl::Transport(TransportCtl::Overflow { flow, epoch, sequence }) => {
                self.reassembly.forget(&record_id(flow, epoch, sequence));
                Ok(CtlReply::Done)
            }
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            _ if matches!(self.receive_state, ReceiveState::Failed(_)) => Readiness::now(),
            Direction::In if !self.is_unsent() => Readiness::now(),
            // Nothing is written before the hello, which arrives in the other direction.
            Direction::In => Readiness {
                now: self.queue.has_room(),
                ..match self.declared() {
                    Some(_) => Readiness::descriptor(self.socket.as_fd(), Interest::Write),
                    None => Readiness::descriptor(self.socket.as_fd(), Interest::Read),
                }
            },
            Direction::Out
                if self.slot.is_held()
                    || self.reassembly.has_next()
                    || self.has_message()
                    || matches!(self.receive_state, ReceiveState::Ended(_)) =>
            {
                Readiness::now()
            }
            Direction::Out => Readiness::descriptor(self.socket.as_fd(), Interest::Read),
        }
    }

    /// The socket is read while nobody pulls, because the probes of the other host are behind its records.
    fn upkeep(&self) -> Readiness<'_> {
        if self.is_over() {
            return Readiness::never();
        }
        let mut wait = match self.is_held_back() {
            true => Readiness::never().or_at(Some(self.silence.answer_at())),
            false if self.has_message() => Readiness::now(),
            false => Readiness::descriptor(self.socket.as_fd(), Interest::Read),
        };
        if self.is_writing() {
            wait.descriptors[1] = Some((self.socket.as_fd(), Interest::Write));
        }
        wait.or_at(self.silence.due_at()).or_at(self.reassembly.expires())
    }
}
