//! QUIC between two partners in one thread, over sockets of this machine and over a network that does as it likes.

use super::*;
use crate::test_records::{WATCHDOG, figure, keys, partners, pattern, record, udp_pair};
use crate::tls;
use contract::{Body, Format, Options, Secret};
use relay::Relay;
use std::net::{SocketAddrV6, UdpSocket};
use std::time::Instant;

const TUNING: Tuning =
    Tuning { window: 1 << 20, streams: 1, datagram: 1452, is_known: false, congestion: Congestion::Cubic };

/// Both ends.
struct Two([Box<dyn Partner>; 2]);

impl Two {
    fn new(class: FlowClass, given: &[(&str, &str)]) -> Two {
        Two::over(udp_pair(), class, given)
    }

    fn over(sockets: [OwnedFd; 2], class: FlowClass, given: &[(&str, &str)]) -> Two {
        let mut two = Two(partners(&Quic, sockets, true, given));
        for end in &mut two.0 {
            let template = FlowTemplate { direction: Direction::In, format: Format::Bytes, class };
            end.open(&template, &Attributes::default()).expect("a flow");
        }
        two
    }

    /// Pushes these records at the one end until the other has as many as are `expected`, or all is still.
    fn carry(&mut self, from: usize, records: &[Body], expected: usize) -> Vec<Body> {
        let begun = Instant::now();
        let (mut next, mut came) = (records.iter(), Vec::new());
        let mut waiting = next.next();
        while came.len() < expected {
            assert!(begun.elapsed() < WATCHDOG, "{} of {expected} came", came.len());
            while let Some(record) = waiting {
                let message = Message::new(Time::ZERO, record.clone());
                match self.0[from].push(FlowKey::DEFAULT, message).expect("push") {
                    Pushed::Taken => waiting = next.next(),
                    Pushed::Full(_) => break,
                }
            }
            for end in &mut self.0 {
                end.ctl(FlowKey::DEFAULT, Ctl::Flush).expect("flush");
                end.ctl(FlowKey::DEFAULT, Ctl::Heard).expect("a turn");
            }
            while let Pulled::Message(_, message) =
                self.0[1 - from].pull(FlowKey::DEFAULT, Pull::Yours).expect("pull")
            {
                came.push(message.body);
            }
        }
        came
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
        let came = two.carry(from, &all, all.len());
        assert_eq!(bytes(came), bytes(all.clone()));
    }
}

#[test]
fn timely_records_cross_small_ones_alone_and_large_ones_in_streams() {
    let mut two = Two::new(FlowClass::Timely, &[]);
    let all = records(&[0, 1, 30, 900, 5000, 70_000, 3, 1 << 20, 5]);
    let mut came = bytes(two.carry(0, &all, all.len()));
    let mut expected = bytes(all);
    came.sort();
    expected.sort();
    assert_eq!(came, expected);
    assert_eq!(figure(two.0[0].as_mut(), "sent_alone"), 3.0, "those that fit no datagram");
}

/// A dozen datagrams of 64 KiB to find out what is known would cost more than all that a keyboard says.
#[test]
fn how_much_a_way_within_this_machine_takes_is_not_searched_for() {
    let mut two = Two::new(FlowClass::Reliable, &[]);
    let all = records(&[10; 20]);
    assert_eq!(bytes(two.carry(0, &all, all.len())), bytes(all.clone()));
    let [mut sent, largest] = ["sent_packets", "datagram_bytes"].map(|name| figure(two.0[0].as_mut(), name));
    sent += figure(two.0[1].as_mut(), "sent_packets");
    assert!(largest > 60_000.0 && sent < 60.0, "{sent} packets, of {largest} bytes at most");
}

#[test]
fn what_is_late_is_given_up_and_said() {
    let [here, there] = udp_pair();
    let mut two = Two::over([here, there], FlowClass::Timely, &[("late", "20ms")]);
    // Connected, and from then on the other end hears nothing.
    two.carry(0, &records(&[10]), 1);
    for record in records(&[5000, 5000]) {
        let _ = two.0[0].push(FlowKey::DEFAULT, Message::new(Time::ZERO, record)).expect("push");
    }
    two.0[0].ctl(FlowKey::DEFAULT, Ctl::Flush).expect("flush");
    std::thread::sleep(Duration::from_millis(40));
    two.0[0].ctl(FlowKey::DEFAULT, Ctl::Flush).expect("flush");
    assert_eq!(figure(two.0[0].as_mut(), "late"), 2.0);
}

