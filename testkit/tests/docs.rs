//! The documentation, checked as text: every link leads somewhere, and every path that a page or a comment names exists.

mod tree;

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use tree::{root, texts};

/// Directories of the root that a path in backticks on a page starts with.
const TOP: &[&str] =
    &["bench", "crates", "docs", "fuzz", "lab", "netsim", "packaging", "scripts", "sdk", "testkit", "tests"];

/// Text that the benchmarks put into the pages of [`MEASUREMENTS`]: links start there.
const PARTS_OF_PAGES: &str = "bench/src/";
const MEASUREMENTS: &str = "docs/measurements";

/// The text of a page without its code blocks. Lines stay where they are.
fn without_code(page: &str) -> String {
    let mut in_code = false;
    let mut text = String::new();
    for line in page.lines() {
        let is_fence = line.trim_start().starts_with("```");
        if !is_fence && !in_code {
            text.push_str(line);
        }
        in_code ^= is_fence;
        text.push('\n');
    }
    text
}

/// The text between backticks in one line.
fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The targets of the links and pictures in one line: `[text](target)`.
fn links(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some(at) = rest.find("](") {
        rest = &rest[at + 2..];
        let Some(end) = rest.find(')') else { break };
        found.push(rest[..end].split_whitespace().next().unwrap_or_default());
        rest = &rest[end..];
    }
    found
}

/// The anchors of a page: its headings, spelled as GitHub spells them in links.
fn anchors(page: &str) -> BTreeSet<String> {
    let text = without_code(page);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let slug = |line: &str| -> String {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(slug).collect()
}

/// `path` without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// Returns true if a file or directory exists at `path` from the root; `*` matches any characters within one name.
fn exists(path: &str) -> bool {
    let Some((before, after)) = path.split_once('*') else { return root().join(path).exists() };
    let (directory, start) = before.rsplit_once('/').unwrap_or(("", before));
    let (end, below) = after.split_once('/').unwrap_or((after, ""));
    let Ok(entries) = root().join(directory).read_dir() else { return false };
    let mut names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.any(|name| {
        let fits = name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end);
        fits && (below.is_empty() || exists(&format!("{directory}/{name}/{below}")))
    })
}

/// The paths below `docs/` that a line of source names.
fn document_paths(line: &str) -> Vec<&str> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '-' | '_' | '*');
    let mut found = Vec::new();
    for (at, _) in line.match_indices("docs/") {
        let before = &line[..at];
        let start = before.rfind(|c: char| !is_path(c) && c != ':').map_or(0, |i| i + 1);
        let is_start_of_name = before.ends_with(['/', ' ', '`', '"', '(', '[', '>']) || before.is_empty();
        if !is_start_of_name || line[start..at].contains("://") {
            continue;
        }
        let end = line[at..].find(|c| !is_path(c)).map_or(line.len(), |length| at + length);
        found.push(line[at..end].trim_end_matches(['.', '/']));
    }
    found
}

/// Broken links and paths of one page at `file`, given the text of all pages.
fn check_page(file: &str, page: &str, pages: &[(String, String)]) -> Vec<String> {
    let mut broken = Vec::new();
    let directory = match file.starts_with(PARTS_OF_PAGES) {
        true => Path::new(MEASUREMENTS),
        false => Path::new(file).parent().expect("a file stands in a directory"),
    };
    for (number, line) in (1..).zip(without_code(page).lines()) {
        for link in links(line) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { PathBuf::from(file) } else { normal(&directory.join(path)) };
            let target = target.to_string_lossy();
            if !path.is_empty() && !root().join(&*target).exists() {
                broken.push(format!("{file}:{number}: no such file: {link}"));
            } else if let Some((_, page)) = pages.iter().find(|(file, _)| *file == *target)
                && !anchor.is_empty()
                && !anchors(page).contains(anchor)
            {
                broken.push(format!("{file}:{number}: no such heading: {link}"));
            }
        }
        for span in code_spans(line) {
            let top = span.split('/').next().unwrap_or_default();
            let is_path = span.contains('/') && !span.contains([' ', '<', '{', '$', ',']);
            let path = span.split(':').next().unwrap_or_default();
            if is_path && TOP.contains(&top) && !exists(path.trim_end_matches('/')) {
                broken.push(format!("{file}:{number}: no such path: {span}"));
            }
        }
    }
    broken
}

