//! `quic` and `udp`, sealed, over a thin and lossy link emulated by `netsim`'s relay: throughput of a flood, delay of small
//! records beside it under each congestion control, and the effect of loss on small records of a reliable and of a timely flow.
//!
//! Each flow has its own connection. Small records over `quic` beside a flood over `udp` are like its control channel.

use crate::measure::Times;
use crate::setting::Failure;
use clap::Args;
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, End, FlowClass, FlowKey, FlowTemplate, Format, Interest,
    Message, Options, Partner, Pull, Pulled, Pushed, SealKeys, Secret, Time, TransportClass, TransportCtl,
};
use netsim::Params;
use netsim::relay::Relay;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;
use sys::poller::Poller;
use transports::quic::Quic;
use transports::udp::Udp;
use wire::{Container, RecordHeader};

/// The settings of `congestion`.
#[derive(Args, Debug)]
pub(crate) struct CongestionSetting {
    /// Measured seconds of each case
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Seed of the link's losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure only a flood over this: a congestion control of `quic`, or `udp`
    #[arg(long, value_name = "TRANSPORT")]
    over: Option<String>,
}

/// The emulated link in one direction.
const LINK: &str = "rate=10mbit,delay=20ms";
const LINKS: [&str; 4] = ["queue=100", "queue=1000", "queue=100,loss=1%", "queue=100,loss=5%"];
/// The default first.
const CONTROLS: [&str; 4] = ["rate", "cubic", "newreno", "bbr"];
/// Losses for small records alone.
const LOSSES: [&str; 3] = ["loss=1%", "loss=3%", "loss=5%"];
/// Bytes of a record of the flood.
const LARGE_BYTES: usize = 50_000;
/// Bytes and interval of small records: a device with 100 position reports a second.
const SMALL_BYTES: usize = 64;
const SMALL_INTERVAL: Duration = Duration::from_millis(10);
/// The time in which the flood finds its rate.
const WARM_UP: Duration = Duration::from_secs(3);
/// The longest setup of a connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// The interval of repeated first messages, which may be lost.
const REPEAT: Duration = Duration::from_millis(200);
/// The longest single wait.
const WAIT_MAX: Duration = Duration::from_millis(5);
/// Datagrams of an Ethernet frame.
const DATAGRAM_BYTES: &str = "1472";

/// Links of a flood over `udp`, and the transport of the small records.
const OVER_UDP: [(&str, Carrier); 7] = [
    ("queue=100", Carrier::Udp),
    ("queue=100", Carrier::Quic(CONTROLS[0])),
    ("delay=50ms,queue=100", Carrier::Udp),
    ("delay=50ms,queue=100", Carrier::Quic(CONTROLS[0])),
    ("queue=100,loss=5%", Carrier::Udp),
    ("queue=100,loss=20%", Carrier::Udp),
    ("delay=50ms,queue=100,loss=20%", Carrier::Udp),
];

/// A transport, with its congestion control if it has one.
#[derive(Clone, Copy)]
enum Carrier {
    Quic(&'static str),
    Udp,
}

impl Carrier {
    fn name(self) -> &'static str {
        match self {
            Carrier::Quic(control) => control,
            Carrier::Udp => "udp",
        }
    }

    fn partner(self, socket: OwnedFd, end: End, keys: &SealKeys) -> Result<Box<dyn Partner>, Failure> {
        let datagram = ("datagram", DATAGRAM_BYTES);
        let (class, given): (&dyn TransportClass, _) = match self {
            Carrier::Quic(control) => (&Quic, vec![("congestion", control), datagram]),
            Carrier::Udp => (&Udp, vec![datagram]),
        };
        Ok(class.partner(socket, end, &Options::check(class.options(), given)?, Some(keys))?)
    }
}

/// The flows of one case.
#[derive(Clone, Copy)]
struct Case {
    link: &'static str,
    small: Carrier,
    class: FlowClass,
    flood: Option<Carrier>,
}

/// The result of a case.
#[derive(Default)]
struct Measured {
    flood_bytes: u64,
    small: Times,
    /// Small records created in the measured time.
    made: usize,
    /// Share of the flood's datagrams that are retransmissions, if the transport reports it.
    again: Option<f64>,
}

fn now() -> Time {
    Time(sys::clock::boot_ns())
}

fn keys() -> [SealKeys; 2] {
    let [one, other] = [Secret([1; 32]), Secret([2; 32])];
    [SealKeys { sending: one.clone(), receiving: other.clone() }, SealKeys { sending: other, receiving: one }]
}

fn partner(
    socket: OwnedFd,
    end: End,
    carrier: Carrier,
    class: FlowClass,
) -> Result<Box<dyn Partner>, Failure> {
    let [near, far] = keys();
    let (keys, direction) = match end {
        End::Dialled => (near, Direction::In),
        End::Accepted => (far, Direction::Out),
    };
    let mut partner = carrier.partner(socket, end, &keys)?;
    partner.open(&FlowTemplate { direction, format: Format::Bytes, class }, &Attributes::default())?;
    Ok(partner)
}

