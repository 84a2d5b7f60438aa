use super::Encrypt;
use super::seal::{HEADER_BYTES, TAG_BYTES};
use contract::{
    Body, Bytes, Format, Half, Message, Outbox, Pair, Port, Secret, Site, Stage, StageError, StageResult,
    Time,
};
use netsim::Params;
use proptest::prelude::*;
use std::time::Duration;
use testkit::stage::{TwoHalves, conforms, options, site, steady};

const CIPHERS: [&str; 2] = ["aes-256-gcm", "chacha20-poly1305"];

#[test]
fn it_conforms() {
    for cipher in CIPHERS {
        conforms(&Encrypt, &[("cipher", cipher)], &Format::Evdev);
    }
    conforms(&Encrypt, &[("window", "64")], &Format::Bytes);
}

fn source(number: u64) -> Box<dyn Stage> {
    Encrypt.source(&options(&Encrypt, &[]), &Format::Bytes, &site(number)).unwrap()
}

fn sink(given: &[(&str, &str)]) -> Box<dyn Stage> {
    Encrypt.sink(&options(&Encrypt, given), &Format::Bytes, &site(99)).unwrap()
}

/// Passes one message through a half.
fn pass(stage: &mut dyn Stage, message: Message) -> StageResult<Vec<Message>> {
    let now = message.created;
    let mut out = Outbox::default();
    stage.handle(Port::MAIN, message, now, &mut out)?;
    Ok(out.messages.into_iter().map(|(_, message)| message).collect())
}

fn seal(source: &mut dyn Stage, at: u64, body: impl Into<Body>) -> Message {
    pass(source, Message::new(Time(at), body)).unwrap().remove(0)
}

fn end(source: &mut dyn Stage) -> Message {
    let mut out = Outbox::default();
    source.handle_end(Port::MAIN, Time(77), &mut out).unwrap();
    out.messages.pop_front().unwrap().1
}

fn finish(sink: &mut dyn Stage) -> StageResult {
    sink.handle_end(Port::MAIN, Time(78), &mut Outbox::default())
}

fn figure(stage: &dyn Stage, name: &str) -> f64 {
    stage.report().iter().find(|(known, _)| *known == name).unwrap().1
}

fn altered(result: &StageResult<Vec<Message>>) -> bool {
    matches!(result, Err(StageError::Input(_)))
}

