//! The application's side: pictures to a stream of JPEG images.

use crate::pixels;
use crate::stream::{Channel, Framing, Inlet, Takes, Unwritten};
use contract::{Body, CtlReply, Message, PartnerError, Pushed, Readiness};
use wire::formats::video::PixelFormat;

/// Writes images as they come.
pub(super) struct Writer {
    inlet: Inlet,
}

impl Writer {
    pub(super) fn new(name: String, channel: Channel) -> Self {
        Writer { inlet: Inlet::new(name, channel, Framing::none()) }
    }
}

fn image(message: &Message) -> Result<Body, String> {
    match pixels::picture(&message.body)? {
        (geometry, image) if geometry.pixels() == PixelFormat::Mjpeg => Ok(Body::from(image)),
        _ => Err("only JPEG images are taken (MJPG): have the camera give them, or write y4m".into()),
    }
}

impl Takes for Writer {
    fn push(&mut self, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        match image(&message) {
            Ok(body) => match self.inlet.push(Message::new(message.created, body)) {
                Ok(Pushed::Taken) => Ok(Pushed::Taken),
                Ok(Pushed::Full(_)) => Ok(Pushed::Full(message)),
                Err((error, _)) => Err((error, message)),
            },
            Err(problem) => Err((PartnerError::Message(problem), message)),
        }
    }

    fn flush(&mut self) -> Result<CtlReply, PartnerError> {
        self.inlet.flush()
    }

    fn unwritten(&mut self) -> Option<&mut Unwritten> {
        self.inlet.unwritten()
    }

    fn finish(&mut self) -> Result<CtlReply, PartnerError> {
        self.inlet.finish()
    }

    fn close(&mut self) -> Result<(), PartnerError> {
        self.inlet.close()
    }

    fn readiness(&self) -> Readiness<'_> {
        self.inlet.readiness()
    }

    fn bytes(&self) -> u64 {
        self.inlet.bytes()
    }

    fn disk_full(&self) -> u64 {
        self.inlet.disk_full()
    }
}
