//! Fleets: hosts that know each other by key lines, set up by scripts and by files, without a code.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use support::users::User;
use support::{Ended, end, wait_until};

/// A host as a script sets it up: it runs `outboard` with a home of its own.
const SCRIPT: &str = r#"
set -eu
on() {
    host=$1; shift
    XDG_STATE_HOME=$HOSTS/$host/state XDG_RUNTIME_DIR=$HOSTS/$host/run "$OUTBOARD" "$@"
}
for host in alpha beta gamma; do
    key=$(on "$host" peers self | cut -d ' ' -f 2)
    echo "ed25519 $key $host address=127.0.0.1" >"$HOSTS/$host.peer"
done
cat "$HOSTS"/*.peer >"$HOSTS/fleet"
for host in alpha beta gamma; do
    for line in alpha beta gamma; do
        on "$host" peers add "$(cat "$HOSTS/$line.peer")"
    done
    on "$host" peers add - <"$HOSTS/fleet"
done
"#;

#[test]
fn three_hosts_are_set_up_by_a_script() {
    let [alpha, beta, gamma] = ["alpha", "beta", "gamma"].map(|_| User::new());
    let site = support::Scratch::new();
    for (name, user) in [("alpha", &alpha), ("beta", &beta), ("gamma", &gamma)] {
        std::os::unix::fs::symlink(user.0.path(""), site.path(name)).unwrap();
    }
    let mut script = Command::new("sh");
    script.args(["-c", SCRIPT]).env("HOSTS", site.path("")).env("OUTBOARD", env!("CARGO_BIN_EXE_outboard"));
    let told = script.output().unwrap();
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.status.success(), "{text}{}", String::from_utf8_lossy(&told.stderr));
    let count = |word: &str| text.lines().filter(|line| line.starts_with(word)).count();
    // Each host meets each line twice.
    assert_eq!([count("added: "), count("unchanged: "), count("this host: ")], [6, 6, 6], "{text}");

    // A device of `alpha` crosses to both, by its name in the lines.
    let (_share, address) = alpha.shares("pattern:count=500,rate=0", &["--name", "sensor", "--hub", "copy"]);
    let port = address.rsplit_once(':').unwrap().1;
    for user in [&beta, &gamma] {
        let from = format!("alpha@127.0.0.1:{port}/sensor");
        user.says(&["attach", &from, "--as", "pattern:count=500,rate=0"]).done();
    }
    let stranger = User::new();
    stranger.says(&["attach", &format!("{address}/sensor"), "--as", "null"]).refused(1, &["outboard pair"]);
}

/// Adds a line with these words after the key.
fn add(user: &User, key: &str, words: &str) -> Ended {
    user.says(&["peers", "add", "ed25519", key, words])
}

#[test]
fn a_key_line_is_added_once_and_never_by_mistake() {
    let (user, own) = (User::new(), User::new());
    let line = own.says(&["peers", "self", "--json"]).done().json();
    let key = line["key"].as_str().unwrap();
    assert!(line["line"].as_str().unwrap().starts_with(&format!("ed25519 {key} ")), "{line}");
    let other = "0".repeat(64);
    for (words, says) in [
        ("studio may-open=cam,left%20eye", "added: studio"),
        ("studio may-open=cam,left%20eye", "unchanged: studio"),
        ("studio", "unchanged: studio"),
        ("desk address=10.0.0.5", "changed: desk"),
    ] {
        let told = add(&user, key, words).done();
        assert!(told.text().starts_with(says), "{words}: {}", told.text());
    }
    let exported = user.says(&["peers", "export"]).done().text().to_string();
    let line = format!("ed25519 {key} desk address=10.0.0.5 may-open=cam,left%20eye\n");
    assert_eq!(exported, line);
    // Wrong lines, and names of other hosts, change nothing.
    add(&user, &other, "desk").refused(2, &["another host is called `desk` already", "`--replace`"]);
    add(&user, &other, "studio").refused(2, &["was the name of another host", "`--replace`"]);
    add(&user, "7", "lab").refused(2, &["64 hexadecimal digits"]);
    user.says(&["peers", "add", "studio"]).refused(2, &["`studio` is no key line", "`outboard peers self`"]);
    let two = format!("{exported}ed25519 {other} lab\ned25519 7 x\n");
    fs::write(user.0.path("lines"), two).unwrap();
    let mut fed = user.command(&["peers", "add", "-"]);
    fed.stdin(fs::File::open(user.0.path("lines")).unwrap());
    end(fed.spawn().unwrap(), "peers add").refused(2, &["line 3: `7` is no key"]);
    // The command before the pipe has failed.
    let mut unfed = user.command(&["peers", "add", "-"]);
    unfed.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end(unfed.spawn().unwrap(), "peers add").refused(2, &["no key line", "before the pipe"]);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    user.says(&["peers", "add", file]).refused(2, &["outboard peers add - <"]);
    assert_eq!(user.says(&["peers", "export"]).done().text(), exported);
    // A host that was installed again has another key: its owner decides.
    user.says(&["peers", "add", &format!("ed25519 {other} lab"), "--name", "desk", "--replace"]).done();
    let peers = user.peers();
    assert_eq!((&peers[0]["key"], peers.as_array().unwrap().len()), (&other.as_str().into(), 1), "{peers}");
}

#[test]
fn the_hosts_of_a_directory_are_known_while_they_have_a_line() {
    let (owner, studio, lab) = (User::new(), User::new(), User::new());
    let directory = owner.0.path("peers.d");
    fs::create_dir(&directory).unwrap();
    let key =
        |user: &User| user.says(&["peers", "--json"]).done().json()["key"].as_str().unwrap().to_string();
    let write = |name: &str, text: &str| fs::write(format!("{directory}/{name}"), text).unwrap();
    let line = |user: &User, words: &str| format!("ed25519 {} {words}\n", key(user));
    write("fleet.peer", &format!("# all hosts\n{}{}", line(&studio, "studio"), line(&owner, "me")));
    write("fleet.peer~", &line(&lab, "lab"));
    let file = owner.0.path("run.toml");
    let share = |name: &str, more: &str| {
        format!(
            "[[share]]\ndevice = 'pattern:rate=200'\nname = '{name}'\nlisten = '127.0.0.1:0'\nhub = 'copy'\n{more}"
        )
    };
    fs::write(&file, share("cam", "") + &share("key", "allow = 'studio'\n")).unwrap();
    let checked = owner.says(&["run", &file, "--check"]).done();
    assert!(checked.text().contains("fleet.peer~ is not read"), "{}", checked.text());
    assert_eq!(owner.peers(), serde_json::json!([]), "a check has no effect");

    let mut service = owner.serves(&["run", &file]);
    let address = service.wait("listening")["address"].as_str().unwrap().to_string();
    // Each host knows the other one by a line.
    studio.says(&["peers", "add", &line(&owner, "owner")]).done();
    lab.says(&["peers", "add", &line(&owner, "owner")]).done();
    let attach = |user: &User, name: &str| {
        user.serves(&["attach", &format!("owner@{address}/{name}"), "--as", "null"])
    };
    let mut used = attach(&studio, "key");
    used.wait("attached");
    lab.says(&["devices", &format!("owner@{address}")]).refused(1, &["outboard pair"]);
    // `lab` comes, with a permit, and `studio` has a new permit.
    write("fleet.peer", &line(&studio, "studio may-open=cam"));
    write("lab.peer", &line(&lab, "lab may-open=cam"));
    let reload = || owner.says(&["reload"]).done();
    reload();
    used.wait("device-gone");
    attach(&lab, "cam").wait("attached");
    let listed = owner.peers();
    let has = |name: &str| {
        listed.as_array().unwrap().iter().any(|peer| peer["name"] == name && peer["listed_in"] == directory)
    };
    assert!(has("studio") && has("lab"), "{listed}");
    let warned = owner.says(&["peers", "restrict", "lab", "--all"]).done();
    assert!(warned.stderr.contains("edit it there"), "{}", warned.stderr);
    // A wrong line changes nothing, and is named.
    write("lab.peer", "ed25519 77 lab");
    owner.says(&["reload"]).refused(1, &["lab.peer: line 1: `77` is no key"]);
    fs::write(format!("{directory}/lab.peer"), b"\n# B\xfcro").unwrap();
    owner.says(&["reload"]).refused(1, &["lab.peer: line 2: the text is not UTF-8"]);
    write("lab.peer", &line(&lab, "studio"));
    owner.says(&["reload"]).refused(1, &["another line has the name"]);
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
    owner.says(&["run", &file, "--check"]).refused(2, &["can be written by every user"]);
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(owner.peers().as_array().unwrap().len(), 2);
    // A host leaves with its line.
    fs::remove_file(format!("{directory}/fleet.peer")).unwrap();
    fs::write(&file, share("cam", "")).unwrap();
    write("lab.peer", &line(&lab, "lab"));
    reload();
    wait_until("the end of the attach", || used.child.try_wait().unwrap().is_some());
    assert_eq!(owner.peers().as_array().unwrap().len(), 1);
    // All its hosts leave with the directory.
    let mut used = attach(&lab, "cam");
    used.wait("attached");
    fs::remove_dir_all(&directory).unwrap();
    fs::create_dir(owner.0.path("moved")).unwrap();
    let moved = owner.0.path("moved/run.toml");
    fs::copy(&file, &moved).unwrap();
    let checked = owner.says(&["run", &moved, "--check"]).done();
    let says = format!("{directory} is gone, and its hosts stay known: lab;");
    assert!(checked.text().contains(&says), "{}", checked.text());
    reload();
    wait_until("the end of the attach", || used.child.try_wait().unwrap().is_some());
    assert_eq!(owner.peers(), serde_json::json!([]));
}
