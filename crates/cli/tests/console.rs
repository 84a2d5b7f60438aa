//! The console of running processes, and `outboard top`, its client.

mod support;

use rustix::process::{Pid, Signal, getuid, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Instant;
use support::users::User;
use support::{
    PATIENCE, RUNTIME_DIRECTORY, Scratch, Service, command, end, outboard, wait_until, workers_of,
};

fn console(service: &Service) -> PathBuf {
    PathBuf::from(format!("{RUNTIME_DIRECTORY}/outboard/console-{}-0.sock", service.child.id()))
}

/// A request for another pipeline of the flow from `pattern`.
fn change_to(via: &str) -> String {
    format!("{{\"op\":\"change\",\"name\":\"pattern\",\"back\":false,\"edit\":{{\"via\":\"{via}\"}}}}\n")
}

/// Sends each line and returns the answers.
fn ask(service: &Service, lines: &[&str]) -> Vec<Value> {
    let mut stream = UnixStream::connect(console(service)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A refused client gets no answer.
    let _ = stream.write_all(lines.concat().as_bytes());
    let answers = BufReader::new(stream).lines().take(lines.len());
    answers.map_while(Result::ok).map(|line| serde_json::from_str(&line).unwrap()).collect()
}

#[test]
fn top_shows_both_ends_of_a_flow() {
    let (share, address) = Service::share("pattern:rate=250", &["--via", "null | tap"]);
    let mut attach = Service::start(&["attach", &format!("{address}/pattern"), "--as", "pattern", "--stats"]);
    // Both processes have statistics.
    attach.wait("stats");
    attach.wait("stats");
    let processes = [share.child.id(), attach.child.id()];
    let top = outboard(&["top", "--once", "--json"]).done().json();
    let mine: Vec<&Value> = processes
        .iter()
        .map(|id| top["flows"].as_array().unwrap().iter().find(|flow| flow["process"] == *id).unwrap())
        .collect();
    for (flow, role) in mine.iter().zip(["share", "attach"]) {
        assert_eq!(flow["role"], role);
        assert_eq!(flow["device"], "pattern");
        assert_eq!(flow["direction"], "device -> application");
        assert!(flow["pipeline"].as_str().unwrap().starts_with("null/1"), "{flow}");
        assert_eq!(flow["stages"][1]["name"], "tap");
        assert_eq!(flow["drops"], serde_json::json!({}));
    }
    assert!(mine[1]["delay_p99_ms"].is_f64() && mine[1]["messages_per_second"].is_f64(), "{}", mine[1]);
    let text = outboard(&["top", "--once"]).done();
    assert!(text.text().contains("pattern -> pattern") && text.text().contains("    tap"), "{}", text.text());
    assert_eq!(share.stop(), Some(0));
    drop(attach);
}

/// systemd removes the user's runtime directory after a logout, and makes a new one at the next login. A program in tmux
/// runs on.
#[test]
fn processes_that_outlast_a_logout_are_found() {
    if Path::new(&format!("/run/user/{}", getuid())).exists() {
        return testkit::skip::here("this user is logged in");
    }
    let user = User::new();
    let (share, address) = user.shares("pattern:rate=250", &["--name", "one"]);
    let mut attach = user.serves(&["attach", &format!("{address}/one"), "--as", "pattern"]);
    attach.wait("attached");
    let runtime = user.0.path("run");
    fs::remove_dir_all(&runtime).unwrap();
    let port = address.rsplit(':').next().unwrap();
    let names = [&share, &attach].map(|service| format!("console-{}-0", service.child.id()));
    let names = [&names[0], &names[1], port];
    let sockets = names.map(|name| PathBuf::from(user.0.path(&format!("state/outboard/run/{name}.sock"))));
    wait_until("the sockets are back", || sockets.iter().all(|socket| socket.exists()));

    fs::create_dir(&runtime).unwrap();
    let top = user.says(&["top", "--once", "--json"]).done().json();
    for process in [share.child.id(), attach.child.id()] {
        assert!(top["flows"].as_array().unwrap().iter().any(|flow| flow["process"] == process), "{top}");
    }
    let mut second = user.serves(&["share", "pattern", "--name", "two", "--listen", &address]);
    assert_eq!(second.wait("joined")["process"], share.child.id());
    for service in [second, attach, share] {
        assert_eq!(service.stop(), Some(0));
    }
    assert!(!sockets.iter().any(|socket| socket.exists()));
}

/// A process that connects to a silent host still answers `top`, and can be stopped.
#[test]
fn a_process_that_waits_for_a_silent_host_answers() {
    // A separate runtime directory, so that no other test sends requests to it.
    let elsewhere = Scratch::new();
    let mut share = command(&["share", "pattern", "--name", "frozen", "--listen", "127.0.0.1:0"]);
    share.env("XDG_RUNTIME_DIR", elsewhere.path(""));
    let mut share = Service::start_as(share);
    let address = share.wait("listening")["address"].as_str().unwrap().to_string();
    let mut attach = Service::start(&["attach", &format!("tcp://{address}/frozen"), "--as", "null"]);
    attach.wait("attached");
    // Its kernel still accepts connections, but the process does not answer.
    let freeze = |what| kill_process(Pid::from_child(&share.child), what).unwrap();
    freeze(Signal::STOP);
    attach.wait("link-lost");
    for _ in 0..3 {
        let top = outboard(&["top", "--once", "--json"]).done().json();
        let hosts = top["hosts"].as_array().unwrap();
        let host = hosts.iter().find(|host| host["process"] == attach.child.id()).unwrap();
        assert!(host["silent_seconds"].is_f64(), "{host}");
    }
    assert_eq!(attach.stop(), Some(0));
    freeze(Signal::CONT);
    assert_eq!(share.stop(), Some(0));
}

/// `top` and `health` report a stopped process, and still show the others.
#[test]
fn a_process_that_hangs_is_reported_and_hides_no_other() {
    // A separate runtime directory, so that no other test sends requests to them.
    let scratch = Scratch::new();
    let own = |words: &[&str]| {
        let mut command = command(words);
        command.env("XDG_RUNTIME_DIR", scratch.path(""));
        command
    };
    let share =
        |name| Service::start_as(own(&["share", "pattern", "--name", name, "--listen", "127.0.0.1:0"]));
    let [mut frozen, mut other] = ["frozen", "other"].map(share);
    frozen.wait("listening");
    let address = other.wait("listening")["address"].as_str().unwrap().to_string();
    let mut attach = Service::start_as(own(&["attach", &format!("tcp://{address}/other"), "--as", "null"]));
    attach.wait("attached");
    let freeze = |what| kill_process(Pid::from_child(&frozen.child), what).unwrap();
    freeze(Signal::STOP);
    let ask = |words: &[&str]| end(own(words).spawn().unwrap(), &words.join(" "));
    let top = ask(&["top", "--once", "--json"]).done().json();
    assert_eq!(top["silent"], serde_json::json!([frozen.child.id()]));
    assert!(top["flows"].as_array().unwrap().iter().any(|flow| flow["process"] == other.child.id()), "{top}");
    let health = ask(&["health", "--json"]);
    let processes = health.json()["processes"].as_array().unwrap().clone();
    let hangs = |process: &&Value| process["problems"].to_string().contains("no answer for");
    let ill: Vec<&Value> = processes.iter().filter(hangs).map(|process| &process["process"]).collect();
    assert_eq!((health.code, ill), (Some(1), vec![&Value::from(frozen.child.id())]));
    let of_frozen = format!("console-{}-0.sock: no answer for", frozen.child.id());
    ask(&["change", "frozen", "--via", "null"]).refused_with(1, &of_frozen);
    ask(&["change", "other", "--via", "null"]).done();
    freeze(Signal::CONT);
    ask(&["health"]).done();
    for service in [attach, other, frozen] {
        assert_eq!(service.stop(), Some(0));
    }
}

/// A process that hangs for long has a full queue of clients, most of which have gone.
#[test]
fn a_process_with_a_full_queue_is_reported() {
    let scratch = Scratch::new();
    let directory = scratch.path("outboard");
    fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
    let console = format!("{directory}/console-1-0.sock");
    let listener = UnixListener::bind(&console).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _queued = UnixStream::connect(&console).unwrap();
    let ask = |words: &[&str]| {
        let mut command = command(words);
        command.env("XDG_RUNTIME_DIR", scratch.path(""));
        end(command.spawn().unwrap(), &words.join(" "))
    };
    let top = ask(&["top", "--once", "--json"]).done().json();
    assert_eq!(top["silent"], serde_json::json!([1]));
    let health = ask(&["health", "--json"]);
    assert_eq!((health.code, &health.json()["processes"][0]["process"]), (Some(1), &Value::from(1)));
}

/// Without keys, any host may take over the address of a lost host: the node stays.
#[test]
fn an_invalid_answer_from_the_address_of_a_lost_host_ends_nothing() {
    let (mut share, address) = Service::share("pattern", &["--insecure"]);
    let mut attach =
        Service::start(&["attach", &format!("tcp://{address}/pattern"), "--as", "null", "--insecure"]);
    attach.wait("attached");
    share.child.kill().unwrap();
    share.child.wait().unwrap();
    attach.wait("link-lost");
    let stranger = TcpListener::bind(&address).unwrap();
    for _ in 0..3 {
        // A frame of an unknown kind, as the answer to every request.
        let (mut asked, _) = stranger.accept().unwrap();
        asked.write_all(&[0; 16]).unwrap();
        let _ = asked.read_to_end(&mut Vec::new());
    }
    assert_eq!(attach.stop(), Some(0));
}

#[test]
fn invalid_requests_to_a_console_do_not_affect_its_flows() {
    let (share, _) = Service::share("pattern", &[]);
    let answers = ask(
        &share,
        &["{\"op\":\"stats\"}\n", "GET /\n", "{\"op\":\"stats\",\"x\":1}\n", "{\"op\":\"stats\"}\n"],
    );
    assert_eq!(answers[0]["answer"], "status");
    assert_eq!(answers[0]["process"], share.child.id());
    assert!(answers[1]["problem"].as_str().unwrap().contains("invalid request"), "{}", answers[1]);
    assert_eq!(answers[2]["answer"], "refused");
    assert_eq!(answers[3], answers[0]);
    let mut endless = UnixStream::connect(console(&share)).unwrap();
    endless.set_write_timeout(Some(PATIENCE)).unwrap();
    // The console closes the connection after too many bytes.
    assert!(endless.write_all(&[b'a'; 4 << 20]).is_err());
    let silent: Vec<_> = (0..100).map(|_| UnixStream::connect(console(&share)).unwrap()).collect();
    drop(silent);
    // An early client still finds all places taken.
    let since = Instant::now();
    while ask(&share, &["{\"op\":\"stats\"}\n"]).is_empty() {
        assert!(since.elapsed() < PATIENCE, "nobody is let in any more");
    }
    let socket = console(&share);
    assert_eq!(share.stop(), Some(0));
    assert!(!socket.exists());
}

#[test]
fn a_change_is_answered_when_its_session_ends() {
    let (mut share, address) = Service::share("pattern:rate=100", &["--limit", "keep=1s"]);
    let mut attach = Service::start(&["attach", &format!("{address}/pattern"), "--as", "null"]);
    attach.wait("attached");
    attach.child.kill().unwrap();
    let answers = ask(&share, &[&change_to("tap")]);
    assert!(answers[0]["problem"].as_str().unwrap().contains("closed"), "{}", answers[0]);
    share.wait("peer-left");
    assert_eq!(share.stop(), Some(0));
}

/// A host that is silent delays the others by nothing, and keeps its pipeline.
#[test]
fn a_change_at_the_device_is_for_all_hosts_that_answer() {
    let (mut share, address) = Service::share("pattern:rate=100", &["--insecure", "--hub", "copy"]);
    let from = format!("{address}/pattern");
    let attach = |_| {
        let mut attach = Service::start(&["attach", &from, "--as", "null", "--insecure"]);
        attach.wait("attached");
        attach
    };
    let attached: Vec<Service> = (0..3).map(attach).collect();
    let changes = |share: &Service, via: &str, expected: [&str; 3]| {
        let answers = ask(share, &[&change_to(via)]);
        assert!(answers[0]["pipeline"].as_str().is_some_and(|text| text.starts_with(via)), "{answers:?}");
        wait_until("the pipelines of all hosts", || {
            let status = ask(share, &["{\"op\":\"stats\"}\n"])[0].take();
            let pair = |driver: &Value| {
                let pipeline = driver["stats"]["outgoing"]["pipeline"].as_str().unwrap_or_default();
                pipeline.split('/').next().unwrap_or_default().to_string()
            };
            let mut pairs: Vec<String> = status["drivers"].as_array().unwrap().iter().map(pair).collect();
            pairs.sort();
            pairs == expected
        });
    };
    changes(&share, "tap", ["tap"; 3]);
    for process in workers_of(&attached[0].child).into_iter().chain([attached[0].child.id()]) {
        kill_process(Pid::from_raw(process.cast_signed()).unwrap(), Signal::STOP).unwrap();
    }
    share.wait("link-lost");
    changes(&share, "null", ["null", "null", "tap"]);
    let answers = ask(&share, &[&change_to("compres")]);
    let problem = answers[0]["problem"].as_str().unwrap();
    assert!(problem.contains("compress") && !problem.contains("127.0.0.1"), "{problem}");
}

/// The first proposal of a flow may be `synchronize` alone, which the device's own pipeline completes.
#[test]
fn a_change_to_a_pair_that_joins_flows_is_the_whole_pipeline() {
    let (share, address) = Service::share("pattern:rate=100", &["--via", "null | tap"]);
    let mut attach = Service::start(&["attach", &format!("{address}/pattern"), "--as", "null"]);
    attach.wait("attached");
    for service in [&attach, &share] {
        for (via, starts) in [("synchronize", "synchronize/1"), ("tap", "tap/1")] {
            let answers = ask(service, &[&change_to(via)]);
            let pipeline = answers[0]["pipeline"].as_str().unwrap_or_else(|| panic!("{}", answers[0]));
            assert!(pipeline.starts_with(starts) && !pipeline.contains('|'), "{pipeline}");
        }
    }
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
}

#[test]
fn the_console_of_a_killed_process_is_removed() {
    let (mut share, _) = Service::share("pattern", &[]);
    let socket = console(&share);
    share.child.kill().unwrap();
    share.child.wait().unwrap();
    assert!(socket.exists());
    outboard(&["top", "--once"]).done();
    assert!(!socket.exists());
}
