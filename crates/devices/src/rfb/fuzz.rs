//! Entry points for the fuzzer: the parsers of both sides, fed with bytes from an untrusted peer.

use super::client::{Client, ServerInit, handshake, preferring};
use super::clipboard::{Clipboard, Received};
use super::picture::Screen;
use super::pixels::PixelFormat;
use super::server::{Settings, Viewer};
use crate::clipboard::TEXT_BYTES_MAX;
use contract::{Body, Time};
use std::io::{self, Read, Write};
use wire::formats::video::{Geometry, Header, PixelFormat as VideoPixels};

const SIDE: u32 = 80;

/// Serves a viewer that sends `bytes` after its handshake.
pub fn viewer(bytes: &[u8]) {
    let settings = Settings { password: None, name: "fuzz".into(), has_clipboard: true };
    let mut screen = Screen::default();
    if let Ok(geometry) = Geometry::new(VideoPixels::Bgrx32, SIDE, SIDE) {
        let mut body = Body::from((0..geometry.bytes()).map(|at| (at / 7 % 251) as u8).collect::<Vec<_>>());
        body.push_front(&Header::frame(geometry).emit());
        let _ = screen.apply(&body);
    }
    let mut viewer = Viewer::new(&settings, [0; 16]);
    let mut events = Vec::new();
    for (number, piece) in [&b"RFB 003.008\n\x01\x01"[..]].into_iter().chain(bytes.chunks(97)).enumerate() {
        let now = Time(number as u64 * 1_000_000);
        if viewer.receive(piece, now, &mut events).is_err() {
            return;
        }
        for _ in 0..2 {
            viewer.handle_damage(&screen);
            viewer.update(&screen, &settings.name, now);
            viewer.handle_written(viewer.output().len());
        }
    }
    events.extend(viewer.pressed());
    events.extend(viewer.release());
}

/// Exchanges texts with an end that sends `bytes` as messages: each begins with its length and its flags.
pub fn clipboard(bytes: &[u8]) {
    let (mut end, mut output) = (Clipboard::new(3, TEXT_BYTES_MAX), Vec::new());
    end.offer("text", &mut output);
    let mut rest = bytes;
    while let Some((&length, after)) = rest.split_first() {
        let (body, after) = after.split_at(after.len().min(length.into()));
        rest = after;
        output.clear();
        match end.handle(body, &mut output) {
            Ok(Received::Text(text)) => assert!(text.len() <= TEXT_BYTES_MAX),
            Ok(Received::Announcement) => end.request(&mut output),
            Ok(Received::Request) => end.provide("text", &mut output),
            Ok(Received::Nothing) => drop(end.announce(&mut output)),
            Err(_) => return,
        }
        assert!(output.len() < 100);
    }
}

/// A stream that reads from `bytes` and discards writes.
struct Replay<'a>(&'a [u8]);

impl Read for Replay<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Replay<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Connects to a server that sends `bytes`, as its handshake and after it.
pub fn server(bytes: &[u8]) {
    let _ = handshake(&mut Replay(bytes), None);
    let init = ServerInit { width: SIDE, height: SIDE, name: String::new() };
    let mut client = Client::new(&init, PixelFormat::NATIVE, &preferring("tight", "", true));
    for piece in bytes.chunks(97) {
        client.receive(piece);
        loop {
            match client.next() {
                Ok(Some(_)) => drop(client.take_changes()),
                Ok(None) => break,
                Err(_) => return,
            }
        }
        client.ask();
        client.output.clear();
    }
}
