//! Counts the words that make sentences here hard to read, in pages and in comments (CONTRIBUTING.md, "Words").
//! `scripts/words` prints the counts and the worst files.

mod tree;

use std::collections::BTreeMap;
use tree::texts;

/// Words that describe a thing where a sentence should name it.
const VAGUE: &[&str] = &["what", "who", "whose", "whoever"];
/// The most of them in 10,000 words.
const VAGUE_PER_10000: f64 = 15.0;

/// Words that a doc comment does not start with.
const OPENERS: &[&str] = &["What", "Who", "Whose", "Whether", "Where", "That"];

/// Directories of pages with measured tables: their rows and code blocks are data.
const MEASURED: &[&str] = &["docs/measurements/"];

/// How a language marks comments and strings.
struct Syntax {
    line_comment: &'static str,
    block_comment: bool,
    quotes: &'static [char],
    /// Strings like `r#"..."#`, and `'a` that is no string.
    is_rust: bool,
}

const RUST: Syntax = Syntax { line_comment: "//", block_comment: true, quotes: &['"'], is_rust: true };
const C: Syntax = Syntax { line_comment: "//", block_comment: true, quotes: &['"', '\''], is_rust: false };
const JS: Syntax =
    Syntax { line_comment: "//", block_comment: true, quotes: &['"', '\'', '`'], is_rust: false };

/// The comments of `source`, line by line, with their markers.
fn comments(source: &str, syntax: &Syntax) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut rest = source;
    let mut line = 1;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with(syntax.line_comment) {
            let end = rest.find('\n').unwrap_or(rest.len());
            found.push((line, rest[..end].to_owned()));
            end
        } else if syntax.block_comment && rest.starts_with("/*") {
            let end = rest.find("*/").map_or(rest.len(), |at| at + 2);
            found.extend((line..).zip(rest[..end].lines()).map(|(line, text)| (line, text.to_owned())));
            end
        } else if syntax.is_rust && (rest.starts_with("r\"") || rest.starts_with("r#")) {
            raw_string(rest)
        } else if syntax.is_rust && first == '\'' {
            character(rest)
        } else if syntax.quotes.contains(&first) {
            string(rest, first)
        } else if syntax.is_rust && (first.is_alphanumeric() || first == '_') {
            // A whole name, so that the `r` that ends one starts no raw string.
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    found
}

/// The length of the string that `rest` starts with.
fn string(rest: &str, quote: char) -> usize {
    let mut characters = rest.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => {
                characters.next();
            }
            end if end == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The length of the raw string that `rest` starts with, or of the `r` of a raw name.
fn raw_string(rest: &str) -> usize {
    let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
    if !rest[1 + hashes..].starts_with('"') {
        return 1;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    rest[2 + hashes..].find(&end).map_or(rest.len(), |at| 2 + hashes + at + end.len())
}

/// The length of the character that `rest` starts with, or of the mark of a lifetime.
fn character(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(1);
    match (characters.next(), characters.next()) {
        (Some((_, '\\')), _) => string(rest, '\''),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

/// The comments of a language with `#`, and Python's documentation strings.
fn hash_comments(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_string = false;
    for (number, line) in (1..).zip(source.lines()) {
        let marks = line.matches("\"\"\"").count();
        if in_string || marks > 0 {
            found.push((number, line.to_owned()));
            in_string ^= marks == 1;
            continue;
        }
        let mut quote = None;
        let mut before = ' ';
        for (at, character) in line.char_indices() {
            match character {
                '"' | '\'' if quote.is_none() => quote = Some(character),
                _ if quote == Some(character) => quote = None,
                '#' if quote.is_none() && before.is_whitespace() => {
                    found.push((number, line[at..].to_owned()));
                    break;
                }
                _ => {}
            }
            before = character;
        }
    }
    found
}

/// The text of a page. A measured page's rows of figures and code blocks are left out.
fn page(file: &str, text: &str) -> Vec<(usize, String)> {
    let is_measured = MEASURED.iter().any(|place| file.starts_with(place));
    let mut in_code = false;
    let mut row = 0;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        row = if line.starts_with('|') { row + 1 } else { 0 };
        let is_data = is_measured && (in_code || is_fence || row > 2);
        if !is_data {
            found.push((number, line.to_owned()));
        }
    }
    found
}

/// The lines of `text` that are written for people.
fn prose(file: &str, text: &str) -> Vec<(usize, String)> {
    match file.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "md" => page(file, text),
        "rs" => comments(text, &RUST),
        "c" | "h" => comments(text, &C),
        "js" => comments(text, &JS),
        _ => hash_comments(text),
    }
}

/// The words of one file.
#[derive(Default)]
struct Count {
    words: usize,
    vague: usize,
    openers: Vec<usize>,
}

fn count(file: &str, text: &str) -> Count {
    let mut count = Count::default();
    for (number, line) in prose(file, text) {
        count.words += line.split_whitespace().filter(|word| word.contains(char::is_alphabetic)).count();
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_lowercase);
        count.vague += words.filter(|word| VAGUE.contains(&word.as_str())).count();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).unwrap_or_default();
        let first = doc.trim_start().split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        if OPENERS.contains(&first) {
            count.openers.push(number);
        }
    }
    count
}

