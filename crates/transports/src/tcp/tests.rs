//! Tests of the transport `tcp` and of the deframer.

use super::*;
use crate::deframer::Deframer;
use crate::test_records::{WATCHDOG, figure, partner, pattern, pull, push, record};
use contract::Body;
use proptest::prelude::*;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Instant;
use sys::net::Room;

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let here = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    (here, listener.accept().expect("accept").0)
}

/// Feeds `stream` to a deframer in pieces with the sizes `cuts`. Returns its records.
fn records_of(
    deframer: &mut Deframer,
    mut stream: &[u8],
    cuts: &[usize],
) -> Result<Vec<(u32, Body)>, wire::WireError> {
    let mut records = Vec::new();
    for &cut in cuts.iter().cycle() {
        while let Some(record) = deframer.next()? {
            records.push((record.0, Body::from(record.1.freeze())));
        }
        if stream.is_empty() {
            return Ok(records);
        }
        let given = deframer.receive(|rooms: [Room<'_>; 2]| {
            let offered: usize = rooms.iter().map(Room::bytes).sum();
            assert!(offered > 0, "a deframer always has room");
            let mut left = cut.min(stream.len());
            let before = stream.len();
            for room in rooms {
                let (here, rest) = stream.split_at(left.min(room.bytes()));
                let capacity = room.buffer.capacity();
                room.buffer.extend_from_slice(here);
                assert_eq!(room.buffer.capacity(), capacity);
                stream = rest;
                left -= here.len();
            }
            Ok(before - stream.len())
        });
        assert!(given.is_ok());
    }
    Ok(records)
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0..200usize, 4 => 0..20_000usize, 2 => 16_000..200_000usize, 1 => 1_000_000..2_500_000usize]
}

fn cut() -> impl Strategy<Value = usize> {
    prop_oneof![1..8usize, 1..3000usize, 1..1_000_000usize]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_stream_cut_anywhere_yields_the_same_records(
        lengths in prop::collection::vec(length(), 1..12),
        mut cuts in prop::collection::vec(cut(), 1..20),
    ) {
        cuts.push(50_000);
        let sent: Vec<_> =
            lengths.iter().zip(0..).map(|(&n, i)| (i as u32 % 3, record(i as u32 % 3, i, &pattern(n, i)))).collect();
        let stream: Vec<u8> = sent.iter().flat_map(|(_, body)| body.clone().into_bytes()).collect();
        let mut deframer = Deframer::new(wire::BODY_BYTES_MAX, 0, 16 << 20);
        // The second round reuses buffers.
        for _ in 0..2 {
            let received = records_of(&mut deframer, &stream, &cuts).expect("well formed");
            prop_assert_eq!(&received, &sent);
            prop_assert!(deframer.is_at_record_boundary());
        }
    }

    #[test]
    fn garbage_neither_panics_nor_hangs(
        garbage in prop::collection::vec(any::<u8>(), 0..5000),
        cuts in prop::collection::vec(1..700usize, 1..5),
        max in 0..4096usize,
    ) {
        let mut deframer = Deframer::new(max, 0, 16 << 20);
        if let Ok(records) = records_of(&mut deframer, &garbage, &cuts) {
            let bytes: usize = records.iter().map(|(_, body)| body.len()).sum();
            prop_assert!(bytes <= garbage.len());
        }
    }
}

#[test]
fn consecutive_large_records_reuse_one_buffer() {
    let mut deframer = Deframer::new(wire::BODY_BYTES_MAX, 0, 16 << 20);
    let stream: Vec<u8> = (0..8).flat_map(|i| record(1, i, &pattern(1_000_000, i)).into_bytes()).collect();
    let mut places = Vec::new();
    let mut stream = &stream[..];
    while !stream.is_empty() {
        deframer
            .receive(|rooms| {
                let before = stream.len();
                for room in rooms {
                    let (here, rest) = stream.split_at(room.bytes().min(stream.len()));
                    room.buffer.extend_from_slice(here);
                    stream = rest;
                }
                Ok(before - stream.len())
            })
            .expect("fill");
        while let Some((_, body)) = deframer.next().expect("well formed") {
            places.push(Some(body.as_ptr()));
        }
    }
    assert_eq!(places.len(), 8);
    assert!(places[1..].iter().all(|place| *place == places[0]), "the buffer is reused: {places:?}");
}

