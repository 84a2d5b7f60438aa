//! The half that holds what is ahead of its turn.

use crate::course::Place;
use crate::turns::{NOWHERE, Turn, Turns};
use contract::{Body, Message, Options, Outbox, Port, Report, Stage, StageError, Time};

const LATE: &str = "came after its turn, or twice";
const OLD_START: &str = "from before the source started anew";

pub(super) struct Sink {
    turns: Turns,
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        let (window, wait) = (options.count("window"), options.duration("wait"));
        Sink { turns: Turns::new(1, window, wait, options.size("held_bytes")) }
    }
}

impl Stage for Sink {
    fn handle(
        &mut self,
        _port: Port,
        mut message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let short = || StageError::Input("its header is cut short".into());
        let start = message.body.take_front().map(u32::from_le_bytes).ok_or_else(short)?;
        let sequence = message.body.take_front().map(u64::from_le_bytes).ok_or_else(short)?;
        match self.turns.take(Place { start, sequence, part: 0 }, message, now, out) {
            Turn::Past => out.drop_counted(LATE, 1),
            Turn::Stale => out.drop_counted(OLD_START, 1),
            Turn::Nowhere => return Err(StageError::Input(NOWHERE.into())),
            // A message in one part is never too large with its others.
            Turn::Taken | Turn::TooLarge => {}
        }
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.turns.flush(out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.turns.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.turns.handle_timeout(now, out);
        Ok(())
    }

    fn checkpoint(&self) -> Option<Body> {
        Some(self.turns.checkpoint())
    }

    fn restore(&mut self, checkpoint: Body) -> Result<(), StageError> {
        self.turns.restore(checkpoint)
    }

    fn report(&self) -> Vec<Report> {
        self.turns.figures()
    }
}
