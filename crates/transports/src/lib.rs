//! Network modules, one folder a transport. A transport is a partner whose messages are whole records:
//! what is pushed into it here is pulled out of it there.
//!
//! To add one: copy a folder, fill it in, add a line to [`TRANSPORTS`].

#[cfg(test)]
mod conformance;
mod inbox;
mod outgoing;
pub mod quic;
mod seal;
#[cfg(test)]
mod seal_tests;
mod socket;
pub mod tcp;
#[cfg(test)]
mod test_records;
pub mod tls;
pub mod udp;
mod watch;

use contract::TransportClass;

/// Every transport there is.
pub const TRANSPORTS: &[&dyn TransportClass] = &[&quic::Quic, &tcp::Tcp, &udp::Udp];

/// The transport of this name.
pub fn find(name: &str) -> Option<&'static dyn TransportClass> {
    TRANSPORTS.iter().copied().find(|class| class.name() == name)
}
