//! The rhythm of pings, and the liveness of a peer that results from it (`docs/design/idle.md`).
//!
//! A session *holds* something while the loss of the link would harm: a key is down, a record or a control message is
//! unacknowledged, data moves. Its host then pings in the short rhythm. Otherwise each interval is twice the one before,
//! up to [`Limits::rest_interval`].
//!
//! | state | interval of pings | the peer is silent |
//! |---|---|---|
//! | held | `ping_interval` | `silence` after its last sign of life |
//! | held by the peer alone | as at rest | the same |
//! | at rest | doubles, from `ping_interval` to `rest_interval`, or three times that on the device host | `silence` after a ping without an answer |
//!
//! | event | effect |
//! |---|---|
//! | `hold(true)` | held: the next ping follows within `ping_interval` |
//! | `hold(false)` | at rest, from `ping_interval` on |
//! | a numbered message is sent or arrives | the intervals start again at `ping_interval` |
//! | a ping in the short rhythm arrives | held by the peer |
//! | a ping in a longer rhythm arrives | not held by the peer; at rest, a ping of the device host that is due soon follows at once |
//!
//! The rhythm of pings is the message: it tells the peer that something is held. So a peer that always pings in the short
//! rhythm, as earlier programs do, finds and gives the guarantees of a held session. Every host answers each ping at once.
//! So no host waits for the rhythm of the other.

use crate::{Limits, Liveness};
use contract::Time;
use std::time::Duration;

/// Number of first pings that follow each other five times as fast: the clock offset is inaccurate until some answers
/// have arrived.
const HURRIED_PINGS: u32 = 16;
/// Factor on the silence limit for the control channel while data arrives: its messages may be queued behind the
/// data, but only for so long.
const DATA_PATIENCE: u32 = 10;
/// Factor on the silence limit above which a sleep of this host breaks the connection. The peer's retransmissions
/// have backed off by then, and a new connection starts without that backoff.
const SLEEP: u32 = 3;
/// At rest, the device host pings after so many fifths of the application host's interval: it follows every third ping, and
/// pings by itself only if that does not come. Only the application host has to find a dead link.
const FOLLOWER_FIFTHS: u32 = 16;
/// A session whose pings are at least this far apart rests.
const REST: Duration = Duration::from_secs(1);

/// The heartbeat of one session.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    silence: Duration,
    ping_interval: Duration,
    rest_interval: Duration,
    /// Liveness of the peer, over any connection.
    liveness: Liveness,
    /// Liveness of the control connection alone.
    own_liveness: Liveness,
    is_held: bool,
    is_held_by_peer: bool,
    /// This is the device host, which follows the application host's pings at rest.
    is_follower: bool,
    /// The interval before the next ping, unless something is held.
    gap: Duration,
    ping_at: Time,
    pings: u32,
    /// The peer's time of its last ping.
    peer_pinged_ns: Option<u64>,
}

impl Heartbeat {
    /// The heartbeat of a session that holds something, as every session does until it is set up.
    pub fn new(limits: &Limits, now: Time) -> Self {
        Heartbeat {
            silence: limits.silence,
            ping_interval: limits.ping_interval,
            rest_interval: limits.rest_interval,
            liveness: Liveness::new(limits.silence, now),
            own_liveness: Liveness::new(limits.silence.saturating_mul(DATA_PATIENCE), now),
            is_held: true,
            is_held_by_peer: false,
            is_follower: false,
            gap: limits.ping_interval,
            ping_at: now,
            pings: 0,
            peer_pinged_ns: None,
        }
    }

    /// Makes this the heartbeat of a device host.
    pub fn follow(&mut self) {
        self.is_follower = true;
    }

    /// Handles a new connection.
    pub fn handle_connection(&mut self, now: Time) {
        self.handle_message(now);
        (self.gap, self.ping_at) = (self.ping_interval, now);
        self.peer_pinged_ns = None;
        self.set_held_by_peer(false);
    }

    /// Records that the session holds something, or nothing any more.
    pub fn hold(&mut self, is_held: bool, now: Time) {
        if is_held != self.is_held {
            self.is_held = is_held;
            self.handle_news(now);
            self.liveness.ask_always(is_held, now);
            self.own_liveness.ask_always(is_held, now);
        }
    }

    fn set_held_by_peer(&mut self, is_held: bool) {
        self.is_held_by_peer = is_held;
        self.liveness.expect_pings(is_held);
        self.own_liveness.expect_pings(is_held);
    }

