use super::Encode;
use super::header::{Coding, Control, Header};
use super::sink::LOST;
use crate::picture::tests::{frame, half, noise};
use contract::{Body, Bytes, Format, Half, Message, Outbox, Port, Stage, Time};
use netsim::Params;
use std::collections::BTreeMap;
use std::time::Duration;
use testkit::stage::{TwoHalves, conforms, steady};
use wire::formats::video::{Geometry, Header as VideoHeader, PixelFormat};

/// Time between two pictures.
const INTERVAL: Duration = Duration::from_nanos(33_333_333);
/// Least PSNR of a decoded picture, decibels. A picture that was decoded with a wrong reference has less than 20.
const PSNR_MIN_DB: f64 = 28.0;

fn geometry(width: u32, height: u32) -> Geometry {
    Geometry::new(PixelFormat::I420, width, height).unwrap().with_rate(30, 1)
}

/// Smooth shapes that move with `number`, so that a wrong reference shows.
fn picture(geometry: &Geometry, number: usize) -> Vec<u8> {
    let mut pixels = vec![128; geometry.bytes()];
    let across = geometry.width() as usize;
    for (y, row) in geometry.plane(0).rows_mut(&mut pixels).enumerate() {
        for (x, byte) in row.iter_mut().enumerate() {
            let wave = |at: usize, period: usize| (at % period).abs_diff(period / 2) * 160 / period;
            *byte = (16
                + wave(x + 5 * number, 48)
                + wave(y + 3 * number, 64)
                + 40 * (x / 8 % 2) * (x * 2 / across)) as u8;
        }
    }
    pixels
}

fn psnr_db(one: &[u8], other: &[u8]) -> f64 {
    assert_eq!(one.len(), other.len());
    let square = |(one, other): (&u8, &u8)| f64::from(one.abs_diff(*other)).powi(2);
    let mean = one.iter().zip(other).map(square).sum::<f64>() / one.len() as f64;
    10.0 * (255.0 * 255.0 / mean.max(1e-9)).log10()
}

#[test]
fn it_conforms() {
    for given in [&[][..], &[("codec", "vp8")]] {
        conforms(&Encode, given, &Format::Video);
    }
}

/// Sends `count` pictures over a link; returns the run and the pictures by creation time.
fn film(
    given: &[(&str, &str)],
    link: Params,
    size: (u32, u32),
    count: usize,
    seed: u64,
) -> (TwoHalves, BTreeMap<Time, Vec<u8>>) {
    let mut run = TwoHalves::new(&Encode, given, &Format::Video, link, seed);
    let geometry = geometry(size.0, size.1);
    let mut sent = BTreeMap::new();
    for number in 0..count {
        let pixels = picture(&geometry, number);
        sent.insert(run.now, pixels.clone());
        run.push(Message::new(run.now, frame(geometry, pixels)));
        run.run_until(run.now.after(INTERVAL));
    }
    run.end();
    assert_eq!(run.errors, []);
    (run, sent)
}

/// The PSNR of each received picture. Creation times rise.
fn qualities(run: &TwoHalves, sent: &BTreeMap<Time, Vec<u8>>) -> Vec<f64> {
    let created: Vec<Time> = run.received.iter().map(|(_, message)| message.created).collect();
    assert!(created.is_sorted_by(|one, next| one < next), "out of order or repeated");
    let quality = |message: &Message| {
        let body = message.body.clone().into_bytes();
        VideoHeader::parse(&body).unwrap();
        psnr_db(&body[VideoHeader::BYTES..], &sent[&message.created])
    };
    run.received.iter().map(|(_, message)| quality(message)).collect()
}

#[test]
fn a_wide_link_soon_carries_pictures_as_they_are() {
    let (run, sent) = film(&[], steady(Duration::from_millis(20)), (160, 120), 30, 1);
    let qualities = qualities(&run, &sent);
    assert_eq!(qualities.len(), 30);
    assert!(qualities.iter().all(|psnr| *psnr > PSNR_MIN_DB), "{qualities:?}");
    assert!(qualities[12..].iter().all(|psnr| *psnr > 100.0), "{qualities:?}");
    assert!(qualities[0] < 100.0, "the first picture precedes every measurement");
}