#[test]
fn a_record_pushed_here_is_pulled_there() {
    let (here, there) = pair();
    let (mut here, mut there) = (partner(&Tcp, here, &[]), partner(&Tcp, there, &[]));
    for (i, length) in [0, 1, 24, 1000, 16_384, 70_000, 1_000_000, 24, 3_000_000].into_iter().enumerate() {
        let sent = record(9, i as u64, &pattern(length, i as u64));
        push(&mut *here, sent.clone());
        // Both ends share this thread and take turns until the record arrives.
        let received = std::iter::repeat_with(|| {
            here.ctl(FlowKey::DEFAULT, Ctl::Flush).expect("flush");
            there.pull(FlowKey::DEFAULT, Pull::Yours).expect("pull")
        });
        let received = received.take(10_000_000).find_map(|pulled| match pulled {
            Pulled::Message(flow, message) => Some((flow, message.body)),
            _ => None,
        });
        assert_eq!(received, Some((FlowKey(9), sent)));
    }
    here.ctl(FlowKey::DEFAULT, Ctl::Finish).expect("finish");
    assert_eq!(pull(&mut *there), None);
    assert_eq!(figure(&mut *here, "sent"), figure(&mut *there, "received"));
}

#[test]
fn a_burst_is_sent_in_one_call() {
    let (here, there) = pair();
    let (mut here, mut there) = (partner(&Tcp, here, &[]), partner(&Tcp, there, &[]));
    for i in 0..100 {
        let message = Message::new(Time::ZERO, record(1, i, &pattern(24, i)));
        assert!(matches!(here.push(FlowKey::DEFAULT, message), Ok(Pushed::Taken)));
    }
    here.ctl(FlowKey::DEFAULT, Ctl::Flush).expect("flush");
    assert_eq!(figure(&mut *here, "send_calls"), 1.0);
    for i in 0..100 {
        assert_eq!(pull(&mut *there), Some((FlowKey(1), record(1, i, &pattern(24, i)))));
    }
}

#[test]
fn a_peer_that_does_not_read_fills_only_the_send_queue() {
    let (here, there) = pair();
    let mut here = partner(&Tcp, here, &[("outbox", "8"), ("socket_bytes", "64KiB")]);
    let mut sent = 0;
    let back = loop {
        let message = Message::new(Time::ZERO, record(1, sent, &pattern(100_000, sent)));
        match here.push(FlowKey::DEFAULT, message).map_err(|(error, _)| error).expect("push") {
            Pushed::Taken => sent += 1,
            Pushed::Full(back) => break back,
        }
        assert!(sent < 10_000, "never full");
    };
    assert_eq!(back.body, record(1, sent, &pattern(100_000, sent)), "full gives the message back");
    assert!(figure(&mut *here, "waiting") <= 8.0);
    let readiness = here.readiness(FlowKey::DEFAULT, Direction::In);
    assert!(!readiness.now);
    assert!(matches!(readiness.descriptors[0], Some((_, Interest::Write))));
    assert!(matches!(here.ctl(FlowKey::DEFAULT, Ctl::Flush), Ok(CtlReply::Pending)), "more is to be flushed");
    let mut there = partner(&Tcp, there, &[]);
    for i in 0..sent {
        here.ctl(FlowKey::DEFAULT, Ctl::Flush).expect("flush");
        let received = loop {
            here.ctl(FlowKey::DEFAULT, Ctl::Flush).expect("flush");
            if let Pulled::Message(_, message) = there.pull(FlowKey::DEFAULT, Pull::Yours).expect("pull") {
                break message.body;
            }
        };
        assert_eq!(received, record(1, i, &pattern(100_000, i)));
    }
}

