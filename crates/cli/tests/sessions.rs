//! The disk of an unmodified NBD server over several sessions, for unmodified clients: nbdkit at one end, nbdcopy at the other.
//! `OUTBOARD_SCOPE=large` makes the checker send 10,000 requests while it kills sessions.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use support::relay::Relay;
use support::{Ended, Scratch, Service, command, end, outboard, terminate, wait_until, workers_of};
use wire::formats::block::Command as Work;
use wire::nbd::{Asked, ClientNegotiation, ClientStep, REPLY_BYTES, Reply, Request};

const DISK_BYTES: usize = 24 << 20;
/// The checker's disk: small, so that its writes meet often.
const BLOCK_BYTES: usize = 4096;
const BLOCKS: usize = 96;
/// Requests of the checker at a time.
const DEPTH: usize = 16;

/// Returns whether the programs of these tests are installed.
fn has_programs() -> bool {
    testkit::skip::has_program("nbdkit", "nbdkit") && testkit::skip::has_program("nbdcopy", "libnbd-bin")
}

/// A running nbdkit.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(arguments: &[&str]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        Server::start_at(port, arguments)
    }

    fn start_at(port: u16, arguments: &[&str]) -> Server {
        // nbdkit 1.32 with several threads for each connection may abort when one of them is cut (`sock >= 0`).
        let child = Command::new("nbdkit")
            .args(["--foreground", "--ipaddr", "127.0.0.1", "--port", &port.to_string(), "--threads", "1"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("nbdkit listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Server { child, port }
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// `outboard connect` from a server to a local socket.
struct Connection {
    child: Option<Child>,
    socket: String,
}

impl Connection {
    fn start(scratch: &Scratch, server: &str, sessions: &str) -> Connection {
        let socket = scratch.path(&format!("disk-{sessions}.sock"));
        let from = format!("nbd://{server}/,sessions={sessions}");
        let child = command(&["connect", &from, &format!("nbd:{socket}")]).spawn().unwrap();
        wait_until("the socket of the disk", || UnixStream::connect(&socket).is_ok());
        Connection { child: Some(child), socket }
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket)
    }

    /// Counts its connections to a server at this port.
    fn sessions(&self, port: u16) -> usize {
        let Some(child) = &self.child else { return 0 };
        let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", child.id())).unwrap();
        let remote = format!(":{port:04X}");
        let is_open = |line: &&str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.get(2).is_some_and(|address| address.ends_with(&remote)) && fields.get(3) == Some(&"01")
        };
        table.lines().filter(is_open).count()
    }

    fn stop(mut self) -> Ended {
        let child = self.child.take().unwrap();
        terminate(&child);
        end(child, "connect")
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[track_caller]
fn copy(from: &str, to: &str) {
    let copied = Command::new("nbdcopy").args(["--flush", from, to]).output().unwrap();
    assert!(copied.status.success(), "nbdcopy {from} {to}: {}", String::from_utf8_lossy(&copied.stderr));
}

#[test]
fn a_copy_is_equal_over_any_number_of_sessions() {
    if !has_programs() {
        return;
    }
    let scratch = Scratch::new();
    let (disk, content) = scratch.noise("disk", DISK_BYTES);
    for sessions in ["auto", "1", "5"] {
        let server = Server::start(&["file", &disk]);
        let connection = Connection::start(&scratch, &server.address(), sessions);
        let output = scratch.path("out");
        copy(&connection.uri(), &output);
        assert!(std::fs::read(&output).unwrap() == content, "sessions={sessions}: the copy differs");
        if let Ok(number) = sessions.parse::<usize>() {
            wait_until("the sessions", || connection.sessions(server.port) == number);
        }
        connection.stop().done();
    }
}

#[test]
fn a_copy_to_the_disk_is_equal() {
    if !has_programs() {
        return;
    }
    let scratch = Scratch::new();
    let (input, content) = scratch.noise("in", DISK_BYTES);
    let disk = scratch.path("disk");
    std::fs::write(&disk, vec![1; DISK_BYTES]).unwrap();
    for sessions in ["3", "auto"] {
        let server = Server::start(&["file", &disk]);
        let connection = Connection::start(&scratch, &server.address(), sessions);
        copy(&input, &connection.uri());
        drop(connection);
        assert!(std::fs::read(&disk).unwrap() == content, "sessions={sessions}: the disk differs");
        std::fs::write(&disk, vec![1; DISK_BYTES]).unwrap();
    }
}

#[test]
fn a_server_that_cannot_be_used_is_explained() {
    if !has_programs() {
        return;
    }
    let scratch = Scratch::new();
    let refused = |from: &str, code: i32, says: &[&str]| {
        let node = format!("nbd:{}", scratch.path("refused.sock"));
        outboard(&["connect", from, &node]).refused(code, says);
    };
    let single = Server::start(&["--filter=multi-conn", "memory", "1M", "multi-conn-mode=disable"]);
    refused(&format!("nbd://{}/,sessions=4", single.address()), 2, &["multi-conn", "sessions=auto"]);
    let other =
        Server::start(&["--filter=exportname", "memory", "1M", "exportname-strict=true", "exportname=main"]);
    refused(&format!("nbd://{}/absent", other.address()), 1, &["absent"]);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    refused(
        &format!("nbd://{}/,timeout=300ms", silent.local_addr().unwrap()),
        1,
        &["does not answer for 300ms", "is it an NBD server?"],
    );
    drop(silent);
    // Without the promise, `auto` is one session, which needs none.
    let connection = Connection::start(&scratch, &single.address(), "auto");
    copy(&connection.uri(), "null:");
    assert_eq!(connection.sessions(single.port), 1);
}

/// A client of an NBD server.
struct Client<S> {
    stream: S,
    next_cookie: u64,
    /// Command, first block and blocks of each request without a reply.
    asked: BTreeMap<u64, (Work, usize, usize)>,
}

impl<S: Read + Write> Client<S> {
    fn new(mut stream: S) -> Client<S> {
        let mut negotiation = ClientNegotiation::new("");
        loop {
            let mut input = vec![0; negotiation.needs()];
            stream.read_exact(&mut input).unwrap();
            match negotiation.take(&input).unwrap() {
                ClientStep::Send(output) => stream.write_all(&output).unwrap(),
                ClientStep::Done { .. } => return Client { stream, next_cookie: 1, asked: BTreeMap::new() },
            }
        }
    }

    fn ask(&mut self, work: Work, first: usize, count: usize, data: &[u8]) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let request = Request {
            asked: Asked::Do(work),
            force: false,
            keep_space: false,
            has_unknown_flags: false,
            cookie,
            offset: (first * BLOCK_BYTES) as u64,
            length: (count * BLOCK_BYTES) as u32,
        };
        self.stream.write_all(&[&request.to_bytes()[..], data].concat()).unwrap();
        self.asked.insert(cookie, (work, first, count));
        cookie
    }

    /// Waits for a reply. Returns the request, and the data of a read.
    fn reply(&mut self) -> (Work, usize, usize, Vec<u8>) {
        let mut header = [0; REPLY_BYTES];
        self.stream.read_exact(&mut header).unwrap();
        let reply = Reply::parse(&header).unwrap();
        let (work, first, count) = self.asked.remove(&reply.cookie).expect("a request");
        assert_eq!(reply.result, Ok(()), "{work:?} of {count} blocks from {first}");
        let mut data = vec![0; if work == Work::Read { count * BLOCK_BYTES } else { 0 }];
        self.stream.read_exact(&mut data).unwrap();
        (work, first, count, data)
    }
}

/// Writes numbered blocks and reads them, while something breaks.
struct Checker {
    client: Client<UnixStream>,
    /// The number that each block has after its last write.
    content: [u32; BLOCKS],
    number: u32,
    random: u64,
}

impl Checker {
    fn new(socket: &str, seed: u64) -> Checker {
        println!("seed {seed}");
        let client = Client::new(UnixStream::connect(socket).unwrap());
        Checker { client, content: [0; BLOCKS], number: 0, random: seed }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.random >> 33) as usize % limit
    }

    fn reply(&mut self) {
        let (work, first, count, data) = self.client.reply();
        if work == Work::Read {
            check(&data, &self.content[first..first + count], first);
        }
    }

    /// Sends `requests` requests; waits for the replies where blocks overlap.
    fn run(&mut self, requests: usize) {
        for _ in 0..requests {
            while self.client.asked.len() >= DEPTH {
                self.reply();
            }
            // Most are longer than a chunk, and are split.
            let count = 1 + self.below(48);
            let first = self.below(BLOCKS - count);
            let meets = |asked: &(Work, usize, usize)| asked.1 < first + count && first < asked.1 + asked.2;
            while self.client.asked.values().any(meets) {
                self.reply();
            }
            match self.below(8) {
                0 => _ = self.client.ask(Work::Flush, 0, 0, &[]),
                1..3 => _ = self.client.ask(Work::Read, first, count, &[]),
                _ => {
                    self.number += 1;
                    self.content[first..first + count].fill(self.number);
                    let data = self.number.to_le_bytes().repeat(count * BLOCK_BYTES / 4);
                    self.client.ask(Work::Write, first, count, &data);
                }
            }
        }
    }

    /// Waits for all replies, and compares the disk.
    fn settle(&mut self, server: &Server) {
        while !self.client.asked.is_empty() {
            self.reply();
        }
        self.client.ask(Work::Flush, 0, 0, &[]);
        self.reply();
        let mut direct = Client::new(TcpStream::connect(server.address()).unwrap());
        direct.ask(Work::Read, 0, BLOCKS, &[]);
        check(&direct.reply().3, &self.content, 0);
    }
}

#[track_caller]
fn check(data: &[u8], content: &[u32], first: usize) {
    for (index, (block, number)) in data.chunks(BLOCK_BYTES).zip(content).enumerate() {
        let found = u32::from_le_bytes(block[..4].try_into().unwrap());
        assert_eq!(found, *number, "block {}: an older or a newer write", first + index);
        assert!(block == number.to_le_bytes().repeat(BLOCK_BYTES / 4), "block {} is torn", first + index);
    }
}

/// The checker's disk. Its writes take long enough to be on their way when a session is lost.
fn slow_server() -> Server {
    let size = format!("{}", BLOCKS * BLOCK_BYTES);
    Server::start(&["--filter=delay", "memory", &size, "wdelay=3ms"])
}

#[test]
fn no_write_is_lost_torn_or_overtaken_when_sessions_are_killed() {
    if !has_programs() {
        return;
    }
    let scratch = Scratch::new();
    let (server, relay) = (slow_server(), Relay::default());
    let connection = Connection::start(&scratch, &relay.start(&server.address()).to_string(), "4");
    let is_long = std::env::var("OUTBOARD_SCOPE").is_ok_and(|scope| scope == "large");
    let (kills, requests) = if is_long { (200, 50) } else { (5, 120) };
    let mut checker = Checker::new(&connection.socket, 23);
    for count in [1, 2, usize::MAX, 1, 3].into_iter().cycle().take(kills) {
        checker.run(requests / 2);
        relay.cut(count);
        checker.run(requests / 2);
    }
    println!("{} requests, {kills} times sessions killed", kills * requests);
    checker.settle(&server);
    connection.stop().done();
}

#[test]
fn requests_wait_for_a_server_that_restarts() {
    if !has_programs() {
        return;
    }
    let scratch = Scratch::new();
    let (disk, content) = scratch.noise("disk", 1 << 20);
    let mut server = Server::start(&["file", &disk]);
    let connection = Connection::start(&scratch, &server.address(), "2");
    let mut client = Client::new(UnixStream::connect(&connection.socket).unwrap());
    client.ask(Work::Read, 0, 4, &[]);
    assert!(client.reply().3 == content[..4 * BLOCK_BYTES]);
    server.stop();
    client.ask(Work::Read, 8, 4, &[]);
    // The client notices the loss, and finds nobody.
    thread::sleep(Duration::from_millis(500));
    let _server = Server::start_at(server.port, &["file", &disk]);
    assert!(client.reply().3 == content[8 * BLOCK_BYTES..12 * BLOCK_BYTES]);
    let ended = connection.stop().done();
    assert!(ended.text().contains("is lost"), "{ended:?}");
}

#[test]
fn killed_workers_of_both_hosts_lose_no_write() {
    if !has_programs() {
        return;
    }
    let scratch = Scratch::new();
    let server = slow_server();
    let device = format!("nbd://{}/,sessions=3", server.address());
    let (share, address) = Service::share(&device, &["--name", "disk"]);
    let socket = scratch.path("disk.sock");
    let from = format!("{address}/disk");
    let mut attach = Service::start(&["attach", &from, "--as", &format!("nbd:{socket}")]);
    attach.wait("attached");
    let mut services = [share, attach];
    let mut checker = Checker::new(&socket, 42);
    for number in 0..4 {
        checker.run(40);
        let service = &mut services[number % 2];
        let worker = *workers_of(&service.child).first().expect("a worker");
        kill_process(Pid::from_raw(worker.cast_signed()).unwrap(), Signal::KILL).unwrap();
        checker.run(40);
        service.wait("worker");
    }
    checker.settle(&server);
}
