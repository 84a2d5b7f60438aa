//! The half that sends parity along.

use super::GROUPS_HELD;
use super::header::{Header, Part, put_shard, shard_bytes};
use super::strength::Strength;
use contract::{
    Body, Bytes, Choice, Feedback, Message, Options, Outbox, Port, Report, Stage, StageError, Time, Value,
};
use reed_solomon_simd::ReedSolomonEncoder;
use std::time::Duration;

/// Bytes of the longer header.
const HEADER_BYTES: usize = 22;

/// The messages sent since the last parity.
struct Group {
    /// The number of the first.
    first: u64,
    created: Time,
    /// How many parity messages will follow.
    parity: u8,
    /// Whether it began while messages took longer than usual.
    is_slow: bool,
    due: Time,
    /// Creation after the first, and the body.
    messages: Vec<(i64, Body)>,
    longest: usize,
}

pub(super) struct Source {
    half: u32,
    data: usize,
    wait: Duration,
    limit: usize,
    bytes_max: usize,
    strength: Strength,
    group: Option<Group>,
    encoder: Option<ReedSolomonEncoder>,
    shard: Vec<u8>,
    messages: u64,
    groups: u64,
    parities: u64,
    unprotected: u64,
}

impl Source {
    pub(super) fn new(options: &Options, seed: [u8; 32]) -> Self {
        let [a, b, c, d, ..] = seed;
        Source {
            half: u32::from_le_bytes([a, b, c, d]),
            data: options.count("data"),
            wait: options.duration("wait"),
            limit: options.size("limit"),
            bytes_max: options.size("held_bytes") / GROUPS_HELD,
            strength: Strength::new(options),
            group: None,
            encoder: None,
            shard: Vec::new(),
            messages: 0,
            groups: 0,
            parities: 0,
            unprotected: 0,
        }
    }

    /// Ends the group: its parity goes out.
    fn close(&mut self, out: &mut Outbox) -> Result<(), StageError> {
        let Some(group) = self.group.take() else { return Ok(()) };
        self.groups += 1;
        if group.parity == 0 {
            return Ok(());
        }
        let own = |error: reed_solomon_simd::Error| StageError::Own(format!("Reed-Solomon: {error}"));
        let (data, parity) = (group.messages.len(), usize::from(group.parity));
        let bytes = shard_bytes(group.longest);
        let encoder = match &mut self.encoder {
            Some(encoder) => {
                encoder.reset(data, parity, bytes).map_err(own)?;
                encoder
            }
            none => none.insert(ReedSolomonEncoder::new(data, parity, bytes).map_err(own)?),
        };
        self.shard.resize(bytes, 0);
        for (after, body) in &group.messages {
            put_shard(*after, body, &mut self.shard);
            encoder.add_original_shard(&self.shard).map_err(own)?;
        }
        for (place, shard) in (0..).zip(encoder.encode().map_err(own)?.recovery_iter()) {
            let mut body = Body::from(Bytes::copy_from_slice(shard));
            // Both counts are at most their options', which fit.
            let part = Part::Parity { place, data: data as u8 };
            let Group { first, parity, is_slow, .. } = group;
            Header { half: self.half, group: first, parity, is_slow, part }.put(&mut body);
            let mut message = Message::new(group.created, body);
            message.attributes.droppable = true;
            out.send(Port::MAIN, message);
            self.parities += 1;
        }
        Ok(())
    }

    fn begin(&self, created: Time, now: Time, parity: u8) -> Group {
        let due = now.after(self.wait);
        let is_slow = self.strength.is_slow();
        Group { first: self.messages, created, parity, is_slow, due, messages: Vec::new(), longest: 0 }
    }

    /// Sends a message as the next of `group`.
    fn send(&mut self, group: &mut Group, message: Message, out: &mut Outbox) {
        let Message { created, attributes, mut body } = message;
        let after = created.signed_since(group.created);
        let place = (self.messages - group.first) as u8;
        group.longest = group.longest.max(body.len());
        // Without parity nothing is kept, so that who comes next may write over the body.
        let kept = if group.parity > 0 { body.clone() } else { Body::new() };
        group.messages.push((after, kept));
        let part = Part::Data { place, after };
        let Group { first, parity, is_slow, .. } = *group;
        Header { half: self.half, group: first, parity, is_slow, part }.put(&mut body);
        self.messages += 1;
        out.send(Port::MAIN, Message { created, attributes, body });
    }
}

impl Stage for Source {
    fn handle(
        &mut self,
        _port: Port,
        message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let bytes = message.body.len();
        if bytes + HEADER_BYTES > wire::BODY_BYTES_MAX {
            let limit = wire::BODY_BYTES_MAX;
            return Err(StageError::TooLarge { what: "the message with its header", bytes, limit });
        }
        let fits = |group: &Group| {
            let shard = shard_bytes(group.longest.max(bytes));
            bytes <= self.limit && (group.messages.len() + 1) * shard <= self.bytes_max
        };
        if self.group.as_ref().is_some_and(|group| !fits(group)) {
            self.close(out)?;
        }
        if bytes > self.limit {
            self.unprotected += 1;
            let mut alone = self.begin(message.created, now, 0);
            self.send(&mut alone, message, out);
            return Ok(());
        }
        let mut group = match self.group.take() {
            Some(group) => group,
            None => self.begin(message.created, now, self.strength.parity()),
        };
        self.send(&mut group, message, out);
        let is_full = group.messages.len() == self.data;
        self.group = Some(group);
        if is_full { self.close(out) } else { Ok(()) }
    }

    fn handle_control(&mut self, control: &[u8], now: Time, _out: &mut Outbox) -> Result<(), StageError> {
        self.strength.handle_report(control, now)
    }

    fn handle_feedback(
        &mut self,
        feedback: &Feedback,
        _now: Time,
        _out: &mut Outbox,
    ) -> Result<(), StageError> {
        self.strength.handle_feedback(feedback);
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.close(out)
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.group.as_ref().map(|group| group.due)
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        match self.poll_timeout() {
            Some(due) if due <= now => self.close(out),
            _ => Ok(()),
        }
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("messages", self.messages as f64),
            ("groups", self.groups as f64),
            ("parity", f64::from(self.strength.parity())),
            ("parity_messages", self.parities as f64),
            ("unprotected", self.unprotected as f64),
        ]
    }

    fn choices(&self) -> Vec<Choice> {
        let chosen =
            |why| Choice { option: "parity", value: Value::Integer(self.strength.parity().into()), why };
        self.strength.why().map(chosen).into_iter().collect()
    }
}
