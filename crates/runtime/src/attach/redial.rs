//! A connection that was lost is looked for in a thread of its own, which waits for the network. Meanwhile who asks this
//! host what it does is answered, and it can be stopped.

use super::{Attacher, CONNECT_TIMEOUT};
use crate::dial::{Expected, Over, Patience, greet};
use crate::error::RuntimeError;
use crate::share::now;
use crate::trust::channel::ControlStream;
use crate::trust::{PeerKey, Trust};
use crate::worker::TransportPlan;
use contract::Time;
use session::{Handshake, Welcomed};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::Duration;
use sys::event::Event as Wake;
use sys::poller::Poller;
use wire::preamble::SessionToken;

/// How long a connection may take while a lost link is looked for, at least.
const REDIAL_TIMEOUT: Duration = Duration::from_millis(300);
/// How long a connection, once made, may take for its greeting while a lost link is looked for, at least.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);

/// What is said of a host with another key.
pub(super) const ANOTHER_HOST: &str = "another host answers there than before";

/// What else to try where what carried last gets through no more.
pub(super) enum Otherwise {
    Nothing,
    /// That alone may get through.
    FallBack(TransportPlan),
    /// The fallback carried: the wanted one may get through again.
    Return(TransportPlan),
}

/// How what carries has changed.
enum Turn {
    FellBack { reason: String },
    CameBack,
}

/// Who is looked for, and how.
struct Search {
    peer: SocketAddr,
    /// This host's identity and the key that the other host showed; without, whoever is there.
    trust: Option<(Trust, Option<PeerKey>)>,
    /// This host's name, the session, and what came of it.
    host: String,
    session: Option<SessionToken>,
    received: u64,
    /// Connections made so far.
    attempt: u32,
    patience: Patience,
    /// What carried last.
    transport: TransportPlan,
    otherwise: Otherwise,
}

/// How a search ended.
struct Found {
    attempt: u32,
    transport: TransportPlan,
    turn: Option<Turn>,
    result: Result<(ControlStream, Welcomed), RuntimeError>,
}

impl Search {
    /// Connects by what carried last; by the other if that alone gets through.
    fn run(mut self) -> Found {
        let transport = self.transport.clone();
        let first = self.connect(&transport);
        let reason = match &first {
            Err(RuntimeError::Unreachable(reason)) => reason.clone(),
            _ => return self.found(transport, None, first),
        };
        match std::mem::replace(&mut self.otherwise, Otherwise::Nothing) {
            Otherwise::Nothing => self.found(transport, None, first),
            Otherwise::Return(wanted) => {
                let again = self.connect(&wanted);
                self.found(wanted, Some(Turn::CameBack), again)
            }
            Otherwise::FallBack(fallback) => {
                // While nothing gets through, there is nothing to choose between.
                if TcpStream::connect_timeout(&self.peer, self.patience.connect).is_err() {
                    return self.found(transport, None, first);
                }
                // The network is there, perhaps since a moment ago.
                let again = self.connect(&transport);
                if !matches!(again, Err(RuntimeError::Unreachable(_))) {
                    return self.found(transport, None, again);
                }
                let other = self.connect(&fallback);
                self.found(fallback, Some(Turn::FellBack { reason }), other)
            }
        }
    }

    fn connect(&mut self, transport: &TransportPlan) -> Result<(ControlStream, Welcomed), RuntimeError> {
        self.attempt += 1;
        let handshake = Handshake::new(self.host.clone(), self.session, self.received, self.attempt);
        let before = self.trust.as_ref().and_then(|(_, before)| *before);
        let check = |key: &PeerKey| match before == Some(*key) {
            true => Ok(()),
            false => Err(ANOTHER_HOST.to_string()),
        };
        let expected = match &self.trust {
            None => Expected::Anyone,
            Some((trust, _)) => Expected::Known(trust, &check),
        };
        let over = if transport.is_quic() { Over::Quic } else { Over::Tcp };
        greet(self.peer, over, &expected, &handshake, self.patience)
    }