fn check_source(file: &str, source: &str) -> Vec<String> {
    let lines = (1..).zip(source.lines());
    let paths =
        lines.flat_map(|(number, line)| document_paths(line).into_iter().map(move |path| (number, path)));
    let broken = paths.filter(|(_, path)| !exists(path));
    broken.map(|(number, path)| format!("{file}:{number}: no such path: {path}")).collect()
}

#[track_caller]
fn assert_none(broken: Vec<String>) {
    assert!(broken.is_empty(), "{} broken references:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn links_and_paths_on_pages_exist() {
    let mut pages = texts();
    pages.retain(|(file, _)| file.ends_with(".md"));
    assert!(pages.len() > 20, "the pages were not found");
    let broken = pages.iter().flat_map(|(file, page)| check_page(file, page, &pages));
    assert_none(broken.collect());
}

#[test]
fn documents_named_in_source_exist() {
    let mut sources = texts();
    sources.retain(|(file, _)| !file.ends_with(".md"));
    assert!(sources.len() > 100, "the source was not found");
    assert_none(sources.iter().flat_map(|(file, source)| check_source(file, source)).collect());
}

/// Pages that name items of the source, such as `Permit::covers`.
const PAGES_ABOUT_SOURCE: &[&str] = &["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/design/"];

/// Words before the name of a type that a file declares or implements.
const DECLARING: &[&str] = &["trait", "struct", "enum", "type", "impl", "for"];

/// One file of source.
struct Source<'a> {
    /// Its modules, and the types that it declares or implements.
    owners: BTreeSet<&'a str>,
    names: BTreeSet<&'a str>,
}

impl<'a> Source<'a> {
    fn new(file: &'a str, text: &'a str) -> Source<'a> {
        let names: Vec<&str> = names(text).collect();
        let declared = names.windows(2).filter(|pair| DECLARING.contains(&pair[0])).map(|pair| pair[1]);
        Source {
            owners: declared.chain(file.split(['/', '.'])).collect(),
            names: names.iter().copied().collect(),
        }
    }

    fn has(&self, owner: &str, name: &str) -> bool {
        self.owners.contains(owner) && self.names.contains(name)
    }
}

/// Items in backticks that no file with their type or module names.
fn check_items(file: &str, page: &str, sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for (number, line) in (1..).zip(without_code(page).lines()) {
        for span in code_spans(line).filter(|span| span.contains("::")) {
            let is_item = span.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | ':'));
            let parts: Vec<&str> = span.split("::").collect();
            let is_there = |pair: &[&str]| sources.iter().any(|source| source.has(pair[0], pair[1]));
            if is_item && !parts.windows(2).all(is_there) {
                broken.push(format!("{file}:{number}: no such item: {span}"));
            }
        }
    }
    broken
}

/// The names in a text.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty())
}

#[test]
fn items_named_on_pages_exist() {
    let texts = texts();
    let sources = texts.iter().filter(|(file, _)| file.ends_with(".rs"));
    let sources: Vec<Source> = sources.map(|(file, text)| Source::new(file, text)).collect();
    let is_checked = |file: &str| PAGES_ABOUT_SOURCE.iter().any(|page| file.starts_with(page));
    let pages = texts.iter().filter(|(file, _)| file.ends_with(".md") && is_checked(file));
    assert_none(pages.flat_map(|(file, page)| check_items(file, page, &sources)).collect());
}

