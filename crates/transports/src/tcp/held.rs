//! Whether losses hold a stream back that a new connection would not know of. Sans-IO.
//!
//! Two things outlive what a network lost. A stream waits for an acknowledgement twice as long each time that what it sent
//! again was lost too (RFC 6298, 5.5): the network may be well for most of a second before anything is tried. And many
//! losses leave a window of a few segments, which grows by one a round trip (RFC 5681, 3.1), with seconds of a flow
//! waiting behind it. A connection that is made anew does neither; what is not acknowledged goes out over it again.
//!
//! A network that is not lossy but thin leaves a small window too, and there a new connection would only lose more: so a
//! stream counts as held back where many of its segments were lost, and then for a while none, and no queue makes its round
//! trip longer.

use contract::Time;
use std::time::Duration;
use sys::net::StreamState;

/// Waits in a row, each twice as long, that ended without an acknowledgement.
const WAITS: u32 = 2;
/// Nothing for so long, and so many round trips, after such a wait: the kernel's next is as long as the losses made it
/// believe that the way is, and counts as the first again where little is under way (`sys::net::resend_soon`).
const SILENT: Duration = Duration::from_millis(150);
const SILENT_ROUND_TRIPS: u32 = 4;
/// So many segments sent again, and of what arrived meanwhile at least one in so many, are a lossy network.
const RESENT_MIN: u32 = 4;
const ARRIVED_PER_RESENT: u64 = 20;
/// So many segments in a row that arrive at once are one no more: had it gone on to lose one in five, one in 200 such rows
/// would be whole.
const CLEAN_SEGMENTS: u64 = 24;
/// Larger windows have outgrown what was lost.
const WINDOW_FEW: u32 = 32;
/// Shortest time between two new connections, so that they are no storm where nothing helps.
const INTERVAL: Duration = Duration::from_millis(500);
/// Shortest time between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// What a stream has lost of late.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// When it had more to send than the network takes, ever since: acknowledged bytes and segments sent again.
    begun: Option<(u64, u32)>,
    /// The same when a segment had last been sent again.
    resent: (u64, u32),
    /// Nobody is told again before.
    told_until: Time,
    due: Time,
}

impl Held {
    /// When it is time for another look.
    pub(super) fn due(&self) -> Time {
        self.due
    }

    /// There is nothing to look at: later there may be.
    pub(super) fn put_off(&mut self, now: Time) {
        self.due = now.after(LOOK);
    }

    /// The network has taken everything.
    pub(super) fn rest(&mut self) {
        self.begun = None;
    }

    /// A look at a stream with more to send than was taken; says whether a new connection would do better.
    pub(super) fn look(&mut self, stream: &StreamState, now: Time) -> bool {
        self.put_off(now);
        let seen = (stream.acknowledged_bytes, stream.resent);
        let begun = *self.begun.get_or_insert_with(|| {
            self.resent = seen;
            seen
        });
        if self.resent.1 != stream.resent {
            self.resent = seen;
        }
        let silent = stream.silent >= SILENT + stream.round_trip_min * SILENT_ROUND_TRIPS;
        let is_waiting =
            stream.unacknowledged > 0 && (stream.waits >= WAITS || stream.is_timed_out && silent);
        if !is_waiting && !self.is_small_for_nothing(stream, begun) || now < self.told_until {
            return false;
        }
        self.told_until = now.after(INTERVAL);
        true
    }