/// Pictures of 115 kB over a link that takes 46 ms for one: so many may come each second as they are.
#[test]
fn a_slow_camera_has_exact_pictures_and_a_fast_one_with_pauses_has_not() {
    let pauses = |number: usize| if number % 8 == 7 { 900 } else { 33 };
    let interval_ms: [(&dyn Fn(usize) -> u64, f64); 4] =
        [(&|_| 134, 40.0), (&|_| 250, 40.0), (&|_| 999, 40.0), (&pauses, 0.0)];
    for (interval_ms, least) in interval_ms {
        let link = Params { rate_bps: 20_000_000, ..steady(Duration::from_millis(20)) };
        let mut run = TwoHalves::new(&Encode, &[], &Format::Video, link, 1);
        let geometry = geometry(320, 240);
        for number in 0..60 {
            run.push(Message::new(run.now, frame(geometry, picture(&geometry, number))));
            run.run_until(run.now.after(Duration::from_millis(interval_ms(number))));
        }
        let lossless = run.figure(Half::Source, "lossless");
        let is_expected = if least > 0.0 { lossless >= least } else { lossless == 0.0 };
        assert!(is_expected, "{} ms: {lossless} pictures as they are", interval_ms(0));
    }
}

#[test]
fn vp8_on_demand_codes_every_picture() {
    let (run, sent) = film(&[("codec", "vp8")], steady(Duration::from_millis(20)), (160, 120), 30, 1);
    let qualities = qualities(&run, &sent);
    assert_eq!(qualities.len(), 30);
    assert!(qualities.iter().all(|psnr| (PSNR_MIN_DB..100.0).contains(psnr)), "{qualities:?}");
    assert_eq!((run.figure(Half::Source, "keys"), run.figure(Half::Sink, "asked")), (1.0, 0.0));
}

/// At 30 a second, the pictures take 28 and 111 Mbit/s as they are.
#[test]
fn a_thin_link_carries_every_picture_in_time() {
    let delay = Duration::from_millis(20);
    for (size, rate_bps) in [((320, 240), 1_000_000), ((640, 480), 4_000_000)] {
        let (run, sent) = film(&[], Params { rate_bps, ..steady(delay) }, size, 150, 1);
        let qualities = qualities(&run, &sent);
        assert!(qualities.iter().all(|psnr| *psnr > PSNR_MIN_DB), "{qualities:?}");
        let late: Vec<_> =
            run.received.iter().map(|(at, message)| at.since(message.created)).skip(30).collect();
        assert!(late.len() >= 118, "{} of 120 pictures", late.len());
        let longest = late.iter().max().unwrap();
        assert!(*longest < delay + INTERVAL * 3, "{late:?}");
        // Here the marker travels alone, so the measured rate is a little low.
        let share = run.figure(Half::Source, "link_kbit") * 1000.0 / rate_bps as f64;
        assert!((0.5..=1.05).contains(&share), "{share}");
        let mut sorted = late.clone();
        sorted.sort();
        println!(
            "{size:?} at {rate_bps} bit/s: {} of 120 pictures, added delay p50 {:?}, p99 {:?}, PSNR {:.1} dB, lowest {:.1}",
            late.len(),
            sorted[60] - delay,
            sorted[118.min(sorted.len() - 1)] - delay,
            qualities[30..].iter().sum::<f64>() / (qualities.len() - 30) as f64,
            qualities[30..].iter().copied().fold(f64::MAX, f64::min),
        );
    }
}

#[test]
fn a_link_that_becomes_thin_is_noticed() {
    let mut run = TwoHalves::new(&Encode, &[], &Format::Video, steady(Duration::from_millis(10)), 1);
    let geometry = geometry(320, 240);
    let mut seen = Vec::new();
    for number in 0..320 {
        if number == 40 {
            run.configure(Params { rate_bps: 2_000_000, ..steady(Duration::from_millis(10)) });
        }
        run.push(Message::new(run.now, frame(geometry, picture(&geometry, number))));
        run.run_until(run.now.after(INTERVAL));
        seen.push(run.figure(Half::Source, "coded"));
    }
    assert_eq!(seen[20], seen[39], "as they are while the link is wide");
    assert!(
        seen[319] - seen[40] > 60.0,
        "after the pictures of the first half second, which take 6 s: {seen:?}"
    );
    run.end();
    assert_eq!(run.errors, []);
}

