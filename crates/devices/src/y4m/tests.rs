//! Tests of both partners on files and FIFOs.

use super::header;
use super::reader::Reader;
use crate::file::tests::Scratch;
use crate::stream::tests::{open, partner_on, read_available};
use crate::stream::{Channel, MessageReader, now};
use contract::{
    Attributes, Body, Bytes, Ctl, CtlReply, Direction, FlowClass, FlowKey, FlowTemplate, Format, Message,
    Next, Partner, PartnerResult, Pull, Pulled, Pushed, RecoveryCtl, Role, Time,
};
use proptest::prelude::*;
use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use testkit::partner::{Harness, conforms};
use wire::formats::video::{Geometry, Header, Kind, PixelFormat};

const LINE: &str = "YUV4MPEG2 W6 H2 F30:1 Ip A0:0 C420jpeg\n";

fn geometry() -> Geometry {
    Geometry::new(PixelFormat::I420, 6, 2).unwrap().with_rate(30, 1)
}

/// Returns the pixels of frame `number`: 12 bytes of Y, 3 of Cb, 3 of Cr.
fn pixels(number: u64) -> Vec<u8> {
    (0..18).map(|i| (i * 7) as u8 ^ number as u8 ^ (number >> 8) as u8).collect()
}

fn body(geometry: Geometry, pixels: impl Into<Body>) -> Body {
    let mut body = pixels.into();
    body.push_front(&Header::frame(geometry).emit());
    body
}

fn template(direction: Direction) -> FlowTemplate {
    FlowTemplate { direction, format: Format::Video, class: FlowClass::Reliable }
}

/// A partner at one end of a FIFO, and the test at the other.
struct Stream {
    _scratch: Scratch,
    partner: Box<dyn Partner>,
    far: Option<File>,
    direction: Direction,
    fed: u64,
    opened: Cell<bool>,
}

impl Stream {
    fn new(role: Role) -> Stream {
        let scratch = Scratch::new();
        let (path, held) = scratch.fifo("film");
        let (options, direction) = match role {
            Role::Device => (",rate=0", Direction::Out),
            Role::Application => ("", Direction::In),
        };
        let partner = open(&format!("y4m:{path}{options}"), role);
        let far = Some(File::from(held));
        Stream { _scratch: scratch, partner, far, direction, fed: 0, opened: Cell::new(false) }
    }

    fn line(&self) -> &'static str {
        if self.opened.replace(true) { "" } else { LINE }
    }
}

impl Harness for Stream {
    fn partner(&mut self) -> &mut dyn Partner {
        self.partner.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        (direction == self.direction).then(|| template(direction))
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        self.fed += 1;
        let sent = [self.line().as_bytes(), b"FRAME\n", &pixels(self.fed)].concat();
        self.far.as_mut()?.write_all(&sent).unwrap();
        Some(body(geometry(), pixels(self.fed)).into_bytes().to_vec())
    }

    fn end(&mut self) -> bool {
        self.far = None;
        true
    }

    fn body(&self, number: u64) -> Vec<u8> {
        body(geometry(), pixels(number)).into_bytes().to_vec()
    }

    fn seen(&self, body: &[u8]) -> Vec<u8> {
        [self.line().as_bytes(), b"FRAME\n", &body[Header::BYTES..]].concat()
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        self.far.as_mut().filter(|_| self.direction == Direction::In).map(read_available)
    }
}

#[test]
fn a_device_conforms() {
    conforms(|| Stream::new(Role::Device));
}

#[test]
fn an_application_conforms() {
    conforms(|| Stream::new(Role::Application));
}

/// Returns all messages of a device that reads a file.
fn read(spec: &str) -> PartnerResult<Vec<Message>> {
    let mut partner = open(spec, Role::Device);
    let key = partner.open(&template(Direction::Out), &Attributes::default())?;
    let mut messages = Vec::new();
    loop {
        match partner.pull(key, Pull::Yours)? {
            Pulled::Message(_, message) => messages.push(message),
            Pulled::Nothing => {
                let readiness = partner.readiness(key, Direction::Out);
                assert!(readiness.now || readiness.at.is_some(), "a file is always ready");
                std::thread::sleep(readiness.at.map_or(std::time::Duration::ZERO, |at| at.since(now())));
            }
            Pulled::End => return Ok(messages),
            other => panic!("{other:?}"),
        }
    }
}

