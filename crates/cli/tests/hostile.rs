//! Unknown hosts attack the listener of the real program; a flow beside them must not notice.

mod support;

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::time::Instant;
use support::{FRAME_LENGTH, PATIENCE, Service, noise};
use wire::control::PublicKey;
use wire::preamble::SessionToken;
use wire::{Control, Preamble};

/// Memory that all unknown hosts together may cost: a worker's thread, some buffers, and the allocator's reserve.
const MEMORY_MAX_BYTES: u64 = 64 << 20;
const SILENT: usize = 500;

/// A flow between two processes, with the statistics of its sink.
struct Flow {
    share: Service,
    attach: Service,
    address: String,
}

impl Flow {
    fn start() -> Flow {
        let (share, address) = Service::share("pattern:rate=250", &["--insecure"]);
        let mut attach = Service::start(&[
            "attach",
            &format!("{address}/pattern"),
            "--as",
            "pattern",
            "--stats",
            "--insecure",
        ]);
        attach.wait("attached");
        let mut flow = Flow { share, attach, address };
        flow.check();
        flow
    }

    /// Waits for new messages; checks that all have arrived once and in order.
    fn check(&mut self) -> u64 {
        self.attach.pending();
        let first = self.attach.wait("stats")["stats"]["incoming"]["messages"].as_u64().unwrap();
        let stats = loop {
            let stats = self.attach.wait("stats")["stats"].take();
            if stats["incoming"]["messages"].as_u64() > Some(first) {
                break stats;
            }
        };
        for figure in stats["partner"].as_array().unwrap() {
            if let Some("missing" | "repeated" | "wrong") = figure[0].as_str() {
                assert_eq!(figure[1], 0.0, "{stats}");
            }
        }
        assert_eq!(stats["linked"], true);
        assert!(self.attach.seen.iter().all(|event| event["event"] != "link-lost"), "{:?}", self.attach.seen);
        stats["incoming"]["messages"].as_u64().unwrap()
    }

    fn stranger(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// An unknown host after a complete greeting.
    fn guest(&self) -> TcpStream {
        let mut stream = self.stranger();
        stream.write_all(&hello()).unwrap();
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        let mut frame = vec![0; u32::from_le_bytes(length) as usize];
        stream.read_exact(&mut frame).unwrap();
        assert!(matches!(Control::parse(&frame), Ok(Control::Welcome { .. })), "{frame:?}");
        stream
    }

    /// Sends bytes as an unknown host; returns the answer until the connection ends.
    fn answer(&self, said: &[u8]) -> Vec<u8> {
        let mut stream = self.stranger();
        // The listener may close the connection before it has read everything.
        let _ = stream.write_all(said);
        let mut told = Vec::new();
        let _ = stream.read_to_end(&mut told);
        told
    }

    /// Resident memory of the device host, bytes (`proc(5)`).
    fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.share.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Processor time of the device host's broker, in kernel ticks of 10 ms (`proc(5)`).
    fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.share.child.id())).unwrap();
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
        fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }

    #[track_caller]
    fn refused(&mut self, why: &str) {
        let event = self.share.wait("refused");
        assert!(event["reason"].as_str().unwrap().contains(why), "not `{why}`: {event}");
    }
}

/// Shuts a connection down when dropped, even if another descriptor holds it.
struct HangsUp(TcpStream);

