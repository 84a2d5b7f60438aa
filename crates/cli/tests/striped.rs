//! The transport `striped` between two real programs: several connections in either direction, killed workers, a cut link.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::thread;
use std::time::{Duration, Instant};
use support::relay::Relay;
use support::{PATIENCE, Scratch, Service, figure, outboard, workers_of};

/// Ways for the records of each host, in the test with fixed numbers.
const WAYS: [u32; 2] = [6, 3];

/// A test pattern over `striped`: the device host sends over this number of ways.
struct Pattern {
    share: Service,
    attach: Service,
}

impl Pattern {
    /// Starts both hosts; `through` may put a relay between them.
    fn start(ways: &str, through: impl FnOnce(&str) -> String) -> Pattern {
        let options = format!("ways={ways}");
        let mut share = Service::start(&[
            "share",
            "pattern:rate=400,size=50000",
            "--stats",
            "--listen",
            "striped://127.0.0.1:0",
            "--transport",
            &options,
        ]);
        let address = share.wait("listening")["address"].as_str().unwrap().to_string();
        let from = format!("striped://{}/pattern", through(&address));
        let attach = Service::start(&["attach", &from, "--as", "pattern:size=50000", "--stats"]);
        Pattern { share, attach }
    }

    /// Waits until the device host sends over this number of ways, and checks the records of the application host.
    #[track_caller]
    fn flows(&mut self, ways: u32) {
        let stats = self.flows_on(ways);
        for name in ["missing", "repeated", "wrong"] {
            assert_eq!(figure(&stats["partner"], name), 0.0, "{stats}");
        }
    }

    /// Does the same, without a check of the records.
    #[track_caller]
    fn flows_on(&mut self, ways: u32) -> Value {
        let since = Instant::now();
        loop {
            let stats = self.share.wait("stats")["stats"].take();
            if figure(&stats["transport"], "ways") == f64::from(ways) {
                break;
            }
            if since.elapsed() >= PATIENCE {
                panic!("the device host: {stats}; the application host: {}", self.attach.wait("stats"));
            }
        }
        let before = self.attach.wait("stats")["stats"]["incoming"]["messages"].as_u64().unwrap_or(0);
        self.attach.flows(before + 400)
    }
}

#[test]
fn a_file_crosses_whole_over_one_way_and_over_several() {
    let scratch = Scratch::new();
    let (input, content) = scratch.noise("in", 30_000_000);
    for (ways, frame) in [("auto", "64KiB"), ("1", "64KiB"), ("5", "1MB")] {
        let options = format!("ways={ways}");
        let device = format!("file:{input},frame=chunk({frame})");
        let listen = ["--listen", "striped://127.0.0.1:0", "--transport", &options];
        let mut share = Service::start(&[&["share", &device, "--name", "in"], &listen[..]].concat());
        let address = share.wait("listening")["address"].as_str().unwrap().to_string();
        let (from, output) = (format!("striped://{address}/in"), scratch.path(&format!("out{ways}")));
        outboard(&["attach", &from, "--as", &format!("file:{output}")]).done();
        assert!(std::fs::read(&output).unwrap() == content, "ways={ways}: what arrived is not what was sent");
        share.wait("peer-left");
        assert_eq!(share.stop(), Some(0));
    }
}

#[test]
fn the_application_host_sends_over_several_ways() {
    let scratch = Scratch::new();
    let (input, content) = scratch.noise("in", 30_000_000);
    let output = scratch.path("out");
    let device = format!("exec:cat >{output}");
    let (mut share, address) = Service::share(&device, &["--name", "out"]);
    let from = format!("striped://{address}/out");
    let attach = ["attach", &from, "--as", &format!("exec:cat {input}"), "--transport", "ways=4"];
    outboard(&attach).done();
    share.wait("flow-ended");
    assert_eq!(share.stop(), Some(0));
    assert!(std::fs::read(&output).unwrap() == content, "what arrived is not what was sent");
}

#[test]
fn killed_workers_on_both_hosts_resume_over_as_many_ways() {
    let mut pattern = Pattern::start(&WAYS[0].to_string(), str::to_string);
    pattern.flows(WAYS[0]);
    for number in 0..4 {
        let service = if number % 2 == 0 { &mut pattern.share } else { &mut pattern.attach };
        let worker = *workers_of(&service.child).first().expect("a worker");
        kill_process(Pid::from_raw(worker.cast_signed()).unwrap(), Signal::KILL).unwrap();
        service.wait("worker");
        // `workers.rs` checks the messages, as far as a killed worker leaves no doubt.
        pattern.flows_on(WAYS[0]);
    }
}

#[test]
fn a_flow_resumes_after_a_cut_of_one_way_or_of_all() {
    let relay = Relay::default();
    let mut pattern = Pattern::start(&WAYS[1].to_string(), |address| relay.start(address).to_string());
    pattern.flows(WAYS[1]);
    for count in [1, 2, usize::MAX, 1] {
        relay.cut(count);
        thread::sleep(Duration::from_millis(100));
        pattern.flows(WAYS[1]);
    }
}
