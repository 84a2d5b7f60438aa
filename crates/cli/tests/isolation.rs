//! Pairs in separate processes, with the real program: killed at random moments, they lose and repeat no message.

mod support;

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};
use support::{PATIENCE, Scratch, Service, children, command, end, outboard};

/// Directory of the Python SDK.
fn sdk() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/python");
    path.canonicalize().unwrap().to_str().unwrap().into()
}

/// Path of the interpreter itself; the program in `PATH` may be a script that starts it.
fn python() -> String {
    let output = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().into()
}

/// Kills all modules of `program` `times` times, at pseudo-random moments.
fn kill_modules(program: &mut Child, times: usize) {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let begun = Instant::now();
    let mut killed = 0;
    while killed < times && program.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < PATIENCE, "only {killed} of {times} modules ran long enough to be killed");
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        thread::sleep(Duration::from_millis(100 + (state >> 33) % 200));
        for pid in children(program.id()) {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            killed += 1;
        }
    }
}

/// Runs `pipeline` while its modules are killed. Returns the output file and the final event.
fn survive(scratch: &Scratch, pattern: &str, pipeline: &str, times: usize) -> (Vec<u8>, Value) {
    let out = scratch.path("out");
    let sink = format!("file:{out}");
    let mut program = command(&["connect", pattern, &sink, "--via", pipeline, "--json"]).spawn().unwrap();
    kill_modules(&mut program, times);
    let told = end(program, pipeline).done().json();
    (fs::read(out).unwrap(), told)
}

fn expected(scratch: &Scratch, pattern: &str) -> Vec<u8> {
    let path = scratch.path("expected");
    outboard(&["connect", pattern, &format!("file:{path}")]).done();
    fs::read(path).unwrap()
}

#[track_caller]
fn assert_undisturbed(
    scratch: &Scratch,
    size: usize,
    count: usize,
    rate: usize,
    pipeline: &str,
    times: usize,
) {
    let slow = format!("pattern:size={size},count={count},rate={rate}");
    let (came, told) = survive(scratch, &slow, pipeline, times);
    let fast = format!("pattern:size={size},count={count},rate=0");
    assert!(came == expected(scratch, &fast), "{} bytes came of {}: {told}", came.len(), size * count);
    let incidents = told["incidents"].as_array().unwrap();
    let kills = incidents.iter().filter(|text| text.as_str().unwrap().contains("signal SIGKILL"));
    assert!(kills.count() >= times / 2, "{told}");
}

/// Thirty frames a second through a Python program that is killed twenty times.
#[test]
fn a_user_program_killed_twenty_times_loses_and_repeats_no_frame() {
    if !testkit::skip::has_program("python3", "python3") {
        return;
    }
    let scratch = Scratch::new();
    let (python, sdk) = (python(), sdk());
    let confine = match sys::process::landlock_version() {
        Some(_) => format!(", isolate=true, reads=\"{sdk}\""),
        None => String::new(),
    };
    let pipeline = format!("exec(source=\"{python} {sdk}/examples/invert.py\"{confine})");
    assert_undisturbed(&scratch, 20_000, 210, 30, &pipeline, 20);
}

#[test]
fn a_refused_system_call_of_a_module_is_named() {
    if !testkit::skip::has_program("python3", "python3") {
        return;
    }
    if sys::process::landlock_version().is_none() {
        return eprintln!("SKIPPED: this kernel has no landlock");
    }
    let scratch = Scratch::new();
    let (python, sdk, program) = (python(), sdk(), scratch.path("caller.py"));
    let text = "import socket, sys\nsys.path.insert(0, sys.argv[1])\nimport outboard_module\n\
                def call(body, created):\n    try: socket.socket()\n    except PermissionError: return body\n\
                outboard_module.run(call)\n";
    fs::write(&program, text).unwrap();
    let via = format!("exec(source=\"{python} {program} {sdk}\", isolate=true, reads=\"{sdk}\")");
    let told = outboard(&["connect", "pattern:count=20", "null", "--via", &via, "--json"]).done().json();
    assert_eq!(told["messages"], 20, "{told}");
    let refused = "`exec`: source half prints: outboard: the sandbox refused the system call socket";
    assert_eq!(told["incidents"], serde_json::json!([refused]));
}

/// The guide puts the SDK beside the program.
#[test]
fn an_isolated_program_finds_what_lies_beside_it_if_reads_names_the_directory() {
    if !testkit::skip::has_program("python3", "python3") {
        return;
    }
    if sys::process::landlock_version().is_none() {
        return testkit::skip::until_vm("this kernel has no landlock");
    }
    let scratch = Scratch::new();
    let program = scratch.path("upper.py");
    let text = "import outboard_module\noutboard_module.run(lambda body, created: body.upper())\n";
    fs::write(&program, format!("#!{}\n{text}", python())).unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fs::copy(format!("{}/outboard_module.py", sdk()), scratch.path("outboard_module.py")).unwrap();
    let run = |reads: &str| {
        let via = format!("exec(source=\"./upper.py\", isolate=true{reads})");
        let mut program = command(&["connect", "pattern:count=20", "null", "--via", &via, "--json"]);
        end(program.current_dir(scratch.path(".")).spawn().unwrap(), &via)
    };
    let told = run(", reads=\".\"").done().json();
    assert_eq!((&told["messages"], &told["incidents"]), (&20.into(), &serde_json::json!([])));
    let told = run("");
    let hint = "(last line: ModuleNotFoundError: No module named 'outboard_module'): isolate=true hides files: \
                name the directory with reads=DIR";
    assert!(told.code == Some(1) && told.json()["incidents"].to_string().contains(hint), "{told:?}");
}

