//! Liveness: detects a silent peer.
//!
//! A peer that has nothing to say is not silent. The timeout runs only while a sign of life is expected:
//!
//! | expected | from | until | the peer is silent |
//! |---|---|---|---|
//! | an answer | a ping | the next sign of life | the timeout and two round trips after the ping |
//! | answers at all times | something is held here | it is held no more | the timeout after the last sign of life, and not before an answer could arrive |
//! | the peer's pings | something is held by the peer | it is held no more | the timeout after the last sign of life |
//!
//! [`Heartbeat`](crate::Heartbeat) decides what is expected.

use contract::Time;
use std::time::Duration;

/// The time of the last sign of life, and the timeout.
#[derive(Debug, Clone)]
pub struct Liveness {
    silence: Duration,
    heard: Time,
    /// The time since which an answer is expected.
    asked_since: Option<Time>,
    /// Answers are expected at all times.
    asks_always: bool,
    /// Pings of the peer are expected at all times.
    expects_pings: bool,
    /// The least time between a ping and its answer.
    round_trip: Duration,
}

impl Liveness {
    /// The last sign of life is at `now`; the peer is silent `silence` later.
    pub fn new(silence: Duration, now: Time) -> Self {
        Liveness {
            silence,
            heard: now,
            asked_since: Some(now),
            asks_always: true,
            expects_pings: false,
            round_trip: Duration::ZERO,
        }
    }

    /// Handles a sign of life.
    pub fn handle_heard(&mut self, now: Time) {
        self.heard = self.heard.max(now);
        if !self.asks_always {
            self.asked_since.take_if(|since| *since <= now);
        }
    }

    /// Handles a ping, which the peer has to answer.
    pub fn handle_ping(&mut self, now: Time) {
        self.asked_since.get_or_insert(now);
    }

    /// Expects answers at all times, or only to the pings that follow. The last ping may still be unanswered.
    pub fn ask_always(&mut self, always: bool, now: Time) {
        self.asks_always = always;
        if always {
            self.asked_since.get_or_insert(now);
        }
    }

    /// Expects pings of the peer at all times, or not.
    pub fn expect_pings(&mut self, expects_pings: bool) {
        self.expects_pings = expects_pings;
    }

    /// Records the round trip: a living peer cannot answer sooner.
    pub fn set_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }

    /// The time of the last sign of life.
    pub fn heard(&self) -> Time {
        self.heard
    }

    /// Returns true if the timeout has passed.
    pub fn is_silent(&self, now: Time) -> bool {
        now >= self.poll_timeout()
    }

    /// When the timeout will have passed, if nothing arrives. Never while nothing is expected.
    pub fn poll_timeout(&self) -> Time {
        // Two round trips instead of one, because the measured one is the shortest of the last.
        let answered = self.asked_since.map(|since| since.after(self.round_trip.saturating_mul(2)));
        let of_answers = answered.map(|answered| self.heard.max(answered));
        let of_pings = self.expects_pings.then_some(self.heard);
        let last = of_answers.into_iter().chain(of_pings).min();
        last.map_or(Time(u64::MAX), |last| last.after(self.silence))
    }
}
