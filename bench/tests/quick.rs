//! `all --quick`, run as a program: rows, pictures and the page.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The fields of every row, sorted.
const FIELDS: [&str; 12] = [
    "bare",
    "bare_p50",
    "experiment",
    "ours",
    "p50",
    "p99",
    "paper",
    "params",
    "runs",
    "sealed",
    "turns",
    "unit",
];

#[test]
fn every_experiment_writes_rows_pictures_and_a_section() {
    let program = Path::new(env!("CARGO_BIN_EXE_outboard-bench"));
    for beside in ["outboard", "netlab"] {
        if !program.with_file_name(beside).is_file() {
            eprintln!("SKIPPED: `{beside}` is not built: cargo build -p outboard -p outboard-lab");
            return;
        }
    }
    let directory = std::env::temp_dir().join(format!("outboard-bench-{}", std::process::id()));
    let [json, page, svg] = ["rows.json", "chapter6.md", "pictures"].map(|name| directory.join(name));
    fs::create_dir_all(&directory).unwrap();
    let mut command = Command::new(program);
    command.args(["all", "--quick", "--json"]).arg(&json).arg("--page").arg(&page).arg("--svg").arg(&svg);
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");

    let rows: Vec<Value> = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let mut measured = BTreeSet::new();
    for row in &rows {
        let fields: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, FIELDS);
        assert!(
            row["ours"].as_f64().is_some_and(|ours| ours >= 0.0) && row["runs"].as_u64() > Some(0),
            "{row}"
        );
        measured.insert(row["experiment"].as_str().unwrap());
    }
    let mut expected = BTreeSet::from([
        "batching",
        "device",
        "end-to-end",
        "single-machine",
        "stages",
        "throughput",
        "video",
        "video-single",
    ]);
    if errors.contains("SKIPPED screen") && !measured.contains("screen") {
        eprintln!("SKIPPED screen: it needs Xvfb or Xtigervnc");
    } else {
        expected.insert("screen");
    }
    if errors.contains("SKIPPED jitter") {
        eprintln!("SKIPPED jitter: it needs root");
    } else {
        expected.insert("jitter");
    }
    assert_eq!(measured, expected, "{errors}");

    let page = fs::read_to_string(&page).unwrap();
    for picture in fs::read_dir(&svg).unwrap().flatten() {
        let name = picture.file_name().into_string().unwrap();
        assert!(page.contains(&format!("(pictures/{name})")), "{name} is not on the page");
    }
    for section in ["Measured on ", "## 6.1 ", "## 6.4 ", "## 6.8.2 ", "## 6.9.1 ", "Table 6.5", "| sealed |"]
    {
        assert!(page.contains(section), "{section}");
    }
    fs::remove_dir_all(&directory).unwrap();
}
