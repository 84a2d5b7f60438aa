//! The emulator process: one TUN device in each host's namespace, one thread per host that carries the packets that
//! this host sends, and a control socket.

use crate::gso::{Frame, Piece};
use crate::lab::{Lab, host_index, host_letter, ip};
use netsim::{Counters, LATE_NS, Link, Params};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sys::clock::boot_ns;
use sys::event::Event;
use sys::tun::{HEADER_BYTES, open_device};

/// Name of the device in each host.
const DEVICE: &str = "wan0";
/// Frames read from a host before due packets are delivered.
const BURST_FRAMES: usize = 32;
/// Longest transmission time of a piece of a large segment: a piece arrives all at once, when its last bit does.
const PIECE_NS: u64 = 200_000;
/// Most packets in a piece.
const PIECE_PACKETS_MAX: u32 = 64;
/// Capacity of one direction: 1 Gbit/s over several seconds.
const HELD_MAX_BYTES: u64 = 1 << 30;
/// Longest request on the control socket.
const REQUEST_MAX_BYTES: u64 = 4096;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Fixed properties of a lab.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) hosts: usize,
    pub(crate) mtu: u32,
    /// TCP's congestion control in the hosts.
    pub(crate) congestion_control: String,
    /// Take large segments from the hosts.
    pub(crate) large_segments: bool,
    pub(crate) seed: u64,
    /// Initial parameters of all links.
    pub(crate) params: Params,
}

/// A host, shared by the threads.
struct Host {
    tun: File,
    state: Mutex<State>,
    /// Wakes the host's thread after a change of the parameters in `state`.
    wake: Event,
}

/// The host's outgoing link.
#[derive(Default)]
struct State {
    params: Params,
    counters: Counters,
    held_packets: u64,
    held_bytes: u64,
    /// Frames that were not IP packets.
    invalid: u64,
    /// Pieces without a destination in the lab, or rejected by the receiving device.
    undeliverable: u64,
}

