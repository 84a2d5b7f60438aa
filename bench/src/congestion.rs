//! `quic` and `udp`, sealed, over a thin and lossy link, which `netsim`'s relay makes of loopback: what a flood carries, and
//! how late small records are beside it, under each congestion control; and what loss does to small records alone, as a
//! reliable flow and as a timely one. Each flow has a connection of its own, as between two hosts; small records over
//! `quic` beside a flood over `udp` are what their control channel is.

use crate::Failure;
use crate::measure::Times;
use clap::Args;
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, End, FlowClass, FlowKey, FlowTemplate, Format, Interest,
    Message, Options, Partner, Pull, Pulled, Pushed, SealKeys, Secret, Time, TransportClass,
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

/// How long and how.
#[derive(Args, Debug)]
pub(crate) struct CongestionSetting {
    /// Seconds that are measured of each case
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// What the link's losses follow
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure only what a flood over this does: a congestion control of `quic`, or `udp`
    #[arg(long, value_name = "WAY")]
    over: Option<String>,
}

/// The lab's link, one way.
const LINK: &str = "rate=10mbit,delay=20ms";
const LINKS: [&str; 4] = ["queue=100", "queue=1000", "queue=100,loss=1%", "queue=100,loss=5%"];
const CONTROLS: [&str; 3] = ["cubic", "newreno", "bbr"];
/// Of small records alone.
const LOSSES: [&str; 3] = ["loss=1%", "loss=3%", "loss=5%"];
/// Bytes of a record of the flood.
const LARGE_BYTES: usize = 50_000;
/// Bytes of a small record, and time between two: a device that says 100 times a second where it is.
const SMALL_BYTES: usize = 64;
const SMALL_INTERVAL: Duration = Duration::from_millis(10);
/// Until the flood has found its rate.
const WARM_UP: Duration = Duration::from_secs(3);
/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// What may have been lost of its beginning is said again so often.
const AGAIN: Duration = Duration::from_millis(200);
/// Longest that one wait takes.
const WAIT_MAX: Duration = Duration::from_millis(5);
/// Ethernet's, as the link would have it.
const DATAGRAM_BYTES: &str = "1472";

/// The links and ways of a flood over `udp`: the small records' transport.
const OVER_UDP: [(&str, Way); 7] = [
    ("queue=100", Way::Udp),
    ("queue=100", Way::Quic(CONTROLS[0])),
    ("delay=50ms,queue=100", Way::Udp),
    ("delay=50ms,queue=100", Way::Quic(CONTROLS[0])),
    ("queue=100,loss=5%", Way::Udp),
    ("queue=100,loss=20%", Way::Udp),
    ("delay=50ms,queue=100,loss=20%", Way::Udp),
];

/// A transport, and its congestion control where that can be chosen.
#[derive(Clone, Copy)]
enum Way {
    Quic(&'static str),
    Udp,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Quic(control) => control,
            Way::Udp => "udp",
        }
    }

    fn partner(self, socket: OwnedFd, end: End, keys: &SealKeys) -> Result<Box<dyn Partner>, Failure> {
        let datagram = ("datagram", DATAGRAM_BYTES);
        let (class, given): (&dyn TransportClass, _) = match self {
            Way::Quic(control) => (&Quic, vec![("congestion", control), datagram]),
            Way::Udp => (&Udp, vec![datagram]),
        };
        Ok(class.partner(socket, end, &Options::check(class.options(), given)?, Some(keys))?)
    }
}

/// What crosses the link.
#[derive(Clone, Copy)]
struct Case {
    link: &'static str,
    small: Way,
    class: FlowClass,
    flood: Option<Way>,
}

/// What came of it.
#[derive(Default)]
struct Came {
    flood_bytes: u64,
    small: Times,
    /// Small records that were made meanwhile.
    made: usize,
    /// Of the flood's bytes that were sent, those that were sent again, where the transport says so.
    again: Option<f64>,
}

fn now() -> Time {
    Time(sys::clock::boot_ns())
}

fn keys() -> [SealKeys; 2] {
    let [one, other] = [Secret([1; 32]), Secret([2; 32])];
    [SealKeys { sending: one.clone(), receiving: other.clone() }, SealKeys { sending: other, receiving: one }]
}

fn partner(socket: OwnedFd, end: End, way: Way, class: FlowClass) -> Result<Box<dyn Partner>, Failure> {
    let [near, far] = keys();
    let (keys, direction) = match end {
        End::Dialled => (near, Direction::In),
        End::Accepted => (far, Direction::Out),
    };
    let mut partner = way.partner(socket, end, &keys)?;
    partner.open(&FlowTemplate { direction, format: Format::Bytes, class }, &Attributes::default())?;
    Ok(partner)
}

