//! The identity of a host: an Ed25519 key (RFC 8032), created on first use, in a file that only its user
//! can read.

use crate::files;
use contract::Secret;
use contract::ServiceError;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use transports::tls;

/// Name of the key file in the trust directory.
const FILE: &str = "identity.key";
/// Size limit of the key file: the PKCS #8 document of an Ed25519 key has 83 bytes.
const FILE_BYTES_MAX: u64 = 512;

/// A host's public key, which identifies it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PeerKey(pub tls::PublicKey);

impl PeerKey {
    /// The key in a SubjectPublicKeyInfo, if it is one of Ed25519.
    pub(super) fn from_spki(spki: &[u8]) -> Option<PeerKey> {
        tls::key_from_spki(spki).map(PeerKey)
    }

    /// The first digits, for display: enough to distinguish a few hosts, not enough to trust one.
    pub fn short(&self) -> String {
        let mut text = self.to_string();
        text.truncate(16);
        text
    }
}

impl fmt::Display for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerKey({self})")
    }
}

impl From<PeerKey> for String {
    fn from(key: PeerKey) -> String {
        key.to_string()
    }
}

impl FromStr for PeerKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let key = crate::keys::parse_hex(text.as_bytes());
        key.map(PeerKey).ok_or_else(|| format!("`{text}` is no key: it has 64 hexadecimal digits"))
    }
}

impl TryFrom<String> for PeerKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// This host's key pair. The private half is used only by TLS and is never shown.
#[derive(Clone)]
pub(crate) struct Identity {
    certified: Arc<CertifiedKey>,
    /// The seed from which other secrets of this host are derived.
    secrets: hmac::Key,
    /// The public key that identifies this host.
    pub key: PeerKey,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.key)
    }
}

impl Identity {
    /// Loads the identity from this directory, or creates it.
    pub(super) fn load_or_make(directory: &Path) -> Result<Identity, ServiceError> {
        let path = directory.join(FILE);
        let document = match files::read_private(&path, FILE_BYTES_MAX)? {
            Some(document) => document,
            None => {
                let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| {
                    ServiceError::os("making an identity", std::io::Error::other("no random bytes for a key"))
                })?;
                files::make_private(&path, made.as_ref())?;
                // Another process may have created the file first: its content counts.
                files::read_private(&path, FILE_BYTES_MAX)?.ok_or_else(|| {
                    ServiceError::Usage(format!("{}: it was taken away as it was made", path.display()))
                })?
            }
        };
        Identity::read(document).ok_or_else(|| {
            ServiceError::Usage(format!(
                "{} holds no key of Ed25519 (PKCS #8). Without it other hosts do not know this one: bring it back \
                 from a copy, or remove it and pair anew",
                path.display()
            ))
        })
    }

    fn read(document: Vec<u8>) -> Option<Identity> {
        let secrets = hmac::Key::new(hmac::HMAC_SHA256, &document);
        let (key, certified) = tls::key_pair(document)?;
        Some(Identity { certified, secrets, key: PeerKey(key) })
    }

    /// Derives a stable secret of this host for the purpose `name`.
    pub(super) fn secret(&self, purpose: &str) -> Secret {
        let mut secret = Secret([0; 32]);
        secret.0.copy_from_slice(hmac::sign(&self.secrets, purpose.as_bytes()).as_ref());
        secret
    }

    /// The raw public key for TLS (RFC 7250), and its signer.
    pub(super) fn certified(&self) -> Arc<CertifiedKey> {
        self.certified.clone()
    }
}
