//! Gives the program the commit that it is built from.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

fn main() {
    let commit = git(&["rev-parse", "--short", "HEAD"]).map_or("unknown".into(), |commit| {
        let is_clean = git(&["status", "--porcelain", "--", ".."]).is_some_and(|changes| changes.is_empty());
        if is_clean { commit } else { format!("{commit} with changes") }
    });
    println!("cargo::rustc-env=OUTBOARD_COMMIT={commit}");
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=../crates");
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
}
