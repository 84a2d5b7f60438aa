//! Brokers and workers as processes: what a worker may, and what becomes of flows when it is killed.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use support::{PATIENCE, Scratch, Service};

/// The workers that a broker has now.
fn workers_of(broker: &Child) -> Vec<u32> {
    let parent = format!("PPid:\t{}", broker.id());
    let is_its = |pid: &u32| {
        let read = |what| fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default();
        read("status").lines().any(|line| line == parent) && read("cmdline").contains("\0worker\0")
    };
    let processes =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    processes.filter(is_its).collect()
}

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
    // It locks itself up before it reads anything.
    let since = Instant::now();
    while !status().contains("Seccomp:\t2") && since.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(2));
    }
    assert!(status().contains("Seccomp:\t2") && status().contains("NoNewPrivs:\t1"), "{}", status());
}

#[test]
fn workers_are_locked_up_and_go_with_their_broker() {
    let scratch = Scratch::new();
    let (share, address) = Service::share("pattern:size=100,rate=100", &[]);
    let output = format!("file:{}", scratch.path("out"));
    let mut attach = Service::start(&["attach", &format!("{address}/pattern"), "--as", &output]);
    attach.wait("attached");
    let workers = [&share, &attach].map(|service| worker_of(&service.child));
    workers.into_iter().for_each(assert_locked);
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
    for worker in workers {
        assert!(!fs::exists(format!("/proc/{worker}")).unwrap(), "{worker} outlives its broker");
    }
}

fn kill(worker: u32) {
    let _ = kill_process(Pid::from_raw(worker.cast_signed()).unwrap(), Signal::KILL);
}

/// A socket that a device is opened by, or an application.
fn socket(scratch: &Scratch, name: &str) -> (String, UnixListener) {
    let path = scratch.path(name);
    (format!("unix:{path}"), UnixListener::bind(&path).unwrap())
}

/// A device and an application of which this test is the other end, over a transport.
struct Bench {
    _scratch: Scratch,
    share: Service,
    attach: Service,
    device: UnixStream,
    application: UnixStream,
}

impl Bench {
    fn new(transport: &str, via: &str) -> Bench {
        Bench::with(Scratch::new(), transport, via, &[])
    }

    fn with(scratch: Scratch, transport: &str, via: &str, more: &[&str]) -> Bench {
        let ((device, devices), (application, applications)) = (socket(&scratch, "d"), socket(&scratch, "a"));
        let opened = thread::spawn(move || devices.accept().unwrap().0);
        let (share, address) = Service::share(&device, &["--name", "it", "--stats"]);
        let from = format!("{transport}://{address}/it");
        let words = ["attach", &from, "--as", &application, "--via", via, "--stats"];
        let mut attach = Service::start(&[&words, more].concat());
        let application = applications.accept().unwrap().0;
        attach.wait("attached");
        Bench { _scratch: scratch, share, attach, device: opened.join().unwrap(), application }
    }

    /// Kills a worker of the one side, then of the other, so many times.
    fn kill(&mut self, times: usize, pause: Duration) {
        for number in 0..times {
            thread::sleep(pause + Duration::from_millis(number as u64 * 13 % 50));
            let service = if number % 2 == 0 { &mut self.share } else { &mut self.attach };
            let worker = worker_of(&service.child);
            assert_locked(worker);
            kill(worker);
            service.wait("worker");
        }
    }
}

/// Messages of the flow that starts or ends there that are reported to have ended with workers: perhaps, and those that
/// stages held.
fn lost_with_workers(service: &mut Service, flow: &str) -> (u64, u64) {
    let events: Vec<Value> =
        service.seen.drain(..).collect::<Vec<_>>().into_iter().chain(service.pending()).collect();
    let stats = events.iter().rev().find(|event| event["event"] == "stats").expect("figures");
    let drops = &stats["stats"][flow]["drops"];
    let count = |reason| drops[reason].as_u64().unwrap_or(0);
    (count("in doubt when the worker ended"), count("held by stages when the worker ended"))
}

