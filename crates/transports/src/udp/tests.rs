//! Every record arrives complete and once, or is counted as lost, whatever the network does to its datagrams.

use super::fragment::Fragment;
use super::sender::{Batch, Sender, SenderLimits};
use super::*;
use crate::test_records::{
    WATCHDOG, figure, hex, keys, partner, pattern, pull, pull_from, push, push_to, record, sealed_partners,
    udp_pair, vector,
};
use bytes::Bytes;
use proptest::prelude::*;
use std::net::UdpSocket;
use std::time::Instant;

const SLAB: Slab = Slab { number: 0, bytes: SLAB_BYTES };

fn limits() -> ReassemblyLimits {
    ReassemblyLimits {
        body_bytes_max: wire::BODY_BYTES_MAX,
        partials_max: 64,
        partial_bytes_max: 96 << 20,
        patience: Duration::from_secs(1),
    }
}

fn defaults() -> Options {
    Options::defaults(&OPTIONS).expect("options")
}

fn pair() -> (UdpSocket, UdpSocket) {
    let here = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let there = UdpSocket::bind("127.0.0.1:0").expect("bind");
    here.connect(there.local_addr().expect("address")).expect("connect");
    there.connect(here.local_addr().expect("address")).expect("connect");
    (here, there)
}

const LIMITS: SenderLimits =
    SenderLimits { records_max: 16, bytes_max: usize::MAX, patience: Duration::from_secs(3) };

/// Returns the number of datagrams in a batch, and their bytes.
fn bytes_of(batch: &Batch, sender: &Sender) -> (usize, Vec<u8>) {
    let mut bytes = Vec::new();
    let count = batch.each(sender, |pieces| {
        pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
        true
    });
    (count, bytes)
}

/// Returns the datagrams of a record, as the partner would send them.
fn datagrams(record: &Body, part_bytes: usize) -> Vec<Bytes> {
    let mut sender = Sender::new(part_bytes, Fragment::BYTES, LIMITS);
    let parts = sender.parts(record.len()).expect("not too many");
    sender.push(record.clone(), parts, Time::ZERO);
    let mut datagrams = Vec::new();
    while !sender.is_empty() {
        let batch = sender.plan(SEGMENTS_MAX, BATCH_BYTES_MAX);
        let (count, bytes) = bytes_of(&batch, &sender);
        let sizes: Vec<_> = batch.parts[..count].iter().map(|part| part + Fragment::BYTES).collect();
        assert_eq!(bytes.len(), sizes.iter().sum::<usize>());
        assert!(bytes.len() <= BATCH_BYTES_MAX);
        assert!(sizes[..count - 1].iter().all(|size| *size == sizes[0]) && sizes[count - 1] <= sizes[0]);
        datagrams.extend(bytes.chunks(sizes[0]).map(Bytes::copy_from_slice));
        sender.sent(&batch, count, Time::ZERO);
    }
    datagrams
}

#[test]
fn a_fragment_matches_the_documented_layout() {
    let fragment =
        Fragment { id: *b"\x01\0\0\0\x02\0\0\0\x03\0\0\0\0\0\0\0", index: 4, count: 0x105, number: 6 };
    let bytes = *b"\x01\0\0\0\x02\0\0\0\x03\0\0\0\0\0\0\0\x04\0\x05\x01\x06\0\0\0";
    assert_eq!(fragment.emit(), bytes);
    assert_eq!(Fragment::parse(&bytes), Some(fragment));
    // docs/reference/transport-udp.md: flow 1, epoch 3, sequence 2, created 14, body "hello", eleven bytes in a part.
    let sent = datagrams(&record(1, 2, b"hello"), 11);
    let id = b"\x01\0\0\0\x03\0\0\0\x02\0\0\0\0\0\0\0";
    let expected = [
        [&id[..], b"\0\0\x02\0\0\0\0\0", b"\x05\0\0\0\x0e\0\0\0\0\0\0"].concat(),
        [&id[..], b"\x01\0\x02\0\x01\0\0\0", b"\0hello"].concat(),
    ];
    assert_eq!(sent, expected);
}