/// A camera of 37 Mbit/s over a link that delays each picture for more than a second, and accepts 33 s of them: 100, then 1,
/// then 100 Mbit/s again.
#[test]
fn a_queue_of_pictures_as_they_are_drains_and_stays_short() {
    let link = |rate_bps| Params { rate_bps, ..steady(Duration::from_millis(10)) };
    let mut run = TwoHalves::new(&Encode, &[], &Format::Video, link(100_000_000), 1);
    let geometry = Geometry::new(PixelFormat::Yuyv, 320, 240).unwrap().with_rate(30, 1);
    let second = |run: &mut TwoHalves, from: usize| {
        for number in from * 30..(from + 1) * 30 {
            run.offer(Message::new(run.now, frame(geometry, picture(&geometry, number))), 4 << 20);
            run.run_until(run.now.after(INTERVAL));
        }
    };
    (0..3).for_each(|number| second(&mut run, number));
    let lossless = run.figure(Half::Source, "lossless");
    assert!(lossless > 60.0, "as they are while the link is wide: {lossless}");
    run.configure(link(1_000_000));
    let mut delays = Vec::new();
    for number in 3..28 {
        let prev = run.received.len();
        second(&mut run, number);
        let delay = |(at, message): &(Time, Message)| at.since(message.created);
        delays.push((run.received.len() - prev, run.received[prev..].iter().map(delay).max()));
    }
    let is_smooth = |(count, delay): &(usize, Option<Duration>)| {
        *count >= 20 && delay.is_some_and(|delay| delay < Duration::from_millis(300))
    };
    assert!(delays[16..].iter().all(is_smooth), "pictures each second and the longest delay: {delays:?}");
    let thin = run.figure(Half::Source, "lossless");
    assert!(thin - lossless < 12.0, "{thin} after {lossless}");
    run.configure(link(100_000_000));
    (28..36).for_each(|number| second(&mut run, number));
    let last = run.figure(Half::Source, "lossless");
    second(&mut run, 36);
    assert_eq!(run.figure(Half::Source, "lossless") - last, 30.0, "as they are again");
    assert_eq!(run.errors, []);
}

/// Both halves without a network: each message of the source half is lost if `is_lost` says so; it gets the number of the
/// message, and whether it is a repetition.
struct Direct {
    source: Box<dyn Stage>,
    sink: Box<dyn Stage>,
    now: Time,
    released: Vec<Message>,
    dropped: u64,
}

impl Direct {
    fn new() -> Direct {
        let given = [("codec", "vp8")];
        Direct {
            source: half(&Encode, &given, Half::Source),
            sink: half(&Encode, &given, Half::Sink),
            now: Time::from_millis(1000),
            released: Vec::new(),
            dropped: 0,
        }
    }

    fn deliver(&mut self, mut out: Outbox, is_lost: &dyn Fn(u64, bool) -> bool) {
        let mut is_repeated = false;
        loop {
            let mut made = Outbox::default();
            for (port, message) in out.messages.drain(..) {
                let header = Header::take(&mut message.body.clone()).unwrap();
                if !is_lost(header.sequence, is_repeated) {
                    self.sink.handle(port, message, self.now, &mut made).unwrap();
                }
            }
            is_repeated = true;
            if self.sink.poll_timeout().is_some_and(|at| at <= self.now) {
                self.sink.handle_timeout(self.now, &mut made).unwrap();
            }
            self.released.extend(made.messages.drain(..).map(|(_, message)| message));
            self.dropped += made.drops.iter().map(|drop| drop.count).sum::<u64>();
            if made.controls.is_empty() {
                return;
            }
            for control in made.controls.drain(..) {
                self.source.handle_control(&control, self.now, &mut out).unwrap();
            }
        }
    }

