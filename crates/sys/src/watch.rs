//! Notifications about files (`inotify(7)`).

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

const READ_BYTES: usize = 4096;

/// Watches the files of one directory.
#[derive(Debug)]
pub struct DirectoryWatch {
    inotify: OwnedFd,
}

impl DirectoryWatch {
    /// Starts to watch. Changes that another host makes on a network file system are not seen.
    pub fn new(directory: &Path) -> io::Result<DirectoryWatch> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let changes = WatchFlags::CREATE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ATTRIB;
        inotify::add_watch(&inotify, directory, changes | WatchFlags::ONLYDIR)?;
        Ok(DirectoryWatch { inotify })
    }

    /// Returns true if a file has changed since the last call.
    pub fn take(&self) -> bool {
        take_events(&self.inotify)
    }
}

/// Starts to watch a file for programs that close it. Returns a descriptor that is readable after a close ([`take_events`]).
pub fn watch_closes(file: &Path) -> io::Result<OwnedFd> {
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&inotify, file, WatchFlags::CLOSE_WRITE | WatchFlags::CLOSE_NOWRITE)?;
    Ok(inotify)
}

/// Discards the events of a watch. Returns true if there were any.
pub fn take_events(inotify: &OwnedFd) -> bool {
    let mut has_events = false;
    let mut bytes = [0; READ_BYTES];
    loop {
        match rustix::io::read(inotify, &mut bytes[..]) {
            Ok(0) => return has_events,
            Ok(_) => has_events = true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return has_events,
        }
    }
}

impl AsFd for DirectoryWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_a_change_once() {
        let directory = std::env::temp_dir().join(format!("outboard-watch-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let watch = DirectoryWatch::new(&directory).unwrap();
        assert!(!watch.take());
        std::fs::write(directory.join("new"), b"text").unwrap();
        std::fs::rename(directory.join("new"), directory.join("file")).unwrap();
        assert!(watch.take() && !watch.take());
        assert!(DirectoryWatch::new(&directory.join("file")).is_err(), "no directory");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