fn write(spec: &str, bodies: impl IntoIterator<Item = Body>) -> Vec<Result<Pushed, String>> {
    let mut partner = open(spec, Role::Application);
    let key = partner.open(&template(Direction::In), &Attributes::default()).unwrap();
    let push = |body| partner.push(key, Message::new(Time(1), body)).map_err(|(error, _)| error.to_string());
    bodies.into_iter().map(push).collect()
}

fn film(line: &str, frames: u64) -> Vec<u8> {
    let frames = (0..frames).flat_map(|number| [&b"FRAME\n"[..], &pixels(number)].concat());
    line.bytes().chain(frames).collect()
}

/// A live source paces its frames itself, unless the stream has a rate.
#[test]
fn frames_of_a_fifo_without_a_rate_leave_as_they_arrive() {
    let leaves = |line: &str, at_ms: [u64; 4]| {
        let scratch = Scratch::new();
        let (path, held) = scratch.fifo("live");
        let mut far = File::from(held);
        let near = File::options().read(true).write(true).open(&path).unwrap();
        let mut live = Reader::new("live".into(), Channel::own(near.into()).unwrap(), None, false);
        far.write_all(&film(line, 4)).unwrap();
        at_ms.map(|at_ms| matches!(live.next(Time::from_millis(at_ms)), Ok(Next::Message(_))))
    };
    let without_rate = LINE.replace("F30:1", "F0:0");
    assert_eq!(leaves(&without_rate, [1000, 1001, 1002, 1003]), [true; 4]);
    assert_eq!(leaves(LINE, [1000, 1001, 1033, 1034]), [true, false, false, true]);
}

#[test]
fn a_file_is_read_and_written_byte_by_byte() {
    let scratch = Scratch::new();
    let (from, to) = (scratch.path("from"), scratch.path("to"));
    std::fs::write(&from, film(LINE, 20)).unwrap();
    let messages = read(&format!("y4m:{from},rate=0")).unwrap();
    assert_eq!(messages.len(), 20);
    assert_eq!(messages[3].body, body(geometry(), pixels(3)));
    for answer in write(&format!("y4m:{to}"), messages.into_iter().map(|message| message.body)) {
        assert!(matches!(answer, Ok(Pushed::Taken)), "{answer:?}");
    }
    assert_eq!(std::fs::read(&to).unwrap(), film(LINE, 20));
}

/// Another process continues with the same descriptor.
#[test]
fn a_resumed_writer_of_a_file_does_not_repeat_the_first_line() {
    let scratch = Scratch::new();
    let file = File::create(scratch.path("film")).unwrap();
    for number in 0..2 {
        let mut sink = partner_on("y4m:film", Role::Application, file.try_clone().unwrap());
        let key = sink.open(&template(Direction::In), &Attributes::default()).unwrap();
        let message = Message::new(Time(1), body(geometry(), pixels(number)));
        assert!(matches!(sink.push(key, message), Ok(Pushed::Taken)));
    }
    assert_eq!(std::fs::read(scratch.path("film")).unwrap(), film(LINE, 2));
}

