//! `--json` of each command: one object a line, as in `docs/reference/json.schema.json`. The events of services are checked
//! wherever a test reads them (`support::Service`).

mod support;

use support::schema::{check, definitions};
use support::users::{User, paired};
use support::{Ended, Scratch, terminate};

/// Names in the schema that are parts of the others.
const PARTS: &[&str] =
    &["device-statistics", "event", "flow-statistics", "peer", "processors", "session", "stage", "store"];
/// Commands of services, and `control`, for which a camera is necessary.
const ELSEWHERE: &[&str] = &["attach", "control", "pair", "run", "share"];

/// Checks each line of output, and remembers the name.
struct Checked(Vec<&'static str>);

impl Checked {
    #[track_caller]
    fn lines(&mut self, name: &'static str, told: &Ended) {
        let lines = told.json_lines();
        assert!(!lines.is_empty(), "`{name}` prints nothing: {}", told.stderr);
        lines.iter().for_each(|line| check(name, line));
        self.0.push(name);
    }
}

#[test]
fn every_command_prints_the_objects_of_the_schema() {
    let (a, b) = paired();
    let scratch = Scratch::new();
    let file = scratch.path("run.toml");
    // On a link to the same machine, only a sender of datagrams that fit a frame measures the path.
    let entry = "[[share]]\ndevice = 'pattern:rate=200'\nname = 'sensor'\nlisten = '127.0.0.1:0'\n\
                 transport = 'datagram=1452'\n";
    std::fs::write(&file, entry).unwrap();
    let mut run = a.serves(&["run", &file, "--stats"]);
    let address = run.wait("listening")["address"].as_str().unwrap().to_string();
    let from = format!("quic://a@{address}/sensor");
    let mut attach = b.serves(&["attach", &from, "--as", "null", "--via", "bundle(2)", "--stats"]);
    attach.flows(10);
    run.wait("stats");

    let (mut checked, mut has_path) = (Checked(Vec::new()), false);
    let key = b.says(&["peers", "self", "--json"]).done();
    let key = key.json()["line"].as_str().unwrap().to_string();
    let target = format!("a@{address}");
    for (name, user, words) in [
        ("devices", &a, &["devices"][..]),
        ("devices-of-host", &b, &["devices", &target]),
        ("doctor", &a, &["doctor"]),
        ("modules", &a, &["modules"]),
        ("peers", &a, &["peers"]),
        ("peers-self", &a, &["peers", "self"]),
        ("peers-add", &a, &["peers", "add", &key, "--name", "b"]),
        ("peers-export", &a, &["peers", "export"]),
        ("health", &a, &["health"]),
        ("top", &a, &["top", "--once"]),
        ("top", &b, &["top", "--once"]),
        ("trace", &b, &["trace", "--sample", "1/1", "--seconds", "1"]),
        ("change", &b, &["change", "sensor", "--via", "null"]),
        ("reload", &a, &["reload"]),
        ("connect", &a, &["connect", "pattern:count=3,rate=0", "null"]),
        ("demo", &a, &["demo", "--seconds", "1"]),
        ("whatif", &a, &["whatif", "--via", "encrypt", "--by", "inf", "--seconds", "0.1", "--rounds", "1"]),
    ] {
        let told = user.says(&[words, &["--json"]].concat()).done();
        has_path |= name == "top" && told.json()["flows"][0]["path"].is_object();
        // A machine may have no device to list.
        if name != "devices" || !told.stdout.is_empty() {
            checked.lines(name, &told);
        }
    }
    assert!(has_path, "`top` at the source shows no path");
    let mut watch = b.command(&["devices", &target, "--watch", "--json"]).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(watch.stdout.take().unwrap()));
    let line = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    check("devices-watch", &line);
    terminate(&watch);
    assert_eq!(watch.wait().unwrap().code(), Some(0));
    checked.0.push("devices-watch");
    // Without announcements on this network there is no line.
    let found = User::new().says(&["find", "--seconds", "0.1", "--json"]);
    found.json_lines().iter().for_each(|line| check("find", line));

    let is_known = |name: &&String| {
        [PARTS, ELSEWHERE, &["devices", "find"], &checked.0].concat().contains(&name.as_str())
    };
    let left: Vec<_> = definitions().keys().filter(|name| !is_known(name)).collect();
    assert!(left.is_empty(), "not tested: {left:?}");
    let page = include_str!("../../../docs/reference/json.md");
    for name in definitions().keys() {
        assert!(
            page.contains(&format!("`{name}`")),
            "docs/reference/json.md does not name the schema `{name}`"
        );
    }
    let log = a.says(&["run", "--check", &file]).done();
    assert_eq!(log.text(), "the file is valid\n");
}

#[test]
fn a_log_in_json_has_events_of_the_schema() {
    let scratch = Scratch::new();
    let file = scratch.path("run.toml");
    std::fs::write(&file, "[[connect]]\nsource = 'pattern:count=3,rate=0'\nsink = 'null'\n").unwrap();
    let log = support::outboard(&["run", &file, "--log", "json"]).done();
    log.json_lines().iter().for_each(|line| check("run", line));
}
