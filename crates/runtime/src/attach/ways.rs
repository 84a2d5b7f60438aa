//! An attacher's connections: made by the transport that gets through, and moved with this host.

use super::redial::Otherwise;
use super::{Attacher, CONNECT_TIMEOUT};
use crate::dial::{Dialled, Dialling, address_towards, begin_quic, is_here, udp_towards};
use crate::error::RuntimeError;
use crate::events::Event;
use crate::share::now;
use crate::trust::quic_stream::QuicStream;
use crate::worker::{Command, TransportPlan};
use contract::Time;
use std::net::SocketAddr;
use std::time::Duration;
use sys::poller::Poller;
use wire::Preamble;

/// Time between two looks at whether this host has another address.
const ADDRESS_INTERVAL: Duration = Duration::from_millis(100);

/// How long before another transport is tried, if there is one.
const FALLBACK_TIMEOUT: Duration = Duration::from_millis(1500);
/// How long the wanted transport has to show that it gets through again.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);
/// Time until it is looked for, at first; twice as long each time.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(300);

/// The transports that an attacher may use. Where the wanted one does not get through and another does, that one
/// carries, from the beginning or from then on; and now and then this host looks whether the wanted one does again.
pub(super) struct Ways {
    wanted: TransportPlan,
    fallback: Option<TransportPlan>,
    /// While the other carries: when to look.
    look_at: Option<Time>,
    interval: Duration,
    /// A control connection by the wanted one under way, and until when it may take.
    looking: Option<(Box<QuicStream>, Time)>,
    /// It got through, and is to be used.
    pub(super) found: Option<Box<QuicStream>>,
    /// What happened, until it is told.
    pub(super) told: Vec<Event>,
}

impl Ways {
    pub(super) fn new(wanted: &TransportPlan, fallback: Option<TransportPlan>) -> Ways {
        Ways {
            wanted: wanted.clone(),
            fallback,
            look_at: None,
            interval: LOOK_INTERVAL,
            looking: None,
            found: None,
            told: Vec::new(),
        }
    }

    /// Looks again later, and the next time later still.
    fn wait(&mut self) {
        self.look_at = Some(now().after(self.interval));
        self.interval = (self.interval * 2).min(LOOK_INTERVAL_MAX);
    }

    /// What else to try where what carries now gets through no more.
    pub(super) fn otherwise(&self) -> Otherwise {
        match (&self.fallback, self.look_at) {
            (None, _) => Otherwise::Nothing,
            (Some(fallback), None) => Otherwise::FallBack(fallback.clone()),
            (Some(_), Some(_)) => Otherwise::Return(self.wanted.clone()),
        }
    }

    /// Puts what to wait for into the poller; when to look again otherwise.
    pub(super) fn want(&self, poller: &mut Poller) -> Time {
        match (&self.looking, self.look_at) {
            (Some((stream, until)), _) => {
                stream.want(poller);
                stream.timeout().map_or(*until, |wait| now().after(wait).min(*until))
            }
            (None, at) => at.unwrap_or(Time(u64::MAX)),
        }
    }
}

impl Attacher {
    /// Connects to the host for the first time; by another transport if it is not reached by its own.
    pub(super) fn connect_first(&mut self, peers: &[SocketAddr]) -> Result<(), RuntimeError> {
        let patience = if self.ways.fallback.is_some() { FALLBACK_TIMEOUT } else { CONNECT_TIMEOUT };
        match (self.connect_any(peers, patience), self.ways.fallback.clone()) {
            (Err(RuntimeError::Unreachable(reason)), Some(fallback)) => {
                self.transport = fallback;
                self.connect_any(peers, CONNECT_TIMEOUT)?;
                self.handle_fallback(reason);
                Ok(())
            }
            (first, _) => first,
        }
    }

    pub(super) fn handle_fallback(&mut self, reason: String) {
        let (from, to) = (self.ways.wanted.class.name().into(), self.transport.class.name().into());
        self.ways.told.push(Event::FellBack { from, to, reason });
        self.ways.wait();
    }

    pub(super) fn handle_return(&mut self) {
        let (from, to) = (self.ways.fallback.as_ref(), self.transport.class.name().into());
        let from = from.map_or_else(String::new, |fallback| fallback.class.name().into());
        self.ways.told.push(Event::CameBack { from, to });
        self.ways.look_at = None;
    }