/// A worker is killed within a frame of a FIFO. Its successor loses that frame and no other.
#[test]
fn a_reader_resumed_within_a_frame_finds_the_next() {
    let scratch = Scratch::new();
    let (path, far) = scratch.fifo("film");
    let mut far = File::from(far);
    let film = film(LINE, 4);
    // Cut at every byte of the second frame: a line of 6 bytes and 18 bytes of pixels.
    let second = LINE.len() + 24;
    let mut cut = 0;
    for read in second..=second + 24 {
        let reader = || {
            let node = File::options().read(true).write(true).open(&path).unwrap();
            let mut partner = partner_on(&format!("y4m:{path},rate=0"), Role::Device, node);
            let key = partner.open(&template(Direction::Out), &Attributes::default()).unwrap();
            (partner, key)
        };
        let (mut first, key) = reader();
        assert!(matches!(first.ctl(key, Ctl::Recovery(RecoveryCtl::SaveState)), Ok(CtlReply::Pending)));
        far.write_all(&film[..read]).unwrap();
        assert!(matches!(first.pull(key, Pull::Yours), Ok(Pulled::Message(..))));
        let _ = first.pull(key, Pull::Yours).unwrap();
        let Ok(CtlReply::Bytes(saved)) = first.ctl(key, Ctl::Recovery(RecoveryCtl::SaveState)) else {
            panic!("no saved state")
        };
        let Ok(CtlReply::Count(ahead)) = first.ctl(key, Ctl::Recovery(RecoveryCtl::ReadAhead)) else {
            panic!("no count")
        };
        let (mut next, key) = reader();
        next.ctl(key, Ctl::Recovery(RecoveryCtl::RestoreState(&saved))).unwrap();
        far.write_all(&film[read..]).unwrap();
        let mut found = Vec::new();
        while let Pulled::Message(_, message) = next.pull(key, Pull::Yours).unwrap() {
            found.push((1..4).find(|number| message.body == body(geometry(), pixels(*number))).unwrap());
        }
        // The second frame is complete only if no byte of it was read before.
        let whole = if read == second { &[1, 2, 3][..] } else { &[2, 3] };
        assert_eq!(found, whole, "{read} bytes were read, {ahead} ahead");
        assert_eq!(ahead > 0, read > second && read < second + 24);
        cut += u32::from(ahead > 0);
    }
    assert_eq!(cut, 23);
    let (mut sink, key) = (open(&format!("y4m:{path}"), Role::Device), FlowKey::DEFAULT);
    assert!(sink.ctl(key, Ctl::Recovery(RecoveryCtl::RestoreState(b"no film"))).is_err());
}

/// A FIFO has no position, so the saved state tells that the first line was written.
#[test]
fn a_resumed_writer_of_a_fifo_does_not_repeat_the_first_line() {
    let scratch = Scratch::new();
    let (path, far) = scratch.fifo("film");
    let mut far = File::from(far);
    let mut saved: Option<Vec<u8>> = None;
    for number in 0..2 {
        let node = File::options().read(true).write(true).open(&path).unwrap();
        let mut sink = partner_on(&format!("y4m:{path}"), Role::Application, node);
        let key = sink.open(&template(Direction::In), &Attributes::default()).unwrap();
        if let Some(saved) = &saved {
            sink.ctl(key, Ctl::Recovery(RecoveryCtl::RestoreState(saved))).unwrap();
        }
        let message = Message::new(Time(1), body(geometry(), pixels(number)));
        assert!(matches!(sink.push(key, message), Ok(Pushed::Taken)));
        assert!(matches!(sink.ctl(key, Ctl::Recovery(RecoveryCtl::PartialWrite)), Ok(CtlReply::Done)));
        let Ok(CtlReply::Bytes(bytes)) = sink.ctl(key, Ctl::Recovery(RecoveryCtl::SaveState)) else {
            panic!("no saved state")
        };
        saved = Some(bytes);
    }
    assert_eq!(read_available(&mut far), film(LINE, 2));
}

fn push_all(sink: &mut dyn Partner, key: FlowKey, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let message = Message::new(Time(1), body(geometry(), pixels(number)));
        assert!(matches!(sink.push(key, message), Ok(Pushed::Taken)));
    }
}

