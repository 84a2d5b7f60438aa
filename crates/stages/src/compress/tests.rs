use super::Compress;
use contract::{
    Body, Feedback, Format, Message, Outbox, Pair, Port, Site, Stage, StageError, StageResult, Time, Value,
};
use proptest::prelude::*;
use std::time::Duration;
use testkit::stage::{conforms, options};
use wire::formats::video::{Geometry, Header, PixelFormat};

fn halves(given: &[(&str, &str)]) -> (Box<dyn Stage>, Box<dyn Stage>) {
    halves_of(given, &Format::Bytes)
}

fn halves_of(given: &[(&str, &str)], format: &Format) -> (Box<dyn Stage>, Box<dyn Stage>) {
    let options = options(&Compress, given);
    (
        Compress.source(&options, format, &Site::default()).unwrap(),
        Compress.sink(&options, format, &Site::default()).unwrap(),
    )
}

/// A sink half of a host that accepts this many bytes in a message.
fn small(given: &[(&str, &str)], message_bytes: usize) -> Box<dyn Stage> {
    let site = Site { message_bytes, ..Site::default() };
    Compress.sink(&options(&Compress, given), &Format::Bytes, &site).unwrap()
}

fn through(stage: &mut dyn Stage, body: impl Into<Body>) -> StageResult<Body> {
    let mut out = Outbox::default();
    stage.handle(Port::MAIN, Message::new(Time(5), body), Time(9), &mut out)?;
    let (_, message) = out.messages.pop_front().unwrap();
    assert_eq!(message.created, Time(5));
    Ok(message.body)
}

#[test]
fn it_conforms() {
    for given in [
        &[][..],
        &[("method", "zlib"), ("level", "6")],
        &[("method", "zlib"), ("level", "0")],
        &[("method", "lz4")],
        &[("method", "zstd"), ("level", "-5")],
        &[("level", "auto")],
    ] {
        conforms(&Compress, given, &Format::Video);
    }
}

#[test]
fn header_layout() {
    let (mut source, mut sink) = halves(&[("method", "lz4")]);
    let encoded = through(&mut *source, vec![7; 1000]).unwrap().into_bytes();
    assert_eq!(encoded[..5], [3, 0xe8, 3, 0, 0]);
    // An lz4 block: a literal 7, a match of 993 at offset 1, six literals.
    assert_eq!(encoded[5..], [0x1f, 7, 1, 0, 255, 255, 255, 209, 0x60, 7, 7, 7, 7, 7, 7]);
    assert_eq!(through(&mut *sink, encoded).unwrap(), Body::from(vec![7; 1000]));
    let (mut source, _) = halves(&[("method", "zlib")]);
    assert_eq!(through(&mut *source, vec![7; 1000]).unwrap().into_bytes()[..6], [1, 0xe8, 3, 0, 0, 0x78]);
    let (mut source, _) = halves(&[]);
    let encoded = through(&mut *source, vec![7; 1000]).unwrap().into_bytes();
    assert_eq!(encoded[..9], [2, 0xe8, 3, 0, 0, 0x28, 0xb5, 0x2f, 0xfd]);
    assert_eq!(through(&mut *source, &b"abc"[..]).unwrap().into_bytes(), &[0, b'a', b'b', b'c'][..]);
    assert_eq!(through(&mut *source, Body::new()).unwrap().into_bytes(), &[0][..]);
}

/// A picture of one colour.
fn picture(width: u32, height: u32) -> Body {
    let mut body = Body::from([1, 2, 3, 0].repeat((width * height) as usize));
    let geometry = Geometry::new(PixelFormat::Bgrx32, width, height).unwrap();
    body.push_front(&Header::frame(geometry).emit());
    body
}

#[test]
fn only_pictures_are_recoded_as_tiles() {
    for given in [&[][..], &[("method", "lz4")], &[("method", "zlib")], &[("level", "auto")]] {
        let (mut source, mut sink) = halves_of(given, &Format::Video);
        let encoded = through(&mut *source, picture(300, 200)).unwrap();
        let method = encoded.peek_front::<1>().unwrap()[0];
        assert!(method > 0x80 && encoded.len() < 150, "{method:#x}, {} bytes", encoded.len());
        assert_eq!(through(&mut *sink, encoded.clone()).unwrap(), picture(300, 200));
        assert_eq!(source.report()[2], ("tiled", 1.0));
        let (mut plain, mut other) = halves(given);
        assert!(matches!(through(&mut *other, encoded), Err(StageError::Input(_))), "not agreed on");
        assert!(through(&mut *plain, picture(300, 200)).unwrap().peek_front::<1>().unwrap()[0] < 0x80);
    }
    // Too small to be worth compressing: tiles, stored.
    let (mut source, mut sink) = halves_of(&[], &Format::Video);
    let encoded = through(&mut *source, picture(9, 1)).unwrap();
    let tiles = [&picture(9, 1).into_bytes()[..Header::BYTES], &[0, 1, 3, 0, 0, 1, 1, 2, 3]].concat();
    assert_eq!(encoded.clone().into_bytes()[..], [&[0x80], &tiles[..]].concat());
    assert_eq!(through(&mut *sink, encoded).unwrap(), picture(9, 1));
}

