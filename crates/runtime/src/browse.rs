//! What another host offers this one, once or as it changes.

use crate::attach::resolve;
use crate::control_link::ControlLink;
use crate::dial::{Expected, Over, Patience, greet};
use crate::error::RuntimeError;
use crate::events::Stop;
use crate::share::now;
use crate::trust::{Known, PeerKey, Trust};
use serde::Serialize;
use session::{Handshake, Limits};
use std::time::Duration;
use sys::poller::Poller;
use wire::Control;
use wire::control::CatalogueEntry;

const PATIENCE: Duration = Duration::from_secs(5);

/// A device of another host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Offered {
    /// What to attach it by.
    pub name: String,
    /// Its class.
    pub class: String,
    /// One line.
    pub summary: String,
    /// Whether it is plugged in.
    pub present: bool,
}

impl From<CatalogueEntry> for Offered {
    fn from(entry: CatalogueEntry) -> Offered {
        let CatalogueEntry { name, class, summary, present } = entry;
        Offered { name, class, summary, present }
    }
}

/// Asks the host at `address` (`HOST:PORT`) what it offers, and tells it; with `watch` again whenever it changes, until
/// `stop` is said. `trust`: who is known, of whom that host has to be one.
pub fn browse(
    address: &str,
    trust: Option<Trust>,
    host: String,
    watch: Option<&Stop>,
    tell: &mut dyn FnMut(Vec<Offered>),
) -> Result<(), RuntimeError> {
    let limits = Limits::default();
    let known = trust.map(Known::new).transpose()?;
    let place = sys::address::host_of(address);
    let check = |key: &PeerKey| known.as_ref().map_or(Ok(()), |known| known.expect(place, key));
    let expected = match &known {
        None => Expected::Anyone,
        Some(known) => Expected::Known(&known.trust, &check),
    };
    let handshake = Handshake::new(host, None, 0, 1);
    let mut last = Err(RuntimeError::Unreachable(format!("{address}: the name has no address")));
    for peer in resolve(address)? {
        last = greet(peer, Over::Tcp, &expected, &handshake, Patience { connect: PATIENCE, step: PATIENCE });
        if !matches!(last, Err(RuntimeError::Unreachable(_))) {
            break;
        }
    }
    let (stream, _) = last?;
    let mut poller = Poller::new().map_err(|error| RuntimeError::os("epoll", error))?;
    let mut link = ControlLink::new(&limits, now());
    link.connect(stream, 0, None, now())?;
    link.send(&Control::List)?;
    let goodbye = Control::Goodbye { reason: "it has seen what there is".into() };
    while !watch.is_some_and(Stop::is_said) {
        while let Some(message) = link.poll(now())? {
            match message {
                Control::Catalogue { entries } => {
                    tell(entries.into_iter().map(Offered::from).collect());
                    if watch.is_none() {
                        let _ = link.send(&goodbye);
                        return Ok(());
                    }
                }
                Control::Goodbye { reason } => {
                    return Err(RuntimeError::Peer(format!("{address}: {reason}")));
                }
                _ => {}
            }
        }
        link.run_timeouts(now())?;
        if link.is_silent(now()) {
            return Err(RuntimeError::Unreachable(format!("{address}: nothing was heard")));
        }
        link.want(&mut poller);
        if let Some(stop) = watch {
            poller.want(stop.wakes(), true, false);
        }
        let waited = poller.wait(Some(link.poll_timeout(false).since(now())));
        waited.map_err(|error| RuntimeError::os("waiting", error))?;
    }
    let _ = link.send(&goodbye);
    Ok(())
}