/// Lines with numbers go in, one a millisecond, while workers are killed on either side: they come out in order, each
/// once, but for what is reported as in doubt.
fn survives(transport: &str, via: &str) {
    const LINES: u32 = 4000;
    let mut bench = Bench::new(transport, via);
    let (mut device, application) =
        (bench.device.try_clone().unwrap(), bench.application.try_clone().unwrap());
    let writer = thread::spawn(move || {
        for line in 0..LINES {
            writeln!(device, "{line:063}").unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        device.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let reader = thread::spawn(move || {
        let lines = BufReader::new(application).lines().map_while(Result::ok);
        lines
            .map(|line| line.parse::<u32>().unwrap_or_else(|_| panic!("half a line: {line:?}")))
            .collect::<Vec<_>>()
    });
    bench.kill(8, Duration::from_millis(300));
    writer.join().unwrap();
    bench.attach.wait("flow-ended");
    let lines = reader.join().unwrap();
    thread::sleep(Duration::from_millis(1200));
    let (unread, held_there) = lost_with_workers(&mut bench.share, "outgoing");
    let (unwritten, held_here) = lost_with_workers(&mut bench.attach, "incoming");
    let seen: BTreeSet<u32> = lines.iter().copied().collect();
    let gaps =
        (0..LINES).filter(|line| !seen.contains(line) && (*line == 0 || seen.contains(&(line - 1)))).count();
    let turns = lines.windows(2).filter(|pair| pair[1] <= pair[0]).count();
    eprintln!(
        "{} lines, {gaps} gaps ({unread} in doubt, {held_there} and {held_here} held), {turns} repeats ({unwritten} in doubt)",
        lines.len()
    );
    let lost = unread + held_there + held_here;
    assert!(gaps as u64 <= lost, "lost in {gaps} places, with {lost} messages lost or in doubt");
    assert!(turns as u64 <= unwritten, "repeated {turns} times, with {unwritten} messages in doubt");
    assert_eq!(end_of(bench.attach), Some(0));
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

#[test]
fn a_reliable_flow_survives_its_workers_with_pairs_in_processes() {
    survives("tcp", "@pipe compress");
}

#[test]
fn a_reliable_flow_survives_its_workers_with_pairs_on_shared_memory() {
    survives("tcp", "@shm: bundle(count=4) | compress");
}

/// What a side port leads to was opened by the broker; a locked worker writes there, and the next goes on behind it.
#[test]
fn a_recording_goes_on_when_workers_are_killed() {
    const LINES: u32 = 1000;
    let scratch = Scratch::new();
    let recording = scratch.path("recording");
    let port = format!("record=file:{recording}");
    let mut bench = Bench::with(scratch, "tcp", "record(sink)", &["--port", &port]);
    let (mut device, application) =
        (bench.device.try_clone().unwrap(), bench.application.try_clone().unwrap());
    let writer = thread::spawn(move || {
        for line in 0..LINES {
            device.write_all(format!("{line:063}\n").as_bytes()).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        device.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let reader = thread::spawn(move || BufReader::new(application).lines().map_while(Result::ok).count());
    bench.kill(2, Duration::from_millis(200));
    writer.join().unwrap();
    bench.attach.wait("flow-ended");
    assert!(reader.join().unwrap() >= LINES as usize - 2);
    let Bench { _scratch, attach, .. } = bench;
    assert_eq!(end_of(attach), Some(0));
    let recorded = fs::read_to_string(recording).unwrap();
    let lines: BTreeSet<u32> = recorded.lines().map(|line| line.parse().expect("a whole line")).collect();
    assert!(lines.first() == Some(&0) && lines.last() == Some(&(LINES - 1)), "{} lines", lines.len());
    // What waits to be written ends with its worker.
    assert!(lines.len() > LINES as usize / 2, "{} lines of {LINES}", lines.len());
}

/// A reader so slow that what it is given is written in parts.
#[test]
fn what_is_half_written_is_written_to_its_end_by_the_next_worker() {
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
    for _ in 0..6 {
        thread::sleep(Duration::from_millis(200));
        kill(worker_of(&bench.attach.child));
        bench.attach.wait("worker");
    }
    IS_SLOW.store(false, Ordering::Relaxed);
    writer.join().unwrap();
    let came = reader.join().unwrap();
    let in_doubt = lost_with_workers(&mut bench.attach, "incoming").0;
    match in_doubt {
        0 => assert!(came == content, "{} bytes of {BYTES}", came.len()),
        _ => {
            assert!(came.len() >= BYTES, "{in_doubt} messages in doubt, and {} bytes of {BYTES}", came.len())
        }
    }
}

/// Who reads and who waits for a program is not who started it.
#[test]
fn a_program_outlives_the_workers_that_write_to_it() {
    const LINES: u32 = 2000;
    let scratch = Scratch::new();
    let (device, devices) = socket(&scratch, "d");
    let path = scratch.path("out");
    let program = format!("exec:cat >{path}.part && mv {path}.part {path}");
    let (_share, address) = Service::share(&device, &["--name", "it"]);
    let mut attach = Service::start(&["attach", &format!("tcp://{address}/it"), "--as", &program, "--stats"]);
    let mut device = devices.accept().unwrap().0;
    attach.wait("attached");
    let writer = thread::spawn(move || {
        for line in 0..LINES {
            writeln!(device, "{line:063}").unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        device.shutdown(std::net::Shutdown::Write).unwrap();
    });
    for _ in 0..4 {
        thread::sleep(Duration::from_millis(300));
        kill(worker_of(&attach.child));
        attach.wait("worker");
    }
    writer.join().unwrap();
    attach.wait("flow-ended");
    let in_doubt = lost_with_workers(&mut attach, "incoming").0;
    assert_eq!(end_of(attach), Some(0));
    let written = fs::read_to_string(path).expect("the program was told the end, and ended well");
    let lines: BTreeSet<u32> = written.lines().map(|line| line.parse().expect("a whole line")).collect();
    assert_eq!(lines.len() as u32, LINES, "lines that came");
    assert!(written.lines().count() as u64 <= u64::from(LINES) + in_doubt, "{in_doubt} in doubt");
}

#[test]
fn a_worker_that_dies_at_once_is_not_started_for_ever() {
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
