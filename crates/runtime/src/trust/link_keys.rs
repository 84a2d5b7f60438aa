//! Keys of data connections, from the exporter of the control channel that they belong to (RFC 8446, section 7.5;
//! HKDF-SHA-256, RFC 5869): each connection has two of its own, one a direction.
//!
//! A connection is introduced by a number that the attacher counts up and a proof that it knows the channel's
//! secret. A number serves once: an introduction that is said again opens nothing, and no key seals twice.

use buffers::Window;
use contract::{SealKeys, Secret};
use ring::hkdf::{HKDF_SHA256, Prk};
use ring::hmac;
use std::fmt;
use wire::preamble::Introduction;

const KEY_BYTES: usize = 32;
/// Numbers behind the newest that are told apart: connections made at once may overtake each other.
const NUMBERS_TOLD: usize = 1024;

/// One side's part in a sealed data connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The side that connected.
    Attacher,
    /// The side that listens.
    Sharer,
}

/// What the data connections of one control channel are sealed by.
pub(crate) struct LinkKeys {
    root: Prk,
    /// Names the channel to who hears an introduction. It is no secret.
    pub(crate) name: [u8; 16],
    proof: hmac::Key,
    /// Number of the next connection that this side introduces.
    next: u32,
    /// Numbers that came.
    came: Window,
}

impl fmt::Debug for LinkKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkKeys(..)")
    }
}

impl LinkKeys {
    /// What the exporter is asked for.
    pub(crate) const LABEL: &[u8] = b"EXPORTER-outboard-data";

    pub(crate) fn new(exported: [u8; 32]) -> LinkKeys {
        let root = Prk::new_less_safe(HKDF_SHA256, &exported);
        let name = expand(&root, &[b"name"]);
        let mut short = [0; 16];
        short.copy_from_slice(&name[..16]);
        let proof = hmac::Key::new(hmac::HMAC_SHA256, &expand(&root, &[b"introduction"]));
        LinkKeys { root, name: short, proof, next: 0, came: Window::new(NUMBERS_TOLD) }
    }

    /// Introduces one more connection for this driver.
    pub(crate) fn introduce(&mut self, driver: u32) -> (Introduction, SealKeys) {
        let mut introduction = Introduction { channel: self.name, driver, number: self.next, proof: [0; 32] };
        // 2^32 connections of one control channel are not to be had.
        self.next += 1;
        let tag = hmac::sign(&self.proof, &introduction.proven());
        introduction.proof.copy_from_slice(tag.as_ref());
        let keys = self.keys(&introduction, Side::Attacher);
        (introduction, keys)
    }

    /// The keys of a connection that was introduced so, unless that is false or was said before.
    pub(crate) fn accept(&mut self, introduction: &Introduction) -> Option<SealKeys> {
        let number = u64::from(introduction.number);
        if !self.is_proven(introduction) || !self.came.is_new(number) {
            return None;
        }
        self.came.insert(number);
        Some(self.keys(introduction, Side::Sharer))
    }

    /// Whether the other end of the channel said this.
    pub(crate) fn is_proven(&self, introduction: &Introduction) -> bool {
        introduction.channel == self.name
            && hmac::verify(&self.proof, &introduction.proven(), &introduction.proof).is_ok()
    }

    fn keys(&self, introduction: &Introduction, side: Side) -> SealKeys {
        let (driver, number) = (introduction.driver.to_le_bytes(), introduction.number.to_le_bytes());
        let key = |label: &[u8]| Secret(expand(&self.root, &[label, &driver, &number]));
        let (to_sharer, to_attacher) = (key(b"to the sharer"), key(b"to the attacher"));
        match side {
            Side::Attacher => SealKeys { sending: to_sharer, receiving: to_attacher },
            Side::Sharer => SealKeys { sending: to_attacher, receiving: to_sharer },
        }
    }
}

fn expand(root: &Prk, info: &[&[u8]]) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    root.expand(info, HKDF_SHA256)
        .and_then(|okm| okm.fill(&mut key))
        .expect("a digest's length of key can always be expanded");
    key
}
