//! Real processes that are killed, hang, send garbage or run out of memory.

use contract::{Half, Input, Link, Message, Outbox, Port, Time};
use modules::process::{Limits, Module, Process, SharedRun};
use rustix::process::Signal;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use sys::poller::Poller;
use wire::ModuleFrame;
use wire::module::{MODULE_VERSION, SHARED_MEMORY};

/// Longest time that a test may take.
const WATCHDOG: Duration = Duration::from_secs(60);

/// First lines of every Python module here.
const PYTHON: &str = r#"
import os, struct, sys
def exactly(descriptor, size):
    data = b""
    while len(data) < size:
        more = os.read(descriptor, size - len(data))
        if not more: sys.exit(0)
        data += more
    return data
def read():
    length, created = struct.unpack("<IQ", exactly(0, 12))
    return created, exactly(0, length)
def write(created, body): os.write(1, struct.pack("<IQ", len(body), created) + body)
def frame(kind, at, body): os.write(3, struct.pack("<IBQ", len(body), kind, at) + body)
def done(inputs, outputs): frame(4, outputs, struct.pack("<QQ", inputs, outputs))
"#;

fn module(words: &[&str], half: Half) -> Module {
    let role = half.to_string();
    let hello =
        ModuleFrame::Hello { version: MODULE_VERSION, role, format: "bytes".into(), options: Vec::new() };
    Module {
        words: words.iter().map(OsString::from).collect(),
        environment: None,
        half,
        greeting: vec![hello],
        is_own: false,
        is_chained: false,
        has_history: false,
        patience: Duration::from_secs(10),
        limits: Limits::default(),
    }
}

fn python(program: &str, half: Half) -> Module {
    let text = format!("{PYTHON}\n{program}");
    module(&["python3", "-c", &text], half)
}

fn now() -> Time {
    Time(sys::clock::boot_ns())
}

/// A link and its output.
struct Bench {
    link: Process,
    poller: Poller,
    out: Outbox,
    bodies: Vec<Vec<u8>>,
    incidents: Vec<String>,
    started: Time,
    /// The time of the link, if a test sets it.
    clock: Option<Time>,
}

impl Bench {
    fn new(module: Module) -> Bench {
        Bench::of(Process::start(module).unwrap())
    }

    /// A program on shared memory, with this many slots.
    fn shared(words: &[&str], slots: usize) -> Bench {
        Bench::shared_of(module(words, Half::Source), slots)
    }

    fn shared_of(mut module: Module, slots: usize) -> Bench {
        for frame in &mut module.greeting {
            if let ModuleFrame::Hello { options, .. } = frame {
                options.push((SHARED_MEMORY.into(), "true".into()));
            }
        }
        let setting = SharedRun { slots: Some(slots), latency: None };
        Bench::of(Process::start_run(vec![module], setting).unwrap().pop().unwrap())
    }

    fn of(link: Process) -> Bench {
        Bench {
            link,
            poller: Poller::new().unwrap(),
            out: Outbox::default(),
            bodies: Vec::new(),
            incidents: Vec::new(),
            started: now(),
            clock: None,
        }
    }

    fn now(&self) -> Time {
        self.clock.unwrap_or_else(now)
    }

    /// Stops the link's clock, and advances it by this much.
    fn advance(&mut self, time: Duration) {
        self.clock = Some(self.now().after(time));
    }

    fn hand(&mut self, input: Input<'_>) {
        self.link.hand(input, self.now(), &mut self.out).unwrap();
        self.take_output();
    }

    fn take_output(&mut self) {
        self.incidents.extend(self.link.incidents().into_iter().map(|incident| incident.text));
        self.bodies
            .extend(self.out.messages.drain(..).map(|(_, message)| message.body.into_bytes().to_vec()));
    }

    /// Waits and collects, like a path.
    fn step(&mut self) {
        assert!(now().since(self.started) < WATCHDOG, "{:?}; {} received", self.incidents, self.bodies.len());
        let readiness = self.link.readiness();
        for (descriptor, _) in readiness.descriptors.into_iter().flatten() {
            self.poller.register(descriptor.as_fd(), true, false);
        }
        let wait = self.link.poll_timeout().map(|at| at.since(self.now())).unwrap_or(Duration::from_secs(1));
        self.poller.wait(Some(wait.min(Duration::from_secs(1)))).unwrap();
        self.link.collect(self.now(), &mut self.out).unwrap();
        self.take_output();
    }

