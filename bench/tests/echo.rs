//! `latency`, run as a program: a message and its echo, one flow in each direction.

use std::process::Command;

#[test]
fn an_echo_arrives_over_the_second_flow() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outboard-bench"));
    let output = command.args(["latency", "--rounds", "1", "--size", "24"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.lines().any(|line| line.trim_start().starts_with("24 ")), "{table}");
}
