//! `null`: both halves pass messages on unchanged. Measures the cost of a pair.

use contract::{ModuleEntry, Pair};

/// The pair.
pub(crate) struct Null;

impl Pair for Null {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "null",
            summary: "passes every message on",
            doc: include_str!("doc.md"),
            options: &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_conforms() {
        testkit::stage::conforms(&Null, &[], &contract::Format::Evdev);
    }
}