    /// Steps until an incident has these words.
    fn wait_for(&mut self, words: &str) {
        while !self.incidents.iter().any(|text| text.contains(words)) {
            self.step();
        }
    }

    /// Steps until there are this many messages.
    fn run(&mut self, messages: usize) {
        while self.bodies.len() < messages {
            self.step();
        }
    }

    fn end(&mut self) {
        self.hand(Input::End(Port::MAIN));
        while self.link.is_ending() {
            self.step();
        }
    }

    fn feed(&mut self, values: std::ops::Range<u64>) {
        for value in values {
            while !self.link.has_room() {
                self.step();
            }
            self.hand(Input::Message(Port::MAIN, message(value)));
        }
    }

    fn drops(&mut self) -> Vec<(&'static str, u64)> {
        self.out.drops.drain(..).map(|drop| (drop.reason, drop.count)).collect()
    }

    fn pid(&self) -> Option<u32> {
        self.link.process_id()
    }
}

fn message(value: u64) -> Message {
    Message::new(Time(value), value.to_le_bytes().to_vec())
}

fn numbers(values: std::ops::Range<u64>) -> Vec<Vec<u8>> {
    values.map(|value| value.to_le_bytes().to_vec()).collect()
}

/// Reports the first difference instead of all values.
#[track_caller]
fn assert_numbers(bodies: &[Vec<u8>], values: std::ops::Range<u64>) {
    let expected = numbers(values);
    let differs = bodies.iter().zip(&expected).position(|(received, expected)| received != expected);
    assert_eq!((bodies.len(), differs), (expected.len(), None));
}

fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

fn signal(pid: u32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    // The process may have ended already.
    let _ = rustix::process::kill_process(pid, signal);
}

#[test]
fn output_arrives_in_order_and_the_end_is_clean() {
    let mut bench = Bench::new(module(&["cat"], Half::Source));
    bench.feed(0..1000);
    let large = vec![7; 3 << 20];
    bench.hand(Input::Message(Port::MAIN, Message::new(Time(9), large.clone())));
    bench.end();
    assert_eq!(bench.bodies.pop(), Some(large));
    assert_numbers(&bench.bodies, 0..1000);
    assert_eq!((bench.link.kept(), bench.drops(), bench.incidents.len()), (0, vec![], 0));
    // Input after an end starts a new process.
    bench.feed(0..1);
    bench.run(1001);
}

#[test]
fn twenty_kills_lose_and_duplicate_nothing() {
    let mut bench = Bench::new(module(&["cat"], Half::Source));
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut last = 0;
    for _ in 0..20 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let next = last + 1 + (state >> 33) % 400;
        bench.feed(last..next);
        last = next;
        // After the first message that arrives, so that no message is blamed for three deaths.
        let first = bench.bodies.len() + 1;
        bench.run(first);
        std::thread::sleep(Duration::from_micros((state >> 20) % 2000));
        if let Some(pid) = bench.pid() {
            kill(pid);
        }
    }
    bench.end();
    assert_numbers(&bench.bodies, 0..last);
    assert!(bench.incidents.iter().any(|text| text.contains("signal SIGKILL")), "{:?}", bench.incidents);
    assert_eq!(bench.drops(), []);
}

#[test]
fn output_is_withheld_until_it_is_reported_done() {
    // Two inputs make one output. After a kill in between, the first is replayed.
    let program = "
frame(1, 0, struct.pack('<HIIHI', 1, 0, 0, 1, 4) + b'done' + struct.pack('<I', 4) + b'true')
count = 0
while True:
    first, second = read(), read()
    count += 1
    write(first[0], first[1] + second[1]); done(2 * count, count)
";
    let mut bench = Bench::new(python(program, Half::Source));
    bench.feed(0..41);
    bench.run(20);
    kill(bench.pid().unwrap());
    bench.feed(41..60);
    bench.run(30);
    let expected: Vec<Vec<u8>> = numbers(0..60).chunks(2).map(|two| two.concat()).collect();
    assert_eq!(bench.bodies, expected);
}

