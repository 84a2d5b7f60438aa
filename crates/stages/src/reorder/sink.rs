//! The half that restores the order: a [`ReorderBuffer`].

use crate::reorder_buffer::{Admission, IMPOSSIBLE, ReorderBuffer};
use crate::sequence::Position;
use contract::{Body, Message, Options, Outbox, Port, Report, Stage, StageError, StageResult, Time};

const LATE_OR_DUPLICATE: &str = "late or duplicate";
const OLD_START: &str = "from before the source restarted";

pub(super) struct Sink {
    buffer: ReorderBuffer,
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        let (window, wait) = (options.count("window"), options.duration("wait"));
        Sink { buffer: ReorderBuffer::new(1, window, wait) }
    }
}

impl Stage for Sink {
    fn handle(&mut self, _port: Port, mut message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let short = || StageError::Input("its header is cut short".into());
        let start = message.body.take_front().map(u32::from_le_bytes).ok_or_else(short)?;
        let sequence = message.body.take_front().map(u64::from_le_bytes).ok_or_else(short)?;
        match self.buffer.push(Position { start, sequence, part: 0 }, message, now, out) {
            Admission::Late => out.drop_counted(LATE_OR_DUPLICATE, 1),
            Admission::Stale => out.drop_counted(OLD_START, 1),
            Admission::Impossible => return Err(StageError::Input(IMPOSSIBLE.into())),
            // A message in one part has no other parts that could make it too large.
            Admission::Accepted | Admission::TooLarge => {}
        }
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> StageResult {
        self.buffer.flush(out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.buffer.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        self.buffer.handle_timeout(now, out);
        Ok(())
    }

    fn held(&self) -> usize {
        self.buffer.held()
    }

    fn checkpoint(&self) -> Option<Body> {
        Some(self.buffer.checkpoint())
    }

    fn restore(&mut self, checkpoint: Body) -> StageResult {
        self.buffer.restore(checkpoint)
    }

    fn report(&self) -> Vec<Report> {
        self.buffer.figures()
    }
}
