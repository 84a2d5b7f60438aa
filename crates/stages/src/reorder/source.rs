//! The half that numbers the messages.

use contract::{Message, Outbox, Port, Stage, StageResult, Time};

#[derive(Default)]
pub(super) struct Source {
    start: Option<u32>,
    sequence: u64,
}

impl Stage for Source {
    fn handle(&mut self, port: Port, mut message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let start = *self.start.get_or_insert((now.0 / 1_000_000) as u32);
        message.body.push_front(&self.sequence.to_le_bytes());
        message.body.push_front(&start.to_le_bytes());
        self.sequence += 1;
        out.send(port, message);
        Ok(())
    }
}