/// The worker that started the process was killed, and another one continues.
#[test]
fn the_next_worker_gives_its_process_the_inputs_that_the_last_one_held() {
    let program = "
frame(1, 0, struct.pack('<HIIHI', 1, 0, 0, 1, 4) + b'done' + struct.pack('<I', 4) + b'true')
count = 0
while True:
    three = [read() for _ in range(3)]
    count += 1
    write(three[0][0], b''.join(body for _, body in three)); done(3 * count, count)
";
    let mut bodies = Vec::new();
    let mut checkpoint = None;
    for (values, complete) in [(0..41, 13), (41..43, 14), (43..60, 20)] {
        let mut bench = Bench::new(python(program, Half::Sink));
        if let Some(checkpoint) = checkpoint {
            bench.link.restore(checkpoint).unwrap();
        }
        bench.feed(values);
        while bodies.len() + bench.bodies.len() < complete {
            bench.step();
        }
        bodies.append(&mut bench.bodies);
        checkpoint = bench.link.checkpoint();
    }
    let expected: Vec<Vec<u8>> = numbers(0..60).chunks(3).map(|three| three.concat()).collect();
    assert_eq!(bodies, expected);
}

#[test]
fn a_process_that_hangs_is_killed_and_named() {
    // It hangs once, at the third message.
    let flag = std::env::temp_dir().join(format!("outboard-hang-{}", std::process::id()));
    let program = format!(
        "
flag = {flag:?}
while True:
    created, body = read()
    if created == 2 and not os.path.exists(flag):
        open(flag, 'w').close()
        while True: pass
    write(created, body)
"
    );
    let mut bench = Bench::new(Module { patience: Duration::from_secs(3), ..python(&program, Half::Source) });
    bench.feed(0..10);
    bench.run(10);
    std::fs::remove_file(flag).unwrap();
    assert_eq!(bench.bodies, numbers(0..10));
    assert!(bench.incidents.iter().any(|text| text.contains("hung")), "{:?}", bench.incidents);
}

/// It may hold its only message, because it reads its control descriptor.
#[test]
fn a_process_may_hold_messages_while_it_reads_control_frames() {
    let program = "
import select, time
write(*read()); done(1, 1)
created, body = read()
until = time.monotonic() + 4.5
while time.monotonic() < until:
    if select.select([3], [], [], 0.05)[0]: os.read(3, 4096)
write(created, body); done(2, 2); read()
";
    let module = Module { patience: Duration::from_secs(3), is_own: true, ..python(program, Half::Source) };
    let mut bench = Bench::new(module);
    for number in 0..2 {
        bench.feed(number..number + 1);
        bench.run(number as usize + 1);
    }
    assert_eq!(bench.incidents, Vec::<String>::new());
}

/// It greets, and then loads a model, which takes a multiple of its patience.
#[test]
fn a_process_has_a_minute_until_its_first_output_at_every_start() {
    let flag = std::env::temp_dir().join(format!("outboard-model-{}", std::process::id()));
    let program = format!(
        "
import time
frame(1, 0, struct.pack('<HIIHI', 1, 0, 0, 1, 4) + b'done' + struct.pack('<I', 4) + b'true')
os.write(2, b'loading\\n')
while not os.path.exists({flag:?}): time.sleep(0.01)
done(0, 0)
count = 0
while True:
    created, body = read()
    count += 1
    write(created, body); done(count, count)
"
    );
    let mut bench = Bench::new(python(&program, Half::Source));
    for number in 0..2 {
        bench.feed(number..number + 1);
        bench.advance(Duration::from_secs(1));
        bench.wait_for("loading");
        for _ in 0..5 {
            bench.advance(Duration::from_secs(10));
            bench.step();
        }
        assert_eq!(bench.incidents, ["source half prints: loading"]);
        std::fs::write(&flag, "").unwrap();
        bench.run(number as usize + 1);
        std::fs::remove_file(&flag).unwrap();
        kill(bench.pid().unwrap());
        bench.wait_for("signal SIGKILL");
        bench.incidents.clear();
    }
}

