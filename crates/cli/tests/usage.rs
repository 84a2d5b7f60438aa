//! Output for users: help, lists, and errors of wrong usage.

mod support;

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use support::{Scratch, command, end, outboard, outboard_fed};
use sys::watch::{take_events, watch_closes};

#[test]
fn wrong_usage_exits_with_2_and_a_suggestion() {
    let refused = |arguments: &[&str], says: &[&str]| outboard(arguments).refused(2, says);
    refused(&[], &["Usage: outboard"]);
    refused(&["teleport"], &["unrecognized subcommand 'teleport'"]);
    refused(&["share"], &["<DEVICE>"]);
    refused(&["share", "patern"], &["there is no device class `patern`; did you mean `pattern`?"]);
    refused(&["share", "stdout"], &["stdout cannot be shared"]);
    refused(
        &["share", "evdev:Logitech*"],
        &["outboard: `evdev:Logitech*`: a pattern without `name=`", "write `evdev:name=Logitech*`"],
    );
    refused(&["share", "pattern:size=-1"], &["`-1` is not a value of `size`"]);
    refused(
        &["share", "pattern", "--listen", "smoke://x"],
        &["there is no transport `smoke`", "quic, tcp, udp, striped"],
    );
    refused(
        &["share", "pattern", "--allow", "nobody"],
        &["no host called `nobody` is paired", "outboard pair"],
    );
    refused(&["share", "pattern", "--allow", "x", "--insecure"], &["`allow`", "`insecure`"]);
    refused(&["share", "pattern", "--silence", "soon"], &["`soon` is not a value of `silence`"]);
    refused(&["attach", "a/x", "--limit", "silence=soon"], &["`soon` is not a value of `silence`"]);
    let twice = ["--silence", "1s", "--limit", "keep=9s,silence=2s"];
    refused(&[&["share", "pattern"], &twice[..]].concat(), &["`--silence`", "`--limit silence=`"]);
    refused(&["share", "pattern", "--limit", "sessions=0"], &["`0` is not a value of `sessions`"]);
    for (command, form) in [
        (&["pair", "1234-5678@127.0.0.1:99999"][..], "write CODE@HOST[:PORT]"),
        (&["devices", "127.0.0.1:99999"], "write [PEER@]HOST[:PORT]"),
        (&["attach", "127.0.0.1:99999/x"], "HOST[:PORT]/NAME"),
        (&["whatif", "127.0.0.1:99999", "--via", "encrypt"], "write HOST[:PORT]"),
    ] {
        refused(command, &["`127.0.0.1:99999", "a port is a number below 65536; ", form]);
    }
    refused(&["attach", "host"], &["`host` does not name a device of a host"]);
    refused(&["attach", "a/x", "b/y", "--as", "null"], &["give one for each, or none"]);
    refused(&["attach", "a/x", "--as", "stdin"], &["stdin cannot be attached"]);
    refused(
        &["attach", "a/x", "--transport", "colour=red"],
        &["there is no option `colour`", "outboard modules quic"],
    );
    refused(&["connect", "pattern", "file:"], &["write `file:PATH`"]);
    refused(&["modules", "nul"], &["there is no module `nul`; did you mean `null`?"]);
    refused(&["modules", "h264"], &["`outboard modules compress`", "`v4l2` also mentions it"]);
    refused(&["demo", "--link", "delay=soon"], &["delay=soon"]);
    refused(&["demo", "--via", "bufer"], &["did you mean `buffer`?"]);
    refused(&["completions", "tosh"], &["tosh"]);
}

#[test]
fn an_error_in_a_pipeline_is_marked() {
    let via = |pipeline: &str, says: &[&str]| {
        outboard(&["share", "pattern", "--via", pipeline]).refused(2, says);
    };
    via("null | comprss(9)", &["did you mean `compress`?\n  null | comprss(9)\n         ^^^^^^^"]);
    via("bundle(count=0)", &["`0` is not a value of `count`", "\n               ^\n"]);
    via("bundle(", &["^"]);
}