/// Built-in halves: if one restarts alone, the other cannot decode its output.
#[test]
fn built_in_pairs_survive_kills_of_their_processes() {
    if sys::process::landlock_version().is_none() {
        return testkit::skip::until_vm("this kernel has no landlock");
    }
    let pipeline = "bundle(count=4, isolate=true) | compress(isolate=true)";
    assert_undisturbed(&Scratch::new(), 1000, 300, 60, pipeline, 12);
}

/// Two processes for each half, connected by shared memory: when one dies, both restart.
#[test]
fn a_shared_memory_chain_survives_kills_of_its_processes() {
    let pipeline = "@shm: bundle(count=4) | compress";
    assert_undisturbed(&Scratch::new(), 1000, 300, 60, pipeline, 12);
}

/// A message that a stage drops on purpose is counted once, even if its process is killed before it confirms the drop.
#[test]
fn each_message_is_delivered_or_counted_once_when_stages_that_drop_are_killed() {
    const COUNT: usize = 400;
    for pipeline in ["@shm: periodic(period=35ms) | compress", "@pipe periodic(period=35ms)"] {
        let pattern = format!("pattern:size=1000,count={COUNT},rate=100");
        let (came, told) = survive(&Scratch::new(), &pattern, pipeline, 10);
        let counts = told["drops"].as_object().unwrap().values();
        let dropped: u64 = counts.map(|count| count.as_u64().unwrap()).sum();
        assert!(dropped > 0, "{pipeline}: {told}");
        assert_eq!(came.len() / 1000 + dropped as usize, COUNT, "{pipeline}: {told}");
    }
}

/// A chain of pipes; one of its processes passes every message unchanged.
#[test]
fn a_chain_of_pipes_survives_kills_of_its_processes() {
    let pipeline = "@pipe: bundle(count=4) | null";
    assert_undisturbed(&Scratch::new(), 1000, 300, 60, pipeline, 12);
}

/// Stages that always hold a message while messages arrive; one of them splits a message into several.
const HOLDS: [&str; 4] = [
    "@pipe bundle(count=4)",
    "@shm: bundle(count=3) | buffer(play, delay=40ms)",
    "@pipe: buffer | delay(40ms)",
    "@shm delay(40ms, jitter=30ms, reorder=true)",
];

#[test]
fn output_of_a_stage_that_always_holds_messages_arrives_during_input() {
    let scratch = Scratch::new();
    for pipeline in HOLDS {
        let out = scratch.path("out");
        let sink = format!("file:{out}");
        let mut program = command(&["connect", "pattern:size=100,rate=200", &sink, "--via", pipeline]);
        let mut program = program.spawn().unwrap();
        let begun = Instant::now();
        // The source never ends.
        while fs::metadata(&out).map_or(0, |file| file.len()) < 50 * 100 {
            assert!(begun.elapsed() < PATIENCE, "{pipeline}: nothing comes");
            thread::sleep(Duration::from_millis(10));
        }
        program.kill().unwrap();
        program.wait().unwrap();
        fs::remove_file(&out).unwrap();
    }
}

#[test]
fn a_pair_that_always_holds_messages_survives_kills_of_its_processes() {
    let scratch = Scratch::new();
    for pipeline in &HOLDS[..2] {
        assert_undisturbed(&scratch, 100, 2_000, 400, pipeline, 12);
    }
}

#[test]
fn an_unsupported_link_is_refused_before_the_start() {
    for (via, why) in [
        ("@direct null(isolate=true)", "needs a process"),
        ("@shm tap", "side port"),
        ("@rope null", "no link by this name"),
    ] {
        outboard(&["connect", "pattern:count=1", "null", "--via", via]).refused(2, &[why]);
    }
}

#[test]
fn a_missing_program_is_refused_before_the_start() {
    outboard(&["connect", "pattern:count=1", "null", "--via", "exec(source=./no-such-program)"])
        .refused(2, &["`exec`: there is no program `./no-such-program`"]);
    let scratch = Scratch::new();
    let script = scratch.path("plain.py");
    std::fs::write(&script, "#!/usr/bin/env python3\n").unwrap();
    outboard(&["share", "pattern", "--via", &format!("exec(source=\"{script}\")")])
        .refused(2, &[&format!("`{script}` is not executable: chmod +x {script}")]);
}

#[test]
fn a_pair_that_needs_the_worker_is_refused_before_the_start() {
    for (pair, why) in [("tap", "side port"), ("synchronize", "several flows"), ("prefetch", "two flows")] {
        let via = format!("{pair}(isolate=true)");
        let told = outboard(&["connect", "pattern:count=1", "null", "--via", &via]);
        told.refused(2, &[&format!("`{pair}`: it cannot be isolated"), why]);
    }
}

#[test]
fn an_isolated_half_reports_its_figures_and_choices() {
    let via = "latest(isolate=true, sandbox=possible)";
    let (mut share, address) = Service::share("pattern:rate=250", &["--via", via, "--stats"]);
    let mut attach = Service::start(&["attach", &format!("{address}/pattern"), "--as", "pattern"]);
    attach.wait("attached");
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "{:?}", share.seen.last());
        let stage = share.wait("stats")["stats"]["outgoing"]["stages"][0].take();
        let figures = stage["figures"].as_array().cloned().unwrap_or_default();
        let has = |name: &str| figures.iter().any(|figure| figure[0] == name);
        let chooses = stage["choices"]
            .as_array()
            .is_some_and(|choices| choices[..].iter().any(|c| c["option"] == "in_flight"));
        if has("process starts") && figures.len() > 4 && chooses {
            return;
        }
    }
}