/// Who has other keys gets nowhere, whichever end it plays.
#[test]
fn a_stranger_is_no_end() {
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
                let _ = end.ctl(FlowKey::DEFAULT, Ctl::Heard);
            }
            if let Err(error) = ends[honest].pull(FlowKey::DEFAULT, Pull::Yours) {
                assert!(matches!(error, PartnerError::Gone(_)), "{error}");
                break;
            }
            assert!(begun.elapsed() < WATCHDOG, "the {stranger:?} end was let in, or hangs");
        }
    }
}

#[test]
fn what_is_altered_repeated_lost_and_reordered_on_the_way_harms_nothing() {
    let (mut relay, ends) = Relay::new(7);
    let mut two = Two::over(ends, FlowClass::Reliable, &[]);
    let all = records(&[20, 4000, 60_000, 100, 3000, 200_000]);
    relay.run(|| {
        let came = two.carry(0, &all, all.len());
        assert_eq!(bytes(came), bytes(all.clone()));
    });
}

/// The client's address changes, and the server gets a socket for it: nothing is lost, and nothing is new but the
/// address.
#[test]
fn a_connection_goes_on_from_another_address() {
    let mut two = Two::new(FlowClass::Reliable, &[]);
    let all = records(&[10, 4000, 10]);
    assert_eq!(bytes(two.carry(0, &all, 3)), bytes(all.clone()));
    // The old ones are closed, as if the address were gone.
    let [here, there] = udp_pair();
    two.0[0].ctl(FlowKey::DEFAULT, Ctl::Move(here)).expect("another socket");
    two.0[1].ctl(FlowKey::DEFAULT, Ctl::Move(there)).expect("another socket");
    for from in [0, 1] {
        assert_eq!(bytes(two.carry(from, &all, 3)), bytes(all.clone()));
    }
    let [here, there] = udp_pair();
    two.0[0].ctl(FlowKey::DEFAULT, Ctl::Move(here)).expect("a third socket");
    two.0[1].ctl(FlowKey::DEFAULT, Ctl::Move(there)).expect("a third socket");
    assert_eq!(bytes(two.carry(1, &all, 3)), bytes(all.clone()));
    assert_eq!(figure(two.0[0].as_mut(), "moves"), 2.0);
}

