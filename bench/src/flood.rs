//! Throughput of 1 MB messages over TCP, and over UDP with a window in place of a session's acknowledgements, beside bare
//! sockets.

use crate::bare;
use crate::devices::{Count, Flood, InFlight, Processor, Window};
use crate::latency::{connection, joined, number, tcp};
use crate::measure::{Used, median, used};
use crate::ours::{self, Host, Link};
use crate::setting::{Failure, Setting};
use contract::{Body, Format, Options, TransportClass};
use serde_json::{Value, json};
use std::cell::Cell;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;
use transports::quic::Quic;
use transports::udp::Udp;
use wire::control::FlowClass;

const MESSAGE_BYTES: usize = 1_000_000;
const TCP_MESSAGES: usize = 1500;
const UDP_MESSAGES: usize = 800;
/// Payload of a datagram in both rows of UDP: an Ethernet frame.
const DATAGRAM_BYTES: usize = 1472;
/// Most bytes in flight over UDP: well within the kernel's receive buffer.
const WINDOW_BYTES: u64 = 3_000_000;
/// Kernel buffers of the UDP sockets.
const SOCKET_BYTES: usize = 4 << 20;
/// The UDP receiver stops after this time without a datagram.
const PAUSE: Duration = Duration::from_millis(5);

/// The result of one turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) nanoseconds: u64,
    received_bytes: u64,
    sent_bytes: u64,
    pub(crate) used: Used,
}

/// The traffic of a turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) messages: usize,
    pub(crate) message_bytes: usize,
    /// Most bytes in flight.
    pub(crate) window_bytes: u64,
}

/// Times a turn from the end of the setup, at which `act` calls its argument, until the last byte.
fn turn(
    sent_bytes: usize,
    window: &Window,
    act: impl FnOnce(&dyn Fn()) -> Result<(), Failure>,
) -> Result<Turn, Failure> {
    let begun = Cell::new(0);
    let ((), used) = used(|| act(&|| begun.set(sys::clock::boot_ns())))?;
    Ok(Turn {
        nanoseconds: window.received_ns().saturating_sub(begun.get()),
        received_bytes: window.received_bytes(),
        sent_bytes: sent_bytes as u64,
        used,
    })
}

/// Measures a turn of Outboard.
pub(crate) fn our_turn(
    setting: &Setting,
    link: &Link,
    sockets: [OwnedFd; 2],
    load: Load,
) -> Result<Turn, Failure> {
    let window = Window::default();
    let in_flight = InFlight::new(window.clone(), load.window_bytes);
    let body = Body::from(vec![7; load.message_bytes]);
    let flood = Flood::new(Processor::new(setting, 0), body, load.messages, in_flight);
    let count = Count::new(Processor::new(setting, 1), window.clone());
    let [near, far] = sockets;
    let hosts =
        [Host { device: Box::new(flood), socket: near }, Host { device: Box::new(count), socket: far }];
    let sent_bytes = load.messages * load.message_bytes;
    turn(sent_bytes, &window, |begin| ours::run(link, hosts, begin).map(drop))
}

/// Measures a turn of bare sockets with `sender` and `receiver` on a processor each.
fn bare_turn(
    setting: &Setting,
    messages: usize,
    window: &Window,
    sender: impl FnOnce() -> Result<(), Failure> + Send,
    receiver: impl FnOnce() -> Result<(), Failure> + Send,
) -> Result<Turn, Failure> {
    turn(messages * MESSAGE_BYTES, window, |begin| {
        thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                setting.settle(1);
                receiver()
            });
            begin();
            let sender = scope.spawn(|| {
                setting.settle(0);
                let result = sender();
                window.finish();
                result
            });
            joined(sender)?;
            joined(receiver)
        })
    })
}

fn our_tcp(setting: &Setting) -> Result<Turn, Failure> {
    let (near, far) = connection(setting)?;
    let load = Load { messages: TCP_MESSAGES, message_bytes: MESSAGE_BYTES, window_bytes: u64::MAX };
    our_turn(setting, &tcp(setting, false)?, [near.into(), far.into()], load)
}

fn bare_tcp(setting: &Setting) -> Result<Turn, Failure> {
    let (near, far) = connection(setting)?;
    let window = Window::default();
    bare_turn(
        setting,
        TCP_MESSAGES,
        &window,
        || bare::flood(near, MESSAGE_BYTES, TCP_MESSAGES),
        || bare::drain(far, MESSAGE_BYTES, &window),
    )
}

pub(crate) fn datagram_pair() -> Result<(UdpSocket, UdpSocket), Failure> {
    let (near, far) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    near.connect(far.local_addr()?)?;
    far.connect(near.local_addr()?)?;
    for socket in [&near, &far] {
        rustix::net::sockopt::set_socket_recv_buffer_size(socket, SOCKET_BYTES)?;
        rustix::net::sockopt::set_socket_send_buffer_size(socket, SOCKET_BYTES)?;
    }
    Ok((near, far))
}

