//! Addresses of hosts, and connections to them: [`place`] reads a host as the user writes it and finds its addresses;
//! [`discovery`] finds hosts on the local network, and [`look_up`] a host that has moved; [`dial`] connects and greets, [`ways`] makes further
//! connections, [`quic_listener`] accepts, and [`following`] follows peers to other addresses.

pub mod dial;
pub mod discovery;
pub mod following;
pub mod look_up;
pub mod place;
pub mod quic_listener;
pub mod ways;