#[test]
fn a_connection_ends_for_both_when_one_lets_go() {
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

/// Who waits at an address again after its end tells who goes on there that it is over; nobody else can.
#[test]
fn who_begins_anew_tells_its_former_peers() {
    let own = |seed: u8| tls::key_pair_of_seed(&[seed; tls::KEY_BYTES]).expect("a key pair").1;
    let server = |secret: u8| {
        let keys = ServerKeys::new(Some(&Secret([secret; 32]))).expect("keys");
        Beginning::server(tls::server(own(1), b"test", None).expect("a server"), [7; 8], &keys, &TUNING)
            .expect("a server")
    };
    let [here, there] = udp_pair();
    let client = Beginning::client(tls::client(own(2), b"test", None).expect("a client"), &TUNING);
    let mut near = QuicConnection::begin(here, client.expect("a client")).expect("a connection");
    let socket = there.try_clone().expect("the socket");
    let mut far = QuicConnection::begin(there, server(1)).expect("a connection");
    let begun = Instant::now();
    let shake = |near: &mut QuicConnection, far: &mut QuicConnection| {
        near.turn();
        far.turn();
        assert!(begun.elapsed() < WATCHDOG, "no handshake");
        near.is_established() && far.is_established()
    };
    while !shake(&mut near, &mut far) {}
    (0..20).for_each(|_| _ = shake(&mut near, &mut far));

    // From here on nobody has a turn at that end, as if it were gone without a word.
    let there = UdpSocket::from(socket);
    let peer = there.peer_addr().expect("an address");
    let mut bytes = [0; 2048];
    let mut answered = |near: &mut QuicConnection, secret: u8| {
        while there.recv(&mut bytes).is_ok() {}
        let mut check = AddressCheck::new(&server(secret)).expect("a check");
        near.state().expect("it began").ping();
        near.turn_out();
        let count = there.recv(&mut bytes).expect("a ping");
        let Checked::Answer(answer) = check.look(&bytes[..count], peer) else { panic!("no reset") };
        assert!(answer.len() < count, "{} bytes for {count}", answer.len());
        there.send(answer).expect("send");
        near.turn();
        near.over().cloned()
    };
    assert_eq!(answered(&mut near, 2), None, "somebody else's word");
    assert_eq!(answered(&mut near, 1), Some(Over::Broken("the other host has begun anew".into())));
}

/// A connection that begins, where what it says comes, and who is asked about it.
fn knocking() -> (QuicConnection, UdpSocket, AddressCheck) {
    let [here, there] = udp_pair();
    let there = UdpSocket::from(there);
    let [near, far] = keys();
    let client = Beginning::data(End::Dialled, Some(&near), &TUNING).expect("a client");
    let server = Beginning::data(End::Accepted, Some(&far), &TUNING).expect("a server");
    let check = AddressCheck::new(&server).expect("a check");
    (QuicConnection::begin(here, client).expect("a connection"), there, check)
}

/// What it says once it was told to show that it is at `peer`; that is no more than it said.
fn said_again(
    (connection, there, check): (&mut QuicConnection, &UdpSocket, &mut AddressCheck),
    peer: SocketAddr,
) -> Vec<u8> {
    connection.turn_out();
    let mut bytes = [0; 2048];
    let first = there.recv(&mut bytes).expect("an Initial");
    assert_eq!(arrival(&bytes[..first]), Arrival::Initial);
    let Checked::Answer(answer) = check.look(&bytes[..first], peer) else { panic!("no Retry") };
    assert!(answer.len() <= first, "{} bytes for {first}", answer.len());
    there.send(answer).expect("send");
    let begun = Instant::now();
    loop {
        connection.turn();
        match there.recv(&mut bytes) {
            Ok(count) => return bytes[..count].to_vec(),
            Err(error) => assert!(begun.elapsed() < WATCHDOG, "no second Initial: {error}"),
        }
    }
}

#[test]
fn an_address_of_one_link_can_be_shown() {
    let (mut connection, there, mut check) = knocking();
    let peer = SocketAddrV6::new("fe80::1".parse().expect("an address"), 7845, 0, 4).into();
    let second = said_again((&mut connection, &there, &mut check), peer);
    assert_eq!(check.look(&second, peer), Checked::Shown);
}

/// Who begins a connection is answered with no more than it said, and let in once it has shown where it is.
#[test]
fn an_address_is_shown_before_anything_is_kept() {
    let (mut connection, there, mut check) = knocking();
    let peer = there.peer_addr().expect("an address");
    let second = said_again((&mut connection, &there, &mut check), peer);
    let elsewhere = SocketAddr::new(peer.ip(), peer.port() ^ 1);
    assert_ne!(check.look(&second, elsewhere), Checked::Shown, "shown at another address");
    assert_eq!(check.look(&second, peer), Checked::Shown);
    for length in [0, 1, 21, 1200, 1500] {
        for first in [0xc0, 0xe0, 0x40] {
            let mut garbage = pattern(length, 5);
            garbage.iter_mut().take(1).for_each(|byte| *byte |= first);
            if let Checked::Answer(answer) = check.look(&garbage, peer) {
                assert!(answer.len() <= length, "{} bytes for {length}", answer.len());
            }
        }
    }
}

/// Both ends have as much under way as they may, and more to say: what came is acknowledged all the same.
#[test]
fn an_acknowledgement_does_not_wait_behind_data() {
    let tuning = Tuning {
        window: 1 << 20,
        streams: 1,
        datagram: 1200,
        is_known: false,
        congestion: Congestion::Cubic,
    };
    let [near, far] = keys();
    let beginnings = [(End::Dialled, near), (End::Accepted, far)]
        .map(|(end, keys)| Beginning::data(end, Some(&keys), &tuning).expect("a beginning"));
    let mut beginnings = beginnings.into_iter();
    let mut ends = udp_pair()
        .map(|socket| QuicConnection::begin(socket, beginnings.next().expect("two")).expect("a connection"));
    let mut now = Instant::now();
    let mut both = |ends: &mut [QuicConnection; 2], step_ms, listen| {
        now += Duration::from_millis(step_ms);
        ends.iter_mut().for_each(|end| if listen { end.turn_at(now) } else { end.turn_out_at(now) });
    };
    // A round trip of 20 ms, and enough of them for all that a handshake has to say.
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
    // No probe is due yet: that is after the round trip, what it varies by, and 25 ms.
    both(&mut ends, 30, true);
    let after = acknowledged(&mut ends);
    assert!(after[0] > before[0] && after[1] > before[1], "{before:?} {after:?}");
    let counts = ends.each_ref().map(|end| end.counts.owed_datagrams);
    assert!(counts.iter().sum::<u64>() > 0, "{counts:?}: nothing was held back");
}

/// Both ends of a connection, and a time when it is there: how time goes on is the test's to say.
fn established(sockets: [OwnedFd; 2]) -> ([QuicConnection; 2], Instant) {
    let tuning =
        Tuning { window: 1 << 20, streams: 1, datagram: 1200, is_known: true, congestion: Congestion::Cubic };
    let [near, far] = keys();
    let begin = |end, keys, socket| {
        let beginning = Beginning::data(end, Some(keys), &tuning).expect("a beginning");
        QuicConnection::begin(socket, beginning).expect("a connection")
    };
    let [here, there] = sockets;
    let mut ends = [begin(End::Dialled, &near, here), begin(End::Accepted, &far, there)];
    let mut now = Instant::now();
    for _ in 0..40 {
        now += Duration::from_millis(10);
        ends.iter_mut().for_each(|end| end.turn_at(now));
    }
    assert!(ends.iter().all(QuicConnection::is_established));
    (ends, now)
}

/// One end sends to the other, which sleeps and loses all of it. When it is there again, the rest of a wait as long as its sleep
/// is not waited for.
#[test]
fn who_was_silent_and_is_there_again_is_sent_to_at_once() {
    let sockets = udp_pair();
    let slept_through = UdpSocket::from(sockets[1].try_clone().expect("a socket"));
    let (mut ends, mut now) = established(sockets);
    const STEP: Duration = Duration::from_millis(10);
    let said = pattern(64 << 10, 7);
    let connection = ends[0].state().expect("a connection");
    let stream = connection.streams().open(Dir::Uni).expect("a stream");
    connection.send_stream(stream).write(&said).expect("room");
    // It wakes when the last probe has just gone in vain, and before it has something to say of its own.
    const ASLEEP: Duration = Duration::from_secs(5);
    let began = now;
    loop {
        now += STEP;
        let before = ends[0].counts.sent_datagrams;
        ends[0].turn_at(now);
        if now - began > ASLEEP && ends[0].counts.sent_datagrams > before {
            break;
        }
    }
    while slept_through.recv(&mut [0; 2048]).is_ok() {}
    let woke = now;
    ends[0].probe_at(now);
    let mut came = 0;
    while came < said.len() {
        now += STEP;
        ends.iter_mut().for_each(|end| end.turn_at(now));
        let connection = ends[1].state().expect("a connection");
        let mut stream = connection.recv_stream(stream);
        let Ok(mut chunks) = stream.read(true) else { continue };
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            came += chunk.bytes.len();
        }
        let _ = chunks.finalize();
        assert!(now - woke < ASLEEP / 4, "{came} of {} came", said.len());
    }
}

