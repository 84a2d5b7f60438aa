//! The half that unpacks, and releases at creation spacing.

use super::count::{AUTO_MAX, BEAT, Word};
use super::growth::Watch;
use super::{COUNT_BYTES, ENTRY_BYTES};
use crate::adaptive::Hold;
use crate::checkpoint::{Checkpoint, Remembered};
use crate::playout::{Playout, STEP_NS, Window, transit};
use contract::{Body, Message, Offset, Options, Outbox, Port, Report, Stage, StageError, Time};
use std::time::Duration;

/// Least time between two words to the source half.
const WORD_INTERVAL: Duration = Duration::from_millis(100);
/// Nothing for so long, and for so many times what is usual, is silence.
const SILENCE: Duration = Duration::from_millis(150);
const SILENT_PERIODS: f64 = 6.0;
/// The longest that messages are held where the count is `auto`, beyond the fastest.
const HOLD_MAX: Duration = Duration::from_secs(2);

pub(super) struct Sink {
    playout: Playout,
    count_max: usize,
    hold: Duration,
    /// Transits of the first messages of the last bundles.
    transits: Window,
    /// The longest time from the first message of a bundle to its last.
    span: i64,
    late: u64,
    /// Where the count is `auto`.
    auto: Option<Auto>,
}

/// What a sink does besides where the source half chooses how many go into a bundle.
struct Auto {
    hold: Hold,
    watch: Watch,
    /// From the first message to the last of the bundle before.
    span: i64,
    /// When the next word may be said.
    word_due: Time,
    beat_due: Time,
    rhythm: Rhythm,
}

/// How often bundles come.
#[derive(Default)]
struct Rhythm {
    last: Option<Time>,
    /// Mean nanoseconds between two.
    period: f64,
    bundles: u32,
}

impl Rhythm {
    fn see(&mut self, now: Time) {
        if let Some(before) = self.last.replace(now) {
            let period = now.since(before).as_nanos() as f64;
            self.period += (period - self.period) / 32.0;
            self.bundles = self.bundles.saturating_add(1);
        }
    }

    /// Whether they come so often that it is odd if none comes for long.
    fn is_dense(&self) -> bool {
        self.bundles >= 64 && self.period * SILENT_PERIODS < SILENCE.as_nanos() as f64
    }

    /// When it is odd that nothing came.
    fn silent_at(&self) -> Option<Time> {
        self.last.filter(|_| self.is_dense()).map(|last| last.after(SILENCE))
    }
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        Sink {
            playout: Playout::new(options.count("held_max"), options.size("held_bytes")),
            count_max: if options.is_auto("count") { AUTO_MAX } else { options.count("count") },
            hold: options.duration("hold"),
            transits: Window::default(),
            span: 0,
            late: 0,
            auto: options.is_auto("count").then(|| Auto {
                hold: Hold::new(HOLD_MAX),
                watch: Watch::default(),
                span: 0,
                word_due: Time::ZERO,
                beat_due: Time::ZERO,
                rhythm: Rhythm::default(),
            }),
        }
    }

    /// Moves the shift where this bundle's first message, of this transit, would be late, or all are early.
    fn anchor(&mut self, transit: i64, span: i64, now: Time) {
        let longer = span.saturating_sub(self.span).max(0);
        self.span = self.span.max(span);
        let (cover, grown) = match i64::try_from(self.hold.as_nanos()).unwrap_or(i64::MAX) {
            0 => (self.span, longer),
            hold => (hold, 0),
        };
        let turned = self.transits.add(transit, now);
        let slowest = self.transits.high().unwrap_or(transit);
        let shift = match self.playout.shift() {
            None => transit.saturating_add(cover),
            Some(shift) if transit > shift => {
                self.late += 1;
                transit.saturating_add(grown)
            }
            Some(shift) => {
                let needed = slowest.saturating_add(cover);
                if turned && shift.saturating_sub(needed) > STEP_NS { needed } else { shift }
            }
        };
        self.playout.set_shift(Some(shift));
    }
}

