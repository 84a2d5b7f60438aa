//! TLS 1.3 between hosts ([`transports::tls`]), with this host's identity and for one purpose. The user
//! of the channel checks that the peer's key is known.

use crate::identity::Identity;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, Error, ServerConfig};
use std::io;
use std::sync::Arc;

/// Purposes of a connection (ALPN, RFC 7301): one cannot be mistaken for the other.
pub(super) const CONTROL: &[u8] = b"outboard-control";
pub(super) const PAIRING: &[u8] = b"outboard-pairing";

/// TLS with a temporary key that proves nothing, for a host without authentication.
pub(super) fn throwaway<T>(make: impl FnOnce(Arc<CertifiedKey>) -> Result<T, Error>) -> io::Result<T> {
    let seed = sys::random::bytes()?;
    let (_, own) =
        transports::tls::key_pair_from_seed(&seed).ok_or_else(|| io::Error::other("no key pair"))?;
    make(own).map_err(io::Error::other)
}

/// Client side.
pub(super) fn client(identity: &Identity, purpose: &[u8]) -> Result<ClientConfig, Error> {
    transports::tls::client(identity.certified(), purpose, None)
}

/// Server side.
pub(super) fn server(identity: &Identity, purpose: &[u8]) -> Result<ServerConfig, Error> {
    transports::tls::server(identity.certified(), purpose, None)
}
