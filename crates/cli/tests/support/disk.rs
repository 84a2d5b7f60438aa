//! Disks: `outboard connect` to a local socket, a client of it, and a checker of its writes.

use super::{Ended, Scratch, command, end, terminate, wait_until};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use wire::formats::block::Command as Work;
use wire::nbd::{Asked, ClientNegotiation, ClientStep, REPLY_BYTES, Reply, Request};

/// The checker's disk: small, so that its writes meet often.
pub(crate) const BLOCK_BYTES: usize = 4096;
pub(crate) const BLOCKS: usize = 96;
/// Requests of the checker at a time.
const DEPTH: usize = 16;

/// `outboard connect` from a server to a local socket.
pub(crate) struct Connection {
    child: Option<Child>,
    pub(crate) socket: String,
}

impl Connection {
    /// Connects the disk at `from`, an address without options.
    pub(crate) fn start(scratch: &Scratch, from: &str, sessions: &str) -> Connection {
        let socket = scratch.path(&format!("disk-{sessions}.sock"));
        let from = format!("{from},sessions={sessions}");
        let child = command(&["connect", &from, &format!("nbd:{socket}")]).spawn().unwrap();
        wait_until("the socket of the disk", || UnixStream::connect(&socket).is_ok());
        Connection { child: Some(child), socket }
    }

    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket)
    }

    /// Counts its connections to a server at this port.
    pub(crate) fn sessions(&self, port: u16) -> usize {
        let Some(child) = &self.child else { return 0 };
        let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", child.id())).unwrap();
        let remote = format!(":{port:04X}");
        let is_open = |line: &&str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.get(2).is_some_and(|address| address.ends_with(&remote)) && fields.get(3) == Some(&"01")
        };
        table.lines().filter(is_open).count()
    }

    pub(crate) fn stop(mut self) -> Ended {
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

/// Copies with an unmodified client.
#[track_caller]
pub(crate) fn copy(from: &str, to: &str) {
    let copied = Command::new("nbdcopy").args(["--flush", from, to]).output().unwrap();
    assert!(copied.status.success(), "nbdcopy {from} {to}: {}", String::from_utf8_lossy(&copied.stderr));
}

/// A client of an NBD server.
pub(crate) struct Client<S> {
    stream: S,
    next_cookie: u64,
    /// Command, first block and blocks of each request without a reply.
    asked: BTreeMap<u64, (Work, usize, usize)>,
}

impl<S: Read + Write> Client<S> {
    pub(crate) fn new(mut stream: S) -> Client<S> {
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

    pub(crate) fn ask(&mut self, work: Work, first: usize, count: usize, data: &[u8]) -> u64 {
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
    pub(crate) fn reply(&mut self) -> (Work, usize, usize, Vec<u8>) {
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
pub(crate) struct Checker {
    client: Client<UnixStream>,
    /// The number that each block has after its last write.
    content: [u32; BLOCKS],
    number: u32,
    random: u64,
}

impl Checker {
    pub(crate) fn new(socket: &str, seed: u64) -> Checker {
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
    pub(crate) fn run(&mut self, requests: usize) {
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

    /// Waits for all replies, and for a flush.
    pub(crate) fn settle(&mut self) {
        while !self.client.asked.is_empty() {
            self.reply();
        }
        self.client.ask(Work::Flush, 0, 0, &[]);
        self.reply();
    }

    /// Compares the bytes of the whole disk.
    #[track_caller]
    pub(crate) fn compare(&self, disk: &[u8]) {
        assert_eq!(disk.len(), BLOCKS * BLOCK_BYTES);
        check(disk, &self.content, 0);
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
