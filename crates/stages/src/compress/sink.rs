//! The half that decompresses. It allocates no more than `limit`, whatever a message claims.

use super::codec::{Decoder, Method, STORED};
use contract::{Message, Options, Outbox, Port, Stage, StageError, Time};

pub(super) struct Sink {
    method: Method,
    decoder: Decoder,
    limit: usize,
}

impl Sink {
    pub(super) fn new(options: &Options) -> Result<Self, StageError> {
        let method = Method::chosen(options);
        Ok(Sink { method, decoder: Decoder::new(method)?, limit: options.size("limit") })
    }
}

impl Stage for Sink {
    fn handle(
        &mut self,
        port: Port,
        mut message: Message,
        _now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let wrong = |problem: String| Err(StageError::Input(problem));
        match message.body.take_front() {
            None => return wrong("it has no header".into()),
            Some([STORED]) => {
                let bytes = message.body.len();
                if bytes > self.limit {
                    return Err(StageError::TooLarge { what: "the body", bytes, limit: self.limit });
                }
            }
            Some([method]) if method == self.method as u8 => {
                let Some(length) = message.body.take_front().map(u32::from_le_bytes) else {
                    return wrong("its header is cut short".into());
                };
                let length = length as usize;
                if length == 0 {
                    return wrong("it claims to be empty, which is never worth compressing".into());
                }
                if length > self.limit {
                    return Err(StageError::TooLarge { what: "the body", bytes: length, limit: self.limit });
                }
                // Zeroed pages cost nothing until they are written, so a false claim of length costs nothing.
                let mut body = vec![0; length];
                self.decoder.decode(message.body.as_slice(), &mut body).map_err(StageError::Input)?;
                message.body = body.into();
            }
            Some([other]) => return wrong(format!("method {other} was not agreed on")),
        }
        out.send(port, message);
        Ok(())
    }
}
