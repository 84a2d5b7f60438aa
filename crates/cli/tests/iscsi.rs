//! The disk of an unmodified iSCSI target over several sessions, for unmodified clients: tgtd at one end, nbdcopy, nbdinfo and qemu-img
//! at the other. `OUTBOARD_SCOPE=large` makes the checker send 10,000 requests while it kills sessions.

mod support;

use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use support::disk::{BLOCK_BYTES, BLOCKS, Connection, copy};
use support::disk_server::{
    DiskServer, check_beside_killed_sessions, check_beside_killed_workers, check_copies_from_disk,
    check_copies_to_disk, check_restart,
};
use support::{Scratch, free_port, outboard, wait_until};

const TARGET: &str = "iqn.2026-11.test:disk";

/// Returns whether the programs of these tests are installed.
fn has_programs() -> bool {
    testkit::skip::has_program("tgtd", "tgt") && testkit::skip::has_program("nbdcopy", "libnbd-bin")
}

/// A running tgtd with one target, which has a controller as its unit 0 and a file as its unit 1.
struct Tgtd {
    child: Child,
    port: u16,
    /// The socket for tgtadm.
    control: String,
}

impl Tgtd {
    fn start(scratch: &Scratch, file: &str) -> Tgtd {
        Tgtd::start_at(scratch, free_port(), file)
    }

    fn start_at(scratch: &Scratch, port: u16, file: &str) -> Tgtd {
        let control = scratch.path("tgt");
        let child = Command::new("tgtd")
            .args(["--foreground", "--control-port", "0", "--iscsi", &format!("portal=127.0.0.1:{port}")])
            .env("TGT_IPC_SOCKET", &control)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Tgtd { child, port, control };
        wait_until("tgtd runs", || server.run(&["--op", "show", "--mode", "sys"]).status.success());
        server.admin(&["--op", "new", "--mode", "target", "--tid", "1", "-T", TARGET]);
        server.admin(&["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", file]);
        server.admin(&["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"]);
        server
    }

    fn run(&self, words: &[&str]) -> Output {
        Command::new("tgtadm")
            .args(["--control-port", "0", "--lld", "iscsi"])
            .args(words)
            .env("TGT_IPC_SOCKET", &self.control)
            .output()
            .unwrap()
    }

