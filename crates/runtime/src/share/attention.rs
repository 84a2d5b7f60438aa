//! What the broker's thread does for each peer: of that a peer has so much processor time in a second, however many its
//! sessions are. One that has used more is not heard until it is even, and what it says meanwhile waits in its connection.
//! Its flows go on: their workers need no broker for that.

use super::admission::{Whose, whose};
use super::{Sharer, now};
use crate::events::Event;
use crate::fair::{Bucket, Processor};
use crate::share_session::Turn;
use contract::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// Of how long a time a peer may use its part at once: it has some hundred devices opened by that.
const BURST: Duration = Duration::from_millis(500);
/// How long one rests at least: who works seldom, and then for a while, is felt by others less often than who works a
/// little all the time and has the processor's caches.
const REST: Duration = Duration::from_millis(100);

/// Who was attended to of late, and for how long.
pub(super) struct Attention {
    /// Of one processor, for one peer; 0 is no bound.
    percent: u64,
    peers: BTreeMap<Whose, Account>,
    /// When the last of those that rest has rested.
    rested_at: Time,
}

/// Of one peer.
struct Account {
    time: Bucket,
    rests_until: Time,
    /// Of its sessions, the one that was served last: the next is before it.
    last: u64,
    is_told: bool,
}

impl Attention {
    pub(super) fn new(percent: u64) -> Attention {
        Attention { percent, peers: BTreeMap::new(), rested_at: Time::ZERO }
    }

    /// Until when this peer is not heard; `None` if it is.
    pub(super) fn rests_until(&self, peer: impl FnOnce() -> Whose, now: Time) -> Option<Time> {
        if self.rested_at <= now {
            return None;
        }
        self.peers.get(&peer()).map(|account| account.rests_until).filter(|until| *until > now)
    }

    /// The broker was at a session of this peer for so long, nanoseconds of processor time. Whether that is to be told.
    fn spend(&mut self, peer: Whose, session: u64, used_ns: u64, now: Time) -> bool {
        if self.percent == 0 {
            return false;
        }
        let account = self.peers.entry(peer).or_insert_with(|| Account {
            time: Bucket::new(Processor::share(self.percent, 1), BURST),
            rests_until: Time::ZERO,
            last: 0,
            is_told: false,
        });
        account.last = session;
        account.time.take(used_ns, now);
        if account.time.is_open(now) {
            return false;
        }
        account.rests_until = account.time.free_at().after(REST);
        self.rested_at = self.rested_at.max(account.rests_until);
        !std::mem::replace(&mut account.is_told, true)
    }

    /// The place of a session among those of its peer.
    fn place(&self, peer: &Whose, session: u64) -> (bool, u64) {
        (self.peers.get(peer).is_some_and(|account| session <= account.last), session)
    }

    /// Forgets who may use as much at once as who comes for the first time.
    pub(super) fn forget(&mut self, now: Time) {
        self.peers.retain(|_, account| account.time.free_at().after(BURST) > now);
    }
}

impl Sharer {
    /// Serves the sessions that have something to do: with many peers, most have nothing.
    pub(super) fn serve(&mut self, tell: &mut dyn FnMut(Event)) {
        let (poller, at) = (&self.poller, now());
        let due = self.sessions.iter().filter(|(_, session)| session.is_due(poller, at));
        let mut due: Vec<_> = due.map(|(id, session)| (*id, whose(session))).collect();
        due.sort_by_cached_key(|(id, peer)| self.attention.place(peer, *id));
        for (id, peer) in due {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            if self.attention.rests_until(|| peer, now()).is_some() {
                continue;
            }
            let before_ns = sys::clock::thread_cpu_ns();
            let turn = session.serve(&mut self.shared, &mut self.poller, now(), tell);
            let used_ns = sys::clock::thread_cpu_ns().saturating_sub(before_ns);
            if self.attention.spend(peer, id, used_ns, now()) {
                let (peer, percent) = (session.peer(), self.attention.percent);
                let problem = format!(
                    "{peer} says more than may be heard of one peer: what it says waits (--limit control_percent_per_peer={percent})"
                );
                tell(Event::Warning { problem });
            }
            if let Turn::Over(reason) = turn
                && let Some(session) = self.sessions.remove(&id)
            {
                self.take_leave(session, &reason, tell);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    const MS_NS: u64 = 1_000_000;

    fn peer(last: u8) -> Whose {
        (None, Some(IpAddr::from([10, 0, 0, last])))
    }

    #[test]
    fn who_says_much_at_once_is_heard_and_who_goes_on_is_heard_for_its_part() {
        let mut attention = Attention::new(10);
        let (begun, mut used_ns, mut told) = (Time(1 << 40), 0, 0);
        let mut now = begun;
        let mut rests = Vec::new();
        while now < begun.after(Duration::from_secs(20)) {
            if let Some(until) = attention.rests_until(|| peer(1), now) {
                rests.push(until.since(now));
                now = until;
            }
            // It asks for more without end, on a machine that has all its time for that.
            now = now.after(Duration::from_millis(1));
            used_ns += MS_NS;
            told += u32::from(attention.spend(peer(1), 1, MS_NS, now));
            assert_eq!(attention.rests_until(|| peer(2), now), None, "another is heard");
            attention.forget(now);
        }
        let most = 20 * 100 + 50 + 20;
        assert!((most - 50..=most).contains(&(used_ns / MS_NS)), "{} ms", used_ns / MS_NS);
        assert!(rests.iter().all(|rest| (REST..REST * 2).contains(rest)), "{rests:?}");
        assert_eq!(told, 1);
        attention.forget(now.after(BURST * 2));
        assert!(attention.peers.is_empty());
    }

    #[test]
    fn sessions_of_a_peer_take_turns() {
        let mut attention = Attention::new(10);
        attention.spend(peer(1), 7, MS_NS, Time(1 << 40));
        let mut due = [3, 7, 9];
        due.sort_by_key(|id| attention.place(&peer(1), *id));
        assert_eq!(due, [9, 3, 7]);
        due.sort_by_key(|id| attention.place(&peer(2), *id));
        assert_eq!(due, [3, 7, 9]);
    }

    #[test]
    fn no_bound_is_never_reached() {
        let mut attention = Attention::new(0);
        assert!(!attention.spend(peer(1), 1, u64::MAX, Time(5)));
        assert_eq!(attention.rests_until(|| peer(1), Time(5)), None);
    }
}
