//! Tests of both protocol states without I/O, joined in memory, and with bytes as other programs send them.

use super::auth::Password;
use super::client::{Changes, Client, ServerEvent, ServerInit, handshake, preferring};
use super::clipboard::Clipboard;
use super::picture::{Applied, Screen};
use super::pixels::{Expander, PixelFormat, Translator, tests::formats};
use super::protocol::encoding;
use super::server::{Settings, Viewer};
use contract::{Body, Time};
use proptest::prelude::*;
use std::io::{self, Read, Write};
use wire::formats::video::{
    Cursor, Geometry, Header, Kind, PixelFormat as VideoPixels, Rectangle, emit_rectangles,
};
use wire::formats::viewer::Event;

/// The pixel encodings that server and client support.
const PIXEL_ENCODINGS: [i32; 3] = [encoding::RAW, encoding::ZRLE, encoding::TIGHT];

/// A server's state for one viewer and the viewer's input, as a stream for a client.
struct Line {
    viewer: Viewer,
    screen: Screen,
    name: String,
    now: Time,
    events: Vec<Event>,
}

impl Line {
    fn new(screen: Screen, password: Option<Password>) -> Line {
        let settings = Settings { password, name: "a desk".into(), has_clipboard: true };
        let viewer = Viewer::new(&settings, *b"sixteen bytes...");
        Line { viewer, screen, name: settings.name, now: Time::from_millis(1), events: Vec::new() }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.viewer.receive(bytes, self.now, &mut self.events).map_err(|fault| fault.0)
    }

    /// Returns the output of the server, with an update if one is due.
    fn receive(&mut self) -> Vec<u8> {
        self.viewer.update(&self.screen, &self.name, self.now);
        let output = self.viewer.output().to_vec();
        self.viewer.handle_written(output.len());
        output
    }

    fn apply(&mut self, message: Body) -> Applied {
        let applied = self.screen.apply(&message).unwrap();
        if applied == Applied::Cursor {
            self.viewer.handle_cursor();
        }
        self.viewer.handle_damage(&self.screen);
        self.screen.damage.clear();
        applied
    }
}