/// Returns both ends of a connection through the relay to `listener`.
fn connected(
    relay: &Relay,
    listener: &UdpSocket,
    carrier: Carrier,
    class: FlowClass,
) -> Result<[Box<dyn Partner>; 2], Failure> {
    let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    near.connect(relay.address())?;
    near.set_nonblocking(true)?;
    let mut near = partner(near.into(), End::Dialled, carrier, class)?;
    // The first message shows the near end's address. It is repeated because it may be lost.
    let begun = now();
    let peer = loop {
        push(near.as_mut(), 0, Body::default())?;
        near.ctl(FlowKey::DEFAULT, Ctl::Flush)?;
        match listener.recv_from(&mut [0; 2048]) {
            Ok((_, peer)) => break peer,
            Err(error) if now().since(begun) > PATIENCE => return Err(error.into()),
            Err(_) => {}
        }
    };
    let far = reusable(listener.local_addr()?)?;
    connect(&far, &peer)?;
    rustix::io::ioctl_fionbio(&far, true)?;
    let mut far = partner(far, End::Accepted, carrier, class)?;
    let mut sent = now();
    loop {
        let mut poller = Poller::new()?;
        for end in [&mut near, &mut far] {
            end.ctl(FlowKey::DEFAULT, Ctl::Flush)?;
            end.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Received))?;
            register(end.as_ref(), &mut poller);
        }
        if let Pulled::Message(..) = far.pull(FlowKey::DEFAULT, Pull::Yours)? {
            return Ok([near, far]);
        }
        if now().since(begun) > PATIENCE {
            return Err("the link makes no connection".into());
        }
        // The listener has consumed the first message, so it is sent again.
        if now().since(sent) > REPEAT {
            sent = now();
            push(near.as_mut(), 0, Body::default())?;
        }
        poller.wait(Some(WAIT_MAX))?;
    }
}

/// Returns a socket with a shared port.
fn reusable(address: SocketAddr) -> Result<OwnedFd, Failure> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    Ok(socket)
}

/// Sends a record. Returns false if the transport is full.
fn push(end: &mut dyn Partner, sequence: u64, body: Body) -> Result<bool, Failure> {
    let container = Container { length: body.len() as u32, created: now().0 };
    let mut record = body;
    record.push_front(&RecordHeader { flow: 1, epoch: 0, sequence, container }.emit());
    match end.push(FlowKey::DEFAULT, Message::new(Time::ZERO, record)) {
        Ok(pushed) => Ok(matches!(pushed, Pushed::Taken)),
        Err((error, _)) => Err(error.into()),
    }
}

/// Registers an end's descriptors with `poller`. Returns the longest wait.
fn register(end: &dyn Partner, poller: &mut Poller) -> Duration {
    let mut wait = WAIT_MAX;
    for readiness in [Direction::In, Direction::Out]
        .map(|direction| end.readiness(FlowKey::DEFAULT, direction))
        .into_iter()
        .chain([end.upkeep()])
    {
        for (descriptor, interest) in readiness.descriptors.into_iter().flatten() {
            poller.register(descriptor, interest == Interest::Read, interest == Interest::Write);
        }
        wait = readiness.at.map_or(wait, |at| at.since(now()).min(wait));
    }
    wait
}

/// Sends until `until`: small records at their times, the flood as fast as the transport takes it. Returns the share of the
/// flood's datagrams that are retransmissions.
fn send(mut ends: Vec<Box<dyn Partner>>, until: Time) -> Result<Option<f64>, Failure> {
    let mut poller = Poller::new()?;
    let large = Body::from(vec![7; LARGE_BYTES]);
    let (mut sequence, mut due) = (1, now());
    while now() < until {
        if now() >= due {
            // A full transport drops the record: the next one replaces it.
            push(ends[0].as_mut(), sequence, Body::from(vec![3; SMALL_BYTES]))?;
            due = due.after(SMALL_INTERVAL);
            sequence += 1;
        }
        while let Some(flood) = ends.get_mut(1)
            && push(flood.as_mut(), sequence, large.clone())?
        {
            sequence += 1;
        }
        let mut wait = due.since(now()).min(WAIT_MAX);
        for end in &mut ends {
            // The pull handles the receiver's feedback. No record arrives here.
            end.pull(FlowKey::DEFAULT, Pull::Yours)?;
            end.ctl(FlowKey::DEFAULT, Ctl::Flush)?;
            end.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Received))?;
            wait = wait.min(register(end.as_ref(), &mut poller));
        }
        poller.wait(Some(wait))?;
    }
    let Some(flood) = ends.get_mut(1) else { return Ok(None) };
    let CtlReply::Report(report) = flood.ctl(FlowKey::DEFAULT, Ctl::Report)? else { return Ok(None) };
    let figure = |key: &str| report.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    let ratio = |again: f64| Some(again / figure("sent_datagrams")?.max(1.0));
    Ok(figure("retransmitted_datagrams").and_then(ratio))
}

