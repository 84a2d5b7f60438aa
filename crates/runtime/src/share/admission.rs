//! What is bounded before anybody is known: connections of one address, handshakes in all. Overload refuses the new and
//! keeps the old: who is in is not asked again.

use super::{Greeting, Sharer};
use crate::config::LIMITS;
use crate::events::Event;
use crate::fair::Bucket;
use crate::share_session::Session;
use crate::trust::PeerKey;
use contract::Time;
use session::Admittance;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// Addresses that are remembered.
const ADDRESSES_MAX: usize = 4096;
/// Seconds of its rate that an address may use at once.
const BURST: Duration = Duration::from_secs(2);
/// Refusals that are told one by one in a second; of more, only how many they were.
const TOLD_MAX: u64 = 1000;

/// Who came lately, and how often somebody was turned away.
pub(super) struct Admissions {
    bounds: Admittance,
    recent: BTreeMap<IpAddr, Bucket>,
    handshakes: Bucket,
    /// By reason.
    pub(super) refused: BTreeMap<String, u64>,
    /// Since the last look.
    told: u64,
}

impl Admissions {
    pub(super) fn new(bounds: &Admittance) -> Admissions {
        Admissions {
            bounds: bounds.clone(),
            recent: BTreeMap::new(),
            handshakes: Bucket::new(bounds.handshakes_per_second as u64, BURST),
            refused: BTreeMap::new(),
            told: 0,
        }
    }

    /// Somebody connects from there; why not, if not.
    pub(super) fn connect(&mut self, from: SocketAddr, now: Time) -> Result<(), String> {
        let most = self.bounds.connections_per_second;
        if self.recent.len() >= ADDRESSES_MAX {
            self.recent.retain(|_, bucket| !bucket.is_open(now));
        }
        if self.recent.len() >= ADDRESSES_MAX {
            // More addresses at once than can be told apart: the earliest is forgotten, and begins anew.
            self.recent.pop_first();
        }
        let bucket = self.recent.entry(network(from)).or_insert_with(|| Bucket::new(most as u64, BURST));
        if !bucket.is_open(now) {
            return Err(format!(
                "too many connections of one address (--limit connections_per_second={most})"
            ));
        }
        bucket.take(1, now);
        Ok(())
    }

    /// A handshake begins; why not, if not.
    pub(super) fn shake_hands(&mut self, now: Time) -> Result<(), String> {
        let most = self.bounds.handshakes_per_second;
        if !self.handshakes.is_open(now) {
            return Err(format!("too many handshakes (--limit handshakes_per_second={most})"));
        }
        self.handshakes.take(1, now);
        Ok(())
    }

    /// Counts somebody who is turned away; whether that is told.
    pub(super) fn refuse(&mut self, reason: &str) -> bool {
        *self.refused.entry(name_of(reason).into()).or_default() += 1;
        self.told += 1;
        self.told <= TOLD_MAX
    }

    /// Tells how many refusals were not told since the last call.
    pub(super) fn tell_untold(&mut self, tell: &mut dyn FnMut(Event)) {
        let untold = std::mem::take(&mut self.told).saturating_sub(TOLD_MAX);
        if untold > 0 {
            tell(Event::Warning { problem: format!("{untold} more were turned away within a second") });
        }
    }
}

impl Sharer {
    /// One more is to be greeted: the oldest of those that say nothing goes, of the same address if these are too many.
    pub(super) fn make_room(&mut self, peer: SocketAddr, tell: &mut dyn FnMut(Event)) {
        let (all, limits) = (self.greetings.len(), &self.request.limits);
        let of_address = limits.admission.greetings_per_address;
        let is_same = |greeting: &&Greeting| network(greeting.peer) == network(peer);
        let (index, limit) = match self.greetings.iter().filter(is_same).count() {
            same if same >= of_address => {
                let oldest = self.greetings.iter().position(|greeting| is_same(&greeting));
                (oldest, format!("greetings_per_address={of_address}"))
            }
            _ if all >= limits.greetings => (Some(0), format!("greetings={}", limits.greetings)),
            _ => return,
        };
        if let Some(oldest) = index.and_then(|index| self.greetings.remove(index)) {
            self.dismiss(oldest, &format!("too many connections that say nothing (--limit {limit})"), tell);
        }
    }

