//! The half at one of several sinks: what came this way goes on at once.

use super::header::Header;
use super::{Mode, ways};
use crate::course::{Course, Fit, Place};
use crate::turns::NOWHERE;
use contract::{Message, Options, Outbox, Port, Report, Stage, StageError, Time};
use std::collections::VecDeque;

const OLD_START: &str = "from before the source started anew";
const TOO_LATE: &str = "came too late to know whether it came before";

pub(super) struct Sink {
    ways: u16,
    mode: Mode,
    window: usize,
    course: Course,
    /// The number of the first of `seen`.
    first: u64,
    /// What came of each message, by number: a bit for each part.
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
            course: Course::new(window, options.duration("wait")),
            first: 0,
            seen: VecDeque::new(),
            released: 0,
            repeated: 0,
            restarts: 0,
        }
    }

    /// Begins where this place is; a `rival` said so before it, and was released.
    fn begin(&mut self, place: Place, rival: Option<Place>, before: Option<u32>) {
        self.restarts += u64::from(before.is_some_and(|before| before != place.start));
        self.seen.clear();
        // What came first may have overtaken others.
        self.first = place.sequence.saturating_sub(self.window as u64 - 1);
        if let Some(rival) = rival {
            self.first = self.first.min(rival.sequence);
            if let Some(seen) = self.seen(rival.sequence) {
                *seen |= 1 << rival.part;
            }
        }
    }

    /// What came of this message; `None` if that is forgotten.
    fn seen(&mut self, sequence: u64) -> Option<&mut u64> {
        if sequence.checked_sub(self.first)? >= 2 * self.window as u64 {
            self.seen.clear();
            self.first = sequence;
        }
        // Within two windows, which fit.
        let mut place = (sequence - self.first) as usize;
        if place >= self.seen.len() {
            self.seen.resize(place + 1, 0);
        }
        let forgotten = self.seen.len().saturating_sub(self.window);
        self.seen.drain(..forgotten);
        self.first += forgotten as u64;
        place -= forgotten;
        self.seen.get_mut(place)
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
        let Header { start, sequence, way } = Header::take(&mut message.body, self.ways)?;
        let part = if self.mode == Mode::Split { usize::from(way) } else { 0 };
        let place = Place { start, sequence, part };
        let was_doubted = self.course.rival() == Some(place);
        let next = self.first.saturating_add(self.seen.len() as u64);
        match self.course.see(place, next, now) {
            Fit::Near => {}
            Fit::Begins { rival, before } => self.begin(place, rival, before),
            // Whether it came before is the same wherever the flow stands.
            Fit::Doubtful if was_doubted => {
                self.repeated += 1;
                return Ok(());
            }
            Fit::Doubtful => {
                self.released += 1;
                out.send(Port::MAIN, message);
                return Ok(());
            }
            Fit::Behind => {
                out.drop_counted(if self.course.is_of(start) { TOO_LATE } else { OLD_START }, 1);
                return Ok(());
            }
            Fit::Nowhere => return Err(StageError::Input(NOWHERE.into())),
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
