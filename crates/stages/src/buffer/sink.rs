//! The sink of `mode=request`: requests messages and releases them at creation spacing.
//!
//! ```text
//! control, sink to source   granted: total number of messages that the source may have released
//! control, source to sink   released: total number released, sent when all grants are used
//! data                      sequence: number of messages released before; `MORE` if the source waits for a grant; `WAITED` if
//!                           the device waited for room in the source
//!
//! sequence arrives          all numbers before it arrived or are lost
//!   with MORE, held < min   one more message may be on its way
//!   with WAITED             it has no spacing of its own: it and all messages before it leave at once
//! released arrives          if numbers below it are still missing after `lost_after`, they are lost
//! held + outstanding
//!   < min + on the way      grant up to `max` + on the way
//! nothing arrives           send the grant again after `lost_after`, then at doubled intervals up to 16 s
//! ```
//!
//! Both counts are totals, so a repeated control message does no harm.

use crate::checkpoint::{CheckpointReader, CheckpointWriter};
use crate::playout::{Playout, STEP_NS, transit};
use contract::{Body, Message, Options, Outbox, Port, Report, Stage, StageError, StageResult, Time};
use std::time::Duration;

/// Most that a sequence may be ahead of all grants. At its end, a flow sends all queued messages
/// without a grant.
const AHEAD_MAX: u64 = 1 << 20;

/// No flow has this many messages.
const COUNT_MAX: u64 = 1 << 62;

/// The bit of a sequence number that says that the source holds further messages and has no grant for them.
pub(super) const MORE: u64 = 1 << 63;
/// The bit of a sequence number that says that the device waited for room in the source. Such a message is created at the pace
/// of the releases; at creation spacing, a backlog would keep that pace for ever.
pub(super) const WAITED: u64 = 1 << 62;

/// Longest interval between repeated requests.
const RETRY_MAX: Duration = Duration::from_secs(16);

pub(super) struct Sink {
    playout: Playout,
    min: u64,
    max: u64,
    /// Messages that may be on their way beside those that are held: as many as the source creates in a round trip, if it
    /// waits for grants otherwise. At most `on_way_max`.
    on_way: u64,
    on_way_max: u64,
    lost_after: Duration,
    /// Total number of messages that the source may have released.
    granted: u64,
    /// One more than the highest sequence that arrived or is known to be lost.
    next_sequence: u64,
    /// Total that the source announced as released, and the time at which messages missing from it
    /// are lost.
    announced: Option<(u64, Time)>,
    /// Time of the next repeated request if nothing arrives, and the interval before it.
    retry: Option<(Time, Duration)>,
    has_started: bool,
    requests: u64,
    late: u64,
    lost: u64,
    fastest: i64,
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        let (max, source_max) = (options.count("max"), options.count("source_max"));
        Sink {
            // At its end, a flow sends all queued messages without a grant.
            playout: Playout::new(max + 2 * source_max),
            min: options.count("min").min(max) as u64,
            max: max as u64,
            on_way: 0,
            on_way_max: source_max as u64,
            lost_after: options.duration("lost_after"),
            granted: 0,
            next_sequence: 0,
            announced: None,
            retry: None,
            has_started: false,
            requests: 0,
            late: 0,
            lost: 0,
            fastest: i64::MAX,
        }
    }

    /// Below the minimum, requests messages up to the maximum. Outstanding messages count, or they would be requested
    /// again for a whole round trip; but those that a round trip needs have places of their own.
    fn request(&mut self, now: Time, out: &mut Outbox) {
        let used = self.playout.len() as u64 + self.outstanding();
        if used < self.min + self.on_way {
            self.granted = self.granted.max(self.next_sequence) + (self.max + self.on_way - used);
            self.send_request(self.lost_after, now, out);
        }
    }

    /// Fits the number of messages on their way to the round trip. It doubles within one while the source waits.
    fn fit_on_way(&mut self, source_waits: bool) {
        if source_waits && (self.playout.len() as u64) < self.min {
            self.on_way = (self.on_way + 1).min(self.on_way_max);
        }
    }

    /// Messages requested that have not arrived.
    fn outstanding(&self) -> u64 {
        self.granted.saturating_sub(self.next_sequence)
    }

    /// Sends the grant; repeats it after `interval` unless something arrives.
    fn send_request(&mut self, interval: Duration, now: Time, out: &mut Outbox) {
        self.requests += 1;
        self.retry = Some((now.after(interval), interval));
        out.control(self.granted.to_le_bytes().to_vec());
    }

    /// All messages before number `next` arrived or are lost.
    fn advance_to(&mut self, next: u64) {
        self.next_sequence = self.next_sequence.max(next);
        if self.announced.is_some_and(|(released, _)| self.next_sequence >= released) {
            self.announced = None;
        }
    }

    /// Starts a new spacing if the sink had run empty and the message is late or far too early.
    fn update_shift(&mut self, transit: i64) {
        self.fastest = self.fastest.min(transit);
        let Some(shift) = self.playout.shift() else {
            return self.playout.set_shift(Some(transit));
        };
        let ran_empty = self.playout.len() == 0;
        if ran_empty && transit > shift {
            self.late += 1;
            self.playout.set_shift(Some(transit));
        } else if ran_empty && shift.saturating_sub(transit) > STEP_NS {
            self.playout.set_shift(Some(transit));
        }
    }
}

