//! The half that unpacks bundles and releases messages at creation spacing.
//!
//! With a fixed count, the shift (release minus creation) covers the span of a bundle, or the
//! option `hold`. With `count=auto`, an [`AdaptiveDelay`] learns the shift that the network needs,
//! and the span of each bundle is added.

use super::count::{ALIVE_INTERVAL, AUTO_MAX, SinkReport};
use super::growth::QueueDetector;
use super::{COUNT_BYTES, ENTRY_BYTES};
use crate::adaptive::{AdaptiveDelay, LateCost};
use crate::checkpoint::{CheckpointReader, CheckpointWriter};
use crate::playout::{HELD_MAX, MinMaxWindow, Playout, STEP_NS, transit};
use contract::{Body, Message, Offset, Options, Outbox, Port, Report, Stage, StageError, StageResult, Time};
use std::time::Duration;

/// Shortest time between two reports of growth.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// No bundle for this long, and for this many times their usual period, is silence.
const SILENCE: Duration = Duration::from_millis(150);
const SILENT_PERIODS: f64 = 6.0;
/// Bundles that are late for this long, at first by more than [`STEP_NS`], are not the rest of an interruption.
const INTERRUPTION_MAX: Duration = Duration::from_secs(5);
/// With `count=auto`, the longest delay beyond the fastest transit.
const HOLD_MAX: Duration = Duration::from_secs(2);

pub(super) struct Sink {
    playout: Playout,
    count_max: usize,
    hold: Duration,
    /// Transits of the first message of each recent bundle.
    transits: MinMaxWindow,
    /// Longest time from the first message of a bundle to its last.
    span: i64,
    /// Arrival of the first bundle of an interruption that still lasts.
    interrupted_since: Option<Time>,
    late: u64,
    /// State for `count=auto`.
    auto: Option<Auto>,
}

/// The sink's part of `count=auto`.
struct Auto {
    delay: AdaptiveDelay,
    queue_detector: QueueDetector,
    /// Span of the previous bundle.
    span: i64,
    /// Time of the next report of growth, and of the next report that bundles arrive.
    report_due: Time,
    alive_due: Time,
    arrivals: ArrivalRate,
}

/// The rate at which bundles arrive, to detect silence.
#[derive(Default)]
struct ArrivalRate {
    last: Option<Time>,
    /// Mean nanoseconds between two bundles.
    period: f64,
    bundles: u32,
}

impl ArrivalRate {
    fn add(&mut self, now: Time) {
        if let Some(before) = self.last.replace(now) {
            let period = now.since(before).as_nanos() as f64;
            self.period += (period - self.period) / 32.0;
            self.bundles = self.bundles.saturating_add(1);
        }
    }

    /// True if bundles arrive so often that a pause means silence.
    fn is_dense(&self) -> bool {
        self.bundles >= 64 && self.period * SILENT_PERIODS < SILENCE.as_nanos() as f64
    }

    /// Time at which a pause becomes silence.
    fn silent_at(&self) -> Option<Time> {
        self.last.filter(|_| self.is_dense()).map(|last| last.after(SILENCE))
    }
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        Sink {
            playout: Playout::new(HELD_MAX),
            count_max: if options.is_auto("count") { AUTO_MAX } else { options.count("count") },
            hold: options.duration("hold"),
            transits: MinMaxWindow::default(),
            span: 0,
            interrupted_since: None,
            late: 0,
            auto: options.is_auto("count").then(|| Auto {
                delay: AdaptiveDelay::new(HOLD_MAX, LateCost::Spacing),
                queue_detector: QueueDetector::default(),
                span: 0,
                report_due: Time::ZERO,
                alive_due: Time::ZERO,
                arrivals: ArrivalRate::default(),
            }),
        }
    }

    /// Raises the shift if the first message of a bundle is late; lowers it if all are far too
    /// early.
    ///
    /// After an interruption of the network, bundles arrive that are late by the whole interruption. The shift
    /// must not rise for them, or it would delay all later messages as much. It rises if bundles are as late
    /// for [`INTERRUPTION_MAX`]: then the route has changed.
    fn update_shift(&mut self, transit: i64, span: i64, now: Time) {
        let late_ns = self.playout.shift().map_or(0, |shift| transit.saturating_sub(shift));
        if late_ns > STEP_NS || late_ns > 0 && self.interrupted_since.is_some() {
            if now.since(*self.interrupted_since.get_or_insert(now)) < INTERRUPTION_MAX {
                self.late += 1;
                return;
            }
            self.transits = MinMaxWindow::default();
        }
        self.interrupted_since = None;
        let longer = span.saturating_sub(self.span).max(0);
        self.span = self.span.max(span);
        let (cover, grown) = match i64::try_from(self.hold.as_nanos()).unwrap_or(i64::MAX) {
            0 => (self.span, longer),
            hold => (hold, 0),
        };
        let half_ended = self.transits.add(transit, now);
        let slowest = self.transits.high().unwrap_or(transit);
        let shift = match self.playout.shift() {
            None => transit.saturating_add(cover),
            Some(shift) if transit > shift => {
                self.late += 1;
                transit.saturating_add(grown)
            }
            Some(shift) => {
                let needed = slowest.saturating_add(cover);
                if half_ended && shift.saturating_sub(needed) > STEP_NS { needed } else { shift }
            }
        };
        self.playout.set_shift(Some(shift));
    }
}