    /// While the fallback carries: looks now and then whether the wanted transport gets through again, and goes on
    /// by it if so.
    pub(super) fn look_back(&mut self) -> Result<(), RuntimeError> {
        let Some(at) = self.ways.look_at.filter(|_| self.redial.is_none()) else { return Ok(()) };
        let Some((mut stream, until)) = self.ways.looking.take() else {
            if now() >= at && self.link.is_connected() && self.silent_since.is_none() {
                self.ways.wait();
                let trust = self.known.as_ref().map(|known| &known.trust);
                let begun = begin_quic(self.peer, trust).ok();
                self.ways.looking = begun.map(|stream| (Box::new(stream), now().after(LOOK_TIMEOUT)));
            }
            return Ok(());
        };
        match stream.is_shaken() {
            Ok(true) if self.link.is_connected() => {
                stream.forget(&mut self.poller);
                self.ways.found = Some(stream);
                let fallback = std::mem::replace(&mut self.transport, self.ways.wanted.clone());
                match self.connect(LOOK_TIMEOUT, LOOK_TIMEOUT) {
                    Ok(()) => self.handle_return(),
                    Err(RuntimeError::Unreachable(_)) => self.transport = fallback,
                    Err(error) => return Err(error),
                }
            }
            Ok(false) if now() < until => self.ways.looking = Some((stream, until)),
            Ok(_) | Err(_) => stream.forget(&mut self.poller),
        }
        Ok(())
    }

    /// A name may stand for several addresses, of which the host listens on one.
    fn connect_any(&mut self, peers: &[SocketAddr], timeout: Duration) -> Result<(), RuntimeError> {
        let mut last = Ok(());
        for &peer in peers {
            self.peer = peer;
            last = self.connect(timeout, CONNECT_TIMEOUT);
            if !matches!(last, Err(RuntimeError::Unreachable(_))) {
                break;
            }
        }
        last
    }

    /// What goes over TCP from an address that this host has no more gets nowhere: it is made anew before it is missed.
    fn leave_address(&mut self) {
        if self.link.address().is_some_and(|address| !is_here(address)) {
            self.link.disconnect(&mut self.poller);
        }
    }

    /// When this host has another address towards the other, what goes over QUIC goes on from there.
    pub(super) fn follow_address(&mut self) {
        if now() < self.address_at {
            return;
        }
        self.address_at = now().after(ADDRESS_INTERVAL);
        let peer = self.peer;
        let Some(stream) = self.link.quic() else { return self.leave_address() };
        // Without a way there, nothing is better than what there is.
        let Ok(address) = address_towards(peer) else { return };
        if stream.local() == Some(address) {
            return;
        }
        if udp_towards(peer).and_then(|socket| stream.add_way(socket)).is_err() {
            return;
        }
        for (number, driver) in (0..).zip(&mut self.drivers) {
            match (&driver.dialling, udp_towards(peer)) {
                // It has not begun, or nobody knows whether it has.
                (Some(_), _) => driver.dialling = Some(Dialling::new(&self.transport, peer, now())),
                (None, Ok(socket)) if driver.plans.is_some() => {
                    self.workers.send(Command::Move { driver: number, socket });
                }
                _ => {}
            }
        }
    }

    /// Brings data connections under way a step further.
    pub(super) fn dial(&mut self) {
        let Some(session) = self.session.filter(|_| self.is_served()) else { return };
        for (number, driver) in self.drivers.iter_mut().enumerate() {
            let number = number as u32;
            let Some(dialling) = driver.dialling.as_mut() else { continue };
            let link = &mut self.link;
            let mut introduce = || match link.keys() {
                None => (Preamble::Data { session, driver: number }.emit().to_vec(), None),
                Some(keys) => {
                    let (introduction, keys) = keys.introduce(number);
                    (introduction.emit().to_vec(), Some(keys))
                }
            };
            match dialling.run(&mut introduce, &mut self.poller, now()) {
                Dialled::Waiting => {}
                Dialled::Ready(socket, keys) => {
                    driver.dialling = None;
                    let transport = Some(self.transport.clone());
                    self.workers.send(Command::Link { driver: number, transport, socket, keys });
                }
            }
        }
    }
}
