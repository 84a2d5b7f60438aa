//! Pictures of a malicious peer for the sink half of `encode`: its own header, the header of a picture, and VP8, each whole, cut
//! or changed. The input is a list of steps.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outboard_fuzz::{Halves, change, size_of, steps};
use wire::formats::video::{Geometry, Header, PixelFormat};

fuzz_target!(|bytes: &[u8]| {
    let (mut halves, mut sequence) = (Halves::new("encode(codec=vp8)"), 0u8);
    for (kind, content) in steps(bytes) {
        let (width, height) = size_of(kind);
        let geometry = Geometry::new(PixelFormat::Yuyv, width, height).expect("a possible size");
        let message = match kind % 4 {
            // A picture of the honest half, with one byte changed.
            0 => {
                let Some(mut coded) = halves.honest(geometry, content).pop() else { continue };
                change(&mut coded, content);
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
                halves.step(kind, None, Some(content));
                continue;
            }
        };
        halves.step(kind, Some(message), None);
    }
    halves.end();
});
