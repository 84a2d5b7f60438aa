//! Records and partners for the tests of every transport.

use contract::{
    Body, Bytes, Ctl, CtlReply, FlowKey, Message, Options, Partner, Pull, Pulled, Pushed, SealKeys, Secret,
    Time, TransportClass,
};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use wire::{Container, RecordHeader};

/// How long a test waits for what must come.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(30);

/// A record with `body` behind its header.
pub(crate) fn record(flow: u32, sequence: u64, body: &[u8]) -> Body {
    let container = Container { length: body.len() as u32, created: sequence * 7 };
    let mut record = Body::from(Bytes::copy_from_slice(body));
    record.push_front(&RecordHeader { flow, epoch: 3, sequence, container }.emit());
    record
}

/// Bytes that differ from place to place and from record to record.
pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed) as u8).collect()
}

pub(crate) fn partner(
    class: &dyn TransportClass,
    socket: impl Into<OwnedFd>,
    given: &[(&str, &str)],
) -> Box<dyn Partner> {
    let options = Options::check(class.options(), given.iter().copied()).expect("options");
    class.partner(socket.into(), &options, None).expect("partner")
}

/// Both ends of a sealed connection.
pub(crate) fn sealed_partners(
    class: &dyn TransportClass,
    sockets: [OwnedFd; 2],
    given: &[(&str, &str)],
) -> [Box<dyn Partner>; 2] {
    let options = Options::check(class.options(), given.iter().copied()).expect("options");
    let [one, other] = [Secret([1; 32]), Secret([2; 32])];
    let here = SealKeys { sending: one.clone(), receiving: other.clone() };
    let there = SealKeys { sending: other, receiving: one };
    let mut keys = [here, there].into_iter();
    sockets.map(|socket| class.partner(socket, &options, keys.next().as_ref()).expect("partner"))
}

/// Pushes a record that there must be room for in time, and flushes.
pub(crate) fn push(partner: &mut dyn Partner, record: Body) {
    let mut message = Message::new(Time::ZERO, record);
    let begun = Instant::now();
    while let Pushed::Full(back) =
        partner.push(FlowKey::DEFAULT, message).map_err(|(error, _)| error).expect("push")
    {
        assert!(begun.elapsed() < WATCHDOG, "never takes the record");
        message = back;
    }
    partner.ctl(FlowKey::DEFAULT, Ctl::Flush).expect("flush");
}

/// Pulls until there is something; `None` at the end.
pub(crate) fn pull(partner: &mut dyn Partner) -> Option<(FlowKey, Body)> {
    let begun = Instant::now();
    loop {
        match partner.pull(FlowKey::DEFAULT, Pull::Yours).expect("pull") {
            Pulled::Message(flow, message) => return Some((flow, message.body)),
            Pulled::End => return None,
            Pulled::Nothing => assert!(begun.elapsed() < WATCHDOG, "nothing comes"),
            other => panic!("{other:?}"),
        }
    }
}

/// One figure of a partner's report.
pub(crate) fn figure(partner: &mut dyn Partner, name: &str) -> f64 {
    let Ok(CtlReply::Report(report)) = partner.ctl(FlowKey::DEFAULT, Ctl::Report) else {
        panic!("no report")
    };
    report.iter().find(|(known, _)| *known == name).expect("the figure").1
}
