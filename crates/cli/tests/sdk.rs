//! Modules in Python, C and JavaScript (`sdk/`): each SDK with the whole interface, and each example in a shell line
//! with the real program.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::driven::{Driven, hello};
use support::{Scratch, end, noise, outboard};
use wire::{Container, MODULE_VERSION, ModuleFeedback, ModuleFrame};

/// Each language, the program that runs or builds its modules, and its package.
const SDKS: [(&str, &str, &str); 3] =
    [("python", "python3", "python3"), ("c", "cc", "gcc"), ("js", "node", "nodejs")];

fn sdk() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk")
}

/// Returns the command line for the program `name` of an SDK. `None`: the tool is missing, and the test is skipped.
fn program(language: &str, name: &str, scratch: &Scratch) -> Option<Vec<String>> {
    let (_, tool, package) = SDKS.into_iter().find(|sdk| sdk.0 == language).expect("one of the SDKs");
    if !testkit::skip::has_program(tool, package) {
        return None;
    }
    let source = |ending: &str| sdk().join(language).join(format!("{name}.{ending}")).display().to_string();
    Some(match language {
        "python" => vec![tool.into(), source("py")],
        "js" => vec![tool.into(), source("js")],
        _ => {
            let binary = scratch.path(name.rsplit('/').next().unwrap());
            let include = format!("-I{}", sdk().join("c").display());
            let strict = ["-std=c99", "-O1", "-Wall", "-Wextra", "-pedantic", "-Werror", &include];
            let built = Command::new(tool).args(strict).args([&source("c"), "-o", &binary]).output().unwrap();
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
            vec![binary]
        }
    })
}

/// Runs `check` with a program of each SDK.
fn with_each(name: &str, check: impl Fn(&[String])) {
    let scratch = Scratch::new();
    for (language, ..) in SDKS {
        if let Some(words) = program(language, name, &scratch) {
            check(&words);
        }
    }
}

fn greeted(words: &[String]) -> Driven {
    let mut module = Driven::start(words);
    module.say(0, &hello("sink", "video", &[("greeting", "ahoy"), ("empty", "")]));
    let (at, answer) = module.frame();
    assert_eq!((at, answer), (0, hello("sink", "video", &[("done", "true")])));
    assert_eq!(module.frame(), (0, ModuleFrame::Peer(b"sink video ahoy".to_vec())));
    module.done(0, 0);
    module
}

#[test]
fn every_sdk_implements_the_whole_interface() {
    with_each("tests/conformance", |words| {
        let mut module = greeted(words);
        // Messages of all sizes, with no, one or two outputs; the module reports each as done.
        let large = noise(3 << 20);
        for (created, body) in [(5, &b"a"[..]), (6, b""), (100, b"twice"), (u64::MAX, &large)] {
            module.give(created, body);
        }
        assert_eq!(module.output(), (5, b"a".to_vec()));
        assert_eq!(module.output(), (6, Vec::new()));
        assert_eq!(module.output(), (100, b"twice".to_vec()));
        assert_eq!(module.output(), (101, b"twice".to_vec()));
        assert_eq!(module.output(), (u64::MAX, large));
        module.done(4, 5);
        // A held message is not done, and neither are later ones.
        module.give(11, b"keep 1");
        module.give(12, b"b");
        module.give(13, b"drop");
        assert_eq!(module.output(), (12, b"b".to_vec()));
        assert_eq!(module.frame(), (6, ModuleFrame::Drop { count: 1, reason: "asked to".into() }));
        module.is_quiet();
        // Feedback of the other half, a gap, and a frame of a later version.
        module.say(7, &ModuleFrame::Peer(b"you".to_vec()));
        assert_eq!(module.frame(), (6, ModuleFrame::Peer(b"got you".to_vec())));
        assert_eq!(module.output(), (7, b"peer you".to_vec()));
        for frame in [ModuleFrame::Gap, ModuleFrame::Unknown(200), feedback(), ModuleFrame::Flush] {
            module.say(7, &frame);
        }
        assert_eq!(module.output(), (8, b"gap".to_vec()));
        assert_eq!(module.output(), (11, b"keep 1".to_vec()));
        module.done(7, 9);
        // A frame takes effect after the containers before it and before the containers after it.
        module.say(8, &ModuleFrame::Peer(b"later".to_vec()));
        module.is_quiet();
        module.give(1, b"first");
        assert_eq!(module.output(), (1, b"first".to_vec()));
        assert_eq!(module.output(), (7, b"peer later".to_vec()));
        assert_eq!(module.frame(), (10, ModuleFrame::Peer(b"got later".to_vec())));
        module.done(8, 11);
        // At the end of the input, held messages leave, and everything is done.
        module.give(2, b"keep 2");
        module.end_data();
        assert_eq!(module.output(), (2, b"keep 2".to_vec()));
        module.done(9, 12);
        assert_eq!(module.ended().code, Some(0));
    });
}

