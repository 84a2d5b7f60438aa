//! Devices and applications that others write: programs in Python, C and JavaScript with a typed format, through pairs, a cut link,
//! killed workers and an unplugged device. They get the promises of a built-in class.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use support::relay::Relay;
use support::{PATIENCE, Scratch, Service, outboard, workers_of};

/// The application of the tests: it writes a line for each start, message of motion and neutral state.
const RECORDER: &str = r#"
import os, struct, sys
sys.path.insert(0, sys.argv[1])
import outboard_module

class Recorder(outboard_module.Application):
    format = "motion"
    log = open(sys.argv[2], "a", buffering=1)

    def start(self):
        self.log.write("start %s\n" % self.device["summary"])

    def message(self, body, created):
        if body[0] in (0, 2):
            self.log.write("moved\n" if any(struct.unpack_from("<6i", body, 1)) else "centred\n")

    def neutral(self):
        self.log.write("neutral\n")

outboard_module.run(Recorder())
"#;

fn sdk(path: &str) -> String {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk").join(path))
        .unwrap()
        .display()
        .to_string()
}

/// The spec of the recorder and the path of its lines.
fn recorder(scratch: &Scratch) -> (String, String) {
    let (program, log) = (scratch.path("recorder.py"), scratch.path("log"));
    fs::write(&program, RECORDER).unwrap();
    fs::write(&log, "").unwrap();
    (format!("exec:exec python3 {program} {} {log},frame=declared", sdk("python")), log)
}

/// Waits until the recorder writes `line` again, and returns all lines until then.
#[track_caller]
fn wait_line(log: &str, after: usize, line: &str) -> Vec<String> {
    let since = Instant::now();
    loop {
        let lines: Vec<String> = fs::read_to_string(log).unwrap().lines().map(String::from).collect();
        if lines.iter().skip(after).any(|found| found == line) {
            return lines;
        }
        assert!(since.elapsed() < PATIENCE, "no `{line}` after {after}: {:?}", lines.last_chunk::<9>());
        thread::sleep(Duration::from_millis(5));
    }
}

fn kill_worker(service: &mut Service) {
    let since = Instant::now();
    let worker = loop {
        match workers_of(&service.child)[..] {
            [worker] => break worker,
            _ if since.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(2)),
            ref others => panic!("workers {others:?}"),
        }
    };
    kill_process(Pid::from_raw(worker.cast_signed()).unwrap(), Signal::KILL).unwrap();
    service.wait("worker");
}

/// Each program of the examples that is a 3D mouse.
fn mice(scratch: &Scratch, unplugged: &str) -> Vec<(String, bool)> {
    let mut mice = vec![(format!("exec python3 {} {unplugged}", sdk("python/examples/circle.py")), true)];
    if testkit::skip::has_program("cc", "gcc") {
        let (binary, source) = (scratch.path("square"), sdk("c/examples/square.c"));
        let include = format!("-I{}", sdk("c"));
        let built = Command::new("cc").args(["-O1", &include, &source, "-o", &binary]).status().unwrap();
        assert!(built.success());
        mice.push((format!("exec {binary}"), false));
    }
    mice
}

#[test]
fn a_strangers_device_has_the_promises_of_a_built_in_class() {
    if !testkit::skip::has_program("python3", "python3") {
        return;
    }
    let scratch = Scratch::new();
    let unplugged = scratch.path("unplugged");
    for (mouse, can_unplug) in mice(&scratch, &unplugged) {
        let (application, log) = recorder(&scratch);
        let device = format!("exec:{mouse},frame=declared");
        let (mut share, address) =
            Service::share(&device, &["--name", "cap", "--via", "average(period=20ms) | buffer"]);
        let relay = Relay::default();
        let from = format!("tcp://{}/cap", relay.start(&address));
        let mut attach = Service::start(&["attach", &from, "--as", &application]);
        let mut lines = wait_line(&log, 0, "moved");
        // The link is cut: the application is neutral, and moves again afterwards.
        relay.set_down(true);
        lines = wait_line(&log, lines.len(), "neutral");
        relay.set_down(false);
        lines = wait_line(&log, lines.len(), "moved");
        // Workers are killed: both programs go on.
        for service in [&mut share, &mut attach] {
            kill_worker(service);
            lines = wait_line(&log, lines.len(), "moved");
        }
        if can_unplug {
            fs::write(&unplugged, "").unwrap();
            for service in [&mut share, &mut attach] {
                assert!(service.wait("device-gone")["reason"].as_str().unwrap().contains("pulled out"));
            }
            lines = wait_line(&log, lines.len(), "neutral");
            thread::sleep(Duration::from_millis(200));
            let quiet = fs::read_to_string(&log).unwrap();
            let last = quiet.lines().last().unwrap();
            assert!(matches!(last, "neutral" | "centred"), "{last}");
            fs::remove_file(&unplugged).unwrap();
            for service in [&mut share, &mut attach] {
                service.wait("device-back");
            }
            lines = wait_line(&log, lines.len(), "moved");
        }
        let starts: Vec<_> = lines.iter().filter(|line| line.starts_with("start ")).collect();
        assert_eq!(starts.len(), 1, "the node outlives all of that: {starts:?}");
        assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
    }
}

