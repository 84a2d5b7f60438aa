//! The half that collects messages into bundles.

use super::count::Count;
use super::{COUNT_BYTES, ENTRY_BYTES};
use contract::{
    Attributes, Body, Bytes, Choice, Feedback, Message, Options, Outbox, Port, Report, Stage, StageError,
    StageResult, Time,
};
use std::time::Duration;

/// Bytes of bodies in a bundle, at most.
const BYTES_MAX: usize = 1 << 20;

pub(super) struct Source {
    count: Count,
    wait: Duration,
    held: Vec<Message>,
    bytes: usize,
    deadline: Option<Time>,
    bundles: u64,
    messages: u64,
}

impl Source {
    pub(super) fn new(options: &Options) -> Self {
        Source {
            count: Count::new(options),
            wait: options.duration("wait"),
            held: Vec::new(),
            bytes: 0,
            deadline: None,
            bundles: 0,
            messages: 0,
        }
    }

    fn send(&mut self, out: &mut Outbox) {
        let Some(first) = self.held.first() else { return };
        let (created, attributes) = (first.created, bundle_attributes(&self.held));
        let mut header = Vec::with_capacity(COUNT_BYTES + ENTRY_BYTES * self.held.len());
        header.extend_from_slice(&(self.held.len() as u16).to_le_bytes());
        for message in &self.held {
            header.extend_from_slice(&message.created.signed_since(created).to_le_bytes());
            header.extend_from_slice(&(message.body.len() as u32).to_le_bytes());
        }
        self.bundles += 1;
        self.messages += self.held.len() as u64;
        let mut body = Body::from(Bytes::from(header));
        self.held.drain(..).for_each(|message| body.append(message.body));
        self.bytes = 0;
        self.deadline = None;
        out.send(Port::MAIN, Message { created, attributes, body });
    }
}

/// Attributes of a bundle: as urgent as its most urgent message, droppable only if all are.
fn bundle_attributes(held: &[Message]) -> Attributes {
    let all = || held.iter().map(|message| message.attributes);
    let key = held.first().and_then(|first| first.attributes.key);
    Attributes {
        deadline: all().filter_map(|a| a.deadline).min(),
        priority: all().map(|a| a.priority).max().unwrap_or(0),
        key: key.filter(|_| all().all(|a| a.key == key)),
        droppable: all().all(|a| a.droppable),
        stale: all().all(|a| a.stale),
        mark: held.first().map_or(0, |first| first.attributes.mark),
    }
}

impl Stage for Source {
    fn handle(&mut self, _port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let bytes = message.body.len();
        if bytes + COUNT_BYTES + ENTRY_BYTES > wire::BODY_BYTES_MAX {
            return Err(StageError::TooLarge { what: "a bundle", bytes, limit: wire::BODY_BYTES_MAX });
        }
        if self.bytes + bytes > BYTES_MAX {
            self.send(out);
        }
        self.deadline.get_or_insert(now.after(self.wait));
        self.bytes += bytes;
        self.count.add_message(bytes, message.created, now);
        self.held.push(message);
        if self.held.len() >= self.count.get() || self.bytes > BYTES_MAX {
            self.send(out);
        }
        Ok(())
    }

    fn handle_control(&mut self, control: &[u8], now: Time, _out: &mut Outbox) -> StageResult {
        self.count.handle_report(control, now)
    }

    fn handle_feedback(&mut self, feedback: &Feedback, now: Time, _out: &mut Outbox) -> StageResult {
        self.count.handle_feedback(feedback, now);
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> StageResult {
        self.send(out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.deadline
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.send(out);
        }
        Ok(())
    }

    fn kept(&self) -> usize {
        self.held.len()
    }

    fn report(&self) -> Vec<Report> {
        vec![("bundles", self.bundles as f64), ("messages", self.messages as f64)]
    }

    fn choices(&self) -> Vec<Choice> {
        self.count.choice().into_iter().collect()
    }
}
