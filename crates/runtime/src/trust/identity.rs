//! Who a host is: an Ed25519 key (RFC 8032), made on first use, in a file that only its user may read.

use crate::error::RuntimeError;
use crate::trust::files;
use contract::Secret;
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

/// The file's name in the directory of trust.
const FILE: &str = "identity.key";
/// Most bytes of it: a PKCS #8 document of an Ed25519 key has 83.
const FILE_BYTES_MAX: u64 = 512;

/// A host's public key: what it is known by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PeerKey(pub(crate) tls::PublicKey);

impl PeerKey {
    /// The key in a SubjectPublicKeyInfo, if it is one of Ed25519.
    pub(super) fn from_spki(spki: &[u8]) -> Option<PeerKey> {
        tls::key_of(spki).map(PeerKey)
    }

    /// Its beginning, for people: enough to tell the keys of a few hosts apart, not to trust one by.
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

/// This host's key pair. Its private half leaves it for TLS alone and is never shown.
#[derive(Clone)]
pub(crate) struct Identity {
    certified: Arc<CertifiedKey>,
    /// What other secrets of this host are derived from.
    secrets: hmac::Key,
    /// What others know this host by.
    pub(crate) key: PeerKey,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.key)
    }
}

impl Identity {
    /// The identity in this directory, made if there is none yet.
    pub(super) fn load_or_make(directory: &Path) -> Result<Identity, RuntimeError> {
        let path = directory.join(FILE);
        let document = match files::read_private(&path, FILE_BYTES_MAX)? {
            Some(document) => document,
            None => {
                let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| {
                    RuntimeError::os("making an identity", std::io::Error::other("no random bytes for a key"))
                })?;
                files::make_private(&path, made.as_ref())?;
                // Another process may have been first: what stands there counts.
                files::read_private(&path, FILE_BYTES_MAX)?.ok_or_else(|| {
                    RuntimeError::Usage(format!("{}: it was taken away as it was made", path.display()))
                })?
            }
        };
        Identity::read(document).ok_or_else(|| {
            RuntimeError::Usage(format!(
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

    /// A secret that this host comes back to, for a purpose of this name.
    pub(super) fn secret(&self, purpose: &str) -> Secret {
        let mut secret = Secret([0; 32]);
        secret.0.copy_from_slice(hmac::sign(&self.secrets, purpose.as_bytes()).as_ref());
        secret
    }

    /// For TLS: the raw public key (RFC 7250), and what signs for it.
    pub(super) fn certified(&self) -> Arc<CertifiedKey> {
        self.certified.clone()
    }
}
