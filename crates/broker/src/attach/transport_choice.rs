//! Choice of transport, and moves between addresses, on the application host.
//!
//! A data or control connection uses the preferred transport. If only the fallback connects, the fallback is used,
//! and this host probes from time to time whether the preferred transport works again.

use super::redial::Alternative;
use super::{ApplicationHost, CONNECT_TIMEOUT};
use crate::events::Event;
use contract::ServiceError;
use contract::{End, Meeting, Time};
use hosts::dial::{Dialled, Dialling, address_towards, begin_quic, is_here, udp_towards};
use hosts::place::{Route, reach};
use hosts::ways::Ways;
use modules::{TransportPlan, now};
use std::net::SocketAddr;
use std::time::Duration;
use sys::poller::Poller;
use trust::quic_stream::QuicStream;
use wire::{Control, Preamble};
use worker::Command;

/// Connect timeout before the fallback is tried, if there is one.
const FALLBACK_TIMEOUT: Duration = Duration::from_millis(1500);
/// Timeout of a probe of the preferred transport.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval before the first probe; it doubles after each probe.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const PROBE_INTERVAL_MAX: Duration = Duration::from_secs(300);
/// A preferred transport that worked this long fails anew: the first interval counts again.
const STEADY: Duration = Duration::from_secs(60);

/// The transports that an application host may use, and the probe of the preferred one.
pub(super) struct TransportChoice {
    preferred: TransportPlan,
    fallback: Option<TransportPlan>,
    /// Time of the next probe, while the fallback is in use.
    probe_at: Option<Time>,
    interval: Duration,
    /// From this time on, the preferred transport counts as steady.
    steady_at: Time,
    /// A probe in progress: a control connection over the preferred transport, and its deadline.
    probe: Option<(Box<QuicStream>, Time)>,
    /// A successful probe, to be used by the next connection.
    pub(super) found: Option<Box<QuicStream>>,
    /// Events to emit at the next turn.
    pub(super) events: Vec<Event>,
}

impl TransportChoice {
    pub(super) fn new(preferred: &TransportPlan, fallback: Option<TransportPlan>) -> TransportChoice {
        TransportChoice {
            preferred: preferred.clone(),
            fallback,
            probe_at: None,
            interval: PROBE_INTERVAL,
            steady_at: Time::ZERO,
            probe: None,
            found: None,
            events: Vec::new(),
        }
    }

    /// Schedules the next probe and doubles the interval.
    fn wait(&mut self, now: Time) {
        self.probe_at = Some(now.after(self.interval));
        self.interval = (self.interval * 2).min(PROBE_INTERVAL_MAX);
    }

    /// The fallback is in use from now on.
    fn fall_back(&mut self, now: Time) {
        if now >= self.steady_at {
            self.interval = PROBE_INTERVAL;
        }
        self.wait(now);
    }

    /// The preferred transport is in use again.
    fn end_fallback(&mut self, now: Time) {
        (self.probe_at, self.steady_at) = (None, now.after(STEADY));
    }

    /// Returns the alternative to try if the transport in use stops working.
    pub(super) fn alternative(&self) -> Alternative {
        match (&self.fallback, self.probe_at) {
            (None, _) => Alternative::Nothing,
            (Some(fallback), None) => Alternative::FallBack(fallback.clone()),
            (Some(_), Some(_)) => Alternative::Return(self.preferred.clone()),
        }
    }

    /// Ends a probe in progress: a search for the host takes its place, and no later turn would.
    pub(super) fn end_probe(&mut self, poller: &mut Poller) {
        if let Some((stream, _)) = self.probe.take() {
            stream.forget(poller);
        }
    }

    /// Registers the probe with the poller; returns the time of the next step.
    pub(super) fn register(&self, poller: &mut Poller) -> Time {
        match (&self.probe, self.probe_at) {
            (Some((stream, until)), _) => {
                stream.register(poller);
                stream.timeout().map_or(*until, |wait| now().after(wait).min(*until))
            }
            (None, at) => at.unwrap_or(Time(u64::MAX)),
        }
    }
}

