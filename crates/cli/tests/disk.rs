//! A disk of another host: unmodified clients of the NBD protocol, and a user who numbers the blocks while workers and the
//! link die.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command as Program;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use support::relay::Relay;
use support::{PATIENCE, Scratch, Service, noise, terminate, workers_of};
use wire::formats::block::Command;
use wire::nbd::{Asked, ClientNegotiation, ClientStep, REPLY_BYTES, Reply, Request};

const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 256;
/// A reply after this time is one that never comes.
const REPLY_TIMEOUT: Duration = Duration::from_secs(300);

/// A disk that is shared and attached.
struct Disk {
    image: String,
    socket: String,
    share: Service,
    attach: Service,
    relay: Relay,
    _scratch: Scratch,
}

fn share(image: &str, options: &str) -> (Service, String) {
    Service::share(&format!("block:{image}{options}"), &["--name", "disk", "--insecure"])
}

impl Disk {
    fn new(content: &[u8], options: &str) -> Disk {
        let scratch = Scratch::new();
        let (image, socket) = (scratch.path("disk.img"), scratch.path("disk.sock"));
        fs::write(&image, content).unwrap();
        let (share, address) = share(&image, options);
        let relay = Relay::default();
        let through = relay.start(&address);
        let from = format!("tcp://{through}/disk");
        let mut attach = Service::start(&["attach", &from, "--as", &format!("nbd:{socket}"), "--insecure"]);
        let attached = attach.wait("attached");
        assert!(attached.to_string().contains(&socket), "{attached}");
        Disk { image, socket, share, attach, relay, _scratch: scratch }
    }

    /// Ends the share, and shares this image under the same name and address, writable.
    fn share_instead(&mut self, image: &str) {
        self.relay.set_down(true);
        terminate(&self.share.child);
        assert_eq!(self.share.child.wait().unwrap().code(), Some(0));
        let (share, address) = share(image, ",write=true");
        self.share = share;
        self.relay.set_target(&address);
        self.relay.set_down(false);
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket)
    }
}

/// Runs a program to its end, and returns its output.
fn run(words: &[&str]) -> String {
    let ended = Program::new(words[0]).args(&words[1..]).output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{words:?}: {errors}");
    String::from_utf8_lossy(&ended.stdout).into_owned()
}

#[test]
fn unmodified_clients_copy_a_disk() {
    let has = |program, package| testkit::skip::has_program(program, package);
    if !has("nbdcopy", "libnbd-bin") || !has("qemu-img", "qemu-utils") {
        return;
    }
    let content = noise(3 << 20);
    let disk = Disk::new(&content, ",write=true");
    let uri = disk.uri();
    let info = run(&["nbdinfo", "--json", &uri]);
    assert!(info.contains("\"export-size\": 3145728") && info.contains("\"can_multi_conn\": true"), "{info}");
    let copy = format!("{}.copy", disk.image);
    run(&["nbdcopy", &uri, &copy]);
    assert!(fs::read(&copy).unwrap() == content, "nbdcopy from the disk");
    run(&["qemu-img", "compare", "-f", "raw", "-F", "raw", &uri, &disk.image]);
    let other = noise(3 << 20).iter().rev().copied().collect::<Vec<u8>>();
    fs::write(&copy, &other).unwrap();
    run(&["nbdcopy", "--flush", &copy, &uri]);
    assert!(fs::read(&disk.image).unwrap() == other, "nbdcopy to the disk");
    run(&["qemu-img", "compare", "-f", "raw", "-F", "raw", &uri, &copy]);
    assert_eq!([disk.attach.stop(), disk.share.stop()], [Some(0); 2]);
    assert!(!fs::exists(&disk.socket).unwrap(), "the socket is left behind");
}

#[test]
fn a_disk_is_read_only_unless_its_owner_says_otherwise() {
    let disk = Disk::new(&noise(BLOCK_BYTES), "");
    let mut user = User::connect(&disk.socket);
    user.send(1, Command::Write, 0, &[7; BLOCK_BYTES]);
    assert!(user.reply(0).0.result.is_err());
    user.send(2, Command::Read, 0, &[]);
    let (reply, data) = user.reply(BLOCK_BYTES);
    assert_eq!((reply.result, data), (Ok(()), noise(BLOCK_BYTES)));
}

/// A client with a blocking socket.
struct User(UnixStream);