#[test]
fn a_body_that_does_not_shrink_is_stored() {
    let (mut source, _) = halves(&[]);
    let body: Body = through(&mut *source, (0..=255).collect::<Vec<u8>>()).unwrap();
    assert_eq!(body.len(), 257);
}

#[test]
fn bombs_and_false_claims_are_refused() {
    for method in ["zstd", "zlib", "lz4"] {
        let (mut source, _) = halves(&[("method", method)]);
        let mut small = small(&[("method", method)], 1 << 20);
        let bomb = through(&mut *source, vec![0; 8 << 20]).unwrap().into_bytes();
        let what = "a message (--limit message_bytes)";
        let too_large = StageError::TooLarge { what, bytes: 8 << 20, limit: 1 << 20 };
        assert_eq!(through(&mut *small, bomb.clone()), Err(too_large), "{method}");
        for claim in [0u32, 1000, 1 << 20] {
            let mut lie = bomb.to_vec();
            lie[1..5].copy_from_slice(&claim.to_le_bytes());
            assert!(matches!(through(&mut *small, lie), Err(StageError::Input(_))), "{method} {claim}");
        }
        assert!(matches!(through(&mut *small, Body::new()), Err(StageError::Input(_))));
        assert!(matches!(through(&mut *small, vec![9, 1, 2]), Err(StageError::Input(_))));
        let stored = vec![0; (1 << 20) + 2];
        assert!(matches!(through(&mut *small, stored), Err(StageError::TooLarge { .. })));
        // The sink still works afterwards.
        let honest = through(&mut *source, vec![1; 5000]).unwrap();
        assert_eq!(through(&mut *small, honest).unwrap(), Body::from(vec![1; 5000]));
    }
}

#[test]
fn auto_accepts_only_methods_of_its_ladder() {
    let mut sink = small(&[("level", "auto")], 1 << 20);
    for method in ["zstd", "lz4"] {
        let (mut source, _) = halves(&[("method", method)]);
        let honest = through(&mut *source, vec![1; 5000]).unwrap();
        assert_eq!(through(&mut *sink, honest.clone()).unwrap(), Body::from(vec![1; 5000]), "{method}");
        let mut lie = honest.into_bytes().to_vec();
        // The other method of the ladder.
        lie[0] = 5 - lie[0];
        assert!(matches!(through(&mut *sink, lie), Err(StageError::Input(_))), "{method}");
        let bomb = through(&mut *source, vec![0; 8 << 20]).unwrap();
        assert!(matches!(through(&mut *sink, bomb), Err(StageError::TooLarge { .. })), "{method}");
    }
    let (mut zlib, _) = halves(&[("method", "zlib")]);
    let foreign = through(&mut *zlib, vec![1; 5000]).unwrap();
    assert!(matches!(through(&mut *sink, foreign), Err(StageError::Input(_))));
    for first in 4..=255 {
        assert!(matches!(through(&mut *sink, vec![first, 1, 0, 0, 0, 0]), Err(StageError::Input(_))));
    }
    assert_eq!(through(&mut *sink, vec![0, 7]).unwrap(), Body::from(vec![7]));
}

#[test]
fn zlib_has_its_own_levels() {
    let invalid =
        contract::Options::check(Compress.options(), [("method", "zlib"), ("level", "12")]).unwrap();
    assert_eq!(Compress.check(&invalid), Err("zlib has levels 0 to 9, not 12".into()));
}

#[test]
fn repetition_shrinks_and_figures_show_it() {
    let (mut source, _) = halves(&[]);
    assert!(through(&mut *source, vec![1; 100_000]).unwrap().len() < 100);
    through(&mut *source, vec![1]).unwrap();
    let report = source.report();
    assert_eq!(report[..3], [("messages", 2.0), ("stored", 1.0), ("tiled", 0.0)]);
    assert!(report[3].1 > 1000.0);
}

#[test]
fn auto_excludes_a_method() {
    for method in ["zlib", "lz4"] {
        let invalid =
            contract::Options::check(Compress.options(), [("method", method), ("level", "auto")]).unwrap();
        assert!(Compress.check(&invalid).is_err());
    }
}

/// About a kilobyte of lines, no two the same.
fn lines(number: u64) -> Vec<u8> {
    let line =
        |line: u64| format!("{} unit-{line} reached its limit\n", (number * 7919 + line * 104_729) % 65_521);
    (0..40).map(line).collect::<String>().into_bytes()
}