    fn show(&mut self, geometry: &Geometry, number: usize, is_lost: &dyn Fn(u64, bool) -> bool) {
        let mut out = Outbox::default();
        let message = Message::new(Time(self.now.0), frame(*geometry, picture(geometry, number)));
        self.source.handle(Port::MAIN, message, self.now, &mut out).unwrap();
        self.source.handle_timeout(self.now, &mut out).unwrap();
        self.deliver(out, is_lost);
        self.now = self.now.after(INTERVAL);
        self.deliver(Outbox::default(), is_lost);
    }

    /// Asserts that every released picture is whole; returns their numbers.
    fn numbers(&self, geometry: &Geometry) -> Vec<usize> {
        let number = |message: &Message| {
            let number =
                (message.created.since(Time::from_millis(1000)).as_nanos() / INTERVAL.as_nanos()) as usize;
            let body = message.body.clone().into_bytes();
            let psnr = psnr_db(&body[VideoHeader::BYTES..], &picture(geometry, number));
            assert!(psnr > PSNR_MIN_DB, "picture {number}: {psnr} dB");
            number
        };
        self.released.iter().map(number).collect()
    }
}

#[test]
fn a_picture_lost_anywhere_is_repeated() {
    let geometry = geometry(64, 48);
    for lost in 0..12 {
        let mut direct = Direct::new();
        (0..24).for_each(|number| {
            direct.show(&geometry, number, &|sequence, is_repeated| sequence == lost && !is_repeated);
        });
        assert_eq!(direct.numbers(&geometry), Vec::from_iter(0..24), "picture {lost} was lost");
        assert_eq!(direct.dropped, 0);
    }
}

/// The source half keeps no picture of more than 1 MiB.
#[test]
fn a_large_picture_that_is_lost_delays_the_next_one_by_one_wait() {
    let geometry = geometry(1024, 768);
    let mut direct = Direct::new();
    // All pictures are sent as they are.
    direct.source.handle_control(&Control::NoDecoder.emit(), direct.now, &mut Outbox::default()).unwrap();
    let is_lost = |sequence: u64, is_repeated: bool| sequence == 2 && !is_repeated;
    (0..4).for_each(|number| direct.show(&geometry, number, &is_lost));
    assert_eq!(direct.numbers(&geometry), [0, 1, 3], "without a second wait");
    (4..6).for_each(|number| direct.show(&geometry, number, &is_lost));
    assert_eq!(direct.numbers(&geometry), [0, 1, 3, 4, 5]);
    let figure = |name: &str| direct.sink.report().into_iter().find(|(known, _)| *known == name).unwrap().1;
    assert_eq!((figure("asked"), figure("skipped"), figure("held")), (1.0, 1.0, 0.0));
}

/// Neither a false answer nor one to a question that another answer has settled has an effect.
#[test]
fn a_picture_is_skipped_only_while_it_is_missing() {
    let mut sink = half(&Encode, &[], Half::Sink);
    let mut out = Outbox::default();
    let now = Time::from_millis(1000);
    let mut handle = |coding, sequence: u64, wait_ms| {
        let mut body = Body::new();
        Header { coding, sequence, wait_ms, padding: 0 }.put(&mut body);
        sink.handle(Port::MAIN, Message::new(Time(sequence), body), now, &mut out).unwrap();
        let released = out.messages.drain(..).map(|(_, message)| message.created.0);
        released.collect::<Vec<_>>()
    };
    assert_eq!(handle(Coding::Gone, 0, 0), [0; 0], "none is missing");
    assert_eq!(handle(Coding::Stored, 0, 40), [0]);
    // 1, 2 and 4 are missing.
    assert_eq!(handle(Coding::Stored, 3, 40), [0; 0]);
    assert_eq!(handle(Coding::Stored, 5, 40), [0; 0]);
    for sequence in [0, 3, 5, 6, 600] {
        assert_eq!(handle(Coding::Gone, sequence, 0), [0; 0], "{sequence} is not missing");
    }
    assert_eq!(handle(Coding::Gone, 2, 0), [0; 0]);
    assert_eq!(handle(Coding::Gone, 1, 0), [3], "and 4 is still missing");
    assert_eq!(handle(Coding::Stored, 4, 40), [4, 5]);
}

