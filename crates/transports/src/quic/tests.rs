//! QUIC between two partners in one thread, over local sockets and over a relay that harms datagrams.

use super::*;
use crate::test_records::{WATCHDOG, figure, keys, partners, pattern, record, udp_pair};
use crate::tls;
use contract::{Body, Format, Options, Secret, TransportCtl};
use relay::Relay;
use std::collections::VecDeque;
use std::net::{SocketAddrV6, UdpSocket};
use std::time::Instant;

const TUNING: Tuning = Tuning {
    window: 1 << 20,
    streams: 1,
    datagram: 1452,
    is_size_known: false,
    congestion: Congestion::Cubic,
};

/// Both ends of a connection.
struct Two([Box<dyn Partner>; 2]);

impl Two {
    fn new(class: FlowClass, given: &[(&str, &str)]) -> Two {
        Two::over(udp_pair(), class, given)
    }

    fn over(sockets: [OwnedFd; 2], class: FlowClass, given: &[(&str, &str)]) -> Two {
        let mut two = Two(partners(&Quic, sockets, true, given));
        for end in &mut two.0 {
            for direction in [Direction::In, Direction::Out] {
                let template = FlowTemplate { direction, format: Format::Bytes, class };
                end.open(&template, &Attributes::default()).expect("a flow");
            }
        }
        two
    }

    /// Pushes records at one end until the other end has pulled `expected` of them.
    fn carry(&mut self, from: usize, records: &[Body], expected: usize) -> Vec<Body> {
        let begun = Instant::now();
        let (mut next, mut received) = (records.iter(), Vec::new());
        let mut waiting = next.next();
        while received.len() < expected {
            assert!(begun.elapsed() < WATCHDOG, "{} of {expected} arrived", received.len());
            while let Some(record) = waiting {
                let message = Message::new(Time::ZERO, record.clone());
                match self.0[from].push(FlowKey::DEFAULT, message).expect("push") {
                    Pushed::Taken => waiting = next.next(),
                    Pushed::Full(_) => break,
                }
            }
            for end in &mut self.0 {
                end.ctl(FlowKey::DEFAULT, Ctl::Flush).expect("flush");
                end.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Received)).expect("a turn");
            }
            while let Pulled::Message(_, message) =
                self.0[1 - from].pull(FlowKey::DEFAULT, Pull::Yours).expect("pull")
            {
                received.push(message.body);
            }
        }
        received
    }
}

fn bytes(records: Vec<Body>) -> Vec<Vec<u8>> {
    records.into_iter().map(|record| record.into_bytes().to_vec()).collect()
}

fn records(sizes: &[usize]) -> Vec<Body> {
    (0..).zip(sizes).map(|(number, &size)| record(1, number, &pattern(size, number))).collect()
}

#[test]
fn reliable_records_cross_in_order_both_ways() {
    let mut two = Two::new(FlowClass::Reliable, &[]);
    let all = records(&[0, 1, 30, 1100, 1200, 1500, 70_000, 3, 2 << 20, 5, 5]);
    for from in [0, 1] {
        let received = two.carry(from, &all, all.len());
        assert_eq!(bytes(received), bytes(all.clone()));
    }
}

/// The records fill a stream exactly, one byte less, and one more.
#[test]
fn a_sequence_ends_where_a_stream_ends() {
    let full = ordered_stream::SEGMENT_BYTES - wire::RecordHeader::BYTES;
    for sizes in [&[][..], &[full], &[full - 1], &[full + 1], &[full, full, 5], &[7, 3 * full]] {
        let (mut two, all) = (Two::new(FlowClass::Reliable, &[]), records(sizes));
        let (begun, mut received) = (Instant::now(), two.carry(0, &all, all.len()));
        let mut has_finished = false;
        loop {
            assert!(begun.elapsed() < WATCHDOG, "{sizes:?} do not end");
            let reply = two.0[0].ctl(FlowKey::DEFAULT, Ctl::Finish).expect("finish");
            has_finished |= matches!(reply, CtlReply::Done);
            match two.0[1].pull(FlowKey::DEFAULT, Pull::Yours).expect("pull") {
                Pulled::Message(_, message) => received.push(message.body),
                Pulled::End if has_finished => break,
                _ => {}
            }
        }
        assert_eq!(bytes(received), bytes(all), "{sizes:?}");
    }
}

