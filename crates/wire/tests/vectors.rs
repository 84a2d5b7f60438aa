//! Checks the byte vectors of `docs/reference/vectors`, which other implementations can use.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::Path;
use wire::formats::video;
use wire::module::MODULE_HEADER_BYTES;
use wire::pairing::Pairing;
use wire::preamble::{Introduction, SessionToken};
use wire::{
    BODY_BYTES_MAX, Container, Control, ModuleFrame, ModuleHeader, Preamble, RecordHeader, WireError,
};

struct Vector {
    title: String,
    bytes: Vec<u8>,
    outcome: String,
}

fn vectors(file: &str) -> Vec<Vector> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/vectors").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut vectors = Vec::new();
    let mut open: Option<Vector> = None;
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(title) = line.strip_prefix('[') {
            assert!(open.is_none(), "{file}: a vector before `{line}` has no outcome");
            open = Some(Vector { title: title.into(), bytes: Vec::new(), outcome: String::new() });
            continue;
        }
        let vector = open.as_mut().unwrap_or_else(|| panic!("{file}: `{line}` is outside of any vector"));
        if line.starts_with(['=', '!']) {
            vector.outcome = line.into();
            vectors.extend(open.take());
        } else {
            let hex = line.split_whitespace().next().expect("empty lines are skipped");
            assert!(hex.len() % 2 == 0, "{file}: half a byte in `{line}`");
            vector.bytes.extend((0..hex.len()).step_by(2).map(|at| {
                u8::from_str_radix(&hex[at..at + 2], 16)
                    .unwrap_or_else(|_| panic!("{file}: no byte in `{line}`"))
            }));
        }
    }
    assert!(open.is_none(), "{file}: the last vector has no outcome");
    vectors
}

/// Checks that `parse` and `emit` reproduce each vector of `file`.
fn check<T: Debug>(
    file: &str,
    parse: impl Fn(&[u8]) -> Result<T, WireError>,
    emit: impl Fn(&T) -> Vec<u8>,
    token: impl Fn(&T) -> Option<SessionToken>,
) -> Vec<Vector> {
    let vectors = vectors(file);
    for Vector { title, bytes, outcome } in &vectors {
        let parsed = parse(bytes);
        let found = match &parsed {
            // A token is never printed, except here, to be compared.
            Ok(message) => {
                let hex: String =
                    token(message).iter().flat_map(|t| t.0).map(|b| format!("{b:02x}")).collect();
                format!("= {message:?}").replace("SessionToken(..)", &format!("SessionToken({hex})"))
            }
            Err(error) => format!("! {error}"),
        };
        assert_eq!(&found, outcome, "{file}: [{title}");
        if let Ok(message) = parsed {
            assert_eq!(&emit(&message), bytes, "{file}: [{title} is written otherwise");
        }
    }
    vectors
}

#[test]
fn preamble() {
    let token = |preamble: &Preamble| match preamble {
        Preamble::Data { session, .. } | Preamble::Way { session, .. } => Some(*session),
        _ => None,
    };
    check("preamble.txt", Preamble::parse, |preamble| preamble.emit().to_vec(), token);
}

#[test]
fn pairing() {
    let parse = |bytes: &[u8]| {
        let (length, frame) = bytes.split_first_chunk().expect("a vector is a whole frame");
        assert_eq!(Pairing::frame_bytes(*length), Ok(frame.len()));
        Pairing::parse(frame)
    };
    let vectors = check("pairing.txt", parse, Pairing::emit, |_| None);
    let shown = vectors.iter().filter(|vector| vector.outcome.starts_with('='));
    let kinds: BTreeSet<u8> = shown.map(|vector| vector.bytes[2]).collect();
    assert!(kinds.into_iter().eq(1..=5), "pairing.txt: a kind without a vector");
}

