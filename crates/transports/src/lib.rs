//! Transports: one folder each. A transport is a partner whose messages are whole records: a record pushed into it
//! on one host is pulled out of it on the other.
//!
//! To add a transport, copy a folder, change it, and add a line to [`TRANSPORTS`].
//!
//! | module | purpose |
//! |---|---|
//! | `tcp`, `udp`, `quic`, `striped`, `exec` | the transports |
//! | `rate` | the rate of `udp` and `quic`: random loss does not lower it, a queue does |
//! | `send_queue` | bounded queue of records that wait for the socket |
//! | `deframer` | byte stream to records |
//! | `seal` | AES-256-GCM for `tcp`, `striped` and `udp` |
//! | `tls` | TLS 1.3 with raw public keys, for QUIC and for the control channel |
//! | `timestamps` | kernel timestamps of traced records |

#[cfg(test)]
mod conformance;
mod deframer;
pub mod exec;
pub mod quic;
mod rate;
mod seal;
#[cfg(test)]
mod seal_tests;
mod send_queue;
mod socket;
pub mod striped;
pub mod tcp;
#[cfg(test)]
mod test_records;
mod timestamps;
pub mod tls;
pub mod udp;

use contract::TransportClass;

/// All transports.
pub const TRANSPORTS: &[&dyn TransportClass] =
    &[&quic::Quic, &tcp::Tcp, &udp::Udp, &striped::Striped, &exec::Exec];

/// Returns the transport with this name.
pub fn find(name: &str) -> Option<&'static dyn TransportClass> {
    TRANSPORTS.iter().copied().find(|class| class.name() == name)
}
