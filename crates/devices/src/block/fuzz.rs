//! Entry point for the fuzzer: the description of a disk from the network.

use super::properties::Properties;

/// Parses a description; its bytes are unique.
pub fn description(bytes: &[u8]) {
    if let Ok(properties) = Properties::parse(bytes) {
        assert_eq!(properties.to_bytes(), bytes);
        assert!(!properties.summary("block").is_empty());
    }
}
