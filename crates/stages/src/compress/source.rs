//! The half that compresses.

use super::auto::AutoLevel;
use super::codec::{Encoder, Method, STORED, TILED, is_worth};
use super::effort::Effort;
use crate::recode;
use contract::{
    Bytes, Choice, Feedback, Message, Options, Outbox, Port, Report, Stage, StageError, StageResult, Time,
};
use wire::BODY_BYTES_MAX;

/// The choice of method and level.
enum Strategy {
    /// Method and level from the options. If they are a rung of the ladder, its costs are known.
    Fixed(Option<&'static Effort>, Method, Encoder),
    Auto(Box<AutoLevel>),
}

impl Strategy {
    /// The current rung, if the setting is one.
    fn effort(&self) -> Option<&'static Effort> {
        match self {
            Strategy::Fixed(effort, ..) => *effort,
            Strategy::Auto(auto) => Some(auto.effort()),
        }
    }
}

pub(super) struct Source {
    strategy: Strategy,
    tiles: Option<recode::Encoder>,
    /// Output of the compressor. Reused while warm in the cache; the result is copied to a body of
    /// its own.
    scratch: Vec<u8>,
    messages: u64,
    stored: u64,
    tiled: u64,
    bytes_before: u64,
    bytes_after: u64,
    /// Compression time by the constants of `effort`, for settings that have them.
    work_ns: f64,
}

impl Source {
    pub(super) fn new(options: &Options, is_tiled: bool) -> StageResult<Self> {
        let method = Method::from_options(options);
        // The option's range fits an `i32`.
        let level = i32::try_from(options.integer("level")).unwrap_or(0);
        let strategy = match options.is_auto("level") {
            true => Strategy::Auto(Box::new(AutoLevel::new()?)),
            false => Strategy::Fixed(Effort::find(method, level), method, Encoder::new(method, level)?),
        };
        Ok(Source {
            strategy,
            tiles: is_tiled.then(recode::Encoder::default),
            scratch: Vec::new(),
            messages: 0,
            stored: 0,
            tiled: 0,
            bytes_before: 0,
            bytes_after: 0,
            work_ns: 0.0,
        })
    }
}

impl Stage for Source {
    fn handle(&mut self, port: Port, mut message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let original_bytes = message.body.len();
        if original_bytes > BODY_BYTES_MAX {
            let (what, bytes) = ("the body", original_bytes);
            return Err(StageError::TooLarge { what, bytes, limit: BODY_BYTES_MAX });
        }
        let tiled = self.tiles.as_mut().and_then(|tiles| tiles.encode(&message.body));
        let tile_flag = if tiled.is_some() { TILED } else { 0 };
        let bytes = match tiled {
            Some(tiled) => tiled,
            None => message.body.as_slice(),
        };
        let room = match &self.strategy {
            Strategy::Fixed(.., encoder) => encoder.room(bytes.len()),
            Strategy::Auto(auto) => auto.room(bytes.len()),
        };
        if self.scratch.len() < room {
            self.scratch.resize(room, 0);
        }
        let into = &mut self.scratch[..room];
        let compressed = match &mut self.strategy {
            Strategy::Fixed(_, method, encoder) => encoder
                .encode(bytes, into)
                .filter(|length| is_worth(*length, bytes.len()))
                .map(|length| (*method, length)),
            Strategy::Auto(auto) => {
                auto.handle_message(message.created, now);
                auto.encode(bytes, into)
            }
        };
        if let Some(effort) = self.strategy.effort() {
            let length = compressed.map_or(bytes.len(), |(_, length)| length);
            self.work_ns += effort.work_ns(bytes.len(), length)[0];
        }
        let compressed = compressed.map(|(method, length)| (method, Bytes::copy_from_slice(&into[..length])));
        if let Strategy::Auto(auto) = &mut self.strategy {
            self.work_ns += auto.try_neighbour(bytes, into);
        }
        let length = bytes.len() as u32;
        match compressed {
            Some((method, body)) => {
                message.body = body.into();
                message.body.push_front(&length.to_le_bytes());
                message.body.push_front(&[method as u8 | tile_flag]);
            }
            None => {
                self.stored += 1;
                if tile_flag != 0 {
                    message.body = Bytes::copy_from_slice(bytes).into();
                }
                message.body.push_front(&[STORED | tile_flag]);
            }
        }
        self.tiled += u64::from(tile_flag != 0);
        self.messages += 1;
        self.bytes_before += original_bytes as u64;
        self.bytes_after += message.body.len() as u64;
        out.send(port, message);
        Ok(())
    }

    fn handle_feedback(&mut self, feedback: &Feedback, _now: Time, _out: &mut Outbox) -> StageResult {
        if let Strategy::Auto(auto) = &mut self.strategy {
            auto.handle_feedback(feedback);
        }
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        let mut report = vec![
            ("messages", self.messages as f64),
            ("stored", self.stored as f64),
            ("tiled", self.tiled as f64),
            ("ratio", self.bytes_before as f64 / self.bytes_after.max(1) as f64),
        ];
        if self.strategy.effort().is_some() {
            report.push(("work_ms", self.work_ns / 1e6));
        }
        report
    }

    fn choices(&self) -> Vec<Choice> {
        match &self.strategy {
            Strategy::Fixed(..) => Vec::new(),
            Strategy::Auto(auto) => vec![auto.choice()],
        }
    }
}
