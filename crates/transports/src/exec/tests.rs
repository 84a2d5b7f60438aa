//! Tests with real programs: the example in C, and shell commands that break the rules.

use super::*;
use crate::test_records::{WATCHDOG, figure, keys, pattern, pull, push, record};
use contract::{Ctl, CtlReply, FlowKey, Pull, Pulled, TransportCtl};
use proptest::prelude::*;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// The example in C, built once. `None`: there is no compiler, and the test is skipped.
pub(crate) fn carrier() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        if !testkit::skip::has_program("cc", "gcc") {
            return None;
        }
        let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/c");
        let binary = std::env::temp_dir().join(format!("outboard-carrier-{}", std::process::id()));
        let mut compiler = Command::new("cc");
        compiler
            .args(["-std=c99", "-O1", "-I"])
            .arg(&sdk)
            .arg(sdk.join("examples/carrier.c"))
            .arg("-o")
            .arg(&binary);
        let built = compiler.output().expect("the compiler starts");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Some(binary)
    };
    BUILT.get_or_init(build).clone()
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
    let command = format!("exec {} 127.0.0.1 {}", program.display(), free_port());
    let mut keys = keys().into_iter();
    [End::Accepted, End::Dialled].map(|end| {
        let keys = keys.next().filter(|_| sealed);
        partner(begin(&command, end), keys.as_ref(), given)
    })
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

#[test]
fn a_program_that_carries_nothing_loses_the_connection() {
    let socket = begin(&format!("{}; exec cat >/dev/null", prints(&hello(&[]))), End::Dialled);
    let mut partner = partner(socket, Some(&keys()[0]), &[("patience", "100ms")]);
    let problem = failure(partner.as_mut());
    assert!(problem.contains("nothing has arrived from the other host for 0.1 s"), "{problem}");
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