/// Both ends of a connection through the relay to `listener`.
fn connected(
    relay: &Relay,
    listener: &UdpSocket,
    way: Way,
    class: FlowClass,
) -> Result<[Box<dyn Partner>; 2], Failure> {
    let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    near.connect(relay.address())?;
    near.set_nonblocking(true)?;
    let mut near = partner(near.into(), End::Dialled, way, class)?;
    // Its first word tells where it comes from, and is said again.
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
    let mut far = partner(far, End::Accepted, way, class)?;
    let mut said = now();
    loop {
        let mut poller = Poller::new()?;
        for end in [&mut near, &mut far] {
            end.ctl(FlowKey::DEFAULT, Ctl::Flush)?;
            end.ctl(FlowKey::DEFAULT, Ctl::Heard)?;
            want(end.as_ref(), &mut poller);
        }
        if let Pulled::Message(..) = far.pull(FlowKey::DEFAULT, Pull::Yours)? {
            return Ok([near, far]);
        }
        if now().since(begun) > PATIENCE {
            return Err("no connection comes about over the link".into());
        }
        // What the listener took is lost to whom it was for.
        if now().since(said) > AGAIN {
            said = now();
            push(near.as_mut(), 0, Body::default())?;
        }
        poller.wait(Some(WAIT_MAX))?;
    }
}

/// A socket of a port that others have too.
fn reusable(address: SocketAddr) -> Result<OwnedFd, Failure> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    Ok(socket)
}

/// Whether it was taken.
fn push(end: &mut dyn Partner, sequence: u64, body: Body) -> Result<bool, Failure> {
    let container = Container { length: body.len() as u32, created: now().0 };
    let mut record = body;
    record.push_front(&RecordHeader { flow: 1, epoch: 0, sequence, container }.emit());
    match end.push(FlowKey::DEFAULT, Message::new(Time::ZERO, record)) {
        Ok(pushed) => Ok(matches!(pushed, Pushed::Taken)),
        Err((error, _)) => Err(error.into()),
    }
}

/// Has `poller` wait for what an end wants, which may have something to send; for so long at most.
fn want(end: &dyn Partner, poller: &mut Poller) -> Duration {
    let mut wait = WAIT_MAX;
    for readiness in [Direction::In, Direction::Out]
        .map(|direction| end.readiness(FlowKey::DEFAULT, direction))
        .into_iter()
        .chain([end.upkeep()])
    {
        for (descriptor, interest) in readiness.descriptors.into_iter().flatten() {
            poller.want(descriptor, interest == Interest::Read, interest == Interest::Write);
        }
        wait = readiness.at.map_or(wait, |at| at.since(now()).min(wait));
    }
    wait
}

/// Sends until `until`: small records at their times, the flood as fast as it is taken. Gives the share of the flood's
/// bytes that were sent again.
fn send(mut ends: Vec<Box<dyn Partner>>, until: Time) -> Result<Option<f64>, Failure> {
    let mut poller = Poller::new()?;
    let large = Body::from(vec![7; LARGE_BYTES]);
    let (mut sequence, mut due) = (1, now());
    while now() < until {
        if now() >= due {
            // Of a flow that is slowed down the next is as good: there it is not made.
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
            // No record comes, but what the receiver tells.
            end.pull(FlowKey::DEFAULT, Pull::Yours)?;
            end.ctl(FlowKey::DEFAULT, Ctl::Flush)?;
            end.ctl(FlowKey::DEFAULT, Ctl::Heard)?;
            wait = wait.min(want(end.as_ref(), &mut poller));
        }
        poller.wait(Some(wait))?;
    }
    let Some(flood) = ends.get_mut(1) else { return Ok(None) };
    let CtlReply::Report(report) = flood.ctl(FlowKey::DEFAULT, Ctl::Report)? else { return Ok(None) };
    let figure = |wanted: &str| report.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
    let ratio = |again: f64| Some(again / figure("sent_datagrams")?.max(1.0));
    Ok(figure("again_datagrams").and_then(ratio))
}