    /// Handles a numbered message, sent or received: the peer has to learn soon that it arrived.
    pub fn handle_news(&mut self, now: Time) {
        self.gap = self.ping_interval;
        self.ping_at = self.ping_at.min(now.after(self.ping_interval));
    }

    /// Makes the next ping due: somebody waits for a sign of the peer. Further pings follow soon, because two pings in close
    /// succession say that something is held.
    pub fn ping_now(&mut self, now: Time) {
        self.handle_news(now);
        self.ping_at = now;
    }

    /// Handles any message of the control connection.
    pub fn handle_message(&mut self, now: Time) {
        self.liveness.handle_heard(now);
        self.own_liveness.handle_heard(now);
    }

    /// Handles data of the peer that arrived at `at`: the peer is alive even if its control messages are late.
    pub fn handle_data(&mut self, at: Time) {
        self.liveness.handle_heard(at);
    }

    /// Handles a ping that the peer sent at `sent_ns` of its clock. Delays on the way do not change the rhythm of these
    /// times.
    pub fn handle_peer_ping(&mut self, sent_ns: u64, now: Time) {
        let before = self.peer_pinged_ns.replace(sent_ns);
        let gap = before.map(|before| Duration::from_nanos(sent_ns.saturating_sub(before)));
        self.set_held_by_peer(gap.is_some_and(|gap| gap <= self.ping_interval * 3 / 2));
        self.handle_message(now);
        // Two hosts at rest that ping together wake each other less often. Pings that follow each other soon would say that
        // something is held.
        if self.is_follower && self.is_resting() && self.ping_at.since(now) <= self.gap / 4 {
            self.ping_at = now;
        }
    }

    /// Records the round trip between the hosts.
    pub fn set_round_trip(&mut self, round_trip: Duration) {
        self.liveness.set_round_trip(round_trip);
        self.own_liveness.set_round_trip(round_trip);
    }

    /// Handles a sleep of this host, which shows in an overdue ping: a short silence during it does not count, and a long
    /// one needs no proof.
    pub fn handle_sleep(&mut self, now: Time) {
        let slept = now.since(self.ping_at);
        if slept < self.silence || self.is_silent(self.ping_at) {
            return;
        }
        match slept < self.silence.saturating_mul(SLEEP) {
            true => self.handle_message(now),
            false => self.liveness.handle_ping(self.ping_at),
        }
    }

    /// Returns true if a ping is due.
    pub fn is_ping_due(&self, now: Time) -> bool {
        now >= self.ping_at
    }

    /// Schedules the next ping. `is_sent`: the due one was sent, and the peer has to answer it.
    pub fn handle_ping(&mut self, is_sent: bool, now: Time) {
        if !is_sent {
            self.ping_at = now.after(self.ping_interval);
            return;
        }
        self.pings = self.pings.saturating_add(1);
        self.liveness.handle_ping(now);
        self.own_liveness.handle_ping(now);
        let interval = match () {
            () if self.pings < HURRIED_PINGS => self.ping_interval / 5,
            () if self.is_held => self.ping_interval,
            () => {
                let longest = match self.is_follower {
                    true => self.rest_interval * FOLLOWER_FIFTHS / 5,
                    false => self.rest_interval,
                };
                self.gap = self.gap.saturating_mul(2).min(longest.max(self.ping_interval));
                self.gap
            }
        };
        self.ping_at = now.after(interval);
    }

    /// Returns true if the session has held nothing for some time.
    pub fn is_resting(&self) -> bool {
        self.is_at_rest() && self.gap >= REST
    }

    fn is_at_rest(&self) -> bool {
        !self.is_held && !self.is_held_by_peer && self.pings >= HURRIED_PINGS
    }

    /// The time of the last arrival from the peer.
    pub fn heard(&self) -> Time {
        self.liveness.heard()
    }

    /// Returns true if the peer is silent.
    pub fn is_silent(&self, now: Time) -> bool {
        self.liveness.is_silent(now) || self.own_liveness.is_silent(now)
    }

    /// The time at which the peer counts as silent if nothing arrives.
    pub fn silent_at(&self) -> Time {
        self.liveness.poll_timeout().min(self.own_liveness.poll_timeout())
    }

    /// The time of the next ping.
    pub fn ping_at(&self) -> Time {
        self.ping_at
    }
}