#[test]
fn small_timely_records_cross_in_datagrams_and_large_ones_in_streams() {
    let mut two = Two::new(FlowClass::Timely, &[]);
    let all = records(&[0, 1, 30, 900, 5000, 70_000, 3, 1 << 20, 5]);
    let mut received = bytes(two.carry(0, &all, all.len()));
    let mut expected = bytes(all);
    received.sort();
    expected.sort();
    assert_eq!(received, expected);
    assert_eq!(figure(two.0[0].as_mut(), "sent_on_streams"), 3.0, "records too large for a datagram");
}

/// A dozen probes of 64 KiB would cost more than all messages of a keyboard.
#[test]
fn the_datagram_size_of_a_local_path_is_not_probed() {
    let mut two = Two::new(FlowClass::Reliable, &[]);
    let all = records(&[10; 20]);
    assert_eq!(bytes(two.carry(0, &all, all.len())), bytes(all.clone()));
    let [mut sent, largest] = ["sent_packets", "datagram_bytes"].map(|name| figure(two.0[0].as_mut(), name));
    sent += figure(two.0[1].as_mut(), "sent_packets");
    assert!(largest > 60_000.0 && sent < 60.0, "{sent} packets, of {largest} bytes at most");
}

#[test]
fn a_late_record_is_abandoned_and_counted() {
    let [here, there] = udp_pair();
    let mut two = Two::over([here, there], FlowClass::Timely, &[("late", "20ms")]);
    // The handshake may take longer than a record may be late: repeat the first one. Once connected, the other end receives
    // nothing.
    let begun = Instant::now();
    loop {
        for record in records(&[10]) {
            let _ = two.0[0].push(FlowKey::DEFAULT, Message::new(Time::ZERO, record)).expect("push");
        }
        for end in &mut two.0 {
            end.ctl(FlowKey::DEFAULT, Ctl::Flush).expect("flush");
            end.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Received)).expect("a turn");
        }
        if let Pulled::Message(..) = two.0[1].pull(FlowKey::DEFAULT, Pull::Yours).expect("pull") {
            break;
        }
        assert!(begun.elapsed() < WATCHDOG, "no record arrived");
    }
    two.0[0].ctl(FlowKey::DEFAULT, Ctl::Flush).expect("flush");
    let late_before = figure(two.0[0].as_mut(), "late");
    for record in records(&[5000, 5000]) {
        let _ = two.0[0].push(FlowKey::DEFAULT, Message::new(Time::ZERO, record)).expect("push");
    }
    two.0[0].ctl(FlowKey::DEFAULT, Ctl::Flush).expect("flush");
    std::thread::sleep(Duration::from_millis(40));
    two.0[0].ctl(FlowKey::DEFAULT, Ctl::Flush).expect("flush");
    assert_eq!(figure(two.0[0].as_mut(), "late"), late_before + 2.0);
}

/// A peer with the wrong keys fails the handshake on either side.
#[test]
fn a_stranger_fails_the_handshake() {
    let options = Options::defaults(Quic.options()).expect("options");
    for stranger in [End::Dialled, End::Accepted] {
        let mut sockets = udp_pair().into_iter();
        let mut ends = [End::Dialled, End::Accepted].map(|end| {
            let [mut here, mut there] = keys();
            if end == stranger {
                (here.sending, there.sending) = (Secret([9; 32]), Secret([9; 32]));
            }
            let keys = if end == End::Dialled { here } else { there };
            Quic.partner(sockets.next().expect("two"), end, &options, Some(&keys)).expect("partner")
        });
        let begun = Instant::now();
        let honest = usize::from(stranger == End::Dialled);
        loop {
            for end in &mut ends {
                let _ = end.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Received));
            }
            if let Err(error) = ends[honest].pull(FlowKey::DEFAULT, Pull::Yours) {
                assert!(matches!(error, PartnerError::Gone(_)), "{error}");
                break;
            }
            assert!(begun.elapsed() < WATCHDOG, "the {stranger:?} end was accepted, or hangs");
        }
    }
}

#[test]
fn altered_repeated_lost_and_reordered_datagrams_do_no_harm() {
    let (mut relay, ends) = Relay::new(7);
    let mut two = Two::over(ends, FlowClass::Reliable, &[]);
    let all = records(&[20, 4000, 60_000, 100, 3000, 200_000]);
    relay.run(|| {
        let received = two.carry(0, &all, all.len());
        assert_eq!(bytes(received), bytes(all.clone()));
    });
}