/// `docs/reference/vectors/udp.txt` states the contents of its receipts; the test encodes the same.
#[test]
fn a_receipt_matches_the_documented_vectors() {
    let vectors = include_str!("../../../../docs/reference/vectors/udp.txt");
    let gaps: [(&str, &[(u32, u32)]); 3] =
        [("nothing missing", &[]), ("4 and 5 missing", &[(4, 6)]), ("4, 5 and 8 missing", &[(4, 6), (8, 9)])];
    for (name, gaps) in gaps {
        let receipt = Receipt {
            received_bytes: 5000,
            came: Time(1000),
            next: 10,
            from: 2,
            held_us: 7,
            room: 65536,
            gaps: gaps.iter().copied().collect(),
        };
        let bytes = receipt.emit();
        assert_eq!(hex(&bytes), vector(vectors, name));
        assert!(Receipt::is_receipt(&bytes));
        assert_eq!(Receipt::parse(&bytes), Ok(receipt));
    }
    for name in ["refused, half a gap", "refused, a gap too many"] {
        let digits = vector(vectors, name);
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal");
        let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
        assert!(Receipt::is_receipt(&bytes) && Receipt::parse(&bytes).is_err(), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_record_arrives_complete_and_once_or_is_counted(
        lengths in prop::collection::vec(prop_oneof![0..100usize, 0..5000usize, 0..100_000usize], 1..8),
        part_bytes in prop_oneof![108..300usize, 1000..1500usize, 8000..60_000usize],
        pieces in 1..40usize,
        order in prop::collection::vec(any::<u32>(), 64),
        lost in prop::collection::vec(0..100u8, 64),
    ) {
        let records: Vec<_> = lengths.iter().zip(0..).map(|(&n, i)| record(5, i, &pattern(n, i))).collect();
        let mut arrivals = Vec::new();
        let mut is_complete = vec![true; records.len()];
        let mut is_begun = vec![false; records.len()];
        let mut repeats = 0;
        for (r, record) in records.iter().enumerate() {
            // The borders of the pieces must not matter.
            let mut rest = record.clone();
            let mut cut = Body::new();
            while !rest.is_empty() {
                let next = rest.split_off_front(rest.len().min(1 + record.len() / pieces)).expect("there");
                cut.append(next);
            }
            for (d, datagram) in datagrams(&cut, part_bytes).into_iter().enumerate() {
                let place = (r * 31 + d) % 64;
                let copies = match lost[place] { 0..3 => 0, 3..10 => 2, _ => 1 };
                is_complete[r] &= copies > 0;
                is_begun[r] |= copies > 0;
                repeats += u64::from(copies == 2);
                for copy in 0..copies {
                    arrivals.push((order[(place + copy) % 64], datagram.clone()));
                }
            }
        }
        arrivals.sort_by_key(|(key, _)| *key);
        let mut reassembly = Reassembly::new(limits());
        let mut received = vec![0; records.len()];
        for (_, datagram) in arrivals {
            reassembly.insert(datagram, SLAB, Time::ZERO);
            while let Some((flow, body)) = reassembly.next() {
                prop_assert_eq!(flow, 5);
                let r = records.iter().position(|record| *record == body).expect("a sent record");
                received[r] += 1;
            }
        }
        reassembly.expire(Time::ZERO.after(Duration::from_secs(2)));
        for (r, count) in received.iter().enumerate() {
            prop_assert_eq!(*count, u32::from(is_complete[r]));
        }
        let partial = is_begun.iter().zip(&is_complete).filter(|(begun, complete)| **begun && !**complete).count();
        prop_assert_eq!(reassembly.counts.lost_partial, partial as u64);
        prop_assert_eq!(reassembly.counts.malformed, 0);
        prop_assert_eq!(reassembly.counts.repeated, repeats);
        prop_assert_eq!(reassembly.expires(), None);
    }

    #[test]
    fn garbage_is_counted_and_stays_within_limits(
        garbage in prop::collection::vec((any::<[u8; 2]>(), 0..6u16, 0..6u16, 0..3000usize), 1..200),
    ) {
        let limits = ReassemblyLimits { body_bytes_max: 4000, partials_max: 3, partial_bytes_max: 3 << 20, ..limits() };
        let mut reassembly = Reassembly::new(limits);
        let total = garbage.len() as u64;
        for (number, (id, index, count, length)) in garbage.into_iter().enumerate() {
            let mut datagram = vec![0; 16];
            datagram[0] = id[0] % 2;
            datagram[8] = id[1] % 4;
            datagram.extend(index.to_le_bytes());
            datagram.extend(count.to_le_bytes());
            datagram.extend((number as u32).to_le_bytes());
            datagram.extend(pattern(length, 1));
            datagram.truncate(length);
            let slab = Slab { number: number as u64, bytes: SLAB_BYTES };
            reassembly.insert(Bytes::from(datagram), slab, Time(number as u64));
            let (partials, bytes) = reassembly.held();
            prop_assert!(partials <= 3 && bytes <= 3 << 20, "{partials} partials, {bytes} bytes");
        }
        let counts = reassembly.counts;
        prop_assert!(counts.malformed + counts.received + counts.lost_partial + counts.repeated <= total);
        reassembly.expire(Time::ZERO.after(Duration::from_secs(100)));
        prop_assert_eq!(reassembly.held(), (0, 0));
    }
}

#[test]
fn a_record_that_the_session_had_no_room_for_arrives_again() {
    for length in [10, 3000] {
        let mut reassembly = Reassembly::new(limits());
        let sent = datagrams(&record(1, 7, &pattern(length, 1)), 1000);
        let mut arrives_after = |overflow| {
            reassembly.forget(&record_id(1, 3, overflow));
            sent.iter().cloned().for_each(|datagram| _ = reassembly.insert(datagram, SLAB, Time::ZERO));
            reassembly.next().is_some()
        };
        assert!(arrives_after(0));
        assert!(!arrives_after(7 + 1024), "another record in the same place");
        assert!(arrives_after(7), "{length} bytes");
    }
}

#[test]
fn records_cross_in_batches_and_one_by_one() {
    for can_batch in [true, false] {
        let (here, there) = pair();
        let options = Options::check(&OPTIONS, [("datagram", "1472")]).expect("options");
        let mut here = UdpPartner::new(here.into(), &options, None);
        here.can_batch = can_batch;
        let mut there = partner(&Udp, there, &[]);
        for (i, length) in [0, 1, 24, 1000, 1440, 1441, 20_000, 100_000, 24].into_iter().enumerate() {
            let sent = record(9, i as u64, &pattern(length, i as u64));
            push(&mut here, sent.clone());
            let received = pull_from(&mut *there, &mut here);
            assert_eq!(received, Some((FlowKey(9), sent)), "{length} bytes, batches: {can_batch}");
        }
        assert_eq!(here.can_batch, can_batch, "loopback can split a batch");
        let receipts = figure(&mut here, "receipts");
        assert!(receipts > 0.0 && figure(&mut here, "received_datagrams") == receipts);
        // On a busy machine a timeout may repeat a datagram that nobody reads any more.
        let unread = figure(&mut here, "sent_datagrams") - figure(&mut *there, "received_datagrams");
        assert!((0.0..=figure(&mut here, "retransmitted_datagrams")).contains(&unread), "{unread} unread");
    }
}

#[test]
fn a_burst_of_equal_records_is_sent_in_one_call() {
    let (here, there) = pair();
    let (mut here, mut there) = (partner(&Udp, here, &[]), partner(&Udp, there, &[]));
    for i in 0..40 {
        let message = Message::new(Time::ZERO, record(1, i, &pattern(24, i)));
        assert!(matches!(here.push(FlowKey::DEFAULT, message), Ok(Pushed::Taken)));
    }
    here.ctl(FlowKey::DEFAULT, Ctl::Flush).expect("flush");
    assert_eq!(figure(&mut *here, "send_calls"), 1.0);
    for i in 0..40 {
        assert_eq!(pull(&mut *there), Some((FlowKey(1), record(1, i, &pattern(24, i)))));
    }
}

/// A network faster than this host: the pace always permits a few more datagrams.
#[test]
fn a_sender_slower_than_its_pace_receives_between_bursts() {
    const DATAGRAM_BYTES: f64 = 200.0;
    let (here, there) = pair();
    let options = Options::check(&OPTIONS, [("datagram", "200")]).expect("options");
    let mut here = UdpPartner::new(here.into(), &options, None);
    here.can_batch = false;
    // The first window is sent, and the rest waits.
    for sequence in 0..40 {
        push(&mut here, record(1, sequence, &pattern(60_000, sequence)));
    }
    let before = here.counts.sent_datagrams;
    let pace = 2e8;
    here.sender.pace_at(pace, Time(sys::clock::boot_ns()));
    here.flush().expect("flush");
    let sent = (here.counts.sent_datagrams - before) as f64 * DATAGRAM_BYTES;
    // The time that may be caught up, the time that is sent ahead, and a batch.
    assert!(sent > 0.0 && sent < pace * 0.006 + 65_536.0, "{sent} bytes without a look at the socket");
    drop(there);
}

/// The receiver sends no receipt for small records, so their timeouts do not delay the retransmission of a larger one.
#[test]
fn timeouts_of_small_records_do_not_count() {
    let limits = SenderLimits { records_max: 64, bytes_max: QUEUE_BYTES_MAX, patience: PATIENCE };
    let mut sender = Sender::new(1000, 40, limits);
    let send = |sender: &mut Sender, (sequence, bytes): (u64, usize), now| {
        let record = record(1, sequence, &pattern(bytes, sequence));
        let parts = sender.parts(record.len()).expect("a few");
        sender.push(record, parts, now);
        sender.handle_timeout(now);
        while let Permission::Send(bytes_max) = sender.permission(now) {
            let batch = sender.plan(SEGMENTS_MAX, bytes_max);
            sender.sent(&batch, batch.parts.len(), now);
        }
    };
    for sequence in 0..8 {
        send(&mut sender, (sequence, 100), Time::from_millis(1000 + sequence * 10_000));
    }
    let now = Time::from_millis(100_000);
    send(&mut sender, (8, 2500), now);
    let first = sender.timeout().expect("a receipt is due");
    assert_eq!(first, now.after(sender.rate().timeout()));
    sender.handle_timeout(first);
    assert_eq!(sender.counts.lost, 3, "only parts that are retransmitted");
}

/// A sender that was not scheduled past its timeout processes the waiting receipt and retransmits nothing.
#[test]
fn a_receipt_that_waits_in_the_socket_is_in_time() {
    let (here, there) = pair();
    let mut here = partner(&Udp, here, &[("datagram", "1200")]);
    let mut there = partner(&Udp, there, &[]);
    let body = pattern(20_000, 3);
    for sequence in 0..4 {
        push(here.as_mut(), record(1, sequence, &body));
        assert!(pull_from(there.as_mut(), here.as_mut()).is_some());
        // Now the receipt is due, and the sender's timeout has expired.
        std::thread::sleep(Duration::from_millis(300));
        let _ = there.pull(FlowKey::DEFAULT, Pull::Yours).expect("pull");
    }
    push(here.as_mut(), record(1, 4, b"more"));
    assert_eq!(
        ["lost_datagrams", "retransmitted_datagrams"].map(|name| figure(here.as_mut(), name)),
        [0.0; 2]
    );
}

/// A push reads receipts even if everything is sent and the application does not pull.
#[test]
fn a_receipt_makes_room_without_a_pull() {
    let (here, there) = pair();
    let mut here = partner(&Udp, here, &[("outbox", "8")]);
    let mut there = partner(&Udp, there, &[]);
    // In several datagrams, so that it stays in the queue until it is acknowledged.
    push(&mut *here, record(1, 0, &pattern(20_000, 1)));
    for sequence in 1..20 {
        push_to(&mut *here, &mut *there, record(1, sequence, b"small"));
    }
}

/// The application does not pull, and a flush waits for the pace: nothing may stay in the socket, which would wake the
/// flow again and again.
#[test]
fn a_paced_flush_empties_the_socket() {
    let (here, there) = pair();
    let socket = here.try_clone().expect("the socket");
    socket.set_nonblocking(true).expect("a socket that does not block");
    let (mut here, mut there) = (UdpPartner::new(here.into(), &defaults(), None), partner(&Udp, there, &[]));
    here.sender.pace_at(5e3, Time(sys::clock::boot_ns()));
    push(&mut here, record(1, 0, &pattern(20_000, 1)));
    push(&mut *there, record(2, 0, b"the other way"));
    assert!(matches!(here.ctl(FlowKey::DEFAULT, Ctl::Flush), Ok(CtlReply::Pending)));
    assert!(socket.peek(&mut [0; 1]).is_err(), "a datagram is left");
    assert_eq!(pull(&mut here), Some((FlowKey(2), record(2, 0, b"the other way"))));
}

/// The application does not pull. Receipts behind many unread records are processed all the same, and the records stay
/// within their memory.
#[test]
fn receipts_do_not_wait_behind_unread_records() {
    for ready_bytes_max in [usize::MAX, 10_000] {
        let (here, there) = pair();
        let [mut here, mut there] = [here, there].map(|end| UdpPartner::new(end.into(), &defaults(), None));
        here.ready_bytes_max = ready_bytes_max;
        there.can_batch = false;
        push(&mut here, record(1, 0, &pattern(20_000, 1)));
        for sequence in 0..200 {
            push(&mut there, record(2, sequence, &pattern(100, sequence)));
        }
        assert!(pull(&mut there).is_some());
        let begun = Instant::now();
        while !matches!(here.ctl(FlowKey::DEFAULT, Ctl::Finish), Ok(CtlReply::Done)) {
            let _ = there.pull(FlowKey::DEFAULT, Pull::Yours).expect("pull");
            assert!(begun.elapsed() < WATCHDOG, "the end hangs");
        }
        assert_eq!(figure(&mut here, "abandoned"), 0.0, "no receipt");
        let overflowed = figure(&mut here, "overflowed_datagrams");
        assert_eq!(overflowed > 0.0, ready_bytes_max < usize::MAX);
        for sequence in 0..200 - overflowed as u64 {
            assert_eq!(pull(&mut here), Some((FlowKey(2), record(2, sequence, &pattern(100, sequence)))));
        }
    }
}

#[test]
fn a_missing_peer_is_no_error() {
    let (here, there) = pair();
    let address = there.local_addr().expect("address");
    let back = here.local_addr().expect("address");
    drop(there);
    let mut here = partner(&Udp, here, &[]);
    for i in 0..10 {
        push(&mut *here, record(1, i, b"lost"));
        assert!(matches!(here.pull(FlowKey::DEFAULT, Pull::Yours), Ok(Pulled::Nothing)));
    }
    let there = UdpSocket::bind(address).expect("bind again");
    there.connect(back).expect("connect");
    let mut there = partner(&Udp, there, &[]);
    let begun = Instant::now();
    for i in 10.. {
        push(&mut *here, record(1, i, b"now"));
        if let Ok(Pulled::Message(..)) = there.pull(FlowKey::DEFAULT, Pull::Yours) {
            break;
        }
        assert!(begun.elapsed() < WATCHDOG, "no record arrives");
    }
}

#[test]
fn foreign_datagrams_do_not_disturb_a_flow() {
    let (here, there) = pair();
    let stranger = here.try_clone().expect("clone");
    let (mut here, mut there) = (partner(&Udp, here, &[]), partner(&Udp, there, &[]));
    for i in 0..50u64 {
        stranger.send(&pattern(i as usize % 20, i)).expect("send");
        let session = wire::preamble::SessionToken([0, 1, 2, 3, 4, 5, 6, 7, 1, 0, 2, 0, 0, 0, 0, 0]);
        stranger.send(&wire::Preamble::Data { session, driver: i as u32 }.emit()).expect("send");
        push(&mut *here, record(1, i, &pattern(3000, i)));
        assert_eq!(pull(&mut *there), Some((FlowKey(1), record(1, i, &pattern(3000, i)))));
    }
    assert!(figure(&mut *there, "malformed_datagrams") > 0.0);
    assert_eq!(figure(&mut *there, "partials"), 0.0, "an introduction is no part of a record");
}

#[test]
fn a_record_with_too_many_parts_is_refused() {
    let (here, _there) = pair();
    let mut here = partner(&Udp, here, &[("datagram", "128")]);
    let message = Message::new(Time::ZERO, record(1, 0, &vec![0; 108 * 65_536]));
    assert!(matches!(here.push(FlowKey::DEFAULT, message), Err((PartnerError::Message(_), _))));
}

/// The other end is a relay that drops everything, and the session retransmits a record in vain.
#[test]
fn a_connection_that_reaches_nobody_is_found() {
    let (here, _relay) = pair();
    let mut here = partner(&Udp, here, &[]);
    let begun = Instant::now();
    let is_held_back = |here: &mut dyn Partner| {
        push(here, record(1, 0, b"pressed"));
        let answer = here.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::HeldBack));
        matches!(answer, Ok(CtlReply::Count(1)))
    };
    while !is_held_back(&mut *here) {
        assert!(begun.elapsed() < WATCHDOG, "the loss is not found");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_application_hosts_end_keeps_an_idle_path_open() {
    let received = |end: &mut dyn Partner| {
        assert!(matches!(end.pull(FlowKey::DEFAULT, Pull::Yours), Ok(Pulled::Nothing)));
        match end.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Received)) {
            Ok(CtlReply::Count(count)) => count,
            other => panic!("{other:?}"),
        }
    };
    let [here, there] = sealed_partners(&Udp, udp_pair(), &[]);
    assert!(here.upkeep().at.is_some() && there.upkeep().at.is_none());
    let options = Options::check(&OPTIONS, []).expect("options");
    for keys in [None, Some(keys())] {
        let keys = keys.as_ref();
        let [here, there] = udp_pair();
        let mut here = UdpPartner::new(here, &options, keys.map(|[here, _]| here));
        let mut there = UdpPartner::new(there, &options, keys.map(|[_, there]| there));
        here.keep_alive_at = Some(Time::ZERO);
        let begun = Instant::now();
        assert_eq!(received(&mut here), 0);
        assert!(
            here.keep_alive_at.is_some_and(|at| at.0 > KEEP_ALIVE.as_nanos() as u64),
            "the next one is due later"
        );
        let calls = there.counts.receive_calls;
        while there.counts.receive_calls < calls + 3 {
            assert!(begun.elapsed() < WATCHDOG, "no datagram arrives");
            assert_eq!(received(&mut there), 0, "it is no sign of life");
        }
        assert_eq!(there.reassembly.counts.malformed, 0);
    }
}

/// The receiving direction is blocked, so nobody pulls.
#[test]
fn a_lost_record_is_retransmitted_without_a_pull() {
    let (here, there) = pair();
    let mut here = partner(&Udp, here, &[("datagram", "1200")]);
    push(&mut *here, record(1, 0, &pattern(3000, 1)));
    let mut datagram = [0; 2000];
    for _ in 0..3 {
        there.recv(&mut datagram).expect("a part, which is lost");
    }
    let mut there = partner(&Udp, there, &[]);
    let begun = Instant::now();
    while !matches!(there.pull(FlowKey::DEFAULT, Pull::Yours), Ok(Pulled::Message(..))) {
        assert!(begun.elapsed() < WATCHDOG, "no record arrives");
        let at = here.upkeep().at.expect("a timer");
        std::thread::sleep(at.since(Time(sys::clock::boot_ns())));
        here.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Received)).expect("the count");
    }
}
