//! The kind of an attached device: shown, remembered, expected. Bytes on a terminal, and screens that are only
//! viewed.

mod support;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use support::users::{User, paired};
use support::{PATIENCE, Scratch, Service, end, outboard, pseudo_terminal};

/// Shares a device under the name `camera`.
fn share(user: &User, device: &str) -> (Service, String) {
    let (service, address) = user.shares(device, &["--name", "camera"]);
    (service, format!("{address}/camera"))
}

/// Writes a film of one small picture.
fn film(scratch: &Scratch) -> String {
    let path = scratch.path("film.y4m");
    let mut film = b"YUV4MPEG2 W2 H2 F25:1 Ip C420jpeg\nFRAME\n".to_vec();
    film.extend([128; 6]);
    std::fs::write(&path, film).unwrap();
    format!("y4m:{path}")
}

#[test]
fn a_device_that_does_not_fit_its_application_is_not_opened() {
    let (mut share, address) = Service::share("pattern", &["--name", "plc", "--insecure"]);
    let from = format!("{address}/plc");
    let words = "plc: `uinput` copies a device of class `evdev`, and this one is of class `pattern`: use `--as stdout`";
    outboard(&["attach", &from, "--as", "uinput", "--insecure"]).refused_with(1, words);
    share.wait("peer-left");
    assert!(share.seen.iter().all(|event| event["event"] != "attached"), "{:?}", share.seen);
}

#[test]
fn a_device_of_another_kind_than_before_is_refused_without_a_terminal() {
    let (studio, laptop) = paired();
    let scratch = Scratch::new();
    let (pictures, from) = share(&studio, &film(&scratch));
    let mut attach = laptop.serves(&["attach", &from, "--as", "null"]);
    let kind = attach.wait("kind");
    assert_eq!((&kind["name"], &kind["kind"]), (&"camera".into(), &"camera".into()), "{kind}");
    assert_eq!((&kind["class"], &kind["known"]), (&"y4m".into(), &false.into()), "{kind}");
    assert!(
        attach.seen.iter().all(|event| event["event"] != "attached"),
        "the node was made before the check"
    );
    attach.wait("attached");
    attach.stop();
    let mut again = laptop.serves(&["attach", &from, "--as", "null"]);
    assert_eq!(again.wait("kind")["known"], true);
    again.stop();
    pictures.stop();

    let path = scratch.path("escapes");
    std::fs::write(&path, "\u{1b}]0;owned\u{7}").unwrap();
    let (_bytes, from) = share(&studio, &format!("file:{path}"));
    let target = format!("file:{}", scratch.path("received"));
    laptop
        .says(&["attach", &from, "--as", &target, "--json"])
        .refused_with(1, "the kind of this device was `camera` and is `bytes` now");
    assert!(!std::path::Path::new(&scratch.path("received")).exists());
    laptop.says(&["attach", &from, "--as", &target]).refused_with(1, "`--expect bytes`");
    laptop.says(&["attach", &from, "--as", &target, "--expect", "camera"]).refused_with(1, "not `camera`");
    // The expectation is remembered, too.
    laptop.says(&["attach", &from, "--as", &target, "--expect", "bytes"]).done();
    laptop.says(&["attach", &from, "--as", &target]).done();
}

#[test]
fn an_expected_kind_is_checked_in_run_files_and_without_authentication() {
    let user = User::new();
    let (_share, address) = user.shares("pattern", &["--name", "wheel", "--insecure"]);
    let from = format!("{address}/wheel");
    user.says(&["attach", &from, "--insecure", "--as", "null", "--expect", "gamepad"])
        .refused_with(1, "the kind of this device is `bytes`, and not `gamepad`");
    user.says(&["attach", &from, "--expect", "wheel"]).refused_with(2, "invalid value 'wheel'");
    user.says(&["attach", "a/x", "b/x", "--expect", "mouse"])
        .refused_with(2, "2 devices and 1 expected kinds");

    let file = user.0.path("run.toml");
    let entry = |kind: &str| {
        let text = format!("[[attach]]\nfrom = '{from}'\nas = 'null'\ninsecure = true\nexpect = '{kind}'\n");
        std::fs::write(&file, text).unwrap();
    };
    entry("gamepad");
    let mut run = user.serves(&["run", &file]);
    let problem = run.wait("warning")["problem"].to_string();
    assert!(problem.contains("the kind of this device is `bytes`, and not `gamepad`"), "{problem}");
    run.stop();
    entry("wheel");
    user.says(&["run", "--check", &file]).refused_with(2, "there is no kind `wheel`");
}

