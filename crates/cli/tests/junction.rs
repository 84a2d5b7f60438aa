//! One device with several hosts, several devices with one application, and side ports, with the real program.

mod support;

use netsim::Params;
use netsim::relay::Relay;
use serde_json::Value;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use support::{PATIENCE, Scratch, Service, outboard, pseudo_terminal};
use wire::Container;

/// Reads `pattern` messages from a file of containers. Returns the device and the number of each.
fn numbers(path: &str) -> Vec<(usize, u64)> {
    let bytes = std::fs::read(path).unwrap();
    let mut rest = bytes.as_slice();
    let mut numbers = Vec::new();
    while let Ok(container) = Container::parse(rest, 1 << 20) {
        let (whole, behind) = rest.split_at(Container::BYTES + container.length as usize);
        let number = whole[Container::BYTES..][..8].try_into().unwrap();
        numbers.push((container.length as usize, u64::from_le_bytes(number)));
        rest = behind;
    }
    assert!(rest.is_empty(), "a container is cut short");
    numbers
}

/// Checks that the messages from the first received one to the last are complete and in order.
fn check_consecutive(numbers: &[u64], count: u64) {
    let first = *numbers.first().expect("something came");
    assert!(numbers.iter().copied().eq(first..count), "from {first}: {} came", numbers.len());
}

fn one_device_to_four_hosts(more: &[&str]) {
    // The last host joins before the end, on a busy machine too.
    const COUNT: u64 = 1500;
    let scratch = Scratch::new();
    let (mut share, address) =
        Service::share(&format!("pattern:rate=200,size=64,count={COUNT}"), &[&["--stats"], more].concat());
    let from = format!("{address}/pattern");
    let paths: Vec<String> = (0..4).map(|number| scratch.path(&number.to_string())).collect();
    let mut attached: Vec<Service> = paths
        .iter()
        .map(|path| Service::start(&["attach", &from, "--as", &format!("file:{path},frame=container")]))
        .collect();
    attached.iter_mut().for_each(|attach| drop(attach.wait("attached")));
    // Kill one host: the others lose nothing.
    share.wait("hub");
    drop(attached.remove(1));
    for (number, attach) in attached.iter_mut().enumerate() {
        attach.wait("flow-ended");
        assert_eq!(attach.child.wait().unwrap().code(), Some(0), "host {number}");
    }
    for path in [0, 2, 3].map(|number| &paths[number]) {
        let came: Vec<u64> = numbers(path).into_iter().map(|(_, number)| number).collect();
        check_consecutive(&came, COUNT);
    }
    assert_eq!(share.stop(), Some(0));
}

#[test]
fn one_device_is_copied_to_four_hosts_and_one_is_killed() {
    one_device_to_four_hosts(&["--hub", "copy,queue=256"]);
}

#[test]
fn one_device_is_divided_among_four_hosts_by_its_pipeline() {
    one_device_to_four_hosts(&["--via", "multiplex(all, ways=4, join=false) | compress"]);
}

#[test]
fn invalid_hub_policies_are_refused() {
    for (words, says) in [
        (vec!["--hub", "everyone"], "is no policy"),
        (vec!["--hub", "copy,ways=0"], "ways"),
        (vec!["--via", "compress | multiplex(ways=3)"], "only as the first pair"),
    ] {
        outboard(&[&["share", "pattern", "--listen", "127.0.0.1:0"], &words[..]].concat())
            .refused(2, &[says]);
    }
    let (_share, address) = Service::share("pattern:rate=50", &["--hub", "copy,ways=1"]);
    let from = format!("{address}/pattern");
    let mut first = Service::start(&["attach", &from, "--as", "null"]);
    first.wait("attached");
    outboard(&["attach", &from, "--as", "null"]).refused_with(1, "in use by your own host");
}

/// A framebuffer of 64 by 16 pixels as a file of an X server.
struct Screen(String);

impl Screen {
    const HEADER_BYTES: usize = 100;

    fn new(path: String) -> Screen {
        let fields = [
            100, 7, 2, 24, 64, 16, 0, 0, 32, 0, 32, 32, 256, 5, 0xff_0000, 0xff00, 0xff, 8, 256, 0, 64, 16,
            0, 0, 0,
        ];
        let header: Vec<u8> = fields.iter().flat_map(|field: &u32| field.to_be_bytes()).collect();
        std::fs::write(&path, [header, vec![0; 64 * 16 * 4]].concat()).unwrap();
        Screen(path)
    }

    fn draw(&self, colour: u8) {
        let file = std::fs::OpenOptions::new().write(true).open(&self.0).unwrap();
        file.write_all_at(&[colour; 64 * 16 * 4], Self::HEADER_BYTES as u64).unwrap();
    }

