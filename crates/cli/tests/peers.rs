//! The identity of peers, with the real program: no peer can stand in for another.

mod support;

use serde_json::json;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::Stdio;
use support::users::{User, pair, paired};
use support::{Service, end, pseudo_terminal};

/// Returns `a` and `c`, both at 127.0.0.1 and both paired with `b` under these names.
fn two_peers() -> (User, User, User) {
    let ((a, b), c) = (paired(), User::new());
    let [_, name_of_c] = pair(&c, &b);
    b.says(&["peers", "rename", &name_of_c, "c"]).done();
    (a, b, c)
}

#[test]
fn a_peer_does_not_answer_for_another_place() {
    let (a, b, c) = two_peers();
    let (share, address) = c.shares("pattern:count=10,rate=0", &["--name", "cam", "--hub", "copy"]);
    let attach = |target: &str| {
        b.says(&["attach", &format!("{target}/cam"), "--as", "pattern:count=10,rate=0", "--json"])
    };
    // Two peers were paired at this address: no record decides, so nobody is trusted without a name.
    for told in [attach(&address), b.says(&["devices", &address])] {
        assert_eq!(told.code, Some(1), "{}", told.stderr);
        for says in ["`c` answers there, fingerprint ", "not on record", &format!("write c@{address}")] {
            assert!(told.stderr.contains(says), "{says}: {}", told.stderr);
        }
    }
    attach(&format!("nobody@{address}")).refused(2, &["no host called `nobody`", "paired hosts: a, c"]);
    attach(&format!("a@{address}")).refused(1, &["`c` answers there, and not `a`"]);
    b.says(&["attach", &format!("a@{address}/cam"), "--insecure"]).refused(2, &["`a@`", "`insecure`"]);
    assert_eq!(b.peers()[1].get("places"), None, "a refusal records nothing");
    // A named peer gets the place, and keeps it.
    attach(&format!("c@{address}")).done();
    assert_eq!(b.peers()[1]["places"], json!([address]));
    attach(&address).done();
    attach(&format!("a@{address}")).refused(1, &["`c` answers there, and not `a`"]);
    assert_eq!(share.stop(), Some(0));
    let listen = ["share", "pattern:count=10,rate=0", "--name", "cam", "--hub", "copy", "--listen", &address];
    let mut share = a.serves(&listen);
    share.wait("listening");
    attach(&address).refused(1, &["`a` answers there", "on record for `c`", &format!("write a@{address}")]);
    attach(&format!("a@{address}")).done();
    assert_eq!(b.peers()[1].get("places"), None, "a place belongs to one key");
    attach(&address).done();
}

#[test]
fn a_place_that_cannot_be_recorded_is_a_warning() {
    let (a, b) = paired();
    let (_share, address) = a.shares("pattern:count=10,rate=0", &["--name", "cam", "--hub", "copy"]);
    let attach = |place: &str| {
        b.says(&["attach", &format!("a@{place}/cam"), "--as", "pattern:count=10,rate=0", "--json"])
    };
    attach(&address.replace("127.0.0.1", "localhost")).done();
    // Nobody can open a directory for writing, as on a read-only file system.
    let lock = b.0.path("state/outboard/peers.lock");
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    let told = attach(&address);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    assert!(told.text().contains("peers.lock"), "{}", told.text());
}

/// Another peer has the place that is on record, so the name leads to it, and the key refuses.
#[test]
fn a_name_leads_to_its_places_and_demands_its_key() {
    let (a, b, c) = two_peers();
    let (share, address) = a.shares("pattern:rate=100", &["--name", "cam"]);
    b.says(&["devices", &format!("a@{address}")]).done();
    b.says(&["devices", "a"]).done();
    assert_eq!(share.stop(), Some(0));
    let mut share = c.serves(&["share", "pattern:rate=100", "--name", "cam", "--listen", &address]);
    share.wait("listening");
    b.says(&["devices", "a"]).refused(1, &["`c` answers there, and not `a`", "write a@ADDRESS"]);
    b.says(&["attach", "a/cam", "--as", "null", "--json"]).refused(1, &["`c` answers there, and not `a`"]);
    // Words that resemble a peer's name, or stand where the name of a peer belongs.
    b.says(&["devices", "aa"]).refused(1, &["`aa` is no name of a paired host", "did you mean `a`?"]);
    b.says(&["devices", "root@a"]).refused(2, &["no host called `root`", "`a` alone is enough"]);
    assert_eq!(share.stop(), Some(0));
}

/// A terminal on which the program asks.
fn terminal() -> (File, File) {
    let (master, path) = pseudo_terminal();
    let slave = File::options().read(true).write(true).open(path).unwrap();
    (master, slave)
}

#[test]
fn an_unrecorded_place_is_asked_for_once_at_a_terminal() {
    let (a, b) = paired();
    let (_share, address) = a.shares("pattern:count=10,rate=0", &["--name", "cam", "--hub", "copy"]);
    // Only 127.0.0.1 is on record.
    let place = address.replace("127.0.0.1", "localhost");
    let key = b.peers()[0]["key"].as_str().unwrap()[..16].to_string();
    let from = format!("{place}/cam");
    let attach = ["attach", &from, "--as", "pattern:count=10,rate=0"];
    let answer = |arguments: &[&str], answer: &str| {
        let (mut master, slave) = terminal();
        let mut command = b.command(arguments);
        command.stdin(slave.try_clone().unwrap()).stderr(slave).stdout(Stdio::piped());
        let child = command.spawn().unwrap();
        // The command holds the other end of the terminal too.
        drop(command);
        let mut shown = String::new();
        while !shown.contains("[y/N] ") {
            let mut bytes = [0; 500];
            let count = master.read(&mut bytes).unwrap_or_else(|error| panic!("{error}: {shown}"));
            shown.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        }
        master.write_all(answer.as_bytes()).unwrap();
        let ended = end(child, "attach");
        (shown, ended.code)
    };
    let question = format!("The host at {place} is a, fingerprint {key}. Attach? [y/N] ");
    for arguments in [&attach[..], &["devices", &place]] {
        assert_eq!(answer(arguments, "\n"), (question.clone(), Some(1)));
    }
    b.says(&attach).refused(1, &["`a` answers there", &format!("write a@{place}")]);
    assert_eq!(answer(&attach, "y\n"), (question, Some(0)));
    b.says(&[&attach[..], &["--json"]].concat()).done();
}

