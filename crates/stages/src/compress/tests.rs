use super::Compress;
use contract::{Body, Format, Message, Outbox, Pair, Port, Site, Stage, StageError, Time};
use proptest::prelude::*;
use testkit::stage::{conforms, options};

fn halves(given: &[(&str, &str)]) -> (Box<dyn Stage>, Box<dyn Stage>) {
    let options = options(&Compress, given);
    (
        Compress.source(&options, &Format::Bytes, &Site::default()).unwrap(),
        Compress.sink(&options, &Format::Bytes, &Site::default()).unwrap(),
    )
}

fn through(stage: &mut dyn Stage, body: impl Into<Body>) -> Result<Body, StageError> {
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
    ] {
        conforms(&Compress, given, &Format::Video);
    }
}

#[test]
fn header_layout() {
    let (mut source, mut sink) = halves(&[("method", "lz4")]);
    let made = through(&mut *source, vec![7; 1000]).unwrap().into_bytes();
    assert_eq!(made[..5], [3, 0xe8, 3, 0, 0]);
    // An lz4 block: a literal 7, a match of 993 at offset 1, six literals.
    assert_eq!(made[5..], [0x1f, 7, 1, 0, 255, 255, 255, 209, 0x60, 7, 7, 7, 7, 7, 7]);
    assert_eq!(through(&mut *sink, made).unwrap(), Body::from(vec![7; 1000]));
    let (mut source, _) = halves(&[("method", "zlib")]);
    assert_eq!(through(&mut *source, vec![7; 1000]).unwrap().into_bytes()[..6], [1, 0xe8, 3, 0, 0, 0x78]);
    let (mut source, _) = halves(&[]);
    let made = through(&mut *source, vec![7; 1000]).unwrap().into_bytes();
    assert_eq!(made[..9], [2, 0xe8, 3, 0, 0, 0x28, 0xb5, 0x2f, 0xfd]);
    assert_eq!(through(&mut *source, &b"abc"[..]).unwrap().into_bytes(), &[0, b'a', b'b', b'c'][..]);
    assert_eq!(through(&mut *source, Body::new()).unwrap().into_bytes(), &[0][..]);
}

#[test]
fn what_does_not_shrink_keeps_its_pieces() {
    let (mut source, _) = halves(&[]);
    let body: Body = through(&mut *source, (0..=255).collect::<Vec<u8>>()).unwrap();
    assert_eq!(body.len(), 257);
}

#[test]
fn bombs_and_false_claims_are_refused() {
    for method in ["zstd", "zlib", "lz4"] {
        let (mut source, _) = halves(&[("method", method)]);
        let (_, mut small) = halves(&[("method", method), ("limit", "1MiB")]);
        let bomb = through(&mut *source, vec![0; 8 << 20]).unwrap().into_bytes();
        let too_large = StageError::TooLarge { what: "the body", bytes: 8 << 20, limit: 1 << 20 };
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
        // It still works after all that.
        let honest = through(&mut *source, vec![1; 5000]).unwrap();
        assert_eq!(through(&mut *small, honest).unwrap(), Body::from(vec![1; 5000]));
    }
}

#[test]
fn zlib_has_its_own_levels() {
    let wrong = contract::Options::check(Compress.options(), [("method", "zlib"), ("level", "12")]).unwrap();
    assert_eq!(Compress.check(&wrong), Err("zlib has levels 0 to 9, not 12".into()));
}

#[test]
fn it_shrinks_what_repeats_and_says_so() {
    let (mut source, _) = halves(&[]);
    assert!(through(&mut *source, vec![1; 100_000]).unwrap().len() < 100);
    through(&mut *source, vec![1]).unwrap();
    let report = source.report();
    assert_eq!(report[..2], [("messages", 2.0), ("stored", 1.0)]);
    assert!(report[2].1 > 1000.0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_message_comes_back(
        bodies in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..200), 1usize..40),
            1..8,
        ),
        method in prop::sample::select(vec!["zstd", "zlib", "lz4"]),
    ) {
        let (mut source, mut sink) = halves(&[("method", method)]);
        for (bytes, times) in bodies {
            let body = bytes.repeat(times);
            let made = through(&mut *source, body.clone()).unwrap();
            prop_assert!(made.len() <= body.len() + 1);
            prop_assert_eq!(through(&mut *sink, made).unwrap(), Body::from(body));
        }
    }
}
