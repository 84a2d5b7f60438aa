//! `outboard bench`: executes `outboard-bench`, the benchmark program, installed beside `outboard`.

use crate::output::Failure;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Executes `outboard-bench` with the same arguments.
pub(crate) fn bench(words: &[OsString]) -> Result<(), Failure> {
    let own = std::env::current_exe().map_err(|error| Failure::Failed(format!("/proc/self/exe: {error}")))?;
    let program = own.with_file_name("outboard-bench");
    if !program.is_file() {
        return Err(Failure::Failed(format!(
            "{} is not installed. The packages do not have it: run `make install` in the source",
            program.display()
        )));
    }
    let error = Command::new(&program).args(words).exec();
    Err(Failure::Failed(format!("{}: {error}", program.display())))
}
