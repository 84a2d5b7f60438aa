//! Every source to every sink, by a raw path ("The Partner architecture" (2002), figure 3), with the real program.
//!
//! Sources and sinks come from the table of device classes: a class without an entry here fails the test. `tests/vm`
//! covers `evdev`, `uinput`, `midi` and `v4l2`, which need kernel devices. `crates/devices` covers screens, which never end.

mod support;

use contract::Role;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use support::{Ended, PATIENCE, Scratch, command, end, outboard, pseudo_terminal, terminate, wait_until};
use wire::formats::video::{Geometry, Header, PixelFormat};

/// More than the buffers of ports, pipes and terminals.
const BYTES: usize = 200_000;
const PATTERN: &str = "pattern:size=1000,count=200,rate=0";
/// Width and height of a picture.
const PICTURE: (usize, usize) = (500, 100);
/// Kind byte of a data message of a serial line (`docs/reference/protocol.md`).
const SERIAL_DATA: u8 = 0;

/// A source that will send `content`.
struct Source {
    spec: String,
    stdin: Vec<u8>,
    content: Vec<u8>,
    /// Reports that all content was written. Only for a serial line: it has no end, and its messages have a kind byte.
    fed: Option<Receiver<()>>,
}

/// A sink, and the file with all received data; `None` if the sink stores nothing.
struct Sink {
    spec: String,
    output: Option<String>,
}

fn source(class: &str, scratch: &Scratch, pattern: &[u8]) -> Source {
    let (path, content) = scratch.noise("in", BYTES);
    let plain = |spec: String| Source { spec, stdin: Vec::new(), content: content.clone(), fed: None };
    match class {
        "file" => plain(format!("file:{path}")),
        "exec" => plain(format!("exec:cat {path}")),
        "stdin" => Source { stdin: content.clone(), ..plain("stdin".into()) },
        "pattern" => Source { content: pattern.to_vec(), ..plain(PATTERN.into()) },
        "null" => Source { content: Vec::new(), ..plain("null".into()) },
        "unix" => {
            let listener = UnixListener::bind(scratch.path("source")).unwrap();
            let content = content.clone();
            thread::spawn(move || {
                let mut stream = listener.accept().unwrap().0;
                stream.write_all(&content).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                let _ = stream.read_to_end(&mut Vec::new());
            });
            plain(format!("unix:{}", scratch.path("source")))
        }
        "tcp" => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (address, content) = (listener.local_addr().unwrap(), content.clone());
            thread::spawn(move || {
                let mut stream = listener.accept().unwrap().0;
                stream.write_all(&content).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                let _ = stream.read_to_end(&mut Vec::new());
            });
            plain(format!("tcp:{address}"))
        }
        "serial" => {
            let (path, fed) = fed_port(content.clone());
            Source { fed: Some(fed), ..plain(format!("serial:{path}")) }
        }
        "y4m" => {
            let path = scratch.path("film");
            std::fs::write(&path, film(&content)).unwrap();
            Source { content: pictures(&film(&content)), ..plain(format!("y4m:{path},rate=0")) }
        }
        "mjpeg" => {
            let path = scratch.path("images");
            std::fs::write(&path, images(&content)).unwrap();
            Source { content: compressed(&images(&content)), ..plain(format!("mjpeg:{path},rate=0")) }
        }
        other => panic!("the source `{other}` is not tested here: add it"),
    }
}

/// Creates a terminal as a serial port. Writes `content` into its other end after the terminal is in raw mode.
fn fed_port(content: Vec<u8>) -> (String, Receiver<()>) {
    let (mut master, path) = pseudo_terminal();
    let (done, fed) = channel();
    thread::spawn(move || {
        // Keep it open, so that the master does not hang up between its users.
        wait_until("the port is raw", || {
            tcgetattr(&master).is_ok_and(|modes| !modes.local_modes.contains(LocalModes::ICANON))
        });
        master.write_all(&content).unwrap();
        done.send(()).unwrap();
        thread::sleep(PATIENCE);
    });
    (path, fed)
}

/// Returns `None` if the class needs pictures and the source sends none.
fn sink(class: &str, scratch: &Scratch, source_class: &str) -> Option<Sink> {
    let output = scratch.path("out");
    let frame = if source_class == "serial" { ",frame=container" } else { "" };
    let spec = match class {
        "null" | "pattern" => return Some(Sink { spec: class.into(), output: None }),
        "stdout" => format!("stdout:{}", frame.trim_start_matches(',')),
        "file" => format!("file:{output}{frame}"),
        "exec" => format!("exec:cat >{output}{frame}"),
        "unix" => {
            let listener = UnixListener::bind(scratch.path("sink")).unwrap();
            collect(move || listener.accept().unwrap().0, &output);
            format!("unix:{}{frame}", scratch.path("sink"))
        }
        "tcp" => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            collect(move || listener.accept().unwrap().0, &output);
            format!("tcp:{address}{frame}")
        }
        "pty" => {
            let path = scratch.path("tty");
            if source_class != "null" {
                let link = path.clone();
                collect(move || terminal(&link), &output);
            }
            format!("pty:{path}")
        }
        "y4m" if source_class == "y4m" => format!("y4m:{output}"),
        "y4m" => return None,
        "mjpeg" if source_class == "mjpeg" => format!("mjpeg:{output}"),
        "mjpeg" => return None,
        other => panic!("the sink `{other}` is not tested here: add it"),
    };
    Some(Sink { spec, output: Some(output) })
}