impl ApplicationHost {
    /// Makes the first connection, at any address of the target.
    pub(super) fn reach(&mut self) -> Result<((), Route), ServiceError> {
        let (target, peers) = (self.target.clone(), self.known.as_ref().map(|known| known.peers().clone()));
        reach(&target, peers.as_ref(), &mut |addresses| self.connect_first(addresses))
    }

    /// Makes the first connection; uses the fallback if the preferred transport does not connect.
    fn connect_first(&mut self, peers: &[SocketAddr]) -> Result<(), ServiceError> {
        self.transport = self.choice.preferred.clone();
        let patience = if self.choice.fallback.is_some() { FALLBACK_TIMEOUT } else { CONNECT_TIMEOUT };
        match (self.connect_any(peers, patience), self.choice.fallback.clone()) {
            (Err(ServiceError::Unreachable(reason)), Some(fallback)) => {
                self.transport = fallback;
                self.connect_any(peers, CONNECT_TIMEOUT)?;
                self.handle_fallback(reason);
                Ok(())
            }
            (first, _) => first,
        }
    }

    pub(super) fn handle_fallback(&mut self, reason: String) {
        let (from, to) = (self.choice.preferred.class.name().into(), self.transport.class.name().into());
        self.choice.events.push(Event::FallbackStarted { from, to, reason });
        self.choice.fall_back(now());
    }

    pub(super) fn handle_return(&mut self) {
        let (from, to) = (self.choice.fallback.as_ref(), self.transport.class.name().into());
        let from = from.map_or_else(String::new, |fallback| fallback.class.name().into());
        self.choice.events.push(Event::FallbackEnded { from, to });
        self.choice.end_fallback(now());
    }

    /// While the fallback is in use: probes the preferred transport, and switches to it once it connects.
    pub(super) fn probe_preferred(&mut self) -> Result<(), ServiceError> {
        let Some(at) = self.choice.probe_at.filter(|_| self.redial.is_none()) else { return Ok(()) };
        let Some((mut stream, until)) = self.choice.probe.take() else {
            if now() >= at && self.common.link.is_connected() && self.common.silent_since().is_none() {
                self.choice.wait(now());
                let trust = self.known.as_ref().map(|known| &known.trust);
                let begun = begin_quic(self.address, trust).ok();
                self.choice.probe = begun.map(|stream| (Box::new(stream), now().after(PROBE_TIMEOUT)));
            }
            return Ok(());
        };
        match stream.is_shaken() {
            Ok(true) if self.common.link.is_connected() => {
                stream.forget(&mut self.poller);
                self.choice.found = Some(stream);
                let fallback = std::mem::replace(&mut self.transport, self.choice.preferred.clone());
                match self.connect(PROBE_TIMEOUT, PROBE_TIMEOUT) {
                    Ok(()) => self.handle_return(),
                    // The session lives, so this is not its end.
                    Err(ServiceError::Unreachable(_) | ServiceError::Peer(_)) => self.transport = fallback,
                    Err(error) => return Err(error),
                }
            }
            Ok(false) if now() < until => self.choice.probe = Some((stream, until)),
            Ok(_) | Err(_) => stream.forget(&mut self.poller),
        }
        Ok(())
    }

    /// Tries each address in turn: a name may resolve to several, and the host may listen on one only.
    fn connect_any(&mut self, peers: &[SocketAddr], timeout: Duration) -> Result<(), ServiceError> {
        let mut last = Ok(());
        for &peer in peers {
            self.address = peer;
            last = self.connect(timeout, CONNECT_TIMEOUT);
            if !matches!(last, Err(ServiceError::Unreachable(_))) {
                break;
            }
        }
        last
    }

