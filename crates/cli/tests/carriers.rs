//! Records that programs of the SDKs carry between two hosts, with the real program: the flow is whole over killed and stopped
//! programs and over cuts of the control channel.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use support::relay::Relay;
use support::{Scratch, Service, children, noise, outboard, wait_until};

/// The examples: language, program that runs or builds it, and its package.
const CARRIERS: [(&str, &str, &str, &str); 3] = [
    ("c", "cc", "gcc", ""),
    ("python", "python3", "python3", "carrier.py"),
    ("js", "node", "nodejs", "carrier.js"),
];
const CHUNK_BYTES: usize = 300_000;

/// Returns the words behind `--transport` for the example of a language. `None`: the tool is missing, and the test is skipped.
fn carrier(language: &str, scratch: &Scratch) -> Option<String> {
    let (_, tool, package, file) = CARRIERS.into_iter().find(|known| known.0 == language).expect("an SDK");
    if !testkit::skip::has_program(tool, package) {
        return None;
    }
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk").join(language);
    let program = match language {
        "c" => {
            let binary = scratch.path("carrier");
            let source = sdk.join("examples/carrier.c");
            let built =
                Command::new(tool).arg("-I").arg(&sdk).arg(&source).args(["-o", &binary]).output().unwrap();
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
            binary
        }
        _ => format!("{tool} {}", sdk.join("examples").join(file).display()),
    };
    // Below the ports that the kernel gives to connections: no other one takes it meanwhile.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let candidates = std::iter::repeat_with(|| {
        let number = std::process::id().wrapping_mul(97) + NEXT.fetch_add(1, Ordering::Relaxed);
        10_000 + (number % 9000) as u16
    });
    let is_free = |port: &u16| TcpListener::bind(("0.0.0.0", *port)).is_ok();
    let port = candidates.take(9000).find(is_free).unwrap();
    Some(format!("exec:exec {program} 127.0.0.1 {port}"))
}

/// Returns the program that a host has started, once there is one.
fn program_of(host: &Child) -> Pid {
    let mut found = None;
    wait_until("a program carries the records", || {
        let is_carrier = |pid: &i32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).contains("carrier")
        };
        found = children(host.id()).into_iter().find(is_carrier);
        found.is_some()
    });
    Pid::from_raw(found.unwrap()).unwrap()
}

/// A flow from a FIFO on one host to a file on the other, over programs, and the control channel over a relay.
struct Flow {
    writer: File,
    sent: Vec<u8>,
    output: String,
    share: Service,
    attach: Service,
    relay: Relay,
    _scratch: Scratch,
}

impl Flow {
    fn start(language: &str, more: &str) -> Option<Flow> {
        let scratch = Scratch::new();
        let transport = carrier(language, &scratch)? + more;
        let (fifo, output) = (scratch.path("fifo"), scratch.path("out"));
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let (share, address) =
            Service::share(&format!("file:{fifo}"), &["--name", "it", "--transport", &transport]);
        let writer = File::options().read(true).write(true).open(&fifo).unwrap();
        let relay = Relay::default();
        let from = format!("{}/it", relay.start(&address));
        let to = format!("file:{output}");
        let attach = Service::start(&["attach", &from, "--as", &to, "--transport", &transport]);
        Some(Flow { writer, sent: Vec::new(), output, share, attach, relay, _scratch: scratch })
    }

    /// Sends bytes, and waits until all have arrived, each once and in order.
    fn crosses(&mut self, after: &str) {
        let fresh = noise(CHUNK_BYTES);
        self.sent.extend_from_slice(&fresh);
        // The pipe is smaller than that.
        let mut writer = self.writer.try_clone().unwrap();
        let writing = std::thread::spawn(move || writer.write_all(&fresh).unwrap());
        wait_until(&format!("the bytes after {after}"), || {
            std::fs::metadata(&self.output).is_ok_and(|file| file.len() >= self.sent.len() as u64)
        });
        writing.join().unwrap();
        assert!(std::fs::read(&self.output).unwrap() == self.sent, "the file differs after {after}");
    }
}

fn survives(language: &str) {
    let Some(mut flow) = Flow::start(language, "") else { return };
    flow.crosses("the start");
    kill_process(program_of(&flow.attach.child), Signal::KILL).unwrap();
    flow.crosses("a kill on the application host");
    kill_process(program_of(&flow.share.child), Signal::KILL).unwrap();
    flow.crosses("a kill on the device host");
    flow.relay.cut(usize::MAX);
    flow.crosses("a cut of the control channel");
    let Flow { share, attach, .. } = flow;
    assert_eq!((attach.stop(), share.stop()), (Some(0), Some(0)));
}

#[test]
fn a_flow_is_whole_over_a_program_in_c() {
    survives("c");
}

#[test]
fn a_flow_is_whole_over_a_program_in_python() {
    survives("python");
}

#[test]
fn a_flow_is_whole_over_a_program_in_javascript() {
    survives("js");
}

#[test]
fn a_program_that_hangs_is_started_again() {
    let Some(mut flow) = Flow::start("c", ",patience=1s") else { return };
    flow.crosses("the start");
    kill_process(program_of(&flow.attach.child), Signal::STOP).unwrap();
    flow.crosses("a stop on the application host");
    kill_process(program_of(&flow.share.child), Signal::STOP).unwrap();
    flow.crosses("a stop on the device host");
}

#[test]
fn programs_end_with_their_hosts() {
    let Some(mut flow) = Flow::start("c", "") else { return };
    flow.crosses("the start");
    let programs = [program_of(&flow.attach.child), program_of(&flow.share.child)];
    let Flow { share, attach, .. } = flow;
    assert_eq!((attach.stop(), share.stop()), (Some(0), Some(0)));
    for program in programs {
        wait_until("the program has ended", || kill_process(program, Signal::WINCH).is_err());
    }
}

#[test]
fn a_peer_cannot_start_a_program() {
    let (_share, address) = Service::share("pattern", &["--name", "it"]);
    let from = format!("{address}/it");
    let attach = |transport: &str| outboard(&["attach", &from, "--as", "null", "--transport", transport]);
    attach("exec:cat").refused(1, &["`it` is not shared over a program", "--transport 'exec:COMMAND'"]);
    attach("exec:outboard-no-such-program x").refused(2, &["there is no program `outboard-no-such-program`"]);
    attach("exec:").refused(2, &["the command behind the colon is missing"]);
    attach("exec:cat,patience=soon").refused(2, &["`soon` is not a value of `patience`"]);
    let from = format!("exec://{address}/it");
    outboard(&["attach", &from, "--as", "null"])
        .refused(2, &["its program is missing", "--transport 'exec:COMMAND'"]);
}