#[test]
fn a_module_in_javascript_runs_in_the_packaged_service_without_its_compiler() {
    // Runs a program as `MemoryDenyWriteExecute=` does: prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN).
    const DENIED: &str = "import ctypes, os, sys\n\
        if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0): sys.exit(9)\n\
        os.execvp(sys.argv[1], sys.argv[1:])";
    let has_python = testkit::skip::has_program("python3", "python3");
    let Some(words) = program("js", "tests/conformance", &Scratch::new()).filter(|_| has_python) else {
        return;
    };
    let denied = ["python3", "-c", DENIED];
    if !Command::new(denied[0]).args(&denied[1..]).arg("true").status().unwrap().success() {
        testkit::skip::here("this kernel has no PR_SET_MDWE");
        return;
    }
    let [node, source] = words.try_into().expect("node, and the source");
    let mut module = greeted(&[&denied.map(String::from)[..], &[node, "--jitless".into(), source]].concat());
    module.give(5, b"a");
    assert_eq!(module.output(), (5, b"a".to_vec()));
    module.done(1, 1);
}

fn feedback() -> ModuleFrame {
    ModuleFrame::Feedback(ModuleFeedback { received: 9, ..ModuleFeedback::default() })
}

#[test]
fn every_sdk_reports_errors_and_exits() {
    with_each("tests/conformance", |words| {
        let mut module = greeted(words);
        module.give(1, b"fail");
        module.fails("asked to fail");

        let mut module = greeted(words);
        module.give_bytes(&Container { length: u32::MAX, created: 0 }.emit());
        module.fails("container");

        let mut module = greeted(words);
        module.give_bytes(&Container { length: 9, created: 0 }.emit());
        module.end_data();
        module.fails("container");

        let mut module = Driven::start(words);
        module.say(0, &ModuleFrame::Flush);
        module.fails("no hello");

        let mut module = Driven::start(words);
        let ModuleFrame::Hello { role, format, options, .. } = hello("source", "bytes", &[]) else { return };
        let version = MODULE_VERSION + 1;
        module.say(0, &ModuleFrame::Hello { version, role, format, options });
        module.fails("version");

        let mut module = greeted(words);
        module.say(0, &ModuleFrame::Peer(vec![0; (1 << 20) + 1]));
        module.fails("frame");
    });
}

/// Starts a device and checks what it declares.
fn declared(words: &[String]) -> Driven {
    let mut device = Driven::start(words);
    device.say(0, &hello("device", "", &[]));
    let (at, answer) = device.frame();
    let ModuleFrame::Hello { role, format, mut options, .. } = answer else { panic!("{answer:?}") };
    options.sort();
    let values = [("back", "bytes"), ("class", "timely"), ("snapshot", "true"), ("summary", "conformance")];
    let values = values.map(|(name, value)| (name.to_string(), value.to_string()));
    assert_eq!((at, role.as_str(), format.as_str(), &options[..]), (0, "device", "motion", &values[..]));
    assert_eq!(device.output(), (1, b"started".to_vec()));
    device
}