impl Auto {
    /// The shift to have, where it was `shift` until now: a bundle of these came.
    fn follow(
        &mut self,
        messages: &[Message],
        shift: Option<i64>,
        now: Time,
        out: &mut Outbox,
    ) -> Option<i64> {
        let (first, last) = (messages.first()?, messages.last()?);
        // A count is agreed on as a u16.
        let count = messages.len() as u16;
        self.rhythm.see(now);
        if self.rhythm.is_dense() && now >= self.beat_due {
            self.beat_due = now.after(BEAT);
            out.control(Word::Beat.to_bytes().to_vec());
        }
        // The network's own part is learned; the span is known.
        let (transit, span) = (transit(last, now), last.created.signed_since(first.created));
        let shift = shift.map(|shift| shift.saturating_sub(std::mem::replace(&mut self.span, span)));
        if let Some(growth) = self.watch.see(count, last.created, transit, now)
            && now >= self.word_due
        {
            self.word_due = now.after(WORD_INTERVAL);
            out.control(Word::Grew(growth).to_bytes().to_vec());
        }
        // A queue that the source half is about to end is not waited for.
        let shift = match (self.watch.queued_since(), shift) {
            (Some(since), Some(shift)) => {
                self.hold.forget_from(since).map_or(shift, |chosen| chosen.min(shift))
            }
            _ => self.hold.follow((first.created, count.into()), transit, now, shift),
        };
        Some(shift.saturating_add(span))
    }
}

/// Reads a bundle of at most `count_max` messages; a message costs far more memory than its entry.
fn unpack(bundle: Message, count_max: usize) -> Result<Vec<Message>, StageError> {
    let wrong = |problem: &str| StageError::Input(problem.into());
    let Message { created, attributes, mut body } = bundle;
    let count = body.take_front().map(u16::from_le_bytes).ok_or_else(|| wrong("it has no header"))?;
    if usize::from(count) > count_max {
        return Err(wrong(&format!("it has {count} messages, {count_max} were agreed on")));
    }
    let entries =
        body.split_front(ENTRY_BYTES * usize::from(count)).ok_or_else(|| wrong("its header is cut short"))?;
    let mut reader = wire::Reader::new(&entries);
    let mut messages = Vec::with_capacity(usize::from(count));
    let short = |error: wire::WireError| StageError::Input(error.to_string());
    for _ in 0..count {
        let after = reader.u64("bundled creation time").map_err(short)?.cast_signed();
        let length = reader.u32("bundled length").map_err(short)? as usize;
        let body = body.split_off_front(length).ok_or_else(|| wrong("a body is cut short"))?;
        messages.push(Message { created: created.shifted(Offset(after)), attributes, body });
    }
    match body.is_empty() {
        true => Ok(messages),
        false => Err(wrong("bytes are left over")),
    }
}

impl Stage for Sink {
    fn handle(
        &mut self,
        _port: Port,
        message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        self.playout.release(now, out);
        let messages = unpack(message, self.count_max)?;
        if let (Some(first), Some(last)) = (messages.first(), messages.last()) {
            let span = last.created.signed_since(first.created);
            let first_transit = transit(first, now);
            match &mut self.auto {
                None => self.anchor(first_transit, span, now),
                Some(auto) => {
                    self.transits.add(first_transit, now);
                    let shift = self.playout.shift();
                    self.late += u64::from(shift.is_some_and(|shift| first_transit > shift));
                    self.playout.set_shift(auto.follow(&messages, shift, now, out));
                }
            }
        }
        messages.into_iter().for_each(|message| self.playout.hold(message, now, out));
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.playout.flush(out);
        if let Some(auto) = &mut self.auto {
            auto.rhythm = Rhythm::default();
        }
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        let silent_at = self.auto.as_ref().and_then(|auto| auto.rhythm.silent_at());
        self.playout.next_due().into_iter().chain(silent_at).min()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        if let Some(auto) = &mut self.auto
            && auto.rhythm.silent_at().is_some_and(|at| at <= now)
        {
            auto.rhythm = Rhythm::default();
            auto.watch.expect(now);
            out.control(Word::Silence.to_bytes().to_vec());
        }
        self.playout.release(now, out);
        Ok(())
    }

    fn held(&self) -> usize {
        self.playout.len()
    }

    fn finished(&self, last: u32) -> Option<u32> {
        Some(self.playout.finished(last))
    }

    fn checkpoint(&self) -> Option<Body> {
        let mut checkpoint = Checkpoint::default();
        self.playout.put(&mut checkpoint);
        Some(checkpoint.finish())
    }

    fn restore(&mut self, checkpoint: Body) -> Result<(), StageError> {
        self.playout.restore(Remembered(checkpoint))
    }

    fn report(&self) -> Vec<Report> {
        self.playout.figures(self.transits.low(), self.late)
    }
}

const _: () = assert!(COUNT_BYTES == size_of::<u16>() && ENTRY_BYTES == size_of::<i64>() + size_of::<u32>());
