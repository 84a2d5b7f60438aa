//! The programs that are installed beside this one, and the progress of a run.

use crate::setting::Failure;
use std::path::PathBuf;
use std::process::Command;

/// Returns the path of a program that is built or installed beside this one.
pub(crate) fn beside(name: &str) -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()?.with_file_name(name);
    match program.is_file() {
        true => Ok(program),
        false => Err(format!(
            "there is no {}: run `make install`, or `cargo build --release -p outboard -p outboard-lab` in the source",
            program.display()
        )
        .into()),
    }
}

/// Makes modules run as processes of the program `outboard` beside this one.
pub(crate) fn use_outboard() -> Result<(), Failure> {
    modules::use_program(beside("outboard")?);
    Ok(())
}

/// Runs a program to its end. Its standard error is the error.
pub(crate) fn run(program: &str, words: &[&str]) -> Result<(), Failure> {
    let output = Command::new(program).args(words).output();
    let output = output.map_err(|error| format!("{program}: {error}; install it"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let reason = String::from_utf8_lossy(&output.stderr);
            Err(format!("{program} {}: {}", words.join(" "), reason.trim()).into())
        }
    }
}

/// Prints a line about the run's progress to standard error.
pub(crate) fn progress(line: &str) {
    eprintln!("bench: {line}");
}
