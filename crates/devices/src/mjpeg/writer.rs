//! The application side: writes JPEG images to a stream.

use crate::pixels;
use crate::stream::{Channel, Framing, MessageWriter, PendingWrite, StreamWriter};
use contract::{Body, CtlReply, Message, PartnerError, PartnerResult, Pushed, Readiness};
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

    fn flush(&mut self) -> PartnerResult<CtlReply> {
        self.writer.flush()
    }

    fn pending(&mut self) -> Option<&mut PendingWrite> {
        self.writer.pending()
    }

    fn finish(&mut self) -> PartnerResult<CtlReply> {
        self.writer.finish()
    }

    fn close(&mut self) -> PartnerResult {
        self.writer.close()
    }

    fn readiness(&self) -> Readiness<'_> {
        self.writer.readiness()
    }

    fn bytes(&self) -> u64 {
        self.writer.bytes()
    }

    fn disk_full(&self) -> u64 {
        self.writer.disk_full()
    }
}