    fn admin(&self, words: &[&str]) {
        let done = self.run(words);
        assert!(done.status.success(), "tgtadm {words:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

impl DiskServer for Tgtd {
    fn port(&self) -> u16 {
        self.port
    }

    fn disk_at(&self, address: &str) -> String {
        format!("iscsi://{address}/{TARGET}/1")
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Tgtd {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Makes the disk of a checker.
fn small_disk(scratch: &Scratch) -> String {
    let disk = scratch.path("disk");
    std::fs::write(&disk, vec![0; BLOCKS * BLOCK_BYTES]).unwrap();
    disk
}

#[test]
fn a_copy_is_equal_over_any_number_of_sessions() {
    if has_programs() {
        let scratch = Scratch::new();
        check_copies_from_disk(&scratch, |file| Tgtd::start(&scratch, file));
    }
}

#[test]
fn a_copy_to_the_disk_is_equal() {
    if has_programs() {
        let scratch = Scratch::new();
        check_copies_to_disk(&scratch, |file| Tgtd::start(&scratch, file));
    }
}

#[test]
fn other_clients_read_and_write_the_disk() {
    if !has_programs()
        || !testkit::skip::has_program("qemu-img", "qemu-utils")
        || !testkit::skip::has_program("nbdinfo", "libnbd-bin")
    {
        return;
    }
    let scratch = Scratch::new();
    let (disk, content) = scratch.noise("disk", 4 << 20);
    let server = Tgtd::start(&scratch, &disk);
    let connection = Connection::start(&scratch, &server.disk(), "2");
    let info = Command::new("nbdinfo").arg(connection.uri()).output().unwrap();
    let text = String::from_utf8_lossy(&info.stdout);
    for says in ["export-size: 4194304", "can_flush: true", "can_multi_conn: true", "is_read_only: false"] {
        assert!(text.contains(says), "{says}: {text}");
    }
    let converted = scratch.path("converted");
    let image = Command::new("qemu-img")
        .args(["convert", "-f", "raw", "-O", "raw", &connection.uri(), &converted])
        .output()
        .unwrap();
    assert!(image.status.success(), "{}", String::from_utf8_lossy(&image.stderr));
    assert!(std::fs::read(&converted).unwrap() == content, "the image of qemu-img differs");
    connection.stop().done();
}

#[test]
fn a_read_only_disk_is_offered_as_one() {
    if !has_programs() {
        return;
    }
    let scratch = Scratch::new();
    let (disk, content) = scratch.noise("disk", 1 << 20);
    let server = Tgtd::start(&scratch, &disk);
    server.admin(&[
        "--op",
        "update",
        "--mode",
        "logicalunit",
        "--tid",
        "1",
        "--lun",
        "1",
        "--params",
        "readonly=1",
    ]);
    let connection = Connection::start(&scratch, &server.disk(), "1");
    let output = scratch.path("out");
    copy(&connection.uri(), &output);
    assert!(std::fs::read(&output).unwrap() == content, "the copy differs");
    let written = Command::new("nbdcopy").args([&output, &connection.uri()]).output().unwrap();
    assert!(!written.status.success(), "a read-only disk was written");
    connection.stop().done();
}

#[test]
fn a_target_that_cannot_be_used_is_explained() {
    if !has_programs() {
        return;
    }
    let scratch = Scratch::new();
    let server = Tgtd::start(&scratch, &small_disk(&scratch));
    let refused = |from: &str, code: i32, says: &[&str]| {
        let node = format!("nbd:{}", scratch.path("refused.sock"));
        outboard(&["connect", from, &node]).refused(code, says);
    };
    let address = server.address();
    refused(&format!("iscsi://{address}/iqn.absent/1"), 1, &["no target with this name"]);
    refused(&format!("iscsi://{address}/{TARGET}/0"), 1, &["no disk"]);
    refused(&format!("iscsi://{address}/{TARGET}/7"), 1, &["unit"]);
    refused(&format!("iscsi://{address}/{TARGET}"), 2, &["iscsi://HOST:PORT/TARGET/LUN"]);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    refused(
        &format!("iscsi://{}/{TARGET}/1,timeout=300ms", silent.local_addr().unwrap()),
        1,
        &["does not answer for 300ms", "is it an iSCSI server?"],
    );
    server.admin(&["--op", "new", "--mode", "account", "--user", "me", "--password", "secret"]);
    server.admin(&["--op", "bind", "--mode", "account", "--tid", "1", "--user", "me"]);
    refused(&server.disk(), 1, &["demands a password (CHAP)"]);
}

#[test]
fn no_write_is_lost_torn_or_overtaken_when_sessions_are_killed() {
    if has_programs() {
        let scratch = Scratch::new();
        let disk = small_disk(&scratch);
        let server = Tgtd::start(&scratch, &disk);
        check_beside_killed_sessions(&scratch, &server).compare(&std::fs::read(&disk).unwrap());
    }
}

#[test]
fn requests_wait_for_a_target_that_restarts() {
    if has_programs() {
        let scratch = Scratch::new();
        check_restart(&scratch, |port, file| Tgtd::start_at(&scratch, port, file));
    }
}

#[test]
fn killed_workers_of_both_hosts_lose_no_write() {
    if has_programs() {
        let scratch = Scratch::new();
        let disk = small_disk(&scratch);
        let server = Tgtd::start(&scratch, &disk);
        check_beside_killed_workers(&scratch, &server).compare(&std::fs::read(&disk).unwrap());
    }
}
