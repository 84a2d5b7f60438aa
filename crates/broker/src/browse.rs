//! Listing of the devices that another host offers, once or continuously.

use crate::attach::resolve;
use crate::control_link::ControlLink;
use crate::dial::{Expected, Over, Patience, greet};
use contract::ServiceError;
use modules::now;
use serde::Serialize;
use session::{Handshake, Limits};
use std::time::Duration;
use sys::poller::Poller;
use sys::stop::Stop;
use trust::{Known, PeerKey, Trust};
use wire::Control;
use wire::control::CatalogueEntry;

const PATIENCE: Duration = Duration::from_secs(5);

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

/// Requests the catalogue of the host at `address` (`HOST:PORT`) and passes it to `emit`. With `watch`, repeats this
/// on every change until the stop is raised. With `trust`, the host must be one of this host's peers.
pub fn browse(
    address: &str,
    trust: Option<Trust>,
    host: String,
    watch: Option<&Stop>,
    emit: &mut dyn FnMut(Vec<Offered>),
) -> Result<(), ServiceError> {
    let limits = Limits::default();
    let known = trust.map(Known::new).transpose()?;
    let place = sys::address::host_of(address);
    let check = |key: &PeerKey| known.as_ref().map_or(Ok(()), |known| known.expect(place, key));
    let expected = match &known {
        None => Expected::Anyone,
        Some(known) => Expected::Known(&known.trust, &check),
    };
    let handshake = Handshake::new(host, None, 0, 1);
    let mut last = Err(ServiceError::Unreachable(format!("{address}: the name has no address")));
    for peer in resolve(address)? {
        last = greet(peer, Over::Tcp, &expected, &handshake, Patience { connect: PATIENCE, step: PATIENCE });
        if !matches!(last, Err(ServiceError::Unreachable(_))) {
            break;
        }
    }
    let (stream, _) = last?;
    let mut poller = Poller::new().map_err(|error| ServiceError::os("epoll", error))?;
    let mut link = ControlLink::new(&limits, now());
    link.connect(stream, 0, None, now())?;
    link.send(&Control::List)?;
    let goodbye = Control::Goodbye { reason: "the listing is complete".into() };
    while !watch.is_some_and(Stop::is_requested) {
        while let Some(message) = link.poll(now())? {
            match message {
                Control::Catalogue { entries } => {
                    emit(entries.into_iter().map(Offered::from).collect());
                    if watch.is_none() {
                        let _ = link.send(&goodbye);
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
    let _ = link.send(&goodbye);
    Ok(())
}