/// Runs a command with a terminal as its three streams. Returns the child and the other end of the terminal.
fn in_terminal(mut command: Command) -> (std::process::Child, File) {
    let (master, path) = pseudo_terminal();
    let slave = || -> Stdio {
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        OwnedFd::from(file).into()
    };
    let child = command.stdin(slave()).stdout(slave()).stderr(slave()).spawn().unwrap();
    (child, master)
}

/// Reads from a terminal until it shows `words`.
#[track_caller]
fn read_until(terminal: &mut File, words: &str) -> String {
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while !text.contains(words) {
        let count = terminal.read(&mut buffer).unwrap_or_else(|error| panic!("{error}: {text}"));
        text.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    text
}

#[test]
fn a_terminal_is_asked_about_another_kind() {
    let (studio, laptop) = paired();
    let scratch = Scratch::new();
    let (pictures, from) = share(&studio, &film(&scratch));
    laptop.says(&["attach", &from, "--as", "null"]).done();
    pictures.stop();
    let path = scratch.path("text");
    std::fs::write(&path, "text").unwrap();
    let (_bytes, from) = share(&studio, &format!("file:{path}"));
    let target = format!("file:{}", scratch.path("received"));
    for (answer, code) in [("n\n", Some(1)), ("y\n", Some(0))] {
        let (child, mut terminal) = in_terminal(laptop.command(&["attach", &from, "--as", &target]));
        let shown = read_until(&mut terminal, "[y/N]");
        assert!(shown.contains("was of kind camera and is of kind bytes now"), "{shown}");
        assert!(!std::path::Path::new(&scratch.path("received")).exists());
        terminal.write_all(answer.as_bytes()).unwrap();
        assert_eq!(end(child, "attach").code, code, "{shown}");
    }
    assert_eq!(std::fs::read(scratch.path("received")).unwrap(), b"text");
}

#[test]
fn a_terminal_gets_bytes_on_request_and_control_characters_on_a_second_one() {
    let user = User::new();
    let path = user.0.path("escapes");
    std::fs::write(&path, "\u{1b}]0;owned\u{7}Grüße\u{9b}31m\tend\n").unwrap();
    let (_share, address) = user.shares(&format!("file:{path}"), &["--name", "camera", "--insecure"]);
    let from = format!("{address}/camera");
    let shows = |words: &[&str], last: &str| {
        let arguments = [&["attach", &from, "--insecure"], words].concat();
        let (child, mut terminal) = in_terminal(user.command(&arguments));
        let text = read_until(&mut terminal, last);
        (text, end(child, "attach").code)
    };
    let (text, code) = shows(&[], "--as stdout");
    assert!(!text.contains("owned") && code == Some(2), "{text}");
    let (text, code) = shows(&["--as", "stdout"], "has ended");
    assert!(text.contains("?]0;owned?Grüße\u{fffd}?31m\tend\r\n") && code == Some(0), "{text:?}");
    let (text, code) = shows(&["--as", "stdout", "--raw"], "has ended");
    assert!(text.contains("\u{1b}]0;owned\u{7}Grüße\u{9b}31m\tend") && code == Some(0), "{text:?}");
    // A pipe gets all bytes without a word.
    let piped = user.says(&["attach", &from, "--insecure"]).done();
    assert_eq!(piped.stdout, std::fs::read(&path).unwrap());
    user.says(&["attach", "a/x", "--as", "null", "--raw"]).refused_with(2, "add `--as stdout`");
}

const SIDE: u8 = 4;

/// Reads `COUNT` bytes.
fn bytes<const COUNT: usize>(stream: &mut TcpStream) -> std::io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    stream.read_exact(&mut bytes).map(|()| bytes)
}

fn skip(stream: &mut TcpStream, count: u64) -> std::io::Result<()> {
    std::io::copy(&mut stream.take(count), &mut std::io::sink()).map(drop)
}

