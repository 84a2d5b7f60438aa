//! `outboard module`: in shell lines with named pipes and `|`, and driven by a runner over the module interface.

mod support;

use contract::Half;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use support::driven::{Driven, hello};
use support::{PATIENCE, Scratch, command, end, free_port, noise, outboard, outboard_fed, terminate};
use wire::module::MODULE_FRAME_BYTES_MAX;
use wire::{Container, ModuleFrame, ModuleKey};

/// Size of the input, and the options that cut it into messages.
const BYTES: usize = 300_000;
const CHUNKS: &str = "frame=chunk(1000)";

fn fifos<const N: usize>(scratch: &Scratch, names: [&str; N]) -> [String; N] {
    names.map(|name| {
        let path = scratch.path(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        path
    })
}

/// Starts the program with the words of a line.
fn start(line: &str) -> Child {
    let words: Vec<_> = line.split(' ').collect();
    command(&words).spawn().unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn containers(bodies: &[&[u8]]) -> Vec<u8> {
    let one = |body: &&[u8]| [&Container { length: body.len() as u32, created: 9 }.emit()[..], body].concat();
    bodies.iter().flat_map(one).collect()
}

/// Both hosts of "Networked Device Driver Architecture" (2012), listing 5.2, in any order of start.
#[test]
fn modules_join_through_named_pipes_in_any_order() {
    let scratch = Scratch::new();
    let (input, content) = scratch.noise("in", BYTES);
    let key = scratch.path("key");
    fs::write(&key, [7; 32]).unwrap();
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let [out0, out1, out2, in0, in1, in2] = fifos(&scratch, ["out0", "out1", "out2", "in0", "in1", "in2"]);
    let output = scratch.path("out");
    for reversed in [false, true] {
        let network = format!("tcp://127.0.0.1:{}", free_port());
        let mut lines = [
            format!("module file:{input},{CHUNKS} -w {out0}"),
            format!("module encrypt -r {out0} -w {out1} --key-file {key}"),
            format!("module compress zstd level=1 -r {out1} -w {out2}"),
            format!("module {network} --listen -r {out2}"),
            format!("module {network} -w {in0}"),
            format!("module compress zstd level=1 --undo -r {in0} -w {in1}"),
            format!("module encrypt --undo -r {in1} -w {in2} --key-file {key}"),
            format!("module file:{output} -r {in2}"),
        ];
        if reversed {
            lines.reverse();
        }
        let running: Vec<_> = lines
            .into_iter()
            .map(|line| {
                // The listener must start before the client; all other processes may start in any order.
                if line.contains(&format!("{network} -w")) {
                    return (None, line);
                }
                (Some(start(&line)), line)
            })
            .collect();
        let caller = format!("module {network} -w {in0}");
        let call = || loop {
            let ended = end(start(&caller), &caller);
            match ended.stderr.contains("cannot be reached") {
                true => thread::sleep(Duration::from_millis(10)),
                false => return ended,
            }
        };
        assert_eq!(call().done().stderr, "");
        for (child, line) in running {
            if let Some(child) = child {
                assert_eq!(end(child, &line).done().stderr, "", "{line}");
            }
        }
        assert!(fs::read(&output).unwrap() == content, "other bytes, reversed: {reversed}");
    }
}

#[test]
fn modules_join_with_a_bar() {
    let given = containers(&[b"one", b"", &noise(200_000), b"four"]);
    let made = outboard_fed(&["module", "compress"], &given).done();
    assert!(!made.stdout.is_empty() && made.stdout != given);
    assert_eq!(outboard_fed(&["module", "compress", "--undo"], &made.stdout).done().stdout, given);
    // Held messages leave at the end.
    let bundled = outboard_fed(&["module", "bundle", "count=3", "wait=10s"], &given).done();
    assert_eq!(
        outboard_fed(&["module", "bundle", "--undo", "count=3"], &bundled.stdout).done().stdout,
        given
    );
}

#[test]
fn halves_with_feedback_connect_through_a_socket() {
    let scratch = Scratch::new();
    let [between] = fifos(&scratch, ["between"]);
    let (input, output, meeting) = (scratch.path("in"), scratch.path("out"), scratch.path("meeting"));
    let bodies: Vec<_> = (0..40u8).map(|number| vec![number; 5]).collect();
    let given = containers(&bodies.iter().map(|body| &body[..]).collect::<Vec<_>>());
    for halves in [[Half::Source, Half::Sink], [Half::Sink, Half::Source]] {
        fs::write(&input, &given).unwrap();
        fs::write(&output, b"").unwrap();
        let running = halves.map(|half| {
            let line = match half {
                Half::Source => format!("module buffer max=20 -r {input} -w {between} -c {meeting}"),
                Half::Sink => format!("module buffer max=20 --undo -r {between} -w {output} -c {meeting}"),
            };
            (start(&line), line)
        });
        for (child, line) in running {
            assert_eq!(end(child, &line).done().stderr, "");
        }
        assert_eq!(fs::read(&output).unwrap(), given);
        assert!(!fs::exists(&meeting).unwrap(), "the meeting place is left over");
    }
}

#[test]
fn a_half_whose_other_half_ends_does_not_wait_for_it() {
    let scratch = Scratch::new();
    let [endless, between] = fifos(&scratch, ["endless", "between"]);
    let meeting = scratch.path("meeting");
    let source = format!("module buffer -r {endless} -w {between} -c {meeting}");
    let source = (start(&source), source);
    until("the source half listens", || fs::exists(&meeting).unwrap());
    let sink = start(&format!("module buffer --undo -r {between} -w /dev/null -c {meeting}"));
    let _open = fs::OpenOptions::new().read(true).write(true).open(&endless).unwrap();
    until("both have met", || !fs::exists(&meeting).unwrap());
    terminate(&sink);
    end(sink, "the sink half").done();
    end(source.0, &source.1).refused(1, &["the other half of this pair has ended"]);
}

#[track_caller]
fn until(what: &str, holds: impl Fn() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < PATIENCE, "{what}: not yet");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_transport_moves_containers_between_pipes() {
    let scratch = Scratch::new();
    let given = containers(&[b"one", b"", &noise(20_000)]);
    let input = scratch.path("in");
    fs::write(&input, &given).unwrap();
    let port = free_port();
    let network = format!("udp://127.0.0.1:{port}");
    let output = scratch.path("out");
    fs::write(&output, b"").unwrap();
    let listener = start(&format!("module {network} --listen -w {output}"));
    let bound = format!(":{port:04X} ");
    until("it listens", || fs::read_to_string("/proc/net/udp").unwrap().contains(&bound));
    end(start(&format!("module {network} -r {input}")), "the sender").done();
    until("all has come", || fs::metadata(&output).unwrap().len() == given.len() as u64);
    // Datagrams do not carry the end of the input.
    terminate(&listener);
    end(listener, "the listener").done();
    assert_eq!(fs::read(&output).unwrap(), given);
}

#[test]
fn invalid_command_lines_are_refused_with_advice() {
    let scratch = Scratch::new();
    let refused = |line: &str, says: &[&str]| {
        let words: Vec<_> = line.split(' ').collect();
        outboard(&words).refused(2, says);
    };
    refused("module buffer", &["exchange control messages", "-c SOCKET"]);
    let missing = scratch.path("missing");
    refused(&format!("module null -r {missing}"), &[&format!("`mkfifo {missing}` makes a named pipe")]);
    refused(&format!("module null -w {missing}"), &["mkfifo"]);
    refused("module nul", &["no pair, device or transport `nul`", "outboard modules"]);
    refused("module compress level=99", &["`compress`", "`level`", "outboard modules compress"]);
    refused("module compress zstd gzip", &["`gzip` is not an option of `compress`", "NAME=VALUE"]);
    refused("module compress leve=3", &["there is no option `leve`; did you mean `level`?"]);
    refused("module null -r a -r b", &["1 port for -r, not 2"]);
    refused("module compress --format smoke", &["no format `smoke`"]);
    refused("module compress --listen", &["--listen does not apply to `compress`"]);
    refused("module encrypt", &["--key-file"]);
    refused("module stdin -r a", &["`stdin` has no flow for -r"]);
    refused("module tcp://192.0.2.1:1", &["--insecure"]);
    refused("module smoke://127.0.0.1:1", &["no transport `smoke`"]);
    refused("module null --fd-control 3 -r a", &["cannot be used with"]);
    refused("module null --fd-control 900", &["--fd-control 900"]);
    outboard(&["module", "tcp://127.0.0.1:1"]).refused(1, &["cannot be reached", "--listen"]);
    outboard_fed(&["module", "null"], &[255; 40])
        .refused(1, &["data from standard input is not a container"]);
    let short = &containers(&[b"cut short"])[..15];
    outboard_fed(&["module", "null"], short).refused(1, &["ended 15 bytes into a container"]);
    let refusal = outboard_fed(&["module", "compress", "--undo"], &containers(&[b"no frame of it"]));
    refusal.refused_with(1, "compress: 1 message was lost: 1 (refused by the stage)");
    for page in [&["man"][..], &["completions", "bash"]] {
        assert!(outboard(page).done().text().contains("undo"), "{page:?} does not know `module`");
    }
}

#[test]
fn a_half_reports_done_messages_to_its_runner() {
    let mut module = Driven::half("null");
    module.say(0, &hello("source", "video", &[]));
    assert_eq!(module.frame(), (0, hello("source", "video", &[("done", "true")])));
    module.done(0, 0);
    let large = noise(1 << 20);
    for (created, body) in [(1, &b"a"[..]), (2, b""), (3, &large)] {
        module.give(created, body);
        assert_eq!(module.output(), (created, body.to_vec()));
    }
    module.done(3, 3);
    module.say(3, &ModuleFrame::Unknown(255));
    module.say(3, &ModuleFrame::Flush);
    module.done(3, 3);
    module.end_data();
    module.done(3, 3);
    assert_eq!(module.ended().code, Some(0));
}

#[test]
fn held_messages_are_done_after_a_flush_or_the_end() {
    let mut module = Driven::half("bundle");
    module.say(0, &hello("source", "bytes", &[("count", "3"), ("wait", "60s")]));
    assert!(matches!(module.frame().1, ModuleFrame::Hello { .. }));
    module.done(0, 0);
    (0..3).for_each(|number| module.give(number, b"x"));
    module.output();
    module.done(3, 1);
    module.give(3, b"y");
    module.is_quiet();
    module.say(4, &ModuleFrame::Flush);
    module.output();
    module.done(4, 2);
    module.give(4, b"z");
    module.is_quiet();
    module.end_data();
    module.output();
    module.done(5, 3);
    assert_eq!(module.ended().code, Some(0));
}

#[test]
fn feedback_passes_through_the_runner() {
    let [mut source, mut sink] = ["source", "sink"].map(|role| {
        let mut half = Driven::half("buffer");
        half.say(0, &hello(role, "bytes", &[("max", "2"), ("min", "1")]));
        assert!(matches!(half.frame().1, ModuleFrame::Hello { .. }));
        half
    });
    let peer = |half: &Driven| loop {
        if let (at, ModuleFrame::Peer(said)) = half.frame() {
            return (at, said);
        }
    };
    // The sink requests two messages, and only then the source sends two.
    (0..3).for_each(|number| source.give(number, &[number as u8]));
    let (at, said) = peer(&sink);
    assert_eq!((at, said.len()), (0, 8));
    source.say(3, &ModuleFrame::Peer(said));
    for number in 0..2 {
        let (created, body) = source.output();
        sink.give(created, &body);
        assert_eq!(sink.output(), (number, vec![number as u8]));
    }
}

/// Its source takes no third message until it is requested; a frame that waits for that message must not keep the request.
#[test]
fn a_half_without_room_hears_its_other_half() {
    let mut source = Driven::half("buffer");
    source.say(0, &hello("source", "bytes", &[("full", "wait"), ("source_max", "2")]));
    assert!(matches!(source.frame().1, ModuleFrame::Hello { .. }));
    (0..3).for_each(|number| source.give(number, &[number as u8]));
    source.say(3, &ModuleFrame::Gap);
    source.say(3, &ModuleFrame::Peer(3u64.to_le_bytes().to_vec()));
    for number in 0..3 {
        assert_eq!(source.output().0, number);
    }
}

#[test]
fn a_key_precedes_the_hello_and_is_on_no_command_line() {
    let mut keyless = Driven::half("encrypt");
    keyless.say(0, &hello("source", "bytes", &[]));
    keyless.fails("--key-file");
    let [mut source, mut sink] = ["source", "sink"].map(|role| {
        let mut half = Driven::half("encrypt");
        half.say(0, &ModuleFrame::Key(ModuleKey([5; 32])));
        half.say(0, &hello(role, "bytes", &[]));
        half
    });
    source.give(3, b"secret");
    let (created, sealed) = source.output();
    assert!(!sealed.windows(6).any(|part| part == b"secret"));
    sink.give(created, &sealed);
    assert_eq!(sink.output(), (3, b"secret".to_vec()));
    // The module drops a refused message with a reason, and continues.
    sink.give(created, b"rubbish");
    let dropped = loop {
        if let (_, ModuleFrame::Drop { count, .. }) = sink.frame() {
            break count;
        }
    };
    assert_eq!(dropped, 1);
}

#[test]
fn protocol_errors_of_a_runner_are_reported() {
    let said = |frames: &[ModuleFrame], words: &str| {
        let mut module = Driven::half("null");
        frames.iter().for_each(|frame| module.say(0, frame));
        module.fails(words);
    };
    let hello_of = |version, role: &str| ModuleFrame::Hello {
        version,
        role: role.into(),
        format: "bytes".into(),
        options: Vec::new(),
    };
    said(&[ModuleFrame::Gap], "not a hello");
    said(&[hello_of(2, "source")], "version 2");
    said(&[hello_of(1, "both")], "role `both`");
    said(&[hello("source", "smoke", &[])], "no format `smoke`");
    said(&[hello("source", "bytes", &[("colour", "red")])], "`colour`");
    let too_long = vec![0; MODULE_FRAME_BYTES_MAX + 1];
    said(&[hello("source", "bytes", &[]), ModuleFrame::Peer(too_long)], "1048577");
    let mut module = Driven::half("null");
    module.say(0, &hello("source", "bytes", &[]));
    module.give_bytes(&[255; 12]);
    module.fails("not a container");
}

/// When the reader closes its pipe, the writer reports it and exits.
#[test]
fn a_module_exits_when_its_reader_has_closed() {
    let mut child = command(&["module", "pattern:rate=0"]).stdin(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    let ended = end(child, "module pattern");
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("standard output"), "{}", ended.stderr);
}