impl User {
    fn connect(socket: &str) -> User {
        let mut user = User(UnixStream::connect(socket).unwrap());
        user.0.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
        let mut negotiation = ClientNegotiation::new("");
        loop {
            let bytes = user.read(negotiation.needs());
            match negotiation.take(&bytes).unwrap() {
                ClientStep::Send(bytes) => user.0.write_all(&bytes).unwrap(),
                ClientStep::Done { .. } => return user,
            }
        }
    }

    fn read(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn send(&mut self, cookie: u64, command: Command, block: u64, data: &[u8]) {
        let length = if command == Command::Flush { 0 } else { BLOCK_BYTES as u32 };
        let request = Request {
            asked: Asked::Do(command),
            force: false,
            keep_space: false,
            has_unknown_flags: false,
            cookie,
            offset: block * BLOCK_BYTES as u64,
            length,
        };
        self.0.write_all(&[&request.to_bytes(), data].concat()).unwrap();
    }

    fn reply(&mut self, read_bytes: usize) -> (Reply, Vec<u8>) {
        let header = self.read(REPLY_BYTES);
        let reply = Reply::parse(header.first_chunk().unwrap()).unwrap();
        let data = if reply.result.is_ok() { self.read(read_bytes) } else { Vec::new() };
        (reply, data)
    }
}

#[test]
fn another_disk_under_the_same_name_gets_no_request_of_the_first_one() {
    let mut disk = Disk::new(&noise(BLOCKS as usize * BLOCK_BYTES), ",write=true");
    let (first, other, longer) =
        (disk.image.clone(), format!("{}.other", disk.image), format!("{}.longer", disk.image));
    let content = vec![5; BLOCKS as usize * BLOCK_BYTES];
    fs::write(&other, &content).unwrap();
    fs::write(&longer, content.repeat(2)).unwrap();
    let mut user = User::connect(&disk.socket);
    user.send(1, Command::Write, 0, &[1; BLOCK_BYTES]);
    user.send(2, Command::Flush, 0, &[]);
    for cookie in [1, 2] {
        let (reply, _) = user.reply(0);
        assert_eq!((reply.cookie, reply.result), (cookie, Ok(())));
    }
    disk.share_instead(&other);
    user.send(3, Command::Write, 1, &[2; BLOCK_BYTES]);
    for (image, part) in [(&longer, "another one"), (&first, "2097152 bytes instead of 1048576")] {
        let gone = disk.attach.wait("device-gone");
        let reason = gone["reason"].as_str().unwrap();
        assert!(reason.contains(part) && reason.contains("share it again"), "{reason}");
        // The owner of the disk learns it, too.
        let detached = disk.share.wait("detached");
        assert_eq!(detached["reason"], reason);
        disk.share_instead(image);
    }
    let (reply, _) = user.reply(0);
    assert_eq!((reply.cookie, reply.result), (3, Ok(())), "the first disk continues");
    user.send(4, Command::Read, 1, &[]);
    let (reply, data) = user.reply(BLOCK_BYTES);
    assert_eq!((reply.cookie, reply.result, data), (4, Ok(()), vec![2; BLOCK_BYTES]));
    assert_eq!(fs::read(&first).unwrap()[..2 * BLOCK_BYTES], [[1; BLOCK_BYTES], [2; BLOCK_BYTES]].concat());
    assert!(fs::read(&other).unwrap() == content && fs::read(&longer).unwrap() == content.repeat(2));
    assert_eq!([disk.attach.stop(), disk.share.stop()], [Some(0); 2]);
}

/// A generator of numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Writes numbered blocks and reads them back, 16 requests at a time, until `rounds` are done. Checks each reply.
fn number_blocks(socket: &str, seed: u64, rounds: u64, done: &AtomicU64) -> Vec<u64> {
    let (mut user, mut random) = (User::connect(socket), Random(seed));
    let mut written = vec![0u64; BLOCKS as usize];
    let mut cookie = 0u64;
    for round in 1..=rounds {
        // Each block has one request at a time, so its content is known.
        let mut asked: BTreeMap<u64, (Command, u64)> = BTreeMap::new();
        for _ in 0..16 {
            let block = random.below(BLOCKS);
            if asked.values().any(|(_, other)| *other == block) {
                continue;
            }
            cookie += 1;
            let command = match random.below(8) {
                0 => Command::Flush,
                1 | 2 => Command::Read,
                _ => Command::Write,
            };
            let data = if command == Command::Write {
                cookie.to_le_bytes().repeat(BLOCK_BYTES / 8)
            } else {
                Vec::new()
            };
            user.send(cookie, command, block, &data);
            asked.insert(cookie, (command, block));
        }
        while !asked.is_empty() {
            let header = user.read(REPLY_BYTES);
            let reply = Reply::parse(header.first_chunk().unwrap()).unwrap();
            let (command, block) = asked.remove(&reply.cookie).expect("a reply to a request, once");
            assert_eq!(reply.result, Ok(()), "seed {seed}, round {round}: {command:?} of block {block}");
            match command {
                Command::Read => {
                    check_block(seed, round, block, &user.read(BLOCK_BYTES), written[block as usize])
                }
                Command::Write => written[block as usize] = reply.cookie,
                _ => {}
            }
        }
        done.store(round, Ordering::Relaxed);
    }
    written
}

fn check_block(seed: u64, round: u64, block: u64, data: &[u8], expected: u64) {
    let mut numbers = data.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
    let first = numbers.next().unwrap();
    assert!(numbers.all(|number| number == first), "seed {seed}, round {round}: block {block} is torn");
    assert_eq!(first, expected, "seed {seed}, round {round}: block {block}");
}

/// Kills the worker of a service. The next one lives long enough for the service not to give up.
fn kill_worker(service: &Service) {
    let before = workers_of(&service.child);
    for worker in &before {
        let _ = kill_process(Pid::from_raw(worker.cast_signed()).unwrap(), Signal::KILL);
    }
    let since = Instant::now();
    while !workers_of(&service.child).iter().any(|worker| !before.contains(worker)) {
        assert!(since.elapsed() < PATIENCE, "no next worker");
        thread::sleep(Duration::from_millis(5));
    }
    thread::sleep(Duration::from_millis(150));
}

/// Numbers blocks while workers and the link die: `kills` times at most, of which `cuts` are long.
fn survive(seed: u64, rounds: u64, kills: u64, cuts: u64, cut: Duration) {
    println!("seed {seed}");
    let disk = Disk::new(&vec![0; BLOCKS as usize * BLOCK_BYTES], ",write=true");
    let (done, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let user = {
        let (socket, done, is_over) = (disk.socket.clone(), done.clone(), is_over.clone());
        thread::spawn(move || {
            // Also at a failed assertion.
            struct Over(Arc<AtomicBool>);
            impl Drop for Over {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
            let _over = Over(is_over);
            number_blocks(&socket, seed, rounds, &done)
        })
    };
    let mut random = Random(seed ^ 0x5555);
    let (mut killed, mut long_cuts) = (0, 0);
    while !is_over.load(Ordering::Relaxed) && (killed < kills || long_cuts < cuts) {
        thread::sleep(Duration::from_millis(random.below(120)));
        match random.below(4) {
            0 => kill_worker(&disk.share),
            1 => kill_worker(&disk.attach),
            2 => {
                kill_worker(&disk.share);
                kill_worker(&disk.attach);
            }
            _ if long_cuts < cuts => {
                long_cuts += 1;
                disk.relay.set_down(true);
                thread::sleep(cut);
                disk.relay.set_down(false);
            }
            _ => disk.relay.cut(usize::MAX),
        }
        killed += 1;
    }
    let written = user.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    println!(
        "seed {seed}: {} rounds, {killed} kills and cuts, {long_cuts} long ones",
        done.load(Ordering::Relaxed)
    );
    let content = fs::read(&disk.image).unwrap();
    for (block, data) in content.chunks(BLOCK_BYTES).enumerate() {
        check_block(seed, rounds, block as u64, data, written[block]);
    }
    assert!(killed > 0, "the disk was faster than the first kill");
    assert_eq!([disk.attach.stop(), disk.share.stop()], [Some(0); 2]);
}

/// The short form; with `OUTBOARD_LONG` set, as `scripts/prove` sets it, 10,000 rounds and twenty cuts of 60 s.
#[test]
fn nothing_is_torn_lost_or_overtaken() {
    match std::env::var_os("OUTBOARD_LONG") {
        None => survive(1, 2000, 12, 1, Duration::from_secs(2)),
        Some(_) => survive(u64::from(std::process::id()), 10_000, 200, 20, Duration::from_secs(60)),
    }
}