impl Host {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Moves the calling thread into a network namespace.
pub(crate) fn enter_namespace(namespace: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

fn explain(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Sets properties of the thread's namespace: TCP windows for gigabits over hundreds of milliseconds, and no
/// metrics of earlier connections, which would make runs depend on each other.
fn tune(congestion_control: &str) -> io::Result<()> {
    for (key, value) in [
        ("tcp_rmem", "4096 131072 268435456"),
        ("tcp_wmem", "4096 65536 268435456"),
        ("tcp_no_metrics_save", "1"),
        ("tcp_congestion_control", congestion_control),
    ] {
        fs::write(format!("/proc/sys/net/ipv4/{key}"), value).map_err(explain(format!("{key} = {value}")))?;
    }
    Ok(())
}

/// Adds the algorithm to the host's list of those that need no privilege: a namespace may default only to these. It
/// is the only change outside the lab.
fn allow(congestion_control: &str) -> io::Result<()> {
    let path = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let list = fs::read_to_string(path)?;
    if list.split_whitespace().any(|word| word == congestion_control) {
        return Ok(());
    }
    fs::write(path, format!("{} {congestion_control}", list.trim()))
        .map_err(explain(format!("congestion control {congestion_control}")))
}

/// Creates a host's device and sets its addresses.
fn make_host(lab: &Lab, index: usize, setup: &Setup) -> io::Result<Host> {
    let home = File::open("/proc/thread-self/ns/net")?;
    let namespace = lab.namespace(index);
    enter_namespace(&File::open(format!("/run/netns/{namespace}"))?)?;
    let tun = open_device(DEVICE, setup.large_segments)
        .map_err(explain(format!("making {DEVICE} in {namespace}")))
        .and_then(|tun| tune(&setup.congestion_control).map(|()| tun));
    enter_namespace(&home)?;
    let tun = tun?;
    let n = namespace.as_str();
    // No link-local address: then the host sends only packets that a program asked for.
    ip(&["-n", n, "link", "set", DEVICE, "addrgenmode", "none"])?;
    ip(&["-n", n, "link", "set", DEVICE, "mtu", &setup.mtu.to_string(), "txqueuelen", "10000", "up"])?;
    ip(&["-n", n, "addr", "add", &format!("10.77.0.{}/24", index + 1), "dev", DEVICE])?;
    if fs::metadata("/proc/sys/net/ipv6").is_ok() {
        ip(&["-n", n, "addr", "add", &format!("fd77::{:x}/64", index + 1), "dev", DEVICE, "nodad"])?;
    }
    let state = State { params: setup.params.clone(), ..State::default() };
    Ok(Host { tun, state: Mutex::new(state), wake: Event::new()? })
}

/// Runs the emulator until it receives `quit`. Prints `ready` once the lab is usable.
pub(crate) fn serve(lab: &Lab, setup: &Setup) -> io::Result<()> {
    allow(&setup.congestion_control)?;
    let hosts: io::Result<Vec<Host>> = (0..setup.hosts).map(|index| make_host(lab, index, setup)).collect();
    let hosts = Arc::new(hosts?);
    let control = UnixListener::bind(lab.path("control"))?;
    for index in 0..hosts.len() {
        let hosts = hosts.clone();
        let link = Link::new(setup.params.clone(), setup.seed.wrapping_add(index as u64));
        std::thread::Builder::new().name(format!("from-{}", host_letter(index))).spawn(move || {
            // Keeps the link punctual on a busy machine. Without the privilege it is only less punctual.
            sys::thread::be_urgent();
            sys::thread::be_punctual();
            let error = carry(index, &hosts, link.hold_at_most(HELD_MAX_BYTES));
            eprintln!("netlab: host {}: {error}", host_letter(index));
            std::process::abort(); // a link without its thread would be a silent hole
        })?;
    }
    println!("ready");
    for stream in control.incoming().flatten() {
        // An error of one client does not affect the others.
        let _ = answer(&stream, &hosts);
    }
    Ok(())
}

/// The link's time at the arrival of a frame. After a pause of this thread, the link goes on from the time at which the thread
/// was due, and each frame that waited takes its transmission time: the frames arrived during the pause. Taken as a burst at its
/// end, they would overflow a queue that they did not overflow.
#[derive(Default)]
struct LinkClock {
    ns: u64,
    /// Frames may wait that arrived before now.
    is_behind: bool,
    /// All of them were received, and the link did not go on since.
    has_caught_up: bool,
}

impl LinkClock {
    /// The thread runs at `now_ns`, and was due at `due_ns`.
    fn wake(&mut self, due_ns: Option<u64>, now_ns: u64) {
        if self.is_behind {
            return;
        }
        let may_be_late = !std::mem::take(&mut self.has_caught_up);
        let late_ns = due_ns.filter(|due_ns| may_be_late && now_ns.saturating_sub(*due_ns) > LATE_NS);
        self.is_behind = late_ns.is_some();
        self.ns = late_ns.unwrap_or(now_ns).max(self.ns);
    }

    /// Returns the time at which a frame arrived that is read at `now_ns`.
    fn received(&mut self, transmission_ns: u64, now_ns: u64) -> u64 {
        self.ns = if self.is_behind { self.ns.saturating_add(transmission_ns).min(now_ns) } else { now_ns };
        if self.ns >= now_ns {
            self.catch_up();
        }
        self.ns
    }

    /// No frame waits that arrived before now.
    fn catch_up(&mut self) {
        self.has_caught_up |= std::mem::take(&mut self.is_behind);
    }
}

/// Carries all packets that a host sends, until its device fails.
fn carry(me: usize, hosts: &[Host], mut link: Link<Piece>) -> io::Error {
    let host = &hosts[me];
    let (mut invalid, mut undeliverable) = (0, 0);
    let mut buffer = vec![0u8; HEADER_BYTES + 65_536];
    let mut clock = LinkClock::default();
    loop {
        if host.wake.clear() {
            link.configure(boot_ns(), host.lock().params.clone());
        }
        let now_ns = boot_ns();
        clock.wake(link.deadline().filter(|_| link.params().rate_bps > 0), now_ns);
        while !clock.is_behind
            && let Some((_, piece)) = link.pop(now_ns)
        {
            undeliverable += u64::from(!deliver(me, hosts, &piece));
        }
        let (was_behind, mut taken) = (clock.is_behind, 0);
        while taken < BURST_FRAMES {
            match (&host.tun).read(&mut buffer) {
                Ok(count) => match Frame::parse(&buffer[..count]) {
                    Some(frame) => {
                        let transmission_ns = link.transmission_ns(frame.bytes(0, frame.packets));
                        send(&mut link, clock.received(transmission_ns, boot_ns()), &frame);
                    }
                    None => invalid += 1,
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return error,
            }
            taken += 1;
        }
        let is_empty = taken < BURST_FRAMES;
        if is_empty {
            clock.catch_up();
        }
        let mut state = host.lock();
        state.counters = link.counters();
        (state.held_packets, state.held_bytes) = link.held();
        (state.invalid, state.undeliverable) = (invalid, undeliverable);
        drop(state);
        if is_empty && !was_behind {
            sleep(host, link.deadline());
        }
    }
}

/// Waits until the host sends, its parameters change, or the time is reached.
fn sleep(host: &Host, until_ns: Option<u64>) {
    let left = until_ns.map(|until_ns| Duration::from_nanos(until_ns.saturating_sub(boot_ns())));
    let left =
        left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
    let mut waited = [PollFd::new(&host.tun, PollFlags::IN), PollFd::new(&host.wake, PollFlags::IN)];
    // A signal only shortens the sleep.
    let _ = poll(&mut waited, left.as_ref());
}

/// Draws the losses among the frame's packets, cuts the rest into pieces and queues them.
fn send(link: &mut Link<Piece>, now_ns: u64, frame: &Frame<'_>) {
    let params = link.params();
    let one_by_one = params.jitter_ns > 0 || params.duplicate_ppm > 0 || params.corrupt_ppm > 0;
    if one_by_one {
        for packet in 0..frame.packets {
            // The link counts its drops.
            let _ = link.push(now_ns, frame.piece(packet, 1), frame.bytes(packet, 1));
        }
        return;
    }
    let piece_packets = match params.rate_bps {
        0 => PIECE_PACKETS_MAX,
        rate_bps => {
            let in_time = PIECE_NS * (rate_bps / 1_000) / 8_000_000 / u64::from(frame.bytes(0, 1));
            in_time.clamp(1, u64::from(PIECE_PACKETS_MAX)) as u32
        }
    };
    let mut next = 0;
    while next < frame.packets {
        let first = next;
        let mut lost = false;
        while next < frame.packets && next - first < piece_packets && !lost {
            lost = link.draw(frame.bytes(next, 1)).is_some();
            next += 1;
        }
        let kept = next - first - u32::from(lost);
        let fitting = kept.min(link.room(now_ns));
        for (from, count) in [(first, fitting), (first + fitting, kept - fitting)] {
            if count > 0 {
                let _ = link.carry(now_ns, frame.piece(from, count), count, frame.bytes(from, count));
            }
        }
    }
}

/// Writes a piece to its destination; between two hosts, everything (with multicast) goes to the other one. Returns
/// true on success.
fn deliver(me: usize, hosts: &[Host], piece: &Piece) -> bool {
    let to = match hosts.len() {
        2 => 1 - me,
        _ => usize::from(piece.destination()).wrapping_sub(1),
    };
    hosts.get(to).filter(|_| to != me).is_some_and(|host| (&host.tun).write(piece.bytes()).is_ok())
}

/// Handles one request: a line of words separated by tabs.
fn answer(stream: &UnixStream, hosts: &[Host]) -> io::Result<()> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(stream.take(REQUEST_MAX_BYTES)).read_line(&mut line)?;
    let words: Vec<&str> = line.trim_end().split('\t').collect();
    let mut out = stream;
    match words[..] {
        ["quit"] => {
            out.write_all(b"ok\n")?;
            std::process::exit(0);
        }
        ["status"] => out.write_all(format!("ok\n{}", status(hosts)).as_bytes()),
        ["set", from, text] => match set(from, text, hosts) {
            Ok(()) => out.write_all(format!("ok\n{}", settings(hosts)).as_bytes()),
            Err(error) => out.write_all(format!("{error}\n").as_bytes()),
        },
        _ => out.write_all(b"unknown request\n"),
    }
}

/// Changes one host's outgoing link, or all if no host is named.
fn set(from: &str, text: &str, hosts: &[Host]) -> Result<(), String> {
    let chosen = match from {
        "" => hosts,
        letter => {
            let index = host_index(letter).filter(|index| *index < hosts.len());
            let index = index.ok_or_else(|| format!("there is no host {letter} in this lab"))?;
            &hosts[index..=index]
        }
    };
    let changed: Result<Vec<Params>, _> = chosen
        .iter()
        .map(|host| {
            let mut params = host.lock().params.clone();
            params.apply(text).map(|()| params)
        })
        .collect();
    for (host, params) in chosen.iter().zip(changed.map_err(|error| error.to_string())?) {
        host.lock().params = params;
        host.wake.signal();
    }
    Ok(())
}

fn settings(hosts: &[Host]) -> String {
    let line =
        |(index, host): (usize, &Host)| format!("from {}: {}\n", host_letter(index), host.lock().params);
    hosts.iter().enumerate().map(line).collect()
}

fn status(hosts: &[Host]) -> String {
    let line = |(index, host): (usize, &Host)| {
        let state = host.lock();
        let c = &state.counters;
        format!(
            "from {}: sent={} bytes={} lost={} overflowed={} cut={} duplicated={} corrupted={} delivered={} \
             invalid={} undeliverable={} held={} held_bytes={} late_over_200us={} late_max_us={}\n",
            host_letter(index),
            c.sent,
            c.sent_bytes,
            c.lost,
            c.overflowed,
            c.cut,
            c.duplicated,
            c.corrupted,
            c.delivered,
            state.invalid,
            state.undeliverable,
            state.held_packets,
            state.held_bytes,
            c.late_units,
            c.late_max_ns / 1_000,
        )
    };
    settings(hosts) + &hosts.iter().enumerate().map(line).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn frames_that_waited_for_this_thread_arrived_one_after_another() {
        let mut clock = LinkClock::default();
        clock.wake(Some(10 * MS), 10 * MS + LATE_NS);
        assert!(!clock.is_behind, "in time");
        assert_eq!(clock.received(MS, 11 * MS), 11 * MS);
        clock.wake(Some(12 * MS), 15 * MS);
        let arrivals: Vec<u64> = (0..4).map(|_| clock.received(MS, 15 * MS) / MS).collect();
        assert_eq!(arrivals, [13, 14, 15, 15], "no later than now");
        clock.wake(Some(12 * MS), 15 * MS);
        assert!(!clock.is_behind, "the link goes on before it can be late again");
        clock.wake(None, 99 * MS);
        assert_eq!(clock.received(MS, 99 * MS), 99 * MS, "a burst after silence is one");
    }
}
