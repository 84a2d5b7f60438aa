//! The tables of `outboard top`: they fit the screen. Live views: they leave the terminal as they found it.

mod support;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::Child;
use std::time::Instant;
use support::users::{User, paired};
use support::{PATIENCE, Service, pseudo_terminal, wait_until};

/// Start and end of a live view: the alternate screen.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// Start of a frame.
const HOME: &str = "\x1b[H";

/// A live view on a terminal of 80 columns.
struct Live {
    child: Child,
    master: File,
    slave: File,
    /// All output.
    text: String,
}

impl Live {
    fn start(user: &User, arguments: &[&str], rows: u16) -> Live {
        Live::on("xterm", user, arguments, rows)
    }

    /// Starts a live view on a terminal of this kind.
    fn on(kind: &str, user: &User, arguments: &[&str], rows: u16) -> Live {
        let (master, path) = pseudo_terminal();
        tcsetwinsize(&master, Winsize { ws_row: rows, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let slave = File::options().read(true).write(true).open(path).unwrap();
        let mut command = user.command(arguments);
        command.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).env("NO_COLOR", "1");
        // A command of a shell has a process group, which it stops as a whole.
        command.env("TERM", kind).process_group(0);
        Live { child: command.spawn().unwrap(), master, slave, text: String::new() }
    }

    /// Waits until `done` returns true for all output.
    #[track_caller]
    fn wait_until(&mut self, done: impl Fn(&str) -> bool) {
        let mut bytes = [0; 4096];
        let since = Instant::now();
        while !done(&self.text) {
            assert!(since.elapsed() < PATIENCE, "waited in vain: {:?}", self.text);
            let patience = Timespec::try_from(PATIENCE).unwrap();
            let ready = poll(&mut [PollFd::new(&self.master, PollFlags::IN)], Some(&patience)).unwrap();
            assert!(ready == 1, "no more output: {:?}", self.text);
            let count = self.master.read(&mut bytes).unwrap();
            self.text.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    }

    /// Returns whether the terminal gives a program whole lines, and shows them.
    fn is_restored(&self) -> bool {
        tcgetattr(&self.slave).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the lines that `top --once` shows on a terminal with this many columns.
fn shown(user: &User, columns: u16, has_colour: bool) -> Vec<String> {
    let (mut master, path) = pseudo_terminal();
    tcsetwinsize(&master, Winsize { ws_row: 25, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let slave = File::options().read(true).write(true).open(path).unwrap();
    let mut command = user.command(&["top", "--once"]);
    command.stdin(slave.try_clone().unwrap()).stdout(slave).env_remove("NO_COLOR");
    if !has_colour {
        command.env("NO_COLOR", "1");
    }
    let mut child = command.spawn().unwrap();
    // The command holds the other end of the terminal too.
    drop(command);
    let mut text = Vec::new();
    // The terminal ends with an error when its last user has closed it.
    let _ = master.read_to_end(&mut text);
    assert!(child.wait().unwrap().success());
    String::from_utf8(text).unwrap().lines().map(|line| line.trim_end().to_string()).collect()
}

/// Returns the complete frames of a live view: those that another one follows.
fn frames(text: &str) -> Vec<&str> {
    let mut frames: Vec<_> = text.split(HOME).skip(1).collect();
    frames.pop();
    frames
}

/// Removes the colours.
fn plain(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}

#[test]
fn top_fits_80_columns_and_uses_more() {
    let (a, b) = paired();
    let name = "a sensor with a name that is longer than the column of its flow";
    let (share, address) = a.shares("pattern:rate=200", &["--name", name, "--via", "null | tap"]);
    let from = format!("a@{address}/{name}");
    assert!(shown(&a, 80, false)[1].contains("no device is in use"));
    assert!(shown(&b, 80, false)[1].contains("no service here"));
    // Each second message is dropped at the source.
    let mut attach: Service =
        b.serves(&["attach", &from, "--as", "null", "--via", "null | fault(loss=50%)", "--stats"]);
    attach.flows(100);
    attach.flows(100);
    for (columns, has) in
        [(80, &[][..]), (104, &["HOST"]), (124, &["HOST", "UNACKED"]), (140, &["HOST", "UNACKED", "PROCESS"])]
    {
        for user in [&a, &b] {
            let lines: Vec<_> = shown(user, columns, true).iter().map(|line| plain(line)).collect();
            for line in &lines {
                assert!(line.chars().count() <= usize::from(columns), "{columns}: {line}");
            }
            for word in ["FLOW", "DIR", "MSGS/S", "P50", "P99", "LOST", "DROPPED"].iter().chain(has) {
                assert!(lines[0].contains(word), "{columns}: {word} is not in {}", lines[0]);
            }
            assert!(lines[1].starts_with("a sens") && lines[1].contains(" -> "), "{}", lines[1]);
        }
    }
    let words = |user: &User| -> Vec<String> {
        let row = &shown(user, 80, false)[1];
        row.split(" -> ").nth(1).unwrap().split_whitespace().map(String::from).collect()
    };
    // At the sink: the way, two rates, two delays with their units, lost and dropped messages.
    let at_sink = words(&b);
    assert_eq!((&*at_sink[0], &*at_sink[1], at_sink.len()), ("null", "in", 10), "{at_sink:?}");
    assert_eq!(
        (&*at_sink[5], &*at_sink[7], &at_sink[8..]),
        ("ms", "ms", &["0".into(), "0".into()][..]),
        "{at_sink:?}"
    );
    // At the source: no delays, and the dropped messages.
    let at_source = words(&a);
    assert_eq!((&*at_source[1], at_source.len()), ("out", 8), "{at_source:?}");
    assert!(at_source[7].parse::<u64>().unwrap() > 0, "{at_source:?}");
    // Colours are for terminals, and only for those who want them.
    assert!(shown(&a, 80, true)[1].contains("\x1b[31m"));
    assert!(!shown(&a, 80, false).concat().contains('\x1b'));
    assert!(!a.says(&["top", "--once"]).done().text().contains('\x1b'));
    assert_eq!(share.stop(), Some(0));
}

#[test]
fn a_signal_ends_a_live_view_as_q_does() {
    let user = User::new();
    let file = user.0.path("trace.json");
    for (words, signal) in [
        (&["top"][..], Signal::INT),
        (&["top"], Signal::TERM),
        (&["trace", "--perfetto", &file], Signal::INT),
    ] {
        let mut live = Live::start(&user, words, 25);
        live.wait_until(|text| text.contains(ENTER));
        assert!(!live.is_restored());
        kill_process(Pid::from_child(&live.child), signal).unwrap();
        live.wait_until(|text| text.contains(LEAVE));
        assert!(live.child.wait().unwrap().success());
        assert!(live.is_restored());
    }
    let trace: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert!(trace["traceEvents"].is_array(), "{trace}");
}

#[test]
fn a_suspended_view_returns_the_terminal_and_takes_it_again() {
    let user = User::new();
    let mut live = Live::start(&user, &["top"], 25);
    live.wait_until(|text| text.contains(HOME));
    live.master.write_all(&[0x1a]).unwrap();
    live.wait_until(|text| text.contains(LEAVE));
    let process = Pid::from_child(&live.child);
    wait_until("the process stops", || {
        let changed = waitpid(Some(process), WaitOptions::UNTRACED | WaitOptions::NOHANG).unwrap();
        changed.is_some_and(|(_, status)| status.stopped())
    });
    assert!(live.is_restored());
    kill_process(process, Signal::CONT).unwrap();
    live.wait_until(|text| text.split(ENTER).nth(2).is_some_and(|text| text.contains(HOME)));
    assert!(!live.is_restored());
    live.master.write_all(b"q").unwrap();
    live.wait_until(|text| text.matches(LEAVE).count() == 2);
    assert!(live.child.wait().unwrap().success());
    assert!(live.is_restored());
}

#[test]
fn a_terminal_without_escape_sequences_gets_lines() {
    let user = User::new();
    let mut live = Live::on("dumb", &user, &["top"], 25);
    live.wait_until(|text| text.contains("no service here"));
    assert!(!live.text.contains('\x1b'), "{:?}", live.text);
}

#[test]
fn a_live_view_fits_the_rows_of_its_terminal_and_scrolls() {
    const ROWS: u16 = 10;
    let (a, b) = paired();
    let via = ["null"; 12].join(" | ");
    let (share, address) = a.shares("pattern:rate=200", &["--name", "sensor", "--via", &via]);
    let from = format!("a@{address}/sensor");
    let mut attach = b.serves(&["attach", &from, "--as", "null", "--stats"]);
    attach.flows(1);
    let mut live = Live::start(&a, &["top"], ROWS);
    live.wait_until(|text| frames(text).iter().any(|frame| frame.contains("lines 1-9 of ")));
    for _ in 0..100 {
        live.master.write_all(b"\x1b[B").unwrap();
    }
    live.wait_until(|text| frames(text).iter().any(|frame| frame.contains("STATE")));
    live.master.write_all(b"q").unwrap();
    live.wait_until(|text| text.contains(LEAVE));
    assert!(live.child.wait().unwrap().success());
    let frames = frames(&live.text);
    assert!(frames[0].contains("FLOW"), "{frames:?}");
    for frame in &frames {
        assert!(frame.lines().count() <= usize::from(ROWS) && frame.contains("q quits"), "{frame:?}");
    }
    assert_eq!(share.stop(), Some(0));
}