/// The client's address changes, and the server gets a socket for it. Nothing is lost.
#[test]
fn a_connection_migrates_to_another_address() {
    let mut two = Two::new(FlowClass::Reliable, &[]);
    let all = records(&[10, 4000, 10]);
    assert_eq!(bytes(two.carry(0, &all, 3)), bytes(all.clone()));
    // The old sockets are closed, as if the address were gone.
    let [here, there] = udp_pair();
    two.0[0].ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Move(here))).expect("another socket");
    two.0[1].ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Move(there))).expect("another socket");
    for from in [0, 1] {
        assert_eq!(bytes(two.carry(from, &all, 3)), bytes(all.clone()));
    }
    let [here, there] = udp_pair();
    two.0[0].ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Move(here))).expect("a third socket");
    two.0[1].ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Move(there))).expect("a third socket");
    assert_eq!(bytes(two.carry(1, &all, 3)), bytes(all.clone()));
    assert_eq!(figure(two.0[0].as_mut(), "migrations"), 2.0);
}

#[test]
fn dropping_one_end_ends_the_connection_for_both() {
    let mut two = Two::new(FlowClass::Reliable, &[]);
    let all = records(&[10]);
    two.carry(0, &all, 1);
    let [here, mut there] = two.0;
    drop(here);
    let begun = Instant::now();
    while !matches!(there.pull(FlowKey::DEFAULT, Pull::Yours).expect("an end"), Pulled::End) {
        assert!(begun.elapsed() < WATCHDOG, "no end");
    }
    let late = there.push(FlowKey::DEFAULT, Message::new(Time::ZERO, all[0].clone()));
    assert!(matches!(late, Err((PartnerError::Gone(_), _))), "{late:?}");
}

/// Garbage before, during and after the handshake.
#[test]
fn garbage_is_dropped() {
    let [here, there] = udp_pair();
    let noise = [&here, &there].map(|socket| UdpSocket::from(socket.try_clone().expect("a socket")));
    let mut two = Two::over([here, there], FlowClass::Reliable, &[]);
    let all = records(&[10, 2000, 30_000]);
    for round in 0..3u64 {
        for (number, socket) in noise.iter().enumerate() {
            for length in [0, 1, 20, 64, 1200, 1452] {
                let mut garbage = pattern(length, round * 77 + number as u64);
                if let (Some(first), 0) = (garbage.first_mut(), round) {
                    *first |= 0xc0;
                }
                socket.send(&garbage).expect("send");
            }
        }
        assert_eq!(bytes(two.carry(round as usize % 2, &all, 3)), bytes(all.clone()));
    }
}

/// A restarted host resets its peers' old connections. A host with another secret cannot.
#[test]
fn a_restarted_host_resets_old_connections() {
    let own = |seed: u8| tls::key_pair_from_seed(&[seed; tls::KEY_BYTES]).expect("a key pair").1;
    let server = |secret: u8| {
        let keys = ServerKeys::new(Some(&Secret([secret; 32]))).expect("keys");
        ConnectionConfig::server(
            tls::server(own(1), b"test", None).expect("a server"),
            [7; 8],
            &keys,
            &TUNING,
        )
        .expect("a server")
    };
    let [here, there] = udp_pair();
    let client = ConnectionConfig::client(tls::client(own(2), b"test", None).expect("a client"), &TUNING);
    let mut near = QuicConnection::new(here, client.expect("a client")).expect("a connection");
    let socket = there.try_clone().expect("the socket");
    let mut far = QuicConnection::new(there, server(1)).expect("a connection");
    let begun = Instant::now();
    let shake = |near: &mut QuicConnection, far: &mut QuicConnection| {
        near.drive();
        far.drive();
        assert!(begun.elapsed() < WATCHDOG, "no handshake");
        near.is_established() && far.is_established()
    };
    while !shake(&mut near, &mut far) {}
    (0..20).for_each(|_| _ = shake(&mut near, &mut far));

    // From here on the far end gets no turn, as if its host had crashed.
    let there = UdpSocket::from(socket);
    let peer = there.peer_addr().expect("an address");
    let mut bytes = [0; 2048];
    let mut answered = |near: &mut QuicConnection, secret: u8| {
        while there.recv(&mut bytes).is_ok() {}
        let mut check = AddressValidator::new(&server(secret)).expect("a check");
        near.state().expect("it began").ping();
        near.drive_output();
        let count = there.recv(&mut bytes).expect("a ping");
        let Validation::Answer(answer) = check.check(&bytes[..count], peer) else { panic!("no reset") };
        assert!(answer.len() < count, "{} bytes for {count}", answer.len());
        there.send(answer).expect("send");
        near.drive();
        near.close_reason().cloned()
    };
    assert_eq!(answered(&mut near, 2), None, "a reset with another secret");
    assert_eq!(answered(&mut near, 1), Some(CloseReason::Failed("the other host has restarted".into())));
}