/// Receives until `until` and counts records created since `from`.
fn receive(mut ends: Vec<Box<dyn Partner>>, from: Time, until: Time) -> Result<Measured, Failure> {
    let mut poller = Poller::new()?;
    let mut measured = Measured::default();
    while now() < until {
        let mut wait = WAIT_MAX;
        for (number, end) in ends.iter_mut().enumerate() {
            // An end may close before the others.
            while let Ok(Pulled::Message(_, message)) = end.pull(FlowKey::DEFAULT, Pull::Yours) {
                let Some(header) = message.body.peek_front::<{ RecordHeader::BYTES }>() else { continue };
                let created = RecordHeader::parse(&header, wire::BODY_BYTES_MAX)?.container.created;
                match number {
                    0 if created >= from.0 => measured.small.add(now().0.saturating_sub(created)),
                    1 if now() >= from => measured.flood_bytes += message.body.len() as u64,
                    _ => {}
                }
            }
            let _ = end.ctl(FlowKey::DEFAULT, Ctl::Flush);
            wait = wait.min(register(end.as_ref(), &mut poller));
        }
        poller.wait(Some(wait))?;
    }
    Ok(measured)
}

fn run_case(setting: &CongestionSetting, case: Case) -> Result<Measured, Failure> {
    let listener = UdpSocket::from(reusable((Ipv4Addr::LOCALHOST, 0).into())?);
    listener.set_read_timeout(Some(REPEAT))?;
    let mut params = Params::default();
    params.apply(LINK).and_then(|()| params.apply(case.link))?;
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let relay = Relay::start(listen, listener.local_addr()?, params, setting.seed)?;
    let [small, small_far] = connected(&relay, &listener, case.small, case.class)?;
    let (mut near, mut far) = (vec![small], vec![small_far]);
    if let Some(carrier) = case.flood {
        let [flood, flood_far] = connected(&relay, &listener, carrier, FlowClass::Reliable)?;
        near.push(flood);
        far.push(flood_far);
    }
    let from = now().after(WARM_UP);
    let until = from.after(Duration::from_secs_f64(setting.seconds));
    let mut measured = thread::scope(|scope| {
        let sender = scope.spawn(|| send(near, until));
        let measured = receive(far, from, until);
        let again = sender.join().map_err(|_| "the sender panicked")??;
        measured.map(|measured| Measured { again, ..measured })
    })?;
    measured.made = (setting.seconds / SMALL_INTERVAL.as_secs_f64()) as usize;
    Ok(measured)
}

fn row(setting: &CongestionSetting, case: Case) -> Result<Value, Failure> {
    let measured = run_case(setting, case)?;
    let mbit = measured.flood_bytes as f64 * 8.0 / 1e6 / setting.seconds;
    let [p50, p99] = [0.5, 0.99].map(|share| measured.small.percentile_us(share) / 1e3);
    let missing = 1.0 - measured.small.count() as f64 / measured.made.max(1) as f64;
    let beside = case.flood.map_or("nothing", Carrier::name);
    let again = measured.again.map_or(String::new(), |again| format!("{:.2}%", again * 100.0));
    println!(
        "{:<30} {:<8} {:<9} {beside:<8} {mbit:>7.2} {p50:>9.1} {p99:>9.1} {:>8.2}% {again:>9}",
        case.link,
        case.small.name(),
        format!("{:?}", case.class).to_lowercase(),
        missing.max(0.0) * 100.0
    );
    Ok(json!({ "link": case.link, "small_over": case.small.name(), "timely": case.class == FlowClass::Timely,
               "flood_over": case.flood.map(Carrier::name), "flood_retransmitted": measured.again, "flood_mbit": mbit, "small_p50_ms": p50, "small_p99_ms": p99,
               "small_missing": missing }))
}

/// Runs `congestion`.
pub(crate) fn run(setting: &CongestionSetting) -> Result<Value, Failure> {
    println!(
        "{LINK}; {SMALL_BYTES} B every {SMALL_INTERVAL:?}, measured for {} s; seed {}",
        setting.seconds, setting.seed
    );
    println!(
        "{:<30} {:<8} {:<9} {:<8} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "", "over", "class", "flood", "Mbit/s", "p50 ms", "p99 ms", "missing", "resent"
    );
    let mut cases = Vec::new();
    for link in LINKS {
        for carrier in CONTROLS.map(Carrier::Quic) {
            cases.push(Case { link, small: carrier, class: FlowClass::Reliable, flood: Some(carrier) });
        }
    }
    for (link, small) in OVER_UDP {
        cases.push(Case { link, small, class: FlowClass::Reliable, flood: Some(Carrier::Udp) });
    }
    for link in LOSSES {
        for class in [FlowClass::Reliable, FlowClass::Timely] {
            cases.push(Case { link, small: Carrier::Quic(CONTROLS[0]), class, flood: None });
        }
    }
    let is_wanted = |case: &Case| match &setting.over {
        None => true,
        Some(only) => case.flood.is_some_and(|carrier| carrier.name() == only),
    };
    let rows = cases.into_iter().filter(is_wanted).map(|case| row(setting, case));
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    Ok(json!({ "experiment": "congestion", "seconds": setting.seconds, "seed": setting.seed, "rows": rows }))
}