#[test]
fn without_a_key_the_error_names_the_remedy() {
    let options = options(&Encrypt, &[]);
    for half in [Half::Source, Half::Sink] {
        let refused = Encrypt.half(half, &options, &Format::Bytes, &Site::default()).err().unwrap();
        assert!(refused.to_string().contains("--key-file"), "{refused}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Computed with an independent implementation (Python's `cryptography`) of HKDF and both ciphers.
#[test]
fn layout_and_vectors() {
    let site = Site { key: Some(Secret(std::array::from_fn(|i| i as u8))), seed: [0xab; 32], ..site(0) };
    let vectors = [("aes-256-gcm", VECTORS[0]), ("chacha20-poly1305", VECTORS[1])];
    for (cipher, [first, last]) in vectors {
        let options = options(&Encrypt, &[("cipher", cipher)]);
        let mut source = Encrypt.source(&options, &Format::Bytes, &site).unwrap();
        let sealed = seal(&mut *source, 0x0102_0304, &b"three"[..]).body.into_bytes();
        let header = [&[0xab; 16][..], &[0; 8], &[4, 3, 2, 1, 0, 0, 0, 0]].concat();
        assert_eq!((&sealed[..HEADER_BYTES], sealed.len()), (&header[..], HEADER_BYTES + 5 + TAG_BYTES));
        assert_eq!(hex(&sealed[HEADER_BYTES..]), first, "{cipher}");
        let ended = end(&mut *source).body.into_bytes();
        assert_eq!(ended[16..24], [1, 0, 0, 0, 0, 0, 0, 0x80]);
        assert_eq!(hex(&ended[HEADER_BYTES..]), last, "{cipher}");
    }
}

/// The message and its tag, and the tag of the end.
const VECTORS: [[&str; 2]; 2] = [
    ["bafb1035281a10436c75008f29b0a6ea8da8427b72", "4eb527c26757002d32be8379e400d87b"],
    ["c20f92a08e7e9d323e4045b535f3e72f45f83abf7b", "ef74ee140f60462a5d835af294488880"],
];

#[test]
fn an_unshared_body_is_sealed_and_opened_in_place() {
    let (mut source, mut sink) = (source(1), sink(&[]));
    let bytes = Bytes::from(vec![7; 100_000]);
    let address = bytes.as_ptr();
    let sealed = seal(&mut *source, 5, bytes);
    assert!(sealed.body.chunks().any(|piece| piece.as_ptr() == address), "copied");
    let received = Bytes::from(sealed.body.into_bytes().to_vec());
    let address = received.as_ptr().wrapping_add(HEADER_BYTES);
    let opened = pass(&mut *sink, Message::new(Time(5), received)).unwrap().remove(0);
    assert_eq!(opened.body.chunks().next().unwrap().as_ptr(), address, "copied");
    assert_eq!(opened.body, Body::from(vec![7; 100_000]));
}

#[test]
fn a_shared_body_is_not_modified() {
    let (mut source, mut sink) = (source(1), sink(&[]));
    let body = Body::from(vec![7; 1000]);
    let sealed = seal(&mut *source, 5, body.clone());
    assert_eq!(body, Body::from(vec![7; 1000]));
    let before = sealed.body.clone().into_bytes();
    assert_eq!(pass(&mut *sink, sealed.clone()).unwrap()[0].body, body);
    assert_eq!(sealed.body.into_bytes(), before);
}

#[test]
fn replays_are_dropped_and_late_messages_within_the_window_accepted() {
    let (mut source, mut sink) = (source(1), sink(&[("window", "64")]));
    let sealed: Vec<Message> = (0..200).map(|i| seal(&mut *source, i, vec![i as u8])).collect();
    let mut take = |i: usize| pass(&mut *sink, sealed[i].clone()).unwrap().len();
    assert_eq!(
        [take(0), take(100), take(100), take(99), take(37), take(36), take(0), take(37)],
        [1, 1, 0, 1, 1, 0, 0, 0]
    );
    assert_eq!((take(199), take(101), take(136), take(136)), (1, 0, 1, 0));
    assert_eq!((figure(&*sink, "replayed"), figure(&*sink, "opened")), (6.0, 6.0));
}

#[test]
fn a_restarted_source_half_supersedes_its_predecessor() {
    let (mut old, mut new, mut sink) = (source(1), source(2), sink(&[]));
    let late = seal(&mut *old, 1, &b"late"[..]);
    assert_eq!(pass(&mut *sink, seal(&mut *old, 1, &b"a"[..])).unwrap().len(), 1);
    assert_eq!(pass(&mut *sink, seal(&mut *new, 2, &b"b"[..])).unwrap().len(), 1);
    for message in [late, seal(&mut *old, 3, &b"c"[..])] {
        assert_eq!(pass(&mut *sink, message).unwrap(), []);
    }
    assert_eq!(figure(&*sink, "superseded"), 2.0);
    // A forged header of a third source half changes nothing.
    let mut forged = seal(&mut *source(3), 4, &b"d"[..]).body.into_bytes().to_vec();
    forged[HEADER_BYTES] ^= 1;
    assert!(altered(&pass(&mut *sink, Message::new(Time(4), forged))));
    assert_eq!(pass(&mut *sink, seal(&mut *new, 5, &b"e"[..])).unwrap().len(), 1);
    assert_eq!(pass(&mut *sink, end(&mut *new)).unwrap(), []);
    assert_eq!(finish(&mut *sink), Ok(()));
}

#[test]
fn a_flow_without_its_end_is_reported() {
    let (mut source, mut sink) = (source(1), sink(&[]));
    assert!(finish(&mut *sink).is_err(), "nothing came at all");
    let first = seal(&mut *source, 1, &b"a"[..]);
    let second = seal(&mut *source, 2, &b"b"[..]);
    let end = end(&mut *source);
    pass(&mut *sink, first).unwrap();
    let mut out = Outbox::default();
    let result = sink.handle_end(Port::MAIN, Time(9), &mut out);
    assert!(matches!(result, Err(StageError::Input(problem)) if problem.contains("cut short")));
    assert_eq!((out.drops[0].count, figure(&*sink, "cut_short")), (1, 1.0));
    // With its end, the flow is complete, though a message in the middle is missing.
    assert_eq!(pass(&mut *sink, end).unwrap(), []);
    assert_eq!(finish(&mut *sink), Ok(()));
    assert_eq!((figure(&*sink, "missing"), figure(&*sink, "cut_short")), (1.0, 0.0));
    pass(&mut *sink, second).unwrap();
    assert_eq!((figure(&*sink, "missing"), finish(&mut *sink)), (0.0, Ok(())));
}

/// A slowly changing clock offset is followed; an altered container changes almost nothing.
#[test]
fn creation_times_follow_only_the_session() {
    let (mut source, mut sink) = (source(1), sink(&[]));
    let offset = 5_000_000_000u64;
    let mut at = |moment: u64, created: u64, claimed: u64| {
        let mut sealed = seal(&mut *source, created, &b"x"[..]);
        sealed.created = Time(claimed);
        let mut out = Outbox::default();
        sink.handle(Port::MAIN, sealed, Time(moment), &mut out).unwrap();
        out.messages[0].1.created.0
    };
    assert_eq!(at(0, 1000, 1000 + offset), 1000 + offset);
    // 0.5 % within a second, as the session slews it.
    let second = 1_000_000_000;
    assert_eq!(at(second, second, second + offset + 5_000_000), second + offset + 5_000_000);
    // An hour within a millisecond is not followed.
    let forged = at(second + 1_000_000, second, second + 3_600 * second);
    assert_eq!(forged, second + offset + 5_000_000 + 10_000);
    assert_eq!(at(second + 2_000_000, second, 0), second + offset + 5_000_000);
    assert_eq!(figure(&*sink, "retimed"), 2.0);
}

#[test]
fn a_bad_link_loses_no_further_messages() {
    let link =
        Params { jitter_ns: 30_000_000, loss_ppm: 50_000, reorder: true, ..steady(Duration::from_millis(9)) };
    let mut run = TwoHalves::new(&Encrypt, &[], &Format::Bytes, link, 3);
    for number in 0..2000u64 {
        run.push(Message::new(run.now, number.to_le_bytes().to_vec()));
        run.run_until(run.now.after(Duration::from_millis(2)));
    }
    run.run_until(run.now.after(Duration::from_secs(1)));
    assert_eq!(run.received.len() as u64 + run.lost(), 2000);
    assert_eq!((run.dropped(), run.figure(Half::Sink, "missing")), (0, run.lost() as f64));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn genuine_messages_survive_and_altered_ones_are_refused(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..12),
        cipher in prop::sample::select(CIPHERS.to_vec()),
        (flip, cut) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        bit in 0u8..8,
    ) {
        let options = options(&Encrypt, &[("cipher", cipher)]);
        let mut source = Encrypt.source(&options, &Format::Bytes, &site(1)).unwrap();
        let mut sink = Encrypt.sink(&options, &Format::Bytes, &site(2)).unwrap();
        for (at, body) in bodies.into_iter().enumerate() {
            let sealed = seal(&mut *source, at as u64, body.clone());
            let bytes = sealed.body.clone().into_bytes();
            let mut flipped = bytes.to_vec();
            flipped[flip.index(bytes.len())] ^= 1 << bit;
            // A flip of the counter may make it a replay.
            let result = pass(&mut *sink, Message::new(sealed.created, flipped));
            prop_assert!(altered(&result) || result == Ok(vec![]), "{:?}", result);
            let short = bytes[..cut.index(bytes.len())].to_vec();
            prop_assert!(altered(&pass(&mut *sink, Message::new(sealed.created, short))));
            let opened = pass(&mut *sink, sealed).unwrap();
            prop_assert_eq!(opened, [Message::new(Time(at as u64), body)]);
        }
        pass(&mut *sink, end(&mut *source)).unwrap();
        prop_assert_eq!(finish(&mut *sink), Ok(()));
    }
}
