//! `outboard run` as a service: reload without interrupted flows, health, metrics, and sockets from a service manager.

mod support;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{
    FRAME_LENGTH, PATIENCE, Scratch, Service, below_manager, command, outboard, outboard_fed,
    pseudo_terminal, terminate, wait_until,
};

/// Entry of a run file that shares a device.
fn share(device: &str, name: &str, listen: &str) -> String {
    format!("[[share]]\ndevice = '{device}'\nname = '{name}'\nlisten = '{listen}'\ninsecure = true\n")
}

fn attach(from: &str, to: &str) -> String {
    format!("[[attach]]\nfrom = '{from}'\nas = '{to}'\ninsecure = true\n")
}

fn reload(service: &Service) -> support::Ended {
    outboard(&["reload", "--process", &service.child.id().to_string(), "--json"])
}

/// Returns a port that is free for TCP and UDP.
fn free_port() -> u16 {
    loop {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = tcp.local_addr().unwrap();
        if UdpSocket::bind(at).is_ok() {
            return at.port();
        }
    }
}

/// Returns the sockets of one port, and their address.
fn sockets(host: &str) -> (SocketAddr, Vec<OwnedFd>) {
    loop {
        let tcp = TcpListener::bind((host, 0)).unwrap();
        let at = tcp.local_addr().unwrap();
        if let Ok(udp) = UdpSocket::bind(at) {
            return (at, vec![tcp.into(), udp.into()]);
        }
    }
}

