//! A session against a model of a target.

use super::device::Address;
use super::greeting::Greeting;
use super::session::{IscsiSession, Unit};
use crate::sessions::{CHUNK_BYTES, Ended, Expected, Order, Reply, Session};
use buffers::Body;
use contract::Role;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use wire::formats::block::{Abilities, Command, Failure, Geometry};
use wire::iscsi::Agreed;
use wire::scsi::Sense;

const BLOCK_BYTES: usize = 512;
const DISK_BYTES: usize = 1 << 20;
const ISID: [u8; 6] = [0x80, 1, 2, 3, 0, 7];

/// The terms of a target.
#[derive(Debug, Clone, Copy)]
struct Terms {
    /// The longest data segment that it accepts.
    segment_bytes: usize,
    first_bytes: usize,
    burst_bytes: usize,
    waits_for_ready: bool,
    takes_immediate: bool,
    /// The commands that it accepts at a time.
    window: u32,
    /// The data of a read in one PDU.
    piece_bytes: usize,
    /// Each command of this number gets the status "busy" once.
    busy_every: u32,
    /// Events that the unit reports first.
    events: u32,
    /// The login has a second round.
    asks_back: bool,
    /// The page of the modes that says whether the unit has a cache.
    cache_page: &'static [u8],
    /// The longest transfer, in blocks.
    transfer_blocks: u32,
}

const NO_CACHE: &[u8] = &[8, 2, 0, 0];
const HAS_CACHE: &[u8] = &[8, 2, 4, 0];

const TERMS: Terms = Terms {
    segment_bytes: 8192,
    first_bytes: 65_536,
    burst_bytes: 262_144,
    waits_for_ready: true,
    takes_immediate: true,
    window: 32,
    piece_bytes: 65_536,
    busy_every: 0,
    events: 1,
    asks_back: false,
    cache_page: HAS_CACHE,
    transfer_blocks: 4096,
};

/// A write that lacks data.
struct Incoming {
    tag: u32,
    offset: usize,
    data: Vec<u8>,
    length: usize,
    /// The end of the sequence that comes now.
    sequence_end: usize,
}

