//! The bound on the work that a peer makes for the broker's thread.
//!
//! Each peer has a number of control messages and of requests a second, over all its sessions together. While it is above
//! one of them, the broker does not read its control channels: what it sends waits in its connections. Its flows continue,
//! as their workers need no broker for that.
//!
//! The bound counts messages and not processor time: on a slow processor an honest peer costs more time, but sends no
//! more messages.

use super::DeviceHost;
use super::admission::{QuotaKey, quota_key};
use crate::events::Event;
use crate::share_session::{TurnResult, Work};
use contract::Time;
use flow::fair::Bucket;
use modules::now;
use session::Rates;
use std::collections::BTreeMap;
use std::time::Duration;

/// The time for which a peer may save up what it does not use: it may open some hundred devices at once.
const BURST: Duration = Duration::from_secs(1);
/// The shortest rest. Few long turns disturb others less than many short ones, which evict the processor's caches.
const REST: Duration = Duration::from_millis(100);

/// The work that each peer made of late.
pub(super) struct Attention {
    /// Messages a second; 0 is unlimited.
    messages: u64,
    /// Requests a second; 0 is unlimited.
    requests: u64,
    peers: BTreeMap<QuotaKey, Account>,
    /// The end of the last rest.
    rested_at: Time,
}

/// One peer.
struct Account {
    messages: Bucket,
    requests: Bucket,
    rests_until: Time,
    /// The session that was served last: the turn of those before it comes first.
    last: u64,
    is_reported: bool,
}

impl Attention {
    pub(super) fn new(rates: &Rates) -> Attention {
        Attention {
            messages: rates.control_messages_per_peer,
            requests: rates.control_requests_per_peer,
            peers: BTreeMap::new(),
            rested_at: Time::ZERO,
        }
    }

    /// Returns the time until which this peer rests; `None` if it does not.
    pub(super) fn rests_until(&self, peer: impl FnOnce() -> QuotaKey, now: Time) -> Option<Time> {
        if self.rested_at <= now {
            return None;
        }
        self.peers.get(&peer()).map(|account| account.rests_until).filter(|until| *until > now)
    }

    /// Counts the work of one session of this peer. Returns the limit that it exceeds, when that is to be reported.
    fn spend(&mut self, peer: QuotaKey, session: u64, work: Work, now: Time) -> Option<String> {
        let account = self.peers.entry(peer).or_insert_with(|| Account {
            messages: Bucket::new(self.messages, BURST),
            requests: Bucket::new(self.requests, BURST),
            rests_until: Time::ZERO,
            last: 0,
            is_reported: false,
        });
        account.last = session;
        account.messages.take(work.messages, now);
        account.requests.take(work.requests, now);
        let limit = match (account.messages.is_open(now), account.requests.is_open(now)) {
            (true, true) => return None,
            (false, _) => format!("control_messages_per_peer={}", self.messages),
            (true, false) => format!("control_requests_per_peer={}", self.requests),
        };
        account.rests_until = account.free_at().after(REST);
        self.rested_at = self.rested_at.max(account.rests_until);
        (!std::mem::replace(&mut account.is_reported, true)).then_some(limit)
    }

    /// The place of a session among those of its peer.
    fn place(&self, peer: &QuotaKey, session: u64) -> (bool, u64) {
        (self.peers.get(peer).is_some_and(|account| session <= account.last), session)
    }

    /// Forgets the peers that have saved up all they may.
    pub(super) fn forget(&mut self, now: Time) {
        self.peers.retain(|_, account| account.free_at().after(BURST) > now);
    }
}

impl Account {
    fn free_at(&self) -> Time {
        self.messages.free_at().max(self.requests.free_at())
    }
}