/// Returns a connection that starts, the server's socket, and the server's address check.
fn connecting() -> (QuicConnection, UdpSocket, AddressValidator) {
    let [here, there] = udp_pair();
    let there = UdpSocket::from(there);
    let [near, far] = keys();
    let client = ConnectionConfig::data(End::Dialled, Some(&near), &TUNING).expect("a client");
    let server = ConnectionConfig::data(End::Accepted, Some(&far), &TUNING).expect("a server");
    let check = AddressValidator::new(&server).expect("a check");
    (QuicConnection::new(here, client).expect("a connection"), there, check)
}

/// Answers the client's Initial with a Retry and returns the second Initial. Checks that the Retry is not longer than
/// the Initial.
fn initial_after_retry(
    (connection, there, check): (&mut QuicConnection, &UdpSocket, &mut AddressValidator),
    peer: SocketAddr,
) -> Vec<u8> {
    connection.drive_output();
    let mut bytes = [0; 2048];
    let first = there.recv(&mut bytes).expect("an Initial");
    assert_eq!(classify(&bytes[..first]), DatagramKind::Initial);
    let Validation::Answer(answer) = check.check(&bytes[..first], peer) else { panic!("no Retry") };
    assert!(answer.len() <= first, "{} bytes for {first}", answer.len());
    there.send(answer).expect("send");
    let begun = Instant::now();
    loop {
        connection.drive();
        match there.recv(&mut bytes) {
            Ok(count) => return bytes[..count].to_vec(),
            Err(error) => assert!(begun.elapsed() < WATCHDOG, "no second Initial: {error}"),
        }
    }
}

#[test]
fn a_link_local_address_can_be_validated() {
    let (mut connection, there, mut check) = connecting();
    let peer = SocketAddrV6::new("fe80::1".parse().expect("an address"), 7845, 0, 4).into();
    let second = initial_after_retry((&mut connection, &there, &mut check), peer);
    assert_eq!(check.check(&second, peer), Validation::Valid);
}

/// A server accepts a connection only after it has validated the client's address, and never sends more bytes than it
/// received before that.
#[test]
fn an_address_is_validated_before_state_is_kept() {
    let (mut connection, there, mut check) = connecting();
    let peer = there.peer_addr().expect("an address");
    let second = initial_after_retry((&mut connection, &there, &mut check), peer);
    let elsewhere = SocketAddr::new(peer.ip(), peer.port() ^ 1);
    assert_ne!(check.check(&second, elsewhere), Validation::Valid, "valid at another address");
    assert_eq!(check.check(&second, peer), Validation::Valid);
    for length in [0, 1, 21, 1200, 1500] {
        for first in [0xc0, 0xe0, 0x40] {
            let mut garbage = pattern(length, 5);
            garbage.iter_mut().take(1).for_each(|byte| *byte |= first);
            if let Validation::Answer(answer) = check.check(&garbage, peer) {
                assert!(answer.len() <= length, "{} bytes for {length}", answer.len());
            }
        }
    }
}

