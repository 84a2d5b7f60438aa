//! Nodes of applications, with the real program: a link, a file or a port has one `attach`, and no other one takes it by accident.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::process::Stdio;
use support::users::User;
use support::{Ended, Scratch, Service, command, end, free_port, outboard, wait_until, workers_of};

/// Shares two devices of one host, `one` and `two`. Returns what `attach` needs to use them.
fn two_devices(device: &str) -> ([Service; 2], [String; 2]) {
    let (one, address) = Service::share(device, &["--name", "one"]);
    let mut two = Service::start(&["share", device, "--name", "two", "--listen", &address]);
    two.wait("joined");
    ([one, two], [format!("{address}/one"), format!("{address}/two")])
}

/// Waits for the exit of an `attach` that runs without `--json`, after its node is in use.
fn spawn(arguments: &[&str]) -> std::process::Child {
    let mut child = command(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut shown = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    while !shown.contains("is attached to") {
        let mut bytes = [0; 500];
        let count = stdout.read(&mut bytes).unwrap();
        assert!(count > 0, "it ended: {shown}");
        shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    child
}

/// Attaches a device, which is refused with these words.
#[track_caller]
fn refused(from: &str, node: &str, more: &[&str], says: &[&str]) {
    let ended = outboard(&[&["attach", from, "--as", node], more].concat());
    assert_refused(&ended, says);
}

#[track_caller]
fn assert_refused(ended: &Ended, says: &[&str]) {
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    for words in says {
        assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
    }
}

/// Runs one kind of node through all steps. `works` checks that the node is there and belongs to a running process.
fn a_node_has_one_attach(device: &str, node: &str, works: impl Fn()) {
    let (_shares, [one, two]) = two_devices(device);
    let first = spawn(&["attach", &one, "--as", node]);
    works();
    let process = |id: u32| format!("process {id} (attach ");
    for _ in 0..2 {
        refused(&two, node, &[], &["is in use by ", &process(first.id()), "/one)", "--replace"]);
        works();
    }
    // The same device, which one process alone can use.
    refused(&one, node, &[], &["is in use by ", &process(first.id()), "/one)", "--replace"]);
    let again = spawn(&["attach", &one, "--as", node, "--replace"]);
    assert_refused(&end(first, "attach"), &["was taken over by ", &process(again.id()), "/one)"]);
    works();
    let first = again;
    outboard(&["connect", "pattern:rate=10", node]).refused(1, &[&process(first.id())]);
    let second = spawn(&["attach", &two, "--as", node, "--replace"]);
    let ended = end(first, "attach");
    assert_refused(&ended, &["was taken over by ", &process(second.id()), "/two)"]);
    works();
    refused(&one, node, &[], &[&process(second.id())]);
    // A killed process leaves its node behind, and nothing that keeps others from it.
    let workers = workers_of(&second);
    kill_process(Pid::from_child(&second), Signal::KILL).unwrap();
    end(second, "attach");
    let runs = |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| !words.is_empty());
    wait_until("its worker exits too", || !workers.iter().any(runs));
    let third = spawn(&["attach", &one, "--as", node]);
    works();
    support::terminate(&third);
    assert_eq!(end(third, "attach").code, Some(0));
}

#[test]
fn a_file_has_one_attach() {
    let scratch = Scratch::new();
    let path = scratch.path("out");
    a_node_has_one_attach("pattern:rate=100", &format!("file:{path}"), || {
        let before = fs::metadata(&path).unwrap().len();
        wait_until("the file grows", || fs::metadata(&path).unwrap().len() > before);
    });
}

#[test]
fn a_port_has_one_attach() {
    let port = free_port();
    let device = "pattern:format=video,rate=10,width=64,height=64";
    a_node_has_one_attach(device, &format!("rfb:{port}"), || {
        let mut greeting = [0; 12];
        TcpStream::connect(("127.0.0.1", port)).unwrap().read_exact(&mut greeting).unwrap();
        assert!(greeting.starts_with(b"RFB "));
    });
}

#[test]
fn a_terminal_has_one_attach() {
    let scratch = Scratch::new();
    let path = scratch.path("tty0");
    a_node_has_one_attach("exec:cat", &format!("pty:{path}"), || {
        assert!(fs::read_link(&path).unwrap().exists(), "the link leads nowhere");
    });
    assert!(fs::symlink_metadata(&path).is_err(), "the link stays");
}

#[test]
fn a_link_of_another_program_is_not_taken() {
    let scratch = Scratch::new();
    let path = scratch.path("tty0");
    let [device, slave] = terminal(&path);
    outboard(&["connect", "exec:cat", &format!("pty:{path}")]).refused(2, &[&path, "another program"]);
    // Without its terminal it is stale.
    let stale = fs::read_link(&path).unwrap();
    let made = || fs::symlink_metadata(&path).and_then(|link| link.modified()).ok();
    let stale_made = made();
    drop((device, slave));
    wait_until("the terminal ends", || !stale.exists());
    let using = Service::start(&["connect", "exec:cat", &format!("pty:{path}")]);
    // The terminal of another test may have the number of the stale one by now.
    wait_until("a new link", || made().is_some_and(|made| Some(made) != stale_made));
    assert_eq!(using.stop(), Some(0));
    // So is a link that is older than the terminal of this number.
    let next = terminal(&scratch.path("next"));
    let number = fs::read_link(scratch.path("next")).unwrap();
    drop(next);
    symlink(&number, &path).unwrap();
    // Times of files are those of the last tick of the kernel's clock.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let next = terminal(&scratch.path("other"));
    if fs::read_link(scratch.path("other")).unwrap() == number {
        let using = Service::start(&["connect", "exec:cat", &format!("pty:{path}")]);
        wait_until("a new link", || fs::read_link(&path).is_ok_and(|to| to.exists() && to != number));
        assert_eq!(using.stop(), Some(0));
    }
    drop(next);
}

/// Creates a terminal with this name. Returns both ends.
fn terminal(name: &str) -> [fs::File; 2] {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let slave = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    symlink(path, name).unwrap();
    [master.into(), slave]
}

#[test]
fn of_two_attaches_at_once_one_wins() {
    let scratch = Scratch::new();
    let node = format!("pty:{}", scratch.path("tty0"));
    let (_shares, from) = two_devices("exec:cat");
    for _ in 0..3 {
        let both = from.each_ref().map(|from| command(&["attach", from, "--as", &node]).spawn().unwrap());
        let mut both = Vec::from(both);
        wait_until("one is refused", || both.iter_mut().any(|child| child.try_wait().unwrap().is_some()));
        let lost = both.iter_mut().position(|child| child.try_wait().unwrap().is_some()).unwrap();
        let (lost, won) = (both.remove(lost), both.remove(0));
        assert_refused(&end(lost, "the loser"), &[&format!("process {} (attach ", won.id())]);
        wait_until("the link", || fs::read_link(scratch.path("tty0")).is_ok_and(|to| to.exists()));
        support::terminate(&won);
        assert_eq!(end(won, "the winner").code, Some(0));
    }
}

#[test]
fn a_side_port_and_several_appenders_share_a_file_by_rule() {
    let scratch = Scratch::new();
    let (_shares, [one, two]) = two_devices("pattern:rate=100");
    let path = scratch.path("log");
    let appended = format!("file:{path},append=true");
    let mut first = Service::start(&["attach", &one, "--as", &appended]);
    first.wait("attached");
    let mut second = Service::start(&["attach", &two, "--as", &appended]);
    second.wait("attached");
    assert_eq!([first.stop(), second.stop()], [Some(0); 2]);
    // A recording belongs to its process alone, and is not taken over.
    let port = format!("record=file:{path},frame=container");
    let mut first = Service::start(&["attach", &one, "--as", "null", "--via", "record", "--port", &port]);
    first.wait("attached");
    let process = format!("process {} (side port ", first.child.id());
    for more in [&[][..], &["--replace"]] {
        refused(&two, &format!("file:{path}"), more, &[&process, "end that process"]);
    }
    assert_eq!(first.stop(), Some(0));
}

#[test]
fn a_port_in_use_names_the_process() {
    let (share, address) = Service::share("pattern", &[]);
    let process = format!("process {} (`outboard share pattern ", share.child.id());
    // Another user's process cannot join.
    let other = User::new();
    other
        .says(&["share", "pattern", "--listen", &address])
        .refused(1, &[&address, &process, "choose another port"]);
    let metrics = ["run", "-", "--metrics", &address];
    let mut run = other.command(&metrics).stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut run.stdin.take().unwrap(), b"[[connect]]\nsource='pattern'\nsink='null'")
        .unwrap();
    end(run, "run").refused(1, &[&process]);
    let port = address.rsplit(':').next().unwrap();
    outboard(&["connect", "pattern:format=video", &format!("rfb:{port}")]).refused(1, &[&process]);
}
