//! The cost of a request on one host: Outboard between fio and nbdkit, beside nbdkit alone, nbdkit behind another nbdkit, and the
//! same bytes over bare TCP, directly and relayed.

use super::fio::{self, Done, Load};
use super::protocol::{Disk, Protocol, Values, local};
use super::reading::{connect, serve, wait_for_port};
use super::{BlockSetting, Running};
use crate::reliability::hosts::{Host, Hosts};
use crate::setting::Failure;
use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, pipe, splice};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};
use wire::nbd::REPLY_BYTES;

const HERE: &str = "127.0.0.1";
const DISK_BYTES: u64 = 256 << 20;
/// The capacity of a relay's pipe: the most that an unprivileged program may set.
const PIPE_BYTES: usize = 1 << 20;
/// The length of a request of NBD.
const REQUEST_BYTES: usize = 28;
/// The port of the second nbdkit.
const SECOND_PORT: u16 = 10810;
/// Reads, and as many writes as reads.
const READ: &str = "randread";
const MIXED: &str = "randrw";
const LOADS: [Load; 5] = [
    Load { rw: READ, block_bytes: 4 << 10, depth: 1 },
    Load { rw: READ, block_bytes: 4 << 10, depth: 16 },
    Load { rw: READ, block_bytes: 1 << 20, depth: 16 },
    Load { rw: MIXED, block_bytes: 4 << 10, depth: 16 },
    Load { rw: MIXED, block_bytes: 1 << 20, depth: 16 },
];

/// Answers requests of a fixed length with this many bytes until the client ends.
fn answer(mut stream: TcpStream, bytes: usize) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    let (mut request, reply) = ([0; REQUEST_BYTES], vec![7; bytes]);
    while stream.read_exact(&mut request).is_ok() {
        stream.write_all(&reply)?;
    }
    Ok(())
}

/// Programs between the client and the server of [`bare`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    Nothing,
    /// A thread for each direction, which moves bytes through a pipe in the kernel (`splice(2)`).
    Relay,
}

/// Moves bytes from one socket to another, until the first one ends.
fn splice_all(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let (out, into) = pipe()?;
    fcntl_setpipe_size(&into, PIPE_BYTES)?;
    let flags = SpliceFlags::MOVE;
    loop {
        let mut held = splice(from, None, &into, None, PIPE_BYTES, flags)?;
        if held == 0 {
            return to.shutdown(Shutdown::Write);
        }
        while held > 0 {
            held -= splice(&out, None, to, None, held, flags)?;
        }
    }
}

/// Relays one connection to this address, until its client ends.
fn relay(listener: &TcpListener, to: SocketAddr) -> io::Result<()> {
    let (client, server) = (listener.accept()?.0, TcpStream::connect(to)?);
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (requests, to_server) = (client.try_clone()?, server.try_clone()?);
    let requests = thread::spawn(move || {
        let ended = splice_all(&requests, &to_server);
        // A client that leaves replies unread resets its connection: the other direction waits for the server.
        to_server.shutdown(Shutdown::Both).and(ended)
    });
    splice_all(&server, &client)?;
    requests.join().map_err(|_| io::Error::other("the relay panicked"))?
}

/// Reads over bare TCP: requests and replies as long as those of NBD, `depth` at a time.
fn bare(load: Load, lasts: Duration, between: Between) -> Result<Done, Failure> {
    let listener = TcpListener::bind((HERE, 0))?;
    let bytes = REPLY_BYTES + load.block_bytes as usize;
    let mut address = listener.local_addr()?;
    let server = thread::spawn(move || answer(listener.accept()?.0, bytes));
    if between == Between::Relay {
        let (listener, to) = (TcpListener::bind((HERE, 0))?, address);
        address = listener.local_addr()?;
        thread::spawn(move || relay(&listener, to));
    }
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let (request, mut reply) = ([0; REQUEST_BYTES], vec![0; bytes]);
    let mut asked = VecDeque::new();
    let (begun, mut done) = (Instant::now(), 0_u32);
    while begun.elapsed() < lasts {
        while asked.len() < load.depth as usize {
            stream.write_all(&request)?;
            asked.push_back(());
        }
        stream.read_exact(&mut reply)?;
        asked.pop_front();
        done += 1;
    }
    let seconds = begun.elapsed().as_secs_f64();
    drop(stream);
    // The end of the connection cuts its last replies.
    let _ = server.join().map_err(|_| "the bare server panicked")?;
    let requests_per_second = f64::from(done) / seconds;
    Ok(Done { requests_per_second, mbit: requests_per_second * f64::from(load.block_bytes) * 8.0 / 1e6 })
}