/// Both ends have full congestion windows and more data, and acknowledge all the same.
#[test]
fn an_acknowledgement_does_not_wait_behind_data() {
    let tuning = Tuning {
        window: 1 << 20,
        streams: 1,
        datagram: 1200,
        is_size_known: false,
        congestion: Congestion::Cubic,
    };
    let [near, far] = keys();
    let configs = [(End::Dialled, near), (End::Accepted, far)]
        .map(|(end, keys)| ConnectionConfig::data(end, Some(&keys), &tuning).expect("a configuration"));
    let mut configs = configs.into_iter();
    let mut ends = udp_pair()
        .map(|socket| QuicConnection::new(socket, configs.next().expect("two")).expect("a connection"));
    let mut now = Instant::now();
    let mut both = |ends: &mut [QuicConnection; 2], step_ms, listen| {
        now += Duration::from_millis(step_ms);
        ends.iter_mut().for_each(|end| if listen { end.drive_at(now) } else { end.drive_output_at(now) });
    };
    // Enough round trips of 20 ms for the handshake.
    (0..40).for_each(|_| both(&mut ends, 10, true));
    assert!(ends.iter().all(QuicConnection::is_established));
    for end in &mut ends {
        let connection = end.state().expect("a connection");
        let stream = connection.streams().open(Dir::Uni).expect("a stream");
        connection.send_stream(stream).write(&pattern(256 << 10, 7)).expect("room");
    }
    let acknowledged = |ends: &mut [QuicConnection; 2]| {
        ends.each_mut().map(|end| end.state().expect("a connection").stats().frame_tx.acks)
    };
    both(&mut ends, 0, false);
    let before = acknowledged(&mut ends);
    both(&mut ends, 10, true);
    // Too early for a probe timeout, which includes the round trip, its variation and 25 ms.
    both(&mut ends, 30, true);
    let after = acknowledged(&mut ends);
    assert!(after[0] > before[0] && after[1] > before[1], "{before:?} {after:?}");
    let counts = ends.each_ref().map(|end| end.counts.ack_datagrams);
    assert!(counts.iter().sum::<u64>() > 0, "{counts:?}: no acknowledgement was delayed");
}

/// Returns both ends of an established connection and the current time, which the test advances.
pub(super) fn established(sockets: [OwnedFd; 2]) -> ([QuicConnection; 2], Instant) {
    established_with(sockets, &Tuning { datagram: 1200, is_size_known: true, ..TUNING })
}

/// Returns the bytes of a stream that have arrived and were not read.
fn arrived(end: &mut QuicConnection, stream: StreamId) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut stream = end.state().expect("a connection").recv_stream(stream);
    let Ok(mut chunks) = stream.read(true) else { return bytes };
    while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
        bytes.extend_from_slice(&chunk.bytes);
    }
    let _ = chunks.finalize();
    bytes
}

pub(super) fn both_ends(sockets: [OwnedFd; 2], tuning: &Tuning) -> [QuicConnection; 2] {
    let [near, far] = keys();
    let begin = |end, keys, socket| {
        let config = ConnectionConfig::data(end, Some(keys), tuning).expect("a configuration");
        QuicConnection::new(socket, config).expect("a connection")
    };
    let [here, there] = sockets;
    [begin(End::Dialled, &near, here), begin(End::Accepted, &far, there)]
}

fn established_with(sockets: [OwnedFd; 2], tuning: &Tuning) -> ([QuicConnection; 2], Instant) {
    let mut ends = both_ends(sockets, tuning);
    let mut now = Instant::now();
    for _ in 0..40 {
        now += Duration::from_millis(10);
        ends.iter_mut().for_each(|end| end.drive_at(now));
    }
    assert!(ends.iter().all(QuicConnection::is_established));
    (ends, now)
}

/// A network faster than this host: the pace always permits a few more datagrams.
#[test]
fn a_sender_slower_than_its_pace_receives_between_bursts() {
    let tuning = Tuning { window: 64 << 20, congestion: Congestion::Rate, ..TUNING };
    let (mut ends, now) = established_with(udp_pair(), &tuning);
    // The time of the connection must not go back.
    std::thread::sleep(now.saturating_duration_since(Instant::now()));
    let connection = ends[0].state().unwrap();
    let pace = 9e8;
    ack_bypass::rate(connection).unwrap().pace_at(pace, Instant::now());
    connection.set_send_window(64 << 20);
    let stream = connection.streams().open(Dir::Uni).expect("a stream");
    let written = connection.send_stream(stream).write(&vec![7; 24 << 20]).unwrap();
    assert_eq!(written, 24 << 20, "the peer takes that much");
    let before = ends[0].counts.sent_datagrams;
    ends[0].drive_output();
    let sent = (ends[0].counts.sent_datagrams - before) as f64 * 1500.0;
    // The time that may be caught up, the time that is sent ahead, and a batch.
    assert!(sent < pace * 0.006 + 65_536.0, "{sent} bytes without a look at the socket");
}

