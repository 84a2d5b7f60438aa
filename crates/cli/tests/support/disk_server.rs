//! Servers of disks: nbdkit, and the tests that the servers of every protocol have to pass.

use super::disk::{BLOCK_BYTES, BLOCKS, Checker, Client, Connection, copy};
use super::relay::Relay;
use super::{Scratch, Service, free_port, wait_until, workers_of};
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use wire::formats::block::Command as Work;

/// Bytes of the disks that are copied.
const DISK_BYTES: usize = 24 << 20;

/// A running server with one disk.
pub(crate) trait DiskServer {
    fn port(&self) -> u16;

    /// The disk as a device, through a server or a relay at `address`.
    fn disk_at(&self, address: &str) -> String;

    fn stop(&mut self);

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// The disk as a device.
    fn disk(&self) -> String {
        self.disk_at(&self.address())
    }
}

/// A running nbdkit.
pub(crate) struct Nbdkit {
    child: Child,
    port: u16,
}

impl Nbdkit {
    pub(crate) fn start(arguments: &[&str]) -> Nbdkit {
        Nbdkit::start_at(free_port(), arguments)
    }

    pub(crate) fn start_at(port: u16, arguments: &[&str]) -> Nbdkit {
        // nbdkit 1.32 with several threads for each connection may abort when one of them is cut (`sock >= 0`).
        let child = Command::new("nbdkit")
            .args(["--foreground", "--ipaddr", "127.0.0.1", "--port", &port.to_string(), "--threads", "1"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("nbdkit listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Nbdkit { child, port }
    }

    /// Compares the whole disk with what a checker has written, by a client of its own.
    pub(crate) fn compare(&self, checker: &Checker) {
        let mut direct = Client::new(TcpStream::connect(self.address()).unwrap());
        direct.ask(Work::Read, 0, BLOCKS, &[]);
        checker.compare(&direct.reply().3);
    }
}

impl DiskServer for Nbdkit {
    fn port(&self) -> u16 {
        self.port
    }

    fn disk_at(&self, address: &str) -> String {
        format!("nbd://{address}/")
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Copies the disk of a server, which `start` makes of a file.
pub(crate) fn check_copies_from_disk<S: DiskServer>(scratch: &Scratch, start: impl Fn(&str) -> S) {
    let (disk, content) = scratch.noise("disk", DISK_BYTES);
    for sessions in ["auto", "1", "5"] {
        let server = start(&disk);
        let connection = Connection::start(scratch, &server.disk(), sessions);
        let output = scratch.path("out");
        copy(&connection.uri(), &output);
        assert!(std::fs::read(&output).unwrap() == content, "sessions={sessions}: the copy differs");
        if let Ok(number) = sessions.parse::<usize>() {
            wait_until("the sessions", || connection.sessions(server.port()) == number);
        }
        let socket = connection.socket.clone();
        connection.stop().done();
        assert!(!std::fs::exists(&socket).unwrap(), "the socket is left behind");
    }
}

/// Copies to the disk of a server, which `start` makes of a file.
pub(crate) fn check_copies_to_disk<S: DiskServer>(scratch: &Scratch, start: impl Fn(&str) -> S) {
    let (input, content) = scratch.noise("in", DISK_BYTES);
    let disk = scratch.path("disk");
    for sessions in ["3", "auto"] {
        std::fs::write(&disk, vec![1; DISK_BYTES]).unwrap();
        let server = start(&disk);
        let connection = Connection::start(scratch, &server.disk(), sessions);
        copy(&input, &connection.uri());
        drop(connection);
        assert!(std::fs::read(&disk).unwrap() == content, "sessions={sessions}: the disk differs");
    }
}

/// Reads from a disk while its server, which `start` makes of a port and a file, restarts.
pub(crate) fn check_restart<S: DiskServer>(scratch: &Scratch, start: impl Fn(u16, &str) -> S) {
    let (disk, content) = scratch.noise("disk", 1 << 20);
    let mut server = start(free_port(), &disk);
    let connection = Connection::start(scratch, &server.disk(), "2");
    let mut client = Client::new(UnixStream::connect(&connection.socket).unwrap());
    client.ask(Work::Read, 0, 4, &[]);
    assert!(client.reply().3 == content[..4 * BLOCK_BYTES]);
    server.stop();
    client.ask(Work::Read, 8, 4, &[]);
    // The client notices the loss, and finds nobody.
    thread::sleep(Duration::from_millis(500));
    let _server = start(server.port(), &disk);
    assert!(client.reply().3 == content[8 * BLOCK_BYTES..12 * BLOCK_BYTES]);
    let ended = connection.stop().done();
    assert!(ended.text().contains("is lost"), "{ended:?}");
}

/// Writes to a disk while its sessions are killed. Returns the checker, to compare the disk with.
pub(crate) fn check_beside_killed_sessions(scratch: &Scratch, server: &impl DiskServer) -> Checker {
    let relay = Relay::default();
    let address = relay.start(&server.address());
    let connection = Connection::start(scratch, &server.disk_at(&address.to_string()), "4");
    let mut checker = Checker::new(&connection.socket, 23);
    cut_sessions(&mut checker, &relay);
    connection.stop().done();
    checker
}

/// Runs the checker while `relay` cuts sessions: 600 requests, or 10,000 with `OUTBOARD_SCOPE=large`.
fn cut_sessions(checker: &mut Checker, relay: &Relay) {
    let is_long = std::env::var("OUTBOARD_SCOPE").is_ok_and(|scope| scope == "large");
    let (kills, requests) = if is_long { (200, 50) } else { (5, 120) };
    for count in [1, 2, usize::MAX, 1, 3].into_iter().cycle().take(kills) {
        checker.run(requests / 2);
        relay.cut(count);
        checker.run(requests / 2);
    }
    println!("{} requests, {kills} times sessions killed", kills * requests);
    checker.settle();
}

/// Shares the disk and attaches it. Returns the checker after it ran while the workers of both hosts were killed.
pub(crate) fn check_beside_killed_workers(scratch: &Scratch, server: &impl DiskServer) -> Checker {
    let (share, address) = Service::share(&format!("{},sessions=3", server.disk()), &["--name", "disk"]);
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
    checker.settle();
    checker
}
