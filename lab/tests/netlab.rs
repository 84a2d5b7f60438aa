//! Creates real labs, so it needs root, /dev/net/tun, iproute2 and ping; without them the tests are skipped.
//! Round-trip times have only lower bounds: a busy machine answers late.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn netlab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_netlab")).args(args).output().unwrap()
}

fn ok(args: &[&str]) -> String {
    let out = netlab(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn err(args: &[&str]) -> String {
    let out = netlab(args);
    assert_eq!(out.status.code(), Some(2), "{args:?} should fail");
    String::from_utf8(out.stderr).unwrap()
}

/// Returns true if a lab can be created here; if not, the test is skipped.
fn is_possible() -> bool {
    let tools = [("ip", "iproute2"), ("ping", "iputils-ping"), ("python3", "python3")];
    match () {
        () if !rustix::process::geteuid().is_root() => testkit::skip::until_vm("not root"),
        () if !Path::new("/dev/net/tun").exists() => testkit::skip::until_vm("no /dev/net/tun"),
        () => return tools.into_iter().all(|(tool, package)| testkit::skip::has_program(tool, package)),
    }
    false
}

/// A lab of this process, removed at the end in any case.
struct Lab(String);

impl Lab {
    fn new(what: &str) -> Option<Lab> {
        is_possible().then(|| Lab(format!("test-{what}-{}", std::process::id())))
    }

    fn up(&self, args: &str) {
        let words = ["up", "--name", &self.0].into_iter().chain(args.split_whitespace());
        ok(&words.collect::<Vec<_>>());
    }

    fn say(&self, verb: &str, args: &str) -> String {
        let words = [verb, "--name", &self.0].into_iter().chain(args.split_whitespace());
        ok(&words.collect::<Vec<_>>())
    }

    fn refuse(&self, verb: &str, args: &str) -> String {
        let words = [verb, "--name", &self.0].into_iter().chain(args.split_whitespace());
        err(&words.collect::<Vec<_>>())
    }

    fn in_host(&self, host: &str, command: &[&str]) -> Command {
        let mut run = Command::new(env!("CARGO_BIN_EXE_netlab"));
        run.args(["exec", "--name", &self.0, host, "--"]).args(command);
        run
    }

    /// The shortest of 11 round-trip times from host a to `to`, in ms. `patience_s`: how long to wait for the first answer.
    fn ping(&self, to: &str, patience_s: &str) -> Option<f64> {
        let command = ["ping", "-n", "-c", "11", "-i", "0.02", "-W", patience_s, to];
        let out = self.in_host("a", &command).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        let time = |line: &str| line.split("time=").nth(1)?.split(' ').next()?.parse().ok();
        text.lines().filter_map(time).min_by(f64::total_cmp)
    }

    /// Checks that the shortest round trip is between `least_ms` and `most_ms`.
    #[track_caller]
    fn assert_round_trip(&self, to: &str, least_ms: f64, most_ms: f64) {
        let shortest = self.ping(to, "60").expect("an answer within a minute");
        assert!((least_ms..most_ms).contains(&shortest), "{shortest} ms, not {least_ms} to {most_ms} ms");
    }

    #[track_caller]
    fn assert_silent(&self, to: &str) {
        assert_eq!(self.ping(to, "1"), None);
    }

    /// Value of a counter of host `from`'s outgoing link.
    fn counter(&self, from: &str, name: &str) -> u64 {
        let status = self.say("status", "");
        let line = status.lines().find(|line| line.starts_with(&format!("from {from}: sent="))).unwrap();
        let word = line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        word.unwrap().parse().unwrap()
    }

    fn namespaces(&self) -> usize {
        let list = Command::new("ip").args(["netns", "list"]).output().unwrap().stdout;
        String::from_utf8(list).unwrap().lines().filter(|line| line.starts_with(&self.0)).count()
    }

    fn state(&self) -> std::path::PathBuf {
        Path::new("/run/outboard-netlab").join(&self.0)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        netlab(&["down", "--name", &self.0]);
    }
}

/// No upper bound: a busy machine answers late.
const ANY: f64 = f64::INFINITY;

#[test]
fn a_lab_delays_and_goes_without_a_trace() {
    let Some(lab) = Lab::new("basic") else { return };
    lab.up("delay=20ms");
    lab.assert_round_trip("10.77.0.2", 40.0, ANY);
    lab.assert_round_trip("fd77::2", 40.0, ANY);
    assert!(lab.refuse("up", "").contains("already up"));
    lab.assert_round_trip("10.77.0.2", 40.0, ANY);

    assert_eq!(lab.in_host("b", &["sh", "-c", "exit 7"]).status().unwrap().code(), Some(7));
    let mut left = lab.in_host("b", &["sleep", "600"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    lab.say("down", "");
    assert!(!left.wait().unwrap().success());
    assert_eq!(lab.namespaces(), 0);
    assert!(!lab.state().exists());
    lab.say("down", "");
    assert!(lab.refuse("status", "").contains("not up"));
}

#[test]
fn parameters_change_live_and_by_direction() {
    let Some(lab) = Lab::new("set") else { return };
    lab.up("delay=5ms");
    lab.say("set", "--from a delay=495ms");
    lab.assert_round_trip("10.77.0.2", 500.0, ANY);
    lab.say("set", "delay=0ms rate=1mbit");
    // 84 bytes at 1 Mbit/s take 0.67 ms each way; 500 ms would be the old delay.
    lab.assert_round_trip("10.77.0.2", 1.3, 500.0);
    lab.say("set", "loss=100%");
    lab.assert_silent("10.77.0.2");
    assert_eq!(lab.counter("a", "lost"), 11);
    assert!(lab.refuse("set", "loss=1% colour=red").contains("colour"));
    assert!(lab.refuse("set", "--from c loss=1%").contains("no host c"));
    assert!(lab.say("status", "").contains("from a: delay=0ms,loss=100%,rate=1mbit\n"));
}

#[test]
fn a_cut_link_carries_nothing_until_it_is_restored() {
    let Some(lab) = Lab::new("cut") else { return };
    lab.up("delay=1ms");
    lab.say("cut", "--from b");
    lab.assert_silent("10.77.0.2");
    assert_eq!((lab.counter("a", "cut"), lab.counter("b", "cut")), (0, 11));
    lab.say("restore", "");
    lab.assert_round_trip("10.77.0.2", 2.0, ANY);
}

#[test]
fn a_stream_is_whole_over_a_bad_link() {
    let Some(lab) = Lab::new("stream") else { return };
    lab.up("delay=2ms jitter=1ms reorder loss=0.5% duplicate=0.5% corrupt=0.5% rate=100mbit queue=50");
    let receive = "import socket,hashlib\nl=socket.create_server(('10.77.0.1',7000))\nc,_=l.accept()\n\
                   h=hashlib.sha256()\nwhile d:=c.recv(1<<20):h.update(d)\nprint(h.hexdigest())";
    let send = "import socket,hashlib,random,time\nd=random.Random(1).randbytes(4<<20)\n\
                for n in range(50):\n try:s=socket.create_connection(('10.77.0.1',7000));break\n \
                except OSError:time.sleep(.1)\n\
                s.sendall(d);s.close();print(hashlib.sha256(d).hexdigest())";
    let receiver = lab.in_host("a", &["python3", "-c", receive]).stdout(Stdio::piped()).spawn().unwrap();
    let sent = lab.in_host("b", &["python3", "-c", send]).output().unwrap();
    let got = receiver.wait_with_output().unwrap();
    assert!(sent.stdout.len() > 60, "{}", String::from_utf8_lossy(&sent.stderr));
    assert_eq!(sent.stdout, got.stdout);
    assert!(["lost", "duplicated", "corrupted"].iter().all(|name| lab.counter("b", name) > 0));
}

#[test]
fn a_crashed_emulator_is_cleared_away() {
    let Some(lab) = Lab::new("crash") else { return };
    lab.up("");
    let pid = std::fs::read_to_string(lab.state().join("lock")).unwrap();
    Command::new("kill").args(["-9", &pid]).status().unwrap();
    while Path::new(&format!("/proc/{pid}")).exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(lab.refuse("status", "").contains("not up"));
    assert_eq!(lab.namespaces(), 2);
    lab.up("--hosts 3 delay=3ms");
    lab.assert_round_trip("10.77.0.2", 6.0, ANY);
    lab.assert_round_trip("10.77.0.3", 6.0, ANY);
}

#[test]
fn foreign_namespaces_are_left_alone() {
    let Some(lab) = Lab::new("foreign") else { return };
    let namespace = format!("{}-b", lab.0);
    assert!(Command::new("ip").args(["netns", "add", &namespace]).status().unwrap().success());
    assert!(lab.refuse("up", "").contains("already"));
    lab.say("down", "");
    assert_eq!(lab.namespaces(), 1);
    Command::new("ip").args(["netns", "del", &namespace]).status().unwrap();
}

#[test]
fn run_passes_the_last_status_on_and_cleans_up() {
    let Some(lab) = Lab::new("run") else { return };
    let commands = ["--", "a:", "sleep", "600", "--", "b:", "sh", "-c", "ping -n -c 1 10.77.0.1 && exit 5"];
    let out = netlab(&[&["run", "--name", &lab.0, "delay=1ms"], &commands[..]].concat());
    assert_eq!(out.status.code(), Some(5), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(lab.namespaces(), 0);
    for bad in
        [&["--", "c:", "true"][..], &["--", "a:"], &["--", "true"], &["delay=x", "--", "a:", "true"], &[]]
    {
        err(&[&["run", "--name", &lab.0], bad].concat());
        assert_eq!(lab.namespaces(), 0);
    }
}
