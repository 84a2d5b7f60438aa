use super::Delta;
use contract::{
    Body, Bytes, Format, Half, Message, Outbox, Pair, Port, Site, Stage, StageError, StageResult, Time,
};
use netsim::Params;
use proptest::prelude::*;
use std::time::Duration;
use testkit::stage::{TwoHalves, conforms, options, steady};

#[test]
fn it_conforms() {
    for given in [
        &[][..],
        &[("key_every", "1")],
        &[("key_every", "3"), ("lengths", "1")],
        &[("key_every", "0"), ("lengths", "64"), ("held_bytes", "1KiB")],
        &[("held_bytes", "1")],
    ] {
        conforms(&Delta, given, &Format::Evdev);
    }
}

fn halves(given: &[(&str, &str)]) -> (Box<dyn Stage>, Box<dyn Stage>) {
    let options = options(&Delta, given);
    (
        Delta.source(&options, &Format::Bytes, &Site::default()).unwrap(),
        Delta.sink(&options, &Format::Bytes, &Site::default()).unwrap(),
    )
}

fn through(stage: &mut dyn Stage, body: impl Into<Body>) -> StageResult<Option<Bytes>> {
    let mut out = Outbox::default();
    stage.handle(Port::MAIN, Message::new(Time(1), body), Time(5), &mut out)?;
    Ok(out.messages.pop_front().map(|(_, message)| message.body.into_bytes()))
}

#[test]
fn layout() {
    let (mut source, mut sink) = halves(&[("key_every", "4")]);
    let mut body: Vec<u8> = (0..40).collect();
    let mut sent = vec![body.clone()];
    for (at, value) in [(3, 0xaa), (5, 0xbb), (39, 0xcc)] {
        body[at] = value;
    }
    sent.extend([b"hi".to_vec(), body.clone(), body.clone(), vec![], body.clone(), body]);
    let expected = [
        [&[0, 0][..], &sent[0]].concat(),
        vec![1, 0, b'h', b'i'],
        // Bytes 3 to 5 and 39 differ from the reference, two messages before.
        vec![2, 2, 2, 3, 3, 33, 1, 0xaa, 4, 0xbb, 0xcc],
        vec![3, 1, 0],
        vec![4, 0],
        vec![5, 2, 0],
        // The fourth message of its length since a whole one.
        [&[6, 0][..], &sent[6]].concat(),
    ];
    for (body, expected) in sent.iter().zip(expected) {
        let encoded = through(source.as_mut(), body.clone()).unwrap().unwrap();
        assert_eq!(encoded, expected);
        assert_eq!(through(sink.as_mut(), encoded).unwrap().unwrap(), body);
    }
}

#[test]
fn malformed_differences_are_refused_without_harm() {
    let (mut source, mut sink) = halves(&[]);
    let body = vec![7; 100];
    let whole = through(source.as_mut(), body.clone()).unwrap().unwrap();
    through(sink.as_mut(), whole).unwrap();
    for bytes in [
        &[][..],
        &[0x80],
        &[1],
        &[1, 2],
        &[1, 1],
        &[1, 1, 1],
        &[1, 1, 1, 0],
        &[1, 1, 1, 100, 1, 9],
        &[1, 1, 1, 99, 2, 9, 9],
        &[1, 1, 1, 0, 2, 9],
        &[1, 1, 1, 0, 2, 9, 9, 9],
        &[1, 1, 2, 0, 1, 9, 9],
        &[1, 1, 0xff, 0xff, 0xff, 0x7f, 0, 0],
        &[1, 1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1, 9],
    ] {
        let result = through(sink.as_mut(), bytes.to_vec());
        assert!(matches!(result, Err(StageError::Input(_))), "{bytes:?}: {result:?}");
    }
    let same = through(source.as_mut(), body.clone()).unwrap().unwrap();
    assert_eq!(same, [1, 1, 0][..]);
    assert_eq!(through(sink.as_mut(), same).unwrap().unwrap(), body);
    let mut out = Outbox::default();
    for control in [&[][..], &[0; 7], &[0; 9], &2u64.to_le_bytes()] {
        let result = source.handle_control(control, Time(1), &mut out);
        assert!(matches!(result, Err(StageError::Control(_))), "{control:?}: {result:?}");
    }
}

