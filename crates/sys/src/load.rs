//! The number of runnable threads on this machine (`/proc/loadavg`, `proc_loadavg(5)`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Longer than the only line of the file.
const LINE_BYTES: usize = 128;

/// The kernel's count. A reading takes about a microsecond.
#[derive(Debug)]
pub struct Load {
    file: File,
}

impl Load {
    /// Opens the file. Fails if it does not exist or is not readable.
    pub fn open() -> io::Result<Load> {
        Ok(Load { file: File::open("/proc/loadavg")? })
    }

    /// The number of threads that run or wait for a processor, including the caller; `None` if the kernel does
    /// not tell.
    pub fn runnable(&self) -> Option<usize> {
        let mut line = [0; LINE_BYTES];
        let count = self.file.read_at(&mut line, 0).ok()?;
        let line = std::str::from_utf8(&line[..count]).ok()?;
        line.split_ascii_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caller_is_runnable() {
        let load = Load::open().unwrap();
        assert!(load.runnable().is_some_and(|count| count >= 1));
        assert!(load.runnable().is_some_and(|count| count >= 1), "and again");
    }
}