struct Target {
    terms: Terms,
    disk: Vec<u8>,
    writes: Vec<Incoming>,
    /// Reads and flushes that are not done: CDB and length.
    ready: VecDeque<(u32, [u8; 16], usize)>,
    status_number: u32,
    next_command: u32,
    commands: u32,
    busy: u32,
    events: u32,
    /// Questions and reads that find the target busy, from the next one on.
    busy_answers: u32,
    logins: u32,
    flushes: u32,
    is_ended: bool,
    output: Vec<u8>,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl Target {
    fn new(terms: Terms) -> Target {
        Target {
            terms,
            disk: vec![0; DISK_BYTES],
            writes: Vec::new(),
            ready: VecDeque::new(),
            status_number: 100,
            next_command: 1,
            commands: 0,
            busy: 0,
            events: terms.events,
            busy_answers: 0,
            logins: 0,
            flushes: 0,
            is_ended: false,
            output: Vec::new(),
        }
    }

    fn put(&mut self, mut header: [u8; 48], data: &[u8], has_status: bool) {
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        header[24..28].copy_from_slice(&self.status_number.to_be_bytes());
        self.status_number += u32::from(has_status);
        header[28..32].copy_from_slice(&self.next_command.to_be_bytes());
        let pending = (self.writes.len() + self.ready.len()) as u32;
        let most = self.next_command + self.terms.window - 1 - pending.min(self.terms.window);
        header[32..36].copy_from_slice(&most.to_be_bytes());
        self.output.extend_from_slice(&header);
        self.output.extend_from_slice(data);
        self.output.resize(self.output.len().next_multiple_of(4), 0xee);
    }

    fn put_status(&mut self, tag: u32, status: u8, sense: &[u8]) {
        let mut header = [0; 48];
        (header[0], header[1], header[3]) = (0x21, 0x80, status);
        header[16..20].copy_from_slice(&tag.to_be_bytes());
        let segment = [&(sense.len() as u16).to_be_bytes()[..], sense].concat();
        self.put(header, if sense.is_empty() { &[] } else { &segment }, true);
    }

    /// Handles one PDU. Returns its length, or `None` if it is not complete.
    fn take(&mut self, input: &[u8]) -> Option<usize> {
        let header: [u8; 48] = input.get(..48)?.try_into().unwrap();
        let length = u32_at(&header, 4) as usize & 0xff_ffff;
        let end = 48 + length.next_multiple_of(4);
        let data = input.get(48..end)?[..length].to_vec();
        assert_eq!(header[4], 0, "an additional header");
        assert!(u32_at(&header, 28) <= self.status_number, "the expected status number");
        match header[0] {
            0x43 => self.login(&header, &data),
            0x01 => self.command(&header, &data),
            0x05 => self.data(&header, &data),
            0x46 => self.is_ended = true,
            code => panic!("PDU {code:02x}"),
        }
        Some(end)
    }

    fn login(&mut self, header: &[u8; 48], data: &[u8]) {
        assert_eq!(header[8..14], ISID);
        self.logins += 1;
        let text = String::from_utf8(data.to_vec()).unwrap();
        let mut answer = [0; 48];
        (answer[0], answer[1]) = (0x23, 0x87);
        answer[16..20].copy_from_slice(&header[16..20]);
        let Terms { segment_bytes, first_bytes, burst_bytes, waits_for_ready, takes_immediate, .. } =
            self.terms;
        let flag = |yes| if yes { "Yes" } else { "No" };
        if self.logins == 1 {
            assert!(text.contains("InitiatorName=iqn.a\0") && text.contains("TargetName=iqn.b\0"), "{text}");
            let mut keys = format!(
                "MaxRecvDataSegmentLength={segment_bytes}\0FirstBurstLength={first_bytes}\0MaxBurstLength={burst_bytes}\0\
                 InitialR2T={}\0ImmediateData={}\0HeaderDigest=None\0TargetPortalGroupTag=1\0",
                flag(waits_for_ready),
                flag(takes_immediate)
            );
            if self.terms.asks_back {
                keys.push_str("X-org.example=5\0");
                answer[1] = 4;
            }
            return self.put(answer, keys.as_bytes(), true);
        }
        assert_eq!((self.logins, text.as_str()), (2, "X-org.example=NotUnderstood\0"));
        self.put(answer, &[], true);
    }

    fn command(&mut self, header: &[u8; 48], data: &[u8]) {
        let (tag, number) = (u32_at(header, 16), u32_at(header, 24));
        assert_eq!(number, self.next_command, "the number of a command");
        self.next_command += 1;
        self.commands += 1;
        assert!(self.writes.len() + self.ready.len() < self.terms.window as usize, "beyond the window");
        let (length, cdb): (usize, [u8; 16]) =
            (u32_at(header, 20) as usize, header[32..].try_into().unwrap());
        if cdb[0] != 0x8a {
            assert!(data.is_empty());
            self.ready.push_back((tag, cdb, length));
            return;
        }
        let Terms { segment_bytes, first_bytes, waits_for_ready, takes_immediate, .. } = self.terms;
        let is_final = header[1] & 0x80 != 0;
        assert!(data.len() <= if takes_immediate { segment_bytes.min(first_bytes) } else { 0 });
        assert!(is_final || !waits_for_ready, "data without being asked for");
        let offset = u64::from_be_bytes(cdb[2..10].try_into().unwrap()) as usize * BLOCK_BYTES;
        assert_eq!(u32_at(&cdb, 10) as usize * BLOCK_BYTES, length);
        let sequence_end = if is_final { data.len() } else { first_bytes.min(length) };
        self.writes.push(Incoming { tag, offset, data: data.to_vec(), length, sequence_end });
        self.ask_or_finish(tag);
    }

    fn data(&mut self, header: &[u8; 48], data: &[u8]) {
        let tag = u32_at(header, 16);
        assert!(data.len() <= self.terms.segment_bytes);
        let write = self.writes.iter_mut().find(|write| write.tag == tag).expect("a write");
        assert_eq!(u32_at(header, 40) as usize, write.data.len(), "the offset of data");
        write.data.extend_from_slice(data);
        assert!(write.data.len() <= write.sequence_end);
        assert_eq!(header[1] & 0x80 != 0, write.data.len() == write.sequence_end, "the end of a sequence");
        self.ask_or_finish(tag);
    }

    fn ask_or_finish(&mut self, tag: u32) {
        let burst = self.terms.burst_bytes;
        let index = self.writes.iter().position(|write| write.tag == tag).unwrap();
        let write = &mut self.writes[index];
        let done = write.data.len();
        if done < write.sequence_end {
            return;
        }
        if done < write.length {
            let length = burst.min(write.length - done);
            write.sequence_end = done + length;
            let mut header = [0; 48];
            (header[0], header[1]) = (0x31, 0x80);
            header[16..20].copy_from_slice(&tag.to_be_bytes());
            header[20..24].copy_from_slice(&(tag + 1).to_be_bytes());
            header[40..44].copy_from_slice(&(done as u32).to_be_bytes());
            header[44..].copy_from_slice(&(length as u32).to_be_bytes());
            return self.put(header, &[], false);
        }
        let write = self.writes.remove(index);
        if self.is_busy() {
            return self.put_status(tag, 0x28, &[]);
        }
        self.disk[write.offset..write.offset + write.length].copy_from_slice(&write.data);
        self.put_status(tag, 0, &[]);
    }

    /// Some commands find the target busy, unless they are alone.
    fn is_busy(&mut self) -> bool {
        let every = self.terms.busy_every;
        let others = self.writes.len() + self.ready.len();
        let is_busy =
            every > 0 && others > 0 && self.commands.is_multiple_of(every) && self.busy < self.commands;
        self.busy += u32::from(is_busy) * self.commands;
        is_busy
    }

    /// Executes the next read, flush or question.
    fn execute(&mut self) -> bool {
        let Some((tag, cdb, length)) = self.ready.pop_front() else { return false };
        if self.busy_answers > 0 {
            self.busy_answers -= 1;
            self.put_status(tag, 8, &[]);
            return true;
        }
        let facts: Vec<u8> = match cdb[0] {
            0 if self.events > 0 => {
                self.events -= 1;
                self.put_status(tag, 2, &[0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0, 0, 0, 0, 0]);
                return true;
            }
            0 => Vec::new(),
            0x35 => {
                self.flushes += 1;
                Vec::new()
            }
            0x12 if cdb[1] == 0 => vec![0; 36],
            0x12 if cdb[2] == 0 => vec![0, 0, 0, 2, 0, 0xb0],
            0x12 => {
                let limit = self.terms.transfer_blocks.to_be_bytes();
                [&[0, 0xb0, 0, 60, 0, 0, 0, 0][..], &limit, &[0; 52]].concat()
            }
            0x9e => {
                let last = (DISK_BYTES / BLOCK_BYTES - 1) as u64;
                [&last.to_be_bytes()[..], &(BLOCK_BYTES as u32).to_be_bytes(), &[0, 4], &[0; 18]].concat()
            }
            0x1a => [&[3, 0, 0x10, 0][..], self.terms.cache_page].concat(),
            0x88 => {
                let offset = u64::from_be_bytes(cdb[2..10].try_into().unwrap()) as usize * BLOCK_BYTES;
                self.disk[offset..offset + length].to_vec()
            }
            code => panic!("command {code:02x}"),
        };
        if self.is_busy() {
            self.put_status(tag, 8, &[]);
            return true;
        }
        let pieces = facts.chunks(self.terms.piece_bytes);
        let count = pieces.len();
        for (index, piece) in pieces.enumerate() {
            // Some targets send the status with the last data, some behind them.
            let is_last = index + 1 == count && self.commands.is_multiple_of(2);
            let mut header = [0; 48];
            (header[0], header[1]) = (0x25, if is_last { 0x81 } else { 0 });
            header[16..20].copy_from_slice(&tag.to_be_bytes());
            header[40..44].copy_from_slice(&((index * self.terms.piece_bytes) as u32).to_be_bytes());
            self.put(header, piece, is_last);
            if is_last {
                return true;
            }
        }
        self.put_status(tag, 0, &[]);
        true
    }
}

/// A session, and the target at its other end.
struct Pair {
    session: IscsiSession,
    target: Target,
    to_target: Vec<u8>,
    /// The data of reads, by tag.
    reads: BTreeMap<u64, Vec<u8>>,
    replies: BTreeMap<u64, Result<(), Failure>>,
}

impl Pair {
    fn new(terms: Terms) -> Pair {
        let unit = Unit { initiator: "iqn.a".into(), target: "iqn.b".into(), lun: 1 << 48 };
        let mut session = IscsiSession::new(unit, ISID, None);
        let mut output = Body::new();
        session.begin(&mut output);
        let target = Target::new(terms);
        let to_target = output.into_bytes().to_vec();
        Pair { session, target, to_target, reads: BTreeMap::new(), replies: BTreeMap::new() }
    }

