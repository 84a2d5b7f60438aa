use super::Screen;
use super::header::{Coding, Control, Header};
use super::sink::{LOST, REPEATED};
use crate::picture::tests::{frame, half};
use contract::{Body, Format, Half, Message, Outbox, Port, Time};
use netsim::Params;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::time::Duration;
use testkit::stage::{TwoHalves, conforms, steady};
use wire::formats::video::{
    Content, Geometry, Header as VideoHeader, Kind, PixelFormat, Rectangle, emit_rectangles,
};

const DELAY: Duration = Duration::from_millis(10);
/// Time between two pictures of the film.
const FILM_EVERY: Duration = Duration::from_nanos(41_666_667);
/// Time after which text that stands still is exact.
const EXACT_AFTER: Duration = Duration::from_millis(200);

fn thin(rate_bps: u64) -> Params {
    Params { rate_bps, ..steady(DELAY) }
}

/// A device with a screen, the pair, and a viewer with its picture.
struct Desk {
    run: TwoHalves,
    geometry: Geometry,
    screen: Vec<u8>,
    viewer: Vec<u8>,
    shown: usize,
}

impl Desk {
    fn new(given: &[(&str, &str)], link: Params, (width, height): (u32, u32)) -> Desk {
        let geometry = Geometry::new(PixelFormat::Bgrx32, width, height).unwrap();
        let screen = vec![0; geometry.bytes()];
        let run = TwoHalves::new(&Screen, given, &Format::Video, link, 1);
        let mut desk = Desk { run, geometry, viewer: vec![1; screen.len()], screen, shown: 0 };
        desk.push_frame();
        desk
    }

    fn push_frame(&mut self) {
        let message = Message::new(self.run.now, frame(self.geometry, self.screen.clone()));
        self.run.push(message);
    }

    fn range(&self, x: u32, y: u32, width: u32) -> std::ops::Range<usize> {
        let start = (y as usize * self.geometry.width() as usize + x as usize) * 4;
        start..start + width as usize * 4
    }

    /// Draws a part, each pixel by its place, and sends nothing.
    fn paint(&mut self, part: &Rectangle, mut pixel: impl FnMut(u32, u32) -> [u8; 3]) {
        for y in part.y..part.y + part.height {
            for x in part.x..part.x + part.width {
                let [blue, green, red] = pixel(x, y);
                let range = self.range(x, y, 1);
                self.screen[range].copy_from_slice(&[blue, green, red, 0]);
            }
        }
    }

    /// Draws parts, each pixel by its place, and sends them in one message.
    fn draw(&mut self, parts: &[Rectangle], mut pixel: impl FnMut(u32, u32) -> [u8; 3]) {
        let mut body = VideoHeader { kind: Kind::Rectangles, geometry: self.geometry }.emit().to_vec();
        body.extend(emit_rectangles(parts));
        for part in parts {
            self.paint(part, &mut pixel);
            for y in part.y..part.y + part.height {
                body.extend(&self.screen[self.range(part.x, y, part.width)]);
            }
        }
        self.run.push(Message::new(self.run.now, Body::from(body)));
    }

    fn wait(&mut self, time: Duration) {
        self.run.run_until(self.run.now.after(time));
        self.look();
    }

