//! The half that compresses.

use super::auto::Auto;
use super::codec::{Encoder, Method, STORED, TILED, is_worth};
use super::effort::Effort;
use super::tiles;
use contract::{Bytes, Choice, Feedback, Message, Options, Outbox, Port, Report, Stage, StageError, Time};

/// How hard it tries.
enum Way {
    /// Always so; some settings are rungs of the ladder too.
    Fixed(Option<&'static Effort>, Method, Encoder),
    Auto(Box<Auto>),
}

impl Way {
    /// The rung that is in use, if it is one.
    fn effort(&self) -> Option<&'static Effort> {
        match self {
            Way::Fixed(effort, ..) => *effort,
            Way::Auto(auto) => Some(auto.effort()),
        }
    }
}

pub(super) struct Source {
    way: Way,
    limit: usize,
    tiles: Option<tiles::Encoder>,
    /// Where it compresses to: warm, so only what came out is copied to fresh memory.
    scratch: Vec<u8>,
    messages: u64,
    stored: u64,
    tiled: u64,
    bytes_before: u64,
    bytes_after: u64,
    /// What compressing takes by the constants, where they are known.
    work_ns: f64,
}

impl Source {
    pub(super) fn new(options: &Options, is_tiled: bool) -> Result<Self, StageError> {
        let method = Method::chosen(options);
        // The option's range fits.
        let level = i32::try_from(options.integer("level")).unwrap_or(0);
        let way = match options.is_auto("level") {
            true => Way::Auto(Box::new(Auto::new()?)),
            false => Way::Fixed(Effort::of(method, level), method, Encoder::new(method, level)?),
        };
        Ok(Source {
            way,
            limit: options.size("limit"),
            tiles: is_tiled.then(tiles::Encoder::default),
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
    fn handle(
        &mut self,
        port: Port,
        mut message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let before = message.body.len();
        if before > self.limit {
            return Err(StageError::TooLarge { what: "the body", bytes: before, limit: self.limit });
        }
        let tiled = self.tiles.as_mut().and_then(|tiles| tiles.encode(&message.body));
        let mark = if tiled.is_some() { TILED } else { 0 };
        let bytes = match tiled {
            Some(tiled) => tiled,
            None => message.body.as_slice(),
        };
        let room = match &self.way {
            Way::Fixed(.., encoder) => encoder.room(bytes.len()),
            Way::Auto(auto) => auto.room(bytes.len()),
        };
        if self.scratch.len() < room {
            self.scratch.resize(room, 0);
        }
        let into = &mut self.scratch[..room];
        let made = match &mut self.way {
            Way::Fixed(_, method, encoder) => encoder
                .encode(bytes, into)
                .filter(|after| is_worth(*after, bytes.len()))
                .map(|after| (*method, after)),
            Way::Auto(auto) => {
                auto.handle_message(message.created, now);
                auto.encode(bytes, into)
            }
        };
        if let Some(effort) = self.way.effort() {
            let after = made.map_or(bytes.len(), |(_, after)| after);
            self.work_ns += effort.work_ns(bytes.len(), after)[0];
        }
        let small = made.map(|(method, after)| (method, Bytes::copy_from_slice(&into[..after])));
        if let Way::Auto(auto) = &mut self.way {
            self.work_ns += auto.try_neighbour(bytes, into);
        }
        let length = bytes.len() as u32;
        match small {
            Some((method, body)) => {
                message.body = body.into();
                message.body.push_front(&length.to_le_bytes());
                message.body.push_front(&[method as u8 | mark]);
            }
            None => {
                self.stored += 1;
                if mark != 0 {
                    message.body = Bytes::copy_from_slice(bytes).into();
                }
                message.body.push_front(&[STORED | mark]);
            }
        }
        self.tiled += u64::from(mark != 0);
        self.messages += 1;
        self.bytes_before += before as u64;
        self.bytes_after += message.body.len() as u64;
        out.send(port, message);
        Ok(())
    }

    fn handle_feedback(
        &mut self,
        feedback: &Feedback,
        _now: Time,
        _out: &mut Outbox,
    ) -> Result<(), StageError> {
        if let Way::Auto(auto) = &mut self.way {
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
        if self.way.effort().is_some() {
            report.push(("work_ms", self.work_ns / 1e6));
        }
        report
    }

    fn choices(&self) -> Vec<Choice> {
        match &self.way {
            Way::Fixed(..) => Vec::new(),
            Way::Auto(auto) => vec![auto.choice()],
        }
    }
}