#[test]
fn introductions_survive_their_bytes() {
    let (channel, driver) = ([7; 16], 3);
    let introduction = Introduction { channel, driver, is_way: false, number: 0x0102_0304, proof: [9; 32] };
    let way = Introduction { is_way: true, ..introduction };
    assert_eq!(Introduction::parse(&way.emit()), Ok(way));
    assert_eq!(way.emit()[..Preamble::BYTES], Preamble::SecureWay { channel, driver }.emit());
    let bytes = introduction.emit();
    let preamble = Preamble::SecureData { channel, driver }.emit();
    assert_eq!(bytes.to_vec(), [&preamble[..], &[4, 3, 2, 1], &[9; 32]].concat());
    assert_eq!(Introduction::parse(&bytes), Ok(introduction));
    for cut in 0..bytes.len() {
        assert!(Introduction::parse(&bytes[..cut]).is_err(), "{cut} bytes");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(Introduction::parse(&longer), Err(WireError::Trailing { what: "introduction", left: 1 }));
    let other = [&Preamble::Control.emit()[..], &[0; 36]].concat();
    assert!(Introduction::parse(&other).is_err());
}

#[test]
fn container() {
    let parse = |bytes: &[u8]| Container::parse(bytes, BODY_BYTES_MAX);
    check("container.txt", parse, |container| container.emit().to_vec(), |_| None);
}

#[test]
fn record() {
    let parse = |bytes: &[u8]| RecordHeader::parse(bytes, BODY_BYTES_MAX);
    check("record.txt", parse, |header| header.emit().to_vec(), |_| None);
}

#[test]
fn control() {
    let parse = |bytes: &[u8]| {
        Control::parse_frame(bytes).map(|frame| {
            let (message, length) = frame.expect("a vector is a whole frame");
            assert_eq!(length, bytes.len());
            message
        })
    };
    let token = |message: &Control| match message {
        Control::Hello { resume, .. } => *resume,
        Control::Welcome { session, .. } => Some(*session),
        _ => None,
    };
    let vectors = check("control.txt", parse, Control::emit, token);
    let shown = vectors.iter().filter(|vector| vector.outcome.starts_with('='));
    let kinds: BTreeSet<u8> = shown.map(|vector| vector.bytes[4]).collect();
    let used = (1..=29).filter(|kind| ![19, 20].contains(kind));
    assert!(kinds.into_iter().eq(used), "control.txt: a kind without a vector, or one that is not in use");
}

/// A frame and its place, as the vectors of modules print them.
#[derive(Debug)]
#[allow(dead_code, reason = "only Debug reads the fields")]
struct Frame {
    at: u64,
    frame: ModuleFrame,
}

#[test]
fn module() {
    let parse = |bytes: &[u8]| {
        let header = ModuleHeader::parse(bytes)?;
        let body = &bytes[MODULE_HEADER_BYTES..];
        assert_eq!(header.length as usize, body.len(), "a vector is a whole frame");
        Ok(Frame { at: header.at, frame: ModuleFrame::parse(header.kind, body)? })
    };
    let vectors = check("module.txt", parse, |Frame { at, frame }| frame.emit(*at), |_| None);
    let shown = vectors.iter().filter(|vector| vector.outcome.starts_with('='));
    let kinds: BTreeSet<u8> = shown.map(|vector| vector.bytes[4]).collect();
    assert!((1..=14).all(|kind| kinds.contains(&kind)), "module.txt: a kind without a vector");
}

#[test]
fn video() {
    enum Places {
        Rectangles(Vec<video::Rectangle>),
        Cursor(video::Cursor),
    }
    impl Debug for Places {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            match self {
                Places::Rectangles(rectangles) => rectangles.fmt(f),
                Places::Cursor(cursor) => cursor.fmt(f),
            }
        }
    }
    type Picture = (video::Header, Places, Vec<u8>);
    let parse = |bytes: &[u8]| -> Result<Picture, WireError> {
        let header = video::Header::parse(bytes)?;
        Ok(match header.parse_content(&bytes[video::Header::BYTES..])? {
            video::Content::Frame(pixels) => (header, Places::Rectangles(Vec::new()), pixels.to_vec()),
            video::Content::Rectangles(rectangles, pixels) => {
                (header, Places::Rectangles(rectangles), pixels.to_vec())
            }
            video::Content::Boxes(boxes) => (header, Places::Rectangles(boxes), Vec::new()),
            video::Content::Cursor(cursor, pixels) => (header, Places::Cursor(cursor), pixels.to_vec()),
            video::Content::Clipboard(text) => {
                (header, Places::Rectangles(Vec::new()), text.unwrap_or_default().into())
            }
        })
    };
    let emit = |(header, places, pixels): &Picture| {
        let places = match places {
            Places::Rectangles(_) if matches!(header.kind, video::Kind::Frame | video::Kind::Clipboard) => {
                Vec::new()
            }
            Places::Rectangles(rectangles) => video::emit_rectangles(rectangles),
            Places::Cursor(cursor) => cursor.emit().to_vec(),
        };
        [&header.emit()[..], &places, pixels].concat()
    };
    let vectors = check("video.txt", parse, emit, |_| None);
    let kinds: BTreeSet<u8> = vectors.iter().map(|vector| vector.bytes[0]).collect();
    assert!(kinds.into_iter().eq(0..=5), "video.txt: a kind without a vector");
}
