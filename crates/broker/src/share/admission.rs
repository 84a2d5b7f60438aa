//! Admission of connections that are not authenticated yet: limits on connections by address, on handshakes in
//! total, and on sessions by peer. Under overload, new connections are refused and existing sessions continue.

use super::{DeviceHost, Greeting};
use crate::events::Event;
use crate::share_session::Session;
use contract::Time;
use flow::fair::Bucket;
use modules::limits::{FIXED_LIMITS, LIMITS};
use modules::now;
use session::Admittance;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use trust::PeerKey;

/// Most addresses remembered.
const ADDRESSES_MAX: usize = 4096;
/// An address may use this much time's worth of its rate in one burst.
const BURST: Duration = Duration::from_secs(2);
/// Most refusals reported individually in [`REPORT_INTERVAL`]; further ones are only counted. Strangers must not fill the log.
const REPORTED_MAX: u64 = 10;
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Recent connections by address, and counts of refusals.
pub(super) struct Admissions {
    bounds: Admittance,
    recent: BTreeMap<IpAddr, Bucket>,
    handshakes: Bucket,
    /// Refusals by reason.
    pub(super) refused: BTreeMap<String, u64>,
    /// Refusals reported in this interval, and its end.
    reported: u64,
    interval_ends: Time,
    /// Refusals that were only counted, since the last summary.
    suppressed: u64,
    summary_at: Time,
}

impl Admissions {
    pub(super) fn new(bounds: &Admittance) -> Admissions {
        Admissions {
            bounds: bounds.clone(),
            recent: BTreeMap::new(),
            handshakes: Bucket::new(bounds.handshakes_per_second as u64, BURST),
            refused: BTreeMap::new(),
            reported: 0,
            interval_ends: Time::ZERO,
            suppressed: 0,
            summary_at: Time::ZERO,
        }
    }

    /// Admits a connection from `from`, or returns the reason to refuse it.
    pub(super) fn connect(&mut self, from: SocketAddr, now: Time) -> Result<(), String> {
        let most = self.bounds.connections_per_second;
        if self.recent.len() >= ADDRESSES_MAX {
            self.recent.retain(|_, bucket| !bucket.is_open(now));
        }
        if self.recent.len() >= ADDRESSES_MAX {
            // More addresses than the table holds: drop the first, which starts with a fresh budget if it returns.
            self.recent.pop_first();
        }
        let bucket = self.recent.entry(network(from)).or_insert_with(|| Bucket::new(most as u64, BURST));
        if !bucket.is_open(now) {
            return Err(format!(
                "too many connections from one address (limit connections_per_second={most})"
            ));
        }
        bucket.take(1, now);
        Ok(())
    }

    /// Admits a handshake, or returns the reason to refuse it.
    pub(super) fn shake_hands(&mut self, now: Time) -> Result<(), String> {
        let most = self.bounds.handshakes_per_second;
        if !self.handshakes.is_open(now) {
            return Err(format!("too many handshakes (limit handshakes_per_second={most})"));
        }
        self.handshakes.take(1, now);
        Ok(())
    }

    /// Counts a refusal; returns whether to report it individually.
    pub(super) fn refuse(&mut self, reason: &str) -> bool {
        self.refuse_at(reason, now())
    }

    fn refuse_at(&mut self, reason: &str, now: Time) -> bool {
        *self.refused.entry(name_of(reason).into()).or_default() += 1;
        if now >= self.interval_ends {
            (self.reported, self.interval_ends) = (0, now.after(REPORT_INTERVAL));
        }
        let is_reported = self.reported < REPORTED_MAX;
        if !is_reported && self.suppressed == 0 {
            self.summary_at = self.interval_ends;
        }
        self.reported += u64::from(is_reported);
        self.suppressed += u64::from(!is_reported);
        is_reported
    }

    /// At the end of an interval, reports the number of refusals that were only counted.
    pub(super) fn report_suppressed(&mut self, now: Time, emit: &mut dyn FnMut(Event)) {
        if self.suppressed > 0 && now >= self.summary_at {
            let suppressed = std::mem::take(&mut self.suppressed);
            emit(Event::Warning { problem: format!("{suppressed} more connections were refused") });
        }
    }
}

