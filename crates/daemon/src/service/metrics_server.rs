//! The metrics server of a run file, which may have to wait for its address.

use super::unit::Retry;
use super::{is_in_use, is_not_here};
use crate::metrics::Endpoint;
use broker::events::{EmitEvent, Event};
use contract::{ServiceError, Time};
use std::net::SocketAddr;

/// The metrics server.
///
/// | state | `wanted` | `endpoint` | `retry.at` |
/// |---|---|---|---|
/// | not requested | `None` | `None` | `None` |
/// | running | `Some` | `Some` | `None` |
/// | failed, to be retried | `Some` | `None` | `Some` |
#[derive(Default)]
pub(super) struct MetricsServer {
    wanted: Option<SocketAddr>,
    endpoint: Option<Endpoint>,
    retry: Retry,
}

impl MetricsServer {
    /// Starts the server that will replace this one. Returns `None` if there is none to start, or not yet: this one has its
    /// port, or this host does not have its address.
    pub(super) fn prepare(&self, wanted: Option<SocketAddr>) -> Result<Option<Endpoint>, ServiceError> {
        let Some(at) = wanted.filter(|_| !self.runs_at(wanted)) else { return Ok(None) };
        match Endpoint::start(at) {
            Err(error) if is_in_use(&error) && self.has_port_of(at) => Ok(None),
            Err(error) if is_not_here(&error) => Ok(None),
            endpoint => endpoint.map(Some),
        }
    }

    /// Ends the server, and takes the prepared one, or starts it only now.
    pub(super) fn replace(
        &mut self,
        wanted: Option<SocketAddr>,
        prepared: Option<Endpoint>,
        emit: &EmitEvent,
    ) {
        if self.runs_at(wanted) {
            return;
        }
        *self = MetricsServer { wanted, ..MetricsServer::default() };
        match prepared {
            Some(endpoint) => self.adopt(endpoint, emit),
            None => self.start(emit),
        }
    }

    fn start(&mut self, emit: &EmitEvent) {
        match self.wanted.map(Endpoint::start) {
            Some(Ok(endpoint)) => self.adopt(endpoint, emit),
            Some(Err(error)) => self.retry.fail("metrics", error.to_string(), emit),
            None => {}
        }
    }

    fn adopt(&mut self, endpoint: Endpoint, emit: &EmitEvent) {
        emit(Event::Metrics { address: endpoint.address().to_string() });
        self.endpoint = Some(endpoint);
        self.retry.succeed();
    }

    fn runs_at(&self, wanted: Option<SocketAddr>) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| Some(endpoint.asked()) == wanted)
    }

    fn has_port_of(&self, at: SocketAddr) -> bool {
        self.address().is_some_and(|address| address.port() == at.port())
    }

    /// Returns the address that it listens on.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.endpoint.as_ref().map(Endpoint::address)
    }

    /// Starts it if its retry is due.
    pub(super) fn retry(&mut self, at: Time, emit: &EmitEvent) {
        if self.retry.is_due(at) {
            self.start(emit);
        }
    }

    /// Returns the time of the next retry.
    pub(super) fn retry_at(&self) -> Option<Time> {
        self.retry.at
    }

    /// Returns the reason why it does not run.
    pub(super) fn problem(&self) -> Option<String> {
        self.retry.problem.as_ref().map(|problem| format!("metrics: {problem}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_server_that_could_not_start_starts_later() {
        let emit: EmitEvent = Arc::new(|_| {});
        let wanted = Some("127.0.0.1:0".parse().unwrap());
        let mut server = MetricsServer { wanted, ..MetricsServer::default() };
        server.retry.fail("metrics", "Cannot assign requested address".into(), &emit);
        server.retry(Time::ZERO, &emit);
        assert!(server.address().is_none() && server.problem().is_some());
        server.retry(Time(u64::MAX), &emit);
        assert!(server.address().is_some() && server.problem().is_none() && server.retry_at().is_none());
    }
}
