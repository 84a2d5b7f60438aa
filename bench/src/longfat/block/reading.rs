//! A program that reads a disk through Outboard, and the figures of both ends.

use super::protocol::{Disk, Protocol, Values};
use super::{LOOK, PATIENCE};
use crate::processes::{cpu_seconds, with_descendants};
use crate::programs::Running;
use crate::reliability::hosts::{ADDRESS_A, Host, Hosts, Service};
use crate::setting::Failure;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use wire::formats::block::Command as DiskCommand;
use wire::nbd::{Asked, ClientNegotiation, ClientStep, REPLY_BYTES, Reply, Request};

/// The read of the thesis, 10 MB, in whole sectors.
const READ_BYTES: u64 = 10_000_384;
/// The longest request of the NBD clients that a kernel makes of such a read: table 2.1.
const REQUEST_BYTES: u32 = 1 << 20;
/// The size of the disk. Nothing stores it.
pub(super) const DISK_BYTES: u64 = 500_000_000_000;

/// Starts a disk server on a host, at one of its addresses.
pub(super) fn serve(
    hosts: &Hosts,
    protocol: &Protocol,
    host: Host,
    values: Values<'_>,
) -> Result<Running, Failure> {
    let words = protocol.words(protocol.server, values);
    let package = protocol.package;
    let mut program = hosts.lab.program(host.letter(), &words[0]);
    let started = program.args(&words[1..]).stdin(Stdio::null()).spawn();
    let mut server = Running(started.map_err(|error| format!("{}: {error}; install {package}", words[0]))?);
    wait_for_port(&mut server, &words[0], protocol.port)?;
    for words in protocol.setup {
        let words = protocol.words(words, values);
        let output = hosts.lab.program(host.letter(), &words[0]).args(&words[1..]).output()?;
        if !output.status.success() {
            let problem = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{}: {}", words.join(" "), problem.trim()).into());
        }
    }
    Ok(server)
}