    fn opened(terms: Terms) -> Pair {
        let mut pair = Pair::new(terms);
        pair.settle().unwrap();
        assert!(pair.session.is_open());
        pair
    }

    fn submit(&mut self, tag: u64, command: Command, offset: usize, length: usize, data: &[u8]) {
        let (offset, length) = (offset as u64, length as u32);
        let order = Order { tag, command, force: false, keep_space: false, offset, length };
        let mut output = Body::new();
        // In two pieces, as the schedule may have it.
        let (first, second) = data.split_at(data.len() / 3);
        let mut body = Body::from(first.to_vec());
        body.append(Body::from(second.to_vec()));
        self.session.submit(&order, body, &mut output);
        self.to_target.extend_from_slice(&output.into_bytes());
    }

    fn receive(&mut self) -> Result<bool, Ended> {
        let mut output = Body::new();
        let available = std::mem::take(&mut self.target.output);
        let (reply, used) = match self.session.expected() {
            Expected::Header(length) if available.len() < length => {
                self.target.output = available;
                return Ok(false);
            }
            Expected::Header(length) => {
                (self.session.handle_header(&available[..length], &mut output)?, length)
            }
            Expected::Data { .. } if available.is_empty() => return Ok(false),
            Expected::Data { tag, length } => {
                let count = available.len().min(length as usize).min(1000);
                self.reads.entry(tag).or_default().extend_from_slice(&available[..count]);
                (self.session.handle_data(count as u32, &mut output)?, count)
            }
        };
        self.target.output = available[used..].to_vec();
        self.to_target.extend_from_slice(&output.into_bytes());
        if let Some(Reply { tag, result }) = reply {
            assert!(self.replies.insert(tag, result).is_none(), "two replies to {tag}");
        }
        Ok(true)
    }

