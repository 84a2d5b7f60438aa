//! Key lines: one host as a line of text, for scripts and for the files of a fleet.
//!
//! ```text
//! ed25519 KEY NAME [address=HOST] [may-open=DEVICE,...]
//! ```

use crate::PeerKey;
use std::fmt::{self, Write};
use std::str::FromStr;

/// The kind of the keys, the first word of each line.
const KIND: &str = "ed25519";
const ADDRESS: &str = "address=";
const MAY_OPEN: &str = "may-open=";
/// Limit of a line, in bytes: more than the names of all devices that a host offers.
const LINE_BYTES_MAX: usize = 16 << 10;
/// Start of an unknown word that an error shows.
const SHOWN_CHARS_MAX: usize = 40;

/// A host as its owner describes it to other hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyLine {
    /// Its public key.
    pub key: PeerKey,
    /// Its name on the hosts that read the line.
    pub name: String,
    /// Its address, for a name that does not resolve.
    pub address: Option<String>,
    /// The only devices that it may open on the host that reads the line; `None` if the line has no permit.
    pub may_open: Option<Vec<String>>,
}

impl KeyLine {
    /// Parses the lines of a file. Blank lines and lines that start with `#` are comments. An error begins with the
    /// number of its line.
    pub fn parse_all(text: &str) -> Result<Vec<KeyLine>, String> {
        let is_comment = |line: &str| line.is_empty() || line.starts_with('#');
        let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !is_comment(line));
        lines.map(|(number, line)| line.parse().map_err(|error| format!("line {number}: {error}"))).collect()
    }
}

impl fmt::Display for KeyLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{KIND} {} {}", self.key, self.name)?;
        if let Some(address) = &self.address {
            write!(f, " {ADDRESS}{address}")?;
        }
        if let Some(devices) = &self.may_open {
            let devices: Vec<_> = devices.iter().map(|device| escaped(device)).collect();
            write!(f, " {MAY_OPEN}{}", devices.join(","))?;
        }
        Ok(())
    }
}

impl FromStr for KeyLine {
    type Err = String;

    fn from_str(line: &str) -> Result<KeyLine, String> {
        if line.len() > LINE_BYTES_MAX {
            return Err(format!("a key line has at most {LINE_BYTES_MAX} bytes"));
        }
        let mut words = line.split_whitespace();
        let (Some(KIND), Some(key), Some(name)) = (words.next(), words.next(), words.next()) else {
            let shown: String = line.chars().take(SHOWN_CHARS_MAX).collect();
            return Err(format!(
                "`{shown}` is no key line, which is `{KIND} KEY NAME`: `outboard peers self` on the other host prints it"
            ));
        };
        let mut parsed = KeyLine { key: key.parse()?, name: name.into(), address: None, may_open: None };
        for word in words {
            if let Some(address) = word.strip_prefix(ADDRESS).filter(|address| !address.is_empty()) {
                parsed.address = Some(address.into());
            } else if let Some(devices) = word.strip_prefix(MAY_OPEN) {
                let devices = devices.split(',').filter(|device| !device.is_empty());
                parsed.may_open = Some(devices.map(unescaped).collect::<Result<_, _>>()?);
            } else {
                let shown: String = word.chars().take(SHOWN_CHARS_MAX).collect();
                return Err(format!(
                    "`{shown}` is unknown: after the name, a key line has only {ADDRESS}HOST and {MAY_OPEN}DEVICE,..."
                ));
            }
        }
        Ok(parsed)
    }
}

/// Replaces the characters that divide a line by `%XX`, as in a URL.
fn escaped(device: &str) -> String {
    let mut text = String::new();
    for letter in device.chars() {
        if letter == '%' || letter == ',' || letter.is_whitespace() || letter.is_control() {
            let mut bytes = [0; 4];
            for byte in letter.encode_utf8(&mut bytes).bytes() {
                let _ = write!(text, "%{byte:02x}");
            }
        } else {
            text.push(letter);
        }
    }
    text
}

fn unescaped(text: &str) -> Result<String, String> {
    let wrong = || format!("`{text}`: after `%` come two hexadecimal digits, as in `%20` for a blank");
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let digits = digits.ok_or_else(wrong)?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_wrong_line_is_explained() {
        let key = PeerKey([7; 32]);
        for (line, says) in [
            ("", "`` is no key line"),
            ("studio", "`outboard peers self`"),
            (&format!("{key} studio"), "is no key line"),
            (&format!("ed25519 {key}"), "is no key line"),
            ("ed25519 07 studio", "64 hexadecimal digits"),
            (&format!("ed25519 {key} studio allow=cam"), "`allow=cam` is unknown"),
            (&format!("ed25519 {key} studio address="), "`address=` is unknown"),
            (&format!("ed25519 {key} studio may-open=a%2"), "two hexadecimal digits"),
            (&"x".repeat(LINE_BYTES_MAX + 1), "at most"),
        ] {
            let error = line.parse::<KeyLine>().unwrap_err();
            assert!(error.contains(says) && error.len() < 300, "{line}: {error}");
        }
        let text = format!("# the fleet\n\n  ed25519 {key} a\ned25519 {key} b x");
        assert!(KeyLine::parse_all(&text).unwrap_err().starts_with("line 4: `x`"));
    }

    proptest! {
        #[test]
        fn a_printed_line_reads_as_it_was(
            key: [u8; 32],
            name in "[a-zäß0-9._-]{1,20}",
            address in proptest::option::of("[a-z0-9.:%-]{1,20}"),
            may_open in proptest::option::of(proptest::collection::vec("\\PC{1,20}|[ ,%\u{a0}]{1,3}", 0..4)),
        ) {
            let line = KeyLine { key: PeerKey(key), name, address, may_open };
            prop_assert_eq!(KeyLine::parse_all(&format!("{line}\n")).unwrap(), [line]);
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = text.parse::<KeyLine>();
            let _ = format!("ed25519 {} x may-open={text}", PeerKey([0; 32])).parse::<KeyLine>();
        }
    }
}
