//! The half that decompresses. It never allocates more than a body may have and the host's own limit,
//! whatever length a message claims.

use super::codec::{Decoder, Method, STORED, TILED};
use super::effort::{Effort, FIRST, LADDER};
use crate::picture::Memory;
use crate::recode::TiledPicture;
use contract::{Body, Message, Options, Outbox, Port, Report, Stage, StageError, StageResult, Time};
use wire::BODY_BYTES_MAX;

pub(super) struct Sink {
    methods: Vec<AgreedMethod>,
    /// Largest body by this host's limit and the flow's format.
    message_bytes: usize,
    /// Reused buffer for decompressed tiles; `None` if the messages are no pictures.
    tiles: Option<Vec<u8>>,
    /// Fresh memory is zeroed pages, which cost nothing until written: so a false claim of length
    /// costs nothing.
    bodies: Memory,
    /// Decompression time by the constants of `effort`.
    work_ns: f64,
}

struct AgreedMethod {
    method: Method,
    decoder: Decoder,
    effort: Option<&'static Effort>,
}

impl Sink {
    pub(super) fn new(options: &Options, message_bytes: usize, is_tiled: bool) -> StageResult<Self> {
        let method = Method::from_options(options);
        let agreed = |method, effort| Ok(AgreedMethod { method, decoder: Decoder::new(method)?, effort });
        let methods = match options.is_auto("level") {
            // Only the compressor needs the level of zstd.
            true => {
                vec![
                    agreed(Method::Zstd, Some(&LADDER[FIRST]))?,
                    agreed(Method::Lz4, Effort::find(Method::Lz4, 0))?,
                ]
            }
            false => {
                let level = i32::try_from(options.integer("level")).unwrap_or(0);
                vec![agreed(method, Effort::find(method, level))?]
            }
        };
        let tiles = is_tiled.then(Vec::new);
        Ok(Sink { methods, message_bytes, tiles, bodies: Memory::new(), work_ns: 0.0 })
    }

    /// Takes the claimed length off a compressed body.
    fn take_length(&self, body: &mut Body) -> StageResult<usize> {
        let malformed = |problem: &str| Err(StageError::Input(problem.into()));
        match body.take_front().map(u32::from_le_bytes) {
            None => malformed("its header is cut short"),
            Some(0) => malformed("it claims to be empty, but empty bodies are never compressed"),
            Some(length) => self.checked(length as usize),
        }
    }

    /// Returns `bytes` if it is within both limits.
    fn checked(&self, bytes: usize) -> StageResult<usize> {
        let too_large = |what, limit| Err(StageError::TooLarge { what, bytes, limit });
        match bytes {
            _ if bytes > BODY_BYTES_MAX => too_large("the body", BODY_BYTES_MAX),
            _ if bytes > self.message_bytes => {
                too_large("a message (--limit message_bytes)", self.message_bytes)
            }
            _ => Ok(bytes),
        }
    }

    /// Decompresses a body, which must fill `into` exactly.
    fn decompress(&mut self, method: u8, mut body: Body, into: &mut [u8]) -> StageResult {
        let Some(agreed) = self.methods.iter_mut().find(|agreed| agreed.method as u8 == method) else {
            return Err(StageError::Input(format!("method {method} was not agreed on")));
        };
        let wire = body.as_slice();
        agreed.decoder.decode(wire, into).map_err(StageError::Input)?;
        if let Some(effort) = agreed.effort {
            self.work_ns += effort.work_ns(into.len(), wire.len())[1];
        }
        Ok(())
    }

    /// Decodes a picture from its tiles.
    fn decode_tiles(&mut self, tiles: &[u8]) -> StageResult<Body> {
        let tiled = TiledPicture::read(tiles).map_err(StageError::Input)?;
        let mut body = self.bodies.take(self.checked(tiled.bytes())?);
        tiled.write(&mut body).map_err(StageError::Input)?;
        Ok(body.freeze().into())
    }
}

impl Stage for Sink {
    fn handle(&mut self, port: Port, mut message: Message, _now: Time, out: &mut Outbox) -> StageResult {
        let Some([method]) = message.body.take_front() else {
            return Err(StageError::Input("it has no header".into()));
        };
        message.body = match (method & !TILED, method & TILED != 0) {
            (_, true) if self.tiles.is_none() => {
                return Err(StageError::Input(
                    "it is a picture in tiles, but the flow has no pictures".into(),
                ));
            }
            (STORED, false) => {
                self.checked(message.body.len())?;
                message.body
            }
            (STORED, true) => self.decode_tiles(message.body.as_slice())?,
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
                    .and_then(|()| self.decode_tiles(&tiles[..length]));
                self.tiles = Some(tiles);
                picture?
            }
        };
        out.send(port, message);
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        match self.methods.iter().all(|agreed| agreed.effort.is_some()) {
            true => vec![("work_ms", self.work_ns / 1e6)],
            false => Vec::new(),
        }
    }
}