#[test]
fn a_key_picture_follows_a_picture_that_never_arrives() {
    let geometry = geometry(64, 48);
    for lost in 0..12 {
        let mut direct = Direct::new();
        (0..40).for_each(|number| direct.show(&geometry, number, &|sequence, _| sequence == lost));
        let numbers = direct.numbers(&geometry);
        assert_eq!(numbers.last(), Some(&39), "picture {lost} was lost");
        assert_eq!(
            numbers.len() as u64 + direct.dropped,
            39,
            "each other picture is shown or counted: {numbers:?}"
        );
        let keys = direct.source.report().into_iter().find(|(name, _)| *name == "keys").unwrap().1;
        assert_eq!(keys, 2.0);
    }
}

#[test]
fn loss_and_disorder_show_no_broken_picture() {
    for seed in 0..6 {
        let link = Params {
            loss_ppm: 100_000,
            reorder: true,
            jitter_ns: 60_000_000,
            ..steady(Duration::from_millis(10))
        };
        let (run, sent) = film(&[("codec", "vp8")], link, (64, 48), 200, seed);
        let qualities = qualities(&run, &sent);
        assert!(qualities.iter().all(|psnr| *psnr > PSNR_MIN_DB), "seed {seed}: {qualities:?}");
        assert!(qualities.len() >= 150, "seed {seed}: {} of 200", qualities.len());
    }
}

#[test]
fn sizes_and_formats_change_in_mid_stream() {
    let mut run =
        TwoHalves::new(&Encode, &[("codec", "vp8")], &Format::Video, steady(Duration::from_millis(1)), 1);
    let formats = [PixelFormat::I420, PixelFormat::Yuyv, PixelFormat::Bgrx32, PixelFormat::Gray8];
    for number in 0..32usize {
        let (width, height) = [(64, 48), (33, 17), (64, 48), (128, 20)][number / 8];
        let geometry = Geometry::new(formats[number / 4 % 4], width, height).unwrap();
        let pixels = vec![(60 + number) as u8; geometry.bytes()];
        run.push(Message::new(run.now, frame(geometry, pixels.clone())));
        run.run_until(run.now.after(INTERVAL));
        let body = run.received.last().unwrap().1.body.clone().into_bytes();
        assert_eq!(VideoHeader::parse(&body).unwrap(), VideoHeader::frame(geometry));
    }
    assert_eq!((run.received.len(), run.errors.len()), (32, 0));
    assert_eq!(run.figure(Half::Source, "keys"), 4.0);
}

#[test]
fn everything_else_passes_unchanged() {
    let jpeg = Geometry::new(PixelFormat::Mjpeg, 640, 480).unwrap();
    let cut = frame(geometry(64, 48), noise(7, 1));
    let bodies = [frame(jpeg, noise(5000, 2)), cut, Body::from(noise(300, 3)), Body::new()];
    let mut run =
        TwoHalves::new(&Encode, &[("codec", "vp8")], &Format::Video, steady(Duration::from_millis(1)), 1);
    for body in &bodies {
        run.push(Message::new(run.now, body.clone()));
    }
    run.end();
    let received: Vec<Bytes> =
        run.received.iter().map(|(_, message)| message.body.clone().into_bytes()).collect();
    assert_eq!(received, bodies.map(Body::into_bytes));
    assert_eq!(run.figure(Half::Source, "others"), 4.0);
}

