//! The frame of targets for the pairs of pictures: both halves of a pair, and the steps of an input.

use contract::{Body, Format, Message, Outbox, Port, Site, Stage, Time};
use pipeline::{Origin, Pipeline};
use stages::PAIRS;
use std::time::Duration;
use wire::formats::video::{Geometry, Header};

/// Sizes of pictures: one macroblock, odd ones, and a single pixel.
const SIZES: [(u32, u32); 4] = [(16, 16), (33, 17), (64, 48), (1, 1)];

/// Divides an input into steps: a byte for the kind, a byte for the length in units of 4 bytes, and that many bytes.
pub fn steps(mut input: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [kind, length, rest @ ..] = input else { return None };
        let (content, rest) = rest.split_at(rest.len().min(usize::from(*length) * 4));
        input = rest;
        Some((*kind, content))
    })
}

/// The size of the picture of a step of this kind.
pub fn size_of(kind: u8) -> (u32, u32) {
    SIZES[usize::from(kind >> 3) % SIZES.len()]
}

/// Changes one byte of a message, as the first two bytes of a step say.
pub fn change(message: &mut [u8], content: &[u8]) {
    if let ([at, by, ..], length @ 1..) = (content, message.len()) {
        message[usize::from(*at) % length] ^= by;
    }
}

/// Both halves of a pair.
pub struct Halves {
    source: Box<dyn Stage>,
    sink: Box<dyn Stage>,
    now: Time,
}

impl Halves {
    /// # Panics
    /// If a peer cannot write this pipeline, or a half does not exist in a build with the feature `media`.
    pub fn new(pipeline: &str) -> Halves {
        let pipeline = Pipeline::parse(pipeline, PAIRS, Origin::Peer).expect("a pipeline");
        let used = &pipeline.pairs()[0];
        let source =
            used.pair.source(&used.options, &Format::Video, &Site::default()).expect("a source half");
        let sink = used.pair.sink(&used.options, &Format::Video, &Site::default()).expect("a sink half");
        Halves { source, sink, now: Time::from_millis(1000) }
    }

    /// Returns the messages that the honest source half makes of a picture, whose pixels begin with `content`.
    pub fn honest(&mut self, geometry: Geometry, content: &[u8]) -> Vec<Vec<u8>> {
        let mut pixels = vec![content.first().copied().unwrap_or(90); geometry.bytes()];
        pixels.iter_mut().zip(content).for_each(|(pixel, byte)| *pixel = *byte);
        let mut picture = Body::from(pixels);
        picture.push_front(&Header::frame(geometry).emit());
        let mut made = Outbox::default();
        let _ = self.source.handle(Port::MAIN, Message::new(self.now, picture), self.now, &mut made);
        made.messages.into_iter().map(|(_, message)| message.body.into_bytes().to_vec()).collect()
    }

    /// The sink half gets messages, both halves get a control message, and time passes as the kind of the step says.
    ///
    /// # Panics
    /// If a half makes a message that is too large.
    pub fn step(&mut self, kind: u8, messages: impl IntoIterator<Item = Vec<u8>>, control: Option<&[u8]>) {
        let mut out = Outbox::default();
        for message in messages {
            let _ = self.sink.handle(Port::MAIN, Message::new(self.now, message), self.now, &mut out);
        }
        for half in [&mut self.source, &mut self.sink] {
            if let Some(control) = control {
                let _ = half.handle_control(control, self.now, &mut out);
            }
            if half.poll_timeout().is_some_and(|at| at <= self.now) {
                let _ = half.handle_timeout(self.now, &mut out);
            }
        }
        let largest = out.messages.iter().map(|(_, message)| message.body.len()).max().unwrap_or(0);
        assert!(largest <= wire::BODY_BYTES_MAX, "a body of {largest} bytes");
        self.now = self.now.after(Duration::from_millis(u64::from(kind >> 5) * 11));
    }

    /// The flow ends.
    pub fn end(self) {
        for mut half in [self.source, self.sink] {
            let _ = half.handle_end(Port::MAIN, self.now, &mut Outbox::default());
        }
    }
}