    fn found(
        self,
        transport: TransportPlan,
        turn: Option<Turn>,
        result: Result<(ControlStream, Welcomed), RuntimeError>,
    ) -> Found {
        Found { attempt: self.attempt, transport, turn, result }
    }
}

/// A search under way.
pub(super) struct Redial {
    since: Time,
    found: Receiver<Found>,
    wake: Wake,
}

impl Redial {
    fn begin(search: Search) -> Result<Redial, RuntimeError> {
        let wake = Wake::new().map_err(|error| RuntimeError::os("an eventfd", error))?;
        let (tell, found) = mpsc::sync_channel(1);
        let done = wake.clone();
        let run = move || {
            // Nobody is told who has stopped meanwhile.
            let _ = tell.send(search.run());
            done.signal();
        };
        let thread = std::thread::Builder::new().name("redial".into()).spawn(run);
        thread.map_err(|error| RuntimeError::os("a thread", error))?;
        Ok(Redial { since: now(), found, wake })
    }

    /// Puts its end into the poller.
    pub(super) fn want(&self, poller: &mut Poller) {
        poller.want(self.wake.as_fd(), true, false);
    }
}

impl Attacher {
    /// Whether there is a connection, and what comes over it is read.
    pub(super) fn is_served(&self) -> bool {
        self.link.is_connected() && self.redial.is_none()
    }

    /// Looks for the other host, and goes on when it is found.
    pub(super) fn redial(&mut self) -> Result<(), RuntimeError> {
        let Some(redial) = &self.redial else {
            if now() >= self.redial_at {
                self.redial = Some(Redial::begin(self.search())?);
            }
            return Ok(());
        };
        let found = match redial.found.try_recv() {
            Ok(found) => found,
            Err(TryRecvError::Empty) => return Ok(()),
            Err(TryRecvError::Disconnected) => {
                return Err(RuntimeError::Peer("the search for the other host broke off".into()));
            }
        };
        self.poller.forget(redial.wake.as_fd());
        // A refusal comes at once; the next try shall not.
        self.redial_at = redial.since.after(REDIAL_TIMEOUT);
        (self.redial, self.attempt) = (None, found.attempt);
        let went_on = found.result.and_then(|(stream, welcomed)| {
            let before = std::mem::replace(&mut self.transport, found.transport);
            self.go_on(stream, &welcomed).inspect_err(|_| self.transport = before)
        });
        match (went_on, found.turn) {
            (Err(RuntimeError::Unreachable(_)), _) | (Ok(()), None) => {}
            (Ok(()), Some(Turn::FellBack { reason })) => self.handle_fallback(reason),
            (Ok(()), Some(Turn::CameBack)) => self.handle_return(),
            (Err(other), _) => return Err(other),
        }
        Ok(())
    }

    fn search(&self) -> Search {
        let round_trip = self.facts.map_or(Duration::ZERO, |facts| facts.round_trip);
        let (patience, otherwise) = match self.silent_since {
            Some(_) => {
                let connect = (round_trip * 3).clamp(REDIAL_TIMEOUT, CONNECT_TIMEOUT);
                (Patience { connect, step: connect.max(GREETING_TIMEOUT) }, self.ways.otherwise())
            }
            // A host that did not fall silent yet is likely found again as it was; whether it does is to be noticed.
            None => {
                let left = self.link.silent_at().since(now()).max(Duration::from_millis(1));
                (Patience { connect: left / 2, step: left / 2 }, Otherwise::Nothing)
            }
        };
        Search {
            peer: self.peer,
            trust: self.known.as_ref().map(|known| (known.trust.clone(), self.key)),
            host: self.host.clone(),
            session: self.session,
            received: self.link.received(),
            attempt: self.attempt,
            patience,
            transport: self.transport.clone(),
            otherwise,
        }
    }
}