    /// Applies new messages to the viewer's picture.
    fn look(&mut self) {
        for (_, message) in &self.run.received[self.shown..] {
            let body = message.body.clone().into_bytes();
            let header = VideoHeader::parse(&body).unwrap();
            match header.parse_content(&body[VideoHeader::BYTES..]).unwrap() {
                Content::Frame(pixels) => self.viewer.copy_from_slice(pixels),
                Content::Rectangles(parts, mut pixels) => {
                    for part in parts {
                        for y in part.y..part.y + part.height {
                            let start = (y as usize * self.geometry.width() as usize + part.x as usize) * 4;
                            let (row, rest) = pixels.split_at(part.width as usize * 4);
                            self.viewer[start..start + row.len()].copy_from_slice(row);
                            pixels = rest;
                        }
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        self.shown = self.run.received.len();
    }

    fn is_exact(&self, part: &Rectangle) -> bool {
        (part.y..part.y + part.height).all(|y| {
            let range = self.range(part.x, y, part.width);
            self.screen[range.clone()] == self.viewer[range]
        })
    }

    fn whole(&self) -> Rectangle {
        Rectangle { x: 0, y: 0, width: self.geometry.width(), height: self.geometry.height() }
    }

    /// The time until the viewer shows a part exactly, or `limit`.
    fn until_exact(&mut self, part: &Rectangle, limit: Duration) -> Duration {
        let from = self.run.now;
        while !self.is_exact(part) && self.run.now.since(from) < limit {
            self.wait(Duration::from_millis(1));
        }
        self.run.now.since(from)
    }

    /// PSNR of a part at the viewer, decibels.
    fn psnr_db(&self, part: &Rectangle) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0f64);
        for y in part.y..part.y + part.height {
            let range = self.range(part.x, y, part.width);
            for (one, other) in self.screen[range.clone()].iter().zip(&self.viewer[range]) {
                sum += f64::from(one.abs_diff(*other)).powi(2);
                count += 1.0;
            }
        }
        10.0 * (255.0 * 255.0 / (sum / count).max(1e-9)).log10()
    }

    fn source(&self, name: &str) -> f64 {
        self.run.figure(Half::Source, name)
    }
}

/// A film: coloured waves that move, with a grain that no lossless compressor predicts.
fn film(number: u32) -> impl FnMut(u32, u32) -> [u8; 3] {
    let wave = |at: u32, period: u32| (at % period).abs_diff(period / 2) * 200 / period;
    move |x, y| {
        let grain = (x.wrapping_mul(7919) ^ y.wrapping_mul(104_729) ^ number.wrapping_mul(31))
            .wrapping_mul(2_654_435_761)
            >> 28;
        let of = |colour: u32| {
            (20 + wave(x + 3 * number + 20 * colour, 90) + wave(y + 2 * number, 70 + 10 * colour) + grain)
                as u8
        };
        [of(0), of(1), of(2)]
    }
}

/// Red letters on black.
fn letters(seed: u32) -> impl FnMut(u32, u32) -> [u8; 3] {
    move |x, y| {
        let cell = (x / 8).wrapping_mul(31) ^ (y / 16).wrapping_mul(17) ^ seed;
        let bit = (cell.wrapping_mul(2_654_435_761) >> (x % 8 + y % 16)) & 1;
        [0, 0, if bit == 1 && x % 8 < 6 { 255 } else { 0 }]
    }
}

fn rng(seed: u8) -> TestRng {
    TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32])
}

#[test]
fn it_conforms() {
    for given in [&[][..], &[("film", "never")]] {
        conforms(&Screen, given, &Format::Video);
    }
}

#[test]
fn a_wide_link_carries_exact_pixels_only() {
    let mut desk = Desk::new(&[], Params { rate_bps: 1_000_000_000, ..steady(DELAY) }, (320, 240));
    let place = Rectangle { x: 40, y: 30, width: 160, height: 96 };
    desk.wait(DELAY * 6);
    for number in 0..48 {
        desk.draw(&[place], film(number));
        desk.wait(FILM_EVERY);
        assert!(desk.is_exact(&desk.whole()), "picture {number}");
    }
    assert_eq!(desk.source("pictures"), 0.0);
}

/// Draws the film for a time, and a letter now and then; returns the times until each letter is exact.
fn type_beside_a_film(desk: &mut Desk, place: Rectangle, pictures: u32) -> Vec<Duration> {
    let mut exact = Vec::new();
    let mut typed: Option<(Time, Rectangle)> = None;
    for number in 0..pictures {
        desk.draw(&[place], film(number));
        for step in 0..10 {
            if typed.is_none() && number % 4 == 2 && step == 3 {
                let column = number / 4 % 20;
                let letter = Rectangle { x: 8 * column, y: 200, width: 8, height: 16 };
                desk.draw(&[letter], letters(number));
                typed = Some((desk.run.now, letter));
            }
            desk.wait(FILM_EVERY / 10);
            if let Some((at, letter)) = typed
                && desk.is_exact(&letter)
            {
                exact.push(desk.run.now.since(at));
                typed = None;
            }
        }
    }
    assert_eq!(typed, None, "a letter is never exact");
    exact
}

