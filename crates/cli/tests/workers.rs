//! Brokers and workers as processes: the rights of a worker, and flows that survive its crash.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use support::display::Display;
use support::{PATIENCE, Scratch, Service, children, outboard, workers_of};
use wire::Container;

#[track_caller]
fn worker_of(broker: &Child) -> u32 {
    let since = Instant::now();
    loop {
        match workers_of(broker)[..] {
            [worker] => return worker,
            [] if since.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(2)),
            ref others => panic!("workers {others:?} instead of one"),
        }
    }
}

#[track_caller]
fn assert_locked(worker: u32) {
    let status = || fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
    // A worker locks itself before it reads any data.
    let since = Instant::now();
    while !status().contains("Seccomp:\t2") && since.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(2));
    }
    assert!(status().contains("Seccomp:\t2") && status().contains("NoNewPrivs:\t1"), "{}", status());
}

/// Checks that a process has a session of its own, no controlling terminal, no standard descriptor of its broker, and no
/// capability.
#[track_caller]
fn assert_without_terminal(worker: u32) {
    let stat = fs::read_to_string(format!("/proc/{worker}/stat")).unwrap();
    // After the name (`proc_pid_stat(5)`): state, parent, group, session, terminal.
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    assert_eq!(fields[2..5], [worker.to_string().as_str(), &worker.to_string(), "0"], "{stat}");
    let errors = fs::read_link(format!("/proc/{worker}/fd/2")).unwrap();
    assert!(errors.to_string_lossy().starts_with("pipe:"), "{errors:?}");
    let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
    }
}

#[test]
fn workers_are_locked_and_end_with_their_broker() {
    let scratch = Scratch::new();
    let (share, address) = Service::share("pattern:size=100,rate=100", &[]);
    let output = format!("file:{}", scratch.path("out"));
    let mut attach = Service::start(&["attach", &format!("{address}/pattern"), "--as", &output]);
    attach.wait("attached");
    let workers = [&share, &attach].map(|service| worker_of(&service.child));
    for worker in workers {
        assert_locked(worker);
        assert_without_terminal(worker);
    }
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
    for worker in workers {
        assert!(!fs::exists(format!("/proc/{worker}")).unwrap(), "{worker} outlives its broker");
    }
}

/// The watcher of a worker names a refused call on the worker's standard error; the broker reports it at once.
#[test]
fn a_refused_system_call_of_a_worker_is_named() {
    let scratch = Scratch::new();
    let (mut share, address) = Service::share("pattern:size=100,rate=100", &[]);
    let output = format!("file:{}", scratch.path("out"));
    let mut attach = Service::start(&["attach", &format!("{address}/pattern"), "--as", &output]);
    attach.wait("attached");
    let worker = worker_of(&share.child);
    let line = format!("some words\n{}socket\n{0}x; y\n", sys::seccomp::REFUSED);
    fs::write(format!("/proc/{worker}/fd/2"), line).unwrap();
    let problem = "the sandbox refused the system call socket to a worker";
    assert_eq!(share.wait("warning")["problem"], problem);
    kill(worker);
    let end = share.wait("worker").to_string();
    assert!(end.contains("wrote: some words") && !end.contains("socket"), "{end}");
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
}

fn signal(worker: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(worker.cast_signed()).unwrap(), signal);
}

fn kill(worker: u32) {
    signal(worker, Signal::KILL);
}

#[test]
fn a_stuck_worker_delays_no_other_session() {
    let scratch = Scratch::new();
    let (mut share, address) = Service::share("pattern:size=100,rate=100", &[]);
    let attach = |name: &str| {
        let output = format!("file:{}", scratch.path(name));
        let mut attach = Service::start(&["attach", &format!("{address}/pattern"), "--as", &output]);
        attach.wait("attached");
        attach
    };
    let first = attach("first");
    let stuck = worker_of(&share.child);
    assert_locked(stuck);
    signal(stuck, Signal::STOP);
    assert_eq!(first.stop(), Some(0));
    share.wait("peer-left");
    let second = attach("second");
    assert!(workers_of(&share.child).contains(&stuck), "the next peer was served when it was killed at last");
    assert_eq!([second.stop(), share.stop()], [Some(0); 2]);
    assert!(!fs::exists(format!("/proc/{stuck}")).unwrap(), "it outlives its broker");
}

