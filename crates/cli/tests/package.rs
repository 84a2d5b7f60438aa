//! The files of the packages, installed below a directory as `make install-program` does it.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Scratch, outboard};

/// Installs the program's files. `None`: a tool is missing, and the test is skipped.
fn installed(scratch: &Scratch) -> Option<PathBuf> {
    if !testkit::skip::has_program("make", "make") {
        return None;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let destination = scratch.path("root");
    let variables = [
        format!("PROGRAM={}", env!("CARGO_BIN_EXE_outboard")),
        format!("DESTDIR={destination}"),
        "PREFIX=/usr".into(),
    ];
    let made = Command::new("make")
        .args(["--silent", "--no-print-directory", "install-program"])
        .args(variables)
        .current_dir(root)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(PathBuf::from(destination).join("usr/share"))
}

#[test]
fn every_command_has_an_installed_manual_page() {
    let scratch = Scratch::new();
    let Some(share) = installed(&scratch) else { return };
    let page = |name: &str| {
        let path = share.join(format!("man/man1/{name}.1"));
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    assert_eq!(page("outboard"), outboard(&["man"]).done().text());
    // Each page names those of its subcommands.
    let mut names = vec![String::from("outboard")];
    let mut next = 0;
    while let Some(name) = names.get(next) {
        let text = page(name).replace("\\-", "-");
        let references = text.split_whitespace().filter_map(|word| word.strip_suffix("(1)"));
        names.extend(references.map(String::from).collect::<Vec<_>>());
        next += 1;
    }
    for name in ["outboard-share", "outboard-pair", "outboard-peers-add", "outboard-run"] {
        assert!(names.iter().any(|known| known == name), "{name} is not in {names:?}");
    }
    assert!(!names.iter().any(|name| name == "outboard-worker"), "{names:?}");
}