impl Stage for Sink {
    fn handle(&mut self, _port: Port, mut message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let sequence = message.body.take_front().map(u64::from_le_bytes);
        let sequence = sequence.ok_or_else(|| StageError::Input("it has no sequence number".into()))?;
        let (source_waits, has_waited) = (sequence & MORE != 0, sequence & WAITED != 0);
        let sequence = sequence & !(MORE | WAITED);
        let ahead = sequence.saturating_sub(self.granted.max(self.next_sequence));
        if ahead > AHEAD_MAX {
            return Err(StageError::Input(format!("its sequence number is {ahead} ahead of all requests")));
        }
        self.lost += sequence.saturating_sub(self.next_sequence);
        if sequence < self.next_sequence {
            // Counted as lost, but it was only overtaken.
            self.lost = self.lost.saturating_sub(1);
        }
        self.advance_to(sequence + 1);
        self.retry = (self.outstanding() > 0).then(|| (now.after(self.lost_after), self.lost_after));
        self.playout.release(now, out);
        self.update_shift(transit(&message, now));
        if has_waited {
            self.playout.lower_shift(transit(&message, now), now, out);
        }
        self.playout.hold(message, now, out);
        self.fit_on_way(source_waits);
        self.request(now, out);
        Ok(())
    }

    fn handle_control(&mut self, control: &[u8], now: Time, out: &mut Outbox) -> StageResult {
        let released = <[u8; 8]>::try_from(control)
            .map_err(|_| StageError::Control(format!("a count has 8 bytes, not {}", control.len())))?;
        let released = u64::from_le_bytes(released);
        if released.saturating_sub(self.granted.max(self.next_sequence)) > AHEAD_MAX {
            return Err(StageError::Control(format!(
                "{released} released, but only {} requested",
                self.granted
            )));
        }
        if self.granted < released && self.next_sequence == 0 {
            // A predecessor of this half requested and received them.
            (self.next_sequence, self.granted) = (released, released);
            self.request(now, out);
        } else if released > self.next_sequence {
            self.announced = Some((released, now.after(self.lost_after)));
        }
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> StageResult {
        self.playout.flush(out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        if !self.has_started {
            return Some(Time::ZERO);
        }
        let lost_at = self.announced.map(|(_, at)| at);
        let retry_at = self.retry.map(|(at, _)| at);
        self.playout.next_due().into_iter().chain(lost_at).chain(retry_at).min()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        self.has_started = true;
        if let Some((released, at)) = self.announced
            && at <= now
        {
            self.lost += released.saturating_sub(self.next_sequence);
            self.advance_to(released);
        }
        self.playout.release(now, out);
        self.request(now, out);
        if let Some((at, interval)) = self.retry
            && at <= now
        {
            self.send_request((interval * 2).min(RETRY_MAX.max(interval)), now, out);
        }
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
        checkpoint.put([self.granted, self.next_sequence, self.on_way]);
        self.playout.put(&mut checkpoint);
        Some(checkpoint.finish())
    }

    fn restore(&mut self, checkpoint: Body) -> StageResult {
        let mut reader = CheckpointReader(checkpoint);
        self.granted = reader.number_below(COUNT_MAX)?;
        self.next_sequence = reader.number_below(COUNT_MAX)?;
        self.on_way = reader.number_below(self.on_way_max + 1)?;
        self.playout.restore(reader)
    }

    fn report(&self) -> Vec<Report> {
        let mut figures = self.playout.figures(Some(self.fastest), self.late);
        figures.extend([("requests", self.requests as f64), ("lost", self.lost as f64)]);
        figures
    }
}
