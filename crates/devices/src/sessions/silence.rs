//! Notices that a server acknowledges nothing: its host or the network is dead. Sans-IO.
//!
//! A server that reads nothing for a while is alive: its disk starts, or it has to finish earlier writes. Its receive window is closed
//! then, and its kernel answers each probe of this host's kernel. `TCP_USER_TIMEOUT` would end such a connection as well, so it is
//! set only once the server is silent.
//!
//! | the kernel of this host | silence |
//! |---|---|
//! | has sent data after the last acknowledgement, or two probes, and has no answer | since it was seen first, or the last acknowledgement after that |
//! | has sent one probe, and has no answer | none: the network may have lost it, and the next one follows only after the doubled time |
//! | has nothing that the server has to answer | none; the kernel sends the next probe at its own time |

use contract::Time;
use std::time::Duration;
use sys::net::StreamState;

/// Silence until the kernel may end the connection: the sessions continue with another one.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Probes without an answer that are silence.
const PROBES: u32 = 2;

/// The silence of one server.
#[derive(Debug, Default)]
pub(super) struct Silence {
    since: Option<Time>,
}

impl Silence {
    /// Looks at a stream. Returns whether its peer has been silent for [`SILENCE_MAX`].
    pub(super) fn check(&mut self, stream: &StreamState, now: Time) -> bool {
        let is_data_unanswered = stream.unacknowledged > 0 && stream.sent_ago < stream.silent;
        if !is_data_unanswered && stream.probes < PROBES {
            self.since = None;
            return false;
        }
        let answered = Time(now.0.saturating_sub(stream.silent.as_nanos() as u64));
        let since = self.since.unwrap_or(now).max(answered);
        self.since = Some(since);
        now.since(since) >= SILENCE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(unacknowledged: u32, probes: u32, [silent, sent_ago]: [u64; 2]) -> StreamState {
        let [silent, sent_ago] = [silent, sent_ago].map(Duration::from_millis);
        StreamState { unacknowledged, probes, silent, sent_ago, ..StreamState::default() }
    }

    /// Checks once a second. Returns the number of the first check that finds the server silent for too long.
    fn silent_at(state: impl Fn(u64) -> StreamState) -> Option<u64> {
        let mut silence = Silence::default();
        let at = |second: u64| Time(1_000_000_000_000 + second * 1_000_000_000);
        (0..120).find(|second| silence.check(&state(*second), at(*second)))
    }

    #[test]
    fn data_without_an_acknowledgement_are_silence() {
        // The last acknowledgement came a minute before the data.
        let dead = |second| stream(9, 0, [60_000 + second * 1000, 500]);
        assert_eq!(silent_at(dead), Some(10));
        // An acknowledgement between two checks.
        let late = |second: u64| stream(9, 0, [(second % 7) * 1000 + 300, 100]);
        assert_eq!(silent_at(late), None);
        let until_then = |second: u64| match second {
            0..30 => late(second),
            _ => stream(9, 0, [(second - 28) * 1000 + 300, 500]),
        };
        assert_eq!(silent_at(until_then), Some(38));
    }

    #[test]
    fn a_server_that_reads_nothing_and_answers_the_probes_is_not_silent() {
        // The kernel doubles the time between two probes, so an answer may be older than the limit.
        let closed = |second| stream(0, 0, [second * 1000, second * 1000]);
        assert_eq!(silent_at(closed), None);
        // A retransmission into the closed window is answered as well.
        let shrunk = |second| stream(9, 0, [second * 1000, second * 1000 + 1]);
        assert_eq!(silent_at(shrunk), None);
        // One probe is lost, and the next one is answered.
        let one = |second: u64| {
            let probes = u32::from((50..80).contains(&second));
            stream(0, probes, [second * 1000, second * 1000])
        };
        assert_eq!(silent_at(one), None);
        let dead = |second: u64| {
            let probes = u32::from(second >= 25) + u32::from(second >= 50);
            stream(0, probes, [second * 1000, second * 1000])
        };
        assert_eq!(silent_at(dead), Some(60));
    }
}
