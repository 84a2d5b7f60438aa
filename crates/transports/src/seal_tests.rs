//! Sealed data arrives unchanged. Altered, repeated, cut off, reordered and foreign data are rejected.

use crate::seal::{DATAGRAM_BYTES, NUMBER_BYTES, OpenError, Seal, TAG_BYTES};
use crate::test_records::{
    WATCHDOG, figure, hex, pattern, pull, pull_from, push, record, sealed_partners, vector,
};
use bytes::BytesMut;
use contract::{Body, FlowKey, Partner, PartnerError, Pull, Pulled, SealKeys, Secret, TransportClass};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Instant;
use wire::RecordHeader;

fn ends() -> [Seal; 2] {
    let [one, other] = [Secret([1; 32]), Secret([2; 32])];
    let here = SealKeys { sending: one.clone(), receiving: other.clone() };
    [Seal::new(&here), Seal::new(&SealKeys { sending: other, receiving: one })]
}

fn sealed_datagram(seal: &mut Seal, parts: &[&[u8]]) -> Vec<u8> {
    let mut sealed = Vec::new();
    seal.sealer.datagram(parts.iter().copied(), &mut sealed);
    sealed
}

/// `docs/reference/vectors/seal.txt` states the inputs; the test seals the same.
#[test]
fn sealed_bytes_match_the_documented_vectors() {
    let vectors = include_str!("../../../docs/reference/vectors/seal.txt");
    let [mut here, _] = ends();
    let sealed: Vec<u8> = here.sealer.record(&record(1, 2, b"hello")).into_bytes().to_vec();
    assert_eq!(hex(&sealed), vector(vectors, "record 0"));
    let sealed: Vec<u8> = here.sealer.record(&record(1, 3, b"")).into_bytes().to_vec();
    assert_eq!(hex(&sealed), vector(vectors, "record 1"));
    let [mut here, _] = ends();
    assert_eq!(hex(&sealed_datagram(&mut here, &[b"hel", b"lo"])), vector(vectors, "datagram 0"));
    assert_eq!(hex(&sealed_datagram(&mut here, &[b"hello"])), vector(vectors, "datagram 1"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn records_of_a_stream_open_only_in_order(
        lengths in prop::collection::vec(prop_oneof![4 => 0..300usize, 1 => 60_000..200_000usize], 1..8),
        harm in 0..5usize,
        at in any::<prop::sample::Index>(),
        place in any::<prop::sample::Index>(),
        bit in 0..8u32,
    ) {
        let [mut here, mut there] = ends();
        let sent: Vec<Body> =
            lengths.iter().zip(0..).map(|(&length, i)| record(i as u32, i, &pattern(length, i))).collect();
        let mut sealed: Vec<BytesMut> =
            sent.iter().map(|body| BytesMut::from(&here.sealer.record(body).into_bytes()[..])).collect();
        let at = at.index(sent.len());
        match harm {
            0 => {}
            1 => {
                let place = place.index(sealed[at].len());
                sealed[at][place] ^= 1 << bit;
            }
            2 => {
                let again = sealed[at].clone();
                sealed.insert(at, again);
            }
            3 => {
                let cut = place.index(sealed[at].len());
                sealed[at].truncate(cut);
            }
            _ => drop(sealed.remove(at)),
        }
        let opened = sealed.iter_mut().map(|record| there.opener.record(record).map(|()| record.to_vec()));
        let opened: Vec<_> = opened.take_while(Result::is_ok).flatten().collect();
        // A repeated record opens once; nothing opens behind the harm.
        let whole = match harm {
            0 => sent.len(),
            2 => at + 1,
            _ => at,
        };
        let expected: Vec<Vec<u8>> =
            sent[..whole].iter().map(|body| body.clone().into_bytes().to_vec()).collect();
        prop_assert_eq!(opened, expected);
    }

    #[test]
    fn unaltered_datagrams_open_once_in_any_order(
        order in prop::collection::vec(any::<prop::sample::Index>(), 1..60),
        harm in prop::collection::vec((any::<prop::sample::Index>(), 0..8u32), 0..4),
    ) {
        let [mut here, mut there] = ends();
        let sent: Vec<Vec<u8>> = (0..20).map(|i| pattern(i * 37, i as u64)).collect();
        let sealed: Vec<Vec<u8>> = sent.iter().map(|part| sealed_datagram(&mut here, &[part])).collect();
        let mut opened_before = [false; 20];
        for (step, index) in order.iter().enumerate() {
            let number = index.index(sent.len());
            let mut datagram = sealed[number].clone();
            if let Some((place, bit)) = harm.get(step) {
                let place = place.index(datagram.len());
                datagram[place] ^= 1 << bit;
                let opened = there.opener.datagram(&mut datagram);
                prop_assert!(opened.is_err(), "an altered datagram opens");
                continue;
            }
            let opened = there.opener.datagram(&mut datagram);
            match opened_before[number] {
                true => prop_assert_eq!(opened, Err(OpenError::Repeated)),
                false => {
                    prop_assert_eq!(opened, Ok(sent[number].len()));
                    prop_assert_eq!(&datagram[NUMBER_BYTES..][..sent[number].len()], &sent[number][..]);
                }
            }
            opened_before[number] = true;
        }
    }

    #[test]
    fn garbage_does_not_open(garbage in prop::collection::vec(any::<u8>(), 0..2000)) {
        let [_, mut there] = ends();
        prop_assert!(there.opener.record(&mut BytesMut::from(&garbage[..])).is_err());
        prop_assert!(there.opener.datagram(&mut garbage.clone()).is_err());
    }
}

#[test]
fn a_reflected_datagram_does_not_open() {
    let [mut here, _] = ends();
    let mut back = sealed_datagram(&mut here, &[b"reflected"]);
    assert_eq!(here.opener.datagram(&mut back), Err(OpenError::Altered));
}

/// Returns the two ends of a connection and, between them, the sockets of a man in the middle.
fn tcp_between() -> (OwnedFd, TcpStream, TcpStream, OwnedFd) {
    let pair = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let here = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        (here, listener.accept().expect("accept").0)
    };
    let ((here, from), (to, there)) = (pair(), pair());
    (here.into(), from, to, there.into())
}

fn pull_error(partner: &mut dyn Partner) -> PartnerError {
    let begun = Instant::now();
    loop {
        match partner.pull(FlowKey::DEFAULT, Pull::Yours) {
            Err(error) => return error,
            Ok(Pulled::Nothing) => assert!(begun.elapsed() < WATCHDOG, "no error is returned"),
            Ok(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_harmed_stream_ends_at_the_harm() {
    let sent: Vec<Body> = (0..4).map(|i| record(7, i, &pattern(500, i))).collect();
    let bytes = RecordHeader::BYTES + 500 + TAG_BYTES;
    type Harm = fn(&mut Vec<u8>, usize);
    let harms: [(&str, Harm); 5] = [
        ("altered", |stream, bytes| stream[2 * bytes + 100] ^= 1),
        ("header altered", |stream, bytes| stream[2 * bytes + 9] ^= 1),
        ("repeated", |stream, bytes| {
            let again = stream[bytes..2 * bytes].to_vec();
            stream.splice(2 * bytes..2 * bytes, again);
        }),
        ("left out", |stream, bytes| drop(stream.drain(2 * bytes..3 * bytes))),
        ("cut off", |stream, bytes| stream.truncate(2 * bytes + 60)),
    ];
    for (name, harm) in harms {
        let (here, mut from, mut to, there) = tcp_between();
        let [mut here, mut there] = sealed_partners(&crate::tcp::Tcp, [here, there], &[]);
        sent.iter().for_each(|body| push(&mut *here, body.clone()));
        let mut stream = vec![0; 4 * bytes];
        from.read_exact(&mut stream).expect("all of it");
        assert!(
            !stream.windows(8).any(|window| window == &pattern(500, 2)[100..108]),
            "the stream is readable"
        );
        harm(&mut stream, bytes);
        to.write_all(&stream).expect("write");
        drop(to);
        for body in &sent[..2] {
            assert_eq!(pull(&mut *there), Some((FlowKey(7), body.clone())), "{name}");
        }
        let error = pull_error(&mut *there);
        assert!(matches!(error, PartnerError::Peer(_)), "{name}: {error}");
    }
}

#[test]
fn harmed_datagrams_are_counted_and_the_others_arrive() {
    let socket = || UdpSocket::bind("127.0.0.1:0").expect("bind");
    let [here, from, to, there] = [socket(), socket(), socket(), socket()];
    let address = |socket: &UdpSocket| socket.local_addr().expect("address");
    here.connect(address(&from)).expect("connect");
    to.connect(address(&there)).expect("connect");
    there.connect(address(&to)).expect("connect");
    let sockets = [OwnedFd::from(here), OwnedFd::from(there)];
    let [mut here, mut there] = sealed_partners(&crate::udp::Udp, sockets, &[]);
    let sent: Vec<Body> = (0..3).map(|i| record(7, i, &pattern(3000, i))).collect();
    let mut datagrams = Vec::new();
    for body in &sent {
        push(&mut *here, body.clone());
        for _ in 0..3 {
            let mut bytes = [0; 2000];
            let count = from.recv(&mut bytes).expect("a datagram");
            assert!(count <= 1452, "{count} bytes exceed the option `datagram`");
            datagrams.push(bytes[..count].to_vec());
        }
    }
    // Alters the second record, repeats the first, and adds a foreign datagram.
    datagrams[4][40] ^= 1;
    datagrams.push(datagrams[0].clone());
    datagrams.push(vec![9; DATAGRAM_BYTES - 1]);
    datagrams.iter().for_each(|datagram| assert!(to.send(datagram).is_ok()));
    assert_eq!(pull(&mut *there), Some((FlowKey(7), sent[0].clone())));
    assert_eq!(pull(&mut *there), Some((FlowKey(7), sent[2].clone())));
    let begun = Instant::now();
    while figure(&mut *there, "received_datagrams") < 11.0 {
        assert!(begun.elapsed() < WATCHDOG, "datagrams are missing");
        assert!(matches!(there.pull(FlowKey::DEFAULT, Pull::Yours), Ok(Pulled::Nothing)));
    }
    assert_eq!(figure(&mut *there, "altered_datagrams"), 2.0);
    assert_eq!(figure(&mut *there, "replayed_datagrams"), 1.0);
}

#[test]
fn records_of_all_sizes_cross_every_sealed_transport() {
    let udp = || {
        let [here, there] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("bind"));
        here.connect(there.local_addr().expect("address")).expect("connect");
        there.connect(here.local_addr().expect("address")).expect("connect");
        [OwnedFd::from(here), OwnedFd::from(there)]
    };
    let tcp = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let here = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        [OwnedFd::from(here), OwnedFd::from(listener.accept().expect("accept").0)]
    };
    let transports: [(&dyn TransportClass, [OwnedFd; 2]); 2] =
        [(&crate::tcp::Tcp, tcp()), (&crate::udp::Udp, udp())];
    for (class, sockets) in transports {
        let [mut here, mut there] = sealed_partners(class, sockets, &[]);
        for (i, length) in [0, 1, 24, 1400, 1500, 16_384, 60_000, 24].into_iter().enumerate() {
            let sent = record(9, i as u64, &pattern(length, i as u64));
            push(&mut *here, sent.clone());
            assert_eq!(
                pull_from(&mut *there, &mut *here),
                Some((FlowKey(9), sent.clone())),
                "{} {length}",
                class.name()
            );
            push(&mut *there, sent.clone());
            assert_eq!(
                pull_from(&mut *here, &mut *there),
                Some((FlowKey(9), sent)),
                "{} {length}",
                class.name()
            );
        }
    }
}
