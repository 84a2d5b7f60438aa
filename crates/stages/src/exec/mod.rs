//! `exec`: each half is a program of the user's own, in any language (paper N, chapter 5). What the programs
//! read and write is in `docs/modules.md`; this table row only names them, and the runtime runs them.

#[cfg(test)]
mod tests;

use crate::agreed;
use contract::{
    Format, Half, OptionKind, OptionSpec, Options, Pair, PassThrough, Promises, Scope, Site, Stage,
    StageError,
};
use std::time::Duration;

/// The pair.
pub(crate) struct Exec;

/// An option that only this host itself sets.
const fn local(name: &'static str, kind: OptionKind, default: &'static str, doc: &'static str) -> OptionSpec {
    OptionSpec { name, kind, default, scope: Scope::Local, doc }
}

const WORDS: OptionKind = OptionKind::Text { max: 4096 };

static OPTIONS: [OptionSpec; 6] = [
    local("source", WORDS, "", "the program that transforms, with its arguments; none: messages pass"),
    local("sink", WORDS, "", "the program that undoes it, with its arguments; none: messages pass"),
    agreed("stateful", OptionKind::Flag, "false", "the sink's program needs all that the source's made"),
    agreed("makes", OptionKind::Choice(&["bytes", "same"]), "bytes", "the format of what the source makes"),
    local(
        "patience",
        OptionKind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(3600) },
        "5s",
        "a program that owes something and gives nothing for so long is started anew",
    ),
    local("reads", WORDS, "", "files and directories that it may read with `isolate`, divided by `:`"),
];

fn half_of(options: &Options, half: Half) -> Result<Box<dyn Stage>, StageError> {
    match options.flag("stateful") {
        false => Ok(Box::new(PassThrough)),
        true => Err(StageError::Own(format!(
            "with stateful=true this host must name the program of its half, too: {half}=PROGRAM"
        ))),
    }
}

impl Pair for Exec {
    fn name(&self) -> &'static str {
        "exec"
    }

    fn summary(&self) -> &'static str {
        "halves that are programs of your own, in any language"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn promises(&self, options: &Options) -> Promises {
        Promises {
            may_drop: true,
            may_delay: true,
            may_change: true,
            needs_control: true,
            needs_order: options.flag("stateful"),
            ..Promises::default()
        }
    }

    fn program<'o>(&self, options: &'o Options, half: Half) -> Option<&'o str> {
        let words = match half {
            Half::Source => options.text("source"),
            Half::Sink => options.text("sink"),
        };
        Some(words).filter(|words| !words.trim().is_empty())
    }

    fn accept(&self, format: &Format, options: &Options) -> Result<Format, String> {
        match options.text("makes") {
            "same" => Ok(format.clone()),
            _ => Ok(Format::Bytes),
        }
    }

    fn source(&self, options: &Options, _format: &Format, _: &Site) -> Result<Box<dyn Stage>, StageError> {
        half_of(options, Half::Source)
    }

    fn sink(&self, options: &Options, _format: &Format, _: &Site) -> Result<Box<dyn Stage>, StageError> {
        half_of(options, Half::Sink)
    }
}