fn get(address: &str, target: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_reload_interrupts_no_flow() {
    let scratch = Scratch::new();
    let (file, kept) = (scratch.path("run.toml"), scratch.path("kept"));
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let write = |text: &[String]| std::fs::write(&file, text.concat()).unwrap();
    const COUNT: u64 = 1500;
    let pattern = format!("pattern:count={COUNT},rate=250,size=8");
    let stays =
        [share(&pattern, "kept", &listen), attach(&format!("{listen}/kept"), &format!("file:{kept}"))];
    write(&[&stays[..], &[share("pattern:rate=5", "old", &listen)]].concat());
    let mut service = Service::start(&["run", &file, "--metrics", "0", "--stats"]);
    let metrics = service.wait("metrics")["address"].as_str().unwrap().to_string();
    service.wait("attached");
    // Another entry attaches to the device that the reload removes.
    let mut other = Service::start(&["attach", "--insecure", &format!("{listen}/old"), "--as", "null"]);
    other.wait("attached");

    // A file with an error changes nothing.
    write(&[&stays[..], &["[[share]]\ndevice = 'smoke:1'\n".into()]].concat());
    reload(&service).refused_with(1, "`smoke:1`");
    service.wait("warning");
    write(&[&stays[..], &[share("pattern:rate=5", "new", &listen)]].concat());
    assert_eq!(reload(&service).done().json(), serde_json::json!({"started": 1, "ended": 1, "unchanged": 2}));
    service.wait("reloaded");
    other.wait("device-gone");
    let mut third = Service::start(&["attach", "--insecure", &format!("{listen}/new"), "--as", "null"]);
    third.wait("attached");
    // A signal reloads it too.
    let pid = rustix::process::Pid::from_child(&service.child);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    assert_eq!(service.wait("reloaded")["unchanged"], 3);

    let health = outboard(&["health", "--process", &service.child.id().to_string(), "--json"]).done().json();
    assert_eq!(health["healthy"], true, "{health}");
    let mut text = String::new();
    let since = Instant::now();
    for name in [
        "outboard_flow_messages_total{device=\"kept\",peer=",
        "role=\"share\",direction=\"to_application\"}",
        "outboard_device_users{device=\"kept\"} 1\n",
        "outboard_link_up{",
        "outboard_flow_delay_seconds{",
        "process_resident_memory_bytes ",
    ] {
        // Statistics arrive every second.
        while !text.contains(name) {
            assert!(since.elapsed() < PATIENCE, "{name} is not in:\n{text}");
            text = get(&metrics, "/metrics");
        }
    }
    assert!(get(&metrics, "/health").starts_with("HTTP/1.1 200"));

    // The unchanged flow has lost nothing.
    service.wait("flow-ended");
    let since = Instant::now();
    while std::fs::metadata(&kept).unwrap().len() < COUNT * 8 {
        assert!(since.elapsed() < PATIENCE, "{} bytes", std::fs::metadata(&kept).unwrap().len());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(std::fs::metadata(&kept).unwrap().len(), COUNT * 8);
    assert!(!service.seen.iter().any(|event| event["event"] == "link-lost"), "{:?}", service.seen);
    drop((other, third));
    assert_eq!(service.stop(), Some(0));
}

#[test]
fn a_failed_entry_is_retried_and_the_others_run() {
    let scratch = Scratch::new();
    let (file, later) = (scratch.path("run.toml"), scratch.path("later"));
    let (here, there) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
    let text = [
        share(&format!("file:{later}"), "later", &here),
        share("pattern:rate=5", "now", &here),
        attach(&format!("{there}/pattern"), "null"),
    ];
    std::fs::write(&file, text.concat()).unwrap();
    let mut service = Service::start(&["run", &file]);
    let offered = service.wait("offered");
    assert_eq!(offered["name"], "now", "{offered}");
    // The unreachable host is reported a moment later.
    let since = Instant::now();
    loop {
        let ill = outboard(&["health", "--process", &service.child.id().to_string(), "--json"]);
        assert_eq!(ill.code, Some(1), "{:?}", ill.json());
        if ill.json()["processes"][0]["problems"].as_array().unwrap().len() == 2 {
            break;
        }
        assert!(since.elapsed() < PATIENCE, "{:?}", ill.json());
    }
    std::fs::write(&later, "here").unwrap();
    let _there = Service::start(&["share", "pattern:rate=5", "--listen", &there, "--insecure"]);
    let (mut offered, mut attached) = (false, false);
    while !(offered && attached) {
        match service.next() {
            event if event["event"] == "offered" => offered |= event["name"] == "later",
            event => attached |= event["event"] == "attached",
        }
    }
    outboard(&["health", "--process", &service.child.id().to_string()]).done();
    assert_eq!(service.stop(), Some(0));
}

#[test]
fn an_address_that_this_host_does_not_have_ends_no_service() {
    let scratch = Scratch::new();
    let file = scratch.path("run.toml");
    let here = format!("127.0.0.1:{}", free_port());
    let text = [share("pattern:rate=5", "away", "192.0.2.1"), share("pattern:rate=5", "here", &here)];
    std::fs::write(&file, text.concat()).unwrap();
    let mut service = Service::start(&["run", &file, "--metrics", "192.0.2.1:9845"]);
    assert_eq!(service.wait("offered")["name"], "here");
    let ill = outboard(&["health", "--process", &service.child.id().to_string(), "--json"]);
    let problems = ill.json()["processes"][0]["problems"].to_string();
    for says in ["listening on 192.0.2.1:7845", "serving metrics on 192.0.2.1:9845"] {
        assert!(problems.contains(says), "{problems}");
    }
    let mut attach = Service::start(&["attach", "--insecure", &format!("{here}/here"), "--as", "null"]);
    attach.wait("attached");
    assert_eq!(service.stop(), Some(0));
}

#[test]
fn a_service_manager_is_notified_and_its_sockets_are_used() {
    let scratch = Scratch::new();
    let (file, notify) = (scratch.path("run.toml"), scratch.path("notify"));
    let manager = UnixDatagram::bind(&notify).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = |what: &str| {
        let mut bytes = [0; 512];
        loop {
            let count = manager.recv(&mut bytes).unwrap_or_else(|_| panic!("{what} is not told"));
            let text = std::str::from_utf8(&bytes[..count]).unwrap();
            if text.lines().any(|line| line.starts_with(what)) {
                return;
            }
        }
    };
    let (at, sockets) = sockets("127.0.0.1");
    std::fs::write(&file, share("pattern:rate=5", "p", &at.to_string())).unwrap();
    let mut command = below_manager(&file);
    command.env("LISTEN_FDS", "2").env("NOTIFY_SOCKET", &notify).env("WATCHDOG_USEC", "300000");
    let mut service = Service::of(sys::process::start_with(&mut command, sockets).unwrap());
    assert_eq!(service.wait("listening")["address"], at.to_string());
    told("READY=1");
    told("WATCHDOG=1");
    let pid = rustix::process::Pid::from_child(&service.child);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    told("RELOADING=1");
    told("READY=1");
    let mut attach =
        Service::start(&["attach", "--insecure", &format!("udp://{at}/p"), "--as", "null", "--stats"]);
    attach.wait("attached");
    while attach.wait("stats")["stats"]["incoming"]["messages"] == 0 {}
    terminate(&service.child);
    told("STOPPING=1");
    assert_eq!(service.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_listener_that_the_socket_unit_does_not_have_is_refused() {
    let scratch = Scratch::new();
    let file = scratch.path("run.toml");
    let (bound, sockets) = sockets("0.0.0.0");
    let one = format!("127.0.0.1:{}", bound.port());
    let says = format!(
        "cannot listen on {one}: outboard.socket listens on {bound}: set its ListenStream= and ListenDatagram= to {one}"
    );
    let start =
        |sockets| sys::process::start_with(below_manager(&file).env("LISTEN_FDS", "2"), sockets).unwrap();
    std::fs::write(&file, share("pattern:rate=5", "p", &bound.port().to_string())).unwrap();
    let copies = sockets.iter().map(|socket| socket.try_clone().unwrap()).collect();
    let mut service = Service::of(start(copies));
    service.wait("listening");
    // The listener stays.
    std::fs::write(&file, share("pattern:rate=5", "p", &one)).unwrap();
    reload(&service).refused_with(1, &says);
    let mut attach = Service::start(&["attach", "--insecure", &format!("{one}/p"), "--as", "null"]);
    attach.wait("attached");
    drop(attach);
    assert_eq!(service.stop(), Some(0));
    // A client that waits would make the manager start the program again at once.
    let listener = sockets[0].try_clone().unwrap();
    let mut client = TcpStream::connect(("127.0.0.1", bound.port())).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    poll(&mut [PollFd::new(&listener, PollFlags::IN)], None).unwrap();
    let mut command = below_manager(&file);
    command.env("LISTEN_FDS", "2").stderr(Stdio::piped());
    support::end(sys::process::start_with(&mut command, sockets).unwrap(), "run").refused(2, &[&says]);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_first_connection_that_lasts_is_no_hang() {
    let scratch = Scratch::new();
    let (file, notify) = (scratch.path("run.toml"), scratch.path("notify"));
    let manager = UnixDatagram::bind(&notify).unwrap();
    manager.set_nonblocking(true).unwrap();
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let from = format!("tcp://{}/p", host.local_addr().unwrap());
    std::fs::write(&file, share("pattern:rate=5", "p", "127.0.0.1:0") + &attach(&from, "null")).unwrap();
    let mut command = below_manager(&file);
    command.env("NOTIFY_SOCKET", &notify).env("WATCHDOG_USEC", "300000");
    let service = Service::of(sys::process::start_with(&mut command, Vec::new()).unwrap());
    // The answer of the host never ends.
    let mut connection = host.accept().unwrap().0;
    connection.write_all(&FRAME_LENGTH).unwrap();
    std::thread::spawn(move || {
        while connection.write_all(&[0]).is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let mut signs = 0;
    wait_until("signs of life while the connection lasts", || {
        let mut bytes = [0; 512];
        while let Ok(count) = manager.recv(&mut bytes) {
            signs += usize::from(bytes[..count].starts_with(b"WATCHDOG=1"));
        }
        signs >= 3
    });
    let health = outboard(&["health", "--process", &service.child.id().to_string(), "--json"]).done().json();
    let waiting = serde_json::json!([format!("attach {from}: no answer yet")]);
    assert_eq!(health["processes"][0]["waiting"], waiting, "{health}");
    assert_eq!(service.stop(), Some(0));
}

#[test]
fn a_share_by_rule_ends_with_its_terminal() {
    let rule = "evdev:name=no such device*";
    let share = support::command(&["share", rule, "--listen", "127.0.0.1:0", "--insecure"]);
    // These tests may run below `nohup`, whose children ignore the signal.
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(share.get_program()).args(share.get_args());
    command.envs(share.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdout(Stdio::piped());
    let mut service = Service::start_as(command);
    assert_eq!(service.wait("waiting")["device"], rule);
    service.wait("listening");
    let pid = rustix::process::Pid::from_child(&service.child);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    wait_until("the end of the share", || service.child.try_wait().unwrap().is_some());
}

#[test]
fn check_reports_errors_and_starts_nothing() {
    let scratch = Scratch::new();
    let (file, record) = (scratch.path("run.toml"), scratch.path("record"));
    let text = format!(
        "[[share]]\ndevice = 'pattern'\ninsecure = true\nvia = 'record'\nport = 'record=file:{record},frame=container'\n"
    );
    std::fs::write(&file, &text).unwrap();
    outboard(&["run", "--check", &file]).done();
    assert!(!std::path::Path::new(&record).exists());
    std::fs::write(&file, format!("{text}[service]\nmetrics = 'x'\n")).unwrap();
    outboard(&["run", "--check", &file]).refused(2, &["[ADDRESS:]PORT"]);
    std::fs::write(&file, text.replace("record=file", "record=fil")).unwrap();
    outboard(&["run", "--check", &file]).refused(2, &["port `record=fil:"]);
    // The errors for which `run` refuses a file are found by the check.
    let refused = |text: &str, code: i32, says: &[&str]| {
        std::fs::write(&file, text).unwrap();
        outboard(&["run", "--check", &file]).refused(code, says);
        outboard(&["run", &file]).refused(code, says);
    };
    let twice = share("pattern", "p", "127.0.0.1:0") + &share("null", "p", "127.0.0.1:0");
    refused(&twice, 2, &["[[share]] number 2 (null): two devices are called `p`"]);
    // `run` waits for such an address.
    std::fs::write(&file, share("pattern", "p", "192.0.2.1")).unwrap();
    outboard(&["run", "--check", &file]).refused(1, &["listening on 192.0.2.1:7845: Cannot assign"]);
    refused(&share("pattern", "p", "78460"), 2, &["cannot listen on `78460`"]);
    std::fs::write(&file, b"# A door\n# Une entr\xe9e\n").unwrap();
    for words in [&["run", "--check", file.as_str()][..], &["run", &file]] {
        outboard(words).refused(2, &[&file, "line 2: the text is not UTF-8"]);
    }
    refused("[share]\ndevice = 'pattern'", 2, &["line 1", "write `[[share]]`, with two brackets"]);
    refused("[[share]]\ndevice = 'pattern'\nvia-bak = 'null'", 2, &["line 3", "did you mean `via_back`?"]);
    let port = free_port();
    std::fs::write(&file, share("pattern", "p", &port.to_string())).unwrap();
    outboard(&["run", "--check", &file]).done();
    let mut service = Service::start(&["run", &file]);
    let address = service.wait("listening")["address"].as_str().unwrap().to_string();
    assert!(address.ends_with(&format!(":{port}")) && address.starts_with(['[', '0']), "{address}");
    // RFC 6761: a name that no resolver knows. It may be known later, so a service manager starts the program again.
    let unknown = share("null", "p", "no-such-host.invalid");
    let says = ["[[share]] number 1 (null): listening on `no-such-host.invalid`: "];
    outboard_fed(&["run", "-"], unknown.as_bytes()).refused(1, &says);
    let keyless = share("null", "p", "127.0.0.1:0") + "key_file = '/nowhere/key'\n";
    refused(&keyless, 1, &["[[share]] number 1 (null): ", "/nowhere/key", "No such file"]);
    outboard(&["run", "/dev/zero"]).refused(2, &["/dev/zero: longer than"]);
    outboard(&["run", "/nowhere/run.toml"]).refused(1, &["reading /nowhere/run.toml: No such file"]);
    outboard(&["reload", "--process", "1"]).refused(1, &["no `outboard run`"]);
}

#[test]
fn an_unplugged_device_is_reported_before_anybody_uses_it() {
    let scratch = Scratch::new();
    let file = scratch.path("run.toml");
    // A terminal whose other end closes is a serial port that was unplugged.
    let (master, port) = pseudo_terminal();
    let rule = "[[share]]\ndevice = 'evdev:name=no such device*'\nlisten = '127.0.0.1:0'\ninsecure = true\n";
    std::fs::write(&file, share(&format!("serial:{port}"), "plc", "127.0.0.1:0") + rule).unwrap();
    let mut service = Service::start(&["run", &file]);
    service.wait("listening");
    let health = || {
        let told =
            outboard(&["health", "--process", &service.child.id().to_string(), "--json"]).done().json();
        told["processes"][0]["waiting"].clone()
    };
    let waits = "share evdev:name=no such device*: no such device is plugged in";
    assert_eq!(health(), serde_json::json!([waits]));
    drop(master);
    let gone = "share: plc is not plugged in";
    wait_until("the report", || health().as_array().unwrap().iter().any(|line| line == gone));
    assert_eq!(service.wait("device-gone")["name"], "plc");
}

#[test]
fn a_log_has_time_and_level() {
    let scratch = Scratch::new();
    let file = scratch.path("run.toml");
    let text = "[[connect]]\nsource = 'pattern:count=3,rate=0'\nsink = 'null'\n";
    std::fs::write(&file, text).unwrap();
    let log = outboard(&["run", &file, "--log", "json"]).done();
    let line: Value = serde_json::from_str(log.text().lines().last().unwrap()).unwrap();
    assert_eq!(
        (&line["level"], &line["event"], &line["messages"]),
        (&"info".into(), &"connected".into(), &3.into())
    );
    let time = line["time"].as_str().unwrap();
    assert!(time.len() == 24 && time.ends_with('Z'), "{time}");
    // Programs of a desktop inherit the variable of another stream.
    for is_journal in [true, false] {
        let path = scratch.path("log");
        let output = std::fs::File::create(&path).unwrap();
        let found = output.metadata().unwrap();
        let inode = if is_journal { found.ino() } else { found.ino() + 1 };
        let mut run = command(&["run", &file]);
        run.env("JOURNAL_STREAM", format!("{}:{inode}", found.dev())).stdout(output);
        support::end(run.spawn().unwrap(), "run").done();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!((text.starts_with("<6>"), text.contains("3 messages")), (is_journal, true), "{text}");
    }
}

#[test]
fn a_reader_that_stops_reading_stops_no_flow() {
    let scratch = Scratch::new();
    let file = scratch.path("run.toml");
    let at = format!("127.0.0.1:{}", free_port());
    std::fs::write(&file, share("pattern:count=100,rate=0", "p", &at)).unwrap();
    // The pipe is full from the start.
    let (_unread, mut log) = std::io::pipe().unwrap();
    fcntl_setpipe_size(&log, 4096).unwrap();
    log.write_all(&vec![b'\n'; fcntl_getpipe_size(&log).unwrap()]).unwrap();
    let mut sharer = command(&["run", &file, "--json", "--stats"]).stdout(log).spawn().unwrap();
    wait_until("the listener", || TcpStream::connect(&at).is_ok());
    let mut attach = Service::start(&["attach", "--insecure", &format!("{at}/p"), "--as", "null"]);
    attach.wait("flow-ended");
    terminate(&sharer);
    wait_until("the end", || sharer.try_wait().unwrap().is_some());
    assert_eq!(sharer.wait().unwrap().code(), Some(0));
}
