//! `confined`: becomes another program, after everything was taken from this process that it does not need.

use crate::arguments::Confined;
use crate::output::Failure;
use links::confine::{Confinement, confine, find};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// `outboard confined`.
pub(crate) fn confined(words: Confined) -> Result<(), Failure> {
    let Some((name, arguments)) = words.program.split_first() else {
        return Err(Failure::Usage("there is no program to confine".into()));
    };
    let program = find(name).ok_or_else(|| Failure::Failed(format!("{name}: no such program")))?;
    // A file that its user names to it, it may read.
    let named = arguments.iter().map(PathBuf::from).filter(|path| path.is_file());
    let reads = words.reads.into_iter().chain(named).collect();
    let what = Confinement { memory_bytes: words.memory, reads, is_required: !words.possible };
    confine(&program, &what).map_err(|error| Failure::Failed(format!("cannot isolate {name}: {error}")))?;
    let error = Command::new(&program).args(arguments).exec();
    Err(Failure::Failed(format!("cannot start {}: {error}", program.display())))
}
