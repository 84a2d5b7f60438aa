//! Files that store trust: private to their user, and replaced atomically.

use contract::ServiceError;
use rustix::fs::{FlockOperation, flock};
use rustix::process::getuid;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

fn failed(action: &str, path: &Path, error: io::Error) -> ServiceError {
    ServiceError::os(format!("{action} {}", path.display()), error)
}

/// The default directory: `$XDG_STATE_HOME/outboard`, or `~/.local/state/outboard`.
pub fn state_directory() -> Result<PathBuf, ServiceError> {
    sys::environment::state_directory().ok_or_else(|| {
        ServiceError::Usage(
            "there is no place for this host's identity: neither XDG_STATE_HOME nor HOME is set".into(),
        )
    })
}

/// Creates the directory, private to the user, or checks an existing one.
pub(super) fn make_directory(path: &Path) -> Result<(), ServiceError> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|error| failed("making", parent, error))?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed("making", path, error)),
        _ => check(path, &fs::metadata(path).map_err(|error| failed("looking at", path, error))?),
    }
}

/// Rejects a file or directory that other users can read or write.
fn check(path: &Path, found: &fs::Metadata) -> Result<(), ServiceError> {
    let name = path.display();
    if found.uid() != getuid().as_raw() {
        return Err(ServiceError::Usage(format!("{name} belongs to another user: it cannot be trusted")));
    }
    if found.mode() & 0o077 != 0 {
        let mode = if found.is_dir() { "700" } else { "600" };
        return Err(ServiceError::Usage(format!(
            "{name} can be read or written by others; say `chmod {mode} {name}`, and if it was so for long, pair anew"
        )));
    }
    Ok(())
}

/// Reads a file that only this user can read; `None` if it does not exist.
pub(super) fn read_private(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, ServiceError> {
    let reading = |error| failed("reading", path, error);
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(reading)?,
    };
    check(path, &file.metadata().map_err(reading)?)?;
    let mut content = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut content).map_err(reading)?;
    if content.len() as u64 > bytes_max {
        return Err(ServiceError::Usage(format!("{} has more than {bytes_max} bytes", path.display())));
    }
    Ok(Some(content))
}

/// Writes `content` durably to a temporary file beside `path` and returns the file's path.
fn write_beside(path: &Path, content: &[u8]) -> Result<PathBuf, ServiceError> {
    let tag = u64::from_le_bytes(sys::random::bytes().map_err(|error| failed("writing", path, error))?);
    let beside = path.with_extension(format!("{tag:016x}.new"));
    let mut options = OpenOptions::new();
    let written = options.write(true).create_new(true).mode(0o600).open(&beside).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    match written {
        Ok(()) => Ok(beside),
        Err(error) => {
            let _ = fs::remove_file(&beside);
            Err(failed("writing", path, error))
        }
    }
}

/// Creates a private file with this content. An existing file is left unchanged.
pub(super) fn make_private(path: &Path, content: &[u8]) -> Result<(), ServiceError> {
    let beside = write_beside(path, content)?;
    let made = fs::hard_link(&beside, path);
    let _ = fs::remove_file(&beside);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed("making", path, error)),
        _ => sync_directory(path),
    }
}

/// Replaces a file with a private one that has this content.
pub(super) fn replace_private(path: &Path, content: &[u8]) -> Result<(), ServiceError> {
    let beside = write_beside(path, content)?;
    if let Err(error) = fs::rename(&beside, path) {
        let _ = fs::remove_file(&beside);
        return Err(failed("writing", path, error));
    }
    sync_directory(path)
}

fn sync_directory(path: &Path) -> Result<(), ServiceError> {
    let directory = path.parent().unwrap_or(path);
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| failed("writing", path, error))
}

/// Locks out other processes of this user that edit the files; released on drop.
pub(super) fn lock(path: &Path) -> Result<File, ServiceError> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = file.map_err(|error| failed("opening", path, error))?;
    flock(&file, FlockOperation::LockExclusive).map_err(|error| failed("locking", path, error.into()))?;
    Ok(file)
}

/// Identifies one version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    bytes: u64,
    changed_ns: i128,
}

/// The file's current version; `None` if it does not exist.
pub(super) fn stamp(path: &Path) -> Option<Stamp> {
    let found = fs::metadata(path).ok()?;
    let changed_ns = i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec());
    Some(Stamp { inode: found.ino(), bytes: found.size(), changed_ns })
}
