//! VNC authentication (RFC 6143, 7.2.2): the response is the challenge, encrypted with DES under the password.
//!
//! It is weak: only eight bytes of the password count, and the connection itself is not encrypted.

use des::Des;
use des::cipher::{BlockCipherEncrypt, KeyInit};
use std::fmt;

/// Bytes of a challenge and of its response.
pub(super) const CHALLENGE_BYTES: usize = 16;

/// The number of bytes of a password that count.
const PASSWORD_BYTES: usize = 8;

/// A password. Its `Debug` output does not reveal it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Password([u8; PASSWORD_BYTES]);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

impl Password {
    /// Reads the password from the first line of a file. Returns `None` if that line is empty.
    pub(super) fn parse(file: &[u8]) -> Option<Password> {
        let line = file.split(|byte| matches!(byte, b'\n' | b'\r')).next().filter(|line| !line.is_empty())?;
        let mut password = [0; PASSWORD_BYTES];
        password.iter_mut().zip(line).for_each(|(into, byte)| *into = *byte);
        Some(Password(password))
    }

    /// Returns the correct response to a challenge.
    pub(super) fn respond(&self, challenge: &[u8; CHALLENGE_BYTES]) -> [u8; CHALLENGE_BYTES] {
        // The original implementation reversed the bits of each byte of the key, and all others follow it.
        let cipher = Des::new(&self.0.map(u8::reverse_bits).into());
        let mut response = *challenge;
        for block in response.as_chunks_mut::<8>().0 {
            cipher.encrypt_block(block.into());
        }
        response
    }

    /// Returns whether a response is correct. The time does not depend on the position of a difference.
    pub(super) fn verify(&self, challenge: &[u8; CHALLENGE_BYTES], response: &[u8; CHALLENGE_BYTES]) -> bool {
        self.respond(challenge).iter().zip(response).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_eight_bytes_of_the_first_line_count() {
        let password = |text: &str| Password::parse(text.as_bytes());
        assert_eq!(password("secret12"), password("secret1234\nmore"));
        assert_ne!(password("secret12"), password("secret1"));
        assert_eq!(password(""), None);
        assert_eq!(password("\nsecret"), None);
    }

    /// The well-known DES test vector with key 133457799BBCDFF1, with the bits of the key reversed.
    #[test]
    fn the_response_is_des_with_reversed_key_bits() {
        let key = [0x13, 0x34, 0x57, 0x79, 0x9b, 0xbc, 0xdf, 0xf1].map(u8::reverse_bits);
        let block = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];
        let expected = [0x85, 0xe8, 0x13, 0x54, 0x0f, 0x0a, 0xb4, 0x05];
        let challenge = std::array::from_fn(|at| block[at % 8]);
        let response = Password(key).respond(&challenge);
        assert_eq!(response, std::array::from_fn::<u8, 16, _>(|at| expected[at % 8]));
        assert!(Password(key).verify(&challenge, &response));
        assert!(!Password(key).verify(&challenge, &challenge));
    }
}
