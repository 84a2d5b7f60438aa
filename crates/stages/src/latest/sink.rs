//! The half that acknowledges messages.

use crate::varint;
use contract::{Message, Outbox, Port, Report, Stage, StageError, StageResult, Time};

#[derive(Default)]
pub(super) struct Sink {
    messages: u64,
}

impl Stage for Sink {
    fn handle(&mut self, port: Port, mut message: Message, _now: Time, out: &mut Outbox) -> StageResult {
        let sequence = varint::take(&mut message.body);
        let next = sequence.and_then(|sequence| sequence.checked_add(1));
        let next = next.ok_or_else(|| StageError::Input("it has no sequence number".into()))?;
        // The messages before this one arrived or are lost. Each message is acknowledged on its
        // own, without remembering a maximum: then a number altered on the way misleads only once.
        out.control(next.to_le_bytes().to_vec());
        self.messages += 1;
        out.send(port, message);
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        vec![("messages", self.messages as f64)]
    }
}
