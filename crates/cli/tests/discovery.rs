//! Watching the device list of another host, and finding hosts on the local network.

mod support;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;
use support::users::{User, paired};
use support::{PATIENCE, Scratch, Service, command, outboard, wait_until};

#[test]
fn a_watcher_sees_devices_appear_and_disappear() {
    let scratch = Scratch::new();
    let file = scratch.path("run.toml");
    let share = |name: &str, listen: &str| {
        format!("[[share]]\ndevice = 'pattern'\nname = '{name}'\nlisten = '{listen}'\ninsecure = true\n")
    };
    std::fs::write(&file, share("one", "127.0.0.1:0")).unwrap();
    let mut service = Service::start(&["run", &file]);
    let address = service.wait("listening")["address"].as_str().unwrap().to_string();
    let seen = outboard(&["devices", &address, "--insecure", "--json"]).done().json();
    assert_eq!((&seen["name"], &seen["present"]), (&"one".into(), &true.into()), "{seen}");
    outboard(&["devices", &address]).refused(1, &["--insecure"]);
    let mut watch = command(&["devices", &address, "--insecure", "--watch", "--json"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut names = || {
        let line: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        let devices = line["devices"].as_array().unwrap().iter();
        let mut names: Vec<_> = devices.map(|one| one["name"].as_str().unwrap().to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["one"]);
    // Another process joins and leaves.
    let join = Service::start(&["share", "pattern", "--name", "two", "--listen", &address, "--insecure"]);
    assert_eq!(names(), ["one", "two"]);
    drop(join);
    assert_eq!(names(), ["one"]);
    // The changed file has another device in place of the first.
    std::fs::write(&file, share("three", "127.0.0.1:0")).unwrap();
    outboard(&["reload", "--process", &service.child.id().to_string()]).done();
    while names() != ["three"] {}
    support::terminate(&watch);
    assert_eq!(watch.wait().unwrap().code(), Some(0));
    assert_eq!(service.stop(), Some(0));
}

#[test]
fn an_announced_host_is_found_and_names_no_device() {
    let more = ["--insecure", "--announce", "--name", "very-secret-device"];
    let (mut share, address) = Service::share("pattern", &more);
    let since = Instant::now();
    loop {
        if share.pending().iter().any(|event| event["event"] == "warning") {
            return testkit::skip::here("no multicast DNS");
        }
        let told = outboard(&["find", "--seconds", "1", "--json"]).done();
        let found = told.json_lines();
        assert!(!told.text().contains("secret"), "{found:?}");
        let addresses = found.iter().flat_map(|host| host["addresses"].as_array().unwrap());
        if addresses.into_iter().any(|found| *found == address) {
            break;
        }
        assert!(since.elapsed() < PATIENCE, "{address} is not among {found:?}");
    }
    assert_eq!(share.stop(), Some(0));
}

#[test]
fn a_joined_process_announces_the_host_while_it_runs() {
    let (mut share, address) = Service::share("pattern", &["--name", "one"]);
    let join = ["share", "pattern", "--name", "two", "--listen", &address, "--announce"];
    let mut joined = Service::start(&join);
    joined.wait("joined");
    let is_found = || {
        let found = outboard(&["find", "--seconds", "1", "--json"]).done().json_lines();
        let mut addresses = found.iter().flat_map(|host| host["addresses"].as_array().unwrap());
        addresses.any(|found| *found == address)
    };
    let since = Instant::now();
    while !is_found() {
        if share.pending().iter().any(|event| event["event"] == "warning") {
            return testkit::skip::here("no multicast DNS");
        }
        assert!(since.elapsed() < PATIENCE, "{address} is not announced");
    }
    assert_eq!(joined.stop(), Some(0));
    wait_until("the announcement is withdrawn", || !is_found());
    assert_eq!(share.stop(), Some(0));
}

/// The host got another name here, and announces its host name. Other hosts may announce the same name.
#[test]
fn a_peer_is_found_by_its_announcement_and_then_by_its_place() {
    let (a, b) = (User::new(), User::new());
    let (mut shown, with) = a.shows();
    b.says(&["pair", &with, "--name", "plant"]).done();
    shown.wait("paired");
    let (mut share, address) = a.shares("pattern:rate=100", &["--name", "plc", "--announce"]);
    let since = Instant::now();
    loop {
        if share.pending().iter().any(|event| event["event"] == "warning") {
            return testkit::skip::here("no multicast DNS");
        }
        let listed = b.says(&["devices", "plant", "--json"]);
        if listed.code == Some(0) {
            assert_eq!(listed.json()["name"], "plc");
            break;
        }
        assert!(since.elapsed() < PATIENCE, "{listed:?}");
    }
    assert_eq!(b.peers()[0]["places"], serde_json::json!([address]));
    assert_eq!(share.stop(), Some(0));
    // Without an announcement, the place is enough, and `attach` knows the name too.
    let again = ["share", "pattern:rate=100", "--name", "plc", "--listen", &address];
    let mut share = a.serves(&again);
    share.wait("listening");
    let mut attach = b.serves(&["attach", "plant/plc", "--as", "null"]);
    assert_eq!(attach.wait("attached")["name"], "plc");
    assert_eq!(attach.stop(), Some(0));
    assert_eq!(share.stop(), Some(0));
}

/// A device host gets another address, as from another DHCP lease, while `attach` runs.
#[test]
fn a_running_attach_follows_a_peer_to_another_place() {
    let (a, b) = paired();
    let share = |listen: &str| {
        let mut share = a.serves(&["share", "pattern:rate=200", "--name", "plc", "--listen", listen]);
        let address = share.wait("listening")["address"].as_str().unwrap().to_string();
        // The place goes on record.
        b.says(&["devices", &format!("a@{address}")]).done();
        share.wait("peer-left");
        (share, address)
    };
    let (mut before, address) = share("127.0.0.1:0");
    let mut attach = b.serves(&["attach", "a/plc", "--as", "pattern", "--stats"]);
    attach.wait("attached");
    before.wait("attached");
    let (mut after, _) = share(&address.replace("127.0.0.1", "127.0.0.2"));
    assert_eq!(before.stop(), Some(0));
    after.wait("attached");
    assert_eq!(attach.stop(), Some(0));
    assert_eq!(after.stop(), Some(0));
}
