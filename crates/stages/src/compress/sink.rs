//! The half that decompresses. It allocates no more than `limit`, and than its host allows, whatever a message claims.

use super::codec::{Decoder, Method, STORED, TILED};
use super::effort::{Effort, FIRST, LADDER};
use super::tiles::Tiled;
use crate::picture::Memory;
use contract::{Body, Message, Options, Outbox, Port, Report, Stage, StageError, Time};

pub(super) struct Sink {
    ways: Vec<Way>,
    /// By the pair's option, and by this host's own limit.
    limit: usize,
    most: usize,
    /// Pictures may come in tiles, and are decompressed to here first.
    tiles: Option<Vec<u8>>,
    /// Zeroed pages cost nothing until they are written, so a false claim of length costs nothing.
    bodies: Memory,
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
    pub(super) fn new(options: &Options, most: usize, is_tiled: bool) -> Result<Self, StageError> {
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
        let tiles = is_tiled.then(Vec::new);
        let limit = options.size("limit");
        Ok(Sink { ways, limit, most, tiles, bodies: Memory::new(), work_ns: 0.0 })
    }

    /// Takes off the length that a compressed body claims.
    fn take_length(&self, body: &mut Body) -> Result<usize, StageError> {
        let wrong = |problem: &str| Err(StageError::Input(problem.into()));
        match body.take_front().map(u32::from_le_bytes) {
            None => wrong("its header is cut short"),
            Some(0) => wrong("it claims to be empty, which is never worth compressing"),
            Some(length) => self.check(length as usize),
        }
    }

    /// As many bytes, unless they are too many.
    fn check(&self, bytes: usize) -> Result<usize, StageError> {
        let too_large = |what, limit| Err(StageError::TooLarge { what, bytes, limit });
        match bytes {
            _ if bytes > self.limit => too_large("the body", self.limit),
            _ if bytes > self.most => too_large("a message (--limit message_bytes)", self.most),
            _ => Ok(bytes),
        }
    }

    /// Decompresses all of a body, which must fill `into` exactly.
    fn decompress(&mut self, method: u8, mut body: Body, into: &mut [u8]) -> Result<(), StageError> {
        let Some(way) = self.ways.iter_mut().find(|way| way.method as u8 == method) else {
            return Err(StageError::Input(format!("method {method} was not agreed on")));
        };
        let wire = body.as_slice();
        way.decoder.decode(wire, into).map_err(StageError::Input)?;
        if let Some(effort) = way.effort {
            self.work_ns += effort.work_ns(into.len(), wire.len())[1];
        }
        Ok(())
    }

    /// The picture that was said in tiles.
    fn picture(&mut self, tiles: &[u8]) -> Result<Body, StageError> {
        let tiled = Tiled::read(tiles).map_err(StageError::Input)?;
        let mut body = self.bodies.take(self.check(tiled.bytes())?);
        tiled.write(&mut body).map_err(StageError::Input)?;
        Ok(body.freeze().into())
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
        let Some([method]) = message.body.take_front() else {
            return Err(StageError::Input("it has no header".into()));
        };
        message.body = match (method & !TILED, method & TILED != 0) {
            (_, true) if self.tiles.is_none() => {
                return Err(StageError::Input("pictures in tiles were not agreed on".into()));
            }
            (STORED, false) => {
                self.check(message.body.len())?;
                message.body
            }
            (STORED, true) => self.picture(message.body.as_slice())?,
            (method, false) => {
                let length = self.take_length(&mut message.body)?;
                let mut body = self.bodies.take(length);
                self.decompress(method, message.body, &mut body)?;
                body.freeze().into()
            }
            (method, true) => {
                let length = self.take_length(&mut message.body)?;
                let mut tiles =
                    self.tiles.take().filter(|kept| kept.len() >= length).unwrap_or_else(|| vec![0; length]);
                let picture = self
                    .decompress(method, message.body, &mut tiles[..length])
                    .and_then(|()| self.picture(&tiles[..length]));
                self.tiles = Some(tiles);
                picture?
            }
        };
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
