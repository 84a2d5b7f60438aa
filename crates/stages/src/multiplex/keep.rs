//! The sink half for `join=false`: passes on each message of its way at once, and drops duplicates.

use super::header::Header;
use super::{Mode, ways};
use crate::reorder_buffer::IMPOSSIBLE;
use crate::sequence::{Position, SequenceTracker, Verdict};
use contract::{Message, Options, Outbox, Port, Report, Stage, StageError, StageResult, Time};
use std::collections::VecDeque;

const OLD_START: &str = "from before the source restarted";
const TOO_LATE: &str = "too late to tell from a duplicate";

pub(super) struct Sink {
    ways: u16,
    mode: Mode,
    window: usize,
    tracker: SequenceTracker,
    /// Number of the first entry of `seen`.
    first: u64,
    /// A bit for each part that arrived, by message number.
    seen: VecDeque<u64>,
    released: u64,
    repeated: u64,
    restarts: u64,
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        let window = options.count("window");
        Sink {
            ways: ways(options),
            mode: Mode::of(options),
            window,
            tracker: SequenceTracker::new(window, options.duration("wait")),
            first: 0,
            seen: VecDeque::new(),
            released: 0,
            repeated: 0,
            restarts: 0,
        }
    }

    /// Moves to a new position. A confirmed `candidate` was released when it came, so it is marked
    /// as seen.
    fn resync(&mut self, position: Position, candidate: Option<Position>, previous_start: Option<u32>) {
        self.restarts += u64::from(previous_start.is_some_and(|start| start != position.start));
        self.seen.clear();
        // The first to arrive may have overtaken others.
        self.first = position.sequence.saturating_sub(self.window as u64 - 1);
        if let Some(candidate) = candidate {
            self.first = self.first.min(candidate.sequence);
            if let Some(seen) = self.seen(candidate.sequence) {
                *seen |= 1 << candidate.part;
            }
        }
    }

    /// The parts of a message that arrived; `None` if the message is older than the window.
    fn seen(&mut self, sequence: u64) -> Option<&mut u64> {
        if sequence.checked_sub(self.first)? >= 2 * self.window as u64 {
            self.seen.clear();
            self.first = sequence;
        }
        // Less than two windows, which fit.
        let mut index = (sequence - self.first) as usize;
        if index >= self.seen.len() {
            self.seen.resize(index + 1, 0);
        }
        let excess = self.seen.len().saturating_sub(self.window);
        self.seen.drain(..excess);
        self.first += excess as u64;
        index -= excess;
        self.seen.get_mut(index)
    }
}

impl Stage for Sink {
    fn handle(&mut self, _port: Port, mut message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let Header { start, sequence, way } = Header::take(&mut message.body, self.ways)?;
        let part = if self.mode == Mode::Split { usize::from(way) } else { 0 };
        let position = Position { start, sequence, part };
        let is_candidate = self.tracker.candidate() == Some(position);
        let next = self.first.saturating_add(self.seen.len() as u64);
        match self.tracker.classify(position, next, now) {
            Verdict::InWindow => {}
            Verdict::Resync { candidate, previous_start } => self.resync(position, candidate, previous_start),
            // A second copy of the candidate is a duplicate wherever the flow continues.
            Verdict::Unconfirmed if is_candidate => {
                self.repeated += 1;
                return Ok(());
            }
            Verdict::Unconfirmed => {
                self.released += 1;
                out.send(Port::MAIN, message);
                return Ok(());
            }
            Verdict::Behind => {
                out.drop_counted(if self.tracker.is_current_start(start) { TOO_LATE } else { OLD_START }, 1);
                return Ok(());
            }
            Verdict::Impossible => return Err(StageError::Input(IMPOSSIBLE.into())),
        }
        let bit = 1 << part;
        match self.seen(sequence) {
            None => out.drop_counted(TOO_LATE, 1),
            Some(seen) if *seen & bit != 0 => self.repeated += 1,
            Some(seen) => {
                *seen |= bit;
                self.released += 1;
                out.send(Port::MAIN, message);
            }
        }
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("released", self.released as f64),
            ("repeated", self.repeated as f64),
            ("restarts", self.restarts as f64),
        ]
    }
}
