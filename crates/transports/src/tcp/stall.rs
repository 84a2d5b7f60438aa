//! Detects a TCP stream that past losses still slow down, so that a new connection would be faster. Sans-IO.
//!
//! Two kinds of TCP state outlive the losses that caused them:
//!
//! - The retransmission timeout doubles each time that a retransmission is lost too (RFC 6298, 5.5). The network may
//!   work again for most of a second before the kernel retransmits.
//! - Many losses leave a congestion window of a few segments, which grows by one segment per round trip (RFC 5681,
//!   3.1), while seconds of a flow wait in the queue.
//!
//! A new connection starts without both, and the session retransmits the unacknowledged records over it.
//!
//! A third kind of stall shows while the socket is not full. A network that has forgotten an idle connection, such as an
//! address translator, drops the next record. The kernel has accepted the record, so nothing waits here, and the control
//! channel works. The stream is therefore checked until the peer's kernel has acknowledged everything.
//!
//! | the socket | checked | a stall |
//! |---|---|---|
//! | is full | every [`CHECK_INTERVAL`] | timeouts, or a needlessly small window |
//! | has accepted everything | after [`FIRST_CHECK`], then every [`CHECK_INTERVAL`] until all is acknowledged | timeouts |
//!
//! A slow link also leaves a small window, but there a new connection would only lose more. A small window therefore
//! counts as a stall only if the stream lost many segments, then lost none for a while, and no queue lengthens its
//! round trip.

use contract::Time;
use std::time::Duration;
use sys::net::StreamState;

/// Consecutive retransmission timeouts that count as a stall.
const TIMEOUTS_MIN: u32 = 2;
/// Silence after one timeout that counts as a stall, plus [`SILENCE_ROUND_TRIPS`]. One timeout must be enough: the
/// losses have inflated the kernel's round-trip estimate, so its next timeout may be long, and with few segments in
/// flight the kernel does not count timeouts (`sys::net::resend_soon` sets linear timeouts).
const SILENCE_MIN: Duration = Duration::from_millis(150);
const SILENCE_ROUND_TRIPS: u32 = 4;
/// A period counts as lossy with at least this many retransmissions, and at least one per
/// [`ARRIVED_PER_RETRANSMISSION`] segments that arrived.
const RETRANSMISSIONS_MIN: u32 = 4;
const ARRIVED_PER_RETRANSMISSION: u64 = 20;
/// Segments without a loss after which the lossy period has ended. At a loss of one in five, a run of this length has
/// a probability of 1 in 200.
const CLEAN_SEGMENTS: u64 = 24;
/// A larger congestion window has recovered from the losses.
const WINDOW_SMALL_MAX: u32 = 32;
/// Shortest time between two reports, so that useless reconnects do not pile up.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// Shortest time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Time until the first check after the socket has accepted everything. Most streams are acknowledged by then.
const FIRST_CHECK: Duration = Duration::from_millis(200);

/// Progress of a stream at one check.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    acknowledged_bytes: u64,
    /// Segments retransmitted since the connection was made.
    retransmissions: u32,
}

/// The recent losses of one stream.
#[derive(Debug, Default)]
pub(crate) struct StallDetector {
    /// The first check since which the socket has always been full.
    busy_since: Option<Sample>,
    /// The check that saw the last retransmission.
    last_loss: Sample,
    /// Earliest next report.
    report_after: Time,
    due: Time,
    /// The socket has accepted everything, and the peer has not acknowledged it.
    unacknowledged: Option<Unacknowledged>,
}

#[derive(Debug, Clone, Copy)]
struct Unacknowledged {
    since: Time,
    check_at: Time,
}

impl StallDetector {
    /// Returns the time of the next check.
    pub(crate) fn due(&self) -> Time {
        self.due
    }

    /// Schedules the next check without performing one.
    pub(crate) fn postpone(&mut self, now: Time) {
        self.due = now.after(CHECK_INTERVAL);
    }

    /// The socket has accepted the whole queue: the stream is not slowed down.
    pub(crate) fn on_idle(&mut self) {
        self.busy_since = None;
    }

    /// The socket has accepted everything: the stream is checked until the peer has acknowledged it.
    pub(crate) fn on_sent(&mut self, now: impl FnOnce() -> Time) {
        self.unacknowledged.get_or_insert_with(|| {
            let since = now();
            Unacknowledged { since, check_at: since.after(FIRST_CHECK) }
        });
    }

