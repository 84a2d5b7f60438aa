//! The disk of an unmodified NBD server over several sessions, for unmodified clients: nbdkit at one end, nbdcopy at the other.
//! `OUTBOARD_SCOPE=large` makes the checker send 10,000 requests while it kills sessions.

mod support;

use std::net::TcpListener;
use std::process::Command;
use support::disk::{BLOCK_BYTES, BLOCKS, Connection, copy};
use support::disk_server::{
    DiskServer, Nbdkit, check_beside_killed_sessions, check_beside_killed_workers, check_copies_from_disk,
    check_copies_to_disk, check_restart,
};
use support::{Scratch, outboard, wait_until};

/// Returns whether the programs of these tests are installed.
fn has_programs() -> bool {
    testkit::skip::has_program("nbdkit", "nbdkit") && testkit::skip::has_program("nbdcopy", "libnbd-bin")
}

#[test]
fn a_copy_is_equal_over_any_number_of_sessions() {
    if has_programs() {
        check_copies_from_disk(&Scratch::new(), |file| Nbdkit::start(&["file", file]));
    }
}

#[test]
fn a_copy_to_the_disk_is_equal() {
    if has_programs() {
        check_copies_to_disk(&Scratch::new(), |file| Nbdkit::start(&["file", file]));
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
    let single = Nbdkit::start(&["--filter=multi-conn", "memory", "1M", "multi-conn-mode=disable"]);
    refused(&format!("nbd://{}/,sessions=4", single.address()), 2, &["multi-conn", "sessions=auto"]);
    let other =
        Nbdkit::start(&["--filter=exportname", "memory", "1M", "exportname-strict=true", "exportname=main"]);
    refused(&format!("nbd://{}/absent", other.address()), 1, &["absent"]);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    refused(
        &format!("nbd://{}/,timeout=300ms", silent.local_addr().unwrap()),
        1,
        &["does not answer for 300ms", "is it an NBD server?"],
    );
    drop(silent);
    refused("nbd://127.0.0.1:99999/", 1, &["the port is no number below 65536\n"]);
    // Without the promise, `auto` is one session, which needs none.
    let connection = Connection::start(&scratch, &single.disk(), "auto");
    copy(&connection.uri(), "null:");
    assert_eq!(connection.sessions(single.port()), 1);
}

#[test]
fn a_hub_of_such_a_disk_is_refused() {
    if !has_programs() {
        return;
    }
    let server = Nbdkit::start(&["memory", "1M"]);
    outboard(&["share", &server.disk(), "--hub", "copy", "--listen", "127.0.0.1:0"])
        .refused(2, &["a disk serves one host at a time"]);
}

/// qemu-nbd exits when its last client leaves.
#[test]
fn a_server_that_exits_with_its_last_client_serves_until_the_disk_is_closed() {
    if !has_programs() || !testkit::skip::has_program("qemu-nbd", "qemu-utils") {
        return;
    }
    let scratch = Scratch::new();
    let ((disk, content), socket) = (scratch.noise("disk", 1 << 20), scratch.path("qemu.sock"));
    let mut server =
        Command::new("qemu-nbd").args(["--format", "raw", "--socket", &socket, &disk]).spawn().unwrap();
    // A connection would be its first client.
    let listens = |line: &str| line.ends_with(&socket) && line.contains(" 00010000 ");
    wait_until("qemu-nbd listens", || {
        std::fs::read_to_string("/proc/net/unix").unwrap().lines().any(listens)
    });
    let connection = Connection::start(&scratch, &format!("nbd:{socket}"), "auto");
    assert!(server.try_wait().unwrap().is_none(), "it has a client");
    let output = scratch.path("out");
    copy(&connection.uri(), &output);
    assert!(std::fs::read(&output).unwrap() == content, "the copy differs");
    connection.stop().done();
    assert!(server.wait().unwrap().success());
}

/// The checker's disk. Its writes take long enough to be on their way when a session is lost.
fn slow_server() -> Nbdkit {
    let size = format!("{}", BLOCKS * BLOCK_BYTES);
    Nbdkit::start(&["--filter=delay", "memory", &size, "wdelay=3ms"])
}

#[test]
fn no_write_is_lost_torn_or_overtaken_when_sessions_are_killed() {
    if has_programs() {
        let server = slow_server();
        server.compare(&check_beside_killed_sessions(&Scratch::new(), &server));
    }
}

#[test]
fn requests_wait_for_a_server_that_restarts() {
    if has_programs() {
        check_restart(&Scratch::new(), |port, file| Nbdkit::start_at(port, &["file", file]));
    }
}

#[test]
fn killed_workers_of_both_hosts_lose_no_write() {
    if has_programs() {
        let server = slow_server();
        server.compare(&check_beside_killed_workers(&Scratch::new(), &server));
    }
}
