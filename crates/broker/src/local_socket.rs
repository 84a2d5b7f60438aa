//! Local sockets between one user's processes: their directory, and lines of JSON.

use rustix::process::getuid;
use serde::Serialize;
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Listens at `path` without blocking. Replaces a stale socket.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
            fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        other => other?,
    };
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Returns whether `path` is a socket without a listener.
pub fn is_stale(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let connected = UnixStream::connect(path);
    is_socket && connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Writes `value` as one line of JSON.
pub fn write_line(stream: &mut UnixStream, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Returns the directory of the sockets, private to the user; creates it if missing.
pub fn directory() -> io::Result<PathBuf> {
    let uid = getuid();
    let is_ours = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|found| found.uid() == uid.as_raw());
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = runtime
        .into_iter()
        .chain([PathBuf::from(format!("/run/user/{uid}"))])
        .find(is_ours)
        .map_or_else(|| format!("/tmp/outboard-{uid}").into(), |runtime| runtime.join("outboard"));
    match DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(&directory)?;
    if found.is_dir() && found.uid() == uid.as_raw() && found.mode() & 0o077 == 0 {
        return Ok(directory);
    }
    let problem = format!("{} is not a private directory of this user", directory.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}
