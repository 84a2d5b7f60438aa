//! Opens the pipes of `-r` and `-w`, and standard input and output, without blocking.
//!
//! A FIFO is opened for reading at once, and for writing as soon as it has a reader. So the modules of a shell
//! pipeline may start in any order.

use super::reader::Reader;
use super::writer::Writer;
use contract::ServiceError;
use contract::Time;
use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, open};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Interval between attempts to open a FIFO for writing: first, longest.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(50);
/// Requested capacity of pipes.
const PIPE_BYTES: usize = 1 << 20;

/// A FIFO that has no reader yet.
#[derive(Debug)]
pub struct Opening {
    path: PathBuf,
    at: Time,
    wait: Duration,
}

impl Opening {
    /// Path of the FIFO.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Time of the next attempt.
    pub fn at(&self) -> Time {
        self.at
    }

    /// Opens the FIFO if it has a reader now.
    pub fn try_open(&mut self, now: Time) -> io::Result<Option<OwnedFd>> {
        if now < self.at {
            return Ok(None);
        }
        match open(&self.path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
            Ok(descriptor) => Ok(Some(descriptor)),
            Err(Errno::NXIO) => {
                self.at = now.after(self.wait);
                self.wait = (self.wait * 2).min(POLL_INTERVAL_MAX);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Opens a pipe of `-r`.
pub fn open_reader(path: &Path) -> Result<Reader, ServiceError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let descriptor = open(path, flags, Mode::empty()).map_err(|error| open_error(path, error))?;
    widen(descriptor.as_fd());
    let name = path.display().to_string();
    Reader::new(&name, descriptor).map_err(|error| ServiceError::os(format!("preparing {name}"), error))
}

/// Opens a pipe of `-w`: a FIFO, or an existing file, which is truncated.
pub fn open_writer(path: &Path) -> Result<Writer, ServiceError> {
    let found = rustix::fs::stat(path).map_err(|error| open_error(path, error))?;
    if FileType::from_raw_mode(found.st_mode) == FileType::Fifo {
        return Ok(Writer::opening(Opening { path: path.into(), at: Time::ZERO, wait: POLL_INTERVAL }));
    }
    let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let descriptor = open(path, flags, Mode::empty()).map_err(|error| open_error(path, error))?;
    let name = path.display().to_string();
    Writer::new(&name, descriptor).map_err(|error| ServiceError::os(format!("preparing {name}"), error))
}

/// Opens standard input.
pub fn standard_input() -> Result<Reader, ServiceError> {
    let name = "standard input";
    let descriptor = standard(rustix::stdio::stdin(), name, "-r PIPE", OFlags::RDONLY)?;
    Reader::new(name, descriptor).map_err(|error| ServiceError::os(name, error))
}

/// Opens standard output.
pub fn standard_output() -> Result<Writer, ServiceError> {
    let name = "standard output";
    let descriptor = standard(rustix::stdio::stdout(), name, "-w PIPE", OFlags::WRONLY)?;
    Writer::new(name, descriptor).map_err(|error| ServiceError::os(name, error))
}

/// Duplicates a descriptor and makes it non-blocking.
pub fn duplicate(number: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let descriptor = rustix::io::fcntl_dupfd_cloexec(number, 3)?;
    let flags = fcntl_getfl(&descriptor)?;
    fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK)?;
    Ok(descriptor)
}

/// Requests a larger capacity of a pipe, for fewer switches between its ends. Keeps the old one on an error.
pub fn widen(descriptor: BorrowedFd<'_>) {
    let _ = rustix::pipe::fcntl_setpipe_size(descriptor, PIPE_BYTES);
}

fn standard(
    stream: BorrowedFd<'_>,
    name: &str,
    option: &str,
    access: OFlags,
) -> Result<OwnedFd, ServiceError> {
    if rustix::termios::isatty(stream) {
        return Err(ServiceError::Usage(format!(
            "{name} is a terminal, and containers are binary: connect modules with `|`, or use {option}"
        )));
    }
    let failed = |error: Errno| ServiceError::os(format!("opening {name} (is it closed?)"), error);
    let mode = fstat(stream).map_err(failed)?.st_mode;
    if FileType::from_raw_mode(mode) == FileType::Fifo {
        widen(stream);
        // Other processes may share the open file and its flags. Opening it again creates one of this process.
        let path = format!("/proc/self/fd/{}", stream.as_raw_fd());
        if let Ok(descriptor) = open(path, access | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
            return Ok(descriptor);
        }
    }
    duplicate(stream).map_err(|error| ServiceError::os(format!("opening {name}"), error))
}

fn open_error(path: &Path, error: Errno) -> ServiceError {
    let name = path.display();
    match error {
        Errno::NOENT => {
            ServiceError::Usage(format!("there is no {name}: `mkfifo {name}` makes a named pipe"))
        }
        Errno::NXIO => {
            ServiceError::Usage(format!("{name} is a socket: name a FIFO (`mkfifo`) or a file of containers"))
        }
        Errno::ISDIR => ServiceError::Usage(format!("{name} is a directory: name a FIFO (`mkfifo`)")),
        error => ServiceError::os(format!("opening {name}"), error),
    }
}