#[test]
fn every_sdk_drives_a_device() {
    with_each("tests/device", |words| {
        let mut device = declared(words);
        let large = noise(3 << 20);
        device.give(5, b"a");
        device.give(6, &large);
        assert_eq!(device.output(), (5, b"a".to_vec()));
        assert_eq!(device.output(), (6, large));
        device.say(2, &ModuleFrame::Snapshot);
        assert_eq!(device.output(), (4, b"snapshot".to_vec()));
        // A neutral waits for the containers before it.
        device.say(3, &ModuleFrame::Neutral);
        device.is_quiet();
        device.give(7, b"b");
        assert_eq!(device.output(), (7, b"b".to_vec()));
        assert_eq!(device.output(), (3, b"neutral".to_vec()));
        device.say(3, &ModuleFrame::Unknown(200));
        // An absent device answers no snapshot.
        device.give(8, b"absent");
        assert_eq!(device.frame(), (6, ModuleFrame::Absent("asked to".into())));
        device.say(4, &ModuleFrame::Snapshot);
        device.give(9, b"present");
        assert_eq!(device.frame(), (6, ModuleFrame::Present));
        device.is_quiet();
        device.give(10, b"end");
        assert_eq!(device.output(), (2, b"last".to_vec()));
        assert_eq!(device.ended().code, Some(0));

        let mut device = declared(words);
        device.give(1, b"fail");
        device.fails("asked to fail");
        let mut device = Driven::start(words);
        device.say(0, &hello("application", "motion", &[]));
        device.fails("this program is no application, but a device");
    });
}

/// Counts the waits of a Python program, and gives each file another number.
const COUNTED: &str = r#"
import atexit, builtins, os, select, sys
class Poll:
    count, real = 0, select.poll
    def __init__(self): self.poller = Poll.real()
    def __getattr__(self, name): return getattr(self.poller, name)
    def poll(self, *wait):
        Poll.count += 1
        return self.poller.poll(*wait)
select.poll = Poll
def open(*words, **named):
    os.open(os.devnull, os.O_RDONLY)
    return builtins.open(*words, **named)
atexit.register(lambda: print(Poll.count, file=sys.stderr))
"#;

/// The device of the README loses its hardware and finds it again, under another descriptor.
#[test]
fn a_device_in_python_is_unplugged_and_plugged_in_again() {
    let scratch = Scratch::new();
    if !testkit::skip::has_program("python3", "python3") {
        return;
    }
    let page = std::fs::read_to_string(sdk().join("python/README.md")).unwrap();
    let class = page.split("```python\n").find(|block| block.starts_with("class Button")).unwrap();
    let (button, _) = class.split_once("```").unwrap();
    let (fifo, script) = (scratch.path("fifo"), scratch.path("button.py"));
    let module = format!("sys.path.insert(0, {:?})\nimport outboard_module\n", sdk().join("python"));
    let button = button.replace("/dev/ttyACM0", &fifo).replace("wire\", 1", "wire\", 0.05");
    std::fs::write(&script, [COUNTED, &module, &button].concat()).unwrap();
    let plug = || {
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        std::fs::File::options().read(true).write(true).open(&fifo).unwrap()
    };
    let press = |mut hardware: std::fs::File, device: &Driven| {
        std::io::Write::write_all(&mut hardware, b"down").unwrap();
        assert_eq!(device.output().1, b"down");
        // Only the device has it open now, and it finds no other.
        std::fs::remove_file(&fifo).unwrap();
        drop(hardware);
        assert_eq!(device.frame().1, ModuleFrame::Absent("unplugged".into()));
        device.is_quiet();
    };
    let hardware = plug();
    let mut device = Driven::start(&["python3".into(), script]);
    device.say(0, &hello("device", "", &[]));
    assert!(matches!(device.frame().1, ModuleFrame::Hello { .. }));
    press(hardware, &device);
    let hardware = plug();
    assert_eq!(device.frame().1, ModuleFrame::Present);
    press(hardware, &device);
    device.end_control();
    let waits: u32 = device.ended().stderr.trim().parse().unwrap();
    assert!(waits < 2000, "it waited {waits} times, without an event");
}