#[test]
fn the_checks_find_broken_references() {
    let page = "# Title\n[a](b.md) [c](#title) [d](#none) `crates/none.rs` `crates/*/Cargo.toml` `bench/no*e`\n\
                ```\n[not](checked.md)\n```\n[web](https://example.org/x)\n";
    let file = concat!("doc", "s/x.md");
    let pages = [(file.to_owned(), page.to_owned())];
    let broken = check_page(file, page, &pages);
    let found: Vec<&str> = broken.iter().filter_map(|line| line.rsplit(' ').next()).collect();
    assert_eq!(found, ["b.md", "#none", "crates/none.rs", "bench/no*e"]);
    let absent = concat!("doc", "s/absent.md");
    let line = format!("// `{absent}`, https://example.org/{absent}, and ({absent}).");
    assert_eq!(check_source("a.rs", &line).len(), 2);
    let items = "`Permit::covers` `Permit::uncovers` `a b::c`";
    let sources = [("permit.rs", "impl Permit { fn covers() {} }"), ("other.rs", "fn uncovers() {}")];
    let sources = sources.map(|(file, text)| Source::new(file, text));
    assert_eq!(check_items(file, items, &sources).len(), 1);
    let below = concat!("doc", "s/*/absent.md");
    assert_eq!(check_source("a.rs", below).len(), 1);
}

/// Each row of the table of protected assets names files in its third cell, which enforce the protection, and ends with files
/// and the tests in them: `` `FILE`: `TEST`, `TEST`; `FILE`: … ``. A file without tests in it is a test of the virtual machine.
fn check_assets(page: &str, source_of: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let is_row = |line: &str| line.starts_with('|');
    let lines = (1..).zip(page.lines()).skip_while(|(_, line)| *line != "## Protected assets").skip(1);
    let rows = lines.take_while(|(_, line)| !line.starts_with('#')).filter(|(_, line)| is_row(line));
    let mut broken = Vec::new();
    for (number, row) in rows.skip(2) {
        let mut problem = |text: String| broken.push(format!("SECURITY.md:{number}: {text}"));
        let cells: Vec<&str> = row.trim_matches([' ', '|']).split(" | ").collect();
        let &[_, _, enforcement, tests] = &cells[..] else {
            problem(format!("{} cells instead of 4", cells.len()));
            continue;
        };
        if !code_spans(enforcement).any(|file| source_of(file).is_some()) {
            problem("no file that enforces it".into());
        }
        for group in tests.split("; ") {
            let mut spans = code_spans(group).peekable();
            let file = spans.next().unwrap_or_default();
            let Some(source) = source_of(file) else {
                problem(format!("no such file of tests: {file}"));
                continue;
            };
            if spans.peek().is_none() && !file.starts_with("tests/vm/") {
                problem(format!("no test of {file}"));
            }
            for test in spans.filter(|test| !source.contains(&format!("#[test]\nfn {test}("))) {
                problem(format!("no such test: {test}"));
            }
        }
    }
    broken
}

#[test]
fn every_protected_asset_names_its_files_and_tests() {
    let page = std::fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let source_of = |file: &str| {
        let source = std::fs::read_to_string(root().join(file)).ok()?;
        Some(source.lines().map(str::trim_start).collect::<Vec<_>>().join("\n"))
    };
    assert!(page.lines().filter(|line| line.starts_with('|')).count() > 20, "the table was not found");
    assert_none(check_assets(&page, source_of));
    let wrong = "## Protected assets\n| asset | parties | enforcement | test |\n|---|---|---|---|\n\
                 | a | b | by `x.rs` | `x.rs`: `there` |\n| a | b | by `x.rs` | none |\n| a | b | by nothing | `x.rs`: `there` |\n\
                 | a | b | by `x.rs` | `x.rs`: `there`, `gone` |\n| a | b | by `x.rs` | `y.rs`: `there` |\n\
                 | a | b | by `x.rs` | `x.rs` |\n| a | by `x.rs` | `x.rs`: `there` |";
    let x = |file: &str| (file == "x.rs").then(|| "#[test]\nfn there() {}".to_string());
    let broken = check_assets(wrong, x);
    let lines: Vec<_> = broken.iter().filter_map(|line| line.split(':').nth(1)).collect();
    assert_eq!(lines, ["5", "6", "7", "8", "9", "10"]);
}
