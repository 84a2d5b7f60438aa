//! The byte format of a stage's state ([`Stage::checkpoint`](contract::Stage::checkpoint)): numbers
//! (LEB128) and bodies. Bodies are shared, not copied.

use crate::varint;
use contract::{Body, Message, StageError, StageResult, Time};

/// Writes a checkpoint.
#[derive(Debug, Default)]
pub(crate) struct CheckpointWriter {
    body: Body,
    numbers: Vec<u8>,
}

impl CheckpointWriter {
    /// Appends numbers.
    pub(crate) fn put(&mut self, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|number| varint::put(&mut self.numbers, number));
    }

    /// Appends a body.
    pub(crate) fn put_body(&mut self, body: &Body) {
        self.put([body.len() as u64]);
        self.body.push(std::mem::take(&mut self.numbers).into());
        self.body.append(body.clone());
    }

    /// Appends a message without its attributes.
    pub(crate) fn put_message(&mut self, message: &Message) {
        self.put([message.created.0]);
        self.put_body(&message.body);
    }

    /// The finished checkpoint.
    pub(crate) fn finish(mut self) -> Body {
        self.body.push(self.numbers.into());
        self.body
    }
}

/// Reads a checkpoint. It comes from another process, so every value in it may be wrong.
#[derive(Debug)]
pub(crate) struct CheckpointReader(pub(crate) Body);

impl CheckpointReader {
    /// The next number.
    pub(crate) fn number(&mut self) -> StageResult<u64> {
        varint::take(&mut self.0).ok_or_else(malformed)
    }

    /// The next number, less than `end`.
    pub(crate) fn number_below(&mut self, end: u64) -> StageResult<u64> {
        self.number().and_then(|number| if number < end { Ok(number) } else { Err(malformed()) })
    }

    /// The next body.
    pub(crate) fn body(&mut self) -> StageResult<Body> {
        let bytes = usize::try_from(self.number()?).map_err(|_| malformed())?;
        self.0.split_off_front(bytes).ok_or_else(malformed)
    }

    /// The next message.
    pub(crate) fn message(&mut self) -> StageResult<Message> {
        Ok(Message::new(Time(self.number()?), self.body()?))
    }

    /// True if everything was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The error for a checkpoint that no stage of this kind writes.
pub(crate) fn malformed() -> StageError {
    StageError::Input("the checkpoint is cut short or holds an impossible value".into())
}
