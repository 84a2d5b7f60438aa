//! The rules of the source: the direction of dependencies, the place of unsafe code, the length of files, and
//! no unfinished work.

mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use tree::{files, root};

/// The crates, lowest first; those on one line never import each other (ARCHITECTURE.md).
const ROOMS: &[&[&str]] = &[
    &["sys"],
    &["wire"],
    &["buffers", "resize", "video"],
    &["contract"],
    &["session"],
    &["pipeline"],
    &["stages", "links", "transports", "devices"],
    &["sandbox", "trust"],
    &["modules"],
    &["flow", "hosts"],
    &["hub"],
    &["worker", "console"],
    &["broker"],
    &["daemon"],
    &["cli"],
];
/// Other crates that only tests use, except for the crates named with them.
const TEST_CRATES: &[(&str, &[&str])] = &[("netsim", &["cli"]), ("testkit", &[])];
/// The directories with Rust code, from the root.
const SOURCE: &[&str] = &["crates", "netsim", "testkit", "lab", "bench", "fuzz"];
const FILE_LINES_MAX: usize = 800;
/// The only crate with unsafe code.
const UNCHECKED_ROOM: &str = "crates/sys/";

/// A broken rule and where.
fn breach(file: impl Display, line: usize, rule: impl Display) -> String {
    format!("{file}:{line}: {rule}")
}

/// Crates whose time and bytes are arguments.
const SANS_IO: &[&str] = &["wire", "buffers", "contract", "session", "pipeline", "resize", "stages"];
/// Crates with access to the system, which they must not use.
const SYSTEM: &[&str] = &["sys", "rustix", "libc"];

fn level(room: &str) -> Option<usize> {
    ROOMS.iter().position(|line| line.contains(&room))
}

/// Returns the breaches in the manifest of `room`.
fn check_manifest(file: &str, room: &str, manifest: &str) -> Vec<String> {
    let Some(own) = level(room) else {
        return vec![breach(file, 1, format_args!("`{room}` has no place in the list of rooms"))];
    };
    let mut breaches = Vec::new();
    let mut section = "";
    for (number, line) in (1..).zip(manifest.lines()) {
        let line = line.trim();
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
            continue;
        }
        // Development dependencies are free.
        let is_used = section.ends_with("dependencies") && !section.ends_with("dev-dependencies");
        if !is_used || line.is_empty() || line.starts_with('#') {
            continue;
        }
        let dependency = line.split(['.', '=', ' ']).next().unwrap_or_default();
        if level(dependency).is_some_and(|theirs| theirs >= own) {
            let rule = format!(
                "`{room}` may not depend on `{dependency}`: dependencies point up the list of rooms only"
            );
            breaches.push(breach(file, number, rule));
        }
        if SANS_IO.contains(&room) && SYSTEM.contains(&dependency) {
            let rule = format!("`{room}` touches no clock, socket, file or thread: no `{dependency}`");
            breaches.push(breach(file, number, rule));
        }
        let for_tests = TEST_CRATES.iter().find(|(name, _)| *name == dependency);
        if for_tests.is_some_and(|(_, rooms)| !rooms.contains(&room)) {
            let rule =
                format!("`{dependency}` is for tests: `{room}` may have it under dev-dependencies only");
            breaches.push(breach(file, number, rule));
        }
    }
    breaches
}

/// A line without the content of strings and without its comment.
fn code(line: &str) -> String {
    let mut code = String::new();
    let mut characters = line.chars().peekable();
    let mut in_string = false;
    while let Some(character) = characters.next() {
        match character {
            '\\' if in_string => {
                characters.next();
            }
            // A quotation mark as a character starts no string.
            '\'' if !in_string && characters.peek() == Some(&'"') => {
                characters.next();
            }
            '"' => in_string = !in_string,
            '/' if !in_string && characters.peek() == Some(&'/') => break,
            _ if !in_string => code.push(character),
            _ => {}
        }
    }
    code
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
}

/// Returns the breaches in one source file; `file` is its path from the root.
fn check_source(file: &str, source: &str) -> Vec<String> {
    let mut breaches = Vec::new();
    let lines = source.lines().count();
    if lines > FILE_LINES_MAX {
        breaches.push(breach(file, lines, format_args!("a file has at most {FILE_LINES_MAX} lines")));
    }
    for (number, line) in (1..).zip(source.lines()) {
        let code = code(line);
        if has_word(&code, "unsafe") && !file.starts_with(UNCHECKED_ROOM) {
            breaches.push(breach(file, number, "unsafe code belongs in crates/sys alone"));
        }
        if code.contains("todo!") || code.contains("unimplemented!") {
            breaches.push(breach(file, number, "nothing is left to be implemented later"));
        }
        if [concat!("TO", "DO"), concat!("FIX", "ME")].iter().any(|mark| has_word(line, mark)) {
            breaches.push(breach(file, number, "unfinished work belongs in an issue, not in a comment"));
        }
        if code.replace(' ', "").contains("#[ignore") {
            breaches.push(breach(file, number, "no test is ignored"));
        }
    }
    breaches
}