    /// Ends a pause of the session.
    fn resume(&mut self) {
        let mut output = Body::new();
        self.session.resume(&mut output);
        self.to_target.extend_from_slice(&output.into_bytes());
    }

    fn settle(&mut self) -> Result<(), Ended> {
        loop {
            let mut works = false;
            while let Some(used) = self.target.take(&self.to_target) {
                self.to_target.drain(..used);
                works = true;
            }
            works |= self.target.execute();
            while self.receive()? {
                works = true;
            }
            if !works {
                return Ok(());
            }
        }
    }
}

#[test]
fn a_session_learns_the_facts() {
    for asks_back in [false, true] {
        let pair = Pair::opened(Terms { asks_back, events: 3, ..TERMS });
        let abilities =
            Abilities { flush: true, force: true, many_connections: true, ..Abilities::default() };
        let expected =
            Geometry { size_bytes: DISK_BYTES as u64, block_bytes: 512, preferred_bytes: 8192, abilities };
        assert_eq!(pair.session.geometry(), Some(expected));
    }
}

#[test]
fn a_session_learns_the_longest_transfer() {
    // 240 blocks: a disk at a port of USB 2.
    for (transfer_blocks, bytes) in
        [(0, CHUNK_BYTES), (240, 122_880), (4096, CHUNK_BYTES), (u32::MAX, CHUNK_BYTES)]
    {
        let pair = Pair::opened(Terms { transfer_blocks, ..TERMS });
        assert_eq!(pair.session.order_bytes_max(), bytes);
    }
}

#[test]
fn a_session_ends_in_order() {
    let mut pair = Pair::opened(TERMS);
    let mut output = Body::new();
    pair.session.end(&mut output);
    pair.to_target.extend_from_slice(&output.into_bytes());
    pair.settle().unwrap();
    assert!(pair.target.is_ended);
}

#[test]
fn another_disk_is_refused_with_its_difference() {
    let found = Pair::opened(TERMS).session.geometry().unwrap();
    let without_force = Abilities { force: false, ..found.abilities };
    let read_only = Abilities { read_only: true, ..found.abilities };
    for (known, says) in [
        (Geometry { size_bytes: 512, ..found }, "it had 512 bytes, and has 1048576"),
        (Geometry { abilities: without_force, ..found }, "it accepts forced writes (FUA) now"),
        (Geometry { abilities: read_only, ..found }, "it accepts writes now"),
    ] {
        let unit = Unit { initiator: "iqn.a".into(), target: "iqn.b".into(), lun: 1 << 48 };
        let mut pair = Pair::new(TERMS);
        pair.session = IscsiSession::new(unit, ISID, Some(known));
        let mut output = Body::new();
        pair.session.begin(&mut output);
        pair.to_target = output.into_bytes().to_vec();
        let error = pair.settle().unwrap_err().reason;
        assert_eq!(error, format!("the disk is another one than before: {says}"));
    }
}

/// Returns a header from the target.
fn header(code: u8, fields: &[(usize, &[u8])]) -> [u8; 48] {
    let mut header = [0; 48];
    header[0] = code;
    header[32..36].copy_from_slice(&200_u32.to_be_bytes());
    for (at, field) in fields {
        header[*at..at + field.len()].copy_from_slice(field);
    }
    header
}

#[test]
fn a_target_that_violates_the_protocol_or_refuses_is_explained() {
    let is_refused = |pair: &mut Pair, header: [u8; 48], says: &str| {
        let error = pair.session.handle_header(&header, &mut Body::new()).unwrap_err().reason;
        assert!(error.contains(says), "{error}");
    };
    let mut fresh = Pair::new(TERMS);
    is_refused(&mut fresh, header(0x23, &[(36, &[2, 1])]), "password");
    is_refused(&mut fresh, header(0x23, &[(36, &[2, 3])]), "no target with this name");
    is_refused(&mut fresh, header(0x23, &[(5, &[0xff, 0, 0])]), "data segment");
    is_refused(&mut fresh, header(0x21, &[]), "violates the protocol");
    let mut pair = Pair::opened(TERMS);
    pair.submit(9, Command::Read, 0, 4096, &[]);
    // The greeting had six commands, and one that reported the event.
    let tag = 7_u32.to_be_bytes();
    is_refused(&mut pair, header(0x25, &[(16, &tag), (5, &[0, 0x10, 4])]), "4096 are left");
    is_refused(&mut pair, header(0x25, &[(16, &tag), (5, &[0, 0, 4]), (40, &[0, 0, 0, 4])]), "4 bytes at 4");
    is_refused(&mut pair, header(0x25, &[(16, &[0, 0, 1, 0])]), "no read");
    is_refused(&mut pair, header(0x31, &[(16, &tag), (44, &[0, 0, 16, 0])]), "0 are left");
    is_refused(&mut pair, header(0x32, &[(36, &[2])]), "event 2");
    is_refused(&mut pair, header(0x3f, &[(2, &[4])]), "reason 4");
    is_refused(&mut pair, header(0x21, &[(16, &[0, 0, 1, 0])]), "was not asked");
    let ping = header(0x20, &[(16, &[0xff; 4]), (20, &[0, 0, 0, 1])]);
    for _ in 0..64 {
        pair.session.handle_header(&ping, &mut Body::new()).unwrap();
    }
    is_refused(&mut pair, ping, "accepts no answer");
}

#[test]
fn a_question_with_a_recovered_error_is_answered() {
    let sense = Sense::parse(&[0x72, 1, 0x17, 1]);
    let mut greeting = Greeting::default();
    let ready = greeting.command();
    assert_eq!(greeting.handle_end(2, sense), Ok(None));
    assert_ne!(greeting.command(), ready, "the next question");
}

#[test]
fn a_question_that_a_busy_target_does_not_answer_is_asked_again() {
    let mut greeting = Greeting::default();
    let capacity: Vec<u8> = [&[0, 0, 0, 0, 0, 0, 0, 255, 0, 0, 2, 0][..], &[0; 20]].concat();
    for data in [vec![], vec![0; 36], capacity] {
        greeting.handle_data(0, &data).unwrap();
        assert_eq!(greeting.handle_end(0, None), Ok(None));
    }
    let question = greeting.command();
    let stopped = Sense::parse(&[0x72, 0xb, 0x47, 0]);
    for (status, sense) in [(8, None), (0x28, None), (0x40, None), (2, stopped)] {
        assert_eq!(greeting.handle_end(status, sense), Ok(None));
        assert_eq!((greeting.is_busy(), greeting.command()), (true, question), "status {status:02x}");
    }
    greeting.handle_data(0, &[3, 0, 0x10, 0]).unwrap();
    assert_eq!(greeting.handle_end(0, None), Ok(None));
    // The unit does not know the list of its pages.
    let unknown = Sense::parse(&[0x72, 5, 0x24, 0]);
    let geometry = greeting.handle_end(2, unknown).unwrap().unwrap();
    assert!(!greeting.is_busy() && geometry.abilities.force && geometry.size_bytes == 131_072);
}

#[test]
fn a_target_that_is_busy_during_the_questions_is_asked_after_pauses() {
    let mut pair = Pair::new(TERMS);
    pair.target.busy_answers = 3;
    for _ in 0..3 {
        pair.settle().unwrap();
        assert!(pair.session.is_paused() && !pair.session.is_open());
        pair.resume();
    }
    pair.settle().unwrap();
    assert!(pair.session.is_open() && !pair.session.is_paused());
    let mut pair = Pair::new(TERMS);
    pair.target.busy_answers = 100;
    let ended = loop {
        if let Err(ended) = pair.settle() {
            break ended;
        }
        pair.resume();
    };
    assert!(ended.reason.contains("status 08"), "{ended:?}");
}

#[test]
fn a_ping_is_answered() {
    let mut pair = Pair::opened(TERMS);
    let mut output = Body::new();
    let ping = header(0x20, &[(8, &[0, 1]), (16, &[0xff; 4]), (20, &[1, 2, 3, 4])]);
    assert_eq!(pair.session.handle_header(&ping, &mut output), Ok(None));
    let pong = output.into_bytes();
    assert_eq!((pong.len(), pong[0], pong[9]), (48, 0x40, 1));
    assert_eq!((&pong[16..20], &pong[20..24]), (&[0xff; 4][..], &[1, 2, 3, 4][..]));
}

#[test]
fn a_ping_whose_answer_was_sent_does_not_count() {
    let mut pair = Pair::opened(TERMS);
    let ping = header(0x20, &[(16, &[0xff; 4]), (20, &[0, 0, 0, 1])]);
    for number in 0..1000 {
        let mut output = Body::new();
        pair.session.handle_header(&ping, &mut output).unwrap_or_else(|ended| panic!("{number}: {ended:?}"));
        // A long write keeps the output from ever being empty.
        pair.session.handle_sent(output.len() - 1);
    }
    for _ in 0..63 {
        pair.session.handle_header(&ping, &mut Body::new()).unwrap();
    }
    let ended = pair.session.handle_header(&ping, &mut Body::new()).unwrap_err();
    assert!(ended.reason.contains("accepts no answer"), "{ended:?}");
}

/// Lets the target send a ping that needs no answer: it tells the window.
fn tell_window(pair: &mut Pair) {
    let mut ping = [0; 48];
    (ping[0], ping[1]) = (0x20, 0x80);
    ping[16..24].copy_from_slice(&[0xff; 8]);
    pair.target.put(ping, &[], false);
    pair.settle().unwrap();
}

#[test]
fn a_window_that_a_ping_opens_is_used_for_orders_and_questions() {
    let mut pair = Pair::opened(Terms { window: 1, ..TERMS });
    pair.submit(1, Command::Flush, 0, 0, &[]);
    let used = pair.target.take(&pair.to_target).unwrap();
    pair.to_target.drain(..used);
    pair.target.terms.window = 0;
    pair.settle().unwrap();
    pair.submit(2, Command::Flush, 0, 0, &[]);
    pair.settle().unwrap();
    assert!(pair.to_target.is_empty() && pair.replies.len() == 1, "the window is closed");
    pair.target.terms.window = 1;
    tell_window(&mut pair);
    assert_eq!(pair.replies.get(&2), Some(&Ok(())));
    let mut pair = Pair::new(Terms { window: 0, ..TERMS });
    pair.settle().unwrap();
    assert!(pair.target.logins == 1 && pair.target.commands == 0 && !pair.session.is_open());
    pair.target.terms.window = 1;
    tell_window(&mut pair);
    assert!(pair.session.is_open());
}

#[test]
fn a_target_that_is_busy_gets_its_only_order_again_after_a_pause() {
    let mut pair = Pair::opened(TERMS);
    pair.submit(9, Command::Write, 0, 4096, &[7; 4096]);
    let answer = |status, tag: u32| header(0x21, &[(1, &[0x80]), (3, &[status]), (16, &tag.to_be_bytes())]);
    for (tag, status) in [(7, 8), (8, 0x28), (9, 8)] {
        let mut output = Body::new();
        assert_eq!(pair.session.handle_header(&answer(status, tag), &mut output), Ok(None));
        assert!(pair.session.is_paused() && output.is_empty());
        pair.session.resume(&mut output);
        assert_eq!(output.into_bytes().len(), 48 + 4096);
    }
    let done = Ok(Some(Reply { tag: 9, result: Ok(()) }));
    assert_eq!(pair.session.handle_header(&answer(0, 10), &mut Body::new()), done);
    assert!(!pair.session.is_paused());
}

#[test]
fn a_failure_has_its_reason_and_an_event_ends_the_session() {
    let reply_of = |terms, sense: [u8; 14], command, length: usize| {
        let mut pair = Pair::opened(terms);
        pair.submit(9, command, 0, length, &vec![0; if command == Command::Write { length } else { 0 }]);
        let front = header(0x21, &[(1, &[0x80]), (3, &[2]), (5, &[0, 0, 16]), (16, &7_u32.to_be_bytes())]);
        let mut output = Body::new();
        assert_eq!(pair.session.handle_header(&front, &mut output), Ok(None));
        pair.session.handle_header(&[&[0, 14][..], &sense].concat(), &mut output)
    };
    let reply = |sense, command, length| reply_of(TERMS, sense, command, length);
    let sense = |key, code, qualifier| [0x70, 0, key, 0, 0, 0, 0, 6, 0, 0, 0, 0, code, qualifier];
    let fails = |failure| Ok(Some(Reply { tag: 9, result: Err(failure) }));
    assert_eq!(reply(sense(3, 0x11, 0), Command::Read, 4096), fails(Failure::Device));
    assert_eq!(reply(sense(7, 0x27, 0), Command::Write, 4096), fails(Failure::Forbidden));
    assert_eq!(reply(sense(7, 0x27, 7), Command::Write, 4096), fails(Failure::NoSpace));
    assert_eq!(reply(sense(5, 0x21, 0), Command::Read, 4096), fails(Failure::Invalid));
    // The sense of an earlier command, and data that are missing, are no success.
    let done = Ok(Some(Reply { tag: 9, result: Ok(()) }));
    assert_eq!(reply(sense(1, 0x17, 1), Command::Flush, 0), done);
    assert_eq!(reply(sense(1, 0x17, 1), Command::Read, 4096), fails(Failure::Device));
    let deferred = [&[0x71][..], &sense(1, 0x17, 1)[1..]].concat();
    assert_eq!(reply(deferred.try_into().unwrap(), Command::Flush, 0), fails(Failure::Device));
    for (cache_page, result) in
        [(NO_CACHE, Ok(())), (HAS_CACHE, Err(Failure::Unsupported)), (&[], Err(Failure::Unsupported))]
    {
        let terms = Terms { cache_page, ..TERMS };
        let flushed = reply_of(terms, sense(5, 0x20, 0), Command::Flush, 0);
        assert_eq!(flushed, Ok(Some(Reply { tag: 9, result })), "{cache_page:?}");
    }
    // Each session reports an event once; the other reasons may come for the same order again and again.
    for (key, code, order, says) in [
        (6, (0x29, 0), None, "unit attention, code 29/00"),
        (2, (8, 0), Some(9), "not ready, code 08/00"),
        (0xb, (0x47, 0), Some(9), "aborted command, code 47/00"),
    ] {
        let ended = reply(sense(key, code.0, code.1), Command::Write, 4096).unwrap_err();
        assert!(ended.reason.contains(says) && ended.order == order, "{ended:?}");
    }
}

#[test]
fn a_command_that_the_target_stops_or_cannot_execute_goes_to_another_session() {
    for (response, status, says) in [(0, 0x40, "reset the unit"), (1, 0, "failed to execute")] {
        let mut pair = Pair::opened(TERMS);
        pair.submit(9, Command::Write, 0, 4096, &[0; 4096]);
        let front =
            header(0x21, &[(1, &[0x80]), (2, &[response]), (3, &[status]), (16, &7_u32.to_be_bytes())]);
        let ended = pair.session.handle_header(&front, &mut Body::new()).unwrap_err();
        assert!(ended.reason.contains(says) && ended.order == Some(9), "{ended:?}");
    }
}

#[test]
fn a_login_accepts_all_forms_of_values() {
    let mut agreed = Agreed::default();
    let text = b"FirstBurstLength=Irrelevant\0MaxBurstLength=0x20000\0MaxRecvDataSegmentLength=0X2000\0";
    assert_eq!(agreed.handle(text), Ok(Vec::new()));
    let expected = Agreed { burst_bytes: 0x20000, segment_bytes: 0x2000, ..Agreed::default() };
    assert_eq!(agreed, expected);
    for wrong in ["MaxBurstLength=0x", "MaxBurstLength=0x+200", "AuthMethod=Irrelevant"] {
        assert!(agreed.handle(wrong.as_bytes()).unwrap_err().contains(wrong));
    }
}

#[test]
fn addresses_are_parsed_or_explained() {
    let parse = |target: &str| {
        let (_, spec) = crate::spec::parse(&format!("iscsi:{target}"), Role::Device).unwrap();
        Address::parse(&spec)
    };
    for (target, place, name, lun) in [
        ("//store/iqn.2001-04.com.example:disk/1", "store:3260", "iqn.2001-04.com.example:disk", 1 << 48),
        ("//[::1]:99/iqn.x/256,initiator=iqn.Mine", "[::1]:99", "iqn.x", 0x4100 << 48),
        ("//10.0.0.1:9/eui.02004567a425678d/0", "10.0.0.1:9", "eui.02004567a425678d", 0),
    ] {
        let Address { place: found, unit } = parse(target).unwrap();
        assert_eq!((found.as_str(), unit.target.as_str(), unit.lun), (place, name, lun));
        assert!(unit.initiator.starts_with("iqn."), "{unit:?}");
        assert!(!target.contains("Mine") || unit.initiator == "iqn.mine");
    }
    for (target, says) in [
        ("store/iqn.x/1", "slashes"),
        ("//", "host is missing"),
        ("//store", "target or the number"),
        ("//store/iqn.x", "target or the number"),
        ("//store/iqn.x/disk", "no number of a unit"),
        ("//store/iqn.x/16384", "no number of a unit"),
        ("//store//1", "no valid name"),
        ("//store/iqn.x/1,initiator=a b", "other characters"),
    ] {
        let error = parse(target).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("iscsi://HOST:PORT/TARGET/LUN"), "{target}: {error}");
    }
}

