//! The kind of an attached device: shown, remembered, expected. Bytes on a terminal.

mod support;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use support::users::{User, paired};
use support::{Scratch, end};

/// Shares a device under the name `camera`.
fn share(user: &User, device: &str) -> (support::Service, String) {
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
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap();
    let slave = || -> Stdio {
        let file = OpenOptions::new().read(true).write(true).open(path.to_str().unwrap()).unwrap();
        OwnedFd::from(file).into()
    };
    let child = command.stdin(slave()).stdout(slave()).stderr(slave()).spawn().unwrap();
    (child, master.into())
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
