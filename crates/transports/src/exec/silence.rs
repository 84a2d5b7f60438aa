//! Finds a connection on which nothing arrives: its program hangs, or the other one does.
//!
//! | state | event | next state | action |
//! |---|---|---|---|
//! | `Quiet` | a message was sent | `Waiting` | |
//! | `Waiting` | [`PROBE_INTERVAL`] over | `Waiting` | send a probe, which the other host answers |
//! | `Waiting` | anything authentic has arrived | `Quiet` | |
//! | `Waiting` | the patience is over | | the connection is lost |
//!
//! A connection at rest is `Quiet`, so neither host sends anything.

use contract::Time;
use std::time::Duration;

const PROBE_INTERVAL: Duration = Duration::from_millis(500);

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
    state: State,
}

impl Silence {
    /// A new connection waits for the first message.
    pub(super) fn new(patience: Duration, now: Time) -> Silence {
        Silence { patience, state: State::Waiting { since: now, probe_at: now.after(PROBE_INTERVAL) } }
    }

    pub(super) fn handle_sent(&mut self, now: Time) {
        if let State::Quiet = self.state {
            self.state = State::Waiting { since: now, probe_at: now.after(PROBE_INTERVAL) };
        }
    }

    pub(super) fn handle_received(&mut self) {
        self.state = State::Quiet;
    }

    /// Returns the work that is due now. The caller does it.
    pub(super) fn take_due(&mut self, now: Time) -> Due {
        match &mut self.state {
            State::Waiting { since, .. } if now >= since.after(self.patience) => Due::Lost,
            State::Waiting { probe_at, .. } if now >= *probe_at => {
                *probe_at = now.after(PROBE_INTERVAL);
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
        silence.handle_received();
        assert_eq!((silence.take_due(start.after(SECOND * 9)), silence.due_at()), (Due::Nothing, None));
        silence.handle_sent(start.after(SECOND * 9));
        silence.handle_sent(start.after(SECOND * 10));
        assert_eq!(
            silence.take_due(start.after(SECOND * 11)),
            Due::Lost,
            "later messages do not postpone it"
        );
    }
}
