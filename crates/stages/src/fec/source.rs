//! The half that sends messages at once and parity behind each group.

use super::GROUP_BYTES_MAX;
use super::header::{Header, Part, put_shard, shard_bytes};
use super::parity_count::ParityCount;
use contract::{
    Body, Bytes, Choice, Feedback, Message, Options, Outbox, Port, Report, Stage, StageError, StageResult,
    Time, Value,
};
use reed_solomon_simd::ReedSolomonEncoder;
use std::time::Duration;

const HEADER_BYTES: usize = 22;

/// The open group.
struct Group {
    /// Number of its first message.
    first: u64,
    created: Time,
    /// Parity messages that will follow.
    parity: u8,
    /// True if it began while messages took longer than usual.
    is_slow: bool,
    deadline: Time,
    /// Creation time after the first, and body.
    messages: Vec<(i64, Body)>,
    longest: usize,
}

pub(super) struct Source {
    source_id: u32,
    data: usize,
    wait: Duration,
    limit: usize,
    parity_count: ParityCount,
    group: Option<Group>,
    encoder: Option<ReedSolomonEncoder>,
    shard: Vec<u8>,
    messages: u64,
    groups: u64,
    parity_messages: u64,
    unprotected: u64,
}

impl Source {
    pub(super) fn new(options: &Options, seed: [u8; 32]) -> Self {
        let [a, b, c, d, ..] = seed;
        Source {
            source_id: u32::from_le_bytes([a, b, c, d]),
            data: options.count("data"),
            wait: options.duration("wait"),
            limit: options.size("limit"),
            parity_count: ParityCount::new(options),
            group: None,
            encoder: None,
            shard: Vec::new(),
            messages: 0,
            groups: 0,
            parity_messages: 0,
            unprotected: 0,
        }
    }

    /// Closes the group and sends its parity.
    fn close(&mut self, out: &mut Outbox) -> StageResult {
        let Some(group) = self.group.take() else { return Ok(()) };
        self.groups += 1;
        if group.parity == 0 {
            return Ok(());
        }
        let failed = |error: reed_solomon_simd::Error| StageError::Own(format!("Reed-Solomon: {error}"));
        let (data, parity) = (group.messages.len(), usize::from(group.parity));
        let bytes = shard_bytes(group.longest);
        let encoder = match &mut self.encoder {
            Some(encoder) => {
                encoder.reset(data, parity, bytes).map_err(failed)?;
                encoder
            }
            none => none.insert(ReedSolomonEncoder::new(data, parity, bytes).map_err(failed)?),
        };
        self.shard.resize(bytes, 0);
        for (created_after, body) in &group.messages {
            put_shard(*created_after, body, &mut self.shard);
            encoder.add_original_shard(&self.shard).map_err(failed)?;
        }
        for (index, shard) in (0..).zip(encoder.encode().map_err(failed)?.recovery_iter()) {
            let mut body = Body::from(Bytes::copy_from_slice(shard));
            // The ranges of both options fit.
            let part = Part::Parity { index, data: data as u8 };
            let Group { first, parity, is_slow, .. } = group;
            Header { source_id: self.source_id, group: first, parity, is_slow, part }.put(&mut body);
            let mut message = Message::new(group.created, body);
            message.attributes.droppable = true;
            out.send(Port::MAIN, message);
            self.parity_messages += 1;
        }
        Ok(())
    }

    fn open_group(&self, created: Time, now: Time, parity: u8) -> Group {
        let deadline = now.after(self.wait);
        let is_slow = self.parity_count.is_slow();
        Group { first: self.messages, created, parity, is_slow, deadline, messages: Vec::new(), longest: 0 }
    }

    /// Sends a message as the next one of `group`.
    fn send(&mut self, group: &mut Group, message: Message, out: &mut Outbox) {
        let Message { created, attributes, mut body } = message;
        let created_after = created.signed_since(group.created);
        let index = (self.messages - group.first) as u8;
        group.longest = group.longest.max(body.len());
        // Without parity no copy is needed, so the next pair may write to the body in place.
        let kept = if group.parity > 0 { body.clone() } else { Body::new() };
        group.messages.push((created_after, kept));
        let part = Part::Data { index, created_after };
        let Group { first, parity, is_slow, .. } = *group;
        Header { source_id: self.source_id, group: first, parity, is_slow, part }.put(&mut body);
        self.messages += 1;
        out.send(Port::MAIN, Message { created, attributes, body });
    }
}

impl Stage for Source {
    fn handle(&mut self, _port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let bytes = message.body.len();
        if bytes + HEADER_BYTES > wire::BODY_BYTES_MAX {
            let limit = wire::BODY_BYTES_MAX;
            return Err(StageError::TooLarge { what: "the message with its header", bytes, limit });
        }
        let fits = |group: &Group| {
            let shard = shard_bytes(group.longest.max(bytes));
            bytes <= self.limit && (group.messages.len() + 1) * shard <= GROUP_BYTES_MAX
        };
        if self.group.as_ref().is_some_and(|group| !fits(group)) {
            self.close(out)?;
        }
        if bytes > self.limit {
            self.unprotected += 1;
            let mut alone = self.open_group(message.created, now, 0);
            self.send(&mut alone, message, out);
            return Ok(());
        }
        let mut group = match self.group.take() {
            Some(group) => group,
            None => self.open_group(message.created, now, self.parity_count.parity()),
        };
        self.send(&mut group, message, out);
        let is_full = group.messages.len() == self.data;
        self.group = Some(group);
        if is_full { self.close(out) } else { Ok(()) }
    }

    fn handle_control(&mut self, control: &[u8], now: Time, _out: &mut Outbox) -> StageResult {
        self.parity_count.handle_report(control, now)
    }

    fn handle_feedback(&mut self, feedback: &Feedback, _now: Time, _out: &mut Outbox) -> StageResult {
        self.parity_count.handle_feedback(feedback);
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> StageResult {
        self.close(out)
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.group.as_ref().map(|group| group.deadline)
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        match self.poll_timeout() {
            Some(deadline) if deadline <= now => self.close(out),
            _ => Ok(()),
        }
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("messages", self.messages as f64),
            ("groups", self.groups as f64),
            ("parity", f64::from(self.parity_count.parity())),
            ("parity_messages", self.parity_messages as f64),
            ("unprotected", self.unprotected as f64),
        ]
    }

    fn choices(&self) -> Vec<Choice> {
        let choice =
            |why| Choice { option: "parity", value: Value::Integer(self.parity_count.parity().into()), why };
        self.parity_count.why().map(choice).into_iter().collect()
    }
}
