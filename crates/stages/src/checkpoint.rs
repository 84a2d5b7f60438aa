//! What a stage remembers, as bytes for another process: numbers, and bodies, which are shared.

use crate::varint;
use contract::{Body, Message, StageError, Time};

/// A checkpoint that is being written.
#[derive(Debug, Default)]
pub(crate) struct Checkpoint {
    body: Body,
    numbers: Vec<u8>,
}

impl Checkpoint {
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

    /// Appends a message, but for its attributes.
    pub(crate) fn put_message(&mut self, message: &Message) {
        self.put([message.created.0]);
        self.put_body(&message.body);
    }

    /// What was written.
    pub(crate) fn finish(mut self) -> Body {
        self.body.push(self.numbers.into());
        self.body
    }
}

/// A checkpoint that is being read. It comes from another process: whatever it says may be wrong.
#[derive(Debug)]
pub(crate) struct Remembered(pub(crate) Body);

impl Remembered {
    /// The next number.
    pub(crate) fn number(&mut self) -> Result<u64, StageError> {
        varint::take(&mut self.0).ok_or_else(wrong)
    }

    /// The next number, less than `end`.
    pub(crate) fn number_below(&mut self, end: u64) -> Result<u64, StageError> {
        self.number().and_then(|number| if number < end { Ok(number) } else { Err(wrong()) })
    }

    /// The next body.
    pub(crate) fn body(&mut self) -> Result<Body, StageError> {
        let bytes = usize::try_from(self.number()?).map_err(|_| wrong())?;
        self.0.split_off_front(bytes).ok_or_else(wrong)
    }

    /// The next message.
    pub(crate) fn message(&mut self) -> Result<Message, StageError> {
        Ok(Message::new(Time(self.number()?), self.body()?))
    }

    /// Whether there is no more.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What is said of a checkpoint that no stage of this kind would have written.
pub(crate) fn wrong() -> StageError {
    StageError::Input("the checkpoint is cut short, or says what cannot be".into())
}
