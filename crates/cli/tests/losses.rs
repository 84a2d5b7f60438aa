//! Modules in Python and C that fail on some messages: exactly those are lost and named, whatever the failure is.
//!
//! The random runs use real processes. By default there are few of them; to run more of them:
//!
//! ```sh
//! OUTBOARD_LOSS_RUNS=200 cargo test -p outboard --test losses random -- --nocapture
//! ```
//!
//! `OUTBOARD_SEED` repeats the runs from a printed seed. `OUTBOARD_LOSS_LINES=200` lengthens the tests with one kind of failure.

mod support;

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Ended, Scratch, Service, end, outboard};

/// Environment variable with the number of random runs.
const RUNS: &str = "OUTBOARD_LOSS_RUNS";
/// Number of random runs without it.
const RUNS_DEFAULT: u64 = 4;
/// Environment variable with the number of lines of the tests with one kind of failure, and the number without it.
const LINES: &str = "OUTBOARD_LOSS_LINES";
const LINES_DEFAULT: u64 = 40;
/// Failures of a module at a message.
const FAILURES: [char; 5] = ['e', 's', 'a', 'r', 'h'];

/// Fails at messages by their numbers, as its last argument says: `7e,17h`. `e`: raises an exception; `s`, `a`: dies by
/// SIGSEGV or SIGABRT; `h`: hangs; `r`: writes rubbish.
const PYTHON: &str = r#"
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
import outboard_module

failures = {int(word[:-1]): word[-1] for word in sys.argv[2].split(",") if word}

def handle(body, created):
    how = failures.get(int(body.split()[1]))
    if how == "e": raise ValueError("bad " + body.decode())
    if how == "s": os.kill(os.getpid(), signal.SIGSEGV)
    if how == "a": os.abort()
    while how == "h": time.sleep(1)
    if how == "r": os.write(1, b"rubbish " * 10)
    return body

outboard_module.run(handle)
"#;

/// The same in C.
const C: &str = r#"
#include "outboard_module.h"

static const char *failures;

static int failure_of(long number) {
    for (const char *word = failures; *word;) {
        char *how;
        if (strtol(word, &how, 10) == number) return *how;
        word = how + 1 + (how[1] == ',');
    }
    return 0;
}

static int handle(ob_module *module, unsigned char *body, size_t length, uint64_t created) {
    char text[64] = {0};
    memcpy(text, body, length < 63 ? length : 63);
    int how = failure_of(strtol(strchr(text, ' '), NULL, 10));
    if (how == 'e') {
        fprintf(stderr, "bad %s\n", text);
        return ob_fail(module, "bad line");
    }
    if (how == 's') raise(SIGSEGV);
    if (how == 'a') abort();
    while (how == 'h') pause();
    if (how == 'r' && write(1, "rubbish rubbish rubbish ", 24) < 0) return OB_SYSTEM;
    return ob_send(module, body, length, created);
}

int main(int count, char **words) {
    failures = count > 1 ? words[1] : "";
    return ob_run(&(ob_handlers){.message = handle});
}
"#;

fn sdk(language: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk").join(language).canonicalize().unwrap()
}

/// The modules of one test. `None`: a tool is missing, and the test is skipped.
struct Modules {
    /// Commands without the failures.
    commands: [String; 2],
}

impl Modules {
    fn new(scratch: &Scratch) -> Option<Modules> {
        if !testkit::skip::has_program("python3", "python3") || !testkit::skip::has_program("cc", "gcc") {
            return None;
        }
        let (script, source, binary) =
            (scratch.path("poison.py"), scratch.path("poison.c"), scratch.path("poison"));
        fs::write(&script, PYTHON).unwrap();
        fs::write(&source, C).unwrap();
        let include = format!("-I{}", sdk("c").display());
        let built =
            Command::new("cc").args(["-std=c99", "-O1", &include, &source, "-o", &binary]).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        // The interpreter itself starts faster than the script that finds it.
        let python =
            Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
        let python = String::from_utf8(python.stdout).unwrap();
        Some(Modules {
            commands: [format!("{} {script} {}", python.trim(), sdk("python").display()), binary],
        })
    }
}

/// The failures as an argument of a module, which must not be empty.
fn argument(failures: &BTreeMap<u64, char>) -> String {
    let all = failures.iter().map(|(number, how)| format!("{number}{how}"));
    [String::from("0e")].into_iter().chain(all).collect::<Vec<_>>().join(",")
}

/// Sends numbered lines through a module. Returns the program's end, and the lines that arrived.
fn connect(scratch: &Scratch, lines: u64, via: &str) -> (Ended, String) {
    let out = scratch.path("out");
    let source = format!("exec:seq -f \"line %g\" 1 {lines},frame=line");
    let ended = outboard(&["connect", &source, &format!("file:{out},frame=line"), "--via", via, "--json"]);
    let text = fs::read_to_string(&out).unwrap();
    fs::remove_file(&out).unwrap();
    (ended, text)
}

