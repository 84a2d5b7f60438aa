//! Real processes of chains and of runs on shared memory that fail at some messages. This test program is the process:
//! it runs the loop of a built-in stage around a stage that fails.

use super::{Limits, Module, Process, SharedRun};
use crate::runner::{CarrierKind, serve_stage};
use contract::{Half, Input, Link, Message, Outbox, Port, Stage, StageResult, Time};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::time::Duration;
use sys::poller::Poller;
use wire::ModuleFrame;
use wire::module::MODULE_VERSION;

/// Environment variable with the place of a process in its run (0: a chain), and its failures.
const STAGE: &str = "OUTBOARD_TEST_STAGE";
/// Name of the test that is the process.
const SELF: &str = "process::stage_tests::this_is_the_process_of_the_other_tests";
/// Descriptor of the output in a chain: the test program prints on descriptor 1.
const OUTPUT: i32 = 9;
/// Longest time that a test may take.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Longest wait of a step.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// A stage that passes all messages, except for those at which it fails.
struct Fragile {
    failures: BTreeMap<u64, char>,
}

impl Stage for Fragile {
    fn handle(&mut self, port: Port, message: Message, _now: Time, out: &mut Outbox) -> StageResult {
        let body = message.body.clone().into_bytes();
        let value = u64::from_le_bytes(body[..8].try_into().unwrap());
        match self.failures.get(&value) {
            Some('a') => std::process::abort(),
            Some('f') => {
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, rustix::process::Signal::FPE).unwrap();
                // Another thread may receive it.
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
            Some('x') => {
                eprintln!("no such message: {value}");
                std::process::exit(3);
            }
            Some('h') => loop {
                std::thread::sleep(Duration::from_secs(1));
            },
            _ => out.send(port, message),
        }
        Ok(())
    }
}

fn failures(text: &str) -> BTreeMap<u64, char> {
    let one = |word: &str| {
        let how = word.chars().last()?;
        Some((word.trim_end_matches(how).parse().ok()?, how))
    };
    text.split(',').filter_map(one).collect()
}

#[test]
fn this_is_the_process_of_the_other_tests() {
    let Ok(text) = std::env::var(STAGE) else { return };
    let (place, text) = text.split_once(';').unwrap();
    let stage = Box::new(Fragile { failures: failures(text) });
    let served = match place.parse().unwrap() {
        0 => {
            let output = sys::descriptor::inherited(OUTPUT).unwrap();
            serve_stage(stage, CarrierKind::Chain, output.as_fd())
        }
        number => {
            let carrier = CarrierKind::Shared { number, first: 4 };
            serve_stage(stage, carrier, rustix::stdio::stdout())
        }
    };
    let status = served.map_err(|error| eprintln!("{error}")).map_or(1, |()| 0);
    std::process::exit(status);
}

/// A stage of a chain or a run.
fn module(place: usize, failures: &str) -> Module {
    let program = std::env::current_exe().unwrap();
    let own = [SELF, "--exact", "--nocapture", "--test-threads=1"].map(OsString::from);
    let mut words: Vec<OsString> = Vec::new();
    if place == 0 {
        let script = format!("exec \"$@\" {OUTPUT}>&1 >/dev/null");
        words.extend(["/bin/sh", "-c", &script, "sh"].map(OsString::from));
    }
    words.push(program.into());
    words.extend(own);
    let (role, format) = ("source".into(), "bytes".into());
    Module {
        words,
        environment: Some(vec![(STAGE.into(), format!("{place};{failures}").into())]),
        half: Half::Source,
        greeting: vec![ModuleFrame::Hello { version: MODULE_VERSION, role, format, options: Vec::new() }],
        is_own: true,
        is_chained: place == 0,
        has_history: false,
        patience: Duration::from_secs(1),
        limits: Limits::default(),
    }
}

fn now() -> Time {
    Time(sys::clock::boot_ns())
}

/// Sends numbers through the links. Returns those that came back, and the incidents that name a loss.
fn run(links: &mut [Process], count: u64) -> (Vec<u64>, Vec<String>) {
    let (begun, mut poller, mut next, mut is_told) = (now(), Poller::new().unwrap(), 1, false);
    let (mut values, mut losses) = (Vec::new(), Vec::new());
    loop {
        assert!(now().since(begun) < WATCHDOG, "{} of {count}: {losses:?}", values.len());
        let mut out = Outbox::default();
        while next <= count && links[0].has_room() {
            let message = Message::new(Time(next), next.to_le_bytes().to_vec());
            links[0].hand(Input::Message(Port::MAIN, message), now(), &mut out).unwrap();
            next += 1;
        }
        if next > count && !std::mem::replace(&mut is_told, true) {
            links[0].hand(Input::End(Port::MAIN), now(), &mut out).unwrap();
        }
        let is_over = is_told && !links[0].is_ending();
        for link in links.iter_mut() {
            link.collect(now(), &mut out).unwrap();
            let incidents = link.incidents().into_iter().filter(|incident| incident.is_loss);
            losses.extend(incidents.map(|incident| incident.text));
        }
        let value = |message: Message| u64::from_le_bytes(message.body.into_bytes()[..8].try_into().unwrap());
        values.extend(out.messages.drain(..).map(|(_, message)| value(message)));
        if is_over {
            return (values, losses);
        }
        let mut wait = links[0].poll_timeout().map_or(WAIT_MAX, |at| at.since(now())).min(WAIT_MAX);
        for readiness in links.iter().map(Link::readiness) {
            readiness
                .descriptors
                .into_iter()
                .flatten()
                .for_each(|(d, _)| poller.register(d.as_fd(), true, false));
            wait = if readiness.now { Duration::ZERO } else { wait };
        }
        poller.wait(Some(wait)).unwrap();
    }
}

#[track_caller]
fn check(links: &mut [Process], count: u64, failures: &[(u64, &str)]) {
    let (values, losses) = run(links, count);
    let fails = |value: &u64| failures.iter().any(|(number, _)| number == value);
    assert_eq!(values, (1..=count).filter(|value| !fails(value)).collect::<Vec<_>>(), "{losses:?}");
    let expected = failures.iter().map(|(number, words)| (format!("lost message {number},"), *words));
    assert_eq!(losses.len(), failures.len(), "{losses:?}");
    for (text, (number, words)) in losses.iter().zip(expected) {
        assert!(text.contains(&number) && text.contains(words), "{text} has no `{number}` or `{words}`");
    }
}

/// The failures of both processes of the tests, and the words that name them.
const FAILURES: [&str; 2] = ["7a,8h,70x", "17f,9a,100f"];
const NAMED: [(u64, &str); 6] = [
    (7, "SIGABRT"),
    (8, "hung"),
    (9, "SIGABRT"),
    (17, "SIGFPE"),
    (70, "ended with status 3 (last line: no such message: 70)"),
    (100, "SIGFPE"),
];

#[test]
fn a_chain_of_pipes_loses_only_what_one_of_its_processes_cannot_process() {
    let modules = FAILURES.map(|failures| module(0, failures));
    let mut links = Process::start_chain(modules.to_vec()).unwrap();
    check(&mut links, 100, &NAMED);
}

#[test]
fn a_run_on_shared_memory_loses_only_what_one_of_its_processes_cannot_process() {
    for slots in [None, Some(16)] {
        let modules = vec![module(1, FAILURES[0]), module(2, FAILURES[1])];
        let mut links = Process::start_run(modules, SharedRun { slots, latency: None }).unwrap();
        check(&mut links, 100, &NAMED);
    }
}
