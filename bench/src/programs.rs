//! The programs that are installed beside this one, and the progress of a run.

use crate::setting::Failure;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};

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

/// Returns what `outboard doctor` of the program beside this one checked.
fn checks() -> Result<Vec<Value>, Failure> {
    let output = Command::new(beside("outboard")?).args(["doctor", "--json"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// Returns true if the program `outboard` beside this one encodes pictures.
pub(crate) fn has_video_codec() -> Result<bool, Failure> {
    Ok(checks()?.iter().any(|check| check["name"] == "video codec" && check["state"] == "ok"))
}

/// Returns true if the program `outboard` beside this one has sound.
pub(crate) fn has_sound() -> Result<bool, Failure> {
    let lacks = |check: &Value| check["name"] == "sound" && check.to_string().contains("built without sound");
    Ok(!checks()?.iter().any(lacks))
}

/// A directory that is removed with the value.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes the directory of an experiment.
    pub(crate) fn new(experiment: &str) -> Result<Scratch, Failure> {
        let path = std::env::temp_dir().join(format!("outboard-bench-{experiment}-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Scratch(path))
    }

    /// Returns the path of a file in it; of the directory itself for an empty name.
    pub(crate) fn path(&self, name: &str) -> String {
        match name.is_empty() {
            true => self.0.display().to_string(),
            false => self.0.join(name).display().to_string(),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that ends with this value.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