#[test]
fn an_unmodified_node_takes_a_strangers_device_of_its_format() {
    if !testkit::skip::has_program("python3", "python3") {
        return;
    }
    let scratch = Scratch::new();
    let device = format!("exec:exec python3 {},frame=declared", sdk("python/examples/circle.py"));
    let (_share, address) = Service::share(&device, &["--name", "cap"]);
    let socket = scratch.path("spnav.sock");
    let from = format!("{address}/cap");
    let mut attach = Service::start(&["attach", &from, "--as", &format!("spnav:{socket}")]);
    attach.wait("attached");
    // A program with libspnav, protocol version 0: packets of eight words, the first one 0 for a motion.
    let mut program = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut packet = [0; 32];
    std::io::Read::read_exact(&mut program, &mut packet).unwrap();
    assert_eq!(packet[..4], [0; 4]);
    assert_ne!(packet[4..12], [0; 8], "the cap is pushed");
}

/// Longer than the silence limit and than the limit for a device's hello.
#[test]
fn an_application_that_starts_slowly_does_not_break_the_link() {
    if !testkit::skip::has_program("python3", "python3") {
        return;
    }
    let scratch = Scratch::new();
    let (application, log) = recorder(&scratch);
    let slow = application.replacen("exec:", "exec:sleep 6; ", 1);
    let device = format!("exec:exec python3 {},frame=declared", sdk("python/examples/circle.py"));
    let (mut share, address) = Service::share(&device, &["--name", "cap"]);
    let mut attach = Service::start(&["attach", &format!("{address}/cap"), "--as", &slow]);
    attach.wait("attached");
    wait_line(&log, 0, "moved");
    let mut told = [std::mem::take(&mut share.seen), std::mem::take(&mut attach.seen)].concat();
    told.extend(share.pending());
    told.extend(attach.pending());
    let is_cut = |event: &&Value| event["event"] == "link-lost";
    assert_eq!(told.iter().find(is_cut), None, "the session was silent meanwhile");
}

#[test]
fn an_application_of_another_format_is_refused_with_both_names() {
    if !testkit::skip::has_program("python3", "python3") {
        return;
    }
    let scratch = Scratch::new();
    let (application, log) = recorder(&scratch);
    let (_share, address) = Service::share("pattern:format=video,width=64,height=48", &["--name", "film"]);
    let attached = outboard(&["attach", &format!("{address}/film"), "--as", &application]);
    attached
        .refused_with(2, "takes the format `motion`, and the device `film` of class `pattern` sends `video`");
    let lines = fs::read_to_string(&log).unwrap();
    assert!(lines.lines().all(|line| line.starts_with("start ")), "no message reached it: {lines}");
}

#[test]
fn a_program_that_declares_nothing_is_refused_before_it_is_offered() {
    for (program, says) in [
        ("exit 3", "it exited with status 3, without a hello"),
        ("head -c 100 /dev/zero >&3; sleep 1000", "no hello"),
    ] {
        let device = format!("exec:{program},frame=declared");
        outboard(&["share", &device, "--listen", "127.0.0.1:0"]).refused(2, &[says, program]);
    }
}

#[test]
fn a_meter_in_javascript_takes_a_device_in_python() {
    let has = |program, package| testkit::skip::has_program(program, package);
    if !has("python3", "python3") || !has("node", "nodejs") {
        return;
    }
    let scratch = Scratch::new();
    let log = scratch.path("log");
    let device = format!("exec:exec python3 {},frame=declared", sdk("python/examples/circle.py"));
    let application = format!("exec:exec node {} 2>{log},frame=declared", sdk("js/examples/meter.js"));
    let mut connect = Service::start(&["connect", &device, &application]);
    let mut text = String::new();
    support::wait_until("a pushed cap", || {
        text = fs::read_to_string(&log).unwrap_or_default();
        text.contains("pushed 350")
    });
    assert!(text.contains("for a 3D mouse that draws a circle"), "{text}");
    support::terminate(&connect.child);
    let _ = connect.child.wait();
}
