//! An attacher's data connections: made, and moved with this host.

use super::{Attacher, CONNECT_TIMEOUT};
use crate::dial::{Dialled, Dialling, address_towards, udp_towards};
use crate::error::RuntimeError;
use crate::events::Event;
use crate::share::now;
use crate::worker::{Command, TransportPlan};
use std::net::SocketAddr;
use std::time::Duration;
use wire::Preamble;

/// Time between two looks at whether this host has another address.
const ADDRESS_INTERVAL: Duration = Duration::from_millis(100);

/// How long before another transport is tried, if there is one.
const FALLBACK_TIMEOUT: Duration = Duration::from_millis(1500);

impl Attacher {
    /// Connects to the host for the first time; by another transport if it is not reached by its own.
    pub(super) fn connect_first(
        &mut self,
        peers: &[SocketAddr],
        fallback: Option<TransportPlan>,
    ) -> Result<(), RuntimeError> {
        let patience = if fallback.is_some() { FALLBACK_TIMEOUT } else { CONNECT_TIMEOUT };
        match (self.connect_any(peers, patience), fallback) {
            (Err(RuntimeError::Unreachable(reason)), Some(fallback)) => {
                let wanted = std::mem::replace(&mut self.transport, fallback);
                self.connect_any(peers, CONNECT_TIMEOUT)?;
                let (from, to) = (wanted.class.name().into(), self.transport.class.name().into());
                self.fell_back = Some(Event::FellBack { from, to, reason });
                Ok(())
            }
            (first, _) => first,
        }
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

    /// When this host has another address towards the other, what goes over QUIC goes on from there.
    pub(super) fn follow_address(&mut self) {
        if now() < self.address_at {
            return;
        }
        self.address_at = now().after(ADDRESS_INTERVAL);
        let peer = self.peer;
        let Some(stream) = self.link.quic() else { return };
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
        let Some(session) = self.session else { return };
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
                    self.workers.send(Command::Link { driver: number, socket, keys });
                }
            }
        }
    }
}