impl DeviceHost {
    /// Serves the sessions that have something to do: with many peers, most have nothing.
    pub(super) fn serve(&mut self, emit: &mut dyn FnMut(Event)) {
        let (poller, at) = (&self.poller, now());
        let due = self.sessions.iter().filter(|(_, session)| session.is_due(poller, at));
        let mut due: Vec<_> = due.map(|(id, session)| (*id, quota_key(session))).collect();
        due.sort_by_cached_key(|(id, peer)| self.attention.place(peer, *id));
        for (id, peer) in due {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            if self.attention.rests_until(|| peer, now()).is_some() {
                continue;
            }
            let turn = session.serve(&mut self.shared, &mut self.poller, now(), emit);
            if let Some(limit) = self.attention.spend(peer, id, session.take_work(), now()) {
                let peer = &session.common.peer;
                let problem =
                    format!("{peer} sends too many control messages: they are delayed (limit {limit})");
                emit(Event::Warning { problem });
            }
            if let TurnResult::Over(reason) = turn
                && let Some(session) = self.sessions.remove(&id)
            {
                self.finish_session(session, &reason, emit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn peer(last: u8) -> QuotaKey {
        (None, Some(IpAddr::from([10, 0, 0, last])))
    }

    fn attention(messages: u64, requests: u64) -> Attention {
        let rates = Rates {
            control_messages_per_peer: messages,
            control_requests_per_peer: requests,
            ..Rates::default()
        };
        Attention::new(&rates)
    }

    /// A peer that sends as fast as it is read: messages of 20 seconds, and the reports.
    fn flood(attention: &mut Attention, work: Work) -> (u64, Vec<String>) {
        let begun = Time(1 << 40);
        let (mut now, mut turns, mut reports, mut rests) = (begun, 0, Vec::new(), Vec::new());
        while now < begun.after(Duration::from_secs(20)) {
            if let Some(until) = attention.rests_until(|| peer(1), now) {
                rests.push(until.since(now));
                now = until;
            }
            now = now.after(Duration::from_micros(100));
            turns += 1;
            reports.extend(attention.spend(peer(1), 1, work, now));
            assert_eq!(attention.rests_until(|| peer(2), now), None, "another peer is read");
            attention.forget(now);
        }
        assert!(rests.iter().all(|rest| *rest >= REST), "{rests:?}");
        attention.forget(now.after(BURST * 3));
        assert!(attention.peers.is_empty());
        (turns, reports)
    }

    #[test]
    fn a_peer_that_floods_is_read_at_the_rate_of_the_limit() {
        let (turns, reports) = flood(&mut attention(1000, 0), Work { messages: 10, requests: 0 });
        // The rate for 20 seconds, and what is saved up before.
        assert!((1900..=2120).contains(&turns), "{turns} turns of 10 messages");
        assert_eq!(reports, ["control_messages_per_peer=1000"]);
        let (turns, reports) = flood(&mut attention(0, 50), Work { messages: 10, requests: 1 });
        assert!((950..=1060).contains(&turns), "{turns} requests");
        assert_eq!(reports, ["control_requests_per_peer=50"]);
    }

    #[test]
    fn a_peer_below_the_limits_never_rests() {
        let mut attention = attention(1000, 50);
        let mut now = Time(1 << 40);
        for turn in 0..10_000u64 {
            let work = Work { messages: 9, requests: u64::from(turn.is_multiple_of(25)) };
            assert_eq!(attention.spend(peer(1), 1, work, now), None);
            assert_eq!(attention.rests_until(|| peer(1), now), None);
            now = now.after(Duration::from_millis(10));
        }
    }

    #[test]
    fn sessions_of_a_peer_take_turns() {
        let mut attention = attention(1000, 50);
        attention.spend(peer(1), 7, Work { messages: 1, requests: 0 }, Time(1 << 40));
        let mut due = [3, 7, 9];
        due.sort_by_key(|id| attention.place(&peer(1), *id));
        assert_eq!(due, [9, 3, 7]);
        due.sort_by_key(|id| attention.place(&peer(2), *id));
        assert_eq!(due, [3, 7, 9]);
    }

    #[test]
    fn no_bound_is_never_reached() {
        let mut attention = attention(0, 0);
        let work = Work { messages: 1 << 40, requests: 1 << 40 };
        assert_eq!(attention.spend(peer(1), 1, work, Time(5)), None);
        assert_eq!(attention.rests_until(|| peer(1), Time(5)), None);
    }
}