/// A request for another pipeline fails if the worker dies before it starts the change.
#[test]
fn a_change_that_ends_with_a_worker_is_refused() {
    let scratch = Scratch::new();
    let (mut share, address) = Service::share("pattern:size=100,rate=100", &["--name", "restless"]);
    let output = format!("file:{}", scratch.path("out"));
    let mut attach = Service::start(&["attach", &format!("{address}/restless"), "--as", &output]);
    attach.wait("attached");
    let sink = worker_of(&attach.child);
    [worker_of(&share.child), sink].into_iter().for_each(assert_locked);
    // The stopped worker does not answer: the change stays pending.
    signal(sink, Signal::STOP);
    let mut asked = support::command(&["change", "restless", "--via", "compress"]).spawn().unwrap();
    // Kill source workers until the request fails.
    while asked.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(200));
        kill(worker_of(&share.child));
        share.wait("worker");
    }
    support::end(asked, "change").refused_with(1, "try again");
    signal(sink, Signal::CONT);
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
}

/// A pipeline has stages in processes, then none, then some again.
#[test]
fn the_stages_of_a_worker_end_with_their_pipeline() {
    let scratch = Scratch::new();
    let (share, address) = Service::share("pattern:size=100,rate=100", &["--name", "staged"]);
    let (from, output) = (format!("{address}/staged"), format!("file:{}", scratch.path("out")));
    let mut attach = Service::start(&["attach", &from, "--as", &output, "--via", "@pipe compress"]);
    attach.wait("attached");
    let brokers = [share.child.id(), attach.child.id()];
    let is_stage = |child: &i32| {
        fs::read(format!("/proc/{child}/cmdline"))
            .is_ok_and(|words| words.split(|byte| *byte == 0).any(|word| word == b"module"))
    };
    let wait_for = |count: usize| {
        let stages = || brokers.iter().flat_map(|broker| children(*broker)).filter(is_stage);
        let since = Instant::now();
        while stages().count() != count {
            assert!(since.elapsed() < PATIENCE, "{} instead of {count}", stages().count());
            thread::sleep(Duration::from_millis(2));
        }
    };
    wait_for(1);
    for (via, count) in [("null", 0), ("@pipe compress", 1), ("compress", 0), ("@pipe null", 1)] {
        outboard(&["change", "staged", "--via", via]).done();
        wait_for(count);
    }
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
}

/// Creates a Unix socket as the address of a device or application.
fn socket(scratch: &Scratch, name: &str) -> (String, UnixListener) {
    let path = scratch.path(name);
    (format!("unix:{path}"), UnixListener::bind(&path).unwrap())
}

/// A device and an application over a transport; the test holds their other ends.
struct Bench {
    _scratch: Scratch,
    share: Service,
    attach: Service,
    device: UnixStream,
    application: UnixStream,
    /// Workers killed at the device host and at the application host.
    kills: [u64; 2],
}

impl Bench {
    fn new(transport: &str, via: &str) -> Bench {
        Bench::with(Scratch::new(), transport, via, [&[], &[]])
    }

    /// `more` contains additional arguments of `share` and `attach`.
    fn with(scratch: Scratch, transport: &str, via: &str, more: [&[&str]; 2]) -> Bench {
        let ((device, devices), (application, applications)) = (socket(&scratch, "d"), socket(&scratch, "a"));
        let opened = thread::spawn(move || devices.accept().unwrap().0);
        let (share, address) = Service::share(&device, &[&["--name", "it", "--stats"], more[0]].concat());
        let from = format!("{transport}://{address}/it");
        let words = ["attach", &from, "--as", &application, "--via", via, "--stats"];
        let mut attach = Service::start(&[&words, more[1]].concat());
        let application = applications.accept().unwrap().0;
        attach.wait("attached");
        Bench { _scratch: scratch, share, attach, device: opened.join().unwrap(), application, kills: [0; 2] }
    }

