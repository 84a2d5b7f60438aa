//! The application of the demo: records each message and its arrival time.

use super::mouse::{Motion, PERIOD, now};
use crate::partners::Receiver;
use contract::{Message, Partner, PartnerError, Time};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of recorded arrivals: more than a minute.
const ARRIVALS_MAX: usize = 4096;

/// One received message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    pub(super) motion: Motion,
    pub(super) at: Time,
}

/// All received messages.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Number of messages.
    pub(super) messages: u64,
    /// The latest messages.
    pub(super) arrivals: VecDeque<Arrival>,
}

/// Mean and 99th percentile of a figure, milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Figure {
    pub(super) mean: f64,
    pub(super) p99: f64,
}

/// Effect of the network on the messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Figures {
    /// Delay from creation to arrival.
    pub(super) delay_ms: Figure,
    /// Difference between the spacing of two messages at arrival and at creation.
    pub(super) spacing_error_ms: Figure,
}

impl Record {
    /// Returns the figures of all arrivals since `since`.
    pub(super) fn figures(&self, since: Time) -> Figures {
        let recent = || self.arrivals.iter().filter(|arrival| arrival.at >= since);
        let delays = recent().map(|arrival| arrival.at.signed_since(arrival.motion.made) as f64 / 1e6);
        let pairs = recent().zip(recent().skip(1));
        let errors = pairs.map(|(before, after)| {
            let arrived = after.at.signed_since(before.at);
            let made = after.motion.made.signed_since(before.motion.made);
            (arrived - made).abs() as f64 / 1e6
        });
        Figures { delay_ms: Figure::of(delays.collect()), spacing_error_ms: Figure::of(errors.collect()) }
    }

    /// Returns the last `count` spacings between messages, milliseconds, oldest first.
    pub(super) fn spacings_ms(&self, count: usize) -> Vec<f64> {
        let first = self.arrivals.len().saturating_sub(count + 1);
        let last = self.arrivals.range(first..);
        last.clone().zip(last.skip(1)).map(|(a, b)| b.at.since(a.at).as_secs_f64() * 1e3).collect()
    }

    /// Returns the axes of the last message; `None` after a pause.
    pub(super) fn axes(&self, now: Time) -> Option<[i16; 6]> {
        let last = self.arrivals.back()?;
        (now.since(last.at) < PERIOD * 20).then_some(last.motion.axes)
    }
}

impl Figure {
    fn of(mut values: Vec<f64>) -> Figure {
        if values.is_empty() {
            return Figure::default();
        }
        values.sort_by(f64::total_cmp);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Figure { mean, p99: values[(values.len() * 99 / 100).min(values.len() - 1)] }
    }
}

/// A shared record.
#[derive(Debug, Clone, Default)]
pub(super) struct Notes(Arc<Mutex<Record>>);

impl Notes {
    pub(super) fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the partner at the end of a flow.
pub(super) fn application(notes: &Notes) -> Box<dyn Partner> {
    let notes = notes.clone();
    Box::new(Receiver(move |message: Message| {
        let at = now();
        let Some(motion) = Motion::parse(&message.body.clone().into_bytes()) else {
            return Err((PartnerError::Message("not a motion message".into()), message));
        };
        let mut record = notes.lock();
        record.messages += 1;
        if record.arrivals.len() == ARRIVALS_MAX {
            record.arrivals.pop_front();
        }
        record.arrivals.push_back(Arrival { motion, at });
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(times_ms: &[(u64, u64)]) -> Record {
        let arrival = |&(made, at): &(u64, u64)| Arrival {
            motion: Motion { made: Time::from_millis(made), axes: [0; 6] },
            at: Time::from_millis(at),
        };
        Record { messages: times_ms.len() as u64, arrivals: times_ms.iter().map(arrival).collect() }
    }

    #[test]
    fn figures_cover_the_messages_that_arrived() {
        let record = record(&[(0, 20), (16, 46), (32, 52), (64, 84)]);
        let figures = record.figures(Time::ZERO);
        assert_eq!(figures.delay_ms, Figure { mean: 22.5, p99: 30.0 });
        // A lost message causes no spacing error: 64 was created 32 ms after 32.
        assert_eq!(figures.spacing_error_ms, Figure { mean: 20.0 / 3.0, p99: 10.0 });
        assert_eq!(record.figures(Time::from_millis(84)).spacing_error_ms, Figure::default());
        assert_eq!(record.spacings_ms(2), [6.0, 32.0]);
        assert_eq!(record.spacings_ms(99).len(), 3);
    }

    #[test]
    fn an_empty_record_has_zero_figures() {
        let record = record(&[]);
        assert_eq!(record.figures(Time::ZERO), Figures::default());
        assert!(record.spacings_ms(5).is_empty() && record.axes(Time::ZERO).is_none());
    }
}
