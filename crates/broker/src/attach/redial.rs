//! Reconnection after a lost connection.
//!
//! A separate thread searches for the device host, because connecting blocks. Meanwhile the broker's thread keeps
//! serving the console and can still be stopped.

use super::{ApplicationHost, CONNECT_TIMEOUT};
use contract::ServiceError;
use contract::Time;
use hosts::dial::{Expected, Over, Patience, SHARE, greet};
use modules::TransportPlan;
use modules::now;
use session::{Handshake, Welcomed};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::Duration;
use sys::event::Event as Wake;
use sys::poller::Poller;
use trust::channel::ControlStream;
use trust::{KeyRefusal, Known, PeerKey, Trust};
use wire::preamble::SessionToken;

/// Shortest connect timeout of a search.
const REDIAL_TIMEOUT: Duration = Duration::from_millis(300);
/// After a long silence, the connect timeout is this part of the silence: the path may have become longer meanwhile, and
/// the measured round trip is that of the former one.
const SILENCE_PART: u32 = 8;
/// Shortest connect timeout at an address where the device host has not been before: the path may be longer.
const MOVED_TIMEOUT: Duration = Duration::from_secs(1);
/// Shortest timeout of each step of the greeting during a search.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval before the next search after a refusal of the device host.
const REFUSAL_INTERVAL: Duration = Duration::from_secs(1);
/// A refusal that lasts so long is final. One for overload, or for a greeting that came too late, passes sooner.
const REFUSAL_MAX: Duration = Duration::from_secs(10);
/// Longest time between two refusals in a row: searches at two addresses take less.
const REFUSAL_GAP: Duration = Duration::from_secs(30);

/// Refusal of a host that shows a different key from the one of the first connection.
pub(super) const ANOTHER_HOST: &str = "a different host answers at this address";

/// The alternative to try when the last transport does not connect.
#[derive(Clone)]
pub(super) enum Alternative {
    Nothing,
    /// Try this fallback: it alone may get through.
    FallBack(TransportPlan),
    /// The fallback is in use: try the preferred transport again.
    Return(TransportPlan),
}

/// A change of transport during a search.
enum TransportChange {
    FellBack { reason: String },
    CameBack,
}

/// The parameters of one search.
struct Search {
    peer: SocketAddr,
    /// Another address of the device host, to try after the last one.
    other: Option<SocketAddr>,
    /// This host's identity and the key of the device host; `None` accepts any host.
    trust: Option<(Trust, Option<PeerKey>)>,
    /// This host's name, the session, and the number of messages received in it.
    host: String,
    session: Option<SessionToken>,
    received: u64,
    /// Number of connections attempted so far.
    attempt: u32,
    patience: Patience,
    /// The transport used last.
    transport: TransportPlan,
    alternative: Alternative,
}

/// The result of a search.
struct Found {
    attempt: u32,
    address: SocketAddr,
    transport: TransportPlan,
    change: Option<TransportChange>,
    result: Result<(ControlStream, Welcomed), ServiceError>,
}

impl Search {
    /// Connects to the last address, or to the other one if the last does not answer.
    fn run(mut self) -> Found {
        let found = self.run_here();
        let Some(other) = self.other.filter(|_| matches!(found.result, Err(ServiceError::Unreachable(_))))
        else {
            return found;
        };
        self.peer = other;
        self.patience.connect = self.patience.connect.max(MOVED_TIMEOUT);
        self.run_here()
    }

    /// Connects over the last transport, or over the alternative if only that one connects.
    fn run_here(&mut self) -> Found {
        let transport = self.transport.clone();
        let first = self.connect(&transport);
        let reason = match &first {
            Err(ServiceError::Unreachable(reason)) => reason.clone(),
            _ => return self.found(transport, None, first),
        };
        match self.alternative.clone() {
            Alternative::Nothing => self.found(transport, None, first),
            Alternative::Return(wanted) => {
                let again = self.connect(&wanted);
                self.found(wanted, Some(TransportChange::CameBack), again)
            }
            Alternative::FallBack(fallback) => {
                // The network itself is down, so a fallback cannot help.
                if TcpStream::connect_timeout(&self.peer, self.patience.connect).is_err() {
                    return self.found(transport, None, first);
                }
                // The network is up, perhaps since a moment ago: try the first transport once more.
                let again = self.connect(&transport);
                if !matches!(again, Err(ServiceError::Unreachable(_))) {
                    return self.found(transport, None, again);
                }
                let other = self.connect(&fallback);
                self.found(fallback, Some(TransportChange::FellBack { reason }), other)
            }
        }
    }

    fn connect(&mut self, transport: &TransportPlan) -> Result<(ControlStream, Welcomed), ServiceError> {
        self.attempt += 1;
        let handshake = Handshake::new(self.host.clone(), self.session, self.received, self.attempt);
        let before = self.trust.as_ref().and_then(|(_, before)| *before);
        let check = |key: &PeerKey| match before == Some(*key) {
            true => Ok(()),
            false => Err(KeyRefusal::Mismatch(ANOTHER_HOST.into())),
        };
        let expected = match &self.trust {
            None => Expected::Anyone,
            Some((trust, _)) => Expected::Known(trust, &check),
        };
        let over = if transport.is_quic() { Over::Quic } else { Over::Tcp };
        match greet(self.peer, over, &expected, &handshake, self.patience, SHARE) {
            // The address may belong to another host now: this refusal proves nothing.
            Err(ServiceError::Peer(error)) if self.trust.is_none() => Err(ServiceError::Unreachable(error)),
            greeted => greeted,
        }
    }