/// Sends `bytes` to a partner, then the end of the stream if `ends`. Returns the partner's error.
fn error_after(bytes: &[u8], ends: bool) -> PartnerError {
    let (mut here, there) = pair();
    here.write_all(bytes).expect("write");
    if ends {
        drop(here);
    }
    let mut there = partner(&Tcp, there, &[]);
    loop {
        match there.pull(FlowKey::DEFAULT, Pull::Yours) {
            Ok(Pulled::Nothing | Pulled::Message(..)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => return error,
        }
    }
}

#[test]
fn a_peer_that_breaks_the_protocol_is_named() {
    let whole = record(1, 0, &pattern(40_000, 0)).into_bytes();
    for cut in [1, 15, 27, 28, 29, 20_000, 40_027] {
        let error = error_after(&whole[..cut], true);
        assert!(matches!(&error, PartnerError::Peer(problem) if problem.contains("127.0.0.1")), "{error}");
    }
    let error = error_after(&RecordHeaderOf(wire::BODY_BYTES_MAX as u32 + 1).emit(), false);
    assert!(matches!(&error, PartnerError::Peer(problem) if problem.contains("limit")), "{error}");
}

#[test]
fn an_announced_length_alone_allocates_little() {
    let mut deframer = Deframer::new(wire::BODY_BYTES_MAX, 0, 16 << 20);
    let header = RecordHeaderOf(wire::BODY_BYTES_MAX as u32).emit();
    deframer
        .receive(|[room, _]| {
            room.buffer.extend_from_slice(&header);
            Ok(header.len())
        })
        .expect("fill");
    assert_eq!(deframer.next(), Ok(None));
    deframer
        .receive(|rooms| {
            assert!(rooms.iter().map(Room::bytes).sum::<usize>() <= 2 << 20);
            Ok(0)
        })
        .expect("fill");
}

/// A record header that announces this many bytes.
struct RecordHeaderOf(u32);

impl RecordHeaderOf {
    fn emit(&self) -> [u8; wire::RecordHeader::BYTES] {
        let container = wire::Container { length: self.0, created: 0 };
        wire::RecordHeader { flow: 1, epoch: 0, sequence: 0, container }.emit()
    }
}

#[test]
fn a_record_with_a_wrong_length_is_refused_before_it_is_sent() {
    let (here, _there) = pair();
    let mut here = partner(&Tcp, here, &[]);
    let mut longer = record(1, 0, &[1, 2, 3]);
    longer.push(bytes::Bytes::from_static(b"x"));
    for body in [longer, Body::from(vec![0; 27])] {
        let message = Message::new(Time::ZERO, body.clone());
        match here.push(FlowKey::DEFAULT, message) {
            Err((PartnerError::Message(_), back)) => assert_eq!(back.body, body),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_closed_connection_is_reported_as_gone() {
    let (here, there) = pair();
    let mut here = partner(&Tcp, here, &[]);
    drop(there);
    let error = (0..1_000_000).find_map(|i| {
        let message = Message::new(Time::ZERO, record(1, i, &pattern(24, i)));
        let pushed = here.push(FlowKey::DEFAULT, message).map_err(|(error, _)| error);
        pushed.err().or(here.ctl(FlowKey::DEFAULT, Ctl::Flush).err())
    });
    assert!(matches!(error, Some(PartnerError::Gone(_))), "{error:?}");
}

#[test]
fn an_incomplete_record_counts_as_a_sign_of_life() {
    let (mut here, there) = pair();
    let mut there = partner(&Tcp, there, &[]);
    let mut raw_bytes = || {
        assert!(matches!(there.pull(FlowKey::DEFAULT, Pull::Yours), Ok(Pulled::Nothing)));
        match there.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Received)) {
            Ok(CtlReply::Count(count)) => count,
            other => panic!("{other:?}"),
        }
    };
    let whole = record(1, 0, &pattern(40_000, 0)).into_bytes();
    let mut before = raw_bytes();
    for part in whole[..30_000].chunks(10_000) {
        here.write_all(part).expect("write");
        let begun = Instant::now();
        while raw_bytes() == before {
            assert!(begun.elapsed() < WATCHDOG, "the count does not grow");
        }
        before = raw_bytes();
    }
}

#[test]
fn the_application_hosts_end_probes_an_idle_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let options = Options::check(Tcp.options(), []).expect("options");
    let socket = Tcp.dial(listener.local_addr().expect("address"), &options).expect("a connection");
    assert!(sockopt::socket_keepalive(&socket).expect("the option"));
    assert_eq!(sockopt::tcp_keepidle(&socket).expect("the option"), KEEP_ALIVE.0);
}

/// Waits for the next check of the connection. Returns whether a new one would do better; `None` without a check.
fn check(partner: &mut dyn Partner) -> Option<bool> {
    let at = partner.upkeep().at?;
    std::thread::sleep(at.since(Time(sys::clock::boot_ns())));
    match partner.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::HeldBack)) {
        Ok(CtlReply::Count(count)) => Some(count == 1),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_record_that_the_network_drops_after_an_idle_time_is_found() {
    let (here, there) = pair();
    let mut here = partner(&Tcp, here, &[]);
    assert_eq!(check(&mut *here), None, "an idle connection has no timer");
    push(&mut *here, record(1, 0, &[1]));
    let begun = Instant::now();
    while let Some(is_held_back) = check(&mut *here) {
        assert!(!is_held_back && begun.elapsed() < WATCHDOG, "the record is acknowledged");
    }
    sys::net::take_nothing(&there).expect("a filter");
    push(&mut *here, record(1, 1, &[1]));
    assert!(
        matches!(here.ctl(FlowKey::DEFAULT, Ctl::Flush), Ok(CtlReply::Done)),
        "the kernel has the record"
    );
    while check(&mut *here) != Some(true) {
        assert!(begun.elapsed() < WATCHDOG, "the loss is not found");
    }
}
