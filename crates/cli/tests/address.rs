//! A host changes its address while a flow runs. Two network namespaces on one network are the hosts.

mod support;

use std::process::{Command, Stdio};
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

    /// Returns `None` if this user may not create network namespaces.
    fn start() -> Option<Hosts> {
        let names = ["a", "b"].map(|host| format!("outboard-{}-{host}", std::process::id()));
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
    if !testkit::skip::has_program("ip", "iproute2") {
        return;
    }
    let Some(hosts) = Hosts::start() else {
        return testkit::skip::until_vm("this user may make no network namespaces");
    };
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
}
