//! Records and partners for the tests of all transports.

use contract::{
    Body, Bytes, Ctl, CtlReply, End, FlowKey, Message, Options, Partner, Pull, Pulled, Pushed, SealKeys,
    Secret, Time, TransportClass,
};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use wire::{Container, RecordHeader};

/// Time after which a test that waits fails.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

/// Returns a record with this body.
pub(crate) fn record(flow: u32, sequence: u64, body: &[u8]) -> Body {
    let container = Container { length: body.len() as u32, created: sequence * 7 };
    let mut record = Body::from(Bytes::copy_from_slice(body));
    record.push_front(&RecordHeader { flow, epoch: 3, sequence, container }.emit());
    record
}

/// Returns bytes that depend on their index and on `seed`.
pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed) as u8).collect()
}

/// Returns the hexadecimal digits of the line `name = …` in a file of `docs/reference/vectors`.
pub(crate) fn vector<'a>(vectors: &'a str, name: &str) -> &'a str {
    let digits = |line: &'a str| Some(line.strip_prefix(name)?.strip_prefix(" = ")?.trim());
    vectors.lines().find_map(digits).unwrap_or_else(|| panic!("there is no vector `{name}`"))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn partner(
    class: &dyn TransportClass,
    socket: impl Into<OwnedFd>,
    given: &[(&str, &str)],
) -> Box<dyn Partner> {
    let options = Options::check(class.options(), given.iter().copied()).expect("options");
    class.partner(socket.into(), End::Dialled, &options, None).expect("partner")
}

/// Returns the keys of both ends of a connection.
pub(crate) fn keys() -> [SealKeys; 2] {
    let [one, other] = [Secret([1; 32]), Secret([2; 32])];
    let here = SealKeys { sending: one.clone(), receiving: other.clone() };
    [here, SealKeys { sending: other, receiving: one }]
}

/// Returns both ends of a connection, sealed or bare.
pub(crate) fn partners(
    class: &dyn TransportClass,
    sockets: [OwnedFd; 2],
    sealed: bool,
    given: &[(&str, &str)],
) -> [Box<dyn Partner>; 2] {
    let options = Options::check(class.options(), given.iter().copied()).expect("options");
    let mut ends = [End::Dialled, End::Accepted].into_iter().zip(keys());
    sockets.map(|socket| {
        let (end, keys) = ends.next().expect("two of each");
        class.partner(socket, end, &options, sealed.then_some(&keys)).expect("partner")
    })
}

/// Returns both ends of a sealed connection.
pub(crate) fn sealed_partners(
    class: &dyn TransportClass,
    sockets: [OwnedFd; 2],
    given: &[(&str, &str)],
) -> [Box<dyn Partner>; 2] {
    partners(class, sockets, true, given)
}

/// Returns both ends of a TCP connection.
pub(crate) fn tcp_pair() -> [OwnedFd; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let here = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    [here.into(), listener.accept().expect("accept").0.into()]
}

/// Returns two UDP sockets that are connected to each other.
pub(crate) fn udp_pair() -> [OwnedFd; 2] {
    let [here, there] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("bind"));
    here.connect(there.local_addr().expect("address")).expect("connect");
    there.connect(here.local_addr().expect("address")).expect("connect");
    [here, there].map(|socket| {
        socket.set_nonblocking(true).expect("a socket that does not block");
        socket.into()
    })
}

/// Pushes a record, retrying until the partner has room, and flushes.
pub(crate) fn push(partner: &mut dyn Partner, record: Body) {
    push_while(partner, record, || ());
}

/// Like [`push`], while `peer` pulls and discards.
pub(crate) fn push_to(partner: &mut dyn Partner, peer: &mut dyn Partner, record: Body) {
    push_while(partner, record, || _ = peer.pull(FlowKey::DEFAULT, Pull::Yours).expect("pull"));
}

fn push_while(partner: &mut dyn Partner, record: Body, mut meanwhile: impl FnMut()) {
    let mut message = Message::new(Time::ZERO, record);
    let begun = Instant::now();
    while let Pushed::Full(back) =
        partner.push(FlowKey::DEFAULT, message).map_err(|(error, _)| error).expect("push")
    {
        if begun.elapsed() >= WATCHDOG {
            panic!("the partner stays full: {:?}", partner.ctl(FlowKey::DEFAULT, Ctl::Report));
        }
        message = back;
        meanwhile();
    }
    partner.ctl(FlowKey::DEFAULT, Ctl::Flush).expect("flush");
}

/// Pulls until a record arrives; `None` at the end.
pub(crate) fn pull(partner: &mut dyn Partner) -> Option<(FlowKey, Body)> {
    pull_while(partner, || ())
}

/// Like [`pull`], while `peer` processes acknowledgements.
pub(crate) fn pull_from(partner: &mut dyn Partner, peer: &mut dyn Partner) -> Option<(FlowKey, Body)> {
    pull_while(partner, || _ = peer.pull(FlowKey::DEFAULT, Pull::Yours).expect("pull"))
}

fn pull_while(partner: &mut dyn Partner, mut meanwhile: impl FnMut()) -> Option<(FlowKey, Body)> {
    let begun = Instant::now();
    loop {
        meanwhile();
        match partner.pull(FlowKey::DEFAULT, Pull::Yours).expect("pull") {
            Pulled::Message(flow, message) => return Some((flow, message.body)),
            Pulled::End => return None,
            Pulled::Nothing => assert!(begun.elapsed() < WATCHDOG, "no record arrives"),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns one figure of a partner's report.
pub(crate) fn figure(partner: &mut dyn Partner, name: &str) -> f64 {
    let Ok(CtlReply::Report(report)) = partner.ctl(FlowKey::DEFAULT, Ctl::Report) else {
        panic!("no report")
    };
    report.iter().find(|(known, _)| *known == name).expect("the figure").1
}
