//! The key of a source half, and the header of a sealed message.

use contract::{Bytes, Options, Secret};
use ring::aead::{AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::hkdf;

/// Bytes of a salt.
pub(super) const SALT_BYTES: usize = 16;
/// Bytes of the header, in front of the body.
pub(super) const HEADER_BYTES: usize = SALT_BYTES + 16;
/// Bytes of the tag, behind the body.
pub(super) const TAG_BYTES: usize = 16;
/// HKDF info: the purpose of derived keys.
const PURPOSE: &[u8] = b"outboard encrypt 1";
/// The bit of a header's counter that marks the end of the flow.
const END: u64 = 1 << 63;

/// Random salt of a source half: identifies it and makes its key unique.
pub(super) type Salt = [u8; SALT_BYTES];

/// The header of a sealed message: authenticated, not encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) salt: Salt,
    /// Number of messages that this source half sealed before.
    pub(super) counter: u64,
    /// The flow ends here. There is no body.
    pub(super) is_end: bool,
    /// Creation time, on the source host's clock.
    pub(super) created: u64,
}

impl Header {
    pub(super) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let counter = self.counter | if self.is_end { END } else { 0 };
        bytes[..SALT_BYTES].copy_from_slice(&self.salt);
        bytes[SALT_BYTES..][..8].copy_from_slice(&counter.to_le_bytes());
        bytes[SALT_BYTES + 8..].copy_from_slice(&self.created.to_le_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Header {
        let (mut salt, mut word) = ([0; SALT_BYTES], [0; 8]);
        salt.copy_from_slice(&bytes[..SALT_BYTES]);
        word.copy_from_slice(&bytes[SALT_BYTES..][..8]);
        let counter = u64::from_le_bytes(word);
        word.copy_from_slice(&bytes[SALT_BYTES + 8..]);
        Header {
            salt,
            counter: counter & !END,
            is_end: counter & END != 0,
            created: u64::from_le_bytes(word),
        }
    }

    /// Unique under its key: one counter counts messages and ends.
    fn nonce(&self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.counter.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

/// The cipher of the options.
pub(super) fn cipher(options: &Options) -> &'static Algorithm {
    match options.text("cipher") {
        "chacha20-poly1305" => &CHACHA20_POLY1305,
        _ => &AES_256_GCM,
    }
}

/// The key of one source half: HKDF-SHA256 (RFC 5869) of the flow's key and the half's salt.
pub(super) struct Key(LessSafeKey);

impl Key {
    pub(super) fn derive(cipher: &'static Algorithm, secret: &Secret, salt: &Salt) -> Key {
        let parent = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(&secret.0);
        let key = parent.expand(&[PURPOSE], cipher).expect("HKDF-SHA256 can expand to 32 bytes");
        Key(LessSafeKey::new(UnboundKey::from(key)))
    }

    /// Seals `body` in place and returns the tag.
    pub(super) fn seal(&self, header: &Header, body: &mut [u8]) -> Bytes {
        let tag = self
            .0
            .seal_in_place_separate_tag(header.nonce(), Aad::from(header.to_bytes()), body)
            .expect("bodies are far below the ciphers' limits");
        Bytes::copy_from_slice(tag.as_ref())
    }

    /// Opens `body` in place; `false` if the body, header or tag was not sealed with this key.
    pub(super) fn open(&self, header: &Header, tag: [u8; TAG_BYTES], body: &mut [u8]) -> bool {
        let aad = Aad::from(header.to_bytes());
        self.0.open_in_place_separate_tag(header.nonce(), aad, Tag::from(tag), body, 0..).is_ok()
    }
}
