//! The shape of each room: no import cycle of many modules, no room too large, no function too long.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Modules that may import each other in a circle.
const CYCLE_MODULES_MAX: usize = 3;
/// Lines of source in a crate, tests included.
const ROOM_LINES_MAX: usize = 9000;
/// Rooms that hold many implementations, one folder each: they have no bound.
const COLLECTIONS: &[&str] = &["devices", "stages", "transports"];
const FUNCTION_LINES_MAX: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("testkit is in the root").to_path_buf()
}

/// The Rust files below `directory`, without build results.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.expect("a readable directory").path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("readable source")
}

/// Code outside the tests of a file, without comments.
fn code(source: &str) -> String {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    code.lines().filter(is_code).collect::<Vec<_>>().join("\n")
}

/// A crate's modules directly below its root, each with the code of all its files.
fn modules(room: &Path) -> BTreeMap<String, String> {
    let mut modules = BTreeMap::<String, String>::new();
    for path in sources(&room.join("src")) {
        let place =
            path.strip_prefix(room.join("src")).expect("below the room").to_string_lossy().into_owned();
        if place.contains("test") {
            continue;
        }
        let name = place.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        let module = modules.entry(name.into()).or_default();
        module.push_str(&code(&read(&path)));
        module.push('\n');
    }
    modules
}

/// The words of a text, in order.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Names that the crate's root exports again, by the module that defines them.
fn exports(root: &str) -> BTreeMap<&str, &str> {
    let mut exports = BTreeMap::new();
    for statement in root.split(';').filter_map(|text| text.split("pub use ").nth(1)) {
        let mut names = words(statement);
        if let Some(module) = names.next() {
            exports.extend(names.map(|name| (name, module)));
        }
    }
    exports
}

/// The modules that each module of a crate imports.
fn imports(modules: &BTreeMap<String, String>) -> BTreeMap<&str, BTreeSet<&str>> {
    let is_root = |name: &str| name == "lib" || name == "main";
    let root = modules.iter().find(|(name, _)| is_root(name)).map_or("", |(_, code)| code);
    let exports = exports(root);
    let mut imports = BTreeMap::new();
    for (module, code) in modules.iter().filter(|(name, _)| !is_root(name)) {
        let mut imported = BTreeSet::new();
        for after in code.split("crate::").skip(1) {
            // A group of imports ends at the statement's end; a single path names one thing first.
            let names = match after.strip_prefix('{') {
                Some(group) => words(group.split(';').next().unwrap_or_default()).collect(),
                None => words(after).take(1).collect::<Vec<_>>(),
            };
            imported.extend(names.into_iter().map(|name| exports.get(name).copied().unwrap_or(name)));
        }
        imported.retain(|name| *name != module.as_str() && !is_root(name) && modules.contains_key(*name));
        imports.insert(module.as_str(), imported);
    }
    imports
}

/// The modules that can be reached from `from`.
fn reachable<'a>(imports: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        for next in imports.get(module).into_iter().flatten() {
            if reached.insert(*next) {
                open.push(next);
            }
        }
    }
    reached
}

/// Import cycles of more than [`CYCLE_MODULES_MAX`] modules.
fn cycles(modules: &BTreeMap<String, String>) -> Vec<Vec<String>> {
    let imports = imports(modules);
    let reached: BTreeMap<_, _> =
        imports.keys().map(|module| (*module, reachable(&imports, module))).collect();
    let mut cycles = BTreeSet::new();
    for (module, others) in &reached {
        let back = others.iter().filter(|other| reached.get(*other).is_some_and(|r| r.contains(module)));
        let cycle: BTreeSet<String> = back.chain([module]).map(|name| name.to_string()).collect();
        if cycle.len() > CYCLE_MODULES_MAX {
            cycles.insert(cycle.into_iter().collect());
        }
    }
    cycles.into_iter().collect()
}

/// Name and lines of each function above the bound. It ends at the closing brace of its own indentation.
fn long_functions(source: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = source.lines().collect();
    let mut long = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let indent = &line[..line.len() - line.trim_start().len()];
        let Some((before, name)) = line.split_once("fn ").filter(|(before, _)| {
            words(before)
                .all(|word| matches!(word, "pub" | "crate" | "super" | "const" | "unsafe" | "extern"))
                && !before.contains(['"', '/', '|'])
        }) else {
            continue;
        };
        let end = format!("{indent}}}");
        let length = lines[first..].iter().position(|line| *line == end).map_or(0, |last| last + 1);
        let is_declaration = line.trim_end().ends_with(';') || before.contains('=');
        if length > FUNCTION_LINES_MAX && !is_declaration {
            long.push((words(name).next().unwrap_or_default().into(), length));
        }
    }
    long
}

fn rooms() -> Vec<PathBuf> {
    let crates = fs::read_dir(root().join("crates")).expect("the rooms");
    let mut rooms: Vec<PathBuf> = crates.map(|room| room.expect("a readable directory").path()).collect();
    rooms.sort();
    assert!(rooms.len() > 10, "the rooms were not found");
    rooms
}

#[test]
fn no_import_cycle_has_more_than_three_modules() {
    for room in rooms() {
        let cycles = cycles(&modules(&room));
        assert!(cycles.is_empty(), "{}: {cycles:?}", room.display());
    }
}

#[test]
fn no_room_is_too_large() {
    for room in rooms() {
        let name = room.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let lines: usize = sources(&room.join("src")).iter().map(|path| read(path).lines().count()).sum();
        let is_bounded = !COLLECTIONS.contains(&name.as_str());
        assert!(!is_bounded || lines <= ROOM_LINES_MAX, "{name} has {lines} lines of source");
    }
}

#[test]
fn no_function_is_too_long() {
    let mut long = Vec::new();
    for part in ["crates", "netsim", "testkit", "lab", "bench", "fuzz"] {
        for path in sources(&root().join(part)) {
            let place = path.strip_prefix(root()).expect("below the root").display().to_string();
            let functions = long_functions(&read(&path)).into_iter();
            long.extend(functions.map(|(name, lines)| format!("{place}: `{name}` has {lines} lines")));
        }
    }
    assert!(long.is_empty(), "functions have at most {FUNCTION_LINES_MAX} lines:\n{}", long.join("\n"));
}

/// A check that finds nothing where there is something would let everything pass.
#[test]
fn the_checks_find_what_they_forbid() {
    let module = |name: &str, code: &str| (name.to_string(), code.to_string());
    let mut circle = BTreeMap::from([
        module("lib", "pub use a::{A, B};"),
        module("a", "use crate::b::B;"),
        module("b", "use crate::{c::C, e};"),
        module("c", "fn c(d: crate::d::D) {}"),
        module("d", "use crate::A;"),
        module("e", ""),
    ]);
    assert_eq!(cycles(&circle), [["a", "b", "c", "d"]]);
    circle.insert("d".into(), code("// use crate::a::A;"));
    assert!(cycles(&circle).is_empty());

    let function = |lines: usize| format!("    pub fn f() {{\n{}    }}\n", "x();\n".repeat(lines - 2));
    assert!(long_functions(&function(FUNCTION_LINES_MAX)).is_empty());
    let long = FUNCTION_LINES_MAX + 1;
    assert_eq!(long_functions(&function(long)), [("f".to_string(), long)]);
}
