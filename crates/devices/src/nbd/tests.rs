//! Tests with a client of the protocol on one side and a real file as the disk on the other.

use super::*;
use crate::block::tests::{DiskFile, open_flows};
use contract::{
    Attributes, Body, Direction, FlowClass, FlowKey, FlowTemplate, Message, Pull, Pulled, Pushed,
};
use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use testkit::partner::{Harness, conforms};
use wire::formats::block::{Answer, Command, Failure, FromDisk, Geometry, REQUEST_BYTES, ToDisk};
use wire::nbd::{Asked, ClientNegotiation, ClientStep, REPLY_BYTES, Reply, Request};

const SIZE_BYTES: u64 = 1 << 20;
const BLOCK_BYTES: u32 = 4096;

/// An opened server, which survives its partners.
struct Node {
    opened: Opened,
}

impl Node {
    fn new(disk: &DiskFile) -> Node {
        let like = disk.open(false).unwrap().description;
        let mut like_writable = Properties::of(&like).unwrap();
        like_writable.geometry.abilities.read_only = false;
        like_writable.geometry.abilities.force = true;
        let like = describe("block", &like_writable);
        let (_, spec) =
            crate::spec::parse(&format!("nbd:{}.sock", disk.0.display()), Role::Application).unwrap();
        Node { opened: Nbd.open(&spec, Role::Application, Some(&like)).unwrap() }
    }

    /// A partner on the same descriptors, as the next worker makes it.
    fn partner(&self) -> Box<dyn Partner> {
        let mut partner = Nbd.partner(self.opened.try_clone().unwrap()).unwrap();
        open_flows(partner.as_mut());
        partner
    }