impl DeviceHost {
    /// Makes room for one more greeting: dismisses the oldest one, of the same address if that address has too many.
    pub(super) fn make_room(&mut self, peer: SocketAddr, emit: &mut dyn FnMut(Event)) {
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
            self.dismiss(
                oldest,
                &format!("too many connections without an introduction (limit {limit})"),
                emit,
            );
        }
    }

    /// Divides each peer's share of the processor among its sessions, and ends sessions that exceed it.
    pub(super) fn divide_processor(&mut self, emit: &mut dyn FnMut(Event)) {
        let percent = self.request.limits.rates.cpu_percent_per_peer;
        if percent == 0 {
            return;
        }
        let mut counts = BTreeMap::<_, u64>::new();
        self.sessions.values().for_each(|session| *counts.entry(quota_key(session)).or_default() += 1);
        let over: Vec<_> = self
            .sessions
            .iter_mut()
            .filter_map(|(id, session)| {
                let sessions = counts.get(&quota_key(session)).copied().unwrap_or(1);
                (!session.allot(percent, sessions)).then_some(*id)
            })
            .collect();
        let reason =
            format!("it exceeds its share of the processor (--limit cpu_percent_per_peer={percent})");
        for id in over {
            self.admissions.refuse(&reason);
            self.sessions.get_mut(&id).into_iter().for_each(Session::kill_worker);
            self.end_session(id, &reason, emit);
        }
    }

    /// Returns the reason to refuse one more session of this peer, if a limit is reached.
    pub(super) fn session_limit(&self, key: Option<&PeerKey>, address: SocketAddr) -> Option<String> {
        let (all, of_peer) = (self.request.limits.sessions, self.request.limits.admission.sessions_per_peer);
        let is_same = |session: &&Session| match key {
            Some(key) => session.key.as_ref() == Some(key),
            None => network(session.address) == network(address),
        };
        if self.sessions.len() >= all {
            return Some(format!("too many sessions on this host (--limit sessions={all})"));
        }
        let same = self.sessions.values().filter(is_same).count();
        let problem = || format!("too many sessions of this peer (--limit sessions_per_peer={of_peer})");
        (same >= of_peer).then(problem)
    }
}

/// The identity to which quotas apply: a key, or a network for peers without one.
pub(super) type QuotaKey = (Option<PeerKey>, Option<IpAddr>);

/// Returns the identity to which the quotas of a session apply.
pub(super) fn quota_key(session: &Session) -> QuotaKey {
    (session.key, session.key.is_none().then(|| network(session.address)))
}

/// Returns the network of an address: the address itself for IPv4, its first 64 bits for IPv6.
pub(super) fn network(from: SocketAddr) -> IpAddr {
    match from.ip().to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

/// Returns the name under which a refusal is counted: the limit that it names, or its kind.
fn name_of(reason: &str) -> &'static str {
    let mut limits = LIMITS.iter().chain(FIXED_LIMITS);
    let limit = limits.find(|limit| reason.contains(&format!("limit {}=", limit.name)));
    match limit {
        Some(limit) => limit.name,
        None if reason.contains("not paired with") || reason.contains("paired hosts only") => "unknown",
        None if reason.contains("in time") => "greeting",
        None => "protocol",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_address_with_too_many_connections_is_refused() {
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
        assert!(admissions.refuse_at(&reason, now));
        assert_eq!(admissions.refused["connections_per_second"], 1);
        admissions.connect(seldom.parse().unwrap(), now).unwrap();
        // All addresses of one IPv6 network share a budget.
        let of_one = |host: u32| format!("[2001:db8::{host:x}]:1").parse().unwrap();
        assert!((0..1000).filter(|host| admissions.connect(of_one(*host), now).is_ok()).count() <= 21);
    }

    #[test]
    fn the_table_of_addresses_is_bounded() {
        let mut admissions = Admissions::new(&Admittance::default());
        for host in 0..2 * ADDRESSES_MAX as u32 {
            let from = SocketAddr::new(IpAddr::V4(host.into()), 1);
            assert!(admissions.connect(from, Time(5)).is_ok());
        }
        assert!(admissions.recent.len() <= ADDRESSES_MAX);
        let handshakes = (0..10_000).filter(|_| admissions.shake_hands(Time(1 << 40)).is_ok()).count();
        assert!((400..=401).contains(&handshakes), "{handshakes}");
    }

    #[test]
    fn a_flood_of_refusals_does_not_fill_the_log() {
        let mut admissions = Admissions::new(&Admittance::default());
        let (start, mut lines, mut told) = (Time(1 << 40), 0, Vec::new());
        for second in 0..20 {
            let now = start.after(Duration::from_secs(second));
            lines +=
                (0..100).filter(|_| admissions.refuse_at("it did not introduce itself in time", now)).count();
            admissions.report_suppressed(now, &mut |event| told.push(event));
        }
        assert_eq!(lines, 20);
        assert_eq!(admissions.refused["greeting"], 2000);
        admissions.report_suppressed(start.after(Duration::from_secs(20)), &mut |event| told.push(event));
        admissions.report_suppressed(start.after(Duration::from_secs(90)), &mut |event| told.push(event));
        let counts = told.iter().map(|event| match event {
            Event::Warning { problem } => problem.split(' ').next().unwrap().parse::<usize>().unwrap(),
            other => panic!("{other:?}"),
        });
        assert_eq!((told.len(), counts.sum::<usize>()), (2, 1980));
    }
}