/// A path of 40 ms on which every seventh datagram is 5 ms late, so that many others overtake it.
#[test]
fn a_datagram_that_others_overtook_is_not_lost() {
    const STEP: Duration = Duration::from_millis(5);
    let ([near, at_near], [far, at_far]) = (udp_pair(), udp_pair());
    let relays = [at_near, at_far].map(UdpSocket::from);
    let tuning = Tuning { window: 4 << 20, congestion: Congestion::Rate, ..TUNING };
    let mut ends = both_ends([near, far], &tuning);
    let (mut now, mut bytes, mut counted) = (Instant::now(), [0; 2048], 0_u64);
    // By direction, the datagrams of the next steps.
    let mut on_path: [VecDeque<Vec<Vec<u8>>>; 2] = [(); 2].map(|()| vec![Vec::new(); 4].into());
    let mut step = |ends: &mut [QuicConnection; 2]| {
        now += STEP;
        ends.iter_mut().for_each(|end| end.drive_at(now));
        for (from, path) in on_path.iter_mut().enumerate() {
            path.push_back(Vec::new());
            while let Ok(count) = relays[from].recv(&mut bytes) {
                counted += 1;
                path[if counted % 7 == 0 { 4 } else { 3 }].push(bytes[..count].to_vec());
            }
            for datagram in path.pop_front().into_iter().flatten() {
                relays[1 - from].send(&datagram).expect("room");
            }
        }
    };
    (0..60).for_each(|_| step(&mut ends));
    let sent = pattern(2 << 20, 7);
    let connection = ends[0].state().expect("a connection");
    let stream = connection.streams().open(Dir::Uni).expect("a stream");
    let (mut written, mut received) = (0, 0);
    for _ in 0..2000 {
        if let Some(connection) = ends[0].state() {
            written += connection.send_stream(stream).write(&sent[written..]).unwrap_or(0);
        }
        step(&mut ends);
        received += arrived(&mut ends[1], stream).len();
    }
    assert_eq!(received, sent.len());
    let path = ends[0].state().expect("a connection").stats().path;
    assert!(path.sent_packets > 1000 && path.lost_packets == 0, "{path:?}");
}

/// A timely flow is faster than the network: its records wait at the source, but enough of them in the connection to keep
/// the pace.
#[test]
fn a_fast_timely_flow_waits_at_its_source() {
    // Less than the sending time that may be caught up.
    const STEP: Duration = Duration::from_millis(2);
    let tuning = Tuning { datagram: 1200, is_size_known: true, congestion: Congestion::Rate, ..TUNING };
    let record = records(&[900]).remove(0);
    for pace in [5e3, 125e3, 2e6] {
        let (mut ends, mut now) = established_with(udp_pair(), &tuning);
        ack_bypass::rate(ends[0].state().unwrap()).unwrap().pace_at(pace, now);
        let (mut streams, mut queue) = (RecordStreams::default(), SendQueue::new(1));
        let mut fill = |end: &mut QuicConnection| {
            let mut bytes = 0;
            loop {
                if queue.is_empty() {
                    queue.push(Time::ZERO, record.clone());
                }
                match streams.write(end.state().unwrap(), &mut queue).bytes {
                    0 => return bytes as f64,
                    written => bytes += written,
                }
            }
        };
        let waiting = fill(&mut ends[0]);
        assert!((1.0..pace * 0.1 + 2000.0).contains(&waiting), "{waiting} bytes wait at {pace} bytes/s");
        let (mut written, until) = (0.0, now + Duration::from_secs(1));
        while now < until {
            now += STEP;
            ends[0].drive_at(now);
            written += fill(&mut ends[0]);
            ends[0].drive_output_at(now);
            ends[1].drive_at(now);
        }
        assert!(written > 0.8 * pace, "{written} bytes were sent in 1 s at {pace} bytes/s");
        let connection = ends[0].state().unwrap();
        let late = Duration::from_millis(20);
        assert_eq!(
            streams.abandon_late(connection, &mut queue, (Time::from_millis(21), late)),
            1,
            "the next"
        );
    }
}

