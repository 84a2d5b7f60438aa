//! Tests with real programs: the example in C, and shell commands that break the rules.

use super::*;
use crate::test_records::{WATCHDOG, figure, keys, pattern, pull, push, record};
use contract::{Ctl, CtlReply, FlowKey, Message, Pull, Pulled, Pushed, Time, TransportCtl};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Buffers in which both directions of a busy connection are full soon.
const SMALL_BUFFERS: &str = "
    #define _GNU_SOURCE
    #include <sys/socket.h>
    static int small_socket(int family, int type, int protocol) {
        int made = socket(family, type, protocol), bytes = 32 << 10;
        setsockopt(made, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
        setsockopt(made, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
        return made;
    }
    #define socket small_socket
";

/// The example in C, built once. `None`: there is no compiler, and the test is skipped.
pub(crate) fn carrier() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| build("carrier", "")).clone()
}

/// Builds the example in C behind these lines.
fn build(name: &str, lines: &str) -> Option<PathBuf> {
    if !testkit::skip::has_program("cc", "gcc") {
        return None;
    }
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/c");
    let binary = std::env::temp_dir().join(format!("outboard-{name}-{}", std::process::id()));
    let first = binary.with_extension("h");
    std::fs::write(&first, lines).expect("write");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=c99", "-O1", "-I"])
        .arg(&sdk)
        .arg("-include")
        .arg(&first)
        .arg(sdk.join("examples/carrier.c"))
        .arg("-o")
        .arg(&binary);
    let built = compiler.output().expect("the compiler starts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(binary)
}

/// A free port, below those that the kernel gives to connections: no other one takes it meanwhile.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let candidates = std::iter::repeat_with(|| {
        let number = std::process::id().wrapping_mul(97) + NEXT.fetch_add(1, Ordering::Relaxed);
        20_000 + (number % 12_000) as u16
    });
    let is_free = |port: &u16| TcpListener::bind(("0.0.0.0", *port)).is_ok();
    candidates.take(12_000).find(is_free).expect("one of them is free")
}

fn begin(command: &str, end: End) -> OwnedFd {
    let options = Options::check(Exec.options(), [("command", command)]).expect("options");
    let meeting = Meeting { end, peer: [127, 0, 0, 1].into(), device: "film", driver: 0 };
    Exec.begin(&meeting, &options).expect("a program")
}

fn partner(socket: OwnedFd, sealed: Option<&SealKeys>, given: &[(&str, &str)]) -> Box<dyn Partner> {
    let options = Options::check(Exec.options(), given.iter().copied()).expect("options");
    Exec.partner(socket, End::Dialled, &options, sealed).expect("partner")
}

/// Returns both ends of a connection that two processes of `program` make.
pub(crate) fn partners(program: &Path, sealed: bool, given: &[(&str, &str)]) -> [Box<dyn Partner>; 2] {
    let port = free_port();
    partners_at(program, [port, port], sealed, given)
}

/// Like [`partners`], with the ports of the program that listens and of the one that connects.
fn partners_at(
    program: &Path,
    ports: [u16; 2],
    sealed: bool,
    given: &[(&str, &str)],
) -> [Box<dyn Partner>; 2] {
    let mut ends = [End::Accepted, End::Dialled].into_iter().zip(keys());
    ports.map(|port| {
        let (end, keys) = ends.next().expect("two of each");
        let command = format!("exec {} 127.0.0.1 {port}", program.display());
        partner(begin(&command, end), Some(&keys).filter(|_| sealed), given)
    })
}

/// Pushes records of these bytes, from this number to a limit, until the partner is full.
fn push_some(partner: &mut dyn Partner, bytes: usize, numbers: std::ops::Range<u64>) -> u64 {
    for number in numbers.clone() {
        let message = Message::new(Time::ZERO, record(1, number, &pattern(bytes, number)));
        match partner.push(FlowKey::DEFAULT, message).map_err(|(error, _)| error).expect("push") {
            Pushed::Taken => {}
            Pushed::Full(_) => return number,
        }
    }
    numbers.end
}

