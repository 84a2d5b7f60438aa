//! `null`: both halves pass messages on unchanged. Measures the cost of a pair.

use contract::{Format, ModuleEntry, Options, Pair, PassThrough, Promises, Site, Stage, StageResult};

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

    fn promises(&self, _options: &Options) -> Promises {
        Promises::default()
    }

    fn accept(&self, format: &Format, _options: &Options) -> Result<Format, String> {
        Ok(format.clone())
    }

    fn source(&self, _options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(PassThrough))
    }

    fn sink(&self, _options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(PassThrough))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_conforms() {
        testkit::stage::conforms(&Null, &[], &Format::Evdev);
    }
}
