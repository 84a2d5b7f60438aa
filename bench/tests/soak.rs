//! A short `soak-shm`.

use std::path::Path;
use std::process::Command;

#[test]
fn killed_stages_lose_no_slot_and_change_no_byte() {
    let program = Path::new(env!("CARGO_BIN_EXE_outboard-bench"));
    if !program.with_file_name("outboard").is_file() {
        eprintln!("SKIPPED: `outboard` is not built: cargo build -p outboard");
        return;
    }
    let output = Command::new(program)
        .args(["soak-shm", "--messages", "20000", "--kills", "12", "--stages", "3", "--seed", "7"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = String::from_utf8_lossy(&output.stdout);
    assert!(output.contains("20000 messages") && output.contains("not released: 0"), "{output}");
}