#[test]
fn text_beside_a_film_is_exact_in_time() {
    let place = Rectangle { x: 64, y: 10, width: 256, height: 144 };
    let mut desk = Desk::new(&[], thin(2_000_000), (400, 240));
    let background = Rectangle { x: 0, y: 160, width: 400, height: 80 };
    desk.draw(&[background], letters(9));
    desk.wait(Duration::from_secs(1));
    assert!(desk.is_exact(&desk.whole()));
    let exact = type_beside_a_film(&mut desk, place, 240);
    assert!(exact.len() > 50);
    let longest = exact.iter().max().unwrap();
    assert!(*longest < EXACT_AFTER, "{exact:?}");
    let rate = desk.source("pictures") / 10.0;
    let psnr = desk.psnr_db(&place);
    let mut sorted = exact.clone();
    sorted.sort();
    println!(
        "{rate:.1} pictures/s of 24, {psnr:.1} dB; letters exact after p50 {:?}, longest {longest:?}, of which {DELAY:?} is distance; link {:.0} kbit/s",
        sorted[sorted.len() / 2],
        desk.source("link_kbit"),
    );
    assert!(rate > 15.0, "{rate}");
    assert!(psnr > 24.0, "{psnr}");
    let still = desk.until_exact(&desk.whole(), Duration::from_secs(5));
    println!("the last picture is exact {still:?} after the film");
    assert!(desk.is_exact(&desk.whole()));
}

/// A device that gives all damage at once: each place of a film changes with each picture, and a letter in the message of a
/// picture is sent before the rest of a page.
#[test]
fn each_place_of_a_film_follows_it() {
    let place = Rectangle { x: 64, y: 10, width: 304, height: 304 };
    let middle = Rectangle { x: 208, y: 152, width: 16, height: 16 };
    let page = Rectangle { x: 0, y: 320, width: 640, height: 144 };
    let letter = Rectangle { x: 632, y: 0, width: 8, height: 16 };
    let mut desk = Desk::new(&[], thin(2_000_000), (640, 480));
    desk.wait(Duration::from_secs(1));
    let pixels = |desk: &Desk| -> Vec<u8> {
        let rows = middle.y..middle.y + middle.height;
        rows.flat_map(|y| desk.viewer[desk.range(middle.x, y, middle.width)].to_vec()).collect()
    };
    let (mut changes, mut shown) = (0, pixels(&desk));
    for number in 0..240 {
        desk.draw(&[place], film(number));
        for _ in 0..10 {
            desk.wait(FILM_EVERY / 10);
            let now = pixels(&desk);
            changes += u32::from(now != shown);
            shown = now;
        }
    }
    desk.draw(&[page], letters(1));
    desk.wait(FILM_EVERY / 10);
    desk.draw(&[place, letter], film(240));
    let limit = Duration::from_secs(5);
    let letter_exact = desk.until_exact(&letter, limit);
    let page_exact = letter_exact + desk.until_exact(&page, limit);
    println!(
        "{changes} changes of 240; the letter is exact after {letter_exact:?}, the page after {page_exact:?}"
    );
    assert!(changes >= 200, "{changes} changes of 240");
    assert!(letter_exact < DELAY * 3 && letter_exact < page_exact, "{letter_exact:?}, {page_exact:?}");
}

/// Two films whose distance is more than a side of a picture of VP8 are exact; one of them alone is a film again.
#[test]
fn a_region_too_large_for_a_film_is_exact_for_a_while() {
    let mut desk = Desk::new(&[], thin(2_000_000), (16_384, 64));
    let [left, right] = [0, 16_224].map(|x| Rectangle { x, y: 0, width: 160, height: 64 });
    desk.wait(Duration::from_secs(1));
    for number in 0..72 {
        desk.draw(&[left, right], film(number));
        desk.wait(FILM_EVERY);
    }
    assert_eq!(desk.source("pictures"), 0.0);
    let still = desk.until_exact(&desk.whole(), Duration::from_secs(1));
    assert!(still < Duration::from_millis(500), "{still:?}");
    for number in 0..120 {
        desk.draw(&[left], film(number));
        desk.wait(FILM_EVERY);
    }
    let pictures = desk.source("pictures");
    assert!(pictures > 20.0, "{pictures} pictures");
}

