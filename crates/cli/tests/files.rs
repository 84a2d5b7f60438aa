//! Files on either side of a flow: the effects of a start, a retry and a fault on them.

mod support;

use rustix::net::sockopt::set_socket_linger;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;
use support::{Scratch, Service, outboard, wait_until};

#[test]
fn a_refused_attach_leaves_the_last_recording_as_it_is() {
    let scratch = Scratch::new();
    let (path, recorded) = scratch.noise("yesterday.rec", 5000);
    let port = format!("record=file:{path},frame=container");
    let record = ["--as", "null", "--via", "record", "--port", &port];
    // The name of the host is wrong, and then nobody answers.
    outboard(&[&["attach", "stuido/sensor"], &record[..]].concat()).refused(1, &["`stuido` is no name of a paired host"]);
    outboard(&[&["attach", "tcp://127.0.0.1:1/sensor"], &record[..]].concat()).refused(1, &["127.0.0.1:1"]);
    assert!(fs::read(&path).unwrap() == recorded);
}

#[test]
fn a_retry_keeps_the_lines_before_it() {
    let scratch = Scratch::new();
    let (file, log) = (scratch.path("run.toml"), scratch.path("log"));
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    fs::write(&log, "of an earlier start\n").unwrap();
    fs::write(&file, format!("[[connect]]\nsource = 'tcp:{address}'\nsink = 'file:{log}'\n")).unwrap();
    let mut service = Service::start(&["run", &file]);
    let mut stream = server.accept().unwrap().0;
    stream.write_all(b"one\n").unwrap();
    wait_until("the first line", || fs::read(&log).unwrap() == b"one\n");
    // The server crashes: its kernel sends RST.
    set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
    service.wait("warning");
    let mut stream = server.accept().unwrap().0;
    stream.write_all(b"two\n").unwrap();
    drop(stream);
    service.wait("connected");
    assert_eq!(fs::read_to_string(&log).unwrap(), "one\ntwo\n");
}
