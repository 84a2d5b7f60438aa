//! TLS 1.3 between hosts (RFC 8446). Both sides authenticate with a raw Ed25519 public key (RFC 7250).
//!
//! The configuration may pin the peer's key. Otherwise TLS proves only that the peer owns the key, and the caller must
//! check the key after the handshake. Older versions, tickets and early data are disabled.

use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    ServerConfig, SignatureScheme,
};
use std::sync::Arc;

/// Server name for the TLS API. It is never sent or checked: trust depends on the key.
pub const SERVER_NAME: &str = "outboard";
/// Size of an Ed25519 public key, and of the seed of a private key (RFC 8032, section 5.1.5).
pub const KEY_BYTES: usize = 32;
/// DER prefix of the key in an Ed25519 SubjectPublicKeyInfo (RFC 8410, section 4).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// DER prefix of the seed in an Ed25519 PKCS #8 document (RFC 8410, section 7).
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// An Ed25519 public key.
pub type PublicKey = [u8; KEY_BYTES];

/// Returns the key in a SubjectPublicKeyInfo, or `None` if it is not an Ed25519 key.
pub fn key_from_spki(spki: &[u8]) -> Option<PublicKey> {
    spki.strip_prefix(&SPKI_PREFIX)?.try_into().ok()
}

/// Reads an Ed25519 PKCS #8 document. Returns the public key, and the key pair in the form that TLS needs.
pub fn key_pair(document: Vec<u8>) -> Option<(PublicKey, Arc<CertifiedKey>)> {
    let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&document).ok()?;
    let key: PublicKey = pair.public_key().as_ref().try_into().ok()?;
    let signing = any_eddsa_type(&PrivatePkcs8KeyDer::from(document)).ok()?;
    let shown = CertificateDer::from([&SPKI_PREFIX[..], &key].concat());
    Some((key, Arc::new(CertifiedKey::new(vec![shown], signing))))
}

/// Like [`key_pair`], from the seed of the private key.
pub fn key_pair_from_seed(seed: &[u8; KEY_BYTES]) -> Option<(PublicKey, Arc<CertifiedKey>)> {
    key_pair([&PKCS8_PREFIX[..], seed].concat())
}

/// Accepts a peer that proves to own the pinned Ed25519 key, or any Ed25519 key if none is pinned.
#[derive(Debug)]
struct KeyVerifier {
    algorithms: WebPkiSupportedAlgorithms,
    pinned: Option<PublicKey>,
}

impl KeyVerifier {
    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        match (key_from_spki(shown), self.pinned) {
            (Some(key), Some(pinned)) if key != pinned => {
                Err(CertificateError::ApplicationVerificationFailure.into())
            }
            (Some(_), _) => Ok(()),
            (None, _) => Err(CertificateError::BadEncoding.into()),
        }
    }
}

/// The methods that the verifiers of servers and of clients share.
macro_rules! signature_methods {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _key: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(PeerIncompatible::Tls12NotOffered.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let key = SubjectPublicKeyInfoDer::from(key.as_ref());
            verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for KeyVerifier {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(key).map(|()| ServerCertVerified::assertion())
    }

    signature_methods!();
}

impl ClientCertVerifier for KeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(key).map(|()| ClientCertVerified::assertion())
    }

    signature_methods!();
}

fn parts(pinned: Option<PublicKey>) -> (Arc<CryptoProvider>, Arc<KeyVerifier>) {
    let provider = rustls::crypto::ring::default_provider();
    let verifier = KeyVerifier { algorithms: provider.signature_verification_algorithms, pinned };
    (Arc::new(provider), Arc::new(verifier))
}

/// Configures the side that connects. It authenticates with `own`, negotiates `purpose` (ALPN, RFC 7301), and accepts
/// only the key `pinned`, or any key if that is `None`.
pub fn client(
    own: Arc<CertifiedKey>,
    purpose: &[u8],
    pinned: Option<PublicKey>,
) -> Result<ClientConfig, Error> {
    let (provider, verifier) = parts(pinned);
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own)));
    config.alpn_protocols = vec![purpose.into()];
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Configures the side that listens; parameters as for [`client`].
pub fn server(
    own: Arc<CertifiedKey>,
    purpose: &[u8],
    pinned: Option<PublicKey>,
) -> Result<ServerConfig, Error> {
    let (provider, verifier) = parts(pinned);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own)));
    config.alpn_protocols = vec![purpose.into()];
    // Outboard resumes sessions with its own tokens, after a new handshake.
    config.send_tls13_tickets = 0;
    Ok(config)
}
