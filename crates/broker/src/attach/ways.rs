//! Further connections of a link whose transport has several (`TransportClass::has_ways`): the worker requests them, because
//! it cannot connect.

use contract::{Meeting, SealKeys, Time};
use hosts::dial::{Dialled, Dialling, Introduced};
use modules::TransportPlan;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;
use sys::poller::Poller;

/// The most connections that a driver may wait for.
const WAYS_MAX: usize = 128;
/// The most connections of a driver in progress at once.
const DIALLING_MAX: usize = 8;
/// Shortest interval between two of them: a hostile worker must not flood the device host, and that host accepts 100 a second
/// (`connections_per_second`).
const START_INTERVAL: Duration = Duration::from_millis(20);

/// The requested connections of one driver.
#[derive(Default)]
pub(super) struct Ways {
    /// Those that have not been started.
    wanted: usize,
    dialling: Vec<Dialling>,
    /// Earliest start of the next one.
    start_at: Time,
}

impl Ways {
    /// Requests `count` more connections.
    pub(super) fn request(&mut self, count: u32) {
        self.wanted = (self.wanted + count as usize).min(WAYS_MAX);
    }

    /// Advances the connections in progress; returns those that are ready.
    pub(super) fn run(
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
            self.dialling.push(Dialling::new(transport, peer, now));
        }
        let mut ready = Vec::new();
        self.dialling.retain_mut(|dialling| match dialling.run(introduce, meeting, poller, now) {
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
    pub(super) fn register(&self, poller: &mut Poller) -> Time {
        let at = if self.may_start() { self.start_at } else { Time(u64::MAX) };
        self.dialling.iter().fold(at, |at, dialling| at.min(dialling.register(poller)))
    }
}
