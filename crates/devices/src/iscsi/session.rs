//! A session with an iSCSI target, of one connection. Sans-IO.
//!
//! | phase | event | next phase |
//! |---|---|---|
//! | login | the target agrees | greeting |
//! | greeting | the target has told all facts about the unit, and they are those of the disk | open |
//! | open | [`Session::end`] | the target closes the connection |
//!
//! An order that the target has no room for waits in the session: beyond its window of command numbers, or after it said that it is busy,
//! until another order has ended, or for a pause if there is none.
//! A status that says that the unit has changed, is not ready, or that the target has stopped the command, ends the session; a later
//! session gets the order then, and looks at the unit first. The schedule counts these ends for the order, except for a change of the
//! unit: each session reports it once, so an open session may get the order.

use super::greeting::Greeting;
use crate::sessions::{CHUNK_BYTES, Ended, Expected, Order, Reply, Session, difference};
use buffers::Body;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use wire::formats::block::{Abilities, Command, Failure, Geometry};
use wire::iscsi::{
    self, Agreed, FromTarget, HEADER_BYTES, NO_TAG, Numbers, Received, Status, ToTarget, Transfer, padded,
};
use wire::scsi::{self, Cdb, Sense, SenseKey};

/// The most rounds of a login, and the most text of one of the target's steps.
const ROUNDS_MAX: u32 = 16;
const LOGIN_TEXT_BYTES_MAX: usize = 64 << 10;
/// The most pings whose answers may wait to be sent.
const PINGS_MAX: usize = 64;
/// The first number of a command.
const FIRST_COMMAND: u32 = 1;
/// The event that concerns the unit. Its next command reports it as well.
const UNIT_EVENT: u8 = 0;
const ZEROES: [u8; 3] = [0; 3];

/// The unit of a target, as an initiator names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) initiator: String,
    pub(super) target: String,
    /// As [`iscsi::lun_field`] makes it.
    pub(super) lun: u64,
}

/// An order that the target has.
#[derive(Debug)]
struct Task {
    order: Order,
    /// The data of a write, and those that were not sent.
    data: Body,
    unsent: Body,
    /// Data that were sent, or received.
    done_bytes: u32,
    /// The status that came with the last data of a read.
    status: Option<Status>,
}

#[derive(Debug)]
enum Phase {
    Login { text: Vec<u8>, rounds: u32 },
    Greeting(Greeting),
    Open,
}

/// The next bytes of the target.
#[derive(Debug, Clone, Copy)]
enum Next {
    Header,
    /// A data segment that is not the data of an order.
    Segment(Received),
    /// Data of a read.
    Data {
        tag: u32,
        left: u32,
        padding: usize,
    },
    Padding(usize),
}

/// A session.
#[derive(Debug)]
pub(super) struct IscsiSession {
    unit: Unit,
    isid: [u8; 6],
    /// The facts that the unit must have.
    known: Option<Geometry>,
    /// Those that it has.
    geometry: Option<Geometry>,
    /// It has no cache for writes.
    writes_through: bool,
    order_bytes_max: u32,
    agreed: Agreed,
    phase: Phase,
    next: Next,
    numbers: Numbers,
    /// The last number that the target accepts.
    command_max: u32,
    next_tag: u32,
    tasks: BTreeMap<u32, Task>,
    /// The next question of the greeting was not sent.
    has_question: bool,
    /// Orders that the target has no room for.
    waiting: VecDeque<(Order, Body)>,
    /// The most tasks at a time.
    tasks_max: usize,
    /// The target is busy, and has no task or question of this session.
    is_paused: bool,
    /// Bytes of all its output.
    put_bytes: u64,
    /// The ends in its output of the answers to pings that were not sent.
    pongs: VecDeque<u64>,
}

impl IscsiSession {
    /// Creates a session. `isid` names it at the target. `known`: the facts that the unit must have.
    pub(super) fn new(unit: Unit, isid: [u8; 6], known: Option<Geometry>) -> IscsiSession {
        IscsiSession {
            unit,
            isid,
            known,
            geometry: None,
            writes_through: false,
            order_bytes_max: CHUNK_BYTES,
            agreed: Agreed::default(),
            phase: Phase::Login { text: Vec::new(), rounds: 0 },
            next: Next::Header,
            numbers: Numbers { command: FIRST_COMMAND, expected_status: 0 },
            command_max: FIRST_COMMAND,
            next_tag: 0,
            tasks: BTreeMap::new(),
            has_question: false,
            waiting: VecDeque::new(),
            tasks_max: usize::MAX,
            is_paused: false,
            put_bytes: 0,
            pongs: VecDeque::new(),
        }
    }

