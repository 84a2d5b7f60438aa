//! Finds a connection on which nothing arrives: its program hangs, or the other one does.
//!
//! | state | event | next state | action |
//! |---|---|---|---|
//! | `Quiet` | a record is to be sent | `Waiting` | |
//! | `Waiting` | the interval is over | `Waiting` | send a probe, which the other host answers |
//! | `Waiting` | anything authentic has arrived | `Quiet` | |
//! | `Waiting` | the patience is over | | the connection is lost |
//!
//! A probe waits behind the records before it, on a slow connection for longer than the patience. A host therefore answers
//! more than probes:
//!
//! | event | action |
//! |---|---|
//! | a probe arrives | send an answer |
//! | a part of a record arrives | send an answer, at most one in an interval |
//! | nobody pulls, so what arrives waits in the socket | send an answer in each interval |
//!
//! A connection at rest is `Quiet`, and answers demand no answer, so neither host sends anything.

use contract::Time;
use std::time::Duration;

const INTERVAL_MAX: Duration = Duration::from_millis(500);
/// Shortest time of an answer that is told apart.
const ANSWER_MIN: Duration = Duration::from_millis(1);
/// Intervals in the patience, at least.
const INTERVALS_MIN: u32 = 4;

#[derive(Debug)]
enum State {
    Quiet,
    Waiting { since: Time, probe_at: Time },
}

/// Work that is due.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Probe,
    Lost,
}

#[derive(Debug)]
pub(super) struct Silence {
    pub(super) patience: Duration,
    interval: Duration,
    state: State,
    /// Time of the next answer that no probe has asked for.
    answer_at: Time,
    /// Shortest recent time from a record or a probe to the next sign of the other host, less the longest interval.
    answer: Option<Duration>,
    /// Something has arrived: until then, the programs may still search for each other.
    has_begun: bool,
}

impl Silence {
    /// A new connection waits for the first message.
    pub(super) fn new(patience: Duration, now: Time) -> Silence {
        let interval = INTERVAL_MAX.min(patience / INTERVALS_MIN);
        let state = State::Waiting { since: now, probe_at: now.after(interval) };
        Silence { patience, interval, state, answer_at: now, answer: None, has_begun: false }
    }

    /// Handles that something waits for an answer.
    pub(super) fn handle_sent(&mut self, now: Time) {
        if let State::Quiet = self.state {
            self.state = State::Waiting { since: now, probe_at: now.after(self.interval) };
        }
    }

    pub(super) fn handle_received(&mut self, now: Time) {
        let has_begun = std::mem::replace(&mut self.has_begun, true);
        if let State::Waiting { since, .. } = std::mem::replace(&mut self.state, State::Quiet)
            && has_begun
        {
            // A path that has become longer shows slowly, a lost message hardly at all.
            let grown = self.answer.map_or(Duration::MAX, |answer| answer.saturating_mul(9) / 8);
            // An answer that no probe has asked for comes up to an interval after the record.
            let took = now.since(since).saturating_sub(INTERVAL_MAX);
            self.answer = Some(took.clamp(ANSWER_MIN, grown.max(ANSWER_MIN)));
        }
    }

    /// Returns the time in which the other host answers.
    pub(super) fn answer(&self) -> Duration {
        self.answer.unwrap_or(ANSWER_MIN)
    }

    /// Returns the work that is due now. The caller does it.
    pub(super) fn take_due(&mut self, now: Time) -> Due {
        match &mut self.state {
            State::Waiting { since, .. } if now >= since.after(self.patience) => Due::Lost,
            State::Waiting { probe_at, .. } if now >= *probe_at => {
                *probe_at = now.after(self.interval);
                Due::Probe
            }
            _ => Due::Nothing,
        }
    }

    /// The time of the next work.
    pub(super) fn due_at(&self) -> Option<Time> {
        match self.state {
            State::Quiet => None,
            State::Waiting { since, probe_at } => Some(probe_at.min(since.after(self.patience))),
        }
    }

    /// Returns whether an answer that no probe has asked for is due now. The caller sends it.
    pub(super) fn take_answer(&mut self, now: Time) -> bool {
        let is_due = now >= self.answer_at;
        if is_due {
            self.answer_at = now.after(self.interval);
        }
        is_due
    }

    /// The time of the next such answer.
    pub(super) fn answer_at(&self) -> Time {
        self.answer_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_connection_is_lost_only_if_something_is_due() {
        let start = Time(7);
        let mut silence = Silence::new(SECOND * 2, start);
        assert_eq!(silence.take_due(start), Due::Nothing);
        assert_eq!(silence.take_due(start.after(SECOND)), Due::Probe);
        assert_eq!(silence.take_due(start.after(SECOND)), Due::Nothing, "one probe at a time");
        assert_eq!(silence.take_due(start.after(SECOND * 2)), Due::Lost);
        silence.handle_received(start.after(SECOND * 2));
        assert_eq!((silence.take_due(start.after(SECOND * 9)), silence.due_at()), (Due::Nothing, None));
        silence.handle_sent(start.after(SECOND * 9));
        silence.handle_sent(start.after(SECOND * 10));
        assert_eq!(
            silence.take_due(start.after(SECOND * 11)),
            Due::Lost,
            "later messages do not postpone it"
        );
    }

    #[test]
    fn the_time_of_an_answer_is_the_shortest_recent_one() {
        let ms = Duration::from_millis;
        let (mut silence, mut now) = (Silence::new(SECOND * 15, Time(7)), Time(7));
        for (waited, expected) in [(5000, 1), (1300, 800), (630, 130), (630, 130), (3000, 146), (490, 1)] {
            silence.handle_sent(now);
            now = now.after(ms(waited));
            silence.handle_received(now);
            assert_eq!(silence.answer().as_millis(), expected, "after {waited} ms");
        }
    }

    #[test]
    fn every_patience_has_room_for_probes_and_answers() {
        let start = Time(7);
        for patience in [SECOND / 10, SECOND, SECOND * 15] {
            let mut silence = Silence::new(patience, start);
            let mut count = |take: fn(&mut Silence, Time) -> bool| {
                (0..1000).filter(|step| take(&mut silence, start.after(patience * *step / 1001))).count()
            };
            let probes = count(|silence, now| silence.take_due(now) == Due::Probe);
            let answers = count(Silence::take_answer);
            assert!((3..=30).contains(&probes) && (3..=30).contains(&answers), "{probes}, {answers}");
        }
    }
}
