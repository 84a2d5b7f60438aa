//! The identity of peers, with the real program: no peer can stand in for another.

mod support;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::json;
use std::fs::File;
use std::io::{Read, Write};
use std::process::Stdio;
use support::end;
use support::users::{User, pair, paired};

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

/// A terminal on which the program asks.
fn terminal() -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let slave = File::options().read(true).write(true).open(path).unwrap();
    (File::from(master), slave)
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