/// Scrolled text is in the film; it is exact soon after it stands still, also beside another film.
#[test]
fn scrolled_text_is_exact_soon() {
    let terminal = Rectangle { x: 0, y: 160, width: 320, height: 80 };
    let place = Rectangle { x: 0, y: 0, width: 192, height: 128 };
    let mut desk = Desk::new(&[], thin(2_000_000), (320, 240));
    desk.wait(Duration::from_secs(1));
    for number in 0..72 {
        desk.draw(&[place], film(number));
        desk.draw(&[terminal], letters(number));
        desk.wait(FILM_EVERY);
    }
    assert!(desk.source("pictures") > 10.0);
    let mut time = Duration::ZERO;
    for number in 72..96 {
        if desk.is_exact(&terminal) {
            break;
        }
        desk.draw(&[place], film(number));
        time += desk.until_exact(&terminal, FILM_EVERY);
        desk.wait(FILM_EVERY);
    }
    println!("exact after {time:?}");
    assert!(desk.is_exact(&terminal) && time < EXACT_AFTER + DELAY, "{time:?}");
}

#[test]
fn without_a_film_every_pixel_is_exact() {
    let mut desk = Desk::new(&[("film", "never")], thin(2_000_000), (320, 240));
    let place = Rectangle { x: 5, y: 3, width: 128, height: 96 };
    for number in 0..48 {
        desk.draw(&[place], film(number));
        desk.wait(FILM_EVERY);
    }
    desk.wait(Duration::from_secs(1));
    assert!(desk.is_exact(&desk.whole()));
    assert_eq!(desk.source("pictures"), 0.0);
}

/// A device that sends whole pictures only: each costs no more than its changes, and a letter does not wait for the rest.
#[test]
fn whole_pictures_send_their_changes_only() {
    let mut desk = Desk::new(&[], thin(500_000), (320, 240));
    desk.draw(&[desk.whole()], film(0));
    desk.wait(Duration::from_secs(5));
    assert!(desk.is_exact(&desk.whole()));
    let sent = desk.run.bodies.len();
    for _ in 0..48 {
        desk.push_frame();
        desk.wait(FILM_EVERY);
        assert_eq!(desk.source("inexact"), 0.0);
    }
    let bytes: usize = desk.run.bodies[sent..].iter().map(Body::len).sum();
    assert!(bytes < 1000, "{bytes} bytes for a still screen");
    // A page that takes the link two seconds, and letters meanwhile.
    let page = Rectangle { x: 0, y: 100, width: 320, height: 140 };
    desk.paint(&page, film(1));
    desk.push_frame();
    for number in 0..8 {
        let letter = Rectangle { x: 16 * number, y: 0, width: 8, height: 16 };
        desk.paint(&letter, letters(number));
        let typed_at = desk.run.now;
        while !desk.is_exact(&letter) {
            desk.push_frame();
            desk.wait(Duration::from_millis(10));
        }
        let time = desk.run.now.since(typed_at);
        assert!(time < Duration::from_millis(80), "letter {number} is exact after {time:?}");
    }
    assert!(!desk.is_exact(&page), "the page came before the letters");
    desk.wait(Duration::from_secs(5));
    assert!(desk.is_exact(&desk.whole()));
}

/// Any sequence of changes, on any link, ends in the exact picture.
#[test]
fn every_screen_ends_exact() {
    for seed in 0..12 {
        let mut rng = rng(seed);
        let rate_bps = [500_000, 2_000_000, 20_000_000, 0][seed as usize % 4];
        let (width, height) = [(320, 240), (333, 127), (16, 16), (1, 70)][rng.next_u32() as usize % 4];
        let mut desk = Desk::new(&[], thin(rate_bps), (width, height));
        let mut random = |below: u32| rng.next_u32() % below.max(1);
        for step in 0..160 {
            let (x, y) = (random(width), random(height));
            let part = match step / 40 % 2 {
                0 => Rectangle { x, y, width: 1 + random(width - x), height: 1 + random(height - y) },
                _ => Rectangle { x: 0, y: 0, width: width.div_ceil(2), height: height.div_ceil(2) },
            };
            match random(20) {
                0 => desk.push_frame(),
                1..=8 => desk.draw(&[part], letters(step)),
                _ => desk.draw(&[part], film(step)),
            }
            desk.wait(Duration::from_millis(random(80).into()));
            if random(60) == 0 {
                desk.run.hand_over(&Screen, &[], &Format::Video);
            }
        }
        desk.wait(Duration::from_secs(20));
        assert!(desk.is_exact(&desk.whole()), "seed {seed}");
        assert_eq!(desk.source("inexact"), 0.0, "seed {seed}");
        assert_eq!(desk.run.errors, [], "seed {seed}");
    }
}

