//! The user's PipeWire server.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Returns the server's socket (`pipewire(1)`).
fn socket() -> Option<PathBuf> {
    let name = std::env::var_os("PIPEWIRE_REMOTE").unwrap_or_else(|| "pipewire-0".into());
    if PathBuf::from(&name).is_absolute() {
        return Some(name.into());
    }
    let directory =
        std::env::var_os("PIPEWIRE_RUNTIME_DIR").or_else(|| std::env::var_os("XDG_RUNTIME_DIR"))?;
    Some(PathBuf::from(directory).join(name))
}

/// Returns true if a server of this user answers, and this program has the library to use it.
pub(crate) fn is_running() -> bool {
    cfg!(feature = "media") && socket().is_some_and(|path| UnixStream::connect(path).is_ok())
}