impl Read for Line {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.viewer.update(&self.screen, &self.name, self.now);
        let count = self.viewer.output().len().min(into.len());
        into[..count].copy_from_slice(&self.viewer.output()[..count]);
        self.viewer.handle_written(count);
        Ok(count)
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // After a fault the client still reads the server's reason.
        let _ = self.send(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn geometry(width: u32, height: u32) -> Geometry {
    Geometry::new(VideoPixels::Bgrx32, width, height).unwrap()
}

fn frame(width: u32, height: u32, pixels: &[u8]) -> Body {
    let mut body = Body::from(pixels.to_vec());
    body.push_front(&Header::frame(geometry(width, height)).emit());
    body
}

fn part(width: u32, height: u32, rectangle: Rectangle, pixels: &[u8]) -> Body {
    let mut body = Body::from(pixels.to_vec());
    body.push_front(&emit_rectangles(&[rectangle]));
    body.push_front(&Header { kind: Kind::Rectangles, geometry: geometry(width, height) }.emit());
    body
}

fn screen_of(width: u32, height: u32, pixels: &[u8]) -> Screen {
    let mut screen = Screen::default();
    assert_eq!(screen.apply(&frame(width, height, pixels)), Ok(Applied::Size));
    screen.damage.clear();
    screen
}

/// Returns random pixels of up to `colours` colours, in runs of up to `run`.
fn pixels(area: usize, colours: u32, run: u32, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let mut pixels = Vec::with_capacity(area * 4);
    while pixels.len() < area * 4 {
        let colour = (random() % colours).wrapping_mul(0x0003_4567) ^ seed;
        let length = 1 + random() % run;
        pixels.extend(std::iter::repeat_n((colour & 0x00ff_ffff).to_le_bytes(), length as usize).flatten());
    }
    pixels.truncate(area * 4);
    pixels
}

/// Performs the handshake and returns a client with these encodings.
fn attach(line: &mut Line, format: PixelFormat, encodings: &[i32]) -> Client {
    let init = handshake(line, None).unwrap();
    assert_eq!(init.name, "a desk");
    Client::new(&init, format, encodings)
}

/// Exchanges bytes until neither side has any. Returns the client's events.
fn settle(line: &mut Line, client: &mut Client) -> Vec<ServerEvent> {
    let mut events = Vec::new();
    for _ in 0..20 {
        client.ask();
        line.send(&std::mem::take(&mut client.output)).unwrap();
        client.receive(&line.receive());
        let prev_len = events.len();
        while let Some(event) = client.next().unwrap() {
            events.push(event);
        }
        if events.len() == prev_len {
            return events;
        }
    }
    panic!("the exchange does not end");
}

/// Converts native pixels to a format and back.
fn converted(pixels: &[u8], format: PixelFormat) -> Vec<u8> {
    let (translator, expander) = (Translator::new(format), Expander::new(&format));
    let mut values = Vec::new();
    translator.row(pixels, &mut values);
    values.into_iter().flat_map(|value| expander.pixel(value)).collect()
}

/// Returns the first pixel that differs, for a readable failure.
fn difference(got: &[u8], expected: &[u8]) -> Option<(usize, [u8; 4], [u8; 4])> {
    let pairs = got.as_chunks::<4>().0.iter().zip(expected.as_chunks::<4>().0);
    pairs.enumerate().find(|(_, (a, b))| a != b).map(|(at, (a, b))| (at, *a, *b))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn pictures_round_trip_in_every_encoding_and_format(
        (width, height) in (1u32..200, 1u32..200),
        colours in prop_oneof![Just(1u32), Just(2), 3u32..6, 10u32..17, 100u32..300, Just(1 << 24)],
        run in prop_oneof![Just(1u32), 2u32..9, 300u32..2000],
        seed in any::<u32>(),
        changes in prop::collection::vec((0u32..200, 0u32..200, 1u32..80, 1u32..80, any::<u32>()), 0..4),
    ) {
        let area = (width * height) as usize;
        for format in formats() {
            for encoding in PIXEL_ENCODINGS {
                let screen = screen_of(width, height, &pixels(area, colours, run, seed));
                let mut line = Line::new(screen, None);
                let mut client = attach(&mut line, format, &[encoding]);
                prop_assert_eq!(settle(&mut line, &mut client), [ServerEvent::Update]);
                prop_assert_eq!(client.take_changes(), Some(Changes::All));
                for (x, y, w, h, seed) in &changes {
                    let whole = line.screen.picture.whole();
                    let place = Rectangle { x: *x, y: *y, width: *w, height: *h };
                    let Some(place) = place.intersection(&whole) else { continue };
                    let area = (place.width * place.height) as usize;
                    line.apply(part(width, height, place, &pixels(area, colours, run, *seed)));
                    settle(&mut line, &mut client);
                }
                let expected = converted(line.screen.picture.pixels(), format);
                let differs = difference(client.picture().pixels(), &expected);
                prop_assert_eq!(differs, None, "{:?} in encoding {}", format, encoding);
            }
        }
    }

    #[test]
    fn random_server_bytes_are_parsed_or_rejected(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        width in 1u32..100, height in 1u32..100,
    ) {
        let init = ServerInit { width, height, name: String::new() };
        for kind in 0..4 {
            let mut client = Client::new(&init, PixelFormat::NATIVE, &preferring("tight", "", true));
            // Behind the header of an update more of the bytes are parsed.
            let header = if kind == 0 { vec![] } else { vec![0, 0, 0xff, 0xff] };
            client.receive(&[&header[..], &bytes].concat());
            while let Ok(Some(_)) = client.next() {}
        }
    }

    #[test]
    fn random_viewer_bytes_give_the_same_result_in_any_pieces(
        bytes in prop::collection::vec(prop_oneof![0u8..9, any::<u8>()], 0..200),
        cut in any::<prop::sample::Index>(),
    ) {
        let run = |pieces: &[&[u8]]| {
            let mut line = Line::new(screen_of(3, 2, &[7; 24]), None);
            handshake(&mut line, None).unwrap();
            line.receive();
            let mut result = Ok(());
            for piece in pieces {
                result = result.and_then(|()| line.send(piece));
            }
            (result, line.events, line.viewer.output().to_vec())
        };
        let (front, back) = bytes.split_at(cut.index(bytes.len() + 1));
        prop_assert_eq!(run(&[&bytes]), run(&[front, back]));
    }
}

fn small() -> Screen {
    screen_of(40, 30, &pixels(1200, 5, 3, 1))
}

fn request(is_incremental: bool) -> Vec<u8> {
    vec![3, is_incremental.into(), 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]
}

fn encodings(numbers: &[i32]) -> Vec<u8> {
    let count = (numbers.len() as u16).to_be_bytes();
    [&[2, 0][..], &count, &numbers.iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<_>>()]
        .concat()
}

/// Performs the handshake and sends these encodings. Drops the server's output.
fn running(numbers: &[i32]) -> Line {
    let mut line = Line::new(small(), None);
    handshake(&mut line, None).unwrap();
    line.send(&encodings(numbers)).unwrap();
    line.receive();
    line
}

/// Returns the place, the encoding and the content of the only rectangle of an update.
fn rectangle(update: &[u8]) -> ([u16; 4], i32, &[u8]) {
    assert_eq!(update[..4], [0, 0, 0, 1], "one rectangle");
    let side = |at: usize| u16::from_be_bytes([update[at], update[at + 1]]);
    let number = i32::from_be_bytes(update[12..16].try_into().unwrap());
    ([side(4), side(6), side(8), side(10)], number, &update[16..])
}

#[test]
fn the_handshake_follows_every_version() {
    let init: Vec<u8> = [&[0, 40, 0, 30][..], &PixelFormat::NATIVE.emit(), &[0, 0, 0, 6], b"a desk"].concat();
    let (none, ok) = (&[0, 0, 0, 1][..], &[0, 0, 0, 0][..]);
    for (version, offer, choice, result) in [
        ("RFB 003.003\n", none, &[][..], &[][..]),
        ("RFB 003.005\n", none, &[], &[]),
        ("RFB 003.007\n", &[1, 1], &[1], &[]),
        ("RFB 003.008\n", &[1, 1], &[1], ok),
        ("RFB 003.889\n", &[1, 1], &[1], ok),
        ("RFB 004.001\n", &[1, 1], &[1], ok),
    ] {
        let mut line = Line::new(small(), None);
        assert_eq!(line.receive(), b"RFB 003.008\n");
        line.send(version.as_bytes()).unwrap();
        if choice.is_empty() {
            line.send(&[1]).unwrap();
            assert_eq!([line.receive(), line.receive()].concat(), [offer, &init].concat(), "{version}");
            continue;
        }
        assert_eq!(line.receive(), offer, "{version}");
        line.send(choice).unwrap();
        assert_eq!(line.receive(), result, "{version}");
        line.send(&[1]).unwrap();
        assert_eq!(line.receive(), init, "{version}");
    }
    for wrong in ["RFB 002.000\n", "GET / HTTP/1", "RFB 00x.008\n"] {
        assert!(Line::new(small(), None).send(wrong.as_bytes()).is_err(), "{wrong}");
    }
}

#[test]
fn only_the_right_password_is_accepted() {
    let password = |text: &str| Password::parse(text.as_bytes());
    let right = handshake(&mut Line::new(small(), password("secret")), password("secret").as_ref());
    assert_eq!(right.unwrap().width, 40);
    let wrong = handshake(&mut Line::new(small(), password("secret")), password("guess").as_ref());
    assert!(wrong.unwrap_err().to_string().contains("password is wrong"));
    let missing = handshake(&mut Line::new(small(), password("secret")), None);
    assert!(missing.unwrap_err().to_string().contains("password_file"));
    handshake(&mut Line::new(small(), None), password("secret").as_ref()).expect("no password is needed");
    let mut line = Line::new(small(), password("secret"));
    line.send(b"RFB 003.008\n").unwrap();
    assert!(line.send(&[1]).is_err(), "no security was not offered");
}

/// A server that offers other security types only.
struct Foreign(io::Cursor<Vec<u8>>);

impl Read for Foreign {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Foreign {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_settings_of_a_server_with_other_security_types_are_named() {
    for (kind, settings) in [(18, "gsettings set org.gnome.desktop.remote-desktop.vnc"), (19, "TigerVNC")] {
        let mut server = Foreign(io::Cursor::new([&b"RFB 003.008\n"[..], &[1, kind]].concat()));
        let error = handshake(&mut server, None).unwrap_err().to_string();
        assert!(error.contains(settings), "{error}");
    }
}

#[test]
fn before_the_first_picture_a_viewer_waits() {
    let mut line = Line::new(Screen::default(), None);
    line.send(b"RFB 003.008\n\x01\x01").unwrap();
    line.receive();
    assert_eq!(line.receive(), b"");
    line.apply(frame(40, 30, &[9; 4800]));
    assert_eq!(line.receive()[..4], [0, 40, 0, 30]);
}

#[test]
fn a_viewer_with_a_colour_map_gets_the_map_and_indices() {
    let mut line = running(&[]);
    line.send(&[0, 0, 0, 0, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    line.send(&request(false)).unwrap();
    let output = line.receive();
    let (map, update) = output.split_at(6 + 256 * 6);
    assert_eq!(map[..6], [1, 0, 0, 0, 1, 0]);
    let (_, number, indices) = rectangle(update);
    assert_eq!((number, indices.len()), (0, 1200));
    for (index, pixel) in indices.iter().zip(pixels(1200, 5, 3, 1).chunks_exact(4)) {
        let colour = &map[6 + usize::from(*index) * 6..][..6];
        for (value, original) in colour.chunks_exact(2).zip([pixel[2], pixel[1], pixel[0]]) {
            assert!(value[0].abs_diff(original) <= 43, "{colour:?} for {pixel:?}");
        }
    }
    line.send(&request(false)).unwrap();
    assert_eq!(line.receive()[0], 0, "the map is sent once");
    // A colour map with indices of 16 bits is not supported.
    assert!(line.send(&[0, 0, 0, 0, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
}

#[test]
fn input_becomes_events_and_release_undoes_it() {
    let mut line = running(&[]);
    line.send(&[4, 1, 0, 0, 0, 0, 0xff, 0x0d]).unwrap();
    line.send(&[5, 0x81, 0, 20, 0xff, 0xff]).unwrap();
    line.send(&[6, 0, 0, 0, 0, 0, 0, 2, b'h', 0xe9]).unwrap();
    line.send(&[251, 0, 4, 0, 3, 0, 0, 0]).unwrap();
    let expected = [
        Event::Key { keysym: 0xff0d, pressed: true },
        // A position below the picture is moved to its edge.
        Event::Pointer { x: 20, y: 29, buttons: 0x81 },
        Event::Text("hé".into()),
        Event::Size { width: 1024, height: 768 },
    ];
    assert_eq!(line.events, expected);
    assert_eq!(line.viewer.pressed(), expected[..2]);
    let released =
        [Event::Key { keysym: 0xff0d, pressed: false }, Event::Pointer { x: 20, y: 29, buttons: 0 }];
    assert_eq!(line.viewer.release(), released);
    assert_eq!(line.viewer.release(), []);
}

/// KRDC sends the first message when a picture is copied.
#[test]
fn an_empty_text_of_a_viewer_is_no_event() {
    let mut line = running(&[encoding::EXTENDED_CLIPBOARD]);
    line.send(&[6, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut theirs = Clipboard::new(6, 0);
    theirs.handle(&[0x11, 0, 0, 1, 0, 16, 0, 0], &mut Vec::new()).unwrap();
    let mut provide = Vec::new();
    assert!(theirs.offer("", &mut provide));
    line.send(&provide).unwrap();
    assert_eq!(line.events, []);
    provide.clear();
    assert!(theirs.offer("a text", &mut provide));
    line.send(&provide).unwrap();
    assert_eq!(line.events, [Event::Text("a text".into())]);
}

/// The messages that TigerVNC's viewer sends after its list of encodings and when its clipboard changes.
#[test]
fn the_server_requests_the_text_of_an_extended_clipboard() {
    let mut line = Line::new(small(), None);
    handshake(&mut line, None).unwrap();
    line.send(&encodings(&[encoding::EXTENDED_CLIPBOARD])).unwrap();
    line.send(&[6, 0, 0, 0, 255, 255, 255, 248, 0x1f, 0, 0, 1, 0, 0, 0, 0]).unwrap();
    assert_eq!(line.receive(), [3, 0, 0, 0, 255, 255, 255, 248, 0x1f, 0, 0, 1, 0, 16, 0, 0]);
    line.send(&[6, 0, 0, 0, 255, 255, 255, 252, 8, 0, 0, 1]).unwrap();
    assert_eq!(line.receive(), [3, 0, 0, 0, 255, 255, 255, 252, 2, 0, 0, 1]);
    let mut theirs = Clipboard::new(6, 0);
    let mut provide = Vec::new();
    theirs.handle(&[0x11, 0, 0, 1, 0, 16, 0, 0], &mut Vec::new()).unwrap();
    assert!(theirs.offer("世界", &mut provide));
    // The message arrives in pieces.
    let (first, second) = provide.split_at(11);
    line.send(first).unwrap();
    assert_eq!(line.events, []);
    line.send(second).unwrap();
    assert_eq!(line.events, [Event::Text("世界".into())]);
    // A message that is too long is skipped.
    line.send(&[6, 0, 0, 0, 0xf0, 0, 0, 0]).unwrap();
    for _ in 0..256 {
        line.send(&[b'x'; 1 << 20]).unwrap();
    }
    line.send(&[4, 1, 0, 0, 0, 0, 0, 0x61]).unwrap();
    assert_eq!(line.events.len(), 2);
}

#[test]
fn a_text_that_is_too_long_is_skipped() {
    let mut line = running(&[]);
    line.send(&[6, 0, 0, 0, 0x10, 0, 0, 0]).unwrap();
    for _ in 0..256 {
        line.send(&[b'x'; 1 << 20]).unwrap();
    }
    line.send(&[4, 1, 0, 0, 0, 0, 0, 0x61]).unwrap();
    assert_eq!(line.events, [Event::Key { keysym: 0x61, pressed: true }]);
}

#[test]
fn a_list_of_encodings_is_limited() {
    let mut line = running(&[]);
    assert!(line.send(&encodings(&[0; 256])).is_ok());
    assert!(line.send(&[2, 0, 1, 1]).is_err());
}

#[test]
fn an_update_needs_a_request_and_damage() {
    let mut line = running(&[]);
    assert_eq!(line.receive(), b"");
    line.send(&request(true)).unwrap();
    assert_eq!(rectangle(&line.receive()).0, [0, 0, 40, 30]);
    line.send(&request(true)).unwrap();
    assert_eq!(line.receive(), b"", "nothing changed");
    line.apply(part(40, 30, Rectangle { x: 17, y: 5, width: 1, height: 1 }, &[1, 2, 3, 0]));
    assert_eq!(rectangle(&line.receive()).0, [16, 0, 16, 16], "the tile of the pixel");
    line.apply(part(40, 30, Rectangle { x: 0, y: 0, width: 1, height: 1 }, &[4, 5, 6, 0]));
    assert_eq!(line.receive(), b"", "no request");
    line.apply(part(40, 30, Rectangle { x: 39, y: 0, width: 1, height: 1 }, &[7, 8, 9, 0]));
    line.send(&request(true)).unwrap();
    assert_eq!(line.receive()[..4], [0, 0, 0, 2], "both rectangles after the request");
    let same = line.screen.picture.pixels().to_vec();
    line.apply(frame(40, 30, &same));
    line.send(&request(true)).unwrap();
    assert_eq!(line.receive(), b"", "an equal picture causes no damage");
    line.send(&request(false)).unwrap();
    assert_eq!(rectangle(&line.receive()).0, [0, 0, 40, 30], "a full update was requested");
}

#[test]
fn continuous_updates_are_limited_by_unacknowledged_fences() {
    let mut line = Line::new(small(), None);
    handshake(&mut line, None).unwrap();
    line.send(&encodings(&[encoding::FENCE, encoding::CONTINUOUS_UPDATES])).unwrap();
    let support = line.receive();
    assert_eq!(support, [&[248, 0, 0, 0, 0x80, 0, 0, 0, 0][..], &[150]].concat(), "announces support");
    line.send(&[150, 1, 0, 0, 0, 0, 0, 40, 0, 30]).unwrap();
    let mut shade = 0;
    let mut another = |line: &mut Line| {
        shade += 1;
        line.apply(frame(40, 30, &[shade; 4800]));
        let output = line.receive();
        output.last().copied()
    };
    let first = another(&mut line).expect("an update and a fence");
    assert_eq!(another(&mut line), None, "the round trip is unknown before the first reply");
    let reply = |number: u8| [&[248, 0, 0, 0, 0, 0, 0, 1, 1][..], &[number]].concat();
    line.now = line.now.after(std::time::Duration::from_millis(20));
    line.send(&reply(first)).unwrap();
    assert!(another(&mut line).is_some());
    assert!(another(&mut line).is_some(), "a second one in flight");
    line.now = line.now.after(std::time::Duration::from_millis(69));
    let last = another(&mut line).expect("within the round trip and the queue wait");
    line.now = line.now.after(std::time::Duration::from_millis(1));
    assert_eq!(another(&mut line), None, "the oldest update is late");
    line.send(&reply(last)).unwrap();
    assert!(another(&mut line).is_some(), "all are acknowledged");
    line.send(&[150, 0, 0, 0, 0, 0, 0, 40, 0, 30]).unwrap();
    assert_eq!(line.receive(), [150], "continuous updates end");
    assert_eq!(another(&mut line), None);
    line.send(&[248, 0, 0, 0, 0x80, 0, 0, 7, 2, b'h', b'i']).unwrap();
    assert_eq!(
        line.receive(),
        [248, 0, 0, 0, 0, 0, 0, 3, 2, b'h', b'i'],
        "the viewer's own fence is returned"
    );
}

fn cursor(width: u32, height: u32, pixels: &[u8]) -> Body {
    let mut body = Body::from(pixels.to_vec());
    body.push_front(&Cursor { width, height, hot_x: 1, hot_y: 0 }.emit());
    body.push_front(&Header { kind: Kind::Cursor, geometry: geometry(40, 30) }.emit());
    body
}

#[test]
fn the_pointer_shape_is_sent_in_both_encodings() {
    let shape = [[10, 20, 30, 255], [40, 50, 60, 0]].concat();
    let mut line = running(&[encoding::CURSOR]);
    line.send(&request(true)).unwrap();
    line.receive();
    line.send(&request(true)).unwrap();
    assert_eq!(line.apply(cursor(2, 1, &shape)), Applied::Cursor);
    let update = line.receive();
    let (place, number, bytes) = rectangle(&update);
    assert_eq!((place, number), ([1, 0, 2, 1], encoding::CURSOR));
    assert_eq!(bytes, [&shape[..], &[0x80]].concat(), "pixels and mask");

    for encodings in [&[encoding::CURSOR][..], &[encoding::CURSOR_WITH_ALPHA]] {
        let mut line = Line::new(small(), None);
        let mut client = attach(&mut line, PixelFormat::NATIVE, encodings);
        line.apply(cursor(2, 1, &shape));
        let events = settle(&mut line, &mut client);
        let Some(ServerEvent::Cursor(cursor, pixels)) = events.first() else { panic!("{events:?}") };
        assert_eq!(*cursor, Cursor { width: 2, height: 1, hot_x: 1, hot_y: 0 });
        assert_eq!((&pixels[..4], pixels[7]), (&shape[..4], 0));
    }
}

#[test]
fn qemu_is_asked_for_the_pointer_shape_without_opacity() {
    for (desktop, has_alpha) in [("QEMU", false), ("QEMU (vm)", false), ("QEMUs", true), ("a desk", true)] {
        let encodings = preferring("tight", desktop, true);
        assert!(encodings.contains(&encoding::CURSOR), "{desktop}");
        assert_eq!(encodings.contains(&encoding::CURSOR_WITH_ALPHA), has_alpha, "{desktop}");
    }
}

#[test]
fn a_new_size_is_announced_to_viewers_that_support_it() {
    for encodings in [&[encoding::DESKTOP_SIZE][..], &[encoding::EXTENDED_DESKTOP_SIZE]] {
        let mut line = Line::new(small(), None);
        let mut client = attach(&mut line, PixelFormat::NATIVE, encodings);
        settle(&mut line, &mut client);
        line.apply(frame(50, 20, &pixels(1000, 5, 3, 2)));
        settle(&mut line, &mut client);
        assert_eq!(client.take_changes(), Some(Changes::All));
        assert_eq!(client.picture().whole(), line.screen.picture.whole());
        assert_eq!(difference(client.picture().pixels(), line.screen.picture.pixels()), None);
    }
    let mut line = running(&[]);
    line.apply(frame(50, 20, &pixels(1000, 5, 3, 2)));
    line.send(&request(true)).unwrap();
    assert_eq!(rectangle(&line.receive()).0, [0, 0, 40, 20], "the part that fits into the known size");
}

/// libvncclient lists both encodings of a size, and ignores a size whose screen has the identifier 0.
#[test]
fn the_screen_of_a_size_has_an_identifier() {
    let mut line = running(&[encoding::DESKTOP_SIZE, encoding::EXTENDED_DESKTOP_SIZE]);
    let screens = |line: &mut Line| {
        line.send(&request(true)).unwrap();
        let update = line.receive();
        let (place, number, content) = rectangle(&update);
        assert_eq!(number, encoding::EXTENDED_DESKTOP_SIZE);
        (place, content.to_vec())
    };
    // The number of screens; then the identifier, the place, the size and the flags of each.
    let first = [1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 40, 0, 30, 0, 0, 0, 0].to_vec();
    assert_eq!(screens(&mut line), ([0, 0, 40, 30], first), "at the start");
    line.apply(frame(50, 20, &pixels(1000, 5, 3, 2)));
    let next = [1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 50, 0, 20, 0, 0, 0, 0].to_vec();
    assert_eq!(screens(&mut line), ([0, 0, 50, 20], next), "a new size");
}

/// `gvnccapture` sends one request and waits for pixels, so the first update must not repeat the size.
#[test]
fn the_first_update_has_pixels() {
    let mut line = Line::new(small(), None);
    // Damage is merged also during the handshake.
    line.viewer.handle_damage(&line.screen);
    handshake(&mut line, None).unwrap();
    line.viewer.handle_damage(&line.screen);
    line.send(&encodings(&[encoding::DESKTOP_SIZE, encoding::RAW])).unwrap();
    line.send(&request(false)).unwrap();
    let update = line.receive();
    assert_eq!((rectangle(&update).0, rectangle(&update).1), ([0, 0, 40, 30], encoding::RAW));
}

#[test]
fn a_size_request_is_forwarded_and_answered() {
    let mut line = Line::new(small(), None);
    let mut client = attach(&mut line, PixelFormat::NATIVE, &[encoding::EXTENDED_DESKTOP_SIZE]);
    settle(&mut line, &mut client);
    client.send(&Event::Size { width: 1280, height: 720 });
    settle(&mut line, &mut client);
    assert_eq!(line.events, [Event::Size { width: 1280, height: 720 }]);
    assert_eq!(client.picture().whole(), line.screen.picture.whole(), "the size does not change yet");
}

#[test]
fn events_of_a_client_reach_the_server() {
    let mut line = Line::new(small(), None);
    let mut client = attach(&mut line, PixelFormat::NATIVE, &preferring("tight", "", true));
    settle(&mut line, &mut client);
    let events = [
        Event::Key { keysym: 0x20ac, pressed: true },
        Event::Pointer { x: 3, y: 4, buttons: 0xff },
        Event::Text("déjà vu, 世界\n".repeat(40_000)),
    ];
    events.iter().for_each(|event| client.send(event));
    settle(&mut line, &mut client);
    assert_eq!(line.events, events);
}

#[test]
fn copy_rect_copies_within_the_picture() {
    let init = ServerInit { width: 4, height: 3, name: String::new() };
    let mut client = Client::new(&init, PixelFormat::NATIVE, &preferring("tight", "", true));
    let row: Vec<u8> = (0..16).collect();
    client.receive(&[&[0, 0, 0, 2, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0, 0][..], &row].concat());
    // From (0, 0) to (1, 0); source and target overlap. The message arrives in two pieces.
    client.receive(&[0, 1, 0, 0, 0, 3, 0, 1, 0, 0, 0, 1, 0, 0]);
    assert_eq!(client.next(), Ok(None));
    client.receive(&[0, 0]);
    assert_eq!(client.next(), Ok(Some(ServerEvent::Update)));
    let expected: Vec<u8> = (0..4).chain(0..12).collect();
    assert_eq!(client.picture().pixels()[..16], expected);
    client.receive(&[0, 0, 0, 1, 0, 1, 0, 0, 0, 3, 0, 1, 0, 0, 0, 1, 0, 0, 0, 3]);
    assert!(client.next().unwrap_err().0.contains("outside"), "the source is outside the picture");
}

/// Applies a picture of one colour in another format. Returns the resulting pixel.
fn uniform(format: VideoPixels, planes: &[(usize, u8)]) -> [u8; 4] {
    let geometry = Geometry::new(format, 6, 3).unwrap();
    let mut body =
        Body::from(planes.iter().flat_map(|(count, value)| vec![*value; *count]).collect::<Vec<_>>());
    body.push_front(&Header::frame(geometry).emit());
    let mut screen = Screen::default();
    assert_eq!(screen.apply(&body), Ok(Applied::Size));
    let pixels = screen.picture.pixels().as_chunks::<4>().0;
    assert!(pixels.iter().all(|pixel| *pixel == pixels[0]), "{format:?}: one colour");
    pixels[0]
}

#[test]
fn pictures_of_other_formats_are_converted() {
    // Red in ITU-R BT.601: Y 81, Cb 90, Cr 240.
    let is_red = |[blue, green, red, _]: [u8; 4]| blue < 3 && green < 3 && red > 252;
    assert!(is_red(uniform(VideoPixels::I420, &[(18, 81), (6, 90), (6, 240)])));
    assert!(is_red(uniform(VideoPixels::I422, &[(18, 81), (9, 90), (9, 240)])));
    assert!(is_red(uniform(VideoPixels::I444, &[(18, 81), (18, 90), (18, 240)])));
    let yuyv: Vec<_> = std::iter::repeat_n([(1, 81), (1, 90), (1, 81), (1, 240)], 9).flatten().collect();
    assert!(is_red(uniform(VideoPixels::Yuyv, &yuyv)));
    let rgb: Vec<_> = std::iter::repeat_n([(1, 254), (1, 1), (1, 2)], 18).flatten().collect();
    assert_eq!(uniform(VideoPixels::Rgb24, &rgb), [2, 1, 254, 0]);
    assert_eq!(uniform(VideoPixels::Gray8, &[(18, 77)]), [77, 77, 77, 0]);
}
