//! The half at which the ways meet again.

use super::header::Header;
use super::{Mode, ways};
use crate::checkpoint::{Checkpoint, Remembered};
use crate::course::Place;
use crate::turns::{NOWHERE, Turn, Turns};
use contract::{Body, Message, Options, Outbox, Port, Report, Stage, StageError, Time};

const MISSING: &str = "not all of it came in time";
const CAME_BEFORE: &str = "its first copy went before this half was there";
const OLD_START: &str = "from before the source started anew";

pub(super) struct Sink {
    ways: u16,
    mode: Mode,
    turns: Turns,
    /// Messages given up that were counted.
    counted: u64,
    repeated: u64,
    /// Ways that were heard, and input ports that ended: a bit each.
    heard: u64,
    ended: u64,
    /// One input port brings several ways.
    is_one_flow: bool,
    /// Nothing was taken yet; of this message a later copy came.
    is_new: bool,
    came_before: Option<(u32, u64)>,
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        let (ways, mode) = (ways(options), Mode::of(options));
        let parts = if mode == Mode::Split { usize::from(ways) } else { 1 };
        let (window, wait) = (options.count("window"), options.duration("wait"));
        Sink {
            ways,
            mode,
            turns: Turns::new(parts, window, wait, options.size("held_bytes")),
            counted: 0,
            repeated: 0,
            heard: 0,
            ended: 0,
            is_one_flow: false,
            is_new: true,
            came_before: None,
        }
    }

    /// In one flow the copies of a message go one behind the other. A half that finds a later one first was made anew
    /// in between: the message came.
    fn passes(&mut self, header: Header, port: Port, out: &mut Outbox) -> bool {
        let Header { start, sequence, way } = header;
        let place = (start, sequence);
        let is_copy = self.mode == Mode::All && way > 0 && port == Port::MAIN;
        if !is_copy || self.came_before.is_some_and(|known| known != place) {
            return false;
        }
        if self.came_before.replace(place).is_none() {
            out.drop_counted(CAME_BEFORE, 1);
        }
        true
    }

    /// Counts what was given up since.
    fn count_missing(&mut self, out: &mut Outbox) {
        let missing = self.turns.missing();
        out.drop_counted(MISSING, missing - self.counted);
        self.counted = missing;
    }
}

impl Stage for Sink {
    fn handle(
        &mut self,
        port: Port,
        mut message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let Header { start, sequence, way } = Header::take(&mut message.body, self.ways)?;
        self.heard |= 1 << way;
        self.is_one_flow |= u16::from(way) != port.0;
        if self.is_new && self.passes(Header { start, sequence, way }, port, out) {
            return Ok(());
        }
        self.is_new = false;
        let part = if self.mode == Mode::Split { usize::from(way) } else { 0 };
        match self.turns.take(Place { start, sequence, part }, message, now, out) {
            Turn::Taken => {}
            // It came another way before, or was counted when it was given up.
            Turn::Past => self.repeated += 1,
            Turn::Stale => out.drop_counted(OLD_START, 1),
            Turn::Nowhere => return Err(StageError::Input(NOWHERE.into())),
            Turn::TooLarge => {
                return Err(StageError::Input("its parts together are larger than a body may be".into()));
            }
        }
        self.count_missing(out);
        Ok(())
    }

    fn handle_end(&mut self, port: Port, _now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.ended |= 1u64.checked_shl(port.0.into()).unwrap_or(0);
        // While another way goes on, it may bring what is missing.
        if self.is_one_flow || self.ended.count_ones() == u32::from(self.ways) {
            self.turns.flush(out);
            self.count_missing(out);
        }
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.turns.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.turns.handle_timeout(now, out);
        self.count_missing(out);
        Ok(())
    }

    fn held(&self) -> usize {
        self.turns.held()
    }

    fn checkpoint(&self) -> Option<Body> {
        let mut checkpoint = Checkpoint::default();
        checkpoint.put([self.is_new.into(), self.is_one_flow.into()]);
        let mut all = checkpoint.finish();
        all.append(self.turns.checkpoint());
        Some(all)
    }

    fn restore(&mut self, checkpoint: Body) -> Result<(), StageError> {
        let mut remembered = Remembered(checkpoint);
        self.is_new = remembered.number_below(2)? == 1;
        self.is_one_flow = remembered.number_below(2)? == 1;
        self.turns.restore(remembered.0)
    }

    fn report(&self) -> Vec<Report> {
        let mut figures = self.turns.figures();
        figures.extend([("repeated", self.repeated as f64), ("ways", f64::from(self.heard.count_ones()))]);
        figures
    }
}
