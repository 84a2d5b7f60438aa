//! The addresses of a host that no longer answers at its last one. They are found on a thread, because the resolver and the
//! local network take their time, and the host may return to its last address meanwhile.

use crate::place::reach;
use contract::{ServiceError, Time};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Duration;
use sys::address::is_bare_v6;
use trust::{Peers, Target};

/// A host that is silent for a shorter time has probably not moved.
const DELAY: Duration = Duration::from_secs(1);
/// Interval between the starts of two look-ups.
const INTERVAL: Duration = Duration::from_secs(10);

/// Finds the addresses of a silent host again and again.
pub struct LookUp {
    target: Target,
    /// The begin of the silence for which the present look-up was made.
    silent_since: Time,
    /// Earliest time of the next look-up.
    due_at: Time,
    found: Option<Receiver<SocketAddr>>,
}

impl LookUp {
    /// Looks nothing up yet.
    pub fn new(target: Target) -> LookUp {
        LookUp { target, silent_since: Time::ZERO, due_at: Time::ZERO, found: None }
    }

    /// Returns an address at which the host may answer, each once in a look-up. Starts the next look-up when it is due. The
    /// host is silent since `silent_since`. `peers` is `None` with `--insecure`: only the name's own addresses count then.
    pub fn next(&mut self, silent_since: Time, now: Time, peers: Option<&Peers>) -> Option<SocketAddr> {
        if std::mem::replace(&mut self.silent_since, silent_since) != silent_since {
            // The addresses are from an earlier silence.
            self.found = None;
        }
        if self.found.is_none() && now >= self.due_at.max(silent_since.after(DELAY)) && !self.is_number() {
            self.due_at = now.after(INTERVAL);
            self.found = begin(self.target.clone(), peers.cloned());
        }
        let next = self.found.as_ref()?.try_recv();
        if let Err(TryRecvError::Disconnected) = next {
            self.found = None;
        }
        next.ok()
    }

    /// Returns whether the user has written an address, which leads to no other place. One with the name of an interface may:
    /// an interface that was made again, by another cable for example, has another number.
    fn is_number(&self) -> bool {
        let host = self.target.host();
        (is_bare_v6(host) && !host.contains('%')) || host.parse::<Ipv4Addr>().is_ok()
    }
}

/// Looks the target up on a thread, which ends with the look-up. Returns `None` if there is no thread.
fn begin(target: Target, peers: Option<Peers>) -> Option<Receiver<SocketAddr>> {
    let (found, receiver) = channel();
    let look = move || {
        let mut pass_on = |addresses: &[SocketAddr]| {
            match addresses.iter().try_for_each(|address| found.send(*address)) {
                // No address is the last one.
                Ok(()) => Err(ServiceError::Unreachable(String::new())),
                Err(_) => Ok(()),
            }
        };
        // The first connection has reported a wrong name.
        let _ = reach(&target, peers.as_ref(), &mut pass_on);
    };
    thread::Builder::new().name("look-up".into()).spawn(look).ok().map(|_| receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_up(host: &str) -> LookUp {
        LookUp::new(Target { peer: None, address: format!("{host}:7845") })
    }

    #[test]
    fn a_silent_host_is_looked_up_by_its_name_at_intervals() {
        let mut host = look_up("localhost");
        let due_at = Time::ZERO.after(DELAY);
        for (now, is_due) in [
            (Time::ZERO, false),
            (due_at, true),
            (due_at.after(INTERVAL - Duration::from_nanos(1)), false),
            (due_at.after(INTERVAL), true),
        ] {
            let mut found: Vec<_> = host.next(Time::ZERO, now, None).into_iter().collect();
            assert_eq!(host.found.is_some(), is_due, "{now:?}");
            while host.found.is_some() {
                found.extend(host.next(Time::ZERO, now, None));
                thread::yield_now();
            }
            assert_eq!(!found.is_empty(), is_due, "{found:?}");
            assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7845));
        }
    }

    #[test]
    fn addresses_of_an_earlier_silence_are_forgotten() {
        let mut host = look_up("localhost");
        let (due_at, later) = (Time::ZERO.after(DELAY), Time::ZERO.after(INTERVAL));
        host.next(Time::ZERO, due_at, None);
        assert!(host.found.is_some());
        assert_eq!(host.next(later, later, None), None);
        assert!(host.found.is_none());
    }

    #[test]
    fn an_address_is_not_looked_up() {
        for host in ["127.0.0.1", "[::1]", "[fe80::1]"] {
            let mut host = look_up(host);
            assert_eq!(host.next(Time::ZERO, Time::ZERO.after(INTERVAL), None), None);
            assert!(host.found.is_none());
        }
    }

    #[test]
    fn the_interface_of_an_address_is_looked_up() {
        let mut host = look_up("[fe80::1%lo]");
        let mut found: Vec<_> = host.next(Time::ZERO, Time::ZERO.after(DELAY), None).into_iter().collect();
        while host.found.is_some() {
            found.extend(host.next(Time::ZERO, Time::ZERO.after(DELAY), None));
            thread::yield_now();
        }
        assert_eq!(found, ["[fe80::1%1]:7845".parse().unwrap()]);
    }
}
