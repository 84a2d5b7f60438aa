//! A host changes its address while a flow runs, or has several. Two network namespaces on one network are the hosts.

mod support;

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use support::{Service, command, figure};

/// Runs `ip` (iproute2) and returns whether it succeeded.
fn ip(words: &str) -> bool {
    let run = Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

/// Two hosts on one cable; dropping it removes them.
struct Hosts {
    names: [String; 2],
}

impl Hosts {
    const ADDRESSES: [&str; 2] = ["10.88.0.1/24", "10.88.0.2/24"];

    /// Returns `None`, and records why, if this user may not create network namespaces.
    fn start() -> Option<Hosts> {
        if !testkit::skip::has_program("ip", "iproute2") {
            return None;
        }
        let hosts = Hosts::make();
        if hosts.is_none() {
            testkit::skip::until_vm("this user may make no network namespaces");
        }
        hosts
    }

    fn make() -> Option<Hosts> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|host| format!("outboard-{}-{number}{host}", std::process::id()));
        let [a, b] = &names;
        if !ip(&format!("netns add {a}")) {
            return None;
        }
        let hosts = Hosts { names: names.clone() };
        let made = ip(&format!("netns add {b}"))
            && ip(&format!("-n {a} link add wan type veth peer name wan netns {b}"))
            && names.iter().zip(Hosts::ADDRESSES).all(|(name, address)| {
                ip(&format!("-n {name} addr add {address} dev wan"))
                    && ip(&format!("-n {name} link set wan up"))
                    && ip(&format!("-n {name} link set lo up"))
            });
        made.then_some(hosts)
    }

    fn run(&self, host: usize, arguments: &[&str]) -> Service {
        let program = command(arguments);
        let mut run = Command::new("ip");
        run.args(["netns", "exec", &self.names[host]]).arg(program.get_program()).args(program.get_args());
        run.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        run.stdin(Stdio::null()).stdout(Stdio::piped());
        Service::start_as(run)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

#[test]
fn a_reliable_flow_survives_an_address_change_on_the_same_connections() {
    let Some(hosts) = Hosts::start() else { return };
    let pattern = "pattern:rate=500,size=200";
    let mut share = hosts.run(0, &["share", pattern, "--insecure"]);
    share.wait("listening");
    let from = "10.88.0.1/pattern";
    let mut attach = hosts.run(1, &["attach", from, "--as", "pattern:size=200", "--stats", "--insecure"]);
    attach.wait("attached");
    for round in 0..2 {
        let before = attach.flows(100 + round * 1000)["incoming"]["messages"].as_u64().unwrap();
        let [old, new] = [round + 2, round + 3].map(|last| format!("10.88.0.{last}/24"));
        let host = &hosts.names[1];
        assert!(ip(&format!("-n {host} addr del {old} dev wan")));
        std::thread::sleep(Duration::from_millis(50));
        assert!(ip(&format!("-n {host} addr add {new} dev wan")));
        let stats = attach.flows(before + 1000);
        for name in ["missing", "repeated", "wrong"] {
            assert_eq!(figure(&stats["partner"], name), 0.0, "{stats}");
        }
        assert_eq!(figure(&stats["transport"], "migrations"), (round + 1) as f64, "{stats}");
        assert_eq!(stats["incoming"]["repeated"], 0, "nothing had to be sent again by the session: {stats}");
    }
    let lost = attach.seen.iter().find(|event| event["event"] == "link-lost");
    assert!(lost.is_none(), "the control channel was made anew: {lost:?}");
    attach.stop();
    let left = share.wait("peer-left")["peer"].to_string();
    assert!(left.contains("10.88.0.4:"), "the device host knows a former address: {left}");
}

/// The kernel selects one address of the device host for packets to the other host. Its answers to the others must come
/// from those, too.
#[test]
fn a_device_host_answers_from_each_of_its_addresses() {
    let Some(hosts) = Hosts::start() else { return };
    let add = |host: usize, address| ip(&format!("-n {} addr add {address} dev wan", hosts.names[host]));
    assert!(add(0, "10.88.0.3/24"));
    let mut addresses = vec!["10.88.0.1", "10.88.0.3"];
    let sixes = [(0, "fd88::1/64 nodad"), (0, "fd88::3/64 nodad"), (1, "fd88::2/64 nodad")];
    if sixes.into_iter().all(|(host, address)| add(host, address)) {
        addresses.extend(["[fd88::1]", "[fd88::3]"]);
    } else {
        eprintln!("SKIPPED: this host has no IPv6");
    }
    // The first test uses the default port, and a `share` at the same address would join that one.
    let pattern = "pattern:rate=500,size=200";
    let mut share = hosts.run(0, &["share", pattern, "--insecure", "--listen", "[::]:7846"]);
    share.wait("listening");
    for address in addresses {
        for transport in ["quic", "udp"] {
            let from = format!("{transport}://{address}:7846/pattern");
            let options = ["--as", "pattern:size=200", "--stats", "--insecure"];
            let mut attach = hosts.run(1, &[&["attach", &from], &options[..]].concat());
            attach.wait("attached");
            let stats = attach.flows(100);
            assert_eq!(figure(&stats["partner"], "wrong"), 0.0, "{from}: {stats}");
        }
    }
}