fn terms() -> impl Strategy<Value = Terms> {
    let lengths = (512..70_000_usize, 512..=262_144_usize, 512..=262_144_usize, 1..70_000_usize);
    (lengths, any::<bool>(), any::<bool>(), 1..9_u32, 0..4_u32).prop_map(
        |((segment_bytes, first, burst_bytes, piece), waits_for_ready, takes_immediate, window, busy)| {
            Terms {
                segment_bytes,
                first_bytes: first.min(burst_bytes),
                burst_bytes,
                waits_for_ready,
                takes_immediate,
                window,
                piece_bytes: piece.next_multiple_of(4),
                busy_every: busy,
                events: 1,
                ..TERMS
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Orders are done once each with their data, whatever terms a target has.
    #[test]
    fn orders_are_done_for_any_terms(
        terms in terms(),
        orders in proptest::collection::vec((0..3_u8, 1..=CHUNK_BYTES as usize / BLOCK_BYTES), 1..12),
    ) {
        let mut pair = Pair::opened(terms);
        for (index, byte) in pair.target.disk.iter_mut().enumerate() {
            *byte = (index / 7) as u8;
        }
        let mut expected = pair.target.disk.clone();
        let (mut at, mut reads, count) = (0, BTreeMap::new(), orders.len());
        for (tag, (kind, blocks)) in orders.into_iter().enumerate() {
            let (tag, length) = (tag as u64, blocks * BLOCK_BYTES);
            // No two orders overlap: the schedule keeps their order.
            let length = if at + length > DISK_BYTES { 0 } else { length };
            match kind {
                0 if length > 0 => {
                    let data: Vec<u8> = (0..length).map(|index| (index / 3) as u8 ^ tag as u8).collect();
                    expected[at..at + length].copy_from_slice(&data);
                    pair.submit(tag, Command::Write, at, length, &data);
                }
                1 if length > 0 => {
                    reads.insert(tag, at..at + length);
                    pair.submit(tag, Command::Read, at, length, &[]);
                }
                _ => pair.submit(tag, Command::Flush, 0, 0, &[]),
            }
            at += length;
        }
        pair.settle().unwrap();
        prop_assert_eq!(pair.replies.len(), count);
        prop_assert!(pair.replies.values().all(|result| *result == Ok(())), "{:?}", pair.replies);
        prop_assert!(pair.target.disk == expected, "the disk differs");
        for (tag, range) in reads {
            prop_assert!(pair.reads[&tag] == expected[range], "the data of {tag} differ");
        }
    }

    /// Any bytes end in a state or an error.
    #[test]
    fn any_bytes_of_a_target_are_handled(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        super::fuzz::bytes(&bytes);
    }
}
