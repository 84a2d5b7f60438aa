//! Listening sockets in the file system.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Binds a non-blocking socket and returns it with its inode. Replaces a socket at which nobody listens.
pub(crate) fn bind(path: &Path, mode: u32) -> io::Result<(UnixListener, u64)> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(ErrorKind::AlreadyExists, "a file that is no socket is there"));
        }
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => return Err(io::Error::new(ErrorKind::AddrInUse, "another program listens there")),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)?,
            Err(error) => return Err(error),
        },
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok((listener, fs::symlink_metadata(path)?.ino()))
}

/// Removes a socket that [`bind`] has made. Another process may have made its own there meanwhile.
pub(crate) fn remove(path: &Path, inode: u64) {
    if fs::symlink_metadata(path).is_ok_and(|found| found.ino() == inode) {
        let _ = fs::remove_file(path);
    }
}
