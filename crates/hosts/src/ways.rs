//! Further connections of a link whose transport has several (`TransportClass::has_ways`): the worker requests them, because
//! it cannot connect.

use crate::dial::{Dialled, Dialling, Introduced};
use contract::{Meeting, SealKeys, Time};
use modules::TransportPlan;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;
use sys::poller::Poller;

/// The most connections that a driver may wait for.
const WAYS_MAX: usize = 128;
/// The most connections of a driver in progress at once.
const DIALLING_MAX: usize = 8;
/// Longest time that one is in progress. After it, the worker requests again the ones that it still needs.
const DIALLING_WAIT: Duration = Duration::from_secs(10);
/// Shortest interval between two of them: a hostile worker must not flood the device host, and that host accepts 100 a second
/// (`connections_per_second`).
const START_INTERVAL: Duration = Duration::from_millis(20);

/// The requested connections of one driver.
#[derive(Default)]
pub struct Ways {
    /// Those that have not been started.
    wanted: usize,
    /// Those in progress, and the time at which each is dropped.
    dialling: Vec<(Dialling, Time)>,
    /// Earliest start of the next one.
    start_at: Time,
}

impl Ways {
    /// Requests `count` more connections.
    pub fn request(&mut self, count: u32) {
        self.wanted = (self.wanted + count as usize).min(WAYS_MAX);
    }

    /// Advances the connections in progress; returns those that are ready.
    pub fn run(
        &mut self,
        (transport, peer): (&TransportPlan, SocketAddr),
        introduce: &mut dyn FnMut() -> Introduced,
        meeting: &Meeting<'_>,
        poller: &mut Poller,
        now: Time,
    ) -> Vec<(OwnedFd, Option<SealKeys>)> {
        if self.may_start() && now >= self.start_at {
            self.start_at = now.after(START_INTERVAL);
            self.wanted -= 1;
            self.dialling.push((Dialling::new(transport, peer, now), now.after(DIALLING_WAIT)));
        }
        let mut ready = Vec::new();
        self.dialling.retain_mut(|(dialling, until)| match dialling.run(introduce, meeting, poller, now) {
            Dialled::Waiting if now >= *until => {
                dialling.drop_socket(poller);
                self.wanted = 0;
                false
            }
            Dialled::Waiting => true,
            Dialled::Ready(socket, keys) => {
                ready.push((socket, keys));
                false
            }
        });
        ready
    }

    fn may_start(&self) -> bool {
        self.wanted > 0 && self.dialling.len() < DIALLING_MAX
    }

    /// Registers the connections in progress with the poller; returns the time of the next step.
    pub fn register(&self, poller: &mut Poller) -> Time {
        let at = if self.may_start() { self.start_at } else { Time(u64::MAX) };
        self.dialling.iter().fold(at, |at, (dialling, until)| at.min(dialling.register(poller)).min(*until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::End;

    #[test]
    fn a_connection_that_nobody_accepts_is_dropped() {
        let transport = TransportPlan::defaults("striped").expect("a transport");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let peer = listener.local_addr().expect("address");
        drop(listener);
        let meeting = Meeting { end: End::Dialled, peer: peer.ip(), device: "disk", driver: 1 };
        let (mut ways, mut poller) = (Ways::default(), Poller::new().expect("a poller"));
        ways.request(1);
        let mut attempts = 0;
        let mut run = |ways: &mut Ways, seconds: u64| {
            let introduce = &mut || {
                attempts += 1;
                (vec![0; 28], None)
            };
            let now = Time::from_millis(seconds * 1000);
            assert!(ways.run((&transport, peer), introduce, &meeting, &mut poller, now).is_empty());
            (ways.register(&mut poller), attempts)
        };
        let (next, _) = run(&mut ways, 1);
        assert!(next < Time::from_millis(11_000), "it is tried again");
        for seconds in 2..11 {
            run(&mut ways, seconds);
        }
        let (_, attempts) = run(&mut ways, 11);
        assert_eq!(run(&mut ways, 12), (Time(u64::MAX), attempts), "no connection is in progress");
        ways.request(1);
        assert!(run(&mut ways, 13).1 > attempts);
    }
}
