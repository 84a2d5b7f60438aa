//! Tests that cannot run on this machine.
//!
//! For cargo a test either passes or fails. A test that lacks something calls a function of this module and returns. The
//! function prints a line and adds a record to the file named by `OUTBOARD_SKIPPED`. `scripts/test` sets that variable,
//! subtracts the recorded tests from the passed ones, and decides by the record's kind how each of them counts.
//!
//! | function | kind | meaning | the test counts as |
//! |---|---|---|---|
//! | [`has_program`], [`has_file`], [`has_any`] | `package` | a Debian package is missing | skipped; failed with `CI=true` where packages can be installed |
//! | [`until_vm`] | `vm` | the virtual machine has it | run again there, and counted there alone |
//! | [`here`] | `machine` | no package and no virtual machine has it | skipped |

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Checks that `program` is in the path. If not, records that this test needs the Debian package `package`.
pub fn has_program(program: &str, package: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).any(|directory| directory.join(program).is_file());
    if !found {
        record("package", package);
    }
    found
}

/// Checks that `file` exists. If not, records that this test needs the Debian package `package`.
pub fn has_file(file: &str, package: &str) -> bool {
    let found = Path::new(file).exists();
    if !found {
        record("package", package);
    }
    found
}

/// Checks that `file` exists below a directory of the architecture in `directory`. If not, records that this test needs the Debian
/// package `package`.
pub fn has_any(directory: &str, file: &str, package: &str) -> bool {
    let found = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let found = found.into_iter().any(|entry| entry.path().join(file).exists());
    if !found {
        record("package", package);
    }
    found
}

/// Records that this test cannot run on this machine, and that neither a package nor the virtual machine can change that.
pub fn here(reason: &str) {
    record("machine", reason);
}

/// Records that this test needs the virtual machine (`tests/vm/cargo-tests`): a device, root or a kernel module is missing.
pub fn until_vm(reason: &str) {
    record("vm", reason);
}

fn record(kind: &str, reason: &str) {
    let program = std::env::current_exe().unwrap_or_default();
    // The test runner gives each test a thread with its name.
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("?");
    // Written to standard error directly: the test runner captures `eprintln` of tests that pass.
    let _ = writeln!(std::io::stderr(), "SKIPPED {} {test}: {kind}: {reason}", binary_name(&program));
    let Some(path) = std::env::var_os("OUTBOARD_SKIPPED") else { return };
    let mut file =
        OpenOptions::new().append(true).create(true).open(&path).expect("OUTBOARD_SKIPPED is writable");
    // One write: tests of one binary run at the same time.
    file.write_all(format!("{kind}\t{}\t{test}\t{reason}\n", program.display()).as_bytes())
        .expect("a record is written");
}

/// The name that cargo shows: `video` of `target/debug/deps/video-0123456789abcdef`.
fn binary_name(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    name.rsplit_once('-').map_or(name.as_ref(), |(name, _)| name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_is_named_without_its_hash() {
        assert_eq!(binary_name(Path::new("/t/debug/deps/kernel_input-0f1e")), "kernel_input");
        assert_eq!(binary_name(Path::new("/t/kernel_input")), "kernel_input");
    }

    #[test]
    fn a_program_of_every_machine_is_found() {
        assert!(has_program("sh", "dash"));
    }
}
