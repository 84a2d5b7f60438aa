//! `null`: both halves pass messages on unchanged. Measures the cost of a pair.

use contract::{Format, OptionSpec, Options, Pair, PassThrough, Promises, Site, Stage, StageResult};

/// The pair.
pub(crate) struct Null;

impl Pair for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn summary(&self) -> &'static str {
        "passes every message on"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &[]
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