    /// Returns the facts about the unit once the session is open.
    pub(super) fn geometry(&self) -> Option<Geometry> {
        self.geometry.filter(|_| self.is_open())
    }

    /// Returns the session as it is after the greeting of a small disk.
    pub(super) fn opened(mut self) -> IscsiSession {
        let abilities = Abilities { flush: true, ..Abilities::default() };
        self.geometry =
            Some(Geometry { size_bytes: 1 << 20, block_bytes: 512, preferred_bytes: 4096, abilities });
        (self.phase, self.command_max) = (Phase::Open, FIRST_COMMAND + 64);
        self
    }

    fn put(&mut self, pdu: ToTarget<'_>, data: Body, output: &mut Body) {
        output.push(Bytes::copy_from_slice(&pdu.to_bytes(self.numbers)));
        let padding = padded(data.len()) - data.len();
        self.put_bytes += (HEADER_BYTES + padded(data.len())) as u64;
        output.append(data);
        if padding > 0 {
            output.push(Bytes::from_static(&ZEROES[..padding]));
        }
    }

    fn put_login(&mut self, text: Vec<u8>, is_final: bool, output: &mut Body) {
        let login = ToTarget::Login { isid: self.isid, is_final, text_bytes: text.len() };
        self.put(login, Body::from(text), output);
    }

    fn put_command(&mut self, cdb: &Cdb, transfer: Transfer, immediate: Body, output: &mut Body) -> u32 {
        let tag = self.next_tag;
        self.next_tag = if tag + 1 == NO_TAG { 0 } else { tag + 1 };
        self.put(ToTarget::Command { lun: self.unit.lun, tag, cdb, transfer }, immediate, output);
        self.numbers.command = self.numbers.command.wrapping_add(1);
        tag
    }

    /// Returns whether the target accepts the number of the next command. It ignores one beyond its window.
    fn is_window_open(&self) -> bool {
        self.command_max.wrapping_sub(self.numbers.command).cast_signed() >= 0
    }

    fn has_room(&self) -> bool {
        self.is_open() && !self.is_paused && self.is_window_open() && self.tasks.len() < self.tasks_max
    }

    /// Sends the question of the greeting, or the orders, that the target has room for. Any PDU of the target may have made room.
    fn put_waiting(&mut self, output: &mut Body) {
        if self.has_question
            && !self.is_paused
            && self.is_window_open()
            && let Phase::Greeting(greeting) = &self.phase
        {
            let (cdb, length) = (greeting.command(), greeting.data_bytes_max());
            let transfer = if length == 0 { Transfer::Nothing } else { Transfer::Read(length) };
            self.has_question = false;
            self.put_command(&cdb, transfer, Body::new(), output);
        }
        while self.has_room()
            && let Some((order, data)) = self.waiting.pop_front()
        {
            self.put_order(order, data, output);
        }
    }

    fn put_order(&mut self, order: Order, data: Body, output: &mut Body) {
        let block_bytes = self.geometry.map_or(1, |geometry| geometry.block_bytes.max(1));
        let (block, blocks) = (order.offset / u64::from(block_bytes), order.length / block_bytes);
        let length = order.length;
        let (mut unsent, mut immediate, mut first) = (data.clone(), Body::new(), 0);
        let (cdb, transfer) = match order.command {
            Command::Read => (scsi::read(block, blocks), Transfer::Read(length)),
            Command::Write => {
                let Agreed { segment_bytes, first_bytes, sends_first, sends_immediate, .. } = self.agreed;
                first = first_bytes.min(length);
                let behind = if sends_immediate { first.min(segment_bytes) } else { 0 };
                immediate = unsent.split_off_front(behind as usize).unwrap_or_default();
                first = if sends_first { first } else { behind };
                let transfer = Transfer::Write { length, immediate: behind, continues: first > behind };
                (scsi::write(block, blocks, order.force), transfer)
            }
            // The abilities of the disk exclude the others.
            Command::Flush | Command::Trim | Command::Zeroes => {
                (scsi::synchronize_cache(), Transfer::Nothing)
            }
        };
        let done_bytes = immediate.len() as u32;
        let tag = self.put_command(&cdb, transfer, immediate, output);
        let mut task = Task { order, data, unsent, done_bytes, status: None };
        if first > done_bytes {
            self.put_data(tag, &mut task, NO_TAG, first - done_bytes, output);
        }
        self.tasks.insert(tag, task);
    }

