//! Messages of a malicious peer for both halves of `screen`: whole ones of the honest half, cut or changed ones, pictures of a film
//! with any place, mask and VP8, and control messages. The input is a list of steps: a byte for the kind, a byte for the length in
//! units of 4 bytes, and that many bytes.
#![no_main]

use contract::{Body, Format, Message, Outbox, Port, Site, Stage, Time};
use libfuzzer_sys::fuzz_target;
use pipeline::{Origin, Pipeline};
use stages::PAIRS;
use std::time::Duration;
use wire::formats::video::{Geometry, Header, Kind, PixelFormat};

/// Sizes of the screens.
const SIZES: [(u32, u32); 4] = [(16, 16), (33, 17), (64, 48), (1, 1)];

/// A picture of the film with these bytes behind the headers of the screen and of a key picture.
fn film(screen: Geometry, (width, height): (u32, u32), content: &[u8]) -> Vec<u8> {
    let mut bytes = Header { kind: Kind::Rectangles, geometry: screen }.emit().to_vec();
    let (place, vp8) = content.split_at(content.len().min(8));
    bytes.push(1);
    match place.first() {
        Some(first) if first & 1 == 0 => {
            bytes.extend([0, 0, width as u8, height as u8, 0]);
            bytes.push((width.div_ceil(16) * height.div_ceil(16)) as u8);
        }
        _ => bytes.extend(place),
    }
    let size = Geometry::new(PixelFormat::Bgrx32, width, height).expect("a possible size");
    bytes.extend(Header::frame(size).emit());
    bytes.extend(vp8);
    bytes
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(pipeline) = Pipeline::parse("screen", PAIRS, Origin::Peer) else { return };
    let used = &pipeline.pairs()[0];
    let half = |is_source| {
        let made = match is_source {
            true => used.pair.source(&used.options, &Format::Video, &Site::default()),
            false => used.pair.sink(&used.options, &Format::Video, &Site::default()),
        };
        made.expect("both halves exist in a build with the feature `media`")
    };
    let (mut source, mut sink): (Box<dyn Stage>, Box<dyn Stage>) = (half(true), half(false));
    let (mut now, mut steps, mut sequence) = (Time::from_millis(1000), bytes, 0u8);
    while let [kind, length, rest @ ..] = steps {
        let (content, rest) = rest.split_at(rest.len().min(usize::from(*length) * 4));
        steps = rest;
        now = now.after(Duration::from_millis(u64::from(kind >> 5) * 11));
        let size = SIZES[usize::from(kind >> 3) % SIZES.len()];
        let screen = Geometry::new(PixelFormat::Bgrx32, size.0, size.1).expect("a possible size");
        let mut out = Outbox::default();
        match kind % 8 {
            // A screen of the honest half, with one byte of a message changed.
            0 | 1 => {
                let mut pixels = vec![content.first().copied().unwrap_or(90); screen.bytes()];
                pixels.iter_mut().zip(content).for_each(|(pixel, byte)| *pixel = *byte);
                let mut picture = Body::from(pixels);
                picture.push_front(&Header::frame(screen).emit());
                let mut made = Outbox::default();
                let _ = source.handle(Port::MAIN, Message::new(now, picture), now, &mut made);
                for (port, message) in made.messages {
                    let mut coded = message.body.into_bytes().to_vec();
                    if let ([at, by, ..], 1) = (content, kind % 8) {
                        let at = usize::from(*at) % coded.len();
                        coded[at] ^= by;
                    }
                    let _ = sink.handle(port, Message::new(now, coded), now, &mut out);
                }
            }
            // The begin of a screen, and pieces of a film on it.
            2..=4 => {
                let body = match kind % 8 {
                    2 => Header::frame(screen).emit().to_vec(),
                    _ => film(screen, size, content),
                };
                let coding = [4, 2, 3][usize::from(kind % 8 - 2)];
                let mut coded = vec![coding, sequence & 0x7f];
                coded.extend(body);
                sequence = sequence.wrapping_add(1);
                let _ = sink.handle(Port::MAIN, Message::new(now, coded), now, &mut out);
            }
            5 | 6 => {
                let _ = sink.handle(Port::MAIN, Message::new(now, content.to_vec()), now, &mut out);
            }
            _ => {
                let _ = source.handle_control(content, now, &mut out);
                let _ = sink.handle_control(content, now, &mut out);
            }
        }
        for half in [&mut source, &mut sink] {
            if half.poll_timeout().is_some_and(|at| at <= now) {
                let _ = half.handle_timeout(now, &mut out);
            }
        }
        let largest = out.messages.iter().map(|(_, message)| message.body.len()).max().unwrap_or(0);
        assert!(largest <= wire::BODY_BYTES_MAX, "a body of {largest} bytes");
    }
    let _ = source.handle_end(Port::MAIN, now, &mut Outbox::default());
    let _ = sink.handle_end(Port::MAIN, now, &mut Outbox::default());
});