    /// Whether the window is what losses left that have ceased.
    fn is_small_for_nothing(&self, stream: &StreamState, begun: (u64, u32)) -> bool {
        let segments = |from: u64, to: u64| to.saturating_sub(from) / u64::from(stream.segment_bytes.max(1));
        let resent = stream.resent.saturating_sub(begun.1);
        resent >= RESENT_MIN
            && segments(begun.0, self.resent.0) <= u64::from(resent) * ARRIVED_PER_RESENT
            && segments(self.resent.0, stream.acknowledged_bytes) >= CLEAN_SEGMENTS
            && (stream.slow_start_until..=WINDOW_FEW).contains(&stream.window)
            && stream.round_trip <= 2 * stream.round_trip_min
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEGMENT: u32 = 1000;

    /// After so many segments that arrived, and so many that were sent again.
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
    fn a_window_that_losses_left_is_found_when_they_have_ceased() {
        let mut held = Held::default();
        // One segment in five is lost.
        for step in 0..20 {
            assert!(!held.look(&stream(step * 10, 2 * step as u32, 3), at(step * 50)));
        }
        assert!(!held.look(&stream(200, 38, 3), at(1000)));
        assert!(held.look(&stream(190 + CLEAN_SEGMENTS, 38, 9), at(1050)));
        assert!(!held.look(&stream(220, 38, 9), at(1100)), "told once");
        assert!(!held.look(&stream(300, 38, WINDOW_FEW + 1), at(9000)), "it has grown");
    }

    #[test]
    fn a_full_link_is_not_held_back() {
        let mut held = Held::default();
        let full = |arrived, resent| StreamState {
            round_trip: Duration::from_millis(30),
            round_trip_min: Duration::from_millis(10),
            ..stream(arrived, resent, 20)
        };
        // What slow start sent too much of.
        assert!(!held.look(&full(40, 0), at(0)) && !held.look(&full(60, 20), at(50)));
        assert!(!held.look(&full(60 + 2 * CLEAN_SEGMENTS, 20), at(100)));
    }

    #[test]
    fn a_stream_that_waits_twice_as_long_again_is_found_at_once() {
        let mut held = Held::default();
        let waits = |waits, unacknowledged| StreamState { waits, unacknowledged, ..stream(100, 5, 1) };
        assert!(!held.look(&waits(1, 4), at(0)));
        assert!(!held.look(&waits(3, 0), at(50)), "the other host takes nothing");
        assert!(held.look(&waits(2, 4), at(100)));
        assert!(!held.look(&waits(3, 4), at(550)), "not told again at once");
        assert!(held.look(&waits(4, 4), at(600)));
    }

    #[test]
    fn a_stream_that_is_silent_after_a_wait_is_found_whatever_the_kernel_waits_for() {
        let mut held = Held::default();
        let silent = |ms, is_timed_out| StreamState {
            silent: Duration::from_millis(ms),
            round_trip_min: Duration::from_millis(10),
            unacknowledged: 3,
            is_timed_out,
            ..stream(100, 5, 1)
        };
        assert!(!held.look(&silent(900, false), at(0)), "nothing was lost");
        assert!(!held.look(&silent(189, true), at(50)));
        assert!(held.look(&silent(190, true), at(100)));
        let long = StreamState { round_trip_min: Duration::from_millis(300), ..silent(900, true) };
        assert!(!held.look(&long, at(700)), "the way is as long as that");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(50) })]

        /// A thin link loses where its queue is full, one segment in some dozens: nothing is gained by another connection.
        #[test]
        fn a_thin_network_is_no_lossy_one(between in 25u64..200, window in 2u32..40) {
            let mut held = Held::default();
            for step in 0..2000 {
                prop_assert!(!held.look(&stream(step, (step / between) as u32, window), at(step * 50)));
            }
        }

        /// Whatever a kernel says.
        #[test]
        fn any_state_is_looked_at(states in prop::collection::vec((any::<u64>(), any::<[u32; 7]>()), 1..50)) {
            let mut held = Held::default();
            let mut told = 0;
            for (step, (acknowledged_bytes, [segment_bytes, resent, window, slow_start_until, unacknowledged, waits, silent])) in
                (0..).zip(states)
            {
                let state = StreamState {
                    acknowledged_bytes, segment_bytes, resent, window, slow_start_until, unacknowledged, waits,
                    is_timed_out: silent % 2 == 1,
                    silent: Duration::from_millis(silent.into()),
                    ..StreamState::default()
                };
                told += u64::from(held.look(&state, at(step * 50)));
            }
            prop_assert!(told <= 5, "told {told} times within 2.5 s");
        }
    }
}