#[test]
fn the_layout_is_that_of_the_documentation() {
    let of = |coding, sequence, wait_ms, body: &[u8]| {
        let mut bytes = Body::from(body.to_vec());
        Header { coding, sequence, wait_ms, padding: body.len() / 2 }.put(&mut bytes);
        bytes.into_bytes().to_vec()
    };
    assert_eq!(of(Coding::Stored, 5, 40, b"ab"), b"\x00\x05\x28ab");
    assert_eq!(of(Coding::Key, 300, 40, b"k"), b"\x01\xac\x02\x28\x00k");
    assert_eq!(of(Coding::Difference { back: 2 }, 300, 40, b"d0"), b"\x02\xac\x02\x28\x01\x02d0");
    assert_eq!(of(Coding::Marker, 5, 40, b""), b"\x03\x05\x28");
    assert_eq!(of(Coding::Gone, 5, 0, b""), b"\x03\x05\x00");
    for (wait_ms, coding) in [(b'\x28', Coding::Marker), (0, Coding::Gone)] {
        assert_eq!(Header::take(&mut Body::from(vec![3, 5, wait_ms])).unwrap().coding, coding);
    }
    let controls = [
        (Control::Arrived { sequence: 300, spread_us: 7 }, &b"\x00\xac\x02\x07"[..]),
        (Control::Missing { sequence: 5 }, b"\x01\x05"),
        (Control::KeyNeeded { sequence: 5 }, b"\x02\x05"),
        (Control::NoDecoder, b"\x03"),
    ];
    for (control, bytes) in controls {
        assert_eq!((control.emit(), Control::parse(bytes)), (bytes.to_vec(), Ok(control)));
    }
    for bytes in [
        &b""[..],
        b"\x04\x05\x28",
        b"\x00",
        b"\x00\x05",
        b"\x02\x05\x28\x00\x00",
        b"\x02\x05\x28\x00\x06",
        b"\x02\x05\x28\x02\x01x",
        b"\x03\x05\x28x",
    ] {
        assert!(Header::take(&mut Body::from(bytes.to_vec())).is_err(), "{bytes:?}");
    }
    for bytes in [&b""[..], b"\x04", b"\x00\x05", b"\x01", b"\x03\x00"] {
        assert!(Control::parse(bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn false_pictures_and_requests_are_errors() {
    let mut sink = half(&Encode, &[], Half::Sink);
    let mut out = Outbox::default();
    let small = geometry(64, 48);
    let vp8 = {
        let mut source = half(&Encode, &[], Half::Source);
        let mut out = Outbox::default();
        let body = frame(small, picture(&small, 0));
        source.handle(Port::MAIN, Message::new(Time(1), body), Time(1), &mut out).unwrap();
        assert!(source.handle_control(b"\x01\x01", Time(1), &mut out).is_err(), "not yet sent");
        let mut body = out.messages.pop_back().unwrap().1.body;
        Header::take(&mut body).unwrap();
        body.skip_front(VideoHeader::BYTES);
        body
    };
    let claims = [
        (VideoHeader::frame(geometry(64, 50)), "64x48 pixels, but its header says 64x50"),
        (VideoHeader::frame(Geometry::new(PixelFormat::Mjpeg, 64, 48).unwrap()), "no picture in pixels"),
        (VideoHeader { kind: wire::formats::video::Kind::Cursor, geometry: small }, "no picture in pixels"),
    ];
    for (sequence, (header, problem)) in (0..).zip(claims) {
        let mut body = vp8.clone();
        body.push_front(&header.emit());
        Header { coding: Coding::Key, sequence, wait_ms: 40, padding: 0 }.put(&mut body);
        let error = sink.handle(Port::MAIN, Message::new(Time(1), body), Time(1), &mut out).unwrap_err();
        assert!(error.to_string().contains(problem), "{error}");
    }
    assert!(out.messages.is_empty());
    assert!(out.controls.contains(&Control::KeyNeeded { sequence: 0 }.emit()));
}

#[test]
fn a_host_without_a_decoder_gets_pictures_as_they_are() {
    let mut source = half(&Encode, &[], Half::Source);
    let mut out = Outbox::default();
    source.handle_control(&Control::NoDecoder.emit(), Time(1), &mut out).unwrap();
    let geometry = geometry(64, 48);
    let body = frame(geometry, picture(&geometry, 0));
    source.handle(Port::MAIN, Message::new(Time(1), body.clone()), Time(1), &mut out).unwrap();
    let mut sent = out.messages.pop_back().unwrap().1.body;
    assert_eq!(Header::take(&mut sent).unwrap().coding, Coding::Stored);
    assert_eq!(sent.into_bytes(), body.into_bytes());
}

#[test]
fn the_drop_has_the_name_of_the_documentation() {
    assert!(include_str!("doc.md").contains(LOST));
}
