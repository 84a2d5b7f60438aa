//! A screen with a film and text over a link that is too thin for its pixels, with the real program and its workers.
#![cfg(feature = "media")]

mod support;

use netsim::Params;
use netsim::relay::Relay;
use serde_json::Value;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use support::{Scratch, Service, figure, wait_until};

const WIDTH: usize = 400;
const HEIGHT: usize = 240;
const HEADER_BYTES: usize = 100;
/// The film: its left and upper edge, width and height.
const FILM: [usize; 4] = [64, 10, 256, 144];
/// Time between two pictures of the film.
const FILM_EVERY: Duration = Duration::from_millis(42);

/// A framebuffer as a file of an X server.
struct Screen {
    path: String,
    pixels: Vec<u8>,
}

impl Screen {
    fn new(path: String) -> Screen {
        let (width, height) = (WIDTH as u32, HEIGHT as u32);
        let stride = width * 4;
        let (format, depth) = ([100, 7, 2, 24], [0, 0, 32, 0, 32, 32]);
        let masks = [5, 0xff_0000, 0xff00, 0xff, 8, 256, 0];
        let fields = [&format[..], &[width, height], &depth, &[stride], &masks, &[width, height, 0, 0, 0]];
        let header: Vec<u8> = fields.concat().iter().flat_map(|field: &u32| field.to_be_bytes()).collect();
        assert_eq!(header.len(), HEADER_BYTES);
        let pixels = vec![0; WIDTH * HEIGHT * 4];
        std::fs::write(&path, [&header[..], &pixels].concat()).unwrap();
        Screen { path, pixels }
    }

    /// Draws a part, each pixel by its place.
    fn draw(&mut self, [x, y, width, height]: [usize; 4], pixel: impl Fn(usize, usize) -> [u8; 3]) {
        let file = std::fs::OpenOptions::new().write(true).open(&self.path).unwrap();
        for row in y..y + height {
            let at = (row * WIDTH + x) * 4;
            let bytes: Vec<u8> = (x..x + width)
                .flat_map(|column| {
                    let [blue, green, red] = pixel(column, row);
                    [blue, green, red, 0]
                })
                .collect();
            self.pixels[at..at + bytes.len()].copy_from_slice(&bytes);
            file.write_all_at(&bytes, (HEADER_BYTES + at) as u64).unwrap();
        }
    }

    fn draw_film(&mut self, number: usize) {
        let wave = |at: usize, period: usize| (at % period).abs_diff(period / 2) * 200 / period;
        self.draw(FILM, |x, y| {
            let grain = (x * 7919) ^ (y * 104_729) ^ (number * 31);
            let of = |colour: usize| {
                let shade = 20 + wave(x + 3 * number + 20 * colour, 90) + wave(y + 2 * number, 70);
                (shade + grain.wrapping_mul(2_654_435_761) % 16) as u8
            };
            [of(0), of(1), of(2)]
        });
    }

    /// Types a red letter on black.
    fn draw_letter(&mut self, number: usize) {
        let bits = (number + 1) * 2_654_435_761;
        let letter = |x: usize, y: usize| [0, 0, if bits >> (x % 8 + y % 16) & 1 == 1 { 255 } else { 0 }];
        self.draw([8 * (number % 50), 200, 8, 16], letter);
    }
}

/// The colours of a part of a screen in a file.
fn colours(path: &str, [x, y, width, height]: [usize; 4]) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    let rows = (y..y + height).flat_map(|row| {
        let at = HEADER_BYTES + (row * WIDTH + x) * 4;
        bytes[at..at + width * 4].chunks_exact(4).flat_map(|pixel| pixel[..3].to_vec())
    });
    rows.collect()
}

fn pictures(share: &mut Service) -> f64 {
    let pending = share.pending();
    let stages = |event: &Value| event["stats"]["outgoing"]["stages"].as_array().cloned();
    let stages = pending.iter().filter_map(stages).next_back();
    stages.map_or(0.0, |stages| figure(&stages[0]["figures"], "pictures"))
}

/// As they are, the pictures of the film take 15 Mbit/s and more.
#[test]
fn letters_beside_a_film_are_exact_and_so_is_its_last_picture() {
    let scratch = Scratch::new();
    let (mut from, to) = (Screen::new(scratch.path("from")), Screen::new(scratch.path("to")));
    let (mut share, address) = Service::share(&format!("fb:{}", from.path), &["--name", "desk", "--stats"]);
    let link = Params { delay_ns: 10_000_000, rate_bps: 2_000_000, ..Params::default() };
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let relay = Relay::start(any, address.parse().unwrap(), link, 1).unwrap();
    let node = format!("fb:{}", to.path);
    let mut attach = Service::start(&["attach", &format!("{}/desk", relay.address()), "--as", &node]);
    attach.wait("attached");
    let text = [0, 200, WIDTH, 16];
    let (mut number, mut filmed) = (0, 0.0);
    wait_until("the film is coded, and letters beside it are exact", || {
        from.draw_film(number);
        number += 1;
        if number % 8 == 0 {
            from.draw_letter(number / 8);
        }
        std::thread::sleep(FILM_EVERY);
        filmed = pictures(&mut share).max(filmed);
        let is_exact = || colours(&from.path, text) == colours(&to.path, text);
        number > 100 && filmed > 10.0 && is_exact()
    });
    let all = [0, 0, WIDTH, HEIGHT];
    wait_until("the whole screen is exact", || colours(&from.path, all) == colours(&to.path, all));
    assert_eq!((attach.stop(), share.stop()), (Some(0), Some(0)));
}