/// Does the work of an event loop apart from records.
fn run(partner: &mut dyn Partner) {
    partner.ctl(FlowKey::DEFAULT, Ctl::Flush).expect("the connection lives");
    partner.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Received)).expect("the connection lives");
}

/// Exchanges so many records of these bytes, both ways at once.
fn exchange(ends: &mut [Box<dyn Partner>; 2], bytes: usize, counts: [u64; 2]) {
    let (begun, mut pushed, mut arrived) = (Instant::now(), [0; 2], [0; 2]);
    while arrived != [counts[1], counts[0]] {
        for (number, end) in ends.iter_mut().enumerate() {
            pushed[number] = push_some(end.as_mut(), bytes, pushed[number]..counts[number]);
            run(end.as_mut());
            while let Pulled::Message(_, message) =
                end.pull(FlowKey::DEFAULT, Pull::Yours).expect("the connection lives")
            {
                let expected = record(1, arrived[number], &pattern(bytes, arrived[number]));
                assert!(message.body.into_bytes() == expected.into_bytes());
                arrived[number] += 1;
            }
        }
        assert!(begun.elapsed() < WATCHDOG, "{pushed:?} pushed, {arrived:?} arrived");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Pulls until the partner fails; returns its error.
fn failure(partner: &mut dyn Partner) -> String {
    let begun = Instant::now();
    loop {
        match partner.pull(FlowKey::DEFAULT, Pull::Yours) {
            Err(error) => return error.to_string(),
            Ok(Pulled::Nothing) => assert!(begun.elapsed() < WATCHDOG, "no error"),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the words of a shell that print these bytes.
fn prints(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("\\{byte:03o}")).collect();
    format!("printf '{digits}'")
}

/// Returns the container with the hello of a program with these properties.
fn hello(values: &[(&str, &str)]) -> Vec<u8> {
    let options = values.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    let version = wire::MODULE_VERSION;
    let hello =
        wire::ModuleFrame::Hello { version, role: "transport".into(), format: "records".into(), options };
    let body = &hello.emit(0)[wire::module::MODULE_HEADER_BYTES..];
    [&Container { length: body.len() as u32, created: 0 }.emit()[..], body].concat()
}

const RELIABLE: &[(&str, &str)] = &[("reliable", "true"), ("ordered", "true")];

#[test]
fn records_of_all_sizes_cross_two_programs() {
    let Some(program) = carrier() else { return };
    for sealed in [false, true] {
        let [mut here, mut there] = partners(&program, sealed, &[("patience", "3600s")]);
        for (number, bytes) in [0, 1, 1000, 70_000, 3 << 20, 5].into_iter().enumerate() {
            let sent = record(4, number as u64, &pattern(bytes, 9));
            push(here.as_mut(), sent.clone());
            let begun = Instant::now();
            let (flow, got) = loop {
                here.ctl(FlowKey::DEFAULT, Ctl::Flush).expect("flush");
                match there.pull(FlowKey::DEFAULT, Pull::Yours).expect("pull") {
                    Pulled::Message(flow, message) => break (flow, message.body),
                    _ => assert!(begun.elapsed() < WATCHDOG, "no record arrives"),
                }
            };
            assert_eq!(
                (flow, got.into_bytes()),
                (FlowKey(4), sent.into_bytes()),
                "{bytes} bytes, sealed: {sealed}"
            );
        }
        assert_eq!(figure(there.as_mut(), "refused"), 0.0);
    }
}

#[test]
fn a_connection_ends_after_the_records_before_its_end() {
    let Some(program) = carrier() else { return };
    let [mut here, mut there] = partners(&program, true, &[("patience", "3600s")]);
    push(here.as_mut(), record(1, 0, b"last"));
    let begun = Instant::now();
    while !matches!(here.ctl(FlowKey::DEFAULT, Ctl::Finish), Ok(CtlReply::Done)) {
        assert!(begun.elapsed() < WATCHDOG);
    }
    assert!(pull(there.as_mut()).is_some());
    assert!(pull(there.as_mut()).is_none());
}

#[test]
fn the_introduction_is_found_and_stays() {
    let introduction = [7; Introduction::BYTES];
    let said = [hello(&[]), Exec.wrap(&introduction)].concat();
    // In two writes, as a slow program would.
    let (first, second) = said.split_at(said.len() - 9);
    let command = format!("{}; sleep 0.1; {}; exec cat >/dev/null", prints(first), prints(second));
    let socket = begin(&command, End::Accepted);
    let begun = Instant::now();
    let found = loop {
        match Exec.look(std::os::fd::AsFd::as_fd(&socket)).expect("look") {
            Some(found) => break found,
            None => assert!(begun.elapsed() < WATCHDOG, "no introduction"),
        }
    };
    assert_eq!(found, introduction);
    // The partner ignores it.
    let mut partner = partner(socket, Some(&keys()[0]), &[]);
    assert!(matches!(partner.pull(FlowKey::DEFAULT, Pull::Ask).expect("pull"), Pulled::Nothing));
    let received = partner.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Received)).expect("count");
    assert!(matches!(received, CtlReply::Count(bytes) if bytes as usize == said.len()), "{received:?}");
}

#[test]
fn a_program_that_ends_or_breaks_the_rules_is_named() {
    let strange = [hello(RELIABLE), message::container(Kind::Sealed, &[5; 90])].concat();
    let long = [hello(&[]), u32::MAX.to_le_bytes().to_vec(), vec![0; 8]].concat();
    for (command, expected) in [
        ("exit 3".into(), "it has ended"),
        (prints(&hello(&[])), "it has ended"),
        (prints(&hello(&[("bytes", "10")])), "at least 1200 bytes"),
        (prints(&strange), "was altered"),
        (prints(&strange[..strange.len() - 1]), "in the middle of a message"),
        (prints(&long), "4294967295"),
        ("echo not a container at all".into(), "over the limit"),
    ] {
        let socket = begin(&command, End::Dialled);
        let mut partner = partner(socket, Some(&keys()[0]), &[("command", "./mine")]);
        let problem = failure(partner.as_mut());
        assert!(problem.contains("`./mine`") && problem.contains(expected), "{problem}, not {expected}");
        assert_eq!(failure(partner.as_mut()), problem, "it stays the same");
    }
}

#[test]
fn an_unreliable_program_may_carry_strange_messages() {
    let said = [hello(&[]), message::container(Kind::Sealed, &[5; 90]), message::container(Kind::Bare, b"x")]
        .concat();
    let socket = begin(&format!("{}; exec cat >/dev/null", prints(&said)), End::Dialled);
    let mut partner = partner(socket, Some(&keys()[0]), &[]);
    let begun = Instant::now();
    while figure(partner.as_mut(), "refused") < 2.0 {
        assert!(matches!(partner.pull(FlowKey::DEFAULT, Pull::Ask).expect("pull"), Pulled::Nothing));
        assert!(begun.elapsed() < WATCHDOG, "the messages do not arrive");
    }
}

/// The session sends a record again while a slow connection carries it.
#[test]
fn a_record_on_its_way_is_carried_once() {
    let mut silent = partner(begin("exec cat >/dev/null", End::Dialled), Some(&keys()[0]), &[]);
    (0..10).for_each(|_| push(silent.as_mut(), record(1, 0, b"waits here")));
    assert_eq!(figure(silent.as_mut(), "waiting"), 1.0);

    let command = format!("{}; exec cat >/dev/null", prints(&hello(RELIABLE)));
    let mut reliable = partner(begin(&command, End::Dialled), Some(&keys()[0]), &[("patience", "3600s")]);
    let begun = Instant::now();
    for sent in 1..3 {
        (0..10).for_each(|_| push(reliable.as_mut(), record(1, sent, b"on its way")));
        while figure(reliable.as_mut(), "sent") < sent as f64 {
            run(reliable.as_mut());
            assert!(begun.elapsed() < WATCHDOG, "the program takes nothing");
        }
        (0..10).for_each(|_| push(reliable.as_mut(), record(1, sent, b"on its way")));
    }
    run(reliable.as_mut());
    assert_eq!(figure(reliable.as_mut(), "sent"), 2.0);
    assert_eq!(figure(reliable.as_mut(), "waiting"), 0.0);
}

#[test]
fn a_program_that_carries_nothing_loses_the_connection() {
    let socket = begin(&format!("{}; exec cat >/dev/null", prints(&hello(&[]))), End::Dialled);
    let mut partner = partner(socket, Some(&keys()[0]), &[("patience", "100ms")]);
    let problem = failure(partner.as_mut());
    assert!(problem.contains("nothing has arrived from the other host for 0.1 s (`patience`)"), "{problem}");
}

#[test]
fn a_connection_at_rest_sends_nothing() {
    let Some(program) = carrier() else { return };
    let mut ends = partners(&program, true, &[]);
    exchange(&mut ends, 1000, [1, 0]);
    let begun = Instant::now();
    while ends.iter().any(|end| end.upkeep().at.is_some()) {
        ends.iter_mut().for_each(|end| run(end.as_mut()));
        assert!(begun.elapsed() < WATCHDOG, "an end waits for ever");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The application is paused: its host runs, and pulls nothing.
#[test]
fn a_connection_outlives_an_end_that_pulls_nothing() {
    let Some(program) = carrier() else { return };
    // A few records, and more than the sockets hold.
    for limit in [3, u64::MAX] {
        let [mut here, mut there] = partners(&program, true, &[("patience", "2s")]);
        let mut poller = sys::poller::Poller::new().expect("a poller");
        let (begun, mut pushed, mut turns) = (Instant::now(), 0, 0);
        while begun.elapsed() < Duration::from_secs(5) {
            pushed = push_some(here.as_mut(), 50_000, pushed..limit);
            run(here.as_mut());
            there.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Received)).expect("it lives");
            let unsent = here.readiness(FlowKey::DEFAULT, contract::Direction::In);
            let mut wait = Duration::from_millis(50);
            for readiness in [unsent, here.upkeep(), there.upkeep()] {
                for (descriptor, interest) in readiness.descriptors.into_iter().flatten() {
                    let reads = interest == contract::Interest::Read;
                    poller.register(descriptor, reads, !reads);
                }
                let at = readiness.at.map(|at| at.since(Time(sys::clock::boot_ns())));
                wait = wait.min(at.unwrap_or(wait));
            }
            poller.wait(Some(wait)).expect("a wait");
            turns += 1;
        }
        assert!(turns < 20_000, "{turns} turns, without an event");
        let begun = Instant::now();
        for number in 0..pushed {
            let got = loop {
                run(here.as_mut());
                match there.pull(FlowKey::DEFAULT, Pull::Yours).expect("it lives") {
                    Pulled::Message(_, message) => break message.body,
                    _ => assert!(begun.elapsed() < WATCHDOG, "no record arrives"),
                }
            };
            assert!(
                got.into_bytes() == record(1, number, &pattern(50_000, number)).into_bytes(),
                "record {number}"
            );
        }
    }
}

/// Carries the bytes of a connection to `port`, so many in a second. Returns the port at which it waits.
fn slow_relay(port: u16, bytes_per_second: u32) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let at = listener.local_addr().expect("an address").port();
    let copy = |mut from: TcpStream, mut to: TcpStream, per_second: u32| {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            std::thread::sleep(Duration::from_secs(1) * count as u32 / per_second);
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    };
    std::thread::spawn(move || {
        let (dialled, _) = listener.accept().expect("a connection");
        let accepted = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(accepted) => break accepted,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let back = (accepted.try_clone().expect("a copy"), dialled.try_clone().expect("a copy"));
        std::thread::spawn(move || copy(back.0, back.1, u32::MAX));
        copy(dialled, accepted, bytes_per_second);
    });
    at
}

/// Everything that a program takes waits before a probe, for longer than the patience.
#[test]
fn a_flow_over_a_slow_connection_is_not_lost() {
    let Some(program) = carrier() else { return };
    let port = free_port();
    let ports = [port, slow_relay(port, 150_000)];
    let mut ends = partners_at(&program, ports, true, &[("patience", "3s")]);
    exchange(&mut ends, 10_000, [0, 90]);
}

/// The command of a program of an SDK. `None`: the tool is missing, and the test is skipped.
fn script(tool: &str, package: &str, path: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk").join(path);
    testkit::skip::has_program(tool, package).then(|| PathBuf::from(format!("{tool} {}", path.display())))
}

fn javascript() -> Option<PathBuf> {
    script("node", "nodejs", "js/examples/carrier.js")
}

/// A program in JavaScript that takes everything holds it in memory.
#[test]
fn a_program_in_javascript_takes_no_more_than_its_connection() {
    let Some(program) = javascript() else { return };
    let port = free_port();
    let ports = [port, slow_relay(port, 1000)];
    let [_there, mut here] = partners_at(&program, ports, true, &[("patience", "3600s")]);
    let (begun, mut last, mut pushed, count) = (Instant::now(), (Instant::now(), 0.0), 0, 640);
    while last.1 == 0.0 || last.0.elapsed() < Duration::from_secs(1) {
        pushed = push_some(here.as_mut(), 100_000, pushed..count);
        run(here.as_mut());
        let sent = figure(here.as_mut(), "sent");
        if sent > last.1 {
            last = (Instant::now(), sent);
        }
        assert!(begun.elapsed() < WATCHDOG && sent < count as f64, "{sent} records sent");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_connection_that_is_busy_both_ways_is_not_lost() {
    let python = script("python3", "python3", "python/tests/carrier.py");
    for program in [build("small", SMALL_BUFFERS), python, javascript()].into_iter().flatten() {
        let mut ends = partners(&program, true, &[("patience", "15s")]);
        exchange(&mut ends, 100_000, [50, 50]);
    }
}

#[test]
fn a_program_ends_with_its_connection() {
    // It ignores the end of its input, and has a child.
    let scratch = std::env::temp_dir().join(format!("outboard-carrier-pid-{}", std::process::id()));
    let socket = begin(
        &format!("sleep 1000 & echo $! >{0}.new; mv {0}.new {0}; wait", scratch.display()),
        End::Dialled,
    );
    let begun = Instant::now();
    let child: u32 = loop {
        if let Ok(text) = std::fs::read_to_string(&scratch) {
            break text.trim().parse().expect("a number");
        }
        assert!(begun.elapsed() < WATCHDOG, "it does not start");
    };
    std::fs::remove_file(&scratch).expect("remove");
    drop(socket);
    // A process that nobody reaps stays as a zombie, without a command line.
    let is_running = || std::fs::read(format!("/proc/{child}/cmdline")).is_ok_and(|words| !words.is_empty());
    while is_running() {
        assert!(begun.elapsed() < WATCHDOG, "the child of the program lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

proptest! {
    #[test]
    fn any_output_is_parsed_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = look_in(&bytes);
        let _ = look_in(&[hello(&[]), bytes.clone()].concat());
        let _ = hello::parse(&bytes);
    }

    #[test]
    fn a_split_record_is_whole_again(length in 1usize..9000, limit in 1200usize..3000, sealed: bool) {
        let sent = record(3, 8, &pattern(length, 4));
        let [ours, theirs] = keys();
        let (mut here, mut there) = (crate::seal::Seal::new(&ours), crate::seal::Seal::new(&theirs));
        let mut splitter = message::Splitter::new(sent.clone(), limit, sealed);
        let (mut bytes, mut number) = (Vec::new(), 0);
        while splitter.append_next(number, sealed.then_some(&mut here.sealer), &mut bytes) {
            number += 1;
        }
        let mut reassembly = crate::udp::reassembly::Reassembly::new(crate::udp::reassembly::ReassemblyLimits {
            body_bytes_max: 1 << 20, partials_max: 4, partial_bytes_max: 1 << 20, patience: Duration::from_secs(1),
        });
        let mut rest = &bytes[..];
        while let Some((message, next)) = message::split(rest, limit).expect("a container within the limit") {
            let mut message = message[1..].to_vec();
            let content = match sealed {
                true => {
                    let count = there.opener.datagram(&mut message).expect("it opens");
                    message[crate::seal::NUMBER_BYTES..][..count].to_vec()
                }
                false => message,
            };
            let slab = crate::udp::reassembly::Slab { number: 0, bytes: content.len() };
            reassembly.insert(content.into(), slab, contract::Time::ZERO);
            rest = next;
        }
        prop_assert_eq!(reassembly.next().expect("a record").1.into_bytes(), sent.into_bytes());
    }
}
