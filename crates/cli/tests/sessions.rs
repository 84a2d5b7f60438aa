//! The disk of an unmodified NBD server over several sessions, for unmodified clients: nbdkit at one end, nbdcopy at the other.
//! `OUTBOARD_SCOPE=large` makes the checker send 10,000 requests while it kills sessions.

mod support;

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use support::disk::{
    BLOCK_BYTES, BLOCKS, Checker, Client, Connection, check_beside_killed_sessions,
    check_beside_killed_workers, copy,
};
use support::relay::Relay;
use support::{Scratch, Service, outboard, wait_until};
use wire::formats::block::Command as Work;

const DISK_BYTES: usize = 24 << 20;
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

    /// The disk as a device.
    fn disk(&self) -> String {
        format!("nbd://{}/", self.address())
    }

    /// Compares the whole disk with what a checker has written, by a client of its own.
    fn compare(&self, checker: &Checker) {
        let mut direct = Client::new(TcpStream::connect(self.address()).unwrap());
        direct.ask(Work::Read, 0, BLOCKS, &[]);
        checker.compare(&direct.reply().3);
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

#[test]
fn a_copy_is_equal_over_any_number_of_sessions() {
    if !has_programs() {
        return;
    }
    let scratch = Scratch::new();
    let (disk, content) = scratch.noise("disk", DISK_BYTES);
    for sessions in ["auto", "1", "5"] {
        let server = Server::start(&["file", &disk]);
        let connection = Connection::start(&scratch, &server.disk(), sessions);
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
        let connection = Connection::start(&scratch, &server.disk(), sessions);
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
    let connection = Connection::start(&scratch, &single.disk(), "auto");
    copy(&connection.uri(), "null:");
    assert_eq!(connection.sessions(single.port), 1);
}

#[test]
fn a_hub_of_such_a_disk_is_refused() {
    if !has_programs() {
        return;
    }
    let scratch = Scratch::new();
    let server = Server::start(&["memory", "1M"]);
    let (_share, address) = Service::share(&server.disk(), &["--name", "disk", "--hub", "copy"]);
    let node = format!("nbd:{}", scratch.path("refused.sock"));
    outboard(&["attach", &format!("{address}/disk"), "--as", &node]).refused(1, &["without `--hub`"]);
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
    let address = relay.start(&server.address());
    let connection = Connection::start(&scratch, &format!("nbd://{address}/"), "4");
    let mut checker = Checker::new(&connection.socket, 23);
    check_beside_killed_sessions(&mut checker, &relay);
    server.compare(&checker);
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
    let connection = Connection::start(&scratch, &server.disk(), "2");
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
    let checker = check_beside_killed_workers(&scratch, &format!("{},sessions=3", server.disk()));
    server.compare(&checker);
}