/// Waits until a server of this name listens on a port. A connection would tell more, but servers complain of one that says nothing.
pub(super) fn wait_for_port(server: &mut Running, name: &str, port: u16) -> Result<(), Failure> {
    let begun = Instant::now();
    while sockets(server.0.id(), LISTENING, LOCAL, port) == 0 {
        if let Some(status) = server.0.try_wait()? {
            return Err(format!("{name} exited ({status})").into());
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("{name} does not listen").into());
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Starts Outboard on the application host with a disk server's disk. Returns the local socket of the disk, too.
pub(super) fn connect(
    hosts: &Hosts,
    protocol: &Protocol,
    values: Values<'_>,
) -> Result<(Service, PathBuf), Failure> {
    let socket = hosts.file("disk");
    let _ = std::fs::remove_file(&socket);
    let mut connect = hosts.command(Host::Application)?;
    connect.args(["connect", &protocol.fill(protocol.device, values), &format!("nbd:{}", socket.display())]);
    let mut connect = Service::start(connect)?;
    let begun = Instant::now();
    while !socket.exists() {
        if let Some(status) = connect.child.try_wait()? {
            return Err(format!("outboard exited ({status})").into());
        }
        if begun.elapsed() > PATIENCE {
            return Err("outboard makes no socket".into());
        }
        thread::sleep(LOOK);
    }
    Ok((connect, socket))
}

/// A program that reads the disk of an NBD server at a local socket.
fn read_disk(path: &Path, read_ahead: u64, received_bytes: &AtomicU64) -> Result<(), Failure> {
    let mut stream = UnixStream::connect(path)?;
    let mut negotiation = ClientNegotiation::new("");
    let mut input = Vec::new();
    let size = loop {
        input.resize(negotiation.needs(), 0);
        stream.read_exact(&mut input)?;
        match negotiation.take(&input)? {
            ClientStep::Send(output) => stream.write_all(&output)?,
            ClientStep::Done { geometry, .. } => break geometry.size_bytes,
        }
    };
    let mut lengths = BTreeMap::new();
    let (mut asked, mut received, mut cookie) = (0, 0, 0);
    let mut data = vec![0; REQUEST_BYTES as usize];
    loop {
        while asked - received < READ_BYTES + read_ahead {
            let place = asked % READ_BYTES;
            let length = (READ_BYTES - place).min(REQUEST_BYTES.into()) as u32;
            let request = Request {
                asked: Asked::Do(DiskCommand::Read),
                force: false,
                keep_space: false,
                has_unknown_flags: false,
                cookie,
                offset: asked % (size - READ_BYTES),
                length,
            };
            stream.write_all(&request.to_bytes())?;
            lengths.insert(cookie, length);
            cookie += 1;
            asked += u64::from(length);
        }
        let mut header = [0; REPLY_BYTES];
        stream.read_exact(&mut header)?;
        let reply = Reply::parse(&header)?;
        let length = lengths.remove(&reply.cookie).ok_or("a reply to no request")?;
        reply.result.map_err(|failure| format!("a read failed: {failure:?}"))?;
        stream.read_exact(&mut data[..length as usize])?;
        received += u64::from(length);
        received_bytes.fetch_add(length.into(), Ordering::Relaxed);
    }
}

/// A running program that reads the disk through Outboard.
pub(super) struct Reading {
    /// First the server ends: killed after its clients, it would complain about them.
    server: Running,
    connect: Service,
    port: u16,
    received_bytes: Arc<AtomicU64>,
}

/// Figures of one interval.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    pub(super) mbit: f64,
    /// Open connections to the server at its end.
    pub(super) sessions: usize,
    /// Processor time of the client's host and of the server, nanoseconds a bit.
    pub(super) client_ns: f64,
    pub(super) server_ns: f64,
}

impl Figures {
    pub(super) fn json(&self) -> Value {
        json!({ "mbit": self.mbit, "sessions": self.sessions, "client_cpu_ns_per_bit": self.client_ns,
                "server_cpu_ns_per_bit": self.server_ns })
    }
}

impl Reading {
    pub(super) fn start(
        hosts: &Hosts,
        protocol: &Protocol,
        read_ahead_bytes: u64,
        sessions: &str,
    ) -> Result<Reading, Failure> {
        let values = Values { host: ADDRESS_A, disk: Disk::Pattern, size_bytes: DISK_BYTES, sessions };
        let server = serve(hosts, protocol, Host::Device, values)?;
        let (connect, socket) = connect(hosts, protocol, values)?;
        let received_bytes = Arc::new(AtomicU64::new(0));
        let counted = received_bytes.clone();
        // It ends with the server of its socket.
        thread::spawn(move || drop(read_disk(&socket, read_ahead_bytes, &counted)));
        Ok(Reading { server, connect, port: protocol.port, received_bytes })
    }

    pub(super) fn figures(&self, lasts: Duration) -> Figures {
        let cpu = |process| cpu_seconds(&with_descendants(process));
        let [client, server] = [self.connect.child.id(), self.server.0.id()];
        let begun = (Instant::now(), self.received_bytes.load(Ordering::Relaxed), cpu(client), cpu(server));
        thread::sleep(lasts);
        let bits = (self.received_bytes.load(Ordering::Relaxed) - begun.1) as f64 * 8.0;
        let per_bit = |seconds: f64| seconds * 1e9 / bits.max(1.0);
        Figures {
            mbit: bits / 1e6 / begun.0.elapsed().as_secs_f64(),
            sessions: sockets(client, ESTABLISHED, REMOTE, self.port),
            client_ns: per_bit(cpu(client) - begun.2),
            server_ns: per_bit(cpu(server) - begun.3),
        }
    }

    /// Returns the goodput and the sessions in each of these intervals: times in seconds from now, Mbit/s, sessions.
    pub(super) fn evolution(&self, lasts: Duration, intervals: u32) -> Vec<[f64; 3]> {
        let begun = Instant::now();
        let interval = |_| {
            let figures = self.figures(lasts / intervals);
            [begun.elapsed().as_secs_f64(), figures.mbit, figures.sessions as f64]
        };
        (0..intervals).map(interval).collect()
    }
}

/// Columns and states of `/proc/net/tcp` (`proc_pid_net(5)`).
const LOCAL: usize = 1;
const REMOTE: usize = 2;
const ESTABLISHED: &str = "01";
const LISTENING: &str = "0A";

/// Counts the TCP sockets on the host of a process that have a state, and this port in a column.
fn sockets(process: u32, state: &str, column: usize, port: u16) -> usize {
    let table = |name| std::fs::read_to_string(format!("/proc/{process}/net/{name}")).unwrap_or_default();
    let end = format!(":{port:04X}");
    let is_one = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().take(4).collect();
        fields.get(column).is_some_and(|address| address.ends_with(&end)) && fields.get(3) == Some(&state)
    };
    ["tcp", "tcp6"].map(|name| table(name).lines().filter(is_one).count()).iter().sum()
}