impl Drop for HangsUp {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Parses the messages of an answer.
fn messages(mut told: &[u8]) -> Vec<Control> {
    let mut all = Vec::new();
    while let Ok(Some((message, bytes))) = Control::parse_frame(told) {
        all.push(message);
        told = &told[bytes..];
    }
    all
}

fn hello() -> Vec<u8> {
    let hello =
        Control::Hello { host: "stranger".into(), resume: None, received: 0, attempt: 1, features: vec![] };
    [Preamble::Control.emit().to_vec(), hello.emit()].concat()
}

/// A request for the device of the flow.
fn open(driver: u32, via: Option<&str>) -> Vec<u8> {
    let open = Control::Open {
        driver,
        name: "pattern".into(),
        application: String::new(),
        transport: "tcp".into(),
        via: via.map(String::from),
        via_back: None,
        key: PublicKey([9; 32]),
    };
    open.emit()
}

/// Reads until this many requests are refused; returns their drivers and the reasons.
fn refusals(stream: &mut TcpStream, count: usize) -> Vec<(u32, String)> {
    let (mut told, mut piece) = (Vec::new(), [0; 4096]);
    let since = Instant::now();
    loop {
        let all = messages(&told);
        assert!(all.iter().all(|message| !matches!(message, Control::Opened { .. })), "{all:?}");
        let refused = all.into_iter().filter_map(|message| match message {
            Control::Refused { driver, reason } => Some((driver, reason)),
            _ => None,
        });
        let refused: Vec<_> = refused.collect();
        if refused.len() >= count {
            return refused;
        }
        assert!(since.elapsed() < PATIENCE, "{} of {count}: {refused:?}", refused.len());
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "it hung up: {refused:?}");
        told.extend_from_slice(&piece[..count]);
    }
}

#[test]
fn unknown_hosts_are_refused_without_effect_on_a_flow() {
    let mut flow = Flow::start();
    let before = flow.memory();

    let told = flow.answer(b"GET / HTTP/1.1\r\nHost: outboard.example\r\n\r\n");
    assert!(matches!(messages(&told)[..], [Control::Goodbye { .. }]), "{told:?}");
    flow.refused("");

    let mut version = Preamble::Control.emit();
    version[4] ^= 0x7f;
    let told = flow.answer(&version);
    let [Control::Goodbye { reason }] = &messages(&told)[..] else { panic!("{told:?}") };
    assert!(reason.contains("version"), "{reason}");
    flow.refused("version");

    // A frame of 4 GiB, as the first one, and after a valid greeting.
    let told = flow.answer(&[&Preamble::Control.emit()[..], &u32::MAX.to_le_bytes()].concat());
    assert!(matches!(messages(&told)[..], [Control::Goodbye { .. }]), "{told:?}");
    flow.refused("4294967295");
    let mut guest = flow.guest();
    guest.write_all(&u32::MAX.to_le_bytes()).unwrap();
    guest.read_to_end(&mut Vec::new()).expect("the connection is closed, not kept");
    // A frame of a length that is right only in a session: none of it is read.
    flow.answer(&[&Preamble::Control.emit()[..], &FRAME_LENGTH].concat());
    flow.refused("1048576");

    // Data for an unknown session, with a guessed token.
    let data = Preamble::Data { session: SessionToken([7; 16]), driver: 0 };
    flow.answer(&[&data.emit()[..], &noise(100_000)].concat());
    flow.refused("no such session");

    // Half a preamble, half a message, then silence: dropped after the timeout.
    let half = flow.answer(&Preamble::Control.emit()[..9]);
    assert!(matches!(messages(&half)[..], [Control::Goodbye { .. }]), "{half:?}");
    flow.refused("in time");
    let hello = hello();
    flow.answer(&hello[..hello.len() - 3]);
    flow.refused("in time");

    // Random bytes of all lengths, over TCP and UDP.
    let noise = noise(400_000);
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    for length in (0..400).map(|step| step * step) {
        let mut stream = flow.stranger();
        let _ = stream.write_all(&noise[..length]);
        let _ = datagrams.send_to(&noise[..length.min(60_000)], &flow.address);
        let _ = datagrams
            .send_to(&Preamble::Data { session: SessionToken([9; 16]), driver: 1 }.emit(), &flow.address);
    }
    flow.check();
    assert!(flow.memory() < before + MEMORY_MAX_BYTES, "{before} bytes before, {} now", flow.memory());
}