#[test]
fn an_error_in_a_run_file_is_marked() {
    let run = |text: &str, says: &[&str]| outboard_fed(&["run", "-"], text.as_bytes()).refused(2, says);
    run("[[share]]\ndevice = 'pattern'\ncolour = 'red'", &["-: TOML parse error at line 3", "colour", "^"]);
    run(
        "[[connect]]\nsource = 'pattern'\nsink = 'nul'",
        &["[[connect]] number 1 (pattern)", "did you mean `null`?"],
    );
    run("[[attach]]\nfrom = 'a/b'\nvia = 'tap('", &["[[attach]] number 1 (a/b)", "^"]);
    run("", &["the file has no entries: write [[share]]"]);
    run("[[share]]\ndevice = 'pattern:rat=5'", &["[[share]] number 1", "did you mean `rate`?"]);
    run("[[share]]\ndevice = 'evdev:/dev/input/event3,grb=on'", &["did you mean `grab`?"]);
    // No host has an address of this network (RFC 5737).
    let text = "[[share]]\ndevice = 'null'\nlisten = '127.0.0.1:39871'\n[[share]]\ndevice = 'pattern'\nlisten = '192.0.2.1'";
    outboard_fed(&["run", "-", "--check"], text.as_bytes())
        .refused(1, &["[[share]] number 2 (pattern): listening on 192.0.2.1:7845"]);
    outboard(&["run", "/nowhere/run.toml"]).refused(1, &["/nowhere/run.toml"]);
}

