//! `confined`: gives up all rights that a program does not need, then executes the program.

use crate::arguments::Confined;
use crate::output::Failure;
use sandbox::confine::{Confinement, confine, find};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// `outboard confined`.
pub(crate) fn confined(words: Confined) -> Result<(), Failure> {
    let Some((name, arguments)) = words.program.split_first() else {
        return Err(Failure::Usage("there is no program to confine".into()));
    };
    let program = find(name).ok_or_else(|| Failure::Failed(format!("{name}: no such program")))?;
    // The program may read the files among its arguments, because the user named them.
    let named = arguments.iter().map(PathBuf::from).filter(|path| path.is_file());
    let reads = words.reads.into_iter().chain(named).collect();
    let confinement = Confinement { memory_bytes: words.memory, reads, is_required: !words.possible };
    confine(&program, &confinement)
        .map_err(|error| Failure::Failed(format!("cannot isolate {name}: {error}")))?;
    // A Python program would try to store its compiled code, and to look up its home, and the watcher would name the refused calls.
    let environment = [("PYTHONDONTWRITEBYTECODE", "1"), ("HOME", "/")];
    let error = Command::new(&program).args(arguments).envs(environment).exec();
    Err(Failure::Failed(format!("cannot start {}: {error}", program.display())))
}