/// One end has sent something that got lost, and is due to probe, when the other is heard from another address.
#[test]
fn what_was_lost_before_the_peer_moved_is_sent_again() {
    let sockets = udp_pair();
    let [at_here, at_there] =
        sockets.each_ref().map(|socket| UdpSocket::from(socket.try_clone().expect("a socket")));
    let (mut ends, mut now) = established(sockets);
    let said = pattern(4000, 7);
    let connection = ends[1].state().expect("a connection");
    let stream = connection.streams().open(Dir::Uni).expect("a stream");
    connection.send_stream(stream).write(&said).expect("room");
    ends[1].turn_at(now);
    let mut datagram = [0; 2048];
    while at_here.recv(&mut datagram).is_ok() {}
    ends[0].probe_at(now);
    let count = at_there.recv(&mut datagram).expect("a probe");
    ends[1].take(&datagram[..count], "127.0.0.1:9".parse().expect("an address"));
    now += Duration::from_secs(1);
    ends[1].turn_out_at(now);
    let mut came = Vec::new();
    for _ in 0..100 {
        now += Duration::from_millis(10);
        ends.iter_mut().for_each(|end| end.turn_at(now));
        let connection = ends[0].state().expect("a connection");
        let mut stream = connection.recv_stream(stream);
        let Ok(mut chunks) = stream.read(true) else { continue };
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            came.extend_from_slice(&chunk.bytes);
        }
        let _ = chunks.finalize();
    }
    assert_eq!(came, said);
}