/// Encodes bytes as a film of gray pictures.
fn film(bytes: &[u8]) -> Vec<u8> {
    let frames = bytes.chunks_exact(PICTURE.0 * PICTURE.1).flat_map(|picture| [b"FRAME\n", picture].concat());
    let line = format!("YUV4MPEG2 W{} H{} F30:1 Ip A0:0 Cmono\n", PICTURE.0, PICTURE.1);
    line.into_bytes().into_iter().chain(frames).collect()
}

/// Returns the messages of the complete pictures of a film.
fn pictures(film: &[u8]) -> Vec<u8> {
    let geometry = Geometry::new(PixelFormat::Gray8, PICTURE.0 as u32, PICTURE.1 as u32).unwrap();
    let header = Header::frame(geometry.with_rate(30, 1)).emit();
    let start = film.iter().position(|byte| *byte == b'\n').map_or(film.len(), |end| end + 1);
    let frames = film[start..].chunks_exact(b"FRAME\n".len() + geometry.bytes());
    frames.flat_map(|frame| [&header, &frame[b"FRAME\n".len()..]].concat()).collect()
}

/// The markers of a minimal JPEG image: start, size, one scan, end.
const IMAGE_START: [u8; 18] = [0xff, 0xd8, 0xff, 0xc2, 0, 9, 8, 0, 2, 0, 6, 1, 0, 0xff, 0xda, 0, 3, 1];
const IMAGE_END: [u8; 2] = [0xff, 0xd9];
const IMAGE_BYTES: usize = 1000;

/// Encodes bytes as consecutive JPEG images.
fn images(bytes: &[u8]) -> Vec<u8> {
    let unmarked = |chunk: &[u8]| chunk.iter().map(|byte| *byte & 0x7f).collect::<Vec<_>>();
    let image = |chunk: &[u8]| [&IMAGE_START[..], &unmarked(chunk), &IMAGE_END].concat();
    bytes.chunks_exact(IMAGE_BYTES).flat_map(image).collect()
}

/// Returns the messages of the complete images.
fn compressed(images: &[u8]) -> Vec<u8> {
    let header = Header::frame(Geometry::new(PixelFormat::Mjpeg, 6, 2).unwrap().with_rate(0, 1)).emit();
    let images = images.chunks_exact(IMAGE_START.len() + IMAGE_BYTES + IMAGE_END.len());
    images.flat_map(|image| [&header, image].concat()).collect()
}

/// Copies the input to a file, in a thread.
fn collect<S: Read>(accept: impl FnOnce() -> S + Send + 'static, output: &str) {
    let mut output = File::create(output).unwrap();
    thread::spawn(move || {
        let mut stream = accept();
        // A terminal with a closed other end returns an error.
        let _ = std::io::copy(&mut stream, &mut output);
    });
}

/// Waits for a terminal and opens it.
fn terminal(path: &str) -> File {
    wait_until("the terminal is there", || std::fs::exists(path).unwrap());
    let terminal = File::options().read(true).write(true).open(path).unwrap();
    let mut modes = tcgetattr(&terminal).unwrap();
    modes.make_raw();
    tcsetattr(&terminal, OptionalActions::Now, &modes).unwrap();
    terminal
}

/// Returns the data of the complete containers of a serial line.
fn untyped(mut containers: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    while let Ok(container) = wire::Container::parse(containers, BYTES) {
        let Some((whole, rest)) =
            containers.split_at_checked(wire::Container::BYTES + container.length as usize)
        else {
            break;
        };
        if let Some((&SERIAL_DATA, bytes)) = whole[wire::Container::BYTES..].split_first() {
            data.extend_from_slice(bytes);
        }
        containers = rest;
    }
    data
}

/// Runs the path until it ends or `is_complete` returns true.
fn run(source: &Source, sink: &Sink, mut is_complete: impl FnMut() -> bool) -> Ended {
    let arguments = ["connect", &source.spec, &sink.spec, "--json"];
    let mut command = command(&arguments);
    if let Some(output) = sink.output.as_ref().filter(|_| sink.spec.starts_with("stdout")) {
        command.stdout(File::create(output).unwrap());
    }
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), source.stdin.clone());
    thread::spawn(move || stdin.write_all(&input));
    if let Some(fed) = &source.fed {
        fed.recv_timeout(PATIENCE).unwrap();
        wait_until("everything arrived", &mut is_complete);
        terminate(&child);
    }
    end(child, &arguments.join(" "))
}