#[test]
fn the_memory_of_the_last_body_is_reused() {
    let (mut source, mut sink) = halves(&[]);
    let mut body = vec![0; 100_000];
    let mut kept = None;
    let mut addresses = Vec::new();
    for number in 0..20u8 {
        body[usize::from(number) * 4000] = number;
        let encoded = through(source.as_mut(), body.clone()).unwrap().unwrap();
        let got = through(sink.as_mut(), encoded).unwrap().unwrap();
        assert_eq!(got, body);
        addresses.push(got.as_ptr());
        // From the tenth on, the application holds each body until the next arrives.
        kept = (number >= 10).then_some(got);
    }
    drop(kept);
    assert!(
        addresses[1..11].iter().all(|address| *address == addresses[1]),
        "in place while the application holds none"
    );
    let two: std::collections::BTreeSet<_> = addresses[11..].iter().collect();
    assert!(two.len() <= 3, "alternating memory while the application holds one: {two:?}");
}

fn push_frames(run: &mut TwoHalves, frames: &[Vec<u8>]) {
    for frame in frames {
        run.push(Message::new(run.now, frame.clone()));
        run.run_until(run.now.after(Duration::from_millis(10)));
    }
}

/// Bodies of 200 bytes that differ in their number.
fn numbered(numbers: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    numbers.map(|number| [&number.to_le_bytes()[..], &[0; 196]].concat()).collect()
}

#[test]
fn a_loss_is_counted_and_repaired_within_a_round_trip() {
    let network = || steady(Duration::from_millis(25));
    let mut run = TwoHalves::new(&Delta, &[], &Format::Bytes, network(), 1);
    push_frames(&mut run, &numbered(0..20));
    run.configure(Params { loss_ppm: 1_000_000, ..network() });
    push_frames(&mut run, &numbered(20..21));
    run.configure(network());
    push_frames(&mut run, &numbered(21..60));
    run.end();
    // Number 21 shows the loss after 25 ms; the source learns of it after 50 ms, five messages
    // later.
    let received: Vec<_> = run.received.iter().map(|(_, m)| m.body.clone().into_bytes().to_vec()).collect();
    assert_eq!(received, [numbered(0..20), numbered(26..60)].concat());
    assert_eq!(run.drops.into_iter().collect::<Vec<_>>(), [((Half::Sink, super::sink::LOST), 5)]);
    assert_eq!(run.controls_sent, [0, 1]);
}

#[test]
fn a_lost_whole_message_is_requested_again() {
    let network = || steady(Duration::from_millis(25));
    let mut run = TwoHalves::new(&Delta, &[], &Format::Bytes, network(), 1);
    let lossy = Params { loss_ppm: 500_000, ..network() };
    run.configure(lossy);
    push_frames(&mut run, &numbered(0..500));
    run.configure(network());
    push_frames(&mut run, &numbered(500..600));
    run.end();
    assert_eq!(run.errors, []);
    assert!(run.figure(Half::Source, "keys_requested") > 10.0);
    let received: Vec<_> = run.received.iter().map(|(_, m)| m.body.clone().into_bytes().to_vec()).collect();
    assert!(received.ends_with(&numbered(510..600)));
    assert_eq!(run.received.len() as u64 + run.dropped() + run.lost(), 600);
}