/// Attaches `cam`, and returns once it is in use.
fn uses(user: &User, address: &str) -> Service {
    let mut using = user.serves(&["attach", &format!("{address}/cam"), "--as", "null"]);
    using.wait("attached");
    using
}

#[test]
fn nobody_inherits_a_permission_with_a_name() {
    let (a, b, c) = (User::new(), User::new(), User::new());
    let [name, _] = pair(&a, &b);
    let (mut share, address) = a.shares("pattern:rate=200", &["--name", "cam", "--allow", &name]);
    let file = a.0.path("run.toml");
    fs::write(&file, format!("[[share]]\ndevice = 'pattern'\nallow = '{name}'")).unwrap();
    a.says(&["run", &file, "--check"]).done();
    let mut using = uses(&b, &address);
    a.says(&["peers", "remove", &name]).done();
    share.wait("peer-left");
    assert!(using.child.wait().unwrap().code() == Some(1));
    // The other host claims the same name: both run on this machine.
    let (_shown, with) = c.shows();
    let next = format!("{name}-2");
    let told = a.says(&["pair", &with]).done();
    for says in
        [format!("paired with {next} "), format!("it calls itself {name}, but that name belongs to another")]
    {
        assert!(told.text().contains(&says), "{says}: {}", told.text());
    }
    let attach = ["attach", &format!("{address}/cam"), "--as", "null"];
    c.says(&attach).refused(1, &["there is: nothing"]);
    a.says(&["peers", "rename", &next, &name]).refused(2, &["was the name of another host"]);
    let missing = [&format!("the host called `{name}` was removed")[..], &format!("paired hosts: {next}")];
    a.says(&["share", "pattern", "--allow", &name]).refused(2, &missing);
    a.says(&["run", &file, "--check"]).refused(2, &missing);
    // The removed host itself gets its name and its permission back.
    assert_eq!(pair(&a, &b)[0], name);
    uses(&b, &address);
    c.says(&attach).refused(1, &["there is: nothing"]);
}

#[test]
fn an_unknown_name_is_refused_with_the_known_ones() {
    let (a, b, c) = (User::new(), User::new(), User::new());
    let (mut shown, with) = a.shows();
    b.says(&["pair", &with, "--name", "desk"]).done();
    shown.wait("paired");
    assert_eq!(b.peers()[0]["name"], "desk");
    let unknown = ["no host called `dest` is paired; paired hosts: desk"];
    b.says(&["share", "pattern", "--allow", "desk", "--allow", "dest"]).refused(2, &unknown);
    let file = b.0.path("run.toml");
    fs::write(&file, "[[share]]\ndevice = 'pattern'\nallow = ['desk', 'dest']").unwrap();
    b.says(&["run", &file]).refused(2, &["[[share]] number 1 (pattern)", unknown[0]]);
    b.says(&["attach", "dest@127.0.0.1/cam"]).refused(2, &unknown);
    b.says(&["devices", "dest@127.0.0.1"]).refused(2, &unknown);
    // A chosen name is checked before a code is used: its form at once, and its owner with the key of the other host.
    b.says(&["pair", "--name", "a@b"]).refused(2, &["`a@b` cannot be a host's name"]);
    let (mut shown, with) = c.shows();
    b.says(&["pair", &with, "--name", "desk"])
        .refused(2, &["another host is called `desk` already", "`--replace`"]);
    b.says(&["pair", &with, "--name", "lab"]).done();
    shown.wait("paired");
    // The host of that name keeps it, also after it was removed.
    for remove in [false, true] {
        if remove {
            b.says(&["peers", "remove", "desk"]).done();
        }
        let (mut shown, with) = a.shows();
        b.says(&["pair", &with, "--name", "desk"]).done();
        shown.wait("paired");
        assert!(b.peers().as_array().unwrap().iter().any(|peer| peer["name"] == "desk"), "{remove}");
    }
    let mut shown = b.serves(&["pair", "--listen", "127.0.0.1:0", "--name", "lab"]);
    let command = shown.wait("code")["command"].as_str().unwrap().to_string();
    let told = c.says(&["pair", command.strip_prefix("outboard pair ").unwrap()]).done();
    assert!(!told.text().contains("calls itself"), "{}", told.text());
    assert_eq!(shown.wait("paired")["name"], "lab");
}

#[test]
fn a_list_of_an_earlier_version_loads() {
    let (a, b) = (User::new(), User::new());
    a.says(&["peers"]).done();
    let key = b.says(&["peers", "--json"]).done().json()["key"].take();
    let path = a.0.path("state/outboard/peers.json");
    let entry = json!({"peers": [{"name": "a@b", "key": key, "address": "10.0.0.5", "may_open": ["cam"]}]});
    pair(&a, &User::new());
    fs::write(path, entry.to_string()).unwrap();
    assert_eq!(a.peers(), entry["peers"]);
}
