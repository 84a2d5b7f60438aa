//! Keys of data connections, derived from the exporter of their control channel (RFC 8446, section 7.5;
//! HKDF-SHA-256, RFC 5869). Each connection has two keys, one for each direction.
//!
//! A connection is introduced by a number, which the application host increments, and a proof that it
//! knows the channel's secret. Each number is valid once: a replayed introduction opens nothing, and no
//! key is used twice.

use buffers::Window;
use contract::{SealKeys, Secret};
use ring::hkdf::{HKDF_SHA256, Prk};
use ring::hmac;
use std::fmt;
use wire::preamble::Introduction;

const KEY_BYTES: usize = 32;
/// Size of the window of older numbers that are tracked: concurrent connections can overtake each other.
const NUMBERS_TOLD: usize = 1024;

/// The role of one side in a sealed data connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The side that connected.
    ApplicationHost,
    /// The side that listens.
    DeviceHost,
}

/// The secret from which the keys of one control channel's data connections are derived.
pub struct LinkKeys {
    root: Prk,
    /// Identifies the channel in an introduction. It is not secret.
    pub name: [u8; 16],
    proof: hmac::Key,
    /// Number of the next connection that this side introduces.
    next: u32,
    /// Numbers already used.
    came: Window,
}

impl fmt::Debug for LinkKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkKeys(..)")
    }
}

impl LinkKeys {
    /// Label of the TLS exporter.
    pub const LABEL: &[u8] = b"EXPORTER-outboard-data";

    /// Derives the keys from the exported bytes of the control channel.
    pub fn new(exported: [u8; 32]) -> LinkKeys {
        let root = Prk::new_less_safe(HKDF_SHA256, &exported);
        let name = expand(&root, &[b"name"]);
        let mut short = [0; 16];
        short.copy_from_slice(&name[..16]);
        let proof = hmac::Key::new(hmac::HMAC_SHA256, &expand(&root, &[b"introduction"]));
        LinkKeys { root, name: short, proof, next: 0, came: Window::new(NUMBERS_TOLD) }
    }

    /// Creates the introduction of another connection for this driver; `is_way`: one more connection of its link.
    pub fn introduce(&mut self, driver: u32, is_way: bool) -> (Introduction, SealKeys) {
        let (channel, number) = (self.name, self.next);
        let mut introduction = Introduction { channel, driver, is_way, number, proof: [0; 32] };
        // No control channel opens 2^32 connections.
        self.next += 1;
        let tag = hmac::sign(&self.proof, &introduction.proven());
        introduction.proof.copy_from_slice(tag.as_ref());
        let keys = self.keys(&introduction, Side::ApplicationHost);
        (introduction, keys)
    }

    /// Returns the keys of an introduced connection, or `None` if the proof is wrong or the number was
    /// used.
    pub fn accept(&mut self, introduction: &Introduction) -> Option<SealKeys> {
        let number = u64::from(introduction.number);
        if !self.is_proven(introduction) || !self.came.is_new(number) {
            return None;
        }
        self.came.insert(number);
        Some(self.keys(introduction, Side::DeviceHost))
    }

    /// Checks that the other end of the channel made this introduction.
    pub fn is_proven(&self, introduction: &Introduction) -> bool {
        introduction.channel == self.name
            && hmac::verify(&self.proof, &introduction.proven(), &introduction.proof).is_ok()
    }

    fn keys(&self, introduction: &Introduction, side: Side) -> SealKeys {
        let (driver, number) = (introduction.driver.to_le_bytes(), introduction.number.to_le_bytes());
        let key = |label: &[u8]| Secret(expand(&self.root, &[label, &driver, &number]));
        let (to_device_host, to_application_host) =
            (key(b"to the device host"), key(b"to the application host"));
        match side {
            Side::ApplicationHost => SealKeys { sending: to_device_host, receiving: to_application_host },
            Side::DeviceHost => SealKeys { sending: to_application_host, receiving: to_device_host },
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