#[test]
fn lost_messages_are_made_anew() {
    for seed in 0..6 {
        let link = Params { loss_ppm: 50_000, ..thin(2_000_000) };
        let mut desk = Desk::new(&[], link, (320, 240));
        let place = Rectangle { x: 16, y: 16, width: 128, height: 96 };
        for number in 0..72 {
            desk.draw(&[place], film(number + 100 * seed));
            desk.wait(FILM_EVERY);
        }
        // A message behind the lost ones shows that they are missing.
        desk.run.configure(thin(2_000_000));
        desk.draw(&[Rectangle { x: 0, y: 0, width: 8, height: 8 }], letters(seed));
        desk.wait(Duration::from_secs(10));
        assert!(desk.source("lost") > 0.0, "seed {seed}");
        assert!(desk.is_exact(&desk.whole()), "seed {seed}");
    }
}

/// The codings of the messages that the source half made from number `from` on.
fn codings(desk: &Desk, from: usize) -> Vec<Coding> {
    let coding = |body: &Body| Header::take(&mut body.clone()).unwrap().coding;
    desk.run.bodies[from..].iter().map(coding).collect()
}

#[test]
fn a_film_goes_on_after_a_lost_message_of_text() {
    let place = Rectangle { x: 16, y: 16, width: 128, height: 96 };
    let letter = Rectangle { x: 300, y: 200, width: 8, height: 16 };
    for delay_ms in [10, 300] {
        let link = Params { rate_bps: 2_000_000, ..steady(Duration::from_millis(delay_ms)) };
        let mut desk = Desk::new(&[], link.clone(), (320, 240));
        let figures = |desk: &Desk| [desk.run.figure(Half::Sink, "pictures"), desk.source("keys")];
        let mut before = None;
        for number in 0..144 {
            desk.draw(&[place], film(number));
            desk.wait(FILM_EVERY / 2);
            if number >= 72 && before.is_none() {
                let from = desk.run.bodies.len();
                desk.run.configure(Params { loss_ppm: 1_000_000, ..link.clone() });
                desk.draw(&[letter], letters(number));
                desk.run.configure(link.clone());
                let is_film = |coding: &Coding| matches!(coding, Coding::Piece { .. });
                assert!(!codings(&desk, from).iter().any(is_film), "a part of the film is lost");
                before = (desk.run.lost() > 0).then(|| figures(&desk));
            }
            desk.wait(FILM_EVERY / 2);
        }
        let ([shown, keys], before) = (figures(&desk), before.unwrap());
        assert!(shown - before[0] > 20.0, "{delay_ms} ms: {shown} pictures, {before:?}");
        assert!(keys - before[1] < 3.0, "{delay_ms} ms: {keys} key pictures, {before:?}");
    }
}

/// Draws a film, and calls `interrupt` now and then while a picture of it was sent in part. Returns how often.
fn interrupt_film(desk: &mut Desk, mut interrupt: impl FnMut(&mut Desk)) -> u32 {
    let place = Rectangle { x: 16, y: 16, width: 256, height: 192 };
    let mut count = 0;
    for number in 0..240 {
        desk.draw(&[place], film(number));
        for _ in 0..20 {
            desk.run.run_until(desk.run.now.after(FILM_EVERY / 20));
            let last = codings(desk, desk.run.bodies.len() - 1);
            if number >= 59 * (count + 1) && last == [Coding::Piece { is_last: false }] {
                count += 1;
                interrupt(desk);
            }
        }
    }
    assert!(desk.run.figure(Half::Sink, "pictures") > 60.0);
    count
}

/// A new screen ends a picture of the film in the middle: the next one is not joined to its first pieces.
#[test]
fn a_picture_that_a_new_screen_ends_is_no_part_of_the_next() {
    let other = Geometry::new(PixelFormat::Bgrx32, 64, 48).unwrap();
    let mut desk = Desk::new(&[], thin(1_000_000), (320, 240));
    let count = interrupt_film(&mut desk, |desk| {
        desk.run.push(Message::new(desk.run.now, frame(other, vec![7; other.bytes()])));
        desk.push_frame();
    });
    assert_eq!((count, &desk.run.errors[..]), (4, &[][..]));
}