#[track_caller]
fn assert_kept(breaches: Vec<String>) {
    assert!(breaches.is_empty(), "rules of the house are broken:\n{}", breaches.join("\n"));
}

#[test]
fn dependencies_point_up_the_list_of_rooms() {
    let crates = root().join("crates");
    let manifests = files(&crates, "Cargo.toml");
    assert_eq!(manifests.len(), ROOMS.concat().len(), "each room is a crate, and each crate a room");
    let breaches = manifests.iter().flat_map(|path| {
        let room = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        let manifest = fs::read_to_string(path).expect("a readable manifest");
        check_manifest(&format!("crates/{room}/Cargo.toml"), &room, &manifest)
    });
    assert_kept(breaches.collect());
}

#[test]
fn source_keeps_the_rules() {
    let root = root();
    let sources: Vec<PathBuf> = SOURCE.iter().flat_map(|part| files(&root.join(part), ".rs")).collect();
    assert!(sources.len() > ROOMS.concat().len(), "the source was not found");
    let breaches = sources.iter().flat_map(|path| {
        let file = path.strip_prefix(&root).expect("below the root").to_string_lossy().into_owned();
        check_source(&file, &fs::read_to_string(path).expect("readable source"))
    });
    assert_kept(breaches.collect());
}

/// The lines of each section of a manifest, without comments.
fn sections(manifest: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut sections: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut section = "";
    for line in manifest.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if line.starts_with('[') {
            section = line;
        } else {
            sections.entry(section).or_default().insert(line);
        }
    }
    sections
}

/// Both workspaces have the same measurements and checks, and share their build output.
#[test]
fn bench_has_the_versions_lints_and_profiles_of_the_root() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("a readable manifest");
    let (own, bench) = (read("Cargo.toml"), read("bench/Cargo.toml").replace("path = \"../", "path = \""));
    let (own, mut bench) = (sections(&own), sections(&bench));
    for (section, lines) in &own {
        let name = section.trim_matches(['[', ']']);
        if let Some(lints) = name.strip_prefix("workspace.lints") {
            assert_eq!(bench.get(format!("[lints{lints}]").as_str()), Some(lines), "{section}");
        } else if name.starts_with("profile") {
            if let Some(lines) = bench.get_mut(section) {
                lines.retain(|line| !line.starts_with("outboard-bench "));
            }
            assert_eq!(bench.get(section), Some(lines), "{section}");
        }
    }
    let shared = &own["[workspace.dependencies]"];
    for line in &bench["[dependencies]"] {
        let name = line.split(' ').next().unwrap_or_default();
        let theirs = shared.iter().find(|theirs| theirs.split(' ').next() == Some(name));
        assert!(theirs.is_none_or(|theirs| theirs == line), "bench: `{line}`; the root: `{theirs:?}`");
    }
}

/// The checks must find every kind of breach.
#[test]
fn the_checks_find_every_breach() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\nrustix = \"1\"\nstages.workspace = true\ntestkit.workspace = true\n\
                    [dev-dependencies]\ntestkit.workspace = true\nruntime = { workspace = true }\n";
    let breaches = check_manifest("crates/stages/Cargo.toml", "stages", manifest);
    let places: Vec<&str> = breaches.iter().filter_map(|breach| breach.split(": ").next()).collect();
    assert_eq!(places, [4, 5, 6].map(|line| format!("crates/stages/Cargo.toml:{line}")));
    assert_eq!(check_manifest("crates/attic/Cargo.toml", "attic", "").len(), 1);

    let source = [
        "fn a() { unsafe { b() } }",
        "todo!()",
        concat!("// TO", "DO later"),
        "#[ignore = \"slow\"]",
        "#![deny(unsafe_code)] // nothing unsafe \"here",
        "let text = \"unsafe \\\" todo! #[ignore\"; let quote = '\"'; unimplemented!()",
    ]
    .join("\n");
    let lines = |file: &str| -> Vec<usize> {
        let number = |breach: String| breach.split(':').nth(1).and_then(|line| line.parse().ok());
        check_source(file, &source).into_iter().filter_map(number).collect()
    };
    assert_eq!(lines("crates/links/src/lib.rs"), [1, 2, 3, 4, 6]);
    assert_eq!(lines("crates/sys/src/lib.rs"), [2, 3, 4, 6]);
    assert_eq!(check_source("a.rs", &"\n".repeat(FILE_LINES_MAX)).len(), 0);
    assert_eq!(check_source("a.rs", &"\n".repeat(FILE_LINES_MAX + 1)).len(), 1);
}