    /// Kills the workers of both sides `times` times; the sink's after the source's new worker has contacted it.
    fn kill_both(&mut self, times: usize) {
        for _ in 0..times {
            thread::sleep(Duration::from_millis(300));
            let [source, sink] = [&self.share, &self.attach].map(|service| worker_of(&service.child));
            [source, sink].into_iter().for_each(assert_locked);
            signal(sink, Signal::STOP);
            kill(source);
            self.share.wait("worker");
            thread::sleep(Duration::from_millis(300));
            kill(sink);
            self.attach.wait("worker");
            self.kills.iter_mut().for_each(|kills| *kills += 1);
        }
    }

    /// Kills a worker on each side in turn, `times` times.
    fn kill(&mut self, times: usize, pause: Duration) {
        for number in 0..times {
            thread::sleep(pause + Duration::from_millis(number as u64 * 13 % 50));
            let service = if number % 2 == 0 { &mut self.share } else { &mut self.attach };
            let worker = worker_of(&service.child);
            assert_locked(worker);
            kill(worker);
            service.wait("worker");
            self.kills[number % 2] += 1;
        }
    }
}

/// Writes numbered lines to a device, one a millisecond, until told to end.
struct Writer {
    is_enough: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

impl Writer {
    fn start(device: &UnixStream) -> Writer {
        let (mut device, is_enough) = (device.try_clone().unwrap(), Arc::new(AtomicBool::new(false)));
        let is_told = is_enough.clone();
        let thread = thread::spawn(move || {
            let mut line = 0;
            while !is_told.load(Ordering::Relaxed) {
                // One write for each line, so that a loss affects whole lines.
                device.write_all(format!("{line:063}\n").as_bytes()).unwrap();
                line += 1;
                thread::sleep(Duration::from_millis(1));
            }
            device.shutdown(std::net::Shutdown::Write).unwrap();
            line
        });
        Writer { is_enough, thread }
    }