#[test]
fn a_whole_picture_ends_no_picture_of_the_film() {
    let mut desk = Desk::new(&[], thin(1_000_000), (320, 240));
    let count = interrupt_film(&mut desk, Desk::push_frame);
    assert_eq!((count, desk.run.dropped(), &desk.run.errors[..]), (4, 0, &[][..]));
    assert_eq!(desk.source("keys"), 1.0);
}

#[test]
fn a_new_size_begins_a_new_screen() {
    let mut desk = Desk::new(&[], thin(2_000_000), (64, 48));
    desk.wait(Duration::from_secs(1));
    let geometry = Geometry::new(PixelFormat::Bgrx32, 100, 30).unwrap();
    let pixels: Vec<u8> = (0..geometry.bytes()).map(|at| (at % 251) as u8).collect();
    desk.run.push(Message::new(desk.run.now, frame(geometry, pixels.clone())));
    desk.run.run_until(desk.run.now.after(Duration::from_secs(1)));
    let bodies: Vec<_> =
        desk.run.received[desk.shown..].iter().map(|(_, message)| message.body.clone()).collect();
    let first = VideoHeader::parse(&bodies[0].peek_front::<{ VideoHeader::BYTES }>().unwrap()).unwrap();
    assert_eq!(first, VideoHeader::frame(geometry));
    assert_eq!(desk.source("inexact"), 0.0);
}

#[test]
fn a_host_without_a_decoder_gets_exact_pixels() {
    let mut source = half(&Screen, &[], Half::Source);
    let mut out = Outbox::default();
    source.handle_control(&Control::NoDecoder.emit(), Time(1), &mut out).unwrap();
    let geometry = Geometry::new(PixelFormat::Bgrx32, 128, 128).unwrap();
    let mut pixel = film(3);
    for number in 0..100u32 {
        let now = Time::from_millis(1000 + u64::from(number) * 40);
        let pixels = (0..128 * 128).flat_map(|at| {
            let [blue, green, red] = pixel(at % 128 + number, at / 128);
            [blue, green, red, 0]
        });
        let message = Message::new(now, frame(geometry, pixels.collect::<Vec<u8>>()));
        source.handle(Port::MAIN, message, now, &mut out).unwrap();
    }
    assert!(!out.messages.is_empty());
    for (_, message) in out.messages {
        let coding = Header::take(&mut message.body.clone()).unwrap().coding;
        assert!(!matches!(coding, Coding::Piece { .. }));
    }
}

#[test]
fn everything_else_passes_unchanged() {
    let mut run = TwoHalves::new(&Screen, &[], &Format::Video, steady(DELAY), 1);
    let gray = Geometry::new(PixelFormat::Gray8, 64, 48).unwrap();
    let bodies = [frame(gray, vec![7; gray.bytes()]), Body::from(vec![1, 2, 3]), Body::new()];
    for body in &bodies {
        run.push(Message::new(run.now, body.clone()));
    }
    run.end();
    let received: Vec<_> =
        run.received.iter().map(|(_, message)| message.body.clone().into_bytes()).collect();
    assert_eq!(received, bodies.map(Body::into_bytes));
    assert_eq!(run.figure(Half::Source, "others"), 3.0);
}