#[test]
fn five_hundred_silent_connections_disturb_no_flow() {
    let mut flow = Flow::start();
    let before = flow.memory();
    let mut silent: Vec<_> = (0..SILENT).map(|_| flow.stranger()).collect();
    let arrived = flow.check();
    // Each connection gets a reason: the earliest exceed the limit, the others time out.
    let reasons = silent.iter_mut().map(|stream| {
        let mut told = Vec::new();
        stream.read_to_end(&mut told).unwrap();
        match &messages(&told)[..] {
            [Control::Goodbye { reason }] => reason.clone(),
            others => panic!("{others:?}"),
        }
    });
    let too_many = reasons.filter(|reason| reason.contains("too many")).count();
    assert!(too_many > 0, "there is room for fewer");
    // The log names some of them, and then their number.
    let is_summary =
        |warning: Value| warning["problem"].to_string().contains("more connections were refused");
    while !is_summary(flow.share.wait("warning")) {}
    let named = flow.share.seen.iter().filter(|event| event["event"] == "refused").count();
    assert!((1..SILENT / 2).contains(&named), "{named}");
    assert!(flow.check() > arrived);
    assert!(flow.memory() < before + MEMORY_MAX_BYTES, "{before} bytes before, {} now", flow.memory());
    // A host that sends a greeting still finds room.
    flow.guest();
    assert_eq!(flow.share.stop(), Some(0));
}

#[test]
fn an_endless_sender_does_not_starve_others() {
    let mut flow = Flow::start();
    let ping = Control::Ping { id: 1, sent: 1, received: 0 }.emit().repeat(10_000);
    // An unknown host is refused, because a greeting must come first.
    let mut said = Preamble::Control.emit().to_vec();
    said.extend_from_slice(&ping);
    flow.answer(&said);
    flow.refused("before `Hello`");
    // A peer may send at any rate, because the broker still serves the others.
    let mut talker = flow.guest();
    let mut listener = talker.try_clone().unwrap();
    std::thread::scope(|scope| {
        let _ends = HangsUp(talker.try_clone().unwrap());
        scope.spawn(|| while talker.write_all(&ping).is_ok() {});
        scope.spawn(|| while listener.read(&mut [0; 1 << 16]).is_ok_and(|count| count > 0) {});
        (0..5).for_each(|_| drop(flow.guest()));
    });
    flow.check();
}

#[test]
fn a_peer_can_name_no_path_and_no_command() {
    let flow = Flow::start();
    let mut stream = flow.guest();
    // Every option that the tables mark as local is refused.
    let local = modules::registry::pairs().iter().flat_map(|pair| {
        let options = pair.options().iter().filter(|option| option.scope == contract::Scope::Local);
        options.map(|option| format!("{}({}=x)", pair.name(), option.name))
    });
    let mut pipelines: Vec<String> = local.collect();
    assert!(pipelines.contains(&"exec(source=x)".into()), "{pipelines:?}");
    pipelines.extend(["@pipe null", "null(path=/etc/passwd)"].map(String::from));
    for pipeline in &pipelines {
        let _ = stream.write_all(&open(0, Some(pipeline)));
    }
    assert_eq!(refusals(&mut stream, pipelines.len()).len(), pipelines.len());
}

/// As many requests as one session may have devices open wait for the user of the device. One more has no place to wait.
#[test]
fn each_request_for_a_device_in_use_is_answered() {
    const DRIVERS_MAX: u32 = 64;
    let flow = Flow::start();
    let mut stream = flow.guest();
    let requests = (0..=DRIVERS_MAX).map(|driver| open(driver, None)).collect::<Vec<_>>();
    stream.write_all(&requests.concat()).unwrap();
    let refused = refusals(&mut stream, requests.len());
    let (driver, reason) = &refused[0];
    assert_eq!(*driver, DRIVERS_MAX, "{refused:?}");
    assert!(reason.contains(&format!("--limit drivers={DRIVERS_MAX}")), "{reason}");
    let is_later = |(_, reason): &(u32, String)| reason.contains("is in use by another peer");
    assert!(refused[1..].iter().all(is_later), "{refused:?}");
}

#[test]
fn incomplete_and_unknown_messages_cost_no_processor_time() {
    let mut flow = Flow::start();
    let mut half = flow.stranger();
    half.write_all(&Preamble::Control.emit()).unwrap();
    let mut guest = flow.guest();
    guest.write_all(&u32::MAX.to_le_bytes()).unwrap();
    guest.read_to_end(&mut Vec::new()).unwrap();
    let before = flow.ticks();
    flow.check();
    flow.check();
    // This takes two seconds; a busy loop would use all of them.
    assert!(flow.ticks() < before + 40, "{} ticks", flow.ticks() - before);
}
