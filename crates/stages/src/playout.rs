//! A playout buffer: releases messages at the spacing at which they were created.
//!
//! A message is due at its creation time plus a **shift**. The shift is the same for all messages,
//! which undoes the jitter of the network. The owner of a [`Playout`] sets the shift from the
//! **transits** (arrival minus creation) that it sees. Messages leave in order of arrival, whatever
//! their creation times.

use crate::HELD_BYTES_MAX;
use crate::checkpoint::{self, CheckpointReader, CheckpointWriter};
use contract::{Message, Offset, Outbox, Port, Report, StageResult, Time};
use std::collections::VecDeque;
use std::time::Duration;

/// Messages that a [`Playout`] usually holds, at most.
pub(crate) const HELD_MAX: usize = 1 << 16;
/// Longest time from arrival to release, whatever the creation time.
pub(crate) const LONGEST_HOLD: Duration = Duration::from_secs(60);
/// A shift this many nanoseconds above the needed one falls in one step.
pub(crate) const STEP_NS: i64 = 500_000_000;
/// Length of each half of a [`MinMaxWindow`].
const HALF_WINDOW: Duration = Duration::from_secs(5);

/// Arrival minus creation, nanoseconds. Negative where the translation of clocks is inexact.
pub(crate) fn transit(message: &Message, now: Time) -> i64 {
    now.signed_since(message.created)
}

/// Holds messages until they are due, within bounds.
#[derive(Debug)]
pub(crate) struct Playout {
    /// The latest release time of each message, and the message.
    queue: VecDeque<(Time, Message)>,
    bytes: usize,
    messages_max: usize,
    shift: Option<i64>,
    released: u64,
    early: u64,
}

impl Playout {
    /// Holds at most `messages_max` messages of [`HELD_BYTES_MAX`] bytes in all.
    pub(crate) fn new(messages_max: usize) -> Self {
        Playout { queue: VecDeque::new(), bytes: 0, messages_max, shift: None, released: 0, early: 0 }
    }

    /// Release minus creation, nanoseconds; `None` before the first message.
    pub(crate) fn shift(&self) -> Option<i64> {
        self.shift
    }

    /// Sets or clears the shift, also for messages already held.
    pub(crate) fn set_shift(&mut self, shift: Option<i64>) {
        self.shift = shift;
    }

    /// Lowers the shift to this one if it is above, and sends the messages that become due.
    pub(crate) fn lower_shift(&mut self, shift: i64, now: Time, out: &mut Outbox) {
        self.shift = self.shift.map(|current| current.min(shift));
        self.release(now, out);
    }

    /// Holds a message, or sends it at once if it is due. Over a bound, the earliest messages leave
    /// early: nothing is dropped here.
    pub(crate) fn hold(&mut self, message: Message, now: Time, out: &mut Outbox) {
        let latest = now.after(LONGEST_HOLD);
        if self.queue.is_empty() && self.due(latest, &message) <= now {
            self.released += 1;
            return out.send(Port::MAIN, message);
        }
        self.bytes += message.body.len();
        self.queue.push_back((latest, message));
        while self.queue.len() > self.messages_max || self.bytes > HELD_BYTES_MAX {
            self.early += 1;
            self.release_first(out);
        }
    }

    /// Sends the messages that are due.
    pub(crate) fn release(&mut self, now: Time, out: &mut Outbox) {
        while self.next_due().is_some_and(|due| due <= now) {
            self.release_first(out);
        }
    }

    /// Sends all messages.
    pub(crate) fn flush(&mut self, out: &mut Outbox) {
        while !self.queue.is_empty() {
            self.release_first(out);
        }
    }

    /// When the first message is due.
    pub(crate) fn next_due(&self) -> Option<Time> {
        let (latest, message) = self.queue.front()?;
        Some(self.due(*latest, message))
    }

    /// When the first message held was created.
    pub(crate) fn first_created(&self) -> Option<Time> {
        self.queue.front().map(|(_, message)| message.created)
    }

    /// The mark for [`Stage::finished`](contract::Stage::finished).
    pub(crate) fn finished(&self, last: u32) -> u32 {
        self.queue.front().map_or(last, |(_, message)| message.attributes.mark.wrapping_sub(1))
    }

    /// Messages held.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Messages sent.
    pub(crate) fn released(&self) -> u64 {
        self.released
    }

    /// Writes the held messages and the shift, for [`Playout::restore`].
    pub(crate) fn put(&self, into: &mut CheckpointWriter) {
        into.put([self.shift.is_some().into(), self.shift.unwrap_or(0).cast_unsigned()]);
        for (latest, message) in &self.queue {
            into.put([latest.0]);
            into.put_message(message);
        }
    }

    /// Restores from the rest of a checkpoint.
    pub(crate) fn restore(&mut self, mut from: CheckpointReader) -> StageResult {
        let has_shift = from.number_below(2)? == 1;
        let shift = from.number()?.cast_signed();
        self.shift = has_shift.then_some(shift);
        while !from.is_empty() {
            let (latest, message) = (Time(from.number()?), from.message()?);
            self.bytes += message.body.len();
            self.queue.push_back((latest, message));
            if self.queue.len() > self.messages_max || self.bytes > HELD_BYTES_MAX {
                return Err(checkpoint::malformed());
            }
        }
        Ok(())
    }

