//! The application side: writes JPEG images to a stream.

use crate::pixels;
use crate::stream::{Channel, Framing, MessageWriter, StreamWriter};
use contract::{Body, Message, PartnerError, Pushed};
use wire::formats::video::PixelFormat;

/// Writes images unchanged.
pub(super) struct Writer {
    writer: StreamWriter,
}

impl Writer {
    pub(super) fn new(name: String, channel: Channel) -> Self {
        Writer { writer: StreamWriter::new(name, channel, Framing::none()) }
    }
}

fn image(message: &Message) -> Result<Body, String> {
    match pixels::picture(&message.body)? {
        (geometry, image) if geometry.pixels() == PixelFormat::Mjpeg => Ok(Body::from(image)),
        _ => Err("only JPEG images (MJPG) are supported: set the camera to MJPG, or use y4m".into()),
    }
}

impl MessageWriter for Writer {
    fn stream(&self) -> &StreamWriter {
        &self.writer
    }

    fn stream_mut(&mut self) -> &mut StreamWriter {
        &mut self.writer
    }

    fn push(&mut self, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        match image(&message) {
            Ok(body) => match self.writer.push(Message::new(message.created, body)) {
                Ok(Pushed::Taken) => Ok(Pushed::Taken),
                Ok(Pushed::Full(_)) => Ok(Pushed::Full(message)),
                Err((error, _)) => Err((error, message)),
            },
            Err(problem) => Err((PartnerError::Message(problem), message)),
        }
    }
}
