//! Files on either side of a flow: the effects of a start, a retry and a fault on them.

mod support;

use rustix::net::sockopt::set_socket_linger;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;
use support::{Scratch, Service, outboard, terminate, wait_until};
use wire::{BODY_BYTES_MAX, Container};

#[test]
fn a_refused_attach_leaves_the_last_recording_as_it_is() {
    let scratch = Scratch::new();
    let (path, recorded) = scratch.noise("yesterday.rec", 5000);
    let port = format!("record=file:{path},frame=container");
    let record = ["--as", "null", "--via", "record", "--port", &port];
    // The name of the host is wrong, and then nobody answers.
    outboard(&[&["attach", "stuido/sensor"], &record[..]].concat())
        .refused(1, &["`stuido` is no name of a paired host"]);
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

/// A film of small pictures.
fn film(pictures: u8) -> Vec<u8> {
    let header = b"YUV4MPEG2 W4 H2 F30:1 Ip A0:0 Cmono\n".to_vec();
    (0..pictures).fold(header, |film, number| [&film[..], b"FRAME\n", &[number; 8]].concat())
}

#[test]
fn a_film_that_is_cut_short_arrives_once_and_the_fault_is_named() {
    const PICTURES: u8 = 200;
    let scratch = Scratch::new();
    let [whole, cut, expected, copy] =
        ["whole.y4m", "cut.y4m", "expected", "copy"].map(|name| scratch.path(name));
    fs::write(&whole, film(PICTURES)).unwrap();
    let film = film(PICTURES + 1);
    fs::write(&cut, &film[..film.len() - 3]).unwrap();
    outboard(&["connect", &format!("y4m:{whole},rate=0"), &format!("y4m:{expected}")]).done();
    let expected = fs::read(&expected).unwrap();
    let (cut, to) = (format!("y4m:{cut},rate=0"), format!("y4m:{copy}"));
    let fault = "cut.y4m: it ends 5 bytes into a frame of 8";
    for hub in [&[][..], &["--hub", "copy"]] {
        let (_share, address) = Service::share(&cut, hub);
        outboard(&["attach", &format!("{address}/cut.y4m"), "--as", &to]).refused_with(1, fault);
        assert!(fs::read(&copy).unwrap() == expected, "{hub:?}");
    }
    outboard(&["connect", &cut, &to]).refused_with(1, fault);
    assert!(fs::read(&copy).unwrap() == expected);
}

/// Returns the bodies of the messages in a file of containers.
fn bodies(path: &str) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    let (mut rest, mut bodies) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let container = Container::parse(rest, BODY_BYTES_MAX).unwrap();
        let (body, behind) = rest[Container::BYTES..].split_at(container.length as usize);
        bodies.push(body.to_vec());
        rest = behind;
    }
    bodies
}

#[test]
fn a_recording_without_a_frame_has_messages_of_any_size() {
    let scratch = Scratch::new();
    for size in [40, 2_000_000] {
        let [recording, replayed] =
            ["recording", "replayed"].map(|name| scratch.path(&format!("{name}{size}")));
        let (_share, address) = Service::share(&format!("pattern:rate=0,size={size},count=4"), &[]);
        let from = format!("{address}/pattern");
        let port = format!("record=file:{recording}");
        outboard(&["attach", &from, "--as", "null", "--via", "record(sink)", "--port", &port]).done();
        let recorded = bodies(&recording);
        assert!(recorded.iter().map(Vec::len).eq([size; 4]), "{} messages", recorded.len());
        let (from, to) =
            (format!("file:{recording},frame=container"), format!("file:{replayed},frame=container"));
        outboard(&["connect", &from, &to, "--via", "replay"]).done();
        assert!(bodies(&replayed) == recorded);
    }
}

#[test]
fn a_port_that_takes_no_bytes_is_refused_before_its_file_is_opened() {
    let scratch = Scratch::new();
    let (path, film) = scratch.noise("film.y4m", 5000);
    let port =
        |port: &str| outboard(&["connect", "pattern:count=1", "null", "--via", "record", "--port", port]);
    port(&format!("record=y4m:{path}"))
        .refused(2, &["`y4m` takes the format `video`, and a side port sends bytes: write `file`"]);
    port("record=uinput").refused(2, &["`uinput` stands in for a device", "write `file`"]);
    assert!(fs::read(&path).unwrap() == film);
}

/// A file system of 64 KiB, unmounted on drop.
struct SmallDisk(String);

impl SmallDisk {
    fn mount(path: String) -> Option<SmallDisk> {
        fs::create_dir(&path).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "small", &path]).status();
        mounted.is_ok_and(|status| status.success()).then_some(SmallDisk(path))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--lazy", &self.0]).status();
    }
}

#[test]
fn a_recording_on_a_full_disk_is_reported() {
    let scratch = Scratch::new();
    let Some(disk) = SmallDisk::mount(scratch.path("disk")) else {
        return testkit::skip::until_vm("this user may mount no disk");
    };
    let (_share, address) = Service::share("pattern:rate=500,size=1000", &[]);
    let port = format!("record=file:{}/recording", disk.0);
    let from = format!("{address}/pattern");
    let mut attach =
        Service::start(&["attach", &from, "--as", "null", "--via", "record(sink)", "--port", &port]);
    let told = attach.wait("module")["incident"].take();
    assert!(told.as_str().unwrap().contains("the disk of its side port is full"), "{told}");
    terminate(&attach.child);
    let told = attach.wait("module")["incident"].take();
    assert!(told.as_str().unwrap().contains("messages were not written to its side port"), "{told}");
    let connect = ["connect", "pattern:rate=0,size=1000,count=200", "null", "--via", "record(sink)"];
    let told = outboard(&[&connect[..], &["--port", &port, "--json"]].concat()).done().json();
    let told = told["incidents"].to_string();
    assert!(told.contains("messages were not written to its side port"), "{told}");
}