#[test]
fn a_process_that_never_answers_is_abandoned_and_the_error_names_the_option() {
    let mut bench = Bench::new(module(&["sleep", "1000"], Half::Source));
    bench.feed(0..1);
    for _ in 0..25 {
        bench.advance(Duration::from_secs(10));
        bench.step();
    }
    let words = "the last one hung (no output for 60s; set patience=240s if it needs longer) and was killed";
    assert!(bench.incidents.iter().any(|text| text.contains(words)), "{:?}", bench.incidents);
}

/// The host is suspended for a minute while the process works on a message.
#[test]
fn after_a_suspend_a_process_has_half_of_its_patience() {
    for reports_done in ["False", "True"] {
        let program = format!(
            "
count = 0
while True:
    write(*read()); count += 1
    if {reports_done}: done(count, count)
"
        );
        let mut bench = Bench::new(python(&program, Half::Source));
        bench.feed(0..1);
        bench.run(1);
        let pid = bench.pid().unwrap();
        for is_healthy in [true, false] {
            signal(pid, Signal::STOP);
            bench.feed(1..2);
            for time in [60, 0, 4] {
                bench.advance(Duration::from_secs(time));
                bench.poll_once();
            }
            assert_eq!(bench.incidents, Vec::<String>::new());
            if is_healthy {
                signal(pid, Signal::CONT);
                bench.run(2);
            }
        }
        // Its last report may have arrived after the jump.
        for _ in 0..10 {
            bench.advance(Duration::from_secs(1));
            bench.poll_once();
        }
        assert!(bench.incidents[0].contains("hung (no output for 10s"), "{:?}", bench.incidents);
    }
}

#[test]
fn garbage_is_named_and_unfinished_messages_are_replayed() {
    let flag = std::env::temp_dir().join(format!("outboard-rubbish-{}", std::process::id()));
    let program = format!(
        "
flag = {flag:?}
first = not os.path.exists(flag)
if first: open(flag, 'w').close()
while True:
    created, body = read()
    if first and created == 3: os.write(1, b'\\xff' * 1000)
    write(created, body)
"
    );
    let mut bench = Bench::new(python(&program, Half::Source));
    bench.feed(0..8);
    bench.run(8);
    std::fs::remove_file(flag).unwrap();
    assert_eq!(bench.bodies, numbers(0..8));
    assert!(bench.incidents.iter().any(|text| text.contains("not a container")), "{:?}", bench.incidents);
}

#[test]
fn a_message_that_crashes_it_three_times_is_dropped_and_named() {
    let program = "
while True:
    created, body = read()
    if created == 5: os.kill(os.getpid(), 11)
    write(created, body)
";
    let mut bench = Bench::new(python(program, Half::Source));
    bench.feed(0..10);
    bench.run(9);
    assert_eq!(bench.bodies, [numbers(0..5), numbers(6..10)].concat());
    assert_eq!(bench.drops(), [("the module failed on each", 1)]);
    let lost = "source half lost message 6, which it cannot process: was killed by signal SIGSEGV";
    assert!(bench.incidents.iter().any(|text| text == lost), "{:?}", bench.incidents);
}

#[test]
fn lines_on_standard_error_are_reported_up_to_a_limit() {
    let program = "
print('a line of its own', file=sys.stderr)
for _ in range(100000): print('x' * 1000, file=sys.stderr)
while True: write(*read())
";
    let mut bench = Bench::new(python(program, Half::Sink));
    bench.advance(Duration::ZERO);
    bench.feed(0..1);
    bench.run(1);
    assert_eq!(bench.incidents[0], "sink half prints: a line of its own");
    assert!(bench.incidents.len() == 20 && bench.incidents.iter().all(|text| text.len() < 300));
}

