//! The half that seals messages.

use super::seal::{HEADER_BYTES, Header, Key, SALT_BYTES, Salt, TAG_BYTES, cipher};
use contract::{Body, Message, Options, Outbox, Port, Report, Secret, Stage, StageError, StageResult, Time};

pub(super) struct Source {
    key: Key,
    salt: Salt,
    /// Counter of the next message or end.
    counter: u64,
}

impl Source {
    pub(super) fn new(options: &Options, secret: &Secret, seed: [u8; 32]) -> Self {
        let mut salt = [0; SALT_BYTES];
        salt.copy_from_slice(&seed[..SALT_BYTES]);
        Source { key: Key::derive(cipher(options), secret, &salt), salt, counter: 0 }
    }

    fn seal(&mut self, message: Message, is_end: bool) -> Message {
        let Message { created, attributes, body } = message;
        let header = Header { salt: self.salt, counter: self.counter, is_end, created: created.0 };
        self.counter += 1;
        let mut bytes = body.into_mut(0);
        let tag = self.key.seal(&header, &mut bytes);
        let mut body = Body::from(bytes.freeze());
        body.push(tag);
        body.push_front(&header.to_bytes());
        Message { created, attributes, body }
    }
}

impl Stage for Source {
    fn handle(&mut self, port: Port, message: Message, _now: Time, out: &mut Outbox) -> StageResult {
        let bytes = message.body.len() + HEADER_BYTES + TAG_BYTES;
        if bytes > wire::BODY_BYTES_MAX {
            let limit = wire::BODY_BYTES_MAX;
            return Err(StageError::TooLarge { what: "the sealed message", bytes, limit });
        }
        let sealed = self.seal(message, false);
        out.send(port, sealed);
        Ok(())
    }

    fn handle_end(&mut self, port: Port, now: Time, out: &mut Outbox) -> StageResult {
        let end = self.seal(Message::new(now, Body::new()), true);
        out.send(port, end);
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        vec![("sealed", self.counter as f64)]
    }
}