    /// Closes a TCP connection whose local address this host no longer has, so that it reconnects before the silence limit.
    fn leave_address(&mut self) {
        if self.common.link.address().is_some_and(|address| !is_here(address)) {
            self.common.link.disconnect(&mut self.poller);
        }
    }

    /// Moves QUIC connections to this host's new address when the route to the peer changes.
    pub(super) fn follow_address(&mut self) {
        if !self.address_watch.is_due(&self.poller, now().0) {
            return;
        }
        let peer = self.address;
        let Some(stream) = self.common.link.quic() else { return self.leave_address() };
        // There is no route to the peer at the moment: keep the present connection.
        let Ok(address) = address_towards(peer) else { return };
        if stream.local() == Some(address) {
            return;
        }
        if udp_towards(peer).and_then(|socket| stream.add_way(socket)).is_err() {
            return;
        }
        for (&number, driver) in &mut self.common.drivers {
            match (&driver.own.dialling, udp_towards(peer)) {
                // The connection has not started, or its state is unknown.
                (Some(_), _) => driver.own.dialling = Some(Dialling::new(&self.transport, peer, now())),
                (None, Ok(socket)) if driver.own.has_node() => {
                    self.common.workers.send(Command::Move { driver: number, socket });
                }
                _ => {}
            }
        }
    }

    /// Advances the data connections in progress.
    pub(super) fn dial(&mut self) {
        let Some(session) = self.token.filter(|_| self.is_served()) else { return };
        for (&driver, known) in &mut self.common.drivers {
            let link = &mut self.common.link;
            let mut introduce = |is_way| match (link.keys(), is_way) {
                (None, false) => (Preamble::Data { session, driver }.emit().to_vec(), None),
                (None, true) => (Preamble::Way { session, driver }.emit().to_vec(), None),
                (Some(keys), _) => {
                    let (introduction, keys) = keys.introduce(driver, is_way);
                    (introduction.emit().to_vec(), Some(keys))
                }
            };
            let over = (&self.transport, self.address);
            let meeting = Meeting {
                end: End::Dialled,
                peer: self.address.ip().to_canonical(),
                device: &known.name,
                driver,
            };
            let (poller, now) = (&mut self.poller, now());
            for (socket, keys) in known.own.ways.run(over, &mut || introduce(true), &meeting, poller, now) {
                self.common.workers.send(Command::AddWay { driver, socket, keys });
            }
            let Some(dialling) = known.own.dialling.as_mut() else { continue };
            let dialled = dialling.run(&mut || introduce(false), &meeting, poller, now);
            if dialling.take_begun() {
                // The former program ends, and the device host starts a new one. If the control channel fails, the next
                // turn notices.
                self.common.workers.send(Command::Unlink { driver });
                let _ = self.common.link.send(&Control::Unlinked { driver });
            }
            match dialled {
                Dialled::Waiting => {
                    let problem = dialling.take_late(now).map(|problem| format!("{}: {problem}", known.name));
                    self.choice.events.extend(problem.map(|problem| Event::Warning { problem }));
                }
                Dialled::Ready(socket, keys) => {
                    // Ways of the former link would only be closed.
                    (known.own.dialling, known.own.ways) = (None, Ways::default());
                    let transport = Some(self.transport.clone());
                    self.common.workers.send(Command::Link { driver, transport, socket, keys });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_frequent_again_after_the_preferred_transport_was_steady() {
        let plan = TransportPlan::defaults("tcp").unwrap();
        let mut choice = TransportChoice::new(&plan, Some(plan.clone()));
        let mut now = Time::from_millis(1000);
        let mut waits = Vec::new();
        for worked_s in [3, 70, 3] {
            choice.fall_back(now);
            choice.wait(now);
            waits.push(choice.interval.as_secs());
            choice.end_fallback(now);
            now = now.after(Duration::from_secs(worked_s));
        }
        assert_eq!(waits, [20, 80, 20]);
    }
}