/// Receives until `until`, and counts what was made from `from` on.
fn receive(mut ends: Vec<Box<dyn Partner>>, from: Time, until: Time) -> Result<Came, Failure> {
    let mut poller = Poller::new()?;
    let mut came = Came::default();
    while now() < until {
        let mut wait = WAIT_MAX;
        for (number, end) in ends.iter_mut().enumerate() {
            // When a host stops, its last word may come before the others do.
            while let Ok(Pulled::Message(_, message)) = end.pull(FlowKey::DEFAULT, Pull::Yours) {
                let Some(header) = message.body.peek_front::<{ RecordHeader::BYTES }>() else { continue };
                let created = RecordHeader::parse(&header, wire::BODY_BYTES_MAX)?.container.created;
                match number {
                    0 if created >= from.0 => came.small.add(now().0.saturating_sub(created)),
                    1 if now() >= from => came.flood_bytes += message.body.len() as u64,
                    _ => {}
                }
            }
            let _ = end.ctl(FlowKey::DEFAULT, Ctl::Flush);
            wait = wait.min(want(end.as_ref(), &mut poller));
        }
        poller.wait(Some(wait))?;
    }
    Ok(came)
}

fn run_case(setting: &CongestionSetting, case: Case) -> Result<Came, Failure> {
    let listener = UdpSocket::from(reusable((Ipv4Addr::LOCALHOST, 0).into())?);
    listener.set_read_timeout(Some(AGAIN))?;
    let mut params = Params::default();
    params.apply(LINK).and_then(|()| params.apply(case.link))?;
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let relay = Relay::start(listen, listener.local_addr()?, params, setting.seed)?;
    let [small, small_far] = connected(&relay, &listener, case.small, case.class)?;
    let (mut near, mut far) = (vec![small], vec![small_far]);
    if let Some(way) = case.flood {
        let [flood, flood_far] = connected(&relay, &listener, way, FlowClass::Reliable)?;
        near.push(flood);
        far.push(flood_far);
    }
    let from = now().after(WARM_UP);
    let until = from.after(Duration::from_secs_f64(setting.seconds));
    let mut came = thread::scope(|scope| {
        let sender = scope.spawn(|| send(near, until));
        let came = receive(far, from, until);
        let again = sender.join().map_err(|_| "the sender panicked")??;
        came.map(|came| Came { again, ..came })
    })?;
    came.made = (setting.seconds / SMALL_INTERVAL.as_secs_f64()) as usize;
    Ok(came)
}

fn row(setting: &CongestionSetting, case: Case) -> Result<Value, Failure> {
    let came = run_case(setting, case)?;
    let mbit = came.flood_bytes as f64 * 8.0 / 1e6 / setting.seconds;
    let [p50, p99] = [0.5, 0.99].map(|share| came.small.percentile_us(share) / 1e3);
    let missing = 1.0 - came.small.count() as f64 / came.made.max(1) as f64;
    let beside = case.flood.map_or("nothing", Way::name);
    let again = came.again.map_or(String::new(), |again| format!("{:.2}%", again * 100.0));
    println!(
        "{:<22} {:<8} {:<9} {beside:<8} {mbit:>7.2} {p50:>9.1} {p99:>9.1} {:>8.2}% {again:>9}",
        case.link,
        case.small.name(),
        format!("{:?}", case.class).to_lowercase(),
        missing.max(0.0) * 100.0
    );
    Ok(json!({ "link": case.link, "small_over": case.small.name(), "timely": case.class == FlowClass::Timely,
               "flood_over": case.flood.map(Way::name), "flood_sent_again": came.again, "flood_mbit": mbit, "small_p50_ms": p50, "small_p99_ms": p99,
               "small_missing": missing }))
}

/// Measures and prints; gives the figures.
pub(crate) fn run(setting: &CongestionSetting) -> Result<Value, Failure> {
    println!(
        "{LINK}; {SMALL_BYTES} B every {SMALL_INTERVAL:?}, measured for {} s; seed {}",
        setting.seconds, setting.seed
    );
    println!(
        "{:<22} {:<8} {:<9} {:<8} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "", "over", "small", "beside", "Mbit/s", "p50 ms", "p99 ms", "missing", "again"
    );
    let mut cases = Vec::new();
    for link in LINKS {
        for way in CONTROLS.map(Way::Quic) {
            cases.push(Case { link, small: way, class: FlowClass::Reliable, flood: Some(way) });
        }
    }
    for (link, small) in OVER_UDP {
        cases.push(Case { link, small, class: FlowClass::Reliable, flood: Some(Way::Udp) });
    }
    for link in LOSSES {
        for class in [FlowClass::Reliable, FlowClass::Timely] {
            cases.push(Case { link, small: Way::Quic(CONTROLS[0]), class, flood: None });
        }
    }
    let is_wanted = |case: &Case| match &setting.over {
        None => true,
        Some(only) => case.flood.is_some_and(|way| way.name() == only),
    };
    let rows = cases.into_iter().filter(is_wanted).map(|case| row(setting, case));
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    Ok(json!({ "experiment": "congestion", "seconds": setting.seconds, "seed": setting.seed, "rows": rows }))
}
