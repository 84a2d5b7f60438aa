//! The half that compresses.

use super::auto::Auto;
use super::codec::{Encoder, Method, STORED, is_worth};
use super::effort::Effort;
use contract::{Bytes, Choice, Feedback, Message, Options, Outbox, Port, Report, Stage, StageError, Time};

/// How hard it tries.
enum Way {
    /// Always so; some settings are rungs of the ladder too.
    Fixed(Option<&'static Effort>, Method, Encoder),
    Auto(Box<Auto>),
}

pub(super) struct Source {
    way: Way,
    limit: usize,
    /// Where it compresses to: warm, so only what came out is copied to fresh memory.
    scratch: Vec<u8>,
    messages: u64,
    stored: u64,
    bytes_before: u64,
    bytes_after: u64,
    /// What compressing takes by the constants, where they are known.
    work_ns: f64,
}

impl Source {
    pub(super) fn new(options: &Options) -> Result<Self, StageError> {
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
            scratch: Vec::new(),
            messages: 0,
            stored: 0,
            bytes_before: 0,
            bytes_after: 0,
            work_ns: 0.0,
        })
    }

    /// The rung that is in use, if it is one.
    fn effort(&self) -> Option<&'static Effort> {
        match &self.way {
            Way::Fixed(effort, ..) => *effort,
            Way::Auto(auto) => Some(auto.effort()),
        }
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
        let room = match &self.way {
            Way::Fixed(.., encoder) => encoder.room(before),
            Way::Auto(auto) => auto.room(before),
        };
        if self.scratch.len() < room {
            self.scratch.resize(room, 0);
        }
        let into = &mut self.scratch[..room];
        let made = match &mut self.way {
            Way::Fixed(_, method, encoder) => encoder
                .encode(message.body.as_slice(), into)
                .filter(|after| is_worth(*after, before))
                .map(|after| (*method, after)),
            Way::Auto(auto) => {
                auto.handle_message(message.created, now);
                auto.encode(message.body.as_slice(), into)
            }
        };
        if let Some(effort) = self.effort() {
            let after = made.map_or(before, |(_, after)| after);
            self.work_ns += effort.work_ns(before, after)[0];
        }
        let small = made.map(|(method, after)| (method, Bytes::copy_from_slice(&self.scratch[..after])));
        if let Way::Auto(auto) = &mut self.way {
            self.work_ns += auto.try_neighbour(message.body.as_slice(), &mut self.scratch[..room]);
        }
        match small {
            Some((method, body)) => {
                message.body = body.into();
                message.body.push_front(&(before as u32).to_le_bytes());
                message.body.push_front(&[method as u8]);
            }
            None => {
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
            ("ratio", self.bytes_before as f64 / self.bytes_after.max(1) as f64),
        ];
        if self.effort().is_some() {
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