#[test]
fn the_layout_is_that_of_the_documentation() {
    let of = |coding, sequence, body: &[u8]| {
        let mut bytes = Body::from(body.to_vec());
        Header { coding, sequence }.put(&mut bytes);
        bytes.into_bytes().to_vec()
    };
    assert_eq!(of(Coding::Stored, 5, b"ab"), b"\x00\x05ab");
    assert_eq!(of(Coding::Compressed { length: 300 }, 5, b"z"), b"\x01\x05\xac\x02z");
    assert_eq!(of(Coding::Piece { is_last: false }, 300, b"p"), b"\x02\xac\x02p");
    assert_eq!(of(Coding::Piece { is_last: true }, 300, b"p"), b"\x03\xac\x02p");
    assert_eq!(of(Coding::Begin, 0, b"h"), b"\x04\x00h");
    assert_eq!(of(Coding::Tiled { length: 300 }, 5, b"z"), b"\x05\x05\xac\x02z");
    let controls = [
        (Control::Arrived { sequence: 300, gap_us: 7 }, &b"\x00\xac\x02\x07"[..]),
        (Control::Missing { from: 5, below: 7 }, b"\x01\x05\x07"),
        (Control::Refresh, b"\x02"),
        (Control::KeyNeeded, b"\x03"),
        (Control::NoDecoder, b"\x04"),
    ];
    for (control, bytes) in controls {
        assert_eq!((control.emit(), Control::parse(bytes)), (bytes.to_vec(), Ok(control)));
    }
    for bytes in [&b""[..], b"\x05\x05", b"\x00", b"\x01\x05"] {
        assert!(Header::take(&mut Body::from(bytes.to_vec())).is_err(), "{bytes:?}");
    }
    for bytes in [&b""[..], b"\x05", b"\x00\x05", b"\x01\x05", b"\x02\x00"] {
        assert!(Control::parse(bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn false_messages_are_errors() {
    let mut sink = half(&Screen, &[], Half::Sink);
    let geometry = Geometry::new(PixelFormat::Bgrx32, 64, 48).unwrap();
    let gray = Geometry::new(PixelFormat::Gray8, 64, 48).unwrap();
    let screen = VideoHeader { kind: Kind::Rectangles, geometry }.emit();
    let film = |place: &[u8], mask: &[u8]| {
        let size = Geometry::new(PixelFormat::Bgrx32, 32, 32).unwrap();
        [&screen[..], &[1], place, mask, &VideoHeader::frame(size).emit(), b"vp8"].concat()
    };
    let last = Coding::Piece { is_last: true };
    let claims = [
        (Coding::Compressed { length: 1 << 40 }, vec![1], "longer than a message"),
        (Coding::Compressed { length: 4 }, vec![1], "zstd is damaged"),
        (Coding::Tiled { length: 4 }, vec![1], "zstd is damaged"),
        (Coding::Tiled { length: 9 }, zstd::bulk::compress(&[7; 9], 1).unwrap(), "not a valid value"),
        (Coding::Begin, vec![1; 9], "no header"),
        (Coding::Begin, VideoHeader::frame(gray).emit().to_vec(), "not in the pixel format XR24"),
        (last, film(&[0, 0, 32, 32], &[0, 4]), "another size"),
        (Coding::Begin, VideoHeader::frame(geometry).emit().to_vec(), ""),
        (last, film(&[8, 0, 32, 32], &[0, 4]), "outside the screen"),
        (last, film(&[48, 0, 32, 32], &[0, 4]), "outside the screen"),
        (last, film(&[0, 0, 32, 32], &[0, 5]), "mask"),
        (last, film(&[0, 0, 32, 32], &[1, 0, 3]), "mask"),
        (last, film(&[0, 0, 48, 32], &[0, 6]), "another size than its place"),
        (last, film(&[0, 0, 32, 32], &[0, 4]), "VP8"),
        (last, screen.to_vec(), "cut short"),
        // The rest of a picture that never comes is no part of the next one.
        (Coding::Piece { is_last: false }, screen.to_vec(), ""),
        (Coding::Begin, VideoHeader::frame(geometry).emit().to_vec(), ""),
        (last, film(&[0, 0, 32, 32], &[0, 4]), "VP8"),
        (Coding::Piece { is_last: false }, screen.to_vec(), ""),
        (Coding::Stored, frame(geometry, vec![0; geometry.bytes()]).into_bytes().to_vec(), ""),
        (last, film(&[0, 0, 32, 32], &[0, 4]), "VP8"),
        // The first pieces were lost.
        (last, b"the end of a picture".to_vec(), ""),
    ];
    for (sequence, (coding, body, problem)) in (0..).zip(claims) {
        let mut body = Body::from(body);
        Header { coding, sequence }.put(&mut body);
        let mut out = Outbox::default();
        let result = sink.handle(Port::MAIN, Message::new(Time(1), body), Time(1), &mut out);
        match result {
            Ok(()) => assert!(problem.is_empty(), "{problem}"),
            Err(error) => {
                assert!(!problem.is_empty() && error.to_string().contains(problem), "{error}, not {problem}")
            }
        }
    }
    let mut source = half(&Screen, &[], Half::Source);
    let mut out = Outbox::default();
    for control in [Control::Arrived { sequence: 0, gap_us: 1 }, Control::Missing { from: 0, below: 1 << 60 }]
    {
        assert!(source.handle_control(&control.emit(), Time(1), &mut out).is_err());
    }
}

#[test]
fn the_drops_have_the_names_of_the_documentation() {
    for reason in [LOST, REPEATED] {
        assert!(include_str!("doc.md").contains(reason));
    }
}