/// A raw picture of 640 x 480 x 4 bytes, 30 per second, with a moving ball of 40 x 40.
#[test]
fn a_still_picture_with_a_moving_ball_costs_a_hundredth() {
    const WIDTH: usize = 640;
    let frame = |number: usize| {
        let mut frame: Vec<u8> = (0..WIDTH * 480 * 4).map(|at| (at / 97) as u8).collect();
        for row in 200..240 {
            let at = (row * WIDTH + 3 * number) * 4;
            frame[at..at + 160].fill(0xee);
        }
        frame
    };
    let mut run = TwoHalves::new(&Delta, &[], &Format::Video, steady(Duration::from_millis(5)), 1);
    for number in 0..60 {
        run.push(Message::new(run.now, frame(number)));
        run.run_until(run.now.after(Duration::from_millis(33)));
        assert!(run.received[number].1.body.clone().into_bytes() == frame(number), "frame {number}");
    }
    assert_eq!(run.figure(Half::Source, "keys"), 1.0);
    let bytes: Vec<usize> = run.bodies.iter().map(Body::len).collect();
    assert!(bytes[1..].iter().all(|bytes| *bytes < WIDTH * 480 * 4 / 100), "{bytes:?}");
}

/// An edit of the previous message: bytes changed, cut off or added; split at any border.
type Edit = (Vec<(prop::sample::Index, u8, usize)>, u8, prop::sample::Index);

fn edited(body: &mut Vec<u8>, (changes, resize, border): &Edit) -> Body {
    match resize {
        0 => body.truncate(border.index(body.len() + 1)),
        1 => body.extend_from_slice(&[*resize; 13]),
        2 => body.clear(),
        _ => {}
    }
    for (at, value, count) in changes {
        if !body.is_empty() {
            let at = at.index(body.len());
            let end = body.len().min(at + count);
            body[at..end].fill(*value);
        }
    }
    let (front, rest) = body.split_at(border.index(body.len() + 1));
    let mut encoded = Body::from(rest.to_vec());
    encoded.push_front(front);
    encoded
}

fn edits(most: usize) -> impl Strategy<Value = Vec<Edit>> {
    let change = (any::<prop::sample::Index>(), any::<u8>(), prop_oneof![1..4usize, 1..3000usize]);
    let edit = (prop::collection::vec(change, 0..6), 0..12u8, any::<prop::sample::Index>());
    prop::collection::vec(edit, 1..most)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_change_arrives(
        length in prop_oneof![0..50usize, 0..8000usize],
        edits in edits(40),
        key_every in 0..5u32,
        held_bytes in prop_oneof![Just(1u32), 1..10_000u32, Just(1 << 20)],
    ) {
        let (key_every, held_bytes) = (key_every.to_string(), held_bytes.to_string());
        let (mut source, mut sink) =
            halves(&[("key_every", &key_every), ("held_bytes", &held_bytes), ("lengths", "3")]);
        let mut body: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
        for edit in &edits {
            let sent = edited(&mut body, edit);
            let encoded = through(source.as_mut(), sent).unwrap().unwrap();
            prop_assert!(encoded.len() <= body.len() + 4, "a header and no more");
            let got = through(sink.as_mut(), encoded).unwrap();
            prop_assert_eq!(got.as_deref(), Some(&body[..]));
        }
    }

    /// With any loss and reordering, every released body was sent, and each sent one is released,
    /// counted or lost.
    #[test]
    fn no_wrong_body_is_released(
        edits in edits(120),
        loss_ppm in 0..300_000u32,
        jitter_ms in 0..80u64,
        reorder: bool,
        seed: u64,
    ) {
        let link = Params {
            loss_ppm,
            reorder,
            jitter_ns: jitter_ms * 1_000_000,
            ..steady(Duration::from_millis(10))
        };
        let mut run = TwoHalves::new(&Delta, &[], &Format::Bytes, link, seed);
        let mut body = vec![1; 500];
        let mut sent = Vec::new();
        for edit in &edits {
            let encoded = edited(&mut body, edit);
            run.push(Message::new(run.now, encoded));
            sent.push((run.now, body.clone()));
            run.run_until(run.now.after(Duration::from_millis(5)));
        }
        run.end();
        prop_assert_eq!(&run.errors, &[]);
        for (_, message) in &run.received {
            let at = sent.binary_search_by_key(&message.created, |(created, _)| *created).unwrap();
            prop_assert!(message.body.clone().into_bytes() == sent[at].1);
        }
        prop_assert_eq!(run.received.len() as u64 + run.dropped() + run.lost(), sent.len() as u64);
    }
}