    /// Returns the time of the next [`StallDetector::check_sent`].
    pub(crate) fn sent_due(&self) -> Option<Time> {
        self.unacknowledged.map(|unacknowledged| unacknowledged.check_at)
    }

    /// Checks a stream whose socket has accepted everything; `None` if its state is unknown. Returns true if it is stalled.
    pub(crate) fn check_sent(&mut self, stream: Option<&StreamState>, now: Time) -> bool {
        let stream = stream.filter(|stream| stream.unacknowledged > 0);
        let (Some(stream), Some(Unacknowledged { since, .. })) = (stream, self.unacknowledged) else {
            self.unacknowledged = None;
            return false;
        };
        self.unacknowledged = Some(Unacknowledged { since, check_at: now.after(CHECK_INTERVAL) });
        // The last acknowledgement before an idle time says nothing.
        let silent = stream.silent.min(now.since(since));
        is_waiting(stream, silent) && self.may_report(now)
    }

    /// Checks a stream whose socket is full. Returns true if it is stalled.
    pub(crate) fn check(&mut self, stream: &StreamState, now: Time) -> bool {
        self.postpone(now);
        let sample = Sample { acknowledged_bytes: stream.acknowledged_bytes, retransmissions: stream.resent };
        let busy_since = *self.busy_since.get_or_insert_with(|| {
            self.last_loss = sample;
            sample
        });
        if self.last_loss.retransmissions != stream.resent {
            self.last_loss = sample;
        }
        let is_stalled =
            is_waiting(stream, stream.silent) || self.has_needlessly_small_window(stream, busy_since);
        is_stalled && self.may_report(now)
    }

    /// Returns true if the last report is not recent. The caller reports now.
    fn may_report(&mut self, now: Time) -> bool {
        let may_report = now >= self.report_after;
        if may_report {
            self.report_after = now.after(REPORT_INTERVAL);
        }
        may_report
    }

    /// Returns true if the window is small because of losses that have ended.
    fn has_needlessly_small_window(&self, stream: &StreamState, busy_since: Sample) -> bool {
        let segments = |from: u64, to: u64| to.saturating_sub(from) / u64::from(stream.segment_bytes.max(1));
        let retransmissions = stream.resent.saturating_sub(busy_since.retransmissions);
        let while_lossy = segments(busy_since.acknowledged_bytes, self.last_loss.acknowledged_bytes);
        let since_loss = segments(self.last_loss.acknowledged_bytes, stream.acknowledged_bytes);
        retransmissions >= RETRANSMISSIONS_MIN
            && while_lossy <= u64::from(retransmissions) * ARRIVED_PER_RETRANSMISSION
            && since_loss >= CLEAN_SEGMENTS
            // Below the threshold, slow start doubles the window every round trip and needs no help.
            && (stream.slow_start_until..=WINDOW_SMALL_MAX).contains(&stream.window)
            && stream.round_trip <= 2 * stream.round_trip_min
    }
}