    /// Sends the next `length` bytes of a write.
    fn put_data(&mut self, tag: u32, task: &mut Task, transfer_tag: u32, length: u32, output: &mut Body) {
        let end = task.done_bytes + length;
        let mut number = 0;
        while task.done_bytes < end {
            let (offset, length) = (task.done_bytes, self.agreed.segment_bytes.min(end - task.done_bytes));
            let is_final = offset + length == end;
            let data = task.unsent.split_off_front(length as usize).unwrap_or_default();
            let pdu =
                ToTarget::Data { lun: self.unit.lun, tag, transfer_tag, number, offset, length, is_final };
            self.put(pdu, data, output);
            task.done_bytes += length;
            number += 1;
        }
    }

    /// Handles a header. Its data segment may be the data of an order.
    fn handle_front(&mut self, header: &[u8], output: &mut Body) -> Result<Option<Reply>, Ended> {
        let header: &[u8; HEADER_BYTES] =
            header.try_into().map_err(|_| "a header of another length".to_string())?;
        let received =
            Received::parse(header).map_err(|error| format!("the target violates the protocol: {error}"))?;
        if let Some(number) = received.status_number {
            self.numbers.expected_status = number.wrapping_add(1);
        }
        let is_login = matches!(received.kind, FromTarget::Login { .. });
        if is_login || received.command_max.wrapping_sub(self.command_max).cast_signed() > 0 {
            self.command_max = received.command_max;
        }
        match received.kind {
            FromTarget::Data { tag, offset, status } if matches!(self.phase, Phase::Open) => {
                self.handle_data_front(tag, offset, status, received.data_bytes)
            }
            _ if received.data_bytes == 0 => self.handle(received.kind, &[], output),
            _ => {
                self.next = Next::Segment(received);
                Ok(None)
            }
        }
    }

    /// Handles the header of data of a read.
    fn handle_data_front(
        &mut self,
        tag: u32,
        offset: u32,
        status: Option<Status>,
        data_bytes: usize,
    ) -> Result<Option<Reply>, Ended> {
        let task = self.tasks.get_mut(&tag).filter(|task| task.order.command == Command::Read);
        let task = task.ok_or_else(|| format!("the target sends data for {tag}, which is no read"))?;
        let left = task.order.length - task.done_bytes;
        if offset != task.done_bytes || data_bytes as u64 > u64::from(left) {
            return Err(
                format!("the target sends {data_bytes} bytes at {offset}, where {left} are left").into()
            );
        }
        task.status = status;
        if data_bytes > 0 {
            self.next = Next::Data { tag, left: data_bytes as u32, padding: padded(data_bytes) - data_bytes };
            return Ok(None);
        }
        match status {
            Some(status) => self.complete(tag, Some(status), &[]),
            None => Ok(None),
        }
    }

    /// Handles a complete PDU.
    fn handle(
        &mut self,
        kind: FromTarget,
        segment: &[u8],
        output: &mut Body,
    ) -> Result<Option<Reply>, Ended> {
        if let FromTarget::Ping { lun, transfer_tag } = kind {
            self.handle_ping(lun, transfer_tag, output)?;
            return Ok(None);
        }
        let reason = match (&mut self.phase, kind) {
            (Phase::Login { .. }, FromTarget::Login { is_final, continues, status }) => {
                self.handle_login(is_final, continues, status, segment, output)?;
                return Ok(None);
            }
            (Phase::Greeting(greeting), FromTarget::Data { offset, status, .. }) => {
                greeting.handle_data(offset, segment)?;
                if status.is_some() {
                    self.handle_answer(status, &[])?;
                }
                return Ok(None);
            }
            (Phase::Greeting(_), FromTarget::Response { status, .. }) => {
                self.handle_answer(status, segment)?;
                return Ok(None);
            }
            (Phase::Open, FromTarget::Response { tag, status }) => {
                return self.complete(tag, status, segment);
            }
            (Phase::Open, FromTarget::Ready { tag, transfer_tag, offset, length }) => {
                self.handle_ready(tag, transfer_tag, offset, length, output)?;
                return Ok(None);
            }
            (_, FromTarget::Event(UNIT_EVENT)) => return Ok(None),
            (_, FromTarget::Event(event)) => format!("the target ends the session (event {event})"),
            (_, FromTarget::Reject(reason)) => format!("the target rejects a request (reason {reason})"),
            (_, FromTarget::Logout) => "the target has ended the session".into(),
            (_, kind) => format!("the target violates the protocol with {kind:?}"),
        };
        Err(reason.into())
    }

    fn handle_ping(&mut self, lun: u64, transfer_tag: u32, output: &mut Body) -> Result<(), String> {
        if transfer_tag == NO_TAG {
            return Ok(());
        }
        if self.pongs.len() == PINGS_MAX {
            return Err(format!("the target pings {PINGS_MAX} times and accepts no answer"));
        }
        self.put(ToTarget::Pong { lun, transfer_tag }, Body::new(), output);
        self.pongs.push_back(self.put_bytes);
        Ok(())
    }