/// A worker is killed within the first line or within a picture; its successor may know the line and the part.
#[test]
fn a_writer_resumed_within_a_picture_of_a_file_writes_it_again() {
    let scratch = Scratch::new();
    let (path, whole) = (scratch.path("film"), film(LINE, 3));
    let first = LINE.len() + 24;
    for (written, is_saved) in (0..=first + 24).flat_map(|written| [(written, false), (written, true)]) {
        std::fs::write(&path, "").unwrap();
        let mut file = File::options().write(true).open(&path).unwrap();
        file.write_all(&whole[..written]).unwrap();
        let mut sink = partner_on(&format!("y4m:{path}"), Role::Application, file);
        let key = sink.open(&template(Direction::In), &Attributes::default()).unwrap();
        if is_saved {
            sink.ctl(key, Ctl::Recovery(RecoveryCtl::RestoreState(LINE.as_bytes()))).unwrap();
            sink.ctl(key, Ctl::Recovery(RecoveryCtl::Skip(5))).unwrap();
        }
        let complete = written.saturating_sub(LINE.len()) / 24;
        push_all(sink.as_mut(), key, complete as u64..3);
        assert_eq!(std::fs::read(&path).unwrap(), whole, "{written} bytes, its state saved: {is_saved}");
    }
}

/// The boundary of a picture is unknown in a file that another program has begun.
#[test]
fn a_film_on_standard_output_continues_after_its_part() {
    let scratch = Scratch::new();
    let (path, whole) = (scratch.path("film"), film(LINE, 2));
    let mut file = File::create(&path).unwrap();
    file.write_all(b"before").unwrap();
    file.write_all(&whole[..LINE.len() + 5]).unwrap();
    let mut sink = partner_on("y4m", Role::Application, file);
    let key = sink.open(&template(Direction::In), &Attributes::default()).unwrap();
    sink.ctl(key, Ctl::Recovery(RecoveryCtl::RestoreState(LINE.as_bytes()))).unwrap();
    sink.ctl(key, Ctl::Recovery(RecoveryCtl::Skip(5))).unwrap();
    push_all(sink.as_mut(), key, 0..2);
    assert_eq!(std::fs::read(&path).unwrap(), [&b"before"[..], &whole].concat());
}

/// The reader of a FIFO sees one torn picture.
#[test]
fn a_writer_resumed_within_a_lost_picture_of_a_fifo_stays_in_step() {
    let scratch = Scratch::new();
    let (path, far) = scratch.fifo("film");
    let mut far = File::from(far);
    let node = File::options().read(true).write(true).open(&path).unwrap();
    let mut sink = partner_on(&format!("y4m:{path}"), Role::Application, node);
    let key = sink.open(&template(Direction::In), &Attributes::default()).unwrap();
    sink.ctl(key, Ctl::Recovery(RecoveryCtl::RestoreState(LINE.as_bytes()))).unwrap();
    sink.ctl(key, Ctl::Recovery(RecoveryCtl::Abandon(10))).unwrap();
    push_all(sink.as_mut(), key, 0..2);
    assert_eq!(read_available(&mut far), film(LINE, 2)[LINE.len() + 10..]);
}

#[test]
fn frames_are_a_period_apart_and_carry_their_rate() {
    let scratch = Scratch::new();
    let path = scratch.path("film");
    std::fs::write(&path, film("YUV4MPEG2 W6 H2 F200:1\n", 8)).unwrap();
    for (options, rate, period_ns) in [
        ("", (200, 1), 5_000_000),
        (",rate=400", (400, 1), 2_500_000),
        (",rate=62.5", (62_500, 1000), 16_000_000),
    ] {
        let began = now();
        let messages = read(&format!("y4m:{path}{options}")).unwrap();
        assert_eq!(messages.len(), 8);
        assert!(messages[0].created >= began && messages[7].created <= now(), "created when they were due");
        for pair in messages.windows(2) {
            let apart_ns = pair[1].created.since(pair[0].created).as_nanos();
            assert!(apart_ns + 2 >= period_ns, "{options}: {apart_ns}");
            let header = Header::parse(&pair[0].body.peek_front::<{ Header::BYTES }>().unwrap()).unwrap();
            assert_eq!(header.geometry.rate(), rate);
        }
    }
}