    fn found(
        &self,
        transport: TransportPlan,
        change: Option<TransportChange>,
        result: Result<(ControlStream, Welcomed), ServiceError>,
    ) -> Found {
        Found { attempt: self.attempt, address: self.peer, transport, change, result }
    }
}

/// Returns the connect timeout of a search after this silence; `round_trip` is that of the last connection.
fn connect_timeout(round_trip: Duration, silence: Duration) -> Duration {
    (round_trip * 3).max(silence / SILENCE_PART).clamp(REDIAL_TIMEOUT, CONNECT_TIMEOUT)
}

/// A search in progress.
pub(super) struct Redial {
    since: Time,
    found: Receiver<Found>,
    wake: Wake,
}

impl Redial {
    fn begin(search: Search) -> Result<Redial, ServiceError> {
        let wake = Wake::new().map_err(|error| ServiceError::os("an eventfd", error))?;
        let (emit, found) = mpsc::sync_channel(1);
        let done = wake.clone();
        let run = move || {
            // The receiver has gone if the broker stopped meanwhile.
            let _ = emit.send(search.run());
            done.signal();
        };
        let thread = std::thread::Builder::new().name("redial".into()).spawn(run);
        thread.map_err(|error| ServiceError::os("a thread", error))?;
        Ok(Redial { since: now(), found, wake })
    }

    /// Registers the completion event with the poller.
    pub(super) fn register(&self, poller: &mut Poller) {
        poller.register(self.wake.as_fd(), true, false);
    }
}

impl ApplicationHost {
    /// Returns whether there is a connection and its messages are read.
    pub(super) fn is_served(&self) -> bool {
        self.common.link.is_connected() && self.redial.is_none()
    }

    /// Starts a search, or continues with the connection that a search found.
    pub(super) fn redial(&mut self) -> Result<(), ServiceError> {
        let Some(redial) = &self.redial else {
            if now() >= self.redial_at {
                self.choice.end_probe(&mut self.poller);
                self.redial = Some(Redial::begin(self.search())?);
            }
            return Ok(());
        };
        let found = match redial.found.try_recv() {
            Ok(found) => found,
            Err(TryRecvError::Empty) => return Ok(()),
            Err(TryRecvError::Disconnected) => {
                return Err(ServiceError::Peer("the reconnection thread ended unexpectedly".into()));
            }
        };
        self.poller.forget(redial.wake.as_fd());
        // A refusal arrives at once; do not retry immediately.
        self.redial_at = redial.since.after(REDIAL_TIMEOUT);
        (self.redial, self.attempt) = (None, found.attempt);
        let went_on = found.result.and_then(|(stream, welcomed)| {
            let before = std::mem::replace(&mut self.transport, found.transport);
            let address_before = std::mem::replace(&mut self.address, found.address);
            self.continue_on(stream, &welcomed)
                .inspect_err(|_| (self.transport, self.address) = (before, address_before))?;
            if address_before != self.address {
                self.record_move();
            }
            Ok(())
        });
        if went_on.is_ok() {
            self.refused = None;
        } else if matches!(went_on, Err(ServiceError::Peer(_))) {
            let now = now();
            // The former address may not answer while the new one refuses; an outage separates two refusals.
            let in_a_row = self.refused.filter(|(_, last)| now.since(*last) < REFUSAL_GAP);
            let since = in_a_row.map_or(now, |(since, _)| since);
            self.refused = Some((since, now));
            if now.since(since) < REFUSAL_MAX {
                self.redial_at = now.after(REFUSAL_INTERVAL);
                return Ok(());
            }
        }
        match (went_on, found.change) {
            (Err(ServiceError::Unreachable(_)), _) | (Ok(()), None) => {}
            (Ok(()), Some(TransportChange::FellBack { reason })) => self.handle_fallback(reason),
            (Ok(()), Some(TransportChange::CameBack)) => self.handle_return(),
            (Err(other), _) => return Err(other),
        }
        Ok(())
    }

    fn search(&mut self) -> Search {
        let round_trip = self.common.facts().map_or(Duration::ZERO, |facts| facts.round_trip);
        let (patience, alternative) = match self.common.silent_since() {
            Some(since) => {
                let connect = connect_timeout(round_trip, now().since(since));
                (Patience { connect, step: connect.max(GREETING_TIMEOUT) }, self.choice.alternative())
            }
            // The host is not silent yet, so it probably answers as before. Finish early enough to detect the silence.
            None => {
                let left = self.common.link.silent_at().since(now()).max(Duration::from_millis(1));
                (Patience { connect: left / 2, step: left / 2 }, Alternative::Nothing)
            }
        };
        let (last, peers) = (self.address, self.known.as_ref().map(Known::peers));
        let other = self.common.silent_since().and_then(|since| self.look_up.next(since, now(), peers));
        // Another `share` of that host may listen on another port.
        let is_other = |other: &SocketAddr| *other != last && other.port() == last.port();
        Search {
            peer: self.address,
            other: other.filter(is_other),
            trust: self.known.as_ref().map(|known| (known.trust.clone(), self.key)),
            host: self.host.clone(),
            session: self.token,
            received: self.common.link.received(),
            attempt: self.attempt,
            patience,
            transport: self.transport.clone(),
            alternative,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_become_more_patient_during_a_silence() {
        for (round_trip_ms, silence_ms, timeout_ms) in [
            (0, 0, 300),
            (5, 2000, 300),
            (200, 2000, 600),
            (5, 8000, 1000),
            (200, 8000, 1000),
            (5, 3_600_000, 5000),
            (2000, 0, 5000),
        ] {
            let [round_trip, silence] = [round_trip_ms, silence_ms].map(Duration::from_millis);
            assert_eq!(connect_timeout(round_trip, silence).as_millis(), timeout_ms, "{silence:?}");
        }
    }
}
