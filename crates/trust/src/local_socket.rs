//! Local sockets between one user's processes: their directory, and lines of JSON.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::getuid;
use serde::Serialize;
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use sys::poller::Poller;

/// A listening socket of this process with a name in [`directory`]; the name is removed on drop.
pub struct LocalSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl LocalSocket {
    /// Listens under this file name. Replaces a stale socket. Fails if another process listens there.
    pub fn open(name: &str) -> io::Result<LocalSocket> {
        let path = directory()?.join(name);
        Ok(LocalSocket { listener: listen(&path)?, path })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts a client, if one waits.
    pub fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().map(|(stream, _)| stream)
    }

    /// Opens the socket again if its path is gone: the user's runtime directory is removed after a logout, and this process
    /// may run on. The caller repeats it, because the directory may be missing for a moment.
    pub fn reopen(&mut self, poller: &mut Poller) -> io::Result<()> {
        let found = fs::symlink_metadata(&self.path);
        if found.err().is_none_or(|error| error.kind() != io::ErrorKind::NotFound) {
            return Ok(());
        }
        let path = directory()?.join(self.path.file_name().unwrap_or_default());
        let listener = listen(&path)?;
        poller.forget(self.as_fd());
        (self.listener, self.path) = (listener, path);
        Ok(())
    }
}

impl AsFd for LocalSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Listens at `path` without blocking. Replaces a stale socket.
fn listen(path: &Path) -> io::Result<UnixListener> {
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
    is_socket && connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Connects to the socket at `path` without waiting. The error is [`WouldBlock`](io::ErrorKind::WouldBlock) if its queue is full: a
/// process that is stopped accepts no client, and the queue keeps those that have gone.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Writes `value` as one line of JSON.
pub fn write_line(stream: &mut UnixStream, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Returns the directory of the sockets, private to the user; creates it if missing. It is below the user's runtime
/// directory, or below the state directory where there is none: another user could occupy a name in `/tmp`.
pub fn directory() -> io::Result<PathBuf> {
    let uid = getuid();
    let is_ours = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|found| found.uid() == uid.as_raw());
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let found = runtime.into_iter().chain([PathBuf::from(format!("/run/user/{uid}"))]).find(is_ours);
    private(match found {
        Some(runtime) => runtime.join("outboard"),
        None => state_directory()?,
    })
}

/// Returns the directories in which processes of this user may have sockets: [`directory`], and that of processes which began
/// before the user's login or outlasted a logout.
pub fn directories() -> io::Result<Vec<PathBuf>> {
    let mut found = vec![directory()?];
    found.extend(state_directory().ok().filter(|path| !found.contains(path) && is_private(path)));
    Ok(found)
}

/// Returns the directory of sockets of a user without a runtime directory.
fn state_directory() -> io::Result<PathBuf> {
    Ok(crate::state_directory().map_err(io::Error::other)?.join("run"))
}

/// Creates a directory that only this user may enter. Returns an error if there is something else at `path`: a link, or a
/// directory of another user or open to others.
fn private(path: PathBuf) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
    if is_private(&path) {
        return Ok(path);
    }
    let problem = format!("{} is not a private directory of this user: remove it", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}

/// Returns whether `path` is a directory that only this user may enter.
fn is_private(path: &Path) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_dir() && found.uid() == getuid().as_raw() && found.mode() & 0o077 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn a_directory_that_others_control_is_refused() {
        let base = std::env::temp_dir().join(format!("outboard-private-{}", std::process::id()));
        let made = private(base.join("state/run")).unwrap();
        assert_eq!(fs::metadata(&made).unwrap().mode() & 0o777, 0o700);
        assert_eq!(private(made.clone()).unwrap(), made);
        let link = base.join("link");
        symlink(&made, &link).unwrap();
        let open = base.join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o711)).unwrap();
        let mut refused = vec![link, open];
        // Only root can give a directory away.
        let given = base.join("given");
        fs::create_dir(&given).unwrap();
        fs::set_permissions(&given, fs::Permissions::from_mode(0o700)).unwrap();
        if getuid().is_root() {
            chown(&given, Some(65534), None).unwrap();
            refused.push(given);
        }
        for path in refused {
            let problem = private(path.clone()).unwrap_err().to_string();
            assert!(problem.contains(&path.display().to_string()), "{problem}");
        }
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_full_queue_delays_nobody() {
        let path = std::env::temp_dir().join(format!("outboard-queue-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let queued = connect(&path).unwrap();
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(!is_stale(&path));
        drop((queued, listener));
        assert!(is_stale(&path));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_socket_whose_path_is_gone_is_opened_again() {
        let mut poller = Poller::new().unwrap();
        let mut socket = LocalSocket::open(&format!("test-{}.sock", std::process::id())).unwrap();
        socket.listener.set_nonblocking(false).unwrap();
        socket.reopen(&mut poller).unwrap();
        UnixStream::connect(socket.path()).unwrap();
        socket.accept().expect("it is still the same socket");
        fs::remove_file(socket.path()).unwrap();
        socket.reopen(&mut poller).unwrap();
        socket.listener.set_nonblocking(false).unwrap();
        UnixStream::connect(socket.path()).unwrap();
        socket.accept().unwrap();
        let path = socket.path().to_path_buf();
        drop(socket);
        assert!(!path.exists());
    }
}
