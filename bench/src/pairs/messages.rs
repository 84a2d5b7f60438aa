//! Random bodies of every kind.

use contract::{Body, Bytes, Format};
use netsim::Rng;
use std::sync::OnceLock;
use wire::formats::motion::{AXES, Motion};
use wire::formats::video::{Geometry, Header, PixelFormat};

/// Largest body of `undo`.
const SIZE_MAX: u64 = 64 << 10;
/// Bytes of a large body.
pub(super) const LARGE_BYTES: usize = 16 << 20;

/// Draws a log-uniform number from 0 to about `max`.
pub(super) fn log_uniform(rng: &mut Rng, max: u64) -> u64 {
    let share = (rng.draw() >> 11) as f64 / (1u64 << 53) as f64;
    (((max + 1) as f64).ln() * share).exp() as u64 - 1
}

/// Memory for bodies: random bytes, repeating bytes, zeros and text.
fn memory() -> &'static [Bytes; 4] {
    static MEMORY: OnceLock<[Bytes; 4]> = OnceLock::new();
    const BYTES: usize = LARGE_BYTES + SIZE_MAX as usize;
    MEMORY.get_or_init(|| {
        let mut rng = Rng::new(1, 2);
        let words: Vec<u8> = (0..BYTES.div_ceil(8)).flat_map(|_| rng.draw().to_le_bytes()).collect();
        let repeating: Vec<u8> = (0..BYTES).map(|at| (at / 16 % 251) as u8).collect();
        let text: Vec<u8> = (0..BYTES).map(|at| b"the quick brown fox "[(at + at / 977) % 20]).collect();
        [words.into(), repeating.into(), vec![0; BYTES].into(), text.into()]
    })
}

/// Draws a body of this format. A body of [`Format::Bytes`] has any size and any structure: shared, owned, in pieces, with a
/// header of another stage in front.
pub(crate) fn body(rng: &mut Rng, format: &Format) -> Body {
    match format {
        Format::Motion => {
            let axes: [i32; AXES] = std::array::from_fn(|_| rng.up_to(700) as i32 - 350);
            Body::from(Motion { axes, period_us: rng.up_to(100_000) as u32 }.to_array().to_vec())
        }
        Format::Video => {
            let [width, height] = [(); 2].map(|()| 1 + rng.up_to(63) as u32);
            picture(rng, width, height)
        }
        _ => {
            let length = log_uniform(rng, SIZE_MAX);
            any(rng, length as usize)
        }
    }
}

/// Draws a body of 16 MiB.
pub(super) fn large(rng: &mut Rng, format: &Format) -> Body {
    match format {
        Format::Video => picture(rng, 2048, 2048),
        _ => any(rng, LARGE_BYTES),
    }
}

fn cut(rng: &mut Rng, length: usize) -> Bytes {
    let memory = &memory()[rng.up_to(3) as usize];
    let start = rng.up_to((memory.len() - length) as u64) as usize;
    memory.slice(start..start + length)
}

fn any(rng: &mut Rng, length: usize) -> Body {
    let bytes = cut(rng, length);
    match rng.up_to(3) {
        0 => Body::from(bytes),
        1 => Body::from(bytes.to_vec()),
        2 => {
            let piece = 1 + length / (1 + rng.up_to(4) as usize);
            (0..length).step_by(piece).map(|at| bytes.slice(at..(at + piece).min(length))).collect()
        }
        _ => {
            let header = length.min(rng.up_to(20) as usize);
            let mut body = Body::from(bytes.slice(header..));
            body.push_front(&bytes[..header]);
            body
        }
    }
}

fn picture(rng: &mut Rng, width: u32, height: u32) -> Body {
    let pixels = [PixelFormat::Gray8, PixelFormat::Rgb24, PixelFormat::Bgrx32][rng.up_to(2) as usize];
    let geometry = Geometry::new(pixels, width, height).expect("a valid geometry");
    let mut body = Body::from(cut(rng, geometry.bytes()));
    body.push_front(&Header::frame(geometry).emit());
    body
}
