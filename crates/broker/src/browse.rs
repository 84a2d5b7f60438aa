//! Listing of the devices that another host offers, once or continuously.

use crate::control_link::ControlLink;
use contract::ServiceError;
use hosts::dial::{Expected, Over, Patience, SHARE, greet, is_here};
use hosts::place::{Confirm, Route, reach, record_place};
use modules::now;
use serde::Serialize;
use session::{Handshake, Limits};
use std::net::SocketAddr;
use std::time::Duration;
use sys::poller::Poller;
use sys::stop::Stop;
use trust::channel::ControlStream;
use trust::{Known, PeerKey, Target, Trust};
use wire::Control;
use wire::control::CatalogueEntry;

const PATIENCE: Duration = Duration::from_secs(5);
/// Timeout of a QUIC connection, which is tried where TCP fails.
const QUIC_PATIENCE: Duration = Duration::from_millis(1500);

/// A device offered by another host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Offered {
    /// The name to attach it by.
    pub name: String,
    /// The device class.
    pub class: String,
    /// A description in one line.
    pub summary: String,
    /// Set if the device is plugged in.
    pub present: bool,
}

impl From<CatalogueEntry> for Offered {
    fn from(entry: CatalogueEntry) -> Offered {
        let CatalogueEntry { name, class, summary, present } = entry;
        Offered { name, class, summary, present }
    }
}

/// The reason of the goodbye.
const LISTED: &str = "the listing is complete";

/// Requests the catalogue of the host at `target` and passes it to `emit`. With `watch`, repeats this on every change
/// until the stop is raised. With `trust`, the host must be one of this host's peers; `confirm` decides about a place that
/// is not on record.
pub fn browse(
    target: &Target,
    trust: Option<Trust>,
    host: String,
    watch: Option<&Stop>,
    confirm: &mut Confirm<'_>,
    emit: &mut dyn FnMut(Vec<Offered>),
) -> Result<(), ServiceError> {
    let limits = Limits::default();
    let address = &target.address;
    let mut known = trust.map(Known::new).transpose()?;
    let handshake = Handshake::new(host, None, 0, 1);
    let mut stream = connect(target, known.as_ref(), &handshake);
    if let (Err(ServiceError::UnrecordedPlace { address, peer, fingerprint }), Some(known)) =
        (&stream, &mut known)
        && confirm(address, peer, fingerprint)
    {
        let key = known.peers().required(peer)?.key;
        known.record(&key, address)?;
        stream = connect(target, Some(known), &handshake);
    }
    let ((mut stream, at), route) = stream?;
    if let (Some(known), Some(key)) = (&mut known, stream.peer()) {
        record_place(known, target, route, (&key, at))?;
    }
    let mut poller = Poller::new().map_err(|error| ServiceError::os("epoll", error))?;
    let mut link = ControlLink::new(&limits, now());
    link.connect(stream, 0, None, now())?;
    link.send(&Control::List)?;
    while !watch.is_some_and(Stop::is_requested) {
        while let Some(message) = link.poll(now())? {
            match message {
                Control::Catalogue { entries } => {
                    emit(entries.into_iter().map(Offered::from).collect());
                    if watch.is_none() {
                        link.leave(LISTED, &mut poller);
                        return Ok(());
                    }
                }
                Control::Goodbye { reason } => {
                    return Err(ServiceError::Peer(format!("{address}: {reason}")));
                }
                _ => {}
            }
        }
        link.run_timeouts(now())?;
        if link.is_silent(now()) {
            return Err(ServiceError::Unreachable(format!(
                "{address}: no sign of life within the silence limit"
            )));
        }
        link.register(&mut poller);
        if let Some(stop) = watch {
            poller.register(stop.wakes(), true, false);
        }
        let waited = poller.wait(Some(link.poll_timeout(false).since(now())));
        waited.map_err(|error| ServiceError::os("waiting", error))?;
    }
    link.leave(LISTED, &mut poller);
    Ok(())
}

/// Connects to the host at `target`: over TCP, or over QUIC where a firewall passes UDP alone. Returns the connection and
/// its address.
fn connect(
    target: &Target,
    known: Option<&Known>,
    handshake: &Handshake,
) -> Result<((ControlStream, SocketAddr), Route), ServiceError> {
    reach(target, known.map(Known::peers), &mut |addresses| {
        let mut problem = format!("{}: the name has no address", target.address);
        let tries = |is_tcp| addresses.iter().map(move |&peer| (is_tcp, peer));
        for (is_tcp, peer) in tries(true).chain(tries(false)) {
            let check =
                |key: &PeerKey| known.map_or(Ok(()), |known| known.expect(target, key, is_here(peer)));
            let expected = match known {
                None => Expected::Anyone,
                Some(known) => Expected::Known(&known.trust, &check),
            };
            let (over, connect) = if is_tcp { (Over::Tcp, PATIENCE) } else { (Over::Quic, QUIC_PATIENCE) };
            let patience = Patience { connect, step: PATIENCE };
            match greet(peer, over, &expected, handshake, patience, SHARE) {
                Err(ServiceError::Unreachable(of_tcp)) if is_tcp => problem = of_tcp,
                Err(ServiceError::Unreachable(_)) => {}
                greeted => return greeted.map(|(stream, _)| (stream, peer)),
            }
        }
        Err(ServiceError::Unreachable(problem))
    })
}