/// The level that `auto` chose after 20 s with a message every 10 ms, over a network of this rate.
/// Feedback comes every half second.
fn settled_level(source: &mut dyn Stage, rate_bytes: f64, from: u64) -> Value {
    let distance = Duration::from_millis(20);
    let mut sizes = Vec::new();
    for number in from..from + 2000 {
        let now = Time::from_millis(1000 + number * 10);
        let mut out = Outbox::default();
        source.handle(Port::MAIN, Message::new(now, lines(number)), now, &mut out).unwrap();
        sizes.push(out.messages[0].1.body.len());
        if sizes.len() == 50 {
            let bytes: usize = sizes.drain(..).sum();
            let crossing = Duration::from_secs_f64(bytes as f64 / 50.0 / rate_bytes);
            let feedback = Feedback {
                received: 50,
                delay: distance + crossing,
                round_trip: distance * 2,
                rate_bytes: bytes as u64 * 2,
                ..Feedback::default()
            };
            source.handle_feedback(&feedback, now, &mut out).unwrap();
        }
    }
    let choices = source.choices();
    assert_eq!((choices.len(), choices[0].option), (1, "level"));
    choices[0].value.clone()
}

#[test]
fn auto_adapts_to_the_network() {
    let (mut source, _) = halves(&[("level", "auto")]);
    assert_eq!(source.choices()[0].value, Value::Integer(3), "before any feedback");
    assert_eq!(
        settled_level(&mut *source, 20e9, 0),
        Value::Text("stored".into()),
        "this network is faster than any compressor"
    );
    let slow = settled_level(&mut *source, 20e3, 2000);
    assert!(matches!(slow, Value::Integer(_)), "{slow:?}: a byte takes 50 us");
    let fast = settled_level(&mut *source, 300e6, 4000);
    assert!(matches!(fast, Value::Text(_)), "{fast:?}: a byte takes 3 ns");
    let middle = settled_level(&mut *source, 10e6, 6000);
    assert!(matches!(middle, Value::Integer(1..=3)), "{middle:?}: a byte takes 100 ns");
    assert!(source.choices()[0].why.contains("ns per byte"), "{}", source.choices()[0].why);
}

#[test]
fn auto_reacts_to_a_backlog() {
    let (mut source, _) = halves(&[("level", "auto")]);
    assert_eq!(settled_level(&mut *source, 20e9, 0), Value::Text("stored".into()));
    for number in 2000..4000 {
        let now = Time::from_millis(1000 + number * 10);
        let mut out = Outbox::default();
        source.handle(Port::MAIN, Message::new(now, lines(number)), now, &mut out).unwrap();
        // Without a measured delay, only the backlog shows how slow the network is.
        let feedback =
            Feedback { received: 1, rate_bytes: 20_000, waiting_bytes: 1 << 20, ..Feedback::default() };
        source.handle_feedback(&feedback, now, &mut out).unwrap();
    }
    let choice = &source.choices()[0];
    assert!(matches!(choice.value, Value::Integer(_)), "{choice:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_message_survives(
        bodies in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..200), 1usize..40),
            1..8,
        ),
        method in prop::sample::select(vec!["zstd", "zlib", "lz4"]),
    ) {
        let (mut source, mut sink) = halves(&[("method", method)]);
        for (bytes, times) in bodies {
            let body = bytes.repeat(times);
            let encoded = through(&mut *source, body.clone()).unwrap();
            prop_assert!(encoded.len() <= body.len() + 1);
            prop_assert_eq!(through(&mut *sink, encoded).unwrap(), Body::from(body));
        }
    }

    #[test]
    fn every_message_survives_any_feedback(
        steps in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..200), 1usize..400, any::<[u32; 4]>(), 0u64..1 << 40),
            1..40,
        ),
    ) {
        let (mut source, mut sink) = halves(&[("level", "auto")]);
        let mut now = Time::ZERO;
        for (bytes, times, feedback_values, waited) in steps {
            let body = bytes.repeat(times);
            now = now.after(Duration::from_nanos(waited >> (waited % 32)));
            let (mut out, message) = (Outbox::default(), Message::new(Time(waited), body.clone()));
            source.handle(Port::MAIN, message, now, &mut out).unwrap();
            let (_, encoded) = out.messages.pop_front().unwrap();
            prop_assert_eq!(through(&mut *sink, encoded.body).unwrap(), Body::from(body));
            // No feedback, however absurd, may lead to NaN or infinity.
            let feedback = Feedback {
                received: u64::from(feedback_values[0] >> 16),
                delay: Duration::from_nanos(u64::from(feedback_values[1]) >> (feedback_values[0] % 32)),
                round_trip: Duration::from_micros(u64::from(feedback_values[2] % 3)),
                rate_bytes: u64::from(feedback_values[2]) >> (feedback_values[1] % 33),
                waiting_bytes: u64::from(feedback_values[3]) >> (feedback_values[1] % 31),
                ..Feedback::default()
            };
            source.handle_feedback(&feedback, now, &mut out).unwrap();
            prop_assert!(!source.choices()[0].why.contains("NaN") && !source.choices()[0].why.contains("inf"));
        }
    }
}