fn per_10000(vague: usize, words: usize) -> f64 {
    vague as f64 * 10_000.0 / words.max(1) as f64
}

#[test]
fn sentences_name_their_subject() {
    let counts: BTreeMap<String, Count> =
        texts().into_iter().map(|(file, text)| (file.clone(), count(&file, &text))).collect();
    let sum = |of: fn(&Count) -> usize| -> usize { counts.values().map(of).sum() };
    let (words, vague, openers) =
        (sum(|count| count.words), sum(|count| count.vague), sum(|count| count.openers.len()));
    println!("{words} words in {} files", counts.len());
    println!("{vague} of {}: {:.1} in 10,000 words", VAGUE.join(", "), per_10000(vague, words));
    println!("{openers} lines of doc comments start with {}", OPENERS.join(", "));

    let mut worst: Vec<_> = counts.iter().filter(|(_, count)| count.vague > 0).collect();
    worst.sort_by_key(|(_, count)| std::cmp::Reverse(count.vague));
    println!("\nmost of these words:");
    for (file, count) in worst.iter().take(20) {
        println!("{:5} {:7.1} in 10,000  {file}", count.vague, per_10000(count.vague, count.words));
    }
    println!("\nmost of these openers:");
    worst.sort_by_key(|(_, count)| std::cmp::Reverse(count.openers.len()));
    for (file, Count { openers, .. }) in worst.iter().take(20).filter(|(_, count)| !count.openers.is_empty())
    {
        let lines: Vec<String> = openers.iter().take(8).map(usize::to_string).collect();
        println!("{:5}  {file}: lines {}", openers.len(), lines.join(", "));
    }

    let rate = per_10000(vague, words);
    assert!(rate <= VAGUE_PER_10000, "{rate:.1} vague words in 10,000, and {VAGUE_PER_10000} is the most");
    assert!(openers == 0, "{openers} doc comments open with a vague word");
}

#[test]
fn comments_are_found_and_strings_are_not() {
    let rust = "/// What is it\nlet a = \"// who\"; // whose\nlet b = r#\"/* who */\"#; let c = '\"'; // what\n\
                fn f<'a>() {} /* who\nwhat */ let d = r\"who // \\\"; // That's\n";
    let found = count("a.rs", rust);
    assert_eq!((found.vague, found.openers.as_slice()), (5, &[1][..]));
    assert_eq!(count("a.c", "char c = '\"'; /* who */ char *s = \"what\"; // what\n").vague, 2);
    assert_eq!(count("a.js", "let s = 'who // what', t = `who`; // what\n").vague, 1);
    let shell = "#!/bin/sh\necho \"# who\" # what\nx=${#who}\n# whoever\n";
    assert_eq!(count("run", shell).vague, 2);
    let python = "\"\"\"What it does:\nwho asked.\"\"\"\nx = '# who' # what\n";
    assert_eq!(count("a.py", python).vague, 3);
    let page = "What\n\n| who | n |\n|---|---|\n| who | 1 |\n\n```text\nwho\n```\n";
    assert_eq!((count(&format!("{}a.md", MEASURED[0]), page).vague, count("a.md", page).vague), (2, 4));
}
