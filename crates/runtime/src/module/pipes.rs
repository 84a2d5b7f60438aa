//! Opening what `-r` and `-w` name, and standard input and output, so that nobody ever waits in a call.
//!
//! A FIFO is opened for reading at once, and for writing as soon as somebody reads it: so the order in which
//! the modules of a shell line start does not matter.

use super::reader::Reader;
use super::writer::Writer;
use crate::error::RuntimeError;
use contract::Time;
use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, open};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How soon, and at last how often, to look whether somebody reads a FIFO.
const LOOK: Duration = Duration::from_millis(1);
const LOOK_MAX: Duration = Duration::from_millis(50);
/// What a pipe of ours may hold, where the system lets it.
const PIPE_BYTES: usize = 1 << 20;

/// A FIFO that waits for its reader.
#[derive(Debug)]
pub(super) struct Opening {
    path: PathBuf,
    at: Time,
    wait: Duration,
}

impl Opening {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// When to try again.
    pub(super) fn at(&self) -> Time {
        self.at
    }

    /// The FIFO, if somebody reads it now.
    pub(super) fn try_open(&mut self, now: Time) -> io::Result<Option<OwnedFd>> {
        if now < self.at {
            return Ok(None);
        }
        match open(&self.path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
            Ok(descriptor) => Ok(Some(descriptor)),
            Err(Errno::NXIO) => {
                self.at = now.after(self.wait);
                self.wait = (self.wait * 2).min(LOOK_MAX);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// What `-r` names.
pub(super) fn open_reader(path: &Path) -> Result<Reader, RuntimeError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let descriptor = open(path, flags, Mode::empty()).map_err(|error| refused(path, error))?;
    widen(descriptor.as_fd());
    let name = path.display().to_string();
    Reader::new(&name, descriptor).map_err(|error| RuntimeError::os(format!("preparing {name}"), error))
}

/// What `-w` names: a FIFO, or a file that is there already and is emptied.
pub(super) fn open_writer(path: &Path) -> Result<Writer, RuntimeError> {
    let found = rustix::fs::stat(path).map_err(|error| refused(path, error))?;
    if FileType::from_raw_mode(found.st_mode) == FileType::Fifo {
        return Ok(Writer::opening(Opening { path: path.into(), at: Time::ZERO, wait: LOOK }));
    }
    let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let descriptor = open(path, flags, Mode::empty()).map_err(|error| refused(path, error))?;
    let name = path.display().to_string();
    Writer::new(&name, descriptor).map_err(|error| RuntimeError::os(format!("preparing {name}"), error))
}

/// Standard input, as a shell gives it.
pub(super) fn standard_input() -> Result<Reader, RuntimeError> {
    let name = "standard input";
    let descriptor = standard(rustix::stdio::stdin(), name, "-r PIPE", OFlags::RDONLY)?;
    Reader::new(name, descriptor).map_err(|error| RuntimeError::os(name, error))
}

/// Standard output, as a shell gives it.
pub(super) fn standard_output() -> Result<Writer, RuntimeError> {
    let name = "standard output";
    let descriptor = standard(rustix::stdio::stdout(), name, "-w PIPE", OFlags::WRONLY)?;
    Writer::new(name, descriptor).map_err(|error| RuntimeError::os(name, error))
}

/// A descriptor that is this process's alone.
pub(super) fn own(number: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let descriptor = rustix::io::fcntl_dupfd_cloexec(number, 3)?;
    let flags = fcntl_getfl(&descriptor)?;
    fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK)?;
    Ok(descriptor)
}

/// Lets a pipe hold more, so that its two ends change places less often. Where that is not allowed it holds
/// what it did.
pub(super) fn widen(descriptor: BorrowedFd<'_>) {
    let _ = rustix::pipe::fcntl_setpipe_size(descriptor, PIPE_BYTES);
}

fn standard(
    stream: BorrowedFd<'_>,
    name: &str,
    option: &str,
    access: OFlags,
) -> Result<OwnedFd, RuntimeError> {
    if rustix::termios::isatty(stream) {
        return Err(RuntimeError::Usage(format!(
            "{name} is a terminal, and containers are bytes: join modules with `|`, or say {option}"
        )));
    }
    let failed = |error: Errno| RuntimeError::os(format!("opening {name} (is it closed?)"), error);
    let mode = fstat(stream).map_err(failed)?.st_mode;
    if FileType::from_raw_mode(mode) == FileType::Fifo {
        widen(stream);
        // Other processes may hold the same end, and its flags are theirs too: opened anew, it has its own.
        let path = format!("/proc/self/fd/{}", stream.as_raw_fd());
        if let Ok(descriptor) = open(path, access | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
            return Ok(descriptor);
        }
    }
    own(stream).map_err(|error| RuntimeError::os(format!("opening {name}"), error))
}

fn refused(path: &Path, error: Errno) -> RuntimeError {
    let name = path.display();
    match error {
        Errno::NOENT => {
            RuntimeError::Usage(format!("there is no {name}: `mkfifo {name}` makes a named pipe"))
        }
        Errno::NXIO => {
            RuntimeError::Usage(format!("{name} is a socket: name a FIFO (`mkfifo`) or a file of containers"))
        }
        Errno::ISDIR => RuntimeError::Usage(format!("{name} is a directory: name a FIFO (`mkfifo`)")),
        error => RuntimeError::os(format!("opening {name}"), error),
    }
}
