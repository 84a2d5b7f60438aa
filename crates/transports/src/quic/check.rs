//! Who begins a connection has to show that it is where it says (RFC 9000, section 8.1.2): until then nothing is
//! kept of it, and no more is said to it than it said. Who goes on with one that nobody knows is told that it is over
//! (section 10.3), in fewer bytes than it said. How often either happens is for the caller to bound.

use super::config::Beginning;
use super::connection::known;
use super::ids::AnyIds;
use bytes::BytesMut;
use contract::PartnerError;
use quinn_proto::{DatagramEvent, Endpoint};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is to be done with a datagram of no connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Checked<'a> {
    /// It is from where it says: a connection may begin with it.
    Shown,
    /// This is to be answered.
    Answer(&'a [u8]),
    /// It is nothing.
    Nothing,
}

/// Checks datagrams that are of no connection, each by itself.
pub struct AddressCheck {
    endpoint: Endpoint,
    answer: Vec<u8>,
}

impl AddressCheck {
    /// For those who connect to this.
    pub fn new(beginning: &Beginning) -> Result<AddressCheck, PartnerError> {
        let mut config = beginning.endpoint().map_err(|error| PartnerError::os("setting up QUIC", error))?;
        config.cid_generator(|| Box::new(AnyIds::new())).min_reset_interval(Duration::ZERO);
        let server = match beginning {
            Beginning::Server(server, ..) => Some(server.clone()),
            Beginning::Client(_) => None,
        };
        Ok(AddressCheck {
            endpoint: Endpoint::new(Arc::new(config), server, false, None),
            answer: Vec::new(),
        })
    }

    /// Looks at one that came from `peer`.
    pub fn look(&mut self, datagram: &[u8], peer: SocketAddr) -> Checked<'_> {
        self.answer.clear();
        let bytes = BytesMut::from(datagram);
        let event = self.endpoint.handle(Instant::now(), known(peer), None, None, bytes, &mut self.answer);
        let size = match event {
            Some(DatagramEvent::NewConnection(incoming)) if incoming.remote_address_validated() => {
                self.endpoint.ignore(incoming);
                return Checked::Shown;
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                match self.endpoint.retry(incoming, &mut self.answer) {
                    Ok(answer) => answer.size,
                    Err(error) => {
                        self.endpoint.ignore(error.into_incoming());
                        return Checked::Nothing;
                    }
                }
            }
            Some(DatagramEvent::Response(answer)) => answer.size,
            Some(DatagramEvent::ConnectionEvent(..)) | None => return Checked::Nothing,
        };
        Checked::Answer(&self.answer[..size])
    }
}
