//! The half that decompresses. It allocates no more than `limit`, whatever a message claims.

use super::codec::{Decoder, Method, STORED};
use super::effort::{Effort, FIRST, LADDER};
use contract::{Message, Options, Outbox, Port, Report, Stage, StageError, Time};

pub(super) struct Sink {
    ways: Vec<Way>,
    limit: usize,
    /// What decompressing takes by the constants, where they are known.
    work_ns: f64,
}

/// A method that was agreed on.
struct Way {
    method: Method,
    decoder: Decoder,
    effort: Option<&'static Effort>,
}

impl Sink {
    pub(super) fn new(options: &Options) -> Result<Self, StageError> {
        let method = Method::chosen(options);
        let way = |method, effort| Ok(Way { method, decoder: Decoder::new(method)?, effort });
        let ways = match options.is_auto("level") {
            // What levels of zstd differ by is seen at the other half.
            true => {
                vec![way(Method::Zstd, Some(&LADDER[FIRST]))?, way(Method::Lz4, Effort::of(Method::Lz4, 0))?]
            }
            false => {
                let level = i32::try_from(options.integer("level")).unwrap_or(0);
                vec![way(method, Effort::of(method, level))?]
            }
        };
        Ok(Sink { ways, limit: options.size("limit"), work_ns: 0.0 })
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
            Some([method]) => {
                let way = self.ways.iter_mut().find(|way| way.method as u8 == method);
                let Some(way) = way else { return wrong(format!("method {method} was not agreed on")) };
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
                let wire = message.body.as_slice();
                way.decoder.decode(wire, &mut body).map_err(StageError::Input)?;
                if let Some(effort) = way.effort {
                    self.work_ns += effort.work_ns(length, wire.len())[1];
                }
                message.body = body.into();
            }
        }
        out.send(port, message);
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        match self.ways.iter().all(|way| way.effort.is_some()) {
            true => vec![("work_ms", self.work_ns / 1e6)],
            false => Vec::new(),
        }
    }
}