    fn handle_login(
        &mut self,
        is_final: bool,
        continues: bool,
        status: u16,
        segment: &[u8],
        output: &mut Body,
    ) -> Result<(), String> {
        let Phase::Login { text, rounds } = &mut self.phase else { return Ok(()) };
        if status != 0 {
            return Err(format!("{} (status {status:04x})", iscsi::login_refusal(status)));
        }
        text.extend_from_slice(segment);
        *rounds += 1;
        if *rounds > ROUNDS_MAX || text.len() > LOGIN_TEXT_BYTES_MAX {
            return Err(format!("its login does not end after {rounds} rounds"));
        }
        if continues {
            self.put_login(Vec::new(), false, output);
            return Ok(());
        }
        let text = std::mem::take(text);
        let answer = self.agreed.handle(&text)?;
        if is_final {
            (self.phase, self.has_question) = (Phase::Greeting(Greeting::default()), true);
        } else {
            self.put_login(answer, true, output);
        }
        Ok(())
    }

    /// Handles the end of a command of the greeting.
    fn handle_answer(&mut self, status: Option<Status>, segment: &[u8]) -> Result<(), String> {
        let Phase::Greeting(greeting) = &mut self.phase else { return Ok(()) };
        let status = status.ok_or("the target does not execute commands")?;
        let end = greeting.handle_end(status.code, iscsi::sense(segment).and_then(Sense::parse))?;
        (self.writes_through, self.order_bytes_max) = (greeting.writes_through(), greeting.order_bytes_max());
        match end {
            None => (self.has_question, self.is_paused) = (true, greeting.is_busy()),
            Some(geometry) => {
                if let Some(known) = self.known.filter(|known| *known != geometry) {
                    let difference = difference(&known, &geometry);
                    return Err(format!("the disk is another one than before: {difference}"));
                }
                (self.geometry, self.phase) = (Some(geometry), Phase::Open);
            }
        }
        Ok(())
    }

    fn handle_ready(
        &mut self,
        tag: u32,
        transfer_tag: u32,
        offset: u32,
        length: u32,
        output: &mut Body,
    ) -> Result<(), String> {
        let Some(mut task) = self.tasks.remove(&tag) else {
            return Err(format!("the target asks for data of {tag}, which is no write"));
        };
        let left = task.unsent.len() as u64;
        // Data are sent once, so a target cannot make this host send without end.
        if offset != task.done_bytes
            || length == 0
            || u64::from(length) > left
            || length > self.agreed.burst_bytes
        {
            return Err(format!("the target asks for {length} bytes at {offset}, where {left} are left"));
        }
        self.put_data(tag, &mut task, transfer_tag, length, output);
        self.tasks.insert(tag, task);
        Ok(())
    }

    /// Handles the end of an order.
    fn complete(&mut self, tag: u32, status: Option<Status>, segment: &[u8]) -> Result<Option<Reply>, Ended> {
        let task = self
            .tasks
            .remove(&tag)
            .ok_or_else(|| format!("the target replies to {tag}, which was not asked"))?;
        let Order { tag, command, length, .. } = task.order;
        let moves = matches!(command, Command::Read | Command::Write);
        let ends = |reason: &str| Err(Ended { reason: reason.into(), order: Some(tag) });
        let sense = iscsi::sense(segment).and_then(Sense::parse);
        let result = match status.map(|status| scsi::result(status.code, sense)) {
            Some(scsi::GOOD) if moves && task.done_bytes != length => Err(Failure::Device),
            Some(scsi::GOOD) if status.is_some_and(|status| status.has_residual) => Err(Failure::Device),
            Some(scsi::GOOD) => {
                self.tasks_max = self.tasks_max.saturating_add(1);
                Ok(())
            }
            Some(scsi::BUSY | scsi::TASK_SET_FULL) => {
                self.handle_busy(task)?;
                return Ok(None);
            }
            Some(scsi::CHECK_CONDITION) => failure(&task.order, sense, self.writes_through)?,
            Some(scsi::TASK_ABORTED) => return ends("another initiator has reset the unit"),
            Some(_) => Err(Failure::Device),
            None => return ends("the target has failed to execute a command"),
        };
        Ok(Some(Reply { tag, result }))
    }

