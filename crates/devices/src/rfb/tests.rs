use super::auth::Password;
use super::client::{Changes, Client, ENCODINGS, Said, ServerInit, handshake};
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

/// Encodings of pixels that both our sides have.
const PIXEL_ENCODINGS: [i32; 3] = [encoding::RAW, encoding::ZRLE, encoding::TIGHT];

/// A server's core and what its viewer did, as a stream that a client talks to.
struct Line {
    viewer: Viewer,
    screen: Screen,
    name: String,
    now: Time,
    events: Vec<Event>,
}

impl Line {
    fn new(screen: Screen, password: Option<Password>) -> Line {
        let settings = Settings { password, name: "a desk".into() };
        let viewer = Viewer::new(&settings, *b"sixteen bytes...");
        Line { viewer, screen, name: settings.name, now: Time::from_millis(1), events: Vec::new() }
    }

    fn say(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.viewer.receive(bytes, self.now, &mut self.events).map_err(|fault| fault.0)
    }

    /// Everything that the server says now.
    fn hear(&mut self) -> Vec<u8> {
        self.viewer.update(&self.screen, &self.name, self.now);
        let said = self.viewer.output().to_vec();
        self.viewer.handle_written(said.len());
        said
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
        self.say(bytes).map_err(io::Error::other)?;
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

/// Some pixels: `colours` of them, in runs.
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

/// A client past its greeting, which asks for these encodings.
fn attach(line: &mut Line, format: PixelFormat, encodings: &[i32]) -> Client {
    let init = handshake(line, None).unwrap();
    assert_eq!(init.name, "a desk");
    Client::new(&init, format, encodings)
}

/// Talks until neither side has anything to say; what the server said, taken apart.
fn settle(line: &mut Line, client: &mut Client) -> Vec<Said> {
    let mut said = Vec::new();
    for _ in 0..20 {
        client.ask();
        line.say(&std::mem::take(&mut client.output)).unwrap();
        client.receive(&line.hear());
        let before = said.len();
        while let Some(one) = client.next().unwrap() {
            said.push(one);
        }
        if said.len() == before {
            return said;
        }
    }
    panic!("there is no end to it");
}

/// What is left of our pixels behind a format.
fn seen(pixels: &[u8], format: PixelFormat) -> Vec<u8> {
    let (translator, expander) = (Translator::new(format), Expander::new(&format));
    let mut values = Vec::new();
    translator.row(pixels, &mut values);
    values.into_iter().flat_map(|value| expander.pixel(value)).collect()
}

/// The first pixel that differs, so that a failure says more than thousands of bytes.
fn difference(got: &[u8], expected: &[u8]) -> Option<(usize, [u8; 4], [u8; 4])> {
    let pairs = got.as_chunks::<4>().0.iter().zip(expected.as_chunks::<4>().0);
    pairs.enumerate().find(|(_, (a, b))| a != b).map(|(at, (a, b))| (at, *a, *b))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn pictures_cross_in_every_encoding_and_format(
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
                prop_assert_eq!(settle(&mut line, &mut client), [Said::Update]);
                prop_assert_eq!(client.take_changes(), Some(Changes::All));
                for (x, y, w, h, seed) in &changes {
                    let whole = line.screen.picture.whole();
                    let place = Rectangle { x: *x, y: *y, width: *w, height: *h };
                    let Some(place) = place.intersection(&whole) else { continue };
                    let area = (place.width * place.height) as usize;
                    line.apply(part(width, height, place, &pixels(area, colours, run, *seed)));
                    settle(&mut line, &mut client);
                }
                let expected = seen(line.screen.picture.pixels(), format);
                let differs = difference(client.picture().pixels(), &expected);
                prop_assert_eq!(differs, None, "{:?} in encoding {}", format, encoding);
            }
        }
    }

    #[test]
    fn a_servers_bytes_are_a_picture_or_a_fault(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        width in 1u32..100, height in 1u32..100,
    ) {
        let init = ServerInit { width, height, name: String::new() };
        for kind in 0..4 {
            let mut client = Client::new(&init, PixelFormat::OURS, &ENCODINGS);
            // The head of an update lets the rest get further.
            let head = if kind == 0 { vec![] } else { vec![0, 0, 0xff, 0xff] };
            client.receive(&[&head[..], &bytes].concat());
            while let Ok(Some(_)) = client.next() {}
        }
    }

    #[test]
    fn a_viewers_bytes_are_events_or_a_fault_wherever_they_are_cut(
        bytes in prop::collection::vec(prop_oneof![0u8..9, any::<u8>()], 0..200),
        cut in any::<prop::sample::Index>(),
    ) {
        let run = |pieces: &[&[u8]]| {
            let mut line = Line::new(screen_of(3, 2, &[7; 24]), None);
            handshake(&mut line, None).unwrap();
            line.hear();
            let mut result = Ok(());
            for piece in pieces {
                result = result.and_then(|()| line.say(piece));
            }
            (result, line.events, line.viewer.output().to_vec())
        };
        let (front, back) = bytes.split_at(cut.index(bytes.len() + 1));
        prop_assert_eq!(run(&[&bytes]), run(&[front, back]));
    }
}