    /// Returns the number of lines.
    fn end(self) -> u32 {
        self.is_enough.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Waits until the worker after the last of `kills` has passed messages of a flow. Returns the messages that were reported
/// lost with workers: those in doubt, and those that stages held.
#[track_caller]
fn lost_with_workers(service: &mut Service, flow: &str, kills: u64) -> (u64, u64) {
    loop {
        let stats = service.wait("stats")["stats"].take();
        if stats["restarts"] == kills && stats[flow]["messages"].as_u64() > Some(0) {
            let count = |reason: &str| stats[flow]["drops"][reason].as_u64().unwrap_or(0);
            return (count("in doubt when the worker ended"), count("held by stages when the worker ended"));
        }
    }
}

/// Sends numbered lines, one a millisecond, while workers are killed on both sides. All lines arrive once and in order,
/// except those reported as in doubt.
fn survives(transport: &str, via: &str) {
    survives_where(Bench::new(transport, via), 8);
}

/// Does the same with this device and application.
fn survives_where(bench: Bench, kills: usize) {
    survives_this(bench, |bench| bench.kill(kills, Duration::from_millis(300)));
}

/// Does the same with the failure `befall`.
fn survives_this(mut bench: Bench, befall: impl FnOnce(&mut Bench)) {
    let writer = Writer::start(&bench.device);
    let application = bench.application.try_clone().unwrap();
    let reader = thread::spawn(move || {
        let read = BufReader::new(application).lines().map_while(Result::ok);
        read.map(|line| line.parse::<u32>().unwrap_or_else(|_| panic!("half a line: {line:?}")))
            .collect::<Vec<_>>()
    });
    befall(&mut bench);
    let (unread, held_there) = lost_with_workers(&mut bench.share, "outgoing", bench.kills[0]);
    let (unwritten, held_here) = lost_with_workers(&mut bench.attach, "incoming", bench.kills[1]);
    let lines = writer.end();
    bench.attach.wait("flow-ended");
    let read = reader.join().unwrap();
    let seen: BTreeSet<u32> = read.iter().copied().collect();
    let gaps =
        (0..lines).filter(|line| !seen.contains(line) && (*line == 0 || seen.contains(&(line - 1)))).count();
    let turns = read.windows(2).filter(|pair| pair[1] <= pair[0]).count();
    eprintln!(
        "{} lines, {gaps} gaps ({unread} in doubt, {held_there} and {held_here} held), {turns} repeats ({unwritten} in doubt)",
        read.len()
    );
    let lost = unread + held_there + held_here;
    assert!(gaps as u64 <= lost, "lost in {gaps} places, with {lost} messages lost or in doubt");
    assert!(turns as u64 <= unwritten, "repeated {turns} times, with {unwritten} messages in doubt");
    assert_eq!(held_here, 0, "the source sends again what the sink's stages held");
    assert_eq!(end_of(bench.attach), Some(0));
}

/// Returns the messages that all flows of the first restarted worker lost.
fn lost_with_the_killed(service: &mut Service) -> u64 {
    loop {
        let stats = service.wait("stats")["stats"].take();
        if stats["restarts"] != 0 {
            let drops = ["outgoing", "incoming"].map(|flow| stats[flow]["drops"].clone());
            let drops = drops.iter().filter_map(Value::as_object).flatten();
            let with_worker = drops.filter(|(reason, _)| reason.ends_with("when the worker ended"));
            return with_worker.filter_map(|(_, count)| count.as_u64()).sum();
        }
    }
}

fn end_of(mut service: Service) -> Option<i32> {
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        if let Some(status) = service.child.try_wait().unwrap() {
            return status.code();
        }
        thread::sleep(Duration::from_millis(2));
    }
    None
}

#[test]
fn a_reliable_flow_survives_its_workers_over_tcp() {
    survives("tcp", "");
}

#[test]
fn a_reliable_flow_survives_its_workers_over_several_connections() {
    let bench = Bench::with(Scratch::new(), "striped", "", [&[], &["--transport", "ways=3"]]);
    survives_where(bench, 8);
}

#[test]
fn a_reliable_flow_survives_its_workers_over_udp() {
    survives("udp", "");
}

#[test]
fn a_reliable_flow_survives_its_workers_over_quic() {
    survives("quic", "");
}

#[test]
fn a_reliable_flow_survives_its_workers_with_pairs() {
    survives("tcp", "compress | encrypt");
}

/// The messages that a killed source half has gathered are lost and reported.
#[test]
fn a_reliable_flow_survives_its_workers_with_a_pair_that_gathers() {
    survives("tcp", "bundle(count=10)");
}

/// The killed sink half has state and held messages.
#[test]
fn a_reliable_flow_survives_its_workers_with_pairs_that_remember() {
    survives_where(Bench::new("tcp", "delta(key_every=0)"), 20);
}

#[test]
fn a_reliable_flow_survives_its_workers_with_pairs_that_remember_and_hold() {
    let via = "buffer(mode=play) | delta(key_every=0) | multiplex(split) | compress";
    survives_where(Bench::new("udp", via), 8);
}

#[test]
fn a_reliable_flow_survives_its_workers_with_pairs_in_processes() {
    survives("tcp", "@pipe compress");
}

/// The process of the killed sink half holds the messages of some hundred milliseconds. The source has sent them, so none
/// may be lost.
#[test]
fn a_killed_sink_half_in_a_process_loses_nothing_that_it_holds() {
    for link in ["@pipe", "@shm"] {
        let via = format!("{link} bundle(count=10, hold=400ms)");
        let mut bench = Bench::new("udp", &via);
        let writer = Writer::start(&bench.device);
        let application = bench.application.try_clone().unwrap();
        let reader = thread::spawn(move || {
            BufReader::new(application).lines().map_while(Result::ok).collect::<Vec<_>>()
        });
        for _ in 0..4 {
            thread::sleep(Duration::from_millis(600));
            kill(worker_of(&bench.attach.child));
            bench.attach.wait("worker");
        }
        let (in_doubt, held) = lost_with_workers(&mut bench.attach, "incoming", 4);
        let lines = writer.end();
        bench.attach.wait("flow-ended");
        let read = reader.join().unwrap();
        let seen: BTreeSet<u32> = read.iter().map(|line| line.parse().unwrap()).collect();
        let repeats = (read.len() - seen.len()) as u64;
        assert!(seen.into_iter().eq(0..lines), "{via}: of {lines} lines, {} came", read.len());
        assert!(
            repeats <= in_doubt && held == 0,
            "{via}: {repeats} repeats, {in_doubt} in doubt, {held} held"
        );
        assert_eq!(end_of(bench.attach), Some(0));
    }
}

#[test]
fn a_reliable_flow_survives_its_workers_with_pairs_on_shared_memory() {
    survives("tcp", "@shm: bundle(count=4) | compress");
}

/// The sink's worker is killed while both sides restart, which takes several round trips.
#[test]
fn a_reliable_flow_survives_both_its_workers_at_once() {
    survives_this(Bench::new("tcp", "compress"), |bench| bench.kill_both(4));
}

/// The hub runs in the broker, and the path of each host in a worker.
#[test]
fn a_reliable_flow_of_a_hub_survives_its_workers() {
    survives_where(Bench::with(Scratch::new(), "tcp", "compress", [&["--hub", "copy"], &[]]), 8);
}

/// Reads `pattern` messages from a file of containers. Returns the device and the number of each.
fn numbers(path: &str) -> Vec<(usize, u64)> {
    let bytes = fs::read(path).unwrap();
    let mut rest = bytes.as_slice();
    let mut numbers = Vec::new();
    while let Ok(container) = Container::parse(rest, 1 << 20) {
        let (whole, behind) = rest.split_at(Container::BYTES + container.length as usize);
        let number = whole[Container::BYTES..][..8].try_into().unwrap();
        numbers.push((container.length as usize, u64::from_le_bytes(number)));
        rest = behind;
    }
    assert!(rest.is_empty(), "a container is cut short");
    numbers
}

/// Checks that `count` messages are in order, with at most `missing` missing and `twice` repeated.
#[track_caller]
fn assert_whole(numbers: &[u64], count: u64, missing: u64, twice: u64) {
    let first = *numbers.first().expect("something came");
    let seen: BTreeSet<u64> = numbers.iter().copied().collect();
    assert_eq!(seen.last(), Some(&(count - 1)));
    assert!(count - first - seen.len() as u64 <= missing, "{} of {count} from {first}", seen.len());
    assert!(numbers.windows(2).filter(|pair| pair[1] <= pair[0]).count() as u64 <= twice, "{numbers:?}");
}

#[test]
fn a_hub_serves_each_host_from_its_own_locked_worker() {
    serves_from_locked_workers(&["--hub", "copy"]);
}

#[test]
fn a_divided_device_is_served_from_locked_workers() {
    serves_from_locked_workers(&["--via", "multiplex(all, ways=2, join=false) | compress"]);
}

fn serves_from_locked_workers(hub: &[&str]) {
    const COUNT: u64 = 1500;
    let scratch = Scratch::new();
    let device = format!("pattern:rate=500,size=64,count={COUNT}");
    let (mut share, address) = Service::share(&device, &[hub, &["--stats"]].concat());
    let paths = ["a", "b"].map(|name| scratch.path(name));
    let attach = |path: &String| {
        let (from, to) = (format!("tcp://{address}/pattern"), format!("file:{path},frame=container"));
        Service::start(&["attach", &from, "--as", &to])
    };
    let mut first = attach(&paths[0]);
    first.wait("attached");
    let killed = worker_of(&share.child);
    let mut second = attach(&paths[1]);
    second.wait("attached");
    let workers = workers_of(&share.child);
    assert_eq!(workers.len(), 2, "a worker for each host");
    workers.iter().copied().for_each(assert_locked);
    kill(killed);
    share.wait("worker");
    let lost = lost_with_the_killed(&mut share);
    for attach in [&mut first, &mut second] {
        attach.wait("flow-ended");
        assert_eq!(attach.child.wait().unwrap().code(), Some(0));
    }
    let of = |path: &String| numbers(path).into_iter().map(|(_, number)| number).collect::<Vec<_>>();
    assert_whole(&of(&paths[0]), COUNT, lost, 0);
    assert_whole(&of(&paths[1]), COUNT, 0, 0);
    assert_eq!(share.stop(), Some(0));
}

/// The broker owns the common destination of several devices, but the paths run in workers.
#[test]
fn locked_workers_write_to_a_port_that_several_devices_share() {
    const COUNT: u64 = 1200;
    let scratch = Scratch::new();
    let pattern = |size: usize| format!("pattern:rate=400,size={size},count={COUNT}");
    let (_x, at_x) = Service::share(&pattern(32), &["--name", "x"]);
    let (_y, at_y) = Service::share(&pattern(48), &["--name", "y"]);
    let (x, y, path) = (format!("tcp://{at_x}/x"), format!("tcp://{at_y}/y"), scratch.path("both"));
    let port = format!("record=file:{path},frame=container");
    let nodes = ["--as", "null", "--as", "null", "--require-sandbox"];
    let words =
        [&["attach", &x, &y, "--via", "record(sink)", "--port", &port, "--stats"], &nodes[..]].concat();
    let mut attach = Service::start(&words);
    attach.wait("attached");
    attach.wait("attached");
    let workers = workers_of(&attach.child);
    assert_eq!(workers.len(), 2, "a worker for each host");
    workers.iter().copied().for_each(assert_locked);
    attach.wait("stats");
    kill(workers[0]);
    attach.wait("worker");
    let lost = lost_with_the_killed(&mut attach);
    assert_eq!(end_of(attach), Some(0));
    let came = numbers(&path);
    for size in [32, 48] {
        let of: Vec<u64> =
            came.iter().filter(|(known, _)| *known == size).map(|(_, number)| *number).collect();
        // Messages that were recorded but not delivered are repeated.
        assert_whole(&of, COUNT, lost, u64::MAX);
    }
}

#[test]
fn a_required_sandbox_is_applied_or_reported_missing() {
    let scratch = Scratch::new();
    let (device, _devices) = socket(&scratch, "d");
    let required = "--require-sandbox";
    outboard(&["share", &device, "--hub", "copy", required, "--listen", "127.0.0.1:0"])
        .refused(2, &[required, "one host at a time"]);
    outboard(&["attach", "127.0.0.1:9/x", "127.0.0.1:9/y", "--via", "synchronize", "--as", "null", required])
        .refused(2, &[required, "one by one"]);
    let (share, address) = Service::share("pattern:rate=100,size=64", &["--hub", "copy", required]);
    let mut attach = Service::start(&["attach", &format!("{address}/pattern"), "--as", "null", required]);
    attach.wait("attached");
    [&share, &attach].into_iter().for_each(|service| assert_locked(worker_of(&service.child)));
    let since = Instant::now();
    let is_told = || {
        let told = outboard(&["top", "--once", "--json"]).done().json();
        let flows = told["flows"].as_array().unwrap();
        let of = |service: &Service| {
            flows.iter().any(|flow| flow["process"] == service.child.id() && flow["locked"] == true)
        };
        of(&share) && of(&attach)
    };
    while !is_told() {
        assert!(since.elapsed() < PATIENCE, "`top` does not say that its flows are locked up");
    }
    let checks = outboard(&["doctor", "--json"]).done().json_lines();
    let sandbox = checks.iter().find(|check| check["name"] == "sandbox").unwrap();
    assert_eq!(sandbox["state"], "ok", "{sandbox}");
}

#[test]
fn a_joint_takes_each_device_from_a_locked_worker_and_outlives_it() {
    const COUNT: u64 = 1200;
    let scratch = Scratch::new();
    let pattern = |size: usize| format!("pattern:rate=400,size={size},count={COUNT}");
    let (_x, at_x) = Service::share(&pattern(32), &["--name", "x"]);
    let (_y, at_y) = Service::share(&pattern(48), &["--name", "y"]);
    let (x, y, path) = (format!("tcp://{at_x}/x"), format!("tcp://{at_y}/y"), scratch.path("both"));
    let into = format!("file:{path},frame=container");
    let mut attach =
        Service::start(&["attach", &x, &y, "--via", "synchronize(flows=2)", "--as", &into, "--stats"]);
    attach.wait("joint");
    let workers = workers_of(&attach.child);
    assert_eq!(workers.len(), 2, "a worker for each host");
    workers.iter().copied().for_each(assert_locked);
    kill(workers[0]);
    attach.wait("worker");
    let in_doubt = lost_with_the_killed(&mut attach);
    assert_eq!(end_of(attach), Some(0));
    let came = numbers(&path);
    for size in [32, 48] {
        let of: Vec<u64> =
            came.iter().filter(|(known, _)| *known == size).map(|(_, number)| *number).collect();
        assert_whole(&of, COUNT, in_doubt, in_doubt);
    }
}

/// The broker opens the destination of a side port; a locked worker writes to it, and the next worker appends.
#[test]
fn a_recording_survives_kills_of_workers() {
    let scratch = Scratch::new();
    let recording = scratch.path("recording");
    let port = format!("record=file:{recording},frame=chunk");
    let mut bench = Bench::with(scratch, "tcp", "record(sink)", [&[], &["--port", &port]]);
    let writer = Writer::start(&bench.device);
    let application = bench.application.try_clone().unwrap();
    let reader = thread::spawn(move || BufReader::new(application).lines().map_while(Result::ok).count());
    bench.kill(2, Duration::from_millis(200));
    thread::sleep(Duration::from_millis(400));
    let count = writer.end();
    bench.attach.wait("flow-ended");
    assert!(reader.join().unwrap() >= count as usize - 2);
    let Bench { _scratch, attach, .. } = bench;
    assert_eq!(end_of(attach), Some(0));
    let mode = fs::metadata(&recording).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "others cannot read a recording");
    let recorded = fs::read_to_string(recording).unwrap();
    let lines: BTreeSet<u32> = recorded.lines().map(|line| line.parse().expect("a whole line")).collect();
    assert!(lines.first() == Some(&0) && lines.last() == Some(&(count - 1)), "{} lines", lines.len());
    // Unwritten data is lost with its worker.
    assert!(lines.len() > count as usize / 2, "{} lines of {count}", lines.len());
}

/// A reader so slow that each message is written in parts.
#[test]
fn the_next_worker_completes_a_partial_write() {
    const BYTES: usize = 30_000_000;
    static IS_SLOW: AtomicBool = AtomicBool::new(true);
    let mut bench = Bench::new("tcp", "");
    let content = support::noise(BYTES);
    let (mut device, mut application, sent) =
        (bench.device.try_clone().unwrap(), bench.application.try_clone().unwrap(), content.clone());
    let writer = thread::spawn(move || {
        device.write_all(&sent).unwrap();
        device.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let reader = thread::spawn(move || {
        let (mut all, mut some) = (Vec::new(), vec![0; 30_001]);
        while let Ok(count @ 1..) = application.read(&mut some) {
            all.extend_from_slice(&some[..count]);
            if IS_SLOW.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
            }
        }
        all
    });
    const KILLS: u64 = 6;
    for _ in 0..KILLS {
        thread::sleep(Duration::from_millis(200));
        kill(worker_of(&bench.attach.child));
        bench.attach.wait("worker");
    }
    let in_doubt = lost_with_workers(&mut bench.attach, "incoming", KILLS).0;
    IS_SLOW.store(false, Ordering::Relaxed);
    writer.join().unwrap();
    let came = reader.join().unwrap();
    match in_doubt {
        0 => assert!(came == content, "{} bytes of {BYTES}", came.len()),
        _ => {
            assert!(came.len() >= BYTES, "{in_doubt} messages in doubt, and {} bytes of {BYTES}", came.len())
        }
    }
}

/// One worker starts a program, and another one writes to it.
#[test]
fn a_program_outlives_the_workers_that_write_to_it() {
    const KILLS: u64 = 4;
    let scratch = Scratch::new();
    let (device, devices) = socket(&scratch, "d");
    let path = scratch.path("out");
    let program = format!("exec:cat >{path}.part && mv {path}.part {path}");
    let (_share, address) = Service::share(&device, &["--name", "it"]);
    let mut attach = Service::start(&["attach", &format!("tcp://{address}/it"), "--as", &program, "--stats"]);
    let device = devices.accept().unwrap().0;
    attach.wait("attached");
    let writer = Writer::start(&device);
    for _ in 0..KILLS {
        thread::sleep(Duration::from_millis(300));
        kill(worker_of(&attach.child));
        attach.wait("worker");
    }
    let in_doubt = lost_with_workers(&mut attach, "incoming", KILLS).0;
    let count = writer.end();
    attach.wait("flow-ended");
    assert_eq!(end_of(attach), Some(0));
    let written = fs::read_to_string(path).expect("the program was told the end, and ended well");
    let lines: BTreeSet<u32> = written.lines().map(|line| line.parse().expect("a whole line")).collect();
    assert_eq!(lines.len() as u32, count, "lines that came");
    assert!(written.lines().count() as u64 <= u64::from(count) + in_doubt, "{in_doubt} in doubt");
}

/// Creates a pseudo-terminal with this name as a serial port. Returns its device side, and the descriptor to keep it open.
fn plug(name: &str) -> [fs::File; 2] {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let port = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let slave = fs::OpenOptions::new().read(true).write(true).open(&port).unwrap();
    std::os::unix::fs::symlink(port, name).unwrap();
    [master.into(), slave]
}

/// Checks that the next `count` lines are the numbers from `first`.
fn assert_lines(device: &fs::File, first: u32, count: u32) {
    let mut read = BufReader::with_capacity(1, device);
    for number in first..first + count {
        let mut line = String::new();
        read.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end().parse(), Ok(number), "{line:?}");
    }
}

#[test]
fn a_worker_killed_while_its_device_is_unplugged_resumes_after_replug() {
    for transport in ["tcp", "udp", "quic"] {
        let scratch = Scratch::new();
        let (port, node) = (scratch.path("port"), scratch.path("node"));
        let device = plug(&port);
        let (mut share, address) = Service::share(&format!("serial:{port}"), &["--name", "port"]);
        let from = format!("{transport}://{address}/port");
        let mut attach = Service::start(&["attach", &from, "--as", &format!("pty:{node}")]);
        attach.wait("attached");
        let mut application = fs::OpenOptions::new().read(true).write(true).open(&node).unwrap();
        let mut write =
            |first: u32| (first..first + 100).for_each(|line| writeln!(application, "{line}").unwrap());
        write(0);
        assert_lines(&device[0], 0, 100);
        fs::remove_file(&port).unwrap();
        drop(device);
        share.wait("device-gone");
        write(100);
        kill(worker_of(&share.child));
        thread::sleep(Duration::from_millis(500));
        write(200);
        let device = plug(&port);
        share.wait("worker");
        assert_lines(&device[0], 100, 200);
        assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
    }
}

#[test]
fn a_worker_that_crashes_immediately_is_not_restarted_forever() {
    let scratch = Scratch::new();
    let (_share, address) = Service::share("pattern:size=100,rate=100", &[]);
    let output = format!("file:{}", scratch.path("out"));
    let mut attach = Service::start(&["attach", &format!("{address}/pattern"), "--as", &output]);
    attach.wait("attached");
    let since = Instant::now();
    while since.elapsed() < PATIENCE && attach.child.try_wait().unwrap().is_none() {
        workers_of(&attach.child).into_iter().for_each(kill);
    }
    assert_eq!(end_of(attach), Some(1));
}

/// The next worker of a screen, and of its window, connects to the X server again: the connection of the killed one cannot be used.
#[test]
fn a_screen_and_its_window_survive_a_kill_of_either_worker() {
    let (Some(there), Some(here)) = (Display::start(), Display::start()) else { return };
    if !testkit::skip::has_program("xdotool", "xdotool") {
        return;
    }
    let windows = || {
        let mut search = std::process::Command::new("xdotool");
        search.args(["search", "--onlyvisible", "--name", "."]).env("DISPLAY", &here.name);
        let found = search.output().unwrap();
        String::from_utf8(found.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (mut share, address) = Service::share(&format!("x11:{}", there.name), &["--name", "screen"]);
    let window = format!("window:{}", here.name);
    let mut attach = Service::start(&["attach", &format!("{address}/screen"), "--as", &window, "--stats"]);
    attach.wait("attached");
    support::wait_until("the window", || windows().len() == 1);
    attach.flows(1);
    kill(worker_of(&share.child));
    share.wait("worker");
    attach.flows(2);
    let [old] = &windows()[..] else { panic!("not one window") };
    kill(worker_of(&attach.child));
    attach.wait("worker");
    support::wait_until("another window", || matches!(&windows()[..], [new] if new != old));
    attach.flows(1);
    let is_gone = |event: &Value| event["event"] == "device-gone";
    assert!(!share.seen.iter().chain(&attach.seen).any(is_gone), "{:?}", share.seen);
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
}