/// A VNC server with a picture that changes with every request. Returns its address and the input that it receives: the
/// numbers of the messages (RFC 6143, 7.5).
fn vnc_server() -> (String, Receiver<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (to, received) = channel();
    thread::spawn(move || -> std::io::Result<()> {
        let (mut client, _) = listener.accept()?;
        client.write_all(b"RFB 003.008\n")?;
        bytes::<12>(&mut client)?;
        client.write_all(&[1, 1])?;
        bytes::<1>(&mut client)?;
        client.write_all(&[0; 4])?;
        bytes::<1>(&mut client)?;
        let pixels = [32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 16, 8, 0, 0, 0, 0];
        client.write_all(&[&[0, SIDE, 0, SIDE][..], &pixels, &[0, 0, 0, 4], b"stub"].concat())?;
        for shade in (0..=u8::MAX).cycle() {
            loop {
                let [message] = bytes(&mut client)?;
                match message {
                    0 => skip(&mut client, 19)?,
                    2 => {
                        let [_, high, low] = bytes(&mut client)?;
                        skip(&mut client, 4 * u64::from(u16::from_be_bytes([high, low])))?;
                    }
                    3 => break skip(&mut client, 9)?,
                    input => {
                        let _ = to.send(input);
                        skip(&mut client, if input == 4 { 7 } else { 5 })?;
                    }
                }
            }
            // The device asks without a pause.
            thread::sleep(Duration::from_millis(5));
            let update = [0, 0, 0, 1, 0, 0, 0, 0, 0, SIDE, 0, SIDE, 0, 0, 0, 0];
            client.write_all(&[&update[..], &[shade; SIDE as usize * SIDE as usize * 4]].concat())?;
        }
        Ok(())
    });
    (address, received)
}

/// Shares the screen of a VNC server and types into a viewer of it, until the viewer has seen three more pictures.
/// Returns the
/// summary of the shared screen, the number of flows, the input that reaches the server, and the services.
fn view(options: &str) -> (String, usize, Receiver<u8>, [Service; 2]) {
    let (address, input) = vnc_server();
    let (share, shared) =
        Service::share(&format!("rfb:{address}{options}"), &["--name", "screen", "--insecure"]);
    let from = format!("{shared}/screen");
    let listed = outboard(&["devices", &shared, "--insecure", "--json"]).done().json();
    let mut attach = Service::start(&["attach", &from, "--insecure", "--as", "rfb:0", "--stats"]);
    assert_eq!(attach.wait("kind")["kind"], "screen");
    let attached = attach.wait("attached");
    let node = attached["node"].as_str().unwrap().rsplit(' ').next().unwrap().to_string();
    attach.flows(3);
    let mut viewer = TcpStream::connect(node).unwrap();
    viewer.set_read_timeout(Some(PATIENCE)).unwrap();
    viewer.write_all(b"RFB 003.008\n\x01\x01").unwrap();
    bytes::<{ 12 + 2 + 4 }>(&mut viewer).unwrap();
    let [.., high, low] = bytes::<24>(&mut viewer).unwrap();
    viewer.read_exact(&mut vec![0; usize::from(u16::from_be_bytes([high, low]))]).unwrap();
    // Encodings: Raw alone. The key `a`, and the pointer at (1, 1) with a button.
    viewer.write_all(&[2, 0, 0, 1, 0, 0, 0, 0]).unwrap();
    viewer.write_all(&[4, 1, 0, 0, 0, 0, 0, b'a', 5, 1, 0, 1, 0, 1]).unwrap();
    for incremental in [0, 1, 1] {
        viewer.write_all(&[3, incremental, 0, 0, 0, 0, 0, SIDE, 0, SIDE]).unwrap();
        let [kind, _, _, rectangles] = bytes(&mut viewer).unwrap();
        assert_eq!(kind, 0);
        for _ in 0..rectangles {
            let [_, _, _, _, _, width, _, height, ..] = bytes::<12>(&mut viewer).unwrap();
            viewer.read_exact(&mut vec![0; usize::from(width) * usize::from(height) * 4]).unwrap();
        }
    }
    let flows = attached["pipelines"].as_array().unwrap().len();
    (listed["summary"].to_string(), flows, input, [share, attach])
}

#[test]
fn a_viewer_types_into_a_screen_unless_it_is_only_viewed() {
    let (summary, flows, input, _services) = view("");
    assert!(!summary.contains("view only") && flows == 2, "{summary}, {flows} flows");
    assert_eq!(input.recv_timeout(PATIENCE), Ok(4), "the key arrives");
    let (summary, flows, input, _services) = view(",view=only");
    assert!(summary.contains("(view only)") && flows == 1, "{summary}, {flows} flows");
    assert_eq!(input.try_iter().next(), None, "input arrives");
}
