//! Keys of a driver's flows: agreed when the driver is opened (X25519, RFC 7748; HKDF-SHA-256, RFC
//! 5869), and bound to a key file if both hosts have one.
//!
//! A passive listener learns nothing. Between hosts that are not paired, a man in the middle can agree a
//! key with each host. A key file prevents this for the pairs that use the key.

use contract::ServiceError;
use contract::{FlowDirection, Secret, Shared, Site};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::rand::SystemRandom;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use wire::control::PublicKey;

/// Bytes of a key file.
const KEY_BYTES: usize = 32;

/// This host's half of a key agreement, for one driver.
pub struct KeyShare {
    private: EphemeralPrivateKey,
    /// The public value that is sent to the other host.
    pub public: PublicKey,
}

impl KeyShare {
    /// Creates a half that is used once.
    pub fn new() -> io::Result<KeyShare> {
        let failed = |_| io::Error::other("no random bytes for a key");
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(failed)?;
        let public = private.compute_public_key().map_err(failed)?;
        let bytes = <[u8; 32]>::try_from(public.as_ref()).expect("a public key of X25519 has 32 bytes");
        Ok(KeyShare { private, public: PublicKey(bytes) })
    }

    /// Derives the shared keys; `file` is the content of a key file, if there is one.
    pub fn agree(self, theirs: &PublicKey, file: Option<&Secret>) -> Result<FlowKeys, String> {
        let salt = Salt::new(HKDF_SHA256, file.map_or(&[][..], |file| &file.0));
        agree_ephemeral(self.private, &UnparsedPublicKey::new(&X25519, theirs.0), |shared| {
            salt.extract(shared)
        })
        .map(|root| FlowKeys { root })
        .map_err(|_| "the other host's share of the key is none".to_string())
    }
}

/// The keys of one driver.
pub struct FlowKeys {
    root: Prk,
}

impl FlowKeys {
    /// Creates keys that no other host has, for a path that stays on this host. Uses `file` if given.
    pub fn local(file: Option<&Secret>) -> Result<FlowKeys, ServiceError> {
        let drawn;
        let secret = match file {
            Some(file) => &file.0,
            None => {
                drawn = sys::random::bytes().map_err(|error| ServiceError::os("drawing a key", error))?;
                &drawn
            }
        };
        Ok(FlowKeys { root: Salt::new(HKDF_SHA256, &[]).extract(secret) })
    }

    /// The key of the flow in this direction.
    fn of(&self, direction: FlowDirection) -> Secret {
        let label: &[u8] = match direction {
            FlowDirection::DeviceToApplication => b"outboard flow from the device",
            FlowDirection::ApplicationToDevice => b"outboard flow to the device",
        };
        let mut key = [0; KEY_BYTES];
        self.root
            .expand(&[label], HKDF_SHA256)
            .and_then(|okm| okm.fill(&mut key))
            .expect("a digest's length of key can always be expanded");
        Secret(key)
    }

    /// The keys for the halves of a flow in this direction on one host; both flows of a driver share
    /// `shared`.
    pub fn site(&self, direction: FlowDirection, shared: &Shared) -> Site {
        Site { key: Some(self.of(direction)), shared: shared.clone(), ..Site::default() }
    }
}

/// Reads a key file: 32 bytes, or 64 hexadecimal digits. Only the owner may have access to it.
pub fn read_key_file(path: &Path) -> Result<Secret, ServiceError> {
    let name = path.display();
    let failed = |error| ServiceError::os(format!("reading the key file {name}"), error);
    let mode = std::fs::metadata(path).map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        let advice = format!("key file {name}: others may read it; say `chmod 600 {name}`");
        return Err(ServiceError::Usage(advice));
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    if let Ok(key) = <[u8; KEY_BYTES]>::try_from(&bytes[..]) {
        return Ok(Secret(key));
    }
    parse_hex(bytes.trim_ascii()).map(Secret).ok_or_else(|| {
        ServiceError::Usage(format!(
            "key file {name}: it has {} bytes, and a key is 32 bytes or 64 hexadecimal digits; \
             `head -c 32 /dev/urandom >{name}` makes one",
            bytes.len()
        ))
    })
}

/// Parses 64 hexadecimal digits as 32 bytes.
pub fn parse_hex(digits: &[u8]) -> Option<[u8; KEY_BYTES]> {
    if digits.len() != 2 * KEY_BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let text = std::str::from_utf8(digits).ok()?;
    let mut key = [0; KEY_BYTES];
    for (byte, at) in key.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_hosts_come_to_the_same_keys_and_only_with_the_same_file() {
        let files = [None, Some(Secret([1; 32])), Some(Secret([2; 32]))];
        for ours in &files {
            for theirs in &files {
                let (a, b) = (KeyShare::new().unwrap(), KeyShare::new().unwrap());
                let (public_a, public_b) = (a.public, b.public);
                let a = a.agree(&public_b, ours.as_ref()).unwrap();
                let b = b.agree(&public_a, theirs.as_ref()).unwrap();
                let [out, back] = [FlowDirection::DeviceToApplication, FlowDirection::ApplicationToDevice];
                assert_eq!(a.of(out) == b.of(out), ours == theirs);
                assert_ne!(a.of(out), a.of(back));
            }
        }
    }

    #[test]
    fn a_share_that_is_none_is_refused() {
        assert!(KeyShare::new().unwrap().agree(&PublicKey([0; 32]), None).is_err());
    }

    #[test]
    fn a_key_file_is_bytes_or_digits_that_only_its_owner_reads() {
        let directory = std::env::temp_dir().join(format!("outboard-keys-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let write = |name: &str, bytes: &[u8], mode| {
            let path = directory.join(name);
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read_key_file(&path).map_err(|error| error.to_string())
        };
        assert_eq!(write("raw", &[7; 32], 0o600), Ok(Secret([7; 32])));
        assert_eq!(write("hex", "0f".repeat(32).as_bytes(), 0o400), Ok(Secret([15; 32])));
        assert!(write("open", &[7; 32], 0o644).unwrap_err().contains("chmod 600"));
        assert!(write("short", &[7; 31], 0o600).unwrap_err().contains("31 bytes"));
        assert!(read_key_file(&directory.join("missing")).is_err());
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
