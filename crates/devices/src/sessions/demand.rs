//! The number of sessions to have, and the attempts to get them. Sans-IO.
//!
//! | state of an attempt | event | next state |
//! |---|---|---|
//! | none | fewer sessions are open or requested than wanted | requested |
//! | requested | a session opens | none |
//! | requested | the attempt fails, or the session is lost before its first reply | none; no further ones until [`RETRY`], or [`RETRY_FIRST`] without any session |
//! | none, until a time | the last session is lost | the same, until [`RETRY_FIRST`] at most |

use super::SessionCount;
use contract::Time;
use session::{Observation, Search, Searched, WAYS_MAX};
use std::time::Duration;

/// Time until the next attempts after one has failed. It doubles each time.
const RETRY: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(64)];
/// The same while no session is open: the application waits.
const RETRY_FIRST: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

#[derive(Debug)]
enum Choice {
    Fixed(u32),
    Found(Box<Search>),
}

/// The progress of the transfer, as the search observes it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Progress {
    /// Data that the server has taken or sent.
    pub(super) done_bytes: u64,
    /// Open sessions.
    pub(super) open: u32,
    /// The round trip of one of them.
    pub(super) round_trip: Duration,
    /// The sessions in use have enough to do.
    pub(super) is_limited: bool,
    /// A chunk waits for a new session, however many are open.
    pub(super) needs_session: bool,
}

/// The sessions that a disk demands.
#[derive(Debug)]
pub(super) struct Demand {
    choice: Choice,
    /// The most that the server grants for now.
    most: u32,
    /// Attempts to hand to the broker, and those that it works on.
    to_request: u32,
    requested: u32,
    failed: u64,
    retry_at: Option<Time>,
    retry_after: Duration,
    /// Start of the present time with enough to do, and the length of the earlier ones.
    limited_since: Option<Time>,
    limited: Duration,
}

impl Demand {
    pub(super) fn new(count: SessionCount) -> Demand {
        let choice = match count {
            SessionCount::Found => Choice::Found(Box::default()),
            SessionCount::Fixed(sessions) => Choice::Fixed(sessions.clamp(1, WAYS_MAX)),
        };
        Demand {
            choice,
            most: WAYS_MAX,
            to_request: 0,
            requested: 0,
            failed: 0,
            retry_at: None,
            retry_after: Duration::ZERO,
            limited_since: None,
            limited: Duration::ZERO,
        }
    }

    /// Returns the number of sessions to use.
    pub(super) fn used(&self) -> u32 {
        match &self.choice {
            Choice::Fixed(sessions) => *sessions,
            Choice::Found(search) => search.ways(),
        }
    }

    /// Returns the number of sessions to keep open.
    pub(super) fn kept(&self) -> u32 {
        match &self.choice {
            Choice::Fixed(sessions) => *sessions,
            Choice::Found(search) => search.ways_kept(),
        }
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed
    }

    pub(super) fn searched(&self) -> Searched {
        match &self.choice {
            Choice::Fixed(_) => Searched::default(),
            Choice::Found(search) => search.searched(),
        }
    }

    /// Returns the attempts for the broker. Each has to end in [`Demand::handle_opened`] or [`Demand::handle_failed`].
    pub(super) fn take_requested(&mut self) -> u32 {
        let requested = std::mem::take(&mut self.to_request);
        self.requested += requested;
        requested
    }

    pub(super) fn has_requested(&self) -> bool {
        self.to_request > 0
    }

    /// An attempt has opened a session, which `progress` counts.
    pub(super) fn handle_opened(&mut self, progress: Progress, now: Time) {
        self.requested = self.requested.saturating_sub(1);
        let observation = self.observe(progress, now);
        if let Choice::Found(search) = &mut self.choice {
            search.on_opened(&observation, now);
        }
        if progress.open >= self.kept() {
            (self.retry_at, self.retry_after, self.most) = (None, Duration::ZERO, WAYS_MAX);
        }
    }

    /// An attempt has failed. Returns true for the first failure in a row.
    pub(super) fn handle_failed(&mut self, open: u32, now: Time) -> bool {
        self.requested = self.requested.saturating_sub(1);
        self.failed += 1;
        self.most = open.max(1);
        if let Choice::Found(search) = &mut self.choice {
            search.on_refused(open.max(1));
        }
        let is_first = self.retry_after == Duration::ZERO;
        self.retry_later(open, now);
        is_first
    }

    /// A session is lost that the server has never used: as if the attempt had failed.
    pub(super) fn handle_unused(&mut self, open: u32, now: Time) {
        self.failed += 1;
        self.retry_later(open, now);
    }

    fn retry_later(&mut self, open: u32, now: Time) {
        if self.retry_at.is_none() {
            let [least, most] = if open == 0 { RETRY_FIRST } else { RETRY };
            self.retry_after = (self.retry_after * 2).clamp(least, most);
            self.retry_at = Some(now.after(self.retry_after));
        }
    }

    /// Advances the search and the attempts.
    pub(super) fn run(&mut self, progress: Progress, now: Time) {
        let observation = self.observe(progress, now);
        if let Choice::Found(search) = &mut self.choice {
            if progress.is_limited {
                search.on_limited(now, &observation);
            }
            if search.due().is_some_and(|due| due <= now) {
                search.on_due(&observation, now);
            }
        }
        // The attempts that have failed were for further sessions.
        if progress.open == 0
            && let Some(at) = self.retry_at
        {
            self.retry_after = self.retry_after.min(RETRY_FIRST[1]);
            self.retry_at = Some(at.min(now.after(self.retry_after)));
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            (self.retry_at, self.most) = (None, WAYS_MAX);
        }
        let target = self.kept().min(self.most);
        let requested = self.requested + self.to_request;
        if self.retry_at.is_none() {
            let fewest = u32::from(progress.needs_session);
            self.to_request += target.saturating_sub(progress.open).max(fewest).saturating_sub(requested);
        }
    }

    /// Returns the time of the next [`Demand::run`].
    pub(super) fn due(&self) -> Option<Time> {
        let search = match &self.choice {
            Choice::Fixed(_) => None,
            Choice::Found(search) => search.due(),
        };
        search.into_iter().chain(self.retry_at).min()
    }

    /// Adds up the time in which the sessions had enough to do.
    fn observe(&mut self, progress: Progress, now: Time) -> Observation {
        match (self.limited_since, progress.is_limited) {
            (None, true) => self.limited_since = Some(now),
            (Some(since), false) => {
                self.limited += now.since(since);
                self.limited_since = None;
            }
            _ => {}
        }
        let present = self.limited_since.map_or(Duration::ZERO, |since| now.since(since));
        Observation {
            acknowledged_bytes: progress.done_bytes,
            limited: self.limited + present,
            ways_open: progress.open,
            round_trip: progress.round_trip,
        }
    }
}