    #[track_caller]
    fn shows(&self, colour: u8) {
        let begun = Instant::now();
        let channels =
            |bytes: &[u8]| bytes.chunks(4).flat_map(|pixel| &pixel[..3]).all(|&channel| channel == colour);
        while !channels(&std::fs::read(&self.0).unwrap()[Self::HEADER_BYTES..]) {
            assert!(begun.elapsed() < PATIENCE, "{} does not show {colour}", self.0);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn one_host_uses_a_device_several_times_with_pipelines_of_its_own() {
    let scratch = Scratch::new();
    let [source, one, two] = ["source", "one", "two"].map(|name| Screen::new(scratch.path(name)));
    let (share, address) = Service::share(&format!("fb:{}", source.0), &["--name", "screen"]);
    let attach = |screen: &Screen, via: &str| {
        let node = format!("fb:{}", screen.0);
        let mut attach =
            Service::start(&["attach", &format!("{address}/screen"), "--as", &node, "--via", via]);
        attach.wait("attached");
        attach
    };
    source.draw(10);
    let first = attach(&one, "compress");
    one.shows(10);
    let second = attach(&two, "latest");
    two.shows(10);
    source.draw(20);
    one.shows(20);
    two.shows(20);
    assert_eq!(first.stop(), Some(0));
    source.draw(30);
    two.shows(30);
    let again = attach(&one, "latest");
    one.shows(30);
    assert_eq!((again.stop(), second.stop()), (Some(0), Some(0)));
    let alone = attach(&one, "compress");
    source.draw(40);
    one.shows(40);
    assert_eq!((alone.stop(), share.stop()), (Some(0), Some(0)));
}

/// The killed process says no goodbye, and its session is kept for its return.
#[test]
fn a_restarted_owner_writes_to_a_device_with_several_hosts_again() {
    let scratch = Scratch::new();
    let heard = scratch.path("heard");
    let (_share, address) =
        Service::share(&format!("exec:cat > {heard}"), &["--name", "printer", "--hub", "copy"]);
    let from = format!("{address}/printer");
    let mut killed = Service::start(&["attach", &from, "--as", "null"]);
    killed.wait("attached");
    drop(killed);
    let mut again = Service::start(&["attach", &from, "--as", "exec:echo hello; exec cat"]);
    again.wait("attached");
    let begun = Instant::now();
    while std::fs::read(&heard).unwrap() != b"hello\n" {
        assert!(begun.elapsed() < PATIENCE, "the device hears nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The answers of a disk belong to one application: another one would wait for its own for ever.
#[test]
fn a_disk_has_one_use_at_a_time() {
    let scratch = Scratch::new();
    let disk = scratch.path("disk");
    std::fs::write(&disk, [1; 1 << 16]).unwrap();
    let disk = format!("block:{disk}");
    outboard(&["share", &disk, "--hub", "copy", "--listen", "127.0.0.1:0"])
        .refused(2, &["a disk serves one host at a time"]);
    let (share, address) = Service::share(&disk, &["--name", "disk"]);
    let from = format!("{address}/disk");
    let attach =
        |name: &str| ["attach", &from, "--as", &format!("nbd:{}", scratch.path(name))].map(String::from);
    let mut first = Service::start(&attach("one").each_ref().map(String::as_str));
    first.wait("attached");
    outboard(&attach("two").each_ref().map(String::as_str)).refused_with(1, "in use by your own host");
    assert_eq!((first.stop(), share.stop()), (Some(0), Some(0)));
}

/// The second use would need a hub, which handles the messages of the host in the broker.
#[test]
fn a_serial_port_has_one_use_where_a_sandbox_is_required() {
    let (_board, port) = pseudo_terminal();
    let (_share, address) =
        Service::share(&format!("serial:{port}"), &["--name", "port", "--require-sandbox"]);
    let from = format!("{address}/port");
    let mut first = Service::start(&["attach", &from, "--as", "null"]);
    first.wait("attached");
    outboard(&["attach", &from, "--as", "null"]).refused_with(1, "in use by your own host");
}

#[test]
fn a_device_is_free_again_although_the_goodbye_of_its_user_is_late() {
    let (_share, address) = Service::share("pattern:rate=50", &[]);
    let far = Params { delay_ns: 200_000_000, ..Params::default() };
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let relay = Relay::start(any, address.parse().unwrap(), far, 1).unwrap();
    let mut first = Service::start(&["attach", &format!("{}/pattern", relay.address()), "--as", "null"]);
    first.wait("attached");
    assert_eq!(first.stop(), Some(0));
    let mut second = Service::start(&["attach", &format!("{address}/pattern"), "--as", "null"]);
    second.wait("attached");
}

#[test]
fn two_devices_are_joined_into_one_file() {
    const COUNT: u64 = 150;
    let scratch = Scratch::new();
    let pattern = |size: usize| format!("pattern:rate=300,size={size},count={COUNT}");
    let (_x, at_x) = Service::share(&pattern(32), &["--name", "x"]);
    let (_y, at_y) = Service::share(&pattern(48), &["--name", "y"]);
    let (x, y, path) = (format!("{at_x}/x"), format!("{at_y}/y"), scratch.path("both"));
    let via = format!("{at_x}/x:(compress), y:(bundle(count=3)), synchronize | null");
    let into = format!("file:{path},frame=container");
    let mut attach = Service::start(&["attach", &x, &y, "--via", &via, "--as", &into, "--stats"]);
    let joint = attach.wait("joint");
    assert_eq!(attach.child.wait().unwrap().code(), Some(0), "{joint}");
    let came = numbers(&path);
    for size in [32, 48] {
        let of: Vec<u64> =
            came.iter().filter(|(known, _)| *known == size).map(|(_, number)| *number).collect();
        assert!(of.iter().copied().eq(0..COUNT), "of {size}: {}", of.len());
    }
    outboard(&["attach", &x, &y, "--via", "z:(), synchronize", "--as", "null"])
        .refused(2, &["no such flow", "^"]);
    outboard(&["attach", &x, &y, "--via", "synchronize", "--as", "null", "--as", "null"])
        .refused(2, &["1 of these flows"]);
}

#[test]
fn a_joined_flow_keeps_the_pipeline_of_its_device() {
    let scratch = Scratch::new();
    let device = |size: usize| format!("pattern:rate=300,size={size},count=100");
    let (mut x, at_x) = Service::share(&device(32), &["--name", "x", "--via", "compress(level=3)"]);
    let (mut y, at_y) = Service::share(&device(48), &["--name", "y", "--via", "compress(level=3)"]);
    let (from_x, from_y) = (format!("{at_x}/x"), format!("{at_y}/y"));
    let paths = ["x", "y"].map(|name| scratch.path(name));
    let [into_x, into_y] = paths.each_ref().map(|path| format!("file:{path},frame=container"));
    let joined = ["--via", "y:(null), synchronize(apart=true)", "--as", &into_x, "--as", &into_y];
    outboard(&[&["attach", &from_x, &from_y], &joined[..]].concat()).done();
    let pipelines = [&mut x, &mut y].map(|share| share.wait("attached")["pipelines"][0].to_string());
    let has = pipelines.each_ref().map(|text| (text.contains("synchronize"), text.contains("compress")));
    assert_eq!(has, [(true, true), (true, false)], "{pipelines:?}");
    for (path, size) in paths.iter().zip([32, 48]) {
        assert!(numbers(path).into_iter().eq((0..100).map(|number| (size, number))));
    }
}

#[test]
fn separate_flows_are_written_to_separate_files() {
    const COUNT: u64 = 100;
    let scratch = Scratch::new();
    let pattern = |size: usize| format!("pattern:rate=300,size={size},count={COUNT}");
    let text = format!(
        "[[share]]\ndevice = '{}'\nname = 'x'\nlisten = '127.0.0.1:0'\n[[share]]\ndevice = '{}'\nname = 'y'\n\
         listen = '127.0.0.1:0'",
        pattern(32),
        pattern(48)
    );
    std::fs::write(scratch.path("share.toml"), text).unwrap();
    let mut share = Service::start(&["run", &scratch.path("share.toml")]);
    let address = share.wait("listening")["address"].as_str().unwrap().to_string();
    let paths = ["x", "y"].map(|name| scratch.path(name));
    let text = format!(
        "[[attach]]\nfrom = ['{address}/x', '{address}/y']\nvia = 'synchronize(apart=true)'\n\
         as = ['file:{},frame=container', 'file:{},frame=container']",
        paths[0], paths[1]
    );
    std::fs::write(scratch.path("attach.toml"), text).unwrap();
    outboard(&["run", &scratch.path("attach.toml")]).done();
    for (path, size) in paths.iter().zip([32, 48]) {
        assert!(numbers(path).into_iter().eq((0..COUNT).map(|number| (size, number))));
    }
}

#[test]
fn a_recording_of_a_side_port_can_be_replayed() {
    const COUNT: u64 = 60;
    let scratch = Scratch::new();
    let (recording, replayed) = (scratch.path("recording"), scratch.path("replayed"));
    let (_share, address) = Service::share(&format!("pattern:rate=300,size=40,count={COUNT}"), &[]);
    let port = format!("record=file:{recording},frame=container");
    outboard(&[
        "attach",
        &format!("{address}/pattern"),
        "--as",
        "null",
        "--via",
        "record(sink) | compress",
        "--port",
        &port,
    ])
    .done();
    let expected: Vec<(usize, u64)> = (0..COUNT).map(|number| (40, number)).collect();
    assert_eq!(numbers(&recording), expected);
    let (from, into) =
        (format!("file:{recording},frame=container"), format!("file:{replayed},frame=container"));
    outboard(&["connect", &from, &into, "--via", "replay(speed=20)"]).done();
    assert_eq!(numbers(&replayed), expected);
}

#[test]
fn invalid_side_ports_are_refused() {
    let connect = |port: &str| {
        outboard(&["connect", "pattern:count=5,rate=0", "null", "--via", "record", "--port", port, "--json"])
    };
    connect("record").refused(2, &["PAIR=SPEC"]);
    connect("null=null").refused(2, &["not a pair with a side port", "record"]);
    connect("record.sound=null").refused(2, &["these side ports: record"]);
    connect("record=nothing:x").refused(2, &["nothing"]);
    let told: Value = connect("record=file:/dev/full").done().json();
    assert_eq!(told["messages"], 5, "a full disk concerns the recording alone");
}