    /// Divides what a peer may use of the processor among its sessions, and ends those that do not keep to it.
    pub(super) fn divide_processor(&mut self, tell: &mut dyn FnMut(Event)) {
        let percent = self.request.limits.rates.cpu_percent_per_peer;
        if percent == 0 {
            return;
        }
        let mut counts = BTreeMap::<_, u64>::new();
        self.sessions.values().for_each(|session| *counts.entry(whose(session)).or_default() += 1);
        let over: Vec<_> = self
            .sessions
            .iter_mut()
            .filter_map(|(id, session)| {
                let sessions = counts.get(&whose(session)).copied().unwrap_or(1);
                (!session.allot(percent, sessions)).then_some(*id)
            })
            .collect();
        let reason = format!("it uses more of the processor (--limit cpu_percent_per_peer={percent})");
        for id in over {
            self.admissions.refuse(&reason);
            self.sessions.get_mut(&id).into_iter().for_each(Session::kill_worker);
            self.end_session(id, &reason, tell);
        }
    }

    /// Why one more session of this peer is one too many, if it is.
    pub(super) fn session_limit(&self, key: Option<&PeerKey>, address: SocketAddr) -> Option<String> {
        let (all, of_peer) = (self.request.limits.sessions, self.request.limits.admission.sessions_per_peer);
        let is_same = |session: &&Session| match key {
            Some(key) => session.key.as_ref() == Some(key),
            None => network(session.address) == network(address),
        };
        if self.sessions.len() >= all {
            return Some(format!(
                "this host serves as many peers as it may already (--limit sessions={all})"
            ));
        }
        let same = self.sessions.values().filter(is_same).count();
        let problem = || {
            format!(
                "this peer has as many sessions here as it may already (--limit sessions_per_peer={of_peer})"
            )
        };
        (same >= of_peer).then(problem)
    }
}

/// Who is one peer: a key, or a network where nobody is asked for one.
pub(super) type Whose = (Option<PeerKey>, Option<IpAddr>);

/// Whose session this is.
pub(super) fn whose(session: &Session) -> Whose {
    (session.key, session.key.is_none().then(|| network(session.address)))
}

/// What one network counts as: an address, or 64 bits of one of IPv6.
pub(super) fn network(from: SocketAddr) -> IpAddr {
    match from.ip().to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

/// The name that a reason is counted by: of the limit that it names, or its kind.
fn name_of(reason: &str) -> &'static str {
    let limit = LIMITS.iter().find(|limit| reason.contains(&format!("--limit {}=", limit.name)));
    match limit {
        Some(limit) => limit.name,
        None if reason.contains("does not know") || reason.contains("wants to know") => "unknown",
        None if reason.contains("in time") => "greeting",
        None => "protocol",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_too_often_is_refused_and_nobody_else() {
        let bounds = Admittance { connections_per_second: 10, ..Admittance::default() };
        let mut admissions = Admissions::new(&bounds);
        let (mut now, often, seldom) = (Time(1 << 40), "1.2.3.4:5", "1.2.3.5:5");
        let mut let_in = 0;
        for _ in 0..1000 {
            now = now.after(Duration::from_millis(1));
            let_in += u32::from(admissions.connect(often.parse().unwrap(), now).is_ok());
        }
        assert!((10..=32).contains(&let_in), "{let_in} in a second, two seconds of it at once");
        let reason = admissions.connect(often.parse().unwrap(), now).unwrap_err();
        assert!(admissions.refuse(&reason));
        assert_eq!(admissions.refused["connections_per_second"], 1);
        admissions.connect(seldom.parse().unwrap(), now).unwrap();
        // A network of IPv6 is one, however many addresses it makes up.
        let of_one = |host: u32| format!("[2001:db8::{host:x}]:1").parse().unwrap();
        assert!((0..1000).filter(|host| admissions.connect(of_one(*host), now).is_ok()).count() <= 21);
    }

    #[test]
    fn addresses_without_end_are_forgotten() {
        let mut admissions = Admissions::new(&Admittance::default());
        for host in 0..2 * ADDRESSES_MAX as u32 {
            let from = SocketAddr::new(IpAddr::V4(host.into()), 1);
            assert!(admissions.connect(from, Time(5)).is_ok());
        }
        assert!(admissions.recent.len() <= ADDRESSES_MAX);
        let handshakes = (0..10_000).filter(|_| admissions.shake_hands(Time(1 << 40)).is_ok()).count();
        assert!((400..=401).contains(&handshakes), "{handshakes}");
        for _ in 0..TOLD_MAX + 5 {
            admissions.refuse("it did not introduce itself in time");
        }
        assert_eq!(admissions.refused["greeting"], TOLD_MAX + 5);
        let mut told = Vec::new();
        admissions.tell_untold(&mut |event| told.push(event));
        admissions.tell_untold(&mut |event| told.push(event));
        assert!(
            matches!(&told[..], [Event::Warning { problem }] if problem.starts_with("5 more")),
            "{told:?}"
        );
    }
}