/// Returns UDP with datagrams of an Ethernet frame.
pub(crate) fn udp(both_ways: bool) -> Result<Link, Failure> {
    let (datagram, bytes) = (DATAGRAM_BYTES.to_string(), SOCKET_BYTES.to_string());
    let given = [("datagram", datagram.as_str()), ("socket_bytes", bytes.as_str())];
    let options = Options::check(Udp.options(), given)?;
    Ok(Link {
        transports: [&Udp, &Udp],
        options,
        format: Format::Bytes,
        class: FlowClass::Timely,
        both_ways,
        sealed: false,
    })
}

/// Returns QUIC with records in a stream.
pub(crate) fn quic(both_ways: bool) -> Result<Link, Failure> {
    let options = Options::defaults(Quic.options())?;
    Ok(Link {
        transports: [&Quic, &Quic],
        options,
        format: Format::Bytes,
        class: FlowClass::Reliable,
        both_ways,
        sealed: true,
    })
}

fn our_udp(setting: &Setting) -> Result<Turn, Failure> {
    let (near, far) = datagram_pair()?;
    let load = Load { messages: UDP_MESSAGES, message_bytes: MESSAGE_BYTES, window_bytes: WINDOW_BYTES };
    our_turn(setting, &udp(false)?, [near.into(), far.into()], load)
}

fn bare_udp(setting: &Setting) -> Result<Turn, Failure> {
    let (near, far) = datagram_pair()?;
    let window = Window::default();
    bare_turn(
        setting,
        UDP_MESSAGES,
        &window,
        || {
            let in_flight = InFlight::new(window.clone(), WINDOW_BYTES);
            bare::flood_datagrams(&near, DATAGRAM_BYTES, MESSAGE_BYTES, UDP_MESSAGES, in_flight)
        },
        || bare::drain_datagrams(&far, MESSAGE_BYTES, &window, PAUSE),
    )
}

fn figures(turns: &[Turn]) -> Value {
    let per_second: Vec<_> = turns.iter().map(|t| t.received_bytes as f64 / t.nanoseconds as f64).collect();
    let messages: f64 = turns.iter().map(|t| t.received_bytes as f64 / MESSAGE_BYTES as f64).sum();
    let cpu_ns: u64 = turns.iter().map(|t| t.used.cpu_ns).sum();
    let (sent, received) =
        turns.iter().fold((0, 0), |(sent, received), t| (sent + t.sent_bytes, received + t.received_bytes));
    json!({
        "gb_per_second": median(&per_second),
        "lost_share": 1.0 - received as f64 / sent.max(1) as f64,
        "cpu_us_per_message": cpu_ns as f64 / 1e3 / messages.max(1.0),
        "peak_memory_kib": turns.iter().map(|t| t.used.memory_kib).max(),
    })
}

/// Runs `flood`.
pub(crate) fn run(setting: &Setting) -> Result<Value, Failure> {
    println!(
        "Messages of {MESSAGE_BYTES} bytes; UDP in datagrams of {DATAGRAM_BYTES}; CPU of both ends together"
    );
    println!(
        "{:>5} {:>8} {:>8} {:>7} {:>14} {:>18} {:>20}",
        "", "GB/s", "bare", "ratio", "lost (bare)", "cpu us/msg (bare)", "peak KiB (bare)"
    );
    type Side = fn(&Setting) -> Result<Turn, Failure>;
    let transports: [(&str, Side, Side); 2] = [("tcp", our_tcp, bare_tcp), ("udp", our_udp, bare_udp)];
    let mut rows = Vec::new();
    for (name, our_side, bare_side) in transports {
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..setting.rounds {
            ours.push(our_side(setting)?);
            bare.push(bare_side(setting)?);
        }
        let speed = |turn: &Turn| turn.received_bytes as f64 / turn.nanoseconds as f64;
        let ratios: Vec<_> = ours.iter().zip(&bare).map(|(ours, bare)| speed(ours) / speed(bare)).collect();
        let ratio = median(&ratios);
        let (ours, bare) = (figures(&ours), figures(&bare));
        println!(
            "{name:>5} {:>8.2} {:>8.2} {ratio:>7.3} {:>6.2}% ({:.2}%) {:>9.1} ({:>6.1}) {:>11} ({:>6})",
            number(&ours["gb_per_second"]),
            number(&bare["gb_per_second"]),
            100.0 * number(&ours["lost_share"]),
            100.0 * number(&bare["lost_share"]),
            number(&ours["cpu_us_per_message"]),
            number(&bare["cpu_us_per_message"]),
            number(&ours["peak_memory_kib"]),
            number(&bare["peak_memory_kib"]),
        );
        rows.push(json!({ "transport": name, "ratio": ratio, "ours": ours, "bare": bare }));
    }
    Ok(json!({
        "experiment": "flood",
        "message_bytes": MESSAGE_BYTES,
        "datagram_bytes": DATAGRAM_BYTES,
        "window_bytes": WINDOW_BYTES,
        "congestion": setting.congestion,
        "rounds": setting.rounds,
        "rows": rows,
    }))
}