/// Returns true if the kernel waits for an acknowledgement that should have come; `silent`: the time without one.
fn is_waiting(stream: &StreamState, silent: Duration) -> bool {
    let is_silent = silent >= SILENCE_MIN + stream.round_trip_min * SILENCE_ROUND_TRIPS;
    stream.unacknowledged > 0 && (stream.waits >= TIMEOUTS_MIN || stream.is_timed_out && is_silent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEGMENT: u32 = 1000;

    /// A stream with these counts of arrived and retransmitted segments.
    fn stream(arrived: u64, resent: u32, window: u32) -> StreamState {
        StreamState {
            acknowledged_bytes: arrived * u64::from(SEGMENT),
            segment_bytes: SEGMENT,
            resent,
            window,
            slow_start_until: 2,
            unacknowledged: window,
            ..StreamState::default()
        }
    }

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn a_small_window_is_reported_once_the_losses_have_ended() {
        let mut detector = StallDetector::default();
        // One segment in five is lost.
        for step in 0..20 {
            assert!(!detector.check(&stream(step * 10, 2 * step as u32, 3), at(step * 50)));
        }
        assert!(!detector.check(&stream(200, 38, 3), at(1000)));
        assert!(detector.check(&stream(190 + CLEAN_SEGMENTS, 38, 9), at(1050)));
        assert!(!detector.check(&stream(220, 38, 9), at(1100)), "reported once");
        assert!(!detector.check(&stream(300, 38, WINDOW_SMALL_MAX + 1), at(9000)), "the window has grown");
    }

    #[test]
    fn a_full_link_is_not_stalled() {
        let mut detector = StallDetector::default();
        let full = |arrived, resent| StreamState {
            round_trip: Duration::from_millis(30),
            round_trip_min: Duration::from_millis(10),
            ..stream(arrived, resent, 20)
        };
        // Slow start overshoots and loses 20 segments.
        assert!(!detector.check(&full(40, 0), at(0)) && !detector.check(&full(60, 20), at(50)));
        assert!(!detector.check(&full(60 + 2 * CLEAN_SEGMENTS, 20), at(100)));
    }

    #[test]
    fn the_second_timeout_is_reported_at_once() {
        let mut detector = StallDetector::default();
        let waits = |waits, unacknowledged| StreamState { waits, unacknowledged, ..stream(100, 5, 1) };
        assert!(!detector.check(&waits(1, 4), at(0)));
        assert!(!detector.check(&waits(3, 0), at(50)), "nothing is in flight: the peer's window is closed");
        assert!(detector.check(&waits(2, 4), at(100)));
        assert!(!detector.check(&waits(3, 4), at(550)), "not reported again at once");
        assert!(detector.check(&waits(4, 4), at(600)));
    }

    #[test]
    fn silence_after_one_timeout_is_reported() {
        let mut detector = StallDetector::default();
        let silent = |ms, is_timed_out| StreamState {
            silent: Duration::from_millis(ms),
            round_trip_min: Duration::from_millis(10),
            unacknowledged: 3,
            is_timed_out,
            ..stream(100, 5, 1)
        };
        assert!(!detector.check(&silent(900, false), at(0)), "no timeout");
        assert!(!detector.check(&silent(189, true), at(50)));
        assert!(detector.check(&silent(190, true), at(100)));
        let long = StreamState { round_trip_min: Duration::from_millis(300), ..silent(900, true) };
        assert!(!detector.check(&long, at(700)), "shorter than the round trips allow");
    }

    #[test]
    fn a_record_that_the_network_drops_after_an_idle_time_is_reported() {
        let mut detector = StallDetector::default();
        let sent = |is_timed_out, unacknowledged| StreamState {
            silent: Duration::from_secs(60),
            round_trip_min: Duration::from_millis(20),
            is_timed_out,
            unacknowledged,
            ..stream(100, 0, 10)
        };
        detector.on_sent(|| at(0));
        detector.on_sent(|| panic!("the stream is checked already"));
        assert_eq!(detector.sent_due(), Some(at(200)));
        assert!(!detector.check_sent(Some(&sent(true, 1)), at(200)), "silent for a short time only");
        assert_eq!(detector.sent_due(), Some(at(250)));
        assert!(detector.check_sent(Some(&sent(true, 1)), at(250)));
        assert!(!detector.check_sent(Some(&sent(true, 1)), at(300)), "reported once");
        assert!(!detector.check_sent(Some(&sent(false, 0)), at(350)));
        assert_eq!(detector.sent_due(), None, "everything is acknowledged");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(50) })]

        /// A slow link loses one segment in some dozens when its queue is full. A new connection would not help.
        #[test]
        fn a_slow_link_is_not_stalled(between in 25u64..200, window in 2u32..40) {
            let mut detector = StallDetector::default();
            for step in 0..2000 {
                prop_assert!(!detector.check(&stream(step, (step / between) as u32, window), at(step * 50)));
            }
        }

        #[test]
        fn any_stream_state_is_accepted(states in prop::collection::vec((any::<u64>(), any::<[u32; 7]>()), 1..50)) {
            let mut detector = StallDetector::default();
            let mut reports = 0;
            for (step, (acknowledged_bytes, [segment_bytes, resent, window, slow_start_until, unacknowledged, waits, silent])) in
                (0..).zip(states)
            {
                let state = StreamState {
                    acknowledged_bytes, segment_bytes, resent, window, slow_start_until, unacknowledged, waits,
                    is_timed_out: silent % 2 == 1,
                    silent: Duration::from_millis(silent.into()),
                    ..StreamState::default()
                };
                reports += u64::from(detector.check(&state, at(step * 50)));
            }
            prop_assert!(reports <= 5, "{reports} reports within 2.5 s");
        }
    }
}
