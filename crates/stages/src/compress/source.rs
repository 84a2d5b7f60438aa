//! The half that compresses.

use super::codec::{Encoder, Method, STORED};
use contract::{Bytes, Message, Options, Outbox, Port, Report, Stage, StageError, Time};

/// Bytes of the header that a stored body does without.
const LENGTH_BYTES: usize = 4;

pub(super) struct Source {
    method: Method,
    encoder: Encoder,
    limit: usize,
    /// Where it compresses to: warm, so only what came out is copied to fresh memory.
    scratch: Vec<u8>,
    messages: u64,
    stored: u64,
    bytes_before: u64,
    bytes_after: u64,
}

impl Source {
    pub(super) fn new(options: &Options) -> Result<Self, StageError> {
        let method = Method::chosen(options);
        // The option's range fits.
        let level = i32::try_from(options.integer("level")).unwrap_or(0);
        Ok(Source {
            method,
            encoder: Encoder::new(method, level)?,
            limit: options.size("limit"),
            scratch: Vec::new(),
            messages: 0,
            stored: 0,
            bytes_before: 0,
            bytes_after: 0,
        })
    }
}

impl Stage for Source {
    fn handle(
        &mut self,
        port: Port,
        mut message: Message,
        _now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let before = message.body.len();
        if before > self.limit {
            return Err(StageError::TooLarge { what: "the body", bytes: before, limit: self.limit });
        }
        let room = self.encoder.room(before);
        if self.scratch.len() < room {
            self.scratch.resize(room, 0);
        }
        match self.encoder.encode(message.body.as_slice(), &mut self.scratch[..room]) {
            Some(after) if after + LENGTH_BYTES < before => {
                message.body = Bytes::copy_from_slice(&self.scratch[..after]).into();
                message.body.push_front(&(before as u32).to_le_bytes());
                message.body.push_front(&[self.method as u8]);
            }
            _ => {
                self.stored += 1;
                message.body.push_front(&[STORED]);
            }
        }
        self.messages += 1;
        self.bytes_before += before as u64;
        self.bytes_after += message.body.len() as u64;
        out.send(port, message);
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("messages", self.messages as f64),
            ("stored", self.stored as f64),
            ("ratio", self.bytes_before as f64 / self.bytes_after.max(1) as f64),
        ]
    }
}
