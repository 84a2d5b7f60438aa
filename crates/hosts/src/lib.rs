//! Addresses of hosts: [`place`] reads a host as the user writes it and finds its addresses; [`discovery`] finds hosts on
//! the local network.

pub mod discovery;
pub mod place;
