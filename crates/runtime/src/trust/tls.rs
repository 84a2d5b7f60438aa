//! TLS 1.3 between hosts ([`transports::tls`]), with this host's identity and for one purpose. Whether the key that
//! the other host shows is one that is known is for who opened the channel to ask.

use crate::trust::identity::Identity;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, Error, ServerConfig};
use std::io;
use std::sync::Arc;

/// What a connection is for (ALPN, RFC 7301): neither can be taken for the other.
pub(super) const CONTROL: &[u8] = b"outboard-control";
pub(super) const PAIRING: &[u8] = b"outboard-pairing";

/// With a key that serves once and proves nothing, for a host that asks nobody who he is.
pub(super) fn throwaway<T>(make: impl FnOnce(Arc<CertifiedKey>) -> Result<T, Error>) -> io::Result<T> {
    let seed = crate::random::bytes()?;
    let (_, own) = transports::tls::key_pair_of_seed(&seed).ok_or_else(|| io::Error::other("no key pair"))?;
    make(own).map_err(io::Error::other)
}

/// The side that connects.
pub(super) fn client(identity: &Identity, purpose: &[u8]) -> Result<ClientConfig, Error> {
    transports::tls::client(identity.certified(), purpose, None)
}

/// The side that listens.
pub(super) fn server(identity: &Identity, purpose: &[u8]) -> Result<ServerConfig, Error> {
    transports::tls::server(identity.certified(), purpose, None)
}