impl Auto {
    /// Returns the new shift after a bundle arrived; `shift` is the current one.
    fn update(
        &mut self,
        messages: &[Message],
        shift: Option<i64>,
        now: Time,
        out: &mut Outbox,
    ) -> Option<i64> {
        let (first, last) = (messages.first()?, messages.last()?);
        // The count fits, because `auto` takes at most `AUTO_MAX`.
        let count = messages.len() as u16;
        self.arrivals.add(now);
        if self.arrivals.is_dense() && now >= self.alive_due {
            self.alive_due = now.after(ALIVE_INTERVAL);
            out.control(SinkReport::Alive.to_bytes().to_vec());
        }
        // Only the part of the network is learned; the span is known.
        let (transit, span) = (transit(last, now), last.created.signed_since(first.created));
        let shift = shift.map(|shift| shift.saturating_sub(std::mem::replace(&mut self.span, span)));
        if let Some(growth) = self.queue_detector.add(count, last.created, transit, now)
            && now >= self.report_due
        {
            self.report_due = now.after(REPORT_INTERVAL);
            out.control(SinkReport::QueueGrew(growth).to_bytes().to_vec());
        }
        // The source half is about to end this queue, so the shift must not rise for it.
        let shift = match (self.queue_detector.queued_since(), shift) {
            (Some(since), Some(shift)) => {
                self.delay.discard_from(since).map_or(shift, |best| best.min(shift))
            }
            _ => self.delay.update((first.created, count.into()), transit, now, shift),
        };
        Some(shift.saturating_add(span))
    }
}

/// Unpacks a bundle of at most `count_max` messages. The bound matters: a message takes far more
/// memory than its entry.
fn unpack(bundle: Message, count_max: usize) -> StageResult<Vec<Message>> {
    let malformed = |problem: &str| StageError::Input(problem.into());
    let Message { created, attributes, mut body } = bundle;
    let count = body.take_front().map(u16::from_le_bytes).ok_or_else(|| malformed("it has no header"))?;
    if usize::from(count) > count_max {
        return Err(malformed(&format!("it has {count} messages, but at most {count_max} were agreed on")));
    }
    let entries = body
        .split_front(ENTRY_BYTES * usize::from(count))
        .ok_or_else(|| malformed("its header is cut short"))?;
    let mut reader = wire::Reader::new(&entries);
    let mut messages = Vec::with_capacity(usize::from(count));
    let short = |error: wire::WireError| StageError::Input(error.to_string());
    for _ in 0..count {
        let after = reader.u64("bundled creation time").map_err(short)?.cast_signed();
        let length = reader.u32("bundled length").map_err(short)? as usize;
        let body = body.split_off_front(length).ok_or_else(|| malformed("a body is cut short"))?;
        messages.push(Message { created: created.shifted(Offset(after)), attributes, body });
    }
    if body.is_empty() { Ok(messages) } else { Err(malformed("bytes are left over")) }
}

impl Stage for Sink {
    fn handle(&mut self, _port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        self.playout.release(now, out);
        let messages = unpack(message, self.count_max)?;
        if let (Some(first), Some(last)) = (messages.first(), messages.last()) {
            let span = last.created.signed_since(first.created);
            let first_transit = transit(first, now);
            match &mut self.auto {
                None => self.update_shift(first_transit, span, now),
                Some(auto) => {
                    self.transits.add(first_transit, now);
                    let shift = self.playout.shift();
                    self.late += u64::from(shift.is_some_and(|shift| first_transit > shift));
                    self.playout.set_shift(auto.update(&messages, shift, now, out));
                }
            }
        }
        messages.into_iter().for_each(|message| self.playout.hold(message, now, out));
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> StageResult {
        self.playout.flush(out);
        if let Some(auto) = &mut self.auto {
            auto.arrivals = ArrivalRate::default();
        }
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        let silent_at = self.auto.as_ref().and_then(|auto| auto.arrivals.silent_at());
        self.playout.next_due().into_iter().chain(silent_at).min()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        if let Some(auto) = &mut self.auto
            && auto.arrivals.silent_at().is_some_and(|at| at <= now)
        {
            auto.arrivals = ArrivalRate::default();
            auto.queue_detector.expect_queue(now);
            out.control(SinkReport::Silence.to_bytes().to_vec());
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
        let mut checkpoint = CheckpointWriter::default();
        self.playout.put(&mut checkpoint);
        Some(checkpoint.finish())
    }

    fn restore(&mut self, checkpoint: Body) -> StageResult {
        self.playout.restore(CheckpointReader(checkpoint))
    }

    fn report(&self) -> Vec<Report> {
        self.playout.figures(self.transits.low(), self.late)
    }
}

const _: () = assert!(COUNT_BYTES == size_of::<u16>() && ENTRY_BYTES == size_of::<i64>() + size_of::<u32>());