#[test]
fn a_file_can_loop_and_a_pipe_cannot() {
    let scratch = Scratch::new();
    let path = scratch.path("film");
    std::fs::write(&path, film(LINE, 3)).unwrap();
    let mut partner = open(&format!("y4m:{path},rate=0,loop=true"), Role::Device);
    let key = partner.open(&template(Direction::Out), &Attributes::default()).unwrap();
    let mut numbers = Vec::new();
    while numbers.len() < 10 {
        if let Pulled::Message(_, message) = partner.pull(key, Pull::Yours).unwrap() {
            numbers.push((0..3).find(|number| message.body == body(geometry(), pixels(*number))).unwrap());
        }
    }
    assert_eq!(numbers, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]);
    std::fs::write(&path, LINE).unwrap();
    assert_eq!(read(&format!("y4m:{path},rate=0,loop=true")).unwrap(), [], "a film without frames ends");
    let (fifo, _held) = scratch.fifo("fifo");
    let (class, spec) = crate::spec::parse(&format!("y4m:{fifo},loop=true"), Role::Device).unwrap();
    let error = class.open(&spec, Role::Device, None).unwrap_err();
    assert!(error.to_string().contains("only a file can start again"), "{error}");
}

#[test]
fn invalid_streams_are_rejected_with_a_reason() {
    let scratch = Scratch::new();
    let path = scratch.path("film");
    let whole = film(LINE, 2);
    let cases: [(&[u8], &str); 9] = [
        (b"", "ends within its first line"),
        (b"RIFF\n", "does not begin with YUV4MPEG2"),
        (&[b'x'; 5000], "no line ends within 4096 bytes"),
        (b"YUV4MPEG2 W6 F30:1\n", "no width or no height"),
        (b"YUV4MPEG2 Wx H2\n", "`Wx` in its first line is invalid"),
        (b"YUV4MPEG2 W99999 H2\n", "over the limit of 16384"),
        (b"YUV4MPEG2 W6 H2 C420p10\n", "its colours are `420p10`"),
        (b"YUV4MPEG2 W6 H2\nFRAMES\n", "frame 0 does not begin with FRAME"),
        (&whole[..whole.len() - 5], "it ends 13 bytes into a frame of 18"),
    ];
    for (bytes, expected) in cases {
        std::fs::write(&path, bytes).unwrap();
        let error = read(&format!("y4m:{path},rate=0")).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(&path), "{error}");
    }
    std::fs::write(&path, [&whole[..], b"FRA"].concat()).unwrap();
    assert!(
        read(&format!("y4m:{path},rate=0"))
            .unwrap_err()
            .to_string()
            .contains("within the line before a frame")
    );
}

#[test]
fn frame_parameters_and_unknown_parameters_are_ignored() {
    let scratch = Scratch::new();
    let path = scratch.path("film");
    let line = "YUV4MPEG2 W6 H2 F0:0 Ib A1:1 C420mpeg2 XYSCSS=420MPEG2 XCOLORRANGE=LIMITED\n";
    let bytes = [line.as_bytes(), b"FRAME Ixyz\n", &pixels(5)].concat();
    std::fs::write(&path, bytes).unwrap();
    let messages = read(&format!("y4m:{path},rate=0")).unwrap();
    assert_eq!(messages[0].body, body(Geometry::new(PixelFormat::I420, 6, 2).unwrap(), pixels(5)));
}

