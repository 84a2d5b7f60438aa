//! Directories of this user (XDG Base Directory Specification).

use std::path::PathBuf;

/// Returns the directory for state that is kept: `$XDG_STATE_HOME/outboard`, or `~/.local/state/outboard`; `None` if neither
/// XDG_STATE_HOME nor HOME is set.
pub fn state_directory() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    state.map(|state| state.join("outboard"))
}