/// One end sends while the other is suspended and loses all of it. After the suspension a probe replaces the rest of the
/// probe timeout, which has become as long as the suspension.
#[test]
fn a_probe_resumes_transmission_to_a_returned_peer() {
    let sockets = udp_pair();
    let lost_datagrams = UdpSocket::from(sockets[1].try_clone().expect("a socket"));
    let (mut ends, mut now) = established(sockets);
    const STEP: Duration = Duration::from_millis(10);
    let sent = pattern(64 << 10, 7);
    let connection = ends[0].state().expect("a connection");
    let stream = connection.streams().open(Dir::Uni).expect("a stream");
    connection.send_stream(stream).write(&sent).expect("room");
    // The suspension ends just after a probe was lost, and before the suspended end sends anything.
    const SUSPENSION: Duration = Duration::from_secs(5);
    let began = now;
    loop {
        now += STEP;
        let before = ends[0].counts.sent_datagrams;
        ends[0].drive_at(now);
        if now - began > SUSPENSION && ends[0].counts.sent_datagrams > before {
            break;
        }
    }
    while lost_datagrams.recv(&mut [0; 2048]).is_ok() {}
    let resumed = now;
    ends[0].probe_at(now);
    let mut received = 0;
    while received < sent.len() {
        now += STEP;
        ends.iter_mut().for_each(|end| end.drive_at(now));
        received += arrived(&mut ends[1], stream).len();
        assert!(now - resumed < SUSPENSION / 4, "{received} of {} bytes arrived", sent.len());
    }
}

/// The loss timer of one end is due when a datagram from the peer's new address arrives.
#[test]
fn data_lost_before_a_migration_are_retransmitted() {
    let sockets = udp_pair();
    let [at_here, at_there] =
        sockets.each_ref().map(|socket| UdpSocket::from(socket.try_clone().expect("a socket")));
    let (mut ends, mut now) = established(sockets);
    let sent = pattern(4000, 7);
    let connection = ends[1].state().expect("a connection");
    let stream = connection.streams().open(Dir::Uni).expect("a stream");
    connection.send_stream(stream).write(&sent).expect("room");
    ends[1].drive_at(now);
    let mut datagram = [0; 2048];
    while at_here.recv(&mut datagram).is_ok() {}
    ends[0].probe_at(now);
    let count = at_there.recv(&mut datagram).expect("a probe");
    ends[1].inject_datagram(&datagram[..count], "127.0.0.1:9".parse().expect("an address"));
    now += Duration::from_secs(1);
    ends[1].drive_output_at(now);
    let mut received = Vec::new();
    for _ in 0..100 {
        now += Duration::from_millis(10);
        ends.iter_mut().for_each(|end| end.drive_at(now));
        received.extend(arrived(&mut ends[0], stream));
    }
    assert_eq!(received, sent);
}

/// The client's address changes. Both ends keep the older path until the newer one has received data and the older one
/// was silent for `LATE_MAX`.
#[test]
fn an_unused_path_is_closed_after_a_silence() {
    use super::connection::LATE_MAX;
    const STEP: Duration = Duration::from_millis(100);
    let bound = |address: &str| {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None).expect("a socket");
        sockopt::set_socket_reuseaddr(&socket, true).expect("reuse");
        let address: SocketAddr = address.parse().expect("an address");
        rustix::net::bind(&socket, &address).expect("bind");
        UdpSocket::from(socket)
    };
    let address = |socket: &UdpSocket| socket.local_addr().expect("an address");
    let join = |one: &UdpSocket, other: &UdpSocket| one.connect(address(other)).expect("connect");
    let [here, there, moved] = [(); 3].map(|()| bound("127.0.0.1:0"));
    let there_too = bound(&address(&there).to_string());
    for (one, other) in [(&here, &there), (&there, &here), (&moved, &there), (&there_too, &moved)] {
        join(one, other);
    }
    let (mut ends, mut now) = established([here.into(), there.into()]);
    let mut turn = |ends: &mut [QuicConnection; 2], duration: Duration| {
        let until = now + duration;
        while now < until {
            now += STEP;
            ends.iter_mut().for_each(|end| end.drive_at(now));
        }
        now
    };
    let polled = |ends: &[QuicConnection; 2]| {
        ends.each_ref().map(|end| end.readiness().descriptors.into_iter().flatten().count())
    };
    let mut at = turn(&mut ends, STEP);
    ends[0].add_path_at(moved.into(), at).expect("another socket");
    at = turn(&mut ends, LATE_MAX + STEP);
    assert_eq!(polled(&ends), [2, 1], "the newer path has received nothing");
    ends[1].add_path_at(there_too.into(), at).expect("another socket");
    at = turn(&mut ends, LATE_MAX - STEP);
    assert_eq!(polled(&ends)[1], 2, "datagrams may be late");
    ends[0].probe_at(at);
    turn(&mut ends, LATE_MAX + STEP);
    assert_eq!(polled(&ends), [1, 1]);
    assert!(ends.iter().all(|end| end.close_reason().is_none()));
}

