//! Messages of a malicious peer for both halves of `screen`: whole ones of the honest half, cut or changed ones, pictures of a film
//! with any place, mask and VP8, and control messages. The input is a list of steps.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outboard_fuzz::{Halves, change, size_of, steps};
use wire::formats::video::{Geometry, Header, Kind, PixelFormat};

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
    let (mut halves, mut sequence) = (Halves::new("screen"), 0u8);
    for (kind, content) in steps(bytes) {
        let size = size_of(kind);
        let screen = Geometry::new(PixelFormat::Bgrx32, size.0, size.1).expect("a possible size");
        match kind % 8 {
            // A screen of the honest half, as it is or with one byte of each message changed.
            0 | 1 => {
                let mut messages = halves.honest(screen, content);
                if kind % 8 == 1 {
                    messages.iter_mut().for_each(|message| change(message, content));
                }
                halves.step(kind, messages, None);
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
                halves.step(kind, Some(coded), None);
            }
            5 | 6 => halves.step(kind, Some(content.to_vec()), None),
            _ => halves.step(kind, None, Some(content)),
        }
    }
    halves.end();
});