/// The client's address changes. Both keep the socket for the older one until something came by the newer, and for a while
/// of silence.
#[test]
fn where_a_connection_went_by_before_nothing_is_waited_for_in_the_end() {
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
            ends.iter_mut().for_each(|end| end.turn_at(now));
        }
        now
    };
    let waits_for = |ends: &[QuicConnection; 2]| {
        ends.each_ref().map(|end| end.readiness().descriptors.into_iter().flatten().count())
    };
    let mut at = turn(&mut ends, STEP);
    ends[0].add_way_at(moved.into(), at).expect("another socket");
    at = turn(&mut ends, LATE_MAX + STEP);
    assert_eq!(waits_for(&ends), [2, 1], "nothing came by the newer yet");
    ends[1].add_way_at(there_too.into(), at).expect("another socket");
    at = turn(&mut ends, LATE_MAX - STEP);
    assert_eq!(waits_for(&ends)[1], 2, "something may be late");
    ends[0].probe_at(at);
    turn(&mut ends, LATE_MAX + STEP);
    assert_eq!(waits_for(&ends), [1, 1]);
    assert!(ends.iter().all(|end| end.over().is_none()));
}

/// Who has taken a stranger's first datagram waits for what the stranger will never say here, and its peer for an answer:
/// neither waits longer than a handshake may.
#[test]
fn two_that_wait_in_vain_give_up() {
    let tuning = Tuning {
        window: 1 << 20,
        streams: 8,
        datagram: 1452,
        is_known: false,
        congestion: Congestion::Cubic,
    };
    let [own, peers] = keys();
    let begin = |end, keys, socket| {
        let beginning = Beginning::data(end, Some(keys), &tuning).expect("a beginning");
        QuicConnection::begin(socket, beginning).expect("a connection")
    };
    let [[here, there], [elsewhere, heard]] = [udp_pair(), udp_pair()];
    let mut ends = [begin(End::Dialled, &own, here), begin(End::Accepted, &peers, there)];
    begin(End::Dialled, &own, elsewhere).turn_out();
    let mut stray = [0; 2048];
    let count = UdpSocket::from(heard).recv(&mut stray).expect("an Initial");
    let address = ends[1].name().parse().expect("an address");
    ends[1].take(&stray[..count], address);
    let begun = Instant::now();
    let mut passed = Duration::ZERO;
    while ends.iter().any(|end| end.over().is_none()) {
        assert!(ends.iter().all(|end| !end.is_established()), "after {passed:?}");
        assert!(passed < 2 * connection::HANDSHAKE_MAX, "they still wait");
        ends.iter_mut().for_each(|end| end.turn_at(begun + passed));
        passed += Duration::from_millis(100);
    }
    assert!(passed >= connection::HANDSHAKE_MAX, "after {passed:?}");
}

/// A network between the two ends, seeded.
mod relay {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    pub(super) struct Relay {
        middle: [UdpSocket; 2],
        random: u64,
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
        /// A network and its two ends.
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

        /// Passes datagrams on while `act` runs: one in eight is lost, altered, repeated or kept back.
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
                                let fate = Relay::draw(random) % 32;
                                if fate == 1 {
                                    let at = Relay::draw(random) as usize % count;
                                    datagram[at] ^= 1 << (fate % 8);
                                }
                                if fate == 2 {
                                    held.push_back((from, datagram.clone()));
                                }
                                if fate == 3 {
                                    held.push_back((from, datagram));
                                } else if fate != 0 {
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
                act();
                done.store(true, Ordering::Relaxed);
            });
        }
    }
}
