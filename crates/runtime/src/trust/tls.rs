//! TLS 1.3 between hosts (RFC 8446): both show a raw public key (RFC 7250) and prove that it is theirs. Whether
//! the key is one that is known is for who opened the channel to ask.

use crate::trust::identity::{Identity, PeerKey};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    ServerConfig, SignatureScheme,
};
use std::sync::Arc;

/// What a connection is for (ALPN, RFC 7301): neither can be taken for the other.
pub(super) const CONTROL: &[u8] = b"outboard-control";
pub(super) const PAIRING: &[u8] = b"outboard-pairing";

/// Takes any key of Ed25519 that the other host proves to be its own.
#[derive(Debug)]
struct AnyKey(WebPkiSupportedAlgorithms);

impl AnyKey {
    fn check(key: &CertificateDer<'_>) -> Result<(), Error> {
        match PeerKey::from_spki(key) {
            Some(_) => Ok(()),
            None => Err(CertificateError::BadEncoding.into()),
        }
    }

    fn verify(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.0)
    }
}

fn no_older_version() -> Error {
    PeerIncompatible::Tls12NotOffered.into()
}

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        AnyKey::check(key).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_older_version())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        AnyKey::check(key).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_older_version())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

fn parts() -> (Arc<CryptoProvider>, Arc<AnyKey>) {
    let provider = rustls::crypto::ring::default_provider();
    let any_key = Arc::new(AnyKey(provider.signature_verification_algorithms));
    (Arc::new(provider), any_key)
}

/// The side that connects.
pub(super) fn client(identity: &Identity, purpose: &[u8]) -> Result<ClientConfig, Error> {
    let (provider, any_key) = parts();
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(any_key)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(identity.certified())));
    config.alpn_protocols = vec![purpose.into()];
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The side that listens.
pub(super) fn server(identity: &Identity, purpose: &[u8]) -> Result<ServerConfig, Error> {
    let (provider, any_key) = parts();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(any_key)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(identity.certified())));
    config.alpn_protocols = vec![purpose.into()];
    // Sessions are resumed by their own tokens, under a new handshake each time.
    config.send_tls13_tickets = 0;
    Ok(config)
}
