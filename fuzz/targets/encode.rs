//! Pictures of a malicious peer for the sink half of `encode`: its own header, the header of a picture, and VP8, each whole, cut
//! or changed. The input is a list of steps: a byte for the kind, a byte for the length in units of 4 bytes, and that many bytes.
#![no_main]

use contract::{Body, Format, Message, Outbox, Port, Site, Stage, Time};
use libfuzzer_sys::fuzz_target;
use pipeline::{Origin, Pipeline};
use stages::PAIRS;
use std::time::Duration;
use wire::formats::video::{Geometry, Header, PixelFormat};

/// Sizes of the described pictures.
const SIZES: [(u32, u32); 4] = [(16, 16), (33, 17), (64, 48), (1, 1)];

fuzz_target!(|bytes: &[u8]| {
    let Ok(pipeline) = Pipeline::parse("encode(codec=vp8)", PAIRS, Origin::Peer) else { return };
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
        let (width, height) = SIZES[usize::from(kind >> 3) % SIZES.len()];
        let geometry = Geometry::new(PixelFormat::Yuyv, width, height).expect("a possible size");
        let mut out = Outbox::default();
        let body = match kind % 4 {
            // A picture of the honest half, with one byte changed.
            0 => {
                let mut pixels = vec![content.first().copied().unwrap_or(90); geometry.bytes()];
                pixels.iter_mut().zip(content).for_each(|(pixel, byte)| *pixel = *byte);
                let mut picture = Body::from(pixels);
                picture.push_front(&Header::frame(geometry).emit());
                let mut made = Outbox::default();
                let _ = source.handle(Port::MAIN, Message::new(now, picture), now, &mut made);
                let Some((_, message)) = made.messages.pop_back() else { continue };
                let mut coded = message.body.into_bytes().to_vec();
                if let [at, by, ..] = content {
                    let at = usize::from(*at) % coded.len();
                    coded[at] ^= by;
                }
                coded
            }
            // A picture with foreign VP8.
            1 => {
                let coding = if content.first().is_some_and(|byte| byte & 1 == 0) { 1 } else { 2 };
                let mut coded = vec![coding, sequence & 0x7f, 40];
                coded.extend((coding == 2).then_some(1));
                coded.extend(Header::frame(geometry).emit());
                coded.extend(content);
                sequence = sequence.wrapping_add(1);
                coded
            }
            2 => content.to_vec(),
            _ => {
                let _ = source.handle_control(content, now, &mut out);
                let _ = sink.handle_control(content, now, &mut out);
                continue;
            }
        };
        let _ = sink.handle(Port::MAIN, Message::new(now, body), now, &mut out);
        for half in [&mut source, &mut sink] {
            if half.poll_timeout().is_some_and(|at| at <= now) {
                let _ = half.handle_timeout(now, &mut out);
            }
        }
        let largest = out.messages.iter().map(|(_, message)| message.body.len()).max().unwrap_or(0);
        assert!(largest <= wire::BODY_BYTES_MAX, "a body of {largest} bytes");
    }
    let _ = sink.handle_end(Port::MAIN, now, &mut Outbox::default());
});