#[test]
fn packed_pixels_are_written_in_planes() {
    let scratch = Scratch::new();
    let path = scratch.path("film");
    let written = |geometry: Geometry, pixels: &[u8]| {
        let answers = write(&format!("y4m:{path}"), [body(geometry, pixels.to_vec())]);
        assert!(matches!(answers[..], [Ok(Pushed::Taken)]), "{answers:?}");
        let bytes = std::fs::read(&path).unwrap();
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        let line = std::str::from_utf8(&bytes[..end]).unwrap().to_string();
        (line, bytes[end + 1..].strip_prefix(b"FRAME\n").unwrap().to_vec())
    };
    let screen = Geometry::new(PixelFormat::Bgrx32, 2, 2).unwrap().with_stride(10).unwrap();
    // White, red; green, black; a stride of ten bytes.
    let colours = [[255, 255, 255, 9], [0, 0, 255, 9], [0, 255, 0, 9], [0, 0, 0, 9]];
    let rows = [colours[..2].concat(), vec![7; 2], colours[2..].concat(), vec![7; 2]].concat();
    let (line, planes) = written(screen, &rows);
    assert_eq!(line, "YUV4MPEG2 W2 H2 F0:0 Ip A0:0 C444");
    assert_eq!(planes, [235, 82, 144, 16, 128, 90, 54, 128, 128, 240, 34, 128]);
    let rgb = Geometry::new(PixelFormat::Rgb24, 1, 1).unwrap().with_rate(24, 1);
    let (line, planes) = written(rgb, &[255, 0, 0]);
    assert_eq!((line.as_str(), &planes[..]), ("YUV4MPEG2 W1 H1 F24:1 Ip A0:0 C444", &[82, 90, 240][..]));
    let camera = Geometry::new(PixelFormat::Yuyv, 2, 1).unwrap();
    let (line, planes) = written(camera, &[1, 2, 3, 4]);
    assert_eq!((line.as_str(), &planes[..]), ("YUV4MPEG2 W2 H1 F0:0 Ip A0:0 C422", &[1, 3, 2, 4][..]));
    let gray = Geometry::new(PixelFormat::Gray8, 2, 1).unwrap().with_stride(3).unwrap();
    let (line, planes) = written(gray, &[1, 2, 3]);
    assert_eq!((line.as_str(), &planes[..]), ("YUV4MPEG2 W2 H1 F0:0 Ip A0:0 Cmono", &[1, 2][..]));
}

#[test]
fn unsupported_pictures_are_refused_and_the_stream_continues() {
    let scratch = Scratch::new();
    let path = scratch.path("film");
    let larger = Geometry::new(PixelFormat::I420, 8, 2).unwrap().with_rate(30, 1);
    let jpeg = Geometry::new(PixelFormat::Mjpeg, 8, 2).unwrap();
    let boxes = [&Header { kind: Kind::Boxes, geometry: larger }.emit()[..], &[0, 0]].concat();
    let bodies = [
        body(geometry(), pixels(0)),
        body(larger, vec![0; larger.bytes()]),
        body(jpeg, vec![1]),
        boxes.into(),
        body(geometry(), pixels(0)[1..].to_vec()),
        Body::from(Bytes::from_static(b"\x09hello")),
        Body::new(),
        body(geometry(), pixels(1)),
    ];
    let expected = [
        "",
        "is YU12 of 8x2 at 30/1 Hz and the first one was YU12 of 6x2",
        "no compressed pictures",
        "only whole pictures",
        "is incomplete",
        "shorter than a picture header",
        "shorter than a picture header",
        "",
    ];
    let answers = write(&format!("y4m:{path}"), bodies);
    for (answer, expected) in answers.iter().zip(expected) {
        match answer {
            Ok(Pushed::Taken) => assert_eq!(expected, ""),
            Err(error) => assert!(!expected.is_empty() && error.contains(expected), "{error}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(std::fs::read(&path).unwrap(), film(LINE, 2));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn first_lines_round_trip(
        pixels in prop::sample::select(vec![PixelFormat::Gray8, PixelFormat::I420, PixelFormat::I422, PixelFormat::I444]),
        (width, height) in (1..2000u32, 1..2000u32),
        (numerator, denominator) in (1..=u32::MAX, 1..=u32::MAX),
    ) {
        let plain = Geometry::new(pixels, width, height).unwrap();
        for geometry in [plain, plain.with_rate(numerator, denominator)] {
            let line = header::emit(&geometry).unwrap();
            prop_assert_eq!(header::parse(line.trim_end().as_bytes()), Ok(geometry));
        }
    }

    #[test]
    fn any_first_line_is_parsed_or_rejected(
        line in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            "YUV4MPEG2( [WHFCIAX][0-9:a-z]{0,8}){0,5}".prop_map(String::into_bytes),
        ],
    ) {
        let _ = header::parse(&line);
    }
}