#[test]
fn bench_executes_the_installed_benchmark_program() {
    let scratch = Scratch::new();
    let own = scratch.path("outboard");
    // A copy would be open for writing, and a fork in another test would inherit that (ETXTBSY, execve(2)).
    fs::hard_link(env!("CARGO_BIN_EXE_outboard"), &own).unwrap();
    let bench = |words: &[&str]| Command::new(&own).arg("bench").args(words).output().unwrap();
    let missing = bench(&["--help"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("make install"));
    let beside = scratch.path("outboard-bench");
    let script = "printf '#!/bin/sh\\necho \"$@\"\\nexit 5\\n' >\"$0\" && chmod 755 \"$0\"";
    assert!(Command::new("sh").args(["-c", script, &beside]).status().unwrap().success());
    for words in [&["device", "--json", "x", "--", "y"][..], &["--help"], &["-h"], &[]] {
        let there = bench(words);
        assert_eq!(String::from_utf8_lossy(&there.stdout), format!("{}\n", words.join(" ")));
        assert_eq!(there.status.code(), Some(5));
    }
}

#[test]
fn every_module_is_listed_and_described() {
    let listed = outboard(&["modules"]).done();
    let modules = outboard(&["modules", "--json"]).done().json_lines();
    let of_kind =
        |kind: &str| modules.iter().filter(|module| module["kind"].as_str().unwrap().contains(kind)).count();
    assert_eq!(of_kind("pair"), modules::registry::pairs().len());
    assert_eq!(of_kind("transport"), modules::registry::transports().len());
    assert_eq!(
        modules.len() - of_kind("pair") - of_kind("transport") - of_kind("limits"),
        modules::registry::device_classes().len()
    );
    for module in &modules {
        let name = module["name"].as_str().unwrap();
        assert!(
            listed.text().lines().any(|line| line.trim_start().starts_with(name)),
            "{name} is not listed"
        );
        let described = outboard(&["modules", name]).done();
        for option in module["options"].as_array().unwrap() {
            let name = option["name"].as_str().unwrap();
            assert!(described.text().contains(&format!("  {name}=")), "{name} is not described");
        }
    }
}

#[test]
fn reports_are_available_in_json() {
    let devices = outboard(&["devices", "--json"]).done().json_lines();
    assert!(devices.iter().all(|device| device["device"].is_string()));
    let checks = outboard(&["doctor", "--json"]).done().json_lines();
    for check in &checks {
        let fine = check["state"] == "ok";
        assert!(fine || check["fix"].is_string(), "no fix for {check}");
    }
    let is_said = |name: &str| checks.iter().any(|check| check["name"] == name);
    assert!(is_said("tty") && is_said("uinput"));
}

#[test]
fn doctor_opens_no_serial_port() {
    let devices = outboard(&["devices", "--json"]).done().json_lines();
    let specs = devices.iter().filter_map(|device| device["device"].as_str());
    let ports = specs.filter_map(|spec| spec.strip_prefix("serial:")).map(Path::new);
    let closes: Vec<_> = ports.filter_map(|port| watch_closes(port).ok()).collect();
    if closes.is_empty() {
        testkit::skip::until_vm("no serial port is here");
        return;
    }
    outboard(&["doctor"]).done();
    assert!(!closes.iter().any(take_events));
}

#[test]
fn a_display_without_a_server_is_not_listed() {
    let directory = Path::new("/tmp/.X11-unix");
    fs::create_dir_all(directory).unwrap();
    // Numbers that no server has.
    let number = 50_000 + std::process::id() % 9000;
    let socket = directory.join(format!("X{number}"));
    let is_listed = || {
        let devices = outboard(&["devices", "--json"]).done().json_lines();
        devices.into_iter().find(|device| device["device"] == format!("x11::{number}"))
    };
    let server = UnixListener::bind(&socket).unwrap();
    let listed = is_listed().expect("a server that does not answer is listed");
    assert!(listed["problem"].is_string(), "{listed}");
    drop(server);
    let dead = (socket.exists(), is_listed());
    fs::remove_file(&socket).unwrap();
    assert_eq!(dead, (true, None));
}

#[test]
fn the_manual_and_the_completions_contain_every_command() {
    let (man, bash) = (outboard(&["man"]).done(), outboard(&["completions", "bash"]).done());
    for command in ["devices", "share", "attach", "connect", "run", "modules", "doctor", "demo"] {
        assert!(man.text().contains(&command.to_uppercase()), "{command} is not in the manual");
        assert!(bash.text().contains(&format!("outboard,{command}")), "{command} cannot be completed");
    }
    assert!(man.text().contains("PEERS ADD") && man.text().contains("or its name belongs to another host"));
    for hidden in [".SH \"WORKER\"", ".SH \"CONFINED\""] {
        assert!(man.text().contains(".SH \"SHARE\"") && !man.text().contains(hidden), "{hidden}");
    }
    assert!(bash.text().contains("peers,add)"));
}

#[test]
fn a_file_that_cannot_be_written_is_named_at_once() {
    let says = ["/nowhere/x", "mkdir -p /nowhere"];
    outboard(&["man", "/nowhere/x"]).refused(1, &says);
    outboard(&["trace", "--perfetto", "/nowhere/x/trace.json", "--seconds", "1e9"]).refused(1, &says);
    let scratch = Scratch::new();
    let file = scratch.path("trace.json");
    outboard(&["trace", "--perfetto", &file, "--with", "/nowhere/x", "--seconds", "1e9"])
        .refused(1, &says[..1]);
}

#[test]
fn help_has_the_second_paragraph_of_a_command() {
    let paragraphs = [
        ("pair", "completes the pairing"),
        ("run", "An entry that cannot start is retried"),
        ("trace", "duration of each step by message size"),
        ("whatif", "first `outboard whatif --listen` on the other one"),
        ("module", "outboard module compress -r a -w b"),
    ];
    for (command, text) in paragraphs {
        let help = outboard(&[command, "--help"]).done();
        let words: Vec<_> = help.text().split_whitespace().collect();
        assert!(words.join(" ").contains(text), "{command}: {}", help.text());
    }
    assert!(outboard(&["whatif", "--help"]).done().text().contains("[default: 2,4,8,inf]"));
}

#[test]
fn a_closed_standard_output_is_no_error() {
    let mut child = command(&["modules", "--json"]).spawn().unwrap();
    drop(child.stdout.take());
    let ended = end(child, "modules");
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
}

#[test]
fn the_demo_shows_the_effect_of_the_pair() {
    let shown = outboard(&["demo", "--json", "--seconds", "3"]).done().json();
    let error = |flow: &str| shown[flow]["spacing_error_ms"]["mean"].as_f64().unwrap();
    // A busy machine adds delay, but the network's 30 ms still dominate.
    assert!(error("without") > error("with"), "{shown}");
    assert!(shown["with"]["messages"].as_u64().unwrap() > 50, "{shown}");
    let summary = outboard(&["demo", "--seconds", "1"]).done();
    assert!(
        summary.text().contains("without a pair") && !summary.text().contains('\x1b'),
        "{}",
        summary.text()
    );
}
