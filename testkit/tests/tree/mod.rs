//! The files of the project, for tests that read them as text.
#![allow(dead_code, reason = "each test program uses its part")]

use std::fs;
use std::path::{Path, PathBuf};

/// The project's root directory.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("testkit stands in the root").to_path_buf()
}

/// The files below `directory` with names that end in `ending`, without build output and hidden files.
pub(crate) fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.expect("a readable directory").path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && name != "node_modules" && !name.starts_with('.') {
            found.extend(files(&path, ending));
        } else if path.is_file() && name.ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The path of `file` from the root, as text.
pub(crate) fn from_root(file: &Path) -> String {
    file.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned()
}

/// All text files of the project that people write: their paths from the root and their contents.
pub(crate) fn texts() -> Vec<(String, String)> {
    const NOT_WRITTEN: &[&str] = &["svg", "png", "lock", "txt", "evemu", "json"];
    let mut texts = Vec::new();
    for path in files(&root(), "") {
        let file = from_root(&path);
        let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
        let is_written = extension.is_none_or(|extension| !NOT_WRITTEN.contains(&extension.as_str()));
        if !is_written || file.starts_with("LICENSE") || file.starts_with("fuzz/seeds/") {
            continue;
        }
        if let Ok(text) = fs::read_to_string(&path) {
            texts.push((file, text));
        }
    }
    texts
}
