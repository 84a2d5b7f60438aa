//! The sink half for `join=true`: merges all ways into one ordered flow.

use super::header::Header;
use super::{Mode, ways};
use crate::checkpoint::{CheckpointReader, CheckpointWriter};
use crate::reorder_buffer::{Admission, IMPOSSIBLE, ReorderBuffer};
use crate::sequence::Position;
use contract::{Body, Message, Options, Outbox, Port, Report, Stage, StageError, StageResult, Time};

const INCOMPLETE: &str = "incomplete in time";
const SENT_BEFORE_START: &str = "copy of a message sent before this half started";
const OLD_START: &str = "from before the source restarted";

pub(super) struct Sink {
    ways: u16,
    mode: Mode,
    buffer: ReorderBuffer,
    /// Abandoned messages already counted as drops.
    abandoned_counted: u64,
    repeated: u64,
    /// A bit for each way that brought a message.
    ways_seen: u64,
    /// A bit for each input port that ended.
    ports_ended: u64,
    /// True if one input port brings several ways, as in a pipeline of one flow.
    is_one_flow: bool,
    /// True until the first message is accepted. Until then, later copies of the message
    /// `sent_before_start` are dropped.
    is_new: bool,
    sent_before_start: Option<(u32, u64)>,
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        let (ways, mode) = (ways(options), Mode::of(options));
        let parts = if mode == Mode::Split { usize::from(ways) } else { 1 };
        let (window, wait) = (options.count("window"), options.duration("wait"));
        Sink {
            ways,
            mode,
            buffer: ReorderBuffer::new(parts, window, wait),
            abandoned_counted: 0,
            repeated: 0,
            ways_seen: 0,
            ports_ended: 0,
            is_one_flow: false,
            is_new: true,
            sent_before_start: None,
        }
    }

    /// In a pipeline of one flow, the copies of a message follow one another. If the first copy
    /// that a half sees is a later one, the half was restarted between the copies, and its
    /// predecessor sent the message. Returns true for such a copy.
    fn is_copy_from_before_start(&mut self, header: Header, port: Port, out: &mut Outbox) -> bool {
        let Header { start, sequence, way } = header;
        let place = (start, sequence);
        let is_copy = self.mode == Mode::All && way > 0 && port == Port::MAIN;
        if !is_copy || self.sent_before_start.is_some_and(|known| known != place) {
            return false;
        }
        if self.sent_before_start.replace(place).is_none() {
            out.drop_counted(SENT_BEFORE_START, 1);
        }
        true
    }

    /// Counts the messages abandoned since the last call as drops.
    fn count_abandoned(&mut self, out: &mut Outbox) {
        let abandoned = self.buffer.abandoned();
        out.drop_counted(INCOMPLETE, abandoned - self.abandoned_counted);
        self.abandoned_counted = abandoned;
    }
}

impl Stage for Sink {
    fn handle(&mut self, port: Port, mut message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let Header { start, sequence, way } = Header::take(&mut message.body, self.ways)?;
        self.ways_seen |= 1 << way;
        self.is_one_flow |= u16::from(way) != port.0;
        if self.is_new && self.is_copy_from_before_start(Header { start, sequence, way }, port, out) {
            return Ok(());
        }
        self.is_new = false;
        let part = if self.mode == Mode::Split { usize::from(way) } else { 0 };
        match self.buffer.push(Position { start, sequence, part }, message, now, out) {
            Admission::Accepted => {}
            // A copy came by another way before, or the message was counted when it was abandoned.
            Admission::Late => self.repeated += 1,
            Admission::Stale => out.drop_counted(OLD_START, 1),
            Admission::Impossible => return Err(StageError::Input(IMPOSSIBLE.into())),
            Admission::TooLarge => {
                return Err(StageError::Input("its parts together exceed the largest body".into()));
            }
        }
        self.count_abandoned(out);
        Ok(())
    }

    fn handle_end(&mut self, port: Port, _now: Time, out: &mut Outbox) -> StageResult {
        self.ports_ended |= 1u64.checked_shl(port.0.into()).unwrap_or(0);
        // While another way continues, it may bring the missing messages.
        if self.is_one_flow || self.ports_ended.count_ones() == u32::from(self.ways) {
            self.buffer.flush(out);
            self.count_abandoned(out);
        }
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.buffer.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        self.buffer.handle_timeout(now, out);
        self.count_abandoned(out);
        Ok(())
    }

    fn held(&self) -> usize {
        self.buffer.held()
    }

    fn checkpoint(&self) -> Option<Body> {
        let mut checkpoint = CheckpointWriter::default();
        checkpoint.put([self.is_new.into(), self.is_one_flow.into()]);
        let mut all = checkpoint.finish();
        all.append(self.buffer.checkpoint());
        Some(all)
    }

    fn restore(&mut self, checkpoint: Body) -> StageResult {
        let mut reader = CheckpointReader(checkpoint);
        self.is_new = reader.number_below(2)? == 1;
        self.is_one_flow = reader.number_below(2)? == 1;
        self.buffer.restore(reader.0)
    }

    fn report(&self) -> Vec<Report> {
        let mut figures = self.buffer.figures();
        figures
            .extend([("repeated", self.repeated as f64), ("ways", f64::from(self.ways_seen.count_ones()))]);
        figures
    }
}