    /// Figures: messages held, released, released early because of a bound, and `late`; and the
    /// delay of a message with the `fastest` transit.
    pub(crate) fn figures(&self, fastest: Option<i64>, late: u64) -> Vec<Report> {
        let delay = self.shift.zip(fastest).map_or(0, |(shift, fastest)| shift.saturating_sub(fastest));
        vec![
            ("held", self.len() as f64),
            ("released", self.released as f64),
            ("early", self.early as f64),
            ("late", late as f64),
            ("delay_ms", delay as f64 / 1e6),
        ]
    }

    fn due(&self, latest: Time, message: &Message) -> Time {
        self.shift.map_or(latest, |shift| message.created.shifted(Offset(shift)).min(latest))
    }

    fn release_first(&mut self, out: &mut Outbox) {
        if let Some((_, message)) = self.queue.pop_front() {
            self.bytes -= message.body.len();
            self.released += 1;
            out.send(Port::MAIN, message);
        }
    }
}

/// The smallest and the largest value of the last 5 to 10 s, kept in two halves of 5 s each.
#[derive(Debug, Default)]
pub(crate) struct MinMaxWindow {
    half_began: Option<Time>,
    current: Option<(i64, i64)>,
    before: Option<(i64, i64)>,
}

impl MinMaxWindow {
    /// Adds a value. Returns `true` if a half ended, which discards the values of the half before
    /// it.
    pub(crate) fn add(&mut self, value: i64, now: Time) -> bool {
        let ends_half = now.since(*self.half_began.get_or_insert(now)) >= HALF_WINDOW;
        if ends_half {
            self.half_began = Some(now);
            self.before = self.current.take();
        }
        let (low, high) = self.current.unwrap_or((value, value));
        self.current = Some((low.min(value), high.max(value)));
        ends_half
    }

    /// Lowers the largest values by `by`, because what had them will have smaller ones.
    pub(crate) fn lower(&mut self, by: i64) {
        for (low, high) in [&mut self.current, &mut self.before].into_iter().flatten() {
            *high = high.saturating_sub(by);
            *low = (*low).min(*high);
        }
    }

    /// The smallest.
    pub(crate) fn low(&self) -> Option<i64> {
        self.current.into_iter().chain(self.before).map(|(low, _)| low).min()
    }

    /// The largest.
    pub(crate) fn high(&self) -> Option<i64> {
        self.current.into_iter().chain(self.before).map(|(_, high)| high).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(created_ms: u64, bytes: usize) -> Message {
        Message::new(Time::from_millis(created_ms), vec![0; bytes])
    }

    fn created(out: &mut Outbox) -> Vec<u64> {
        out.messages.drain(..).map(|(_, message)| message.created.0 / 1_000_000).collect()
    }

    #[test]
    fn messages_leave_at_creation_plus_shift() {
        let (mut playout, mut out) = (Playout::new(10), Outbox::default());
        playout.set_shift(Some(50_000_000));
        playout.hold(message(100, 1), Time::from_millis(110), &mut out);
        playout.hold(message(120, 1), Time::from_millis(121), &mut out);
        assert_eq!(playout.next_due(), Some(Time::from_millis(150)));
        playout.release(Time::from_millis(149), &mut out);
        assert_eq!(created(&mut out), []);
        playout.release(Time::from_millis(150), &mut out);
        assert_eq!(created(&mut out), [100]);
        playout.set_shift(Some(60_000_000));
        assert_eq!(playout.next_due(), Some(Time::from_millis(180)));
        playout.flush(&mut out);
        assert_eq!((created(&mut out), playout.released()), (vec![120], 2));
        playout.hold(message(0, 1), Time::from_millis(200), &mut out);
        assert_eq!((created(&mut out), playout.len()), (vec![0], 0), "late: at once");
    }

    #[test]
    fn messages_over_a_bound_leave_early_and_are_counted() {
        let (mut playout, mut out) = (Playout::new(2), Outbox::default());
        playout.set_shift(Some(1 << 40));
        (1..=3).for_each(|ms| playout.hold(message(ms, 10), Time::ZERO, &mut out));
        assert_eq!((created(&mut out), playout.early), (vec![1], 1));
        playout.hold(message(4, HELD_BYTES_MAX - 5), Time::ZERO, &mut out);
        assert_eq!((created(&mut out), playout.len()), (vec![2, 3], 1));
    }

    #[test]
    fn a_wrong_creation_time_holds_no_message_for_ever() {
        let (mut playout, mut out) = (Playout::new(2), Outbox::default());
        playout.set_shift(Some(i64::MAX));
        playout.hold(Message::new(Time(u64::MAX), vec![1]), Time(5), &mut out);
        assert_eq!(playout.next_due(), Some(Time(5).after(LONGEST_HOLD)));
    }

    proptest! {
        #[test]
        fn a_window_has_the_extremes_of_its_last_seconds(
            values in prop::collection::vec((any::<i64>(), 0u64..2000), 1..60),
        ) {
            let (mut window, mut seen, mut now) = (MinMaxWindow::default(), Vec::new(), Time::ZERO);
            for (value, wait_ms) in values {
                now = now.after(Duration::from_millis(wait_ms));
                window.add(value, now);
                seen.push((now, value));
                let recent = || seen.iter().filter(|(at, _)| now.since(*at) < HALF_WINDOW).map(|s| s.1);
                prop_assert!(window.low().unwrap() <= recent().min().unwrap());
                prop_assert!(window.high().unwrap() >= recent().max().unwrap());
                let known = |at: &Time| now.since(*at) <= Duration::from_secs(14);
                prop_assert!(seen.iter().any(|(at, v)| known(at) && *v == window.low().unwrap()));
            }
        }
    }
}