    /// Sends an order again as soon as another one has ended, or after a pause. The place for the data of a read is filled once only.
    fn handle_busy(&mut self, task: Task) -> Result<(), String> {
        if task.order.command == Command::Read && task.done_bytes > 0 {
            return Err("the target is busy".into());
        }
        (self.tasks_max, self.is_paused) = (self.tasks.len().max(1), self.tasks.is_empty());
        self.waiting.push_front((task.order, task.data));
        Ok(())
    }
}

/// Returns the result of an order with this sense. An error ends the session: another one gets the order.
fn failure(order: &Order, sense: Option<Sense>, writes_through: bool) -> Result<Result<(), Failure>, Ended> {
    let Some(sense) = sense else { return Ok(Err(Failure::Device)) };
    let ends = |order| Err(Ended { reason: format!("the target reports: {sense}"), order });
    let needs_no_flush = order.command == Command::Flush && writes_through;
    Ok(Err(match (sense.key, sense.code.0) {
        (SenseKey::UnitAttention, _) => return ends(None),
        (SenseKey::NotReady | SenseKey::Aborted, _) => return ends(Some(order.tag)),
        (SenseKey::IllegalRequest, Sense::UNKNOWN_COMMAND) if needs_no_flush => return Ok(Ok(())),
        (SenseKey::IllegalRequest, Sense::OUT_OF_RANGE) => Failure::Invalid,
        (SenseKey::IllegalRequest, _) => Failure::Unsupported,
        (SenseKey::DataProtect, Sense::WRITE_PROTECTED) if sense.code.1 == 7 => Failure::NoSpace,
        (SenseKey::DataProtect, _) => Failure::Forbidden,
        (SenseKey::Recovered | SenseKey::Other(_), _) => Failure::Device,
    }))
}

impl Session for IscsiSession {
    fn begin(&mut self, output: &mut Body) {
        self.put_login(iscsi::offer(&self.unit.initiator, &self.unit.target), true, output);
    }

    fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    fn order_bytes_max(&self) -> u32 {
        self.order_bytes_max
    }

    /// A login with the name of an earlier session ends that one (RFC 7143, 6.3.5).
    fn replaces_earlier(&self) -> bool {
        true
    }

    /// The target of the Linux kernel ends a session 3 s after it has asked for data that do not come.
    fn has_write_deadline(&self) -> bool {
        true
    }

    fn submit(&mut self, order: &Order, data: Body, output: &mut Body) {
        self.waiting.push_back((*order, data));
        self.put_waiting(output);
    }

    fn end(&mut self, output: &mut Body) {
        self.put(ToTarget::Logout { tag: self.next_tag }, Body::new(), output);
    }

    fn is_paused(&self) -> bool {
        self.is_paused
    }

    fn resume(&mut self, output: &mut Body) {
        self.is_paused = false;
        self.put_waiting(output);
    }

    fn expected(&self) -> Expected {
        match self.next {
            Next::Header => Expected::Header(HEADER_BYTES),
            Next::Segment(received) => Expected::Header(padded(received.data_bytes)),
            Next::Padding(length) => Expected::Header(length),
            Next::Data { tag, left, .. } => {
                let order = self.tasks.get(&tag).map_or(u64::MAX, |task| task.order.tag);
                Expected::Data { tag: order, length: left }
            }
        }
    }

    fn handle_header(&mut self, header: &[u8], output: &mut Body) -> Result<Option<Reply>, Ended> {
        let reply = match std::mem::replace(&mut self.next, Next::Header) {
            Next::Header => self.handle_front(header, output)?,
            Next::Segment(received) => {
                let segment = header.get(..received.data_bytes).unwrap_or_default();
                self.handle(received.kind, segment, output)?
            }
            Next::Padding(_) => None,
            Next::Data { .. } => return Err("data where a header was expected".to_string().into()),
        };
        self.put_waiting(output);
        Ok(reply)
    }

    fn handle_data(&mut self, length: u32, output: &mut Body) -> Result<Option<Reply>, Ended> {
        let Next::Data { tag, left, padding } = self.next else { return Ok(None) };
        let left = left.saturating_sub(length);
        let Some(task) = self.tasks.get_mut(&tag) else { return Ok(None) };
        task.done_bytes += length;
        if left > 0 {
            self.next = Next::Data { tag, left, padding };
            return Ok(None);
        }
        self.next = if padding > 0 { Next::Padding(padding) } else { Next::Header };
        let Some(status) = task.status else { return Ok(None) };
        let reply = self.complete(tag, Some(status), &[])?;
        self.put_waiting(output);
        Ok(reply)
    }

    fn handle_sent(&mut self, left: usize) {
        let sent = self.put_bytes.saturating_sub(left as u64);
        while self.pongs.front().is_some_and(|end| *end <= sent) {
            self.pongs.pop_front();
        }
    }
}
