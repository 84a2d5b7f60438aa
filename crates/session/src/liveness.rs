//! Liveness: detects a silent peer.

use contract::Time;
use std::time::Duration;

/// The time of the last sign of life, and the timeout.
#[derive(Debug, Clone)]
pub struct Liveness {
    silence: Duration,
    heard: Time,
}

impl Liveness {
    /// The last sign of life is at `now`; the peer is silent `silence` later.
    pub fn new(silence: Duration, now: Time) -> Self {
        Liveness { silence, heard: now }
    }

    /// Handles a sign of life.
    pub fn handle_heard(&mut self, now: Time) {
        self.heard = self.heard.max(now);
    }

    /// The time of the last sign of life.
    pub fn heard(&self) -> Time {
        self.heard
    }

    /// Returns true if the timeout has passed.
    pub fn is_silent(&self, now: Time) -> bool {
        now >= self.poll_timeout()
    }

    /// When the timeout will have passed, if nothing arrives.
    pub fn poll_timeout(&self) -> Time {
        self.heard.after(self.silence)
    }
}