#[test]
fn lines_over_the_limit_are_counted_and_later_ones_are_shown() {
    let program = "
os.write(2, b''.join(b'line %d\\n' % number for number in range(25)))
while True:
    write(*read())
    os.write(2, b'late\\n')
";
    let mut bench = Bench::new(python(program, Half::Source));
    bench.advance(Duration::ZERO);
    bench.wait_for("line 19");
    bench.advance(Duration::from_secs(10));
    bench.wait_for("prints more than 20 lines in 10s: 5 not shown");
    bench.feed(0..1);
    bench.wait_for("prints: late");
    assert_eq!(bench.incidents.len(), 22, "{:?}", bench.incidents);
}

#[test]
fn a_program_that_exits_before_it_reads_is_abandoned() {
    let mut bench = Bench::new(module(&["sh", "-c", "echo no camera >&2; exit 3"], Half::Source));
    bench.feed(0..5);
    while !bench.incidents.iter().any(|text| text.contains("does not start")) {
        bench.step();
    }
    let words = "the last one ended with status 3 (last line: no camera); lost messages 1 to 5";
    assert!(bench.incidents.iter().any(|text| text.contains(words)), "{:?}", bench.incidents);
    bench.feed(5..7);
    bench.end();
    let reason = "does not start: ended with status 3 (last line: no camera)";
    assert_eq!(bench.drops(), [(reason, 5), (reason, 1), (reason, 1)]);
    assert_eq!((bench.bodies.len(), bench.pid()), (0, None));
}

#[test]
fn a_missing_program_is_reported_at_once() {
    let error = Process::start(module(&["./no-such-program"], Half::Source)).err().unwrap().to_string();
    assert!(error.contains("./no-such-program") && error.contains("No such file"), "{error}");
}

#[test]
fn dropping_a_link_leaves_no_process() {
    let mut bench = Bench::new(module(&["sh", "-c", "sleep 1000 & cat"], Half::Source));
    bench.feed(0..1);
    bench.run(1);
    let pid = bench.pid().unwrap();
    drop(bench);
    let group = rustix::process::Pid::from_raw(pid as i32).unwrap();
    // Its child becomes an orphan, which the system reaps later.
    for _ in 0..1000 {
        if rustix::process::test_kill_process_group(group).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("process group {pid} is still there");
}

/// Both halves of a pair that codes differences: encoder and decoder must start together.
const DIFFERENCES: [&str; 2] = [
    "
before = 0
while True:
    created, body = read()
    (value,) = struct.unpack('<Q', body)
    write(created, struct.pack('<q', value - before)); before = value
",
    "
before = 0
while True:
    created, body = read()
    before += struct.unpack('<q', body)[0]
    write(created, struct.pack('<Q', before))
",
];

/// Connects two links like a network between them.
fn carry(source: &mut Bench, sink: &mut Bench) {
    for body in source.bodies.drain(..).collect::<VecDeque<_>>() {
        while !sink.link.has_room() {
            sink.step();
        }
        sink.hand(Input::Message(Port::MAIN, Message::new(Time(1), body)));
    }
    for control in std::mem::take(&mut sink.out.controls) {
        source.hand(Input::Control(&control));
    }
    for control in std::mem::take(&mut source.out.controls) {
        sink.hand(Input::Control(&control));
    }
}

#[test]
fn a_pair_with_a_history_survives_the_death_of_either_half() {
    let [mut source, mut sink] = [(Half::Source, DIFFERENCES[0]), (Half::Sink, DIFFERENCES[1])]
        .map(|(half, program)| Bench::new(Module { has_history: true, ..python(program, half) }));
    let mut last = 0;
    for round in 0..8 {
        source.feed(last..last + 50);
        last += 50;
        let before = sink.bodies.len();
        while sink.bodies.len() <= before {
            source.poll_once();
            carry(&mut source, &mut sink);
            sink.poll_once();
        }
        let victim = if round % 2 == 0 { &source } else { &sink };
        if let Some(pid) = victim.pid() {
            kill(pid);
        }
    }
    while sink.bodies.len() < last as usize {
        source.poll_once();
        carry(&mut source, &mut sink);
        sink.poll_once();
    }
    assert_numbers(&sink.bodies, 0..last);
    assert_eq!((source.drops(), sink.drops()), (vec![], vec![]));
    let starts = source.link.report().into_iter().find(|(name, _)| *name == "process starts");
    assert!(starts.is_some_and(|(_, starts)| starts > 2.0), "the sink half's deaths had the source restart");
}

impl Bench {
    /// A short step without waiting.
    fn poll_once(&mut self) {
        assert!(now().since(self.started) < WATCHDOG, "{:?}; {} received", self.incidents, self.bodies.len());
        std::thread::sleep(Duration::from_millis(1));
        self.link.collect(self.now(), &mut self.out).unwrap();
        self.take_output();
    }
}

/// A program in C, built with the header of the SDK; dropping it removes the binary. `None`: there is no compiler, and the test is
/// skipped.
struct InC(PathBuf);

impl InC {
    fn build(name: &str, source: &Path) -> Option<InC> {
        // The compiler is not needed for the program itself.
        if Command::new("cc").arg("--version").output().is_err() {
            eprintln!("SKIPPED: needs cc (package gcc)");
            return None;
        }
        let binary = std::env::temp_dir().join(format!("outboard-{name}-{}", std::process::id()));
        let mut compiler = Command::new("cc");
        let sdk = InC::sdk();
        compiler.args(["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-I"]).arg(&sdk).arg(source);
        let built = compiler.arg("-o").arg(&binary).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Some(InC(binary))
    }

    fn sdk() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/c")
    }

    /// A program of `sdk/c`.
    fn of_sdk(name: &str, test: &str) -> Option<InC> {
        InC::build(test, &InC::sdk().join(format!("{name}.c")))
    }

    /// A program with this text behind the `#include`.
    fn of_text(name: &str, text: &str) -> Option<InC> {
        let source = std::env::temp_dir().join(format!("outboard-{name}-{}.c", std::process::id()));
        std::fs::write(&source, format!("#include \"outboard_module.h\"\n{text}")).unwrap();
        let built = InC::build(name, &source);
        std::fs::remove_file(&source).unwrap();
        built
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("the directory of temporary files is text")
    }
}

