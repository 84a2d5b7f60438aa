//! `outboard bench`: hands over to the program that measures, which stands beside this one.

use crate::arguments::Bench;
use crate::output::Failure;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// `outboard bench`: becomes that program.
pub(crate) fn bench(words: Bench) -> Result<(), Failure> {
    let own = std::env::current_exe().map_err(|error| Failure::Failed(format!("/proc/self/exe: {error}")))?;
    let program = own.with_file_name(experiments::PROGRAM);
    if !program.is_file() {
        return Err(Failure::Failed(format!(
            "there is no {}: `make install` puts it there, or `cargo build --release -p outboard-bench`",
            program.display()
        )));
    }
    let error = Command::new(&program).arg(words.experiment).args(words.options).exec();
    Err(Failure::Failed(format!("{}: {error}", program.display())))
}
