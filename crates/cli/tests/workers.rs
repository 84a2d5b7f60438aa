//! Brokers and workers as processes: what a worker may, and what becomes of flows when it is killed.

mod support;

use std::fs;
use std::process::Child;
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

#[test]
fn workers_are_locked_up_and_go_with_their_broker() {
    let scratch = Scratch::new();
    let (share, address) = Service::share("pattern:size=100,rate=100", &[]);
    let output = format!("file:{}", scratch.path("out"));
    let mut attach = Service::start(&["attach", &format!("{address}/pattern"), "--as", &output]);
    attach.wait("attached");
    let workers = [&share, &attach].map(|service| worker_of(&service.child));
    for worker in workers {
        let status = || fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        // It locks itself up before it reads anything.
        let since = Instant::now();
        while !status().contains("Seccomp:\t2") && since.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(2));
        }
        assert!(status().contains("Seccomp:\t2") && status().contains("NoNewPrivs:\t1"), "{}", status());
    }
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
    for worker in workers {
        assert!(!fs::exists(format!("/proc/{worker}")).unwrap(), "{worker} outlives its broker");
    }
}