fn check(source_class: &str, sink_class: &str, pattern: &[u8]) {
    let what = format!("{source_class} to {sink_class}");
    let scratch = Scratch::new();
    let Some(sink) = sink(sink_class, &scratch, source_class) else { return };
    let source = source(source_class, &scratch, pattern);
    let is_terminal = sink_class == "pty";
    let arrived = || {
        let all =
            sink.output.as_ref().map(|output| std::fs::read(output).unwrap_or_default()).unwrap_or_default();
        match sink_class {
            "y4m" => pictures(&all),
            "mjpeg" => compressed(&all),
            _ if source.fed.is_some() && !is_terminal => untyped(&all),
            _ => all,
        }
    };
    // The sink stores nothing: check that more was written than the buffers hold.
    let is_complete = || sink.output.is_none() || arrived().len() >= source.content.len();
    let ended = run(&source, &sink, is_complete);
    assert_eq!(ended.code, Some(0), "{what}: {}", ended.stderr);
    let said = if sink_class == "stdout" { &ended.stderr } else { ended.text() };
    let told: Value = serde_json::from_str(said).unwrap_or_else(|error| panic!("{what}: {error}: {said}"));
    assert_eq!(told["drops"], serde_json::json!({}), "{what}");
    match (&sink.output, &source.fed) {
        (Some(_), _) => {
            wait_until(&what, is_complete);
            assert!(arrived() == source.content, "{what}: {} bytes arrived", arrived().len());
        }
        (None, None) => assert_eq!(told["bytes"], source.content.len(), "{what}"),
        (None, Some(_)) => assert!(told["bytes"].as_u64() > Some(0), "{what}: {told}"),
    }
}

/// Classes that need a kernel device, a screen, a daemon or a client; `crates/devices`, `disk.rs`, `iscsi.rs` and `tests/vm` test them.
const TESTED_ELSEWHERE: [&str; 17] = [
    "evdev", "uinput", "hid", "spnav", "midi", "audio", "tty", "block", "nbd", "iscsi", "v4l2", "pipewire",
    "x11", "wayland", "window", "rfb", "fb",
];

#[test]
fn every_source_of_bytes_connects_to_every_sink_of_its_format() {
    let pattern: Arc<[u8]> = outboard(&["connect", PATTERN, "stdout"]).done().stdout.into();
    assert_eq!(pattern.len(), BYTES);
    let classes = modules::registry::device_classes();
    let of_role = |role| {
        let of_role = classes.iter().filter(move |class| class.has_role(role)).map(|class| class.name());
        of_role.filter(|name| !TESTED_ELSEWHERE.contains(name))
    };
    thread::scope(|scope| {
        for source in of_role(Role::Device) {
            let pattern = pattern.clone();
            scope.spawn(move || {
                for sink in of_role(Role::Application) {
                    check(source, sink, &pattern);
                }
            });
        }
    });
}

#[test]
fn pairs_and_frames_work_on_one_host() {
    let scratch = Scratch::new();
    let lines = "one\ntwo\n\nlast";
    std::fs::write(scratch.path("lines"), lines).unwrap();
    let from = format!("file:{},frame=line", scratch.path("lines"));
    let ended = outboard(&["connect", &from, "stdout:frame=line", "--via", "compress | bundle(2)"]).done();
    assert_eq!(ended.text(), "one\ntwo\n\nlast\n");
    let lossy = ["connect", "pattern:count=9,rate=0", "null", "--via", "fault(loss=100%)", "--json"];
    let told = outboard(&lossy).done().json();
    let dropped: u64 = told["drops"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!((told["messages"].as_u64(), dropped), (Some(0), 9), "nothing is lost in silence");
}

#[test]
fn a_sink_that_takes_another_format_is_refused() {
    let scratch = Scratch::new();
    let socket = format!("nbd:{}", scratch.path("disk"));
    let says =
        "the sink: `nbd` takes the format `block`, and the source `pattern` sends `bytes`: write `stdout`";
    outboard(&["connect", "pattern", &socket]).refused(2, &[says]);
    outboard(&["connect", "pattern", "uinput"])
        .refused(2, &["the sink: `uinput` copies a device of class `evdev`, and the source is `pattern`"]);
    assert!(!std::path::Path::new(&scratch.path("disk")).exists());
}

#[test]
fn a_failure_is_reported_with_its_cause() {
    let scratch = Scratch::new();
    let nowhere = format!("file:{}/none", scratch.path("no"));
    outboard(&["connect", &nowhere, "null"]).refused(1, &[&nowhere["file:".len()..]]);
    outboard(&["connect", "exec:exit 3", "null"]).refused(1, &["exit 3"]);
    outboard(&["connect", "pattern", "file:/dev/full"]).refused(1, &["/dev/full"]);
}