impl Drop for InC {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_program_on_shared_memory_sends_none_one_or_many_messages_and_holds_some() {
    let Some(program) = InC::of_sdk("tests/conformance", "conforms") else { return };
    for slots in [1, 2, 16] {
        let mut bench = Bench::shared(&[program.path()], slots);
        let large = vec![9; 3 << 20];
        let texts: [&[u8]; 8] = [b"a", b"", b"twice", &large, b"keep 1", b"b", b"drop", b"keep 2"];
        for (created, text) in (1..).zip(texts) {
            while !bench.link.has_room() {
                bench.step();
            }
            bench.hand(Input::Message(Port::MAIN, Message::new(Time(created), text.to_vec())));
        }
        bench.end();
        let expected: [&[u8]; 8] = [b"a", b"", b"twice", b"twice", &large, b"b", b"keep 1", b"keep 2"];
        assert!(
            bench.bodies == expected,
            "{} messages, {slots} slots, {:?}",
            bench.bodies.len(),
            bench.incidents
        );
        assert_eq!(bench.drops(), [("asked to", 1)]);
        assert_eq!((bench.link.kept(), bench.incidents.len()), (0, 0), "{:?}", bench.incidents);
    }
}

#[test]
fn a_program_on_shared_memory_makes_messages_where_the_host_reads_them() {
    let Some(program) = InC::of_sdk("examples/negative", "negative") else { return };
    for (slots, bytes, count) in [(1, 24, 300), (8, 24, 3000), (8, 100_000, 60), (2, 9 << 20, 4), (3, 0, 50)]
    {
        let mut bench = Bench::shared(&[program.path()], slots);
        let body = |number: usize| -> Vec<u8> { (0..bytes).map(|at| (at * 7 + number) as u8).collect() };
        for number in 0..count {
            while !bench.link.has_room() {
                bench.step();
            }
            bench.hand(Input::Message(Port::MAIN, Message::new(Time(number as u64), body(number))));
        }
        bench.end();
        assert_eq!(
            (bench.bodies.len(), &bench.incidents),
            (count, &Vec::new()),
            "{bytes} bytes, {slots} slots"
        );
        for (number, came) in bench.bodies.iter().enumerate() {
            assert!(came.iter().zip(body(number)).all(|(came, sent)| *came == !sent), "message {number}");
            assert_eq!(came.len(), bytes);
        }
    }
}

#[test]
fn kills_of_a_program_on_shared_memory_lose_and_duplicate_nothing() {
    let pass = "static int pass(ob_module *m, unsigned char *body, size_t length, uint64_t created) {\n\
                return ob_send(m, body, length, created); }\n\
                int main(void) { return ob_run(&(ob_handlers){.message = pass, .reads_only = 1}); }\n";
    let Some(program) = InC::of_text("pass", pass) else { return };
    let mut bench = Bench::shared(&[program.path()], 8);
    let mut last = 0;
    for round in 0..20u64 {
        let next = last + 200 + round * 37 % 101;
        bench.feed(last..next);
        last = next;
        let first = bench.bodies.len() + 1;
        bench.run(first);
        std::thread::sleep(Duration::from_micros(round * 97));
        if let Some(pid) = bench.pid() {
            kill(pid);
        }
    }
    bench.end();
    assert_numbers(&bench.bodies, 0..last);
    assert!(bench.incidents.iter().any(|text| text.contains("signal SIGKILL")), "{:?}", bench.incidents);
    assert_eq!(bench.drops(), []);
}

/// A program that overwrites all memory that it can write, at every seventh message.
#[test]
fn a_program_that_scribbles_over_the_shared_memory_hurts_only_its_messages() {
    let scribble = "static int pass(ob_module *m, unsigned char *body, size_t length, uint64_t created) {\n\
        ob_shared *shared = &m->shared;\n\
        if (body[0] % 7 == 3) {\n\
            uint64_t state = body[0] + 1, words = shared->to_host + shared->ring * OB_LINE;\n\
            for (uint64_t i = 0; i < words; i++) {\n\
                state = state * 6364136223846793005u + 1442695040888963407u;\n\
                shared->block[i] = body[0] % 2 ? state : state >> 40;\n\
            }\n\
            memset(shared->own, 255, shared->slot_bytes);\n\
            ob_wake_host(shared);\n\
            uint64_t one = 1;\n\
            for (;;) if (write(OB_HOST_WAKE_FD, &one, sizeof one) < 0) usleep(1000); else usleep(20000);\n\
        }\n\
        return ob_send(m, body, length, created); }\n\
        int main(void) { return ob_run(&(ob_handlers){.message = pass}); }\n";
    let scribble = format!("#include <unistd.h>\n{scribble}");
    let Some(program) = InC::of_text("scribble", &scribble) else { return };
    // A program that hides its death behind an empty ring hangs, until its patience is over.
    let patience = Duration::from_secs(2);
    let mut bench = Bench::shared_of(Module { patience, ..module(&[program.path()], Half::Source) }, 4);
    // Until its first output it would have a minute.
    bench.feed(0..1);
    bench.run(1);
    bench.feed(1..21);
    bench.end();
    let came: Vec<u8> = bench.bodies.iter().map(|body| body[0]).collect();
    let expected: Vec<u8> = (0..21).filter(|number| number % 7 != 3).collect();
    assert_eq!(came, expected, "{:?}", bench.incidents);
    let lost: u64 = bench.drops().iter().map(|(_, count)| count).sum();
    assert_eq!(lost, 3, "{:?}", bench.incidents);
}

#[test]
fn a_program_without_shared_memory_is_told_so() {
    let Some(program) = InC::of_text(
        "refuses",
        "int main(void) {\n\
        unsigned char hello[] = {23, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 6, 0, 0, 0, 's', 'o', 'u', 'r', 'c', 'e', 5, 0, 0, 0,\n\
            'b', 'y', 't', 'e', 's', 0, 0};\n\
        return write(3, hello, sizeof hello) < 0 || sleep(60); }\n",
    ) else {
        return;
    };
    let mut bench = Bench::shared(&[program.path()], 4);
    while !bench.incidents.iter().any(|text| text.contains("it has no shared memory: write `@pipe`")) {
        bench.step();
    }
}