#[test]
fn a_module_without_control_exits_with_success_when_its_reader_closes() {
    with_each("tests/conformance", |words| {
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        drop(child.stdout.take());
        let container = [&Container { length: 1, created: 0 }.emit()[..], b"x"].concat();
        while std::io::Write::write_all(&mut input, &container).is_ok() {}
        let ended = end(child, &words.join(" "));
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains("gone"), "{}", ended.stderr);
    });
}

/// Runs `check` with each example, its input, the options that cut the input, and the expected output.
fn with_each_example(scratch: &Scratch, check: impl Fn(&[String], &[u8], &str, &[u8])) {
    let text = "From: ann.b+c@mail.example.org to dan@d.org\nno address @ all\n\n";
    if let Some(upper) = program("c", "examples/upper", scratch) {
        check(&upper, text.as_bytes(), "line", text.to_uppercase().as_bytes());
    }
    if let Some(redact) = program("js", "examples/redact", scratch) {
        let hidden = format!("From: {} to {}\nno address @ all\n\n", "*".repeat(24), "*".repeat(9));
        check(&redact, text.as_bytes(), "line", hidden.as_bytes());
    }
    if let Some(invert) = program("python", "examples/invert", scratch) {
        let (mut pictures, mut negatives) = (Vec::new(), Vec::new());
        for (kind, pixels) in [(0, b"RGB3"), (0, b"MJPG"), (1, b"RGB3")] {
            let content = noise(3 * 32 * 16);
            let header = [&[kind][..], pixels, &noise(20)].concat();
            let container = Container { length: (header.len() + content.len()) as u32, created: 7 }.emit();
            let is_frame = kind == 0 && pixels == b"RGB3";
            let turned: Vec<_> = content.iter().map(|byte| if is_frame { !byte } else { *byte }).collect();
            pictures.extend([&container[..], &header, &content].concat());
            negatives.extend([&container[..], &header, &turned].concat());
        }
        check(&invert, &pictures, "container", &negatives);
    }
}

#[test]
fn the_examples_work_in_shell_lines_of_the_real_program() {
    let scratch = Scratch::new();
    let outboard = env!("CARGO_BIN_EXE_outboard");
    let (input, output) = (scratch.path("in"), scratch.path("out"));
    with_each_example(&scratch, |example, given, frame, made| {
        std::fs::write(&input, given).unwrap();
        let example = example.join(" ");
        let line = format!(
            "'{outboard}' module file:{input} frame={frame} | {example} | \
             '{outboard}' module file:{output} frame={frame} --undo"
        );
        let command = ["-c", &line];
        let shell = Command::new("sh").args(command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        assert_eq!(end(shell.unwrap(), &line).done().stderr, "");
        assert_eq!(std::fs::read(&output).unwrap(), made, "{line}");
    });
}

#[test]
fn the_examples_work_in_pipelines_of_the_real_program() {
    let scratch = Scratch::new();
    let (input, output) = (scratch.path("in"), scratch.path("out"));
    with_each_example(&scratch, |example, given, frame, made| {
        std::fs::write(&input, given).unwrap();
        let via = format!("null | exec(source=\"{}\") | compress", example.join(" "));
        let [from, to] = [&input, &output].map(|path| format!("file:{path},frame={frame}"));
        outboard(&["connect", &from, &to, "--via", &via]).done();
        assert_eq!(std::fs::read(&output).unwrap(), made, "{via}");
    });
}

/// A built-in half in a separate process has the same output.
#[test]
fn a_pair_in_separate_processes_restores_its_input() {
    let scratch = Scratch::new();
    let (input, content) = scratch.noise("in", 300_000);
    let output = scratch.path("out");
    let from = format!("file:{input},frame=chunk(1000)");
    let to = format!("file:{output}");
    for pair in ["compress", "bundle(count=7, wait=1s)", "encrypt"] {
        // On a kernel without isolation it is still a separate process.
        let via = match pair.strip_suffix(')') {
            Some(open) => format!("{open}, isolate=true, sandbox=possible)"),
            None => format!("{pair}(isolate=true, sandbox=possible)"),
        };
        outboard(&["connect", &from, &to, "--via", &via]).done();
        assert!(std::fs::read(&output).unwrap() == content, "{via}");
    }
}
