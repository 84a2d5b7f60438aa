//! Liveness: has the peer been heard of lately?

use contract::Time;
use std::time::Duration;

/// Watches for silence.
#[derive(Debug, Clone)]
pub struct Liveness {
    silence: Duration,
    heard: Time,
}

impl Liveness {
    /// Heard of at `now`; silent when that is `silence` ago.
    pub fn new(silence: Duration, now: Time) -> Self {
        Liveness { silence, heard: now }
    }

    /// The peer was heard of.
    pub fn handle_heard(&mut self, now: Time) {
        self.heard = self.heard.max(now);
    }

    /// When it was last.
    pub fn heard(&self) -> Time {
        self.heard
    }

    /// Whether the peer has been silent for too long.
    pub fn is_silent(&self, now: Time) -> bool {
        now >= self.poll_timeout()
    }

    /// When it will have been, if nothing comes.
    pub fn poll_timeout(&self) -> Time {
        self.heard.after(self.silence)
    }
}
