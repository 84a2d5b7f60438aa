//! Handles datagrams of no known connection without keeping state:
//!
//! | datagram | answer |
//! |---|---|
//! | Initial without a valid token | Retry (RFC 9000, section 8.1.2), not longer than the Initial |
//! | Initial with the token of a Retry | none: the address is validated, and the caller may accept the connection |
//! | packet of an unknown connection | stateless reset (RFC 9000, section 10.3), shorter than the packet |
//!
//! The caller limits the rate of the answers.

use super::config::ConnectionConfig;
use super::connection::without_scope;
use super::ids::AnyIds;
use bytes::BytesMut;
use contract::{PartnerError, PartnerResult};
use quinn_proto::{DatagramEvent, Endpoint};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Action for a datagram of no known connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Validation<'a> {
    /// The address is validated: accept a connection with this datagram.
    Valid,
    /// Send this answer.
    Answer(&'a [u8]),
    /// Drop the datagram.
    Drop,
}

/// Checks datagrams of no known connection.
pub struct AddressValidator {
    endpoint: Endpoint,
    answer: Vec<u8>,
}

impl AddressValidator {
    /// Creates the check for connections to this server.
    pub fn new(config: &ConnectionConfig) -> PartnerResult<AddressValidator> {
        let mut endpoint = config.endpoint().map_err(|error| PartnerError::os("setting up QUIC", error))?;
        endpoint.cid_generator(|| Box::new(AnyIds::new())).min_reset_interval(Duration::ZERO);
        let server = match config {
            ConnectionConfig::Server(server, ..) => Some(server.clone()),
            ConnectionConfig::Client(_) => None,
        };
        Ok(AddressValidator {
            endpoint: Endpoint::new(Arc::new(endpoint), server, false, None),
            answer: Vec::new(),
        })
    }

    /// Checks a datagram from `peer`.
    pub fn check(&mut self, datagram: &[u8], peer: SocketAddr) -> Validation<'_> {
        self.answer.clear();
        let bytes = BytesMut::from(datagram);
        let event =
            self.endpoint.handle(Instant::now(), without_scope(peer), None, None, bytes, &mut self.answer);
        let size = match event {
            Some(DatagramEvent::NewConnection(incoming)) if incoming.remote_address_validated() => {
                self.endpoint.ignore(incoming);
                return Validation::Valid;
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                match self.endpoint.retry(incoming, &mut self.answer) {
                    Ok(answer) => answer.size,
                    Err(error) => {
                        self.endpoint.ignore(error.into_incoming());
                        return Validation::Drop;
                    }
                }
            }
            Some(DatagramEvent::Response(answer)) => answer.size,
            Some(DatagramEvent::ConnectionEvent(..)) | None => return Validation::Drop,
        };
        Validation::Answer(&self.answer[..size])
    }
}
