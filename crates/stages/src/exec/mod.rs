//! `exec`: each half is a program of the user, in any language ("Networked Device Driver
//! Architecture" (2012), chapter 5). The pair only declares the programs; the runtime starts and
//! supervises them. Their protocol is in `docs/reference/modules.md`.

#[cfg(test)]
mod tests;

use contract::{Format, Half, ModuleEntry, OptionKind, OptionSpec, Options, Pair, Promises, agreed, local};
use std::time::Duration;

/// The pair.
pub(crate) struct Exec;

const WORDS: OptionKind = OptionKind::Text { max: 4096 };

static OPTIONS: [OptionSpec; 6] = [
    local(
        "source",
        WORDS,
        "",
        "program of the source half, with its arguments; empty: messages pass unchanged",
    ),
    local("sink", WORDS, "", "program of the sink half, with its arguments; empty: messages pass unchanged"),
    agreed(
        "stateful",
        OptionKind::Flag,
        "false",
        "the sink's program needs all messages of the source's; both restart together",
    ),
    agreed(
        "makes",
        OptionKind::Choice(&["bytes", "same"]),
        "bytes",
        "format of the source's output: bytes, or same as its input",
    ),
    local(
        "patience",
        OptionKind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(3600) },
        "5s",
        "a program that owes output and writes none for this long is restarted",
    ),
    local(
        "reads",
        WORDS,
        "",
        "with isolate=true: files and directories that the program may read, separated by `:`",
    ),
];

impl Pair for Exec {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "exec",
            summary: "runs your own program as each half, in any language",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
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

    fn check_half(&self, half: Half, options: &Options) -> Result<(), String> {
        match options.flag("stateful") && self.program(options, half).is_none() {
            true => Err(format!(
                "with stateful=true this host must also name the program of its half: {half}=PROGRAM"
            )),
            false => Ok(()),
        }
    }
}