/// Checks that exactly the messages with a failure are lost, named and counted.
#[track_caller]
fn check(ended: &Ended, text: &str, lines: u64, failures: &BTreeMap<u64, char>, what: &str) {
    let expected: String =
        (1..=lines).filter(|n| !failures.contains_key(n)).map(|n| format!("line {n}\n")).collect();
    assert_eq!(text, expected, "{what}: {}", ended.stderr);
    let told = ended.json();
    let incidents: Vec<&str> =
        told["incidents"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let named = incidents.iter().filter_map(|text| text.split_once("lost message ")?.1.split_once(','));
    let named: Vec<u64> = named.filter_map(|(number, _)| number.parse().ok()).collect();
    assert_eq!(named, failures.keys().copied().collect::<Vec<_>>(), "{what}: {incidents:#?}");
    let lost: u64 = told["losses"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    assert_eq!(lost, failures.len() as u64, "{what}: {told}");
    let code = if failures.is_empty() { 0 } else { 1 };
    assert_eq!(ended.code, Some(code), "{what}: {}", ended.stderr);
    if lost > 1 {
        let says = format!("{lost} messages were lost: {lost} (exec: the module failed on each)");
        assert!(ended.stderr.contains(&says), "{what}: {}", ended.stderr);
    }
}

/// The numbers with a 7.
fn sevens(lines: u64, how: char) -> BTreeMap<u64, char> {
    (1..=lines).filter(|number| number.to_string().contains('7')).map(|number| (number, how)).collect()
}

#[test]
fn a_module_that_fails_on_some_lines_loses_exactly_those() {
    let scratch = Scratch::new();
    let Some(modules) = Modules::new(&scratch) else { return };
    let lines = number(LINES).unwrap_or(LINES_DEFAULT);
    for (command, language) in modules.commands.iter().zip(["python", "c"]) {
        for how in ['e', 's', 'a', 'r'] {
            let failures = sevens(lines, how);
            let via = format!("exec(source=\"{command} {}\")", argument(&failures));
            let (ended, text) = connect(&scratch, lines, &via);
            check(&ended, &text, lines, &failures, &format!("{language} {how}"));
            let (last, _) = failures.last_key_value().unwrap();
            let words = match how {
                'e' if language == "c" => "failed: bad line".into(),
                'e' => format!("failed: ValueError: bad line {last}"),
                's' => "was killed by signal SIGSEGV".into(),
                'a' => "was killed by signal SIGABRT".into(),
                _ => "was killed: its output is not a container".into(),
            };
            let named = format!("`exec`: source half lost message {last}, which it cannot process: {words}");
            let told = ended.json();
            let incidents = told["incidents"].as_array().unwrap();
            assert!(
                incidents.iter().any(|text| text.as_str().unwrap().starts_with(&named)),
                "{named}: {told}"
            );
        }
    }
}

/// Each lost line takes three times the patience of the pipeline.
#[test]
fn a_module_that_hangs_on_some_lines_loses_exactly_those() {
    let scratch = Scratch::new();
    let Some(modules) = Modules::new(&scratch) else { return };
    let lines = number(LINES).unwrap_or(LINES_DEFAULT);
    for (command, language) in modules.commands.iter().zip(["python", "c"]) {
        let failures = sevens(lines, 'h');
        let via = format!("exec(source=\"{command} {}\", patience=200ms)", argument(&failures));
        let (ended, text) = connect(&scratch, lines, &via);
        check(&ended, &text, lines, &failures, &format!("{language} hang"));
    }
}

#[test]
fn a_sink_half_that_fails_loses_exactly_the_same() {
    let scratch = Scratch::new();
    let Some(modules) = Modules::new(&scratch) else { return };
    for command in &modules.commands {
        let failures = BTreeMap::from([(3, 'e'), (4, 's'), (9, 'r'), (30, 'a')]);
        let via = format!("exec(sink=\"{command} {}\")", argument(&failures));
        let (ended, text) = connect(&scratch, 30, &via);
        check(&ended, &text, 30, &failures, &via);
    }
}

/// Reads a number from the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Pseudo-random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

#[test]
fn random_runs_with_real_processes_lose_exactly_what_fails() {
    let scratch = Scratch::new();
    let Some(modules) = Modules::new(&scratch) else { return };
    let runs = number(RUNS).unwrap_or(RUNS_DEFAULT);
    let seed = number("OUTBOARD_SEED").unwrap_or_else(|| u64::from(std::process::id()) << 20);
    println!("{runs} runs from OUTBOARD_SEED={seed}");
    for seed in seed..seed + runs {
        let mut random = Random(seed);
        let lines = 1 + random.below(60);
        let one_in = [2, 8, 20][random.below(3) as usize];
        let mut failures = BTreeMap::new();
        for number in 1..=lines {
            if random.below(one_in) == 0 {
                // A hang takes longest.
                let kinds = if random.below(4) == 0 { FAILURES.len() } else { FAILURES.len() - 1 };
                failures.insert(number, FAILURES[random.below(kinds as u64) as usize]);
            }
        }
        let command = &modules.commands[random.below(2) as usize];
        let half = ["source", "sink"][random.below(2) as usize];
        let via = format!("exec({half}=\"{command} {}\", patience=300ms)", argument(&failures));
        let (ended, text) = connect(&scratch, lines, &via);
        check(&ended, &text, lines, &failures, &format!("seed {seed}: {via}"));
    }
}

/// Shares 30 numbered lines through the first pipeline, and attaches them with these words. Checks that three are lost, for
/// this reason. Returns the events of both hosts.
#[track_caller]
fn three_of_30_are_lost(scratch: &Scratch, via: &str, words: &[&str], reason: &str) -> (String, Service) {
    let device = "exec:seq -f \"line %g\" 1 30; sleep 1,frame=line";
    let (share, address) = Service::share(device, &["--name", "lines", "--via", via, "--insecure"]);
    let (from, out) = (format!("{address}/lines"), scratch.path("out"));
    let sink = format!("file:{out},frame=line");
    let attach = [&["attach", &from, "--as", &sink, "--insecure"], words].concat();
    let ended = end(support::command(&attach).spawn().unwrap(), "attach");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let says = format!("3 messages were lost: 3 (lines: {reason})");
    assert!(ended.stderr.contains(&says), "{}", ended.stderr);
    let expected: String = (1..=30).filter(|n| n % 10 != 7).map(|n| format!("line {n}\n")).collect();
    assert_eq!(fs::read_to_string(&out).unwrap(), expected);
    (ended.text().into(), share)
}

#[test]
fn a_module_that_does_not_start_is_abandoned_at_once() {
    let scratch = Scratch::new();
    for (program, cause) in [
        ("/bin/true", "ended with status 0"),
        ("/bin/ls /nowhere", "ended with status 2 (last line: /bin/ls: cannot access '/nowhere'"),
    ] {
        for half in ["source", "sink"] {
            let (ended, text) = connect(&scratch, 100_000, &format!("exec({half}=\"{program}\")"));
            assert_eq!((ended.code, &text[..]), (Some(1), ""), "{ended:?}");
            let says = format!("100000 messages were lost: 100000 (exec: does not start: {cause}");
            assert!(ended.stderr.contains(&says), "{}", ended.stderr);
            let incidents = ended.json()["incidents"].take();
            let named = |text: &Value| {
                let text = text.as_str().unwrap();
                text.contains("3 processes in a row")
                    && text.contains(cause)
                    && text.contains("lost messages 1 to ")
            };
            assert!(incidents.as_array().unwrap().iter().any(named), "{incidents}");
        }
    }
}

#[test]
fn a_program_that_knows_no_containers_ends_with_status_1() {
    let scratch = Scratch::new();
    // Lines of 100 bytes: the filter turns the length 100, `d`, into 68, `D`.
    let lines = scratch.path("long");
    std::fs::write(&lines, format!("{:099}\n", 7).repeat(3)).unwrap();
    let filter = "exec(source=\"sed -u y/d/D/\")";
    let out = format!("file:{}", scratch.path("out"));
    let ended = outboard(&["connect", &format!("file:{lines},frame=line"), &out, "--via", filter]);
    ended.refused_with(1, "exec: the message may be damaged");
}

#[test]
fn attach_ends_with_status_1_after_a_loss_in_its_half() {
    let scratch = Scratch::new();
    let Some(modules) = Modules::new(&scratch) else { return };
    let via = format!("exec(sink=\"{} {}\")", modules.commands[0], argument(&sevens(30, 'e')));
    let reason = "exec: the module failed on each";
    let (events, _) = three_of_30_are_lost(&scratch, "exec()", &["--via", &via], reason);
    assert!(events.contains("lost message 27, which it cannot process: failed: ValueError"), "{events}");
}

#[test]
fn attach_ends_with_status_1_after_a_loss_on_the_device_host() {
    let scratch = Scratch::new();
    let Some(modules) = Modules::new(&scratch) else { return };
    let via = format!("exec(source=\"{} {}\")", modules.commands[0], argument(&sevens(30, 'e')));
    let reason = "on the device host: exec: the module failed on each";
    let (_, mut share) = three_of_30_are_lost(&scratch, &via, &["--via", "exec()"], reason);
    let names =
        |share: &mut Service| share.wait("module")["incident"].as_str().unwrap().contains("lost message 27,");
    while !names(&mut share) {}
}
