//! VNC authentication (RFC 6143, 7.2.2): a challenge, encrypted with DES under the password. It keeps curious
//! neighbours out, no more: only eight bytes count and nothing behind it is encrypted.

use des::Des;
use des::cipher::{BlockCipherEncrypt, KeyInit};
use std::fmt;

/// Bytes of a challenge and of its answer.
pub(super) const CHALLENGE_BYTES: usize = 16;

/// Bytes of a password that count.
const PASSWORD_BYTES: usize = 8;

/// A password; never shown.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Password([u8; PASSWORD_BYTES]);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

impl Password {
    /// The first line of a file; `None` if it is empty.
    pub(super) fn parse(file: &[u8]) -> Option<Password> {
        let line = file.split(|byte| matches!(byte, b'\n' | b'\r')).next().filter(|line| !line.is_empty())?;
        let mut password = [0; PASSWORD_BYTES];
        password.iter_mut().zip(line).for_each(|(into, byte)| *into = *byte);
        Some(Password(password))
    }

    /// The right answer to a challenge.
    pub(super) fn answer(&self, challenge: &[u8; CHALLENGE_BYTES]) -> [u8; CHALLENGE_BYTES] {
        // The first implementation took the bits of a byte in the other order, and so do all since.
        let cipher = Des::new(&self.0.map(u8::reverse_bits).into());
        let mut answer = *challenge;
        for block in answer.as_chunks_mut::<8>().0 {
            cipher.encrypt_block(block.into());
        }
        answer
    }

    /// Whether this is the right answer, found out in the same time wherever it is wrong.
    pub(super) fn is_answer(&self, challenge: &[u8; CHALLENGE_BYTES], said: &[u8; CHALLENGE_BYTES]) -> bool {
        self.answer(challenge).iter().zip(said).fold(0, |wrong, (a, b)| wrong | (a ^ b)) == 0
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

    /// DES's own vector (key 133457799BBCDFF1, NBS 500-20 as taught everywhere), the key's bits turned round.
    #[test]
    fn the_answer_is_des_with_turned_bits() {
        let key = [0x13, 0x34, 0x57, 0x79, 0x9b, 0xbc, 0xdf, 0xf1].map(u8::reverse_bits);
        let block = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];
        let expected = [0x85, 0xe8, 0x13, 0x54, 0x0f, 0x0a, 0xb4, 0x05];
        let challenge = std::array::from_fn(|at| block[at % 8]);
        let answer = Password(key).answer(&challenge);
        assert_eq!(answer, std::array::from_fn::<u8, 16, _>(|at| expected[at % 8]));
        assert!(Password(key).is_answer(&challenge, &answer));
        assert!(!Password(key).is_answer(&challenge, &challenge));
    }
}