/// Starts a second nbdkit, which is a client of the first one.
fn second(hosts: &Hosts, first: u16) -> Result<Running, Failure> {
    let mut nbdkit = hosts.lab.program(Host::Application.letter(), "nbdkit");
    nbdkit.args(["--foreground", "--ipaddr", HERE, "--port", &SECOND_PORT.to_string(), "nbd"]);
    nbdkit.args([&format!("hostname={HERE}"), &format!("port={first}")]);
    let mut server = Running(nbdkit.stdin(Stdio::null()).spawn()?);
    wait_for_port(&mut server, "the second nbdkit", SECOND_PORT)?;
    Ok(server)
}

/// Measures all loads on a server that fio reads at this address. Returns the table and the figures.
pub(super) fn study(
    hosts: &Hosts,
    setting: &BlockSetting,
    protocol: &Protocol,
    address: &str,
) -> Result<(String, Value), Failure> {
    let lasts = Duration::from_secs_f64(setting.seconds);
    let values = |sessions| Values { host: HERE, disk: Disk::Memory, size_bytes: DISK_BYTES, sessions };
    let direct = protocol.fill(address, values("1"));
    let mut text = String::from(
        "| load | bare TCP, requests/s | bare TCP, relayed | nbdkit | nbdkit and nbdkit | Outboard, 1 session | Outboard, auto | 1 session: of nbdkit twice |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let mut rows = Vec::new();
    for load in LOADS {
        let server = serve(hosts, protocol, Host::Application, values("1"))?;
        let once = fio::run(hosts, &direct, load, [Duration::ZERO, lasts])?;
        let twice = {
            let _second = second(hosts, protocol.port)?;
            fio::run(hosts, &format!("nbd://{HERE}:{SECOND_PORT}/"), load, [Duration::ZERO, lasts])?
        };
        let ours = |sessions| {
            let (_connect, socket) = connect(hosts, protocol, values(sessions))?;
            fio::run(hosts, &local(&socket), load, [Duration::ZERO, lasts])
        };
        let (one, auto) = (ours("1")?, ours("auto")?);
        drop(server);
        let bare = |between| if load.rw == READ { bare(load, lasts, between).map(Some) } else { Ok(None) };
        let (bare, relayed) = (bare(Between::Nothing)?, bare(Between::Relay)?);
        let name = format!(
            "{}, {} KiB, depth {}",
            if load.rw == READ { "reads" } else { "reads and writes" },
            load.block_bytes >> 10,
            load.depth
        );
        let rate = |done: Done| format!("{:.0} ({:.0} MB/s)", done.requests_per_second, done.mbit / 8.0);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} | {} | {} | {} | {:.2} |",
            bare.map_or(String::new(), rate),
            relayed.map_or(String::new(), rate),
            rate(once),
            rate(twice),
            rate(one),
            rate(auto),
            one.requests_per_second / twice.requests_per_second.max(f64::MIN_POSITIVE)
        );
        let of = |done: Done| json!({ "requests_per_second": done.requests_per_second, "mbit": done.mbit });
        rows.push(json!({ "rw": load.rw, "block_bytes": load.block_bytes, "depth": load.depth, "bare": bare.map(of),
                          "relayed": relayed.map(of), "nbdkit": of(once), "nbdkit_twice": of(twice), "ours_one": of(one), "ours_auto": of(auto) }));
    }
    Ok((text, rows.into()))
}