/// A server that has accepted a stranger's Initial waits for the stranger, and its peer waits for the server. Both stop
/// after `HANDSHAKE_MAX`.
#[test]
fn a_handshake_that_hangs_times_out() {
    let tuning = Tuning {
        window: 1 << 20,
        streams: 8,
        datagram: 1452,
        is_size_known: false,
        congestion: Congestion::Cubic,
    };
    let [own, peers] = keys();
    let begin = |end, keys, socket| {
        let config = ConnectionConfig::data(end, Some(keys), &tuning).expect("a configuration");
        QuicConnection::new(socket, config).expect("a connection")
    };
    let [[here, there], [elsewhere, receiver]] = [udp_pair(), udp_pair()];
    let mut ends = [begin(End::Dialled, &own, here), begin(End::Accepted, &peers, there)];
    begin(End::Dialled, &own, elsewhere).drive_output();
    let mut stray = [0; 2048];
    let count = UdpSocket::from(receiver).recv(&mut stray).expect("an Initial");
    let address = ends[1].name().parse().expect("an address");
    ends[1].inject_datagram(&stray[..count], address);
    let begun = Instant::now();
    let mut passed = Duration::ZERO;
    while ends.iter().any(|end| end.close_reason().is_none()) {
        assert!(ends.iter().all(|end| !end.is_established()), "after {passed:?}");
        assert!(passed < 2 * connection::HANDSHAKE_MAX, "the handshake does not time out");
        ends.iter_mut().for_each(|end| end.drive_at(begun + passed));
        passed += Duration::from_millis(100);
    }
    assert!(passed >= connection::HANDSHAKE_MAX, "after {passed:?}");
}

/// A seeded relay between the two ends.
mod relay {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    pub(super) struct Relay {
        middle: [UdpSocket; 2],
        random: u64,
    }

    /// Ends the relay, also when a test has failed.
    struct EndOf<'a>(&'a AtomicBool);

    impl Drop for EndOf<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn end() -> (UdpSocket, OwnedFd) {
        let [middle, end] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("bind"));
        end.connect(middle.local_addr().expect("address")).expect("connect");
        middle.connect(end.local_addr().expect("address")).expect("connect");
        for socket in [&middle, &end] {
            socket.set_nonblocking(true).expect("a socket that does not block");
        }
        (middle, end.into())
    }

    impl Relay {
        /// Returns a relay and the sockets of its two ends.
        pub(super) fn new(seed: u64) -> (Relay, [OwnedFd; 2]) {
            let [(one, here), (other, there)] = [(); 2].map(|()| end());
            (Relay { middle: [one, other], random: seed }, [here, there])
        }

        fn draw(random: &mut u64) -> u64 {
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            *random
        }

        /// Relays datagrams while `act` runs. One in eight is lost, altered, repeated or delayed.
        pub(super) fn run(&mut self, act: impl FnOnce()) {
            let done = AtomicBool::new(false);
            let (middle, random) = (&self.middle, &mut self.random);
            thread::scope(|scope| {
                let done = &done;
                scope.spawn(move || {
                    let mut held: VecDeque<(usize, Vec<u8>)> = VecDeque::new();
                    let mut bytes = [0; 2048];
                    while !done.load(Ordering::Relaxed) {
                        for from in [0, 1] {
                            while let Ok(count) = middle[from].recv(&mut bytes) {
                                let mut datagram = bytes[..count].to_vec();
                                let harm = Relay::draw(random) % 32;
                                if harm == 1 {
                                    let at = Relay::draw(random) as usize % count;
                                    datagram[at] ^= 1 << (harm % 8);
                                }
                                if harm == 2 {
                                    held.push_back((from, datagram.clone()));
                                }
                                if harm == 3 {
                                    held.push_back((from, datagram));
                                } else if harm != 0 {
                                    let _ = middle[1 - from].send(&datagram);
                                }
                            }
                        }
                        if Relay::draw(random).is_multiple_of(4)
                            && let Some((from, datagram)) = held.pop_front()
                        {
                            let _ = middle[1 - from].send(&datagram);
                        }
                        thread::sleep(Duration::from_micros(100));
                    }
                });
                let _end = EndOf(done);
                act();
            });
        }
    }
}