    fn connect(&self) -> Client {
        let socket = UnixStream::connect(path(&self.opened.spec.target).unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let negotiation = Some(ClientNegotiation::new(""));
        Client { socket, input: Vec::new(), output: Vec::new(), requests: Vec::new(), negotiation }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        Nbd.release(&self.opened);
    }
}

fn request(cookie: u64, command: Command, offset: u64, length: u32) -> Request {
    let (force, keep_space, has_unknown_flags) = (false, false, false);
    Request { asked: Asked::Do(command), force, keep_space, has_unknown_flags, cookie, offset, length }
}

/// A client that never blocks.
struct Client {
    socket: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Requests that follow when the negotiation is over.
    requests: Vec<u8>,
    negotiation: Option<ClientNegotiation>,
}

impl Client {
    /// Sends and receives what is possible now.
    fn turn(&mut self) {
        let mut buffer = [0; 1 << 16];
        match self.socket.read(&mut buffer) {
            Ok(0) => panic!("the connection was closed"),
            Ok(count) => self.input.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("reading: {error}"),
        }
        while let Some(negotiation) =
            self.negotiation.as_mut().filter(|next| next.needs() <= self.input.len())
        {
            let bytes: Vec<u8> = self.input.drain(..negotiation.needs()).collect();
            match negotiation.take(&bytes).unwrap() {
                ClientStep::Send(bytes) => self.output.extend(bytes),
                ClientStep::Done { geometry, .. } => {
                    assert_eq!(geometry.size_bytes, SIZE_BYTES);
                    self.negotiation = None;
                }
            }
        }
        if self.negotiation.is_none() {
            self.output.append(&mut self.requests);
        }
        match self.socket.write(&self.output) {
            Ok(count) => drop(self.output.drain(..count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("writing: {error}"),
        }
    }

    fn send(&mut self, cookie: u64, command: Command, offset: u64, data: &[u8], length: u32) {
        self.send_request(request(cookie, command, offset, length), data);
    }

    fn send_request(&mut self, request: Request, data: &[u8]) {
        self.requests.extend(request.to_bytes());
        self.requests.extend(data);
    }

    /// Returns the next reply and its data; `read_bytes` tells their length by the cookie.
    fn reply(&mut self, read_bytes: impl Fn(u64) -> usize) -> Option<(Reply, Vec<u8>)> {
        if self.negotiation.is_some() {
            return None;
        }
        let reply = Reply::parse(self.input.first_chunk()?).unwrap();
        let data = if reply.result.is_ok() { read_bytes(reply.cookie) } else { 0 };
        let all = REPLY_BYTES + data;
        if self.input.len() < all {
            return None;
        }
        let bytes: Vec<u8> = self.input.drain(..all).collect();
        Some((reply, bytes[REPLY_BYTES..].to_vec()))
    }
}

/// A generator of numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// A partner and its reliable flow to the other side. A message whose push was in doubt at a kill is pushed again.
struct Side {
    partner: Box<dyn Partner>,
    to_other: VecDeque<Message>,
    last: Option<Message>,
}

impl Side {
    fn new(partner: Box<dyn Partner>) -> Side {
        Side { partner, to_other: VecDeque::new(), last: None }
    }

    fn pull(&mut self) {
        // Tests count their rounds, and the threads of the disk and of the acceptor have to run in them.
        std::thread::yield_now();
        for _ in 0..64 {
            let Pulled::Message(_, message) = self.partner.pull(FlowKey::DEFAULT, Pull::Yours).unwrap()
            else {
                return;
            };
            self.to_other.push_back(message);
        }
    }

    fn push_from(&mut self, flow: &mut VecDeque<Message>, count: u64) {
        for _ in 0..count {
            let Some(message) = flow.pop_front() else { break };
            match self.partner.push(FlowKey::DEFAULT, message.clone()).unwrap() {
                Pushed::Taken => self.last = Some(message),
                Pushed::Full(message) => {
                    flow.push_front(message);
                    break;
                }
            }
        }
        self.partner.ctl(FlowKey::DEFAULT, contract::Ctl::Flush).unwrap();
    }
}

/// The state of a block as its user knows it.
#[derive(Default)]
struct Block {
    /// The last answered write.
    written: u64,
    /// A write without an answer.
    pending: Option<u64>,
}

/// The work of a request without a reply.
enum Asks {
    Write(u64),
    Read { block: u64, is_one_of: [u64; 2] },
    Flush,
}

/// Returns the length of the data of a reply.
fn read_bytes(asks: &BTreeMap<u64, Asks>, cookie: u64) -> usize {
    if matches!(asks.get(&cookie), Some(Asks::Read { .. })) { BLOCK_BYTES as usize } else { 0 }
}

/// Writes numbered blocks, kills both partners at random, and reads everything back: nothing is torn, lost or overtaken.
fn check_disk(seed: u64, rounds: u64) {
    println!("seed {seed}");
    let mut random = Random(seed);
    let file = DiskFile::new(SIZE_BYTES);
    let node = Node::new(&file);
    let disk_partner = || {
        let mut partner = file.partner();
        open_flows(partner.as_mut());
        partner
    };
    let (mut disk, mut server) = (Side::new(disk_partner()), Side::new(node.partner()));
    let mut clients: Vec<(Client, BTreeMap<u64, Asks>)> =
        (0..3).map(|_| (node.connect(), BTreeMap::new())).collect();
    let blocks_max = SIZE_BYTES / u64::from(BLOCK_BYTES);
    let mut blocks: Vec<Block> = (0..blocks_max).map(|_| Block::default()).collect();
    let (mut next, mut kills) = (1, 0);
    let mut round = 0;
    while round < rounds || clients.iter().any(|(_, asks)| !asks.is_empty()) {
        round += 1;
        assert!(round < 100 * rounds, "seed {seed}: no progress");
        for (client, asks) in &mut clients {
            if round < rounds
                && asks.len() < 20
                && client.requests.len() + client.output.len() < 1 << 20
                && random.one_in(2)
            {
                let cookie = next;
                next += 1;
                let number = random.below(blocks_max);
                let block = &mut blocks[number as usize];
                let offset = number * u64::from(BLOCK_BYTES);
                match random.below(8) {
                    0 => {
                        client.send(cookie, Command::Flush, 0, &[], 0);
                        asks.insert(cookie, Asks::Flush);
                    }
                    1..3 => {
                        let is_one_of = [block.written, block.pending.unwrap_or(block.written)];
                        // A read that runs beside a write that is sent later could see that one, too.
                        if block.pending.is_none() {
                            block.pending = Some(block.written);
                            client.send(cookie, Command::Read, offset, &[], BLOCK_BYTES);
                            asks.insert(cookie, Asks::Read { block: number, is_one_of });
                        }
                    }
                    _ if block.pending.is_none() => {
                        block.pending = Some(cookie);
                        let data = cookie.to_le_bytes().repeat(BLOCK_BYTES as usize / 8);
                        client.send(cookie, Command::Write, offset, &data, BLOCK_BYTES);
                        asks.insert(cookie, Asks::Write(number));
                    }
                    _ => {}
                }
            }
            client.turn();
            while let Some((reply, data)) = client.reply(|cookie| read_bytes(asks, cookie)) {
                assert_eq!(reply.result, Ok(()), "seed {seed}");
                match asks.remove(&reply.cookie) {
                    Some(Asks::Flush) => {}
                    Some(Asks::Write(number)) => {
                        let block = &mut blocks[number as usize];
                        assert_eq!(block.pending.take(), Some(reply.cookie), "seed {seed}");
                        block.written = reply.cookie;
                    }
                    Some(Asks::Read { block, is_one_of }) => {
                        blocks[block as usize].pending = None;
                        check_block(seed, block, &data, is_one_of);
                    }
                    None => panic!("seed {seed}: a reply to no request"),
                }
                if asks.is_empty() {
                    break;
                }
            }
        }
        server.pull();
        disk.push_from(&mut server.to_other, 1 + random.below(8));
        disk.pull();
        server.push_from(&mut disk.to_other, 1 + random.below(8));
        // A killed worker loses what it has not passed on; the flow repeats the message that was in doubt.
        if random.one_in(40) {
            kills += 1;
            disk.partner = Box::new(Nothing);
            disk.partner = disk_partner();
            if let Some(last) = disk.last.take().filter(|_| random.one_in(2)) {
                server.to_other.push_front(last);
            }
        }
        if random.one_in(40) {
            kills += 1;
            server.partner = Box::new(Nothing);
            server.partner = node.partner();
            if let Some(last) = server.last.take().filter(|_| random.one_in(2)) {
                disk.to_other.push_front(last);
            }
        }
    }
    check_file(seed, &file, &blocks);
    println!("seed {seed}: {next} requests in {round} rounds, {kills} kills");
}

fn check_file(seed: u64, file: &DiskFile, blocks: &[Block]) {
    let bytes = std::fs::read(&file.0).unwrap();
    for (number, data) in bytes.chunks(BLOCK_BYTES as usize).enumerate() {
        check_block(seed, number as u64, data, [blocks[number].written; 2]);
    }
}

fn check_block(seed: u64, block: u64, data: &[u8], is_one_of: [u64; 2]) {
    let numbers: Vec<u64> =
        data.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect();
    assert!(numbers.iter().all(|number| *number == numbers[0]), "seed {seed}: block {block} is torn");
    assert!(
        is_one_of.contains(&numbers[0]),
        "seed {seed}: block {block} has {}, not {is_one_of:?}",
        numbers[0]
    );
}

/// A place without a partner, while the old one is dropped before the new one begins.
struct Nothing;

impl Partner for Nothing {
    fn open(&mut self, _: &FlowTemplate, _: &Attributes) -> contract::PartnerResult<FlowKey> {
        Err(contract::PartnerError::Unsupported("anything"))
    }

    fn close(&mut self, flow: FlowKey) -> contract::PartnerResult {
        Err(contract::PartnerError::NoFlow(flow))
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (contract::PartnerError, Message)> {
        Err((contract::PartnerError::NoFlow(flow), message))
    }

    fn pull(&mut self, flow: FlowKey, _: Pull<'_>) -> contract::PartnerResult<Pulled> {
        Err(contract::PartnerError::NoFlow(flow))
    }

    fn ctl(&mut self, flow: FlowKey, _: contract::Ctl<'_>) -> contract::PartnerResult<contract::CtlReply> {
        Err(contract::PartnerError::NoFlow(flow))
    }

    fn readiness(&self, _: FlowKey, _: Direction) -> contract::Readiness<'_> {
        contract::Readiness::never()
    }
}

#[test]
fn nothing_is_torn_lost_or_overtaken() {
    for seed in 1..=6 {
        check_disk(seed, 1500);
    }
}

#[test]
fn a_large_read_crosses_restarts_of_the_server() {
    // The acceptor's socket holds the words of so many, should its thread not run meanwhile.
    const RESTARTS_MAX: usize = 100;
    let file = DiskFile::new(SIZE_BYTES);
    let content: Vec<u8> = (0..SIZE_BYTES / 8).flat_map(|number| number.to_le_bytes()).collect();
    std::fs::write(&file.0, &content).unwrap();
    let node = Node::new(&file);
    let (mut disk, mut server) = (Side::new(file.partner()), Side::new(node.partner()));
    open_flows(disk.partner.as_mut());
    let mut client = node.connect();
    client.socket.set_nonblocking(true).unwrap();
    client.send(1, Command::Read, 0, &[], SIZE_BYTES as u32);
    let (mut rounds, mut restarts) = (0, 0);
    let data = loop {
        rounds += 1;
        client.turn();
        if let Some((reply, data)) = client.reply(|_| SIZE_BYTES as usize) {
            assert_eq!((reply.cookie, reply.result), (1, Ok(())));
            break data;
        }
        server.pull();
        disk.push_from(&mut server.to_other, 8);
        disk.pull();
        server.push_from(&mut disk.to_other, 8);
        if rounds % 3 == 0 && restarts < RESTARTS_MAX {
            restarts += 1;
            server.partner = Box::new(Nothing);
            server.partner = node.partner();
        }
    };
    assert!(data == content, "the data of a reply that several workers have written");
}

#[test]
fn clients_that_break_the_protocol_are_disconnected() {
    let file = DiskFile::new(SIZE_BYTES);
    let node = Node::new(&file);
    let mut server = Side::new(node.partner());
    for bytes in [&[0, 0, 0, 9][..], b"\0\0\0\x01GET / HTTP/1.1\r\n"] {
        let mut client = node.connect();
        client.socket.write_all(bytes).unwrap();
        client.socket.set_nonblocking(true).unwrap();
        let mut seen = Vec::new();
        loop {
            server.pull();
            let mut buffer = [0; 100];
            match client.socket.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => seen.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(seen.len() <= 18, "{seen:?}");
    }
}

#[test]
fn the_socket_is_removed_and_replaced() {
    let file = DiskFile::new(SIZE_BYTES);
    let node = Node::new(&file);
    let socket = path(&node.opened.spec.target).unwrap();
    let again = Nbd.open(&node.opened.spec, Role::Application, Some(&node.opened.description));
    assert!(again.unwrap_err().to_string().contains("another program listens"));
    assert!(!Nbd.can_hand_over(&node.opened), "the next program would not compare the disk");
    drop(node);
    assert!(!socket.exists());
}

#[test]
fn the_line_for_users_tells_the_sectors_of_the_attached_disk() {
    let file = DiskFile::new(SIZE_BYTES);
    let mut properties = Properties::of(&file.open(false).unwrap().description).unwrap();
    properties.geometry.block_bytes = 4096;
    let (_, spec) = crate::spec::parse(&format!("nbd:{}.sock", file.0.display()), Role::Application).unwrap();
    for (class, told) in
        [("iscsi", "sectors of 4096 bytes"), ("block", "sectors of 4096 bytes"), ("nbd", "requests of whole")]
    {
        let like = describe(class, &properties);
        let node = Node { opened: Nbd.open(&spec, Role::Application, Some(&like)).unwrap() };
        let summary = &node.opened.description.summary;
        assert!(summary.contains(told) && summary.contains(".sock"), "{class}: {summary}");
    }
}

/// A disk, a server and clients that wait for each reply.
struct Attached {
    disk: Side,
    server: Side,
    clients: [Client; 2],
    next_cookie: u64,
    /// The next answer of the disk becomes a failure.
    fails_next: Option<Failure>,
    node: Node,
    file: DiskFile,
}

impl Attached {
    fn new() -> Attached {
        let file = DiskFile::new(SIZE_BYTES);
        let node = Node::new(&file);
        let (disk, server) = (Side::new(Box::new(Nothing)), Side::new(node.partner()));
        let clients = [node.connect(), node.connect()];
        let mut attached = Attached { disk, server, clients, next_cookie: 1, fails_next: None, node, file };
        attached.restart_disk();
        // Both are connected before anything is lost.
        assert_eq!([attached.flush(0), attached.flush(1)], [Ok(()); 2]);
        attached
    }

    fn restart_disk(&mut self) {
        self.disk.partner = Box::new(Nothing);
        self.disk.partner = self.file.partner();
        open_flows(self.disk.partner.as_mut());
    }

    /// The disk's host loses what was not flushed: it has another file.
    fn lose_power(&mut self) {
        let other = DiskFile::new(SIZE_BYTES);
        std::fs::rename(&other.0, &self.file.0).unwrap();
        self.restart_disk();
    }

    fn restart_server(&mut self) {
        self.server.partner = Box::new(Nothing);
        self.server.partner = self.node.partner();
    }

    fn turn(&mut self) {
        self.clients.iter_mut().for_each(Client::turn);
        self.server.pull();
        self.disk.push_from(&mut self.server.to_other, 8);
        self.disk.pull();
        self.fail_answer();
        self.server.push_from(&mut self.disk.to_other, 8);
    }

    fn fail_answer(&mut self) {
        if let (Some(message), Some(failure)) = (self.disk.to_other.back_mut(), self.fails_next) {
            let bytes = message.body.clone().into_bytes();
            let Ok(FromDisk::Answer(answer)) = FromDisk::parse(&bytes, bytes.len()) else { return };
            message.body = Body::from(Answer { result: Err(failure), ..answer }.to_bytes().to_vec());
            self.fails_next = None;
        }
    }

    fn ask(&mut self, client: usize, command: Command, force: bool) -> Result<(), Failure> {
        let (cookie, length) = (self.next_cookie, if command == Command::Flush { 0 } else { BLOCK_BYTES });
        self.next_cookie += 1;
        let request = Request { force, ..request(cookie, command, 0, length) };
        self.clients[client].send_request(request, &vec![7; length as usize]);
        loop {
            self.turn();
            if let Some((reply, _)) = self.clients[client].reply(|_| 0) {
                assert_eq!(reply.cookie, cookie);
                return reply.result;
            }
        }
    }

    fn write(&mut self, client: usize) {
        assert_eq!(self.ask(client, Command::Write, false), Ok(()));
    }

    fn flush(&mut self, client: usize) -> Result<(), Failure> {
        self.ask(client, Command::Flush, false)
    }
}

#[test]
fn a_loss_of_answered_writes_fails_one_flush_of_each_client() {
    let mut attached = Attached::new();
    attached.write(0);
    attached.lose_power();
    assert_eq!([attached.flush(0), attached.flush(0)], [Err(Failure::Device), Ok(())]);
    attached.write(0);
    assert_eq!(attached.ask(1, Command::Write, true), Err(Failure::Device));
    assert_eq!(attached.ask(1, Command::Write, true), Ok(()));
    assert_eq!(attached.flush(0), Ok(()));
}

#[test]
fn restarts_of_processes_hide_no_loss_and_are_none() {
    let mut attached = Attached::new();
    attached.write(1);
    attached.restart_disk();
    attached.restart_server();
    assert_eq!(attached.flush(1), Ok(()), "the page cache is still there");
    attached.write(0);
    attached.restart_server();
    attached.write(0);
    attached.lose_power();
    attached.restart_server();
    attached.write(0);
    attached.restart_server();
    assert_eq!([attached.flush(0), attached.flush(0)], [Err(Failure::Device), Ok(())]);
    assert_eq!([attached.flush(1), attached.flush(1)], [Err(Failure::Device), Ok(())]);
}

#[test]
fn flushed_and_forced_writes_are_not_lost() {
    let mut attached = Attached::new();
    attached.write(0);
    assert_eq!(attached.flush(1), Ok(()));
    assert_eq!(attached.ask(0, Command::Write, true), Ok(()));
    attached.lose_power();
    assert_eq!([attached.flush(0), attached.flush(1)], [Ok(()); 2]);
}

#[test]
fn a_failed_flush_fails_one_of_each_other_client() {
    for failure in [Failure::Device, Failure::NoSpace] {
        let mut attached = Attached::new();
        attached.write(0);
        // The disk's kernel reports the lost write once.
        attached.fails_next = Some(failure);
        assert_eq!([attached.flush(0), attached.flush(0)], [Err(failure), Ok(())]);
        attached.restart_server();
        assert_eq!([attached.flush(1), attached.flush(1)], [Err(Failure::Device), Ok(())]);
        assert_eq!(attached.flush(0), Ok(()));
    }
}

/// A server with a client that sends reads, and the file of its disk.
struct Far {
    partner: Box<dyn Partner>,
    client: Client,
    /// Bytes of replies.
    replies: Vec<u8>,
    asked: u64,
    _node: Node,
    _file: DiskFile,
}

impl Far {
    fn new() -> Far {
        let file = DiskFile::new(SIZE_BYTES);
        let node = Node::new(&file);
        let mut partner = node.partner();
        let mut client = node.connect();
        let number = loop {
            client.turn();
            if let Pulled::Message(_, message) = partner.pull(FlowKey::DEFAULT, Pull::Yours).unwrap() {
                let mut front = [0; REQUEST_BYTES];
                let filled = message.body.copy_front(&mut front);
                let ToDisk::Begin { number } = ToDisk::parse(&front[..filled], message.body.len()).unwrap()
                else {
                    panic!("it begins")
                };
                break number;
            }
        };
        while client.negotiation.is_some() {
            client.turn();
            assert!(matches!(partner.pull(FlowKey::DEFAULT, Pull::Yours).unwrap(), Pulled::Nothing));
        }
        let geometry: Geometry = Properties::of(&node.opened.description).unwrap().geometry;
        let described = FromDisk::Described { number, geometry, instance: 0 };
        let message = Message::new(crate::stream::now(), Body::from(described.to_bytes()));
        assert!(matches!(partner.push(FlowKey::DEFAULT, message), Ok(Pushed::Taken)));
        for flow in [crate::flows::IN, crate::flows::OUT] {
            partner.close(flow).unwrap();
        }
        Far { partner, client, replies: Vec::new(), asked: 0, _node: node, _file: file }
    }
}

impl Harness for Far {
    fn partner(&mut self) -> &mut dyn Partner {
        self.partner.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        Some(FlowTemplate { direction, format: Format::Block, class: FlowClass::Reliable })
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        self.asked += 1;
        self.client.send(self.asked, Command::Read, self.asked * 512, &[], 512);
        while !self.client.output.is_empty() || !self.client.requests.is_empty() {
            self.client.turn();
        }
        // Entries are used in this order; the greeting and the reply to "go" have the first two numbers.
        let id = (self.asked + 2) << 12 | (self.asked - 1);
        let request = wire::formats::block::Request {
            id,
            command: Command::Read,
            force: false,
            keep_space: false,
            offset: self.asked * 512,
            length: 512,
        };
        Some(request.to_bytes().to_vec())
    }

    fn end(&mut self) -> bool {
        false
    }

    fn body(&self, number: u64) -> Vec<u8> {
        // An answer that no client waits for is dropped.
        FromDisk::Answer(Answer { id: number << 32, result: Ok(()) }).to_bytes()
    }

    fn seen(&self, _: &[u8]) -> Vec<u8> {
        Vec::new()
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        Some(std::mem::take(&mut self.replies))
    }
}

#[test]
fn the_partner_conforms() {
    conforms(Far::new);
}
